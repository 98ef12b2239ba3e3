"""What an expression costs, written out as a tree: the measure that simplification must never make worse.

A constant factor and a constant summand are free, as they are in an addressing mode; otherwise distributing
`(x + y)*4` would count as a loss although it is what makes quotients and remainders cancel.
"""

from __future__ import annotations

from morok.ir.node import UOp, toposort
from morok.ir.ops import Ops
from morok.rewrite.checks import op_weight


def _is_free(n: UOp) -> bool:
    if not n.dtype.is_int:
        return False
    return n.op is Ops.NEG or (n.op in (Ops.MUL, Ops.ADD) and any(s.op is Ops.CONST for s in n.src))


def _weight(n: UOp) -> int:
    if _is_free(n):
        return 0
    if n.op is Ops.SUB:
        return op_weight(Ops.ADD)  # a difference is a sum with a sign
    if n.op in (Ops.FLOORDIV, Ops.FLOORMOD) and n.src[1].op is Ops.CONST:
        divisor = n.src[1].arg
        if divisor > 0 and divisor & (divisor - 1) == 0:
            return op_weight(Ops.AND)  # a shift or a mask in the end
    return op_weight(n.op)


def cost(root: UOp) -> int:
    """The weight of all ops of the tree plus one per variable."""
    done: dict[UOp, int] = {}
    for n in toposort(root):
        if not n.src:
            done[n] = 0 if n.op is Ops.CONST else 1
        else:
            done[n] = _weight(n) + sum(done[s] for s in n.src)
    return done[root]
