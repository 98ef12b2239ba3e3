"""A kernel as a page's index has it, with the chunk that is unpacked for a look at it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, final

from morok.device.cpu.limits import Limits
from morok.device.registry import get_device
from morok.ir.node import UOp, toposort
from morok.ir.ops import Ops
from morok.ir.text import expr
from morok.optimize.loops import loops_of
from morok.optimize.record import applied
from morok.optimize.roofline import kernel_clocks
from morok.optimize.search.cost_model import CostModel
from morok.rewrite.record import Change
from morok.rewrite.rules import Rule
from morok.runtime.history import KernelHistory
from morok.runtime.roofline import Row
from morok.schedule.split import CUT
from morok.viewer.chunks import kernel_chunk, stages_data, steps_of
from morok.viewer.graphs import Graphs
from morok.viewer.lines import Place, own_lines, places_of
from morok.viewer.sources import Sources
from morok.viewer.verdicts import KernelProofs

Data = dict[str, Any]


@final
class Kernels:
    """Makes data of kernels; what it needs to know of the run."""

    def __init__(
        self,
        sources: Sources,
        proofs: KernelProofs,
        ran: Mapping[UOp | None, Row],
        limits: Mapping[str, Limits],
    ) -> None:
        self.sources, self.proofs, self.ran, self.limits = sources, proofs, ran, limits
        self._kept: dict[int, list[UOp]] = {}

    def data(self, kernel: KernelHistory) -> tuple[Data, Data]:
        """What the index says of a kernel, and its chunk."""
        optimised = kernel.change.before if kernel.change is not None else None
        row = next((self.ran[ast] for ast in graphs_of(kernel) if ast in self.ran), None)
        proof: Data = {"status": "not asked", "why": "the kernel is not whole"}
        if kernel.is_whole and optimised is not None:
            proof = self.proofs.examine(kernel.instructions, optimised)
        places, own = self.places(kernel) if kernel.is_whole else ([], set())
        chunk, facts = kernel_chunk(kernel, self.sources, proof, places)
        origin = kernel.origin if kernel.is_whole else None
        lines = Counter(place for place in places if place is not None)
        lines.update(dict.fromkeys(sorted(own - lines.keys()), 0))  # these only say where values lie
        entry = {
            "number": kernel.number,
            "name": kernel.name,
            "target": kernel.target,
            "at": self.sources.place(origin),
            "whole": kernel.is_whole,
            "actions": [str(opt) for opt in applied(optimised)] if optimised is not None else [],
            "instructions": len(kernel.instructions.src) if kernel.is_whole else 0,
            "changes": sum(len(s.matches) for stage in kernel.stages for s in steps_of(stage)),
            "compile": round(sum(s.seconds for s in _own(kernel)), 6),
            "lines": [[*place, count] for place, count in lines.most_common()],
            "facts": facts,
            "proof": {k: v for k, v in proof.items() if k != "shown"},
            "kept": self.kept(kernel),
            "predicted": _predicted(optimised, row, self.limits) if kernel.is_whole else None,
        }
        return entry, chunk

    def places(self, kernel: KernelHistory) -> tuple[list[Place | None], set[Place]]:
        """The line of each instruction, and all lines that the kernel computes."""
        cut = next((s for s in kernel.stages if s.by is CUT), None)
        graph = cut.after if cut is not None and cut.after is not None else kernel.stages[0].before
        own, main = own_lines(graph, self.sources), self.sources.place(kernel.origin)
        own |= {main} if main else set()
        return places_of(kernel.instructions, own, main, self.sources), own

    def graph(self, shared: list[Change]) -> tuple[Data, Data]:
        """Nothing for the index, and the chunk of stages that all kernels of a graph share."""
        graphs = Graphs(self.sources)
        chunk: Data = {"stages": stages_data(shared, graphs)}
        chunk["graphs"] = graphs.data()
        return {}, chunk

    def kept(self, kernel: KernelHistory) -> Data | None:
        """Why the values that a kernel stores are memory rather than part of the kernels that read them."""
        cut = next((s for s in kernel.stages if s.by is CUT), None)
        if cut is None or cut.after is None:
            return None
        if id(cut.before) not in self._kept:
            self._kept[id(cut.before)] = [
                n for n in toposort(cut.before) if n.op in (Ops.CONTIGUOUS, Ops.ASSIGN)
            ]
        stored = [effect.src[1] for effect in cut.after.src if effect.op is Ops.ASSIGN]
        reasons: dict[str, None] = {}
        for value in stored:
            n = self._kept_as(value, self._kept[id(cut.before)])
            if n is not None:
                assigned = n.op is Ops.ASSIGN
                reasons["it is assigned to memory" if assigned else str(n.arg or "it was asked for")] = None
            elif _shaped(value).op is Ops.PARAM:
                reasons["it is copied to other places"] = None
            elif not any(node.op is Ops.PARAM for node in toposort(value)):
                reasons["others write into it"] = None  # a fill, which is part of no graph of the user's
        text = "; ".join(expr(value, 80, 3) for value in stored[:3])
        return {"reasons": list(reasons)[:4], "value": text}

    def _kept_as(self, value: UOp, kept: Sequence[UOp]) -> UOp | None:
        """The node that made a kernel's value memory; what changed since may hide all but its top."""
        here = self.sources.place(value.origin)
        for depth in (8, 4, 2):
            same = [n for n in kept if _alike(_value(n), value, depth)]
            exact = [n for n in same if self.sources.place(_value(n).origin) == here]
            if exact or (same and depth == 8):
                return (exact or same)[0]
        return None


def graphs_of(kernel: KernelHistory) -> list[UOp]:
    """The graphs by which others know a kernel: from when it was cut out until it was optimised."""
    cut = next((i for i, s in enumerate(kernel.stages) if s.by is CUT), -1)
    found = [s.after for s in kernel.stages[max(cut, 0) :] if s.after is not None]
    found += [s.before for s in kernel.stages[cut + 1 :]]
    if kernel.change is not None:
        found.append(kernel.change.before)
    return list(dict.fromkeys(found))


def shared_stages(kernel: KernelHistory) -> list[Change]:
    """The stages before kernels were cut out."""
    cut = next((i for i, s in enumerate(kernel.stages) if s.by is CUT), 0)
    return kernel.stages[:cut]


def rules_of(kernel: KernelHistory) -> Iterator[Rule]:
    """Rules that changed what became of a kernel."""
    for stage in kernel.stages:
        for step in steps_of(stage):
            if step.by.kind == "rules":
                yield from (rule for rule, _, _ in step.matches)


def _own(kernel: KernelHistory) -> list[Change]:
    cut = next((i for i, s in enumerate(kernel.stages) if s.by is CUT), -1)
    return kernel.stages[cut + 1 :]


def _value(kept: UOp) -> UOp:
    return kept.src[1] if kept.op is Ops.ASSIGN else kept.src[0]


def _alike(kept: UOp, stored: UOp, depth: int = 8) -> bool:
    """Whether a value of a graph is the one that a kernel stores, in which what others store is a PARAM."""
    if kept is stored or depth == 0 or stored.op is Ops.PARAM:
        return True
    if _shaped(stored).op is Ops.PARAM and _shaped(kept).op in _MEMORY:
        return True
    if kept.op in _MEMORY:
        return False
    same = kept.op is stored.op and kept.dtype is stored.dtype and kept.arg == stored.arg
    if not same or len(kept.src) != len(stored.src):
        return False
    return all(_alike(a, b, depth - 1) for a, b in zip(kept.src, stored.src, strict=True))


_MEMORY = (Ops.CONTIGUOUS, Ops.AFTER, Ops.ASSIGN, Ops.PARAM, Ops.BUFFER)


def _shaped(node: UOp) -> UOp:
    """What lies under reshapes."""
    while node.op is Ops.RESHAPE:
        node = node.src[0]
    return node


def _predicted(kernel: UOp | None, row: Row | None, limits: Mapping[str, Limits]) -> Data | None:
    """What the compiler's own model says of a kernel, in cycles, and in seconds where the clock is known."""
    if kernel is None or row is None:
        return None
    machine = get_device(row.device).machine
    try:
        grid = machine.grid is not None and machine.products is not None
        cycles = kernel_clocks(kernel, machine) if grid else CostModel(machine).cost(loops_of(kernel))
    except Exception:  # a model is not asked to know every kernel
        return None
    clock = limits[row.device].clock
    return {
        "cycles": cycles,
        "seconds": cycles / clock if clock else None,
        "model": "roofline" if grid else "cost",
    }
