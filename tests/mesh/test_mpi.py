"""Two ranks by MPI on this host: the same results, and ranks that fail are named."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tests.mesh.test_gpt import check_bytes

pytest.importorskip("mpi4py", reason="ranks in several processes need mpi4py")

HERE = Path(__file__).parent
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(HERE.parents[1]), "MOROK_THREADS": "1", "DEVICE": "PYTHON"}


def run(script: Path, *arguments: str, ranks: int = 2, **options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "morok", "run", "-n", str(ranks), str(script), *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=600, env={**ENVIRONMENT, **options}, check=False
    )


def test_two_ranks(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import numpy as np, morok\n"
        "from morok import P, Tensor, distributed as dist\n"
        "mesh = morok.mesh(2, 'data')\n"
        "a = np.arange(15, dtype=np.float32).reshape(5, 3)\n"
        "x = Tensor(a).shard(mesh, P('data')).realize()\n"
        "assert np.array_equal(x.numpy(), a)\n"
        "assert np.array_equal(x.sum(0).numpy(), a.sum(0))\n"
        "assert np.array_equal(x.max(0).numpy(), a.max(0))\n"
        "assert np.array_equal((x.shard(mesh, P(None, 'data')) * 2).numpy(), a * 2)\n"
        f"dist.save({{'x': x}}, {str(tmp_path / 'kept')!r})\n"
        "if dist.rank() == 0: print('well', dist.processes())\n"
    )
    found = run(script)
    assert found.returncode == 0, found.stderr
    assert found.stdout == "well 2\n"
    assert sorted(p.name for p in (tmp_path / "kept").iterdir()) == [
        "index.json",
        "rank-00000.safetensors",
        "rank-00001.safetensors",
    ]
    from morok import distributed

    want = np.arange(15, dtype=np.float32).reshape(5, 3)
    np.testing.assert_array_equal(distributed.load(tmp_path / "kept")["x"].numpy(), want)


FAULTS = {
    "step": "rank 1 is gone",
    "collective": "rank 1 is gone",
    "saving": "rank 1 is gone",
    "order": "ranks run different programs",
    "error": "this rank has a mistake",
    "behind": "has waited for",
    "alone": "rank 1 has ended its program",
}
KILLED = ("step", "collective", "saving")
LIMIT = 10.0  # seconds after which nothing is left of a run that has lost a rank


def fault(kind: str, folder: Path) -> None:
    kept = folder / f"kept-{time.monotonic_ns()}"
    command = [sys.executable, "-m", "morok", "run", "-n", "2", str(HERE / "faults.py"), kind, str(kept)]
    environment = {**ENVIRONMENT, "MOROK_MESH_TIMEOUT": "2"}
    job = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    waited = turns_until_gone(job, kept)
    printed, told = job.communicate()
    assert job.returncode not in (0, None), told
    assert FAULTS[kind] in told, told
    assert "faults.py:" in told, told
    assert "all is well" not in printed
    assert not kept.exists()
    if kind in KILLED:
        assert waited * TURN <= LIMIT


TURN = 0.05


def turns_until_gone(job: subprocess.Popen, kept: Path) -> int:
    """How many turns it takes after a rank has died until no process is left.

    Turns, not seconds: where everything is stopped for a while, or waits for a busy machine, none is counted.
    """
    dying, turns, all_turns = Path(f"{kept}.dying"), 0, 0
    while job.poll() is None or left(kept):
        time.sleep(TURN)
        turns, all_turns = turns + dying.exists(), all_turns + 1
        assert all_turns * TURN < 120, "the run does not end"
    return turns


def left(kept: Path) -> list[str]:
    """Processes of a run: all of them have its folder in their command."""
    return [p.name for p in Path("/proc").iterdir() if p.name.isdecimal() and str(kept) in _command(p)]


def _command(process: Path) -> str:
    try:
        state = (process / "stat").read_text().rpartition(")")[2].split()[0]
        return "" if state in "ZX" else (process / "cmdline").read_text()
    except OSError:
        return ""


def test_a_launcher_ends_its_run_in_time() -> None:
    from morok.cli import run as launcher

    assert launcher._GRACE + 2 * launcher._ENDING < LIMIT


@pytest.mark.parametrize("kind", ["step", "order"])
def test_faults_are_named(kind: str, tmp_path: Path) -> None:
    fault(kind, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", list(FAULTS))
def test_faults_ten_times(kind: str, tmp_path: Path) -> None:
    for _ in range(10):
        fault(kind, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
def test_a_launcher_takes_its_ranks_with_it(how: signal.Signals, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, time, morok\n"
        "from morok import P, Tensor\n"
        "Tensor([1.0, 2.0]).shard(morok.mesh(2, 'data'), P('data')).sum().realize()\n"
        "open(sys.argv[1], 'w').close()\n"
        "time.sleep(600)\n"
    )
    ready = tmp_path / "ready"
    command = [sys.executable, "-m", "morok", "run", "-n", "2", str(script), str(ready)]
    job = subprocess.Popen(command, stderr=subprocess.DEVNULL, env=ENVIRONMENT)
    while not ready.exists():
        assert job.poll() is None
        time.sleep(TURN)
    os.kill(job.pid, how)
    turns = 0
    while job.poll() is None or left(ready):
        time.sleep(TURN)
        turns += 1
        assert turns * TURN <= LIMIT


@pytest.fixture(scope="module")
def alone() -> list[float]:
    """The losses of twenty steps in one process."""
    done = subprocess.run(
        [sys.executable, str(HERE / "gpt.py"), "one", "20"],
        capture_output=True, text=True, env=ENVIRONMENT, check=True,
    )  # fmt: skip
    return json.loads(done.stdout)["losses"]


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("kind", ["data", "tensor", "full", "pipeline"])
def test_gpt_on_ranks(kind: str, ranks: int, alone: list[float]) -> None:
    """Twenty steps: the losses of one process, bytes by theory."""
    found = run(HERE / "gpt.py", kind, "20", ranks=ranks, DEVICE="CPU")
    assert found.returncode == 0, found.stderr
    several = json.loads(found.stdout)
    np.testing.assert_allclose(several["losses"], alone, rtol=1e-5)
    if kind == "pipeline":  # the first stage sends on and not back: a plan counts for one in the middle
        several["sent"]["send_receive"] *= 2
    check_bytes(kind, ranks, several)
