"""The most memory that a model takes: each library runs it in a process of its own.

    python -m morok.cli.bench.memory morok resnet18 8

prints the peak of the process before and after the model has run, in bytes.
"""

from __future__ import annotations

import contextlib
import resource
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import final

_MINUTES = 300.0


@final
@dataclass(frozen=True)
class Peak:
    """Bytes: of the whole process, and of what came on top of the loaded library and the inputs."""

    total: int
    added: int


_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def _status(field: str) -> int:
    """Bytes of a field of the kernel's notes about this process; 0 where it keeps none."""
    if not _STATUS.exists():
        return 0
    for text in _STATUS.read_text().splitlines():
        if text.startswith(field + ":"):
            return int(text.split()[1]) * 1024
    return 0


def _peak() -> int:
    """The most that this process had. The figure of `getrusage` begins with that of the parent."""
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return _status("VmHWM") or (used if sys.platform == "darwin" else used * 1024)


def _forget_peak() -> int:
    """Forgets what making the inputs took; what the process has now."""
    with contextlib.suppress(OSError):
        _CLEAR.write_text("5")
    return _status("VmRSS") or _peak()


def _run(library: str, name: str, quick: bool, threads: int) -> tuple[int, int]:
    from morok import knobs
    from morok.cli.bench.libraries import Morok, Torch, mapped
    from morok.cli.bench.rows import rows

    (row,) = [row for row in rows(quick) if row.name == name]
    with knobs.override(DEVICE="CPU", THREADS=threads):
        lib = Morok() if library == "morok" else Torch(threads)
        work = row.make()
        tensors = [mapped(lib.tensor, value) for value in work.inputs]
        before = _forget_peak()
        function = lib.compiled(work.function)
        for _ in range(3):
            function(*tensors)
    return before, _peak()


def peaks(names: list[str], libraries: list[str], quick: bool, threads: int) -> dict[str, dict[str, Peak]]:
    """Model → library → what it took; a library that failed is left out."""
    found: dict[str, dict[str, Peak]] = {}
    root = str(Path(__file__).parents[3])
    for name in names:
        for library in libraries:
            words = [library, name, str(int(quick)), str(threads)]
            code = (
                f"import sys; sys.path.insert(0, {root!r}); from morok.cli.bench.memory import main; main()"
            )
            done = subprocess.run(
                [sys.executable, "-c", code, *words],
                capture_output=True,
                text=True,
                timeout=_MINUTES,
                check=False,
            )
            if done.returncode == 0:
                before, after = map(int, done.stdout.split()[-2:])
                found.setdefault(name, {})[library] = Peak(after, after - before)
            else:
                print(f"{name}: {library} failed: {done.stderr.strip()[-200:]}", file=sys.stderr)
    return found


def main() -> None:
    library, name, quick, threads = sys.argv[1:5]
    print(*_run(library, name, bool(int(quick)), int(threads)))


if __name__ == "__main__":
    main()
