"""Tiles whose rows are places of a window in an image, as boxes: TMA's im2col mode.

A convolution's tile has a row for each of some places, counted through images, lines and columns, and reads
at each of them what lies under one element of the window. In memory that is no box: at the end of a line it
goes on in the next, and the window reaches beyond the edges. The engine walks so by itself. It is told the
corners between which the window's first element moves, in which steps, where to begin, and by how much all
places are shifted for this element of the window; what lies outside of the image is zero.

Here the number of a row is taken apart into its digits (column, line, image), which makes the place in memory
a sum again; each digit is a dimension, with the offsets of the window that move it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial, reduce
from itertools import pairwise
from typing import final

from morok.dtype import PtrDType
from morok.errors import CompileError
from morok.ir.bounds import bounds
from morok.ir.infer import ranges
from morok.ir.node import UOp, alu, const, make, toposort
from morok.ir.ops import AxisKind, Ops
from morok.ir.warp_roles import Box, Walk
from morok.rewrite.engine import substitute
from morok.symbolic.quotients import join_sum
from morok.symbolic.sets import simplify
from morok.symbolic.tma_boxes import ALIGNED, LARGEST, ROW, Dimension, condition, in_panels, sum_of
from morok.symbolic.validity import conjuncts

MOST_ROWS = 256  # places of one copy
MOST_STEP = 8  # between two places, in elements of a dimension
# by the number of dimensions that a window moves in: how far corners may lie outside, and offsets reach
CORNERS = {1: 1 << 15, 2: 1 << 7, 3: 1 << 4}
OFFSETS = {1: 1 << 16, 2: 1 << 8, 3: 1 << 5}
_DIGITS = 1 << 21  # numbers of loops that no kernel has


@final
@dataclass
class Window:
    """A tile's read in terms of digits: its dimensions, elements of a row first, images last."""

    dimensions: list[Dimension]
    digits: list[UOp]  # column, line, …; the last may be the image
    cuts: list[int]  # what one step of each digit is in rows
    start: UOp  # the number of the tile's first row
    inner: UOp  # the loop along a row

    @property
    def spatial(self) -> list[Dimension]:
        """The dimensions that a window moves in."""
        return self.dimensions[1:-1]

    def offset(self, d: Dimension) -> tuple[dict[UOp, int], int]:
        """What shifts all places along a dimension, and the least of it."""
        terms = {t: k for t, k in d.terms.items() if t not in self.digits and t is not self.inner}
        return terms, _least(terms)

    def step(self, d: Dimension) -> int:
        return next((k for t, k in d.terms.items() if t in self.digits), 1)

    def lower(self, d: Dimension) -> int:
        """Where the window's first element is at the first place."""
        return d.constant + self.offset(d)[1]


# --- digits


Sum = dict[UOp, int]


def _start_of(x: UOp, rows: UOp) -> Sum | None:
    """The other terms of rows + …; None where x is something else."""
    terms, constant = sum_of(x)
    if constant or terms.pop(rows, 0) != 1:
        return None
    return None if any(rows in ranges(t) for t in terms) else terms


def _moved(
    x: UOp, found: dict[UOp, tuple[int, int]], sums: dict[UOp, Sum]
) -> tuple[tuple[int, int], Sum] | None:
    """A quotient beside whole multiples of what it was divided by: row // a + u = (row + a·u) // a."""
    terms, constant = sum_of(x)
    parts = [t for t, k in terms.items() if t in found and k == 1 and not found[t][1]]
    if constant or len(parts) != 1 or any(t in found for t in terms if t is not parts[0]):
        return None
    a, start = found[parts[0]][0], dict(sums[parts[0]])
    for t, k in terms.items():
        if t is not parts[0]:
            start[t] = start.get(t, 0) + a * k
    return (a, 0), start


def _parts(read: UOp, rows: UOp) -> tuple[dict[UOp, tuple[int, int]], Sum] | None:
    """Nodes that are row // a % b, by a and b (0: no remainder), and what is added to the number of a row.

    A remainder may have been taken of that sum before: it is the same but for multiples of what it is divided
    by in all. The sum of the largest remainder serves for all.
    """
    found: dict[UOp, tuple[int, int]] = {}
    sums: dict[UOp, Sum] = {}
    order = toposort(*read.src[1:])
    for node in order:
        if rows in ranges(node) and node.op in (Ops.FLOORDIV, Ops.FLOORMOD):
            x, by = node.src
            if x not in found and (moved := _moved(x, found, sums)) is not None:
                found[x], sums[x] = moved
            start = sums[x] if x in sums else _start_of(x, rows)
            a, b = found.get(x, (1, 0))
            if start is None or by.op is not Ops.CONST or (k := int(by.arg)) < 2 or (b and b % k):
                return None
            found[node] = (a, k) if node.op is Ops.FLOORMOD else (a * k, b // k)
            sums[node] = start
    # what is only divided again may be off by as much as that does not see
    final = {read.src[1]} | {s for n in order if n not in found for s in n.src} | set(read.src[2:])
    modulus = {n: (a * b if b else 0) for n, (a, b) in found.items() if b or n in final}
    if not modulus:
        return None
    best = max(modulus, key=lambda n: modulus[n] or LARGEST)
    for n, m in modulus.items():
        differs = {sums[n].get(t, 0) - sums[best].get(t, 0) for t in {*sums[n], *sums[best]}}
        if any(d % m if m else d for d in differs):
            return None
    return found, sums[best]


def _cuts(parts: dict[UOp, tuple[int, int]]) -> list[int] | None:
    """Where the number of a row is cut into digits; None where one cut does not lie on another's multiple."""
    found = sorted({1, *(a for a, _ in parts.values()), *(a * b for a, b in parts.values() if b)})
    return found if all(b % a == 0 for a, b in pairwise(found)) else None


def _in_digits(
    read: UOp, rows: UOp, parts: dict[UOp, tuple[int, int]], digits: list[UOp], cuts: list[int], start: UOp
) -> UOp:
    """The read with digits for what was divided."""

    def part(a: int, b: int) -> UOp:
        terms = [(d, c // a) for d, c in zip(digits, cuts, strict=True) if c >= a and (not b or c < a * b)]
        return join_sum(terms, 0, rows)

    done = {rows: alu(Ops.SUB, part(1, 0), start), **{n: part(a, b) for n, (a, b) in parts.items()}}
    for node in toposort(read):
        if node not in done:
            done[node] = node.replace(tuple([done[s] for s in node.src])) if node.src else node
    return done[read]


# --- dimensions


def _ends(read: UOp) -> list[UOp]:
    gates = {c: None for g in read.src[2:] for c in conjuncts(simplify(g))}
    return sorted(gates, key=lambda c: len(ranges(c)), reverse=True)


def _dimensions(read: UOp, inner: UOp, digits: list[UOp]) -> list[Dimension] | None:
    """A dimension for the elements of a row, for each digit, and for what moves beside them."""
    terms, constant = sum_of(read.src[1])
    if terms.get(inner) != 1 or any(terms.get(g, 0) < 1 for g in digits):
        return None
    if any(t not in digits and not ranges(t).isdisjoint(digits) for t in terms):
        return None
    owned: dict[UOp, dict[UOp, int]] = {}  # a digit's terms, where a condition names them
    lowest: dict[UOp, int] = {}
    for c in _ends(read):
        if c.op is not Ops.CMPLT or not c.src[0].dtype.is_index:
            return None
        sides, rest = sum_of(alu(Ops.SUB, *c.src))
        mine = [g for g in digits if g in sides]
        if len(mine) == 1 and len(sides) > 1:
            sign = 1 if sides[mine[0]] > 0 else -1
            named = {t: sign * k for t, k in sides.items()}
            if owned.setdefault(mine[0], named) != named:
                return None
            if sign < 0:
                lowest[mine[0]] = -1 - rest
    strides = {}
    for g in digits:
        step = owned.get(g, {}).get(g, 1)
        if terms[g] % step:
            return None
        strides[g] = terms[g] // step
    found = {
        g: Dimension(strides[g], owned.get(g, {g: 1}).copy(), lowest.get(g, 0), is_gated=g in lowest)
        for g in digits
    }
    row, beside = Dimension(1, {inner: 1}, 0), []
    taken = {inner, *digits}
    for g, named in owned.items():
        if any(terms.get(t) != k * strides[g] for t, k in named.items()):
            return None
        taken |= named.keys()
    free = sorted((g for g in digits if g not in owned), key=lambda g: -strides[g])
    for t, k in terms.items():
        if t in taken:
            continue
        if k % min(strides.values()):
            row.terms[t] = k
        elif fitting := [g for g in free if k % strides[g] == 0]:
            found[fitting[0]].terms[t] = k // strides[fitting[0]]
        else:
            beside.append(Dimension(abs(k), {t: 1 if k > 0 else -1}, 0))
    left = constant - sum(d.constant * d.stride for d in found.values())
    for g in free:
        found[g].constant, left = divmod(left, strides[g])
    row.constant = left
    return [row, *(found[g] for g in digits), *beside]


def _gated(read: UOp, digits: list[UOp]) -> set[UOp]:
    """Digits that a window moves beside."""
    sums = [sum_of(alu(Ops.SUB, *c.src))[0] for c in _ends(read)]
    named = [[g for g in digits if g in terms] for terms in sums if len(terms) > 1]
    return {g for found in named if len(found) == 1 for g in found}


def _that_agree(read: UOp, rows: UOp) -> UOp:
    """The read under those of its conditions that divide the same sum.

    One condition may have come twice by different ways, and been simplified in each: the plainest are kept.
    """

    def others(c: UOp) -> int:
        return sum(n.op in (Ops.FLOORDIV, Ops.FLOORMOD) and rows not in ranges(n) for n in toposort(c))

    kept = make(read.op, read.dtype, read.src[:2], read.arg, read.origin)
    for c in sorted((c for g in read.src[2:] for c in conjuncts(g)), key=others):
        both = alu(Ops.AND, kept.src[2], c) if len(kept.src) > 2 else c
        more = make(read.op, read.dtype, (*read.src[:2], both), read.arg, read.origin)
        if rows not in ranges(c) or _parts(more, rows) is not None:
            kept = more
    return kept


def _without_end(read: UOp, rows: UOp, start: Sum) -> tuple[UOp, int | None]:
    """The read without a condition that rows end somewhere, and where they do."""
    end, kept = None, []
    for c in (c for g in read.src[2:] for c in conjuncts(g)):  # as they are: parts of them are known
        if c.op is Ops.CMPLT and c.src[0].dtype.is_index:
            terms, rest = sum_of(alu(Ops.SUB, *c.src))
            if terms == {rows: 1, **start}:
                end = -rest if end is None else min(end, -rest)
                continue
        kept.append(c)
    gate = [reduce(partial(alu, Ops.AND), kept)] if kept else []
    return make(read.op, read.dtype, (*read.src[:2], *gate), read.arg, read.origin), end


def window_of(read: UOp, rows: UOp, inner: UOp, known: bool = False) -> Window | None:
    """A tile's read as a walk through images; None where it is none. `known`: its conditions are those of a
    box that was found before."""
    if read.op is not Ops.INDEX or read.src[0].op is not Ops.DEFINE_GLOBAL:
        return None
    if known:
        read = _that_agree(read, rows)
    found = _parts(read, rows)
    cuts = None if found is None else _cuts(found[0])
    if found is None or cuts is None or len(cuts) < 2:
        return None
    start = join_sum(list(found[1].items()), 0, rows)
    low, high = bounds(start)
    if not math.isfinite(high) or low < 0:
        return None
    read, end = _without_end(read, rows, found[1])
    total = min(int(high) + int(rows.src[0].arg), end or LARGEST)
    if end is not None and total % cuts[-1] and not known:
        return None  # the walk would go on to the end of a line
    sizes = [b // a for a, b in pairwise(cuts)]
    sizes.append(-(-total // cuts[-1]))
    digits = [
        make(Ops.RANGE, rows.dtype, (const(rows.dtype, n),), (_DIGITS + i, AxisKind.LOOP))
        for i, n in enumerate(sizes)
    ]
    moved = _in_digits(read, rows, found[0], digits, cuts, start)
    dimensions = _dimensions(moved, inner, digits)
    if dimensions is None or not (known or all(condition(c, dimensions) for c in _ends(moved))):
        return None
    if len(dimensions) > 1 + len(digits):
        return None  # a walk goes through all images there are
    if digits[-1] in _gated(moved, digits):  # one image: the walk ends where it does
        dimensions.append(Dimension(dimensions[-1].stride, {}, 0, 1))
    elif end is not None and len(dimensions[-1].terms) > 1 and not known:
        return None  # after the last of these images it would go on in others
    return Window(dimensions, digits, cuts, start, inner)


# --- boxes


def im2col_box(read: UOp, dims: tuple[UOp, ...]) -> Box | None:
    """The box for a tile with these rows and this row; None where TMA cannot walk so."""
    if len(dims) != 2 or any(d.src[0].op is not Ops.CONST for d in dims):
        return None
    rows, row = (int(d.src[0].arg) for d in dims)
    read, dims, _ = in_panels(read, dims)
    window = window_of(read, dims[0], dims[1])
    if window is None or not 1 <= len(window.spatial) <= 3:
        return None
    itemsize = read.dtype.itemsize
    pointer = read.src[0].dtype
    assert isinstance(pointer, PtrDType)
    sizes = []
    for d in window.dimensions:
        extent = d.extent()
        if extent is None or (extent[0] < 0 and not d.is_gated):
            return None
        sizes.append(extent[1] + 1 if d.size is None else min(d.size, extent[1] + 1))
    strides = tuple(d.stride for d in window.dimensions)
    if any(k * itemsize % ALIGNED for k in strides[1:]) or not all(0 < s < LARGEST for s in sizes):
        return None
    if 1 + sum((s - 1) * k for s, k in zip(sizes, strides, strict=True)) > pointer.size:
        return None
    part = ROW // itemsize
    if not 1 <= rows <= MOST_ROWS or row % part:
        return None
    walk = _walk(window, sizes[1:-1])
    return None if walk is None else Box(tuple(sizes), strides, (part, rows), walk=walk)


def _walk(window: Window, sizes: list[int]) -> Walk | None:
    """Corners and steps, if the engine has them."""
    count = len(sizes)
    lower, upper, steps = [], [], []
    for d, size in zip(window.spatial, sizes, strict=True):
        digit = next(g for g in window.digits if g in d.terms)
        step, low = window.step(d), window.lower(d)
        terms, least = window.offset(d)
        reach = sum(int(max(k * a, k * b)) for t, k in terms.items() for a, b in [bounds(t)]) - least
        high = low + step * (int(digit.src[0].arg) - 1) - (size - 1)
        if not 1 <= step <= MOST_STEP or reach >= OFFSETS[count]:
            return None
        if not all(-CORNERS[count] <= c < CORNERS[count] for c in (low, high)):
            return None
        lower.append(low)
        upper.append(high)
        steps.append(step)
    return Walk(tuple(lower), tuple(upper), tuple(steps), any(map(_is_step, ranges(window.start))))


def _is_step(r: UOp) -> bool:
    return r.op is Ops.RANGE and r.arg[1] is AxisKind.REDUCE


def _first_place(read: UOp, dims: tuple[UOp, ...], box: Box) -> list[UOp] | None:
    """Where a walk begins, and its offsets, from the place of its first row alone; None if that is not one.

    Where tiles end with lines, or images with tiles, nothing is left of the digits of a row's number: the
    first ones are in the tile's place. Strides tell which dimension a term moves along, and the loops in it
    whether it is a place or shifts the window. That the rows of the tile are a walk was known before.
    """
    walk, (rows, inner) = box.walk, dims
    assert walk is not None
    terms, constant = sum_of(simplify(substitute(read.src[1], {rows: const(rows.dtype, 0)})))
    if terms.pop(inner, 0) != 1:
        return None
    count = len(box.strides)
    places: list[Sum] = [{} for _ in range(count)]
    shifts: list[Sum] = [{} for _ in range(count)]
    for t, k in terms.items():
        at = max((d for d in range(count) if k % box.strides[d] == 0), key=lambda d: box.strides[d])
        loops = {_is_step(r) for r in ranges(t)}
        is_place = not 0 < at < count - 1 or walk.summed in loops
        if 0 < at < count - 1 and len(loops) != 1:
            return None
        (places if is_place else shifts)[at][t] = k // box.strides[at]
    like = read.src[1]
    found, offsets = [], []
    for d in range(1, count - 1):
        least = _least(shifts[d])
        constant -= (walk.lower[d - 1] - least) * box.strides[d]
        place = simplify(join_sum(list(places[d].items()), 0, like))
        low, high = bounds(place)
        # what all places of a dimension reach over: places beyond it are in the next line, or image
        reach = walk.upper[d - 1] - walk.lower[d - 1] + box.sizes[d] - 1 + walk.steps[d - 1]
        if high >= reach and box.strides[d + 1] == reach * box.strides[d]:
            places[d + 1][alu(Ops.FLOORDIV, place, const(like.dtype, reach))] = 1
            place = alu(Ops.FLOORMOD, place, const(like.dtype, reach))
            high = reach - 1
        if low < 0 or high >= reach:
            return None
        found.append(join_sum([(place, 1)], walk.lower[d - 1], like))
        offsets.append(join_sum(list(shifts[d].items()), -least, like))
    image, begin = divmod(constant, box.strides[-1])
    row = join_sum(list(places[0].items()), begin, like)
    last = simplify(join_sum(list(places[-1].items()), image, like))
    (low, high), (image_low, _) = bounds(row), bounds(last)  # turns of a block say too much of the last image
    return [row, *found, last, *offsets] if 0 <= low <= high < box.sizes[0] and image_low >= 0 else None


def _least(terms: Sum) -> int:
    return sum(int(min(k * a, k * b)) for t, k in terms.items() for a, b in [bounds(t)])


def walk_coordinates(read: UOp, dims: tuple[UOp, ...], panels: int, box: Box) -> list[list[UOp]]:
    """Where the walks of a tile's panels begin, and then the offsets of the window."""
    read, dims, number = in_panels(read, dims)
    found = _from_digits(read, dims, box) or _first_place(read, dims, box)
    if found is None:
        raise CompileError(f"a walk through images with strides {box.strides} reads memory in another order")
    if number is None:
        return [[simplify(c) for c in found]]
    each = [{number: const(number.dtype, i)} for i in range(panels)]
    return [[simplify(substitute(c, panel)) for c in found] for panel in each]


def _from_digits(read: UOp, dims: tuple[UOp, ...], box: Box) -> list[UOp] | None:
    """The same by the digits of the tile's first row; None where its rows are not taken apart so."""
    window = window_of(read, dims[0], dims[1], known=True)
    if window is None or tuple(d.stride for d in window.dimensions) != box.strides:
        return None
    like = read.src[1]
    sizes = [int(g.src[0].arg) for g in window.digits]
    place = []
    for i, (cut, size) in enumerate(zip(window.cuts, sizes, strict=True)):
        at = window.start if cut == 1 else alu(Ops.FLOORDIV, window.start, const(like.dtype, cut))
        place.append(at if i == len(sizes) - 1 else alu(Ops.FLOORMOD, at, const(like.dtype, size)))
    first = window.dimensions[0]
    row = [(t, k) for t, k in first.terms.items() if t is not window.inner]
    out, offsets = [join_sum(row, first.constant, like)], []
    for d, at in zip(window.spatial, place, strict=False):
        terms, least = window.offset(d)
        out.append(join_sum([(at, window.step(d))], window.lower(d), like))
        offsets.append(join_sum(list(terms.items()), -least, like))
    last = window.dimensions[-1]
    beside = list(window.offset(last)[0].items())
    images = [(place[-1], 1)] if len(window.digits) > len(window.spatial) else []
    return [*out, join_sum([*images, *beside], last.constant, like), *offsets]
