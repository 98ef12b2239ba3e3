"""In which passes of the loops an access touches a place: its sum of strides, solved for the loops."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import final

from morok.ir.bounds import bounds
from morok.ir.node import UOp
from morok.ir.ops import Ops
from morok.proof.kernels.before import Opaque
from morok.proof.kernels.linear import Sums
from morok.proof.kernels.points import LEAVES
from morok.proof.kernels.walk import Access, Closer

_MOST = 20_000  # steps of a search
_ALL = 64  # values of a loop that does not move the place are all tried up to here; of others only the last
Env = dict[UOp, int]


@final
@dataclass(frozen=True)
class Part:
    """A summand of a place: a loop, or a digit of one, times a factor."""

    leaf: UOp
    step: int  # what the digit counts in the loop
    size: int
    factor: int
    low: int
    high: int


@final
class Search:
    """All values of the parts for which their sum is a number; the large factors are tried first."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self.parts = sorted(parts, key=lambda part: -abs(part.factor))
        self.spans = [(0, 0)] * (len(parts) + 1)  # of the sum of the parts from here on
        for i in range(len(parts) - 1, -1, -1):
            part = self.parts[i]
            a, b = sorted((part.factor * part.low, part.factor * part.high))
            self.spans[i] = (self.spans[i + 1][0] + a, self.spans[i + 1][1] + b)

    def solutions(self, total: int, before: Mapping[UOp, int] | None = None) -> Iterator[tuple[int, ...]]:
        """All of them; of a loop that does not move the sum only the last passes before `before`."""
        stack: list[tuple[int, int, tuple[int, ...]]] = [(0, total, ())]
        looked = 0
        while stack:
            i, left, chosen = stack.pop()
            looked += 1
            if looked > _MOST:
                raise Opaque("too many passes that could write a place")
            low, high = self.spans[i]
            if not low <= left <= high:
                continue
            if i == len(self.parts):
                yield chosen
                continue
            stack += [
                (i + 1, left - self.parts[i].factor * x, (*chosen, x))
                for x in self._choices(i, left, before or {})
            ]

    def _choices(self, i: int, left: int, before: Mapping[UOp, int]) -> Sequence[int]:
        part = self.parts[i]
        if part.factor == 0 and part.leaf in before and part.step == 1 and part.high + 1 == part.size:
            now = before[part.leaf]
            return sorted({x for x in (now - 1, now, part.high) if part.low <= x <= part.high})
        if part.factor == 0:
            return range(part.low if part.high - part.low < _ALL else part.high, part.high + 1)
        near, far = left - self.spans[i + 1][1], left - self.spans[i + 1][0]
        if part.factor < 0:
            near, far = far, near
        return range(max(part.low, -(-near // part.factor)), min(part.high, far // part.factor) + 1)


@final
class Passes:
    """The places of accesses, ready to be solved."""

    def __init__(self, accesses: Sequence[Access], specials: Sequence[UOp], sizes: Mapping[str, int]) -> None:
        self.specials = specials
        self.sizes = sizes
        closer = Closer()
        self._wheres = {a: closer.lane(a.address.src[1]) for a in accesses}
        self._data = closer.data
        self._sums = Sums(self._wheres.values())
        self._parts: dict[Access, tuple[int, list[Part]]] = {}
        self._searches: dict[tuple[Access, frozenset[UOp]], tuple[list[Part], Search]] = {}

    def leaves(self, access: Access) -> list[UOp]:
        """The loops and hardware indices around an access."""
        return [*access.loops, *self.specials]

    def of(
        self, access: Access, place: int, given: Mapping[UOp, int], before: Mapping[UOp, int] | None = None
    ) -> Iterator[Env]:
        """Values of the leaves for which the place of an access is this one, some of them given.

        Loops whose ends depend on other loops count as long as they can be.
        """
        if access not in self._parts:
            self._parts[access] = self._taken_apart(access)
        constant, parts = self._parts[access]
        known = frozenset(part.leaf for part in parts if part.leaf in given)
        if (access, known) not in self._searches:
            fixed = [part for part in parts if part.leaf in known]
            self._searches[access, known] = fixed, Search([part for part in parts if part.leaf not in known])
        fixed, search = self._searches[access, known]
        left = place - constant - sum(p.factor * (given[p.leaf] // p.step % p.size) for p in fixed)
        for values in search.solutions(left, before):
            env = {leaf: given[leaf] for leaf in known}
            for part, value in zip(search.parts, values, strict=True):
                env[part.leaf] = env.get(part.leaf, 0) + part.step * value
            yield env

    def _taken_apart(self, access: Access) -> tuple[int, list[Part]]:
        """The constant of a place, and its parts; loops that do not move it are parts as well."""
        total = self._sums.of(self._wheres[access])
        digits = {d: leaf for leaf, group in self._sums.digits.items() for d in group}
        factors = dict(total.terms)
        for atom in factors:
            if digits.get(atom, atom).op not in LEAVES or atom in self._data:
                raise Opaque("a place that is no sum of loops")
        for leaf in {*self.leaves(access), *(digits[a] for a in factors if a in digits)}:
            for atom in self._sums.digits.get(leaf, (leaf,)):
                factors.setdefault(atom, 0)
        parts = []
        for atom, factor in factors.items():
            leaf = digits.get(atom, atom)
            low, high = self._ends(atom)
            step = dict(self._sums.known[leaf].terms)[atom] if atom in digits else 1
            parts.append(Part(leaf, step, high + 1, factor, low, high))
        return total.constant, parts

    def _ends(self, atom: UOp) -> tuple[int, int]:
        if atom.op is Ops.DEFINE_VAR and atom.arg[0] in self.sizes:
            value = self.sizes[atom.arg[0]]
            return value, value
        low, high = bounds(atom)
        return int(low), int(high)
