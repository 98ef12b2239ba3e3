"""Powers of scores below a maximum, at the end of stage 18: one fused product instead of two instructions.

    exp2((s - m) · c)       →  exp2(fma(s, c, -(m · c)))      s is what matrix units have left
    exp2((old - m) · c)     →  exp2(old · c - m · c)          a maximum before a step, and after it
    exp2((s · d - m) · c)   →  exp2(fma(s, d, -m) · c)

Whatever number is taken off is the same in all terms of a row, and in what they were before: so m · c may be
rounded, however large scores are, if every power of the kernel takes off the rounded one. Where the maximum
was rounded elsewhere, in another kernel, it is taken off as it is.
"""

from __future__ import annotations

import math

from morok.ir.build import APPROXIMATE
from morok.ir.node import UOp, alu, toposort
from morok.ir.ops import Ops
from morok.rewrite.observe import change


@change
def fuse_powers(root: UOp) -> UOp:
    """Exponents of approximate powers of units' results, with fused products."""
    order = toposort(root)
    if not any(n.op is Ops.WMMA for n in order):
        return root
    scores: set[UOp] = set()  # what depends on units
    done: dict[UOp, UOp] = {}
    for node in order:  # a power may depend on those of a step before
        src = tuple([done[s] for s in node.src])
        new = node if src == node.src else node.replace(src)
        if node.op is Ops.WMMA or not scores.isdisjoint(node.src):
            scores |= {node, new}
        if node.op is Ops.EXP2 and node.arg == APPROXIMATE:
            exponent = _exponent(new.src[0], scores)
            if exponent is not None:
                new = new.replace((exponent,))
                scores.add(new)
        done[node] = new
    return done[root]


def _exponent(x: UOp, scores: set[UOp]) -> UOp | None:
    """(a - m) · c with fused products; None for anything else."""
    if x.op is not Ops.MUL or x.src[1].op is not Ops.CONST or x.src[0].op is not Ops.SUB:
        return None
    (a, m), c = x.src[0].src, x.src[1]
    scaled = _scaled(a)
    if scaled is not None and scaled[0] in scores:
        return alu(Ops.MUL, alu(Ops.MULACC, *scaled, alu(Ops.NEG, m)), c)
    if a in scores:
        return alu(Ops.MULACC, a, c, alu(Ops.NEG, alu(Ops.MUL, m, c)))
    return alu(Ops.SUB, alu(Ops.MUL, a, c), alu(Ops.MUL, m, c)) if m in scores else None


def _scaled(a: UOp) -> tuple[UOp, UOp] | None:
    """a as a product of a value and a positive constant; what is masked is -inf on both sides."""
    if a.op is Ops.MUL and a.src[1].op is Ops.CONST and a.src[1].arg > 0:
        return a.src[0], a.src[1]
    if a.op is not Ops.WHERE or a.src[1].op is not Ops.CONST or a.src[1].arg != -math.inf:
        return None
    inner = _scaled(a.src[2])
    return None if inner is None else (alu(Ops.WHERE, *a.src[:2], inner[0]), inner[1])
