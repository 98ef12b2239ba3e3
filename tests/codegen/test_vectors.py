"""Lanes as they are picked and joined, reads as loads, ops cut to registers: the nodes themselves."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from morok.codegen.vector.devectorize import cut_arithmetic
from morok.codegen.vector.indices import lane_conditions
from morok.codegen.vector.loads import add_load, certain
from morok.codegen.vector.vectors import (
    by_lanes,
    concat,
    gather,
    splat,
    swizzle,
    turned,
    turned_rows,
    vector_constant,
)
from morok.dtype import DType, bool_, float16, float32, index, void
from morok.ir.build import define_global, rng
from morok.ir.node import UOp, alu, const, make
from morok.ir.ops import Ops
from morok.machine.machine import BASIC_OPS, Machine
from morok.rewrite.engine import substitute
from morok.symbolic.sets import simplify


def given(name: str, dtype: DType = float32) -> UOp:
    return make(Ops.DEFINE_VAR, dtype, (), (name, 0, 9))


def lane(x: UOp, *lanes: int) -> UOp:
    return make(Ops.GEP, x.dtype.scalar.vec(len(lanes)), (x,), lanes)


def test_constants_of_equal_lanes_are_one() -> None:
    assert vector_constant(float32, [2.0, 2.0]) is const(float32.vec(2), 2.0)
    for values in ([0.0, -0.0], [1.0, 2.0], [1, 1.0], [True, 1]):
        made = vector_constant(float32, values)
        assert made.op is Ops.VCONST and [repr(v) for v in made.arg] == [repr(v) for v in values]
    nan = float("nan")
    assert vector_constant(float32, [nan, nan]).op is Ops.VCONST  # NaN is like nothing, itself included


def test_a_scalar_in_every_lane() -> None:
    x = given("x")
    assert splat(x, 1) is x and splat(x, 3) is make(Ops.VECTORIZE, float32.vec(3), (x, x, x))
    two = const(float32, 2.0)
    assert splat(two, 4) is const(float32.vec(4), 2.0)


def test_one_lane_twice_is_that_scalar_twice() -> None:
    v = given("v", float32.vec(4))
    assert swizzle(v, (2, 2)) is splat(lane(v, 2), 2)
    assert swizzle(v, (2, 2, 2)) is splat(lane(v, 2), 3)
    assert swizzle(v, (2,)) is lane(v, 2) and swizzle(v, (0, 1, 2, 3)) is v
    assert swizzle(v, (3, 1)) is lane(v, 3, 1) and swizzle(lane(v, 3, 1), (1, 0)) is lane(v, 1, 3)


def test_a_lane_of_each_row_is_one_node() -> None:
    """From eight rows on, of numbers that have four bytes at least; stages would go through each element."""
    rows = [given(f"r{i}", float32.vec(8)) for i in range(9)]
    whole = concat(rows[:8])
    column = swizzle(whole, range(3, 64, 8))
    assert column is lane(whole, *range(3, 64, 8)) and turned_rows(column) == (tuple(rows[:8]), 3)
    assert swizzle(column, (2,)) is lane(rows[2], 3)
    assert turned(gather([lane(row, 3) for row in rows[:8]])) is column
    assert by_lanes(column) is gather([lane(row, 3) for row in rows[:8]])
    everything = swizzle(whole, [8 * i + k for k in range(8) for i in range(8)])
    assert everything.op is Ops.CAT and everything.src[3] is column
    assert concat(everything.src) is everything
    other = concat([rows[8], *rows[:7]])
    assert swizzle(concat(rows), [8 * i + 3 for i in (8, 0, 1, 2, 3, 4, 5, 6)]) is lane(
        other, *range(3, 64, 8)
    )
    assert swizzle(whole, [3, 11, 19, 27, 35, 43, 51, 60]).op is Ops.VECTORIZE
    assert swizzle(whole, [3] * 4 + [11] * 4).op is not Ops.GEP
    few = concat([given(f"r{i}", float32.vec(4)) for i in range(4)])
    assert swizzle(few, (1, 5, 9, 13)).op is Ops.VECTORIZE
    narrow = concat([given(f"n{i}", float16.vec(8)) for i in range(8)])
    assert swizzle(narrow, range(3, 64, 8)).op is Ops.VECTORIZE


def test_lanes_of_even_and_of_uneven_parts() -> None:
    a, b, c = given("a", float32.vec(2)), given("b", float32.vec(2)), given("c", float32.vec(4))
    for parts in ((a, b), (a, c), (c, a), (a, b, c), (given("s"), a, given("t"))):
        whole = concat(parts)
        assert whole.op is Ops.CAT and whole.dtype.lanes == sum(p.dtype.lanes for p in parts)
        places = [(p, i) for p in parts for i in range(p.dtype.lanes)]
        for at, (part, i) in enumerate(places):
            assert swizzle(whole, (at,)) is swizzle(part, (i,)), (parts, at)
        start = 0
        for part in parts:
            assert swizzle(whole, range(start, start + part.dtype.lanes)) is part
            start += part.dtype.lanes


def test_lanes_of_one_vector_are_lanes_of_it() -> None:
    v, w, x = given("v", float32.vec(4)), given("w", float32.vec(4)), given("x")
    assert gather([lane(v, i) for i in range(4)]) is v
    assert gather([x]) is x and gather([lane(v, 2)]) is lane(v, 2)
    assert gather([lane(v, 2), lane(v, 0)]) is lane(v, 2, 0)
    root = alu(Ops.NEG, v)
    for xs in ([lane(v, 0), lane(w, 1)], [lane(v, 0), x], [x, lane(v, 0)]):
        assert gather(xs) is make(Ops.VECTORIZE, float32.vec(2), tuple(xs))
    # another op that reads the same vector is no lane of it
    other = make(Ops.VREDUCE, float32, (root,), Ops.ADD)
    both = [lane(root, 0), other]
    assert gather(both) is make(Ops.VECTORIZE, float32.vec(2), tuple(both))
    assert gather(both[::-1]) is make(Ops.VECTORIZE, float32.vec(2), tuple(both[::-1]))


# --- loads


def read(dtype: DType, *rest: UOp, place: UOp | None = None) -> UOp:
    memory = define_global(float32, 8, 0)
    return make(Ops.INDEX, dtype, (memory, const(index, 1) if place is None else place, *rest))


def test_a_read_is_a_load_of_an_address() -> None:
    memory = define_global(float32, 8, 0)
    made = add_load(read(float32))
    assert made is not None and made.op is Ops.LOAD and made.dtype is float32 and len(made.src) == 1
    assert made.src[0].dtype is memory.dtype and made.src[0].src == (memory, const(index, 1))
    many = vector_constant(index, [0, 2])
    wide = add_load(read(float32.vec(2), place=many))
    assert wide is not None and wide.dtype is float32.vec(2) and wide.src[0].dtype is memory.dtype.vec(2)
    gate = alu(Ops.CMPLT, given("x"), const(float32, 1.0))
    gated = add_load(read(float32, gate))
    assert gated is not None and gated.src[1:] == (const(float32, 0.0),) and gated.src[0].src[-1] is gate
    other = add_load(read(float32, const(index, 3)))  # two places are no condition
    assert other is not None and len(other.src) == 1
    assert add_load(made.src[0]) is None  # an address is no read
    value = make(Ops.INDEX, float32, (given("v", float32.vec(4)), const(index, 1)))
    assert add_load(value) is None  # nor is a value memory


@pytest.mark.parametrize("op", [Ops.LOAD, Ops.STORE], ids=lambda op: op.name)
def test_a_condition_that_always_holds_is_dropped(op: Any) -> None:
    memory, x = define_global(float32, 8, 0), given("x")
    value = x if op is Ops.STORE else const(float32, 0.0)
    dtype = void if op is Ops.STORE else float32

    def access(*gates: UOp) -> UOp:
        address = make(Ops.INDEX, memory.dtype, (memory, const(index, 1), *gates))
        return make(op, dtype, (address, value))

    plain = make(Ops.INDEX, memory.dtype, (memory, const(index, 1)))
    wanted = make(op, dtype, (plain,) if op is Ops.LOAD else (plain, x))
    assert certain(access(const(bool_, True))) is wanted
    for gate in (const(bool_, False), alu(Ops.CMPLT, x, const(float32, 1.0)), const(index, 1)):
        assert certain(access(gate)) is None
    assert certain(access()) is None
    three = make(Ops.VECTORIZE, float32.vec(3), (x, x, const(bool_, True)))
    assert certain(make(op, dtype, (three, value))) is None  # no address


# --- the width of a register


def machine(**facts: Any) -> Any:
    return SimpleNamespace(machine=Machine("given", vector_bytes=16, ops=BASIC_OPS, **facts))


def test_an_op_is_cut_into_registers() -> None:
    x, y = given("x", float32.vec(8)), given("y", float32.vec(8))
    made = cut_arithmetic(alu(Ops.ADD, x, y), machine())
    halves = [alu(Ops.ADD, lane(x, *part), lane(y, *part)) for part in (range(4), range(4, 8))]
    assert made is concat(halves)
    for node in (
        alu(Ops.ADD, given("a", float32.vec(4)), given("b", float32.vec(4))),
        alu(Ops.ADD, given("a"), given("b")),
        alu(Ops.ADD, given("a", index.vec(8)), given("b", index.vec(8))),
        make(Ops.GROUP, void, (x, y)),
        lane(given("z", float32.vec(16)), *range(8)),
        make(Ops.WHERE, float32.vec(8), (given("c", bool_), x, y)),
    ):  # fmt: skip
        assert cut_arithmetic(node, machine()) is None, node


def test_truths_are_as_wide_as_what_was_compared() -> None:
    parts = [given(n, bool_.vec(4)) for n in "abcd"]
    p, q = concat(parts[:2]), concat(parts[2:])
    made = cut_arithmetic(alu(Ops.AND, p, q), machine())
    assert made is concat([alu(Ops.AND, parts[0], parts[2]), alu(Ops.AND, parts[1], parts[3])])
    whole = alu(Ops.AND, given("e", bool_.vec(8)), given("f", bool_.vec(8)))
    assert cut_arithmetic(whole, machine()) is None  # sixteen truths of a byte each fit


def cut_condition(limit: int, step: int = 12) -> tuple[UOp, UOp]:
    """lane + r*step < limit for 12 lanes, cut into registers of two; and r."""
    r = rng(66, 0)
    places = alu(
        Ops.ADD,
        make(Ops.VCONST, index.vec(12), (), tuple(range(12))),
        make(Ops.VECTORIZE, index.vec(12), (r * step,) * 12),
    )
    parts = [swizzle(places, (i, i + 1)) for i in range(0, 12, 2)]
    compared = [alu(Ops.CMPLT, part, const(index.vec(2), limit)) for part in parts]
    return make(Ops.CAT, bool_.vec(12), tuple(compared)), r


@pytest.mark.parametrize(
    ("limit", "step", "different"), [(784, 12, 2), (49, 12, 2), (780, 12, 1), (50, 5, 3), (50, 1, 12)]
)
def test_lanes_that_agree_have_one_condition(limit: int, step: int, different: int) -> None:
    """784 is no multiple of 12, but of 4: whole registers are stored, or nothing of them."""
    gate, r = cut_condition(limit, step)
    found = lane_conditions(gate)
    assert len(set(found)) == different
    for i, condition in enumerate(found):
        for value in (0, 3, 4, 9, 10, 64, 65):
            plain = simplify(substitute(condition, {r: const(index, value)}))
            if plain.op is Ops.CONST:  # a lane of a register is taken out of it
                assert plain.arg == (value * step + i < limit)
            else:
                assert condition.op is Ops.GEP
