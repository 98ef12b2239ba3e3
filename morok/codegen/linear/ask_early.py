"""What follows a barrier is asked for before it: reads of memory that a kernel has not touched so far.

Threads that share a sum meet at a barrier, and those who stay read what the sum is joined with: a residual,
the weights of a norm. That comes from far away, and nothing of it waits for the sum. So it is read before the
barrier, by those who stay, and arrives while they wait for the others and add up. Where all stay it is a
vector or so of each.

Where little comes before the barrier its lines are asked for at the very beginning as well: a hint changes
nothing, so a kernel gives it before it waits for the one before (`render/cuda/kernel.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from morok.dtype import void
from morok.ir.node import UOp, alu, const, make, toposort
from morok.ir.ops import Ops

AHEAD = 256  # bytes of a thread's registers that wait for what it has asked for
AHEAD_OF_ALL = 32  # the same where no thread leaves
SHORT = 128  # instructions before a barrier that such registers may be kept for

_PLACE = frozenset((Ops.INDEX, Ops.CONST, Ops.VCONST, Ops.VECTORIZE))
_KNOWN = _PLACE | {Ops.SPECIAL, Ops.DEFINE_VAR, Ops.DEFINE_GLOBAL, Ops.DEFINE_LOCAL, Ops.DEFINE_REG}
_OPENS = frozenset((Ops.RANGE, Ops.IF))
_CLOSES = frozenset((Ops.END, Ops.ENDIF))


def ask_early(
    before: list[UOp], first: list[UOp], gate: UOp | None, inside: list[UOp]
) -> tuple[list[UOp], list[UOp]]:
    """Instructions before a barrier, with what makes the condition `gate` of all `inside` behind it (None:
    there is none); and these, without the reads that now come before."""
    known = {*before, *first}
    room = AHEAD_OF_ALL if gate is None else AHEAD
    reads = {n: n if gate is None else _under(n, gate) for n in _early(before, known, inside, room)}
    if not reads:
        return [*before, *first], inside
    asked = [*first, *(n for n in toposort(*reads.values()) if n not in known)]
    start = _start(before, asked)
    hints = _hints(reads.values()) if start < len(before) else []
    return _with_hints([*before[:start], *asked, *before[start:]], hints), _without(reads, asked, inside)


def _early(before: list[UOp], known: Collection[UOp], inside: list[UOp], room: int) -> list[UOp]:
    """The reads that nothing behind the barrier is needed for, as many as there is room for: sums of units
    leave no room for any."""
    if any(n.op is Ops.WMMA for n in before):
        return []
    others = (n for n in (*before, *inside) if n.op is not Ops.INDEX)
    used = (s for n in others for s in n.src if s.op is Ops.INDEX and (n.op is not Ops.LOAD or n in known))
    touched = {_memory(s) for s in used}  # or written in any way
    found: list[UOp] = []
    depth = 0
    for n in inside:
        depth += (n.op in _OPENS) - (n.op in _CLOSES)
        if depth or n.op is not Ops.LOAD or n.dtype.itemsize > room:
            continue
        memory = _memory(n.src[0])
        if memory.op is not Ops.DEFINE_GLOBAL or memory in touched:
            continue
        if all(m in known or m.op in _PLACE or m.op.is_alu for m in toposort(n.src[0])):
            found.append(n)
            room -= n.dtype.itemsize
    return found


def _memory(address: UOp) -> UOp:
    while address.op in (Ops.INDEX, Ops.AFTER):
        address = address.src[0]
    return address


def _under(load: UOp, gate: UOp) -> UOp:
    """A read that happens under one more condition; what it gives otherwise nobody looks at."""
    address = load.src[0]
    if len(address.src) > 2:
        gate = alu(Ops.AND, address.src[2], gate)
    other = load.src[1] if len(load.src) > 1 else const(load.dtype, 0)
    return load.replace((make(Ops.INDEX, address.dtype, (*address.src[:2], gate), address.arg), other))


def _without(reads: dict[UOp, UOp], asked: Collection[UOp], inside: list[UOp]) -> list[UOp]:
    """The instructions in terms of what has been read."""
    gone = {*asked, *reads, *(n.src[0] for n in reads)}
    done = dict(reads)
    rest = []
    for n in inside:
        if n in gone:
            continue
        src = tuple([done.get(s, s) for s in n.src])
        if src != n.src:
            done[n] = n.replace(src)
        rest.append(done.get(n, n))
    return rest


def _start(before: list[UOp], asked: list[UOp]) -> int:
    """Where it is read: behind all loops, and if what follows is long right before the barrier."""
    needed = set(toposort(*asked))
    start = depth = 0
    waiting = False
    for i, n in enumerate(before):
        depth += (n.op in _OPENS) - (n.op in _CLOSES)
        waiting = waiting or n in needed or n.op is Ops.END
        if waiting and not depth:
            start, waiting = i + 1, False
    return start if len(before) - start <= SHORT else len(before)


def _hints(reads: Collection[UOp]) -> list[UOp]:
    """For the first of all reads whose places differ by a constant: they are few, and mostly of one line."""
    found: dict[tuple[UOp, UOp], UOp] = {}
    for n in reads:
        memory, place, *gate = n.src[0].src
        if place.op is Ops.ADD and place.src[1].op is Ops.CONST:
            place = place.src[0]
        plain = make(Ops.INDEX, n.src[0].dtype, (memory, place, *gate))
        if all(m.op in _KNOWN or m.op.is_alu for m in toposort(plain)):
            found.setdefault((memory, place), make(Ops.PREFETCH, void, (plain,)))
    return list(found.values())


def _with_hints(instructions: list[UOp], hints: Sequence[UOp]) -> list[UOp]:
    """The hints and what makes their places before the first instruction that touches memory."""
    if not hints:
        return instructions
    front = next(i for i, n in enumerate(instructions) if n.op not in _KNOWN and not n.op.is_alu)
    above = set(instructions[:front])
    early = [n for n in toposort(*hints) if n not in above]
    moved = set(early)
    rest = [n for n in instructions[front:] if n not in moved]
    return [*instructions[:front], *early, *rest]
