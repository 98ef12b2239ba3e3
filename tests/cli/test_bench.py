"""`morok bench`: results are checked before they are timed, and the report follows from what was measured."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from morok import knobs
from morok.cli.bench.curves import Curve, Point, find_cliffs, show
from morok.cli.bench.libraries import Library, Morok, Numpy, libraries
from morok.cli.bench.memory import peaks
from morok.cli.bench.report import as_json, line, roofline, summary
from morok.cli.bench.rows import Work, rows
from morok.cli.bench.timing import Result, check, measure, run_row
from morok.cli.main import main
from morok.device.cpu.limits import Limits, measure_limits

LIMITS = Limits(100e9, 20e9, 2)


@pytest.fixture(autouse=True)
def on_the_cpu() -> Iterator[None]:
    """The benchmark is one of the CPU, wherever the other tests run."""
    with knobs.override(DEVICE="CPU"):
        yield


def result(**seconds: float) -> Result:
    return Result("work", seconds, {}, 1e9, 1e9, (0.9, "torch"), 0.5, 0.0)


def test_the_command_writes_a_table_json_and_a_plot(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = tmp_path / "out.json", tmp_path / "out.svg"
    words = ["bench", "--quick", "--only", "add of 16,matmul 255", "--peers", "none", "--seconds", "0.01"]
    assert main([*words, "--json", str(files[0]), "--plot", str(files[1])]) == 0
    printed = capsys.readouterr().out
    assert "matmul 255" in printed
    assert "reached what is asked for" in printed
    found = json.loads(files[0].read_text())
    assert [row["work"] for row in found["rows"]] == ["matmul 255", "add of 16 numbers"]
    for row in found["rows"]:
        assert set(row["seconds"]) == {"morok", "numpy"}
        assert row["ratio"] == pytest.approx(row["seconds"]["numpy"] / row["seconds"]["morok"])
    assert ElementTree.parse(files[1]).getroot().tag.endswith("svg")


def test_a_row_that_is_not_there_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--quick", "--only", "nonsense"]) == 2
    assert "matmul 255" in capsys.readouterr().out


QUICK = {row.name: row for row in rows(True)}


@pytest.mark.parametrize("name", [n for n in QUICK if not n.startswith(("ResNet", "GPT", "conv", "cumsum"))])
def test_rows_compute_what_numpy_does(name: str) -> None:
    work = QUICK[name].make()
    arrays = []
    for lib in (Numpy(), Morok()):
        tensors = [lib.tensor(x) for x in work.inputs]
        arrays.append(lib.array(lib.compiled(work.function)(*tensors)))
    check(work.name, "morok", arrays[1], arrays[0])


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in QUICK if n.startswith(("ResNet", "GPT", "conv", "cumsum"))])
def test_models_compute_what_numpy_does(name: str) -> None:
    assert run_row(QUICK[name].make(), [Morok(), Numpy()], 0.01).own > 0


def test_a_wrong_result_stops_the_benchmark() -> None:
    class Wrong(Numpy):
        name = "wrong"

        def array(self, result: Any) -> Any:
            return np.asarray(result) * 1.01

    work = Work("double", (np.ones(4, np.float32),), lambda _, x: x * 2)
    with pytest.raises(SystemExit, match="wrong differs from NumPy"):
        run_row(work, [Numpy(), Wrong()], 0.01)
    with pytest.raises(SystemExit, match="shape"):
        check("x", "y", np.ones(3), np.ones(4))
    with pytest.raises(SystemExit, match="differs"):
        check("x", "y", np.array([1, 2]), np.array([1, 3]))
    with pytest.raises(SystemExit, match="differs"):
        check("x", "y", np.array([np.nan]), np.array([1.0]))


def test_a_peer_that_cannot_is_named_and_left_out() -> None:
    class Unable(Library):
        name = "unable"

        def tensor(self, array: Any) -> Any:
            raise ValueError("no such thing")

    work = Work("double", (np.ones(4, np.float32),), lambda _, x: x * 2)
    found = run_row(work, [Morok(), Numpy(), Unable()], 0.01)
    assert set(found.seconds) == {"morok", "numpy"}
    assert found.absent == {"unable": "ValueError: no such thing"}
    assert "no such thing" in summary([found], LIMITS)


def test_everybody_takes_turns_and_the_best_time_counts() -> None:
    order: list[str] = []
    times = measure({name: lambda name=name: order.append(name) for name in "ab"}, 0.0)  # type: ignore[misc]
    assert set(times) == {"a", "b"}
    assert all(0 < t < math.inf for t in times.values())
    firsts = [name for i, name in enumerate(order) if i == 0 or order[i - 1] != name]
    assert firsts == ["a", "b"] * (len(firsts) // 2)
    assert len(firsts) >= 6


def test_ratios_shares_and_verdicts() -> None:
    r = result(morok=0.1, numpy=0.4, torch=0.08)
    assert (r.ratio(), r.best_peer) == (pytest.approx(0.8), "torch")
    assert r.ratio("numpy") == pytest.approx(4.0)
    assert r.ratio("jax") is None
    # 1 GB at 20 GB/s takes 0.05 s, 1 GFLOP at 100 GFLOP/s 0.01 s: memory binds, half of it is reached
    assert r.share(LIMITS) == (pytest.approx(0.5), "copy")
    assert r.verdicts(LIMITS) == [("0.90 of torch", False), ("0.5 of copy", True)]
    assert "0.90 of torch NO" in line(r, LIMITS)
    assert "1 of 2 reached" in summary([r], LIMITS)


def test_cliffs_are_jumps_that_the_peer_does_not_have() -> None:
    assert find_cliffs([1.0, 1.1, 3.0, 2.9], [1.0, 1.0, 1.0, 1.0]) == [False, False, True, False]
    assert find_cliffs([1.0, 3.0], [1.0, 2.5]) == [False, False]  # the caches end for everybody
    curve = Curve("sum", "ns", (Point(1, 1e-3, 1.0, 1e-3, False), Point(2, 4e-3, 2.0, 1e-3, True)))
    assert "cliffs at [2]" in show(curve)


def test_limits_are_measured() -> None:
    found = measure_limits(1)
    assert found.flops > 1e8
    assert found.copy > 1e7


def test_everything_goes_into_the_json() -> None:
    r = result(morok=0.1, numpy=0.4)
    curve = Curve("sum", "ns", (Point(1, 1e-3, 1.0, 1e-3, False),))
    found = json.loads(json.dumps(as_json([r], LIMITS, [curve], {}, {"cpu": "x"})))
    assert found["rows"][0]["asked"] == {"0.5 of copy": True}
    assert found["curves"][0]["points"][0]["size"] == 1
    texts = [e.text or "" for e in ElementTree.fromstring(roofline([r], LIMITS)).iter()]
    assert any("work, morok" in text for text in texts)


def test_memory_of_a_model_in_a_process_of_its_own() -> None:
    (found,) = peaks(["matmul 255"], ["morok"], True, 1).values()
    assert found["morok"].total > found["morok"].added > 0


def test_morok_and_numpy_are_always_there() -> None:
    assert [lib.name for lib in libraries(("none",), 1)] == ["morok", "numpy"]


def test_a_peer_that_is_broken_is_a_dash(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is installed, but importing it fails, or it fails when it is used."""
    from morok.cli.bench import libraries as module

    def broken() -> Library:
        raise RuntimeError("no clang\nand a long story")

    monkeypatch.setattr(module, "find_spec", lambda name: name == "tinygrad" or None)
    monkeypatch.setattr(module, "Tinygrad", broken)
    found = libraries(("tinygrad",), 1)
    assert [lib.name for lib in found] == ["morok", "numpy", "tinygrad"]
    x = np.ones(3, np.float32)
    row = run_row(Work("double", (x,), lambda _, x: x + x, 3.0), found, 0.001)
    assert set(row.seconds) == {"morok", "numpy"}
    assert row.absent == {"tinygrad": "RuntimeError: no clang and a long story"}


@pytest.mark.parametrize("where", ["import", "call"])
def test_compile_times_beside_a_broken_peer(where: str, tmp_path: Path) -> None:
    package = tmp_path / "tinygrad"
    package.mkdir()
    story = "raise FileNotFoundError('clang is not installed')"
    text = story if where == "import" else f"class Tensor:\n    def empty(*a, **k): {story}\n"
    (package / "__init__.py").write_text(text)
    root = Path(__file__).parents[2]
    code = (
        "import runpy; bench = runpy.run_path('benchmarks/compile.py')\n"
        f"print(bench['run'](['--peer', 'tinygrad', next(iter(bench['GRAPHS']))], {str(tmp_path)!r}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=root,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{root}"},
    )  # fmt: skip
    assert done.returncode == 0 and done.stdout.strip() == "{}", done.stderr
    (line,) = done.stderr.splitlines()
    assert "clang is not installed" in line
