"""A few hundred elements in order in the registers of a processor: vectors are merged by networks.

As many vectors as lanes are sorted lane by lane and turned, so that each holds a run; fewer are sorted each
by itself. Runs of vectors are merged with their mirror images, at distances that are halved: first among
vectors, then among the lanes of each.
"""

from __future__ import annotations

from morok.codegen.written import Value
from morok.tensor.arrays.written_network import ordered


def in_order(held: list[Value]) -> list[Value]:
    """The elements of vectors, a power of two of them, from the first lane of the first one on."""
    lanes, many = held[0].dtype.lanes, len(held)
    if many % lanes:
        held = [_sorted_lanes(x) for x in held]
    else:
        squares = [_turned_columns(held[i : i + lanes]) for i in range(0, many, lanes)]
        held = [x for square in squares for x in square]
    run = 1
    while run < many:
        merged: list[Value] = []
        for i in range(0, many, 2 * run):
            merged += _merged(held[i : i + run], held[i + run : i + 2 * run])
        held, run = merged, 2 * run
    return held


def _turned_columns(held: list[Value]) -> list[Value]:
    """As many vectors as lanes: each lane in order, as a vector."""
    held = list(held)
    for i, j in ordered(len(held)):
        held[i], held[j] = held[i].minimum(held[j]), held[i].maximum(held[j])
    return held[0].turned(held[1:])


def _merged(first: list[Value], then: list[Value]) -> list[Value]:
    """Two runs as one."""
    lanes = first[0].dtype.lanes
    mirrored = [x.chosen(tuple(range(lanes - 1, -1, -1))) for x in reversed(then)]
    pairs = list(zip(first, mirrored, strict=True))
    return _cleaned([x.minimum(y) for x, y in pairs]) + _cleaned([x.maximum(y) for x, y in pairs])


def _cleaned(held: list[Value]) -> list[Value]:
    """What rises and falls, or the reverse, in order."""
    distance = len(held) // 2
    while distance:
        for i in range(len(held)):
            if not i & distance:
                x, y = held[i], held[i + distance]
                held[i], held[i + distance] = x.minimum(y), x.maximum(y)
        distance //= 2
    return [_cleaned_lanes(x, x.dtype.lanes // 2) for x in held]


def _cleaned_lanes(x: Value, distance: int) -> Value:
    while distance:
        x = _compared(x, distance, distance)
        distance //= 2
    return x


def _sorted_lanes(x: Value) -> Value:
    size = 2
    while size <= x.dtype.lanes:
        x = _cleaned_lanes(_compared(x, size - 1, size // 2), size // 4)
        size *= 2
    return x


def _compared(x: Value, across: int, upper: int) -> Value:
    """Every lane with the one whose number differs in the bits `across`; those with bit `upper` get the
    larger one."""
    lanes = x.dtype.lanes
    other = x.chosen(tuple(i ^ across for i in range(lanes)))
    taken = tuple(i + lanes if i & upper else i for i in range(lanes))
    return x.minimum(other).chosen(taken, x.maximum(other))
