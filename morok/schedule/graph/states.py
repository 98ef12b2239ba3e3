"""Write-after-read hazards: old values that outlive an assignment.

    m = x.max(); x.assign(0); y = x + m

A kernel for `y` that computed `m` on the spot would have to read x both before and after the assignment.
Where a node needs memory as it was and, by another way, waits for the next write to it, the old value is
computed and kept before the write.
"""

from __future__ import annotations

from morok.ir.memory import base_of
from morok.ir.node import UOp, make, toposort
from morok.ir.ops import TRANSFERS, Ops

# Sets of writes as numbers with a bit for each: most are 0, and to join two is one instruction of Python
# however many writes a program has.
_Writes = int
_REASON = "it is read before an assignment and used after it"
_OWN_KERNEL = TRANSFERS | {Ops.CONTIGUOUS, Ops.ASSIGN, Ops.SCATTER, Ops.WRITTEN}


def keep_old_values(sink: UOp, ctx: object = None) -> UOp:
    """Puts CONTIGUOUS around values of old states where a later state is needed as well."""
    order = toposort(sink)
    if not any(node.op is Ops.ASSIGN for node in order):
        return sink
    happened, ends = _numbered(order)
    place = {node: n for n, node in enumerate(order) if node.op is Ops.ASSIGN}
    reads: dict[UOp, _Writes] = {}  # the writes that end a state which is read on the spot
    waits: dict[UOp, _Writes] = {}  # the writes that have happened before
    done: dict[UOp, UOp] = {}
    for node in order:
        op = node.op
        before = 0
        for s in node.src:
            before |= waits[s]
        src = [done[s] for s in node.src]
        below = [reads[s] for s in node.src]
        if before and op is not Ops.SINK:
            # The target of a write and the memory of a state are not read here.
            first = 1 if op in (Ops.ASSIGN, Ops.AFTER) else 0
            for i, s in enumerate(node.src[first:], first):
                if below[i] & before:
                    src[i] = make(Ops.CONTIGUOUS, s.dtype, (done[s],), _REASON, s.origin)
                    below[i] = 0
        waits[node] = before | happened.get(node, 0)
        reads[node] = _reads(node, below, ends, place)
        done[node] = node.replace(tuple(src))
    return done[sink]


def _numbered(order: list[UOp]) -> tuple[dict[UOp, _Writes], dict[UOp, _Writes]]:
    """A bit for each write; and for memory as it was, and as each write leaves it, the next write to it.

    Writes that nothing waits for but the end of the program have none: no value is both before and after.
    """
    states: dict[UOp, list[UOp]] = {}
    awaited: set[UOp] = set()
    for node in order:
        if node.op is Ops.AFTER:
            for s in node.src[1:]:
                if s.op is Ops.ASSIGN:
                    states.setdefault(s, []).append(node)
                else:
                    awaited.add(s)
        elif node.op is not Ops.SINK:
            awaited.update(node.src)
    happened: dict[UOp, _Writes] = {}
    ends: dict[UOp, _Writes] = {}
    so_far: dict[UOp, _Writes] = {}
    left: dict[UOp, list[UOp]] = {}  # states of a memory whose end is not known yet
    for node in order:
        if node.op is not Ops.ASSIGN:
            continue
        memory = base_of(node)
        if not awaited.isdisjoint((node, *states.get(node, ()))):
            bit = 1 << len(happened)
            happened[node] = so_far[memory] = so_far.get(memory, 0) | bit
            ends.update(dict.fromkeys(left.pop(memory, (memory,)), bit))
        left.setdefault(memory, [] if memory in ends else [memory]).append(node)
    return happened, ends


def _reads(node: UOp, below: list[_Writes], ends: dict[UOp, _Writes], place: dict[UOp, int]) -> _Writes:
    op = node.op
    if op is Ops.PARAM:
        return ends.get(node, 0)
    if op is Ops.AFTER or op is Ops.ASSIGN:
        memory = base_of(node)
        own = [s for s in (node, *node.src[1:]) if s in place and base_of(s) is memory]
        return ends.get(max(own, key=place.__getitem__), 0) if own else below[0]
    if op in _OWN_KERNEL:
        return 0
    found = 0
    for writes in below:
        found |= writes
    return found
