"""Losses of sequences without alignment: beside all ways written out, slopes by differences, in jit."""

import itertools
import math
from typing import Any

import numpy as np
import pytest

import morok
from morok import Tensor, jit
from morok.nn import functional

Array = Any


def likelihood(p: Array, label: list[int]) -> float:
    """The sum over every way to write a label with blanks (0) and repetitions."""
    total = 0.0
    for way in itertools.product(range(p.shape[1]), repeat=len(p)):
        kept = [c for c, before in zip(way, (None, *way), strict=False) if c != before]
        if [c for c in kept if c] == label:
            total += math.prod(p[t, c] for t, c in enumerate(way))
    return total


def normalised(*shape: int) -> Array:
    x = np.random.default_rng(1).standard_normal(shape)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


CASES = {
    "different": ([5, 5], [[1, 2], [2, 1]], [2, 2]),
    "the same twice": ([5, 3], [[1, 1], [2, 2]], [2, 2]),
    "shorter": ([4, 2], [[1, 2], [2, 0]], [2, 1]),
    "nothing": ([3, 5], [[0, 0], [1, 0]], [0, 1]),
}


@pytest.mark.parametrize("name", list(CASES))
def test_all_ways_together(name: str) -> None:
    lengths, labels, sizes = CASES[name]
    x = normalised(5, 2, 3)
    wanted = [
        -math.log(likelihood(np.exp(x[:n, i]), row[:m]))
        for i, (n, row, m) in enumerate(zip(lengths, labels, sizes, strict=True))
    ]
    found = functional.ctc_loss(Tensor(x), Tensor(labels), lengths, sizes, reduction="none")
    np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-9)


def test_slopes_by_differences() -> None:
    x = normalised(4, 2, 3)
    labels, lengths, sizes = Tensor([[1, 2], [2, 2]]), [4, 3], [2, 2]

    def loss(array: Array) -> Tensor:
        return functional.ctc_loss(Tensor(array, requires_grad=True), labels, lengths, sizes)

    given = Tensor(x, requires_grad=True)
    slope = functional.ctc_loss(given, labels, lengths, sizes).gradient(given)[0].numpy()
    for place in itertools.product(*map(range, x.shape)):
        step = np.zeros_like(x)
        step[place] = 1e-5
        difference = (loss(x + step).item() - loss(x - step).item()) / 2e-5
        np.testing.assert_allclose(slope[place], difference, rtol=1e-6, atol=1e-8)


def test_what_cannot_be_written() -> None:
    x = Tensor(normalised(2, 1, 3), requires_grad=True)
    lost = functional.ctc_loss(x, Tensor([[1, 1]]), [2], [2], reduction="none")
    assert lost.tolist() == [math.inf]
    kept = functional.ctc_loss(x, Tensor([[1, 1]]), [2], [2], reduction="sum", zero_infinity=True)
    assert kept.item() == 0.0
    assert not kept.gradient(x)[0].numpy().any()


def test_inside_of_jit_and_long() -> None:
    x = normalised(40, 2, 5)
    labels = Tensor([[1, 2, 3], [4, 4, 1]])
    plain = functional.ctc_loss(Tensor(x), labels, [40, 30], [3, 3]).item()
    compiled = jit(lambda t: functional.ctc_loss(t, labels, [40, 30], [3, 3]))
    for _ in range(2):
        assert compiled(Tensor(x)).item() == pytest.approx(plain, rel=1e-9)


def test_no_second_derivative() -> None:
    x = Tensor(normalised(4, 1, 3), requires_grad=True)
    slope = functional.ctc_loss(x, Tensor([[1, 2]]), [4], [2]).gradient(x)[0]
    with pytest.raises(morok.MorokError, match="no second derivative"):
        slope.sum().gradient(x)
