"""The heavy part of a kernel as data: a sum of products whose factors are used many times over.

Matrix products, convolutions, their gradients and whatever reuses its inputs like them are one form:

    C[b, i, j] = Σ over k of A(b, i, k) · B(b, k, j),   stores of any functions of C

Loops have roles. K are those of the sum; of the loops over outputs, rows (M) move the left operand alone,
columns (N) the right one alone, and batches both. They are read off the steps of the accesses, so it does
not matter how an expression was written, or that a reshape has cut one of them into heads. Operands are
producers: any expression of memory. The epilogue is any number of stores over the same loops.

What this says is what a plan may use. What a unit or a tile cannot be fed with as it is gets staged or packed
by the planner, at a price; nothing here asks how.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import final

from morok.ir.infer import closed_ranges, ranges
from morok.ir.node import UOp, toposort
from morok.ir.ops import AxisKind, Ops
from morok.machine.rates import OpCosts
from morok.optimize.facts import Access, access, output_loops, reads_of, store_of, trips

FEWEST_STEPS = 4  # of a reduction that is worth a tile
FEWEST_OUTPUTS = 32


@final
@dataclass(frozen=True, eq=False)
class Contraction:
    """A reduction that reuses its inputs: the effects that store functions of it, its loops and reads."""

    reduce: UOp
    effects: tuple[UOp, ...]
    i: UOp  # the main loop over rows, of which tiles are cut
    j: UOp  # the same for columns; outputs lie in memory along it
    along_i: tuple[Access, ...]  # reads that move with i and not with j
    along_j: tuple[Access, ...]

    @property
    def steps(self) -> list[UOp]:
        """The loops of the sum (K), outer ones first."""
        return sorted(closed_ranges(self.reduce), key=lambda k: int(k.arg[0]))

    @property
    def outputs(self) -> list[UOp]:
        """The loops over outputs, outer ones first; all effects have the same."""
        return output_loops(self.effects[0])

    @property
    def rows(self) -> list[UOp]:
        """The loops over outputs that the left operand alone moves with (M)."""
        return self._moving(self.along_i, self.along_j)

    @property
    def columns(self) -> list[UOp]:
        """The loops over outputs that the right operand alone moves with (N)."""
        return self._moving(self.along_j, self.along_i)

    @property
    def batch(self) -> list[UOp]:
        """The loops over outputs that both operands move with, or neither."""
        sides = {*self.rows, *self.columns}
        return [r for r in self.outputs if r not in sides]

    @property
    def stored(self) -> list[UOp]:
        """The values of the stores."""
        return [store_of(effect).src[1] for effect in self.effects]

    @property
    def work(self) -> int:
        """Multiplications."""
        return math.prod(map(trips, (*self.outputs, *self.steps)))

    @property
    def output_bytes(self) -> int:
        """What one output of the sum writes, in all stores together."""
        return sum(value.dtype.itemsize for value in self.stored)

    @property
    def widest(self) -> int:
        """Bytes of the widest store."""
        return max(value.dtype.itemsize for value in self.stored)

    def after(self, costs: OpCosts) -> float:
        """Simple operations on every sum before it is written."""
        order = toposort(*self.stored, stop=lambda n: n.op in (Ops.REDUCE, Ops.INDEX))
        return sum(costs.of(n.op) for n in order if n.op not in _NO_WORK)

    def reads_per_output(self) -> int:
        """Reads of memory that differ from output to output, beside the sum: a residual, a gate."""
        return len(self._beside())

    def read_bytes(self) -> int:
        """What these read for an output."""
        return sum(a.node.dtype.itemsize for a in self._beside())

    def _beside(self) -> list[Access]:
        order = toposort(*self.stored, stop=lambda n: n.op in (Ops.REDUCE, Ops.INDEX))
        found = [access(n) for n in order if n.op is Ops.INDEX]
        return [a for a in found if a.moves(self.i) and a.moves(self.j)]

    def _moving(self, mine: Sequence[Access], others: Sequence[Access]) -> list[UOp]:
        return [
            r for r in self.outputs if any(a.moves(r) for a in mine) and not any(a.moves(r) for a in others)
        ]


_NO_WORK = (Ops.REDUCE, Ops.INDEX, Ops.CONST)


def contraction_of(effects: Sequence[UOp], reduce: UOp) -> Contraction | None:
    """The two loops that a tile would be cut from; None if the reduction has no such reuse.

    Columns are a loop along which outputs lie in memory, in as many stores as possible.
    """
    if any(effect.op is not Ops.END for effect in effects) or len(reduce.arg) != 1:
        return None
    if math.prod(trips(k) for k in closed_ranges(reduce)) < FEWEST_STEPS:
        return None
    outputs = [r for r in output_loops(effects[0]) if r.arg[1] is AxisKind.LOOP and r in ranges(reduce)]
    stores = [access(store_of(effect).src[0]) for effect in effects]
    reads = reads_of(reduce.src[0])
    best: tuple[tuple[int, int], Contraction] | None = None
    for j in outputs:
        along = sum(store.step(j) == 1 for store in stores)
        if not along:
            continue
        for i in outputs:
            along_i = _widest_first(a for a in reads if a.moves(i) and not a.moves(j))
            along_j = _widest_first(a for a in reads if a.moves(j) and not a.moves(i))
            both = any(a.moves(i) and a.moves(j) for a in reads)
            points = trips(i) * trips(j)
            if i is j or not along_i or not along_j or both or points < FEWEST_OUTPUTS:
                continue
            if best is None or (along, points) > best[0]:
                found = Contraction(reduce, tuple(effects), i, j, along_i, along_j)
                best = (along, points), found
    return None if best is None else best[1]


def _widest_first(reads: Iterable[Access]) -> tuple[Access, ...]:
    """What moves with most loops is the operand itself; the others are scales of it."""
    return tuple(sorted(reads, key=lambda a: -len(ranges(a.node))))


def find_contraction(ast: UOp) -> Contraction | None:
    """The contraction that a whole kernel is: one sum, and stores over the same loops of functions of it."""
    if not ast.src or any(effect.op is not Ops.END for effect in ast.src):
        return None
    if len({frozenset(closed_ranges(effect)) for effect in ast.src}) > 1:
        return None
    found = [n for n in toposort(ast) if n.op is Ops.REDUCE]
    if len(found) != 1 or found[0].arg != (Ops.ADD,):
        return None
    if not all(found[0] in toposort(effect) for effect in ast.src):
        return None
    return contraction_of(ast.src, found[0])
