"""Values that are compared with something made of themselves, as `x == x.max()` and the slope of a maximum.

What is added up in two kernels may differ in its last bit: each of them chooses the order for itself. Seldom
does that matter; but an element that was the largest in one kernel equals nothing in the other, and a sort
that sees two values of one element loses it. Such a sum is stored once, and both sides read it.

Everything else comes out the same wherever it is computed: kernels are compiled without contraction, and
exact rules only change their arithmetic.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple, final

from morok.ir.node import UOp
from morok.ir.ops import Ops

COMPARISONS = frozenset((Ops.CMPEQ, Ops.CMPNE, Ops.CMPLT))
_ROUNDED = frozenset((Ops.ADD, Ops.MUL, Ops.MULACC))
_SIGNED = frozenset((Ops.NEG, Ops.ABS, Ops.CAST, Ops.RECOMPUTE))  # zero stays zero


@final
class Sides(NamedTuple):
    """The comparisons that a value is on the left and on the right side of, as sets of bits."""

    left: int = 0
    right: int = 0

    def __or__(self, other: Sides) -> Sides:
        return Sides(self.left | other.left, self.right | other.right)

    def stored(self) -> Sides:
        """What is left for sources of a value in memory: where both sides read it, they agree."""
        both = self.left & self.right
        return Sides(self.left & ~both, self.right & ~both)


NOWHERE = Sides()


def is_rounded(node: UOp) -> bool:
    """Whether a value depends on the order in which it is added up, which each kernel chooses for itself."""
    op = node.op
    if op is Ops.REDUCE_AXIS or op is Ops.SCAN_AXIS:
        return node.arg[0] in _ROUNDED and node.dtype.is_float
    return False


def find_comparisons(order: Sequence[UOp], collapsed: Collection[UOp]) -> dict[UOp, int]:
    """The comparisons whose two sides depend on one sum, each with a bit of its own.

    A difference that is compared with something is a comparison itself.
    """
    if not any(node.op in COMPARISONS for node in order):
        return {}
    found: dict[UOp, int] = {}
    below: dict[UOp, int] = {}  # sums, as sets of bits
    sums = 0
    differences: set[UOp] = set()
    for node in order:
        known = 0
        for s in node.src:
            known |= below[s]
        op = node.op
        if (op in COMPARISONS or op is Ops.SUB) and below[node.src[0]] & below[node.src[1]]:
            if op is Ops.SUB:
                differences.add(node)
            else:
                found[node] = 1 << len(found)
        elif is_rounded(node) and node not in collapsed:
            known |= 1 << sums
            sums += 1
        below[node] = known
    if differences:
        for node in order:
            for s in node.src if node.op in COMPARISONS else ():
                seen = _unsigned(s)
                if seen in differences:
                    found.setdefault(seen, 1 << len(found))
    return found


def _unsigned(node: UOp) -> UOp:
    """What a value was before its sign, type or place changed."""
    while node.op.is_movement or node.op in _SIGNED:
        node = node.src[0]
    return node


def meet(places: Sequence[Sides]) -> bool:
    """Whether some comparison has one of these places on its left and another one on its right side."""
    left = right = 0
    for place in places:
        left |= place.left
        right |= place.right
    if not left & right:
        return False
    return any(
        one.left & other.right for n, one in enumerate(places) for m, other in enumerate(places) if n != m
    )
