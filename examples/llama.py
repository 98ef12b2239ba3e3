"""A Llama with random weights writes tokens: prefill of any length, then one token at a time, each one plan.

    python examples/llama.py --tokens 32
    python examples/llama.py --layers 30 --width 576 --heads 9 --groups 3 --hidden 1536 --tokens 64

The second line has the shape of a small model as people use them (SmolLM with 135 million parameters). Keys
and values of all tokens so far lie in a cache. The position is a `Variable`, and `jit` takes a bound variable
as an argument: `decode` is traced and compiled at the first token, and its plan serves all positions. What it
writes, a row of each cache, is written where it is. `MOROK_EXPLAIN=jit` says why something is traced again.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

import morok
from morok import Tensor, Variable, jit, nn


@dataclass(frozen=True)
class Shape:
    """Sizes of a Llama. `groups` of heads share their keys and values."""

    vocabulary: int = 256
    layers: int = 2
    width: int = 64
    heads: int = 4
    groups: int = 2
    hidden: int = 128
    longest: int = 128
    base: float = 10000.0

    @property
    def head(self) -> int:
        return self.width // self.heads


def rotations(shape: Shape) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the angles by which each position turns pairs of a head's numbers."""
    speeds = shape.base ** (-np.arange(0, shape.head, 2) / shape.head)
    angles = np.arange(shape.longest)[:, None] * speeds
    wide = np.concatenate((angles, angles), axis=-1).astype(np.float32)
    return Tensor(np.cos(wide)), Tensor(np.sin(wide))


def rotated(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Numbers of a head turned by the position, the first half with the second."""
    first, second = x.chunk(2, -1)
    return x * cosines + (-second).cat(first, dim=-1) * sines


class Layer:
    """Attention with fewer keys than queries, then a gated map, each added to what was there."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        width, keys = shape.width, shape.groups * shape.head
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.q, self.k, self.v, self.out = (
            nn.Linear(a, b, bias=False)
            for a, b in ((width, width), (width, keys), (width, keys), (width, width))
        )
        self.gate, self.up = (nn.Linear(width, shape.hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(shape.hidden, width, bias=False)

    def __call__(
        self, x: Tensor, cache: Tensor, first: Any, last: Any, turns: tuple[Tensor, Tensor]
    ) -> Tensor:
        """Rows for the positions first … last; keys and values of those before are in the cache."""
        s, rows = self.shape, last - first if isinstance(first, int) else 1
        h = self.norm1(x)
        q, k, v = (
            linear(h).reshape(rows, heads, s.head).transpose(0, 1)
            for linear, heads in ((self.q, s.heads), (self.k, s.groups), (self.v, s.groups))
        )
        cache[0, :, first:last] = rotated(k, *turns)
        cache[1, :, first:last] = v
        keys, values = (cache[i, :, :last] for i in (0, 1))
        mixed = rotated(q, *turns).reshape(s.groups, s.heads // s.groups, rows, s.head)
        seen = mixed.scaled_dot_product_attention(
            keys.unsqueeze(1).expand(s.groups, s.heads // s.groups, last, s.head),
            values.unsqueeze(1).expand(s.groups, s.heads // s.groups, last, s.head),
            is_causal=isinstance(first, int),
        )
        x = x + self.out(seen.reshape(s.heads, rows, s.head).transpose(0, 1).reshape(rows, s.width))
        h = self.norm2(x)
        return x + self.down(self.gate(h).silu() * self.up(h))


class Llama:
    """Tokens to logits of the next one."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.table = nn.Embedding(shape.vocabulary, shape.width)
        self.layers = [Layer(shape) for _ in range(shape.layers)]
        self.norm, self.head = nn.RMSNorm(shape.width), nn.Linear(shape.width, shape.vocabulary, bias=False)
        self.cosines, self.sines = rotations(shape)

    def caches(self) -> list[Tensor]:
        """Room for the keys and values of all layers."""
        s = self.shape
        sizes = (2, s.groups, s.longest, s.head)
        return [Tensor.zeros(*sizes).contiguous().realize() for _ in self.layers]

    def _rows(self, tokens: Tensor, caches: list[Tensor], first: Any, last: Any) -> Tensor:
        x = self.table(tokens)
        turns = self.cosines[first:last], self.sines[first:last]
        for layer, cache in zip(self.layers, caches, strict=True):
            x = layer(x, cache, first, last, turns)
        return self.head(self.norm(x))

    def prefill(self, tokens: Tensor, caches: list[Tensor], count: Any) -> Tensor:
        """The logits after a prompt; `count` is its length, which may be a variable."""
        return self._rows(tokens, caches, 0, count)[count - 1]

    def decode(self, token: Tensor, caches: list[Tensor], at: Any) -> Tensor:
        """The logits after one more token, at a position."""
        return self._rows(token, caches, at, at + 1)[0]


class Writer:
    """A model with its two compiled functions and its caches."""

    def __init__(self, model: Llama) -> None:
        self.model, self.caches = model, model.caches()
        self.prefill, self.decode = jit(model.prefill), jit(model.decode)
        self.length = Variable("length", 1, model.shape.longest)
        self.at = Variable("at", 0, model.shape.longest - 1)

    def write(self, prompt: list[int], count: int) -> list[int]:
        """The prompt and the likeliest tokens after it."""
        found = list(prompt)
        padded = np.zeros(self.model.shape.longest, np.int64)
        padded[: len(prompt)] = prompt
        length = self.length.bind(len(prompt))
        logits = self.prefill(Tensor(padded)[:length], self.caches, length)
        for at in range(len(prompt), min(len(prompt) + count, self.model.shape.longest)):
            found.append(int(logits.argmax().item()))
            logits = self.decode(Tensor([found[-1]]), self.caches, self.at.bind(at))
        return found


def main(arguments: list[str] | None = None) -> Writer:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, value in Shape().__dict__.items():
        parser.add_argument(f"--{name}", type=type(value), default=value)
    parser.add_argument("--tokens", type=int, default=32)
    options = vars(parser.parse_args(arguments))
    count = options.pop("tokens")
    morok.manual_seed(0)
    with morok.no_grad():
        writer = Writer(Llama(Shape(**options)))
        writer.write([1, 2, 3], 2)  # compiles
        started = time.perf_counter()
        found = writer.write([5, 6, 7, 8], count)
        spent = time.perf_counter() - started
    print(f"{len(nn.parameters(writer.model))} tensors, {len(writer.decode.plans[0])} kernels for a token")
    print(f"{(len(found) - 4) / spent:.0f} tokens a second: {found}")
    print(f"traces: {writer.prefill.traces} of prefill, {writer.decode.traces} of decode")
    return writer


if __name__ == "__main__":
    main()
