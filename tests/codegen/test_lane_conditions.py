"""The condition of each lane of a vector: true where the vector's lane is, and one node where lanes agree."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from morok.codegen.vector.indices import Conditions, lane_conditions, push_lanes
from morok.codegen.vector.vectors import concat, lane, swizzle, vector_constant
from morok.dtype import bool_, index
from morok.ir.build import rng
from morok.ir.node import UOp, alu, const, make, toposort
from morok.ir.ops import Ops
from tests.expressions import value_of

R, S = rng(5, 0), rng(4, 1)
Truth = Callable[[int, int, int], bool]


def wide(x: UOp, lanes: int) -> UOp:
    return make(Ops.VECTORIZE, x.dtype.vec(lanes), (x,) * lanes)


def number(value: int, lanes: int) -> UOp:
    return const(index.vec(lanes), value)


def counted(x: UOp, lanes: int) -> UOp:
    """x, x + 1, x + 2 …"""
    return alu(Ops.ADD, wide(x, lanes), vector_constant(index, range(lanes)))


def below(x: UOp, y: UOp) -> UOp:
    return alu(Ops.CMPLT, x, y)


def in_parts(x: UOp, width: int) -> UOp:
    """A condition cut into registers, with operands that have been cut."""
    parts = []
    for start in range(0, x.dtype.lanes, width):
        cut = [swizzle(s, range(start, start + width)) for s in x.src]
        parts.append(alu(x.op, *cut))
    return make(Ops.CAT, x.dtype, tuple(parts))


COLUMN = counted(R * 12, 12)  # a tile of 12 columns
WIDE = concat([COLUMN] * 4)
EDGE = below(COLUMN, number(50, 12))
INSIDE = alu(Ops.FLOORMOD, COLUMN, number(7, 12))
TAKEN = make(Ops.GEP, index, (COLUMN,), (5,))
CASES: dict[str, tuple[UOp, Truth]] = {
    "rounded": (below(COLUMN, number(48, 12)), lambda i, r, s: r * 12 + i < 48),
    "edge": (EDGE, lambda i, r, s: r * 12 + i < 50),
    "from below": (below(number(30, 12), COLUMN), lambda i, r, s: r * 12 + i > 30),
    "two sums": (below(COLUMN, counted(S * 9, 12)), lambda i, r, s: r * 12 + i < s * 9 + i),
    "padding": (
        alu(Ops.AND, below(number(0, 12), INSIDE), EDGE),
        lambda i, r, s: (r * 12 + i) % 7 > 0 and r * 12 + i < 50,
    ),
    "not": (make(Ops.NOT, bool_.vec(12), (EDGE,)), lambda i, r, s: r * 12 + i >= 50),
    "lanes": (swizzle(EDGE, (3, 3, 0, 11)), lambda i, r, s: r * 12 + (3, 3, 0, 11)[i] < 50),
    "one lane of places": (
        below(counted(TAKEN + S, 4), number(40, 4)),
        lambda i, r, s: r * 12 + 5 + s + i < 40,
    ),
    "constants": (vector_constant(bool_, (True, False, True)), lambda i, r, s: i != 1),
    "registers": (in_parts(below(WIDE, number(48, 48)), 8), lambda i, r, s: r * 12 + i % 12 < 48),
    "registers, an edge": (in_parts(below(WIDE, number(50, 48)), 8), lambda i, r, s: r * 12 + i % 12 < 50),
    "registers, each another": (
        in_parts(below(counted(R * 17, 32), number(64, 32)), 8),
        lambda i, r, s: r * 17 + i < 64,
    ),
}


def truth(x: UOp, r: int, s: int) -> bool:
    """The value of a condition, lanes that it takes out of registers among its nodes."""
    while x.op is Ops.GEP:
        x = lane(x.src[0], x.arg[0])
    return bool(value_of(x, {R: r, S: s}))


@pytest.mark.parametrize("name", CASES)
def test_every_lane_says_what_the_vector_says(name: str) -> None:
    gate, expected = CASES[name]
    found = lane_conditions(gate)
    assert len(found) == gate.dtype.lanes
    values = list(itertools.product(range(5), range(4)))
    for i, condition in enumerate(found):
        assert condition.dtype is bool_
        assert [truth(condition, r, s) for r, s in values] == [expected(i, r, s) for r, s in values], i


@pytest.mark.parametrize("name", ["rounded", "registers"])
def test_lanes_that_agree_have_one_condition(name: str) -> None:
    """12·r + i < 48 is r < 4 for all 12 columns."""
    assert len(set(lane_conditions(CASES[name][0]))) == 1


def test_rows_share_their_conditions() -> None:
    found = lane_conditions(CASES["registers, an edge"][0])
    assert found[:12] == found[12:24] == found[36:]
    assert len(set(found)) == 2


@pytest.mark.parametrize("name", CASES)
def test_whether_lanes_agree_is_known_without_all_of_them(name: str) -> None:
    """Asked first, before any condition was made; and of a few lanes as of all."""
    gate = CASES[name][0]
    expected, count = lane_conditions(gate), gate.dtype.lanes
    for lanes in (range(count), range(1, count), range(0, count, 2), [0], [count - 1, 0]):
        assert Conditions(gate).alike(lanes) == (len({expected[i] for i in lanes}) == 1)
    few = Conditions(gate)
    few.alike(range(count))
    assert few.of(range(count)) == expected


@pytest.mark.parametrize("name", CASES)
def test_lanes_from_here_and_there(name: str) -> None:
    gate, expected = CASES[name]
    count = gate.dtype.lanes
    for lanes in (
        list(range(0, count, 2)),
        [i // 2 + i % 2 * (count // 2) for i in range(count)],
        [count - 1],
    ):
        taken = push_lanes(gate, lanes)
        conditions = lane_conditions(taken)
        for r, s in itertools.product(range(5), range(4)):
            assert [truth(x, r, s) for x in conditions] == [expected(i, r, s) for i in lanes]


def test_registers_are_not_taken_apart_lane_by_lane() -> None:
    """Every second lane of what was compared in registers is compared anew, in one vector."""
    taken = push_lanes(CASES["registers, each another"][0], list(range(0, 32, 2)))
    assert taken.op is Ops.CMPLT
    assert all(n.op is not Ops.GEP or n.dtype.lanes > 1 for n in toposort(taken))
