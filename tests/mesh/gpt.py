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
from morok.device.mesh.engine import Engine, Traffic
from morok.device.registry import get_device

import morok.nn.losses  # isort: skip

WIDTH, HEADS, LENGTH, LETTERS, BATCH, LAYERS, MICRO = 16, 4, 8, 12, 8, 4, 4


class GPT(nn.Module):
    """Letters to logits of the next letter."""

    def __init__(self) -> None:
        self.letter, self.place = nn.Embedding(LETTERS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = [dist.Block(WIDTH, HEADS) for _ in range(LAYERS)]
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, LETTERS, bias=False)

    def __call__(self, index: Tensor) -> Tensor:
        x = self.letter(index) + self.place.weight
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(self.last(x)))

    def last(self, x: Tensor) -> Tensor:
        """Behind the blocks: the whole of a sequence."""
        return x


def batch(step: int) -> tuple[Any, Any]:
    made = np.random.default_rng(step)
    text = made.integers(0, LETTERS, (BATCH, LENGTH + 1))
    return text[:, :-1], text[:, 1:]


def build(kind: str, count: int) -> tuple[Any, Any, Any]:
    """A model in its placement, the mesh, and how batches are put there."""
    Tensor.manual_seed(0)
    model = GPT()
    for tensor in nn.parameters(model):
        tensor.realize()
    if kind == "one":
        return model, None, lambda x: x
    if kind == "both":
        mesh = morok.mesh((2, count // 2), ("data", "model"))
        dist.tensor_parallel(model, mesh)
        return model, mesh, lambda x: x.shard(mesh, P("data"))
    mesh = morok.mesh(count, AXES.get(kind, "data"))
    if kind == "accumulate":
        dist.data_parallel(model, mesh)
        return model, mesh, lambda x: x.reshape(2, BATCH // 2, LENGTH).shard(mesh, P(None, "data"))
    if kind == "data":
        dist.data_parallel(model, mesh)
    elif kind in ("tensor", "sequence"):
        dist.tensor_parallel(model, mesh)
        if kind == "sequence":
            dist.sequence_parallel(model.blocks, mesh)
            model.last = lambda x: x.shard(mesh)
        return model, mesh, lambda x: x.shard(mesh)
    elif kind == "pipeline":
        model.blocks = dist.stages(model.blocks, mesh)
        for part in (model.letter, model.place, model.norm, model.head):
            dist.replicate(part, mesh)
        return model, mesh, lambda x: x.shard(mesh)
    else:
        dist.fully_sharded(model, mesh, layers=[*model.blocks])
    return model, mesh, lambda x: x.shard(mesh, P("data"))


AXES = {"tensor": "model", "sequence": "model", "pipeline": "stage"}


def loss_of(model: Any, mesh: Any, kind: str, x: Tensor, y: Tensor) -> Tensor:
    if kind == "accumulate":
        parts = [(x[n], y[n]) for n in range(2)]
        return dist.accumulate(lambda *part: loss_of(model, mesh, "data", *part), *parts)
    if kind == "pipeline":
        first = model.letter(x) + model.place.weight
        parts = [first[n : n + BATCH // MICRO] for n in range(0, BATCH, BATCH // MICRO)]

        def stage(blocks: Any, x: Tensor) -> Tensor:
            for block in blocks:
                x = block(x)
            return x

        last = dist.pipeline(stage, model.blocks, parts, mesh, "stage")
        logits = model.head(model.norm(last[0].cat(*last[1:])))
    else:
        logits = model(x)
    return nn.losses.cross_entropy(logits.reshape(-1, LETTERS), y.reshape(-1))


def compiled_step(model: Any, mesh: Any, kind: str, optimizer: Any) -> Any:
    """A step of training, as a function of a batch."""

    @jit
    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(model, mesh, kind, x, y)
        loss.backward()
        optimizer.step()
        return loss

    return step


def train(kind: str, steps: int, count: int) -> dict[str, Any]:
    model, mesh, put = build(kind, count)
    optimizer = nn.Adam(nn.parameters(model), lr=0.01)
    step = compiled_step(model, mesh, kind, optimizer)
    losses, sent = [], []
    traffic = engine_of(mesh).traffic if mesh is not None else Traffic()
    for n in range(steps):
        x, y = (put(Tensor(part)).realize() for part in batch(n))
        traffic.clear()
        loss = step(x, y).realize()
        sent.append(dict(traffic.sent))
        losses.append(loss.item())
    (plan,) = step.plans
    states = [t for t in optimizer.state_dict().values() if isinstance(t, Tensor) and t.ndim]
    kept = sum(_local_bytes(t) for t in [*nn.parameters(model), *states])
    return {
        "losses": losses,
        "sent": sent[-1],  # in one step, as the engine has counted
        "given": dict(traffic.given),
        "planned": plan.wire_bytes,
        "sizes": [int(p.numel()) for p in nn.parameters(model)],
        "kept": kept,
        "peak": plan.peak,
        "kernels": len(plan.kernels),
    }


def engine_of(mesh: Any) -> Engine:
    return get_device(mesh.name).engine  # type: ignore[attr-defined, no-any-return]


def _local_bytes(tensor: Tensor) -> int:
    layout = tensor.placement
    count = tensor.numel() if layout is None else layout.local_numel
    return int(count * tensor.dtype.itemsize)


if __name__ == "__main__":
    result = train(sys.argv[1], int(sys.argv[2]), dist.processes())
    if dist.rank() == 0:
        print(json.dumps(result))
