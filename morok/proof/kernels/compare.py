"""Does a list of instructions compute what its kernel says? Elements of its results as terms, both ways.

The elements are the first, the last and some at random of every store, at the kernel's own sizes; all data is
unknown. What is not followed is told: kernels that are too large, and reasons why terms were not equal.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import final

import numpy as np

from morok.dtype import uint8
from morok.ir.node import UOp, toposort
from morok.ir.ops import Ops
from morok.proof.kernels.after import After
from morok.proof.kernels.before import Before, Effect, Expand, Opaque, effects
from morok.proof.kernels.terms import Term, Terms, TooLarge

RANDOM = 2  # elements of each store, besides the first and the last
_TRIES = 12  # points that are looked at for them
_ENOUGH = 30_000  # terms after which two elements of a store will do
_SLACK = 64.0  # roundings that functions and reordered sums may differ by, in units of the last place


@final
@dataclass
class Comparison:
    """What was compared of a kernel, and how it went."""

    elements: int = 0
    same: int = 0  # equal as terms
    agreeing: int = 0  # equal at random points of the data
    skipped: str = ""  # why the rest was not looked at
    differs: str = ""
    opaque: Counter[str] = field(default_factory=Counter)  # ops that made terms differ

    @property
    def verdict(self) -> str:
        if self.differs:
            return "refuted"
        if not self.elements:
            return f"not compared: {self.skipped or 'nothing is written'}"
        return "compared in part" if self.skipped else "compared"


def compare(
    kernel: UOp, linear: UOp, expand: Expand | None = None, seed: int = 0, most: int = 1 << 20
) -> Comparison:
    """Elements of all results, before and after the stages."""
    found = Comparison()
    terms = Terms(most, seed)
    rnd = random.Random(seed)
    sizes = {n.arg[0]: int(n.arg[2]) for n in toposort(kernel) if n.op is Ops.DEFINE_VAR}
    try:
        _check_followed(kernel)
        after = After(linear, terms, sizes)
        before = Before(terms, expand, sizes)
        stores = effects(kernel)
        for effect in stores:
            for env in _points(effect, before, rnd):
                _element(effect, env, before, after, found)
                if found.differs:
                    return found
    except Opaque as reason:
        found.skipped = reason.message
    except TooLarge:
        found.skipped = "too large"
    except RecursionError:  # each total in local memory asks for the one before
        found.skipped = "totals in local memory over too many blocks"
    return found


def _check_followed(kernel: UOp) -> None:
    """Kernels whose meaning depends on the order of their steps are not followed."""
    written = {e.memory for e in effects(kernel)}
    for node in toposort(kernel):
        if node.op is Ops.INDEX and not node.dtype.is_ptr and node.src[0] in written:
            own = [e for e in effects(kernel) if e.memory is node.src[0]]
            if any(e.store.src[0].src[1] is not node.src[1] for e in own):
                raise Opaque("memory that is read and written")


def _points(effect: Effect, before: Before, rnd: random.Random) -> Iterator[dict[UOp, int]]:
    """Passes of the loops of a store: the first, the last, some between."""
    env = {r: 0 for r in effect.loops if r.op is Ops.RANGE}
    sizes = [(r, before.number(r.src[0], env)) for r in env]
    if any(n == 0 for _, n in sizes):
        return
    choices = [[0] * len(sizes), [n - 1 for _, n in sizes]]
    choices += [[rnd.randrange(n) for _, n in sizes] for _ in range(_TRIES)]
    address = effect.store.src[0]
    seen: set[tuple[int, ...]] = set()
    for chosen in choices:
        if len(seen) >= 2 and len(before.terms.nodes) > _ENOUGH:
            return
        point = {r: x for (r, _), x in zip(sizes, chosen, strict=True)}
        if tuple(chosen) in seen or len(seen) == RANDOM + 2:
            continue
        if len(address.src) > 2:
            gate = before.terms.number(before.value(address.src[2], point))
            if gate is None:
                raise Opaque("a store that depends on data")
            if not gate:
                continue
        seen.add(tuple(chosen))
        yield point


def _element(effect: Effect, env: dict[UOp, int], before: Before, after: After, found: Comparison) -> None:
    terms = before.terms
    address = effect.store.src[0]
    place = before.number(address.src[1], env)
    buffer = effect.memory.arg
    writers = after.writers(buffer, place)
    what = f"element {place} of buffer {buffer}"
    if not writers:
        found.elements += 1
        found.differs = f"{what} is not written"
        return
    expected = before.value(effect.store.src[1], env)
    dtype = effect.store.src[1].dtype
    if dtype.is_bool:
        expected = terms.apply(Ops.CAST, dtype, (expected,), uint8)
    given = after.value(after.last(writers))
    found.elements += 1
    if terms.form(expected) == terms.form(given):
        found.same += 1
        return
    detail = difference(terms, expected, given, found.opaque)
    if detail:
        found.differs = f"{what}: {detail}"
    else:
        found.agreeing += 1


def difference(terms: Terms, a: Term, b: Term, opaque: Counter[str]) -> str:
    """How two terms differ at some point of the data; empty if they agree up to roundings."""
    x, y = np.asarray(terms.values(a)), np.asarray(terms.values(b))
    dtype = terms.nodes[a][1]
    if not dtype.is_float:
        wrong = x != y
    else:
        wide, other = x.astype(np.float64), y.astype(np.float64)
        with np.errstate(all="ignore"):
            room = (
                _SLACK
                * float(dtype.eps)
                * np.maximum(np.maximum(np.abs(wide), np.abs(other)), terms.scale(a))
            )
            same = (wide == other) | (np.isnan(wide) & np.isnan(other)) | (np.abs(wide - other) <= room)
        wrong = ~same
    opaque.update(terms.ops_apart(a, b))
    if not wrong.any():
        return ""
    at = int(np.argmax(wrong))
    return f"{x[at]} before and {y[at]} after the stages, for some data"
