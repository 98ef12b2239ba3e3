"""Steps that go to places which are read, on a processor: those with tables of their own are lanes."""

from __future__ import annotations

from morok.ir.node import UOp
from morok.ir.ops import AxisKind
from morok.optimize.facts import output_loops, reads_of, trips
from morok.optimize.heuristics.builder import Builder
from morok.optimize.loops import size


def tables_in_lanes(builder: Builder, effect: UOp, most: int) -> None:
    """Steps that lie side by side, and have tables of their own, as a vector: around steps in order."""
    ordered = any(r.arg[1] is AxisKind.ORDERED for r in output_loops(effect))
    reads = reads_of(effect.src[0])
    for r in output_loops(effect):
        near = r.arg[1] is AxisKind.LOOP and any(a.step(r) == 1 for a in reads)
        if ordered and near and size(r) is not None and trips(r) <= most:
            builder.do("UPCAST", int(r.arg[0]))
            return
