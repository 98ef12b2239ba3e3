"""A judge of training: two small networks in NumPy and float64, with gradients written out by hand.

`benchmarks/gradients.py` compares it with torch's float64 and records how far torch's float32 is from it.
Every operation returns its value and a function from the gradient of that value to those of its inputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
Weights = dict[str, Array]
Back = Callable[[Array], Any]
EPS = 1e-5
IMAGES, CLASSES = (8, 3, 12, 12), 10
BATCH, LENGTH, WIDTH, HEADS, WORDS, LAYERS = 4, 16, 32, 4, 40, 2
_erf = np.vectorize(math.erf, otypes=[np.float64])


# --- operations


def conv(x: Array, w: Array, stride: int) -> tuple[Array, Back]:
    """With an edge of k // 2 zeros."""
    k = w.shape[2]
    edge = ((0, 0), (0, 0), (k // 2,) * 2, (k // 2,) * 2)
    padded = np.pad(x, edge)
    windows = np.lib.stride_tricks.sliding_window_view(padded, (k, k), (2, 3))[:, :, ::stride, ::stride]

    def back(g: Array) -> tuple[Array, Array]:
        dx = np.zeros_like(padded)
        height, width = g.shape[2:]
        for i in range(k):
            for j in range(k):
                part = dx[:, :, i : i + height * stride : stride, j : j + width * stride : stride]
                part += np.einsum("nohw,oc->nchw", g, w[:, :, i, j])
        inside = slice(k // 2, k // 2 + x.shape[2]), slice(k // 2, k // 2 + x.shape[3])
        return dx[:, :, inside[0], inside[1]], np.einsum("nohw,nchwij->ocij", g, windows, optimize=True)

    return np.einsum("nchwij,ocij->nohw", windows, w, optimize=True), back


def norm(x: Array, w: Array, b: Array, axes: tuple[int, ...]) -> tuple[Array, Back]:
    """Mean 0 and variance 1 over axes; weights have the sizes of the others, or of the last one."""
    across = tuple(a for a in range(x.ndim) if w.shape[a] == 1)
    centred = x - x.mean(axes, keepdims=True)
    scale = 1 / np.sqrt((centred**2).mean(axes, keepdims=True) + EPS)
    y = centred * scale

    def back(g: Array) -> tuple[Array, Array, Array]:
        dy = g * w
        dx = dy - dy.mean(axes, keepdims=True) - y * (dy * y).mean(axes, keepdims=True)
        return dx * scale, (g * y).sum(across, keepdims=True), g.sum(across, keepdims=True)

    return y * w + b, back


def linear(x: Array, w: Array, b: Array) -> tuple[Array, Back]:
    def back(g: Array) -> tuple[Array, Array, Array]:
        rows, inputs = g.reshape(-1, g.shape[-1]), x.reshape(-1, x.shape[-1])
        return g @ w, rows.T @ inputs, rows.sum(0)

    return x @ w.T + b, back


def gelu(x: Array) -> tuple[Array, Back]:
    below = (1 + _erf(x / math.sqrt(2))) / 2
    slope = below + x * np.exp(-x * x / 2) / math.sqrt(2 * math.pi)
    return x * below, lambda g: g * slope


def softmax(x: Array) -> tuple[Array, Back]:
    e = np.exp(x - x.max(-1, keepdims=True))
    p = e / e.sum(-1, keepdims=True)
    return p, lambda g: p * (g - (g * p).sum(-1, keepdims=True))


def cross_entropy(x: Array, target: Array) -> tuple[float, Array]:
    """The loss and its gradient."""
    p, _ = softmax(x)
    rows = p.reshape(-1, p.shape[-1])
    at = np.arange(len(rows)), target.reshape(-1)
    loss = -np.log(rows[at]).mean()
    rows = rows.copy()
    rows[at] -= 1
    return float(loss), (rows / len(rows)).reshape(x.shape)


# --- networks: the loss and the gradient of every weight


def batch_norm(x: Array, weights: Weights, name: str) -> tuple[Array, Back]:
    w, b = (weights[f"{name}.{part}"].reshape(1, -1, 1, 1) for part in ("weight", "bias"))
    return norm(x, w, b, (0, 2, 3))


class Steps:
    """What was done, to be gone through backwards; gradients of weights by name."""

    def __init__(self, weights: Weights) -> None:
        self.weights = weights
        self.found: Weights = {}

    def add(self, name: str, value: Array) -> None:
        own = value.reshape(self.weights[name].shape)
        self.found[name] = self.found[name] + own if name in self.found else own

    def conv_norm(self, x: Array, name: str, stride: int) -> tuple[Array, Back]:
        y, conv_back = conv(x, self.weights[f"{name}.conv.weight"], stride)
        z, norm_back = batch_norm(y, self.weights, f"{name}.norm")

        def back(g: Array) -> Array:
            dy, dw, db = norm_back(g)
            self.add(f"{name}.norm.weight", dw)
            self.add(f"{name}.norm.bias", db)
            dx, dk = conv_back(dy)
            self.add(f"{name}.conv.weight", dk)
            return np.asarray(dx)

        return z, back

    def linear(self, x: Array, name: str) -> tuple[Array, Back]:
        y, own = linear(x, self.weights[f"{name}.weight"], self.weights[f"{name}.bias"])

        def back(g: Array) -> Array:
            dx, dw, db = own(g)
            self.add(f"{name}.weight", dw)
            self.add(f"{name}.bias", db)
            return np.asarray(dx)

        return y, back

    def layer_norm(self, x: Array, name: str) -> tuple[Array, Back]:
        w, b = (self.weights[f"{name}.{part}"].reshape(1, 1, -1) for part in ("weight", "bias"))
        y, own = norm(x, w, b, (2,))

        def back(g: Array) -> Array:
            dx, dw, db = own(g)
            self.add(f"{name}.weight", dw)
            self.add(f"{name}.bias", db)
            return np.asarray(dx)

        return y, back


def _relu(x: Array) -> tuple[Array, Back]:
    return np.maximum(x, 0), lambda g: g * (x > 0)


BLOCKS = (("one", 8, 1), ("two", 16, 2))  # name, channels, stride


def resnet(weights: Weights, x: Array, target: Array) -> tuple[float, Weights]:
    """A convolution, two blocks of two with a way around, an average, classes."""
    steps = Steps(weights)
    backs: list[Back] = []
    x, back = steps.conv_norm(x, "stem", 1)
    x, relu_back = _relu(x)
    backs += [back, relu_back]
    for name, _, stride in BLOCKS:
        x, back = _block(steps, x, name, stride)
        backs.append(back)
    pooled = x.mean((2, 3))
    y, last = steps.linear(pooled, "head")
    loss, g = cross_entropy(y, target)
    area = x.shape[2] * x.shape[3]
    g = np.broadcast_to((last(g) / area)[:, :, None, None], x.shape)
    for step in reversed(backs):
        g = step(g)
    return loss, steps.found


def _block(steps: Steps, x: Array, name: str, stride: int) -> tuple[Array, Back]:
    y, first = steps.conv_norm(x, f"{name}.first", stride)
    y, middle = _relu(y)
    y, second = steps.conv_norm(y, f"{name}.second", 1)
    around = f"{name}.around.conv.weight" in steps.weights
    short, short_back = steps.conv_norm(x, f"{name}.around", stride) if around else (x, lambda g: g)
    z, last = _relu(y + short)

    def back(g: Array) -> Array:
        g = last(g)
        return np.asarray(first(middle(second(g))) + short_back(g))

    return z, back


def gpt(weights: Weights, tokens: Array, target: Array) -> tuple[float, Weights]:
    """Layers of causal attention and two linear maps, each after a norm and with a way around."""
    steps = Steps(weights)
    x = weights["tokens"][tokens] + weights["places"]
    backs: list[Back] = []
    for i in range(LAYERS):
        for part in (_attention, _mixing):
            x, back = part(steps, x, f"layers.{i}")
            backs.append(back)
    x, norm_back = steps.layer_norm(x, "norm")
    y, head_back = steps.linear(x, "head")
    loss, g = cross_entropy(y, target)
    g = norm_back(head_back(g))
    for back in reversed(backs):
        g = back(g)
    table = np.zeros_like(weights["tokens"])
    np.add.at(table, tokens, g)
    steps.add("tokens", table)
    steps.add("places", g.sum(0))
    return loss, steps.found


def _attention(steps: Steps, x: Array, name: str) -> tuple[Array, Back]:
    y, norm_back = steps.layer_norm(x, f"{name}.norm1")
    qkv, in_back = steps.linear(y, f"{name}.qkv")
    size = WIDTH // HEADS
    q, k, v = np.moveaxis(qkv.reshape(*x.shape[:2], 3, HEADS, size), 2, 0).swapaxes(2, 3)
    scores = q @ k.swapaxes(-1, -2) / math.sqrt(size)
    scores = np.where(np.tril(np.ones(scores.shape[-2:], bool)), scores, -np.inf)
    p, soft_back = softmax(scores)
    z, out_back = steps.linear((p @ v).swapaxes(1, 2).reshape(x.shape), f"{name}.out")

    def back(g: Array) -> Array:
        dz = out_back(g).reshape(*x.shape[:2], HEADS, size).swapaxes(1, 2)
        ds = soft_back(dz @ v.swapaxes(-1, -2)) / math.sqrt(size)
        parts = np.stack([ds @ k, ds.swapaxes(-1, -2) @ q, p.swapaxes(-1, -2) @ dz])
        dqkv = np.moveaxis(parts.swapaxes(2, 3), 0, 2).reshape(*x.shape[:2], 3 * WIDTH)
        return np.asarray(g + norm_back(in_back(dqkv)))

    return x + z, back


def _mixing(steps: Steps, x: Array, name: str) -> tuple[Array, Back]:
    y, norm_back = steps.layer_norm(x, f"{name}.norm2")
    y, up_back = steps.linear(y, f"{name}.up")
    y, gelu_back = gelu(y)
    y, down_back = steps.linear(y, f"{name}.down")
    return x + y, lambda g: g + norm_back(up_back(gelu_back(down_back(g))))


# --- first weights, batches, and the path of training


def resnet_weights() -> Weights:
    rng = np.random.default_rng(0)
    shapes = {"stem": (8, 3, 3)}
    before = 8
    for name, channels, stride in BLOCKS:
        shapes[f"{name}.first"] = (channels, before, 3)
        shapes[f"{name}.second"] = (channels, channels, 3)
        if stride != 1 or before != channels:
            shapes[f"{name}.around"] = (channels, before, 1)
        before = channels
    found: Weights = {}
    for name, (outputs, inputs, k) in shapes.items():
        found[f"{name}.conv.weight"] = rng.standard_normal((outputs, inputs, k, k)) / math.sqrt(
            inputs * k * k
        )
        found[f"{name}.norm.weight"] = 1 + 0.1 * rng.standard_normal(outputs)
        found[f"{name}.norm.bias"] = 0.1 * rng.standard_normal(outputs)
    found["head.weight"] = rng.standard_normal((CLASSES, before)) / math.sqrt(before)
    found["head.bias"] = np.zeros(CLASSES)
    return found


def gpt_weights() -> Weights:
    rng = np.random.default_rng(1)
    found: Weights = {
        "tokens": rng.standard_normal((WORDS, WIDTH)) / 2,
        "places": rng.standard_normal((LENGTH, WIDTH)) / 2,
    }
    sizes = {"qkv": (3, 1), "out": (1, 1), "up": (4, 1), "down": (1, 4)}
    for i in range(LAYERS):
        for part in ("norm1", "norm2"):
            found[f"layers.{i}.{part}.weight"] = 1 + 0.1 * rng.standard_normal(WIDTH)
            found[f"layers.{i}.{part}.bias"] = 0.1 * rng.standard_normal(WIDTH)
        for part, (outputs, inputs) in sizes.items():
            shape = outputs * WIDTH, inputs * WIDTH
            found[f"layers.{i}.{part}.weight"] = rng.standard_normal(shape) / math.sqrt(shape[1])
            found[f"layers.{i}.{part}.bias"] = 0.1 * rng.standard_normal(shape[0])
    found["norm.weight"], found["norm.bias"] = np.ones(WIDTH), np.zeros(WIDTH)
    found["head.weight"] = rng.standard_normal((WORDS, WIDTH)) / math.sqrt(WIDTH)
    found["head.bias"] = np.zeros(WORDS)
    return found


def images(step: int) -> tuple[Array, Array]:
    """Positive, as pictures are: their averages are far from zero."""
    rng = np.random.default_rng((2, step))
    x = rng.random(IMAGES, dtype=np.float32).astype(np.float64)
    return x, rng.integers(0, CLASSES, IMAGES[0])


def texts(step: int) -> tuple[Array, Array]:
    rng = np.random.default_rng((3, step))
    words = rng.integers(0, WORDS, (BATCH, LENGTH + 1))
    return words[:, :-1], words[:, 1:]


NETWORKS: dict[str, Any] = {
    "resnet": (resnet, resnet_weights, images, 0.05),
    "gpt": (gpt, gpt_weights, texts, 0.1),
}


def path(network: str, count: int) -> Any:
    """(weights, batch, gradients) of each step; weights are numbers of float32, so all see the same ones."""
    loss, first, batch, rate = NETWORKS[network]
    weights = {name: _single(w) for name, w in first().items()}
    for step in range(count):
        inputs = batch(step)
        _, found = loss(weights, *inputs)
        yield weights, inputs, found
        weights = {name: _single(w - rate * found[name]) for name, w in weights.items()}


def _single(x: Array) -> Array:
    return x.astype(np.float32).astype(np.float64)


def distance(got: Array, exact: Array) -> float:
    """How long the difference is, relative to the gradient."""
    return float(np.linalg.norm(got.astype(np.float64) - exact) / np.linalg.norm(exact))
