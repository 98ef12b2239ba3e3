"""A small GPT trained in every way there is on a mesh: `python gpt.py KIND STEPS` prints what came of it.

Run it alone for one process, or under `morok run -n N` (or with virtual devices) for N ranks.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np

import morok
from morok import P, Tensor, jit, nn
from morok import distributed as dist
from morok.ir.ops import COLLECTIVES

import morok.nn.losses  # isort: skip

WIDTH, HEADS, LENGTH, LETTERS, BATCH, LAYERS = 16, 4, 8, 12, 8, 4


class Block(nn.Module):
    """Attention and two linear maps, each added to what was there."""

    def __init__(self) -> None:
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.out = nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def __call__(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        y = self.norm1(x)
        q, k, v = (f(y).reshape(batch, length, HEADS, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        heads = q.scaled_dot_product_attention(k, v, is_causal=True)
        x = x + self.out(heads.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(self.up(self.norm2(x)).gelu())


class GPT(nn.Module):
    """Letters to logits of the next letter."""

    def __init__(self) -> None:
        self.letter, self.place = nn.Embedding(LETTERS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = [Block() for _ in range(LAYERS)]
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, LETTERS, bias=False)

    def __call__(self, index: Tensor) -> Tensor:
        x = self.letter(index) + self.place.weight
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def batch(step: int) -> tuple[Any, Any]:
    made = np.random.default_rng(step)
    text = made.integers(0, LETTERS, (BATCH, LENGTH + 1))
    return text[:, :-1], text[:, 1:]


CUTS = {"q$": "column", "k$": "column", "v$": "column", "out$": "row", "up$": "column", "down$": "row"}


def build(kind: str, count: int) -> tuple[Any, Any, Any]:
    """A model in its placement, the mesh, and how batches are put there."""
    Tensor.manual_seed(0)
    model = GPT()
    for tensor in nn.parameters(model):
        tensor.realize()
    if kind == "one":
        return model, None, lambda x: x
    mesh = morok.mesh(count, "model" if kind == "tensor" else "data")
    if kind == "data":
        dist.data_parallel(model, mesh)
    elif kind == "tensor":
        dist.tensor_parallel(model, mesh, CUTS)
        return model, mesh, lambda x: x.shard(mesh)
    else:
        dist.fully_sharded(model, mesh, layers=[*model.blocks])
    return model, mesh, lambda x: x.shard(mesh, P("data"))


def train(kind: str, steps: int, count: int) -> dict[str, Any]:
    model, _, put = build(kind, count)
    optimizer = nn.Adam(nn.parameters(model), lr=0.01)

    @jit
    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = nn.losses.cross_entropy(model(x).reshape(-1, LETTERS), y.reshape(-1))
        loss.backward()
        optimizer.step()
        return loss

    losses = []
    for n in range(steps):
        x, y = (put(Tensor(part)).realize() for part in batch(n))
        losses.append(step(x, y).item())
    (plan,) = step.plans
    found: dict[str, int] = {}
    for kernel in plan.kernels:
        if kernel.ast.op in COLLECTIVES:
            name = kernel.ast.op.name
            found[name] = found.get(name, 0) + kernel.bytes
    states = [t for t in optimizer.state_dict().values() if isinstance(t, Tensor) and t.ndim]
    kept = sum(_local_bytes(t) for t in [*nn.parameters(model), *states])
    return {
        "losses": losses,
        "sent": found,
        "parameters": sum(p.numel() * p.dtype.itemsize for p in nn.parameters(model)),
        "kept": kept,
        "peak": plan.peak,
    }


def _local_bytes(tensor: Tensor) -> int:
    layout = tensor.placement
    count = tensor.numel() if layout is None else layout.local_numel
    return int(count * tensor.dtype.itemsize)


if __name__ == "__main__":
    result = train(sys.argv[1], int(sys.argv[2]), dist.processes())
    if dist.rank() == 0:
        print(json.dumps(result))
