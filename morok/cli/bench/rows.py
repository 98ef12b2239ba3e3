"""The table of the CPU benchmark: what is computed, what it costs at least, and what is asked of morok."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from morok.cli.bench.models import (
    gpt,
    gpt_flops,
    gpt_weights,
    resnet18,
    resnet_flops,
    resnet_weights,
)

Array = Any


@final
@dataclass(frozen=True)
class Work:
    """One row. The function's first argument is the library, the others are its tensors."""

    name: str
    inputs: tuple[Any, ...]
    function: Callable[..., Any]
    flops: float = 0.0
    bytes: float = 0.0
    target: tuple[float, str] | None = None  # the ratio that is asked for, and to whom ("" the best peer)
    of_copy: float = 0.0  # the share of the machine's copy speed that is asked for
    most_seconds: float = 0.0  # the longest that it may take
    is_model: bool = False


@final
@dataclass(frozen=True)
class Row:
    """A row that is made when it is its turn: its data may be large."""

    name: str
    make: Callable[[], Work]


_random = np.random.default_rng(0)


def data(*sizes: int) -> Array:
    return _random.standard_normal(sizes, dtype=np.float32)


def rows(quick: bool) -> list[Row]:
    """All rows. `quick` keeps the shapes' character and makes them small."""
    found = [*_products(quick), *_convolutions(quick), *_chains(quick), *_reductions(quick)]
    found += [*_norms(quick), *_layers(quick), *_moves(quick), *_small(), *_models(quick)]
    return found


def _products(quick: bool) -> list[Row]:
    def make(n: int) -> Row:
        name = f"matmul {n}"
        return Row(
            name,
            lambda: Work(
                name,
                (data(n, n), data(n, n)),
                lambda _, a, b: a @ b,
                2.0 * n**3,
                12.0 * n * n,
                (0.9, "torch"),
            ),
        )

    return [make(n) for n in ((128, 255, 256) if quick else (256, 512, 1000, 1023, 1024, 2048))]


def _convolutions(quick: bool) -> list[Row]:
    def make(title: str, inner: int, out: int, image: int, size: int, stride: int, groups: int) -> Row:
        name = f"conv {title}, 8×{inner}×{image}²→{out}"
        padding = size // 2

        def work() -> Work:
            side = (image + 2 * padding - size) // stride + 1
            x, w = data(8, inner, image, image), data(out, inner // groups, size, size)
            flops = 2.0 * 8 * out * (inner // groups) * (size * side) ** 2
            moved = 4.0 * (x.size + w.size + 8 * out * side * side)

            def function(lib: Any, a: Any, b: Any) -> Any:
                return lib.conv(a, b, stride, padding, groups)

            return Work(name, (x, w), function, flops, moved, (0.75, "torch"))

        return Row(name, work)

    c, i, big = (16, 14, 56) if quick else (64, 56, 224)
    return [
        make("3×3", c, c, i, 3, 1, 1),
        make("1×1", c, c, i, 1, 1, 1),
        make("7×7 stride 2", 3, c, big, 7, 2, 1),
        make("depthwise 3×3", c, c, i, 3, 1, c),
    ]


def _chains(quick: bool) -> list[Row]:
    n = 1 << 20 if quick else 16 << 20

    def make(name: str, function: Callable[..., Any], flops: float, inputs: int = 3) -> Row:
        full = f"{name} {n}"
        return Row(
            full,
            lambda: Work(
                full, tuple(data(n) for _ in range(inputs)), function, flops * n, 4.0 * n * (inputs + 1),
                (2.0, "torch.compile"), of_copy=0.7,
            ),
        )  # fmt: skip

    return [
        make("gelu(x*y+z)", lambda lib, x, y, z: lib.gelu(x * y + z), 12.0),
        make("x*y+z", lambda _, x, y, z: x * y + z, 2.0),
        make("sigmoid(x)*y", lambda lib, x, y: lib.sigmoid(x) * y, 8.0, 2),
        make("exp(-x*x)+tanh(y)", lambda lib, x, y: lib.exp(-x * x) + lib.tanh(y), 16.0, 2),
    ]


def _reductions(quick: bool) -> list[Row]:
    n, side = (1 << 20, 1024) if quick else (16 << 20, 4096)

    def make(name: str, function: Callable[..., Any], *sizes: int) -> Row:
        count = float(np.prod(sizes))
        return Row(name, lambda: Work(name, (data(*sizes),), function, count, 4.0 * count, (0.9, "")))

    return [
        make(f"sum {n}", lambda lib, x: lib.sum(x), n),
        make(f"sum over axis 0, {side}²", lambda lib, x: lib.sum(x, 0), side, side),
        make(f"sum over axis 1, {side}²", lambda lib, x: lib.sum(x, 1), side, side),
        make(f"max {n}", lambda lib, x: lib.max(x), n),
        make(f"argmax {n}", lambda lib, x: lib.argmax(x), n),
    ]


def _norms(quick: bool) -> list[Row]:
    r, c = (1024, 256) if quick else (4096, 1024)

    def make(title: str, function: Callable[..., Any], flops: float, rows: int, columns: int) -> Row:
        name = f"{title} {rows}×{columns}"
        count = rows * columns
        return Row(
            name,
            lambda: Work(name, (data(rows, columns),), function, flops * count, 8.0 * count, (1.0, "torch")),
        )

    found = []
    for rows_, columns in ((r, c), (r // 4, c - 1)):
        found += [
            make("softmax", lambda lib, x: lib.softmax(x), 5.0, rows_, columns),
            make("layer norm", lambda lib, x: lib.layer_norm(x), 6.0, rows_, columns),
            make("RMS norm", lambda lib, x: lib.rms_norm(x), 4.0, rows_, columns),
        ]
    return found


def _attention(lib: Any, q: Any, k: Any, v: Any) -> Any:
    return lib.softmax((q @ lib.swap(k, 1, 2)) * 0.125) @ v


def _mlp(lib: Any, x: Any, w1: Any, b1: Any, w2: Any, b2: Any) -> Any:
    return lib.relu(x @ w1 + b1) @ w2 + b2


def _layers(quick: bool) -> list[Row]:
    n = 128 if quick else 512
    name = f"attention 8×{n}×64"
    mlp = "MLP 64×784→512→10"
    return [
        Row(
            name,
            lambda: Work(
                name, tuple(data(8, n, 64) for _ in range(3)), _attention, 4.0 * 8 * n * n * 64,
                4.0 * 4 * 8 * n * 64, (1.0, "torch"),
            ),
        ),
        Row(
            mlp,
            lambda: Work(
                mlp, (data(64, 784), data(784, 512), data(512), data(512, 10), data(10)), _mlp,
                2.0 * 64 * (784 * 512 + 5120), 4.0 * (64 * 784 + 784 * 512 + 5120), (0.9, "torch"),
            ),
        ),
    ]  # fmt: skip


def _moves(quick: bool) -> list[Row]:
    side, table, width, count = (1024, 4096, 64, 1024) if quick else (4096, 32768, 256, 16384)

    def gather() -> Work:
        places = _random.integers(0, table, count).astype(np.int32)
        return Work(
            f"gather of {count} rows", (data(table, width), places), lambda lib, x, i: lib.rows(x, i), 0.0,
            8.0 * count * width, (0.9, ""),
        )  # fmt: skip

    def cumsum() -> Work:
        x = data(side, side // 4)
        name = f"cumsum {side}×{side // 4}"
        return Work(name, (x,), lambda lib, x: lib.cumsum(x), float(x.size), 8.0 * x.size, (0.9, ""))

    def transpose() -> Work:
        x = data(side, side)
        moved = 8.0 * side * side
        return Work(
            f"transpose {side}²", (x,), lambda lib, x: lib.copy(lib.swap(x, 0, 1)), 0.0, moved, (0.9, "")
        )

    return [
        Row(f"transpose {side}²", transpose),
        Row(f"gather of {count} rows", gather),
        Row(f"cumsum {side}×{side // 4}", cumsum),
    ]


def _small() -> list[Row]:
    def make(name: str, function: Callable[..., Any], *shapes: tuple[int, ...], most: float = 0.0) -> Row:
        return Row(name, lambda: Work(name, tuple(data(*s) for s in shapes), function, most_seconds=most))

    return [
        make("add of 16 numbers", lambda _, x, y: x + y, (16,), (16,), most=5e-6),
        make("softmax 3×5×7", lambda lib, x: lib.softmax(x), (3, 5, 7)),
        make("sum over axis 1, 3×5×7", lambda lib, x: lib.sum(x, 1), (3, 5, 7)),
        make("matmul 3×5×7", lambda _, x, y: x @ y, (3, 5), (5, 7)),
    ]


def _models(quick: bool) -> list[Row]:
    image, width, layers, length, vocabulary = (64, 16, 2, 16, 1000) if quick else (224, 64, 12, 64, 50257)

    def resnet(batch: int) -> Row:
        name = f"ResNet-18 batch {batch}"
        return Row(
            name,
            lambda: Work(
                name, (data(batch, 3, image, image), resnet_weights(width)), resnet18,
                resnet_flops(batch, image, width), target=(0.8, "torch"), is_model=True,
            ),
        )  # fmt: skip

    name = f"GPT {layers} layers, {length} tokens"

    def gpt_row() -> Work:
        size = 768 if not quick else 192
        weights = gpt_weights(layers, size, vocabulary)
        tokens = _random.integers(0, vocabulary, (1, length)).astype(np.int32)
        mask = np.tril(np.ones((length, length), bool))
        return Work(
            name, (tokens, mask, weights), gpt,
            gpt_flops(layers, size, vocabulary, length), target=(0.8, "torch"), is_model=True,
        )  # fmt: skip

    return [resnet(1), resnet(8), Row(name, gpt_row)]
