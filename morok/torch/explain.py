"""What a model becomes: graphs, kernels, what torch does itself, and the time of each of the user's lines."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, final

import torch

from morok.runtime.profile import Profile, profile
from morok.torch.backend import morok
from morok.torch.compiled import Compiled
from morok.torch.lower import show_line
from morok.torch.private import counters
from morok.torch.watch import watching


@final
@dataclass
class Explanation:
    """An account of one compiled call; printing it gives a page."""

    graphs: list[Compiled]
    profile: Profile
    seconds: dict[str, float]  # of one call: eager, morok, others that were asked for
    breaks: list[str] = field(default_factory=list)

    @property
    def kernels(self) -> int:
        """How many kernels the plans have."""
        return sum(len(plan) for graph in self.graphs for plan in graph.plans)

    @property
    def fallbacks(self) -> list[str]:
        """What torch computes itself: the operator, the user's line, and why."""
        return [
            f"{node.target}  {show_line(node)}  {why}"
            for graph in self.graphs
            for node, why in graph.fallbacks.items()
        ]

    def by_line(self) -> dict[str, float]:
        """Seconds of kernels by the user's line."""
        found: dict[str, float] = {}
        for event in self.profile.events:
            where = event.place or "-"
            found[where] = found.get(where, 0.0) + event.seconds
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    def __str__(self) -> str:
        lines = [
            f"{len(self.graphs)} graphs, {self.kernels} kernels, {len(self.fallbacks)} nodes left to torch"
        ]
        lines += [f"  break: {why}" for why in self.breaks]
        lines += [f"  torch: {text}" for text in self.fallbacks]
        lines.append("seconds of a call: " + ", ".join(f"{k} {v:.6f}" for k, v in self.seconds.items()))
        lines.append("by line (kernels one by one):")
        lines += [f"  {seconds * 1e3:9.3f} ms  {where}" for where, seconds in self.by_line().items()]
        return "\n".join(lines)


def explain(
    model: Callable[..., Any], *inputs: Any, beside: tuple[str, ...] = (), **kwargs: Any
) -> Explanation:
    """Compile a model, call it, and tell what became of it; `beside=("inductor",)` times others too.

    >>> import torch
    >>> explain(torch.nn.Linear(2, 3), torch.ones(1, 2)).kernels
    1
    """
    torch.compiler.reset()
    seconds = {"eager": _timed(model, inputs, kwargs)}
    with watching() as graphs:
        compiled = torch.compile(model, backend=morok)
        seconds["morok"] = _timed(compiled, inputs, kwargs)
        with profile() as taken:
            compiled(*inputs, **kwargs)
    for name in beside:
        torch.compiler.reset()
        seconds[name] = _timed(torch.compile(model, backend=name), inputs, kwargs)
    breaks = [str(key) for key in counters["graph_break"]]
    return Explanation(graphs, taken, seconds, breaks)


def _timed(function: Callable[..., Any], inputs: Any, kwargs: Any, rounds: int = 5) -> float:
    function(*inputs, **kwargs)
    best = float("inf")
    for _ in range(rounds):
        started = time.perf_counter()
        function(*inputs, **kwargs)
        best = min(best, time.perf_counter() - started)
    return best
