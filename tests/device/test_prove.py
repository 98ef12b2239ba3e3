"""Proofs about kernels: accesses in bounds, no overflow, no races."""

import numpy as np
import pytest

from morok import Tensor, knobs
from morok.codegen.obligations import discharge, obligations
from morok.codegen.target import Target
from morok.device.cpu import CPU
from morok.device.prove import decide, prove_kernel
from morok.dtype import int64
from morok.errors import CompileError
from morok.ir.build import cast, define_global, rng, sink, variable
from morok.ir.node import UOp, const
from morok.ir.ops import AxisKind, Ops
from tests.codegen.kernels import (
    UPCAST,
    buffers,
    convolution,
    matmul,
    padded_copy,
    read,
    softmax,
    split,
    write,
)

pytest.importorskip("z3")
CPU_LIKE = Target("cpu", vector_bytes=16, threads=True, wide_index=True)


@pytest.mark.parametrize(
    "kernel", [softmax(4, 8), matmul(4, 8, 6), convolution(2, 3, 5), padded_copy(5, 2, 3)]
)
def test_good_kernels(kernel: UOp) -> None:
    report = discharge(kernel, CPU_LIKE, decide)
    assert not report.unknown and report.total == report.trivial + report.proved


def test_an_access_out_of_bounds() -> None:
    o, x = buffers(8, 8)
    r = rng(8, 0)
    with pytest.raises(CompileError, match=r"leaves its buffer: r0 = 7"):
        prove_kernel(sink(write(o, r, read(x, r + 1), r)), CPU_LIKE, "bad")
    # the gate makes it right
    prove_kernel(sink(write(o, r, read(x, r + 1, r < 7), r)), CPU_LIKE, "good")


def test_a_variable_that_is_too_large() -> None:
    n = variable("n", 1, 9)
    o, x = buffers(8, 8)
    r = rng(n, 0)
    with pytest.raises(CompileError, match="leaves its buffer"):
        prove_kernel(sink(write(o, r, read(x, r), r)), CPU_LIKE, "bad")


def test_races() -> None:
    o, x = buffers(64, 64)
    t, c = rng(8, 0, AxisKind.THREAD), rng(8, 1)
    prove_kernel(sink(write(o, t * 8 + c, read(x, t * 8 + c), t, c)), CPU_LIKE, "good")
    with pytest.raises(CompileError, match="write the same place"):
        prove_kernel(sink(write(o, t * 7 + c, read(x, t * 8 + c), t, c)), CPU_LIKE, "bad")
    # a plain loop may write a place twice
    r = rng(8, 0)
    prove_kernel(sink(write(o, r * 7 + c, read(x, r * 8 + c), r, c)), CPU_LIKE, "loops")


def test_overflow_is_an_obligation_only_without_bounds() -> None:
    kernel = matmul(4, 4, 4)
    assert not [o for o in obligations(kernel, CPU_LIKE) if o.kind == "overflow"]
    big = rng(1 << 62, 0)
    o, x = buffers(8, 8)
    with pytest.raises(CompileError, match="leaves"):
        prove_kernel(sink(write(o, (big * 8) % 8, read(x, 0), big)), CPU_LIKE, "bad")


def test_a_gathered_row_may_be_anything_where_the_gate_is_shut() -> None:
    o, x = buffers(12, 40)
    rows = define_global(int64, 3, 2)
    r, c = rng(3, 0), rng(4, 1)
    row = cast(read(rows, r), c.dtype)
    inside = (row < 10) & (const(row.dtype, -1) < row)
    prove_kernel(sink(write(o, r * 4 + c, read(x, row * 4 + c, inside), r, c)), CPU_LIKE, "gather")
    with pytest.raises(CompileError, match="leaves"):
        prove_kernel(sink(write(o, r * 4 + c, read(x, row * 4 + c, row < 10), r, c)), CPU_LIKE, "gather")


def test_the_knob() -> None:
    with knobs.override(PROVE=True):
        x = Tensor(np.arange(12, dtype=np.float32).reshape(3, 4))
        assert (x.pad(((1, 1), (0, 0))) * 2.0).sum(1).tolist() == [0.0, 12.0, 44.0, 76.0, 0.0]
        o, x_ = buffers(4, 4)
        r = rng(4, 0)
        with pytest.raises(CompileError, match="leaves its buffer"):
            CPU().compile(sink(write(o, r, read(x_, r * 2), r)), "bad")


def test_split_axes_are_proved_too() -> None:
    tiled = split(split(matmul(8, 8, 4), 0, 4, UPCAST), 1, 2, AxisKind.THREAD, outer=True)
    report = prove_kernel(tiled, CPU_LIKE, "tiled")
    assert report.proved and Ops.REDUCE
