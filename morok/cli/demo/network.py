"""The program of the demo: a small convolutional network, its data, and a compiled step of training."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from morok import Tensor, nn
from morok.errors import MorokError
from morok.nn.schedules import one_cycle

Array = Any
BATCH = 64


class Network:
    """Two convolutions, a pool, and a linear layer. Its weights are found by looking inside."""

    def __init__(self, width: int = 16) -> None:
        self.first = nn.Conv2d(1, width, 3, padding=1)
        self.second = nn.Conv2d(width, 2 * width, 3, padding=1)
        self.drop = nn.Dropout(0.2)
        self.last = nn.Linear(2 * width * 4 * 4, 10)

    def __call__(self, x: Tensor) -> Tensor:
        x = self.first(x).relu()
        x = self.second(x).relu().max_pool2d(2)
        return self.last(self.drop(x.flatten(1)))


def digits() -> tuple[Array, Array]:
    """Images (N, 1, 8, 8) between 0 and 1, and the digits that they show; they come with scikit-learn."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise MorokError("the digits come with scikit-learn: pip install 'morok[demo]'") from None
    found = load_digits()
    return (found.images / 16).astype(np.float32)[:, None], found.target.astype(np.int64)


def split(images: Array, labels: Array) -> tuple[Array, Array, Array, Array]:
    """Four fifths to learn from, a fifth to be asked about; always the same."""
    order = np.random.default_rng(0).permutation(len(images))
    cut = len(images) // 5
    return images[order[cut:]], labels[order[cut:]], images[order[:cut]], labels[order[:cut]]


def training_step(model: Network) -> nn.TrainStep:
    """Forward, backward and update as one plan."""
    optimizer = nn.AdamW(nn.parameters(model), lr=6e-3)
    return nn.TrainStep(model, optimizer, lambda x, y: model(x).cross_entropy(y))


def train(step: nn.TrainStep, images: Array, labels: Array, epochs: int) -> Iterator[float]:
    """Learns, and tells the loss after every step."""
    rate = nn.Schedule(step.optimizer, one_cycle(epochs * (len(images) // BATCH)))
    for epoch in range(epochs):
        for chosen in nn.batches(len(images), BATCH, seed=epoch):
            yield step(Tensor(images[chosen]), Tensor(labels[chosen])).item()
            rate.step()


def predict(model: Network, images: Array) -> Array:
    """The most likely digit of each image."""
    return model(Tensor(images)).argmax(-1).numpy()
