"""`morok run -n 4 script.py`: a script on several ranks of this host, by mpiexec.

The launcher watches its ranks. If one dies it says which, with its last line, gives the others a moment to
say the same, and ends what is left: no process outlives a run by more than some seconds.
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
from pathlib import Path

from morok import knobs
from morok.cli.script import add_script
from morok.errors import MeshError, MorokError

NAME = "run"
HELP = "run a script on several ranks of this host"
_GRACE = 3.0  # seconds that the other ranks get to say what they see


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
        return _watch(_start(args, notes), notes, args.ranks)
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
        [mpiexec, "-n", str(args.ranks), *script], env=environment, start_new_session=True
    )


def _watch(job: subprocess.Popen[bytes], notes: str, ranks: int) -> int:
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
        _end(job, notes, ranks)
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


def _end(job: subprocess.Popen[bytes], notes: str, ranks: int) -> None:
    """Ends whatever is left: the launcher's own group, and ranks by the numbers that they have noted."""
    from morok.device.mesh.watch import is_alive, read_notes

    pids = [int(note[0][4:]) for note in read_notes(notes) if note and note[0].startswith("pid ")]
    for how in (signal.SIGTERM, signal.SIGKILL):
        if job.poll() is None:
            _signal_group(job.pid, how)
        for pid in pids:
            if is_alive(pid):
                _signal(pid, how)
        for _ in range(10):
            if job.poll() is not None and not any(is_alive(pid) for pid in pids):
                return
            time.sleep(0.1)
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
