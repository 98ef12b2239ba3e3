"""Stage 11, remove reduce: from "the sum of these" to "start at zero, add each".

    REDUCE(add, x(r, k), k)
    →  a = DEFINE_REG;  init = STORE(a, 0);  END(STORE(a, a + x(r, k)), k);  the value of a after that

The accumulator lives in the ranges that the reduction is open in. Lanes that belong to the reduction are kept
as lanes of the accumulator as long as registers last (added vertically in the loop, combined once after it);
where the outputs fill the registers already, the lanes are added one after the other. A product is added with
one rounding where the device can.
"""

from __future__ import annotations

from typing import Any

from morok.codegen.reduce.blocked_sums import blocked_summation
from morok.codegen.reduce.online import lower_online
from morok.codegen.reduce.overlap import fill_under_products, overlap_products
from morok.codegen.reduce.scan import lower_scans
from morok.codegen.reduce.wgmma import (
    add_chained_products,
    add_products,
    add_products_from_registers,
    is_computed,
    one_step,
    pending_products,
    released,
    released_last,
    ring_waits,
    unit_of,
)
from morok.codegen.scopes import own_ranges
from morok.codegen.vector.accumulators import Accumulators, accumulate, fold_lanes, fold_parts, pick_lanes
from morok.codegen.vector.indices import places
from morok.codegen.vector.vectors import swizzle
from morok.dtype import void
from morok.ir.infer import ranges
from morok.ir.matrix import Products
from morok.ir.node import UOp, alu, make, toposort
from morok.ir.ops import AxisKind, Op, Ops
from morok.machine.machine import Machine
from morok.rewrite.engine import rewrite
from morok.rewrite.loops import share_loops
from morok.rewrite.observe import change
from morok.rewrite.rules import Rules, unproved, why
from morok.rewrite.ruleset import rules
from morok.rewrite.terms import Head


def chain(x: UOp, outputs: int) -> UOp:
    """A written-out sum of products: the first, and each of the others added with one rounding."""
    parts = x.dtype.lanes // outputs
    total = pick_lanes(x, [o * parts for o in range(outputs)])
    for p in range(1, parts):
        total = accumulate(Ops.ADD, total, pick_lanes(x, [o * parts + p for o in range(outputs)]), True)
    return total


def runs_along_parts(x: UOp, parts: int, machine: Machine) -> bool:
    """Whether memory lies side by side along the parts of a sum, in whole vectors: the registers hold all of
    them, or one for each output and as many again."""
    width = machine.lanes(x.dtype.scalar)
    if width < 2 or parts % width:
        return False
    if x.dtype.lanes > width * machine.registers and x.dtype.lanes // parts > machine.registers // 2:
        return False
    reads = [n for n in toposort(x) if n.op is Ops.INDEX and n.dtype.lanes > 1]
    for read in reads:
        found = places(read.src[1])
        if read.dtype.lanes % parts:
            return False
        for i, offset in enumerate(found.offsets):  # an output's own row may begin anywhere
            first = i // parts * parts
            if found.root(i) is not found.root(first) or offset != found.offsets[first] + i - first:
                return False
    return bool(reads)


def runs_along_outputs(x: UOp, parts: int) -> bool:
    """Whether the lanes are those of one vector of outputs after the other, as they lie in memory."""
    outputs = x.dtype.lanes // parts
    by_parts = tuple([p * outputs + o for o in range(outputs) for p in range(parts)])
    if parts < 2 or x.op is not Ops.GEP or x.arg != by_parts:
        return False
    reads = [n for n in toposort(x) if n.op is Ops.INDEX and n.dtype.lanes == len(by_parts)]
    for read in reads:
        found = places(read.src[1])
        if len(found.roots) != 1:
            return False
        if any(o != found.offsets[i // outputs * outputs] + i % outputs for i, o in enumerate(found.offsets)):
            return False
    return bool(reads)


def shrink_parts(op: Op, x: UOp, outputs: int, room: int) -> UOp:
    """Combines halves until the lanes fit into `room`."""
    parts = x.dtype.lanes // outputs
    while parts > 1 and outputs * parts > room and parts % 2 == 0:
        half = parts // 2
        low = [o * parts + p for o in range(outputs) for p in range(half)]
        x = alu(op, swizzle(x, low), swizzle(x, [i + half for i in low]))
        parts = half
    return x


def _product(x: UOp) -> UOp | None:
    """A product, also where it is lanes of one: a product of lanes, which is added with one rounding."""
    if x.op is Ops.GEP and x.src[0].op is Ops.MUL:
        return alu(Ops.MUL, *(swizzle(s, x.arg) for s in x.src[0].src))
    return x if x.op is Ops.MUL else None


def lower_reduce(node: UOp, ctx: Any) -> UOp | None:
    """A reduction → an accumulator, its loop, and the value afterwards. Lanes of a warp wait for stage 12."""
    state: Accumulators = ctx
    machine = state.machine
    if any(r.op is Ops.RANGE and r.arg[1] is AxisKind.WARP for r in node.src[1:]):
        return None
    op: Op = node.arg[0]
    value, loops = node.src[0], node.src[1:]
    if machine.scalar_alu:  # lanes are no vectors there
        product = _product(value)
        value = value if product is None else product
    outputs = node.dtype.lanes
    fused = machine.fma and value.dtype.scalar in machine.floats
    parts = value.dtype.lanes // outputs
    unit = unit_of(value) if op is Ops.ADD else None
    in_order = parts > 1 and (outputs >= machine.lanes(node.dtype) or machine.scalar_alu)
    if in_order and loops and not runs_along_outputs(value, parts):
        in_order = not runs_along_parts(value, parts, machine)
    if not loops:
        if unit is not None:
            return one_step(value, outputs, unit)
        product = _product(value)
        if in_order and fused and op is Ops.ADD and product is not None:
            return chain(product, outputs)
        across = outputs >= machine.lanes(node.dtype) > 1 and runs_along_outputs(value, parts)
        return (fold_parts if across else fold_lanes)(op, value, outputs)
    if not in_order and parts > 1:
        room = machine.lanes(node.dtype) * max(1, machine.registers // 4)
        if outputs >= machine.lanes(node.dtype) > 1:
            room = machine.lanes(node.dtype) * machine.registers
            if value.dtype.lanes > room:
                room //= 2  # what comes in needs registers too, before it is added up
        value = shrink_parts(op, value, outputs, room)
    width = outputs if in_order else value.dtype.lanes
    dtype = node.dtype.scalar.vec(width)

    register = state.register(dtype, op, ranges(node))
    total = register.inside(loops)
    each = [[o * parts + p for o in range(outputs)] for p in range(parts)]
    product = _product(value) if in_order and fused and op is Ops.ADD else None
    picked = value if product is None else product
    steps = [pick_lanes(picked, wanted) for wanted in each] if in_order else [value]
    in_flight = unit is not None and unit.in_flight
    chained = in_flight and is_computed(steps[0])
    pending = pending_products(value) if in_flight and not chained else 0
    if chained:
        total = add_chained_products(total, steps)
    elif unit is not None and in_flight:
        total = (add_products if "a" in unit.shared else add_products_from_registers)(total, steps, pending)
    else:
        for step in steps:
            total = accumulate(op, total, step, fused)
    update = register.write(loops, total)
    waits = ring_waits(value)
    if waits:
        update = make(
            Ops.GROUP, void, (update, *(released(w, loops[0], total, bool(pending)) for w in waits))
        )
    end = make(Ops.END, void, (update, *loops))
    if pending:
        end = make(Ops.ASYNC_WAIT, void, (end,), Products(0))
        if waits:
            end = make(Ops.GROUP, void, (end, *(released_last(w, loops[0], end) for w in waits)))
    return fold_lanes(op, register.after(end), outputs)


_CODE = why("makes an accumulator with a number of its own")
_LOOPS = unproved("turns a value into memory and a loop; tested against the interpreter")


@rules("codegen.remove_reduce")
def reduce_rules() -> Rules:
    """Accumulators."""
    # Σ x = (a ← 0; for each x: a ← a + x; a)
    yield "accumulate", Head(Ops.REDUCE).any() >> lower_reduce, _CODE, _LOOPS


def reduce_stage(root: UOp, ctx: Any) -> UOp:
    """Stage 11 as a whole."""
    root = lower_scans(root, ctx.machine)
    if not any(n.op is Ops.REDUCE for n in toposort(root)):
        return root
    state = Accumulators(ctx.machine)
    whole = own_ranges(change(share_loops)(lower_online(root, state)))
    root = blocked_summation(whole, ctx.machine)
    if root is not whole:
        root = own_ranges(root)  # a stretch that is the same in every round is walked outside of the rounds
    return fill_under_products(overlap_products(rewrite(root, reduce_rules, state)))
