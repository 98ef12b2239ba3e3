"""A total order on nodes, the same in every process: what stands first in a sum, a product or a conjunction.

Terms of a sum are compared by what they multiply, so that `x*2` and `x*3` end up side by side. Constants
come last.
"""

from __future__ import annotations

from typing import Any

from morok.ir.node import UOp
from morok.ir.ops import Ops


def base(x: UOp) -> UOp:
    """x without its constant factor."""
    return x.src[0] if x.op is Ops.MUL and x.src[1].op is Ops.CONST else x


def _arg_less(a: Any, b: Any) -> bool:
    try:
        return bool(a < b)
    except TypeError:  # arguments of different kinds: compare how they are written
        return (type(a).__name__, repr(a)) < (type(b).__name__, repr(b))


def structurally_less(a: UOp, b: UOp) -> bool:
    """Compares two nodes by op, type, argument and then the first sources that differ. Iterative."""
    while a is not b:
        if a.op is not b.op:
            if a.op is Ops.CONST or b.op is Ops.CONST:
                return b.op is Ops.CONST
            return a.op.number < b.op.number
        if a.dtype is not b.dtype:
            return str(a.dtype) < str(b.dtype)
        if a.arg != b.arg:
            return _arg_less(a.arg, b.arg)
        if len(a.src) != len(b.src):
            return len(a.src) < len(b.src)
        for s, t in zip(a.src, b.src, strict=True):
            if s is not t:
                a, b = s, t
                break
        else:
            return repr(a.arg) < repr(
                b.arg
            )  # only 0.0 and -0.0 are equal as arguments and different as nodes
    return False


def precedes(a: UOp, b: UOp) -> bool:
    """Whether a stands before b in a normal form."""
    base_a, base_b = base(a), base(b)
    return structurally_less(a, b) if base_a is base_b else structurally_less(base_a, base_b)
