"""Pictures with their padding in memory, for gradients of weights. Values against NumPy, on a processor."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from morok import Tensor, grad, knobs
from morok.ir.node import UOp
from morok.schedule.graph import padded_operands
from morok.schedule.indexing import known_shape

Array = Any
Sizes = tuple[int, ...]


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Sizes]]:
    """The sizes of pictures that are kept with their padding."""
    found: list[Sizes] = []
    keep = padded_operands._kept

    def note(old: UOp, new: UOp, view: UOp) -> UOp:
        if old is view:
            found.append(tuple(n for n in known_shape(view) if isinstance(n, int)))
        return keep(old, new, view)

    monkeypatch.setattr(padded_operands, "_kept", note)
    with knobs.override(DEVICE="CPU"):
        yield found


def random(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


def gradient_of_weights(x: Array, g: Array, window: int, stride: int, padding: int, dilation: int) -> Array:
    """By its definition, offset by offset."""
    x = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    found = np.zeros((g.shape[1], x.shape[1], window, window))
    for i, j in np.ndindex(window, window):
        part = x[:, :, i * dilation :: stride, j * dilation :: stride]
        part = part[:, :, : g.shape[2], : g.shape[3]]
        found[:, :, i, j] = np.einsum("boyx,bcyx->oc", g, part)
    return found


@pytest.mark.parametrize(
    ("shape", "out", "window", "stride", "padding", "dilation", "sizes"),
    [
        ((1, 16, 14, 14), 32, 3, 1, 1, 1, [(1, 16, 16, 16)]),
        ((2, 8, 11, 9), 24, 5, 2, 2, 1, [(2, 8, 15, 13)]),
        ((1, 3, 24, 24), 16, 7, 2, 3, 1, [(1, 3, 30, 30)]),
        ((1, 16, 12, 12), 16, 3, 1, 2, 2, [(1, 16, 16, 16)]),
        ((1, 16, 14, 14), 32, 3, 1, 0, 1, []),  # nothing is padded
        ((1, 16, 14, 14), 32, 1, 1, 0, 1, []),
        ((1, 1, 4, 4), 2, 3, 1, 1, 1, []),  # a kernel more takes longer than so few conditions
    ],
    ids=str,
)
def test_gradients_of_weights(
    kept: list[Sizes],
    shape: Sizes,
    out: int,
    window: int,
    stride: int,
    padding: int,
    dilation: int,
    sizes: list[Sizes],
) -> None:
    x, w = random(*shape), random(out, shape[1], window, window)
    size = [(n + 2 * padding - dilation * (window - 1) - 1) // stride + 1 for n in shape[2:]]
    g = random(shape[0], out, *size)

    def loss(weights: Tensor) -> Tensor:
        y = Tensor(x).conv2d(weights, stride=stride, padding=padding, dilation=dilation)
        return (y * Tensor(g)).sum()

    found = grad(loss)(Tensor(w)).numpy()
    want = gradient_of_weights(x, g.astype(np.float64), window, stride, padding, dilation)
    assert np.abs(found - want).max() <= 1e-5 * np.abs(want).max()
    assert kept == sizes


def test_a_convolution_itself_asks_for_its_padding(kept: list[Sizes]) -> None:
    """Outputs lie beside each other there, and a condition is one for a whole vector of them."""
    x, w = random(1, 16, 14, 14), random(32, 16, 3, 3)
    Tensor(x).conv2d(Tensor(w), padding=1).numpy()
    assert kept == []


@pytest.mark.parametrize("stride", [1, 2])
def test_products_whose_sizes_say_no_are_not_lowered(
    monkeypatch: pytest.MonkeyPatch, kept: list[Sizes], stride: int
) -> None:
    """Each convolution of a network was lowered once more, to find that its outputs are no offsets."""
    asked: list[UOp] = []
    reads = padded_operands.reads_of_operands

    def note(node: UOp, bases: list[UOp]) -> Any:
        asked.append(node)
        return reads(node, bases)

    monkeypatch.setattr(padded_operands, "reads_of_operands", note)
    x, w = Tensor.empty(2, 16, 20, 24), Tensor.empty(32, 16, 3, 3)
    x.conv2d(w, padding=1, stride=stride).prepare()
    assert not asked and not kept
    grad(lambda v: x.conv2d(v, padding=1, stride=stride).sum())(w).prepare()
    assert asked
