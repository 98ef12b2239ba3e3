"""Shapes and live ranges."""

import pytest

from morok.dtype import float32, index, int32, void
from morok.errors import ShapeError
from morok.ir.build import (
    after,
    bind,
    buffer,
    bufferize,
    define_global,
    define_local,
    end,
    load,
    pick,
    reduce,
    rng,
    sink,
    store,
    variable,
)  # fmt: skip
from morok.ir.build import index as element
from morok.ir.infer import closed_ranges, numel, ranges, shape, sorted_ranges
from morok.ir.movement import expand, flip, pad, permute, reduce_axis, reshape, shrink
from morok.ir.node import UOp, alu, const, make
from morok.ir.ops import AxisKind, Ops


def tensor(*sizes: int) -> UOp:
    total = 1
    for size in sizes:
        total *= size
    return reshape(buffer(float32, total, "CPU", 0), sizes)


N = variable("n", 1, 64)


def test_sources_of_values() -> None:
    assert shape(const(float32, 1.0)) == ()
    assert shape(buffer(float32, 12, "CPU", 0)) == (12,)
    assert shape(N) == shape(bind(N, 3)) == ()
    assert shape(rng(4, 0)) == ()
    assert shape(define_global(float32, 8, 0)) == (8,)


def test_movement() -> None:
    x = tensor(2, 3, 4)
    assert shape(x) == (2, 3, 4)
    assert shape(permute(x, (2, 0, 1))) == (4, 2, 3)
    assert shape(expand(reshape(x, (2, 1, 12)), (2, 5, 12))) == (2, 5, 12)
    assert shape(pad(x, ((0, 0), (1, 2), (0, 3)))) == (2, 6, 7)
    assert shape(shrink(x, ((0, 1), (1, 3), (0, 4)))) == (1, 2, 4)
    assert shape(flip(x, (True, False, True))) == (2, 3, 4)
    assert shape(reduce_axis(x, Ops.ADD, (0, 2))) == (1, 3, 1)


def test_sizes_are_python_ints_or_nodes() -> None:
    x = expand(reshape(tensor(4), (1, 4)), (N, 4))
    assert shape(x) == (N, 4)
    assert all(type(s) is int or s is N for s in shape(x) or ())
    assert shape(pad(x, ((0, 0), (N, 1)))) == (N, alu(Ops.ADD, N, const(index, 5)))
    assert shape(pad(x, ((0, 0), (1, 1)))) == (N, 6)
    assert shape(shrink(x, ((0, 1), (0, 4)))) == (1, 4)
    assert shape(shrink(x, ((0, N), (2, 4)))) == (N, 2)


def test_numel() -> None:
    assert numel(()) == 1
    assert numel((2, 3)) == 6
    assert numel((2, N, 3)) == alu(Ops.MUL, N, const(index, 6))
    assert numel((N,)) is N
    assert numel((N, 0)) == 0


def test_elementwise() -> None:
    x = tensor(2, 3)
    one = const(float32, 1.0)
    assert shape(x + one) == (2, 3)
    assert shape((x < one).where(x, one)) == (2, 3)
    assert shape(alu(Ops.MULACC, one, one, x)) == (2, 3)
    assert shape(make(Ops.CONTIGUOUS, float32, (x,))) == (2, 3)
    assert shape(make(Ops.CAST, int32, (x,))) == (2, 3)


def test_effects_have_no_shape() -> None:
    address = element(define_global(float32, 8, 0), 0)
    write = store(address, 1.0)
    assert shape(write) is None
    assert shape(sink(write)) is None
    assert shape(load(address)) == ()


def test_a_mismatch_is_one_sentence_with_the_users_line() -> None:
    bad = tensor(2, 3) + tensor(3, 2)
    with pytest.raises(
        ShapeError,
        match=r"^ADD needs operands of one shape .*got \(2, 3\) and \(3, 2\).* \(at test_infer.py:\d+\)$",
    ):
        shape(bad)


def test_shape_of_a_chain_of_100_000_nodes() -> None:
    x = tensor(2, 3)
    one = const(float32, 1.0)
    for _ in range(100_000):
        x = x + one
    assert shape(x) == (2, 3)


# --- ranges

R0, R1, R2 = rng(4, 0), rng(5, 1), rng(6, 2, AxisKind.REDUCE)


def test_a_value_lives_in_the_ranges_it_depends_on() -> None:
    assert ranges(const(index, 1)) == frozenset()
    assert ranges(R0) == {R0}
    assert ranges(R0 * 4 + R1) == {R0, R1}
    assert sorted_ranges(R1 + R0) == [R0, R1]


def test_the_end_of_a_range_may_depend_on_another() -> None:
    triangle = rng(R0 + 1, 7)
    assert ranges(triangle) == {triangle, R0}
    assert ranges(reduce(triangle, Ops.ADD, (triangle,))) == {R0}


def test_a_reduction_closes_its_ranges() -> None:
    x = load(element(define_global(float32, 120, 0), R0 * 30 + R1 * 6 + R2))
    total = reduce(x, Ops.ADD, (R2,))
    assert ranges(total) == {R0, R1}
    assert closed_ranges(total) == (R2,)
    both = reduce((x, x), (Ops.MAX, Ops.ADD), (R1, R2))
    assert ranges(both) == ranges(pick(both, 1)) == {R0}


def test_closing_an_expression_closes_all_its_ranges() -> None:
    split = R1 * 6 + R2
    assert ranges(reduce(R0 + split, Ops.ADD, (split,))) == {R0}


def test_end_and_bufferize_close_their_ranges() -> None:
    value = load(element(define_global(float32, 20, 0), R0 * 5 + R1))
    write = store(element(define_global(float32, 20, 1), R0 * 5 + R1), value)
    assert ranges(write) == {R0, R1}
    assert ranges(end(write, R1)) == {R0}
    assert ranges(end(write, R0, R1)) == frozenset()
    row = bufferize(value, R1)
    assert ranges(row) == {R0}
    assert shape(row) == (5,)
    local = define_local(float32, 5, "row")
    assert ranges(after(local, end(store(element(local, R1), value), R1))) == {R0}


def test_long_chains_share_one_set() -> None:
    n = R0 + R1
    first = ranges(n)
    for i in range(100_000):
        n = n + (R0 if i % 2 else R1)
    assert ranges(n) is first


def test_nodes_without_ranges_share_the_empty_set() -> None:
    assert ranges(const(index, 3) + N) is ranges(make(Ops.SINK, void, ()))


def test_the_shape_of_a_state_says_nothing_of_what_was_written() -> None:
    """A look at memory would else go through the whole program that has written it."""
    x = tensor(2, 3)
    written = make(Ops.ASSIGN, float32, (x, alu(Ops.ADD, x, alu(Ops.MUL, x, x))))
    assert shape(after(x, written)) == (2, 3) and written.shape_ is None
    assert shape(written) == (2, 3)
