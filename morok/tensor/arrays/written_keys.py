"""What kernels that are written by hand sort, and the numbers that it is sorted by.

Words hold their key: one whole number of 64 bits, or two of which the first is the key and the other goes
along. Values are elements as they lie in memory; their keys are made wherever somebody looks at them, so that
half as many bytes move, and nothing has to be made of them in the end.
"""

from __future__ import annotations

from typing import final

from morok import dtype as dt
from morok.codegen.written import Value
from morok.dtype import DType
from morok.dtype.records import record

_UNSIGNED = {1: dt.uint8, 2: dt.uint16, 4: dt.uint32, 8: dt.uint64}

# What is sorted, as part of a kernel's name: words of so many numbers; or elements: how many bytes they have,
# the largest number of a float's bits without a sign (-1: signed numbers, -2: unsigned ones), and whether
# the largest come first.
What = int | tuple[int, int, bool]
_SIGNED, _PLAIN = -1, -2


def values_of(own: DType, descending: bool) -> tuple[int, int, bool]:
    """What elements of a type are to kernels that sort them."""
    if not own.is_float:
        signed = own.is_int and not own.is_unsigned
        return own.itemsize, _SIGNED if signed else _PLAIN, descending
    most = (1 << (8 * own.itemsize - 1)) - 1
    largest = most >> own.mantissa_bits << own.mantissa_bits if own.has_inf else most - 1
    return own.itemsize, largest, descending


@final
@record(frozen=True)
class Form:
    """Words, or elements, as kernels see them."""

    what: What

    @property
    def memory(self) -> DType:
        return dt.int64 if isinstance(self.what, int) else _UNSIGNED[self.what[0]]

    @property
    def width(self) -> int:
        """How many numbers move together."""
        return self.what if isinstance(self.what, int) else 1

    @property
    def bytes(self) -> int:
        return self.width * self.memory.itemsize

    @property
    def is_float(self) -> bool:
        return not isinstance(self.what, int) and self.what[1] >= 0

    @property
    def descending(self) -> bool:
        """Whether the largest elements come first."""
        return not isinstance(self.what, int) and self.what[2]

    @property
    def largest(self) -> int:
        """The largest number of a float's bits without a sign."""
        assert not isinstance(self.what, int)
        return self.what[1]

    @property
    def lost_nan(self) -> int:
        """The key of every NaN."""
        return int(self.wide.min if self.descending else self.wide.max)

    @property
    def lost_zero(self) -> int:
        """The key of -0."""
        return 0 if self.descending else -1

    @property
    def wide(self) -> DType:
        """The signed type that keys of elements are computed in: their bits are its upper ones."""
        return dt.int64 if self.memory.itemsize == 8 else dt.int32

    @property
    def first(self) -> int:
        """The first bit of an element's key that says something."""
        return 0 if self.memory.itemsize == 8 else 32 - 8 * self.memory.itemsize

    def _bits(self, x: Value) -> Value:
        wide = dt.uint64 if self.wide is dt.int64 else dt.uint32
        found = x.cast(wide)
        return (found << self.first if self.first else found).cast(self.wide)

    def _is_nan(self, bits: Value) -> Value:
        assert not isinstance(self.what, int)
        size: Value = bits & self.wide.max
        return size > (self.what[1] << self.first)

    def digits_of(self, x: Value) -> Value:
        """The number whose digits say where a word goes. Zeros are equal, and so are all NaN."""
        if isinstance(self.what, int):
            return x.lane(0) if x.dtype.lanes > 1 else x
        bits, wide = self._bits(x), self.wide
        unsigned = dt.uint64 if wide is dt.int64 else dt.uint32
        if self.is_float:
            sign = bits >> (8 * wide.itemsize - 1)
            key = ((bits & wide.max) ^ sign) - sign
            bits = self._is_nan(bits).where(wide.max, key)
        if self.what[1] != _PLAIN:
            bits = bits ^ wide.min
        found = bits.cast(unsigned)
        return ~found if self.what[2] else found

    def key_of(self, x: Value) -> Value:
        """Signed numbers that order as elements do; of NaN the largest, of -0 the one before that of 0."""
        assert not isinstance(self.what, int)
        key, wide = self._bits(x), self.wide
        if self.is_float:
            sign = key >> (8 * wide.itemsize - 1)
            key = self._is_nan(key).where(wide.max, key ^ (sign & wide.max))
        elif self.what[1] == _PLAIN:
            key = key ^ wide.min
        return ~key if self.what[2] else key

    def element_of(self, key: Value) -> Value:
        """The element whose key it is, but for NaN, of which there are many."""
        assert not isinstance(self.what, int)
        wide = self.wide
        key = ~key if self.what[2] else key
        if self.is_float:
            key = key ^ ((key >> (8 * wide.itemsize - 1)) & wide.max)
        elif self.what[1] == _PLAIN:
            key = key ^ wide.min
        bits = key.cast(dt.uint64 if wide is dt.int64 else dt.uint32)
        return (bits >> self.first if self.first else bits).cast(self.memory)

    def is_lost(self, key: Value) -> Value:
        """Whether it may not be what was there: NaN; or -0, which does not come before any 0."""
        return key.equals(self.lost_nan) | key.equals(self.lost_zero)
