"""The stages of scheduling over the tensor graph, as a table.

After them the graph is cut into kernels (`split.py`), which are grouped, ordered and given memory. Those of
each kernel are in `schedule/kernel/stages.py`.
"""

from __future__ import annotations

from typing import Any

from morok.ir.ops import Op, Ops
from morok.rewrite.stage import Stage
from morok.schedule.graph.boundaries import drop_copies, keep_outputs, transfer_rules
from morok.schedule.graph.byte_words import multiply_words
from morok.schedule.graph.fusion import choose_buffers
from morok.schedule.graph.operand_layout import lay_operands
from morok.schedule.graph.padded_operands import keep_padding
from morok.schedule.graph.scans import split_scans
from morok.schedule.graph.scatters import scatters_in_any_order
from morok.schedule.graph.split_reductions import split_reductions
from morok.schedule.graph.states import keep_old_values
from morok.schedule.graph.views import views
from morok.schedule.specs import tensor_spec


def _graph(
    number: str, name: str, meaning: str, run: Any, because: str = "", *, when: Op | None = None
) -> Stage:
    triggers = None if when is None else frozenset((when,))
    return Stage(number, name, meaning, run, spec=tensor_spec, triggers=triggers, because=because)


GRAPH_STAGES: tuple[Stage, ...] = (
    _graph("1.1", "early movement", "movement ops in a row become one, those without effect go", views),
    _graph(
        "1.2", "plain memory", "a copy of memory that lies in order already is that memory", drop_copies,
        "whether anybody overwrites that memory",
    ),
    _graph(
        "1.3", "outputs", "every output that is not memory yet becomes a buffer", keep_outputs,
        "what the outputs are",
    ),
    _graph(
        "1.4", "old values", "what is read before an assignment and used after it is kept", keep_old_values,
        "who reads which state of a memory, in the order of assignments",
    ),
    _graph("1.5", "transfers", "what goes to another device is stored first", transfer_rules, when=Ops.COPY),
    _graph(
        "1.5a", "operand layout", "operands that no unit reads in vectors, put otherwise", lay_operands,
        "how a product reads its operands, and the time of both",
    ),
    _graph(
        "1.5b", "scatters", "steps that meet in a place come in any order", scatters_in_any_order,
        "the device that each is computed on, and the time of what would result", when=Ops.SCATTER,
    ),
    _graph(
        "1.5c", "padded operands", "pictures with their padding, where offsets of windows meet it",
        keep_padding, "how a product reads its operands, and the time of both", when=Ops.PAD,
    ),
    _graph(
        "1.5d", "words of bytes", "products of 8-bit integers, four steps at a time", multiply_words,
        "the device that each is computed on, and the time of both", when=Ops.REDUCE_AXIS,
    ),
    _graph(
        "1.6", "split reductions", "long ones in two stages, if the knob says so", split_reductions,
        "the device that each is computed on, and the time of what would result",
    ),
    _graph(
        "1.6a", "split scans", "running sums of few long rows in pieces, on GPUs in runs", split_scans,
        "the device that each is computed on",
    ),
    _graph(
        "1.7", "choose buffers", "values that are kept in memory, by cost; others are fused", choose_buffers,
        "all uses of a value, and what each would cost",
    ),
)  # fmt: skip
