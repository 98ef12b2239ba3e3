"""Inputs that a graph sees one stretch of: the graph is that of the stretch alone, wherever it begins.

`x[0] @ w`, `x[1] @ w`, … are one graph then, which is scheduled once. `plan/windows.py` does the same for a
kernel, which sees more ways to look at memory: columns, and several parts of what one kernel reads.
"""

from __future__ import annotations

from math import prod

from morok.dtype import void
from morok.ir.infer import shape
from morok.ir.layout import is_mesh
from morok.ir.movement import reshape
from morok.ir.node import UOp, make, toposort
from morok.ir.ops import COLLECTIVES, Ops
from morok.machine.devices import machine_of
from morok.schedule.normalise import Normalised

_WRITES = frozenset((Ops.ASSIGN, Ops.AFTER, Ops.SCATTER))
_SHOWS = _WRITES | {Ops.CONTIGUOUS, Ops.DETACH}


def without_beginnings(form: Normalised) -> tuple[Normalised, dict[int, int]]:
    """The graph with stretches as inputs, and the elements before them by the number of their PARAM."""
    order = toposort(form.sink)
    if not any(n.op is Ops.SHRINK for n in order):
        return form, {}
    found = _stretches(form.sink, order)
    if not found:
        return form, {}
    done: dict[UOp, UOp] = {}
    starts: dict[int, int] = {}
    for node in order:
        stretch = found.get(node)
        if stretch is not None:
            param, sizes, start = stretch
            starts[int(param.arg[0])] = start
            whole = make(Ops.PARAM, param.dtype, (), (param.arg[0], prod(sizes), param.arg[2]), param.origin)
            done[node] = reshape(whole, sizes)
            continue
        src = tuple([done.get(s, s) for s in node.src])
        done[node] = node if src == node.src else make(node.op, node.dtype, src, node.arg, node.origin)
    made = {old: done.get(new, new) for old, new in form.made.items()}
    sink = make(Ops.SINK, void, tuple([done[s] for s in form.sink.src]))
    return Normalised(sink, form.buffers, form.values, made), starts


def _stretches(sink: UOp, order: list[UOp]) -> dict[UOp, tuple[UOp, tuple[int, ...], int]]:
    """The boxes that are all that is seen of an input: the input, the box's sizes, elements before it."""
    users: dict[UOp, list[UOp]] = {}
    kept = {_shown(s) for s in sink.src}  # somebody gets a view of it
    for node in order:
        if node.op in (Ops.COPY, *COLLECTIVES):
            return {}  # what is moved is moved as it lies
        if node.op in _WRITES:
            kept.add(_shown(node.src[0]))
        for source in dict.fromkeys(node.src):
            if source.op in (Ops.PARAM, Ops.RESHAPE):
                users.setdefault(source, []).append(node)
    found = {}
    for param in order:
        if param.op is not Ops.PARAM or param in kept or not begins_anywhere(str(param.arg[2])):
            continue
        view = param
        while len(users[view]) == 1 and users[view][0].op is Ops.RESHAPE:
            view = users[view][0]
        if len(users[view]) == 1 and users[view][0].op is Ops.SHRINK:
            stretch = _stretch(users[view][0], int(param.arg[1]))
            if stretch is not None:
                found[users[view][0]] = (param, *stretch)
    return found


def _stretch(box: UOp, count: int) -> tuple[tuple[int, ...], int] | None:
    """Sizes and begin of a box whose elements are neighbours in memory of so many; None for another one."""
    outer = shape(box.src[0])
    if outer is None or any(s.op is not Ops.CONST for s in box.src[1:]):
        return None
    limits = [(int(a.arg), int(b.arg)) for a, b in zip(box.src[1::2], box.src[2::2], strict=True)]
    sizes = tuple([b - a for a, b in limits])
    whole = [s for s in outer if isinstance(s, int)]
    if len(whole) < len(outer) or prod(whole) != count or 0 in sizes:
        return None
    cut = next((axis for axis, n in enumerate(sizes) if n > 1), len(sizes))
    if any(n != s for n, s in zip(sizes[cut + 1 :], whole[cut + 1 :], strict=True)):
        return None
    start = 0
    for (begin, _), size in zip(limits, whole, strict=True):
        start = start * size + begin
    return sizes, start


def begins_anywhere(device: str) -> bool:
    """Whether kernels of a device ask nothing of where memory begins."""
    return not is_mesh(device) and machine_of(device).grid is None


def _shown(node: UOp) -> UOp:
    """The memory that a node shows, if it is a view of some."""
    while node.op.is_movement or node.op in _SHOWS:
        node = node.src[0]
    return node
