"""Stage 10, local buffers: BUFFERIZE becomes memory that is filled by loops of its own.

    INDEX(BUFFERIZE(x(r, c), c), i)
    →  b = DEFINE_LOCAL;  fill = END(STORE(INDEX(b, c), x(r, c)), c);  INDEX(AFTER(b, fill), i)

The filling loops depend on the ranges that the value still lives in and on nothing else, so they run once per
point of those. Threads of a block wait for one another before and after filling.
"""

from __future__ import annotations

from typing import Any

from morok.codegen.target import Target
from morok.codegen.vectors import splat
from morok.dtype import void
from morok.ir.bounds import vmax
from morok.ir.build import after, define_local
from morok.ir.infer import ranges
from morok.ir.node import UOp, alu, const, make, toposort
from morok.ir.ops import AxisKind, Ops
from morok.rewrite.engine import rewrite
from morok.rewrite.rules import Rules, unproved, why
from morok.rewrite.ruleset import rules
from morok.rewrite.terms import Head

_BLOCK = (AxisKind.LOCAL, AxisKind.WARP, AxisKind.GROUP_REDUCE)
_SERIAL = (AxisKind.LOOP, AxisKind.REDUCE)


def _size(source: UOp) -> int:
    """Points of a dimension, whether it is still a loop or lanes by now."""
    return int(vmax(source)) + 1


def lower_buffer(node: UOp, ctx: Any) -> UOp | None:
    """A read of a local buffer → memory, its filling, and a read that waits for it."""
    buffer = node.src[0]
    if buffer.op is not Ops.BUFFERIZE:
        return None
    target: Target = ctx.target
    value, dims = buffer.src[0], buffer.src[1:]
    lanes = value.dtype.lanes
    where = const(node.src[1].dtype.scalar.vec(lanes), 0)
    size = 1
    for d in dims:
        size *= _size(d)
        wide = d if d.dtype.lanes == lanes else splat(d, lanes)
        where = alu(Ops.ADD, alu(Ops.MUL, where, const(wide.dtype, _size(d))), wide)
    memory = define_local(value.dtype.scalar, size, buffer.arg[1])
    shared = target.has_grid and any(r.arg[1] in _BLOCK for d in dims for r in ranges(d))
    loops = tuple(
        r for d in dims for r in ([d] if d.op is Ops.RANGE else sorted(ranges(d), key=lambda r: r.arg))
    )
    # In a loop, nobody may fill the buffer while others still read what it held in the last iteration.
    around = sorted((r for r in ranges(buffer) if r.arg[1] in _SERIAL), key=lambda r: r.arg)
    target_memory = memory
    if shared and around:
        target_memory = after(memory, make(Ops.BARRIER, void, tuple(around)))
    pointer = make(Ops.INDEX, memory.dtype.vec(lanes), (target_memory, where))
    store = make(Ops.STORE, void, (pointer, value))
    fill = make(Ops.END, void, (store, *loops)) if loops else store
    if shared:
        fill = make(Ops.BARRIER, void, (fill,))
    return make(Ops.INDEX, node.dtype, (after(memory, fill), *node.src[1:]))


@rules("codegen.local_buffers")
def local_rules() -> Rules:
    """Buffers at a loop level."""
    # a value kept for every point of some loops is memory, filled by these loops
    yield (
        "buffer",
        Head(Ops.INDEX).any() >> lower_buffer,
        why("the size follows from the ranges"),
        unproved("adds memory and loops; tested against the interpreter"),
    )


def own_names(root: UOp) -> UOp:
    """Buffers that hold different values get different names, as equal names of equal size are one memory."""
    taken: set[object] = set()
    done: dict[UOp, UOp] = {}
    for node in toposort(root):
        new = node.replace(tuple([done[s] for s in node.src]))
        if node.op is Ops.BUFFERIZE:
            kind, name = node.arg
            unique, count = name, 1
            while unique in taken:
                unique, count = f"{name}.{count}", count + 1
            taken.add(unique)
            if unique != name:
                new = make(node.op, node.dtype, new.src, (kind, unique), node.origin)
        done[node] = new
    return done[root]


def local_stage(root: UOp, ctx: Any) -> UOp:
    """Stage 10 as a whole."""
    if not any(n.op is Ops.BUFFERIZE for n in toposort(root)):
        return root
    return rewrite(own_names(root), local_rules, ctx)
