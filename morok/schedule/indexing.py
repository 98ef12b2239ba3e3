"""Movement ops as index arithmetic: where does the element at these indices come from?

`source_indices(node, indices)` answers for one movement op: the indices into its source and, for a PAD, the
condition under which there is an element at all. Nothing is moved; only the place that is read changes.

Indices are kept in normal form (a sum of products), so equal places are equal nodes however they were
reached. A RESHAPE is taken apart into groups of axes with equal products first: the axes that it does not
touch keep their index as it is, which keeps most expressions trivial.
"""

from __future__ import annotations

from typing import NamedTuple, final

from morok.caches import Cache
from morok.dtype import index as index_dtype
from morok.ir.bounds import bounds
from morok.ir.build import rng
from morok.ir.infer import Shape, Size, add_sizes, ranges, shape, size_node, size_of
from morok.ir.node import UOp, alu, const, make
from morok.ir.ops import Ops
from morok.ir.sizes import largest
from morok.rewrite.engine import substitute
from morok.symbolic.sets import simplify

Indices = tuple[UOp, ...]

ZERO = const(index_dtype, 0)

_KEPT = 2048  # a training step of twelve layers asks for about a hundred; each holds nodes
_reshaped: Cache[tuple[Indices, Shape, Shape], Indices] = Cache("schedule.reshaped_indices", _KEPT)
_simple: Cache[UOp, UOp] = Cache("schedule.simple_indices", _KEPT)


def forget_indices() -> None:
    """Everything is written anew from now on."""
    _reshaped.clear()
    _simple.clear()


def known_shape(node: UOp) -> Shape:
    """The shape of a node that has one."""
    found = shape(node)
    assert found is not None, node
    return found


def simplified(x: UOp) -> UOp:
    """x in normal form; remembered, because the same places are computed in every layer of a model."""
    if not x.src:
        return x
    found = _simple.get(x)
    if found is None:
        found = _simple[x] = simplify(x)
    return found


def times(a: UOp, b: Size) -> UOp:
    if b == 1:
        return a
    return alu(Ops.MUL, a, size_node(b))


def multiply(a: Size, b: Size) -> Size:
    """The product of two sizes."""
    if isinstance(a, int) and isinstance(b, int):
        return a * b
    if a == 1 or b == 1:
        return b if a == 1 else a
    return simplified(alu(Ops.MUL, size_node(a), size_node(b)))


def flatten(indices: Indices, sizes: Shape) -> UOp:
    """The position in row-major order."""
    total: UOp | None = None
    stride: Size = 1
    for i, size in zip(reversed(indices), reversed(sizes), strict=True):
        if i is not ZERO:
            part = times(i, stride)
            total = part if total is None else alu(Ops.ADD, part, total)
        stride = multiply(stride, size)
    return ZERO if total is None else simplified(total)


def unflatten(flat: UOp, sizes: Shape) -> Indices:
    """The indices of a position in row-major order."""
    result: list[UOp] = []
    stride: Size = 1
    for axis in range(len(sizes) - 1, -1, -1):
        size = sizes[axis]
        if size == 1:
            result.append(ZERO)
            continue
        i = flat if stride == 1 else alu(Ops.FLOORDIV, flat, size_node(stride))
        outermost = all(other == 1 for other in sizes[:axis])
        result.append(simplified(i if outermost else alu(Ops.FLOORMOD, i, size_node(size))))
        stride = multiply(stride, size)
    return tuple(reversed(result))


def groups(a: Shape, b: Shape) -> list[tuple[slice, slice]]:
    """The smallest runs of axes of two shapes that hold the same number of elements."""
    found: list[tuple[slice, slice]] = []
    i = j = 0
    while i < len(a) or j < len(b):
        start_i, start_j = i, j
        left: Size = 1
        right: Size = 1
        while True:
            if left == right and (i > start_i or j > start_j):
                break
            if i < len(a) and (j >= len(b) or largest(left) <= largest(right)):
                left = multiply(left, a[i])
                i += 1
            elif j < len(b):
                right = multiply(right, b[j])
                j += 1
            else:
                break
        if left != right:  # symbolic sizes that do not line up: everything that is left is one group
            i, j = len(a), len(b)
        found.append((slice(start_i, i), slice(start_j, j)))
    return found


def reshape_indices(indices: Indices, outer: Shape, inner: Shape) -> Indices:
    """Indices into shape `inner` for the element that has `indices` in shape `outer`."""
    key = (indices, outer, inner)
    found = _reshaped.get(key)
    if found is not None:
        return found
    kept_outer = [(i, size) for i, size in zip(indices, outer, strict=True) if size != 1]
    kept_inner = [axis for axis, size in enumerate(inner) if size != 1]
    a = tuple(size for _, size in kept_outer)
    b = tuple(inner[axis] for axis in kept_inner)
    result = [ZERO] * len(inner)
    for left, right in groups(a, b):
        from_axes, to_axes = kept_outer[left], kept_inner[right]
        if len(from_axes) == len(to_axes) == 1:
            result[to_axes[0]] = from_axes[0][0]
            continue
        flat = flatten(tuple(i for i, _ in from_axes), tuple(size for _, size in from_axes))
        for axis, i in zip(to_axes, unflatten(flat, tuple(inner[t] for t in to_axes)), strict=True):
            result[axis] = i
    _reshaped[key] = found = tuple(result)
    return found


def both(a: UOp | None, b: UOp | None) -> UOp | None:
    """The conjunction of two conditions, either of which may be missing."""
    if a is None or b is None or a is b:
        return b if a is None else a
    joined = simplified(alu(Ops.AND, a, b))
    return joined


def source_indices(node: UOp, indices: Indices) -> tuple[Indices, UOp | None]:
    """Where a movement op reads: the indices into its source, and when there is something to read."""
    op = node.op
    inner = known_shape(node.src[0])
    if op is Ops.RESHAPE:
        return reshape_indices(indices, known_shape(node), inner), None
    if op is Ops.EXPAND:
        return tuple([ZERO if size == 1 else i for i, size in zip(indices, inner, strict=True)]), None
    if op is Ops.PERMUTE:
        result = [ZERO] * len(indices)
        for axis, i in zip(node.arg, indices, strict=True):
            result[axis] = i
        return tuple(result), None
    if op is Ops.SHRINK:
        starts = [size_of(s) for s in node.src[1::2]]
        return tuple([_plus(i, start) for i, start in zip(indices, starts, strict=True)]), None
    if op is Ops.FLIP:
        return tuple(
            [
                simplified(alu(Ops.SUB, size_node(_minus_one(size)), i)) if flipped else i
                for i, flipped, size in zip(indices, node.arg, inner, strict=True)
            ]
        ), None
    assert op is Ops.PAD, op
    return _unpadded(node, indices, inner)


def _plus(i: UOp, amount: Size) -> UOp:
    return i if amount == 0 else simplified(alu(Ops.ADD, i, size_node(amount)))


def _minus_one(size: Size) -> Size:
    return add_sizes(size, -1)


def _unpadded(node: UOp, indices: Indices, inner: Shape) -> tuple[Indices, UOp | None]:
    result: list[UOp] = []
    valid: UOp | None = None
    ends = [size_of(s) for s in node.src[1:]]
    for i, size, before, after in zip(indices, inner, ends[::2], ends[1::2], strict=True):
        j = i if before == 0 else simplified(alu(Ops.SUB, i, size_node(before)))
        if before != 0:
            valid = _conjoin(valid, alu(Ops.CMPLT, const(index_dtype, -1), j))
        if after != 0:
            valid = _conjoin(valid, alu(Ops.CMPLT, j, size_node(size)))
        result.append(j)
    return tuple(result), valid


def _conjoin(valid: UOp | None, condition: UOp) -> UOp | None:
    condition = simplified(condition)
    if bounds(condition) == (True, True):
        return valid
    return both(valid, condition)


# --- running reductions


@final
class Running(NamedTuple):
    """A loop that walks along an axis: all of it, or in stretches of some length; and whether backwards."""

    loop: UOp
    backwards: bool
    length: int  # 0 where the axis is the whole loop


def scanned_loop(node: UOp, indices: Indices) -> Running | None:
    """The loop along which a SCAN_AXIS is asked for, at these indices; None if that is no running value."""
    axis = node.arg[1]
    found = _walked(indices[axis], known_shape(node)[axis])
    if found is None:
        return None
    others = [i for a, i in enumerate(indices) if a != axis and found.loop in ranges(i)]
    if not others:
        return found
    if not found.length:
        return None
    inner = rng(found.length, -1)
    whole = in_stretches(found, rng(_count(found.loop) // found.length, -2), inner)
    apart = [simplified(substitute(i, {found.loop: whole})) for i in others]
    return None if any(inner in ranges(i) for i in apart) else found


def in_stretches(running: Running, outer: UOp, inner: UOp) -> UOp:
    """The index of a loop that is cut into stretches."""
    return alu(Ops.ADD, alu(Ops.MUL, outer, const(outer.dtype, running.length)), inner)


def _count(r: UOp) -> int:
    return int(r.src[0].arg) if r.src[0].op is Ops.CONST else 0


def _walked(index: UOp, size: Size) -> Running | None:
    """The loop that walks an axis of this size; None where no loop does."""
    if index.op is Ops.RANGE:
        return Running(index, False, 0)
    alive = ranges(index)
    if len(alive) != 1 or not isinstance(size, int) or not size:  # padding asks for elements of nothing, too
        return None
    (r,) = alive
    digit = make(Ops.FLOORMOD, r.dtype, (r, const(r.dtype, size)))
    if _count(r) > size and _count(r) % size == 0:
        if index is digit or _is_reverse(index, digit, size):
            return Running(r, index is not digit, size)
    return Running(r, True, 0) if _count(r) == size and _is_reverse(index, r, size) else None


def _is_reverse(index: UOp, walk: UOp, size: int) -> bool:
    return simplified(alu(Ops.ADD, index, walk)) is const(index.dtype, size - 1)
