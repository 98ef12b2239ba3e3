"""Random operands for rules whose right side is code: sums, quotients, comparisons, constants.

Everything follows from a seed. Constants share factors, because most code about quotients looks for common
ones; variables are few, so that terms meet again; some bounds are tight, some are wide, some are infinite,
and many lie at the thresholds of the code: at a divisor, one beside it, at the ends of a type.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from typing import Any, final

from morok.dtype import DType, bool_, from_bits, index
from morok.ir.node import UOp, alu, const, make
from morok.ir.ops import Op, Ops

_FACTORS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 5, 7, -1, -2, -3, -4, -8)
_DIVISORS = (2, 3, 4, 6, 8, 12, 16, 24, 5, 7)
_BOUNDS: tuple[tuple[float, float], ...] = (
    (0, 1), (0, 2), (0, 3), (0, 5), (0, 7), (0, 15), (0, 63), (1, 4), (-3, 3), (-8, 7), (0, 1023),
    (-(2**31), 2**31 - 1), (-math.inf, math.inf), (0, math.inf),
)  # fmt: skip


def edge_values(dtype: DType) -> list[Any]:
    """Values at which ops like to go wrong."""
    if dtype.is_bool:
        return [False, True]
    if dtype.is_index:
        return [0, 1, -1, 2, 3, 4, 7, 8, -7, -8, 12, 64, 100, -(2**31), 2**63]
    if dtype.is_int:
        low, high = dtype.min, dtype.max
        found = [0, 1, 2, 3, 7, dtype.bits - 1, dtype.bits, high, high - 1, high // 2, low, low + 1]
        return list(dict.fromkeys(found if dtype.is_unsigned else [*found, -1, -2, -7]))
    tiny = dtype.smallest_normal * dtype.eps
    finite = [0.0, -0.0, 1.0, -1.0, 0.5, 2.0, -2.5, 3.0, tiny, dtype.largest, -dtype.largest]
    return [*finite, *((math.inf, -math.inf) if dtype.has_inf else ()), math.nan]


def constant_pool(dtype: DType) -> list[Any]:
    """Constants that rules ask for: small ones of both signs, and the edges."""
    if not dtype.is_int:
        return edge_values(dtype)
    small = range(17) if dtype.is_unsigned else range(-8, 17)
    return list(dict.fromkeys([*small, *edge_values(dtype), 24, 32, 64]))


def near(numbers: Iterable[Any]) -> list[int]:
    """Where code changes its mind: at the numbers, one beside them, at their divisors, at -1, 0 and 1."""
    found: dict[int, None] = dict.fromkeys((0, 1, -1))
    for n in numbers:
        if isinstance(n, bool) or not isinstance(n, int):
            continue
        found.update(dict.fromkeys((n, n - 1, n + 1, -n)))
        found.update(dict.fromkeys(d * k for d in (2, 3, 4, 5, 8) if n % d == 0 for k in (n // d, d)))
    return list(found)


@final
class Maker:
    """Makes nodes of a wanted type.

    `focus` are numbers at which the code under test may change its mind: its constants, the ends of its
    types. Bounds, coefficients and constants are often at or beside one of them. Each variable has one pair
    of bounds in a case, so that the same one stands in a condition and in what it guards.
    """

    def __init__(self, seed: str, focus: Iterable[Any] = ()) -> None:
        self.rng = random.Random(seed)
        self.focus = [n for n in focus if type(n) is int]
        self._variables: dict[tuple[DType, int], UOp] = {}
        self._radix: int | None = None
        self.ends: list[int] = []  # of the types that a value may be converted to

    def _near(self, dtype: DType) -> int:
        """A number at one of the thresholds, as a value of the type."""
        value = self.rng.choice(near(self.focus))
        return value if dtype.is_index else max(dtype.min, min(dtype.max, value))

    def constant(self, dtype: DType) -> UOp:
        """Any constant; for integers mostly a small one."""
        rng = self.rng
        value: Any
        if dtype.is_bounded_int and dtype.bits >= 32 and rng.random() < 0.35:
            value = rng.getrandbits(rng.randrange(1, dtype.bits))  # of any length
        elif dtype.is_int and self.focus and rng.random() < 0.35:
            value = self._near(dtype)
        elif dtype.is_int and rng.random() < 0.75:
            value = rng.choice(_FACTORS if rng.random() < 0.5 else _DIVISORS)
            if dtype.is_unsigned:
                value = abs(value)
        elif dtype.is_bounded_int and rng.random() < 0.6:
            value = rng.getrandbits(rng.randrange(1, dtype.bits))
        elif dtype.is_float and rng.random() < 0.3:
            value = from_bits(rng.getrandbits(dtype.bits), dtype)
        else:
            value = rng.choice(edge_values(dtype))
        return const(dtype, value)

    def variable(self, dtype: DType) -> UOp:
        """One of three variables of a type, with some bounds."""
        number = self.rng.randrange(3)
        key = (dtype, number)
        if key not in self._variables:
            low, high = self._bounds(dtype)
            name = f"{dtype.kind[0]}{number}"
            self._variables[key] = make(Ops.DEFINE_VAR, dtype, (), (name, low, high))
            if self.rng.random() < 0.5:
                self.focus += [b for b in (low, high) if type(b) is int]
        return self._variables[key]

    def _bounds(self, dtype: DType) -> tuple[Any, Any]:
        rng = self.rng
        if dtype.is_bool:
            return False, True
        if dtype.is_float:
            return -math.inf, math.inf
        low: Any
        high: Any
        if self.ends and rng.random() < 0.4:
            high = rng.choice(self.ends) + rng.choice((-1, 0, 1))
            low = rng.choice((0, 0, -high - 1, -high, rng.choice(self.ends) - 1))
            low, high = min(low, high), max(low, high)
        elif self.focus and rng.random() < 0.5:
            low = rng.choice((0, 0, 0, 1, -1, self._near(dtype)))
            high = self._near(dtype)
            low, high = min(low, high), max(low, high)
        else:
            low, high = rng.choice(_BOUNDS)
        if dtype.is_index:
            return low, high
        if rng.random() < 0.3:
            return dtype.min, dtype.max
        return max(low, dtype.min), max(min(high, dtype.max), max(low, dtype.min))

    def expression(self, dtype: DType, depth: int) -> UOp:
        """Something of the type, at most so deep."""
        rng = self.rng
        if depth <= 0 or rng.random() < 0.15:
            return self.constant(dtype) if rng.random() < 0.12 else self.variable(dtype)
        if dtype.is_bool:
            return self._boolean(depth)
        if dtype.is_float:
            return alu(rng.choice((Ops.ADD, Ops.MUL, Ops.SUB, Ops.MAX)), *self._two(dtype, depth))
        if self.focus and rng.random() < 0.4:
            found = self._digit(dtype)
            if found is not None:
                return found
        kind = rng.random()
        if kind < 0.45:
            return self.sum(dtype, depth)
        if kind < 0.75:
            op = rng.choice((Ops.FLOORDIV, Ops.FLOORMOD))
            return alu(op, self.expression(dtype, depth - 1), const(dtype, self._divisor(dtype)))
        if kind < 0.85:
            return alu(Ops.MUL, self.expression(dtype, depth - 1), self.constant(dtype))
        op = rng.choice((Ops.ADD, Ops.MAX, Ops.MIN, Ops.ADD))
        return alu(op, *self._two(dtype, depth))

    def _digit(self, dtype: DType) -> UOp | None:
        """A part of a number in mixed radix: a multiple of the radix, or what is about as small as it.

        The radix divides one of the numbers in focus, as rows divide a flat index; there is one for a case.
        """
        rng = self.rng
        if self._radix is None:
            divisors = [d for n in self.focus if 3 < n < 1 << 16 for d in range(2, min(n, 50)) if n % d == 0]
            self._radix = rng.choice(divisors) if divisors else 0
        d = self._radix
        factor = d * rng.choice((1, 1, 2, 3, 5) if dtype.is_unsigned else (1, 1, 2, 3, 5, -1, -3))
        if not d or not (dtype.is_index or dtype.min <= factor <= dtype.max >= d + 1):
            return None
        kind = rng.random()
        if kind < 0.4:
            low, high = rng.choice((0, 0, 0, 1, -1)), rng.choice((d - 1, d - 1, d, d + 1))
            low = 0 if dtype.is_unsigned else low
            return make(Ops.DEFINE_VAR, dtype, (), (f"d{rng.randrange(2)}", low, max(low, high)))
        row = alu(Ops.MUL, self.variable(dtype), const(dtype, factor))
        return row if kind < 0.7 else alu(Ops.ADD, row, const(dtype, rng.randrange(1, d + 1)))

    def _divisor(self, dtype: DType) -> int:
        found = self._near(dtype) if self.focus and self.rng.random() < 0.5 else 0
        return found if found > 0 else self.rng.choice(_DIVISORS)

    def sum(self, dtype: DType, depth: int) -> UOp:
        """Terms with coefficients that have factors in common, perhaps with a constant."""
        rng = self.rng
        scale = rng.choice((1, 1, 2, 3, 4, 6))
        total: UOp | None = None
        for _ in range(rng.randint(1, 3)):
            term = self.expression(dtype, depth - 1) if rng.random() < 0.25 else self.variable(dtype)
            factor = rng.choice(_FACTORS) * rng.choice((1, scale))
            if self.focus and rng.random() < 0.5:
                factor = self._near(dtype)
            if dtype.is_unsigned:
                factor = min(abs(factor), dtype.max)
            elif not dtype.is_index:
                factor = max(dtype.min, min(dtype.max, factor))
            if factor != 1:
                term = alu(Ops.MUL, term, const(dtype, factor))
            total = term if total is None else alu(Ops.ADD, total, term)
        assert total is not None
        return alu(Ops.ADD, total, self.constant(dtype)) if rng.random() < 0.4 else total

    def _two(self, dtype: DType, depth: int) -> tuple[UOp, UOp]:
        return self.expression(dtype, depth - 1), self.expression(dtype, depth - 1)

    def _boolean(self, depth: int) -> UOp:
        rng = self.rng
        kind = rng.random()
        if kind < 0.35:
            return alu(rng.choice((Ops.AND, Ops.AND, Ops.OR)), *self._two(bool_, depth))
        if kind < 0.4:
            return alu(Ops.NOT, self.expression(bool_, depth - 1))
        op: Op = rng.choice((Ops.CMPLT, Ops.CMPLT, Ops.CMPLT, Ops.CMPEQ, Ops.CMPNE))
        x = self.variable(index) if rng.random() < 0.7 else self.expression(index, depth - 1)
        limit = rng.randint(-4, 20) if not self.focus or rng.random() < 0.5 else self._near(index)
        bound = const(index, limit)
        return alu(op, x, bound) if rng.random() < 0.6 else alu(op, bound, x)
