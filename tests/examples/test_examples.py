"""The examples run, and do what they say."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

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
    found = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def test_mlp_learns_the_spirals() -> None:
    losses = [float(loss) for loss in re.findall(r"loss ([0-9.]+)", run("mlp.py"))]
    assert losses[-1] < 0.2 * losses[0]


def test_notes_say_where_the_model_is_from() -> None:
    assert "pip download --no-deps basic-pitch" in run("notes.py")


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


def llama_by_numpy(model: Any, tokens: list[int]) -> np.ndarray:  # type: ignore[type-arg]
    """The logits after each token, computed from the weights without morok."""
    s = model.shape

    def norm(x: Any, layer: Any) -> Any:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + layer.eps) * layer.weight.numpy()

    def silu(x: Any) -> Any:
        return x / (1.0 + np.exp(-x))

    def turned(x: Any) -> Any:
        half = s.head // 2
        angles = np.arange(len(x))[:, None, None] * s.base ** (-np.arange(half) * 2 / s.head)
        a, b = x[..., :half], x[..., half:]
        cosines, sines = np.cos(angles), np.sin(angles)
        return np.concatenate((a * cosines - b * sines, b * cosines + a * sines), -1)

    x, count = model.table.weight.numpy()[tokens].astype(np.float64), len(tokens)
    for layer in model.layers:
        h = norm(x, layer.norm1)
        q, k, v = (h @ part.weight.numpy().T for part in (layer.q, layer.k, layer.v))
        q = turned(q.reshape(count, s.heads, s.head))
        k = turned(k.reshape(count, s.groups, s.head)).repeat(s.heads // s.groups, 1)
        v = v.reshape(count, s.groups, s.head).repeat(s.heads // s.groups, 1)
        scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(s.head)
        scores = np.where(np.tril(np.ones((count, count), bool)), scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        seen = np.einsum("hqk,khd->qhd", weights / weights.sum(-1, keepdims=True), v)
        x = x + seen.reshape(count, s.width) @ layer.out.weight.numpy().T
        h = norm(x, layer.norm2)
        gated = silu(h @ layer.gate.weight.numpy().T) * (h @ layer.up.weight.numpy().T)
        x = x + gated @ layer.down.weight.numpy().T
    return np.asarray(norm(x, model.norm) @ model.head.weight.numpy().T)


def test_llama_writes_with_one_plan_for_all_lengths_and_positions() -> None:
    llama = module("llama")
    morok.manual_seed(0)
    shape = llama.Shape(vocabulary=17, layers=2, width=16, heads=4, groups=2, hidden=24, longest=12)
    model = llama.Llama(shape)
    tokens = [int(t) for t in np.random.default_rng(0).integers(0, 17, 12)]
    wanted = llama_by_numpy(model, tokens)
    writer = llama.Writer(model)
    with morok.no_grad():
        for count in (5, 1, 9):
            length = writer.length.bind(count)
            logits = writer.prefill(Tensor(tokens)[:length], writer.caches, length)
            np.testing.assert_allclose(logits.numpy(), wanted[count - 1], rtol=1e-3, atol=1e-5)
            for at in range(count, 12):
                logits = writer.decode(Tensor([tokens[at]]), writer.caches, writer.at.bind(at))
                np.testing.assert_allclose(logits.numpy(), wanted[at], rtol=1e-3, atol=1e-5)
        assert len(writer.write([1, 2, 3], 4)) == 7
    assert writer.prefill.traces == writer.decode.traces == 1


@pytest.mark.slow
def test_gpt_learns() -> None:
    first, last = module("gpt").main(["--steps", "40", "--batch", "4", "--longest", "32"])
    assert last < 0.75 * first


@pytest.mark.slow
def test_digits_are_learned() -> None:
    pytest.importorskip("sklearn")
    assert module("digits").main([]) >= 0.97
