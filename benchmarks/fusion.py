"""Kernels and bytes moved of common expressions, against the least that any compiler has to move.

The lower bound reads every input once and writes every output once. Bytes of a kernel are counted the same
way: what it reads and writes at least once.

    python benchmarks/fusion.py [--json FILE] [--explain]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from models import Gpt, ResNet18  # type: ignore[import-not-found]

from morok import Tensor, knobs


def adam(parameters: list[Any]) -> list[Any]:
    """One step: two moments and the parameter, for each parameter."""
    results = []
    for p in parameters:
        m, v, g = (Tensor.empty(*p.shape) for _ in range(3))
        m.assign(m * 0.9 + g * 0.1)
        v.assign(v * 0.999 + g * g * 0.001)
        p.assign(p - m * 0.001 / (v.sqrt() + 1e-8))
        results += [m, v, p]
    return results


def expressions() -> dict[str, tuple[int, Callable[[], list[Any]]]]:
    """Name → (kernels allowed, maker of the outputs)."""
    x = Tensor.empty(4096, 1024)
    w, b = Tensor.empty(1024, 1024), Tensor.empty(1024)
    image, kernel = Tensor.empty(8, 64, 56, 56), Tensor.empty(64, 64, 3, 3)
    stats = [Tensor.empty(64) for _ in range(4)]
    q, k, v = (Tensor.empty(8, 8, 512, 64) for _ in range(3))
    targets = Tensor.empty(4096, dtype="int64")
    gpt, resnet = Gpt(Tensor), ResNet18(Tensor)
    shapes = [(768, 2304), (2304,), (768, 768), (768,), (768, 3072), (3072,), (3072, 768), (768,)] * 4
    return {
        "element-wise chain": (1, lambda: [((x * 2 + 1).exp().T[::-1]).cast("float16")]),
        "sum": (1, lambda: [(x * 2).sum(-1) + 1]),
        "variance": (1, lambda: [x.var(-1)]),
        "softmax": (1, lambda: [x.softmax(-1)]),
        "log softmax": (1, lambda: [x.log_softmax(-1)]),
        "layer norm": (1, lambda: [x.layer_norm(-1, b, b)]),
        "rms norm": (1, lambda: [x.rms_norm(-1, b)]),
        "cross entropy": (3, lambda: [x.cross_entropy(targets)]),
        "linear + gelu": (1, lambda: [(x @ w + b).gelu()]),
        "conv + bn + relu": (
            1,
            lambda: [image.conv2d(kernel, padding=1).batch_norm(*stats).relu()],
        ),
        "attention": (3, lambda: [q.scaled_dot_product_attention(k, v)]),
        "gpt-2 layers": (84, lambda: [gpt.blocks(Tensor.empty(1, 64, 768))]),
        "resnet-18": (24, lambda: [resnet(Tensor.empty(1, 3, 224, 224))]),
        "adam, 32 tensors": (8, lambda: adam([Tensor.empty(*s) for s in shapes])),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--explain", action="store_true", help="say why each buffer is kept")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with knobs.override(EXPLAIN="fusion" if options.explain else ""):
        for name, (allowed, make) in expressions().items():
            rows.append(row(name, allowed, make()))
    print("expression            kernels  allowed      moved   at least  ratio       peak")
    for r in rows:
        print(
            f"{r['expression']:<20} {r['kernels']:>8} {r['allowed']:>8} {r['moved'] / 1e6:>7.1f} MB "
            f"{r['least'] / 1e6:>7.1f} MB {r['moved'] / r['least']:>6.2f} {r['peak'] / 1e6:>7.1f} MB"
        )
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=1))


def row(name: str, allowed: int, outputs: list[Any]) -> dict[str, Any]:
    plan = Tensor.prepare(*outputs)
    items = plan.schedule.items
    made = {*plan.memory.placements}
    read, written = set(), set()
    for item in items:
        outputs_of_it = len(item.ast.src)
        written.update(item.buffers[:outputs_of_it])
        read.update(item.buffers[outputs_of_it:])
        read.update(b for b in item.buffers[:outputs_of_it] if b not in plan.memory.outputs)
    least = sum(b.arg * b.dtype.itemsize for part in (read, written) for b in part if b not in made)
    return {
        "expression": name, "kernels": len(items), "allowed": allowed,
        "moved": sum(item.bytes for item in items), "least": least, "peak": plan.memory.peak,
    }  # fmt: skip


if __name__ == "__main__":
    main()
