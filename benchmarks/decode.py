"""One token of a Llama, beside torch on the same weights.

    python benchmarks/decode.py [--layers 30 --width 576 --heads 9 --groups 3 --hidden 1536]
                                [--vocabulary 49152] [--no-compile] [--no-torch] [--rounds 40]

`examples/llama.py` as it is: jit, a KV cache, the position as a variable. Printed: milliseconds of a step
(median and least of rounds in turns), what of it the kernels take, how many plans served all positions, and
the same step of the same model in torch, eager and compiled, written as its users write it, with a cache of
full length. Then prefill: a plan for any length beside plans for one length each.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "examples")]

import llama  # noqa: E402

import morok  # noqa: E402
from morok import Tensor, jit, profile  # noqa: E402


def torch_step(model: Any, compiled: bool) -> Callable[[int], Any]:
    """A step of the same model in torch."""
    import torch
    from torch.nn import functional

    s = model.shape

    def weight(t: Tensor) -> Any:
        return torch.from_numpy(t.numpy().copy())

    layers = [
        {name: weight(getattr(layer, name).weight) for name in ("norm1", "norm2", *_LINEAR)}
        for layer in model.layers
    ]
    table, norm, head = (weight(part.weight) for part in (model.table, model.norm, model.head))
    cosines, sines = weight(model.cosines), weight(model.sines)
    caches = [torch.zeros(2, s.groups, s.longest, s.head) for _ in layers]
    eps = model.norm.eps

    def turned(x: Any, at: Any) -> Any:
        first, second = x.chunk(2, -1)
        return x * cosines[at] + torch.cat((-second, first), -1) * sines[at]

    def step(token: Any, at: Any, seen: Any) -> Any:
        x = table[token]
        for w, cache in zip(layers, caches, strict=True):
            h = functional.rms_norm(x, (s.width,), w["norm1"], eps)
            q = turned(functional.linear(h, w["q"]).view(1, s.heads, s.head).transpose(0, 1), at)
            k = turned(functional.linear(h, w["k"]).view(1, s.groups, s.head).transpose(0, 1), at)
            v = functional.linear(h, w["v"]).view(1, s.groups, s.head).transpose(0, 1)
            cache[0].index_copy_(1, at, k)
            cache[1].index_copy_(1, at, v)
            found = functional.scaled_dot_product_attention(
                q[None], cache[0][None], cache[1][None], attn_mask=seen, enable_gqa=True
            )
            x = x + functional.linear(found.transpose(1, 2).reshape(1, s.width), w["out"])
            h = functional.rms_norm(x, (s.width,), w["norm2"], eps)
            x = x + functional.linear(
                functional.silu(functional.linear(h, w["gate"])) * functional.linear(h, w["up"]), w["down"]
            )
        return functional.linear(functional.rms_norm(x, (s.width,), norm, eps), head)[0]

    work = torch.compile(step) if compiled else step
    token, places = torch.tensor([5]), torch.arange(s.longest)

    def run(at: int) -> Any:
        with torch.no_grad():
            return work(token, torch.tensor([at]), places[None, None, None] <= at)

    return run


_LINEAR = ("q", "k", "v", "out", "gate", "up", "down")


def steps_of(writer: llama.Writer) -> Callable[[int], Any]:
    token = Tensor([5]).realize()
    return lambda at: writer.decode(token, writer.caches, writer.at.bind(at))


def in_turns(steps: dict[str, Callable[[int], Any]], first: int, rounds: int) -> dict[str, list[float]]:
    """Milliseconds of every round; all take their turns at each position."""
    found: dict[str, list[float]] = {name: [] for name in steps}
    for at in range(first, first + rounds):
        for name, step in steps.items():
            started = time.perf_counter()
            step(at)
            found[name].append((time.perf_counter() - started) * 1e3)
    return found


def prefill(writer: llama.Writer, longest: int, rounds: int) -> None:
    """A plan for all lengths beside one for each."""
    print(f"{'prompt':>8} {'any length ms':>14} {'this length ms':>15} {'ratio':>7}")
    longest = min(longest, writer.model.shape.longest)
    for length in [n for n in (1, 2, 3, 7, 8, 16, 17, 64, 128, 200, 256, 511, 512) if n <= longest]:
        tokens = Tensor(np.arange(writer.model.shape.longest) % 7)
        fixed = jit(writer.model.prefill)
        bound = writer.length.bind(length)
        steps: dict[str, Callable[[int], Any]] = {
            "any": lambda _, t=tokens, b=bound: writer.prefill(t[:b], writer.caches, b),
            "this": lambda _, t=tokens, n=length, f=fixed: f(t[:n].contiguous(), writer.caches, n),
        }
        in_turns(steps, 0, 2)
        found = in_turns(steps, 0, rounds)
        a, b = min(found["any"]), min(found["this"])
        print(f"{length:>8} {a:>14.2f} {b:>15.2f} {a / b:>7.2f}", flush=True)
    print(f"{writer.prefill.traces} compilation(s) for any length")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    usual = llama.Shape(49152, 30, 576, 9, 3, 1536, 512)
    for name in ("vocabulary", "layers", "width", "heads", "groups", "hidden", "longest"):
        parser.add_argument(f"--{name}", type=int, default=getattr(usual, name))
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--prefill", type=int, default=0, metavar="LONGEST")
    parser.add_argument("--no-torch", action="store_true")
    parser.add_argument("--no-compile", action="store_true")
    options = vars(parser.parse_args())
    rounds, longest = options.pop("rounds"), options.pop("prefill")
    no_torch, no_compile = options.pop("no_torch"), options.pop("no_compile")
    morok.manual_seed(0)
    with morok.no_grad():
        writer = llama.Writer(llama.Llama(llama.Shape(**options)))
        steps = {"morok": steps_of(writer)}
        if not no_torch:
            steps["torch"] = torch_step(writer.model, False)
            if not no_compile:
                steps["torch.compile"] = torch_step(writer.model, True)
        for name, step in steps.items():
            started = time.perf_counter()
            result = step(0)
            print(f"{name}: first step after {time.perf_counter() - started:.2f} s", flush=True)
            for at in range(1, 5):
                result = step(at)
            if name == "morok":
                expected = result.numpy()
            else:
                error = float(np.abs(np.asarray(result) - expected).max())
                print(f"{name}: differs by {error:.2g}, largest logit {np.abs(expected).max():.2g}")
        found = in_turns(steps, 5, rounds)
        for name, times in found.items():
            ratio = f"{median(times) / median(found['morok']):.2f} of morok's" if name != "morok" else ""
            print(f"{name:<14} {median(times):>8.2f} ms median {min(times):>8.2f} ms least  {ratio}")
        with profile() as seen:
            steps["morok"](5 + rounds)
        kernels = seen.seconds * 1e3
        count, traces = len(writer.decode.plans[0]), writer.decode.traces
        print(f"{count} kernels, {kernels:.2f} ms one by one; traces: {traces}")
        if longest:
            prefill(writer, longest, 5)


if __name__ == "__main__":
    main()
