"""The examples run, and do what they say."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def module(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"examples_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def test_mlp_learns_the_spirals() -> None:
    losses = [float(loss) for loss in re.findall(r"loss ([0-9.]+)", run("mlp.py"))]
    assert losses[-1] < 0.2 * losses[0]


def test_own_rule_fires() -> None:
    shown = run("own_rule.py")
    assert "example.mine.abs-square" in shown and "example.mine.tanh-signs" in shown


def test_digits_end_to_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On made-up images: two steps, the report, the weights, the picture."""
    rng = np.random.default_rng(0)
    data = rng.random((160, 1, 8, 8), dtype=np.float32), rng.integers(0, 10, 160)
    accuracy = module("digits").main(["--epochs", "1", "--folder", str(tmp_path)], data)
    assert 0.0 <= accuracy <= 1.0
    shown = capsys.readouterr().out
    assert "GFLOP/s" in shown and "loaded again and the same" in shown and "digits.py" in shown
    assert (tmp_path / "digits.svg").read_text().startswith("<svg")


@pytest.mark.slow
def test_digits_are_learned(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    assert module("digits").main(["--folder", str(tmp_path)]) >= 0.97
