"""Where the time goes: every kernel that runs, with its name, the user's line, its time and its rates.

    with profile() as p:
        model(x).realize()
    print(p)
    p.chrome_trace("trace.json")      # open it in chrome://tracing or Perfetto

`PROFILE=1` does the same for a whole program and prints the table when it ends. While a profile is taken,
replayed plans run kernel by kernel, so that each can be timed.
"""

from __future__ import annotations

import atexit
import json
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, final

from morok import knobs
from morok.dtype.records import record

if TYPE_CHECKING:
    from pathlib import Path


@final
@record(frozen=True)
class Event:
    """One run of one kernel."""

    name: str
    place: str | None
    device: str
    started: float  # seconds, of time.perf_counter
    seconds: float
    ops: int
    bytes: int
    thread: int
    kernel: Any = None  # its graph, before the optimiser; None for a copy between devices


class Profile:
    """The events of some stretch of time."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.began = time.perf_counter()

    def record(
        self,
        name: str,
        place: str | None,
        device: str,
        started: float,
        seconds: float,
        ops: int,
        nbytes: int,
        kernel: Any = None,
    ) -> None:
        thread = threading.get_ident()
        self.events.append(Event(name, place, device, started, seconds, ops, nbytes, thread, kernel))

    def runs(self, plan: Any) -> None:
        """An execution plan runs; for profiles that want to know what its kernels work on."""

    @property
    def seconds(self) -> float:
        """Time spent in kernels."""
        return sum(e.seconds for e in self.events)

    def by_kernel(self) -> dict[tuple[str, str, Any], list[Event]]:
        """The runs of each kernel, by its name, line and graph: loops alike may compute different things."""
        found: dict[tuple[str, str, Any], list[Event]] = {}
        for e in self.events:
            found.setdefault((e.name, e.place or "-", e.kernel), []).append(e)
        return found

    def rows(self) -> list[tuple[str, str, int, float, float, float, float]]:
        """Per kernel: name, place, calls, seconds, GFLOP/s, GB/s, share; the longest first."""
        total = self.seconds or 1.0
        rows = []
        for (name, place, _), events in self.by_kernel().items():
            seconds = sum(e.seconds for e in events)
            safe = seconds or 1e-12
            rate, width = sum(e.ops for e in events) / safe / 1e9, sum(e.bytes for e in events) / safe / 1e9
            rows.append((name, place, len(events), seconds, rate, width, seconds / total))
        return sorted(rows, key=lambda row: -row[3])

    def table(self, most: int = 40) -> str:
        """The rows for people."""
        lines = [
            f"{'kernel':<28} {'line':<24} {'calls':>6} {'ms':>10} {'GFLOP/s':>9} {'GB/s':>8} {'share':>6}"
        ]
        rows = self.rows()
        for name, place, calls, seconds, rate, width, share in rows[:most]:
            first = f"{name:<28.28} {place:<24.24} {calls:>6} {seconds * 1e3:>10.3f}"
            lines.append(f"{first} {rate:>9.2f} {width:>8.2f} {share:>6.1%}")
        if len(rows) > most:
            lines.append(f"… and {len(rows) - most} more")
        runs = f"{len(self.events)} run{'s' if len(self.events) != 1 else ''}"
        kernels = f"{len(rows)} kernel{'s' if len(rows) != 1 else ''}"
        lines.append(f"{runs} of {kernels}, {self.seconds * 1e3:.3f} ms")
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.table()

    def chrome_trace(self, path: str | Path) -> None:
        """Writes the events in Chrome's trace format."""
        events = [
            {
                "name": e.name,
                "cat": e.device,
                "ph": "X",
                "ts": (e.started - self.began) * 1e6,
                "dur": e.seconds * 1e6,
                "pid": e.device,
                "tid": e.thread,
                "args": {"line": e.place, "ops": e.ops, "bytes": e.bytes},
            }
            for e in self.events
        ]
        from pathlib import Path

        Path(path).write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}), encoding="utf-8")


active_profiles: list[Profile] = []  # the innermost one last; asked before every replay


def current() -> Profile | None:
    """The profile that is being taken, the innermost one; None most of the time."""
    if not active_profiles and not knobs.PROFILE.value:
        return None
    return active_profiles[-1] if active_profiles else _whole_program()


def _whole_program() -> Profile:
    found = Profile()
    active_profiles.append(found)
    atexit.register(lambda: print(found.table(), file=sys.stderr) if found.events else None)
    return found


@contextmanager
def profile(into: Profile | None = None) -> Iterator[Profile]:
    """Takes a profile of what runs inside."""
    found = Profile() if into is None else into
    active_profiles.append(found)
    try:
        yield found
    finally:
        active_profiles.remove(found)
        if active_profiles:
            active_profiles[-1].events += found.events
