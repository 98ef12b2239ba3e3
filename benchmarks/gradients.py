"""How far torch's gradients in float32 are from float64, for the table of tests/nn/test_gradients.py.

Also compares the test's own gradients, NumPy in float64, with torch's.

    python benchmarks/gradients.py > tests/nn/torch_gradients.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import torch
from torch.nn import functional as F  # noqa: N812

from tests.nn.reference import BLOCKS, EPS, HEADS, LAYERS, WIDTH, distance, path

STEPS = 50
torch.set_num_threads(1)


def conv_norm(p: Any, x: Any, name: str, stride: int) -> Any:
    w = p[f"{name}.conv.weight"]
    y = F.conv2d(x, w, stride=stride, padding=w.shape[2] // 2)
    return F.batch_norm(y, None, None, p[f"{name}.norm.weight"], p[f"{name}.norm.bias"], True, eps=EPS)


def resnet(p: Any, x: Any, y: Any) -> Any:
    x = conv_norm(p, x, "stem", 1).relu()
    for name, _, stride in BLOCKS:
        z = conv_norm(p, conv_norm(p, x, f"{name}.first", stride).relu(), f"{name}.second", 1)
        short = conv_norm(p, x, f"{name}.around", stride) if f"{name}.around.conv.weight" in p else x
        x = (z + short).relu()
    return F.cross_entropy(F.linear(x.mean((2, 3)), p["head.weight"], p["head.bias"]), y)


def gpt(p: Any, tokens: Any, targets: Any) -> Any:
    def linear(x: Any, name: str) -> Any:
        return F.linear(x, p[f"{name}.weight"], p[f"{name}.bias"])

    def norm(x: Any, name: str) -> Any:
        return F.layer_norm(x, (WIDTH,), p[f"{name}.weight"], p[f"{name}.bias"], EPS)

    x = p["tokens"][tokens] + p["places"]
    for i in range(LAYERS):
        at = f"layers.{i}"
        qkv = linear(norm(x, f"{at}.norm1"), f"{at}.qkv")
        q, k, v = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in qkv.chunk(3, -1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + linear(mixed.transpose(1, 2).flatten(2), f"{at}.out")
        x = x + linear(F.gelu(linear(norm(x, f"{at}.norm2"), f"{at}.up")), f"{at}.down")
    return F.cross_entropy(linear(norm(x, "norm"), "head").flatten(0, 1), targets.flatten())


def gradients(network: Any, weights: Any, inputs: Any, dtype: Any) -> Any:
    p = {name: torch.tensor(w, dtype=dtype, requires_grad=True) for name, w in weights.items()}
    batch = [torch.tensor(x, dtype=dtype if x.dtype.kind == "f" else torch.int64) for x in inputs]
    network(p, *batch).backward()
    return {name: w.grad.numpy() for name, w in p.items()}


def main() -> None:
    table: dict[str, dict[str, float]] = {}
    for name, network in (("resnet", resnet), ("gpt", gpt)):
        worst = table[name] = {}
        for weights, inputs, exact in path(name, STEPS):
            double = gradients(network, weights, inputs, torch.float64)
            single = gradients(network, weights, inputs, torch.float32)
            for part, g in exact.items():
                if not distance(g, double[part]) < 1e-11:
                    sys.exit(f"{name} {part}: NumPy and torch differ by {distance(g, double[part]):.1e}")
                worst[part] = max(worst.get(part, 0.0), float(f"{distance(single[part], g):.2e}"))
    print(json.dumps(table, indent=1))


if __name__ == "__main__":
    main()
