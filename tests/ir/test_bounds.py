"""Bounds: always sound, and tight where an interval can be."""

import itertools
import math
import operator
import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from morok.dtype import DType, bool_, float32, index, int8, int32, uint8, uint32
from morok.ir.arithmetic import intervals, scalars
from morok.ir.arithmetic.alu import defined, evaluate
from morok.ir.bounds import bounds, vmax, vmin
from morok.ir.build import (
    bind,
    bitcast,
    cast,
    define_global,
    gep,
    load,
    logical_not,
    rng,
    special,
    variable,
    vectorize,
    where,
)
from morok.ir.build import index as element
from morok.ir.node import UOp, alu, const, make, toposort
from morok.ir.ops import Ops

ARITHMETIC = [
    Ops.ADD, Ops.SUB, Ops.MUL, Ops.FLOORDIV, Ops.FLOORMOD, Ops.CDIV, Ops.CMOD, Ops.MAX, Ops.MIN,
    Ops.AND, Ops.OR, Ops.XOR, Ops.SHL, Ops.SHR, Ops.NEG, Ops.NOT, Ops.ABS, Ops.MULACC, Ops.MULHI,
    Ops.POPCOUNT, Ops.WHERE, Ops.CAST, Ops.POW,
]  # fmt: skip
COMPARISONS = [Ops.CMPLT, Ops.CMPEQ, Ops.CMPNE]
LOGIC = [Ops.AND, Ops.OR, Ops.XOR, Ops.NOT, Ops.ADD, Ops.MUL, Ops.MAX, Ops.MIN]


@st.composite
def expressions(draw: Any, dtypes: tuple[DType, ...], depth: int = 4) -> UOp:
    """A random expression over a few variables of one of the types."""
    dtype = draw(st.sampled_from(dtypes))
    return draw(_expression(dtype, dtypes, depth))


@st.composite
def _expression(draw: Any, dtype: DType, dtypes: tuple[DType, ...], depth: int) -> UOp:
    if dtype.is_bool:
        return draw(_condition(dtypes, depth))
    low, high = (-40, 40) if dtype.is_index else (dtype.min, dtype.max)
    if depth == 0 or draw(st.integers(0, 3)) == 0:
        a, b = sorted(draw(st.tuples(st.integers(low, high), st.integers(low, high))))
        if draw(st.booleans()):
            return const(dtype, draw(st.sampled_from([a, 0, 1, 2, 7, 8])))
        return variable(draw(st.sampled_from("abc")) + dtype.name, a, b, dtype)
    op = draw(st.sampled_from([op for op in ARITHMETIC if defined(op, dtype)]))
    deeper = _expression(dtype, dtypes, depth - 1)
    if op is Ops.CAST:
        source = draw(st.sampled_from([t for t in (*dtypes, bool_) if t is not dtype] or [bool_]))
        return cast(draw(_expression(source, dtypes, depth - 1)), dtype)
    if op is Ops.WHERE:
        return where(draw(_condition(dtypes, depth - 1)), draw(deeper), draw(deeper))
    if dtype.is_index and op in (Ops.SHL, Ops.SHR, Ops.POW):
        return alu(op, draw(deeper), const(dtype, draw(st.integers(-2, 10))))
    return alu(op, *(draw(deeper) for _ in range(op.arity)))


@st.composite
def _condition(draw: Any, dtypes: tuple[DType, ...], depth: int) -> UOp:
    if depth == 0:
        return const(bool_, draw(st.booleans()))
    if draw(st.booleans()):
        op = draw(st.sampled_from(LOGIC))
        return alu(op, *(draw(_condition(dtypes, depth - 1)) for _ in range(op.arity)))
    dtype = draw(st.sampled_from(dtypes))
    if draw(st.integers(0, 4)) == 0:
        return cast(draw(_expression(dtype, dtypes, depth - 1)), bool_)
    op = draw(st.sampled_from(COMPARISONS))
    return alu(op, *(draw(_expression(dtype, dtypes, depth - 1)) for _ in range(2)))


def value_of(n: UOp, chosen: dict[UOp, Any]) -> Any:
    values: dict[UOp, Any] = dict(chosen)
    for node in toposort(n):
        if node in values:
            continue
        if node.op is Ops.CONST:
            values[node] = node.arg
            continue
        operands = [values[s] for s in node.src]
        dtype = node.src[1].dtype if node.op is Ops.WHERE else node.src[0].dtype
        values[node] = evaluate(node.op, dtype, *operands, to=node.dtype if node.op is Ops.CAST else None)
    return values[n]


@pytest.mark.parametrize("dtypes", [(index,), (int8, uint8), (int32, uint32), (index, int8)], ids=str)
@given(data=st.data())
def test_every_value_lies_inside_the_bounds(dtypes: tuple[DType, ...], data: Any) -> None:
    n = data.draw(expressions(dtypes))
    low, high = bounds(n)
    assert low <= high
    variables = [v for v in toposort(n) if v.op is Ops.DEFINE_VAR]
    for _ in range(8):
        chosen = {v: data.draw(st.sampled_from(v.arg[1:]) | st.integers(*v.arg[1:])) for v in variables}
        assert low <= value_of(n, chosen) <= high, (n, chosen)


# --- the interval functions alone, on all small intervals at random


def _shift_left(x: int, y: int) -> int:
    return x << y if 0 <= y < 6 else 0


def _shift_right(x: int, y: int) -> int:
    return x >> y if 0 <= y < 6 else -(x < 0)


CASES: dict[str, tuple[Callable[..., Any], Callable[[int, int], int], bool]] = {
    # name: the interval function, what it bounds, and whether the result is as narrow as possible
    "mul": (intervals.mul, operator.mul, True),
    "floordiv": (intervals.floordiv, scalars.floordiv, True),
    "cdiv": (intervals.cdiv, scalars.cdiv, True),
    "floormod": (intervals.floormod, scalars.floormod, False),
    "cmod": (intervals.cmod, scalars.cmod, False),
    "and": (intervals.bit_and, operator.and_, False),
    "or": (intervals.bit_or, operator.or_, False),
    "xor": (intervals.bit_xor, operator.xor, False),
    "shl": (lambda a, b: intervals.shl(a, b, 6), _shift_left, True),
    "shr": (lambda a, b: intervals.shr(a, b, 6), _shift_right, True),
}


@pytest.mark.parametrize("name", CASES)
def test_interval_functions(name: str) -> None:
    function, exact, tight = CASES[name]
    generator = random.Random(1)
    pairs = list(itertools.combinations_with_replacement(range(-9, 10), 2))
    for _ in range(1500):
        a, b = generator.choice(pairs), generator.choice(pairs)
        values = [exact(x, y) for x in range(a[0], a[1] + 1) for y in range(b[0], b[1] + 1)]
        low, high = function(a, b)
        assert low <= min(values) and max(values) <= high, (a, b)
        assert not tight or (low, high) == (min(values), max(values)), (a, b)
        wider = [
            (x if generator.random() < 0.5 else sign * math.inf)
            for x, sign in zip((*a, *b), (-1, 1) * 2, strict=True)
        ]
        low, high = function(tuple(wider[:2]), tuple(wider[2:]))
        assert low <= min(values) and max(values) <= high, wider


# --- examples


def var(lo: int, hi: int, dtype: DType = index) -> UOp:
    return variable("x", lo, hi, dtype)


@pytest.mark.parametrize(
    ("n", "expected"),
    [
        (const(index, 5), (5, 5)),
        (var(3, 9), (3, 9)),
        (rng(16, 0), (0, 15)),
        (rng(var(1, 8), 0), (0, 7)),
        (special("gidx0", 4), (0, 3)),
        (bind(var(1, 100), 7), (7, 7)),
        (var(0, 7) * 4 + rng(4, 1), (0, 31)),
        (var(0, 31) // 4, (0, 7)),
        (var(-5, 5) // 2, (-3, 2)),
        (var(0, 100) % 8, (0, 7)),
        (var(0, 5) % 8, (0, 5)),
        (var(9, 14) % 8, (1, 6)),
        (var(-3, 3) % 8, (0, 7)),
        (var(0, 10) // var(0, 3), (0, 10)),
        (var(5, 10) // var(0, 3), (0, 10)),
        (var(5, 10) // const(index, 0), (0, 0)),
        (-var(2, 3), (-3, -2)),
        (alu(Ops.ABS, var(-4, 2)), (0, 4)),
        (var(0, 9) & 3, (0, 3)),
        (var(4, 6) & 3, (0, 2)),
        (var(4, 9) & -4, (4, 8)),
        (var(0, 9) | 8, (8, 15)),
        (var(0, 5) ^ -1, (-6, -1)),
        (alu(Ops.SHL, var(1, 3), const(index, 2)), (4, 12)),
        (alu(Ops.SHR, var(-9, 9), const(index, 1)), (-5, 4)),
        (alu(Ops.CDIV, var(-9, 9), const(index, 2)), (-4, 4)),
        (alu(Ops.CMOD, var(-9, 9), const(index, 4)), (-3, 3)),
        (var(0, 4).maximum(2), (2, 4)),
        (var(0, 4).minimum(2), (0, 2)),
        (where(var(0, 4) < 9, var(1, 2), 100), (1, 2)),
        (where(var(0, 4) < 3, var(1, 2), 100), (1, 100)),
        (var(0, 4) < 5, (True, True)),
        (var(0, 4) < 0, (False, False)),
        (var(0, 4) < 3, (False, True)),
        (var(0, 4).eq(9), (False, False)),
        (const(index, 3).eq(3), (True, True)),
        (var(0, 4).ne(9), (True, True)),
        (logical_not(var(0, 4) < 5), (False, False)),
        ((var(0, 4) < 5) & (var(0, 4) < 3), (False, True)),
        (cast(var(1, 4), bool_), (True, True)),
        (cast(var(0, 4) < 2, int32), (0, 1)),
        (cast(var(0, 300), uint8), (0, 255)),
        (cast(var(0, 200), uint8), (0, 200)),
        (cast(const(float32, 2.5), int32), (2, 2)),
        (cast(const(float32, math.nan), int32), (int32.min, int32.max)),
        (var(0, 200, uint8) + var(0, 100, uint8), (0, 255)),
        (var(0, 100, uint8) + var(0, 100, uint8), (0, 200)),
        (var(0, 3, uint8) - var(0, 3, uint8), (0, 255)),
        (bitcast(var(0, 9, int8), uint8), (0, 9)),
        (bitcast(var(-1, 9, int8), uint8), (0, 255)),
        (vectorize(const(int32, 1), const(int32, 9)), (1, 9)),
        (gep(vectorize(const(int32, 1), const(int32, 9)), 1), (9, 9)),
        (make(Ops.VCONST, int32.vec(2), (), (4, 6)), (4, 6)),
        (load(element(define_global(int8, 4, 0), 0)), (-128, 127)),
        (const(float32, 2.0), (2.0, 2.0)),
        (const(float32, math.nan), (-math.inf, math.inf)),
        (const(float32, 2.0) + const(float32, 1.0), (-math.inf, math.inf)),
        (const(float32, 2.0) < const(float32, 1.0), (False, True)),
    ],
)
def test_examples(n: UOp, expected: tuple[Any, Any]) -> None:
    assert bounds(n) == expected
    assert (vmin(n), vmax(n)) == expected
    if n.dtype.is_bool:
        assert type(vmin(n)) is bool and type(vmax(n)) is bool


def test_an_unbounded_index_has_infinite_bounds() -> None:
    n = cast(load(element(define_global(float32, 4, 0), 0)), index)
    assert bounds(n) == (-math.inf, math.inf)
    assert bounds(n % 8) == (0, 7)
    assert bounds(n * 0) == (0, 0)
    assert bounds(n & 7) == (0, 7)
    assert bounds(n // 4 + 10**400) == (-math.inf, math.inf)


def test_a_chain_of_100_000_nodes() -> None:
    n = variable("x", 0, 1)
    for _ in range(100_000):
        n = n + 1
    assert bounds(n) == (100_000, 100_001)
