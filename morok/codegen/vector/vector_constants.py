"""Vector constants: an op on vector constants is a vector constant.

Masks of remainders are such constants, and they are written out for two reasons: a literal needs no
instruction, and LLVM has been seen to get them wrong. `select` by `shufflevector <true, true>, (icmp slt <2,
3>, <3, 3>)` was taken for all true on AArch64, so a padded lane kept what it should have lost.
"""

from __future__ import annotations

from itertools import starmap
from typing import Any

from morok.codegen.vector.vectors import swizzle, vector_constant
from morok.ir.arithmetic.alu import evaluator
from morok.ir.node import UOp
from morok.ir.ops import ALU, Ops
from morok.rewrite.rules import Rules, why
from morok.rewrite.ruleset import rules
from morok.rewrite.terms import HEADS, Head, Many

CONSTANT = (Ops.CONST, Ops.VCONST)
# The meaning of these is not a function of the operands' values alone (a CHECK also notes), or they are made
# after folding.
_FOLDED = tuple(sorted(ALU - {Ops.BITCAST, Ops.MULACC, Ops.THREEFRY, Ops.CHECK}))
_FOLDS = frozenset(_FOLDED)
# Functions of floats that the device computes with an error of its own; see `symbolic/constants.py`.
_DEVICE = frozenset((
    Ops.EXP, Ops.EXP2, Ops.LOG, Ops.LOG2, Ops.SIN, Ops.COS, Ops.TAN, Ops.TANH, Ops.ERF, Ops.RSQRT, Ops.POW,
    Ops.ATAN2,
))  # fmt: skip


def lanes_of(x: UOp) -> tuple[Any, ...]:
    """The values of a constant, one per lane."""
    return x.arg if x.op is Ops.VCONST else (x.arg,) * x.dtype.lanes


def fold_lanes(node: UOp, rest: tuple[UOp, ...]) -> UOp | None:
    """An op on constants, one of which has different lanes; `symbolic/constants.py` knows more of scalars."""
    if node.dtype.lanes == 1 or node.op not in _FOLDS or any(s.op not in CONSTANT for s in rest):
        return None
    operand = rest[-1].dtype.scalar
    if operand.is_float and node.op in _DEVICE:
        return None
    to = node.dtype.scalar if node.op is Ops.CAST else None
    columns = zip(*map(lanes_of, rest), strict=True)
    return vector_constant(node.dtype, list(starmap(evaluator(node.op, operand, to), columns)))


def join_lanes(node: UOp, rest: tuple[UOp, ...]) -> UOp | None:
    """Constants side by side are one constant."""
    if any(s.op not in CONSTANT for s in rest):
        return None
    return vector_constant(node.dtype, [v for s in rest for v in lanes_of(s)])


def take_lanes(node: UOp) -> UOp | None:
    """Lanes of a constant."""
    source = node.src[0]
    return swizzle(source, node.arg) if source.op in CONSTANT else None


_ANY_NUMBER = why("a vector has any number of lanes")


@rules("codegen.lanes")
def lane_rules(rest: Many) -> Rules:
    """Vector constants are computed."""
    yield "fold", Head(*_FOLDED)(rest) >> fold_lanes, _ANY_NUMBER
    yield "take", Head(Ops.GEP).any() >> take_lanes, _ANY_NUMBER
    yield "join", (HEADS["Cat"] | HEADS["Vectorize"])(rest) >> join_lanes, _ANY_NUMBER
