"""One kernel as data: its stages with every change, its list of instructions, its text and assembly.

A page holds a chunk per kernel, which is unpacked when somebody looks at it, and one per graph of tensors:
the stages before kernels are cut out belong to all kernels of a graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from morok.ir.node import UOp, toposort
from morok.ir.ops import Ops
from morok.rewrite.record import Change
from morok.runtime.history import KernelHistory
from morok.schedule.split import CUT
from morok.viewer.assembly import assembled, cubin_registers
from morok.viewer.columns import Column
from morok.viewer.graphs import Graphs
from morok.viewer.lines import Place
from morok.viewer.sources import Sources

Data = dict[str, Any]


def stages_data(stages: Sequence[Change], graphs: Graphs) -> list[Data]:
    """Every stage with its steps. What a function has changed is for the page to find out."""
    return [stage_data(stage, graphs) for stage in stages]


def stage_data(stage: Change, graphs: Graphs) -> Data:
    by = stage.by
    data: Data = {"number": by.number, "name": by.name, "place": by.place, "seconds": round(stage.seconds, 6)}
    if by is CUT:  # what was there before is the whole graph, which others have
        assert stage.after is not None
        return data | {"before": -1, "after": graphs.number(stage.after), "steps": []}
    data["before"] = graphs.number(stage.before)
    data["after"] = -1 if stage.after is None else graphs.number(stage.after)
    data["tried"] = sum(c.by.kind == "action" for c in stage.inner)
    steps = steps_of(stage) if stage.changed or stage.after is None else []
    data["steps"] = [step_data(s, graphs) for s in steps]
    if stage.after is None:
        data["failed"] = True
    return data


def steps_of(stage: Change) -> list[Change]:
    """What a stage did one after the other, and, after that, to expressions on the way."""
    if stage.after is None:
        return stage.inner
    helped = [c for c in stage.inner if c.matches and c.before.op not in (Ops.SINK, Ops.LINEAR)]
    return [*stage.steps(), *helped]


def step_data(step: Change, graphs: Graphs) -> Data:
    """Numbers of nodes before and after each change, and of the rules' names."""
    by = step.by
    kind = "function" if by.kind == "stage" else by.kind
    after = -1 if step.after is None else graphs.number(step.after)
    data: Data = {"kind": kind, "name": by.name, "place": by.place, "before": graphs.number(step.before)}
    data["after"] = after
    if step.after is None:
        data["failed"] = True
    if kind == "rules":
        data["rules"] = Column([graphs.strings.number(rule.name) for rule, _, _ in step.matches])
        data["old"] = Column([graphs.number(old) for _, old, _ in step.matches])
        data["new"] = Column([graphs.number(new) for _, _, new in step.matches])
    elif kind == "action" and step.after is not None:
        data["gone"], data["come"] = _loops(step.before, step.after, graphs)
    return data


def _loops(before: UOp, after: UOp, graphs: Graphs) -> tuple[list[int], list[int]]:
    """What an action did to the loops; to memory, if they are the same."""
    gone: list[UOp] = []
    come: list[UOp] = []
    for wanted in (Ops.RANGE, Ops.BUFFERIZE):
        old, new = (dict.fromkeys(n for n in toposort(g) if n.op is wanted) for g in (before, after))
        gone, come = [n for n in old if n not in new], [n for n in new if n not in old]
        if gone or come:
            break
    return [graphs.number(n) for n in gone], [graphs.number(n) for n in come]


def instructions_data(linear: UOp, places: Sequence[Place | None], graphs: Graphs) -> Data:
    """The list with lines, and of each node behind it the rule and the node it was made from, where known."""
    known, parents = graphs.numbers, {}
    list_ = graphs.number(linear)
    for node in linear.src:
        while (origin := node.origin) is not None and origin.parent is not None:
            own, parent = known[node], origin.parent()
            if own in parents or parent is None or parent not in known:
                break
            parents[own] = (graphs.strings.number(str(origin.rule)), known[parent])
            node = parent
    rules, before = zip(*parents.values(), strict=True) if parents else ((), ())
    steps = {"own": Column(parents), "rule": Column(rules), "before": Column(before)}
    lines = Column([-1 if place is None else graphs.place(place) for place in places])
    return {"node": list_, "places": lines, "parents": steps}


def kernel_chunk(
    kernel: KernelHistory, sources: Sources, proof: Data, places: Sequence[Place | None]
) -> tuple[Data, Data]:
    """What is unpacked for a look at a kernel, and the facts of it that its row shows."""
    graphs = Graphs(sources)
    cut = next((i for i, s in enumerate(kernel.stages) if s.by is CUT), 0)
    chunk: Data = {"stages": stages_data(kernel.stages[cut:], graphs)}
    facts: Data = {}
    if kernel.is_whole:
        chunk["list"] = instructions_data(kernel.instructions, places, graphs)
        chunk["proof"] = proof
    change = kernel.change
    if change is not None and change.program is not None:
        program, made, code = change.program
        assembly = assembled(made)
        facts = assembly.pop("facts", {})
        if program.block:
            facts["threads of a block"] = _product(program.block)
            facts["shared bytes"] = shared_bytes(program)
        if program.scratch:
            facts["scratch bytes"] = program.scratch
        registers = _registers(code)
        if registers is not None:
            facts["registers of a thread"] = registers
        language = "CUDA C" if program.block or program.grid else "LLVM IR"
        chunk["program"] = {"language": language, "text": program.text, "starts": Column(program.starts)}
        chunk["assembly"] = assembly
    chunk["graphs"] = graphs.data()
    return chunk, facts


def _product(sizes: Sequence[int]) -> int:
    count = 1
    for n in sizes:
        count *= n
    return count


def shared_bytes(program: Any) -> int:
    """Memory that the threads of a block share: asked for at launch, or declared."""
    if program.shared:
        return int(program.shared)
    _, found, rest = program.text.partition("unsigned char shared[")
    return int(rest.partition("]")[0] or 0) if found else 0


def _registers(code: Any) -> int | None:
    try:
        return None if code is None else cubin_registers(code())
    except Exception:  # the run has told of it already
        return None
