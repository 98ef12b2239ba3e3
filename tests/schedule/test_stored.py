"""Schedules on disk: the same in the next process, under the lines that it has, and never somebody else's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from morok import Tensor, Variable, knobs, nn
from morok.device.store import DiskStore, disk_store
from morok.errors import OutOfRange
from morok.ir.digest import hexdigest
from morok.ir.node import toposort
from morok.schedule import schedule as module
from morok.schedule.normalise import normalise
from morok.schedule.plan.stored import from_bytes, plan_key, to_bytes
from morok.schedule.plan.template import build_template

HERE = Path(__file__).resolve()


def data(*shape: int) -> Tensor:
    return Tensor(np.arange(np.prod(shape), dtype=np.float32).reshape(shape)).realize()


def taken() -> Tensor:
    return data(6, 4)[Tensor([1, 5, 2])].sum(0)


def grown() -> Tensor:
    n = Variable("n", 1, 6)
    return data(6, 4)[: n.bind(3)].sum(0)


def assigned() -> Tensor:
    x = data(8, 8)
    x[2:4] = x[4:6] + 1
    return x


def trained() -> Tensor:
    layer = nn.Linear(4, 4)
    loss = layer(data(2, 4)).square().mean()
    loss.backward()
    assert layer.weight.grad is not None
    return layer.weight.grad


PROGRAMS: dict[str, Callable[[], Tensor]] = {
    "softmax": lambda: (data(8, 8) @ data(8, 8)).softmax(-1),
    "convolution": lambda: data(1, 2, 8, 8).conv2d(data(3, 2, 3, 3), padding=1).relu(),
    "positions": taken,
    "variable": grown,
    "part assigned": assigned,
    "gradient": trained,
    "random": lambda: Tensor.rand(16) + 1,
    "booleans": lambda: (data(8) > 3).where(data(8), float("-inf")).max(),
    "running sum": lambda: data(4, 8).cumsum(1),
    "nothing": lambda: data(0, 4).sum(0) + data(4),
    "half": lambda: data(8).half().exp().cast("bfloat16"),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_read_is_what_was_written(name: str) -> None:
    form = normalise([PROGRAMS[name]().uop])
    template = build_template(form.sink)
    again = from_bytes(to_bytes(template, form.sink), form.sink)
    assert again == template
    assert [step.place for step in again.steps] == [step.place for step in template.steps]
    for step, other in zip(template.steps, again.steps, strict=True):
        assert step.ast is other.ast


def test_kernels_are_found_by_the_hashes_that_were_stored() -> None:
    """They are not computed again: a wrong one would find another kernel."""
    form = normalise([PROGRAMS["softmax"]().uop])
    template = build_template(form.sink)
    said = json.loads(zlib.decompress(to_bytes(template, form.sink)))["asts"]
    assert said == [hexdigest(ast) for ast in dict.fromkeys(step.ast for step in template.steps)]
    assert plan_key(form.sink, toposort(form.sink)) == plan_key(form.sink)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[DiskStore]:
    """An empty store, under which schedules are kept however quickly they were made."""
    with knobs.override(CACHE_DIR=str(tmp_path / "cache"), CACHE_PLANS=1):
        module.clear_cache()
        found = disk_store()
        assert found is not None
        yield found
    module.clear_cache()


@pytest.fixture(autouse=True)
def keep_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_WORTH_KEEPING", -1.0)


def no_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object) -> None:
        raise AssertionError("the schedule was made again")

    monkeypatch.setattr("morok.schedule.plan.template.build_template", refuse)


@pytest.mark.parametrize("name", [name for name in PROGRAMS if name != "random"])
def test_results_are_the_same(name: str, store: DiskStore, monkeypatch: pytest.MonkeyPatch) -> None:
    layers = nn.Linear(4, 4)  # the same weights twice
    monkeypatch.setattr(nn, "Linear", lambda *_: layers)
    first = PROGRAMS[name]().numpy()
    layers.weight.grad = None
    module.clear_cache()
    if name != "gradient":  # its weights are computed along with the first, and there with the second
        no_stages(monkeypatch)
    np.testing.assert_array_equal(PROGRAMS[name]().numpy(), first)


def test_a_position_outside_is_told_with_its_line(store: DiskStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def take(x: Tensor, position: int) -> Tensor:
        return x[Tensor([position])] + 1

    take(data(6, 4), 3).realize()
    module.clear_cache()
    no_stages(monkeypatch)
    with pytest.raises(OutOfRange, match="9") as told:
        take(data(6, 4), 9).realize()
    assert told.value.place is not None and told.value.place.startswith(HERE.name)


def test_lines_are_those_of_the_graph_at_hand(store: DiskStore, monkeypatch: pytest.MonkeyPatch) -> None:
    first = data(8, 8).exp().sum(0).prepare()
    module.clear_cache()
    no_stages(monkeypatch)
    second = data(8, 8).exp().sum(0).prepare()
    assert first.kernels[0].ast is second.kernels[0].ast
    was, now = first.kernels[0].place, second.kernels[0].place
    assert was is not None and now is not None
    assert int(now.split(":")[1]) == int(was.split(":")[1]) + 3


def key(tensor: Tensor) -> str:
    return plan_key(normalise([tensor.uop]).sink)


def test_what_differs_has_another_key() -> None:
    def program(size: int = 8, factor: float = 2.0, dtype: str = "float32") -> Tensor:
        return data(size).cast(dtype) * factor

    found = [key(program()), key(program(9)), key(program(factor=3.0)), key(program(dtype="float64"))]
    found.append(key(program(factor=-0.0)))
    found.append(key(program(factor=0.0)))
    for name, value in (("UNSAFE_MATH", 1), ("SPLIT_REDUCE", 64), ("MACHINE", "avx512"), ("THREADS", 7)):
        with knobs.override(**{name: value}):
            found.append(key(program()))
    with knobs.override(CHECK_INDICES=0):
        found.append(key(program()))
    assert len(set(found)) == len(found)
    assert key(program()) == found[0]
    x, y = data(8), data(8)
    assert key(x + y) != key(x + x)


@pytest.mark.parametrize("damage", ["plan", "hash"])
def test_a_damaged_entry_is_made_again(store: DiskStore, damage: str) -> None:
    expected = (data(8, 8) @ data(8, 8)).softmax(-1).numpy()
    connection = store._open()
    assert connection.execute("select count(*) from plans").fetchone()[0] > 0
    connection.execute(f"update plans set {damage} = ?", (b"x",))
    module.clear_cache()
    np.testing.assert_array_equal((data(8, 8) @ data(8, 8)).softmax(-1).numpy(), expected)


def test_what_cannot_be_read_is_made_again(store: DiskStore, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = data(8, 8).sum(1).numpy()
    for wrong in (b"", b"{}", zlib.compress(b"{}"), zlib.compress(b'{"graphs": 1}')):
        monkeypatch.setattr(DiskStore, "get_plan", lambda *_, wrong=wrong: wrong)
        module.clear_cache()
        np.testing.assert_array_equal(data(8, 8).sum(1).numpy(), expected)


def test_switched_off(store: DiskStore) -> None:
    with knobs.override(CACHE_PLANS=0):
        data(8, 8).sum(1).realize()
    with knobs.override(EXPLAIN="fusion"):
        data(8, 8).sum(0).realize()
    assert store._open().execute("select count(*) from plans").fetchone()[0] == 0


SCRIPT = """
import json, sys
from morok import Tensor, jit
@jit
def f(x, y):
    return (x @ y).softmax(-1)
x = Tensor([[float(i * j % 7) for i in range(8)] for j in range(8)])
print(json.dumps([f(x, x).tolist(), "morok.schedule.graph.fusion" in sys.modules,
                  "morok.codegen.pipeline" in sys.modules]))
"""


def test_a_second_process_neither_schedules_nor_lowers(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    around = {**os.environ, "MOROK_CACHE_DIR": str(tmp_path / "cache"), "MOROK_CACHE_PLANS": "1"}
    around["PYTHONPATH"] = str(HERE.parents[2])
    around.pop("MOROK_SPEC", None)
    found = []
    for _ in range(2):
        done = subprocess.run([sys.executable, str(script)], env=around, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        found.append(json.loads(done.stdout))
    assert found[0][0] == found[1][0]
    assert found[0][1:] == [True, True] and found[1][1:] == [False, False]
