"""Examples of every family of rules, before → after."""

from __future__ import annotations

import math

import numpy as np
import pytest

from morok.dtype import DType, bool_, float16, float32, float64, index, int8, int32, int64, uint8
from morok.ir.build import cast, variable
from morok.ir.node import UOp, alu, const, make, toposort
from morok.ir.ops import Op, Ops
from morok.rewrite.match import apply_rule
from morok.rewrite.spec import arithmetic_spec
from morok.symbolic.identities import unsafe_rules
from morok.symbolic.sets import full, simplify
from tests.expressions import same_value, value_of
from tests.symbolic.checks import becomes, stays

X, Y, Z = variable("x", 0, 15), variable("y", 0, 7), variable("z", -50, 100)
P, Q = (make(Ops.DEFINE_VAR, bool_, (), (n, 0, 1)) for n in "pq")
I8, U8 = variable("i", -128, 127, int8), variable("u", 0, 255, uint8)


def num(value: int) -> UOp:
    return const(index, value)


def test_sums_have_one_order_and_one_constant() -> None:
    becomes((num(1) + X) + num(2), X + 3)
    becomes(Y + X, X + Y)
    becomes((Z + 5) + (X + -5), X + Z)
    becomes(X * 2 + X * 3, X * 5)
    becomes((X + Y) + X, X * 2 + Y)
    becomes(X - X, num(0))
    becomes(X - Y, X + Y * -1)
    becomes((X * 2 + Y) * 4, X * 8 + Y * 4)
    becomes(-(X + 1), X * -1 + -1)
    becomes(I8 * 16 * 16, const(int8, 0))  # wraps to nothing


def test_quotients_and_remainders() -> None:
    becomes((X * 8 + Y) // 8, X)
    becomes((X * 8 + Y) % 8, Y)
    becomes((X * 8 + Y) % 4, Y % 4)
    becomes((X * 17) % 16, X)  # a window that begins one further each
    becomes((X * 19) % 8, (X * 3) % 8)
    becomes((X * 16 + Y * 2 + 1) // 4, X * 4 + Y // 2)
    becomes((X * 12 + Y * 3 + 2) // 6, X * 2 + Y // 2)
    becomes((Z // 4) * 4 + Z % 4, Z)
    becomes(((Z // 4) % 8) * 4 + Z % 4, Z % 32)
    becomes(Z - (Z // 4) * 4, Z % 4)
    becomes((Z // 3) // 5, Z // 15)
    becomes((Z // 3 + 2) // 5, (Z + 6) // 15)
    becomes(variable("w", 17, 20) % 8, variable("w", 17, 20) + -16)
    becomes((Z % 12) // 4, (Z // 4) % 3)
    becomes((Z % 12) % 4, Z % 4)
    becomes((Z + 100) // 7, (Z + 2) // 7 + 14)
    becomes(X // -4, X * -1 // 4)
    becomes((X * 64 + Y * 8 + Z) // 8, X * 8 + Y + Z // 8)
    becomes((X * 33 + Y) // 32, X)  # rows that are longer by one: X + Y stays below 32
    becomes((X * 31 + Y + 15) // 32, X)  # and shorter by one: 15 - X + Y is no less than 0
    becomes((X * 65 + Y * 34) // 32, X * 2 + Y)
    becomes(X % 16, X)
    becomes(Z % Z, num(0))
    becomes((Z + 64) // 256, num(0))
    becomes(Z // 0, num(0))
    stays(Z % 5)
    stays((X * 3 + Y) // 5)
    stays((X * 31 + Y) // 32)
    becomes((X * -33 + Y + 15) % 32, X * -1 + Y + 15)
    stays((X * -1 + Y) % 32)


def test_remainders_of_wrapping_integers_are_left_alone() -> None:
    stays((I8 * 4) // 4)  # 64 * 4 wraps to 0
    stays((U8 + 250) % 10)


def test_comparisons() -> None:
    becomes(X < 16, const(bool_, True))
    becomes(X < 0, const(bool_, False))
    becomes(X + 5 < 9, X < 4)
    becomes(X * 4 < 10, X < 3)
    becomes(num(9) < X * 4, num(2) < X)
    becomes(Z // 4 < 3, Z < 12)
    becomes(num(2) < Z // 4, num(11) < Z)
    becomes(~(Z < 4), num(3) < Z)
    becomes(X + Y < X + Z, Y < Z)
    becomes((X * 4).eq(6), const(bool_, False))
    becomes((Z * 4).eq(8), Z.eq(2))
    becomes((Z + 3).ne(5), Z.ne(2))
    becomes(X * -2 < -6, num(3) < X)
    stays(I8 + 5 < 9)  # 127 + 5 wraps


def test_booleans() -> None:
    becomes(P & P, P)
    becomes(P | P, P)
    becomes(I8 & I8, I8)
    becomes(I8 | I8, I8)
    becomes(P & ~P, const(bool_, False))
    becomes(P | ~P, const(bool_, True))
    becomes(P | (P & Q), P)
    becomes(P & (~P | Q), P & Q)
    becomes(~P & ~Q, ~(P | Q))
    becomes(~(~P), P)
    becomes(P ^ P, const(bool_, False))
    becomes(P.eq(True), P)
    becomes(P < Q, Q & ~P)


def test_choices() -> None:
    becomes(P.where(X, X), X)
    becomes((~P).where(X, Y), P.where(Y, X))
    becomes(P.where(P.where(X, Y), Z), P.where(X, Z))
    becomes(P.where(Q.where(X, Y), Y), (P & Q).where(X, Y))
    becomes(P.where(num(1), num(2)) + 3, P.where(num(4), num(5)))
    becomes(P.where(num(1), num(2)) < 2, P)
    becomes(P.where(Q, const(bool_, False)), P & Q)
    becomes((X < Y).where(X, Y), X.minimum(Y))
    becomes((X < Y).where(Y, X), X.maximum(Y))


def test_minimum_and_maximum() -> None:
    becomes(X.maximum(X), X)
    becomes(X.minimum(X), X)
    becomes(X.maximum(num(20)), num(20))
    becomes(X.maximum(num(-1)), X)
    becomes(X.maximum(Y).minimum(Y), Y)
    becomes(Z.maximum(num(3)).maximum(num(5)), Z.maximum(num(5)))
    becomes((X + 4).maximum(Z + 4), X.maximum(Z) + 4)


def test_bits() -> None:
    becomes(I8 ^ I8, const(int8, 0))
    becomes(I8 & -1, I8)
    becomes((U8 & 12) & 6, U8 & 4)
    becomes(alu(Ops.SHL, Z, num(3)), Z * 8)
    becomes(alu(Ops.SHR, Z, num(3)), Z // 8)
    becomes(Z & 7, Z % 8)
    twice = alu(Ops.SHL, alu(Ops.SHL, I8, const(int8, 3)), const(int8, 2))
    becomes(twice, alu(Ops.SHL, I8, const(int8, 5)))
    stays(alu(Ops.SHR, alu(Ops.SHR, U8, const(uint8, 5)), const(uint8, 5)))


def test_casts() -> None:
    becomes(cast(cast(I8, int32), int8), I8)
    becomes(cast(cast(I8, int64), int32), cast(I8, int32))
    becomes(cast(cast(I8, float32), float64), cast(I8, float64))
    becomes(cast(cast(P, int32), bool_), P)
    becomes(cast(const(int32, 300), int8), const(int8, 44))
    becomes(cast(P.where(num(1), num(2)), int32), P.where(const(int32, 1), const(int32, 2)))
    stays(cast(cast(I8, float32), uint8))  # -1 saturates to 0 on this way, and would wrap to 255
    stays(cast(cast(variable("w", -(2**31), 2**31 - 1, int32), float32), int32))  # rounds
    stays(cast(cast(I8, uint8), int32))


def test_a_value_under_its_guard() -> None:
    def guarded(before: UOp, after: UOp) -> None:
        becomes(before, after, full, keeps_bounds=False)

    guarded((X < 4).where(X % 5, 0), (X < 4).where(X, 0))
    inside = (Z < 12) & (num(3) < Z)
    guarded(inside.where((Z + -4) // 8, -1), inside.where(num(0), -1))
    guarded((Z.eq(7)).where(Z * 2, 0), (Z.eq(7)).where(num(14), 0))


def test_a_guard_does_not_capture_a_variable_of_its_own_kind() -> None:
    a, names = variable("a", 0, 100), ("valid0", "in_place_of_0")
    for name in names:
        u = variable(name, 0, 3)
        before = (a < 4).where((a % 4) * 10 + u, num(0))
        becomes(before, (a < 4).where(a * 10 + u, num(0)), full, keeps_bounds=False)


def test_guards_on_vectors_keep_types() -> None:
    v, w = (make(Ops.DEFINE_VAR, index.vec(4), (), (n, 0, 9)) for n in "vw")
    got = simplify(v.eq(3).where(v * w + w, 0), full)
    assert all(arithmetic_spec.admits(n) for n in toposort(got) if n.op is not Ops.DEFINE_VAR)


def test_unsigned_differences_keep_their_bounds() -> None:
    u = variable("u", 0, 10, uint8)
    stays(const(uint8, 255) - u)
    becomes(const(uint8, 100) < (const(uint8, 63) - u), const(bool_, False))


# --- floats: nothing that NumPy would see

FLOATS = [0.0, -0.0, 1.0, -1.5, 1e8, -1e8, 3.4e38, 1e-45, math.inf, -math.inf, math.nan]


def floating(name: str, dtype: DType = float32) -> UOp:
    return make(Ops.DEFINE_VAR, dtype, (), (name, -math.inf, math.inf))


F, G = floating("f"), floating("g")
NUMPY = {
    Ops.ADD: np.add, Ops.SUB: np.subtract, Ops.MUL: np.multiply, Ops.FDIV: np.divide,
    Ops.MAX: np.maximum, Ops.MIN: np.minimum,
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "make_node", "numpy"),
    [
        ("x*0", lambda x: x * 0.0, lambda x: x * np.float32(0)),
        ("x/x", lambda x: x / x, lambda x: x / x),
        ("x-x", lambda x: x - x, lambda x: x - x),
        ("(x+1e8)-1e8", lambda x: (x + 1e8) - 1e8, lambda x: (x + np.float32(1e8)) - np.float32(1e8)),
        ("max(x,1)", lambda x: x.maximum(1.0), lambda x: np.maximum(x, np.float32(1))),
        ("max(x,-inf)", lambda x: x.maximum(-math.inf), lambda x: np.maximum(x, np.float32(-np.inf))),
        ("min(x,x)", lambda x: x.minimum(x), lambda x: np.minimum(x, x)),
        ("x*1+0", lambda x: x * 1.0 + 0.0, lambda x: x * np.float32(1) + np.float32(0)),
        ("x*-1", lambda x: x * -1.0, lambda x: x * np.float32(-1)),
        ("0-x", lambda x: -x + 0.0, lambda x: np.float32(0) - x),
        ("1/(x+0)", lambda x: 1.0 / (x + 0.0), lambda x: np.float32(1) / (x + np.float32(0))),
        ("--x", lambda x: alu(Ops.NEG, -x), lambda x: x),
    ],
)
def test_numpys_answers_survive(name: str, make_node: object, numpy: object) -> None:
    root = simplify(make_node(F), full)  # type: ignore[operator]
    for value in FLOATS:
        with np.errstate(all="ignore"):
            want = float(numpy(np.float32(value)))  # type: ignore[operator]
        got = value_of(root, {F: float(np.float32(value))})
        signed = "max" not in name and "min" not in name  # NumPy leaves max(0, -0) open
        assert same_value(got, want, zero_sign=signed), f"{name} of {value}: {got}, NumPy says {want}"


def test_float_rules_that_would_lose_nan_do_not_fire() -> None:
    stays(F * 0.0, full)
    stays(F / F, full)
    stays(F - F, full)
    stays((F + 1e8) - 1e8, full)
    stays(F.ne(F), full)
    stays(F.eq(F), full)
    stays(F.maximum(math.inf), full)
    stays(~(F < G), full)
    stays((F + G) + G, full)
    stays((F * 3.0) * 5.0, full)


def test_float_rules_that_are_exact_do_fire() -> None:
    h = floating("h", float16)  # narrow, so that Z3 is quick
    k = floating("k", float16)
    becomes(h * 1.0, h)
    becomes(h / 1.0, h)
    becomes(h - 0.0, h)
    becomes(h + -0.0, h)
    becomes(h * -1.0, -h)
    becomes(alu(Ops.NEG, -h), h)
    becomes(h - -k, h + k)
    becomes((-h) * (-k), h * k)
    becomes(h < h, const(bool_, False))
    becomes(h.maximum(-math.inf), h)


def test_unsafe_rules_know_the_usual_zero() -> None:
    by_name = {rule.name.rpartition(".")[2]: rule for rule in unsafe_rules}
    assert apply_rule(by_name["mul-zero"], F * 0.0, None) is const(float32, 0.0)
    choice = P.where(F, const(float32, 0.0))
    assert apply_rule(by_name["mul-choice"], choice * G, None) is P.where(F * G, const(float32, 0.0))


@pytest.mark.parametrize("op", [Ops.ADD, Ops.SUB, Ops.MUL, Ops.FDIV, Ops.MAX, Ops.MIN])
@pytest.mark.parametrize("a", FLOATS)
@pytest.mark.parametrize("b", FLOATS)
def test_folding_is_what_numpy_computes(op: Op, a: float, b: float) -> None:
    got = simplify(alu(op, const(float32, a), const(float32, b)))
    with np.errstate(all="ignore"):
        want = float(NUMPY[op](np.float32(a), np.float32(b)))
    assert got.op is Ops.CONST
    assert same_value(got.arg, want, zero_sign=op not in (Ops.MAX, Ops.MIN))  # NumPy leaves max(0, -0) open
