"""Integer ops in what processors have: the exact instructions at every threshold."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from morok.codegen.decompose import integers
from morok.codegen.decompose.fused import fused_decompositions
from morok.codegen.decompose.pieces import like, shr, where
from morok.codegen.decompose.table import decompositions
from morok.dtype import DType, float32, int8, int16, int32, int64, uint8, uint16, uint32, uint64
from morok.ir.arithmetic.alu import evaluate_array
from morok.ir.build import cast, variable
from morok.ir.node import UOp, alu, const, toposort
from morok.ir.ops import Op, Ops
from morok.machine.machine import Machine
from morok.rewrite.engine import rewrite
from tests.expressions import value_of

DIVIDES = (Ops.FLOORDIV, Ops.FLOORMOD, Ops.CDIV, Ops.CMOD)
MACHINE = SimpleNamespace(machine=Machine("usual", scalar_alu=True))


def var(low: int, high: int, dtype: DType = int32, name: str = "v") -> UOp:
    return variable(name, low, high, dtype)


def ops(root: UOp | None) -> set[Op]:
    assert root is not None
    return {n.op for n in toposort(root)}


def floor_div(x: UOp, y: UOp | int) -> UOp | None:
    return integers.floor_divide(alu(Ops.FLOORDIV, x, like(x, y) if isinstance(y, int) else y))


def floor_mod(x: UOp, y: UOp | int) -> UOp | None:
    return integers.floor_modulo(alu(Ops.FLOORMOD, x, like(x, y) if isinstance(y, int) else y))


# --- magic numbers


@pytest.mark.parametrize("bits", [6, 7, 8])
def test_magic_numbers_are_right_for_every_value_and_found_where_they_exist(bits: int) -> None:
    for largest in range(1, 1 << bits):
        for divisor in (3, 5, 6, 7, 9, 11, 12, 30, 63):
            known = []
            for s in range(bits):
                m = -(-(1 << s) // divisor)
                error = m * divisor - (1 << s)
                if largest * m < 1 << bits and largest * error < 1 << s:
                    known.append((m, s))
            found = integers.magic_numbers(largest, divisor, bits)
            assert found == (known[0] if known else None)
            if found is not None:
                m, s = found
                assert all(x * m < 1 << bits and x * m >> s == x // divisor for x in range(largest + 1))


def test_a_quotient_by_a_constant() -> None:
    divide = integers.divide_by_constant
    small = var(0, 100)
    assert ops(divide(small, 7)) == {Ops.DEFINE_VAR, Ops.MUL, Ops.SHR, Ops.CONST}
    assert divide(small, 8) is shr(small, 3)
    assert divide(small, 1) is shr(small, 0)
    assert divide(var(-1, 100), 7) is None
    assert divide(var(-1, 100), 8) is None
    assert divide(small, 0) is None
    assert divide(small, -7) is None
    whole = var(0, int32.max)
    wide = divide(whole, 7)
    assert ops(wide) == {Ops.DEFINE_VAR, Ops.MUL, Ops.SHR, Ops.CONST, Ops.CAST}
    assert {n.dtype for n in toposort(wide) if n.op is Ops.MUL} == {int64}  # type: ignore[arg-type]
    unsigned = divide(var(0, uint32.max, uint32), 3)
    assert {n.dtype for n in toposort(unsigned) if n.op is Ops.MUL} == {uint64}  # type: ignore[arg-type]
    assert divide(var(0, int64.max, int64), 7) is None, "nothing is wider"
    assert ops(divide(var(0, 1 << 30, int64), 7)) == {Ops.DEFINE_VAR, Ops.MUL, Ops.SHR, Ops.CONST}
    for dtype in (int8, uint8, int16, int32, uint32):
        for d in (3, 7, 10, 11):
            x = var(0, dtype.max, dtype)
            root = divide(x, d)
            if (dtype, d) == (uint32, 7):  # needs a magic number of 33 bits
                assert root is None
                continue
            assert root is not None
            for value in (0, 1, d - 1, d, d + 1, 5 * d - 1, 5 * d, dtype.max - 1, dtype.max):
                assert value_of(root, {x: value}) == value // d


# --- division


@pytest.mark.parametrize("dtype", [int32, int64])
def test_floor_division(dtype: DType) -> None:
    any_, more = var(dtype.min, dtype.max, dtype), var(0, 9, dtype)
    least = var(-1, 9, dtype)
    y, over = var(0, 5, dtype, "y"), var(-1, 5, dtype, "y")
    assert floor_div(any_, 8) is shr(any_, 3)
    assert floor_div(any_, 1) is shr(any_, 0)
    assert Ops.SHR in ops(floor_div(more, 7)) and Ops.CDIV not in ops(floor_div(more, 7))
    assert floor_div(more, y) is alu(Ops.CDIV, more, y)
    for x, by in (
        (least, y),
        (more, over),
        (any_, like(any_, 7)),
        (any_, like(any_, -8)),
        (more, like(more, -8)),
    ):
        quotient = alu(Ops.CDIV, x, by)
        rest = x - quotient * by
        apart = rest.ne(0) & ((rest ^ by) < 0) & by.ne(0)
        assert floor_div(x, by) is quotient - cast(apart, x.dtype)
    assert floor_div(more, 0) is alu(Ops.CDIV, more, like(more, 0))
    unsigned, by = var(0, 9, uint32), var(0, 9, uint32, "y")
    assert floor_div(unsigned, by) is alu(Ops.CDIV, unsigned, by)


@pytest.mark.parametrize("dtype", [int32, int64])
def test_floor_modulo(dtype: DType) -> None:
    any_, more = var(dtype.min, dtype.max, dtype), var(0, 9, dtype)
    least = var(-1, 9, dtype)
    y, over = var(0, 5, dtype, "y"), var(-1, 5, dtype, "y")
    assert floor_mod(any_, 8) is any_ & 7
    assert floor_mod(any_, 2) is any_ & 1
    assert floor_mod(any_, 1) is any_ & 0
    seven = like(more, 7)
    assert floor_mod(more, 7) is more - alu(Ops.FLOORDIV, more, seven) * seven
    assert floor_mod(more, y) is alu(Ops.CMOD, more, y)
    assert floor_mod(more, 0) is alu(Ops.CMOD, more, like(more, 0))
    huge = var(0, int64.max, int64)
    assert floor_mod(huge, 7) is alu(Ops.CMOD, huge, like(huge, 7)), "no product is wide enough"
    for x, by in (
        (least, y),
        (more, over),
        (any_, like(any_, 7)),
        (least, like(least, 7)),
        (more, like(more, -8)),
    ):
        rest = alu(Ops.CMOD, x, by)
        apart = rest.ne(0) & ((rest ^ by) < 0)
        assert floor_mod(x, by) is where(apart, rest + by, rest)
    unsigned, by = var(0, 9, uint32), var(0, 9, uint32, "y")
    assert floor_mod(unsigned, by) is alu(Ops.CMOD, unsigned, by)


def test_truncating_division_by_a_constant() -> None:
    more, y = var(0, 9), var(1, 3, name="y")
    for make_, op in ((integers.c_divide_constant, Ops.CDIV), (integers.c_modulo_constant, Ops.CMOD)):
        for divisor in (0, -1, -7):
            assert make_(alu(op, more, like(more, divisor))) is None
        assert make_(alu(op, more, y)) is None
        assert make_(alu(op, var(-1, 9), like(more, 7))) is None
        for divisor in (1, 2, 7):
            root = make_(alu(op, more, like(more, divisor)))
            assert root is not None
            want = [x // divisor if op is Ops.CDIV else x % divisor for x in range(10)]
            assert [value_of(root, {more: x}) for x in range(10)] == want


def test_what_is_divided_again_keeps_its_bounds() -> None:
    """v % 5 cannot be negative, also when it has become v - (v*7 >> 5)*5."""
    v = var(0, 9)
    x = alu(Ops.FLOORMOD, v, like(v, 5)) * 48 + 3
    for op in (Ops.FLOORDIV, Ops.FLOORMOD):
        context = SimpleNamespace(machine=MACHINE.machine, only_added=frozenset())
        root = rewrite(alu(op, x, like(x, 14)), decompositions, context, before=fused_decompositions)
        assert not ops(root) & {*DIVIDES, Ops.WHERE, Ops.XOR}
        wanted = [divmod(number % 5 * 48 + 3, 14)[op is Ops.FLOORMOD] for number in range(10)]
        assert [value_of(root, {v: number}) for number in range(10)] == wanted


@pytest.mark.parametrize("op", [Ops.CDIV, Ops.CMOD])
def test_divisors_are_made_safe_where_they_can_be_bad(op: Op) -> None:
    low, high = int32.min, int32.max

    def guard(x: UOp, y: UOp) -> UOp | None:
        return integers.guard_division(alu(op, x, y))

    any_, some = var(low, high), var(low + 1, high)
    assert guard(any_, var(1, 5, name="y")) is None
    assert guard(any_, var(-9, -2, name="y")) is None
    assert guard(some, var(-9, -1, name="y")) is None
    y = var(-9, -1, name="y")  # only INT_MIN / -1
    safe = where(y.eq(0) | (y.eq(-1) & any_.eq(low)), like(y, 1), y)
    assert guard(any_, y) is alu(op, any_, safe)
    for limits in ((0, 5), (-5, 0), (0, 0)):
        y = var(*limits, name="y")
        plain = where(y.eq(0), like(y, 1), y)
        assert guard(some, y) is where(y.eq(0), like(some, 0), alu(op, some, plain))
    y = var(0, 5, name="y")
    assert guard(any_, y) is where(y.eq(0), like(any_, 0), alu(op, any_, where(y.eq(0), like(y, 1), y)))
    y = var(-1, 5, name="y")
    safe = where(y.eq(0) | (y.eq(-1) & any_.eq(low)), like(y, 1), y)
    assert guard(any_, y) is where(y.eq(0), like(any_, 0), alu(op, any_, safe))
    assert guard(some, y) is where(y.eq(0), like(some, 0), alu(op, some, where(y.eq(0), like(y, 1), y)))
    y = var(-9, 0, name="y")
    safe = where(y.eq(0) | (y.eq(-1) & any_.eq(low)), like(y, 1), y)
    assert guard(any_, y) is where(y.eq(0), like(any_, 0), alu(op, any_, safe))
    u, y = var(0, 9, uint32), var(0, 5, uint32, "y")
    assert guard(u, y) is where(y.eq(0), like(u, 0), alu(op, u, where(y.eq(0), like(y, 1), y)))


# --- by every constant


def array_of(root: UOp, x: UOp, values: np.ndarray) -> np.ndarray:
    done: dict[UOp, Any] = {x: values}
    for n in toposort(root):
        if n.op is Ops.CONST:
            done[n] = np.array(n.arg, n.dtype.numpy)
        elif n is not x:
            operands = [done[s] for s in n.src]
            done[n] = evaluate_array(
                n.op, n.src[-1].dtype, *operands, to=n.dtype if n.op is Ops.CAST else None
            )
    return np.broadcast_to(done[root], values.shape)


def divided(op: Op, x: int, y: int) -> int:
    """Python's own arithmetic; a divisor of 0 gives 0."""
    if y == 0:
        return 0
    if op in (Ops.FLOORDIV, Ops.FLOORMOD):
        return x // y if op is Ops.FLOORDIV else x % y
    quotient = abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)
    return quotient if op is Ops.CDIV else x - quotient * y


def compare_quotients(op: Op, x: UOp, divisor: int, values: list[int]) -> None:
    dtype = x.dtype
    root = rewrite(alu(op, x, like(x, divisor)), decompositions, MACHINE)
    if divisor > 0 and x.arg[1] >= 0 and dtype.bits <= 16:
        assert not ops(root) & set(DIVIDES), "by a constant one multiplies"
    assert not ops(root) & {Ops.FLOORDIV, Ops.FLOORMOD}
    with np.errstate(all="ignore"):
        found = array_of(root, x, np.array(values, dtype.numpy))
        wanted = np.array([divided(op, v, divisor) for v in values], object)
    low, size = dtype.min, dtype.max - dtype.min + 1  # INT_MIN / -1 wraps around
    assert [int(v) for v in found] == [(w - low) % size + low for w in wanted], (op, divisor)


@pytest.mark.parametrize("op", DIVIDES, ids=lambda op: op.name)
@pytest.mark.parametrize("dtype", [int8, uint8], ids=str)
def test_every_byte_by_every_byte(op: Op, dtype: DType) -> None:
    for low, high in ((dtype.min, dtype.max), (0, 100)):
        x = var(low, high, dtype)
        for divisor in range(dtype.min, dtype.max + 1, 1 if low else 3):
            compare_quotients(op, x, divisor, list(range(low, high + 1)))


@pytest.mark.parametrize("op", DIVIDES, ids=lambda op: op.name)
@pytest.mark.parametrize("dtype", [int16, uint16, int32, uint32, int64, uint64], ids=str)
def test_constants_at_which_something_changes(op: Op, dtype: DType) -> None:
    least, most = dtype.min, dtype.max
    chosen = {0, 1, 2, 3, 6, 7, 10, most // 3, most - 1, most, least, least + 1, 641, 1 << dtype.bits // 2}
    chosen |= set() if dtype.is_unsigned else {-1, -2, -7, -most // 3}
    for low in {least, 0}:
        x = var(low, most, dtype)
        for d in sorted(chosen):
            near = {v + k for v in (0, d, -d, 5 * d, most // (d or 1) * d, most, low) for k in (-1, 0, 1)}
            compare_quotients(op, x, d, sorted(v for v in near if low <= v <= most))


# --- products, shifts, powers


def test_products_with_powers_of_two() -> None:
    x = var(-5, 5)

    def made(x: UOp, c: object) -> UOp | None:
        factor = c if isinstance(c, UOp) else const(x.dtype, c)
        return integers.multiply_by_power(alu(Ops.MUL, x, factor))

    assert made(x, 2) is alu(Ops.SHL, x, like(x, 1))
    assert made(x, 1 << 20) is alu(Ops.SHL, x, like(x, 20))
    for c in (0, 1, 3, 6, 7, -2, -8):
        assert made(x, c) is None
    assert made(x, var(2, 2)) is None
    assert made(variable("i", 0, 9), 8) is None, "an index has no width"
    assert made(const(float32, 3.0), 8.0) is None


@pytest.mark.parametrize("dtype", [int8, int32, uint32, uint64])
def test_shifts_outside_of_the_width(dtype: DType) -> None:
    bits = dtype.bits
    x = var(dtype.min, dtype.max, dtype)
    far = var(0, bits, dtype, "y")
    assert integers.guard_shift(alu(Ops.SHL, x, var(0, bits - 1, dtype, "y"))) is None
    assert integers.guard_shift(alu(Ops.SHR, x, var(0, bits - 1, dtype, "y"))) is None
    inside = far & (bits - 1)
    fits = far.eq(inside)
    zero = like(x, 0)
    assert integers.guard_shift(alu(Ops.SHL, x, far)) is where(fits, alu(Ops.SHL, x, inside), zero)
    sign = zero if dtype.is_unsigned else shr(x, bits - 1)
    assert integers.guard_shift(alu(Ops.SHR, x, far)) is where(fits, alu(Ops.SHR, x, inside), sign)
    if not dtype.is_unsigned:
        assert integers.guard_shift(alu(Ops.SHL, x, var(-1, 3, dtype, "y"))) is not None


def power_of(x: UOp, y: UOp) -> UOp:
    found = integers.integer_power(alu(Ops.POW, x, y))
    assert found is not None
    return found


def test_powers() -> None:
    x = var(-3, 3)
    for exponent in (0, 1, 2, 3, 5, 8, 13):
        root = power_of(x, like(x, exponent))
        assert [value_of(root, {x: v}) for v in range(-3, 4)] == [v**exponent for v in range(-3, 4)]
        assert Ops.WHERE not in ops(root), "the exponent is known"
    y = var(-3, 6, name="y")
    root = power_of(x, y)
    for v in range(-3, 4):
        for e in range(-3, 7):
            want = v**e if e >= 0 else 0 if v == 0 else int(v**e)
            assert value_of(root, {x: v, y: e}) == want, (v, e)
    assert integers.integer_power(alu(Ops.POW, const(float32, 2.0), const(float32, 2.0))) is None


@pytest.mark.parametrize(("high", "squares"), [(1, 1), (3, 2), (4, 3), (7, 3), (8, 4)])
def test_powers_square_no_more_often_than_the_exponent_has_bits(high: int, squares: int) -> None:
    y = var(0, high, name="y")
    root = power_of(var(-3, 3), y)
    chosen = [n for n in toposort(root) if n.op is Ops.WHERE]
    assert len(chosen) == squares
    unknown = var(-1, high, name="y")
    chosen = [n for n in toposort(power_of(var(-3, 3), unknown)) if n.op is Ops.WHERE]
    assert len(chosen) == 31 + 4, "an exponent that may be negative may be anything"


def test_random_bits_are_threefrys() -> None:
    """Known answers of Threefry-2x32 with 20 rounds, as published with its authors' Random123."""
    c, k = (variable(n, 0, uint64.max, uint64) for n in "ck")
    root = integers.threefry(alu(Ops.THREEFRY, c, k))
    cases = [
        ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
        ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
        ((0x243F6A88, 0x85A308D3), (0x13198A2E, 0x03707344), (0xC4923A9C, 0x483DF7A0)),
    ]
    for counter, key, want in cases:
        got = value_of(root, {c: counter[0] | counter[1] << 32, k: key[0] | key[1] << 32})
        assert got == want[0] | want[1] << 32


def test_four_products_of_bytes_are_their_sum() -> None:
    """By NumPy's int8; the upper byte needs one shift only, and nobody shifts by more than a word has."""
    x, y = (var(int32.min, int32.max, name=n) for n in "xy")
    root = integers.dot4(alu(Ops.DOT4, x, y))
    shifts = [n.src[1].arg for n in toposort(root) if n.op in (Ops.SHL, Ops.SHR)]
    assert sorted(shifts) == sorted([8, 16, 24, *[24] * 4] * 2)
    words = np.random.default_rng(3).integers(int32.min, int32.max, (40, 2), np.int32)
    words[:2] = [[0x7F80FF01, -0x7F7F7F80], [-1, 0x01010101]]
    for a, b in words:
        bytes_of = [np.array([w], "<i4").view(np.int8).astype(np.int64) for w in (a, b)]
        assert value_of(root, {x: int(a), y: int(b)}) == int(np.dot(*bytes_of))
