"""Sums by matrix units, part of stage 11: wgmma is started, waited for, and its tiles are released.

Units of warp groups (wgmma) work while the threads go on. They take registers over (FENCE), their products
are closed as a group and waited for, and whoever fills the tiles that they read is told when they have been
read.
"""

from __future__ import annotations

from morok.codegen.vector.accumulators import accumulate, identity, pick_lanes
from morok.dtype import PtrDType, void
from morok.ir.build import after, define_local
from morok.ir.matrix import MatrixUnit, Products
from morok.ir.node import UOp, alu, const, make, toposort
from morok.ir.ops import Ops
from morok.ir.warp_roles import WARP_GROUP, MBarrierStep
from morok.rewrite.engine import substitute
from morok.symbolic.sets import simplify


def unit_of(value: UOp) -> MatrixUnit | None:
    """The unit that computes a value, if one does."""
    node = value.src[0] if value.op is Ops.GEP else value
    return node.arg if node.op is Ops.WMMA and isinstance(node.arg, MatrixUnit) else None


def one_step(value: UOp, outputs: int, unit: MatrixUnit) -> UOp:
    """A sum of products without a loop: each is added to the one before by the unit itself."""
    parts = value.dtype.lanes // outputs
    total = identity(Ops.ADD, value.dtype.scalar.vec(outputs))
    steps = [pick_lanes(value, [o * parts + p for o in range(outputs)]) for p in range(parts)]
    if unit.in_flight:  # the first one waits until all registers are there that units take over
        held = () if "a" in unit.shared else tuple(step.src[0] for step in steps)
        a, b, c = steps[0].src
        fence = make(Ops.FENCE, void, (*held, *_ready(steps)))
        steps[0] = steps[0].replace((a, _after_that(b, fence), c))
    for step in steps:
        total = accumulate(Ops.ADD, total, step, False)
    return after(total, under_way(total, 0)) if unit.in_flight else total


def pending_products(value: UOp) -> int:
    """How many groups of products may be under way: as many as the tiles that they read allow."""
    order = toposort(value)
    fences = [n.arg.pending for n in order if n.op is Ops.FENCE and isinstance(n.arg, Products)]
    waits = [n.arg.amount for n in ring_waits(value)]
    return min(waits or fences, default=0)


def ring_waits(value: UOp) -> list[UOp]:
    """What a value waits for that wants to be told when it has been read."""
    return [n for n in toposort(value) if n.op is Ops.MBARRIER and n.arg.release]


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
    """One thread of each warp group arrives at the barrier of a slot: a group's products end together."""
    place = wait.src[0]
    barrier = place.src[0]
    assert isinstance(barrier.dtype, PtrDType)
    memory = define_local(barrier.dtype.elem, barrier.dtype.size, wait.arg.release)
    slot = simplify(substitute(place.src[1], step))
    # what the place waits for besides: that the barriers have been made, and the role
    base = after(memory, *(s for s in barrier.src[1:] if s not in step), done)
    sources = (base, slot) if gate is None else (base, slot, gate)
    return make(
        Ops.MBARRIER,
        void,
        (make(Ops.INDEX, memory.dtype, sources),),
        MBarrierStep("arrive", WARP_GROUP, blocks=wait.arg.blocks),
    )


def add_products(total: UOp, steps: list[UOp], pending: int) -> UOp:
    """The accumulator after the products of some steps are under way, and earlier ones have finished."""
    total = fenced(total, total, steps)
    for step in steps:
        total = accumulate(Ops.ADD, total, step, False)
    return after(total, under_way(total, pending))


def add_products_from_registers(total: UOp, steps: list[UOp], pending: int) -> UOp:
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


def is_computed(step: UOp) -> bool:
    """Whether a product takes registers that were computed from other products, rather than read."""
    return any(n.op is Ops.WMMA for n in toposort(step.src[0]))


def add_chained_products(total: UOp, steps: list[UOp]) -> UOp:
    """The same where the registers that units take were computed, not read: all of them are there at once."""
    held = tuple(step.src[0] for step in steps)
    total = after(total, make(Ops.FENCE, void, (total, *held, *_ready(steps))))
    for step in steps:
        total = accumulate(Ops.ADD, total, step, False)
    return after(total, under_way(total, 0))


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
