"""The cost model: what a kernel costs, guessed without compiling it: good enough to decide what is worth
compiling first.

Counted are instructions (vectors where lanes lie side by side, single elements where they do not), the waits
of a reduction for its own last result, register spills, bytes that come from beyond the caches,
loops, and how well the work is shared. The unit is a cycle of one core; only the order of guesses matters.
"""

from __future__ import annotations

import math
from typing import final

from morok.dtype import PtrDType
from morok.ir.infer import closed_ranges, ranges
from morok.ir.node import UOp, toposort
from morok.ir.ops import AxisKind, Ops
from morok.machine.machine import Machine
from morok.optimize.facts import trips
from morok.optimize.loops import LANE_KINDS, Loops, stride

_BLOCK_KINDS = (AxisKind.LOCAL, AxisKind.WARP, AxisKind.GROUP_REDUCE)


@final
class CostModel:
    """Guesses for one machine. What is known of single accesses is remembered: candidates have many alike."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._strides: dict[tuple[UOp, UOp], int | None] = {}

    def stride(self, node: UOp, r: UOp) -> int | None:
        """The factor of a loop in the place of an access."""
        key = (node.src[1], r)
        if key not in self._strides:
            self._strides[key] = stride(*key)
        return self._strides[key]

    def cost(self, loops: Loops) -> float:
        """Cycles that the kernel takes, roughly."""
        instructions = _Instructions(self, loops)
        if self.machine.block_threads:
            return self._shared(instructions.cycles(), loops)
        traffic = sum(_Traffic(self, loops, effect).cycles() for effect in loops.ast.src)
        return self._shared(instructions.cycles(), loops) + traffic / self._cores(loops)

    def _shared(self, cycles: float, loops: Loops) -> float:
        """What is left for each core."""
        if self.machine.block_threads:
            grid = math.prod(trips(r) for r in loops.closers if _in_grid(r, loops))
            return cycles / min(self.machine.rates.busy_threads, max(1, grid))
        pieces = max((trips(r) for r in loops.closers if r.arg[1] is AxisKind.THREAD), default=1)
        if pieces == 1:
            return cycles
        return cycles * -(-pieces // self.machine.cores) / pieces + self.machine.rates.wake

    def _cores(self, loops: Loops) -> int:
        threaded = any(r.arg[1] is AxisKind.THREAD for r in loops.closers)
        return self.machine.cores if threaded else 1


def _in_grid(r: UOp, loops: Loops) -> bool:
    over_outputs = loops.closed_by(r) is Ops.END and r.arg[1] not in LANE_KINDS
    return over_outputs or r.arg[1] in _BLOCK_KINDS


def _iterations(alive: frozenset[UOp]) -> float:
    return math.prod(float(trips(r)) for r in alive if r.arg[1] not in LANE_KINDS)


def _bytes(node: UOp) -> int:
    return node.dtype.elem.itemsize if isinstance(node.dtype, PtrDType) else node.dtype.itemsize


@final
class _Instructions:
    """What is executed, how often."""

    def __init__(self, model: CostModel, loops: Loops) -> None:
        self.model = model
        self.machine = model.machine
        self.loops = loops
        self.body = 0.0  # instructions in the text of the kernel
        self.executed = 0.0

    def cycles(self) -> float:
        for node in self.loops.order:
            if node.op is Ops.INDEX:
                self._add(self._accesses(node), node)
            elif node.op is Ops.REDUCE:
                self._reduce(node)
            elif node.op.is_alu and not node.dtype.is_index and ranges(node):
                self._add(self.machine.op_costs.of(node.op) * self._vectors(node), node)
        for r in self.loops.closers:
            self.executed += _iterations(ranges(r) | {r}) if r.arg[1] not in LANE_KINDS else 0.0
        rates = self.machine.rates
        too_long = max(0.0, self.body - rates.longest_body) / rates.longest_body
        return self.executed * rates.issue * (1.0 + too_long)

    def _add(self, instructions: float, node: UOp) -> None:
        self.body += instructions
        self.executed += instructions * _iterations(ranges(node))

    def _reduce(self, node: UOp) -> None:
        """Accumulators: as many instructions as vectors, and no faster than each can follow the last."""
        alive = frozenset().union(*map(ranges, node.src))
        lanes = math.prod(trips(r) for r in alive if r.arg[1] in LANE_KINDS)
        vectors = max(1.0, lanes / self._lanes(node)) * len(node.arg)
        rates = self.machine.rates
        too_many = max(0.0, vectors - rates.spill_at * self.machine.registers)
        self.body += vectors
        self.executed += (max(vectors, rates.latency / rates.issue) + rates.spill * too_many) * _iterations(
            alive
        )
        together = math.prod(trips(r) for r in closed_ranges(node) if r.arg[1] is AxisKind.UNROLL)
        self.executed += 2.0 * math.log2(together) * _iterations(ranges(node))

    def _lanes(self, node: UOp) -> int:
        return 1 if node.dtype.is_void else self.machine.access_lanes(node.dtype)

    def _vectors(self, node: UOp) -> float:
        lanes = math.prod(trips(r) for r in ranges(node) if r.arg[1] in LANE_KINDS)
        return max(1.0, lanes / self._lanes(node))

    def _accesses(self, node: UOp) -> float:
        """Instructions of a read or write: vectors along a contiguous lane, single elements otherwise."""
        lanes = [r for r in ranges(node) if r.arg[1] in LANE_KINDS]
        count = math.prod(map(trips, lanes))
        run = max((trips(r) for r in lanes if self.model.stride(node, r) == 1), default=1)
        width = max(1, self.machine.vector_bytes // max(1, _bytes(node)))
        found = count / min(run, width)
        if count > 1 and run == 1:
            found *= 2.0  # elements have to be put together
        if count > 1 and len(node.src) > 2 and not self.machine.masked_memory:
            found *= 2.0
        if self.machine.block_threads and node.src[0].op is Ops.DEFINE_GLOBAL:
            rates = self.machine.rates
            found *= rates.far if self._is_coalesced(node) else rates.far * rates.scattered
        return found

    def _is_coalesced(self, node: UOp) -> bool:
        threads = [r for r in ranges(node) if r.arg[1] in _BLOCK_KINDS]
        return not threads or any(self.model.stride(node, r) == 1 for r in threads)


@final
class _Traffic:
    """Bytes from beyond the caches. A loop whose data fits is paid for once, a larger one every time."""

    def __init__(self, model: CostModel, loops: Loops, effect: UOp) -> None:
        self.model = model
        self.loops = loops
        self.touched = [n for n in toposort(effect) if n.op is Ops.INDEX]
        closed = closed_ranges(effect) if effect.op is Ops.END else ()
        self.outer = [r for r in closed if r.op is Ops.RANGE]
        self._sums: dict[tuple[UOp, ...], float] = {}

    def cycles(self) -> float:
        return sum(self._far(node) for node in self.touched if node.src[0].op is Ops.DEFINE_GLOBAL)

    def _far(self, node: UOp) -> float:
        """Cycles for the bytes of one access, from the second cache and from memory."""
        around = self._around(node)
        found = 0.0
        machine = self.model.machine
        rates = machine.rates
        for room, price in ((machine.l1_bytes, rates.l2_byte), (machine.l2_bytes, rates.memory_byte)):
            outside = len(around)
            while outside and self._sum(tuple(around[outside - 1 :])) <= room:
                outside -= 1
            repeats = math.prod(float(trips(r)) for r in around[:outside])
            found += price * self._footprint(node, around[outside:]) * repeats
        return found

    def _around(self, node: UOp) -> list[UOp]:
        """The loops that an access lies in, outer ones first, lanes last."""
        return sorted(
            {*self.outer, *ranges(node)},
            key=lambda r: (
                r.arg[1] in LANE_KINDS, r.arg[1] is not AxisKind.THREAD, r not in self.outer, r.arg[0]
            ),
        )  # fmt: skip

    def _sum(self, inside: tuple[UOp, ...]) -> float:
        if inside not in self._sums:
            self._sums[inside] = sum(self._footprint(node, inside) for node in self.touched)
        return self._sums[inside]

    def _footprint(self, node: UOp, inside: list[UOp] | tuple[UOp, ...]) -> float:
        """Bytes that an access touches while these loops run: whole cache lines where it jumps."""
        moving = [r for r in inside if r in ranges(node)]
        count = math.prod(float(trips(r)) for r in moving)
        contiguous = any(self.model.stride(node, r) == 1 for r in moving)
        return count * (_bytes(node) if contiguous else self.model.machine.line_bytes)
