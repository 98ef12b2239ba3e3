"""Padding of images in memory, where a product would ask for it element by element: gradients of weights.

The gradient of a convolution's weights sums over places, and its outputs are channels and offsets in a
window. Those lie apart in memory, so that each vector of a tile is put together from single elements, and
each has a condition of its own: whether it is in the picture or in the padding around it. All of them are
read as often as a window has offsets. With its padding in memory a picture is read in short vectors without
conditions, which are turned. What computes it may write it so; a copy takes little beside the product.
"""

from __future__ import annotations

import math
from itertools import permutations

from morok import knobs
from morok.ir.memory import device_of
from morok.ir.node import UOp, make, toposort
from morok.ir.ops import AxisKind, Ops
from morok.machine.devices import machine_of
from morok.machine.machine import Machine
from morok.schedule.contraction import contraction_at, size_of, varying
from morok.schedule.costs import elements
from morok.schedule.graph.operand_reads import Read, base_of, meet, reads_of_operands, trips
from morok.schedule.indexing import groups, known_shape

GUARDED = 4  # instructions for an element that has a condition of its own
REASON = "vectors of a product read it with its padding, without conditions"


def keep_padding(sink: UOp, ctx: object = None) -> UOp:
    """Pictures whose padding offsets of windows meet one by one are kept with it."""
    order = toposort(sink)
    if knobs.NOOPT.value or not any(n.op is Ops.PAD for n in order):
        return sink
    devices: dict[UOp, str] = {}
    padded: dict[UOp, list[UOp | None]] = {}
    for node in order:
        devices[node] = device_of(node, devices)
        if node.op is Ops.REDUCE_AXIS and devices[node]:
            found = _padding_of_operands(node, machine_of(devices[node]))
            if any(view is not None for view in found):
                padded[node] = found
    if not padded:
        return sink
    done: dict[UOp, UOp] = {}
    for node in order:
        new = node.replace(tuple([done[s] for s in node.src]))
        if node in padded:
            pairs = zip(node.src[0].src, new.src[0].src, padded[node], strict=True)
            factors = tuple([n if view is None else _kept(x, n, view) for x, n, view in pairs])
            new = new.replace((new.src[0].replace(factors), *new.src[1:]))
        done[node] = new
    return done[sink]


def _kept(old: UOp, new: UOp, view: UOp) -> UOp:
    """A factor of which one view is memory of its own; `old` is what it was before other changes."""
    if old is view:
        return make(Ops.CONTIGUOUS, new.dtype, (new,), REASON, new.origin)
    return new.replace((_kept(old.src[0], new.src[0], view), *new.src[1:]))


def _padding_of_operands(node: UOp, machine: Machine) -> list[UOp | None]:
    """For both factors of a product the view with its padding that should be memory; None where none is."""
    product = contraction_at(node) if machine.grid is None and machine.vector_bytes else None
    if product is None or min(product.rows, product.columns) < 2:
        return []
    bases = [base_of(s) for s in node.src[0].src]
    views = [_padding(x, base) for x, base in zip(node.src[0].src, bases, strict=True)]
    if bases[0] is bases[1] or all(view is None for view in views):
        return []
    if not any(view is not None and _may_meet(node, n, bases[n], view) for n, view in enumerate(views)):
        return []
    reads = reads_of_operands(node, bases)
    if reads is None:
        return []
    found: list[UOp | None] = []
    for view, mine, other in zip(views, reads, reversed(reads), strict=True):
        gathered = view is not None and _meets_offsets(mine, other)
        found.append(view if view is not None and gathered and _is_worth(view, mine, machine) else None)
    return found


def _padding(x: UOp, base: UOp) -> UOp | None:
    """The view of a factor that has the padding; None where it has none."""
    found = None
    while x is not base:
        found = x if x.op is Ops.PAD else found
        x = x.src[0]
    return found


def _may_meet(node: UOp, factor: int, base: UOp, view: UOp) -> bool:
    """Whether an output of this factor alone may meet longer steps, by sizes: what is asked below, before
    anything is lowered. They move along one axis, or padding leads the output into the next row."""
    mine, other = node.src[0].src[factor], node.src[0].src[1 - factor]
    along, padded, sizes = _axes_below(mine, base), _axes_below(view, base), known_shape(mine)
    own = varying(mine) - varying(other) - set(node.arg[1])
    for r in own:
        n = sizes[r]
        if not isinstance(n, int) or len(along[r]) != 1:
            return True
        if n < math.prod(size_of(sizes[k]) for k in node.arg[1] if along[k] & along[r]):
            return True
        below = size_of(known_shape(base)[min(along[r])])
        reach = max(
            (size_of(known_shape(view)[a]) for a, on in enumerate(padded) if on & along[r]), default=n
        )
        if reach // n * n > below:
            return True
    return False


def _axes_below(x: UOp, base: UOp) -> list[frozenset[int]]:
    """For each axis of a view the axes of its base that it may move along."""
    views = []
    while x is not base:
        views.append(x)
        x = x.src[0]
    found = [frozenset((axis,)) for axis, _ in enumerate(known_shape(base))]
    for view in reversed(views):
        old, new = known_shape(view.src[0]), known_shape(view)
        if view.op is Ops.PERMUTE:
            found = [found[axis] for axis in view.arg]
        elif view.op is Ops.RESHAPE:
            parts = [frozenset[int]()] * len(new)
            for left, right in groups(old, new):
                moved = frozenset[int]().union(*found[left])
                parts[right] = [moved if n != 1 else frozenset() for n in new[right]]
            found = parts
        elif view.op is Ops.EXPAND:
            found = [frozenset() if n == 1 else axes for n, axes in zip(old, found, strict=True)]
    return found


def _meets_offsets(mine: Read, other: Read) -> bool:
    """Whether outputs of this operand alone are offsets in a window that its steps move along."""
    return any(
        r.arg[1] is AxisKind.LOOP
        and r not in other.steps
        and k.arg[1] is AxisKind.REDUCE
        and trips(r) < trips(k)
        and meet(r, k, mine)
        for r, k in permutations(mine.steps, 2)
    )


def _is_worth(view: UOp, read: Read, machine: Machine) -> bool:
    """Whether a copy takes less than the conditions of all elements that are read."""
    copied = elements(known_shape(view)) * view.dtype.itemsize * machine.rates.ops_per_byte
    guarded = math.prod(map(trips, read.steps)) * GUARDED * machine.lanes(view.dtype)
    return copied + machine.rates.launch < guarded


__all__ = ["keep_padding"]
