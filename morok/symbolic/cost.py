"""What an expression costs, written out as a tree: the measure that simplification must never make worse.

The factor of a term of a sum is free, as it is in an addressing mode; otherwise distributing `(x + y)*4` would count as a
loss although it is what makes quotients and remainders cancel.
"""

from __future__ import annotations

from morok.ir.node import UOp, toposort
from morok.ir.ops import Ops
from morok.rewrite.checks import op_weight


def _is_factor(n: UOp) -> bool:
    return n.dtype.is_int and (n.op is Ops.NEG or (n.op is Ops.MUL and n.src[1].op is Ops.CONST))


def cost(root: UOp) -> int:
    """The weight of all ops of the tree plus one per variable."""
    done: dict[UOp, int] = {}
    for n in toposort(root):
        if not n.src:
            done[n] = 0 if n.op is Ops.CONST else 1
            continue
        # a difference of integers is a sum with a sign
        own = 0 if _is_factor(n) else op_weight(Ops.ADD if n.op is Ops.SUB else n.op)
        done[n] = own + sum(done[s] for s in n.src)
    return done[root]
