"""Memory of which a graph sees one stretch: the graph is that of the stretch alone, wherever it begins.

`x[0] @ w`, `x[1] @ w`, … are one graph then, and `y[0] = v`, `y[1] = v`, … are another, each scheduled
once. `plan/windows.py` does the same for a kernel, which sees more ways to look at memory: columns, and
several parts of what one kernel reads.
"""

from __future__ import annotations

from math import prod
from typing import final

from morok.dtype import void
from morok.dtype.records import record
from morok.ir.infer import shape
from morok.ir.layout import is_mesh
from morok.ir.movement import reshape
from morok.ir.node import UOp, make, toposort
from morok.ir.ops import COLLECTIVES, Ops
from morok.machine.devices import machine_of
from morok.schedule.normalise import Normalised

_SHOWS = frozenset((Ops.ASSIGN, Ops.AFTER, Ops.SCATTER, Ops.CONTIGUOUS, Ops.DETACH))
_FOLLOWED = frozenset((Ops.PARAM, Ops.RESHAPE, Ops.PLACE, Ops.AFTER))


@final
@record
class _Stretch:
    """What a graph sees of some memory: so many elements, so many others before them."""

    param: UOp
    start: int
    count: int
    boxes: dict[UOp, bool]  # views that show it, and whether to be written
    after: UOp | None = None  # the memory as a whole, when it has been written


def without_beginnings(form: Normalised) -> tuple[Normalised, dict[int, int], dict[int, UOp]]:
    """The graph with stretches as inputs, the elements before them by the number of their PARAM, and what
    results that are more than a stretch show instead of it."""
    order = toposort(form.sink)
    if not any(n.op is Ops.SHRINK for n in order):
        return form, {}, {}
    found = _stretches(form.sink, order)
    if not found:
        return form, {}, {}
    whole = {s.param: make(Ops.PARAM, s.param.dtype, (), _shorter(s), s.param.origin) for s in found}
    boxes = {box: stretch for stretch in found for box in stretch.boxes}
    after = {s.after: whole[s.param] for s in found if s.after is not None}
    done: dict[UOp, UOp] = {}
    for node in order:
        stretch = boxes.get(node)
        if stretch is not None:
            shown = reshape(whole[stretch.param], _sizes(node))
            done[node] = make(Ops.PLACE, shown.dtype, (shown,)) if stretch.boxes[node] else shown
            continue
        src = tuple([done.get(s, s) for s in node.src])
        if node in after:
            src = (after[node], *src[1:])
        done[node] = node if src == node.src else make(node.op, node.dtype, src, node.arg, node.origin)
    made = {old: done.get(new, new) for old, new in form.made.items()}
    sink = make(Ops.SINK, void, tuple([done[s] for s in form.sink.src]))
    shows = {n: s.src[0] for n, s in enumerate(form.sink.src) if s in after}
    starts = {int(s.param.arg[0]): s.start for s in found}
    return Normalised(sink, form.buffers, form.values, made), starts, shows


def _shorter(stretch: _Stretch) -> tuple[object, ...]:
    number, _, device = stretch.param.arg
    return number, stretch.count, device


def _stretches(sink: UOp, order: list[UOp]) -> list[_Stretch]:
    """The memory of which a graph sees one stretch, maybe several times."""
    users: dict[UOp, list[UOp]] = {}
    kept = {_shown(s) for s in sink.src if s.op is not Ops.AFTER}  # somebody gets a view of it
    for node in order:
        if node.op in (Ops.COPY, *COLLECTIVES):
            return []  # what is moved is moved as it lies
        if node.op is Ops.SCATTER:
            kept.add(_shown(node.src[0]))
        for source in dict.fromkeys(node.src):
            if source.op in _FOLLOWED:
                users.setdefault(source, []).append(node)
    found = []
    for param in order:
        if param.op is Ops.PARAM and param not in kept and begins_anywhere(str(param.arg[2])):
            stretch = _stretch_of(param, users)
            if stretch is not None:
                found.append(stretch)
    return found


def _stretch_of(param: UOp, users: dict[UOp, list[UOp]]) -> _Stretch | None:
    """The only stretch of some memory that is read, or written, or both."""
    found = _Stretch(param, 0, 0, {})
    views = [(param, False)]
    while views:
        view, written = views.pop()
        for user in users.get(view, ()):
            if user.op is Ops.RESHAPE:
                views.append((user, written))
            elif user.op is Ops.PLACE and not written:
                views.append((user, True))
            elif user.op is Ops.AFTER and not written and found.after is None and view is user.src[0]:
                if len(user.src) != 2 or any(u.op is not Ops.SINK for u in users[user]):
                    return None
                found.after = user
            elif user.op is Ops.SHRINK:
                stretch = _begin(user, int(param.arg[1]))
                if stretch is None or (found.boxes and stretch != (found.start, found.count)):
                    return None
                found.start, found.count = stretch
                found.boxes[user] = written
            else:
                return None
    # What is written is seen as a whole by whoever holds it, and by nobody else.
    return found if found.boxes and (found.after is not None) is any(found.boxes.values()) else None


def _sizes(box: UOp) -> tuple[int, ...]:
    return tuple([int(b.arg) - int(a.arg) for a, b in zip(box.src[1::2], box.src[2::2], strict=True)])


def _begin(box: UOp, count: int) -> tuple[int, int] | None:
    """Begin and number of the elements of a box that are neighbours in memory of so many; None for others."""
    outer = shape(box.src[0])
    if outer is None or any(s.op is not Ops.CONST for s in box.src[1:]):
        return None
    sizes = _sizes(box)
    whole = [s for s in outer if isinstance(s, int)]
    if len(whole) < len(outer) or prod(whole) != count or 0 in sizes:
        return None
    cut = next((axis for axis, n in enumerate(sizes) if n > 1), len(sizes))
    if any(n != s for n, s in zip(sizes[cut + 1 :], whole[cut + 1 :], strict=True)):
        return None
    start = 0
    for begin, size in zip(box.src[1::2], whole, strict=True):
        start = start * size + int(begin.arg)
    return start, prod(sizes)


def begins_anywhere(device: str) -> bool:
    """Whether kernels of a device ask nothing of where memory begins."""
    return not is_mesh(device) and machine_of(device).grid is None


def _shown(node: UOp) -> UOp:
    """The memory that a node shows, if it is a view of some."""
    while node.op.is_movement or node.op in _SHOWS:
        node = node.src[0]
    return node
