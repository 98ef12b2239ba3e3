"""Places as sums of multiples of loops and hardware indices, and whether two of them can ever be the same.

Offsets in a kernel are mostly such sums, and their strides mostly nest: then whether two different threads
meet is a question that a short search answers, exactly, where a solver would think for long. A quotient or
remainder of an index by a constant is a digit of it; an index whose digits are used is taken apart first.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, final

from morok.dtype import index
from morok.ir.bounds import bounds
from morok.ir.node import UOp, make, toposort
from morok.ir.ops import Ops
from morok.proof.kernels.ints import may_wrap
from morok.proof.kernels.points import LEAVES, interval_of

_MOST_STEPS = 20_000


@final
@dataclass(frozen=True)
class Sum:
    """constant + Σ factor · atom."""

    constant: int
    terms: tuple[tuple[UOp, int], ...]  # sorted, no factor is 0

    def interval(self) -> tuple[Any, Any]:
        low: Any = self.constant
        high: Any = self.constant
        for atom, factor in self.terms:
            a, b = bounds(atom)
            low, high = (
                (low + factor * a, high + factor * b) if factor > 0 else (low + factor * b, high + factor * a)
            )
        return low, high


def made(constant: int, terms: dict[UOp, int]) -> Sum:
    kept = [(a, f) for a, f in terms.items() if f]
    return Sum(constant, tuple(sorted(kept, key=lambda t: id(t[0]))))


def add(x: Sum, y: Sum, factor: int = 1) -> Sum:
    terms = dict(x.terms)
    for atom, f in y.terms:
        terms[atom] = terms.get(atom, 0) + f * factor
    return made(x.constant + y.constant * factor, terms)


def scale(x: Sum, factor: int) -> Sum:
    return Sum(x.constant * factor, tuple((a, f * factor) for a, f in x.terms)) if factor else Sum(0, ())


def magic_divisor(node: UOp) -> tuple[UOp, int] | None:
    """(x, d) where a product and a shift to the right are x // d, for every value that x can have."""
    if node.op is not Ops.SHR or node.src[1].op is not Ops.CONST:
        return None
    shift, product = int(node.src[1].arg), node.src[0]
    if product.op is not Ops.MUL or product.src[1].op is not Ops.CONST or shift > 62 or may_wrap(product):
        return None
    x, m = product.src[0], int(product.src[1].arg)
    low, high = bounds(x)
    if low < 0 or m <= 0:
        return None
    d = -(-(1 << shift) // m)
    for divisor in (d, d - 1):
        if divisor > 0:
            rest = m * divisor - (1 << shift)
            if rest >= 0 and high * rest < 1 << shift:
                return x, divisor
    return None


@final
class Sums:
    """Sums of closed nodes, each made once."""

    def __init__(self, roots: Iterable[UOp]) -> None:
        self.known: dict[UOp, Sum] = {}
        self.digits: dict[UOp, tuple[UOp, ...]] = {}  # of leaves that are taken apart, the lowest first
        self._take_apart(toposort(*roots))

    def _take_apart(self, nodes: list[UOp]) -> None:
        cuts: dict[UOp, set[int]] = {}
        for node in nodes:
            found = self._cut(node)
            if found is not None:
                cuts.setdefault(found[0], set()).update(found[1])
        for leaf, places in cuts.items():
            ends = interval_of(leaf)
            if ends is None or ends[0] != 0:
                continue
            chain = sorted(p for p in places if 1 < p <= ends[1])
            if not chain or any(b % a for a, b in pairwise(chain)):
                continue
            steps = [1, *chain]
            sizes = [b // a for a, b in zip(steps, chain, strict=False)] + [-(-(ends[1] + 1) // chain[-1])]
            digits = tuple(
                make(Ops.DEFINE_VAR, index, (), (f"{leaf.arg}/{step}", 0, size - 1))
                for step, size in zip(steps, sizes, strict=True)
            )
            self.digits[leaf] = digits
            self.known[leaf] = made(0, dict(zip(digits, steps, strict=True)))

    def _cut(self, node: UOp) -> tuple[UOp, list[int]] | None:
        """A leaf, and the places between whose digits this node cuts."""
        places: list[int] = []
        x = node
        while (step := self._quotient(x)) is not None:
            x, amount, modulo = step
            places = [*places, amount] if modulo else [amount, *(p * amount for p in places)]
        while x.op is Ops.CAST and x.src[0].dtype.is_int:
            x = x.src[0]
        return (x, places) if x.op in LEAVES and places else None

    def _quotient(self, node: UOp) -> tuple[UOp, int, bool] | None:
        """(x, c, is a remainder) of x // c and x % c, however they are written."""
        magic = magic_divisor(node)
        if magic is not None:
            return magic[0], magic[1], False
        if len(node.src) != 2 or node.src[1].op is not Ops.CONST or not node.dtype.is_int:
            return None
        x, c = node.src[0], int(node.src[1].arg)
        signed = bounds(x)[0] < 0
        if node.op is Ops.SHR and 0 <= c < 62:
            return x, 1 << c, False
        if node.op is Ops.AND and c > 0 and c & (c + 1) == 0:
            return x, c + 1, True
        if c > 0 and (node.op is Ops.FLOORDIV or (node.op is Ops.CDIV and not signed)):
            return x, c, False
        if c > 0 and (node.op is Ops.FLOORMOD or (node.op is Ops.CMOD and not signed)):
            return x, c, True
        return None

    def of(self, root: UOp) -> Sum:
        for node in toposort(root, stop=self.known.__contains__):
            if node not in self.known:
                self.known[node] = self._sum(node)
        return self.known[root]

    def _sum(self, node: UOp) -> Sum:
        op = node.op
        if op is Ops.CONST:
            return Sum(int(node.arg), ())
        atom = Sum(0, ((node, 1),))
        if op in LEAVES or not node.dtype.is_int or may_wrap(node):
            return atom
        if op in (Ops.CAST, Ops.BITCAST) and node.src[0].dtype.is_int:
            return self.known[node.src[0]]
        found = self._quotient(node)
        if found is not None:
            return self._divided(self.known.get(found[0]) or atom, found[1], found[2], atom)
        sums = [self.known[s] for s in node.src]
        if op is Ops.ADD:
            return add(sums[0], sums[1])
        if op is Ops.SUB:
            return add(sums[0], sums[1], -1)
        if op is Ops.NEG:
            return scale(sums[0], -1)
        if op in (Ops.MUL, Ops.MULACC):
            a, b = sums[:2]
            if a.terms and b.terms:
                return atom
            product = scale(a, b.constant) if not b.terms else scale(b, a.constant)
            return add(product, sums[2]) if op is Ops.MULACC else product
        if op is Ops.SHL and not sums[1].terms and 0 <= sums[1].constant < 63:
            return scale(sums[0], 1 << sums[1].constant)
        return atom

    def _divided(self, x: Sum, c: int, modulo: bool, atom: Sum) -> Sum:
        """x // c and x % c where what c does not divide lies in one period."""
        large = {a: f for a, f in x.terms if f % c == 0}
        small = {a: f for a, f in x.terms if f % c}
        rest = made(x.constant % c, small)
        low, high = rest.interval()
        if low < 0 or high >= c:
            return atom
        if modulo:
            return rest
        return made(x.constant // c, {a: f // c for a, f in large.items()})


@final
@dataclass(frozen=True)
class Step:
    """stride · x for low ≤ x ≤ high; something has moved if x ≠ 0 and it is marked."""

    stride: int
    low: int
    high: int
    marked: bool = False

    def span(self) -> tuple[int, int]:
        ends = self.stride * self.low, self.stride * self.high
        return min(ends), max(ends)


def meets(steps: Iterable[Step], wanted: Iterable[int], moved: bool = False) -> bool | None:
    """Can a sum of steps be one of the wanted numbers while something moves? None: the search is given up."""
    given = list(steps)
    moved = moved or any(s.marked and s.stride == 0 and s.low < s.high for s in given)
    order = sorted((s for s in given if s.stride), key=lambda s: -abs(s.stride))
    lows, highs = [0] * (len(order) + 1), [0] * (len(order) + 1)
    for i in range(len(order) - 1, -1, -1):
        low, high = order[i].span()
        lows[i], highs[i] = lows[i + 1] + low, highs[i + 1] + high
    stack = [(0, w, moved) for w in wanted]
    looked = 0
    while stack:
        i, left, so_far = stack.pop()
        looked += 1
        if looked > _MOST_STEPS:
            return None
        if not lows[i] <= left <= highs[i]:
            continue
        if i == len(order):
            if so_far:
                return True
            continue
        step = order[i]
        # left - stride · x has to be in the reach of those that follow
        ends = left - highs[i + 1], left - lows[i + 1]
        near, far = ends if step.stride > 0 else (ends[1], ends[0])
        first = max(step.low, -(-near // step.stride))
        last = min(step.high, far // step.stride)
        stack += [
            (i + 1, left - step.stride * x, so_far or (step.marked and x != 0))
            for x in range(first, last + 1)
        ]
    return False
