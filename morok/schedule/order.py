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
from morok.schedule.split import Draft

Version = frozenset[Draft]  # the writes that a reader has waited for; empty: memory as it was


@final
@dataclass
class Reads:
    """What a draft needs: which versions of which memory, and the drafts to wait for."""

    memory: dict[UOp, set[Version]] = field(default_factory=dict)
    after: set[Draft] = field(default_factory=set)


_AS_IT_WAS: Version = frozenset()


def scan(draft: Draft, by_token: dict[UOp, Draft]) -> Reads:
    """Walks a draft's value and target down to memory."""
    found = Reads()
    for node, version in _walk(draft.value, by_token, found):
        found.memory.setdefault(node, set()).add(version)
    if draft.places is not None:
        for node, version in _walk(draft.places, by_token, found):
            found.memory.setdefault(node, set()).add(version)
    for _ in _walk(draft.target, by_token, found):
        pass
    return found


def _walk(root: UOp, by_token: dict[UOp, Draft], found: Reads) -> Iterator[tuple[UOp, Version]]:
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
            waited = [by_token[t] for t in node.src[1:]]
            found.after.update(waited)
            stack.append((node.src[0], version.union(waited)))
        else:
            stack += [(s, version) for s in node.src]


def scan_all(drafts: Sequence[Draft]) -> dict[Draft, Reads]:
    """What each of the drafts needs."""
    by_token = {draft.token: draft for draft in drafts}
    return {draft: scan(draft, by_token) for draft in drafts}


def dependencies(drafts: Sequence[Draft], reads: dict[Draft, Reads], inputs: int) -> dict[Draft, set[Draft]]:
    """For each draft, those that must run before it."""
    waits = {draft: set(reads[draft].after) for draft in drafts}
    writers: dict[UOp, list[Draft]] = {}
    for draft in drafts:
        writers.setdefault(base_of(draft.target), []).append(draft)
    # Memory that is written once and held nothing before has readers of one version only.
    versioned = {m: found for m, found in writers.items() if len(found) > 1 or m.arg[0] < inputs}
    for found in versioned.values():
        for before, later in pairwise(found):
            waits[later].add(before)
    if not versioned:
        return waits
    place = {memory: {writer: n for n, writer in enumerate(found)} for memory, found in versioned.items()}
    for draft in drafts:
        for memory, versions in reads[draft].memory.items():
            for version in versions if memory in versioned else ():
                newest = max((place[memory][w] for w in version if w in place[memory]), default=-1)
                _order_read(draft, newest, versioned[memory], waits)
    return waits


def _order_read(draft: Draft, newest: int, writers: list[Draft], waits: dict[Draft, set[Draft]]) -> None:
    """The reader waits for its version's writer, and the next writer waits for the reader."""
    if newest >= 0:
        waits[draft].add(writers[newest])
    if newest + 1 < len(writers) and writers[newest + 1] is not draft:
        waits[writers[newest + 1]].add(draft)


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
