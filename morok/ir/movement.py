"""Constructors of movement ops and of reductions over axes: what a tensor's shape allows, checked.

Sizes may be Python ints or index nodes. A variable without a value stands for all of its values, so what it
is used for has to be right for each of them. An operation that would change nothing gives back its source.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from morok.dtype import DType
from morok.errors import DTypeError, IRError, ShapeError
from morok.ir.bounds import bounds
from morok.ir.build import REDUCE_OPS
from morok.ir.infer import Shape, Size, numel, shape, show_shape, size_node
from morok.ir.node import UOp, alu, const, make, set_shape
from morok.ir.ops import Op, Ops
from morok.ir.provenance import place
from morok.ir.scan import SCAN_OPS, values_of
from morok.ir.sizes import combine, negative_at, show_values

_Pairs = Sequence[tuple[Size, Size]]


def _own(x: UOp) -> Shape:
    found = shape(x)
    if found is None:
        raise ShapeError(f"{x.op.name} has no value, so it has no shape", place=place(x))
    return found


def _fail(x: UOp, message: str) -> ShapeError:
    return ShapeError(message, place=place(x))


def _sizes(x: UOp, sizes: Sequence[Any], op: Op) -> Shape:
    """Sizes given by the caller, constants as ints."""
    plain = _ints(sizes)
    if plain is not None:
        return plain
    result: list[Size] = []
    for size in sizes:
        value = size.arg if isinstance(size, UOp) and size.op is Ops.CONST else size
        if isinstance(value, UOp) and value.dtype.is_index:
            result.append(value)
        elif isinstance(value, int) and not isinstance(value, bool):
            result.append(int(value))
        else:
            raise _fail(x, f"{op.name} needs sizes that are whole numbers or index nodes, not {size!r}")
    return tuple(result)


def _interval(size: Size) -> tuple[Any, Any]:
    return bounds(size) if isinstance(size, UOp) else (size, size)


def _axes(x: UOp, op: Op, count: int, what: str) -> Shape:
    own = _own(x)
    if len(own) != count:
        raise _fail(x, f"{op.name} of shape {show_shape(own)} needs {len(own)} {what}, got {count}")
    return own


def _ints(sizes: Sequence[Any]) -> tuple[int, ...] | None:
    """The sizes if all are plain numbers: the common case, for which there is nothing to reason about."""
    for size in sizes:
        if size.__class__ is not int:
            return None
    return tuple(sizes)


def _moved(op: Op, x: UOp, sizes: Sequence[Size], result: Shape | None = None) -> UOp:
    """The node; `result` is its shape where that is known already, which saves inferring it."""
    node = make(op, x.dtype, (x, *map(size_node, sizes)))
    if result is not None and node.shape_ is None:
        set_shape(node, result)
    return node


def _factors(size: Size) -> tuple[int, Counter[UOp]]:
    """A size as a number times symbolic factors."""
    known, symbolic, stack = 1, Counter[UOp](), [size]
    while stack:
        factor = stack.pop()
        if isinstance(factor, int):
            known *= factor
        elif factor.op is Ops.CONST:
            known *= factor.arg
        elif factor.op is Ops.MUL:
            stack += factor.src
        else:
            symbolic[factor] += 1
    return known, symbolic


def _differ(a: Size, b: Size) -> dict[str, int] | None:
    """Values of variables for which two sizes differ, None if they never do."""
    if _factors(a) == _factors(b):
        return None
    more, less = negative_at(combine(Ops.SUB, a, b)), negative_at(combine(Ops.SUB, b, a))
    return less if more is None else more


def reshape(x: UOp, new: Sequence[Any]) -> UOp:
    """The same elements in row-major order under another shape."""
    own, sizes = _own(x), _sizes(x, new, Ops.RESHAPE)
    if sizes == own:
        return x
    old, now = _ints(own), _ints(sizes)
    if old is not None and now is not None and math.prod(old) == math.prod(now) and min(now, default=0) >= 0:
        return _moved(Ops.RESHAPE, x, sizes, sizes)
    for size in sizes:
        if _interval(size)[1] < 0:
            raise _fail(x, f"RESHAPE to {show_shape(sizes)} has a negative size")
    wrong = _differ(numel(own), numel(sizes))
    if wrong is not None:
        to = f"RESHAPE from {show_shape(own)} to {show_shape(sizes)}"
        raise _fail(x, f"{to} changes the number of elements{show_values(wrong)}")
    return _moved(Ops.RESHAPE, x, sizes)


def permute(x: UOp, order: Sequence[int]) -> UOp:
    """Axes in another order."""
    own, wanted = _own(x), tuple(order)
    if sorted(wanted) != list(range(len(own))):
        raise _fail(x, f"PERMUTE of shape {show_shape(own)} needs each of its axes once, got {wanted}")
    return x if wanted == tuple(range(len(own))) else make(Ops.PERMUTE, x.dtype, (x,), wanted, depth=2)


def expand(x: UOp, new: Sequence[Any]) -> UOp:
    """Axes of size 1 repeated."""
    sizes = _sizes(x, new, Ops.EXPAND)
    own = _axes(x, Ops.EXPAND, len(sizes), "sizes")
    if sizes == own:
        return x
    for before, now in zip(own, sizes, strict=True):
        if before != 1 and before != now:
            raise _fail(
                x, f"EXPAND from {show_shape(own)} to {show_shape(sizes)} repeats an axis that is not 1"
            )
    return _moved(Ops.EXPAND, x, sizes, sizes)


def pad(x: UOp, amounts: _Pairs) -> UOp:
    """Zeros before and after each axis."""
    sizes = _sizes(x, [size for pair in amounts for size in pair], Ops.PAD)
    _axes(x, Ops.PAD, len(amounts), "pairs (before, after)")
    for size in sizes:
        if _interval(size)[0] < 0 and negative_at(size) is not None:
            raise _fail(x, f"PAD adds elements, so it cannot add {show_shape((size,))[1:-2]}; shrink instead")
    return x if all(size == 0 for size in sizes) else _moved(Ops.PAD, x, sizes)


def shrink(x: UOp, limits: _Pairs) -> UOp:
    """The box between start and stop of each axis."""
    sizes = _sizes(x, [size for pair in limits for size in pair], Ops.SHRINK)
    own = _axes(x, Ops.SHRINK, len(limits), "pairs (start, stop)")
    starts, stops = sizes[::2], sizes[1::2]
    for size, start, stop in zip(own, starts, stops, strict=True):
        wrong = leaves(size, start, stop)
        if wrong is not None:
            box = ", ".join(show_shape(pair) for pair in zip(starts, stops, strict=True))
            raise _fail(
                x, f"SHRINK of shape {show_shape(own)} to {box} leaves the tensor{show_values(wrong)}"
            )
    whole = all(start == 0 for start in starts) and stops == own
    return x if whole else _moved(Ops.SHRINK, x, sizes)


def leaves(size: Size, start: Size, stop: Size) -> dict[str, int] | None:
    """Values of variables for which start … stop is no part of an axis; {} if it never is, None if always."""
    if size.__class__ is int and start.__class__ is int and stop.__class__ is int:
        return None if 0 <= start <= stop <= size else {}
    for rest in (start, combine(Ops.SUB, stop, start), combine(Ops.SUB, size, stop)):
        wrong = negative_at(rest)
        if wrong is not None:
            return wrong
    return None


def flip(x: UOp, axes: Sequence[bool]) -> UOp:
    """Axes with a true entry reversed."""
    which = tuple(bool(axis) for axis in axes)
    _axes(x, Ops.FLIP, len(which), "true-or-false entries")
    return make(Ops.FLIP, x.dtype, (x,), which, depth=2) if any(which) else x


def iota(sizes: Sequence[Any], axis: int, dtype: DType) -> UOp:
    """A tensor that holds at each place its position along one axis: what `arange` and masks are made of."""
    own = _sizes(const(dtype, 0), sizes, Ops.IOTA)
    if not 0 <= axis < len(own):
        raise ShapeError(f"IOTA of shape {show_shape(own)} has no axis {axis}")
    if not (dtype.is_int and dtype.lanes == 1):
        raise DTypeError(f"IOTA counts in integers, not in {dtype}")
    return make(Ops.IOTA, dtype, tuple(map(size_node, own)), axis, depth=2)


def reduce_axis(x: UOp, op: Op, axes: Sequence[int]) -> UOp:
    """Axes combined to size 1. Axes that have size 1 already need no work."""
    if op not in REDUCE_OPS:
        raise IRError(f"{op.name} cannot reduce: it is not associative and commutative", place=place(x))
    own = _own(x)
    for axis in axes:
        if not 0 <= axis < len(own):
            raise _fail(x, f"{show_shape(own)} has no axis {axis} to reduce")
    work = tuple(sorted(axis for axis in set(axes) if own[axis] != 1))
    return make(Ops.REDUCE_AXIS, x.dtype, (x,), (op, work), depth=2) if work else x


def scan_axis(x: UOp, op: Op, axis: int, added: UOp | None = None) -> UOp:
    """At each place along an axis everything up to it, combined: running sums, products, extremes.

    With MULACC the recurrence h = x·h + added, which begins with 0.
    """
    own = _own(x)
    values = (x,) if added is None else (x, added)
    if op not in SCAN_OPS or len(values) != values_of(op):
        raise IRError(f"{op.name} of {len(values)} values is no running reduction", place=place(x))
    if any(_own(v) != own or v.dtype is not x.dtype for v in values):
        raise _fail(x, "the values of a running reduction have one shape and one type")
    if not 0 <= axis < len(own):
        raise _fail(x, f"{show_shape(own)} has no axis {axis} to run along")
    if 0 in own or (own[axis] == 1 and op is not Ops.MULACC):
        return x
    return make(Ops.SCAN_AXIS, x.dtype, values, (op, axis), depth=2)


# --- rows of a table by their number: compared with every place, what matches kept, and added up. The
# scheduler turns that into a read at a computed place.


def spread_to(x: UOp, sizes: Shape) -> UOp:
    """A node repeated to a shape that it broadcasts to."""
    own = _own(x)
    return x if own == sizes else expand(reshape(x, (1,) * (len(sizes) - len(own)) + own), sizes)


def found_rows(table: UOp, places: UOp) -> UOp:
    """(R, …) and places (…) below R → one row per place; zeros for a place that does not exist."""
    where, own = _own(places), _own(table)
    x = permute(table, [*range(1, len(own)), 0])
    sizes = (*where, *own[1:], own[0])
    last = len(sizes) - 1
    spread = spread_to(reshape(places, (*where, *(1,) * len(own))), sizes)
    counted = iota(tuple(n if i == last else 1 for i, n in enumerate(sizes)), last, places.dtype)
    hit = alu(Ops.CMPEQ, spread, spread_to(counted, sizes))
    value = alu(Ops.WHERE, hit, spread_to(x, sizes), const(table.dtype, 0))
    return reshape(reduce_axis(value, Ops.ADD, (last,)), sizes[:-1])
