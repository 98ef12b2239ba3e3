"""How long it takes to prepare a step of training, and whether that grows with its size and no faster.

    python benchmarks/prepare.py [--parameters 50,100,200,400,800] [--layers 48,96,192] [--blocks 6,12,24,48]

Eager: the same step is written, differentiated and prepared again, for more and more parameters (layers of a
weight and a bias); milliseconds per parameter should stay the same. First: layers (linear 64→64, gelu) with
weights of their own, forward, backward and AdamW, scheduled with empty caches. Forward: blocks of a GPT-2,
which are scheduled once however many there are; beside them what looking at each takes. Nothing is run except
for what the next step needs. All times are processor times of the thread, which others on the machine do not
change much. Schedules on disk are not looked for.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from morok import Tensor, knobs, nn
from morok.schedule.plan.kernels import _lowered
from morok.schedule.schedule import clear_cache


class Layers:
    """Linear layers with an activation between them."""

    def __init__(self, count: int, width: int) -> None:
        self.layers = [nn.Linear(width, width) for _ in range(count)]

    def __call__(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x).gelu()
        return x


class Step:
    """A step of training up to the plan: written, differentiated, updated, prepared."""

    def __init__(self, layers: int, width: int, rows: int = 4) -> None:
        self.model = Layers(layers, width)
        self.optimizer = nn.AdamW(nn.parameters(self.model), lr=1e-3)
        self.x = Tensor.ones(rows, width).contiguous().realize()

    def write(self) -> list[Tensor]:
        self.optimizer.zero_grad()
        loss = self.model(self.x).square().mean()
        loss.backward()
        return [loss, *self.optimizer.update()]

    def __call__(self) -> tuple[float, float, Any]:
        """Seconds for writing and for preparing, and the plan."""
        started = time.thread_time()
        found = self.write()
        written = time.thread_time()
        plan = found[0].prepare(*found[1:])
        return written - started, time.thread_time() - written, plan


def eager(parameters: int, repeats: int) -> tuple[float, float]:
    """The best seconds for writing a step and for preparing it, after the first ones."""
    step = Step(parameters // 2, 16)
    step()[2].run()
    step()[2].run()
    best = (float("inf"), float("inf"))
    for _ in range(repeats):
        writing, preparing, plan = step()
        best = min(best, (writing, preparing), key=sum)
        plan.run()
    return best


def first(layers: int) -> tuple[float, float, Any]:
    """Seconds for writing and scheduling layers that nobody has scheduled before."""
    step = Step(layers, 64)
    clear_cache()
    _lowered.clear()
    return step()


def forward(blocks: int, by_layer: bool) -> tuple[float, int]:
    """Seconds for preparing a GPT-2 of so many blocks with empty caches, and its kernels."""
    from models import Gpt  # type: ignore[import-not-found]

    from morok.schedule.plan import template
    from morok.schedule.plan.repeat import find_repeat

    with patch.object(template, "find_repeat", find_repeat if by_layer else lambda order: None):
        found = Gpt(Tensor, layers=blocks).blocks(Tensor.empty(1, 64, 768))
        clear_cache()
        _lowered.clear()
        started = time.thread_time()
        plan = found.prepare()
        return time.thread_time() - started, len(plan)


def profiled(work: Callable[[], object], lines: int) -> None:
    profile = cProfile.Profile()
    profile.runcall(work)
    pstats.Stats(profile).sort_stats("tottime").print_stats(lines)


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",") if part]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parameters", type=numbers, default=[50, 100, 200, 400, 800])
    parser.add_argument("--layers", type=numbers, default=[48, 96, 192])
    parser.add_argument("--blocks", type=numbers, default=[6, 12, 24, 48])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--profile", type=int, default=0, metavar="LINES", help="profile the largest of each")
    options = parser.parse_args()
    with knobs.override(CACHE_PLANS=0):
        tables(options)


def tables(options: argparse.Namespace) -> None:
    print(f"{'eager step':<16} {'writing':>12} {'preparing':>12} {'per parameter':>16}")
    for count in options.parameters:
        writing, preparing = eager(count, options.repeats)
        each = preparing / count
        print(
            f"{count:>5} parameters {writing * 1e3:>9.1f} ms {preparing * 1e3:>9.1f} ms "
            f"{each * 1e3:>13.3f} ms"
        )
    print(f"{'first schedule':<16} {'writing':>12} {'preparing':>12} {'per layer':>16} {'arena / live':>14}")
    for count in options.layers:
        writing, preparing, plan = first(count)
        ratio = plan.memory.arena_bytes / max(1, plan.memory.live_bytes)
        print(
            f"{count:>5} layers     {writing * 1e3:>9.1f} ms {preparing * 1e3:>9.1f} ms "
            f"{preparing / count * 1e3:>13.3f} ms {ratio:>14.3f}"
        )
    print(f"{'forward':<16} {'kernels':>12} {'preparing':>12} {'each block':>16}")
    for count in options.blocks:
        (once, kernels), (each, _) = (min(forward(count, way) for _ in range(3)) for way in (True, False))
        print(f"{count:>5} blocks     {kernels:>12} {once * 1e3:>9.1f} ms {each * 1e3:>13.1f} ms")
    if options.profile:
        if options.parameters:
            step = Step(options.parameters[-1] // 2, 16)
            for _ in range(2):
                step()[2].run()
            found = step.write()
            profiled(lambda: found[0].prepare(*found[1:]), options.profile)
        if options.layers:
            profiled(lambda: first(options.layers[-1]), options.profile)


if __name__ == "__main__":
    main()
