"""What a value that is stored needs of its list: loads and stores in the loops and IFs where they stand."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

from morok.dtype import AddrSpace
from morok.ir.node import UOp
from morok.ir.ops import AxisKind, Ops
from morok.proof.kernels.lanes import Lane, lane_of, memory_of, sources_of
from morok.proof.kernels.walk import Access, Listing


@final
@dataclass
class Slice:
    """What a lane of a store needs: loads and stores in the order of the list, in their loops and IFs."""

    steps: list[Any]  # (LOAD or STORE, lanes), (IF, steps), (RANGE, steps, what a pass makes anew, is around)
    carried: set[UOp]  # loops around the store that change what was written before them
    bodies: dict[UOp, list[Any]]  # of the loops around the store, for passes before its own


@final
class Slicer:
    """Finds out what a value needs."""

    def __init__(self, instructions: tuple[UOp, ...], listing: Listing) -> None:
        self.list = instructions
        self.listing = listing
        self.writes: dict[UOp, list[Access]] = defaultdict(list)
        for access in listing.accesses:
            if access.writes and access.space is not AddrSpace.GLOBAL:
                self.writes[access.memory].append(access)
        self.numbers = {memory: number for number, memory in enumerate(self.writes)}
        self.filled = {m for m, group in self.writes.items() if self._is_filled(m, group)}

    @staticmethod
    def _is_filled(memory: UOp, group: list[Access]) -> bool:
        """Local memory that is always written: who has written a place last follows from the place."""
        return memory.op is Ops.DEFINE_LOCAL and not any(
            a.conditions or len(a.address.src) > 2 for a in group
        )

    def slice(self, access: Access, lane: int) -> Slice:
        """All that the value of a lane of a store needs."""
        wanted: set[Lane] = set()
        stores: dict[UOp, set[int]] = defaultdict(set)
        stack: list[Lane] = []
        asked: set[tuple[UOp, int | None]] = set()

        def ask(node: UOp, lane: int) -> None:
            if (node, lane) not in wanted:
                wanted.add((node, lane))
                stack.append((node, lane))

        def address(node: UOp, lane: int) -> None:
            ask(node.src[1], 0)
            if len(node.src) > 2:
                ask(node.src[2], lane_of(node.src[2], lane))

        ask(access.node.src[1], lane)
        while stack:
            node, lane = stack.pop()
            if node.op is not Ops.LOAD:
                for s, i in sources_of(node, lane) or ():  # what is not followed is told when it is run
                    ask(s, i)
                continue
            address(node.src[0], lane)
            if len(node.src) > 1:
                ask(node.src[1], lane)
            memory = memory_of(node.src[0])
            if memory.op is Ops.DEFINE_GLOBAL or memory in self.filled:
                continue
            where = node.src[0].src[1]
            place = where.arg + lane if where.op is Ops.CONST else None
            if (memory, place) in asked:
                continue
            asked.add((memory, place))
            for write in self.writes[memory]:
                store, at = write.node, write.address.src[1]
                for i in range(store.src[1].dtype.lanes):
                    if place is None or at.op is not Ops.CONST or at.arg + i == place:
                        if i not in stores[store]:
                            stores[store].add(i)
                            address(store.src[0], i)
                            ask(store.src[1], i)
                            for condition in write.conditions:
                                ask(condition, 0)
        return self._made(access, wanted, stores)

    def _made(self, of: Access, wanted: set[Lane], stores: dict[UOp, set[int]]) -> Slice:
        lanes: dict[UOp, list[int]] = defaultdict(list)
        for node, lane in wanted:
            lanes[node].append(lane)
        open_: list[list[Any]] = [[]]
        anew: list[list[Lane]] = []
        whole: dict[UOp, tuple[list[Any], list[Lane]]] = {}
        so_far: list[list[Any]] = []
        for position, node in enumerate(self.list):
            if position == of.position:
                so_far = [list(part) for part in open_]
            if node.op is Ops.RANGE:
                open_.append([])
                anew.append([(node, 0)])
            elif node.op is Ops.END:
                body, made = whole[node.src[1]] = (open_.pop(), anew.pop())
                if body:
                    open_[-1].append((node.src[1], body, made, False))
                if anew:
                    anew[-1] += made
                continue
            elif node.op is Ops.IF:
                open_.append([])
            elif node.op is Ops.ENDIF:
                body = open_.pop()
                if body:
                    open_[-1].append((node.src[0], body))
            elif node.op is Ops.STORE and stores.get(node):
                open_[-1].append((node, sorted(stores[node])))
            elif node.op is Ops.LOAD and node in lanes:
                open_[-1].append((node, lanes[node]))
            if anew and node in lanes:
                anew[-1] += [(node, lane) for lane in lanes[node]]
        # what is still open at the store, one inside of the other; IFs around it hold
        loops = of.loops
        for extra in so_far[len(loops) + 1 :]:
            so_far[len(loops)] += extra
        steps = so_far[len(loops)]
        for i in range(len(loops) - 1, -1, -1):
            steps = [*so_far[i], (loops[i], steps, whole[loops[i]][1], True)]
        return Slice(steps, self._carries(of, stores), {r: whole[r][0] for r in loops})

    def _carries(self, of: Access, stores: Mapping[UOp, set[int]]) -> set[UOp]:
        bodies = self.listing.bodies
        carried = set()
        by_memory: dict[UOp, list[Access]] = defaultdict(list)
        for access in self.listing.accesses:
            if stores.get(access.node):
                by_memory[access.memory].append(access)
        for loop in of.loops:
            start, stop = bodies[loop]
            for group in by_memory.values():
                inside = [start < a.position < stop for a in group]
                if any(inside) and not all(inside) and loop.arg[1] is not AxisKind.THREAD:
                    carried.add(loop)
        return carried
