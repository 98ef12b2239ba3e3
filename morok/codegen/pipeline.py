"""The table of stages from a kernel to a list of instructions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

from morok.codegen.devectorize import devectorize_stage
from morok.codegen.expand import expand_stage
from morok.codegen.gpudims import dims_stage
from morok.codegen.index_dtype import lower_index
from morok.codegen.linearize import control_flow, guard_stores, linearize
from morok.codegen.loads import load_rules
from morok.codegen.local import local_stage
from morok.codegen.reduce import reduce_stage
from morok.codegen.storage import bool_storage, flatten_rules, merge_ends
from morok.codegen.target import Target
from morok.ir.node import UOp
from morok.rewrite.stage import Observer, Report, Stage, run_pipeline
from morok.symbolic.sets import symbolic


@final
@dataclass
class Context:
    """What stages may ask for."""

    target: Target
    notes: dict[str, Any]


STAGES: tuple[Stage, ...] = (
    Stage("8", "post-opt symbolic", "simplifies", symbolic),
    Stage("9", "expander", "UPCAST and UNROLL ranges become lanes", expand_stage),
    Stage("10", "add local buffers", "BUFFERIZE becomes memory with loops that fill it", local_stage),
    Stage("11", "remove reduce", "reductions become accumulators in registers", reduce_stage),
    Stage("12", "add GPU dims", "parallel ranges become hardware indices", dims_stage),
    Stage("13", "add loads", "reads become LOADs", load_rules),
    Stage("14", "devectorise", "vectors of the device's width", devectorize_stage),
    Stage("14a", "bool storage", "booleans in memory are bytes", bool_storage),
    Stage("14b", "flatten indices", "one offset per access", flatten_rules),
    Stage("14c", "merge sibling ENDs", "each loop is written once", merge_ends),
    Stage("15", "lower index dtype", "indices get 32 or 64 bits by their bounds", lower_index),
    Stage("20", "add control flow", "one END per loop, inner ones inside", control_flow),
    Stage("21", "linearise", "the graph becomes a list", linearize),
    Stage("22", "clean up IF/ENDIF", "guarded stores of devices without predication", guard_stores),
)


def lower(kernel: UOp, target: Target, report: Report | None = None, observer: Observer | None = None) -> UOp:
    """A kernel as a LINEAR list of instructions for the target."""
    return run_pipeline(STAGES, kernel, Context(target, {}), report, observer)
