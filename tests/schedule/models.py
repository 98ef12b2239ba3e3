"""Whole models as graphs: what the kernel counts of the fusion table are measured on."""

from __future__ import annotations

from dataclasses import dataclass, field

from morok.dtype import int32
from morok.ir import movement
from morok.ir.node import UOp
from tests.schedule import graphs as g


@dataclass
class Gpt:
    """A stack of transformer blocks in front of a language-model head; weights are made when first used."""

    layers: int = 12
    width: int = 768
    heads: int = 12
    vocabulary: int = 50257
    length: int = 1024
    weights: dict[str, UOp] = field(default_factory=dict)

    def weight(self, name: str, *sizes: int) -> UOp:
        if name not in self.weights:
            self.weights[name] = g.tensor(*sizes) if self.width <= 64 else placeholder(*sizes)
        return self.weights[name]

    def linear(self, name: str, x: UOp, n: int) -> UOp:
        k = g.sizes_of(x)[-1]
        return g.add(g.matmul(x, self.weight(f"{name}.w", k, n)), self.weight(f"{name}.b", n))

    def norm(self, name: str, x: UOp) -> UOp:
        return g.layer_norm(x, self.weight(f"{name}.w", self.width), self.weight(f"{name}.b", self.width))

    def attention(self, name: str, x: UOp) -> UOp:
        batch, length, width = g.sizes_of(x)
        size = width // self.heads
        qkv = self.linear(f"{name}.qkv", x, 3 * width)
        parts = []
        for i in range(3):
            part = movement.shrink(qkv, ((0, batch), (0, length), (i * width, (i + 1) * width)))
            part = movement.reshape(part, (batch, length, self.heads, size))
            parts.append(movement.permute(part, (0, 2, 1, 3)))
        q, k, v = parts
        scores = g.mul(g.matmul(q, g.transpose(k, 0, 1, 3, 2)), size**-0.5)
        row, column = (g.positions((length, length), axis) for axis in (0, 1))
        mask = movement.reshape(g.call(g.Ops.CMPLT, row, column), (1, 1, length, length))
        full = g.sizes_of(scores)
        scores = g.alu(g.Ops.WHERE, g.spread(mask, full), g.const(x.dtype, float("-inf")), scores)
        mixed = movement.permute(g.matmul(g.softmax(scores), v), (0, 2, 1, 3))
        return self.linear(f"{name}.proj", movement.reshape(mixed, (batch, length, width)), width)

    def block(self, name: str, x: UOp) -> UOp:
        x = g.add(x, self.attention(f"{name}.attention", self.norm(f"{name}.norm1", x)))
        h = g.gelu(self.linear(f"{name}.up", self.norm(f"{name}.norm2", x), 4 * self.width))
        return g.add(x, self.linear(f"{name}.down", h, self.width))

    def blocks(self, x: UOp) -> UOp:
        for i in range(self.layers):
            x = self.block(f"layer{i}", x)
        return x

    def __call__(self, tokens: UOp) -> UOp:
        length = g.sizes_of(tokens)[-1]
        x = g.gather(self.weight("tokens", self.vocabulary, self.width), tokens)
        where = movement.shrink(
            self.weight("positions", self.length, self.width), ((0, length), (0, self.width))
        )
        x = self.norm("norm", self.blocks(g.add(x, where)))
        return g.matmul(x, movement.permute(self.weight("tokens", self.vocabulary, self.width), (1, 0)))


def placeholder(*sizes: int) -> UOp:
    """A tensor without data, for graphs that are scheduled and not run."""
    number = next(g._numbers)
    return movement.reshape(g.build.buffer(g.float32, g.math.prod(sizes), "CPU", number), sizes)


def tokens(batch: int, length: int, vocabulary: int = 50257) -> UOp:
    data = g.np.random.default_rng(0).integers(0, vocabulary, size=(batch, length))
    return g.tensor(batch, length, dtype=int32, data=data)


@dataclass
class ResNet18:
    """The forward pass with batch norm as in inference."""

    width: int = 64
    classes: int = 1000
    weights: dict[str, UOp] = field(default_factory=dict)
    real: bool = False

    def weight(self, name: str, *sizes: int) -> UOp:
        if name not in self.weights:
            self.weights[name] = g.tensor(*sizes) if self.real else placeholder(*sizes)
        return self.weights[name]

    def conv(self, name: str, x: UOp, out: int, kernel: int, stride: int) -> UOp:
        weight = self.weight(f"{name}.w", out, g.sizes_of(x)[1], kernel, kernel)
        y = g.conv(x, weight, stride, kernel // 2)
        stats = [self.weight(f"{name}.{part}", out) for part in ("mean", "var", "scale", "shift")]
        stats[1] = g.mul(stats[1], stats[1])
        return g.batch_norm(y, *stats)

    def block(self, name: str, x: UOp, out: int, stride: int) -> UOp:
        y = g.relu(self.conv(f"{name}.1", x, out, 3, stride))
        y = self.conv(f"{name}.2", y, out, 3, 1)
        short = x if stride == 1 and g.sizes_of(x)[1] == out else self.conv(f"{name}.d", x, out, 1, stride)
        return g.relu(g.add(y, short))

    def __call__(self, x: UOp) -> UOp:
        x = g.relu(self.conv("stem", x, self.width, 7, 2))
        x = g.max_pool(x, 3, 2, 1)
        for stage in range(4):
            out = self.width << stage
            x = self.block(f"{stage}.0", x, out, 1 if stage == 0 else 2)
            x = self.block(f"{stage}.1", x, out, 1)
        n, c = g.sizes_of(x)[:2]
        pooled = movement.reshape(g.mean(x, 2, 3), (n, c))
        return g.add(
            g.matmul(pooled, self.weight("fc.w", c, self.classes)), self.weight("fc.b", self.classes)
        )
