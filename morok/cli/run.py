"""`morok run -n 4 script.py`: a script on several ranks of this host, by mpiexec.

The launcher watches its ranks. If one dies it says which, with its last line, gives the others a moment to
say the same (`_GRACE`), asks what is left to end (`_ENDING`) and then ends it: ten seconds after the first
death nothing is left. A launcher that is told to end does the same, and one that is killed takes mpiexec, and
that its ranks, with it.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from morok import knobs
from morok.cli.script import add_script
from morok.errors import MeshError, MorokError

NAME = "run"
HELP = "run a script on several ranks of this host"
_GRACE = 3.0  # seconds that the other ranks get to say what they see
_ENDING = 1.0  # seconds in which a process may end by itself; then it is killed
_PR_SET_PDEATHSIG = 1


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("-n", "--ranks", type=int, default=2, metavar="N", help="how many (default: 2)")
    add_script(parser)


def run(args: Namespace) -> int:
    if args.ranks < 1:
        raise MorokError(f"a run has one rank at least, not {args.ranks}")
    if not Path(args.script).is_file():
        raise MorokError(f"there is no script {args.script}")
    notes = tempfile.mkdtemp(prefix="morok-run-")
    try:
        with _told_to_end():
            return _watch(_start(args, notes), notes)
    finally:
        shutil.rmtree(notes, ignore_errors=True)


def _start(args: Namespace, notes: str) -> subprocess.Popen[bytes]:
    beside = Path(sys.executable).parent / "mpiexec"
    mpiexec = str(beside) if beside.exists() else shutil.which("mpiexec")
    if mpiexec is None:
        raise MeshError("there is no mpiexec; pip install 'morok[mpi]' brings one")
    script = [sys.executable, "-m", "morok.nn.distributed.rank", args.script, *args.arguments]
    environment = knobs.environment_with(RUN_DIR=notes)
    return subprocess.Popen(
        [mpiexec, "-n", str(args.ranks), *script],
        env=environment,
        start_new_session=True,
        preexec_fn=_end_with_parent(),  # one system call, and no other thread runs here
    )


def _end_with_parent() -> Callable[[], Any] | None:
    """What has Linux end a child with its parent, however that ends."""
    if sys.platform != "linux":
        return None
    import ctypes

    call = ctypes.CDLL(None).prctl
    return lambda: call(_PR_SET_PDEATHSIG, signal.SIGTERM)


@contextmanager
def _told_to_end() -> Iterator[None]:
    """Inside, what tells a process to end interrupts it, so that it can end its ranks."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _watch(job: subprocess.Popen[bytes], notes: str) -> int:
    """Waits for the end; a rank that is gone before its time ends the others."""
    gone: float | None = None
    told = False
    try:
        while job.poll() is None:
            time.sleep(0.1)
            dead = _gone(notes)
            if dead and not told:
                told = True
                for number, where in dead:
                    print(f"morok run: rank {number} is gone{where}", file=sys.stderr)
            if dead and gone is None:
                gone = time.monotonic()
            if gone is not None and time.monotonic() - gone > _GRACE:
                break
    except KeyboardInterrupt:
        told = True
    finally:
        _end(job, notes)
    if not told:
        for number, where in _gone(notes):
            told = True
            print(f"morok run: rank {number} is gone{where}", file=sys.stderr)
    return job.returncode or (1 if told else 0)


def _gone(notes: str) -> list[tuple[int, str]]:
    """Ranks that have ended without saying so, and where they were last."""
    from morok.device.mesh.watch import is_alive, read_notes

    found = []
    for number, note in enumerate(read_notes(notes)):
        if len(note) >= 3 and note[2] != "ended" and not is_alive(int(note[0][4:])):
            found.append((number, f", last at {note[3]}" if len(note) > 3 and note[3] else ""))
    return found


def _end(job: subprocess.Popen[bytes], notes: str) -> None:
    """Ends whatever is left: the launcher's own group, and ranks by the numbers that they have noted."""
    from morok.device.mesh.watch import is_alive, read_notes

    pids = [int(note[0][4:]) for note in read_notes(notes) if note and note[0].startswith("pid ")]
    for how in (signal.SIGTERM, signal.SIGKILL):
        if job.poll() is None:
            _signal_group(job.pid, how)
        for pid in pids:
            if is_alive(pid):
                _signal(pid, how)
        until = time.monotonic() + _ENDING
        while time.monotonic() < until:
            if job.poll() is not None and not any(is_alive(pid) for pid in pids):
                return
            time.sleep(0.05)
    job.wait()


def _signal_group(pid: int, how: signal.Signals) -> None:
    try:
        os.killpg(pid, how)
    except ProcessLookupError:
        return


def _signal(pid: int, how: signal.Signals) -> None:
    try:
        os.kill(pid, how)
    except ProcessLookupError:
        return
