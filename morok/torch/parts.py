"""A plan in parts: memory is given out when it is first written, and given back when it is last read.

A backward pass reads what the forward pass has kept, and writes gradients that are as large as the weights.
All of it at once is more than either: so a plan with large results runs in a few calls rather than in one.
Between them the next results get memory, and arguments that nobody reads any more, and nobody else holds, are
free.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from morok.ir.node import UOp
from morok.runtime.launch import PlanLaunch, native_launch

SLACK = 1 / 64  # of the least peak: what may be given away for fewer parts


class Part(NamedTuple):
    """Some kernels of a plan, one after another."""

    launch: PlanLaunch
    touched: frozenset[UOp]  # arguments and results
    last: tuple[int, ...]  # numbers of arguments that nobody reads afterwards


def cuts(items: Sequence[Sequence[UOp]], results: Mapping[UOp, int], owned: Mapping[UOp, int]) -> list[int]:
    """Where parts begin, for kernels that touch these buffers: as few as keep the peak of memory low.

    Results, and arguments that go when they have been read, by their bytes.
    """
    grows, falls = [0] * len(items), [0] * len(items)
    first = {n: at for at in reversed(range(len(items))) for n in items[at] if n in results}
    last = {n: at for at in range(len(items)) for n in items[at] if n in owned}
    for node, at in first.items():
        grows[at] += results[node]
    for node, at in last.items():
        falls[at] += owned[node]
    live = peak = start = sum(owned[n] for n in last)
    for grow, fall in zip(grows, falls, strict=True):
        live += grow
        peak = max(peak, live)
        live -= fall
    most = peak * (1 + SLACK)
    found, live, freed = [0], start, 0
    for at, (grow, fall) in enumerate(zip(grows, falls, strict=True)):
        if live + grow > most and freed:
            found.append(at)
            live, freed = live - freed, 0
        live, freed = live + grow, freed + fall
    return found


def parts_of(
    items: Sequence[tuple[object, Sequence[UOp]]],
    values: Mapping[str, int],
    arguments: Mapping[UOp, int],
    results: Mapping[UOp, int],
    owned: Mapping[UOp, int],
) -> list[Part] | None:
    """The parts of a plan, if they are native calls; arguments by their numbers, results by their bytes, and
    so are arguments that nobody else holds."""
    begins = cuts([nodes for _, nodes in items], results, owned)
    ends = [*begins[1:], len(items)]
    last = {
        n: number
        for number, (begin, end) in enumerate(zip(begins, ends, strict=True))
        for _, nodes in items[begin:end]
        for n in nodes
        if n in owned
    }
    found: list[Part] = []
    for number, (begin, end) in enumerate(zip(begins, ends, strict=True)):
        launch = native_launch(items[begin:end], values)
        if launch is None:
            return None
        touched = frozenset(n for n in launch.nodes if n in arguments or n in results)
        over = sorted(arguments[n] for n, at in last.items() if at == number)
        found.append(Part(launch, touched, tuple(over)))
    return found


def bind_all(parts: Iterable[Part], own: Any) -> None:
    """Memory of the plan's own for what is neither argument nor result."""
    for part in parts:
        for node in part.launch.nodes:
            if node not in part.touched:
                part.launch.bind(node, own(node))
