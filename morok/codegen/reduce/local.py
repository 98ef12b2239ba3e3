"""Stage 10, local buffers: BUFFERIZE becomes memory that is filled by loops of its own.

    INDEX(BUFFERIZE(x(r, c), c), i)
    →  b = DEFINE_LOCAL;  fill = END(STORE(INDEX(b, c), x(r, c)), c);  INDEX(AFTER(b, fill), i)

The filling loops depend on the ranges that the value still lives in and on nothing else, so they run once per
point of those. Threads of a block wait for one another before and after filling.
"""

from __future__ import annotations

import math
from typing import Any

from morok.codegen.gpu.shared import lower_shared, swizzled
from morok.codegen.gpu.warp_roles import is_warp_specialized, lower_warp_roles
from morok.codegen.reduce.cache_accumulators import lower_cache_accumulators
from morok.codegen.reduce.tile_units import is_memory, is_tile_product, plain_product, tile_product
from morok.codegen.scopes import next_number
from morok.codegen.vector.vectors import splat
from morok.dtype import PtrDType, void
from morok.errors import CompileError
from morok.ir.bounds import vmax
from morok.ir.build import after, define_local, define_reg
from morok.ir.infer import closed_ranges, dimensions, ranges, summed
from morok.ir.node import UOp, alu, const, make, toposort
from morok.ir.ops import AxisKind, Ops
from morok.ir.provenance import place
from morok.machine.machine import Machine
from morok.rewrite.engine import rewrite, substitute
from morok.rewrite.loops import substitute_open
from morok.rewrite.observe import change
from morok.rewrite.rules import Rules, unproved, why
from morok.rewrite.ruleset import rules
from morok.rewrite.terms import Head
from morok.symbolic.sets import simplify

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
    machine: Machine = ctx.machine
    if is_tile_product(buffer):
        if is_memory(buffer):
            return make(Ops.INDEX, node.dtype, (tile_product(buffer), *node.src[1:]), None, node.origin)
        buffer = plain_product(buffer)
    value = buffer.src[0]
    shared = machine.has_grid and any(r.arg[1] in _BLOCK for d in buffer.src[1:] for r in ranges(d))
    # threads around it that share the memory have a part of it each
    beside = sorted((r for r in ranges(buffer) if shared and r.arg[1] in _BLOCK), key=lambda r: r.arg)
    dims = (*beside, *dimensions(buffer))
    lanes = value.dtype.lanes
    where = const(node.src[1].dtype.scalar.vec(lanes), 0)
    size = 1
    for d in dims:
        size *= _size(d)
        wide = d if d.dtype.lanes == lanes else splat(d, lanes)
        where = alu(Ops.ADD, alu(Ops.MUL, where, const(wide.dtype, _size(d))), wide)
    name, scalar = buffer.arg[1], value.dtype.scalar
    if machine.has_grid and not shared:
        memory = define_reg(scalar, size, name)  # memory of a block would be everybody's
    else:
        memory = define_local(scalar, size, name)
    _check_size(memory, machine, node)
    loops = tuple(
        r
        for d in buffer.src[1:]
        for r in ([d] if d.op is Ops.RANGE else sorted(ranges(d), key=lambda r: r.arg))
    )
    # In a loop, nobody may fill the buffer while others still read what it held in the last iteration.
    around = sorted((r for r in ranges(buffer) if r.arg[1] in _SERIAL), key=lambda r: r.arg)
    target_memory = memory
    if shared and around:
        target_memory = after(memory, make(Ops.BARRIER, void, tuple(around)))
    place_ = _beside(node.src[1], beside, size // math.prod(map(_size, beside)))
    if shared and len(buffer.arg) > 2:
        # a tile that is collected: it lies where operands' tiles were, so everybody must be done with them
        target_memory = after(memory, make(Ops.BARRIER, void, (value, *around)))
        row = buffer.arg[2].row
        where = simplify(swizzled(where, row, scalar.itemsize, size))
        place_ = simplify(swizzled(place_, row, scalar.itemsize, size))
    pointer = make(Ops.INDEX, memory.dtype.vec(lanes), (target_memory, where))
    if summed(buffer):
        value = _added(memory, where, value, loops, summed(buffer))
    store = make(Ops.STORE, void, (pointer, value))
    fill = make(Ops.END, void, (store, *loops)) if loops else store
    if shared:
        fill = make(Ops.BARRIER, void, (fill,))
    return make(Ops.INDEX, node.dtype, (after(memory, fill), place_, *node.src[2:]))


def _added(memory: UOp, where: UOp, value: UOp, loops: tuple[UOp, ...], blocks: tuple[UOp, ...]) -> UOp:
    """The value on top of what earlier steps have left in the same place; the first step finds nothing."""
    so_far = make(Ops.INDEX, value.dtype, (after(memory, *loops), where))
    later: UOp | None = None
    for r in blocks:
        begun = alu(Ops.CMPLT, const(r.dtype, 0), r)
        later = begun if later is None else alu(Ops.OR, later, begun)
    assert later is not None
    nothing = const(value.dtype, 0)
    return alu(Ops.ADD, alu(Ops.WHERE, splat(later, value.dtype.lanes), so_far, nothing), value)


def _beside(where: UOp, beside: list[UOp], size: int) -> UOp:
    """A place in the part of memory that belongs to one of the threads around."""
    if not beside:
        return where
    flat = const(where.dtype.scalar, 0)
    for r in beside:
        flat = alu(Ops.ADD, alu(Ops.MUL, flat, const(flat.dtype, _size(r))), r)
    start = splat(alu(Ops.MUL, flat, const(flat.dtype, size)), where.dtype.lanes)
    return alu(Ops.ADD, start, where)


def _check_size(memory: UOp, machine: Machine, node: UOp) -> None:
    assert isinstance(memory.dtype, PtrDType)
    nbytes = memory.dtype.size * memory.dtype.elem.itemsize
    if memory.op is Ops.DEFINE_LOCAL and machine.has_grid and machine.local_bytes < nbytes:
        raise CompileError(
            f"a block would share {nbytes} bytes; the device has {machine.local_bytes}", place=place(node)
        )


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


@change
def own_names(root: UOp) -> UOp:
    """Buffers that hold different values get different names, as equal names of equal size are one memory."""
    taken: set[object] = set()
    done: dict[UOp, UOp] = {}
    for node in toposort(root):
        new = node.replace(tuple([done[s] for s in node.src]))
        if node.op is Ops.BUFFERIZE:
            kind, name, *more = node.arg
            unique, count = name, 1
            while unique in taken:
                unique, count = f"{name}.{count}", count + 1
            taken.add(unique)
            if unique != name:
                new = make(node.op, node.dtype, new.src, (kind, unique, *more), node.origin)
        done[node] = new
    return done[root]


@change
def own_loops(root: UOp, machine: Machine) -> UOp:
    """Buffers that hold different values are filled by different loops: each loop is written once.

    Threads of a block are no loops. Theirs stay: who has a part of a row in one loop has it in the next.
    """
    number = next_number(root)
    while True:
        owners: dict[UOp, UOp] = {}
        for node in toposort(root):
            if node.op is not Ops.BUFFERIZE:
                continue
            mine = [
                r
                for r in closed_ranges(node)
                if r.op is Ops.RANGE and not (machine.has_grid and r.arg[1] in _BLOCK)
            ]
            taken = [r for r in mine if owners.setdefault(r, node) is not node]
            if taken:
                break
        else:
            return root
        fresh = {}
        for r in taken:
            fresh[r] = make(Ops.RANGE, r.dtype, r.src, (number, *r.arg[1:]), r.origin)
            number += 1
        dims = tuple(fresh.get(s, s) for s in node.src[1:])
        root = substitute(root, {node: node.replace((substitute_open(node.src[0], fresh), *dims))})


def local_stage(root: UOp, ctx: Any) -> UOp:
    """Stage 10 as a whole."""
    if not any(n.op is Ops.BUFFERIZE for n in toposort(root)):
        return root
    root = lower_cache_accumulators(own_loops(own_names(root), ctx.machine), ctx.machine)
    if ctx.machine.has_grid:
        root = lower_warp_roles(root) if is_warp_specialized(root) else lower_shared(root, ctx.machine)
    return rewrite(root, local_rules, ctx)
