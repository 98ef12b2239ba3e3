"""Two whole models, written once for all libraries: ResNet-18 and a GPT-2, in inference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Array = Any
Weights = dict[str, Any]


def _weights(make: Callable[[Callable[..., Any]], None], seed: int) -> Weights:
    """All weights of a model, made as the function asks for them."""
    random = np.random.default_rng(seed)
    found: Weights = {}

    def weight(name: str, *sizes: int, scale: float = 1.0, shift: float = 0.0) -> None:
        found[name] = (random.standard_normal(sizes, dtype=np.float32) * scale + shift).astype(np.float32)

    make(weight)
    return found


# --- ResNet-18


def _blocks(width: int) -> list[tuple[str, int, int, int]]:
    """Name, channels in and out, stride."""
    found = []
    before = width
    for stage in range(4):
        out = width << stage
        for number in range(2):
            found.append((f"{stage}.{number}", before, out, 2 if stage and not number else 1))
            before = out
    return found


def resnet_weights(width: int = 64, classes: int = 1000) -> Weights:
    def make(weight: Callable[..., Any]) -> None:
        def conv(name: str, inner: int, out: int, size: int) -> None:
            weight(f"{name}.w", out, inner, size, size, scale=(2.0 / (inner * size * size)) ** 0.5)
            weight(f"{name}.scale", 1, out, 1, 1, scale=0.1, shift=1.0)
            weight(f"{name}.shift", 1, out, 1, 1, scale=0.1)

        conv("stem", 3, width, 7)
        for name, inner, out, stride in _blocks(width):
            conv(f"{name}.1", inner, out, 3)
            conv(f"{name}.2", out, out, 3)
            if stride != 1 or inner != out:
                conv(f"{name}.d", inner, out, 1)
        weight("fc.w", width * 8, classes, scale=0.05)
        weight("fc.b", classes, scale=0.05)

    return _weights(make, 1)


def resnet18(lib: Any, x: Any, w: Weights) -> Any:
    """The forward pass; batch norm is a factor and a shift per channel."""
    width = w["stem.w"].shape[0]

    def conv(name: str, x: Any, stride: int, padding: int) -> Any:
        return lib.conv(x, w[f"{name}.w"], stride, padding) * w[f"{name}.scale"] + w[f"{name}.shift"]

    x = lib.max_pool(lib.relu(conv("stem", x, 2, 3)), 3, 2, 1)
    for name, _, _, stride in _blocks(width):
        y = lib.relu(conv(f"{name}.1", x, stride, 1))
        y = conv(f"{name}.2", y, 1, 1)
        short = conv(f"{name}.d", x, stride, 0) if f"{name}.d.w" in w else x
        x = lib.relu(y + short)
    return lib.mean(x, (2, 3)) @ w["fc.w"] + w["fc.b"]


def resnet_flops(batch: int, image: int, width: int = 64) -> float:
    """Multiplications and additions of the convolutions."""
    side = image // 2
    total = 3 * width * 49 * side**2
    side //= 2
    for _, inner, out, stride in _blocks(width):
        side //= stride
        total += (inner * out * 9 + out * out * 9) * side**2
        total += inner * out * side**2 if stride != 1 or inner != out else 0
    return 2.0 * batch * total


# --- GPT-2


def gpt_weights(
    layers: int = 12, width: int = 768, vocabulary: int = 50257, positions: int = 1024
) -> Weights:
    def make(weight: Callable[..., Any]) -> None:
        def linear(name: str, inner: int, out: int) -> None:
            weight(f"{name}.w", inner, out, scale=inner**-0.5)
            weight(f"{name}.b", out, scale=0.02)

        def norm(name: str) -> None:
            weight(f"{name}.w", width, scale=0.1, shift=1.0)
            weight(f"{name}.b", width, scale=0.1)

        weight("tokens", vocabulary, width, scale=0.1)
        weight("positions", positions, width, scale=0.1)
        for i in range(layers):
            norm(f"{i}.norm1")
            linear(f"{i}.qkv", width, 3 * width)
            linear(f"{i}.proj", width, width)
            norm(f"{i}.norm2")
            linear(f"{i}.up", width, 4 * width)
            linear(f"{i}.down", 4 * width, width)
        norm("norm")

    return _weights(make, 2)


def gpt(lib: Any, tokens: Any, mask: Any, w: Weights, heads: int = 12) -> Any:
    """The forward pass: scores of the next token, for every token."""
    batch, length = tokens.shape
    width = w["tokens"].shape[1]
    size = width // heads

    def linear(name: str, x: Any) -> Any:
        return x @ w[f"{name}.w"] + w[f"{name}.b"]

    def norm(name: str, x: Any) -> Any:
        return lib.norm(x, w[f"{name}.w"], w[f"{name}.b"])

    def split(x: Any, part: int) -> Any:
        return lib.swap(x[:, :, part], 1, 2)

    x = lib.rows(w["tokens"], tokens) + w["positions"][:length]
    i = 0
    while f"{i}.qkv.w" in w:
        qkv = linear(f"{i}.qkv", norm(f"{i}.norm1", x)).reshape(batch, length, 3, heads, size)
        q, k, v = (split(qkv, part) for part in range(3))
        scores = lib.where(mask, (q @ lib.swap(k, 2, 3)) * size**-0.5, -1e9)
        mixed = lib.swap(lib.softmax(scores) @ v, 1, 2).reshape(batch, length, width)
        x = x + linear(f"{i}.proj", mixed)
        x = x + linear(f"{i}.down", lib.gelu(linear(f"{i}.up", norm(f"{i}.norm2", x))))
        i += 1
    return norm("norm", x) @ lib.swap(w["tokens"], 0, 1)


def gpt_flops(layers: int, width: int, vocabulary: int, length: int) -> float:
    """Multiplications and additions of the matrix products."""
    layer = 12 * width * width * length + 2 * width * length * length
    return 2.0 * (layers * layer + width * vocabulary * length)
