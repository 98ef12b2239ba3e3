"""What the heuristics know about a kernel before they touch it: its accesses, loops, reductions and work.

Everything is read off the kernel as the scheduler made it, where places are plain sums; the actions that
follow refer to loops by number, so the facts stay true for the loops that are still there.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import final

from morok.ir.bounds import vmax
from morok.ir.infer import closed_ranges, ranges
from morok.ir.node import UOp, toposort
from morok.ir.ops import AxisKind, Ops
from morok.machine.rates import FUNCTIONS, OpCosts
from morok.optimize.loops import Loops, stride


@final
@dataclass(frozen=True, eq=False)
class Access:
    """One place in memory that is read or written, with the factor of every loop in it (None: not plain)."""

    node: UOp
    buffer: int
    strides: dict[int, int | None]

    def moves(self, r: UOp) -> bool:
        return self.strides.get(int(r.arg[0]), 0) != 0

    def step(self, r: UOp) -> int | None:
        return self.strides.get(int(r.arg[0]), 0)

    def width(self, r: UOp, most: int) -> int:
        """Elements of a vector along a loop that always begin alike; one where memory does not lie so."""
        if self.step(r) != 1:
            return 1
        others = [step or 1 for number, step in self.strides.items() if number != int(r.arg[0])]
        return math.gcd(most, trips(r), *others)


def access(node: UOp) -> Access:
    """The facts of an INDEX."""
    buffer = node.src[0].arg if node.src[0].op is Ops.DEFINE_GLOBAL else -1
    found: dict[int, int | None] = {}
    for r in ranges(node):
        step = stride(node.src[1], r)
        found[int(r.arg[0])] = None if step == 0 else step  # in the gate only
    return Access(node, buffer, found)


def reads_of(*roots: UOp) -> list[Access]:
    """All reads of memory below some nodes; what fills a kept row is left to its own loop."""
    return [
        access(n)
        for n in toposort(*roots, stop=lambda n: n.op is Ops.BUFFERIZE)
        if n.op is Ops.INDEX and not n.dtype.is_ptr
    ]


def touched(found: Access) -> int:
    """Bytes of memory that an access goes through: those of all points of the loops it moves with."""
    return math.prod(map(trips, ranges(found.node))) * found.node.dtype.itemsize


def bytes_along(reads: Iterable[Access], r: UOp) -> int:
    """Bytes of memory that is read in order along a loop."""
    return sum(touched(a) for a in reads if a.step(r) == 1)


def trips(r: UOp) -> int:
    """The largest number of iterations of a loop."""
    return max(1, int(vmax(r.src[0])))


def weight(root: UOp, r: UOp, costs: OpCosts) -> float:
    """Simple operations per iteration of a loop on values that depend on it, reductions inside left out."""
    total = 0.0
    for n in toposort(root, stop=lambda n: n is not root and n.op in (Ops.REDUCE, Ops.BUFFERIZE)):
        if n.op.is_alu and not n.dtype.is_index and n.op is not Ops.REDUCE and r in ranges(n):
            total += costs.of(n.op)
    return total


def functions(root: UOp, r: UOp) -> int:
    """How many polynomials an iteration of a loop evaluates, reductions inside left out."""
    inside = toposort(root, stop=lambda n: n is not root and n.op in (Ops.REDUCE, Ops.BUFFERIZE))
    return sum(n.op in FUNCTIONS and r in ranges(n) for n in inside)


def work(loops: Loops, costs: OpCosts) -> float:
    """Simple operations of the whole kernel, roughly; memory accesses count as four."""
    total = 0.0
    for n in loops.order:
        if n.op is Ops.REDUCE:
            alive = frozenset().union(*(ranges(s) for s in n.src))
            cost = 1.0
        elif n.op is Ops.INDEX and n.src[0].op is Ops.DEFINE_GLOBAL:
            alive, cost = ranges(n), 4.0
        elif n.op.is_alu and not n.dtype.is_index:
            alive, cost = ranges(n), costs.of(n.op)
        else:
            continue
        total += cost * math.prod(map(trips, alive))
    return total


def output_loops(effect: UOp) -> list[UOp]:
    """The loops of an effect, outer ones first."""
    loops = closed_ranges(effect) if effect.op is Ops.END else ()
    return sorted(loops, key=lambda r: (r.arg[1] is not AxisKind.THREAD, r.arg[0]))


def store_of(effect: UOp) -> UOp:
    """The STORE of an effect."""
    return effect.src[0] if effect.op is Ops.END else effect


def value_bytes(root: UOp) -> int:
    """The widest type that a value and what it reads are made of; decides how many lanes fit a register.

    Places that are only compared, as where tensors are joined, are no part of it.
    """
    widest = 1
    for n in toposort(root):
        if n.op is Ops.CAST and n.src[0].dtype.is_index and n is not root:
            continue  # as a number that something is made of, it has users of its type
        if (n.op.is_alu or n.op is Ops.INDEX) and not n.dtype.is_index and not n.dtype.is_ptr:
            if not n.dtype.is_bool:
                widest = max(widest, n.dtype.scalar.itemsize)
    return widest
