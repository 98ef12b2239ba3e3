"""A graph on a mesh made ready: memory in the shape that it is cut in, and writes that fit the cuts.

A write to a part of memory that does not go along with the cuts, a box out of a cut axis say, becomes one of
all of it: the rest is what was there.
"""

from __future__ import annotations

from morok.dtype import bool_
from morok.ir import movement as move
from morok.ir.infer import Shape, shape, size_node, size_of, subtract_sizes
from morok.ir.layout import Layout, is_mesh, layout_of
from morok.ir.memory import MEMORY, base_of, own_device
from morok.ir.node import UOp, alu, const, make, toposort
from morok.ir.ops import Ops
from morok.schedule.mesh.placement import axis_map, dimensions


def laid_out(sink: UOp) -> UOp:
    """The graph with these forms of memory and of writes."""
    done: dict[UOp, UOp] = {}
    for node in toposort(sink):
        layout = _layout(node.src[0]) if node.src else None
        if node.op is Ops.RESHAPE and layout is not None:
            done[node] = _reshaped(_in_shape(node.src[0], layout), dimensions(node))
        elif _layout(node) is not None:
            layout = _layout(node)
            assert layout is not None
            done[node] = _reshaped(_in_shape(node, layout), dimensions(node))
        elif node.op is Ops.ASSIGN and _layout(base_of(node.src[0])) is not None:
            done[node] = _assigned(node.replace(tuple([done[s] for s in node.src])))
        elif node.op is Ops.AFTER:
            done[node] = node.replace((done[node.src[0]], *(done[s] for s in node.src[1:])))
        else:
            done[node] = node.replace(tuple([done[s] for s in node.src]))
    return done[sink]


def _layout(node: UOp) -> Layout | None:
    return layout_of(own_device(node)) if node.op in MEMORY and is_mesh(own_device(node)) else None


def _in_shape(memory: UOp, layout: Layout) -> UOp:
    return _reshaped(memory, layout.shape)


def _reshaped(x: UOp, sizes: Shape) -> UOp:
    """A RESHAPE that is not joined with one below it."""
    if dimensions(x) == sizes:
        return x
    return make(Ops.RESHAPE, x.dtype, (x, *map(size_node, sizes)), None, x.origin)


def _assigned(node: UOp) -> UOp:
    """A write as it is if it goes along with the cuts, else one of all of the memory."""
    chain = []
    part = node.src[0]
    while part.op is not Ops.PLACE:
        chain.append(part)
        part = part.src[0]
    layout = _layout(base_of(part))
    assert layout is not None
    state = part.src[0]
    if _goes_along(layout, state, chain[::-1]):
        return node
    value = node.src[1]
    own = shape(value)
    assert own is not None
    everywhere = move.expand(move.reshape(const(bool_, True), (1,) * len(own)), own)
    for step in chain:
        value, everywhere = _back(step, value), _back(step, everywhere)
    return node.replace((part, alu(Ops.WHERE, everywhere, value, state), *node.src[2:]))


def _goes_along(layout: Layout, state: UOp, chain: list[UOp]) -> bool:
    """Whether all cuts of the memory are cuts of the part."""
    if layout.is_whole:
        return True
    if dimensions(state) != layout.shape:
        return False
    spec = {axis: group for axis, group in enumerate(layout.spec) if layout.mesh.size(group) > 1}
    for step in chain:
        moved = {}
        for axis, group in spec.items():
            found = axis_map(step, 0, layout.mesh.size(group)) if step.op.is_movement else ()
            if step.op.is_movement and axis not in found:
                return False
            moved[found.index(axis) if found else axis] = group
        spec = moved
    return True


def _back(step: UOp, value: UOp) -> UOp:
    """One movement undone, with zeros where nothing comes from."""
    before = dimensions(step.src[0])
    if step.op is Ops.RESHAPE:
        return move.reshape(value, before)
    if step.op is Ops.PERMUTE:
        order = list(step.arg)
        return move.permute(value, sorted(range(len(order)), key=order.__getitem__))
    if step.op is Ops.FLIP:
        return move.flip(value, step.arg)
    if step.op is Ops.SHRINK:
        ends = [size_of(s) for s in step.src[1:]]
        pairs = zip(ends[::2], ends[1::2], before, strict=True)
        amounts = [(low, subtract_sizes(size, high)) for low, high, size in pairs]
        return move.reshape(move.pad(value, amounts), before)
    return value
