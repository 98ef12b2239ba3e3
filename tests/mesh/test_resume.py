"""A run that was stopped goes on with other ranks, on a mesh of another shape, in another placement."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import morok
from morok import P, Tensor, knobs, nn
from morok import distributed as dist
from morok.errors import FormatError, MorokError
from tests.mesh import gpt, resume
from tests.mesh.test_mpi import ENVIRONMENT, HERE, run

# Where a run was, and where it goes on: how it is cut, on how many devices. "both" is a mesh of 2 × n/2.
MOVES = (
    (("data", 2), ("one", 1)),
    (("full", 2), ("full", 4)),
    (("full", 4), ("full", 2)),
    (("both", 4), ("full", 4)),
    (("data", 2), ("tensor", 2)),
    (("tensor", 2), ("both", 4)),
    (("one", 1), ("sequence", 4)),
)


@pytest.fixture(autouse=True)
def _interpreted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(gpt, "LAYERS", 2)
    with knobs.override(DEVICE="PYTHON"):
        yield


def compare(there: tuple[str, int], here: tuple[str, int], folder: Path, stop: int, last: int) -> None:
    whole = resume.train("one", 1, range(last))
    first = resume.train(*there, range(stop), target=folder)
    then = resume.train(*here, range(stop, last), source=folder)
    np.testing.assert_allclose([*first, *then], whole, rtol=1e-5)


def test_a_run_goes_on_with_more_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpt, "LAYERS", 1)
    compare(("full", 2), ("both", 4), tmp_path / "run", 1, 2)


@pytest.mark.slow
@pytest.mark.parametrize(("there", "here"), MOVES, ids=lambda way: "".join(map(str, way)))
def test_a_run_goes_on_elsewhere(there: tuple[str, int], here: tuple[str, int], tmp_path: Path) -> None:
    compare(there, here, tmp_path / "run", 5, 10)


@pytest.mark.slow
@pytest.mark.parametrize(("there", "here"), [(2, 1), (2, 4), (4, 2)])
def test_ranks_go_on_where_others_have_stopped(there: int, here: int, tmp_path: Path) -> None:
    """Processes, of which each writes and reads its own parts."""
    kept = str(tmp_path / "run")
    alone = subprocess.run(
        [sys.executable, "-m", "tests.mesh.resume", "one", "0", "8"],
        capture_output=True, text=True, env=ENVIRONMENT, check=True, cwd=HERE.parents[1],
    )  # fmt: skip
    first = run(HERE / "resume.py", "full", "0", "4", "", kept, ranks=there)
    assert first.returncode == 0, first.stderr
    assert len(list(Path(kept).glob("rank-*"))) == there
    then = run(HERE / "resume.py", "full", "4", "8", kept, ranks=here)
    assert then.returncode == 0, then.stderr
    found = [*json.loads(first.stdout), *json.loads(then.stdout)]
    np.testing.assert_allclose(found, json.loads(alone.stdout), rtol=1e-5)


# --- checkpoints


SPECS = (
    ((2,), P("data")),
    ((2,), P(None, "data")),
    ((3,), P("data")),
    ((2, 2), P("model", "data")),
    ((2, 2), P(("data", "model"))),
)


@pytest.mark.parametrize("dtype", ["bfloat16", "bool"])
def test_every_mesh_reads_what_another_has_written(dtype: str, tmp_path: Path) -> None:
    a = np.random.default_rng(0).integers(0, 3, (5, 7))
    for n, (sizes, spec) in enumerate(SPECS):
        mesh = morok.mesh(sizes, ("data", "model")[: len(sizes)])
        dist.save({"x": Tensor(a).cast(dtype).shard(mesh, spec)}, tmp_path / f"{n}")
        whole = dist.load(tmp_path / f"{n}")["x"]
        assert str(whole.dtype) == dtype
        np.testing.assert_array_equal(
            whole.cast("int32").numpy(), Tensor(a).cast(dtype).cast("int32").numpy()
        )
        for others, other in SPECS:
            there = morok.mesh(others, ("data", "model")[: len(others)])
            like = Tensor(np.zeros((5, 7))).cast(dtype).shard(there, other).realize()
            found = dist.load(tmp_path / f"{n}", {"x": like})["x"]
            assert found.placement is not None and found.placement.mesh == there
            np.testing.assert_array_equal(found.cast("int32").numpy(), whole.cast("int32").numpy())


def test_a_checkpoint_that_was_being_replaced_is_the_one_before(tmp_path: Path) -> None:
    """Between two names a run may be killed: what was there is found."""
    mesh, path = morok.mesh(2, "data"), tmp_path / "run"
    dist.save({"x": Tensor([1.0, 2.0, 3.0]).shard(mesh, P("data"))}, path)
    path.rename(tmp_path / ".run.old")
    (tmp_path / ".run.saving").mkdir()
    assert dist.load(path)["x"].tolist() == [1.0, 2.0, 3.0]
    dist.save({"x": Tensor([4.0]).shard(mesh)}, path)
    assert dist.load(path)["x"].tolist() == [4.0]
    assert [p.name for p in tmp_path.iterdir()] == ["run"]


def test_what_does_not_fit_changes_nothing(tmp_path: Path) -> None:
    mesh = morok.mesh(2, "data")
    w, v = (Tensor(np.ones((4, 2), np.float32)).shard(mesh, P("data")).realize() for _ in range(2))
    dist.save_checkpoint(tmp_path / "run", {"w": w, "v": v})
    small = Tensor(np.zeros((4, 3), np.float32)).shard(mesh, P("data")).realize()
    own = Tensor(np.zeros((4, 2), np.float32)).shard(mesh, P("data")).realize()
    with pytest.raises(
        FormatError, match=r"v is float32 of \[4, 2\] in the checkpoint, and float32 of \[4, 3\]"
    ):
        dist.load_checkpoint(tmp_path / "run", {"w": own, "v": small})
    assert not own.numpy().any()
    with pytest.raises(FormatError, match=r"only one of the checkpoint and the model has model\.v"):
        dist.load_checkpoint(tmp_path / "run", {"w": own})
    with pytest.raises(MorokError, match="was saved without optimizer"):
        dist.load_checkpoint(tmp_path / "run", {"w": own, "v": w}, nn.SGD([own.requires_grad_()], lr=0.1))
    dist.save({"w": w}, tmp_path / "tensors")
    with pytest.raises(FormatError, match="was not written by save_checkpoint"):
        dist.load_checkpoint(tmp_path / "tensors", {"w": own})
    with pytest.raises(FormatError, match=r"nowhere is no checkpoint: it has no whole index\.json"):
        dist.load(tmp_path / "nowhere")
