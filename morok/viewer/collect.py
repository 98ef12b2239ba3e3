"""A run as plain data: an index that every page needs, and chunks that are looked at one by one.

Figures are those of `morok.runtime.roofline`, so a page says what PROFILE=1 and `morok bench --roofline` say.
"""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Sequence
from typing import Any, final

import morok
from morok import knobs
from morok.device.background import Future
from morok.device.cpu.limits import Limits
from morok.device.registry import get_device
from morok.ir.node import UOp
from morok.ir.ops import Ops
from morok.ir.text import expr
from morok.optimize.loops import loops_of
from morok.optimize.record import applied
from morok.optimize.roofline import kernel_clocks
from morok.optimize.search.cost_model import CostModel
from morok.rewrite.record import Change
from morok.rewrite.rules import Rule
from morok.runtime.history import History, KernelHistory
from morok.runtime.profile import Event
from morok.runtime.roofline import Row, limits_of, roofline
from morok.schedule.split import CUT
from morok.viewer.chunks import kernel_chunk, stages_data, steps_of
from morok.viewer.failures import failure_data
from morok.viewer.graphs import Graphs
from morok.viewer.record import RunProfile, RunRecorder
from morok.viewer.sources import Sources, clip
from morok.viewer.verdicts import KernelProofs, rule_verdicts

Data = dict[str, Any]
MOST_RUNS = 4000  # of kernels that the timeline shows
FORMAT = 1


@final
class Collector:
    """Turns what was recorded into data."""

    def __init__(
        self,
        recorder: RunRecorder,
        profile: RunProfile,
        paths: bool = True,
        proof_seconds: float = 4.0,
        prove_rules: bool = False,
    ) -> None:
        self.recorder, self.profile = recorder, profile
        self.sources = Sources(paths)
        self.fired: dict[str, Rule] = {}
        self.proofs = KernelProofs(proof_seconds)
        self.prove_rules = prove_rules
        self.chunks: list[Data] = []
        self._graphs: dict[tuple[int, ...], int] = {}  # chunks of stages that kernels share
        self._kept: dict[int, list[UOp]] = {}

    def data(self, title: str, errors: Sequence[BaseException], searches: Sequence[Any] = ()) -> Data:
        """The index; the chunks are in `chunks` afterwards."""
        history = History(self.recorder)
        kernels = history.find(failed=True)
        number = {ast: k.number for k in kernels for ast in _graphs_of(k)}
        events = self.profile.events
        devices = list(dict.fromkeys(e.device for e in events))
        limits = {device: limits_of(device) for device in devices}
        rows = roofline(events, limits)
        ran = {row.kernel: row for row in reversed(rows)}
        order = {k.number: ran[ast].seconds for k in kernels for ast in _graphs_of(k) if ast in ran}
        found: dict[int, Data] = {}
        kernels_by_time = sorted(
            kernels, key=lambda k: -order.get(k.number, 0.0)
        )  # proofs: the longest first
        _assemble(kernels_by_time)
        for kernel in kernels_by_time:
            row = next((ran[ast] for ast in _graphs_of(kernel) if ast in ran), None)
            found[kernel.number] = self.kernel(kernel, row, limits)
        written = [found[k.number] for k in kernels]
        written += self.unknown(rows, number, len(written))
        data = {
            "format": FORMAT,
            "title": title,
            "morok": morok.__version__,
            "python": platform.python_version(),
            "system": f"{platform.system()} {platform.machine()}",
            "knobs": _changed_knobs(),
            "limits": {device: _limits(limit) for device, limit in limits.items()},
            "machines": {device: get_device(device).machine.name for device in devices},
            "kernels": written,
            "rows": [self.row(row, number) for row in rows],
            "runs": self.runs(events, number),
            "plans": [self.plan(plan, number) for plan in self.profile.plans],
            "notes": [self.note(*note) for note in self.recorder.notes],
            "search": [search_data(tuned) for tuned in searches],
            "errors": [failure_data(error, self.recorder, self.sources, self.fired) for error in errors],
            "rules": self.rules(),
        }
        data["files"] = self.sources.data()
        return data

    # --- kernels

    def kernel(self, kernel: KernelHistory, row: Row | None, limits: dict[str, Limits]) -> Data:
        optimised = kernel.change.before if kernel.change is not None else None
        proof: Data = {"status": "not asked", "why": "the kernel is not whole"}
        if kernel.is_whole and optimised is not None:
            proof = self.proofs.examine(kernel.instructions, optimised)
        chunk, facts = kernel_chunk(kernel, self.sources, self.fired, proof)
        self.chunks.append(chunk)
        origin = kernel.origin if kernel.is_whole else None
        lines: Counter[tuple[int, int]] = Counter()
        if kernel.is_whole:
            places = (self.sources.place(n.origin) for n in kernel.instructions.src)
            lines.update(p for p in places if p is not None)
        return {
            "number": kernel.number,
            "name": kernel.name,
            "target": kernel.target,
            "at": self.sources.place(origin),
            "chunk": len(self.chunks) - 1,
            "graph": self.graph(kernel),
            "whole": kernel.is_whole,
            "actions": [str(opt) for opt in applied(optimised)] if optimised is not None else [],
            "instructions": len(kernel.instructions.src) if kernel.is_whole else 0,
            "changes": sum(len(s.matches) for stage in kernel.stages for s in steps_of(stage)),
            "compile": round(sum(s.seconds for s in _own(kernel)), 6),
            "lines": [[*place, count] for place, count in lines.most_common()],
            "facts": facts,
            "proof": {k: v for k, v in proof.items() if k != "shown"},
            "kept": self.kept(kernel),
            "predicted": _predicted(optimised, row, limits) if kernel.is_whole else None,
        }

    def unknown(self, rows: Sequence[Row], number: dict[Any, int], first: int) -> list[Data]:
        """Kernels that ran but were compiled before anybody listened, or are not compiled at all."""
        found: list[Data] = []
        for row in rows:
            if row.kernel is not None and row.kernel not in number:
                number[row.kernel] = first + len(found)
                found.append({"number": number[row.kernel], "name": row.name, "chunk": -1, "whole": False})
        return found

    def graph(self, kernel: KernelHistory) -> int:
        """The chunk of the stages before kernels were cut out; -1 if there are none."""
        cut = next((i for i, s in enumerate(kernel.stages) if s.by is CUT), 0)
        shared = kernel.stages[:cut]
        if not shared:
            return -1
        key = tuple(id(stage) for stage in shared)
        if key not in self._graphs:
            graphs = Graphs(self.sources)
            chunk: Data = {"stages": stages_data(shared, graphs, self.fired)}
            chunk["graphs"] = graphs.data()
            self.chunks.append(chunk)
            self._graphs[key] = len(self.chunks) - 1
        return self._graphs[key]

    def kept(self, kernel: KernelHistory) -> Data | None:
        """Why the values that a kernel stores are memory rather than part of the kernels that read them."""
        cut = next((s for s in kernel.stages if s.by is CUT), None)
        if cut is None or cut.after is None:
            return None
        if id(cut.before) not in self._kept:
            self._kept[id(cut.before)] = [
                n for n in _nodes(cut.before) if n.op in (Ops.CONTIGUOUS, Ops.ASSIGN)
            ]
        stored = [effect.src[1] for effect in cut.after.src if effect.op is Ops.ASSIGN]
        reasons: dict[str, None] = {}
        for value in stored:
            same = [n for n in self._kept[id(cut.before)] if _alike(_value(n), value)]
            here = self.sources.place(value.origin)
            exact = [n for n in same if self.sources.place(_value(n).origin) == here] or same
            for n in exact[:1]:
                assigned = n.op is Ops.ASSIGN
                reasons["it is assigned to memory" if assigned else str(n.arg or "it was asked for")] = None
        text = "; ".join(expr(value, 80, 3) for value in stored[:3])
        return {"reasons": list(reasons)[:4], "value": text}

    # --- figures

    def row(self, row: Row, number: dict[Any, int]) -> Data:
        """A line of the table, as `morok bench --roofline` has it."""
        return {
            "kernel": number.get(row.kernel, -1),
            "name": row.name,
            "place": row.place,
            "at": self.at(row.place, row.kernel),
            "device": row.device,
            "calls": row.calls,
            "seconds": row.seconds,
            "ops": row.ops,
            "bytes": row.bytes,
            "share": row.share,
            "roof": row.roof,
            "bound": row.bound,
            "limit": row.limit,
            "poor": row.is_poor,
        }

    def at(self, place: str | None, kernel: UOp | None) -> tuple[int, int] | None:
        """The place behind `file.py:12`: of a node of the kernel that says the same."""
        for node in _nodes(kernel) if kernel is not None else ():
            if node.origin is not None and repr(node.origin) == place:
                return self.sources.place(node.origin)
        return None if place is None else self.sources.named(place)  # nodes may be those of an equal kernel

    def runs(self, events: Sequence[Event], number: dict[Any, int]) -> Data:
        shown = events[:MOST_RUNS]
        threads = {t: i for i, t in enumerate(dict.fromkeys(e.thread for e in shown))}
        return {
            "all": len(events),
            "kernel": [number.get(e.kernel, -1) for e in shown],
            "name": [e.name if e.kernel is None else "" for e in shown],
            "start": [round((e.started - self.profile.began) * 1e6, 2) for e in shown],
            "micros": [round(e.seconds * 1e6, 3) for e in shown],
            "device": [e.device for e in shown] if len({e.device for e in shown}) > 1 else [],
            "thread": [threads[e.thread] for e in shown] if len(threads) > 1 else [],
        }

    def plan(self, plan: Data, number: dict[Any, int]) -> Data:
        steps = [
            [number.get(s["ast"], -1), s["name"], self.at(s["place"], s["ast"]), s["reads"], s["device"]]
            for s in plan["steps"]
        ]
        return plan | {"steps": steps}

    def note(self, topic: str, text: str, node: UOp) -> Data:
        return {
            "topic": topic,
            "text": text,
            "at": self.sources.place(node.origin),
            "value": expr(node, 80, 3),
        }

    def rules(self) -> dict[str, Data]:
        verdicts = rule_verdicts(self.fired.values(), self.prove_rules)
        return {
            name: {
                "formula": clip(rule.formula(), 600),
                "place": rule.place,
                "class": rule.numeric.value,
                "verdict": verdicts[name][0],
                "note": clip(verdicts[name][1], 300),
            }
            for name, rule in sorted(self.fired.items())
        }


def _assemble(kernels: Sequence[KernelHistory]) -> None:
    """Begins with all assembly, in the background: beside the rest, and never before a kernel runs."""
    for kernel in kernels:
        if kernel.change is not None and kernel.change.program is not None:
            program, assemble, code = kernel.change.program
            kernel.change.program = program, Future(assemble), code


def _graphs_of(kernel: KernelHistory) -> list[UOp]:
    """The graphs by which others know a kernel: from when it was cut out until it was optimised."""
    cut = next((i for i, s in enumerate(kernel.stages) if s.by is CUT), -1)
    found = [s.after for s in kernel.stages[max(cut, 0) :] if s.after is not None]
    found += [s.before for s in kernel.stages[cut + 1 :]]
    if kernel.change is not None:
        found.append(kernel.change.before)
    return list(dict.fromkeys(found))


def _own(kernel: KernelHistory) -> list[Change]:
    cut = next((i for i, s in enumerate(kernel.stages) if s.by is CUT), -1)
    return kernel.stages[cut + 1 :]


def _nodes(root: UOp) -> list[UOp]:
    from morok.ir.node import toposort

    return toposort(root)


def _value(kept: UOp) -> UOp:
    return kept.src[1] if kept.op is Ops.ASSIGN else kept.src[0]


def _alike(kept: UOp, stored: UOp, depth: int = 8) -> bool:
    """Whether a value of a graph is the one that a kernel stores, in which what others store is a PARAM."""
    if kept is stored or depth == 0 or stored.op is Ops.PARAM:
        return True
    if kept.op is Ops.CONTIGUOUS:
        return stored.op is Ops.RESHAPE and stored.src[0].op is Ops.PARAM
    same = kept.op is stored.op and kept.dtype is stored.dtype and kept.arg == stored.arg
    if not same or len(kept.src) != len(stored.src):
        return False
    return all(_alike(a, b, depth - 1) for a, b in zip(kept.src, stored.src, strict=True))


def _limits(limits: Limits) -> Data:
    return {
        "flops": limits.flops,
        "copy": limits.copy,
        "caches": limits.caches,
        "clock": limits.clock,
        "units": limits.units,
        "measured": limits.measured,
        "threads": limits.threads,
    }


def _predicted(kernel: UOp | None, row: Row | None, limits: dict[str, Limits]) -> Data | None:
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


def _changed_knobs() -> dict[str, str]:
    hidden = ("CACHE", "CACHE_DIR")  # the recording itself, and a path
    return {
        name: str(knob.value)
        for name, knob in knobs.KNOBS.items()
        if knob.value != knob.default and name not in hidden
    }


def search_data(tuned: Any) -> Data:
    """What a search has tried."""
    found = tuned.found
    return {
        "name": tuned.name,
        "place": tuned.place,
        "before": found.before if found.before < 1e9 else None,
        "after": found.after if found.after < 1e9 else None,
        "ratio": found.ratio,
        "opts": " ".join(map(str, found.opts)),
        "tried": found.tried,
        "failed": found.failed,
        "searched": tuned.searched,
        "contended": found.contended,
        "complaints": [clip(text, 300) for text in tuned.complaints],
        "candidates": [[" ".join(map(str, c.opts)), c.cost, c.seconds] for c in found.candidates],
    }
