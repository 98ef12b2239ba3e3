"""The stages of scheduling over each kernel, as a table."""

from __future__ import annotations

from typing import Any

from morok.ir.ops import Op, Ops
from morok.rewrite.loops import share_loops
from morok.rewrite.stage import Stage
from morok.schedule.kernel.gates import gates
from morok.schedule.kernel.lower import lower_kernel
from morok.schedule.kernel.numbering import number_ranges
from morok.schedule.kernel.probe import collapse
from morok.schedule.kernel.ranges import merge_ranges, split_ranges
from morok.schedule.kernel.reductions import reductions
from morok.schedule.specs import kernel_spec
from morok.symbolic.sets import symbolic


def _kernel(
    number: str, name: str, meaning: str, run: Any, because: str = "", *, when: Op | None = None
) -> Stage:
    triggers = None if when is None else frozenset((when,))
    return Stage(number, name, meaning, run, spec=kernel_spec, triggers=triggers, because=because)


KERNEL_STAGES: tuple[Stage, ...] = (
    _kernel(
        "2.1", "assign ranges", "axes become RANGEs, movement ops index arithmetic", lower_kernel,
        "the ranges of whoever reads a node: it goes from the outputs down",
    ),
    _kernel("2.2", "initial symbolic", "algebra on indices, gates and values", symbolic),
    _kernel(
        "3.1", "load collapse", "reductions without a loop: gathers, counts, sums", collapse, when=Ops.REDUCE
    ),
    _kernel("3.2", "simplify reductions", "nested ones joined, constants out", reductions, when=Ops.REDUCE),
    _kernel("4.1", "gates", "a read that is 0 outside of its gate needs no second choice", gates),
    _kernel(
        "4.2", "split ranges", "loops that indices divide become two", split_ranges,
        "all indices that a loop is part of",
    ),
    _kernel(
        "5.1", "merge ranges", "neighbouring loops become one where no index gets more expensive",
        merge_ranges, "all indices that two loops are part of",
    ),
    _kernel(
        "5.2", "share loops", "equal loops side by side become one", share_loops,
        "which reductions depend on each other", when=Ops.REDUCE,
    ),
    _kernel(
        "6.1", "number ranges", "loops numbered, outer ones first", number_ranges,
        "the place of a loop among all others",
    ),
)  # fmt: skip
