"""How loops are cut for the threads of a block: vectors, numbers of threads, rounding up."""

from __future__ import annotations

from collections.abc import Iterable

from morok.ir.infer import ranges
from morok.ir.node import UOp, toposort
from morok.ir.ops import AxisKind, Ops
from morok.machine.machine import Machine
from morok.optimize.actions.halo import Pair, find_pair
from morok.optimize.facts import Access, access, trips
from morok.optimize.heuristics.builder import Builder
from morok.optimize.loops import divides, size

GUARDS = 0.02  # what guarded accesses cost
SUMS = 64  # of a thread: with what it reads they fit its registers


def memory_of(*roots: UOp) -> list[Access]:
    """All places in global memory below some nodes, those that are written among them."""
    return [access(n) for n in toposort(*roots) if n.op is Ops.INDEX and n.src[0].op is Ops.DEFINE_GLOBAL]


def lanes_for(r: UOp, found: list[Access], machine: Machine) -> int:
    """How many neighbouring elements along a loop one thread takes: 16 bytes of the widest access along it.

    Only what divides the loop, because a vector that is cut in two is none.
    """
    widest = max((a.node.src[0].dtype.elem.itemsize for a in found if a.step(r) == 1), default=0)  # type: ignore[attr-defined]
    if not widest:
        return 1
    lanes = max(1, machine.vector_bytes // widest)
    while lanes > 1 and not divides(lanes, r.src[0]):
        lanes //= 2
    return lanes


def may_join(far: int | None, near: int | None, count: int) -> bool:
    """Whether a place goes on where the inner of two loops ends, or stands still along one of the two."""
    if far is None or near is None:
        return False
    return far == near * count or not far or not near


def power(n: int) -> int:
    """The largest power of two that is not above n; at least 1."""
    return 1 << (max(1, n).bit_length() - 1)


def ceil_power(n: int) -> int:
    """The smallest power of two that is not below n."""
    return 1 << max(0, n - 1).bit_length()


def threads_for(r: UOp, room: int, machine: Machine) -> int:
    """How many of a loop's iterations go to threads: as few threads as possible with nothing to do."""
    count = size(r)
    if count is None:
        return room
    if count <= room:
        return count
    return max(range(room // 2, room + 1), key=lambda amount: (_busy(count, amount, machine.warp), amount))


def _busy(count: int, amount: int, warp: int) -> float:
    """The share of threads that work, of whole warps; a rest costs guards beside that."""
    rounded = -(-count // amount) * amount
    warps = -(-amount // warp) * warp
    return count / rounded * amount / warps - (GUARDS if count % amount else 0.0)


def cut(builder: Builder, name: str, number: int, amount: int) -> bool:
    """Gives a part of a loop to threads; the loop is rounded up first where that is needed."""
    r = builder.loops.by_number.get(number)
    if r is None:
        return False
    if not divides(amount, r.src[0]) and not builder.do("PADTO", number, amount):
        return False
    return builder.do(name, number, amount)


def give_threads(builder: Builder, ordered: Iterable[UOp], room: int) -> None:
    """So many threads for loops, of which the first ones come first.

    Neighbouring threads have neighbours along the loop that is cut last: that is the first one.
    """
    parts = []
    for r in ordered:
        number = int(r.arg[0])
        now = builder.loops.by_number.get(number)
        if room < 2 or now is None or now.arg[1] is not AxisKind.LOOP:
            continue
        amount = threads_for(now, room, builder.machine)
        if amount > 1:
            parts.append((number, amount))
            room //= amount
    for number, amount in reversed(parts):
        cut(builder, "LOCAL", number, amount)


def slide_of(reads: Iterable[Access], places: list[UOp], offsets: list[UOp]) -> Pair | None:
    """A place and an offset of which a read knows only the sum, so that neighbours read mostly the same.

    Of several, the one of the innermost place."""
    best: Pair | None = None
    for read in reads:
        known = ranges(read.node)
        for p in places:
            for k in offsets:
                pair = find_pair(read.node, p, k) if p in known and k in known else None
                if pair is None or pair.gap != 1 or pair.step >= trips(k):
                    continue
                if best is None or int(p.arg[0]) > int(best.place.arg[0]):
                    best = pair
    return best
