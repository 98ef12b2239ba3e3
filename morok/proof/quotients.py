"""Questions about sizes that are known later, without how these follow from one another.

    0 ≤ r·(n+1)//2 + (2·p) % 61 < …  →  0 ≤ r·a + b < …  with a in 4 … 32 and b in 0 … 60

A place in rows of a length that is known later is inside because each of its parts is below what it is
counted by. How parts and lengths are computed is most of the work of such a proof and seldom matters. What
holds for any numbers within their bounds holds for those: a proof is one, a refutation says nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from morok.ir.bounds import bounds
from morok.ir.node import UOp, make, toposort
from morok.ir.ops import Ops
from morok.rewrite.engine import substitute

_HIDDEN = frozenset((Ops.FLOORDIV, Ops.FLOORMOD, Ops.CDIV, Ops.CMOD, Ops.SHR, Ops.MIN, Ops.MAX))


def questions(about: UOp, given: Sequence[UOp]) -> Iterator[tuple[UOp, list[UOp]]]:
    """What is asked and what is given, with a free variable for each quotient, remainder and choice by size.

    First with those conditions alone that speak of nothing but what the question and its loops are made of,
    then with all. Nothing where no quotient depends on a variable.
    """
    mapping: dict[UOp, UOp] = {}
    symbolic = False
    for n in toposort(about, *given, stop=_is_hidden):
        if _is_hidden(n) and not any(map(math.isinf, bounds(n))):
            mapping[n] = make(Ops.DEFINE_VAR, n.dtype, (), (f"any{len(mapping)}", *bounds(n)))
            symbolic = symbolic or any(m.op is Ops.DEFINE_VAR for m in toposort(n))
    if not symbolic:
        return
    about, *given = (substitute(x, mapping) for x in (about, *given))
    known = _leaves(about)
    near = [condition for condition in given if _leaves(condition) <= known]
    yield about, near
    if len(near) < len(given):
        yield about, given


def _leaves(x: UOp) -> set[UOp]:
    return {n for n in toposort(x) if n.op in (Ops.DEFINE_VAR, Ops.RANGE, Ops.SPECIAL)}


def _is_hidden(n: UOp) -> bool:
    return n.op in _HIDDEN and n.dtype.is_int and n.dtype.lanes == 1
