"""Equal layers in a graph: where they stand, and the graph with only a few of them.

A network of 30 equal layers is scheduled as one of five, and the steps of the others follow from those
(`lengthen.py`). Equal layers are a stretch of the graph's order that repeats itself: each node does what the
one a period before it does, on sources that either lie a period further too or are the same ones. Memory is
told apart by type and size only.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, pairwise
from typing import Any, final

import numpy as np

from morok.dtype.records import record
from morok.ir.args import LOOSE, arg_key
from morok.ir.infer import keep_shape
from morok.ir.node import UOp, make
from morok.ir.ops import Ops

FRONT, REAR = 2, 3  # layers of a repetition that are scheduled; the first and the last ones may be special
LEAST_SAVED = 200  # nodes; less is not worth a search
_WINDOW = 32  # nodes in a row that tell a place within a layer from others
_CANDIDATES = 4  # periods that are looked at closely
_FACTOR = 0x9E3779B97F4A7C15  # of a hash of windows


@final
@record(frozen=True)
class Repeat:
    """Layers of `period` nodes from place `start` to `stop` in an order, of which `left_out` are left out."""

    order: Sequence[UOp]
    period: int
    start: int
    stop: int
    left_out: int

    @property
    def cut(self) -> int:
        """The place where layers are left out."""
        return self.start + FRONT * self.period

    @property
    def missing(self) -> int:
        """How many nodes are left out."""
        return self.left_out * self.period

    def shortened(self, params: Sequence[UOp]) -> tuple[UOp, list[UOp], list[int]]:
        """The graph without those layers, its memory, and the number of each of that in the whole graph."""
        end = self.stop - self.missing  # layers after the cut are alike: these stand for the last ones
        gone = {n for n in self.order[end : self.stop] if n.op is Ops.PARAM}
        numbers = [n for n, param in enumerate(params) if param not in gone]
        done: dict[UOp, UOp] = {}
        for new, number in enumerate(numbers):
            param = params[number]
            done[param] = make(Ops.PARAM, param.dtype, (), (new, *param.arg[1:]), param.origin)
        kept = list(done.values())
        for node in self.order[:end]:
            if node.op is not Ops.PARAM:
                done[node] = keep_shape(node.replace(tuple([done[s] for s in node.src])), node)
        sink = self.order[-1]
        left_out = set(self.order[self.cut : self.cut + self.missing])
        asked = [s for s in sink.src if s not in left_out]
        last = range(self.cut + self.missing, self.stop)
        done.update([(self.order[at], done[self.order[at - self.missing]]) for at in last])
        for node in self.order[self.stop : -1]:
            if node.op is not Ops.PARAM:
                done[node] = keep_shape(node.replace(tuple([done[s] for s in node.src])), node)
        return sink.replace(tuple([done[s] for s in asked])), kept, numbers


@final
class _Order:
    """An order of nodes as arrays: what each does, and the places of its sources."""

    def __init__(self, order: Sequence[UOp]) -> None:
        self.order = order
        place = dict(zip(order, range(len(order)), strict=True))
        kinds: dict[Any, int] = {}
        self.kinds = np.array([kinds.setdefault(_kind(n), len(kinds)) for n in order[:-1]], np.int64)
        sources = [n.src for n in order[:-1]]
        self.first = np.concatenate(([0], np.cumsum([len(s) for s in sources])))
        found = chain.from_iterable(sources)
        self.sources = np.fromiter(map(place.__getitem__, found), np.int64, int(self.first[-1]))
        self.outputs = np.array(sorted({place[n] for n in order[-1].src}), np.int64)

    def periods(self) -> list[int]:
        """Distances at which long pieces come again, the most frequent first."""
        if len(self.kinds) < 2 * _WINDOW:
            return []
        windows, length, factor = self.kinds.astype(np.uint64), 1, _FACTOR
        windows = windows * np.uint64(_FACTOR) + np.uint64(1)
        while length < _WINDOW:
            windows = windows[:-length] + windows[length:] * np.uint64(factor)
            length, factor = 2 * length, factor * factor % (1 << 64)
        places = np.argsort(windows, kind="stable")
        again = windows[places[1:]] == windows[places[:-1]]
        counts = np.bincount((places[1:] - places[:-1])[again])
        best = np.argsort(counts, kind="stable")[::-1][:_CANDIDATES]
        return [int(p) for p in best if counts[p] > 0]

    def stretch(self, period: int) -> tuple[int, int]:
        """The longest stretch that repeats itself at a distance."""
        same = self.kinds[period:] == self.kinds[:-period]
        begin, end = longest_run(same)
        if begin == end:
            return 0, 0
        one = self.sources[self.first[begin] : self.first[end]]
        other = self.sources[self.first[begin + period] : self.first[end + period]]
        moved = other - one
        wrong = (moved != period) & (moved != 0)
        owner = np.repeat(np.arange(begin, end), np.diff(self.first[begin : end + 1]))
        good = np.ones(end - begin, bool)
        good[owner[wrong] - begin] = False
        low, high = longest_run(good)
        low, high = begin + low, begin + high
        # what all layers share stands before them
        fixed = (moved == 0) & (owner >= low) & (owner < high)
        for shared in sorted(set(one[fixed].tolist())):
            if shared >= low:
                low = max(low, shared + 1)
        return (low, high + period) if low < high else (0, 0)

    def between_readers(self, start: int, stop: int, period: int) -> tuple[int, int]:
        """Of a stretch the longest part that nobody from outside reads, but for what follows it."""
        outside = self.sources[self.first[stop] :]
        read = set(outside[(outside >= start) & (outside < stop - period)].tolist())
        inside = self.outputs[(self.outputs >= start) & (self.outputs < stop)]
        by_place: dict[int, list[int]] = {}
        for at in inside.tolist():
            by_place.setdefault((at - start) % period, []).append(at)
        for rest, found in by_place.items():
            if len(found) != len(range(start + rest, stop, period)):
                read.update(at for at in found if at < stop - period)
        edges = [start - 1, *sorted(read), stop]
        return max(((a + 1, b) for a, b in pairwise(edges)), key=lambda p: p[1] - p[0])

    def is_read_from_outside(self, repeat: Repeat) -> bool:
        """Whether what comes after some layers reads others of them than the last."""
        outside = self.sources[self.first[repeat.stop] :]
        return bool(((outside >= repeat.start) & (outside < repeat.cut + repeat.missing)).any())


def find_repeat(order: Sequence[UOp]) -> Repeat | None:
    """The layers of a graph that are worth being scheduled once, if there are any."""
    if len(order) < 2 * LEAST_SAVED:
        return None
    arrays = _Order(order)
    best: Repeat | None = None
    for period in arrays.periods():
        start, stop = arrays.stretch(period)
        start, stop = arrays.between_readers(start, stop, period)
        left_out = (stop - start) // period - FRONT - REAR
        found = Repeat(order, period, start, stop, left_out)
        if left_out <= 0 or found.missing < max(LEAST_SAVED, 0 if best is None else best.missing + 1):
            continue
        if not arrays.is_read_from_outside(found):
            best = found
    return best


def _kind(node: UOp) -> Any:
    """What a node does, whatever memory it is or reads."""
    arg = node.arg
    if arg is None:
        return node.op, node.dtype, len(node.src)
    kind = arg.__class__
    if node.op is Ops.PARAM:
        return node.op, node.dtype, arg[1:]
    return node.op, node.dtype, len(node.src), arg_key(arg) if kind in LOOSE else arg, kind


def longest_run(mask: np.ndarray) -> tuple[int, int]:
    """Where the longest run of True begins and ends."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], mask, [False])).astype(np.int8)))
    if not len(edges):
        return 0, 0
    begins, ends = edges[::2], edges[1::2]
    at = int((ends - begins).argmax())
    return int(begins[at]), int(ends[at])
