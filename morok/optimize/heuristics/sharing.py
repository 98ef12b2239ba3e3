"""Threads: which loops over outputs are shared, by the time of the thread that has most to do.

Threads take iterations of one loop, outside of all others. Where no loop has enough of them for all cores,
some loops are made one (JOIN): heads and panels, rows of tiles and columns. What lies outside of a shared
loop, such as a panel that is packed for all rows, is done again in each of its iterations, and that is part
of the time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from morok.ir.infer import closed_ranges, ranges
from morok.ir.node import UOp, toposort
from morok.ir.ops import AxisKind, Ops
from morok.machine.machine import Machine
from morok.optimize.actions.scans import row_places
from morok.optimize.actions.table import outcome
from morok.optimize.contraction import Contraction
from morok.optimize.facts import access, output_loops, trips
from morok.optimize.heuristics.builder import Builder
from morok.optimize.heuristics.pieces import share_pieces
from morok.optimize.loops import LANE_KINDS, Loops
from morok.optimize.record import Opt

PRODUCT = 2.0  # operations that a step of a sum of products counts for
READ = 4.0  # operations that an element from memory counts for
APART = 16.0  # the same for a copy that does not lie as memory does: vectors are put together
FLOAT_BYTES = 4
WORTH = 0.9  # of the time of a single loop, for loops that are joined to be shared
AWAKE = 0.25  # of the time to wake threads up, where they look for work between two kernels
MOST_JOINED = 3
Work = dict[UOp, list[tuple[UOp, float]]]  # of each effect: what it consists of, operations of one run


def share(builder: Builder) -> None:
    """The loop that has enough iterations goes to the threads, or several that are made one."""
    loops = builder.loops
    first = max(loops.ast.src, key=lambda e: math.prod(map(trips, output_loops(e))), default=None)
    if first is None or any(r.arg[1] is AxisKind.THREAD for r in loops.closers) or share_pieces(builder):
        return
    inside = row_places(loops)  # rows are walked from front to end
    plain = [r for r in output_loops(first) if r.arg[1] is AxisKind.LOOP and r not in inside]
    alone = _one_loop(builder, first, plain)
    pieces = _wide_pieces(first, alone, builder.machine.cores)
    if pieces and alone is not None and builder.do("THREAD", int(alone.arg[0]), pieces):
        return
    share_best(builder, plain, alone)


def share_best(builder: Builder, plain: Sequence[UOp], alone: UOp | None = None) -> bool:
    """Shares those of some loops, which follow each other, that leave each thread least to do.

    A loop that is good for itself is preferred to what is hardly better.
    """
    choices = [
        plain[a:b] for a in range(len(plain)) for b in range(a + 1, min(len(plain), a + MOST_JOINED) + 1)
    ]
    work, machine = work_of(builder), builder.machine
    times = [(time_of_busiest(work, some, machine), len(some), n) for n, some in enumerate(choices)]
    serial = time_of_busiest(work, (), machine) - _operations_to_call(machine)
    if alone is not None and _outside(work) and time_of_busiest(work, (alone,), machine) > serial:
        alone = None
    if alone is None:  # the others must be worth calling
        limit = serial
    else:
        limit = WORTH * time_of_busiest(work, (alone,), machine)
    for time, _, n in sorted(times):
        if time < limit and share_loops(builder, [int(r.arg[0]) for r in choices[n]]):
            return True
        if time >= limit:
            break
    return alone is not None and builder.do("THREAD", int(alone.arg[0]))


def _operations_to_call(machine: Machine) -> float:
    """What one thread does in the time until others have begun: most are still looking for work."""
    return machine.rates.wake * AWAKE / cycles_of_operation(machine)


def share_with_others(builder: Builder, product: Contraction, axis: int) -> bool:
    """Shares a loop over rows or columns of a product, or makes one of it and products side by side."""
    others = [int(r.arg[0]) for r in product.outputs if r not in (product.i, product.j)]
    found = [builder.loops.by_number[n] for n in (*others, axis) if n in builder.loops.by_number]
    return share_best(builder, found, found[-1])


def share_loops(builder: Builder, axes: Sequence[int]) -> bool:
    """Makes one loop of some, outer ones first, and shares it; False, and nothing done, if they cannot be."""
    before = builder.loops
    for outer, inner in pairwise(axes):
        if not builder.do("JOIN", outer, inner):
            builder.loops = before
            return False
    if builder.do("THREAD", axes[-1]):
        return True
    builder.loops = before
    return False


def time_of_busiest(work: Work, shared: Sequence[UOp], machine: Machine) -> float:
    """Simple operations of the thread that has most to do, if the iterations of some loops are shared.

    Effects without these loops are done by one of them, and what lies in no loop by each.
    """
    count = math.prod(map(trips, shared))
    part = -(-count // machine.cores) / count
    total = 0.0
    for effect, parts in work.items():
        shares = all(r in closed_ranges(effect) for r in shared)
        for n, each in parts:
            runs = _runs(n, effect, shared if shares else ())
            total += each * runs * (part if shares else 1.0) if runs else each
    return total


def _outside(work: Work) -> bool:
    """Whether a kernel has sums or copies that lie in no loop over outputs: threads compute them again."""
    return any(not _runs(n, effect, ()) for effect, parts in work.items() for n, _ in parts)


def work_of(builder: Builder) -> Work:
    """What the effects of a kernel consist of: sums, copies, stores."""
    kinds, machine = (Ops.REDUCE, Ops.BUFFERIZE, Ops.STORE), builder.machine
    return {
        effect: [(n, _operations(n, machine)) for n in toposort(effect) if n.op in kinds]
        for effect in builder.loops.ast.src
    }


def _operations(node: UOp, machine: Machine) -> float:
    """Of one run of a node, all lanes and steps of its own together."""
    if node.op is Ops.REDUCE:
        values = node.src[: len(node.arg)]
    else:
        values = node.src[1:2] if node.op is Ops.STORE else node.src[:1]
    inside = toposort(*values, stop=lambda n: n.op in (Ops.REDUCE, Ops.BUFFERIZE))
    each = 1.0 + sum(machine.op_costs.of(n.op) for n in inside if n.op.is_alu and not n.dtype.is_index)
    if node.op is Ops.BUFFERIZE:
        reads = [access(n) for n in inside if n.op is Ops.INDEX and not n.dtype.is_ptr]
        each += sum(operations_to_copy(a.step(node.src[-1]) == 1, machine) for a in reads)
    own = [*closed_ranges(node), *(r for r in ranges(node) if r.arg[1] in LANE_KINDS)]
    return each * math.prod(trips(r) for r in own if r.op is Ops.RANGE)


def operations_to_copy(in_order: bool, machine: Machine) -> float:
    """An element that is copied to a panel: instructions, and its way out of the second cache and back."""
    return (READ if in_order else APART) + 2 * FLOAT_BYTES * machine.rates.l2_byte / cycles_of_operation(
        machine
    )


def cycles_of_operation(machine: Machine) -> float:
    """Of an operation on an element: two of them, a product and its addition, are one instruction."""
    return machine.rates.issue / (PRODUCT * max(1, machine.vector_bytes // FLOAT_BYTES))


def _runs(node: UOp, effect: UOp, shared: Sequence[UOp]) -> int:
    """How often a node is computed: once in all loops up to the innermost one that it depends on, the shared
    ones, which are one loop, outside of all; 0: before all of them."""
    alive = [r for r in ranges(node) if r.op is Ops.RANGE and r.arg[1] not in LANE_KINDS]
    if not alive:
        return 0
    outputs = [r for r in output_loops(effect) if r.arg[1] not in LANE_KINDS and r not in shared]
    last = max((n for n, r in enumerate(outputs) if r in alive), default=-1)
    others = [r for r in alive if r not in outputs and r not in shared]
    return math.prod(map(trips, (*shared, *outputs[: last + 1], *others)))


def _one_loop(builder: Builder, first: UOp, plain: list[UOp]) -> UOp | None:
    """The outermost loop that has enough iterations, and repeats nothing if that can be had."""
    loops, wanted = builder.loops, builder.machine.cores
    candidates = [r for r in plain if _independent(loops, r)]
    outer = [r for r in candidates if _around_copies(loops, r) and _balanced(trips(r), wanted)]
    if not outer and any(n.op is Ops.BUFFERIZE for n in loops.order):
        even = [r for r in plain if trips(r) >= wanted and _balanced(trips(r), wanted)]
        outer = sorted(even, key=lambda r: _repeated(loops, r))[:1]
    in_order = any(r.arg[1] is AxisKind.ORDERED for r in output_loops(first))
    fewest = 2 if in_order else wanted  # steps in order take long
    for some, least in ((outer, wanted), (candidates, 4 * wanted), (candidates, fewest)):
        for r in some:
            opt = Opt("THREAD", int(r.arg[0]))
            if trips(r) >= least and not isinstance(outcome(loops, opt, builder.machine), str):
                return r
    return None


def _wide_pieces(effect: UOp, r: UOp | None, cores: int) -> int:
    """Pieces of a loop inside of one whose steps go anywhere in memory: a thread walks all steps for each of
    its pieces, so these are as wide as can be. 0: it lies in no such loop."""
    outputs = output_loops(effect)
    if r is None or not any(o.arg[1] is AxisKind.ORDERED for o in outputs[: outputs.index(r)]):
        return 0
    count = trips(r)
    found = [n for n in range(cores, count) if count % n == 0 and _balanced(n, cores)]
    return found[0] if found else 0


def _balanced(count: int, cores: int) -> bool:
    """Whether so many iterations keep all cores busy most of the time."""
    return count >= 0.75 * cores * -(-count // cores)


def _repeated(loops: Loops, r: UOp) -> int:
    """Steps of copies and reductions that would run again in each iteration of a loop, were it outermost."""
    total = 0
    for n in loops.order:
        if n.op in (Ops.REDUCE, Ops.BUFFERIZE) and ranges(n) and r not in ranges(n):
            total += trips(r) * math.prod(map(trips, (*closed_ranges(n), *ranges(n))))
    return total


def _around_copies(loops: Loops, r: UOp) -> bool:
    """Whether copies lie inside of the loop, or outside of all: else each iteration fills them again."""
    inside = toposort(*(effect for effect in loops.ast.src if r in closed_ranges(effect)))
    return all(r in ranges(n) or not ranges(n) for n in inside if n.op is Ops.BUFFERIZE)


def _independent(loops: Loops, r: UOp) -> bool:
    """Whether nothing that is computed outside of the loop would have to be computed again in each thread."""
    inside = toposort(*(effect for effect in loops.ast.src if r in closed_ranges(effect)))
    return all(r in ranges(n) or not ranges(n) for n in inside if n.op is Ops.REDUCE)


__all__ = ["operations_to_copy", "share", "share_best", "share_loops", "share_with_others"]
