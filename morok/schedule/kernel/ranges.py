"""Loops reshaped until indices are plain: split where indices divide them, merged where indices allow it.

A loop over 4096 elements whose index is used as `r // 64` and `r % 64` becomes two loops, without divisions.
Two loops that only ever appear as `a*64 + b` become one, which is easier to cut into vectors and threads.
Nothing is split or merged that would make an index more expensive or a reduction run more often.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise

from morok.ir.build import rng
from morok.ir.infer import closed_ranges, ranges
from morok.ir.node import UOp, alu, const, make, toposort
from morok.ir.ops import Ops
from morok.ir.scan import parts
from morok.schedule.contraction import adds_words
from morok.symbolic.quotients import split_sum
from morok.symbolic.sets import simplify

_DIVISIONS = frozenset((Ops.FLOORDIV, Ops.FLOORMOD))
_NARROW = 16  # steps of a loop that is too short for a tile of its own
_FEWEST_STEPS = 4  # of a sum that is worth a tile
Replacement = tuple[UOp, tuple[UOp, ...]]  # an expression for the loop's index, and the loops it is made of


def replace_loops(kernel: UOp, mapping: Mapping[UOp, Replacement]) -> UOp:
    """The kernel with loops replaced by others. What closed the old ones, or ran along them, does so with the
    new ones."""
    done: dict[UOp, UOp] = {old: new for old, (new, _) in mapping.items()}  # nodes that become others
    changed = done.keys()
    for node in toposort(kernel):
        if changed.isdisjoint(node.src) or node in done:
            continue
        closed = parts(node).loops if node.op is Ops.SCAN else closed_ranges(node)
        body = tuple([done.get(s, s) for s in node.src[: len(node.src) - len(closed)]])
        loops: list[UOp] = []
        for r in closed:
            loops += mapping[r][1] if r in mapping else (done.get(r, r),)
        done[node] = node.replace((*body, *dict.fromkeys(loops)))
    return done.get(kernel, kernel)


def _size(r: UOp) -> int | None:
    return int(r.src[0].arg) if r.op is Ops.RANGE and r.src[0].op is Ops.CONST else None


def _divisions(order: list[UOp]) -> int:
    return sum(n.op in _DIVISIONS for n in order)


def _next_number(order: list[UOp]) -> int:
    return 1 + max((int(n.arg[0]) for n in order if n.op is Ops.RANGE), default=-1)


# --- splitting


def split_ranges(kernel: UOp, ctx: object = None) -> UOp:
    """Loops that indices divide by a constant become an outer and an inner loop.

    The outputs of a product stay one loop where only something beside it divides them, by little: an image
    half as wide that is added to a convolution costs a division for an output, and tiles cut from every other
    output cost several times the product.
    """
    while True:
        order = toposort(kernel)
        tiled = _outputs_of_products(order)
        whole = {r for n in order if n.op is Ops.REDUCE and adds_words(n.src[0]) for r in closed_ranges(n)}
        divisors: dict[UOp, set[int]] = {}
        for node in order:
            if node.op in _DIVISIONS and node.src[1].op is Ops.CONST and node.src[0].op is Ops.RANGE:
                divisors.setdefault(node.src[0], set()).add(int(node.src[1].arg))
        found = None
        for r, used in divisors.items():
            size = _size(r)
            inner = min(
                (d for d in used if size is not None and 1 < d < size and size % d == 0), default=None
            )
            if inner is not None and inner < _NARROW and r in tiled:
                continue
            if r in whole:
                continue
            if size is not None and inner is not None:
                found = _split(kernel, order, r, size, inner)
                break
        if found is None:
            return kernel
        kernel = found


def _outputs_of_products(order: list[UOp]) -> set[UOp]:
    """Loops over outputs of sums that use some of their reads again along them, and divide them in none."""
    found: set[UOp] = set()
    divided: set[UOp] = set()
    for node in order:
        if node.op is not Ops.REDUCE or node.arg != (Ops.ADD,):
            continue
        if math.prod(_size(k) or _FEWEST_STEPS for k in closed_ranges(node)) < _FEWEST_STEPS:
            continue
        inside = toposort(node.src[0], stop=lambda n: n.op is Ops.REDUCE)
        reads = [ranges(n) for n in inside if n.op is Ops.INDEX]
        found |= {
            r for r in ranges(node) if any(r in own for own in reads) and any(r not in own for own in reads)
        }
        divided |= {n.src[0] for n in inside if n.op in _DIVISIONS}
    return found - divided


def _split(kernel: UOp, order: list[UOp], r: UOp, size: int, inner: int) -> UOp | None:
    number = _next_number(order)
    outer_loop = make(Ops.RANGE, r.dtype, (const(r.dtype, size // inner),), r.arg, r.origin)
    inner_loop = rng(inner, number, r.arg[1])
    expression = alu(Ops.ADD, alu(Ops.MUL, outer_loop, const(r.dtype, inner)), inner_loop)
    new = simplify(replace_loops(kernel, {r: (expression, (outer_loop, inner_loop))}))
    return new if _divisions(toposort(new)) < _divisions(order) else None


# --- merging


def merge_ranges(kernel: UOp, ctx: object = None) -> UOp:
    """Neighbouring loops become one where no index gets more expensive by it."""
    refused: set[tuple[UOp, UOp]] = set()
    while True:
        order = toposort(kernel)
        merged = None
        for pair in _neighbours(order):
            if pair in refused:
                continue
            merged = _merge(kernel, order, *pair)
            if merged is not None:
                break
            refused.add(pair)
        if merged is None:
            return kernel
        kernel = merged


def _neighbours(order: list[UOp]) -> list[tuple[UOp, UOp]]:
    """Pairs of loops that are closed together wherever one of them is closed, inner pairs first."""
    closings = [closed for n in order if (closed := closed_ranges(n))]
    pairs: dict[tuple[UOp, UOp], int] = {}
    often: dict[UOp, int] = {}
    for closed in closings:
        for r in closed:
            often[r] = often.get(r, 0) + 1
        for pair in pairwise(closed):
            pairs[pair] = pairs.get(pair, 0) + 1
    found = [(a, b) for (a, b), n in pairs.items() if n == often[a] == often[b] and a.arg[1] is b.arg[1]]
    return found[::-1]


def _merge(kernel: UOp, order: list[UOp], a: UOp, b: UOp) -> UOp | None:
    rows, columns = _size(a), _size(b)
    if rows is None or columns is None or not _may_merge(order, a, b, columns):
        return None
    loop = rng(rows * columns, int(a.arg[0]), a.arg[1])
    if loop in order:
        loop = rng(rows * columns, _next_number(order), a.arg[1])
    outer = alu(Ops.FLOORDIV, loop, const(loop.dtype, columns))
    inner = alu(Ops.FLOORMOD, loop, const(loop.dtype, columns))
    new = simplify(replace_loops(kernel, {a: (outer, (loop,)), b: (inner, (loop,))}))
    return new if _divisions(toposort(new)) <= _divisions(order) else None


def _may_merge(order: list[UOp], a: UOp, b: UOp, columns: int) -> bool:
    """Quick tests: no reduction depends on one of the two alone, and no place is a different sum of them."""
    for node in order:
        if node.op is Ops.REDUCE:
            alive = ranges(node)
            if (a in alive) != (b in alive):
                return False
        elif node.op is Ops.INDEX:
            alive = ranges(node.src[1])
            if a not in alive and b not in alive:
                continue
            factors = {a: 0, b: 0}
            plain = True
            for term, k in split_sum(node.src[1])[0]:
                if term in factors:
                    factors[term] += k
                elif not ranges(term).isdisjoint(factors):
                    plain = False
            if plain and factors[a] != factors[b] * columns:
                return False
    return True
