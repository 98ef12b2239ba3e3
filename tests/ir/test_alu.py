"""The meaning of the ALU ops: the evaluators against each other, NumPy, Python and published vectors."""

import itertools
import math
import operator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from morok.dtype import (
    ALL_SCALARS,
    FLOATS,
    INTS,
    SIGNED,
    DType,
    as_value,
    bfloat16,
    bool_,
    float8_e4m3,
    float8_e5m2,
    float16,
    float32,
    float64,
    index,
    int8,
    int32,
    int64,
    round_float,
    uint8,
    uint32,
    uint64,
)
from morok.errors import DTypeError
from morok.ir.arithmetic.alu import MEANING, defined, evaluate, evaluate_array, result_dtype
from morok.ir.arithmetic.arrays import narrow, storage
from morok.ir.ops import ALU, Op, Ops


def edge_values(dtype: DType) -> list[Any]:
    if dtype.is_bool:
        return [False, True]
    if dtype.is_index:
        return [0, 1, -1, 2, 3, -7, 7, 31, 33, 63, 64, 65, 100, -100]
    if dtype.is_int:
        some = [0, 1, -1, 2, 3, -3, 7, -7, 100, -100, 12345678901234567, -1234567890123456789]
        limits = [dtype.max, dtype.max - 1, dtype.min, dtype.min + 1, dtype.max // 2]
        widths = [dtype.bits - 1, dtype.bits, dtype.bits + 1]
        return sorted({as_value(v, dtype) for v in some + limits + widths})
    plain = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        0.5,
        -0.5,
        1.5,
        2.5,
        -2.5,
        3.14159,
        -1e-3,
        1e10,
        -1e10,
        300.0,
        1e300,
        -1e-300,
    ]
    tiny = dtype.smallest_normal * dtype.eps
    limits = [
        math.inf,
        -math.inf,
        math.nan,
        dtype.largest,
        -dtype.largest,
        dtype.smallest_normal,
        tiny,
        -3 * tiny,
    ]
    return [as_value(v, dtype) for v in [*plain, *limits, dtype.eps, 1 + dtype.eps, 1 - dtype.eps / 2]]


def same(a: Any, b: Any) -> bool:
    """Equal to the bit, where all NaNs are one."""
    if a != a or b != b:
        return a != a and b != b
    if type(a) is not type(b) or a != b:
        return False
    return not isinstance(a, float) or math.copysign(1.0, a) == math.copysign(1.0, b)


def as_list(x: Any, dtype: DType) -> list[Any]:
    with np.errstate(all="ignore"):
        return (x.astype(np.float64) if dtype.is_float else x).tolist()


def operand_lists(op: Op, dtype: DType) -> list[list[Any]]:
    values = edge_values(dtype)
    if dtype.is_index and op in (Ops.POW, Ops.SHL, Ops.MULACC):
        values = [v for v in values if -1 <= v < 10]  # arrays of index are int64, so the result must fit
    if op is Ops.WHERE:
        return [[False, True], values, values]
    return [values] * op.arity


def test_every_alu_op_has_a_meaning() -> None:
    assert set(MEANING) == set(ALU)


@pytest.mark.parametrize("op", sorted(ALU), ids=lambda op: op.name)
def test_scalar_and_array_agree_to_the_bit(op: Op) -> None:
    for dtype in ALL_SCALARS:
        if not defined(op, dtype):
            continue
        targets: list[Any] = [None]
        if op is Ops.CAST:
            targets = [t for t in ALL_SCALARS if (dtype, t) != (uint64, index)]  # does not fit in int64
        if op is Ops.BITCAST:
            targets = [t for t in ALL_SCALARS if t.bits == dtype.bits and not t.is_index]
        rows = list(itertools.product(*operand_lists(op, dtype)))
        columns = [
            np.array(c, dtype=np.bool_ if op is Ops.WHERE and i == 0 else storage(dtype))
            for i, c in enumerate(zip(*rows, strict=True))
        ]
        for to in targets:
            result = result_dtype(op, dtype, to)
            got = evaluate_array(op, dtype, *columns, to=to)
            assert got.dtype == storage(result), (op, dtype, to)
            for row, array_value in zip(rows, as_list(got, result), strict=True):
                value = evaluate(op, dtype, *row, to=to)
                assert same(value, array_value), (op, dtype, to, row, value, array_value)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(
    "op", [Ops.EXP, Ops.EXP2, Ops.LOG, Ops.LOG2, Ops.SIN, Ops.COS, Ops.TAN, Ops.TANH, Ops.ERF]
)
def test_functions_agree_on_many_values(op: Op, dtype: DType) -> None:
    values = np.random.default_rng(0).normal(size=300) * 8
    rounded = [as_value(float(v), dtype) for v in values]
    got = as_list(evaluate_array(op, dtype, np.array(rounded, dtype=storage(dtype))), dtype)
    for value, result in zip(rounded, got, strict=True):
        assert same(evaluate(op, dtype, value), result)


def test_arrays_broadcast_and_keep_rank_zero() -> None:
    grid = evaluate_array(Ops.ADD, int32, np.arange(3, dtype=np.int32)[:, None], np.arange(2, dtype=np.int32))
    assert grid.shape == (3, 2)
    for op in (Ops.ADD, Ops.CMPLT, Ops.MAX):
        assert evaluate_array(op, float16, 1.0, 2.0).shape == ()
    assert evaluate_array(Ops.MULHI, int64, -1, 2).tolist() == -1
    assert evaluate_array(Ops.CAST, float64, 1e300, to=bfloat16).tolist() == math.inf


# --- integers against NumPy and Python

NUMPY_INTS = {
    Ops.ADD: np.add,
    Ops.SUB: np.subtract,
    Ops.MUL: np.multiply,
    Ops.FLOORDIV: np.floor_divide,
    Ops.FLOORMOD: np.remainder,
    Ops.CMOD: np.fmod,
    Ops.AND: np.bitwise_and,
    Ops.OR: np.bitwise_or,
    Ops.XOR: np.bitwise_xor,
    Ops.MAX: np.maximum,
    Ops.MIN: np.minimum,
}


@pytest.mark.parametrize("dtype", INTS, ids=str)
@pytest.mark.parametrize("op", list(NUMPY_INTS), ids=lambda op: op.name)
def test_integers_do_as_numpy_does(op: Op, dtype: DType) -> None:
    values = edge_values(dtype)
    for x, y in itertools.product(values, values):
        with np.errstate(all="ignore"):
            expected = NUMPY_INTS[op](np.array([x], dtype.numpy), np.array([y], dtype.numpy))[0]
        assert evaluate(op, dtype, x, y) == int(expected), (op, dtype, x, y)


PYTHON_INTS = {
    Ops.ADD: operator.add,
    Ops.SUB: operator.sub,
    Ops.MUL: operator.mul,
    Ops.FLOORDIV: operator.floordiv,
    Ops.FLOORMOD: operator.mod,
    Ops.CDIV: lambda x, y: math.trunc(Fraction(x, y)),
    Ops.CMOD: lambda x, y: x - math.trunc(Fraction(x, y)) * y,
    Ops.SHL: operator.lshift,
    Ops.SHR: operator.rshift,
}


@pytest.mark.parametrize("op", list(PYTHON_INTS), ids=lambda op: op.name)
@given(x=st.integers(-(10**30), 10**30), y=st.integers(1, 200))
def test_index_does_as_python_does(op: Op, x: int, y: int) -> None:
    assert evaluate(op, index, x, y) == PYTHON_INTS[op](x, y)
    if op not in (Ops.SHL, Ops.SHR):
        assert evaluate(op, index, x, -y) == PYTHON_INTS[op](x, -y)


@pytest.mark.parametrize("dtype", SIGNED, ids=str)
def test_the_smallest_integer(dtype: DType) -> None:
    low = dtype.min
    assert evaluate(Ops.NEG, dtype, low) == low
    assert evaluate(Ops.ABS, dtype, low) == low
    assert evaluate(Ops.FLOORDIV, dtype, low, -1) == low
    assert evaluate(Ops.CDIV, dtype, low, -1) == low
    assert evaluate(Ops.FLOORMOD, dtype, low, -1) == 0
    assert evaluate(Ops.SUB, dtype, low, 1) == dtype.max


@pytest.mark.parametrize("op", [Ops.FLOORDIV, Ops.FLOORMOD, Ops.CDIV, Ops.CMOD], ids=lambda op: op.name)
def test_a_divisor_of_zero_gives_zero(op: Op) -> None:
    for dtype in (*INTS, index):
        assert [evaluate(op, dtype, x, 0) for x in edge_values(dtype)] == [0] * len(edge_values(dtype))


@pytest.mark.parametrize(
    ("op", "x", "y", "expected"),
    [
        (Ops.FLOORDIV, -7, 2, -4),
        (Ops.FLOORMOD, -7, 2, 1),
        (Ops.FLOORMOD, 7, -2, -1),
        (Ops.CDIV, -7, 2, -3),
        (Ops.CMOD, -7, 2, -1),
        (Ops.CMOD, 7, -2, 1),
        (Ops.SHL, 1, 32, 0),
        (Ops.SHL, 1, -1, 0),
        (Ops.SHL, 1, 31, -(1 << 31)),
        (Ops.SHR, -8, 1, -4),
        (Ops.SHR, -8, 32, -1),
        (Ops.SHR, 8, 99, 0),
        (Ops.SHR, -8, -1, -1),
        (Ops.POW, 3, 40, (3**40 + 2**31) % 2**32 - 2**31),
        (Ops.POW, -1, -3, -1),
        (Ops.POW, -1, -4, 1),
        (Ops.POW, 2, -1, 0),
        (Ops.POW, 0, -1, 0),
        (Ops.POW, 0, 0, 1),
        (Ops.MULHI, 1 << 30, 8, 2),
        (Ops.MULHI, -1, 1, -1),
        (Ops.DOT4, 0x01020304, 0x05060708, 1 * 5 + 2 * 6 + 3 * 7 + 4 * 8),
        (Ops.DOT4, -1, 0x01010101, -4),
        (Ops.DOT4, 0x7F80FF00, -0x7F7F7F80, 127 * -128 + -128 * -128 + -1 * -128 + 0),
    ],
)
def test_integer_examples(op: Op, x: int, y: int, expected: int) -> None:
    assert evaluate(op, int32, x, y) == expected


def test_unsigned_examples() -> None:
    assert evaluate(Ops.SUB, uint8, 0, 1) == 255
    assert evaluate(Ops.NEG, uint32, 1) == 2**32 - 1
    assert evaluate(Ops.NOT, uint8, 1) == 254
    assert evaluate(Ops.NOT, int8, 1) == -2
    assert evaluate(Ops.SHR, uint8, 200, 8) == 0
    assert evaluate(Ops.MULHI, uint64, 2**64 - 1, 2**64 - 1) == 2**64 - 2
    assert evaluate(Ops.POPCOUNT, int8, -1) == 8


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
def test_mulhi_of_64_bits_in_arrays(x: int, y: int) -> None:
    for dtype in (uint64, int64):
        a, b = as_value(x, dtype), as_value(y, dtype)
        assert evaluate_array(Ops.MULHI, dtype, [a], [b]).tolist() == [a * b >> 64]


def test_booleans() -> None:
    for x, y in itertools.product([False, True], repeat=2):
        assert evaluate(Ops.ADD, bool_, x, y) is (x or y)
        assert evaluate(Ops.MUL, bool_, x, y) is (x and y)
        assert evaluate(Ops.XOR, bool_, x, y) is (x != y)
        assert evaluate(Ops.CMPLT, bool_, x, y) is (not x and y)
    assert evaluate(Ops.NOT, bool_, True) is False


# --- floats


@pytest.mark.parametrize("dtype", [float32, float64], ids=str)
def test_float_arithmetic_does_as_numpy_does(dtype: DType) -> None:
    cases = {Ops.ADD: np.add, Ops.SUB: np.subtract, Ops.MUL: np.multiply, Ops.FDIV: np.divide}
    values = edge_values(dtype)
    kind = storage(dtype).type
    for op, function in cases.items():
        for x, y in itertools.product(values, values):
            with np.errstate(all="ignore"):
                expected = float(function(kind(x), kind(y)))
            assert same(evaluate(op, dtype, x, y), expected), (op, x, y)


def nearest(exact: Fraction, dtype: DType) -> float:
    """Rounding from first principles: the closest multiple of the format's step, ties to even."""
    size, sign = abs(exact), 1.0 if exact > 0 else -1.0
    power = size.numerator.bit_length() - size.denominator.bit_length() - 1  # 2^power <= size
    smallest = math.frexp(dtype.smallest_normal)[1] - 1
    step = Fraction(2) ** (max(power, smallest) - dtype.mantissa_bits)
    if size >= step * 2 ** (dtype.mantissa_bits + 1):
        step *= 2
    rounded = round(size / step) * step
    if rounded > Fraction(dtype.largest):
        return sign * math.inf if dtype.has_inf else math.nan
    return math.copysign(float(rounded), sign)


def floats_of(dtype: DType) -> st.SearchStrategy[float]:
    return (
        st.floats(allow_nan=False, allow_infinity=False)
        .map(lambda v: round_float(v, dtype))
        .filter(math.isfinite)
    )


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@given(data=st.data())
def test_muladd_rounds_once(dtype: DType, data: Any) -> None:
    small = st.floats(-8, 8).map(lambda v: round_float(v, dtype))
    x, y, z = (data.draw(floats_of(dtype) | small) for _ in range(3))
    exact = Fraction(x) * Fraction(y) + Fraction(z)
    if exact:
        expected = nearest(exact, dtype)
        assert same(evaluate(Ops.MULACC, dtype, x, y, z), expected)
        assert same(as_list(evaluate_array(Ops.MULACC, dtype, [x], [y], [z]), dtype)[0], expected)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@given(data=st.data())
def test_the_four_operations_are_correctly_rounded(dtype: DType, data: Any) -> None:
    x, y = data.draw(floats_of(dtype)), data.draw(floats_of(dtype))
    a, b = Fraction(x), Fraction(y)
    exact = {Ops.ADD: a + b, Ops.SUB: a - b, Ops.MUL: a * b}
    if b:
        exact[Ops.FDIV] = a / b
        exact[Ops.RECIP] = 1 / b
    for op, value in exact.items():
        if value:
            operands = (y,) if op is Ops.RECIP else (x, y)
            assert same(evaluate(op, dtype, *operands), nearest(value, dtype)), (op, operands)


def test_muladd_differs_from_two_roundings() -> None:
    x = 1 + float32.eps
    assert evaluate(Ops.MULACC, float32, x, x, -(1 + 2 * float32.eps)) == float32.eps**2
    assert evaluate(Ops.MULACC, float64, 1e308, 10.0, -math.inf) == -math.inf
    assert evaluate(Ops.MULACC, float64, 1e-200, 1e-200, 0.0) == 0.0
    assert same(evaluate(Ops.MULACC, float64, 1e-200, -1e-200, 0.0), -0.0)


def test_max_and_min_are_commutative_to_the_bit_and_propagate_nan() -> None:
    for dtype in FLOATS:
        for op, winner in ((Ops.MAX, 0.0), (Ops.MIN, -0.0)):
            for x, y in ((0.0, -0.0), (-0.0, 0.0)):
                assert same(evaluate(op, dtype, x, y), winner)
            for x, y in ((math.nan, 1.0), (1.0, math.nan)):
                assert math.isnan(evaluate(op, dtype, x, y))


@pytest.mark.parametrize(
    ("x", "y", "expected"),
    [
        (-0.0, 0.5, 0.0),
        (-math.inf, 0.5, math.inf),
        (-0.0, -3.0, -math.inf),
        (-0.0, -2.0, math.inf),
        (0.0, -1.5, math.inf),
        (-2.0, 0.5, math.nan),
        (-1e200, 3.0, -math.inf),
        (-1e200, 2.0, math.inf),
        (math.nan, 0.0, 1.0),
        (1.0, math.nan, 1.0),
        (-1.0, math.inf, 1.0),
    ],
)
def test_pow_is_the_one_of_c(x: float, y: float, expected: float) -> None:
    assert same(evaluate(Ops.POW, float64, x, y), expected)


def test_rounding_to_whole_numbers_keeps_the_sign_of_zero() -> None:
    assert [evaluate(Ops.RINT, float32, x) for x in (0.5, 1.5, 2.5, -0.5)] == [0.0, 2.0, 2.0, 0.0]
    assert same(evaluate(Ops.RINT, float32, -0.5), -0.0)
    assert same(evaluate(Ops.CEIL, float32, -0.5), -0.0)
    assert evaluate(Ops.FLOOR, float32, -0.5) == -1.0
    assert evaluate(Ops.TRUNC, int32, -7) == -7


# --- conversions


@pytest.mark.parametrize(
    ("value", "source", "target", "expected"),
    [
        (-1.9, float32, int32, -1),
        (1e20, float32, int32, 2**31 - 1),
        (-1e20, float32, int32, -(2**31)),
        (-5.0, float32, uint8, 0),
        (math.nan, float64, int64, 0),
        (math.inf, float64, uint64, 2**64 - 1),
        (math.inf, float64, index, 2**63 - 1),
        (math.nan, float32, bool_, True),
        (-0.0, float32, bool_, False),
        (300, int32, uint8, 44),
        (-1, int8, uint64, 2**64 - 1),
        (-1, index, uint8, 255),
        (True, bool_, float16, 1.0),
        (2**24 + 1, int32, float32, float(2**24)),
        (1 + 2.0**-11 + 2.0**-40, float64, float16, 1 + 2.0**-10),
        (1 + 2.0**-8 + 2.0**-40, float64, bfloat16, 1 + 2.0**-7),
        (2**62 + 2**54 + 1, int64, bfloat16, 2.0**62 + 2.0**55),
        (1e9, float32, float8_e5m2, math.inf),
        (1e9, float32, float8_e4m3, math.nan),
    ],
)
def test_casts(value: Any, source: DType, target: DType, expected: Any) -> None:
    assert same(evaluate(Ops.CAST, source, value, to=target), expected)
    array = evaluate_array(Ops.CAST, source, np.array([value], storage(source)), to=target)
    assert same(as_list(array, target)[0], expected)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@given(value=st.floats())
def test_narrowing_of_arrays_rounds_once(dtype: DType, value: float) -> None:
    with np.errstate(all="ignore"):
        got = as_list(narrow(np.array([value]), dtype), dtype)[0]
    assert same(got, round_float(value, dtype))


def test_bitcasts() -> None:
    assert evaluate(Ops.BITCAST, float32, 1.0, to=int32) == 0x3F800000
    assert evaluate(Ops.BITCAST, uint32, 0x80000000, to=float32) == 0.0
    assert evaluate_array(Ops.BITCAST, float32, np.float32([1.0]), to=int32).tolist() == [0x3F800000]


# --- random bits


def test_threefry_gives_the_published_vectors() -> None:
    ones = 2**64 - 1
    pi_counter, pi_key = 0x85A308D3_243F6A88, 0x03707344_13198A2E
    vectors = [
        (0, 0, 0x99BA4EFE_6B200159),
        (ones, ones, 0xBB002BE7_1CB996FC),
        (pi_counter, pi_key, 0x483DF7A0_C4923A9C),
    ]
    for counter, key, expected in vectors:
        assert evaluate(Ops.THREEFRY, uint64, counter, key) == expected
        assert evaluate_array(Ops.THREEFRY, uint64, [counter], [key]).tolist() == [expected]


# --- errors


@pytest.mark.parametrize(
    ("op", "dtype", "sentence"),
    [
        (Ops.FLOORDIV, float32, "FLOORDIV is not defined on float32"),
        (Ops.SUB, bool_, "SUB is not defined on bool"),
        (Ops.POPCOUNT, index, "POPCOUNT is not defined on index"),
        (Ops.THREEFRY, uint32, "THREEFRY is not defined on uint32"),
        (Ops.RANGE, index, "RANGE is not arithmetic"),
        (Ops.CAST, int32, "CAST from int32 needs the type to convert to"),
    ],
)
def test_undefined_arithmetic_says_so(op: Op, dtype: DType, sentence: str) -> None:
    with pytest.raises(DTypeError, match=sentence):
        evaluate(op, dtype, 1, 1)
    with pytest.raises(DTypeError, match=sentence):
        evaluate_array(op, dtype, 1, 1)


def test_a_bitcast_keeps_the_number_of_bits() -> None:
    with pytest.raises(DTypeError, match="BITCAST keeps the bits, but int32 has 32 and int8 has 8"):
        evaluate(Ops.BITCAST, int32, 1, to=int8)


def test_products_of_doubles_are_fused_as_scalars_are() -> None:
    """Sums that cancel the product or nearly so, far apart, near the ends of the range, and no numbers."""
    random = np.random.default_rng(5)
    exponents = np.array([0, 0, 0, 30, -30, 60, 300, -300, -500, 500, -1000, 1000])
    x, y, z = (np.ldexp(random.standard_normal(600), random.choice(exponents, 600)) for _ in range(3))
    with np.errstate(all="ignore"):
        close = -(x * y) * (1 + random.choice([0, 2**-52, -(2**-53), 2**-50, 1e-10], 600))
    z = np.where(random.random(600) < 0.6, close, z)
    for v, special in ((x, 0.0), (y, -0.0), (z, np.inf), (x, np.nan), (y, np.inf)):
        v[random.integers(0, 600, 15)] = special
    got = evaluate_array(Ops.MULACC, float64, x, y, z)
    want = np.array([evaluate(Ops.MULACC, float64, *map(float, v)) for v in zip(x, y, z, strict=True)])
    np.testing.assert_array_equal(got, want)
    finite = ~np.isnan(want)
    np.testing.assert_array_equal(np.signbit(got)[finite], np.signbit(want)[finite])
