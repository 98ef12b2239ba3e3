"""Gradients along a training of two small networks, against float64.

At every step each parameter's gradient may be at most three times as far from float64 as torch's in float32
was at its worst in 50 steps. The table of that is made by `benchmarks/gradients.py`, which also holds the
judge (`reference.py`, NumPy) against torch in float64.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from morok import Tensor, jit, knobs, nn
from tests.devices import devices
from tests.nn.reference import BLOCKS, HEADS, LAYERS, LENGTH, WIDTH, WORDS, distance, path

TORCH = json.loads((Path(__file__).parent / "torch_gradients.json").read_text())
WORST = 3.0  # times torch's distance


@pytest.fixture(autouse=True)
def compiled(interpreter: None) -> Any:
    with knobs.override(DEVICE=devices("CPU")[0], SPEC=0):  # large graphs, whose parts are checked elsewhere
        yield


class ConvNorm:
    def __init__(self, inputs: int, outputs: int, k: int, stride: int) -> None:
        self.conv = nn.Conv2d(inputs, outputs, k, stride, k // 2, bias=False)
        self.norm = nn.BatchNorm(outputs)

    def __call__(self, x: Tensor) -> Tensor:
        return self.norm(self.conv(x))


class Block:
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        self.first = ConvNorm(inputs, outputs, 3, stride)
        self.second = ConvNorm(outputs, outputs, 3, 1)
        self.around = ConvNorm(inputs, outputs, 1, stride) if stride != 1 or inputs != outputs else None

    def __call__(self, x: Tensor) -> Tensor:
        y = self.second(self.first(x).relu())
        return (y + (x if self.around is None else self.around(x))).relu()


class ResNet:
    def __init__(self) -> None:
        self.stem = ConvNorm(3, 8, 3, 1)
        before = 8
        for name, channels, stride in BLOCKS:
            setattr(self, name, Block(before, channels, stride))
            before = channels
        self.head = nn.Linear(before, 10)

    def __call__(self, x: Tensor) -> Tensor:
        x = self.stem(x).relu()
        for name, *_ in BLOCKS:
            x = getattr(self, name)(x)
        return self.head(x.mean((2, 3)))


class Layer:
    def __init__(self) -> None:
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def __call__(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        heads = self.qkv(self.norm1(x)).reshape(batch, length, 3 * HEADS, -1).transpose(1, 2)
        q, k, v = heads.chunk(3, 1)
        mixed = q.scaled_dot_product_attention(k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(self.up(self.norm2(x)).gelu())


class Gpt:
    def __init__(self) -> None:
        self.tokens = Tensor.zeros(WORDS, WIDTH).contiguous().requires_grad_()
        self.places = Tensor.zeros(LENGTH, WIDTH).contiguous().requires_grad_()
        self.layers = [Layer() for _ in range(LAYERS)]
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS)

    def __call__(self, tokens: Tensor) -> Tensor:
        x = self.tokens[tokens] + self.places
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def check(network: str, steps: int) -> None:
    model = ResNet() if network == "resnet" else Gpt()
    found = {name: t for name, t in nn.named_tensors(model).items() if t.is_leaf}
    assert found.keys() == TORCH[network].keys()

    def gradients(x: Tensor, y: Tensor) -> list[Tensor]:
        with nn.training():
            return list(model(x).cross_entropy(y).gradient(*found.values()))

    step = jit(gradients) if steps > 1 else gradients
    too_far = []
    for number, (weights, (x, y), exact) in enumerate(path(network, steps)):
        for name, tensor in found.items():
            tensor.assign(Tensor(weights[name].astype(np.float32)))
        images = x.astype(np.float32) if x.dtype.kind == "f" else x
        got = step(Tensor(images), Tensor(y))
        got[0].realize(*got[1:])
        for name, g in zip(found, got, strict=True):
            far = distance(g.numpy(), exact[name]) / TORCH[network][name]
            if not far <= WORST:
                too_far.append(f"step {number}, {name}: {far:.1f} times torch's distance")
    assert not too_far, "\n".join(too_far)


@pytest.mark.parametrize("network", ["resnet", "gpt"])
def test_gradients_of_the_first_step(network: str) -> None:
    check(network, 1)


@pytest.mark.slow
@pytest.mark.parametrize("network", ["resnet", "gpt"])
def test_gradients_of_fifty_steps(network: str) -> None:
    check(network, 50)
