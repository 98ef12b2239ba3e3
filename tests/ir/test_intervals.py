"""Interval arithmetic against the hull of all results: sound everywhere, and exact where that is promised.

An operation is worked out on all pairs of a window of integers. An end that is infinite stands for two
windows, one twice as long: what is the same in both is an end of the hull, what grows is infinite.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from morok.dtype import DType, bool_, float32, index, int8, uint8, uint32
from morok.ir.arithmetic import intervals, scalars
from morok.ir.bounds import bounds
from morok.ir.build import bitcast, cast, gep, logical_not, variable, vectorize
from morok.ir.node import UOp, alu, const, make, toposort
from morok.ir.ops import Ops
from tests.expressions import value_of

INF = math.inf
Interval = tuple[Any, Any]
HALF, WINDOW = 96, 192
WIDTH = 4  # of the integers that are shifted


def shift_left(x: int, y: int) -> int:
    return x << y if 0 <= y < WIDTH else 0


def shift_right(x: int, y: int) -> int:
    return x >> y if 0 <= y < WIDTH else -(x < 0)


# --- where an interval is the hull


def always(a: Interval, b: Interval) -> bool:
    return True


def magnitudes(a: Interval) -> Interval:
    return max(a[0], -a[1], 0), max(-a[0], a[1])


def one_divisor(a: Interval, b: Interval) -> bool:
    """Or one that is never reached, from the side on which the remainder is the operand."""
    same_side = (a[0] >= 0 and b[0] > 0) or (a[1] <= 0 and b[1] < 0)
    return b[0] == b[1] or (same_side and magnitudes(a)[1] < magnitudes(b)[0])


def one_magnitude(a: Interval, b: Interval) -> bool:
    return b[0] == b[1] or magnitudes(a)[1] < magnitudes(b)[0]


POWERS = (1, 2, 4, 8, INF)
BLOCKS = {(low, high) for p in POWERS for low, high in ((-p, p - 1), (0, p - 1), (-p, -1))}


def single(a: Interval) -> bool:
    return bool(a[0] == a[1])


def finite(a: Interval) -> bool:
    return not any(map(math.isinf, a))


def masked(a: Interval, b: Interval) -> bool:
    """Blocks of a power of two; all but the low bits, or only these; two numbers."""
    if (a in BLOCKS and b in BLOCKS) or (single(a) and single(b)):
        return True
    kept = {(m, m) for m in (0, 1, 3, 7, -1, -2, -4, -8)}
    return (finite(a) and b in kept) or (finite(b) and a in kept)


def joined(a: Interval, b: Interval) -> bool:
    return masked((-1 - a[1], -1 - a[0]), (-1 - b[1], -1 - b[0]))


def flipped(a: Interval, b: Interval) -> bool:
    """Blocks, all bits, two numbers."""
    both = (a in BLOCKS and b in BLOCKS) or (single(a) and single(b))
    return both or a == (-1, -1) or b == (-1, -1)


CASES: dict[str, tuple[Callable[..., Any], Callable[[int, int], int], Callable[..., bool]]] = {
    "mul": (intervals.mul, operator.mul, always),
    "floordiv": (intervals.floordiv, scalars.floordiv, always),
    "cdiv": (intervals.cdiv, scalars.cdiv, always),
    "floormod": (intervals.floormod, scalars.floormod, one_divisor),
    "cmod": (intervals.cmod, scalars.cmod, one_magnitude),
    "and": (intervals.bit_and, operator.and_, masked),
    "or": (intervals.bit_or, operator.or_, joined),
    "xor": (intervals.bit_xor, operator.xor, flipped),
    "shl": (lambda a, b: intervals.shl(a, b, WIDTH), shift_left, always),
    "shr": (lambda a, b: intervals.shr(a, b, WIDTH), shift_right, always),
}
LOWS = (-INF, -9, -8, -4, -3, -2, -1, 0, 1, 2, 5)
HIGHS = (-6, -3, -2, -1, 0, 1, 2, 3, 7, INF)
INTERVALS = [(low, high) for low in LOWS for high in HIGHS if low <= high]


def hull(values: np.ndarray, a: Interval, b: Interval) -> Interval:
    found = []
    for size in (HALF, WINDOW):
        rows, columns = (
            slice(int(max(low, -size)) + WINDOW, int(min(high, size)) + WINDOW + 1) for low, high in (a, b)
        )
        part = values[rows, columns]
        found.append((int(part.min()), int(part.max())))
    (low, high), (further, higher) = found
    return low if low == further else -INF, high if high == higher else INF


@pytest.mark.parametrize("name", CASES)
def test_all_small_and_infinite_intervals(name: str) -> None:
    function, exact, tight = CASES[name]
    every = range(-WINDOW, WINDOW + 1)
    values = np.array([[exact(x, y) for y in every] for x in every])
    promised = 0
    for a, b in itertools.product(INTERVALS, repeat=2):
        low, high = found = function(a, b)
        least, most = wanted = hull(values, a, b)
        assert low <= least and most <= high, (a, b, found, wanted)
        assert all(type(end) is int or math.isinf(end) for end in found), (a, b, found)
        if tight(a, b):
            promised += 1
            assert found == wanted, (a, b, found, wanted)
    assert promised > 300


def test_numbers_beyond_the_floats() -> None:
    huge = 10**400
    assert intervals.floormod((-INF, 5), (huge, huge)) == (0, huge - 1)
    assert intervals.floormod((5, INF), (huge, huge)) == (0, huge - 1)
    assert intervals.floormod((-INF, huge), (8, 8)) == (0, 7)
    assert intervals.floordiv((-INF, 5), (huge, huge)) == (-INF, 0)
    assert intervals.cdiv((-INF, -5), (huge, huge)) == (-INF, 0)
    assert intervals.bit_and((huge, huge), (-2, -2)) == (huge, huge)


def test_long_shifts_of_indices() -> None:
    """2^4096 is still written down; beyond it a factor is infinite."""
    longest = 1 << 4096
    assert intervals.shl((1, 3), (4096, 4096), INF) == (longest, 3 * longest)
    assert intervals.shl((1, 3), (4096, 4097), INF) == (longest, INF)
    assert intervals.shr((2 * longest, 2 * longest), (4096, 4096), INF) == (2, 2)
    assert intervals.shr((-5, 7), (4097, 4097), INF) == (-1, 0)
    assert intervals.shr((2 * longest, 2 * longest), (4096, 5000), INF) == (0, 2)


# --- nodes: the hull over all values of the variables


def var(low: int, high: int, dtype: DType = index, name: str = "x") -> UOp:
    return variable(name, low, high, dtype)


def hull_of(n: UOp) -> Interval:
    variables = [v for v in toposort(n) if v.op is Ops.DEFINE_VAR]
    held = [range(v.arg[1], v.arg[2] + 1) for v in variables]
    values = [value_of(n, dict(zip(variables, some, strict=True))) for some in itertools.product(*held)]
    return min(values), max(values)


def exact(n: UOp) -> None:
    """The bounds are the hull, and of the type that values have."""
    found, wanted = bounds(n), hull_of(n)
    assert found == wanted, n
    assert {type(end) for end in found} == {bool if n.dtype.is_bool else int}, n


def small(dtype: DType = index, name: str = "x") -> list[UOp]:
    ends = itertools.combinations_with_replacement(range(0 if dtype.is_unsigned else -2, 3), 2)
    return [var(low, high, dtype, name) for low, high in ends]


@pytest.mark.parametrize("dtype", [index, int8, uint8], ids=str)
def test_one_operand(dtype: DType) -> None:
    for x in small(dtype):
        exact(alu(Ops.ABS, x))
        exact(alu(Ops.NOT, x))
        exact(cast(x, bool_))
        exact(cast(x.eq(1), dtype))


@pytest.mark.parametrize("dtype", [index, int8, uint8], ids=str)
@pytest.mark.parametrize("op", [Ops.CMPLT, Ops.CMPEQ, Ops.CMPNE], ids=lambda op: op.name)
def test_comparisons(op: Any, dtype: DType) -> None:
    for x, y in itertools.product(small(dtype), small(dtype, "y")):
        exact(alu(op, x, y))


def test_conditions() -> None:
    def conditions(name: str) -> list[UOp]:
        return [const(bool_, False), const(bool_, True), var(0, 1, index, name).eq(0)]

    for a in conditions("x"):
        exact(logical_not(a))
        for b, op in itertools.product(conditions("y"), (Ops.AND, Ops.OR, Ops.XOR, Ops.ADD, Ops.MUL)):
            exact(alu(op, a, b))


def test_what_is_checked() -> None:
    """The third source counts even where every x is inside: rules remove such a CHECK."""
    for x, most, other in itertools.product(small(index), (-1, 0, 1, 2), (-3, 0, 5)):
        for least in (most - 1, most):
            node = alu(Ops.CHECK, x, var(least, most, index, "n"), var(other, other + 1, index, "y"))
            held = [v for v in range(x.arg[1], x.arg[2] + 1) if 0 <= v < most] + [other, other + 1]
            assert bounds(node) == (min(held), max(held)), (x.arg, least, most, other)


@pytest.mark.parametrize("dtype", [int8, uint8], ids=str)
def test_bits_that_are_set(dtype: DType) -> None:
    """Exact from 0 or 1 to all low bits, and where the sign or all bits can be."""
    for low, high in itertools.product((0, 1), (1, 3, 7, 63, 127)):
        exact(alu(Ops.POPCOUNT, var(low, high, dtype)))
    for low, high in ((dtype.min, dtype.max), (dtype.max - 2, dtype.max - 2)):
        exact(alu(Ops.POPCOUNT, var(low, high, dtype)))
    if not dtype.is_unsigned:
        exact(alu(Ops.POPCOUNT, var(-128, -1, dtype)))
        exact(alu(Ops.POPCOUNT, var(-128, 0, dtype)))


def test_powers_are_known_for_constants_of_a_width() -> None:
    three, four = const(int8, 3), const(int8, 4)
    assert bounds(alu(Ops.POW, three, four)) == (81, 81)
    assert bounds(alu(Ops.POW, var(2, 3, int8), four)) == (-128, 127)
    assert bounds(alu(Ops.POW, const(index, 9), const(index, 9))) == (-INF, INF), "it could be a huge number"


def test_the_same_bits() -> None:
    whole, byte = (0, uint32.max), (0, 255)
    assert bounds(bitcast(var(0, 127, int8), uint8)) == (0, 127)
    assert bounds(bitcast(var(3, 9, uint8), int8)) == (3, 9)
    assert bounds(bitcast(var(-1, 9, int8), uint8)) == byte
    assert bounds(bitcast(var(-9, -1, int8), uint8)) == byte
    assert bounds(bitcast(var(3, 128, uint8), int8)) == (-128, 127)
    assert bounds(bitcast(const(float32, 2.0), uint32)) == whole
    bytes_ = vectorize(*(var(1, 2, uint8, name) for name in "abcd"))
    assert bounds(make(Ops.BITCAST, uint32, (bytes_,))) == whole
    assert bounds(make(Ops.BITCAST, int8.vec(4), (bytes_,))) == (1, 2)


def test_lanes_of_vectors() -> None:
    vector = vectorize(var(1, 2, name="a"), var(5, 6, name="b"), var(8, 9, name="c"))
    assert bounds(gep(vector, (1, 0))) == (1, 6)
    assert bounds(gep(vector, 2)) == (8, 9)
    assert bounds(gep(vector + vector, 2)) == (2, 18)
    constant = make(Ops.VCONST, int8.vec(3), (), (7, 1, 4))
    assert bounds(gep(constant, (0, 2))) == (4, 7)


@pytest.mark.parametrize("dtype", [int8, uint8], ids=str)
def test_an_interval_may_touch_the_ends_of_the_type(dtype: DType) -> None:
    least, most = dtype.min, dtype.max
    assert bounds(var(most - 1, most, dtype)) == (most - 1, most)
    assert bounds(var(least, least + 1, dtype)) == (least, least + 1)
    assert bounds(var(most - 1, most - 1, dtype) + 1) == (most, most)
    assert bounds(var(most - 1, most, dtype) + 1) == (least, most)
    assert bounds(var(least, least + 1, dtype) - 1) == (least, most)
