"""The models of the scheduling benchmarks, in the spelling that morok's and tinygrad's tensors share."""

from __future__ import annotations

from typing import Any


class Gpt:
    """A GPT-2: 12 layers of width 768 unless told otherwise. Weights are memory without values."""

    def __init__(
        self, tensor: Any, layers: int = 12, width: int = 768, heads: int = 12, vocabulary: int = 50257
    ) -> None:
        self.tensor = tensor
        self.layers, self.width, self.heads, self.vocabulary = layers, width, heads, vocabulary
        self.weights: dict[str, Any] = {}

    def weight(self, name: str, *sizes: int) -> Any:
        if name not in self.weights:
            self.weights[name] = self.tensor.empty(*sizes)
        return self.weights[name]

    def linear(self, name: str, x: Any, n: int) -> Any:
        return x @ self.weight(f"{name}.w", x.shape[-1], n) + self.weight(f"{name}.b", n)

    def norm(self, name: str, x: Any) -> Any:
        centred = x - x.mean(-1, keepdim=True)
        scaled = centred * ((centred * centred).mean(-1, keepdim=True) + 1e-5).rsqrt()
        return scaled * self.weight(f"{name}.w", self.width) + self.weight(f"{name}.b", self.width)

    def attention(self, name: str, x: Any) -> Any:
        batch, length, width = x.shape
        size = width // self.heads
        qkv = self.linear(f"{name}.qkv", x, 3 * width).reshape(batch, length, 3, self.heads, size)
        q, k, v = (qkv[:, :, i].transpose(1, 2) for i in range(3))
        mask = self.tensor.ones(length, length).tril()
        scores = (mask == 0).where(float("-inf"), q @ k.transpose(2, 3) * size**-0.5)
        mixed = (scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, length, width)
        return self.linear(f"{name}.proj", mixed, width)

    def block(self, name: str, x: Any) -> Any:
        x = x + self.attention(f"{name}.attention", self.norm(f"{name}.norm1", x))
        hidden = self.linear(f"{name}.up", self.norm(f"{name}.norm2", x), 4 * self.width).gelu()
        return x + self.linear(f"{name}.down", hidden, self.width)

    def blocks(self, x: Any) -> Any:
        for i in range(self.layers):
            x = self.block(f"layer{i}", x)
        return x

    def __call__(self, tokens: Any) -> Any:
        length = tokens.shape[-1]
        x = self.weight("tokens", self.vocabulary, self.width)[tokens]
        x = x + self.weight("positions", 1024, self.width)[:length]
        x = self.norm("norm", self.blocks(x))
        return x @ self.weight("tokens", self.vocabulary, self.width).transpose(0, 1)


class ResNet18:
    """The forward pass with batch norm as in inference."""

    def __init__(self, tensor: Any, width: int = 64, classes: int = 1000) -> None:
        self.tensor = tensor
        self.width, self.classes = width, classes
        self.weights: dict[str, Any] = {}

    def weight(self, name: str, *sizes: int) -> Any:
        if name not in self.weights:
            self.weights[name] = self.tensor.empty(*sizes)
        return self.weights[name]

    def conv(self, name: str, x: Any, out: int, kernel: int, stride: int) -> Any:
        weight = self.weight(f"{name}.w", out, x.shape[1], kernel, kernel)
        y = x.conv2d(weight, stride=stride, padding=kernel // 2)
        mean, var, scale, shift = (
            self.weight(f"{name}.{part}", out).reshape(1, out, 1, 1)
            for part in ("mean", "var", "scale", "shift")
        )
        return (y - mean) * ((var + 1e-5).rsqrt() * scale) + shift

    def block(self, name: str, x: Any, out: int, stride: int) -> Any:
        y = self.conv(f"{name}.1", x, out, 3, stride).relu()
        y = self.conv(f"{name}.2", y, out, 3, 1)
        short = x if stride == 1 and x.shape[1] == out else self.conv(f"{name}.d", x, out, 1, stride)
        return (y + short).relu()

    def __call__(self, x: Any) -> Any:
        x = self.conv("stem", x, self.width, 7, 2).relu().max_pool2d(3, 2, padding=1)
        for stage in range(4):
            out = self.width << stage
            x = self.block(f"{stage}.0", x, out, 1 if stage == 0 else 2)
            x = self.block(f"{stage}.1", x, out, 1)
        pooled = x.mean((2, 3))
        return pooled @ self.weight("fc.w", x.shape[1], self.classes) + self.weight("fc.b", self.classes)
