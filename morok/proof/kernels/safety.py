"""Is a list of instructions safe, whatever is in memory? Each question is an obligation:

- bounds: every access lies inside of its memory wherever its conditions hold;
- width: no index leaves its integer type on the way there;
- domain: nothing divides by 0, the least integer by -1, or shifts by more than the width;
- race: two threads never touch one place, one of them writing, without a barrier between them.

Intervals and strides answer most of them at once. The rest is computed at every point where there are few
points, and otherwise goes to Z3. What stays open is no proof: it is told, with the kernel.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import final

from morok.dtype import AddrSpace, index
from morok.errors import ProofError
from morok.ir.bounds import bounds
from morok.ir.node import UOp, alu, const, make, toposort
from morok.ir.ops import Ops
from morok.ir.provenance import place
from morok.proof.kernels.ints import Whole, ask, exact_interval, example, may_wrap
from morok.proof.kernels.linear import Sums
from morok.proof.kernels.points import count, counterexample
from morok.proof.kernels.races import (
    Conflict,
    apart_by_strides,
    as_claim,
    by_rows,
    conditions_of,
    conflicts,
    places,
)
from morok.proof.kernels.walk import Access, Closer, Listing, conjuncts, read_list
from morok.proof.quotients import questions
from morok.proof.smt.solver import PROVED, REFUTED
from morok.symbolic.domain import divides, shifts

STEPS = 10_000_000  # of the solver, for one obligation
_FEW, _MANY = 1 << 12, 1 << 22  # points that are cheaper than the solver, and that are cheaper than no answer


@final
@dataclass(frozen=True)
class Open:
    """An obligation that is not shown: refuted with an example, or undecided."""

    kind: str
    about: UOp
    detail: str
    refuted: bool

    def __str__(self) -> str:
        where = place(self.about)
        return f"{MEANING[self.kind]}: {self.detail}{f', at {where}' if where else ''}"


NOT_ASKED = "not asked"
SHOWN = frozenset(("intervals", "points", "solver"))
_UNSHOWN = ("refuted", "open", NOT_ASKED)
MEANING = {
    "bounds": "an access leaves its memory",
    "width": "an index leaves its integer type",
    "domain": "an instruction gets operands that it has no result for",
    "race": "two threads touch the same place, and one of them writes",
}


@final
@dataclass
class Findings:
    """What has been asked about a list, and how it was answered."""

    counts: Counter[str] = field(default_factory=Counter)  # by how it was decided
    kinds: Counter[str] = field(default_factory=Counter)
    left: Counter[str] = field(default_factory=Counter)  # not asked, by kind: the time was over
    open: list[Open] = field(default_factory=list)
    shown: list[tuple[str, UOp, str]] = field(default_factory=list)  # about one instruction: kind, how

    def done(self, kind: str, how: str, number: int = 1, about: UOp | None = None) -> None:
        self.kinds[kind] += number
        self.counts[how] += number
        if about is not None:
            self.shown.append((kind, about, how))


@final
class Judge:
    """Decides closed claims, each once, as long as there is time."""

    def __init__(self, seconds: float = math.inf) -> None:
        self.end = time.thread_time() + seconds
        self.known: dict[tuple[UOp, tuple[UOp, ...]], tuple[str, str]] = {}

    def decide(self, claim: UOp, given: Sequence[UOp]) -> tuple[str, str]:
        """(how it was shown, "") or ("refuted", "open" or NOT_ASKED, why)."""
        if bounds(claim)[0]:
            return "intervals", ""
        key = (claim, tuple(given))
        if key not in self.known:
            if time.thread_time() > self.end:
                return NOT_ASKED, ""
            self.known[key] = self._decide(claim, given)
        return self.known[key]

    def _decide(self, claim: UOp, given: Sequence[UOp]) -> tuple[str, str]:
        points = count(claim, *given)
        if points <= _FEW:
            return self._every_point(claim, given)
        verdict = self._solve(claim, given)
        if verdict[0] == "open" and points <= _MANY:
            return self._every_point(claim, given)
        return verdict

    @staticmethod
    def _every_point(claim: UOp, given: Sequence[UOp]) -> tuple[str, str]:
        found = counterexample(claim, given)
        return ("points", "") if found is None else ("refuted", _shown(found))

    @classmethod
    def _solve(cls, claim: UOp, given: Sequence[UOp]) -> tuple[str, str]:
        for plain in questions(claim, given):
            if cls._ask(*plain)[0] == "solver":
                return "solver", ""
        return cls._ask(claim, given)

    @staticmethod
    def _ask(claim: UOp, given: Sequence[UOp]) -> tuple[str, str]:
        whole = Whole()
        goal = whole.value(claim)
        hypotheses = [whole.value(g) for g in given]
        try:
            outcome = ask(whole, goal, hypotheses, STEPS)
        except ProofError as error:
            return "open", error.message
        if outcome.status == PROVED:
            return "solver", ""
        if outcome.status == REFUTED:
            return "refuted", _shown(example(whole, outcome))
        return "open", "the solver gives up"


def _shown(found: dict[str, int]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in sorted(found.items())) or "always"


def examine(linear: UOp, kernel: UOp | None = None, seconds: float = math.inf) -> Findings:
    """Everything that has to be shown about a list; `kernel` is what it was made of.

    After so many seconds nothing that takes long is asked any more: `left` says what.
    """
    listing, closer, judge, found = read_list(linear), Closer(), Judge(seconds), Findings()
    for access in listing.accesses:
        _bounds(access, closer, judge, found)
    _widths(listing, closer, judge, found, kernel is not None and computes_places(kernel))
    _domains(listing, closer, judge, found)
    _races(listing, closer, judge, found)
    return found


def examine_accesses(linear: UOp) -> Findings:
    """Only whether accesses are in bounds, and only by intervals: a glance. The rest is told as open."""
    found = Findings()
    for access in read_list(linear).accesses:
        if access.size < 0:
            continue
        where = access.address.src[1]
        low, high = bounds(where) if where.dtype.lanes == 1 else (-1, 0)
        if low >= 0 and high + access.lanes <= access.size:
            found.done("bounds", "intervals", about=access.node)
        else:
            found.open.append(Open("bounds", access.node, "not asked", False))
    return found


_WRAPPING = frozenset((Ops.ADD, Ops.SUB, Ops.MUL, Ops.NEG, Ops.SHL, Ops.MULACC, Ops.ABS, Ops.CAST))


def computes_places(kernel: UOp) -> bool:
    """Whether a kernel itself computes places in integers of a fixed width: then wrapping is meant."""
    for node in toposort(kernel):
        if node.op is Ops.CAST and node.dtype.is_index and node.src[0].dtype.is_bounded_int:
            for n in toposort(node.src[0], stop=lambda n: n.op in (Ops.INDEX, Ops.REDUCE, Ops.SCAN)):
                if n.dtype.is_bounded_int and n.op in _WRAPPING:
                    return True
    return False


def _settle(found: Findings, kind: str, about: UOp, verdict: tuple[str, str]) -> None:
    how, detail = verdict
    if how == NOT_ASKED:
        found.left[kind] += 1
        return
    found.done(kind, how, about=about)
    if how in ("refuted", "open"):
        found.open.append(Open(kind, about, detail, how == "refuted"))


# --- bounds


def _bounds(access: Access, closer: Closer, judge: Judge, found: Findings) -> None:
    if access.size < 0:
        return
    where = access.address.src[1]
    if where.dtype.lanes > 1:
        found.open.append(Open("bounds", access.node, "places are a vector", False))
        return
    low, high = bounds(where)
    if low >= 0 and high + access.lanes <= access.size:
        found.done("bounds", "intervals", about=access.node)
        return
    closed = make(Ops.CAST, index, (closer.lane(where),))
    gate = access.address.src[2] if len(access.address.src) > 2 else None
    if gate is None or gate.dtype.lanes == 1:
        claim = _inside(closed, access.lanes, access.size)
        _settle(found, "bounds", access.node, judge.decide(claim, conditions_of(access, closer)))
        return
    for lane in range(access.lanes):
        at = alu(Ops.ADD, closed, const(index, lane))
        verdict = judge.decide(_inside(at, 1, access.size), conditions_of(access, closer, lane))
        if verdict[0] in _UNSHOWN:
            _settle(found, "bounds", access.node, verdict)
            return
    found.done("bounds", verdict[0], about=access.node)


def _inside(x: UOp, lanes: int, size: int) -> UOp:
    above = alu(Ops.CMPLT, const(x.dtype, -1), x)
    return alu(Ops.AND, above, alu(Ops.CMPLT, x, const(x.dtype, size - lanes + 1)))


# --- widths


def _widths(
    listing: Listing, closer: Closer, judge: Judge, found: Findings, arithmetic_of_data: bool
) -> None:
    """Each op of a place, under the conditions of all accesses that use it."""
    seen: set[UOp] = set()
    for access in listing.accesses:
        where = access.address.src[1]
        if where.op is Ops.CONST or where.dtype.lanes > 1:
            continue
        given: tuple[UOp, ...] | None = None
        closed = closer.lane(where)
        itself = set(toposort(closed, stop=_is_choice))
        for node in toposort(closed, stop=seen.__contains__):
            if node in seen:
                continue
            if not may_wrap(node) or node.op is Ops.BITCAST:  # other numbers are what it is for
                seen.add(node)
                if node.op.is_alu:
                    found.done("width", "intervals")
                continue
            meant = arithmetic_of_data or node not in itself  # data that a place is chosen by may wrap
            if meant and any(n in closer.data for n in toposort(node)):
                continue
            given = conditions_of(access, closer) if given is None else given
            _settle(found, "width", access.node, _fits(node, given, judge))


def _is_choice(node: UOp) -> bool:
    return node.dtype.is_bool


def _fits(node: UOp, given: Sequence[UOp], judge: Judge) -> tuple[str, str]:
    """Does the exact result of an op lie in its type? On indices, which have no width, it is exact."""
    exact = exact_interval(node)
    assert exact is not None
    src = tuple(const(index, s.arg) if s.op is Ops.CONST else make(Ops.CAST, index, (s,)) for s in node.src)
    whole = src[0] if node.op in (Ops.CAST, Ops.BITCAST) else make(node.op, index, src)
    low, high = const(index, node.dtype.min - 1), const(index, node.dtype.max + 1)
    claim = alu(Ops.AND, alu(Ops.CMPLT, low, whole), alu(Ops.CMPLT, whole, high))
    return judge.decide(claim, given)


# --- domains


def _domains(listing: Listing, closer: Closer, judge: Judge, found: Findings) -> None:
    for node, conditions in listing.partial:
        x, y = node.src
        division = node.op in (Ops.CDIV, Ops.CMOD)
        if divides(x, y) if division else shifts(x, y):
            found.done("domain", "intervals", about=node)
            continue
        given = [c for condition in conditions for c in conjuncts(closer.lane(condition))]
        for lane in range(node.dtype.lanes):
            a, b = closer.lane(x, lane), closer.lane(y, lane)
            verdict = judge.decide(_divisible(a, b) if division else _shiftable(a, b), given)
            if verdict[0] in _UNSHOWN:
                break
        _settle(found, "domain", node, verdict)


def _divisible(x: UOp, y: UOp) -> UOp:
    claim = y.ne(0)
    if y.dtype.is_unsigned:
        return claim
    return claim & (y.ne(-1) | x.ne(x.dtype.min))


def _shiftable(x: UOp, y: UOp) -> UOp:
    claim = y < x.dtype.bits
    return claim if y.dtype.is_unsigned else claim & (const(y.dtype, -1) < y)


# --- races


def _races(listing: Listing, closer: Closer, judge: Judge, found: Findings) -> None:
    spots, sums = places(listing, closer)
    if listing.roles or listing.asynchronous:
        spots = [p for p in spots if p.access.space is AddrSpace.GLOBAL]
    kinds: dict[tuple[object, ...], list[Conflict]] = {}
    for conflict in conflicts(listing, spots):
        kinds.setdefault(conflict.kind, []).append(conflict)
    for pairs in kinds.values():
        _race(pairs, sums, closer, judge, found)


def _race(pairs: list[Conflict], sums: Sums, closer: Closer, judge: Judge, found: Findings) -> None:
    if apart_by_strides(pairs, sums, closer.data):
        found.done("race", "strides", len(pairs))
        return
    for pair in pairs:
        if len(pairs) > 1 and apart_by_strides([pair], sums, closer.data):
            found.done("race", "strides")
            continue
        rows = by_rows(pair, closer.data)
        if rows and all(judge.decide(*claim)[0] in SHOWN for claim in rows):
            found.done("race", "rows", about=pair.a.access.node)
            continue
        verdict = judge.decide(*as_claim(pair, closer.data))
        _settle(found, "race", pair.a.access.node, verdict)
