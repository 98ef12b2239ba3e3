"""The stages of scheduling, as tables: first over the tensor graph, then over each kernel.

Between the two the graph is cut into kernels (`split.py`), which are grouped, ordered and given memory.
"""

from __future__ import annotations

from typing import Any

from morok.ir.ops import Op, Ops
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
from morok.schedule.scans import split_scans
from morok.schedule.specs import kernel_spec, tensor_spec
from morok.schedule.states import keep_old_values
from morok.schedule.views import views
from morok.symbolic.sets import symbolic


def _graph(number: str, name: str, meaning: str, run: Any) -> Stage:
    return Stage(number, name, meaning, run, spec=tensor_spec)


def _kernel(number: str, name: str, meaning: str, run: Any, *triggers: Op) -> Stage:
    return Stage(
        number, name, meaning, run, spec=kernel_spec, triggers=frozenset(triggers) if triggers else None
    )


GRAPH_STAGES: tuple[Stage, ...] = (
    _graph("1.1", "early movement", "movement ops in a row become one, those without effect go", views),
    _graph("1.2", "plain memory", "a copy of memory that lies in order already is that memory", drop_copies),
    _graph("1.3", "outputs", "every output that is not memory yet becomes a buffer", keep_outputs),
    _graph(
        "1.4", "old values", "what is read before an assignment and used after it is kept", keep_old_values
    ),
    _graph("1.5", "transfers", "what goes to another device is stored first", keep_transfers),
    _graph("1.6", "split reductions", "long ones in two stages, if the knob says so", split_reductions),
    _graph("1.6a", "split scans", "running sums of few long rows in pieces, on GPUs in runs", split_scans),
    _graph(
        "1.7", "choose buffers", "values that are kept in memory, by cost; others are fused", choose_buffers
    ),
)

KERNEL_STAGES: tuple[Stage, ...] = (
    _kernel("2.1", "assign ranges", "axes become RANGEs, movement ops index arithmetic", lower_kernel),
    _kernel("2.2", "initial symbolic", "algebra on indices, gates and values", symbolic),
    _kernel("3.1", "load collapse", "reductions without a loop: gathers, counts, sums", collapse, Ops.REDUCE),
    _kernel("3.2", "simplify reductions", "nested ones joined, constants out", reductions, Ops.REDUCE),
    _kernel("4.1", "gates", "a read that is 0 outside of its gate needs no second choice", gates),
    _kernel("4.2", "split ranges", "loops that indices divide become two", split_ranges),
    _kernel("5.1", "merge ranges", "neighbouring loops become one where no index gets dearer", merge_ranges),
    _kernel("5.2", "share loops", "equal loops side by side become one", share_loops, Ops.REDUCE),
    _kernel("6.1", "number ranges", "loops numbered, outer ones first", number_ranges),
)
