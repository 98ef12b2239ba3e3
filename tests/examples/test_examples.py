"""The examples run, and do what they say."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import morok
from morok import Tensor, Variable, knobs
from morok.rewrite.engine import statistics
from morok.runtime.plan import requests

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


def test_own_rules_fire_and_are_proved_or_refuted() -> None:
    shown = run("own_rule.py")
    assert "example.mine.abs-square" in shown and "example.mine.tanh-signs" in shown
    verdicts = dict(line.split()[:2] for line in shown.splitlines()[-4:])
    assert verdicts["example.mine.abs-square"] == verdicts["example.mine.max-min"] == "proved"
    assert verdicts["example.wrong.distance"] == "refuted"


def test_digits_end_to_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On made-up images: a few steps, the weights to a file and back."""
    rng = np.random.default_rng(0)
    data = rng.random((160, 1, 8, 8), dtype=np.float32), rng.integers(0, 10, 160)
    accuracy = module("digits").main(["--epochs", "1", "--weights", str(tmp_path / "w.safetensors")], data)
    assert 0.0 <= accuracy <= 1.0
    assert "loaded again and the same" in capsys.readouterr().out


def test_gpt_with_a_cache_is_the_same_gpt() -> None:
    """One letter at a time, at a position that is a variable: the logits of the whole text, same kernels."""
    gpt = module("gpt")
    letters = np.random.default_rng(0).integers(0, 7, 5)
    with knobs.override(DEVICE="PYTHON"):
        morok.manual_seed(0)
        model = gpt.GPT(7, width=8, heads=2, layers=1, longest=6)
        wanted = model(Tensor(letters[None])).numpy()[0]
        caches, at, kernels = model.caches(), Variable("at", 0, 4), []
        with morok.no_grad():
            for i, letter in enumerate(letters):
                logits = model.follow(Tensor([[int(letter)]]), caches, at.bind(i))
                plan = logits.prepare(*caches)
                kernels.append([kernel.ast for kernel in plan.kernels])
                plan.run()
                np.testing.assert_allclose(logits.numpy(), wanted[i], rtol=1e-4, atol=1e-6)
        assert all(k == kernels[1] for k in kernels[2:])
        assert len(gpt.generate(model, [1, 2], 3)) == 5


def test_new_letters_compile_nothing() -> None:
    """After two letters every kernel is known, and every plan: the position is a variable."""
    gpt = module("gpt")
    morok.manual_seed(0)
    model = gpt.GPT(11, width=16, heads=2, layers=2, longest=12)
    first = gpt.generate(model, [1, 2], 2)
    made = requests.compiled + requests.from_disk
    rewritten = statistics.rewrites
    longer = gpt.generate(model, [1, 2], 10)
    assert longer[:4] == first and len(longer) == 12
    assert requests.compiled + requests.from_disk == made, "a new letter was compiled"
    assert statistics.rewrites == rewritten, "a new letter was scheduled anew"


@pytest.mark.slow
def test_gpt_learns() -> None:
    first, last = module("gpt").main(["--steps", "40", "--batch", "4", "--longest", "32"])
    assert last < 0.75 * first


@pytest.mark.slow
def test_digits_are_learned() -> None:
    pytest.importorskip("sklearn")
    assert module("digits").main([]) >= 0.97
