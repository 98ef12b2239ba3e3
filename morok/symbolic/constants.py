"""Constant folding: an op on constants is a constant. The meaning of each op is in
`morok/ir/arithmetic/alu.py`."""

from __future__ import annotations

from collections.abc import Callable

from morok.ir.arithmetic.alu import evaluate
from morok.ir.node import UOp, const
from morok.ir.ops import Op, Ops
from morok.rewrite.rules import Rules, why
from morok.rewrite.ruleset import rules
from morok.rewrite.terms import Cast, Const, head

# Left alone: BITCAST is a matter of layout, MULACC and THREEFRY are made after folding has been done, and a
# CHECK that fails has to be heard of. So are functions that a device computes with an error of its own: a
# constant has to be what it would have computed. Its polynomials are made of ops that are exact, and those
# are folded when they are there.
FOLDED_UNARY = (
    Ops.NEG, Ops.NOT, Ops.ABS, Ops.RECIP, Ops.SQRT, Ops.TRUNC, Ops.FLOOR, Ops.CEIL, Ops.RINT,
)  # fmt: skip
FOLDED_BINARY = (
    Ops.ADD, Ops.SUB, Ops.MUL, Ops.FDIV, Ops.FLOORDIV, Ops.FLOORMOD, Ops.CDIV, Ops.CMOD, Ops.MAX, Ops.MIN,
    Ops.CMPLT, Ops.CMPNE, Ops.CMPEQ, Ops.AND, Ops.OR, Ops.XOR, Ops.SHL, Ops.SHR, Ops.POW, Ops.FMOD,
)  # fmt: skip


# On unbounded integers these could fill the memory with one number.
_EXPLOSIVE = (Ops.SHL, Ops.POW)
_LARGEST_EXPONENT = 256


def fold(op: Op) -> Callable[..., UOp | None]:
    """The function that computes `op` on constants."""

    def folded(node: UOp) -> UOp | None:
        values = [s.arg for s in node.src]
        if op is Ops.POW and node.dtype.is_float:
            return None
        if op in _EXPLOSIVE and node.dtype.is_index and values[1] > _LARGEST_EXPONENT:
            return None
        return const(node.dtype, evaluate(op, node.src[-1].dtype.scalar, *values))

    folded.__name__ = f"fold_{op.name.lower()}"
    return folded


def fold_cast(node: UOp, a: UOp) -> UOp:
    """A constant in another type."""
    return const(node.dtype, evaluate(Ops.CAST, a.dtype.scalar, a.arg, to=node.dtype.scalar))


_REASON = why("computes on values; the meaning table is the definition")


@rules("symbolic.constants")
def constant_rules(a: Const, b: Const) -> Rules:
    """Ops on constants are computed."""
    for op in FOLDED_UNARY:
        yield op.name.lower(), head(op)(a) >> fold(op), _REASON
    for op in FOLDED_BINARY:
        yield op.name.lower(), head(op)(a, b) >> fold(op), _REASON
    # a constant of one type is a constant of another
    yield "cast", Cast(a) >> fold_cast, _REASON
