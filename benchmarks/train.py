"""The speed of training: one compiled step of morok beside the same model in torch, run eagerly.

Both begin with the same weights, see the same batches and use AdamW; the losses of the first steps are
compared before anything is timed. They take turns; the median of the steps counts, and the best step is given
beside it, which says more on a machine that others use too. A ratio is torch's time over morok's: more is
faster. `--kernels` shows where morok's time goes.

    python benchmarks/train.py [--only digits,gpt] [--seconds 4] [--threads 2] [--kernels] [--json FILE]
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

Array = Any
EXAMPLES = Path(__file__).parents[1] / "examples"


def _example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


class Digits:
    """The network of examples/digits.py, without its dropout: the two would draw different numbers."""

    rate = 6e-3

    def __init__(self, batch: int = 64) -> None:
        rng = np.random.default_rng(0)
        self.batch = rng.random((batch, 1, 8, 8), dtype=np.float32), rng.integers(0, 10, batch)

    def morok(self) -> Any:
        model = _example("digits").Network()
        model.drop.p = 0.0
        return model

    def torch(self, torch: Any) -> tuple[Any, Callable[[Any], Any]]:
        t = torch.nn
        parts = {"first": t.Conv2d(1, 16, 3, padding=1), "second": t.Conv2d(16, 32, 3, padding=1)}
        model = t.ModuleDict({**parts, "last": t.Linear(512, 10)})

        def forward(x: Any) -> Any:
            x = model["second"](model["first"](x).relu()).relu()
            return model["last"](t.functional.max_pool2d(x, 2).flatten(1))

        return model, forward


class Gpt:
    """The model of examples/gpt.py."""

    rate = 3e-3

    def __init__(self, batch: int = 16, length: int = 64, width: int = 64, letters: int = 96) -> None:
        rows = np.random.default_rng(0).integers(0, letters, (batch, length + 1))
        self.batch = rows[:, :-1].copy(), rows[:, 1:].copy()
        self.letters, self.width, self.length = letters, width, length

    def morok(self) -> Any:
        return _example("gpt").GPT(self.letters, self.width, longest=self.length)

    def torch(self, torch: Any) -> tuple[Any, Callable[[Any], Any]]:
        t, width = torch.nn, self.width
        sizes = {"qkv": (width, 3 * width), "out": (width, width)}
        sizes |= {"up": (width, 4 * width), "down": (4 * width, width)}
        blocks = [
            t.ModuleDict(
                {"norm1": t.LayerNorm(width), "norm2": t.LayerNorm(width)}
                | {name: t.Linear(*size) for name, size in sizes.items()}
            )
            for _ in range(2)
        ]
        model = t.ModuleDict({
            "letter": t.Embedding(self.letters, width), "place": t.Embedding(self.length, width),
            "blocks": t.ModuleList(blocks), "norm": t.LayerNorm(width),
            "head": t.Linear(width, self.letters, bias=False),
        })  # fmt: skip

        def forward(index: Any) -> Any:
            x = model["letter"](index) + model["place"].weight[: index.shape[1]]
            for b in model["blocks"]:
                parts = b["qkv"](b["norm1"](x)).chunk(3, -1)
                q, k, v = (p.unflatten(-1, (4, -1)).transpose(1, 2) for p in parts)
                mixed = t.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
                x = x + b["out"](mixed.transpose(1, 2).flatten(2))
                x = x + b["down"](t.functional.gelu(b["up"](b["norm2"](x))))
            return model["head"](model["norm"](x)).flatten(0, 1)

        return model, forward


MODELS: dict[str, Callable[[], Any]] = {"digits": Digits, "gpt": Gpt}
Step = Callable[[], float]


def morok_step(work: Any) -> tuple[Step, dict[str, Array]]:
    """A step of training with morok, and the weights that it begins with."""
    import morok
    from morok import Tensor, nn
    from morok.nn.state import state_dict

    morok.manual_seed(0)
    model = work.morok()
    weights = {name: tensor.numpy().copy() for name, tensor in state_dict(model).items()}
    optimizer = nn.AdamW(nn.parameters(model), lr=work.rate)
    step = nn.TrainStep(model, optimizer, lambda x, y: model(x).cross_entropy(y))
    x, y = (Tensor(part) for part in work.batch)
    return lambda: float(step(x, y).item()), weights


def torch_step(work: Any, weights: dict[str, Array]) -> Step:
    """The same with torch."""
    import torch

    model, forward = work.torch(torch)
    model.load_state_dict({name: torch.from_numpy(value) for name, value in weights.items()})
    optimizer = torch.optim.AdamW(model.parameters(), lr=work.rate)
    x, y = (torch.from_numpy(part) for part in work.batch)

    def step() -> float:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(forward(x), y.flatten())
        loss.backward()
        optimizer.step()
        return float(loss.item())

    return step


Times = tuple[float, float]  # the median and the best


def compare(ours: Step, theirs: Step | None, seconds: float) -> tuple[Times, Times | None]:
    """The times of both, in turns; first they have to agree about the loss."""
    if theirs is not None:
        for _ in range(4):
            np.testing.assert_allclose(ours(), theirs(), rtol=2e-3)
    else:
        ours()
    times: tuple[list[float], list[float]] = ([], [])
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for step, found in zip((ours, theirs), times, strict=True):
            for _ in range(10 if step else 0):
                began = time.perf_counter()
                step()  # type: ignore[misc]
                found.append(time.perf_counter() - began)
    mine, other = ((statistics.median(t), min(t)) if t else None for t in times)
    assert mine is not None
    return mine, other


def reason(error: Exception) -> str:
    """What went wrong with a peer, in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:100]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default=",".join(MODELS))
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--kernels", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    os.environ.setdefault("MOROK_THREADS", str(options.threads))
    has_torch = importlib.util.find_spec("torch") is not None
    if has_torch:
        try:
            import torch

            torch.set_num_threads(options.threads)
        except Exception as error:
            print(f"torch: - ({reason(error)})")
            has_torch = False
    from morok.runtime.profile import profile

    found: dict[str, Any] = {}
    for name in options.only.split(","):
        work = MODELS[name]()
        began = time.perf_counter()
        ours, weights = morok_step(work)
        ours_first = ours()
        first = time.perf_counter() - began
        theirs = torch_step(work, weights) if has_torch else None
        if theirs is not None:
            np.testing.assert_allclose(ours_first, theirs(), rtol=1e-4)
        mine, other = compare(ours, theirs, options.seconds)
        found[name] = {"morok_ms": mine[0] * 1e3, "morok_best_ms": mine[1] * 1e3, "first_s": first}
        line = f"{name:<8} morok {mine[0] * 1e3:8.3f} ms per step, best {mine[1] * 1e3:8.3f}"
        if other is not None:
            ratio, best = (b / a for a, b in zip(mine, other, strict=True))
            found[name] |= {"torch_ms": other[0] * 1e3, "torch_best_ms": other[1] * 1e3}
            found[name] |= {"ratio": ratio, "ratio_of_best": best}
            line += f";  torch {other[0] * 1e3:8.3f}, best {other[1] * 1e3:8.3f}"
            line += f";  ratio {ratio:.2f}, of best {best:.2f}"
        line += f";  first step after {first:.1f} s"
        print(line, flush=True)
        if options.kernels:
            with profile() as taken:
                for _ in range(20):
                    ours()
            print(taken.table(100))
    if not has_torch:
        print("torch is not installed: nothing to compare with", file=sys.stderr)
    if options.json:
        options.json.write_text(json.dumps(found, indent=2), encoding="utf-8")


if __name__ == "__main__":
    main()
