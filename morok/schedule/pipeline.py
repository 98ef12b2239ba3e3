"""The stages of scheduling, as tables: first over the tensor graph, then over each kernel.

`docs/stages.md` is generated from these tables.
"""

from __future__ import annotations

from morok.ir.ops import Ops
from morok.rewrite.stage import Stage
from morok.schedule.boundaries import keep_outputs
from morok.schedule.fusion import choose_buffers
from morok.schedule.lower import lower_kernel
from morok.schedule.numbering import number_ranges
from morok.schedule.probe import collapse
from morok.symbolic.sets import symbolic

GRAPH_STAGES: tuple[Stage, ...] = (
    Stage("1.1", "outputs", "every output that is not memory yet becomes a buffer", keep_outputs),
    Stage(
        "1.5",
        "choose buffers",
        "values that are kept in memory, by cost; all others are fused",
        choose_buffers,
    ),
)

KERNEL_STAGES: tuple[Stage, ...] = (
    Stage("2.1", "assign ranges", "axes become RANGEs, movement ops become index arithmetic", lower_kernel),
    Stage("4", "initial symbolic", "algebra on indices, gates and values", symbolic),
    Stage(
        "2.2",
        "load collapse",
        "reductions that need no loop: gathers, counts, sums of indices",
        collapse,
        triggers=frozenset((Ops.REDUCE,)),
    ),
    Stage("6.1", "number ranges", "loops numbered, outer ones first", number_ranges),
)
