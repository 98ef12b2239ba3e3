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

from morok.codegen.accumulators import Accumulators, accumulate, fold_lanes, identity, pick_lanes
from morok.codegen.indices import places
from morok.codegen.online import lower_online
from morok.codegen.scan import lower_scans
from morok.codegen.scopes import own_ranges, share_loops
from morok.codegen.target import Target
from morok.codegen.vectors import swizzle, vector_constant
from morok.dtype import PtrDType, index, void
from morok.ir.build import after, define_local, define_reg
from morok.ir.infer import ranges
from morok.ir.matrix import MatrixUnit, Products
from morok.ir.node import UOp, alu, const, make, toposort
from morok.ir.ops import AxisKind, Op, Ops
from morok.ir.roles import GROUP, Phase
from morok.rewrite.engine import rewrite, substitute
from morok.rewrite.rules import REASSOCIATING, Rules, grows, unproved, why
from morok.rewrite.ruleset import rules
from morok.rewrite.terms import HEADS, Add, Arg, Head, Var, dtype
from morok.symbolic.sets import simplify


def chain(x: UOp, outputs: int) -> UOp:
    """A written-out sum of products: the first, and each of the others added with one rounding."""
    parts = x.dtype.lanes // outputs
    total = pick_lanes(x, [o * parts for o in range(outputs)])
    for p in range(1, parts):
        total = accumulate(Ops.ADD, total, pick_lanes(x, [o * parts + p for o in range(outputs)]), True)
    return total


def runs_along_parts(x: UOp, parts: int, target: Target) -> bool:
    """Whether memory lies side by side along the parts of a sum, in whole vectors that fit the registers."""
    width = target.lanes(x.dtype.scalar)
    if width < 2 or parts % width or x.dtype.lanes > width * target.registers:
        return False
    reads = [n for n in toposort(x) if n.op is Ops.INDEX and n.dtype.lanes > 1]
    for read in reads:
        found = places(read.src[1])
        if read.dtype.lanes % parts or len(found.roots) != 1:
            return False
        if any(o != found.offsets[i // parts * parts] + i % parts for i, o in enumerate(found.offsets)):
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


def lower_reduce(node: UOp, ctx: Any) -> UOp | None:
    """A reduction → an accumulator, its loop, and the value afterwards. Lanes of a warp wait for stage 12."""
    state: Accumulators = ctx
    target = state.target
    if any(r.op is Ops.RANGE and r.arg[1] is AxisKind.WARP for r in node.src[1:]):
        return None
    op: Op = node.arg[0]
    value, loops = node.src[0], node.src[1:]
    outputs = node.dtype.lanes
    fused = target.fma and value.dtype.scalar in target.floats
    parts = value.dtype.lanes // outputs
    unit = unit_of(value) if op is Ops.ADD else None
    in_order = parts > 1 and (outputs >= target.lanes(node.dtype) or target.vector_bytes == 0)
    if in_order and loops and runs_along_parts(value, parts, target):
        in_order = False
    if not loops:
        if unit is not None:
            return one_step(value, outputs, unit)
        chained = in_order and fused and op is Ops.ADD and value.op is Ops.MUL
        return chain(value, outputs) if chained else fold_lanes(op, value, outputs)
    if not in_order and parts > 1:
        room = target.lanes(node.dtype) * max(1, target.registers // 4)
        if outputs >= target.lanes(node.dtype) > 1:
            room = target.lanes(node.dtype) * target.registers
        value = shrink_parts(op, value, outputs, room)
    width = outputs if in_order else value.dtype.lanes
    dtype = node.dtype.scalar.vec(width)

    register = define_reg(dtype.scalar, width, state.next())
    outer = sorted(ranges(node), key=lambda r: r.arg)
    here = after(register, *outer)
    lanes = vector_constant(index, range(width)) if width > 1 else const(index, 0)
    pointer = register.dtype.vec(width) if width > 1 else register.dtype
    start = make(Ops.STORE, void, (make(Ops.INDEX, pointer, (here, lanes)), identity(op, dtype)))
    inside = after(here, start, *loops)
    total = make(Ops.INDEX, dtype, (inside, lanes))
    each = [[o * parts + p for o in range(outputs)] for p in range(parts)]
    steps = [pick_lanes(value, wanted) for wanted in each] if in_order else [value]
    pending = pending_products(value) if unit is not None and unit.shared else 0
    if unit is not None and unit.shared:
        total = (add_products if "a" in unit.shared else add_held_products)(total, steps, pending)
    else:
        for step in steps:
            total = accumulate(op, total, step, fused)
    update = make(Ops.STORE, void, (make(Ops.INDEX, pointer, (inside, lanes)), total))
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
    finished = after(here, end)
    result = make(Ops.INDEX, dtype, (finished, lanes))
    return fold_lanes(op, result, outputs)


# --- matrix units


def unit_of(value: UOp) -> MatrixUnit | None:
    """The unit that computes a value, if one does."""
    node = value.src[0] if value.op is Ops.GEP else value
    return node.arg if node.op is Ops.WMMA and isinstance(node.arg, MatrixUnit) else None


def one_step(value: UOp, outputs: int, unit: MatrixUnit) -> UOp:
    """A sum of products without a loop: each is added to the one before by the unit itself."""
    parts = value.dtype.lanes // outputs
    total = identity(Ops.ADD, value.dtype.scalar.vec(outputs))
    steps = [pick_lanes(value, [o * parts + p for o in range(outputs)]) for p in range(parts)]
    if unit.shared:  # the first one waits until all registers are there that units take over
        held = () if "a" in unit.shared else tuple(step.src[0] for step in steps)
        a, b, c = steps[0].src
        fence = make(Ops.FENCE, void, (*held, *_ready(steps)))
        steps[0] = steps[0].replace((a, _after_that(b, fence), c))
    for step in steps:
        total = accumulate(Ops.ADD, total, step, False)
    return after(total, under_way(total, 0)) if unit.shared else total


def pending_products(value: UOp) -> int:
    """How many groups of products may be under way: as many as the tiles that they read allow."""
    order = toposort(value)
    fences = [n.arg.pending for n in order if n.op is Ops.FENCE and isinstance(n.arg, Products)]
    waits = [n.arg.amount for n in ring_waits(value)]
    return min(waits or fences, default=0)


def ring_waits(value: UOp) -> list[UOp]:
    """What a value waits for that wants to be told when it has been read."""
    return [n for n in toposort(value) if n.op is Ops.PHASE_BARRIER and n.arg.release]


def released(wait: UOp, loop: UOp, done: UOp, late: bool) -> UOp:
    """In step k: the tile of this step has been read; or, if products run on, the tile of the step before."""
    if not late:
        return _release(wait, {}, done, None)
    before = {loop: alu(Ops.SUB, loop, const(loop.dtype, 1))}
    return _release(wait, before, done, alu(Ops.CMPLT, const(loop.dtype, 0), loop))


def released_last(wait: UOp, loop: UOp, done: UOp) -> UOp:
    """After the loop: the tile of the last step has been read."""
    return _release(wait, {loop: alu(Ops.SUB, loop.src[0], const(loop.dtype, 1))}, done, None)


def _release(wait: UOp, step: dict[UOp, UOp], done: UOp, gate: UOp | None) -> UOp:
    """One thread of each group of warps arrives at the barrier of a slot: a group's products end together."""
    place = wait.src[0]
    barrier = place.src[0]
    assert isinstance(barrier.dtype, PtrDType)
    memory = define_local(barrier.dtype.elem, barrier.dtype.size, wait.arg.release)
    slot = simplify(substitute(place.src[1], step))
    # what the place waits for besides: that the barriers have been made, and the role
    base = after(memory, *(s for s in barrier.src[1:] if s not in step), done)
    sources = (base, slot) if gate is None else (base, slot, gate)
    return make(Ops.PHASE_BARRIER, void, (make(Ops.INDEX, memory.dtype, sources),), Phase("arrive", GROUP))


def add_products(total: UOp, steps: list[UOp], pending: int) -> UOp:
    """The accumulator after the products of some steps are under way, and earlier ones have finished."""
    total = fenced(total, total, steps)
    for step in steps:
        total = accumulate(Ops.ADD, total, step, False)
    return after(total, under_way(total, pending))


def add_held_products(total: UOp, steps: list[UOp], pending: int) -> UOp:
    """The same where units take registers, which are filled for a step while the one before is computed.

    The next time a step's registers are filled, its products have to be done; those of the others need not.
    """
    done: UOp | None = None
    for number, step in enumerate(steps):
        held = step.src[0] if done is None else _after_that(step.src[0], done)
        total = fenced(total, held, [step])
        total = accumulate(Ops.ADD, total, step.replace((held, *step.src[1:])), False)
        last = number == len(steps) - 1
        done = under_way(total, 0 if last and not pending else len(steps) - 1)
        total = after(total, done)
    return total


def _after_that(x: UOp, done: UOp) -> UOp:
    """A value that is read from shared tiles, once something has happened."""
    tiles = [n for n in toposort(x) if n.op is Ops.AFTER and n.src[0].op is Ops.DEFINE_LOCAL]
    return substitute(x, {n: n.replace((*n.src, done)) for n in tiles})


def fenced(total: UOp, first: UOp, steps: list[UOp]) -> UOp:
    """The accumulator as units may take it over, once `first` and their tiles are there."""
    return after(total, make(Ops.FENCE, void, (first, *_ready(steps))))


def _ready(steps: list[UOp]) -> list[UOp]:
    """What the tiles of some steps wait for."""
    tiles = [n for n in toposort(*steps) if n.op is Ops.AFTER and n.src[0].op is Ops.DEFINE_LOCAL]
    return list(dict.fromkeys(done for n in tiles for done in n.src[1:]))


def under_way(total: UOp, pending: int) -> UOp:
    """Products that have been given to units are a group; of the groups before, so many may still run."""
    commit = make(Ops.ASYNC_COMMIT, void, (total,), Products(0))
    return make(Ops.ASYNC_WAIT, void, (commit,), Products(pending))


_CODE = why("makes an accumulator with a number of its own")
_LOOPS = unproved("turns a value into memory and a loop; tested against the interpreter")


@rules("codegen.remove_reduce")
def reduce_rules() -> Rules:
    """Accumulators."""
    # Σ x = (a ← 0; for each x: a ← a + x; a)
    yield "accumulate", Head(Ops.REDUCE).any() >> lower_reduce, _CODE, _LOOPS


def simplify_gep(node: UOp) -> UOp | None:
    """Lanes of constants, of lanes, of vectors made of scalars."""
    return swizzle(node.src[0], node.arg)


@rules("codegen.gep")
def gep_rules(x: Var, a: Var, b: Var, c: Var, y: Var, u: Arg) -> Rules:
    """Lanes, as far down as they go; and sums that a matrix unit takes over."""
    # lanes of lanes
    yield "simplify", Head(Ops.GEP).any() >> simplify_gep, why("looks through several ops"), unproved("lanes")
    # WMMA(a, b, c) + y = WMMA(a, b, c + y)
    yield (
        "wmma-add",
        Add[HEADS["Wmma"](a, b, c, arg=u), y] >> HEADS["Wmma"](a, b, c + y, arg=u, dtype=dtype(c)),
        REASSOCIATING,
        grows("the sum moves inside, once per matrix op"),
        unproved("a matrix unit"),
    )


def reduce_stage(root: UOp, ctx: Any) -> UOp:
    """Stage 11 as a whole."""
    root = lower_scans(root, ctx.target)
    if not any(n.op is Ops.REDUCE for n in toposort(root)):
        return root
    state = Accumulators(ctx.target)
    root = own_ranges(share_loops(lower_online(root, state)))
    return rewrite(root, reduce_rules, state)
