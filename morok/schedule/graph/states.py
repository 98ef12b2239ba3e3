"""Write-after-read hazards: old values that outlive an assignment.

    m = x.max(); x.assign(0); y = x + m

A kernel for `y` that computed `m` on the spot would have to read x both before and after the assignment.
Where a node needs memory as it was and, by another way, waits for the next write to it, the old value is
computed and kept before the write.
"""

from __future__ import annotations

from collections.abc import Callable

from morok.ir.memory import base_of
from morok.ir.node import UOp, make, toposort
from morok.ir.ops import Ops

_Versions = dict[UOp, int]  # memory → number of a write; 0: as it was
_NONE: _Versions = {}
_REASON = "it is read before an assignment and used after it"
_OWN_KERNEL = frozenset((Ops.CONTIGUOUS, Ops.COPY, Ops.ASSIGN, Ops.SCATTER))


def keep_old_values(sink: UOp, ctx: object = None) -> UOp:
    """Puts CONTIGUOUS around values of old states where a later state is needed as well."""
    order = toposort(sink)
    if not any(node.op is Ops.ASSIGN for node in order):
        return sink
    number: dict[UOp, int] = {}
    written: _Versions = {}
    for node in order:
        if node.op is Ops.ASSIGN:
            memory = base_of(node)
            number[node] = written[memory] = written.get(memory, 0) + 1
    reads: dict[UOp, _Versions] = {}  # the oldest state of each memory that is read on the spot
    waits: dict[UOp, _Versions] = {}  # the newest write to each memory that has happened before
    done: dict[UOp, UOp] = {}
    for node in order:
        newest = _merged([waits[s] for s in node.src], max)
        src = [done[s] for s in node.src]
        below = [reads[s] for s in node.src]
        if node.op is not Ops.SINK:
            # The target of a write and the memory of a state are not read here.
            first = 1 if node.op in (Ops.ASSIGN, Ops.AFTER) else 0
            for i, s in enumerate(node.src[first:], first):
                if _is_late(below[i], newest):
                    src[i] = make(Ops.CONTIGUOUS, s.dtype, (done[s],), _REASON, s.origin)
                    below[i] = _NONE
        if node.op is Ops.ASSIGN:
            newest = {**newest, base_of(node): number[node]}
        waits[node] = newest
        reads[node] = _reads(node, below, written, number)
        done[node] = node.replace(tuple(src))
    return done[sink]


def _reads(node: UOp, below: list[_Versions], written: _Versions, number: dict[UOp, int]) -> _Versions:
    if node.op is Ops.PARAM:
        return {node: 0} if node in written else _NONE
    if node.op is Ops.AFTER or node.op is Ops.ASSIGN:
        memory = base_of(node)
        own = [number[s] for s in (node, *node.src[1:]) if s in number and base_of(s) is memory]
        return {memory: max(own)} if own else below[0]
    if node.op in _OWN_KERNEL:
        return _NONE
    return _merged(below, min)


def _is_late(reads: _Versions, newest: _Versions) -> bool:
    return any(newest.get(memory, 0) > version for memory, version in reads.items())


def _merged(parts: list[_Versions], better: Callable[[int, int], int]) -> _Versions:
    """The better number of each memory."""
    found = _NONE
    for part in parts:
        if not part or part is found:
            continue
        if not found:
            found = part
            continue
        joined = dict(found)
        for memory, version in part.items():
            old = joined.get(memory)
            joined[memory] = version if old is None else better(old, version)
        found = joined
    return found
