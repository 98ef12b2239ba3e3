"""Attention on a processor: two products with a softmax between them, whose scores stay in a thread's cache.

    O(i, j) = Σ over k of w(i, k) · v(k, j)    with w(i, k) = e(i, k) / Σ e,  e = exp(s - max s),  s = a · b

The scores of all keys are kept for a block of rows at a time (the action CACHE_SCORES), so they are computed
once, and are never memory. Any type of numbers, mask, bias or scale will do, and rows of any length.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from morok.ir.infer import closed_ranges, ranges
from morok.ir.node import UOp, toposort
from morok.ir.ops import AxisKind, Ops
from morok.machine.machine import Machine
from morok.schedule.graph.attention.online_softmax import Weighted, weighted_sum

FEWEST_ROWS = 16  # that look at the same keys: those are turned and packed
FEWEST_KEPT = 16  # rows whose scores half of the second cache should hold
REDUCTIONS = 6  # the scores three times, the maximum and the two sums


@final
@dataclass(frozen=True, eq=False)
class CachedScores:
    """The parts of such a kernel, and its loops by role."""

    weighted: Weighted
    product: UOp  # the REDUCE that scores are made of
    rows: UOp
    steps: UOp  # the keys, as the second product goes over them
    columns: UOp


def cached_scores(ast: UOp) -> CachedScores | None:
    """A whole kernel as attention; None if it is something else."""
    if len(ast.src) != 1 or ast.src[0].op is not Ops.END:
        return None
    reductions = [n for n in toposort(ast) if n.op is Ops.REDUCE]
    sums = [found for n in reductions if (found := weighted_sum(n)) is not None]
    if len(reductions) != REDUCTIONS or len(sums) != 1:
        return None
    found = sums[0]
    inner = [n for n in toposort(found.power.scores) if n.op is Ops.REDUCE]
    if len(inner) != 1 or inner[0].arg != (Ops.ADD,) or inner[0].src[0].op is not Ops.MUL:
        return None
    return _with_loops(ast, found, inner[0])


def _with_loops(ast: UOp, found: Weighted, product: UOp) -> CachedScores | None:
    """The loops: rows move one factor of the scores alone, columns only the second product."""
    (steps,) = closed_ranges(found.sum)
    if steps.src[0].op is not Ops.CONST or len(closed_ranges(product)) != 1:
        return None
    outputs = [r for r in ast.src[0].src[1:] if r.arg[1] is AxisKind.LOOP and r.src[0].op is Ops.CONST]
    columns = [r for r in outputs if r in ranges(found.sum) and r not in ranges(found.weights)]
    with_steps = [f for f in product.src[0].src if steps in ranges(f)]
    if len(with_steps) != 1 or len(columns) != 1:
        return None
    rows = [r for r in outputs if r in ranges(product) and r not in ranges(with_steps[0])]
    if not rows:
        return None
    best = max(rows, key=lambda r: (int(r.src[0].arg), r.arg[0]))
    return CachedScores(found, product, best, steps, columns[0])


def holds_scores(found: CachedScores, machine: Machine) -> bool:
    """Whether enough rows have their scores in the second cache, and there are enough."""
    rows, keys = (int(r.src[0].arg) for r in (found.rows, found.steps))
    nbytes = FEWEST_KEPT * keys * found.weighted.power.scores.dtype.itemsize
    return rows >= FEWEST_ROWS and nbytes <= machine.l2_bytes // 2
