"""Arithmetic, comparison, choice and conversion against NumPy: types, shapes, edge values."""

import itertools
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from morok import Tensor
from morok.errors import DTypeError, ShapeError
from tests.tensor.common import ALL, FLOATS, INTS, SHAPES, same, sample

EDGES = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    2.5,
    -2.5,
    3.0,
    -7.0,
    0.1,
    1e30,
    -1e30,
    1e-40,
    float("inf"),
    -float("inf"),
    float("nan"),
]


def reference(f: Callable[..., Any], *arrays: Any) -> Any:
    with np.errstate(all="ignore"):
        return np.asarray(f(*arrays))


@pytest.mark.parametrize(("a", "b"), list(itertools.product(ALL, ALL)))
def test_promotion_of_two_arrays(a: str, b: str) -> None:
    x, y = sample((3,), a, 1), sample((3,), b, 2)
    t, u = Tensor(x), Tensor(y)
    found = [t + u, t * u, t < u, t == u, t >= u, t.maximum(u)]
    Tensor.realize(*found)
    for got, f in zip(
        found, (np.add, np.multiply, np.less, np.equal, np.greater_equal, np.maximum), strict=True
    ):
        same(got, reference(f, x, y))
    if a == b == "bool":
        with pytest.raises(DTypeError, match="no -"):
            t - u
    else:
        same(t - u, reference(np.subtract, x, y))


@pytest.mark.parametrize("dtype", ALL)
def test_python_numbers_are_weak(dtype: str) -> None:
    x = sample((3,), dtype)
    t = Tensor(x)
    same(t + True, x + True)
    if dtype != "bool":
        same(t + 2, x + np.array(2, dtype))
        same(2 * t, x * np.array(2, dtype))
    else:
        same(t + 2, x + 2)
    assert (t + 0.5).numpy().dtype == (dtype if dtype in FLOATS else "float32")
    assert (t < 2.5).numpy().tolist() == (x < 2.5).tolist()


def test_a_number_that_does_not_fit_is_an_error() -> None:
    with pytest.raises(DTypeError, match="out of range for uint8"):
        Tensor(np.array([1], np.uint8)) + 300


@pytest.mark.parametrize("shapes", list(itertools.product(SHAPES, SHAPES)))
def test_broadcasting(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    x, y = sample(shapes[0], "float32", 1), sample(shapes[1], "float32", 2)
    try:
        wanted = np.asarray(x + y)
    except ValueError:
        with pytest.raises(ShapeError, match="do not broadcast"):
            Tensor(x) + Tensor(y)
        return
    same(Tensor(x) + Tensor(y), wanted)
    same(Tensor(x) * 2 - Tensor(y), x * 2 - y)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "f",
    [
        operator.add,
        operator.sub,
        operator.mul,
        operator.truediv,
        operator.pow,
        operator.mod,
        operator.floordiv,
    ],
)
def test_edge_values(f: Any, dtype: str) -> None:
    x, y = (np.array(v, dtype) for v in zip(*itertools.product(EDGES, EDGES), strict=True))
    with np.errstate(all="ignore"):
        x, y = x.astype(dtype), y.astype(dtype)
    wanted = reference(f, x, y)
    got = f(Tensor(x), Tensor(y)).numpy()
    if f in (operator.mod, operator.floordiv):
        # Remainders are exact up to quotients of twice the mantissa.
        with np.errstate(all="ignore"):
            exact = ~(np.abs(x / y) > 2.0 ** (44 if dtype == "float32" else 100)) | np.isinf(x) | (y == 0)
            exact &= (np.abs(y) > 1e-37) | (y == 0)
        got, wanted = got[exact], wanted[exact]
    if f is operator.pow:
        np.testing.assert_allclose(got, wanted, rtol=1e-6)
    else:
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("dtype", INTS)
def test_integer_division(dtype: str) -> None:
    info = np.iinfo(dtype)
    values = [v for v in (info.min, info.min + 1, -7, -3, -1, 0, 1, 2, 3, 7, info.max) if v >= info.min]
    x, y = (np.array(v, dtype) for v in zip(*itertools.product(values, values), strict=True))
    same(Tensor(x) // Tensor(y), reference(np.floor_divide, x, y))
    same(Tensor(x) % Tensor(y), reference(np.mod, x, y))
    same(Tensor(x) * Tensor(y), reference(np.multiply, x, y))
    same(-Tensor(x), reference(np.negative, x))
    same(abs(Tensor(x)), reference(np.abs, x))
    same(Tensor(x) / 2, (x / 2).astype(np.float32))
    same(~Tensor(x), ~x)
    shifts = (np.abs(y) % info.bits).astype(dtype)
    same(Tensor(x) << Tensor(shifts), reference(np.left_shift, x, shifts))
    same(Tensor(x) >> Tensor(shifts), reference(np.right_shift, x, shifts))
    same(Tensor(x) & 3, x & np.array(3, dtype))
    same(5 | Tensor(x), x | np.array(5, dtype))
    same(Tensor(x) ^ Tensor(y), x ^ y)


def test_reversed_operators() -> None:
    x = np.array([1.0, 2.0, -4.0], np.float32)
    t = Tensor(x)
    same(1 - t, 1 - x)
    same(1 / t, 1 / x)
    same(2**t, np.float32(2) ** x)
    same(7 // t, 7 // x)
    same(7 % t, 7 % x)
    same(np.array([1.0, 1.0, 1.0], np.float32) - t, 1 - x)
    same(operator.add([1, 2, 3], t), np.array([1, 2, 3]) + x)
    n = Tensor([1, 2, 3])
    same(1 << n, 1 << np.array([1, 2, 3]))
    same(64 >> n, 64 >> np.array([1, 2, 3]))


@pytest.mark.parametrize("exponent", [0, 1, 2, 3, -1, -2, 0.5, 1.5, 2.0])
def test_powers(exponent: float) -> None:
    x = np.array([0.0, 1.0, 2.0, 3.5, 10.0], np.float32)
    with np.errstate(all="ignore"):
        same(Tensor(x) ** exponent, x**exponent, rtol=1e-6)


def test_integer_powers() -> None:
    x = np.array([0, 1, -2, 3, 10])
    same(Tensor(x) ** 3, x**3)
    same(Tensor(x) ** Tensor(np.array([0, 1, 2, 3, 4])), x ** np.array([0, 1, 2, 3, 4]))


@pytest.mark.parametrize("f", [operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne])
def test_comparison_with_nan(f: Any) -> None:
    x, y = (np.array(v) for v in zip(*itertools.product(EDGES, EDGES), strict=True))
    same(f(Tensor(x), Tensor(y)), f(x, y))
    same(f(Tensor(x), 1), f(x, 1))
    same(f(1, Tensor(x)), f(1, x))


def test_extremes_with_nan() -> None:
    x, y = (np.array(v) for v in zip(*itertools.product(EDGES, EDGES), strict=True))
    same(Tensor(x).maximum(Tensor(y)), np.maximum(x, y))
    same(Tensor(x).minimum(Tensor(y)), np.minimum(x, y))
    same(Tensor(x).clamp(-1, 2), np.clip(x, -1, 2))
    same(Tensor(x).clamp(max=0), np.minimum(x, 0))
    same(Tensor(x).clip(min=0), np.maximum(x, 0))


def test_where() -> None:
    c, x, y = (
        np.array([True, False, True]),
        np.array([1, 2, 3], np.int32),
        np.array([[9.0], [8.0]], np.float32),
    )
    same(Tensor(c).where(Tensor(x), Tensor(y)), np.where(c, x, y))
    same(Tensor(c).where(Tensor(x), 5), np.where(c, x, np.int32(5)))
    same(Tensor(c).where(2.5, Tensor(y)), np.where(c, np.float32(2.5), y))
    same(Tensor(c).where(1, 0), np.where(c, 1, 0))
    same(Tensor(c).where(1, 0.5), np.where(c, 1, 0.5).astype(np.float32))
    same(Tensor(True).where(Tensor(x), 0), x)
    same(Tensor(x).masked_fill(Tensor(c), -1), np.where(c, -1, x).astype(np.int32))
    with pytest.raises(DTypeError, match="must be bool"):
        Tensor(x).where(1, 0)


@pytest.mark.parametrize("source", ALL)
def test_casts(source: str) -> None:
    x = np.abs(sample((5,), source)) if source in FLOATS else sample((5,), source)
    found = {target: Tensor(x).cast(target) for target in ALL}
    Tensor.realize(*found.values())
    for target, got in found.items():
        same(got, x.astype(target))


def test_casts_saturate() -> None:
    x = Tensor([300.7, -300.7, float("nan"), float("inf"), -0.5])
    assert x.cast("uint8").tolist() == [255, 0, 0, 255, 0]
    assert x.cast("int8").tolist() == [127, -128, 0, 127, 0]
    assert x.cast("bool").tolist() == [True] * 5
    assert Tensor([300, -1]).cast("uint8").tolist() == [44, 255]
    assert Tensor([1, 2]).float().dtype.name == "float32"
    assert Tensor([1, 2]).half().double().int().long().bool().tolist() == [True, True]
    assert Tensor([1.0]).bfloat16().dtype.name == "bfloat16"


def test_bitcast() -> None:
    x = np.array([1.0, -2.5], np.float32)
    same(Tensor(x).bitcast("int32"), x.view(np.int32))
    same(Tensor(x).bitcast("uint32").bitcast("float32"), x)
    same(Tensor(x).bitcast("int64"), x.view(np.int64))
    same(Tensor([True]).bitcast("uint8"), np.array([True]).view(np.uint8))


def test_operations_that_a_type_does_not_have() -> None:
    with pytest.raises(DTypeError, match="& needs integers or booleans, not float32"):
        Tensor([1.0]) & 1
    with pytest.raises(DTypeError, match="<< needs integers or booleans, not float32"):
        Tensor([1.0]) << 1
    with pytest.raises(DTypeError, match="no -"):
        -Tensor([True])
    with pytest.raises(DTypeError, match="~ needs"):
        ~Tensor([1.0])
    with pytest.raises(DTypeError, match="cannot be combined"):
        Tensor([1.0]) + "text"


def test_methods_are_the_operators() -> None:
    x, y = np.array([7, -7, 2]), np.array([2, 2, 5])
    a, b = Tensor(x), Tensor(y)
    same(a.add(b), x + y)
    same(a.sub(b), x - y)
    same(a.mul(b), x * y)
    same(a.div(b), (x / y).astype(np.float32))
    same(a.floor_divide(b), x // y)
    same(a.remainder(b), x % y)
    same(a.pow(2), x**2)
    same(a.neg(), -x)
    same(a.abs(), abs(x))
    same(a.eq(b), x == y)
    same(a.ne(2), x != 2)
    same(a.logical_not(), np.logical_not(x))
    assert hash(a) != hash(b)


@pytest.mark.parametrize(
    "compare", [operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge]
)
def test_comparisons_are_exact_where_no_type_holds_both(compare: Callable[..., Any]) -> None:
    """As NumPy 2: with any Python integer, and between int64 and uint64, which meet in a float."""
    for kind in INTS:
        array = np.array([np.iinfo(kind).min, 0, 1, np.iinfo(kind).max], kind)
        for value in (-1, 300, -40000, 70000, 1 << 40, -(1 << 40), 1 << 63, 1 << 70, -(1 << 70)):
            same(compare(Tensor(array), value), compare(array, value))
            same(compare(value, Tensor(array)), compare(value, array))
    signed = np.array([-1, 2**63 - 1, 2**53, 2**53 + 1, 0, -(2**63)])
    unsigned = np.array([2**64 - 1, 2**63, 2**53 + 1, 2**53, 0, 2**63], np.uint64)
    same(compare(Tensor(signed), Tensor(unsigned)), compare(signed, unsigned))
    same(compare(Tensor(unsigned)[:, None], Tensor(signed)), compare(unsigned[:, None], signed))


def test_a_limit_beyond_the_type_is_none() -> None:
    for kind in INTS:
        array = np.array([np.iinfo(kind).min, 0, 1, np.iinfo(kind).max], kind)
        for low, high in ((-(1 << 70), 1 << 70), (-(1 << 70), 1), (None, 1 << 70), (0, 1 << 70)):
            same(Tensor(array).clip(low, high), np.clip(array, low, high))
        with pytest.raises(DTypeError):
            Tensor(array).clip(1 << 70, None)


def test_booleans_shift_as_the_smallest_integers() -> None:
    x, y = np.array([True, True, False]), np.array([True, False, True])
    same(Tensor(x) << Tensor(y), x << y)
    same(Tensor(x) >> Tensor(y), x >> y)
    same(Tensor(x) << 3, x << 3)
    same(True << Tensor(y), True << y)
