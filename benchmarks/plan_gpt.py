"""GPTs of Megatron-LM's published scaling, as scripts for `morok plan`, and beside what was published.

    morok plan --mesh 32x4 --machine a100-nvlink benchmarks/plan_gpt.py 7.5B     one of them, in words
    python benchmarks/plan_gpt.py                                                all, beside the published

Narayanan and others, "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM"
(SC 21, arXiv:2104.04473), table 1: sequences of 2048, a vocabulary of 51,200, mixed precision, activations
computed again in the backward pass, attention not fused, Selene's A100s with 80 GB. TFLOP/s of a GPU are
those of their formula, 96 B s l h² (1 + s/6h + V/16lh) operations for a step. Here: rows without pipeline.
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import numpy as np

import morok
import morok.nn.losses
from morok import P, Tensor, jit, nn
from morok import distributed as dist
from morok.tensor.transforms import checkpoint

LENGTH, LETTERS = 2048, 51_200


class Published(NamedTuple):
    """A row of the table."""

    width: int
    heads: int
    layers: int
    tensor: int  # GPUs that share a layer
    devices: int
    batch: int
    teraflops: float  # of a GPU

    @property
    def ops(self) -> float:
        """Of a step, by their formula."""
        h, layers = self.width, self.layers
        inner = 1 + LENGTH / (6 * h) + LETTERS / (16 * layers * h)
        return 96 * self.batch * LENGTH * layers * h * h * inner

    @property
    def seconds(self) -> float:
        return self.ops / (self.teraflops * 1e12 * self.devices)


TABLE = {
    "1.7B": Published(2304, 24, 24, 1, 32, 512, 137),
    "3.6B": Published(3072, 32, 30, 2, 64, 512, 138),
    "7.5B": Published(4096, 32, 36, 4, 128, 512, 142),
    "18.4B": Published(6144, 48, 40, 8, 256, 1024, 135),
}


class Block(nn.Module):
    """A block as theirs were: scores, weights and what is left of them after dropout all lie in memory."""

    def __init__(self, width: int, heads: int) -> None:
        self.inner = dist.Block(width, heads, dtype="bfloat16")

    def __call__(self, x: Tensor) -> Tensor:
        b = self.inner
        y = b.norm1(x)
        batch, length, width = y.shape
        q, k, v = (
            f(y).reshape(batch, length, b.heads, -1).transpose(1, 2).contiguous() for f in (b.q, b.k, b.v)
        )
        scores = (q @ k.transpose(-1, -2)).contiguous()
        later = Tensor.ones(length, length, dtype="bool").triu(1)
        weights = later.where(-1e4, scores * (width // b.heads) ** -0.5).softmax(-1).contiguous()
        heads = weights.dropout(0.1).contiguous() @ v
        x = x + b.out(heads.transpose(1, 2).reshape(batch, length, width)).dropout(0.1)
        return x + b.down(b.up(b.norm2(x)).gelu()).dropout(0.1)


class GPT(nn.Module):
    """Letters to logits, in half precision."""

    def __init__(self, row: Published) -> None:
        self.letter = nn.Embedding(LETTERS, row.width, dtype="bfloat16")
        self.place = nn.Embedding(LENGTH, row.width, dtype="bfloat16")
        self.blocks = [Block(row.width, row.heads) for _ in range(row.layers)]
        self.norm = nn.LayerNorm(row.width, dtype="bfloat16")
        self.head = nn.Linear(row.width, LETTERS, bias=False, dtype="bfloat16")

    def __call__(self, index: Tensor) -> Tensor:
        x = self.letter(index) + self.place.weight
        for block in self.blocks:
            x = checkpoint(block, x)
        return self.head(self.norm(x))


def train(row: Published) -> None:
    """One step, on a mesh of data × model."""
    mesh = morok.mesh((row.devices // row.tensor, row.tensor), ("data", "model"))
    model = GPT(row)
    dist.tensor_parallel(model, mesh, {**dist.TRANSFORMER, "head$": "column"})
    optimizer = nn.Adam(nn.parameters(model), lr=1e-4)

    @jit
    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        logits = model(x).reshape(-1, LETTERS)
        loss = nn.losses.cross_entropy(logits.float(), y.reshape(-1))
        loss.backward()
        optimizer.step()
        return loss

    text = np.zeros((row.batch, LENGTH), np.int32)
    x, y = (Tensor(text).shard(mesh, P("data")).realize() for _ in range(2))
    step(x, y).item()


def estimate(name: str, layers: int | None = None) -> Any:
    """What `morok plan` says about a row; with fewer layers only for tests."""
    from morok import knobs
    from morok.device.planned import PLANNED
    from morok.machine.cluster import cluster
    from morok.runtime.estimate import Estimate
    from morok.runtime.profile import profile

    row = TABLE[name]
    sizes = f"{row.devices // row.tensor}x{row.tensor}"
    with knobs.override(DEVICE=PLANNED, PLAN_MACHINE="a100-nvlink", PLAN_MESH=sizes):
        found = Estimate(cluster("a100-nvlink"), PLANNED)
        with profile(found):
            train(row if layers is None else row._replace(layers=layers))
    return max(found.plans.values(), key=lambda cost: cost.seconds)


def of_all_layers(name: str) -> tuple[float, float, float]:
    """Seconds of a step, those of them on the wire, and bytes sent: from one layer and two; all are alike."""
    one, two = estimate(name, 1), estimate(name, 2)
    more = TABLE[name].layers - 1

    def whole(first: float, second: float) -> float:
        return first + (second - first) * more

    sent = whole(sum(one.sent.values()), sum(two.sent.values()))
    return whole(one.seconds, two.seconds), whole(one.wire, two.wire), sent


def main() -> None:
    print(f"{'GPT':>6} {'GPUs':>5} {'published':>10} {'planned':>9} {'ratio':>6}   on the wire, bytes sent")
    for name, row in TABLE.items():
        seconds, wire, sent = of_all_layers(name)
        ratio = seconds / row.seconds
        print(
            f"{name:>6} {row.devices:>5} {row.seconds:>8.2f} s {seconds:>7.2f} s {ratio:>6.2f}   "
            f"{wire:.2f} s, {sent / 1e9:.1f} GB"
        )


if __name__ == "__main__":
    if len(sys.argv) > 1:
        train(TABLE[sys.argv[1]])
    else:
        main()
