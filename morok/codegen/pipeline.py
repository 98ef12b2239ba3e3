"""The table of stages from a kernel to a list of instructions, with what is legal after each."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import final

from morok import knobs
from morok.codegen.decompose.fused import fused_decompositions, only_added
from morok.codegen.decompose.narrow import narrow_floats
from morok.codegen.decompose.powers import fuse_powers
from morok.codegen.decompose.table import decompositions
from morok.codegen.gates import post_opt_rules
from morok.codegen.gpu.dims import dims_stage
from morok.codegen.gpu.grid import grid_stage
from morok.codegen.index_dtype import lower_index
from morok.codegen.linear.bounds_checks import check_stage
from morok.codegen.linear.linearize import end_rules, guard_stores, linearize
from morok.codegen.linear.prefetch import prefetch
from morok.codegen.linear.rare import rare_stage
from morok.codegen.reduce.local import local_stage
from morok.codegen.reduce.reduce import reduce_stage
from morok.codegen.reduce.run_on import run_on_stage
from morok.codegen.reduce.tiles_in_turn import tiles_stage
from morok.codegen.spec import (
    concrete_spec,
    kernel_spec,
    lanes_spec,
    list_spec,
    loads_spec,
    loops_spec,
    machine_spec,
    memory_spec,
    nested_spec,
    offset_spec,
    stored_spec,
    threads_spec,
)
from morok.codegen.vector.devectorize import devectorize_rules
from morok.codegen.vector.expand import expand_stage
from morok.codegen.vector.indices import Places
from morok.codegen.vector.loads import certain_rules, join_neighbours, load_rules
from morok.codegen.vector.storage import bool_rules, flatten_rules, merge_ends
from morok.codegen.vector.vector_constants import lane_rules
from morok.codegen.vector.whole import write_out
from morok.ir.node import UOp
from morok.machine.machine import Machine
from morok.rewrite.engine import rewrite
from morok.rewrite.ruleset import RuleSet, join
from morok.rewrite.stage import Report, Stage, leaving, run_pipeline
from morok.symbolic.sets import simple, symbolic


@final
@dataclass
class Context:
    """What stages may ask for."""

    machine: Machine
    only_added: frozenset[UOp] = frozenset()
    places: dict[UOp, Places] = field(default_factory=dict)  # of vectors of indices, as they were taken apart


def decompose_stage(root: UOp, ctx: Context) -> UOp:
    """Stage 18 as a whole: narrow floats first, then everything that the device lacks."""
    root = narrow_floats(root, ctx)
    ctx.only_added = only_added(root)
    root = rewrite(root, decompositions, ctx, before=fused_decompositions)
    return fuse_powers(root) if ctx.machine.fma else root


post_index_rules: RuleSet = join("post-index", symbolic, certain_rules)
final_rules: RuleSet = join("final", simple, lane_rules)

# What functions ask for that no rule sees, by stage.
_BECAUSE = {
    "8a": "all loops over outputs, for a grid of few dimensions",
    "9": "which kinds of loops there are: it runs sets of rules for those, in order",
    "10": "which buffers are shared, and by whom; rules do the rest",
    "11": "which reductions share a loop; rules do the rest",
    "12": "all parallel ranges, for a grid of few dimensions; rules do the rest",
    "14c": "siblings: ENDs of the same loops elsewhere",
    "15": "the bounds of an index before its sources were lowered; PROVE=1 proves the types wide enough",
    "16a": "all reads of a thread",
    "18": "which products are only added; rules do the rest",
    "19a": "which products are waited for together, and what is made of each",
    "19b": "who looks at sums of products, and when",
    "21": "an order of all nodes",
    "21w": "an order of all nodes",
    "21a": "who uses what a choice chooses",
    "22": "neighbours in the list",
    "22n": "neighbours in the list",
    "22a": "the accesses of a loop in the list",
}

# Numbers are those of the plan that the compiler began with; 17, a renderer's own rules, has no user.
_TABLE: tuple[Stage, ...] = (
    *leaving(
        kernel_spec,
        Stage("8", "post-opt symbolic", "simplifies; conditions go to the loads they guard", post_opt_rules),
        Stage("8a", "grid", "loops over outputs that nobody has placed go to the grid", grid_stage),
    ),
    *leaving(
        lanes_spec,
        Stage("9", "expander", "UPCAST and UNROLL become lanes; shared reductions split", expand_stage),
    ),
    *leaving(
        memory_spec,
        Stage("10", "add local buffers", "BUFFERIZE becomes memory with loops that fill it", local_stage),
    ),
    *leaving(
        loops_spec,
        Stage("11", "remove reduce", "reductions become accumulators in registers", reduce_stage),
    ),
    *leaving(
        threads_spec,
        Stage("12", "add GPU dims", "parallel ranges become hardware indices, or loops", dims_stage),
    ),
    *leaving(loads_spec, Stage("13", "add loads", "reads become LOADs", load_rules, is_local=True)),
    *leaving(
        machine_spec,
        Stage(
            "14",
            "devectorise",
            "runs of addresses, vectors of the device's width",
            devectorize_rules,
            is_local=True,
        ),
    ),
    *leaving(
        stored_spec,
        Stage("14a", "bool storage", "booleans in memory are bytes", bool_rules),
    ),
    *leaving(
        offset_spec,
        Stage("14b", "flatten indices", "one offset per access", flatten_rules),
        Stage("14c", "merge sibling ENDs", "each loop is written once", merge_ends),
    ),
    *leaving(
        concrete_spec,
        Stage("15", "lower index dtype", "indices get 32 or 64 bits by their bounds", lower_index),
        Stage("16", "post-index symbolic", "simplifies with concrete integers", post_index_rules),
        Stage("16a", "neighbouring loads", "reads of a thread side by side become one", join_neighbours),
        Stage("18", "decompositions", "ops that the device lacks, in terms of those it has", decompose_stage),
        Stage("19", "final rewrite", "folds what the decompositions left, lane by lane", final_rules),
        Stage("19a", "tiles in turn", "a tile is weighed while units are at the next", tiles_stage),
        Stage("19b", "products run on", "what a step adds up last is waited for in the next", run_on_stage),
    ),
    *leaving(
        nested_spec,
        Stage("20", "add control flow", "one END per loop, inner ones inside", end_rules),
    ),
    *leaving(
        list_spec,
        Stage("21", "linearise", "the graph becomes a list", linearize),
        Stage("21w", "write tiles out", "tiles of registers, one register after the other", write_out),
        Stage("21a", "rare choices", "what is hardly ever needed is computed under a branch", rare_stage),
        Stage("22", "clean up IF/ENDIF", "guarded stores of devices without predication", guard_stores),
        Stage("22n", "bounds checks", "checks become choices, and one rare branch", check_stage),
        Stage("22a", "prefetch", "prefetches of the lines that a loop will read soon", prefetch),
    ),
)
STAGES = tuple(replace(stage, because=_BECAUSE.get(stage.number, "")) for stage in _TABLE)


def lower(
    kernel: UOp,
    machine: Machine,
    report: Report | None = None,
) -> UOp:
    """A kernel as a LINEAR list of instructions for the machine."""
    if knobs.SPEC.value:
        kernel_spec.verify(kernel, after="stage 7 (optimise)")
    return run_pipeline(STAGES, kernel, Context(machine), report)
