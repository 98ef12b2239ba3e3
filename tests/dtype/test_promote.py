"""Promotion, compared with NumPy over whole tables."""

from itertools import permutations, product

import numpy as np
import pytest

from morok import dtype as dt
from morok.dtype import DType, as_value, dtype_of, lossless, promote, promote_scalar
from morok.errors import DTypeError

NUMBERS = (dt.bool_, *dt.INTS, *dt.FLOATS)
NUMPY_OWN = tuple(d for d in NUMBERS if d not in (dt.bfloat16, dt.float8_e4m3, dt.float8_e5m2))
BY_NUMPY = {d.numpy: d for d in NUMBERS}


@pytest.mark.parametrize("a", NUMPY_OWN, ids=str)
def test_pairs_are_numpys(a: DType) -> None:
    for b in NUMPY_OWN:
        assert promote(a, b) is BY_NUMPY[np.result_type(a.numpy, b.numpy)], (a, b)


def test_triples_are_numpys() -> None:
    for triple in product(NUMPY_OWN, repeat=3):
        assert promote(*triple) is BY_NUMPY[np.result_type(*(d.numpy for d in triple))], triple


def test_narrow_floats_follow_ml_dtypes_where_it_answers() -> None:
    narrow = (dt.bfloat16, dt.float8_e4m3, dt.float8_e5m2)
    answered = 0
    for a, b in product(narrow, NUMBERS):
        try:
            theirs = BY_NUMPY[np.result_type(a.numpy, b.numpy)]
        except np.exceptions.DTypePromotionError:
            continue
        if {a, b} == {dt.float8_e5m2, dt.float16}:
            continue  # they say float32, although every float8_e5m2 is a float16
        answered += 1
        assert promote(a, b) is theirs, (a, b)
    assert answered > 20


def test_floats_meet_in_the_smallest_that_holds_both() -> None:
    assert promote(dt.bfloat16, dt.float16) is dt.float32
    assert promote(dt.float8_e4m3, dt.float8_e5m2) is dt.float16
    assert promote(dt.float8_e5m2, dt.float16) is dt.float16
    assert promote(dt.float8_e4m3, dt.bfloat16) is dt.bfloat16
    for a, b in product(dt.FLOATS, repeat=2):
        met = promote(a, b)
        assert lossless(a, met) and lossless(b, met)


def test_narrow_floats_meet_integers_as_float16_does() -> None:
    for narrow, whole in product((dt.bfloat16, dt.float8_e4m3, dt.float8_e5m2), dt.INTS):
        as_half = promote(dt.float16, whole)
        assert promote(narrow, whole) is (narrow if as_half is dt.float16 else as_half)


def test_order_never_matters() -> None:
    for a, b, c in product(NUMBERS, repeat=3):
        assert len({promote(*order) for order in permutations((a, b, c))}) == 1
    for a in NUMBERS:
        assert promote(a) is promote(a, a) is a


def test_index_meets_integers_only() -> None:
    for whole in (dt.bool_, *dt.INTS, dt.index):
        assert promote(dt.index, whole) is promote(whole, dt.index) is dt.index
    for real in dt.FLOATS:
        with pytest.raises(DTypeError, match="cast"):
            promote(dt.index, real)


def test_vectors() -> None:
    assert promote(dt.int8.vec(4), dt.float32) is dt.float32.vec(4)
    assert promote(dt.int8.vec(4), dt.int16.vec(4)) is dt.int16.vec(4)
    with pytest.raises(DTypeError, match="different lengths"):
        promote(dt.int8.vec(4), dt.int8.vec(2))


@pytest.mark.parametrize("bad", [dt.void, dt.float32.ptr(4)], ids=str)
def test_what_is_no_number_does_not_promote(bad: DType) -> None:
    for call in (lambda: promote(bad), lambda: promote(bad, dt.int8), lambda: promote_scalar(bad, 1)):
        with pytest.raises(DTypeError):
            call()
    with pytest.raises(DTypeError):
        promote()


@pytest.mark.parametrize(
    "value", [True, False, 0, 1, -1, 127, 128, -129, 255, 256, 2**31, 2**63, -(2**63), 0.5, -2.0]
)
@pytest.mark.parametrize("dtype", NUMPY_OWN, ids=str)
def test_weak_python_numbers_are_numpys(dtype: DType, value: bool | int | float) -> None:
    if isinstance(value, float) and not dtype.is_float:
        assert promote_scalar(dtype, value) is dt.float32  # the one documented difference
        return
    try:
        with np.errstate(over="ignore"):
            theirs = (np.zeros(1, dtype.numpy) + value).dtype
    except OverflowError:
        with pytest.raises(DTypeError, match="out of range"):
            promote_scalar(dtype, value)
        return
    assert promote_scalar(dtype, value) is BY_NUMPY[theirs]


def test_weak_python_numbers_elsewhere() -> None:
    assert promote_scalar(dt.bfloat16, 3) is promote_scalar(dt.bfloat16, 0.1) is dt.bfloat16
    assert promote_scalar(dt.float8_e4m3, 10**6) is dt.float8_e4m3
    assert promote_scalar(dt.index, 10**30) is promote_scalar(dt.index, True) is dt.index
    assert promote_scalar(dt.float32, 10**30) is dt.float32
    assert promote_scalar(dt.int8.vec(4), 0.5) is dt.float32.vec(4)
    assert promote_scalar(dt.bool_.vec(4), 2) is dt.int64.vec(4)
    with pytest.raises(DTypeError):
        promote_scalar(dt.index, 0.5)
    with pytest.raises(DTypeError):
        promote_scalar(dt.int8, "1")


def test_python_numbers_alone() -> None:
    assert dtype_of(True) is dt.bool_
    assert dtype_of(3) is dtype_of(-(2**63)) is dt.int64
    assert dtype_of(2**63) is dt.uint64
    assert dtype_of(0.5) is dt.float32
    for bad in (2**64, -(2**63) - 1, "3", None, 1j):
        with pytest.raises(DTypeError):
            dtype_of(bad)


def test_lossless_means_that_every_value_survives() -> None:
    """Checked by all values of the small types, and by NumPy's idea of a safe cast for the large ones."""
    for source in (dt.bool_, dt.int8, dt.uint8, dt.float8_e4m3, dt.float8_e5m2):
        patterns = range(2) if source is dt.bool_ else range(256)
        values = [v for v in (dt.from_bits(p, source) for p in patterns) if v == v]
        for target in (*NUMBERS, dt.index):
            survive = all(_survives(v, source, target) for v in values)
            assert lossless(source, target) is survive, (source, target)
    for source, target in product(NUMPY_OWN, repeat=2):
        # NumPy calls int64 → float64 safe, which it is not
        if source.is_bounded_int and source.bits == 64 and target.is_float:
            assert not lossless(source, target)
        else:
            assert lossless(source, target) is np.can_cast(source.numpy, target.numpy), (source, target)
    assert lossless(dt.int64, dt.index) and not lossless(dt.index, dt.int64)
    assert lossless(dt.index, dt.index) and not lossless(dt.index, dt.float64)
    assert lossless(dt.int8.vec(2), dt.int16.vec(2)) and not lossless(dt.int8, dt.int16.vec(2))
    assert not lossless(dt.void, dt.void) and not lossless(dt.uint64, dt.int8.ptr())


def _survives(value, source: DType, target: DType) -> bool:
    if target.is_bool and source.is_bool:
        return True
    try:
        moved = as_value(value, target)
    except DTypeError:
        return False
    return moved == value and as_value(moved, source) == value and str(float(moved)) == str(float(value))
