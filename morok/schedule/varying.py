"""Sizes and positions that another one stands in for each time: one graph from the fourth on.

    ids = cat(ids, next)        model(ids) of 17 tokens, then of 18, of 19 …

A program that lengthens what it reads, pads each batch to its own length or writes where a counter says makes
another graph at each turn, which is planned and compiled. So of graphs that are equal but for their sizes
these are remembered, and when all follow one of them, size = a · n + b, that one becomes a variable. With
this turn's value of `n` the graph is the user's, so nothing is guessed but that it will be needed again. Its
kernels serve an interval, which doubles when it is left. Numbers that follow a size (a mean divides by it)
are read from memory.

Memory that is as long as `n` says is copied to some that is as long as it may become, and back: kernels may
read what lies behind the last element there, if they do not use it. Only for processors, as in `parts.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import final

from morok import knobs
from morok.caches import Cache
from morok.dtype import DType, index
from morok.dtype.records import record
from morok.ir.bounds import bounds
from morok.ir.build import variable
from morok.ir.infer import shape
from morok.ir.movement import shrink
from morok.ir.node import UOp, alu, const, make, toposort
from morok.ir.ops import COLLECTIVES, TRANSFERS, Ops
from morok.ir.sizes import canonical, combine
from morok.rewrite.engine import substitute
from morok.schedule.normalise import Normalised
from morok.schedule.numbers import is_operand, spread
from morok.schedule.parts import begins_anywhere
from morok.schedule.signature import argument

_TURNS = 4  # of other sizes, until one is a variable
_NAME = "n"
_FAR = 64  # a variable that is smaller may grow at least so far
_LARGE = 1 << 20  # elements: to copy so many takes a while, and room for more is memory
_OFTEN = 64  # graphs of one size come so often until they are worth a plan of their own
_OFTEN_LARGE = 2
_REFUSED = frozenset((Ops.DEFINE_VAR, Ops.BIND, Ops.WRITTEN, Ops.SCATTER, *TRANSFERS, *COLLECTIVES))


@final
@record
class _Line:
    """How sizes follow the one at `place`: a · n + b each."""

    place: int
    slopes: tuple[int, ...]
    ends: tuple[int, ...]
    low: int
    high: int
    values: frozenset[int]  # of numbers that follow it in some other way, or nothing


@final
@record
class _Seen:
    """Graphs that are equal but for their sizes."""

    sizes: list[tuple[int, ...]]
    values: list[tuple[str, ...]]
    line: _Line | None
    refused: bool
    often: dict[int, int]  # hashes of sizes, and how often these came


@final
@record
class Varying:
    """A graph with a variable that stands for the one at hand."""

    form: Normalised
    fronts: dict[int, int]  # how long what is as long as `n` says may become, by the number of a PARAM
    numbers: list[tuple[DType, str, float | int]]  # more PARAMs, of one element, and what is to lie there
    key: int


_seen: Cache[int, _Seen] = Cache("schedule.varying_sizes", 256)


@final
class _Skeleton:
    """A graph without its sizes, and these in the order in which they are met."""

    def __init__(self, sink: UOp) -> None:
        self.order: list[tuple[UOp, tuple[int | None, ...], tuple[int | None, ...]]] = []
        self.sizes: list[int] = []
        self.values: list[UOp] = []
        self.able = True
        number: dict[UOp, int] = {}
        parts: list[object] = []
        device = ""
        for node in toposort(sink):
            op = node.op
            if op is Ops.CONST:
                continue
            if op in _REFUSED:
                self.able = False
                return
            places: list[int | None] = []
            values: list[int | None] = []
            edges: list[object] = []
            if op is Ops.PARAM:
                places.append(self._add(int(node.arg[1])))
                edges.append((node.arg[0], node.arg[2]))
                self.able = self.able and device in ("", str(node.arg[2]))
                device = str(node.arg[2])
            for s in node.src:
                place = value = None
                if s.op is Ops.CONST and s.dtype.is_index:
                    place = self._add(int(s.arg))
                elif is_operand(s, node):
                    value = len(self.values)
                    self.values.append(s)
                elif s.op is Ops.CONST:
                    edges.append(s)
                else:
                    edges.append(number[s])
                places.append(place)
                values.append(value)
                edges.append((place is None, value is None))
            number[node] = len(number)
            parts.append((op, node.dtype, None if op is Ops.PARAM else argument(node), tuple(edges)))
            self.order.append((node, tuple(places), tuple(values)))
        self.device = device or knobs.default_device()
        self.key = hash(tuple(parts)) if self.able else 0

    def _add(self, size: int) -> int:
        self.sizes.append(size)
        return len(self.sizes) - 1


def with_variable(form: Normalised) -> Varying | None:
    """The graph with a variable for what has been another number often enough."""
    found = _Skeleton(form.sink)
    if not found.able or not found.sizes:
        return None
    sizes, numbers = tuple(found.sizes), tuple([repr(c.arg) for c in found.values])
    seen = _seen.get(found.key)
    if seen is None or len(seen.sizes[0]) != len(sizes) or len(seen.values[0]) != len(numbers):
        _seen[found.key] = _Seen([sizes], [numbers], None, False, {})
        return None
    if seen.refused:
        return None
    if sizes not in seen.sizes:
        seen.sizes, seen.values = [*seen.sizes, sizes][-_TURNS:], [*seen.values, numbers][-_TURNS:]
    line = seen.line
    if line is None or not _follows(line, sizes) or not _agree(line, numbers, seen.values[0]):
        seen.line = None
        line = _line_through(seen) if len(seen.sizes) == _TURNS else None
        if line is None:
            return None
    if not begins_anywhere(found.device):
        return None
    which = hash(sizes)
    seen.often[which] = seen.often.pop(which, 0) + 1
    if len(seen.often) > _FAR:
        del seen.often[next(iter(seen.often))]
    if seen.often[which] > (_OFTEN if max(sizes) < _LARGE else _OFTEN_LARGE):
        return None
    now = sizes[line.place]
    try:
        if not line.low <= now <= line.high:
            line = _reaching(line, now, sizes)
            line = seen.line = _inside(line, _symbolic(form, found, line, now))
        return _symbolic(form, found, line, now) if line.low <= now <= line.high else None
    except Exception:  # nobody has written this graph: sizes that are not known to be equal, say
        seen.refused = True
        return None


def refuse(varying: Varying) -> None:
    """A graph with a variable is of no use: graphs of its kind are taken as they are."""
    seen = _seen.get(varying.key)
    if seen is not None:
        seen.refused = True


# --- what follows what


def _follows(line: _Line, sizes: Sequence[int]) -> bool:
    now = sizes[line.place]
    return all(s == a * now + b for s, a, b in zip(sizes, line.slopes, line.ends, strict=True))


def _agree(line: _Line, numbers: Sequence[str], others: Sequence[str]) -> bool:
    return all(n in line.values or a == b for n, (a, b) in enumerate(zip(numbers, others, strict=True)))


def _line_through(seen: _Seen) -> _Line | None:
    """How all sizes follow one of them, if they do."""
    first, last = seen.sizes[0], seen.sizes[-1]
    moved = [n for n in range(len(last)) if len({sizes[n] for sizes in seen.sizes}) == _TURNS]
    if not moved:
        return None
    least = min(abs(last[n] - first[n]) for n in moved)
    slow = [n for n in moved if abs(last[n] - first[n]) == least and last[n] > 0]
    if not slow:
        return None
    (most, _), *_ = Counter([last[n] for n in slow]).most_common(1)
    place = next(n for n in slow if last[n] == most)
    step = last[place] - first[place]
    slopes, ends = [], []
    for a, b in zip(first, last, strict=True):
        slope, rest = divmod(b - a, step)
        if rest:
            return None
        slopes.append(slope)
        ends.append(b - slope * last[place])
    numbers = frozenset(
        n for n in range(len(seen.values[0])) if len({values[n] for values in seen.values}) > 1
    )
    values = [sizes[place] for sizes in seen.sizes]
    low = max(1, min(values) // 2)
    # Its interval is still to be found.
    line = _Line(place, tuple(slopes), tuple(ends), low, low - 1, numbers)
    return line if all(_follows(line, sizes) for sizes in seen.sizes) else None


def _reaching(line: _Line, now: int, sizes: Sequence[int]) -> _Line:
    """The same with an interval that has room on the side where it was left.

    Sizes stay sizes: none gets below nothing, and none nothing that is something now.
    """
    low, high = min(line.low, now), max(line.high, now)
    if now >= line.high:
        far = max(_FAR, 1 << (2 * now - 1).bit_length())
        high = far if max(sizes) < _LARGE else now + now // 4
    if now <= line.low:
        low = max(1, now // 2)
    for slope, end, size in zip(line.slopes, line.ends, sizes, strict=True):
        least = min(1, size)
        if slope > 0:
            low = max(low, -((end - least) // slope))
        elif slope < 0:
            high = min(high, (end - least) // -slope)
    return _Line(line.place, line.slopes, line.ends, min(low, now), max(high, now), line.values)


def _inside(line: _Line, made: Varying | None) -> _Line:
    """The same as far as no part ends before it begins, or behind what it is cut out of."""
    low, high = line.low, line.high
    n = variable(_NAME, low, high)
    for node in toposort(made.form.sink) if made is not None and low < high else ():
        if node.op is not Ops.SHRINK:
            continue
        for whole, start, stop in zip(shape(node.src[0]) or (), node.src[1::2], node.src[2::2], strict=True):
            for rest, least in ((combine(Ops.SUB, whole, stop), 0), (combine(Ops.SUB, stop, start), 1)):
                if isinstance(rest, int):
                    continue
                first, second = (_at(rest, n, line.low + k) - least for k in (0, 1))
                if first + (second - first) * (line.high - line.low) < 0:
                    high = min(high, line.low + first // (first - second))
                elif first < 0:
                    low = max(low, line.low - first // (second - first))
    return _Line(line.place, line.slopes, line.ends, low, high, line.values)


def _at(size: UOp, n: UOp, value: int) -> int:
    return int(bounds(substitute(size, {n: const(index, value)}))[0])


# --- the graph with a variable


def _symbolic(form: Normalised, found: _Skeleton, line: _Line, now: int) -> Varying | None:
    n = variable(_NAME, line.low, line.high)
    exprs: dict[tuple[int, int], UOp] = {}

    def size(place: int) -> UOp:
        which = line.slopes[place], line.ends[place]
        if which not in exprs:
            slope, end = (const(index, k) for k in which)
            made = canonical(alu(Ops.ADD, alu(Ops.MUL, n, slope), end))
            exprs[which] = const(index, made) if isinstance(made, int) else made
        return exprs[which]

    done: dict[UOp, UOp] = {}
    fronts: dict[int, int] = {}
    numbers: list[tuple[DType, str, float | int]] = []
    for node, places, values in found.order:
        if node.op is Ops.PARAM:
            (place,) = places
            assert place is not None
            done[node] = node
            if line.slopes[place]:
                number, _, device = node.arg
                most = max(line.slopes[place] * k + line.ends[place] for k in (line.low, line.high))
                fronts[number] = most
                whole = make(Ops.PARAM, node.dtype, (), (number, most, device), node.origin)
                done[node] = shrink(whole, ((0, size(place)),))
            continue
        if node.op is Ops.PLACE and _memory(node).arg[0] in fronts:
            return None  # what is written to is no copy
        src = [
            s if s.op is Ops.CONST and place is None else size(place) if place is not None else done[s]
            for s, place in zip(node.src, places, strict=True)
        ]
        made = make(node.op, node.dtype, tuple(src), node.arg, node.origin)
        for at, value in enumerate(values):
            if value is not None and value in line.values:
                number = len(form.buffers) + len(numbers)
                dtype = node.src[at].dtype
                numbers.append((dtype, found.device, node.src[at].arg))
                memory = make(Ops.PARAM, dtype, (), (number, 1, found.device))
                src[at] = spread(memory, made)
        done[node] = make(node.op, node.dtype, tuple(src), node.arg, node.origin)
    made_of = {old: done.get(new, new) for old, new in form.made.items()}
    return Varying(
        Normalised(done[form.sink], form.buffers, {_NAME: now}, made_of), fronts, numbers, found.key
    )


def _memory(node: UOp) -> UOp:
    while node.src:
        node = node.src[0]
    return node


def filled_by(view: UOp, inputs: int) -> int | None:
    """The PARAM that a result fills from its beginning; None if it shows memory that was there, or a part."""
    while view.src:
        is_front = all(s.op is Ops.CONST and s.arg == 0 for s in view.src[1::2])
        if view.op is not Ops.RESHAPE and not (view.op is Ops.SHRINK and is_front):
            return None
        view = view.src[0]
    return int(view.arg[0]) if view.op is Ops.PARAM and int(view.arg[0]) >= inputs else None


def shows_memory(view: UOp, varying: Varying) -> bool:
    """Whether a node of the user's graph shows memory that was there before, and that is no copy."""
    while view.op.is_movement and view.op is not Ops.PAD:
        view = view.src[0]
    return view.op is Ops.PARAM and view.arg[0] not in varying.fronts
