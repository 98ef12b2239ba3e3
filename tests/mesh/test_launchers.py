"""A process finds its rank by what its launcher says: MPICH, Open MPI, torchrun, Slurm."""

import os
import subprocess
import sys

import pytest

from morok import distributed as dist
from morok import knobs

NAMES = {name for names in knobs._LAUNCHERS for name in names}


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ({}, None),
        ({"PMI_RANK": "1", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1"}, (1, 4, 1)),
        (
            {
                "OMPI_COMM_WORLD_RANK": "5",
                "OMPI_COMM_WORLD_SIZE": "8",
                "OMPI_COMM_WORLD_LOCAL_RANK": "1",
            },
            (5, 8, 1),
        ),
        ({"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "3", "MASTER_ADDR": "here"}, (3, 4, 3)),
        ({"SLURM_PROCID": "9", "SLURM_STEP_NUM_TASKS": "16", "SLURM_LOCALID": "1"}, (9, 16, 1)),
        # inside of a job, but not started by srun: alone
        ({"SLURM_JOB_ID": "7", "SLURM_NTASKS": "16"}, None),
        # mpiexec inside of a job of Slurm's: its own numbers count
        ({"PMI_RANK": "0", "PMI_SIZE": "2", "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}, (0, 2, 0)),
    ],
)
def test_ranks(
    said: dict[str, str], found: tuple[int, int, int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    for name, value in said.items():
        monkeypatch.setenv(name, value)
    assert knobs.launched() == found
    rank, count, _ = found or (0, 1, 0)
    assert (dist.rank(), dist.processes()) == (rank, count)


def test_a_launcher_that_is_none_of_mpis_is_named() -> None:
    """torchrun starts processes that MPI does not know of: a sentence, and not two runs of one rank."""
    pytest.importorskip("mpi4py", reason="ranks in several processes need mpi4py")
    code = (
        "import morok; from morok import P, Tensor; Tensor([1, 2]).shard(morok.mesh(2), P('data')).realize()"
    )
    kept = {k: v for k, v in os.environ.items() if k not in NAMES}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60,
        env={**kept, "RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "DEVICE": "PYTHON"},
    )  # fmt: skip
    assert done.returncode != 0
    assert "2 processes were started, but MPI sees 1" in done.stderr


@pytest.mark.parametrize(
    ("seen", "local", "own"),
    [(None, "2", "2"), ("4,5,6,7", "2", "6"), ("6", "2", None), ("", "0", None), ("4,5", "2", None)],
)
def test_every_rank_has_a_gpu_of_its_own(
    seen: str | None, local: str, own: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (*NAMES, "CUDA_VISIBLE_DEVICES", "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    assert knobs.own_gpu() is None  # alone: all of them
    if seen is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", seen)
    monkeypatch.setenv("PMI_RANK", "6")
    monkeypatch.setenv("PMI_SIZE", "8")
    monkeypatch.setenv("MPI_LOCALRANKID", local)
    assert knobs.own_gpu() == own
