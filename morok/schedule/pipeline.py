"""The stages of scheduling, as tables: first over the tensor graph, then over each kernel.

`docs/stages.md` is generated from these tables.
"""

from __future__ import annotations

from morok.ir.ops import Ops
from morok.rewrite.stage import Stage
from morok.schedule.boundaries import drop_copies, keep_outputs, keep_transfers
from morok.schedule.fusion import choose_buffers
from morok.schedule.gates import gates
from morok.schedule.longreduce import split_reductions
from morok.schedule.lower import lower_kernel
from morok.schedule.numbering import number_ranges
from morok.schedule.probe import collapse
from morok.schedule.ranges import merge_ranges, share_loops, split_ranges
from morok.schedule.reductions import reductions
from morok.schedule.views import views
from morok.symbolic.sets import symbolic

GRAPH_STAGES: tuple[Stage, ...] = (
    Stage("1.1", "early movement", "movement ops in a row become one, those without effect go", views),
    Stage("1.2", "plain memory", "a copy of memory that lies in order already is that memory", drop_copies),
    Stage("1.3", "outputs", "every output that is not memory yet becomes a buffer", keep_outputs),
    Stage("1.4", "transfers", "what goes to another device is stored first", keep_transfers),
    Stage("1.5", "split reductions", "long reductions in two stages, if the knob says so", split_reductions),
    Stage(
        "1.6", "choose buffers", "values that are kept in memory, by cost; the rest is fused", choose_buffers
    ),
)

_REDUCE = frozenset((Ops.REDUCE,))

KERNEL_STAGES: tuple[Stage, ...] = (
    Stage("2.1", "assign ranges", "axes become RANGEs, movement ops become index arithmetic", lower_kernel),
    Stage("2.2", "initial symbolic", "algebra on indices, gates and values", symbolic),
    Stage(
        "3.1",
        "load collapse",
        "reductions that need no loop: gathers, counts, sums",
        collapse,
        triggers=_REDUCE,
    ),
    Stage("3.2", "simplify reductions", "nested ones joined, constants out", reductions, triggers=_REDUCE),
    Stage("4.1", "gates", "reads that are 0 outside of their gate need no second choice", gates),
    Stage("4.2", "split ranges", "loops that indices divide become two", split_ranges),
    Stage("5.1", "merge ranges", "neighbouring loops become one where no index gets dearer", merge_ranges),
    Stage("5.2", "share loops", "equal loops side by side become one", share_loops, triggers=_REDUCE),
    Stage("6.1", "number ranges", "loops numbered, outer ones first", number_ranges),
)
