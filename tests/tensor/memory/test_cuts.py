"""Long graphs in pieces: a loop that nobody looks into until its end. The judge is NumPy."""

from typing import Any

import numpy as np
import pytest

from morok import Tensor, no_grad
from morok.schedule import schedule as scheduling
from morok.tensor.memory import cuts
from tests.tensor.memory.test_again import X, draw, rng

W = [rng.standard_normal((8, 8)).astype(np.float32) for _ in range(12)]
WIDE = [rng.standard_normal((32, 32)).astype(np.float32) for _ in range(12)]
TABLE = rng.standard_normal((7, 32)).astype(np.float32)


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """How many kernels each graph took that was scheduled, and not found."""
    found: list[Any] = []
    build = scheduling._stored_or_built

    def noted(sink: Any) -> Any:
        made = build(sink)
        found.append(len(made.steps))
        return made

    monkeypatch.setattr(scheduling, "_stored_or_built", noted)
    scheduling.clear_cache()
    return found


def generate(lib: Any, table: Any, weights: list[Any], turns: int, ask: bool) -> Any:
    """A text: each token is the likeliest one behind a mean of all tokens before."""
    ids = lib.array([[1, 2]]) if lib is np else Tensor(np.array([[1, 2]]), device="CPU")
    for _ in range(turns):
        x = table[ids]
        for w in weights:
            x = x + (np.tanh(x @ w) if lib is np else (x @ w).tanh())
            x = x - (x.mean(-1, keepdims=True) if lib is np else x.mean(-1, keepdim=True))
        scores = x.mean(1) @ table.T
        new = scores.argmax(-1).reshape(1, 1)
        ids = np.concatenate([ids, new], 1) if lib is np else Tensor.cat(ids, new.cast(ids.dtype), dim=1)
        if ask:
            ids.realize()
    return ids


def test_a_text_that_nobody_looks_at_until_its_end(built: list[Any]) -> None:
    table, weights = Tensor(TABLE, device="CPU").realize(), [Tensor(w, device="CPU").realize() for w in WIDE]
    wanted = generate(np, TABLE.astype(np.float64), [w.astype(np.float64) for w in WIDE], 14, False)
    np.testing.assert_array_equal(generate(Tensor, table, weights, 14, False).numpy(), wanted)
    assert max(built) < 100 and len(built) < 10
    np.testing.assert_array_equal(generate(Tensor, table, weights, 14, True).numpy(), wanted)


def test_layers_stay_in_one_plan(built: list[Any]) -> None:
    x, weights = Tensor(X[0], device="CPU").realize(), [Tensor(w, device="CPU").realize() for w in W]
    y, wanted = x, X[0].astype(np.float64)
    for n in range(300):
        y = (y @ weights[n % 12] * 0.5).tanh()
        wanted = np.tanh(wanted @ W[n % 12] * 0.5)
    np.testing.assert_allclose(y.numpy(), wanted, rtol=0.05, atol=0.05)
    assert len(built) == 1


@pytest.mark.parametrize("seed", range(10))
def test_drawn_programs_in_small_pieces(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("_LONG", 8), ("_PIECE", 2), ("_SMALL", 0.1)):
        monkeypatch.setattr(cuts, name, value)
    data = [rng.standard_normal((2, 6)).astype(np.float32) for _ in range(3)]
    seen, values = draw(seed, [d.astype(np.float64) for d in data])
    for _ in range(2):
        with no_grad():
            found, mine = draw(seed, [Tensor(d) for d in data])
        np.testing.assert_allclose(found, seen, rtol=1e-3, atol=1e-3)
        for a, b in zip(mine, values, strict=True):
            np.testing.assert_allclose(a.numpy(), b, rtol=1e-3, atol=1e-3)
