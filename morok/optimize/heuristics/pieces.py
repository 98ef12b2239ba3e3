"""Loops whose places are told apart by constants, such as the parts of what is joined, and borders.

Each such read is guarded: a vector of which some lanes are guarded is put together from single elements, and
one that is guarded as a whole is read in vain. Cut where the guards change, each piece has none.
"""

from __future__ import annotations

import math
from itertools import pairwise

from morok.ir.infer import closed_ranges, ranges
from morok.ir.node import UOp, toposort
from morok.ir.ops import AxisKind, Ops
from morok.optimize.contraction import contraction_of
from morok.optimize.facts import access, output_loops, reads_of, store_of, trips, value_bytes
from morok.optimize.heuristics.builder import Builder
from morok.optimize.loops import size

LANE_OF_GUARD = 4  # operations for an element whose guard other lanes of its vector need not share
VECTOR_OF_GUARD = 3  # for a vector that is guarded as a whole
START_OF_PIECE = 6  # for a loop of its own
PARTS_OF_THREAD = 4  # so that one that has been held up is helped
LEFT_OF_WORK = 8  # one thread may do this part of what each has to do alone
REST_OF_PIECE = 2  # for an element that is left over behind its last vector


def cut_at_guards(builder: Builder) -> None:
    """Each loop is cut where the guards of its reads change, if that is less work. Products are left alone:
    what they read is packed, and a tile needs all of its steps.
    """
    done: set[UOp] = set()
    for effect in builder.loops.ast.src:
        if effect.op is not Ops.END:
            continue
        lanes = max(1, builder.machine.vector_bytes // value_bytes(store_of(effect)))
        for node in toposort(effect):
            if node.op is Ops.REDUCE and contraction_of((effect,), node) is None:
                reads = reads_of(*node.src[: len(node.arg)])
                for k in closed_ranges(node):
                    if k.op is Ops.RANGE and k not in done and not _computed_along(node, k):
                        done.add(k)
                        beside = any(a.step(k) == 1 for a in reads)
                        _cut(builder, node, k, beside, lanes)
        place = access(store_of(effect).src[0])
        for c in output_loops(effect):
            if c.arg[1] is AxisKind.LOOP and c not in done and not _computed_along(effect, c):
                done.add(c)
                _cut(builder, effect, c, place.step(c) == 1, lanes)


def cuts_of(effect: UOp, c: UOp) -> list[int]:
    """The places along a loop where a comparison with a constant changes."""
    count = size(c)
    if count is None:
        return []
    found = set()
    for node in toposort(effect):
        if node.op is not Ops.CMPLT:
            continue
        a, b = (_uncast(n) for n in node.src)
        if b is c and a.op is Ops.CONST:
            found.add(int(a.arg) + 1)
        elif a is c and b.op is Ops.CONST:
            found.add(int(b.arg))
    return sorted(p for p in found if 0 < p < count)


def _uncast(node: UOp) -> UOp:
    whole = node.op is Ops.CAST and node.src[0].op is Ops.RANGE and node.dtype.is_int
    return node.src[0] if whole else node


def _computed_along(root: UOp, c: UOp) -> bool:
    """Whether something inside is more than a value of each place: a reduction, or a row that is kept."""
    inside = (n for n in toposort(root) if n is not root)
    return any(n.op in (Ops.REDUCE, Ops.BUFFERIZE, Ops.SCAN) and c in ranges(n) for n in inside)


def _cut(builder: Builder, root: UOp, c: UOp, contiguous: bool, lanes: int) -> None:
    cuts = cuts_of(root, c)
    if not cuts or not _pays(builder, root, c, cuts, contiguous, lanes):
        return
    _halve(builder, int(c.arg[0]), 0, cuts)


def _halve(builder: Builder, number: int, start: int, cuts: list[int]) -> None:
    """Cuts a loop that begins at a place, in the middle first: each half has half of the guards."""
    if not cuts:
        return
    middle = len(cuts) // 2
    first = builder.loops.next_number()
    if builder.do("PEEL_FIRST", number, cuts[middle] - start):
        _halve(builder, first, start, cuts[:middle])
        _halve(builder, number, cuts[middle], cuts[middle + 1 :])


def _pays(builder: Builder, root: UOp, c: UOp, cuts: list[int], contiguous: bool, lanes: int) -> bool:
    """Whether the guards along a loop are more work than loops of their own for its pieces."""
    guarded = [a for a in reads_of(root) if len(a.node.src) > 2 and c in ranges(a.node.src[2])]
    count = trips(c)
    whole = count % lanes == 0 and 2 * lanes <= count <= lanes * builder.machine.registers // 4
    if contiguous and (whole or count < lanes):
        return False  # all of it is one body, in which each lane knows its place
    ends = (0, *cuts, count)
    sizes = [b - a for a, b in pairwise(ends)]
    if contiguous:
        uneven = any(p % lanes for p in cuts)
        work = len(guarded) * (count * LANE_OF_GUARD if uneven else count / lanes * VECTOR_OF_GUARD)
        return work > sum(START_OF_PIECE + n % lanes * REST_OF_PIECE for n in sizes)
    inside = [r for r in closed_ranges(root) if r.op is Ops.RANGE and int(r.arg[0]) > int(c.arg[0])]
    in_vain = (len(guarded) - 1) * count / lanes * VECTOR_OF_GUARD * math.prod(map(trips, inside))
    return in_vain > len(sizes) * START_OF_PIECE


def share_pieces(builder: Builder) -> bool:
    """Threads for effects that have no loop in common, such as pieces of a single loop: each is cut into as
    many parts as there are threads, or a few times as many, and a thread has the same parts of all.
    """
    loops, cores = builder.loops, builder.machine.cores
    work = {e: math.prod(map(trips, output_loops(e))) for e in loops.ast.src}
    large = _most_of(work, sum(work.values()) / (LEFT_OF_WORK * cores))
    plain = [[r for r in output_loops(e) if r.arg[1] is AxisKind.LOOP] for e in large]
    if len(large) < 2 or not all(plain) or frozenset(plain[0]).intersection(*plain):
        return False
    if any(n.op in (Ops.REDUCE, Ops.BUFFERIZE, Ops.SCAN) for n in loops.order):
        return False
    choices = [
        c for n in range(PARTS_OF_THREAD, 0, -1) if (c := _loops_to_share(plain, n * cores)) is not None
    ]
    if not choices:
        return False
    found, parts = min(choices, key=lambda c: max(trips(r) % c[1] / trips(r) for r in c[0]))
    before, numbers = builder.loops, dict.fromkeys(int(r.arg[0]) for r in found)
    for number in numbers:
        builder.do("PEEL", number, parts)
    if builder.do("THREAD", next(iter(numbers)), parts, tuple(numbers)[1:]):
        return True
    builder.loops = before
    return False


def _most_of(work: dict[UOp, int], left: float) -> list[UOp]:
    """The effects with most to do, in their order: those without have no more than so much together."""
    small: set[UOp] = set()
    for effect in sorted(work, key=lambda e: work[e]):
        left -= work[effect]
        if left < 0:
            break
        small.add(effect)
    return [e for e in work if e not in small]


def _loops_to_share(nests: list[list[UOp]], parts: int) -> tuple[list[UOp], int] | None:
    """The outermost loop of each nest that has enough steps for so many parts."""
    found = [next((r for r in nest if trips(r) >= 2 * parts), None) for nest in nests]
    return None if None in found else ([r for r in found if r is not None], parts)


__all__ = ["cut_at_guards", "share_pieces"]
