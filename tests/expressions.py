"""Random expressions and their values, for tests that compare a graph before and after rewriting."""

from __future__ import annotations

import math
import random
from typing import Any

from hypothesis import strategies as st

from morok.dtype import DType, bool_, float32, index, int8, int32, uint8
from morok.ir.arithmetic.alu import evaluate
from morok.ir.build import cast, variable
from morok.ir.node import UOp, alu, const, make, toposort
from morok.ir.ops import Ops

INT_BINARY = (
    Ops.ADD, Ops.SUB, Ops.MUL, Ops.FLOORDIV, Ops.FLOORMOD, Ops.MAX, Ops.MIN, Ops.AND, Ops.OR, Ops.XOR,
)  # fmt: skip
FLOAT_BINARY = (Ops.ADD, Ops.SUB, Ops.MUL, Ops.FDIV, Ops.MAX, Ops.MIN)
BOOL_BINARY = (Ops.AND, Ops.OR, Ops.XOR, Ops.CMPNE, Ops.CMPEQ)
COMPARISONS = (Ops.CMPLT, Ops.CMPNE, Ops.CMPEQ)
SPECIAL_FLOATS = (0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, 1e8, 3.5, -2.25, 1e-45, 3.4e38)


def value_of(root: UOp, values: dict[UOp, Any]) -> Any:
    """The value of an expression by the meaning table; `values` gives the variables'."""
    done: dict[UOp, Any] = {}
    for n in toposort(root):
        if n in values:
            done[n] = values[n]
        elif n.op is Ops.CONST:
            done[n] = n.arg
        elif n.op in (Ops.CAST, Ops.BITCAST):
            done[n] = evaluate(n.op, n.src[0].dtype, done[n.src[0]], to=n.dtype)
        else:
            done[n] = evaluate(n.op, n.src[-1].dtype, *(done[s] for s in n.src))
    return done[root]


def same_value(a: Any, b: Any, zero_sign: bool = True) -> bool:
    """Equal to the bit, NaN to NaN; `zero_sign=False` lets -0.0 be 0.0."""
    if isinstance(a, float) and isinstance(b, float):
        if math.isnan(a) or math.isnan(b):
            return math.isnan(a) and math.isnan(b)
        return a == b and (not zero_sign or math.copysign(1, a) == math.copysign(1, b))
    return bool(a == b) and isinstance(a, bool) == isinstance(b, bool)


class Grower:
    """Draws one random expression. Variables are shared by everything it draws."""

    def __init__(self, rnd: random.Random) -> None:
        self.rnd = rnd
        self.variables: dict[tuple[str, DType], UOp] = {}

    def leaf(self, dtype: DType) -> UOp:
        rnd = self.rnd
        if dtype.is_bool:
            return const(bool_, rnd.random() < 0.5) if rnd.random() < 0.2 else self.variable(dtype)
        if dtype.is_float:
            return const(dtype, rnd.choice(SPECIAL_FLOATS)) if rnd.random() < 0.4 else self.variable(dtype)
        if rnd.random() < 0.45:
            return const(dtype, rnd.choice((-128, -7, -3, -2, -1, 0, 0, 1, 1, 2, 3, 4, 5, 7, 8, 12, 16, 127)))
        return self.variable(dtype)

    def variable(self, dtype: DType) -> UOp:
        name = self.rnd.choice("abc")
        key = (name, dtype)
        if key not in self.variables:
            lo, hi = self.rnd.choice(((0, 7), (0, 1), (-4, 11), (3, 15), (-8, -1)))
            if dtype.is_unsigned:
                lo, hi = abs(lo), abs(lo) + hi - lo
            if dtype.is_int:
                self.variables[key] = variable(f"{name}_{dtype}", lo, hi, dtype)
            else:
                bounds = (
                    (f"{name}_{dtype}", 0, 1) if dtype.is_bool else (f"{name}_{dtype}", -math.inf, math.inf)
                )
                self.variables[key] = make(Ops.DEFINE_VAR, dtype, (), bounds)
        return self.variables[key]

    def expression(self, dtype: DType, depth: int) -> UOp:
        rnd = self.rnd
        if depth == 0 or rnd.random() < 0.1:
            return self.leaf(dtype)
        kind = rnd.random()
        if kind < 0.12:
            p = self.expression(bool_, depth - 1)
            return alu(Ops.WHERE, p, self.expression(dtype, depth - 1), self.expression(dtype, depth - 1))
        if dtype.is_bool:
            if kind < 0.6:
                inner = rnd.choice((index, index, int8, float32))
                x, y = self.expression(inner, depth - 1), self.expression(inner, depth - 1)
                return alu(rnd.choice(COMPARISONS), x, y)
            if kind < 0.75:
                return alu(Ops.NOT, self.expression(bool_, depth - 1))
            x, y = self.expression(bool_, depth - 1), self.expression(bool_, depth - 1)
            return alu(rnd.choice(BOOL_BINARY), x, y)
        if kind < 0.2:
            return alu(Ops.NEG, self.expression(dtype, depth - 1))
        if kind < 0.26 and not dtype.is_index:
            inner = rnd.choice((bool_, int8, uint8, int32, float32))
            return cast(self.expression(inner, depth - 1), dtype)
        ops = FLOAT_BINARY if dtype.is_float else INT_BINARY
        if dtype.is_index and rnd.random() < 0.7:
            ops = (Ops.ADD, Ops.ADD, Ops.MUL, Ops.FLOORDIV, Ops.FLOORMOD)
        x, y = self.expression(dtype, depth - 1), self.expression(dtype, depth - 1)
        return alu(rnd.choice(ops), x, y)

    def assignment(self) -> dict[UOp, Any]:
        """A value for every variable drawn so far."""
        found: dict[UOp, Any] = {}
        for v in self.variables.values():
            if v.dtype.is_bool:
                found[v] = self.rnd.random() < 0.5
            elif v.dtype.is_float:
                found[v] = const(v.dtype, self.rnd.choice((*SPECIAL_FLOATS, self.rnd.uniform(-9, 9)))).arg
            else:
                found[v] = self.rnd.randint(v.arg[1], v.arg[2])
        return found


growers = st.integers(0, 2**63).map(lambda seed: Grower(random.Random(seed)))
