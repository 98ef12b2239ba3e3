"""Many short rows of words in order on a processor: a network of comparisons, of which a lane is a row.

Batcher's merge: sorted runs of 1, 2, 4, … are merged by comparing elements at distances that are halved.
Which elements are compared depends on no value, so that rows side by side are sorted by the same
instructions. Words are all different, whole ones or pairs: equal keys are in the order of the positions
beside them.
"""

from __future__ import annotations

from collections.abc import Iterator

from morok import dtype as dt
from morok.codegen.written import Code, Memory, Value, writes
from morok.ir.ops import AxisKind
from morok.machine.machine import Machine

_VECTORS = 4  # that hold the lanes: enough to be busy while the next are on their way
_LEAST = 8  # lanes
_UNROLLED = 4  # comparisons that are written out


def lanes_of(machine: Machine) -> int:
    """Rows that are sorted side by side."""
    own = machine.lanes(dt.int64)
    return max(_LEAST, min(_VECTORS, 2) * own)


def _stages(count: int) -> Iterator[tuple[int, int]]:
    """Of runs of so many, at a distance of so many."""
    run = 1
    while run < count:
        distance = run
        while distance:
            yield run, distance
            distance //= 2
        run *= 2


def _parts(size: int, run: int, distance: int) -> Iterator[tuple[int, int, int]]:
    """Where comparisons of two runs, of which so many elements are there, begin: (first, how often at twice
    the distance, how many side by side)."""
    if distance == run:
        yield 0, 1, min(run, max(0, size - run))
        return
    most = run // distance - 1
    whole = max(0, min(most, (size - distance) // (2 * distance)))
    yield distance, whole, distance
    if whole < most:
        first = distance + 2 * distance * whole
        yield first, 1, min(distance, max(0, size - distance - first))


def comparisons(count: int) -> int:
    """How many a network has."""
    total = 0
    for run, distance in _stages(count):
        blocks, rest = divmod(count, 2 * run)
        for size, times in ((2 * run, blocks), (rest, 1)):
            total += times * sum(n * many for _, n, many in _parts(size, run, distance))
    return total


@writes
def sort_lanes(code: Code, machine: Machine, width: int, rows: int, count: int) -> None:
    """Rows of words in the order of all bits."""
    out = code.memory(dt.uint64, rows * count * width)
    words = code.memory(dt.uint64, rows * count * width)
    lanes = lanes_of(machine)
    tiles = [code.local(dt.uint64, count * lanes) for _ in range(width)]
    groups = -(-rows // lanes)
    kind = AxisKind.THREAD if machine.threads and groups > 1 else AxisKind.LOOP
    with code.loop(groups, kind) as group:
        with code.loop(lanes) as lane:
            row = group * lanes + lane
            row = (row < rows).where(row, rows - 1)
            with code.loop(count) as i:
                for n, tile in enumerate(tiles):
                    tile.store(i * lanes + lane, words.load((row * count + i) * width + n))
        for run, distance in _stages(count):
            blocks, rest = divmod(count, 2 * run)
            if blocks:
                with code.loop(blocks) as b:
                    _merge(code, tiles, lanes, b * (2 * run), (2 * run, run, distance))
            if rest:
                last = code.value(blocks * 2 * run, dt.int64)
                _merge(code, tiles, lanes, last, (rest, run, distance))
        with code.loop(lanes) as lane:
            row = group * lanes + lane
            with code.given(row < rows), code.loop(count) as i:
                for n, tile in enumerate(tiles):
                    out.store((row * count + i) * width + n, tile.load(i * lanes + lane))


def _merge(code: Code, tiles: list[Memory], lanes: int, base: Value, what: tuple[int, int, int]) -> None:
    """A step of the merge of two runs."""
    size, run, distance = what
    for first, times, many in _parts(size, run, distance):
        if not times or not many:
            continue
        with code.loop(times) as n:
            start = base + n * (2 * distance) + first
            with code.loop(many // _UNROLLED) as i:
                for k in range(_UNROLLED):
                    _compare(tiles, lanes, start + i * _UNROLLED + k, distance)
            for k in range(many // _UNROLLED * _UNROLLED, many):
                _compare(tiles, lanes, start + k, distance)


def _compare(tiles: list[Memory], lanes: int, at: Value, distance: int) -> None:
    """The smaller of two words, in every lane, comes first."""
    there = at + distance
    pairs = [(tile.load(at * lanes, lanes), tile.load(there * lanes, lanes)) for tile in tiles]
    x, y = pairs[0]
    swapped = y < x
    for own, other in pairs[1:]:
        swapped = swapped | (x.equals(y) & (other < own))
    for tile, (own, other) in zip(tiles, pairs, strict=True):
        tile.store(at * lanes, swapped.where(other, own))
        tile.store(there * lanes, swapped.where(own, other))
