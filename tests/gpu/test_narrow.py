"""Integers wrap in their own type after every operation, in CUDA C too.

The emulator computes in NumPy, where an int16 is never anything else. In C it is an int as soon as something
is done with it, and NVIDIA's assembler has instructions of 16 bits that do not wrap. So each result is looked
at as a wider number and in a comparison, by the host's C compiler and in the instructions that NVRTC makes.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from morok import Tensor, knobs
from morok.codegen.pipeline import lower
from morok.dtype import DType, bool_, int16, int64, uint16
from morok.ir.arithmetic.alu import evaluate_array
from morok.ir.arithmetic.arrays import storage
from morok.ir.build import cast, define_global, rng, sink
from morok.ir.node import UOp, alu, const
from morok.ir.ops import Op, Ops
from morok.render.cuda.kernel import render
from tests.codegen.kernels import read, write
from tests.codegen.test_arithmetic import INTS
from tests.gpu.host_c import run_on_host
from tests.gpu.kernels import DEVICE, TARGET
from tests.gpu.test_arithmetic import ops_on


def edges(dtype: DType) -> list[int]:
    low, high = dtype.min, dtype.max
    powers = [1 << k for k in range(1, dtype.bits)]
    values = {low, low + 1, -3, -1, 0, 1, 3, high - 1, high, *powers, *(-p for p in powers[-2:])}
    return sorted(v for v in values if low <= v <= high)


def all_pairs(dtype: DType) -> list[Any]:
    pairs = np.array(list(itertools.product(edges(dtype), repeat=2)), storage(dtype))
    return [np.ascontiguousarray(column) for column in (pairs[:, 0], pairs[:, 1], pairs[::-1, 0])]


def _value(op: Op, x: list[UOp]) -> UOp:
    return alu(op, x[0] < x[1], x[1], x[2]) if op is Ops.WHERE else alu(op, *x[: op.arity])


def looked_at(dtype: DType) -> tuple[UOp, list[tuple[str, Any]], list[Any]]:
    """Every op of a type on all pairs, each result widened and compared.

    The kernel, what should come out, and what goes in.
    """
    given = all_pairs(dtype)
    n = len(given[0])
    # what the compiler makes a negation of is among the operations
    zero, ones = np.zeros_like(given[0]), np.full_like(given[0], -1 if dtype.min < 0 else dtype.max)
    ops: list[tuple[Op, tuple[Any, ...]]] = [(op, ()) for op in ops_on(dtype)]
    ops += [(Ops.SUB, (zero,)), (Ops.MUL, (ones,))]
    r = rng(n, 0)
    outputs: list[tuple[str, Any]] = []
    kinds: list[tuple[DType, UOp]] = []
    count = 2 * len(ops)
    inputs = [read(define_global(dtype, n, count + i), r) for i in range(3)]
    for op, first in ops:
        x = [const(dtype, int(first[0][0])), *inputs] if first else inputs
        arrays = [*first, *given]
        result = _value(op, x)
        if op is Ops.WHERE:
            want = evaluate_array(op, dtype, arrays[0] < arrays[1], arrays[1], arrays[2])
        else:
            want = evaluate_array(op, dtype, *arrays[: op.arity])
        outputs.append((f"{op.name} widened", want.astype(np.int64)))
        kinds.append((int64, cast(result, int64)))
        other = inputs[2] if not op.is_compare else cast(inputs[2], bool_)
        outputs.append((f"{op.name} compared", given[2].astype(want.dtype) < want))
        kinds.append((bool_, other < result))
    effects = [write(define_global(kind, n, i), r, v, r) for i, (kind, v) in enumerate(kinds)]
    return sink(*effects), outputs, given


def test_c_wraps_every_integer(tmp_path: Path) -> None:
    made = {dtype: looked_at(dtype) for dtype in INTS}
    programs, arrays = [], []
    for dtype, (kernel, outputs, given) in made.items():
        programs.append(render(lower(kernel, TARGET), f"k_{dtype}"))
        arrays.append([*(np.zeros_like(want) for _, want in outputs), *given])
    run_on_host(programs, arrays, tmp_path)
    for (dtype, (_, outputs, given)), results in zip(made.items(), arrays, strict=True):
        for (name, want), got in zip(outputs, results, strict=False):
            bad = np.flatnonzero(got != want)
            seen = [(*(int(g[i]) for g in given), got[i], want[i]) for i in bad[:3]]
            assert not seen, (str(dtype), name, seen)


def _ptx(text: str) -> str:
    nvrtc = pytest.importorskip("cuda.bindings.nvrtc")
    try:
        _, program = nvrtc.nvrtcCreateProgram(text.encode(), b"k.cu", 0, [], [])
    except RuntimeError as missing:
        pytest.skip(f"NVRTC is not installed: {missing}")
    options = [b"--gpu-architecture=compute_90"]
    (error,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    assert error == nvrtc.nvrtcResult.NVRTC_SUCCESS
    _, size = nvrtc.nvrtcGetPTXSize(program)
    code = b" " * size
    nvrtc.nvrtcGetPTX(program, code)
    return code.decode()


@pytest.mark.parametrize("dtype", [int16, uint16], ids=str)
def test_no_instruction_that_forgets_to_wrap(dtype: DType) -> None:
    """ptxas makes neg.s16 and abs.s16 instructions of 32 bits, and reads all 32 of the result."""
    text = _ptx(render(lower(looked_at(dtype)[0], TARGET), "k").text)
    assert "neg.s16" not in text and "abs.s16" not in text


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64"])
def test_the_least_integer_stays_negative(dtype: str) -> None:
    least = np.iinfo(dtype).min
    with knobs.override(DEVICE=DEVICE):
        x = Tensor(np.array([least, 5, -5], dtype))
        assert (-x > 0).tolist() == [False, False, True]
        assert (x.abs() > 0).tolist() == [False, True, True]
        assert (0 - x).double().tolist() == [float(least), -5.0, 5.0]
        assert (-x).sort()[0].tolist() == [least, -5, 5]
