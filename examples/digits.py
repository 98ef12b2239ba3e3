"""A small convolutional network that learns to read digits, and what the compiler made of it.

    pip install 'morok[demo]'
    python examples/digits.py

The data (1797 images of 8 × 8) come with scikit-learn. A fifth of them is held out.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import morok
from morok import Tensor, nn
from morok.nn.schedules import one_cycle
from morok.nn.state import load, load_state_dict, save, state_dict
from morok.rewrite.engine import statistics
from morok.runtime.profile import Profile, profile

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


def split(images: Array, labels: Array) -> tuple[Array, Array, Array, Array]:
    """Four fifths to learn from, a fifth to be asked about; always the same."""
    order = np.random.default_rng(0).permutation(len(images))
    cut = len(images) // 5
    return images[order[cut:]], labels[order[cut:]], images[order[:cut]], labels[order[:cut]]


def train(step: nn.TrainStep, images: Array, labels: Array, epochs: int) -> Iterator[float]:
    """Learns, and tells the loss after every step."""
    rate = nn.Schedule(step.optimizer, one_cycle(epochs * (len(images) // BATCH)))
    for epoch in range(epochs):
        for chosen in nn.batches(len(images), BATCH, seed=epoch):
            yield step(Tensor(images[chosen]), Tensor(labels[chosen])).item()
            rate.step()


def predict(model: Network, images: Array) -> Array:
    return model(Tensor(images)).argmax(-1).numpy()


def bar(done: int, total: int, loss: float, started: float) -> None:
    """One line that is written over and over."""
    filled = 30 * done // total
    spent = time.perf_counter() - started
    line = f"\r[{'#' * filled}{'.' * (30 - filled)}] {done}/{total}  loss {loss:.3f}  {spent:.1f} s"
    print(line, end="\n" if done == total else "", flush=True)


def picture(path: Path, images: Array, labels: Array, guesses: Array, taken: Profile) -> None:
    """Predictions (wrong ones in red) above the timeline of the kernels of one step, as an SVG file."""
    parts = []
    for i, (image, label, guess) in enumerate(zip(images[:24, 0], labels, guesses, strict=False)):
        left, top = 20 + i % 12 * 64, 20 + i // 12 * 84
        for (row, column), ink in np.ndenumerate(image):
            shade = int(255 * (1 - ink))
            place = f'x="{left + column * 7}" y="{top + row * 7}" width="7" height="7"'
            parts.append(f'<rect {place} fill="rgb({shade},{shade},{shade})"/>')
        color = "green" if label == guess else "red"
        parts.append(f'<text x="{left}" y="{top + 72}" fill="{color}" font-size="14">{guess}</text>')
    events = taken.events
    start = min((e.started for e in events), default=0.0)
    width = max((e.started + e.seconds - start for e in events), default=1.0)
    for i, e in enumerate(events):
        left, wide = 20 + 760 * (e.started - start) / width, max(760 * e.seconds / width, 0.5)
        hue = hash(e.name) % 360
        box = f'x="{left:.1f}" y="{200 + i * 11}" width="{wide:.1f}" height="10" fill="hsl({hue},60%,60%)"'
        parts.append(f"<rect {box}><title>{e.name} {e.place}: {e.seconds * 1e6:.0f} µs</title></rect>")
        at = min(left + wide + 4, 560)
        parts.append(f'<text x="{at:.1f}" y="{208 + i * 11}" font-size="9">{e.name} {e.place or ""}</text>')
    height = 220 + 11 * len(events)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="800" height="{height}" font-family="monospace">'
    path.write_text(head + "".join(parts) + "</svg>", encoding="utf-8")


def main(arguments: list[str] | None = None, data: tuple[Array, Array] | None = None) -> float:
    """Trains, reports, saves, loads, predicts; returns the accuracy on images that were held out."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument(
        "--folder", type=Path, default=Path(tempfile.gettempdir()), help="for weights and picture"
    )
    options = parser.parse_args(arguments)
    morok.manual_seed(0)
    train_x, train_y, test_x, test_y = split(*(data or digits()))
    model = Network()
    print(
        f"{len(train_x)} images to learn from, {len(test_x)} held out, {nn.parameter_count(model)} parameters"
    )
    optimizer = nn.AdamW(nn.parameters(model), lr=6e-3)
    step = nn.TrainStep(model, optimizer, lambda x, y: model(x).cross_entropy(y))
    started, total = time.perf_counter(), options.epochs * (len(train_x) // BATCH)
    for done, loss in enumerate(train(step, train_x, train_y, options.epochs), 1):
        bar(done, total, loss, started)
    accuracy = float((predict(model, test_x) == test_y).mean())
    print(f"right on {accuracy:.1%} of the images that it has not seen\n")

    with profile() as taken:
        step(Tensor(train_x[:BATCH]), Tensor(train_y[:BATCH]))
    print(f"one step of training:\n{taken.table()}")
    print(f"{statistics.rewrites:,} rewrites of {statistics.nodes:,} nodes in all\n")

    accuracy = float((predict(model, test_x) == test_y).mean())
    weights, drawing = options.folder / "digits.safetensors", options.folder / "digits.svg"
    save(state_dict(model), weights)
    again = Network()
    load_state_dict(again, load(weights))
    guesses = predict(again, test_x)
    assert float((guesses == test_y).mean()) == accuracy, "the weights came back changed"
    picture(drawing, test_x, test_y, guesses, taken)
    print(f"weights in {weights}, loaded again and the same; picture in {drawing}")
    return accuracy


if __name__ == "__main__":
    main()
