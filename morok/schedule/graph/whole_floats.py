"""Floats as whole numbers, in units that are a power of two for all that are added: sums of these are the
same in every order, and only what they add up to is rounded.

All are smaller than some 2^E; in units of 2^(E - k) each is below 2^k. A sum has 62 bits, so k is what is
left when there is room for as many as are added. That is enough for floats of 32 bits. Those of 64 bits have
two numbers, of which the second holds what is below the first.

Or there are as many sums as exponents need: each float of 32 bits goes to that of its size, in units of the
smallest float there, and nothing of it falls off. Then nobody has to know the largest one first.
"""

from __future__ import annotations

from typing import NamedTuple, final

from morok.dtype import DType, float32, float64, int32, int64
from morok.ir.build import bitcast, cast
from morok.ir.infer import Size, numel, size_node
from morok.ir.movement import iota, reduce_axis, reshape, shrink, spread_to
from morok.ir.node import UOp, alu, const, make
from morok.ir.ops import Ops

SUM_BITS = 62
EXPONENTS = 256  # of a float of 32 bits, the last of which is that of infinities and NaN
BELOW_ONE = 150  # powers of two of the smallest float's unit
SIGNS = 31  # bits in which infinities of one sign are counted


@final
class Floats(NamedTuple):
    """Floats of a type, so many of which are added at most."""

    dtype: DType
    bits: DType  # whole numbers of as many bits
    mantissa: int
    top: int  # the exponent of infinities and NaN
    numbers: int  # whole numbers that one is
    room: int  # bits of each

    @classmethod
    def of(cls, dtype: DType, most: int) -> Floats:
        room = SUM_BITS - max(0, most - 1).bit_length()
        if dtype is float64:
            return cls(dtype, int64, 52, 2047, 2, room)
        assert dtype is float32, dtype
        return cls(dtype, int32, 23, 255, 1, room)

    @property
    def infinite(self) -> int:
        """What counts as the exponent of +∞; those of -∞ and of NaN are one and two above."""
        return self.top + 1

    def exponent(self, x: UOp) -> UOp:
        """1 and more by the size of a float; 0 of a zero; beyond all of infinities and NaN."""
        b = bitcast(x, self.bits)
        e = alu(Ops.AND, alu(Ops.SHR, b, const(self.bits, self.mantissa)), const(self.bits, self.top))
        e = cast(e, int32)
        negative = alu(Ops.CMPLT, b, const(self.bits, 0))
        of_infinity = alu(Ops.WHERE, negative, const(int32, self.infinite + 1), const(int32, self.infinite))
        beyond = alu(Ops.WHERE, alu(Ops.CMPNE, x, x), const(int32, self.infinite + 2), of_infinity)
        none = alu(Ops.CMPEQ, x, const(self.dtype, 0.0))
        finite = alu(Ops.WHERE, none, const(int32, 0), alu(Ops.MAX, e, const(int32, 1)))
        return alu(Ops.WHERE, alu(Ops.CMPEQ, e, const(int32, self.top)), beyond, finite)

    def _power(self, largest: UOp) -> UOp:
        """Of the number of units in 1, where the largest exponent is this."""
        return alu(Ops.SUB, const(int32, self.room + self.top // 2 - 1), largest)

    def in_units(self, x: UOp, largest: UOp) -> list[UOp]:
        """Floats as whole numbers, for the largest exponent of where each goes.

        Where that is -∞, the first one says whether +∞ comes as well: then it is NaN.
        """
        y = _times(cast(x, float64), self._power(largest), self.dtype is float64)
        beyond = alu(Ops.CMPLT, const(int32, self.top), largest)
        minus = alu(Ops.CMPEQ, largest, const(int32, self.infinite + 1))
        both = alu(Ops.AND, minus, alu(Ops.CMPEQ, x, const(self.dtype, float("inf"))))
        first = alu(Ops.RINT if self.numbers == 1 else Ops.TRUNC, y)
        said = alu(Ops.WHERE, both, const(int64, 1), const(int64, 0))
        found = [alu(Ops.WHERE, beyond, said, cast(first, int64))]
        if self.numbers > 1:
            rest = alu(Ops.MUL, alu(Ops.SUB, y, first), const(float64, float(1 << self.room)))
            found.append(alu(Ops.WHERE, beyond, const(int64, 0), cast(rest, int64)))
        return found

    def _joined(self, upper: UOp, lower: UOp) -> UOp:
        """Both numbers as one float: what is below its last bit is added up first."""
        carry = alu(Ops.SHR, lower, const(int64, self.room))
        upper = alu(Ops.ADD, upper, carry)
        lower = alu(Ops.SUB, lower, alu(Ops.SHL, carry, const(int64, self.room)))
        first = alu(Ops.SHR, upper, const(int64, SUM_BITS // 2))
        rest = alu(Ops.SUB, upper, alu(Ops.SHL, first, const(int64, SUM_BITS // 2)))
        below = alu(Ops.MUL, cast(lower, float64), const(float64, 0.5**self.room))
        below = alu(Ops.ADD, cast(rest, float64), below)
        return alu(Ops.ADD, alu(Ops.MUL, cast(first, float64), const(float64, 2.0 ** (SUM_BITS // 2))), below)

    def sum(self, totals: list[UOp], largest: UOp) -> UOp:
        """What whole numbers add up to, as a float."""
        total = cast(totals[0], float64) if self.numbers == 1 else self._joined(*totals)
        finite = cast(_times(total, alu(Ops.NEG, self._power(largest)), self.dtype is float64), self.dtype)
        inf, nan = (const(self.dtype, float(name)) for name in ("inf", "nan"))
        comes = alu(Ops.CMPLT, const(int64, 0), totals[0])
        minus = alu(Ops.WHERE, comes, nan, const(self.dtype, -float("inf")))
        found = nan
        for code, value in ((1, minus), (0, inf)):
            same = alu(Ops.CMPEQ, largest, const(int32, self.infinite + code))
            found = alu(Ops.WHERE, same, value, found)
        return alu(Ops.WHERE, alu(Ops.CMPLT, const(int32, self.top), largest), found, finite)


@final
class BySize(NamedTuple):
    """Floats of 32 bits in sums by their sizes; behind these, how many infinities there are of each sign."""

    span: int  # exponents that share a sum, a power of two

    @classmethod
    def of(cls, most: int) -> BySize | None:
        room = 63 - 24 - max(0, most - 1).bit_length() + 1
        return None if room < 2 else cls(1 << (room.bit_length() - 1))

    @property
    def sums(self) -> int:
        return EXPONENTS // self.span + 1

    def number(self, x: UOp) -> UOp:
        """Of the sum that a float goes to."""
        e = _exponent(x)
        beyond = alu(Ops.CMPEQ, e, const(int32, EXPONENTS - 1))
        by_size = alu(Ops.SHR, e, const(int32, self.span.bit_length() - 1))
        return alu(Ops.WHERE, beyond, const(int32, self.sums - 1), by_size)

    def in_units(self, x: UOp) -> UOp:
        """A float as a whole number for its sum."""
        b, e = bitcast(x, int32), _exponent(x)
        digits = alu(Ops.AND, b, const(int32, (1 << 23) - 1))
        normal = alu(Ops.CMPNE, e, const(int32, 0))
        digits = alu(Ops.OR, digits, alu(Ops.SHL, cast(normal, int32), const(int32, 23)))
        # exponent 0 has the unit of exponent 1
        up = alu(Ops.AND, alu(Ops.MAX, e, const(int32, 1)), const(int32, self.span - 1))
        size = alu(Ops.SHL, cast(digits, int64), cast(up, int64))
        negative = alu(Ops.CMPLT, b, const(int32, 0))
        finite = alu(Ops.WHERE, negative, alu(Ops.NEG, size), size)
        plus, minus = const(int64, 1), const(int64, 1 << SIGNS)
        infinite = alu(Ops.WHERE, negative, minus, plus)
        none = alu(Ops.WHERE, alu(Ops.CMPNE, x, x), const(int64, 1 + (1 << SIGNS)), infinite)
        return alu(Ops.WHERE, alu(Ops.CMPEQ, e, const(int32, EXPONENTS - 1)), none, finite)

    def added(self, rows: UOp, here: UOp, inside: UOp, count: Size) -> UOp:
        """What floats add up to that go to some of so many places, by memory that joins their sums."""
        first = alu(Ops.MUL, self.number(rows), cast(size_node(count), int32))
        comes = alu(Ops.AND, inside, alu(Ops.CMPNE, rows, const(float32, 0.0)))
        places = alu(Ops.WHERE, comes, alu(Ops.ADD, first, here), const(int32, -1))
        nothing = spread_to(const(int64, 0), (numel((self.sums, count)),))
        put = make(Ops.SCATTER, int64, (nothing, places, self.in_units(rows)), Ops.ADD)
        return self._sum(reshape(put, (self.sums, count)), count)

    def _sum(self, totals: UOp, count: Size) -> UOp:
        """Of the sums of so many places; totals are (sums, count)."""
        finite = shrink(totals, ((0, self.sums - 1), (0, count)))
        number = iota((self.sums - 1, count), 0, int32)
        power = alu(Ops.MUL, number, const(int32, self.span))
        power = alu(Ops.SUB, power, const(int32, BELOW_ONE))
        parts = alu(Ops.MUL, cast(finite, float64), _power_of_two(power))
        found = cast(reshape(reduce_axis(parts, Ops.ADD, (0,)), (count,)), float32)
        signs = reshape(shrink(totals, ((self.sums - 1, self.sums), (0, count))), (count,))
        plus = alu(Ops.CMPNE, alu(Ops.AND, signs, const(int64, (1 << SIGNS) - 1)), const(int64, 0))
        minus = alu(Ops.CMPNE, alu(Ops.SHR, signs, const(int64, SIGNS)), const(int64, 0))
        inf, nan = (const(float32, float(name)) for name in ("inf", "nan"))
        below = alu(Ops.WHERE, plus, nan, const(float32, -float("inf")))
        beyond = alu(Ops.WHERE, minus, below, inf)
        return alu(Ops.WHERE, alu(Ops.CMPNE, signs, const(int64, 0)), beyond, found)


def _exponent(x: UOp) -> UOp:
    """Of a float of 32 bits, as it is stored."""
    b = alu(Ops.SHR, bitcast(x, int32), const(int32, 23))
    return alu(Ops.AND, b, const(int32, EXPONENTS - 1))


def _times(x: UOp, power: UOp, in_two: bool) -> UOp:
    """x · 2^power; in two steps where one power might be no normal number."""
    if not in_two:
        return alu(Ops.MUL, x, _power_of_two(power))
    half = alu(Ops.SHR, power, const(int32, 1))
    once = alu(Ops.MUL, x, _power_of_two(half))
    return alu(Ops.MUL, once, _power_of_two(alu(Ops.SUB, power, half)))


def _power_of_two(x: UOp) -> UOp:
    """2^x as a float of 64 bits."""
    written = cast(alu(Ops.ADD, x, const(int32, 1023)), int64)
    return bitcast(alu(Ops.SHL, written, const(int64, 52)), float64)
