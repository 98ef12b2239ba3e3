"""How a value lies on a mesh, and the laws by which ops carry that on.

A *placement* says for each axis of a value along which axes of the mesh it is cut. It may also be *partial*:
each device has a summand (a factor, a candidate for the maximum), and the value is what an op makes of all.

The laws are tables of axes. `axis_map(node, i, devices)` says for every axis of a result which axis of source
i it goes along with: an axis that is cut in the source is then cut in the result, and each device computes
the op on what it has: **f on shards is the shard of f**. WHOLE is an axis along which the source is repeated
and has nothing to say; BLOCKED one that the op looks along, so that devices would need each other's parts.
Axes of a source that no axis of the result names are reduced: cutting them leaves the result partial.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, final

from morok.dtype.records import record
from morok.ir.infer import shape, size_of
from morok.ir.layout import Group, Mesh, Spec, chunk
from morok.ir.node import UOp
from morok.ir.ops import Op, Ops

WHOLE, BLOCKED = -1, -2
AxisMap = tuple[int, ...]


@final
@record(frozen=True)
class Placement:
    """Cuts by axis; and along which axes of the mesh values are parts still to be joined, by which op."""

    spec: Spec
    axes: Group = ()
    op: Op | None = None

    @property
    def resolved(self) -> Placement:
        """The same cuts, with nothing left to be joined."""
        return Placement(self.spec) if self.axes else self

    @property
    def used(self) -> frozenset[str]:
        """The axes of the mesh that cut something."""
        return frozenset(axis for group in self.spec for axis in group)

    def cut(self, axis: int, group: Group) -> Placement:
        """With another cut of one axis."""
        return replace(self, spec=tuple(group if n == axis else g for n, g in enumerate(self.spec)))

    def show(self) -> str:
        """As people read it: `data,-`, and what is still to be joined."""
        cuts = ",".join("+".join(group) or "-" for group in self.spec)
        joined = f" ({self.op.name.lower()} over {'+'.join(self.axes)} to come)" if self.op else ""
        return f"({cuts}){joined}"


def whole(dimensions: int) -> Placement:
    """Every device has all of it."""
    return Placement(((),) * dimensions)


def dimensions(node: UOp) -> tuple[Any, ...]:
    found = shape(node)
    return () if found is None else found


def local_sizes(mesh: Mesh, sizes: tuple[Any, ...], spec: Spec) -> tuple[Any, ...]:
    """The shape that each device has room for."""
    return tuple(chunk(n, mesh.size(g)) if g else n for n, g in zip(sizes, spec, strict=True))


def is_uneven(mesh: Mesh, size: Any, group: Group) -> bool:
    return bool(group) and size % mesh.size(group) != 0


# --- laws


def axis_map(node: UOp, i: int, devices: int) -> AxisMap:
    """For every axis of a node, the axis of source i that it goes along with, WHOLE or BLOCKED."""
    op = node.op
    if op.is_alu:
        return _elementwise(node, i)
    law = _LAWS.get(op)
    if law is not None:
        return law(node, i, devices)
    count = len(dimensions(node))
    return tuple(range(count)) if len(dimensions(node.src[i])) == count else (BLOCKED,) * count


def _elementwise(node: UOp, i: int) -> AxisMap:
    own = dimensions(node.src[i])
    return tuple(range(len(own))) if own else (WHOLE,) * len(dimensions(node))


def _permute(node: UOp, i: int, devices: int) -> AxisMap:
    return tuple(node.arg)


def _expand(node: UOp, i: int, devices: int) -> AxisMap:
    pairs = zip(dimensions(node.src[0]), dimensions(node), strict=True)
    return tuple(n if own == now else WHOLE for n, (own, now) in enumerate(pairs))


def _pad(node: UOp, i: int, devices: int) -> AxisMap:
    ends = [size_of(s) for s in node.src[1:]]
    pairs = zip(ends[::2], ends[1::2], strict=True)
    return tuple(n if pair == (0, 0) else BLOCKED for n, pair in enumerate(pairs))


def _shrink(node: UOp, i: int, devices: int) -> AxisMap:
    ends = [size_of(s) for s in node.src[1:]]
    pairs = zip(ends[::2], ends[1::2], dimensions(node.src[0]), strict=True)
    return tuple(n if (lo, hi) == (0, size) else BLOCKED for n, (lo, hi, size) in enumerate(pairs))


def _flip(node: UOp, i: int, devices: int) -> AxisMap:
    return tuple(BLOCKED if reverse else n for n, reverse in enumerate(node.arg))


def _reduce(node: UOp, i: int, devices: int) -> AxisMap:
    return tuple(WHOLE if n in node.arg[1] else n for n in range(len(dimensions(node))))


def _scan(node: UOp, i: int, devices: int) -> AxisMap:
    return tuple(BLOCKED if n == node.arg[1] else n for n in range(len(dimensions(node))))


def _scatter(node: UOp, i: int, devices: int) -> AxisMap:
    """SCATTER(x, places, rows): the axes after the first go along with the last ones of rows."""
    count = len(dimensions(node))
    if i == 0:
        return (BLOCKED, *range(1, count))
    if i == 1:
        return (BLOCKED, *(WHOLE,) * (count - 1))
    skipped = len(dimensions(node.src[2])) - count
    return (BLOCKED, *(n + skipped for n in range(1, count)))


def _reshape(node: UOp, i: int, devices: int) -> AxisMap:
    return reshaped(dimensions(node.src[0]), dimensions(node), devices)


def reshaped(old: tuple[Any, ...], new: tuple[Any, ...], devices: int) -> AxisMap:
    """Axes fall into stretches with the same number of elements on both sides.

    In a stretch the first axis of more than one element goes along with the first one of the other side, if
    cutting either takes the same elements.
    """
    found = [BLOCKED] * len(new)
    a = b = 0
    while a < len(old) or b < len(new):
        first_a, first_b = a, b
        left, right = 1, 1
        a, b = a + (a < len(old)), b + (b < len(new))
        left = math.prod(_numbers(old[first_a:a]))
        right = math.prod(_numbers(new[first_b:b]))
        while left != right and (a < len(old) or b < len(new)):
            if (left < right and a < len(old)) or b >= len(new):
                left *= _number(old[a])
                a += 1
            else:
                right *= _number(new[b])
                b += 1
        _match(old, new, (first_a, a), (first_b, b), devices, found)
    return tuple(found)


def _number(size: Any) -> int:
    return size if isinstance(size, int) else -7919  # a size that is known later: a factor of its own


def _numbers(sizes: tuple[Any, ...]) -> list[int]:
    return [_number(size) for size in sizes]


def _match(
    old: tuple[Any, ...],
    new: tuple[Any, ...],
    left: tuple[int, int],
    right: tuple[int, int],
    devices: int,
    found: list[int],
) -> None:
    """Enters what goes along in one stretch."""
    for n in range(*right):
        if new[n] == 1:
            found[n] = WHOLE
    a = next((n for n in range(*left) if old[n] != 1), None)
    b = next((n for n in range(*right) if new[n] != 1), None)
    if a is None or b is None or not isinstance(old[a], int) or not isinstance(new[b], int):
        if a is not None and b is not None and old[a] is new[b]:
            found[b] = a
        return
    inner_a = math.prod(_numbers(old[a + 1 : left[1]]))
    inner_b = math.prod(_numbers(new[b + 1 : right[1]]))
    if chunk(old[a], devices) * inner_a == chunk(new[b], devices) * inner_b:
        found[b] = a


_LAWS = {
    Ops.PERMUTE: _permute,
    Ops.EXPAND: _expand,
    Ops.PAD: _pad,
    Ops.SHRINK: _shrink,
    Ops.FLIP: _flip,
    Ops.RESHAPE: _reshape,
    Ops.REDUCE_AXIS: _reduce,
    Ops.SCAN_AXIS: _scan,
    Ops.SCATTER: _scatter,
}
# Ops that may be done to summands one by one: f(a + b) = f(a) + f(b), the other operand being the same.
LINEAR = frozenset((Ops.ADD, Ops.SUB, Ops.NEG, Ops.MUL, Ops.FDIV, Ops.CAST))
