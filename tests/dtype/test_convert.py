"""Values and bits, over every pattern of the small formats, and by exact arithmetic for the large."""

import struct
from fractions import Fraction
from math import copysign, inf, isnan, nan, nextafter

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from morok import dtype as dt
from morok.dtype import DType, as_value, from_bits, identity, to_bits
from morok.errors import DTypeError

NARROW_FLOATS = (dt.float8_e4m3, dt.float8_e5m2, dt.float16, dt.bfloat16)
SIZED = (dt.bool_, *dt.INTS, *dt.FLOATS)


def same(a: float, b: float) -> bool:
    """Equal, with NaN equal to NaN and the zeros told apart."""
    return (isnan(a) and isnan(b)) or (a == b and copysign(1, a) == copysign(1, b))


@pytest.mark.parametrize("dtype", NARROW_FLOATS, ids=str)
def test_every_pattern_of_the_narrow_floats(dtype: DType) -> None:
    patterns = np.arange(1 << dtype.bits, dtype=f"uint{dtype.bits}")
    with np.errstate(invalid="ignore"):  # NumPy remarks on signalling NaNs
        theirs = patterns.view(dtype.numpy).astype(np.float64)
    for pattern, value in enumerate(theirs.tolist()):
        mine = from_bits(pattern, dtype)
        assert type(mine) is float
        assert same(mine, value), (pattern, mine, value)
        assert to_bits(mine, dtype) == pattern
        assert same(as_value(mine, dtype), mine)


@pytest.mark.parametrize("dtype", [d for d in dt.INTS if d.bits <= 16], ids=str)
def test_every_pattern_of_the_narrow_integers(dtype: DType) -> None:
    patterns = np.arange(1 << dtype.bits, dtype=f"uint{dtype.bits}")
    for pattern, value in enumerate(patterns.view(dtype.numpy).tolist()):
        assert from_bits(pattern, dtype) == value
        assert to_bits(value, dtype) == pattern


@given(st.integers(0, 2**64 - 1))
@example(0x7FF8000000000000)
@example(0x7FF0000000000001)
@example(0xFFF8000000000123)
def test_patterns_of_the_wide_types(pattern: int) -> None:
    for dtype in SIZED:
        bits = pattern & ((1 << dtype.bits) - 1)
        assert to_bits(from_bits(bits, dtype), dtype) == bits
    assert same(from_bits(pattern, dt.float64), struct.unpack("<d", struct.pack("<Q", pattern))[0])
    low = pattern & 0xFFFFFFFF
    assert same(from_bits(low, dt.float32), struct.unpack("<f", struct.pack("<I", low))[0])


@given(st.integers(-(2**70), 2**70))
def test_integers_wrap_around(value: int) -> None:
    for dtype in dt.INTS:
        low = np.uint64(value % 2**64)
        assert as_value(value, dtype) == low.astype(dtype.numpy).item()
        assert as_value(value, dtype.vec(4)) == as_value(value, dtype)
        assert to_bits(value, dtype) == value % (1 << dtype.bits)
    assert as_value(value, dt.index) == value
    assert as_value(value, dt.bool_) is (value != 0)


def nearest(value: Fraction, dtype: DType) -> float:
    """An independent rounding, by search: the format's patterns are in order of magnitude."""
    size = abs(value)
    low, high = 0, to_bits(dtype.largest, dtype)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if Fraction(from_bits(middle, dtype)) <= size else (low, middle - 1)
    below = Fraction(from_bits(low, dtype))
    if low == to_bits(dtype.largest, dtype):  # what would be the next number, if the exponent went on
        above = below + (below - Fraction(from_bits(low - 1, dtype)))
        beyond = inf if dtype.has_inf else nan
    else:
        above = Fraction(from_bits(low + 1, dtype))
        beyond = float(above)
    up = size - below > above - size or (size - below == above - size and low % 2 == 1)
    return copysign(beyond if up else float(below), 1 if value >= 0 else -1)


@given(st.one_of(st.floats(allow_nan=False, allow_infinity=False), st.integers(-(2**140), 2**140)))
@example(1 + 2**-8 + 2**-30)  # rounding to float32 first would make this a tie in bfloat16
@example(2**60 + 2**36 + 1)  # and rounding to float64 first a tie in float32
@example(465)
@example(464)
@example(65519.999)
@example(65520)
@example(5e-324)
@example(2.0**-150)
@example(2.0**-149 * 1.5)
def test_floats_round_once_to_nearest_even(value: float | int) -> None:
    for dtype in dt.FLOATS:
        mine = as_value(value, dtype)
        assert type(mine) is float
        assert mine == nearest(Fraction(value), dtype) or (isnan(mine) and not dtype.has_inf)
        if isnan(mine):
            assert isnan(nearest(Fraction(value), dtype))


@given(st.floats(width=32))
def test_rounding_agrees_with_numpy_from_float32(value: float) -> None:
    with np.errstate(all="ignore"):
        for dtype in (*NARROW_FLOATS, dt.float32):
            assert same(as_value(value, dtype), float(np.float32(value).astype(dtype.numpy)))


def test_signs_of_zero_and_infinities_survive() -> None:
    for dtype in dt.FLOATS:
        assert same(as_value(-0.0, dtype), -0.0)
        assert same(as_value(-1e-320, dtype), -1e-320 if dtype is dt.float64 else -0.0)
        assert isnan(as_value(nan, dtype))
        for infinity in (inf, -inf):
            assert same(as_value(infinity, dtype), infinity if dtype.has_inf else nan)


@pytest.mark.parametrize("dtype", SIZED, ids=str)
def test_numpy_numbers_are_numbers(dtype: DType) -> None:
    for made in (
        np.float32(1.0),
        np.int8(1),
        np.uint64(1),
        np.bool_(True),
        np.array(1),
        np.ones((), dtype.numpy),
    ):
        value = as_value(made, dtype)
        assert value == 1
        assert type(value) is (bool if dtype.is_bool else float if dtype.is_float else int)


def test_conversions_between_kinds() -> None:
    assert as_value(3.9, dt.int8) == 3 and as_value(-3.9, dt.int8) == -3 and as_value(3.9, dt.index) == 3
    assert as_value(True, dt.int8) == 1 and type(as_value(True, dt.int8)) is int
    assert as_value(True, dt.index) == 1 and type(as_value(True, dt.index)) is int
    assert (
        as_value(0.5, dt.bool_) is True
        and as_value(nan, dt.bool_) is True
        and as_value(-0.0, dt.bool_) is False
    )
    assert as_value(10**400, dt.float64) == inf and as_value(-(10**400), dt.float16) == -inf
    assert as_value((1, 300, -1), dt.uint8.vec(3)) == (1, 44, 255)


@pytest.mark.parametrize(
    "value, dtype",
    [("1", dt.int8), (None, dt.float32), (1j, dt.float64), (b"1", dt.bool_), (inf, dt.int8), (nan, dt.index),
     ([1], dt.int8), (1, dt.void), (1, dt.int8.ptr(4)), (np.zeros(2), dt.float32)],
)  # fmt: skip
def test_what_is_no_value(value, dtype: DType) -> None:
    with pytest.raises(DTypeError):
        as_value(value, dtype)


@pytest.mark.parametrize("dtype", [dt.void, dt.index, dt.int8.vec(2), dt.int8.ptr(2)], ids=str)
def test_what_has_no_bits(dtype: DType) -> None:
    for call in (to_bits, from_bits):
        with pytest.raises(DTypeError, match="no bit pattern"):
            call(1, dtype)


def test_patterns_that_are_too_wide() -> None:
    for bad in (256, -1):
        with pytest.raises(DTypeError, match="8 bits"):
            from_bits(bad, dt.float8_e5m2)


@pytest.mark.parametrize("dtype", SIZED, ids=str)
def test_identities_change_nothing(dtype: DType) -> None:
    combine = {
        "ADD": lambda a, b: a or b if dtype.is_bool else a + b,
        "MUL": lambda a, b: a and b if dtype.is_bool else a * b,
        "MAX": max,
        "MIN": min,
        "AND": lambda a, b: a & b,
        "OR": lambda a, b: a | b,
        "XOR": lambda a, b: a ^ b,
    }
    values = [as_value(v, dtype) for v in (0, 1, -1, 77, dtype.min, dtype.max)]
    for op, function in combine.items():
        if dtype.is_float and op in ("AND", "OR", "XOR"):
            with pytest.raises(DTypeError):
                identity(op, dtype)
            continue
        neutral = identity(op, dtype)
        assert type(neutral) is (bool if dtype.is_bool else float if dtype.is_float else int)
        assert all(as_value(function(neutral, v), dtype) == v for v in values)


def test_identities_that_do_not_exist() -> None:
    assert (
        identity("ADD", dt.index) == 0 and identity("MUL", dt.index) == 1 and identity("AND", dt.index) == -1
    )
    assert identity("MAX", dt.float32) == -inf and identity("MIN", dt.float32.vec(4)) == inf
    for op, dtype in (("MAX", dt.index), ("SUB", dt.int8), ("ADD", dt.void), ("ADD", dt.int8.ptr())):
        with pytest.raises(DTypeError):
            identity(op, dtype)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", NARROW_FLOATS, ids=str)
def test_every_tie_and_its_neighbours(dtype: DType) -> None:
    """Between any two adjacent values: the middle goes to the even one, a hair off it to the nearer one."""
    for low in range(to_bits(dtype.largest, dtype)):
        below, above = from_bits(low, dtype), from_bits(low + 1, dtype)
        middle = (below + above) / 2
        assert as_value(middle, dtype) == (above if low % 2 else below)
        assert as_value(nextafter(middle, 0.0), dtype) == below
        assert as_value(nextafter(middle, inf), dtype) == above
        assert as_value(-middle, dtype) == -as_value(middle, dtype)
