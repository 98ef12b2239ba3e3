"""Whether threads get in each other's way: two of them at one place, one of them writing, and no barrier.

Two threads are two copies of everything that differs between them. Workers of a CPU differ in the axis that
they share; threads of a GPU in all hardware indices for memory of the device, in those of the block for
memory of the block, where barriers order what is done.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import final

from morok.dtype import AddrSpace, index
from morok.ir.bounds import bounds, vmin
from morok.ir.checks import NOTE
from morok.ir.memory import is_alone, joined_by
from morok.ir.node import UOp, alu, const, make, toposort
from morok.ir.ops import AxisKind, Ops
from morok.proof.kernels.linear import Step, Sum, Sums, meets
from morok.proof.kernels.points import LEAVES, leaves_of
from morok.proof.kernels.walk import Access, Closer, Listing, conjuncts
from morok.rewrite.engine import substitute

_MOST_WANTED = 4096
_FAR = 1 << 64


@final
@dataclass(frozen=True, eq=False)
class Place:
    """An access, closed."""

    access: Access
    where: UOp
    lanes: int
    given: tuple[UOp, ...]
    total: Sum
    pinned: frozenset[tuple[UOp, int]]  # leaves that the conditions leave one value, and which


@final
@dataclass(frozen=True, eq=False)
class Conflict:
    """Two accesses that could meet, in different threads."""

    a: Place
    b: Place
    same: frozenset[UOp]  # loops of which both are in the same pass
    threads: tuple[UOp, ...]  # what threads differ in
    next: UOp | None = None  # b is one pass of this loop later than a
    apart: bool = True  # threads are told apart by their indices; else the two are different ones anyway

    @property
    def kind(self) -> tuple[object, ...]:
        """What pairs that are decided together have in common."""
        a, b = self.a, self.b
        return a.access.memory, a.total.terms, b.total.terms, self.same, self.next, a.pinned & b.pinned


def places(listing: Listing, closer: Closer) -> tuple[list[Place], Sums]:
    """What can be in somebody's way: memory that threads share, and that somebody writes."""
    on_grid = bool(listing.specials)
    shared = {AddrSpace.GLOBAL, AddrSpace.LOCAL} if on_grid else {AddrSpace.GLOBAL}
    # notes are written by whoever has one, and any of them will do
    written = {a.memory for a in listing.accesses if a.writes and a.space in shared and a.node.arg != NOTE}
    # whoever notes a position that is outside notes the truth: threads may meet there
    chosen = [a for a in listing.accesses if a.memory in written and a.node.arg != NOTE]
    if not on_grid and not listing.threads:
        chosen = []
    wheres = [(a, *part) for a in chosen for part in _parts(a, closer)]
    sums = Sums([*(w for _, w, _, _ in wheres), *(c for _, _, _, given in wheres for c in given)])
    return [Place(a, w, n, given, sums.of(w), _pinned(given)) for a, w, n, given in wheres], sums


def _parts(access: Access, closer: Closer) -> Iterator[tuple[UOp, int, tuple[UOp, ...]]]:
    """(place, elements, conditions): a vector as a whole, or by lanes if each has its own condition."""
    where = closer.lane(access.address.src[1])
    if len(access.address.src) < 3 or access.address.src[2].dtype.lanes == 1:
        yield where, access.lanes, conditions_of(access, closer)
        return
    for i in range(access.lanes):
        yield alu(Ops.ADD, where, const(where.dtype, i)), 1, conditions_of(access, closer, i)


def conditions_of(access: Access, closer: Closer, lane: int = 0) -> tuple[UOp, ...]:
    """What holds wherever a lane of the access is touched."""
    closed = [closer.lane(c) for c in access.conditions]
    if len(access.address.src) > 2:
        gate = access.address.src[2]
        closed.append(closer.lane(gate, lane if gate.dtype.lanes > 1 else 0))
    return tuple(c for condition in closed for c in conjuncts(condition))


def _pinned(given: tuple[UOp, ...]) -> frozenset[tuple[UOp, int]]:
    found = set()
    for condition in given:
        if len(condition.src) != 2 or condition.src[1].op is not Ops.CONST:
            continue
        x, y = condition.src
        if x.op in LEAVES and condition.op is Ops.CMPEQ:
            found.add((x, int(y.arg)))
        elif x.op in LEAVES and condition.op is Ops.CMPLT and y.arg == 1 and vmin(x) >= 0:
            found.add((x, 0))
    return frozenset(found)


# --- who can meet


def conflicts(listing: Listing, found: list[Place]) -> Iterator[Conflict]:
    """All pairs that no barrier keeps apart."""
    by_memory: dict[UOp, list[Place]] = defaultdict(list)
    for place in found:
        by_memory[place.access.memory].append(place)
    for group in by_memory.values():
        writers = [p for p in group if p.access.writes]
        for a in writers:
            for b in group:
                if b.access.writes and b.access.position < a.access.position:
                    continue  # seen from the other side
                if (op := joined_by(a.access.node)) is not None and op is joined_by(b.access.node):
                    continue  # memory joins what both bring, in any order
                if a is b and is_alone(a.access.node):
                    continue  # as it was given: each has its own
                if not listing.specials:
                    yield from _workers(listing, a, b)
                elif a.access.space is AddrSpace.GLOBAL:
                    yield _in_grid(listing, a, b)
                else:
                    yield from _in_block(listing, a, b)


def _in_grid(listing: Listing, a: Place, b: Place) -> Conflict:
    """In memory of the device: threads with a role are told apart by their number in it, which places have
    without the role, also where nobody asks for it."""
    one, other = _role_of(a), _role_of(b)
    if one is None or other is None:
        return Conflict(a, b, frozenset(), tuple(listing.specials))
    if one is not other:
        return Conflict(a, b, frozenset(), tuple(listing.specials), apart=False)
    mine = [s for s in listing.specials if str(s.arg).startswith("gidx")]
    role = one.arg[2]
    if not role.single:  # else it is one thread of each block
        numbered = [s for s in listing.specials if one in s.src]
        mine += [make(Ops.SPECIAL, s.dtype, s.src[:1], s.arg) for s in numbered] or [
            make(Ops.SPECIAL, index, (const(index, role.threads),), role.name)
        ]
    return Conflict(a, b, frozenset((one,)), tuple(mine))


def _role_of(place: Place) -> UOp | None:
    return next((r for r in place.access.loops if r.arg[1] is AxisKind.ROLE), None)


def _workers(listing: Listing, a: Place, b: Place) -> Iterator[Conflict]:
    """On a CPU: what is outside of the shared axis is done by one worker while others are in it."""
    inside = [any(t in p.access.loops for t in listing.threads) for p in (a, b)]
    if not any(inside):
        return
    yield Conflict(a, b, frozenset(), tuple(listing.threads), apart=all(inside))


def _in_block(listing: Listing, a: Place, b: Place) -> Iterator[Conflict]:
    """In memory of a block: instances of the two without a barrier between them."""
    block = tuple(s for s in listing.specials if not str(s.arg).startswith("gidx"))
    grid = frozenset(s for s in listing.specials if str(s.arg).startswith("gidx"))
    p, q = sorted((a.access.position, b.access.position))
    first, last = (a, b) if a.access.position <= b.access.position else (b, a)
    loops = [r for r in a.access.loops if r in b.access.loops]

    def barrier(low: int, high: int) -> bool:
        return any(low < i < high and _surely_runs(listing, i, low, high) for i in listing.barriers)

    if not barrier(p, q):
        yield Conflict(first, last, grid | frozenset(loops), block)
    for depth, loop in enumerate(loops):
        start, stop = listing.bodies[loop]
        around = grid | frozenset(loops[:depth])
        if not barrier(start, stop):
            # any two passes
            yield Conflict(first, last, around, block)
            return
        for x, y in ((first, last), (last, first)):
            if not barrier(x.access.position, stop) and not barrier(start, y.access.position):
                yield Conflict(x, y, around, block, loop)


def _surely_runs(listing: Listing, position: int, low: int, high: int) -> bool:
    """Whether a barrier between two positions surely runs: the loops that it alone is in have a pass."""
    for loop, (start, stop) in listing.bodies.items():
        if low < start < position < stop < high and vmin(loop.src[0]) < 1:
            return False
    return True


# --- by strides


def apart_by_strides(pairs: list[Conflict], sums: Sums, data: Container[UOp]) -> bool:
    """Whether pairs of one kind never meet, whatever their conditions say."""
    first = pairs[0]
    if first.next is not None:
        return False
    wanted: set[int] = set()
    for c in pairs:
        d = c.b.total.constant - c.a.total.constant
        wanted.update(range(d - c.a.lanes + 1, d + c.b.lanes))
        if len(wanted) > _MOST_WANTED:
            return False
    steps, moved = _steps(first, sums, data)
    return meets(steps, wanted, moved) is False


def _steps(c: Conflict, sums: Sums, data: Container[UOp]) -> tuple[list[Step], bool]:
    """The place of a less that of b, as steps; and whether the two are different threads anyway."""
    owner = {digit: leaf for leaf, digits in sums.digits.items() for digit in digits}
    left, right = dict(c.a.total.terms), dict(c.b.total.terms)
    moved = not c.apart
    steps: list[Step] = []
    used: set[UOp] = set()
    both = {leaf for leaf, _ in c.a.pinned & c.b.pinned}  # to the same value
    for atom in {**left, **right}:
        leaf = owner.get(atom, atom)
        used.add(leaf)
        low, high = bounds(atom)
        if math.isinf(low) or math.isinf(high):
            low, high = -_FAR, _FAR
        one, other = left.get(atom, 0), right.get(atom, 0)
        fixed = leaf in c.same or (leaf.op is Ops.DEFINE_VAR and leaf not in data)
        pinned = leaf in both
        if fixed:
            steps.append(Step(one - other, low, high))
        elif one == other:
            reach = 0 if pinned else high - low
            steps.append(Step(one, -reach, reach, leaf in c.threads))
        else:
            steps += [Step(one, low, high), Step(-other, low, high)]
            moved = moved or leaf in c.threads
    for t in c.threads:
        if t not in used and t not in both:
            steps.append(Step(0, -1, 1, True))
    return steps, moved


# --- as a condition


Claim = tuple[UOp, list[UOp]]  # and what is given


def as_claim(c: Conflict, data: Mapping[UOp, UOp]) -> Claim:
    """(claim, given): that the two do not touch the same place."""
    (there,), given = _other_thread(c, data, [c.b.where])
    return alu(Ops.NOT, _meet(c, _wide(c.a.where), _wide(there))), given


def by_rows(c: Conflict, data: Mapping[UOp, UOp]) -> list[Claim]:
    """Claims that together say the same, for places in rows of an unknown length; none where there are none.

    Where a·n + b and c·n + d have b and d in a row, from 0 to n, they meet only if a = c: no product is left.
    """
    for n in leaves_of(c.a.where):
        if n.op is not Ops.DEFINE_VAR or n in data:
            continue
        one, other = _row_and_column(c.a.where, n), _row_and_column(c.b.where, n)
        if one is None or other is None or one[2] != other[2]:
            continue
        length = alu(Ops.MUL, _wide(n), const(index, one[2]))
        claims = [_in_a_row(part[1], p.lanes, length, p.given) for part, p in ((one, c.a), (other, c.b))]
        (row, column), given = _other_thread(c, data, other[:2])
        apart = alu(Ops.OR, alu(Ops.CMPNE, one[0], row), alu(Ops.NOT, _meet(c, one[1], column)))
        return [*claims, (apart, given)]
    return []


def _in_a_row(column: UOp, lanes: int, length: UOp, given: tuple[UOp, ...]) -> Claim:
    end = alu(Ops.ADD, column, const(index, lanes - 1))
    return alu(Ops.AND, alu(Ops.CMPLT, const(index, -1), column), alu(Ops.CMPLT, end, length)), list(given)


def _row_and_column(place: UOp, n: UOp) -> tuple[UOp, UOp, int] | None:
    """(a, b, k) where a place is a·k·n + b, and neither has n in it; None where it is otherwise."""
    rows: list[tuple[UOp, int]] = []
    column: UOp = const(index, 0)
    stack = [(place, 1)]
    while stack:
        x, k = stack.pop()
        if not _has(x, n):
            column = alu(Ops.ADD, column, alu(Ops.MUL, _wide(x), const(index, k)))
        elif x is n:
            rows.append((const(index, 1), k))
        elif x.op is Ops.CAST and x.dtype.is_int:
            stack.append((x.src[0], k))
        elif x.op is Ops.ADD:
            stack += [(s, k) for s in x.src]
        elif x.op is Ops.MUL and x.src[1].op is Ops.CONST:
            stack.append((x.src[0], k * int(x.src[1].arg)))
        elif x.op is Ops.SHL and x.src[1].op is Ops.CONST:
            stack.append((x.src[0], k << int(x.src[1].arg)))
        elif x.op is Ops.MUL and (factor := _beside(x, n)) is not None:
            rows.append((_wide(factor), k))
        else:
            return None
    step = math.gcd(*(k for _, k in rows))
    row = reduce(
        lambda total, part: alu(Ops.ADD, total, alu(Ops.MUL, part[0], const(index, part[1] // step))),
        rows,
        const(index, 0),
    )
    return (row, column, step) if step else None


def _has(x: UOp, n: UOp) -> bool:
    """Whether a variable is part of an expression; it may be that of where a loop ends."""
    return n in toposort(x, stop=lambda node: node.op in LEAVES)


def _beside(x: UOp, n: UOp) -> UOp | None:
    """What a variable is multiplied with."""
    for factor, other in (x.src, x.src[::-1]):
        while other.op is Ops.CAST and other.dtype.is_int:
            other = other.src[0]
        if other is n and not _has(factor, n):
            return factor
    return None


def _meet(c: Conflict, a: UOp, b: UOp) -> UOp:
    """Whether what begins at the two places overlaps."""
    return alu(
        Ops.AND,
        alu(Ops.CMPLT, a, alu(Ops.ADD, b, const(index, c.b.lanes))),
        alu(Ops.CMPLT, b, alu(Ops.ADD, a, const(index, c.a.lanes))),
    )


def _other_thread(c: Conflict, data: Mapping[UOp, UOp], wanted: Sequence[UOp]) -> tuple[list[UOp], list[UOp]]:
    """Expressions of b as the other thread has them, and what is given about both."""
    roots = (*wanted, *c.b.given)
    shift: dict[UOp, UOp] = {}
    given: list[UOp] = list(c.a.given)
    leaves = leaves_of(*roots, *c.threads, *([c.next] if c.next is not None else []))
    for leaf in leaves:
        if leaf in c.same or (leaf.op is Ops.DEFINE_VAR and leaf not in data):
            continue
        if leaf is c.next:
            shift[leaf] = alu(Ops.ADD, leaf, const(leaf.dtype, 1))
            given.append(alu(Ops.CMPLT, shift[leaf], leaf.src[0]))
        else:
            shift[leaf] = _other(leaf, shift)
    there = [substitute(root, shift) for root in roots]
    given += there[len(wanted) :]
    if c.apart:
        differ = [alu(Ops.CMPNE, t, shift[t]) for t in c.threads]
        given.append(reduce(lambda x, y: alu(Ops.OR, x, y), differ))
    return there[: len(wanted)], given


def _wide(x: UOp) -> UOp:
    return make(Ops.CAST, index, (x,))


def _other(leaf: UOp, shift: dict[UOp, UOp]) -> UOp:
    """The same variable of the other thread, up to where that thread's own loops let it go."""
    src = tuple([substitute(s, shift) for s in leaf.src])
    if leaf.op is Ops.RANGE:
        return make(Ops.RANGE, leaf.dtype, src, (f"{leaf.arg[0]}'", *leaf.arg[1:]))
    if leaf.op is Ops.SPECIAL:
        return make(Ops.SPECIAL, leaf.dtype, src, f"{leaf.arg}'")
    return make(Ops.DEFINE_VAR, leaf.dtype, (), (f"{leaf.arg[0]}'", *leaf.arg[1:]))
