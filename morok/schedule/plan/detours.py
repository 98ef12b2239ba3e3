"""Whether two groups of writes would wait for each other through a third if they became one: a cycle.

Asked for every pair that may join, so it must not walk through the program each time. Two things keep it
short. Of the writes by themselves all that wait for one another, however far apart, are known once and for
all (a bit for each): a way that they show stays a way. And the groups are kept in an order in which they
could run: only those that stand between the two can be on the way from one to the other. Neighbours have
little between them, and those far apart nearly always have a way that the bits show.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from typing import final

from morok.schedule.split import KernelWrite

Waits = Mapping[KernelWrite, set[KernelWrite]]
Group = list[KernelWrite]


@final
class Detours:
    """The groups of a partition in an order, while it is made coarser."""

    def __init__(
        self, writes: Sequence[KernelWrite], waits: Waits, members: dict[KernelWrite, Group]
    ) -> None:
        self.waits = waits
        self.members = members
        self.order: list[Group] = []
        self.at: dict[KernelWrite, int] = {}
        self.bit: dict[KernelWrite, int] = {}
        self.below: dict[KernelWrite, int] = {}  # all writes that one waits for, by others too
        for n, write in enumerate(_sorted(writes, waits)):
            self.order.append(members[write])
            self.at[write] = n
            self.bit[write] = 1 << n
            below = 0
            for before in waits[write]:
                below |= self.below[before] | self.bit[before]
            self.below[write] = below
        self.is_cyclic = len(self.order) < len(writes)

    def between(self, first: Group, second: Group) -> list[Group] | None:
        """Groups after the first that the second waits for; None if one of them waits for the first."""
        inside = {*first, *second}
        start = [w for d in second for w in self.waits[d] if w not in inside]
        if self.is_cyclic:
            return self._search(start, inside, -1)
        wanted = 0
        for write in first:
            wanted |= self.bit[write]
        if any(self.below[write] & wanted for write in start):
            return None
        return self._search(start, inside, self.at[first[0]])

    def _search(self, start: list[KernelWrite], inside: set[KernelWrite], floor: int) -> list[Group] | None:
        """All groups above a place in the order that some writes wait for; None if one waits for `inside`."""
        found: dict[int, Group] = {}
        stack = start
        while stack:
            write = stack.pop()
            group = self.members[write]
            if id(group) in found or (floor >= 0 and self.at[write] < floor):
                continue
            found[id(group)] = group
            for member in group:
                for before in self.waits[member]:
                    if before in inside:
                        return None
                    stack.append(before)
        return list(found.values())

    def merged(self, first: Group, second: Group, together: Group, between: Sequence[Group]) -> None:
        """Two groups are one from now on; what the second waits for comes before, all else after."""
        if self.is_cyclic:
            return
        low, high = sorted((self.at[first[0]], self.at[second[0]]))
        earlier = {id(group) for group in between}
        region = self.order[low : high + 1]
        rest = [group for group in region if group is not first and group is not second]
        new = [g for g in rest if id(g) in earlier]
        new += [[], together]  # an empty place, so that the others keep theirs
        new += [g for g in rest if id(g) not in earlier]
        self.order[low : high + 1] = new
        for n, group in enumerate(new, low):
            for write in group:
                self.at[write] = n


def _sorted(writes: Sequence[KernelWrite], waits: Waits) -> list[KernelWrite]:
    """The writes in an order in which they could run, as near to theirs as can be; cycles are left out."""
    number = {write: n for n, write in enumerate(writes)}
    missing = {write: len(waits[write]) for write in writes}
    users: dict[KernelWrite, list[KernelWrite]] = {}
    for write in writes:
        for before in waits[write]:
            users.setdefault(before, []).append(write)
    ready = [n for n, write in enumerate(writes) if not missing[write]]
    found: list[KernelWrite] = []
    while ready:
        write = writes[heapq.heappop(ready)]
        found.append(write)
        for user in users.get(write, ()):
            missing[user] -= 1
            if not missing[user]:
                heapq.heappush(ready, number[user])
    return found
