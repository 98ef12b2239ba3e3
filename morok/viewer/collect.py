"""A run as plain data: an index that every page needs, and chunks that are looked at one by one.

Figures are those of `morok.runtime.roofline`, so a page says what PROFILE=1 and `morok bench --roofline` say.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence
from functools import partial
from typing import Any, final

import morok
from morok import knobs
from morok.device.background import Future
from morok.device.cpu.limits import Limits
from morok.device.registry import get_device
from morok.ir.node import UOp
from morok.ir.text import expr
from morok.rewrite.rules import Rule
from morok.runtime.history import History, KernelHistory
from morok.runtime.profile import Event
from morok.runtime.roofline import Row, limits_of, roofline
from morok.viewer.failures import failure_data
from morok.viewer.kernels import Kernels, graphs_of, rules_of, shared_stages
from morok.viewer.pieces import Piece, all_pieces, process_count
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
        sources: Sources,
        proof_seconds: float = 4.0,
        prove_rules: bool = False,
    ) -> None:
        self.recorder, self.profile = recorder, profile
        self.sources = sources
        self.fired: dict[str, Rule] = {}
        self.proofs = KernelProofs(proof_seconds)
        self.prove_rules = prove_rules
        self.chunks: list[str] = []  # packed

    def data(self, title: str, errors: Sequence[BaseException], searches: Sequence[Any] = ()) -> Data:
        """The index; the chunks are in `chunks` afterwards."""
        history = History(self.recorder)
        kernels = history.find(failed=True)
        number = {ast: k.number for k in kernels for ast in graphs_of(k)}
        events = self.profile.events
        devices = list(dict.fromkeys(e.device for e in events))
        limits = {device: limits_of(device) for device in devices}
        rows = roofline(events, limits)
        ran = {row.kernel: row for row in reversed(rows)}
        order = {k.number: ran[ast].seconds for k in kernels for ast in graphs_of(k) if ast in ran}
        kernels.sort(key=lambda k: -order.get(k.number, 0.0))  # proofs: the longest first
        written = self.kernels(kernels, Kernels(self.sources, self.proofs, ran, limits))
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
        data["files"] = self.sources.data(_files_named(data))
        return data

    # --- kernels

    def kernels(self, kernels: Sequence[KernelHistory], maker: Kernels) -> list[Data]:
        """All kernels, in the order in which they were compiled; their chunks, and those of their graphs."""
        for kernel in kernels:
            self.fired.update({rule.name: rule for rule in rules_of(kernel)})
        graphs = {tuple(map(id, shared)): shared for k in kernels if (shared := shared_stages(k))}
        for shared in graphs.values():  # children know these files
            for node in _nodes(shared[0].before):
                self.sources.of(node)
        pieces: list[Piece] = [partial(maker.graph, shared) for shared in graphs.values()]
        pieces += [partial(maker.data, kernel) for kernel in kernels]
        processes = 1 if any(map(_is_for_gpu, kernels)) else process_count(len(pieces))
        if processes == 1:
            _assemble(kernels)
        first = len(self.chunks)
        made = all_pieces(pieces, self.sources, processes)
        self.chunks += [chunk for _, chunk in made]
        number = {key: first + i for i, key in enumerate(graphs)}
        found = []
        for i, kernel in enumerate(kernels, len(graphs)):
            graph = number.get(tuple(map(id, shared_stages(kernel))), -1)
            found.append(made[i][0] | {"chunk": first + i, "graph": graph})
        return sorted(found, key=lambda k: int(k["number"]))

    def unknown(self, rows: Sequence[Row], number: dict[Any, int], first: int) -> list[Data]:
        """Kernels that ran but were compiled before anybody listened, or are not compiled at all."""
        found: list[Data] = []
        for row in rows:
            if row.kernel is not None and row.kernel not in number:
                number[row.kernel] = first + len(found)
                found.append({"number": number[row.kernel], "name": row.name, "chunk": -1, "whole": False})
        return found

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
            kernel.change.program = program, Future(assemble).get, code


def _is_for_gpu(kernel: KernelHistory) -> bool:
    """Whether a driver has a part in it, which forked children cannot ask."""
    program = kernel.change.program[0] if kernel.change is not None and kernel.change.program else None
    return program is not None and bool(program.block or program.grid)


def _files_named(data: Data) -> set[int]:
    """The files whose lines a page shows: those of kernels and errors. Others only made what these read."""
    places = [row["at"] for row in data["rows"]] + [kernel.get("at") for kernel in data["kernels"]]
    places += [place for kernel in data["kernels"] for place in kernel.get("lines", ())]
    places += [frame for error in data["errors"] for frame in error["frames"]]
    places += [note["at"] for note in data["notes"]]
    return {place[0] for place in places if place is not None}


def _nodes(root: UOp) -> list[UOp]:
    from morok.ir.node import toposort

    return toposort(root)


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
