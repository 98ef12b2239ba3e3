"""How long a planned kernel takes on a grid, roughly: the roofline of what its actions have made of it.

Time is the largest of what memory, arithmetic and matrix units need, each at the rate that the threads of the
plan can reach; and a launch. It knows a kernel only by its loops and actions, so it serves as a check of
choices that were made before there was one: no fused kernel should take longer than its parts.
"""

from __future__ import annotations

import math

from morok.dtype import PtrDType
from morok.ir.infer import closed_ranges, ranges
from morok.ir.node import UOp
from morok.ir.ops import AxisKind, Ops
from morok.machine.machine import Machine
from morok.optimize.facts import trips, work
from morok.optimize.grid import grid_loops
from morok.optimize.loops import Loops, loops_of, size

BUSY = 512  # threads that keep a multiprocessor busy
TILED = 1.2  # worth of an average tile with a unit
_THREADS = (AxisKind.LOCAL, AxisKind.WARP, AxisKind.GROUP_REDUCE)


def kernel_clocks(ast: UOp, machine: Machine) -> float:
    """The time of a kernel with its actions, in clocks of the machine."""
    grid, rates = machine.grid, machine.products
    assert grid is not None and rates is not None
    loops = loops_of(ast)
    blocks = math.prod(map(trips, _blocks(loops)))
    points = [n for n in loops.order if n.op is Ops.WMMA]
    if points:
        cores = min(blocks, machine.cores)
        rate = rates.unit_rate / float(points[0].arg.inputs.itemsize) * TILED
        unit = sum(_repeats(n) for n in points) / rate
        return max(unit / cores, _bytes(loops) / (grid.memory * cores)) + grid.launch
    threads = blocks * _threads(loops)
    share = min(1.0, threads / (machine.cores * BUSY)) * machine.cores
    tiled = any(n.op is Ops.BUFFERIZE for n in loops.order)
    operations = work(loops, machine.op_costs) / (4 if tiled else 1)  # reads of shared tiles cost less
    return max(operations / (grid.operations * share), _bytes(loops) / (grid.memory * share)) + grid.launch


def _blocks(loops: Loops) -> list[UOp]:
    placed = [r for r in loops.closers if r.arg[1] is AxisKind.GLOBAL]
    return placed or [r for r in grid_loops(loops.ast) if r.arg[1] is AxisKind.LOOP]


def _threads(loops: Loops) -> int:
    """Threads of a block: as many as are needed at any one place."""
    most = 1
    for alive in {ranges(n) | frozenset(closed_ranges(n)) for n in loops.order}:
        mine = [size(r) or 1 for r in alive if r.op is Ops.RANGE and r.arg[1] in _THREADS]
        most = max(most, math.prod(mine))
    return most


def _repeats(node: UOp) -> float:
    return float(math.prod(map(trips, ranges(node))))


def _bytes(loops: Loops) -> float:
    """Memory that the kernel touches, each buffer once."""
    found = {n.arg: n.dtype for n in loops.order if n.op is Ops.DEFINE_GLOBAL}
    return float(sum(d.size * d.elem.itemsize for d in found.values() if isinstance(d, PtrDType)))
