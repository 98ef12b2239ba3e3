"""A training that is stopped and resumed in another process, to the last bit."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from morok import Tensor, knobs, nn
from morok.errors import FormatError, MorokError
from morok.nn import schedules
from tests.devices import devices

STEPS, STOP = 10, 5


class Net(nn.Module):
    def __init__(self) -> None:
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 3)
        self.norm, self.dropout = nn.BatchNorm(8), nn.Dropout(0.3)

    def __call__(self, x: Tensor) -> Tensor:
        return self.second(self.dropout(self.norm(self.first(x)).relu()))


def parts(kind: str) -> tuple[Net, Any, Any]:
    model = Net()
    if kind == "sgd":
        optimizer: Any = nn.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-3)
    else:
        optimizer = nn.AdamW(model.parameters(), lr=0.01)
    return model, optimizer, nn.Schedule(optimizer, schedules.cosine(STEPS, warmup=3))


def train(kind: str, compiled: bool, model: Net, optimizer: Any, schedule: Any, first: int, last: int) -> Any:
    """The losses of some steps, and all weights after them, as bits."""

    def loss(x: Tensor, y: Tensor) -> Tensor:
        return model(x).cross_entropy(y)

    step = nn.TrainStep(model, optimizer, loss) if compiled else None
    losses = []
    for number in range(first, last):
        rng = np.random.default_rng(number)
        x, y = Tensor(rng.standard_normal((4, 6)).astype(np.float32)), Tensor(rng.integers(0, 3, 4))
        if step is not None:
            losses.append(step(x, y).item())
        else:
            optimizer.zero_grad()
            with nn.training():
                value = loss(x, y)
            value.backward()
            optimizer.step()
            losses.append(value.item())
        schedule.step()
    state = {**model.state_dict(), **{n: t for n, t in optimizer.state_dict().items() if n != "lr"}}
    return {
        "losses": losses[-(STEPS - STOP) :],
        "lr": optimizer.lr,
        "random": Tensor.rand(2).tolist(),
        **{name: t.numpy().tobytes().hex() for name, t in state.items()},
    }


def resumed(folder: str) -> None:
    """What the other process does: it knows the program and the files, and nothing else."""
    found = {}
    for path in sorted(Path(folder).glob("*.safetensors")):
        kind, how = path.stem.split("-")
        run = parts(kind)
        extra = nn.load_checkpoint(path, *run)
        found[path.stem] = train(kind, how == "jit", *run, extra["step"], STEPS)
    print(json.dumps(found))


@pytest.mark.parametrize("kind", ["sgd", pytest.param("adam", marks=pytest.mark.slow)])
def test_a_resumed_run_has_the_same_bits(kind: str, tmp_path: Path) -> None:
    (device,) = devices("CPU")
    whole = {}
    for how in ("eager", "jit"):
        with knobs.override(DEVICE=device):
            Tensor.manual_seed(3)
            whole[f"{kind}-{how}"] = train(kind, how == "jit", *parts(kind), 0, STEPS)
            Tensor.manual_seed(3)
            run = parts(kind)
            train_without_drawing(kind, how == "jit", run)
            nn.save_checkpoint(tmp_path / f"{kind}-{how}.safetensors", *run, extra={"step": STOP})
    code = "import sys; from tests.nn.test_resume import resumed; resumed(sys.argv[1])"
    root = Path(__file__).parents[2]
    env = {**os.environ, "PYTHONPATH": str(root), "DEVICE": device}
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        env=env,
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == whole


def train_without_drawing(kind: str, compiled: bool, run: Any) -> None:
    """The first steps; what `train` draws to show the state of random numbers is given back."""
    train(kind, compiled, *run, 0, STOP)
    key, drawn = Tensor.get_rng_state()
    Tensor.set_rng_state((key, drawn - 2))


def test_the_state_of_a_schedule() -> None:
    opt = nn.SGD([Tensor([1.0], requires_grad=True)], lr=0.5)
    plan = nn.Schedule(opt, schedules.exponential(0.5))
    plan.step()
    plan.step()
    other = nn.SGD([Tensor([1.0], requires_grad=True)], lr=7.0)
    later = nn.Schedule(other, schedules.exponential(0.5))
    later.load_state_dict(plan.state_dict())
    assert other.lr == opt.lr == 0.125
    assert later.step() == plan.step() == 0.0625
    with pytest.raises(MorokError, match="count and a base"):
        later.load_state_dict({"count": 1})


def test_what_does_not_fit_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "run.safetensors"
    w = Tensor([1.0, 2.0], requires_grad=True)
    nn.save_checkpoint(path, {"w": w}, nn.SGD([w], momentum=0.5), extra={"epoch": 3})
    other = Tensor([5.0, 6.0], requires_grad=True)
    with pytest.raises(MorokError, match="velocity"):
        nn.load_checkpoint(path, {"w": other}, nn.SGD([other]))
    with pytest.raises(MorokError, match="saved without schedule"):
        opt = nn.SGD([other], momentum=0.5)
        nn.load_checkpoint(path, {"w": other}, opt, nn.Schedule(opt, schedules.exponential(0.5)))
    with pytest.raises(MorokError, match="unknown w"):
        nn.load_checkpoint(path, {"v": other})
    assert other.tolist() == [5.0, 6.0]
    assert nn.load_checkpoint(path, {"w": other}) == {"epoch": 3}
    assert other.tolist() == [1.0, 2.0]


def test_files_that_are_no_checkpoints(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    nn.state.save({"w": Tensor([1.0])}, path)
    with pytest.raises(FormatError, match="not written by save_checkpoint"):
        nn.load_checkpoint(path)
    for text in ("{", "[]", '{"version": 9, "extra": {}}', '{"version": 1, "extra": 3}'):
        nn.state.save({"w": Tensor([1.0])}, path, {"morok.checkpoint": text})
        with pytest.raises(FormatError, match="checkpoint"):
            nn.load_checkpoint(path)
    with pytest.raises(MorokError, match="JSON"):
        nn.save_checkpoint(path, extra={"f": object()})


def test_the_state_of_random_numbers() -> None:
    Tensor.manual_seed(11)
    Tensor.rand(7).realize()
    state = Tensor.get_rng_state()
    first = Tensor.rand(3).tolist()
    Tensor.manual_seed(12)
    Tensor.set_rng_state(state)
    assert Tensor.rand(3).tolist() == first
    for wrong in ((1,), (1, -2), (1, 2.0)):
        with pytest.raises(MorokError, match="a key and a count"):
            Tensor.set_rng_state(wrong)  # type: ignore[arg-type]
