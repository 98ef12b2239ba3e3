"""The meaning of every arithmetic op in Z3, op for op what `morok/ir/arithmetic/alu.py` says; a test compares
the two.

Sorts: `index` is an unbounded integer, integers of a width are bit-vectors, bool is Bool, floats are IEEE
numbers of their format. With `reals=True` floats are real numbers instead, which is what rules that only
change rounding are proved over.

What Z3 has no theory for (exp, sin, a power with an unknown exponent) is an uninterpreted function: a proof
holds for any function in its place, and a refutation means nothing until the values are computed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any, final

from morok.dtype import DType, bool_, float64, from_bits, to_bits
from morok.errors import ProofError
from morok.ir.arithmetic.scalars import INDEX_MAX, INDEX_MIN
from morok.ir.ops import Op, Ops
from morok.proof.smt.meaning import BOOLS, FLOATS, INDICES, REALS, SIGNED, UNSIGNED
from morok.proof.smt.solver import Division, Expr, z3

NO_THEORY = frozenset(
    (
        Ops.EXP,
        Ops.EXP2,
        Ops.LOG,
        Ops.LOG2,
        Ops.SIN,
        Ops.COS,
        Ops.TAN,
        Ops.TANH,
        Ops.ERF,
        Ops.RSQRT,
        Ops.ATAN2,
        Ops.FMOD,
        Ops.DOT2,
    )
)
_LONGEST_POWER = 16
_LARGEST_SHIFT = 4096


def supported(dtype: DType) -> bool:
    """Whether values of a scalar type have a sort.

    A float format without infinities is not an IEEE format.
    """
    return dtype.is_int or dtype.is_bool or (dtype.is_float and dtype.has_inf)


@final
class Translator:
    """Builds the expressions of one proof and collects what they assume."""

    def __init__(self, reals: bool = False) -> None:
        self.reals = reals
        self.assumed: list[
            Expr
        ] = []  # facts about helper variables, always true of the values they stand for
        self.defined: list[Expr] = []  # over the reals: what must hold for the expressions to have a value
        self.divisions: list[Division] = []
        self._known: dict[tuple[str, int, int], Any] = {}
        self._from_bits: dict[int, tuple[Expr, DType]] = {}  # indices that are casts: from what
        self._kept: list[Expr] = []

    # --- sorts, variables, values

    def sort(self, dtype: DType) -> Any:
        """The Z3 sort of a scalar type."""
        if dtype.is_bool:
            return z3.BoolSort()
        if dtype.is_index:
            return z3.IntSort()
        if dtype.is_int:
            return z3.BitVecSort(dtype.bits)
        if not dtype.is_float or not supported(dtype):
            raise ProofError(f"there is no theory for values of type {dtype}")
        return z3.RealSort() if self.reals else z3.FPSort(dtype.exponent_bits, dtype.mantissa_bits + 1)

    def variable(self, name: str, dtype: DType) -> Expr:
        return z3.Const(name, self.sort(dtype))

    def constant(self, value: Any, dtype: DType) -> Expr:
        """A Python number, which must be a value of the type."""
        if dtype.is_bool:
            return z3.BoolVal(bool(value))
        if dtype.is_index:
            return z3.IntVal(int(value))
        if dtype.is_int:
            return z3.BitVecVal(int(value), dtype.bits)
        if self.reals:
            if not math.isfinite(value):
                raise ProofError(f"{value} is no real number")
            return z3.RealVal(str(Fraction(value)))
        if value != value:
            return z3.fpNaN(self.sort(dtype))
        return z3.simplify(z3.fpBVToFP(z3.BitVecVal(to_bits(value, dtype), dtype.bits), self.sort(dtype)))

    def value(self, model: Any, e: Expr, dtype: DType) -> Any:
        """What a model says about an expression, as a Python number; a Fraction over the reals."""
        v = model.eval(e, model_completion=True)
        if dtype.is_bool:
            return z3.is_true(v)
        if dtype.is_index:
            return v.as_long()
        if dtype.is_int:
            return v.as_long() if dtype.is_unsigned else v.as_signed_long()
        if self.reals:
            return v.as_fraction() if z3.is_rational_value(v) else v.approx(20).as_fraction()
        if v.isNaN():
            return math.nan
        bits = z3.simplify(z3.fpToIEEEBV(v)).as_long()
        return from_bits(bits, dtype)

    def same(self, a: Expr, b: Expr, dtype: DType, zero_sign: bool = False) -> Expr:
        """a and b are the same value.

        NaN is NaN, and -0 is not +0 unless the sign of zeros does not matter.
        """
        if dtype.is_float and zero_sign and not self.reals:
            return z3.Or(a == b, z3.And(z3.fpIsZero(a), z3.fpIsZero(b)))
        return a == b

    def between(self, e: Expr, low: Any, high: Any, dtype: DType) -> list[Expr]:
        """low ≤ e ≤ high for Python numbers, infinities included."""
        if not dtype.is_int:
            return []
        facts = []
        if abs(low) != math.inf:
            facts.append(
                self.apply(Ops.NOT, bool_, self.apply(Ops.CMPLT, dtype, e, self.constant(low, dtype)))
            )
        if abs(high) != math.inf:
            facts.append(
                self.apply(Ops.NOT, bool_, self.apply(Ops.CMPLT, dtype, self.constant(high, dtype), e))
            )
        return facts

    # --- ops

    def apply(self, op: Op, dtype: DType, *x: Expr, to: DType | None = None) -> Expr:
        """`op` on operands of `dtype` (of WHERE, the branches); the arguments are those of `evaluate`."""
        if op is Ops.WHERE:
            return z3.If(x[0], x[1], x[2])
        if op is Ops.CMPEQ or op is Ops.CMPNE:
            equal = z3.fpEQ(*x) if dtype.is_float and not self.reals else x[0] == x[1]
            return equal if op is Ops.CMPEQ else z3.Not(equal)
        if op is Ops.CAST or op is Ops.BITCAST:
            assert to is not None
            return self._cast(dtype, to, x[0]) if op is Ops.CAST else self._bitcast(dtype, to, x[0])
        if op is Ops.SUB and dtype.is_float and not self.reals:
            op, x = (
                Ops.ADD,
                (x[0], _negative(x[1])),
            )  # IEEE defines it so; one form is easier to compare than two
        if op.commutative and x[0].get_id() > x[1].get_id():
            x = (x[1], x[0])  # bit for bit the same, and spares the solver the proof that x·y = y·x
        if dtype.is_bool:
            return _table(BOOLS, op, dtype)(*x)
        if dtype.is_index:
            return _table(INDICES, op, dtype)(self, *x)
        if dtype.is_int:
            return _table(UNSIGNED if dtype.is_unsigned else SIGNED, op, dtype)(*x)
        if op in NO_THEORY:
            return self.function(op.name.lower(), dtype, *x)
        if self.reals:
            return _table(REALS, op, dtype)(self, *x)
        if op is Ops.POW:
            return self._float_power(dtype, *x)
        return _table(FLOATS, op, dtype)(*x)

    def function(self, name: str, dtype: DType, *x: Expr) -> Expr:
        """An uninterpreted function: nothing is known but that equal operands give equal results."""
        sorts = [e.sort() for e in x]
        return z3.Function(f"{name}_{dtype}", *sorts, self.sort(dtype))(*x)

    def divide(self, a: Expr, b: Expr) -> tuple[Expr, Expr]:
        """Quotient and remainder of unbounded integers, rounded down, as new variables with a definition."""
        a, b = z3.simplify(a), z3.simplify(b)
        key = ("divide", a.get_id(), b.get_id())
        if key not in self._known:
            number = len(self.divisions)
            q, r = z3.Int(f"quotient!{number}"), z3.Int(f"remainder!{number}")
            self.divisions.append(Division(a, b, q, r))
            self._known[key] = q, r
            self._kept += [a, b]
        return self._known[key]  # type: ignore[no-any-return]

    def power_of_two(self, y: Expr) -> Expr:
        """2^y for an unbounded y ≥ 0."""
        y = z3.simplify(y)
        if z3.is_int_value(y) and 0 <= y.as_long() <= _LARGEST_SHIFT:
            return z3.IntVal(1 << y.as_long())
        result = z3.Function("two_to_the", z3.IntSort(), z3.IntSort())(y)
        self.assumed += [result >= 1, z3.Implies(y == 0, result == 1), z3.Implies(y > 0, result >= 2)]
        self.assumed.append(z3.Implies(y > _LARGEST_SHIFT, result > 1 << _LARGEST_SHIFT))
        return result

    def bits_of_index(self, x: Expr, y: Expr) -> Expr:
        """x & y of unbounded integers in two's complement.

        Exact for a constant, else a function with its basic laws.
        """
        x, y = z3.simplify(x), z3.simplify(y)
        if z3.is_int_value(x):
            x, y = y, x
        if z3.is_int_value(y):
            return self._masked(x, y.as_long())
        if x.get_id() > y.get_id():
            x, y = y, x
        both = z3.Function("and_index", z3.IntSort(), z3.IntSort(), z3.IntSort())
        result = both(x, y)
        self.assumed += [
            result == both(y, x),
            z3.Implies(x == y, result == x),
            z3.Implies(x == -1 - y, result == 0),
            z3.Implies(x == 0, result == 0),
            z3.Implies(x == -1, result == y),
            z3.Implies(y == 0, result == 0),
            z3.Implies(y == -1, result == x),
            z3.Implies(x >= 0, z3.And(0 <= result, result <= x)),
            z3.Implies(y >= 0, z3.And(0 <= result, result <= y)),
        ]
        return result

    def _masked(self, x: Expr, mask: int) -> Expr:
        if mask < 0:
            return x - self._masked(x, ~mask)
        total, low = z3.IntVal(0), 0
        while mask >> low:
            if not mask >> low & 1:
                low += 1
                continue
            length = 0
            while mask >> (low + length) & 1:
                length += 1
            run = self.divide(self.divide(x, z3.IntVal(1 << low))[0], z3.IntVal(1 << length))[1]
            total = total + run * (1 << low)
            low += length
        return total

    def index_power(self, x: Expr, y: Expr) -> Expr:
        y = z3.simplify(y)
        if z3.is_int_value(y) and 0 <= y.as_long() <= _LONGEST_POWER:
            return z3.Product([z3.IntVal(1), *[x] * y.as_long()])
        negative = z3.If(x == 1, 1, z3.If(x == -1, z3.If(y % 2 == 0, 1, -1), 0))
        power = z3.Function("pow_index", z3.IntSort(), z3.IntSort(), z3.IntSort())(x, y)
        self.assumed += [z3.Implies(y == 0, power == 1), z3.Implies(y == 1, power == x)]
        return z3.If(y < 0, negative, power)

    def _float_power(self, dtype: DType, x: Expr, y: Expr) -> Expr:
        # IEEE pow for the exponents at which it is exact; two operands of up to 26 bits have an exact
        # square in float64
        sort = self.sort(dtype)
        one = z3.FPVal(1.0, sort)
        power = self.function("pow", dtype, x, y)
        if dtype is not float64:
            power = z3.If(z3.fpEQ(y, z3.FPVal(2.0, sort)), z3.fpMul(z3.RNE(), x, x), power)
        return z3.If(z3.Or(z3.fpIsZero(y), z3.fpEQ(x, one)), one, z3.If(z3.fpEQ(y, one), x, power))

    # --- conversions

    def _cast(self, source: DType, to: DType, x: Expr) -> Expr:
        if source is to:
            return x
        if self.reals and source.is_float and to.is_float:
            return x
        if to.is_bool:
            return self.apply(Ops.CMPNE, source, x, self.constant(0, source))
        if source.is_bool:
            return z3.If(x, self.constant(1, to), self.constant(0, to))
        if to.is_float:
            return self._to_float(source, to, x)
        if source.is_float:
            return self._float_to_int(source, to, x)
        if to.is_index:
            whole = _as_int(x, source)
            self._from_bits[whole.get_id()] = x, source
            self._kept.append(whole)
            return whole
        if source.is_index:
            known = self._from_bits.get(x.get_id())
            return self._cast(known[1], to, known[0]) if known else z3.Int2BV(x, to.bits)
        if to.bits <= source.bits:
            return z3.Extract(to.bits - 1, 0, x)
        more = to.bits - source.bits
        return z3.ZeroExt(more, x) if source.is_unsigned else z3.SignExt(more, x)

    def _to_float(self, source: DType, to: DType, x: Expr) -> Expr:
        if self.reals:
            return z3.ToReal(x if source.is_index else _as_int(x, source))
        if source.is_float:
            return z3.fpToFP(z3.RNE(), x, self.sort(to))
        if source.is_index:
            known = self._from_bits.get(x.get_id())
            if known is not None:
                return self._to_float(known[1], to, known[0])
            if z3.is_int_value(z3.simplify(x)):
                return z3.simplify(z3.fpToFP(z3.RNE(), z3.ToReal(z3.simplify(x)), self.sort(to)))
            if z3.is_app_of(x, z3.Z3_OP_ITE):  # a condition as a number
                p, *both = x.children()
                return z3.If(p, *(self._to_float(source, to, v) for v in both))
            return self.function("from_index", to, x)
        convert = z3.fpUnsignedToFP if source.is_unsigned else z3.fpSignedToFP
        return convert(z3.RNE(), x, self.sort(to))

    def _float_to_int(self, source: DType, to: DType, x: Expr) -> Expr:
        if self.reals:
            return self.function("to_int", to, x)
        bits = 64 if to.is_index else to.bits
        low, high = (INDEX_MIN, INDEX_MAX) if to.is_index else (to.min, to.max)
        sort = self.sort(source)
        inside = (z3.fpToUBV if to.is_unsigned else z3.fpToSBV)(z3.RTZ(), x, z3.BitVecSort(bits))
        top = z3.fpGEQ(x, z3.fpToFP(z3.RNE(), z3.RealVal(high + 1), sort))
        bottom = z3.fpLEQ(x, z3.fpToFP(z3.RNE(), z3.RealVal(low), sort))
        if to.is_index:
            inside = z3.BV2Int(inside, is_signed=True)
        return z3.If(
            z3.fpIsNaN(x),
            self.constant(0, to),
            z3.If(top, self.constant(high, to), z3.If(bottom, self.constant(low, to), inside)),
        )

    def _bitcast(self, source: DType, to: DType, x: Expr) -> Expr:
        if self.reals and (source.is_float or to.is_float):
            return self.function(f"bits_of_{source}", to, x)
        bits = x
        if source.is_float:
            bits = z3.fpToIEEEBV(x)
        elif source.is_bool:
            bits = z3.If(x, z3.BitVecVal(1, 1), z3.BitVecVal(0, 1))
        if to.is_bool:
            return bits == 1
        return z3.fpBVToFP(bits, self.sort(to)) if to.is_float else bits


def _table(table: dict[Op, Callable[..., Expr]], op: Op, dtype: DType) -> Callable[..., Expr]:
    found = table.get(op)
    if found is None:
        raise ProofError(f"{op.name} is not defined on {dtype}")
    return found


def _negative(x: Expr) -> Expr:
    twice = z3.is_app(x) and x.decl().kind() == z3.Z3_OP_FPA_NEG
    return x.arg(0) if twice else z3.fpNeg(x)


def _as_int(x: Expr, dtype: DType) -> Expr:
    return z3.BV2Int(x, is_signed=not dtype.is_unsigned)
