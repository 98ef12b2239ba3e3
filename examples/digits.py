"""A small convolutional network that learns to read digits, in one page.

    pip install 'morok[demo]'
    python examples/digits.py

The data (1797 images of 8 × 8) come with scikit-learn. A fifth of them is held out; with the default settings
98 % of those are read right. `morok demo` does the same and shows what the compiler made of it.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import morok
from morok import Tensor, nn
from morok.nn.schedules import one_cycle
from morok.nn.state import load, load_state_dict, save, state_dict

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
    """Images (N, 1, 8, 8) between 0 and 1, and the digits that they show."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        sys.exit("the digits come with scikit-learn: pip install scikit-learn")
    found = load_digits()
    return (found.images / 16).astype(np.float32)[:, None], found.target.astype(np.int64)


def accuracy(model: Network, images: Array, labels: Array) -> float:
    return float((model(Tensor(images)).argmax(-1).numpy() == labels).mean())


def main(arguments: list[str] | None = None, data: tuple[Array, Array] | None = None) -> float:
    """Trains, saves, loads, predicts; returns the accuracy on images that were held out."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--weights", type=Path, help="a safetensors file to keep the weights in")
    options = parser.parse_args(arguments)
    morok.manual_seed(0)
    images, labels = data or digits()
    order = np.random.default_rng(0).permutation(len(images))
    test, rest = order[: len(order) // 5], order[len(order) // 5 :]

    model = Network()
    optimizer = nn.AdamW(nn.parameters(model), lr=6e-3)
    rate = nn.Schedule(optimizer, one_cycle(options.epochs * (len(rest) // BATCH)))
    step = nn.TrainStep(model, optimizer, lambda x, y: model(x).cross_entropy(y))
    began = time.perf_counter()
    for epoch in range(options.epochs):
        losses = []
        for chosen in nn.batches(len(rest), BATCH, seed=epoch):
            batch = rest[chosen]
            losses.append(step(Tensor(images[batch]), Tensor(labels[batch])).item())
            rate.step()
        spent = time.perf_counter() - began
        print(f"epoch {epoch + 1}  loss {np.mean(losses):.3f}  {spent:.1f} s", flush=True)
    found = accuracy(model, images[test], labels[test])
    print(f"right on {found:.1%} of the images that it has not seen")
    if options.weights:
        save(state_dict(model), options.weights)
        again = Network()
        load_state_dict(again, load(options.weights))
        assert accuracy(again, images[test], labels[test]) == found, "the weights came back changed"
        print(f"weights in {options.weights}, loaded again and the same")
    return found


if __name__ == "__main__":
    main()
