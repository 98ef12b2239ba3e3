"""A plan in parts: memory is given out when it is first written, and given back when it is last read.

A backward pass reads what the forward pass has kept, and writes gradients that are as large as the weights.
All of it at once is more than either: so a plan with large results runs in a few calls rather than in one.
Between them the next results get memory, and arguments that nobody reads any more, and nobody else holds, are
free. In training that holds for intermediate results too: a plan's own memory would stay while the other pass
runs, so each part gets it for as long as it runs, and what several parts touch has memory of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from morok.ir.node import UOp
from morok.runtime.launch import PlanLaunch, native_launch
from morok.schedule.plan.memory import LiveRange, Placement, place_live_ranges

Item = tuple[object, Sequence[UOp]]  # a kernel, and the memory that it touches

SLACK = 1 / 4096  # of the least peak: what may be given away for fewer parts


class Part(NamedTuple):
    """Some kernels of a plan, one after another."""

    launch: PlanLaunch
    touched: frozenset[UOp]  # arguments, results, and what several parts have between them
    last: tuple[int, ...]  # numbers of arguments that nobody reads afterwards
    over: tuple[UOp, ...] = ()  # what several parts have between them, and this one is the last of
    inner: tuple[tuple[UOp, int], ...] = ()  # what this part has for itself, and where in its room
    room: int = 0  # bytes that it needs while it runs


def cuts(
    items: Sequence[Sequence[UOp]],
    results: Mapping[UOp, int],
    owned: Mapping[UOp, int],
    between: Mapping[UOp, int] | None = None,
) -> list[int]:
    """Where parts begin, for kernels that touch these buffers: as few as keep the peak of memory low.

    Results, arguments that go when they have been read, and what is only between kernels, by their bytes.
    """
    between = between or {}
    comes, goes = {**results, **between}, {**owned, **between}
    grows, falls = [0] * len(items), [0] * len(items)
    first = {n: at for at in reversed(range(len(items))) for n in items[at] if n in comes}
    last = {n: at for at in range(len(items)) for n in items[at] if n in goes}
    for node, at in first.items():
        grows[at] += comes[node]
    for node, at in last.items():
        falls[at] += goes[node]
    live = peak = start = sum(owned[n] for n in last if n in owned)
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


def delayed(items: Iterable[Item]) -> list[Item]:
    """Kernels in an order in which those that only fill memory stand before whoever touches it next."""
    waiting: dict[UOp, Item] = {}
    found: list[Item] = []
    for item in items:
        nodes = item[1]
        found += [waiting.pop(node) for node in nodes if node in waiting]
        if len(nodes) == 1:
            waiting[nodes[0]] = item
        else:
            found.append(item)
    return [*found, *waiting.values()]


def parts_of(
    items: Sequence[Item],
    values: Mapping[str, int],
    arguments: Mapping[UOp, int],
    results: Mapping[UOp, int],
    owned: Mapping[UOp, int],
    placed: Mapping[UOp, Placement] | None = None,
) -> list[Part] | None:
    """The parts of a plan, if they are native calls; arguments by their numbers, results by their bytes, and
    so are arguments that nobody else holds. `placed` are intermediate results that have memory only as long
    as somebody reads them, with their places in the plan's own."""
    placed = placed or {}
    touches = [nodes for _, nodes in items]
    begins = cuts(touches, results, owned, {n: place.nbytes for n, place in placed.items()})
    ends = [*begins[1:], len(items)]
    first: dict[UOp, int] = {}
    last: dict[UOp, int] = {}
    for number, (begin, end) in enumerate(zip(begins, ends, strict=True)):
        for node in (n for nodes in touches[begin:end] for n in nodes if n in owned or n in placed):
            first.setdefault(node, number)
            last[node] = number
    found: list[Part] = []
    for number, (begin, end) in enumerate(zip(begins, ends, strict=True)):
        launch = native_launch(items[begin:end], values)
        if launch is None:
            return None
        inner = {n: placed[n] for n in launch.nodes if n in placed and first[n] == last[n]}
        touched = frozenset(n for n in launch.nodes if n in arguments or n in results or n in placed)
        over = [n for n, at in last.items() if at == number and n not in inner]
        found.append(
            Part(
                launch,
                touched - inner.keys(),
                tuple(sorted(arguments[n] for n in over if n in owned)),
                tuple(n for n in over if n in placed),
                *room_of(inner, touches[begin:end]),
            )
        )
    return found


def room_of(
    inner: Mapping[UOp, Placement], touches: Sequence[Sequence[UOp]]
) -> tuple[tuple[tuple[UOp, int], ...], int]:
    """Places for what a part has for itself, and their bytes. What has taken another's place may again."""
    lives: dict[UOp, LiveRange] = {}
    for at, nodes in enumerate(touches):
        for node in nodes:
            if node not in inner:
                continue
            life = lives.setdefault(node, LiveRange(len(lives), "", inner[node].nbytes, at, at))
            life.stop = at
    dying = {(inner[n].offset, life.stop): life for n, life in lives.items() if life.start < life.stop}
    old = {n: dying.get((inner[n].offset, life.start)) for n, life in lives.items()}
    pairs = [(lives[n].key, other.key) for n, other in old.items() if other is not None]
    rooms, _ = place_live_ranges(list(lives.values()), pairs)
    return tuple((node, life.offset) for node, life in lives.items()), sum(rooms.values())


def bind_all(parts: Iterable[Part], own: Any) -> None:
    """Memory of the plan's own for what is neither argument nor result, and stays."""
    for part in parts:
        inner = {node for node, _ in part.inner}
        for node in part.launch.nodes:
            if node not in part.touched and node not in inner:
                part.launch.bind(node, own(node))
