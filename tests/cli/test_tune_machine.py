"""`morok tune --machine`: that the probes are what they are called, and what becomes of their times."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from morok import Tensor, knobs
from morok.cli import tune_machine
from morok.cli.main import main
from morok.cli.tune_machine import Pair, seconds_of
from morok.ir.node import toposort
from morok.ir.ops import Op, Ops
from morok.machine import choose
from morok.machine.files import load, source
from morok.machine.fit import Probes, probes_of

OPS = {
    "operation": Ops.MUL,
    "division": Ops.FDIV,
    "integer_division": Ops.FLOORDIV,
    "exponential": Ops.EXP,
    "trigonometric": Ops.SIN,
    "power": Ops.POW,
}


def ops_of(program: Any) -> list[list[Op]]:
    """The ops of the kernels that a program runs."""
    program()
    compiled = program.__closure__[0].cell_contents
    (plan,) = compiled.plans
    return [[n.op for n in toposort(item.ast)] for item in plan.schedule.items]


@pytest.fixture(autouse=True)
def on_the_cpu():
    with knobs.override(DEVICE="CPU", THREADS=1):
        yield


@pytest.mark.parametrize("name", OPS)
def test_a_chain_is_one_kernel_with_as_many_ops_as_it_says(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tune_machine, "_ELEMENTS", 16)
    pair = tune_machine.op_probes()[name]
    (short,), (long,) = ops_of(pair.short), ops_of(pair.long)
    found = long.count(OPS[name]) - short.count(OPS[name])
    assert found >= 2 and pair.units % found == 0
    per_op = pair.units / 16 / found
    assert per_op == (2.0 if name == "operation" else 1.0)
    assert bool(pair.beside) == (name != "operation")


def test_programs_of_memory_and_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune_machine, "_ELEMENTS", 16)
    monkeypatch.setattr(tune_machine, "_KERNELS", 3)
    machine = load("generic")
    small = tune_machine.memory_probes(type(machine)(l2_bytes=4096))
    assert small["memory"].units == 4 * 16 * 4096 and small["l2"].units == 1024
    x: Tensor = small["l2"].long()
    assert x.nbytes - small["l2"].short().nbytes == small["l2"].units / 2  # and as much is read
    assert small["gather"].long().numel() - small["gather"].short().numel() == small["gather"].units
    counts = [len(p.__self__.schedule.items) for p in small["launch"][:2]]  # type: ignore[attr-defined]
    assert counts == [3, 6] and small["launch"].units == 3


def test_a_unit_s_time_is_the_difference_without_what_comes_along(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing() -> None:
        pass

    times = {"a": (1.0, 5.0), "b": (2.0, 8.0), "noise": (3.0, 2.0)}
    monkeypatch.setattr(tune_machine, "best_times", lambda *_: [t for pair in times.values() for t in pair])
    pairs = {"a": Pair(nothing, nothing, 2.0), "b": Pair(nothing, nothing, 2.0, "a")}
    assert seconds_of({**pairs, "noise": Pair(nothing, nothing, 1.0)}, 1) == {
        "a": 2.0,
        "b": 1.0,
        "noise": 0.0,
    }


def test_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from morok.device.cpu.llvm import host

    shipped = choose.shipped_source(host())
    there = probes_of(shipped)
    here = Probes(**{**vars(there), "memory": there.memory * 2})
    monkeypatch.setattr(tune_machine, "measure", lambda *_: here)
    with knobs.override(CACHE_DIR=str(tmp_path)):
        choose.cpu_machine.cache_clear()
        before = choose.cpu_machine(host())
        assert main(["tune", "--machine"]) == 0
        after = choose.cpu_machine(host())
        assert after.rates.ops_per_byte == 2 * before.rates.ops_per_byte
        path = tmp_path / "machines" / f"{host().cpu}.toml"
        assert source(str(path)).name == host().cpu
    choose.cpu_machine.cache_clear()
    said = capsys.readouterr().out
    assert str(path) in said and "ops_per_byte" in said


@pytest.mark.parametrize("words", [["tune"], ["tune", "--machine", "script.py"]])
def test_one_of_the_two(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) != 0
    assert "script" in capsys.readouterr().err


@pytest.mark.slow
def test_everything_is_measured() -> None:
    found = tune_machine.measure(load("generic"), 1, rounds=1)
    assert found.operation > 0.0 and found.memory > 0.0 and found.wake == 0.0
