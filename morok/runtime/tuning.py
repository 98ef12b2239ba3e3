"""Kernels that are searched for: what was found before is taken from memory or disk, else a search is run.

A result is found by the kernel's content, the device and the compiler itself. It counts if the search that
made it was at least as wide and as long as the one that is asked for, or had come to its own end. What was
decided about whole plans (`runtime/plan_ab_test.py`) is kept beside it.
"""

from __future__ import annotations

import atexit
import json
import math
import os
import sys
import threading
import weakref
from collections.abc import Callable
from dataclasses import astuple, dataclass
from typing import Any, final

from morok import knobs
from morok.caches import Cache
from morok.device.registry import get_device
from morok.device.store import disk_store
from morok.device.tuning.tunable import Tunable
from morok.errors import MorokError
from morok.forks import renewed
from morok.ir.digest import hexdigest
from morok.ir.node import UOp
from morok.optimize.record import applied
from morok.optimize.search.beam import Found, Progress
from morok.optimize.search.race import PairedTiming
from morok.optimize.strategy import Beam
from morok.runtime.plan_ab_test import ABResult

_WORKERS = 16  # at most; more only fight for memory
PLANS = 0.05  # of a kernel's time is left for the race of its plan


@final
@dataclass(frozen=True)
class Tuned:
    """One kernel that was asked for, and what a search had to say about it."""

    name: str
    place: str | None
    found: Found
    searched: bool  # now, rather than in an earlier run
    complaints: tuple[str, ...] = ()  # why candidates were dropped


@final
class Tuner:
    """All searches of a process."""

    def __init__(self) -> None:
        self.history: list[Tuned] = []
        self.progress: Callable[[str], Any] | None = None  # makes a bar for a kernel's name
        self._known: weakref.WeakKeyDictionary[UOp, dict[str, tuple[Beam, Found]]] = (
            weakref.WeakKeyDictionary()
        )
        self.ab_results: list[ABResult] = []  # about plans
        self._decided: Cache[str, ABResult] = Cache("runtime.ab_results", 4096)
        self._lock = renewed(self, "_lock", threading.RLock)

    def tuned(self, device: str, ast: UOp, name: str, place: str | None, beam: Beam) -> UOp:
        """The kernel as the search would have it; as it is, if the device knows no search."""
        machine = get_device(device)
        if not isinstance(machine, Tunable) or applied(ast):
            return ast
        from morok.optimize.actions.table import apply_all

        with self._lock:
            found, complaints = self._find(device, machine, ast, name, beam)
            self.history.append(Tuned(name, place, found, complaints is not None, complaints or ()))
        return apply_all(ast, found.opts, machine.machine)

    def result(self, device: str, ast: UOp) -> Found | None:
        """What is known about a kernel that was tuned in this process."""
        machine = get_device(device)
        if not isinstance(machine, Tunable):
            return None
        entry = self._known.get(ast, {}).get(search_key(machine, ast))
        return None if entry is None else entry[1]

    def decide(self, key: str, race: Callable[[], ABResult | None]) -> ABResult | None:
        """What was decided about a plan: in this process, on disk, or by a race now."""
        with self._lock:
            ab_result = self._decided.get(key)
            store = disk_store()
            if ab_result is None and store is not None:
                text = store.get_search(key)
                ab_result = None if text is None else read_ab_result(text)
            if ab_result is None:
                ab_result = race()
                if ab_result is not None:
                    self.ab_results.append(ab_result)
                    if store is not None and not ab_result.contended:
                        store.put_search(key, write_ab_result(ab_result))
            if ab_result is not None and not ab_result.contended:
                self._decided[key] = ab_result
            return ab_result

    def _find(
        self, device: str, machine: Tunable, ast: UOp, name: str, beam: Beam
    ) -> tuple[Found, tuple[str, ...] | None]:
        """What is known, or else found now; then with what was said of candidates that were dropped."""
        key = search_key(machine, ast)
        known = self._known.setdefault(ast, {})
        entry = known.get(key)
        store = disk_store()
        if entry is None and store is not None:
            text = store.get_search(key)
            entry = None if text is None else read_entry(text)
        if entry is not None and suffices(entry, beam):
            known[key] = entry
            return entry[1], None
        found, complaints = self._search(device, machine, ast, name, beam)
        known[key] = beam, found
        if store is not None and found.before < math.inf:
            store.put_search(key, write_entry(beam, found))
        return found, complaints

    def _search(
        self, device: str, machine: Tunable, ast: UOp, name: str, beam: Beam
    ) -> tuple[Found, tuple[str, ...]]:
        from morok.optimize.heuristics.apply import optimize
        from morok.optimize.search.beam import search
        from morok.optimize.search.space import Space

        pool = _pool(device, min(_WORKERS, os.cpu_count() or 1))
        bar = (self.progress or progress_bar)(name)
        try:
            within = Beam(beam.width, (1.0 - PLANS) * beam.seconds)
            pool.start(ast, within.seconds)
            found = search(Space(ast, machine.machine), optimize, pool, within, bar)
            return found, tuple(dict.fromkeys(pool.complaints))
        finally:
            bar.close()
            _say(pool.complaints)


tuner = Tuner()


def search_key(machine: Tunable, ast: UOp) -> str:
    """Under which the result for a kernel is kept."""
    return f"{hexdigest(ast)}|{machine.tuning_key()}"


def tuning_key(device: str) -> str:
    """Everything about a device that decides what is fastest there."""
    machine = get_device(device)
    return machine.tuning_key() if isinstance(machine, Tunable) else device


def suffices(entry: tuple[Beam, Found], wanted: Beam) -> bool:
    """Whether what was found with some effort will do for another."""
    beam, found = entry
    return beam.width >= wanted.width and (found.complete or beam.seconds >= wanted.seconds)


def write_entry(beam: Beam, found: Found) -> str:
    """A result as text for the disk."""
    from morok.device.tuning.worker import opts_to

    return json.dumps({
        "width": beam.width, "seconds": beam.seconds, "opts": opts_to(found.opts), "before": found.before,
        "after": found.after, "tried": found.tried, "failed": found.failed, "complete": found.complete,
        "race": [astuple(timing) for timing in found.race], "contended": found.contended,
    })  # fmt: skip


def read_entry(text: str) -> tuple[Beam, Found] | None:
    """What `write_entry` has written; None if it is something else."""
    from morok.device.tuning.worker import opts_from

    try:
        d = json.loads(text)
        found = Found(
            opts_from(d["opts"]), float(d["before"]), float(d["after"]), int(d["tried"]), int(d["failed"]),
            bool(d["complete"]), tuple(PairedTiming(*row) for row in d["race"]), bool(d["contended"]),
        )  # fmt: skip
        return Beam(int(d["width"]), float(d["seconds"])), found
    except (ValueError, KeyError, TypeError, MorokError):
        return None


def write_ab_result(ab_result: ABResult) -> str:
    """What was decided about a plan, as text for the disk."""
    timings = [astuple(timing) for timing in ab_result.timings]
    return json.dumps(
        {"kept": sorted(ab_result.kept), "dropped": sorted(ab_result.dropped), "timings": timings}
    )


def read_ab_result(text: str) -> ABResult | None:
    """What `write_ab_result` has written; None if it is something else."""
    try:
        d = json.loads(text)
        timings = tuple(PairedTiming(*row) for row in d["timings"])
        return ABResult(frozenset(map(str, d["kept"])), frozenset(map(str, d["dropped"])), timings)
    except (ValueError, KeyError, TypeError):
        return None


# --- worker processes, which stay for the next kernel

_pools: dict[tuple[object, ...], Any] = {}


def _pool(device: str, count: int) -> Any:
    from morok.device.tuning.worker_pool import WorkerPool

    options = tuple((name, knob.value) for name, knob in knobs.KNOBS.items())
    key = (os.getpid(), device, count, options)
    if key not in _pools:
        for old in _pools.values():
            old.close()
        _pools.clear()
        pool = _pools[key] = WorkerPool(device, count)
        atexit.register(pool.close)
    return _pools[key]


def _say(complaints: list[str]) -> None:
    if knobs.DEBUG.value >= 1:
        for line in dict.fromkeys(complaints):
            print(f"morok: a candidate was dropped: {line}", file=sys.stderr)


# --- the progress bar


def progress_bar(name: str) -> Any:
    """A bar on the error output: rich's where that is installed, a line of text otherwise."""
    if not sys.stderr.isatty():
        return _NoBar()
    try:
        return _RichBar(name)
    except ImportError:
        return _TextBar(name)


def _text(progress: Progress) -> str:
    if not progress.best < math.inf:
        return "starting"
    ratio = progress.before / progress.best if progress.before < math.inf else 1.0
    return f"{progress.tried} tried, {progress.best * 1e6:.1f} µs, {ratio:.2f}×"


@final
class _NoBar:
    def __call__(self, progress: Progress) -> None:
        """Nobody looks at it."""

    def close(self) -> None:
        """Nothing to clear away."""


@final
class _TextBar:
    def __init__(self, name: str) -> None:
        self.name = name
        self._print(f"search {name}: starting")

    def __call__(self, progress: Progress) -> None:
        done = min(20, int(20 * progress.elapsed / progress.seconds))
        self._print(f"search {self.name[:28]:<28} [{'#' * done}{'.' * (20 - done)}] {_text(progress)}")

    def _print(self, text: str) -> None:
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)

    def close(self) -> None:
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)


@final
class _RichBar:
    def __init__(self, name: str) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        columns = (TextColumn("search {task.description}"), BarColumn(), TextColumn("{task.fields[text]}"))
        self.bar = Bar(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True)
        self.task = self.bar.add_task(name, total=1.0, text="starting")
        self.bar.start()

    def __call__(self, progress: Progress) -> None:
        self.bar.update(self.task, completed=progress.elapsed / progress.seconds, text=_text(progress))

    def close(self) -> None:
        self.bar.stop()
