"""Ops that are decomposed together give the numbers that they give apart."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks.ulp import points, run
from morok import Tensor
from morok.codegen.decompose.exponential import LEAST_ADDED, _opposite, exp_plus, sigmoid
from morok.codegen.decompose.fused import exponential_plus, logistic, only_added
from morok.dtype import DType, float32, float64, int32
from morok.ir.build import approximate_op, define_global, end, index, rng, sink, store
from morok.ir.node import UOp, alu, const, make
from morok.ir.ops import AxisKind, Ops
from morok.machine.machine import BASIC_OPS, Machine

_LANES = 8


def kernel(function: Any, dtype: DType, n: int) -> UOp:
    r, u = rng(n // _LANES, 0), rng(_LANES, 1, AxisKind.UPCAST)
    i = r * _LANES + u
    x = make(Ops.INDEX, dtype, (define_global(dtype, n, 1), i))
    return sink(end(store(index(define_global(dtype, n, 0), i), function(x)), r, u))


def arguments(dtype: DType) -> Any:
    """Among them the ends of the range, where powers are subnormal or nearly infinite."""
    low, high = (-104.0, 89.5) if dtype is float32 else (-746.0, 710.5)
    ends = [np.linspace(at - 2, at + 2, 400) for at in (low, low + 17, high - 1, high)]
    found = np.concatenate([[np.inf, -np.inf, np.nan, 0.0, -0.0], *ends, points(dtype, 200, 3)])
    return found[: len(found) // _LANES * _LANES].astype(dtype.numpy)


@pytest.mark.parametrize("c", [1.0, -1.0, 3.5, 1e-19])
@pytest.mark.parametrize("dtype", [float32, float64], ids=str)
@pytest.mark.parametrize("sign", [1, -1])
def test_a_sum_with_an_exponential_is_the_same_in_one_kernel_and_in_two(
    sign: int, dtype: DType, c: float
) -> None:
    x = arguments(dtype)

    def power(v: UOp) -> UOp:
        return alu(Ops.EXP, v if sign > 0 else -v)

    both = run(kernel(lambda v: power(v) + c, dtype, len(x)), dtype, [x])
    with np.errstate(all="ignore"):
        apart = run(kernel(power, dtype, len(x)), dtype, [x]) + c
    np.testing.assert_array_equal(both, apart)
    assert np.isinf(both).any() and np.isnan(both).any() and (both == apart.dtype.type(c)).any()


def test_the_sign_of_an_argument_costs_nothing() -> None:
    x = arguments(float32)
    wanted = run(kernel(lambda v: alu(Ops.EXP, v), float32, len(x)), float32, [-x])
    got = run(kernel(lambda v: alu(Ops.EXP, -v), float32, len(x)), float32, [x])
    np.testing.assert_array_equal(got, wanted)
    got = run(kernel(lambda v: alu(Ops.EXP, -v * const(float32, 2.0)), float32, len(x)), float32, [x / 2])
    np.testing.assert_array_equal(got, wanted)


def test_an_opposite_that_is_less_work() -> None:
    x, y = given("x"), given("y")
    product = alu(Ops.MUL, x, y)
    assert _opposite(-x) is x and _opposite(-product) is product
    assert _opposite(alu(Ops.MUL, -x, y)) is product and _opposite(alu(Ops.MUL, x, -y)) is product
    for other in (x, product, alu(Ops.ADD, -x, y), alu(Ops.ABS, -x)):
        assert _opposite(other) is None, other


def test_an_exponential_that_is_needed_itself_stays() -> None:
    x = make(Ops.DEFINE_VAR, float32, (), ("x", 0, 1))
    power = alu(Ops.EXP, x)
    assert only_added(sink(power + 1.0)) == {power}
    assert only_added(sink((power + 1.0) / (power + 2.0))) == {power}
    assert only_added(sink(power / (power + 1.0))) == frozenset()
    assert only_added(sink(power + x)) == frozenset()


# --- which ops are decomposed together


def given(name: str) -> UOp:
    return make(Ops.DEFINE_VAR, float32, (), (name, 0, 9))


def context(root: UOp, *has: Any) -> Any:
    machine = Machine("given", scalar_alu=True, ops=BASIC_OPS | frozenset(has))
    return SimpleNamespace(machine=machine, only_added=only_added(root))


def fraction(**other: UOp) -> UOp:
    """The form of a sigmoid, with some of its parts replaced."""
    x, zero, one = given("x"), const(float32, 0.0), const(float32, 1.0)
    e = alu(Ops.EXP, -alu(Ops.ABS, x))
    part = {"below": alu(Ops.CMPLT, x, zero), "small": e, "value": one, "e": e, "one": one} | other
    choice = other.get("choice", alu(Ops.WHERE, part["below"], part["small"], part["value"]))
    return alu(Ops.FDIV, choice, other.get("whole", alu(Ops.ADD, part["e"], part["one"])))


def test_a_sigmoid_is_known_by_its_form() -> None:
    x, y = given("x"), given("y")
    form = fraction()
    assert logistic(form, context(form)) is sigmoid(x)
    assert logistic(form, context(form, Ops.EXP)) is None  # the machine has a better one
    zero, one, two = (const(float32, v) for v in (0.0, 1.0, 2.0))
    e, of_y = alu(Ops.EXP, -alu(Ops.ABS, x)), alu(Ops.EXP, -alu(Ops.ABS, y))
    alone = make(Ops.SHUFFLE, float32, (y, const(int32, 0)), 1)  # among one lane: a 1, but no number
    for form in (
        fraction(choice=e), fraction(whole=alu(Ops.MUL, e, one)), fraction(small=one), fraction(value=two),
        fraction(value=y), fraction(one=two), fraction(one=y), fraction(one=alone), fraction(e=of_y),
        fraction(small=of_y, e=of_y),
        fraction(below=alu(Ops.CMPLT, x, one)), fraction(below=alu(Ops.CMPLT, x, y)),
        fraction(below=alu(Ops.CMPEQ, x, zero)), fraction(below=alu(Ops.CMPLT, y, zero)),
    ):  # fmt: skip
        assert logistic(form, context(form)) is None, form


def test_a_sum_with_an_exponential_is_known_by_its_form() -> None:
    x, y = given("x"), given("y")
    e, large, tiny = alu(Ops.EXP, x), const(float32, 2.0), const(float32, LEAST_ADDED / 2)
    for form in (alu(Ops.ADD, e, large), alu(Ops.ADD, large, e)):
        assert exponential_plus(form, context(form)) is exp_plus(x, large)
        assert exponential_plus(form, context(form, Ops.EXP)) is None
        assert exponential_plus(form, context(alu(Ops.MUL, form, e))) is None  # it is needed itself
    wide = alu(Ops.EXP, make(Ops.DEFINE_VAR, float64, (), ("x", 0, 9)))
    for least in (
        alu(Ops.ADD, e, const(float32, -2 * LEAST_ADDED)),
        alu(Ops.ADD, wide, const(float64, LEAST_ADDED)),
    ):
        assert exponential_plus(least, context(least)) is exp_plus(*least.src[0].src, least.src[1])
    # a sum that another rule has made of a graph in which the exponential was only added to constants
    assert exponential_plus(alu(Ops.ADD, e, y), context(alu(Ops.ADD, e, large))) is None
    for form in (alu(Ops.ADD, e, tiny), alu(Ops.ADD, e, y), alu(Ops.ADD, x, large)):
        assert exponential_plus(form, context(form)) is None, form


def test_an_exponential_is_only_added_if_all_its_users_add_constants() -> None:
    x, y, one = given("x"), given("y"), const(float32, 1.0)
    e, roughly = alu(Ops.EXP, x), approximate_op(Ops.EXP, x)
    plus = alu(Ops.ADD, e, one)
    assert only_added(plus) == {e} and only_added(alu(Ops.ADD, one, e)) == {e}
    assert only_added(alu(Ops.MUL, plus, alu(Ops.ADD, e, const(float32, 2.0)))) == {e}
    halved = alu(Ops.MUL, e, const(float32, 0.5))
    for root in (
        alu(Ops.MUL, plus, halved), alu(Ops.MUL, halved, plus), alu(Ops.MUL, plus, e),
        alu(Ops.MUL, e, plus), alu(Ops.ADD, e, y), alu(Ops.MUL, e, one),
        alu(Ops.ADD, roughly, one), alu(Ops.ADD, alu(Ops.LOG, x), one), alu(Ops.ADD, x, one),
    ):  # fmt: skip
        assert not only_added(root), root


def test_a_sigmoid_of_whole_numbers() -> None:
    """A comparison of an integer is one of integers, beside a power of its float."""
    places = Tensor(np.array([0], np.int8), device="CPU").nonzero(3)  # none: three times -1
    values = places.silu()
    total = values.sum(-2, keepdim=True)
    total.realize(values.diagonal(0))
    np.testing.assert_allclose(total.numpy(), [[-3.0 / (1.0 + np.e)]], rtol=1e-6)
