"""Two ranks by MPI on this host: the same results, and ranks that fail are named."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("mpi4py", reason="ranks in several processes need mpi4py")

HERE = Path(__file__).parent
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(HERE.parents[1]), "MOROK_THREADS": "1", "DEVICE": "PYTHON"}


def run(script: Path, *arguments: str, ranks: int = 2, **options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "morok", "run", "-n", str(ranks), str(script), *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=120, env={**ENVIRONMENT, **options}, check=False
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
    "order": "ranks run different programs",
    "error": "this rank has a mistake",
    "behind": "has waited for",
    "saving": "rank 1 is gone",
}


def fault(kind: str, folder: Path) -> None:
    kept = folder / f"kept-{time.monotonic_ns()}"
    started = time.monotonic()
    found = run(HERE / "faults.py", kind, str(kept), MOROK_MESH_TIMEOUT="2")
    assert found.returncode != 0
    assert FAULTS[kind] in found.stderr, found.stderr
    assert "faults.py:" in found.stderr, found.stderr
    assert "all is well" not in found.stdout
    assert time.monotonic() - started < 60
    assert not kept.exists()
    left = [p for p in Path("/proc").iterdir() if p.name.isdecimal() and str(kept) in _command(p)]
    assert not left


def _command(process: Path) -> str:
    try:
        return (process / "cmdline").read_text()
    except OSError:
        return ""


@pytest.mark.parametrize("kind", ["step", "order"])
def test_faults_are_named(kind: str, tmp_path: Path) -> None:
    fault(kind, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", list(FAULTS))
def test_faults_ten_times(kind: str, tmp_path: Path) -> None:
    for _ in range(10):
        fault(kind, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["data", "tensor", "full"])
def test_gpt_on_ranks(kind: str) -> None:
    """Twenty steps on two ranks: the losses of one process."""
    alone = subprocess.run(
        [sys.executable, str(HERE / "gpt.py"), "one", "20"],
        capture_output=True, text=True, env=ENVIRONMENT, check=True,
    )  # fmt: skip
    found = run(HERE / "gpt.py", kind, "20")
    assert found.returncode == 0, found.stderr
    one, two = json.loads(alone.stdout), json.loads(found.stdout)
    np.testing.assert_allclose(two["losses"], one["losses"], rtol=1e-4)
