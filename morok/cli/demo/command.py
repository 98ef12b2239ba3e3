"""`morok demo`: a network learns to read digits, and the compiler tells what it did."""

from __future__ import annotations

import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable
from pathlib import Path
from typing import Any

NAME = "demo"
HELP = "train a network, see what the compiler did"

Array = Any


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--epochs", type=int, default=8, metavar="N", help="times that all images are seen (default: 8)"
    )
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path("out"),
        metavar="FOLDER",
        help="for the weights, the picture and the page of a step (default: out)",
    )


def run(args: Namespace) -> int:
    from morok.cli.demo.network import digits

    show(digits(), args.epochs, args.folder)
    return 0


def show(data: tuple[Array, Array], epochs: int, folder: Path) -> float:
    """The whole demo on some images; returns the accuracy on those that were held out."""
    from morok import Tensor, nn
    from morok.cli.demo import laws, picture, report
    from morok.cli.demo.network import BATCH, Network, predict, split, train, training_step
    from morok.nn.state import load, load_state_dict, save, state_dict
    from morok.rewrite.engine import statistics
    from morok.runtime.profile import Profile, profile
    from morok.tensor.random import manual_seed
    from morok.viewer.view import view

    manual_seed(0)
    train_x, train_y, test_x, test_y = split(*data)
    model = Network()
    _title("A small convolutional network learns to read digits")
    _say(
        f"{len(train_x):,} images to learn from, {len(test_x)} held out; {nn.parameter_count(model):,} "
        f"parameters, on {Tensor([0.0]).device}"
    )
    step = training_step(model)
    bar = report.Bar(epochs * (len(train_x) // BATCH), sys.stdout)
    for done, loss in enumerate(train(step, train_x, train_y, epochs), 1):
        bar.show(done, loss)
    accuracy = float((predict(model, test_x) == test_y).mean())
    _say(f"right on {accuracy:.1%} of the images that it has not seen")

    _title("What the compiler made of a training step")
    kept = {name: tensor.numpy().copy() for name, tensor in state_dict(model).items()}
    x, y = Tensor(train_x[:BATCH]), Tensor(train_y[:BATCH])
    spent, taken = 1e9, Profile()
    for _ in range(10):
        began = time.perf_counter()
        step(x, y).item()
        spent = min(spent, time.perf_counter() - began)
        with profile() as run_by_run:
            step(x, y)
        taken = run_by_run if not taken.events or run_by_run.seconds < taken.seconds else taken
    (plan,) = step.plans
    count = report.operations(plan.kernels)
    _say(
        f"forward, backward and AdamW: {count} operations fused into {len(plan.kernels)} kernels, "
        f"one native call, {spent * 1e3:.1f} ms"
    )
    source = sys.modules[Network.__module__].__file__ or ""
    print(report.kernel_table(taken, plan.kernels, source))
    _say(f"the program is {report.short_path(source)}")
    _say(f"{statistics.rewrites:,} rewrites on {statistics.nodes:,} nodes in this process")
    for line in report.cache_lines():
        _say(line)

    _title("Weights to a file and back, and a picture")
    load_state_dict(model, {name: Tensor(value) for name, value in kept.items()})
    folder.mkdir(parents=True, exist_ok=True)
    weights, drawing = folder / "digits.safetensors", folder / "digits.svg"
    save(state_dict(model), weights)
    again = Network()
    load_state_dict(again, load(weights))
    guesses = predict(again, test_x)
    if float((guesses == test_y).mean()) != accuracy:
        raise AssertionError("the weights came back changed")
    picture.draw(drawing, test_x, test_y, guesses, taken, accuracy)
    _say(f"weights: {report.short_path(weights)}, loaded again: the same {accuracy:.1%}")
    _say(f"picture: {report.short_path(drawing)} (predictions, and the kernels in time)")
    page = folder / "digits.html"
    with view(page, title="a step of training: digits"):
        fresh = Network()
        training_step(fresh)(x, y).item()
        predict(fresh, test_x[:BATCH])
    _say(
        f"page: {report.short_path(page)} (a step from its lines through every rewrite to assembly; open it)"
    )

    for title, lines in (
        ("Rules are data: traced", laws.index()),
        ("and proved", laws.proofs()),
        ("A mistake is one sentence", laws.mistake()),
    ):
        _lines(title, lines)
    return accuracy


def _title(text: str) -> None:
    print(f"\n{text}\n{'─' * len(text)}", flush=True)


def _say(text: str) -> None:
    print(f"  {text}", flush=True)


def _lines(title: str, lines: Iterable[str]) -> None:
    _title(title)
    for line in lines:
        _say(line)
