"""Who waits for whom, and the order that follows.

A kernel waits for those that make what it reads. Memory that is written more than once has versions: a reader
of version n runs after the n-th write and before the next, so it also holds later writers back. The order is
breadth-first: a kernel's level is one more than the highest level it waits for, and kernels of one level form
a group that may run at the same time. Kernels that wait for nothing run just before they are first needed, so
that their results do not lie around.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import final

from morok.errors import IRError
from morok.ir.memory import base_of
from morok.ir.node import UOp
from morok.ir.ops import Ops
from morok.schedule.split import KernelWrite

Version = frozenset[KernelWrite]  # the writes that a reader has waited for; empty: memory as it was


@final
@dataclass
class Reads:
    """What a write needs: which versions of which memory, and the writes to wait for."""

    memory: dict[UOp, set[Version]] = field(default_factory=dict)
    after: set[KernelWrite] = field(default_factory=set)


_AS_IT_WAS: Version = frozenset()


def scan(write: KernelWrite, by_done: dict[UOp, KernelWrite]) -> Reads:
    """Walks a write's value and target down to memory."""
    found = Reads()
    for node, version in _walk(write.value, by_done, found):
        found.memory.setdefault(node, set()).add(version)
    if write.places is not None:
        for node, version in _walk(write.places, by_done, found):
            found.memory.setdefault(node, set()).add(version)
    for _ in _walk(write.target, by_done, found):
        pass
    return found


def _walk(root: UOp, by_done: dict[UOp, KernelWrite], found: Reads) -> Iterator[tuple[UOp, Version]]:
    seen: set[tuple[UOp, Version]] = set()
    stack: list[tuple[UOp, Version]] = [(root, _AS_IT_WAS)]
    while stack:
        item = stack.pop()
        if item in seen:
            continue
        seen.add(item)
        node, version = item
        if node.op is Ops.PARAM:
            yield node, version
        elif node.op is Ops.AFTER:
            waited = [by_done[t] for t in node.src[1:]]
            found.after.update(waited)
            stack.append((node.src[0], version.union(waited)))
        else:
            stack += [(s, version) for s in node.src]


def scan_all(writes: Sequence[KernelWrite]) -> dict[KernelWrite, Reads]:
    """What each of the writes needs."""
    by_done = {write.done: write for write in writes}
    return {write: scan(write, by_done) for write in writes}


def dependencies(
    writes: Sequence[KernelWrite], reads: dict[KernelWrite, Reads], inputs: int
) -> dict[KernelWrite, set[KernelWrite]]:
    """For each write, those that must run before it."""
    waits = {write: set(reads[write].after) for write in writes}
    writers: dict[UOp, list[KernelWrite]] = {}
    for write in writes:
        writers.setdefault(base_of(write.target), []).append(write)
    # Memory that is written once and held nothing before has readers of one version only.
    versioned = {m: found for m, found in writers.items() if len(found) > 1 or m.arg[0] < inputs}
    for found in versioned.values():
        for before, later in pairwise(found):
            waits[later].add(before)
    if not versioned:
        return waits
    place = {memory: {writer: n for n, writer in enumerate(found)} for memory, found in versioned.items()}
    for write in writes:
        for memory, versions in reads[write].memory.items():
            for version in versions if memory in versioned else ():
                newest = max((place[memory][w] for w in version if w in place[memory]), default=-1)
                _order_read(write, newest, versioned[memory], waits)
    return waits


def _order_read(
    write: KernelWrite, newest: int, writers: list[KernelWrite], waits: dict[KernelWrite, set[KernelWrite]]
) -> None:
    """The reader waits for its version's writer, and the next writer waits for the reader."""
    if newest >= 0:
        waits[write].add(writers[newest])
    if newest + 1 < len(writers) and writers[newest + 1] is not write:
        waits[writers[newest + 1]].add(write)


def levels(nodes: Sequence[int], waits: Sequence[set[int]]) -> list[int]:
    """The level of each node; an IRError if some wait for each other."""
    users: list[list[int]] = [[] for _ in nodes]
    missing = [len(waits[n]) for n in nodes]
    for n in nodes:
        for before in waits[n]:
            users[before].append(n)
    ready = [n for n in nodes if not missing[n]]
    level = [0] * len(nodes)
    done = 0
    while done < len(ready):
        n = ready[done]
        done += 1
        for user in users[n]:
            level[user] = max(level[user], level[n] + 1)
            missing[user] -= 1
            if not missing[user]:
                ready.append(user)
    if done < len(nodes):
        raise CyclicOrder([n for n in nodes if missing[n]])
    for n in nodes:
        if not waits[n] and users[n]:
            level[n] = min(level[user] for user in users[n]) - 1
    return level


class CyclicOrder(IRError):
    """Nodes that wait for each other."""

    def __init__(self, nodes: list[int]) -> None:
        super().__init__("kernels wait for each other")
        self.nodes = nodes
