"""Whole kernels, plain and with split axes, against the interpreter."""

import numpy as np
import pytest

from morok.dtype import float32, int32, int64
from morok.ir.build import cast, define_global, pick, reduce, rng, sink, variable
from morok.ir.node import UOp, alu, const
from morok.ir.ops import AxisKind, Ops
from tests.codegen.kernels import (
    REDUCE,
    UNROLL,
    UPCAST,
    add,
    buffers,
    check,
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
    zeros,
)


def test_add() -> None:
    check(add(37), [zeros(37), noise(37), noise(37, 1)], rtol=0)
    kernel = split(add(64), 0, 8, UPCAST)
    check(kernel, [zeros(64), noise(64), noise(64, 1)], rtol=0, reference=add(64))


@pytest.mark.parametrize("op", [Ops.ADD, Ops.MAX, Ops.MIN, Ops.MUL])
@pytest.mark.parametrize("unroll", [1, 2, 4, 16, 60])
def test_row_reductions(op: object, unroll: int) -> None:
    kernel = row_sum(5, 60, op)
    vector = kernel if unroll == 1 or 60 % unroll else split(kernel, 1, unroll, UNROLL)
    check(vector, [zeros(5), noise(300)], reference=kernel, rtol=2e-5, atol=1e-5)


@pytest.mark.parametrize("make", [softmax, layer_norm])
def test_row_kernels(make) -> None:  # type: ignore[no-untyped-def]
    rows, columns = 6, 48
    kernel = make(rows, columns)
    data = [zeros(rows * columns), noise(rows * columns), noise(columns, 1), noise(columns, 2)]
    data = data[: 2 if make is softmax else 4]
    check(kernel, data, rtol=1e-5)
    vector = split(split(split(kernel, 1, 8, UNROLL), 2, 16, UNROLL), 3, 4, UPCAST)
    check(vector, data, reference=kernel, rtol=1e-5)
    threads = split(vector, 0, 2, AxisKind.THREAD, outer=True)
    check(threads, data, reference=kernel, rtol=1e-5)


@pytest.mark.parametrize("tile", [(1, 1, 1), (2, 4, 1), (4, 8, 2), (1, 12, 3), (3, 2, 6)])
def test_matmul(tile: tuple[int, int, int]) -> None:
    kernel = matmul(12, 24, 18)
    i, j, k = tile
    tiled = kernel
    for number, amount, kind in ((0, i, UPCAST), (1, j, UPCAST), (2, k, UNROLL)):
        tiled = split(tiled, number, amount, kind) if amount > 1 else tiled
    check(tiled, [zeros(288), noise(216), noise(432, 1)], reference=kernel, rtol=1e-5, atol=1e-5)


def test_convolution_with_padding() -> None:
    kernel = convolution(3, 4, 8)
    data = [zeros(256), noise(192), noise(108, 1)]
    check(kernel, data, rtol=1e-5, atol=1e-5)
    check(split(kernel, 2, 4, UPCAST), data, reference=kernel, rtol=1e-5, atol=1e-5)
    both = split(split(kernel, 2, 8, UPCAST), 0, 2, UPCAST)
    check(split(both, 5, 3, UNROLL), data, reference=kernel, rtol=1e-5, atol=1e-5)


def test_padding_as_a_choice() -> None:
    kernel = padded_copy(10, 3, 3)
    check(kernel, [zeros(16), noise(10)], rtol=0)
    check(split(kernel, 0, 4, UPCAST), [zeros(16), noise(10)], reference=kernel, rtol=0)


def test_gather() -> None:
    o, x = buffers(12, 40)
    places = define_global(int64, 3, 2)
    r, c = rng(3, 0), rng(4, 1)
    row = cast(read(places, r), c.dtype)
    inside = (row < 10) & (const(row.dtype, -1) < row)
    kernel = sink(write(o, r * 4 + c, read(x, row * 4 + c, inside), r, c))
    data = [zeros(12), noise(40), np.array([3, 11, 9], dtype=np.int64)]
    check(kernel, data, rtol=0)
    check(split(kernel, 1, 4, UPCAST), data, reference=kernel, rtol=0)


def test_two_effects_share_their_loops() -> None:
    o, p, x = buffers(6, 24, 24)
    r, c, d = rng(6, 0), rng(4, 1, REDUCE), rng(4, 2)
    total = reduce(read(x, r * 4 + c), Ops.ADD, [c])
    kernel = sink(write(o, r, total, r), write(p, r * 4 + d, read(x, r * 4 + d) / total, r, d))
    check(kernel, [zeros(6), zeros(24), np.abs(noise(24)) + 1], outputs=2)


def test_reductions_of_several_values() -> None:
    o, x = buffers(2 * 5, 5 * 8)
    r, c = rng(5, 0), rng(8, 1, REDUCE)
    both = reduce([read(x, r * 8 + c), read(x, r * 8 + c)], [Ops.MAX, Ops.ADD], [c])
    kernel = sink(write(o, r, pick(both, 0), r), write(o, r + 5, pick(both, 1), r))
    check(kernel, [zeros(10), noise(40)], rtol=1e-5, atol=1e-5)


def test_a_reduction_inside_a_reduction_over_the_same_range() -> None:
    o, x = buffers(5, 40)
    r, c = rng(5, 0), rng(8, 1, REDUCE)
    top = reduce(read(x, r * 8 + c), Ops.MAX, [c])
    kernel = sink(write(o, r, reduce(read(x, r * 8 + c) - top, Ops.ADD, [c]), r))
    check(kernel, [zeros(5), noise(40)], rtol=1e-5, atol=1e-5)


def test_variable_sizes() -> None:
    n = variable("n", 0, 10)
    o, x = buffers(1, 10)
    c = rng(n, 0, REDUCE)
    kernel = sink(write(o, 0, reduce(read(x, c), Ops.ADD, [c])))
    for size in (0, 1, 7, 10):
        check(kernel, [zeros(1), noise(10)], {"n": size}, rtol=1e-5)
    r = rng(n, 0)
    copy = sink(write(buffers(10, 10)[0], r, read(x, r), r))
    for size in (0, 3, 10):
        out = check(copy, [zeros(10), noise(10)], {"n": size}, rtol=0)
        assert np.count_nonzero(out[0]) == size


def test_local_buffer_of_a_row() -> None:
    from morok.ir.build import bufferize

    o, x = buffers(24, 24)
    r, c, d, e = rng(4, 0), rng(6, 1), rng(6, 2), rng(6, 3, REDUCE)
    row = bufferize(alu(Ops.EXP, read(x, r * 6 + c)), c, arg=("local", "row"))

    def at(i: UOp) -> UOp:
        from morok.ir.node import make

        return make(Ops.INDEX, float32, (row, i))

    kernel = sink(write(o, r * 6 + d, at(d) / reduce(at(e), Ops.ADD, [e]), r, d))
    check(kernel, [zeros(24), noise(24)], rtol=1e-5)


def test_triangular_loops() -> None:
    o, x = buffers(6, 6)
    r = rng(6, 0)
    c = rng(r + 1, 1, REDUCE)
    kernel = sink(write(o, r, reduce(read(x, c), Ops.ADD, [c]), r))
    data = [zeros(6), noise(6)]
    native(kernel, data)
    np.testing.assert_allclose(data[0], np.cumsum(data[1]), rtol=1e-5)


def test_integer_sums_are_exact() -> None:
    o = buffers(1, dtype=int32)[0]
    x = buffers(0, 64, dtype=int32)[1]
    c = rng(64, 0, REDUCE)
    kernel = sink(write(o, 0, reduce(read(x, c), Ops.ADD, [c])))
    data = [np.zeros(1, np.int32), np.random.default_rng(0).integers(-(2**31), 2**31, 64).astype(np.int32)]
    check(kernel, data)
    check(split(kernel, 0, 16, UNROLL), data, reference=kernel)
