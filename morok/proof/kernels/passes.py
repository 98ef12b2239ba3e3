"""In which passes of the loops an access touches a place: its sum of strides, solved for the loops."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import final

from morok.ir.bounds import bounds
from morok.ir.node import UOp
from morok.ir.ops import Ops
from morok.proof.kernels.before import Opaque
from morok.proof.kernels.linear import Sum, Sums
from morok.proof.kernels.points import LEAVES
from morok.proof.kernels.walk import Access, Closer

_MOST = 20_000  # steps of the search for passes
Env = dict[UOp, int]


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
        self._owner = {digit: leaf for leaf, digits in self._sums.digits.items() for digit in digits}

    def leaves(self, access: Access) -> list[UOp]:
        """The loops and hardware indices around an access."""
        return [*access.loops, *self.specials]

    def of(self, access: Access, place: int, given: Mapping[UOp, int]) -> Iterator[Env]:
        """Values of the leaves for which the place of an access is this one, some of them given.

        Loops whose ends depend on other loops count as long as they can be.
        """
        total = self._sums.of(self._wheres[access])
        owner = self._owner
        for atom, _ in total.terms:
            if owner.get(atom, atom).op not in LEAVES or atom in self._data:
                raise Opaque("a place that is no sum of loops")
        inside = {a for a, _ in total.terms}
        for leaf in self.leaves(access):
            if leaf not in inside and not any(owner.get(a) is leaf for a in inside):
                total = Sum(total.constant, (*total.terms, (leaf, 0)))
        for values in self._solutions(total, place, self._in_digits(given)):
            env: Env = {}
            for atom, value in values.items():
                whole = owner.get(atom)
                if whole is None:
                    env[atom] = value
                else:
                    step = dict(self._sums.known[whole].terms)[atom]
                    env[whole] = env.get(whole, 0) + step * value
            yield env

    def _in_digits(self, given: Mapping[UOp, int]) -> Env:
        """What is given, of leaves that are taken apart as well."""
        found = dict(given)
        for leaf, digits in self._sums.digits.items():
            if leaf in given:
                steps = dict(self._sums.known[leaf].terms)
                for digit in digits:
                    found[digit] = given[leaf] // steps[digit] % (digit.arg[2] + 1)
        return found

    def _solutions(self, total: Sum, place: int, given: Mapping[UOp, int]) -> Iterator[dict[UOp, int]]:
        """All values of the atoms; of those that do not move the place only the last, which writes last."""
        order = sorted(total.terms, key=lambda t: -abs(t[1]))
        spans = [(0, 0)] * (len(order) + 1)
        ends = []
        for atom, _ in order:
            ends.append((given[atom], given[atom]) if atom in given else self._ends(atom))
        for i in range(len(order) - 1, -1, -1):
            f, (low, high) = order[i][1], ends[i]
            a, b = sorted((f * low, f * high))
            spans[i] = (spans[i + 1][0] + a, spans[i + 1][1] + b)
        stack: list[tuple[int, int, tuple[int, ...]]] = [(0, place - total.constant, ())]
        looked = 0
        while stack:
            i, left, chosen = stack.pop()
            looked += 1
            if looked > _MOST:
                raise Opaque("too many passes that could write a place")
            if not spans[i][0] <= left <= spans[i][1]:
                continue
            if i == len(order):
                yield dict(zip((a for a, _ in order), chosen, strict=True))
                continue
            f, (low, high) = order[i][1], ends[i]
            if f == 0:
                choices = range(low, high + 1) if high - low < 64 else range(high, high + 1)
            else:
                near, far = left - spans[i + 1][1], left - spans[i + 1][0]
                near, far = (near, far) if f > 0 else (far, near)
                choices = range(max(low, -(-near // f)), min(high, far // f) + 1)
            stack += [(i + 1, left - f * x, (*chosen, x)) for x in choices]

    def _ends(self, atom: UOp) -> tuple[int, int]:
        if atom.op is Ops.DEFINE_VAR and atom.arg[0] in self.sizes:
            value = self.sizes[atom.arg[0]]
            return value, value
        low, high = bounds(atom)
        return int(low), int(high)
