"""Value ranges: lower and upper bounds of a node's value, for every run in which the node is evaluated.

`bounds(n)` is a pair; both ends are included. Integers and indices have Python integers, or `∓math.inf` where
an index is unbounded; booleans have False and True, so `(True, True)` is a condition that always holds. A
bounded integer whose interval leaves its type may have wrapped around, so it gets the whole range of the
type.

Floats have `(-inf, inf)`, constants their value. **Float bounds say nothing about NaN**, so no rule may fold
a comparison of floats on them.

Bounds of a vector are those of all its lanes together. Pointers and effects have `(-inf, inf)`, which means
nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from morok.dtype import DType
from morok.ir.arithmetic.alu import evaluate
from morok.ir.arithmetic.intervals import (
    Interval,
    bit_and,
    bit_or,
    bit_xor,
    cdiv,
    cmod,
    floordiv,
    floormod,
    mul,
    shl,
    shr,
)
from morok.ir.node import UOp, set_bounds
from morok.ir.ops import Op, Ops

_INF = math.inf
_ANYTHING: Interval = (-_INF, _INF)
_EITHER: Interval = (False, True)
_NEVER: Interval = (False, False)
_ALWAYS: Interval = (True, True)
Rule = Callable[[UOp], Interval]


def vmin(n: UOp) -> Any:
    """The smallest value that the node can have."""
    b = n.bounds_
    return (b if b is not None else bounds(n))[0]


def vmax(n: UOp) -> Any:
    """The largest value that the node can have."""
    b = n.bounds_
    return (b if b is not None else bounds(n))[1]


def bounds(n: UOp) -> tuple[Any, Any]:
    """Both ends of the interval that the node's values lie in."""
    known = n.bounds_
    if known is not None:
        return known
    stack = [n]
    while stack:
        node = stack[-1]
        dtype = node.dtype
        rule = (INTS if dtype.is_int else BOOLS if dtype.is_bool else OTHERS).get(node.op)
        if rule is None:
            stack.pop()
            set_bounds(node, range_of(dtype))
            continue
        pending = [s for s in node.src if s.bounds_ is None]
        if pending:
            stack += pending
            continue
        stack.pop()
        if node.bounds_ is None:
            set_bounds(node, inside(rule, node))
    assert n.bounds_ is not None
    return n.bounds_


def range_of(dtype: DType) -> tuple[Any, Any]:
    """What is known about a value when only its type is."""
    if dtype.is_bounded_int:
        return dtype.min, dtype.max
    return _EITHER if dtype.is_bool else _ANYTHING


def inside(rule: Rule, node: UOp) -> Interval:
    """What a rule says, or the whole type where the value may have wrapped around."""
    try:
        interval = rule(node)
    except OverflowError:  # an integer beyond the floats met an infinity
        return range_of(node.dtype)
    dtype = node.dtype
    if dtype.is_bounded_int and (interval[0] < dtype.min or interval[1] > dtype.max):
        return dtype.min, dtype.max
    return interval


def _of(n: UOp) -> Interval:
    return n.bounds_  # type: ignore[return-value]


def _union(n: UOp) -> Interval:
    ends = [_of(s) for s in n.src]
    return min(low for low, _ in ends), max(high for _, high in ends)


def _first(n: UOp) -> Interval:
    return _of(n.src[0])


def _second(n: UOp) -> Interval:
    return _of(n.src[1])


# --- definitions


def _const(n: UOp) -> Interval:
    value = n.arg
    return (value, value) if value == value else _ANYTHING


def _vconst(n: UOp) -> Interval:
    return (min(n.arg), max(n.arg)) if all(v == v for v in n.arg) else _ANYTHING


def _variable(n: UOp) -> Interval:
    return n.arg[1], n.arg[2]


def _bind(n: UOp) -> Interval:
    (low, high), (value_low, value_high) = _of(n.src[0]), _of(n.src[1])
    both = max(low, value_low), min(high, value_high)
    return both if both[0] <= both[1] else (low, high)


def _iota(n: UOp) -> Interval:
    return 0, max(_of(n.src[n.arg])[1] - 1, 0)


def _counter(n: UOp) -> Interval:
    # A loop that never runs evaluates nothing, so any interval would do; 0 keeps the ends in order.
    return 0, max(_of(n.src[0])[1] - 1, 0)


# --- integers


def _add(n: UOp) -> Interval:
    (alo, ahi), (blo, bhi) = _of(n.src[0]), _of(n.src[1])
    return alo + blo, ahi + bhi


def _sub(n: UOp) -> Interval:
    (alo, ahi), (blo, bhi) = _of(n.src[0]), _of(n.src[1])
    return alo - bhi, ahi - blo


def _mulacc(n: UOp) -> Interval:
    *factors, (zlo, zhi) = map(_of, n.src)
    low, high = mul(*factors)
    return low + zlo, high + zhi


def _check(n: UOp) -> Interval:
    """What is inside, or else the third source."""
    (low, high), (_, limit), (ylo, yhi) = (_of(s) for s in n.src)
    low, high = max(low, 0), min(high, limit - 1)
    return (min(low, ylo), max(high, yhi)) if low <= high else (ylo, yhi)


def _neg(n: UOp) -> Interval:
    low, high = _of(n.src[0])
    return -high, -low


def _not(n: UOp) -> Interval:
    low, high = _of(n.src[0])
    if n.dtype.is_unsigned:
        return n.dtype.max - high, n.dtype.max - low
    return -1 - high, -1 - low


def _abs(n: UOp) -> Interval:
    low, high = _of(n.src[0])
    return max(low, -high, 0), max(-low, high)


def _max(n: UOp) -> Interval:
    (alo, ahi), (blo, bhi) = _of(n.src[0]), _of(n.src[1])
    return max(alo, blo), max(ahi, bhi)


def _min(n: UOp) -> Interval:
    (alo, ahi), (blo, bhi) = _of(n.src[0]), _of(n.src[1])
    return min(alo, blo), min(ahi, bhi)


def _binary(function: Callable[[Interval, Interval], Interval]) -> Rule:
    def rule(n: UOp) -> Interval:
        return function(_of(n.src[0]), _of(n.src[1]))

    return rule


def _shift(function: Callable[[Interval, Interval, float], Interval]) -> Rule:
    def rule(n: UOp) -> Interval:
        scalar = n.dtype.scalar
        return function(_of(n.src[0]), _of(n.src[1]), _INF if scalar.is_index else scalar.bits)

    return rule


def _mulhi(n: UOp) -> Interval:
    low, high = mul(*map(_of, n.src))
    bits = n.dtype.scalar.bits
    return int(low) >> bits, int(high) >> bits


def _dot4(n: UOp) -> Interval:
    low, high = _folded(n)
    return max(low, -4 * 128 * 127), min(high, 4 * 128 * 128)


def _popcount(n: UOp) -> Interval:
    low, high = _of(n.src[0])
    if low == high:
        return (evaluate(Ops.POPCOUNT, n.dtype.scalar, low),) * 2
    return int(low > 0 or high < 0), int(high).bit_length() if low >= 0 else n.dtype.scalar.bits


def _folded(n: UOp) -> Interval:
    """Known only when the operands are constants."""
    values = []
    for s in n.src:
        low, high = _of(s)
        if low != high:
            return range_of(n.dtype)
        values.append(low)
    return (evaluate(n.op, n.src[0].dtype.scalar, *values),) * 2


def _pow(n: UOp) -> Interval:
    # A power of indices could be too large to write down.
    return _folded(n) if n.dtype.is_bounded_int else _ANYTHING


def _where(n: UOp) -> Interval:
    condition = _of(n.src[0])
    if condition[0]:
        return _of(n.src[1])
    if not condition[1]:
        return _of(n.src[2])
    (alo, ahi), (blo, bhi) = _of(n.src[1]), _of(n.src[2])
    return min(alo, blo), max(ahi, bhi)


def _cast(n: UOp) -> Interval:
    low, high = _of(n.src[0])
    source = n.src[0].dtype
    if source.is_float:
        if low != high:  # also the only case in which it may be NaN
            return range_of(n.dtype)
        return (evaluate(Ops.CAST, source.scalar, low, to=n.dtype.scalar),) * 2
    return (int(low), int(high)) if source.is_bool else (low, high)


def _bitcast(n: UOp) -> Interval:
    # Integers of one width differ only in what leaves the type, which `inside` sees.
    source = n.src[0].dtype
    same_width = source.is_bounded_int and source.lanes == n.dtype.lanes
    return _of(n.src[0]) if same_width else range_of(n.dtype)


def _gep(n: UOp) -> Interval:
    source = n.src[0]
    if source.op not in (Ops.VCONST, Ops.VECTORIZE):
        return _of(source)
    if source.op is Ops.VCONST:
        lanes = [(source.arg[i], source.arg[i]) for i in n.arg]
    else:
        lanes = [_of(source.src[i]) for i in n.arg]
    return min(low for low, _ in lanes), max(high for _, high in lanes)


def _vreduce(n: UOp) -> Interval:
    low, high = _of(n.src[0])
    if n.arg in (Ops.MAX, Ops.MIN):
        return low, high
    if n.arg is Ops.ADD and n.dtype.is_int:
        lanes = n.src[0].dtype.lanes
        return low * lanes, high * lanes
    return range_of(n.dtype)


def _pad(n: UOp) -> Interval:
    low, high = _of(n.src[0])
    return (False, high) if n.dtype.is_bool else (min(low, 0), max(high, 0))


# --- booleans


def _logical_and(n: UOp) -> Interval:
    (alo, ahi), (blo, bhi) = _of(n.src[0]), _of(n.src[1])
    return alo and blo, ahi and bhi


def _logical_or(n: UOp) -> Interval:
    (alo, ahi), (blo, bhi) = _of(n.src[0]), _of(n.src[1])
    return alo or blo, ahi or bhi


def _logical_not(n: UOp) -> Interval:
    low, high = _of(n.src[0])
    return not high, not low


def _truth(n: UOp) -> Interval:
    low, high = _of(n.src[0])
    if n.src[0].dtype.is_float:
        return (low != 0,) * 2 if low == high else _EITHER
    if low > 0 or high < 0:
        return _ALWAYS
    return _NEVER if low == high else _EITHER


def _less(n: UOp) -> Interval:
    x, y = n.src
    if x.dtype.is_float:
        return _EITHER
    (alo, ahi), (blo, bhi) = _of(x), _of(y)
    if ahi < blo:
        return _ALWAYS
    return _NEVER if alo >= bhi or x is y else _EITHER


def _equal(n: UOp) -> Interval:
    x, y = n.src
    if x.dtype.is_float:
        return _EITHER
    (alo, ahi), (blo, bhi) = _of(x), _of(y)
    if ahi < blo or bhi < alo:
        return _NEVER
    return _ALWAYS if x is y or alo == ahi == blo == bhi else _EITHER


def _unequal(n: UOp) -> Interval:
    low, high = _equal(n)
    return not high, not low


_SHARED: dict[Op, Rule] = {
    Ops.CONST: _const,
    Ops.VCONST: _vconst,
    Ops.DEFINE_VAR: _variable,
    Ops.BIND: _bind,
    Ops.RANGE: _counter,
    Ops.SPECIAL: _counter,
    Ops.IOTA: _iota,
    Ops.WHERE: _where,
    Ops.GEP: _gep,
    Ops.VREDUCE: _vreduce,
    Ops.PAD: _pad,
    Ops.MAX: _max,
    Ops.MIN: _min,
    Ops.ASSIGN: _second,
    **dict.fromkeys((Ops.VECTORIZE, Ops.CAT), _union),
    **dict.fromkeys((Ops.UNROLL, Ops.CONTRACT, Ops.SHUFFLE, Ops.AFTER, Ops.BUFFERIZE), _first),
    **dict.fromkeys((Ops.COPY, Ops.CONTIGUOUS, Ops.DETACH), _first),
    **dict.fromkeys((Ops.RESHAPE, Ops.PERMUTE, Ops.EXPAND, Ops.SHRINK, Ops.FLIP), _first),
}

INTS: dict[Op, Rule] = {
    **_SHARED,
    Ops.ADD: _add,
    Ops.SUB: _sub,
    Ops.MUL: _binary(mul),
    Ops.MULACC: _mulacc,
    Ops.CHECK: _check,
    Ops.NEG: _neg,
    Ops.NOT: _not,
    Ops.ABS: _abs,
    Ops.FLOORDIV: _binary(floordiv),
    Ops.FLOORMOD: _binary(floormod),
    Ops.CDIV: _binary(cdiv),
    Ops.CMOD: _binary(cmod),
    Ops.AND: _binary(bit_and),
    Ops.OR: _binary(bit_or),
    Ops.XOR: _binary(bit_xor),
    Ops.SHL: _shift(shl),
    Ops.SHR: _shift(shr),
    Ops.MULHI: _mulhi,
    Ops.DOT4: _dot4,
    Ops.POPCOUNT: _popcount,
    Ops.POW: _pow,
    Ops.THREEFRY: _folded,
    Ops.CAST: _cast,
    Ops.BITCAST: _bitcast,
    **dict.fromkeys((Ops.TRUNC, Ops.FLOOR, Ops.CEIL, Ops.RINT), _first),
}

BOOLS: dict[Op, Rule] = {
    **_SHARED,
    Ops.AND: _logical_and,
    Ops.MUL: _logical_and,
    Ops.OR: _logical_or,
    Ops.ADD: _logical_or,
    Ops.XOR: _unequal,
    Ops.NOT: _logical_not,
    Ops.CAST: _truth,
    Ops.CMPLT: _less,
    Ops.CMPEQ: _equal,
    Ops.CMPNE: _unequal,
}

# floats, pointers and effects: only constants are known
OTHERS: dict[Op, Rule] = {Ops.CONST: _const, Ops.VCONST: _vconst}
