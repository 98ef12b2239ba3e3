"""Who waits for whom: every rank writes down what it is about to do, and a rank that waits reads the others'.

The notes of the ranks of one host lie in one small file, a line of fixed length each, that all of them map
into memory: writing one is a copy of some bytes. Whoever has waited for some seconds looks at the notes: a
rank that is gone, that is somewhere else in the program, or that has not come yet is named with its line.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import final

from morok import knobs
from morok.errors import MeshError
from morok.ir.provenance import caller

_LINE = 512  # bytes of a rank's note
NOTES = "ranks"  # the file that they are in
_SPINS = 2000  # questions before a waiting rank lets others run


@final
class Watch:
    """The notes of one rank, and those of the others."""

    def __init__(self, rank: int, count: int) -> None:
        self.rank, self.count = rank, count
        self.steps = 0
        folder = knobs.RUN_DIR.value
        if folder:
            self._path = Path(folder) / NOTES
        else:
            self._path = Path(tempfile.gettempdir()) / f"morok-{NOTES}-{knobs.run_name()}"
        self._file = open(self._path, "a+b")  # noqa: SIM115 - mapped as long as the process lives
        size = _LINE * count
        if os.fstat(self._file.fileno()).st_size < size:
            os.ftruncate(self._file.fileno(), size)
        self._notes = mmap.mmap(self._file.fileno(), size)
        self._put(f"pid {os.getpid()}|0|started|")

    def _put(self, text: str) -> None:
        line = text.encode()[: _LINE - 1]
        start = self.rank * _LINE
        self._notes[start : start + _LINE] = line.ljust(_LINE, b"\0")

    def _read(self, rank: int) -> list[str]:
        start = rank * _LINE
        return self._notes[start : start + _LINE].rstrip(b"\0").decode(errors="replace").split("|")

    def enter(self, what: str) -> int:
        """Notes what comes next; a number that is the same on ranks that do the same."""
        self.steps += 1
        self._put(f"pid {os.getpid()}|{self.steps}|{what}|{caller() or ''}")
        digest = hashlib.blake2b(f"{self.steps}|{what}".encode(), digest_size=7).digest()
        return int.from_bytes(digest, "little")

    def fail(self, why: str) -> None:
        """The last note of a rank that ends before its time."""
        note = self._read(self.rank)
        where = note[3] if len(note) > 3 else ""
        self._put(f"pid {os.getpid()}|{self.steps}|{why.replace('|', ' ')[:200]}|{where}")

    def end(self) -> None:
        """The last note of a rank that has done everything."""
        self._put(f"pid {os.getpid()}|{self.steps}|ended|")

    def differences(self) -> str:
        """What every rank says that it is about to do."""
        lines = []
        for rank in range(self.count):
            note = self._read(rank)
            if len(note) >= 4:
                lines.append(f"rank {rank} runs {note[2]} at {note[3] or 'an unknown line'}")
        return "ranks run different programs: " + "; ".join(lines)

    def until(self, done: Callable[[], bool]) -> None:
        """Waits, and says after some seconds what is wrong if somebody does not come."""
        for _ in range(_SPINS):
            if done():
                return
        last = time.monotonic()
        waited = 0.0  # without what this process itself was stopped for
        limit = knobs.MESH_TIMEOUT.value
        while not done():
            time.sleep(0 if waited < 0.05 else 0.0005)
            now = time.monotonic()
            waited, last = waited + min(now - last, 1.0), now
            if waited > 0.5:
                self._look(waited, limit)

    def _look(self, waited: float, limit: int) -> None:
        for rank in range(self.count):
            note = self._read(rank)
            if rank == self.rank or not note[0].startswith("pid "):
                continue
            if not is_alive(int(note[0][4:])):
                where = f", last at {note[3]}" if len(note) > 3 and note[3] else ""
                raise MeshError(f"rank {rank} is gone{where}; rank {self.rank} waits for it in vain")
            if len(note) > 2 and note[2] == "ended" and int(note[1]) < self.steps:
                own = self._read(self.rank)
                what = f"{own[2]} at {own[3] or 'an unknown line'}" if len(own) > 3 else "something"
                raise MeshError(
                    f"rank {rank} has ended its program, and rank {self.rank} runs {what}: what ranks do "
                    "together, reading values among it, all of them have to do"
                )
        if limit and waited > limit:
            behind = [
                f"rank {r} is at {n[3] or n[2]}"
                for r in range(self.count)
                if len(n := self._read(r)) > 3 and int(n[1] or 0) < self.steps
            ]
            who = "; ".join(behind) or "no rank says that it is behind"
            raise MeshError(f"rank {self.rank} has waited for {waited:.0f} s: {who}")


_own: list[Watch] = []  # one


def own_watch(rank: int, count: int) -> Watch:
    """The notes of this process."""
    if not _own:
        _own.append(Watch(rank, count))
    return _own[0]


def read_notes(folder: str) -> list[list[str]]:
    """The notes of all ranks of a run, as a launcher reads them."""
    try:
        data = (Path(folder) / NOTES).read_bytes()
    except OSError:
        return []
    lines = [data[n : n + _LINE].rstrip(b"\0").decode(errors="replace") for n in range(0, len(data), _LINE)]
    return [line.split("|") if line else [] for line in lines]


def is_alive(pid: int) -> bool:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return os.path.exists("/proc") is False or _exists(pid)
    return text.rpartition(")")[2].split()[0] not in ("Z", "X")


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return not os.path.exists("/proc/self/stat")
