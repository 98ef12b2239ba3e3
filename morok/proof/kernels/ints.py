"""Closed integer expressions of fixed width in Z3's unbounded integers.

Most of a kernel's index arithmetic cannot wrap around, as intervals show, so it is arithmetic of whole
numbers, which Z3 decides by linear algebra; bit-vectors would be the same and far slower. Where something may
wrap the remainder is spelled out.
"""

from __future__ import annotations

import math
from typing import Any, final

from morok.dtype import DType
from morok.ir.arithmetic.intervals import mul
from morok.ir.bounds import bounds
from morok.ir.node import UOp, toposort
from morok.ir.ops import Ops
from morok.proof.kernels.points import LEAVES, name_of
from morok.proof.smt.solver import PROVED, REFUTED, UNKNOWN, Division, Expr, Outcome, Problem, decide, z3

Interval = tuple[Any, Any]
_NO_VALUE: Any = None  # of floats: what is computed from them may be anything


def exact_interval(node: UOp) -> Interval | None:
    """The interval of a result before it wraps around; None for ops that never do."""
    op = node.op
    if not node.dtype.is_bounded_int:
        return None
    ends = [bounds(s) for s in node.src]
    if op is Ops.ADD:
        return ends[0][0] + ends[1][0], ends[0][1] + ends[1][1]
    if op is Ops.SUB:
        return ends[0][0] - ends[1][1], ends[0][1] - ends[1][0]
    if op is Ops.MUL:
        return mul(*ends)
    if op is Ops.MULACC:
        low, high = mul(ends[0], ends[1])
        return low + ends[2][0], high + ends[2][1]
    if op is Ops.NEG:
        return -ends[0][1], -ends[0][0]
    if op is Ops.ABS:
        return 0, max(abs(ends[0][0]), abs(ends[0][1]))
    if op is Ops.SHL:
        amount = max(0, min(int(ends[1][1]), node.dtype.bits))
        return mul(ends[0], (1, 1 << amount))
    if op is Ops.CDIV:
        return min(ends[0][0], -ends[0][1]), max(ends[0][1], -ends[0][0])
    if op in (Ops.CAST, Ops.BITCAST) and node.src[0].dtype.is_int:
        return ends[0]
    return None


def may_wrap(node: UOp) -> bool:
    """Whether a result may leave its type, as far as intervals tell."""
    exact = exact_interval(node)
    return exact is not None and not (node.dtype.min <= exact[0] and exact[1] <= node.dtype.max)


@final
class Whole:
    """Translates closed nodes, each once."""

    def __init__(self) -> None:
        self.values: dict[UOp, Expr] = {}
        self.leaves: dict[UOp, Expr] = {}
        self.facts: list[Expr] = []
        self.divisions: list[Division] = []
        self.products = False  # of two things that are not constants

    def value(self, root: UOp) -> Expr:
        for node in toposort(root, stop=self.values.__contains__):
            if node not in self.values:
                self.values[node] = self._translate(node)
        return self.values[root]

    def _translate(self, node: UOp) -> Expr:
        if node.dtype.is_float:
            return _NO_VALUE
        if node.op is Ops.CONST:
            return z3.BoolVal(node.arg) if node.dtype.is_bool else z3.IntVal(node.arg)
        if node.op in LEAVES:
            return self._leaf(node)
        found = self._arithmetic(node, [self.values[s] for s in node.src])
        return self._wrapped(found, node.dtype) if may_wrap(node) else found

    def _leaf(self, node: UOp) -> Expr:
        name = f"{name_of(node)}!{len(self.leaves)}"
        x = self.leaves[node] = z3.Int(name)
        if node.op is Ops.DEFINE_VAR:
            _, low, high = node.arg
            self.facts += [x >= low] if not math.isinf(low) else []
            self.facts += [x <= high] if not math.isinf(high) else []
        else:
            self.facts += [x >= 0, x < self.values[node.src[0]]]
        return x

    @staticmethod
    def _wrapped(x: Expr, dtype: DType) -> Expr:
        return (x - dtype.min) % (1 << dtype.bits) + dtype.min

    def _unknown(self, node: UOp) -> Expr:
        """What is not followed: any value of the interval."""
        if node.dtype.is_bool:
            return z3.FreshBool("any")
        x = z3.FreshInt("any")
        low, high = bounds(node)
        self.facts += [x >= low] if not math.isinf(low) else []
        self.facts += [x <= high] if not math.isinf(high) else []
        return x

    def _arithmetic(self, node: UOp, x: list[Expr]) -> Expr:
        op = node.op
        if node.src[-1].dtype.is_float:
            return self._unknown(node)
        if node.src[-1].dtype.is_bool and op is not Ops.WHERE:
            return self._boolean(node, x)
        simple = _SIMPLE.get(op)
        if simple is not None:
            if op in (Ops.MUL, Ops.MULACC):
                self.products |= not any(z3.is_int_value(factor) for factor in x[:2])
            return simple(*x)
        if op in (Ops.CAST, Ops.BITCAST):
            return x[0] != 0 if node.dtype.is_bool else x[0]
        if op in (Ops.FLOORDIV, Ops.FLOORMOD, Ops.CDIV, Ops.CMOD):
            return self._divided(node, x)
        if op in (Ops.SHL, Ops.SHR, Ops.AND):
            return self._bits(node, x)
        if op is Ops.XOR:
            found = self._unknown(node)
            self.facts.append((found < 0) == z3.Xor(x[0] < 0, x[1] < 0))
            return found
        return self._unknown(node)

    def _boolean(self, node: UOp, x: list[Expr]) -> Expr:
        op = node.op
        if op in (Ops.AND, Ops.MUL, Ops.MIN):
            return z3.And(x)
        if op in (Ops.OR, Ops.ADD, Ops.MAX):
            return z3.Or(x)
        if op is Ops.NOT:
            return z3.Not(x[0])
        if op in (Ops.XOR, Ops.CMPNE):
            return z3.Xor(*x)
        if op is Ops.CMPEQ:
            return x[0] == x[1]
        if op is Ops.CMPLT:
            return z3.And(z3.Not(x[0]), x[1])
        if op is Ops.CAST:
            return x[0] if node.dtype.is_bool else z3.If(x[0], z3.IntVal(1), z3.IntVal(0))
        return self._unknown(node)

    def _divided(self, node: UOp, x: list[Expr]) -> Expr:
        (low, _), (least, most) = bounds(node.src[0]), bounds(node.src[1])
        divisor = node.src[1]
        modulo = node.op in (Ops.FLOORMOD, Ops.CMOD)
        down = node.op in (Ops.FLOORDIV, Ops.FLOORMOD) or (low >= 0 and least >= 0)
        constant = divisor.op is Ops.CONST and divisor.arg > 0
        if down and constant:
            return x[0] % x[1] if modulo else x[0] / x[1]
        if constant:  # toward zero
            quotient = z3.If(x[0] < 0, -(-x[0] / x[1]), x[0] / x[1])
            return x[0] - quotient * x[1] if modulo else quotient
        if down and (least >= 0 or most <= 0):
            q, r = z3.FreshInt("q"), z3.FreshInt("r")
            self.divisions.append(Division(x[0], x[1], q, r))
            return r if modulo else q
        return self._unknown(node)

    def _bits(self, node: UOp, x: list[Expr]) -> Expr:
        amount = node.src[1]
        if amount.op is not Ops.CONST:
            return self._unknown(node)
        c = int(amount.arg)
        width = 64 if node.dtype.is_index else node.dtype.bits
        if node.op is Ops.SHL:
            return x[0] * (1 << c) if 0 <= c < width else self._unknown(node)
        if node.op is Ops.SHR:
            return x[0] / (1 << min(c, width)) if c >= 0 else self._unknown(node)
        if c >= 0 and c & (c + 1) == 0:
            return x[0] % (c + 1)
        return self._unknown(node)


_SIMPLE: dict[Any, Any] = {
    Ops.ADD: lambda a, b: a + b,
    Ops.SUB: lambda a, b: a - b,
    Ops.MUL: lambda a, b: a * b,
    Ops.MULACC: lambda a, b, c: a * b + c,
    Ops.NEG: lambda a: -a,
    Ops.ABS: lambda a: z3.If(a < 0, -a, a),
    Ops.MIN: lambda a, b: z3.If(a < b, a, b),
    Ops.MAX: lambda a, b: z3.If(a < b, b, a),
    Ops.CMPLT: lambda a, b: a < b,
    Ops.CMPEQ: lambda a, b: a == b,
    Ops.CMPNE: lambda a, b: a != b,
    Ops.WHERE: z3.If,
    Ops.TRUNC: lambda a: a,
}


def ask(whole: Whole, goal: Expr, given: list[Expr], steps: int) -> Outcome:
    """Does the goal follow, for all values of the leaves?"""
    if not whole.divisions and not whole.products:
        solver = z3.Solver()
        solver.set("rlimit", steps)
        solver.add(*whole.facts, *given, z3.Not(goal))
        answer = solver.check()
        if answer == z3.unsat:
            return Outcome(PROVED)
        return Outcome(REFUTED, solver.model()) if answer == z3.sat else Outcome(UNKNOWN)
    return decide(Problem([*whole.facts, *given], goal, whole.divisions), steps)


def example(whole: Whole, outcome: Outcome) -> dict[str, Any]:
    """What the leaves are in a counterexample."""
    found = {}
    for leaf, x in whole.leaves.items():
        value = outcome.model.eval(x, model_completion=True)
        found[name_of(leaf)] = value.as_long()
    return found
