"""Products of warp groups while they are under way: the registers that units have taken over.

Units take operands and results in registers over from the threads, and give them back when somebody has
waited for the products. No thread sees that: a kernel without a fence or a wait gets what happens to be in a
register. So a watch follows the values of a kernel with such units, and says where a kernel

- looks at products that nobody has waited for,
- hands registers over that were written after the last fence,
- fills registers that a unit still reads.

Lanes that are picked, joined or kept in an array are the same registers as before; arithmetic makes new ones.
"""

from __future__ import annotations

from typing import Any, NamedTuple, final

import numpy as np

from morok.device.buffer import Array
from morok.device.emulator.memory import Fault, Registers
from morok.device.emulator.state import Address, Threads
from morok.ir.matrix import MatrixUnit, Products
from morok.ir.node import UOp
from morok.ir.ops import Ops

_SAME_REGISTERS = (Ops.GEP, Ops.VECTORIZE, Ops.CAT, Ops.AFTER)
_ORDER = (Ops.ASYNC_COMMIT, Ops.ASYNC_WAIT, Ops.FENCE, Ops.BARRIER, Ops.MBARRIER, Ops.ENDIF)
_CONSTANT = (Ops.CONST, Ops.VCONST)


@final
class Flight:
    """A product that a unit is at; `over` is when it was waited for, 0 until then."""

    __slots__ = ("over", "unit")

    def __init__(self, unit: MatrixUnit) -> None:
        self.unit = unit
        self.over = 0


class Held(NamedTuple):
    """What is in a register: when a thread has put it there, and the product that will, if it is one."""

    made: int
    flight: Flight | None


_OLD = Held(0, None)
Place = tuple[Registers, int]
Lane = tuple[UOp, int]


def takes_registers_over(node: UOp) -> bool:
    """Whether an instruction is a product of a warp group's unit."""
    return node.op is Ops.WMMA and isinstance(node.arg, MatrixUnit) and node.arg.in_flight


@final
class Watch:
    """Follows the values of one run."""

    def __init__(self) -> None:
        self.now = 0
        self.of_lane: dict[Lane, Held] = {}
        self.of_place: dict[Place, Held] = {}
        self.read_by: dict[UOp | Place, Flight] = {}  # registers of left operands
        self.begun: dict[UOp, Flight] = {}  # the last time that a product was
        self._lanes: dict[UOp, tuple[Lane, ...]] = {}

    def before(self, run: Threads, node: UOp) -> None:
        """Looks at an instruction that is about to run."""
        self.now += 1
        op = node.op
        if op in _SAME_REGISTERS or op in _CONSTANT:
            return
        if takes_registers_over(node):
            self._product(run, node)
        elif op in _ORDER:
            self._order(run, node)
        elif op is Ops.STORE and (places := self._kept(run, node, 1)) is not None:
            for lane, wheres in zip(self.lanes(node.src[1]), places, strict=True):
                for where in wheres:
                    self._free(run, where)
                    self.of_place[where] = self.held(lane)
        elif op is Ops.LOAD and (places := self._kept(run, node, 0)) is not None:
            for k, wheres in enumerate(places):
                found = [self.of_place.get(where, _OLD) for where in wheres]
                self.of_lane[node, k] = max(found, key=lambda h: (h.flight is not None, h.made))
        else:
            for source in node.src:
                self._arrived(run, source)
            self._free(run, node)
            for k in range(node.dtype.lanes):
                self.of_lane[node, k] = Held(self.now, None)

    def lanes(self, x: UOp) -> tuple[Lane, ...]:
        """Whose lanes the lanes of a value are."""
        found = self._lanes.get(x)
        if found is None:
            if x.op is Ops.AFTER:
                found = self.lanes(x.src[0])
            elif x.op is Ops.GEP:
                source = self.lanes(x.src[0])
                found = tuple([source[k] for k in x.arg])
            elif x.op in (Ops.VECTORIZE, Ops.CAT):
                found = tuple([lane for s in x.src for lane in self.lanes(s)])
            else:
                found = tuple([(x, k) for k in range(x.dtype.lanes)])
            self._lanes[x] = found
        return found

    def held(self, lane: Lane) -> Held:
        return self.of_lane.get(lane, _OLD)

    def _kept(self, run: Threads, node: UOp, value: int) -> list[list[Place]] | None:
        """For each lane, the registers of an array that it is; None for other memory."""
        address = run.values.get(node.src[0])
        if not isinstance(address, Address) or not isinstance(address.memory, Registers):
            return None
        lanes = node.src[1].dtype.lanes if value else node.dtype.lanes
        starts: Array = np.unique(address.places)
        return [[(address.memory, int(s) + k) for s in starts] for k in range(lanes)]

    def _thread(self, run: Threads) -> int:
        mask = run.who()
        return 0 if mask is None else int(run.numbers[mask][0])

    def _arrived(self, run: Threads, x: UOp) -> None:
        for lane in self.lanes(x):
            flight = self.held(lane).flight
            if flight is not None and not flight.over:
                raise Fault("looks at products that nobody has waited for", self._thread(run))

    def _free(self, run: Threads, registers: UOp | Place) -> None:
        reader = self.read_by.get(registers)
        if reader is not None and not reader.over:
            raise Fault("fills registers that a unit still reads", self._thread(run))

    def _order(self, run: Threads, node: UOp) -> None:
        groups: list[list[Flight]] = run.state.setdefault("flights", [])
        if node.op is Ops.FENCE and not isinstance(node.arg, Products):
            run.state["fenced"] = self.now
        elif node.op is Ops.ASYNC_COMMIT and isinstance(node.arg, Products):
            groups.append(run.state.pop("begun", []))
        elif node.op is Ops.ASYNC_WAIT and isinstance(node.arg, Products):
            for _ in range(len(groups) - node.arg.pending):
                for flight in groups.pop(0):
                    flight.over = self.now

    def _product(self, run: Threads, node: UOp) -> None:
        unit: MatrixUnit = node.arg
        fenced = run.state.get("fenced", 0)
        self._fresh(run, node, fenced)
        flight = Flight(unit)
        if "a" not in unit.shared:
            self._arrived(run, node.src[0])
            self._handed_over(run, node.src[0], fenced)
        for lane in self.lanes(node.src[2]):
            held = self.held(lane)
            other = held.flight
            if other is None and held.made > fenced:
                raise Fault("adds to registers that were written after the last fence", self._thread(run))
            if other is not None and not other.over and other.unit.c != unit.c:
                raise Fault("adds to products of another shape that are under way", self._thread(run))
        if "a" not in unit.shared:
            for lane in self.lanes(node.src[0]):
                self.read_by[lane[0]] = flight
        self.begun[node] = flight
        run.state.setdefault("begun", []).append(flight)
        for k in range(node.dtype.lanes):
            self.of_lane[node, k] = Held(0, flight)

    def _fresh(self, run: Threads, node: UOp, fenced: int) -> None:
        """The registers of results that are not added to what lay there."""
        before = self.begun.get(node)
        if not fenced:
            raise Fault("takes registers over without a fence", self._thread(run))
        if before is None or any(self.held(lane).flight is not None for lane in self.lanes(node.src[2])):
            return
        if not before.over:
            raise Fault("starts products anew that are under way", self._thread(run))
        if before.over > fenced:
            raise Fault("takes registers over without a fence", self._thread(run))

    def _handed_over(self, run: Threads, x: UOp, fenced: int) -> None:
        for lane in self.lanes(x):
            if self.held(lane).made > fenced:
                raise Fault("multiplies registers that were written after the last fence", self._thread(run))


def watch_for(instructions: Any) -> Watch | None:
    """A watch, where a kernel has such units."""
    return Watch() if any(takes_registers_over(n) for n in instructions) else None
