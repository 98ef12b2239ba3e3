"""Kernels with random axes split off as vectors, unrolled loops and threads, on several vector widths."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from morok.device.interpreter import run_kernel
from morok.dtype import float32, float64
from morok.ir.build import define_global, rng, sink
from morok.ir.node import UOp, const, toposort
from morok.ir.ops import AxisKind, Ops
from morok.machine.machine import Machine
from tests.codegen.kernels import (
    REDUCE,
    UNROLL,
    UPCAST,
    add,
    buffers,
    convolution,
    layer_norm,
    matmul,
    native,
    noise,
    padded_copy,
    read,
    row_sum,
    softmax,
    split,
    write,
)

STORED = frozenset((float32, float64))
TARGETS = {
    "neon": Machine("neon", vector_bytes=16, threads=True, wide_index=True, stored_floats=STORED),
    "avx2": Machine(
        "avx2",
        vector_bytes=32,
        registers=16,
        masked_memory=True,
        threads=True,
        stored_floats=STORED,
    ),
    "avx512": Machine(
        "avx512",
        vector_bytes=64,
        masked_memory=True,
        threads=True,
        wide_index=True,
        stored_floats=STORED,
    ),
    "scalar": Machine("scalar", scalar_alu=True, vector_bytes=4, fma=False, stored_floats=STORED),
    "gpu-like": Machine("gpu-like", scalar_alu=True, vector_bytes=16, stored_floats=STORED),
}


def column_sum() -> UOp:
    o, x = buffers(12, 96)
    c, r = rng(12, 0), rng(8, 1, REDUCE)
    return sink(write(o, c, read_sum(x, r * 12 + c, r), c))


def read_sum(x: UOp, place: UOp, r: UOp) -> UOp:
    from morok.ir.build import reduce

    return reduce(read(x, place), Ops.ADD, [r])


def tail() -> UOp:
    """A vector that does not divide the row: guarded loads and stores."""
    o, x = buffers(22, 22)
    r = rng(24, 0)
    inside = r < 22
    return sink(write(o, r, read(x, r, inside) * 2.0, r, gate=inside))


def transpose() -> UOp:
    o, x = buffers(96, 96)
    i, j = rng(8, 0), rng(12, 1)
    return sink(write(o, j * 8 + i, read(x, i * 12 + j), i, j))


def reverse_and_stride() -> UOp:
    o, x = buffers(12, 48)
    i = rng(12, 0)
    return sink(write(o, i * -1 + 11, read(x, i * 4 + 1) + read(x, (i // 3) * 2 + i % 3), i))


KERNELS: dict[str, tuple[Any, list[int]]] = {
    "add": (add(48), [48, 48, 48]),
    "sum": (row_sum(6, 24), [6, 144]),
    "max": (row_sum(6, 24, Ops.MAX), [6, 144]),
    "columns": (column_sum(), [12, 96]),
    "softmax": (softmax(4, 24), [96, 96]),
    "norm": (layer_norm(4, 12), [48, 48, 12, 12]),
    "matmul": (matmul(8, 12, 6), [96, 48, 72]),
    "convolution": (convolution(2, 4, 6), [144, 72, 72]),
    "pad": (padded_copy(17, 3, 4), [24, 17]),
    "tail": (tail(), [22, 22]),
    "transpose": (transpose(), [96, 96]),
    "stride": (reverse_and_stride(), [12, 48]),
}
EXPECTED: dict[str, Any] = {}


def arrays(name: str) -> list[np.ndarray]:
    return [noise(n, i) for i, n in enumerate(KERNELS[name][1])]


def expected(name: str) -> np.ndarray:
    if name not in EXPECTED:
        data = arrays(name)
        run_kernel(KERNELS[name][0], data)
        EXPECTED[name] = data[0]
    return EXPECTED[name]


@st.composite
def versions(draw: st.DrawFn) -> tuple[str, str, tuple[tuple[int, int, AxisKind, bool], ...]]:
    """A kernel, a device, and splits of its axes."""
    name = draw(st.sampled_from(sorted(KERNELS)))
    target = draw(st.sampled_from(sorted(TARGETS)))
    steps = []
    kernel = KERNELS[name][0]
    threaded = False
    for _ in range(draw(st.integers(1, 4))):
        axes = [r for r in toposort(kernel) if r.op is Ops.RANGE and r.arg[1] in (AxisKind.LOOP, REDUCE)]
        axes = [r for r in axes if r.src[0].arg > 1]
        if not axes:
            break
        r = draw(st.sampled_from(sorted(axes, key=lambda r: r.arg[0])))
        size = r.src[0].arg
        amount = draw(st.sampled_from([d for d in range(2, size + 1) if size % d == 0]))
        kind = UNROLL if r.arg[1] is REDUCE else draw(st.sampled_from([UPCAST, UPCAST, AxisKind.THREAD]))
        if kind is AxisKind.THREAD and (threaded or not TARGETS[target].threads):
            kind = UPCAST
        threaded |= kind is AxisKind.THREAD
        outer = draw(st.booleans())
        steps.append((r.arg[0], amount, kind, outer))
        kernel = split(kernel, r.arg[0], amount, kind, outer)
    return name, target, tuple(steps)


def run(name: str, target: str, steps: tuple[tuple[int, int, AxisKind, bool], ...]) -> None:
    kernel = KERNELS[name][0]
    for number, amount, kind, outer in steps:
        kernel = split(kernel, number, amount, kind, outer)
    data = arrays(name)
    native(kernel, data, target=TARGETS[target])
    np.testing.assert_allclose(data[0], expected(name), rtol=2e-5, atol=2e-5)


@given(versions())
@settings(max_examples=40)
def test_any_split_gives_the_same_answer(version: tuple[str, str, Any]) -> None:
    run(*version)


@pytest.mark.slow
@given(versions())
@settings(max_examples=1500)
def test_many_splits(version: tuple[str, str, Any]) -> None:
    run(*version)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", ["tail", "pad", "convolution"])
def test_guarded_vectors(name: str, target: str) -> None:
    axis = 2 if name == "convolution" else 0
    amount = 6 if name == "convolution" else 8
    run(name, target, ((axis, amount, UPCAST, False),))


def test_a_constant_place() -> None:
    o = define_global(float32, 4, 0)
    r = rng(4, 0, UPCAST)
    data = [np.zeros(4, np.float32)]
    native(sink(write(o, r, const(float32, 7.0), r)), data)
    assert data[0].tolist() == [7.0] * 4


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("size", [2, 7, 8, 9])
def test_rows_that_are_rounded_up_overlap(target: str, size: int) -> None:
    """Rows of a tile are wider than those in memory: the masked end of one lies where the next begins.

    Both the lanes that are read and those that are written at such a place disagree about the condition.
    """
    o, x = buffers(size * size, size * size)
    i, j = rng(size, 0, UPCAST), rng(16, 1, UPCAST)
    inside = j < size
    kernel = sink(write(o, i * size + j, read(x, i * size + j, inside) * 2.0, i, j, gate=inside))
    data = noise(size * size)
    out = np.full(size * size, np.nan, np.float32)
    native(kernel, [out, data], target=TARGETS[target])
    np.testing.assert_array_equal(out, data * 2)
