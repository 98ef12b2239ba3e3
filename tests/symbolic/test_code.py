"""The functions behind rules with code: exactly what each makes of an example, and where it says no.

That what they make is equal is the prover's part; these examples say that it is made, at every threshold.
"""

from __future__ import annotations

import itertools
import math

import pytest

from morok.dtype import (
    DType,
    bool_,
    float16,
    float32,
    float64,
    index,
    int8,
    int16,
    int32,
    int64,
    uint8,
    uint32,
)
from morok.ir.build import cast, define_global, rng, variable
from morok.ir.node import UOp, alu, const, make
from morok.ir.ops import Op, Ops
from morok.symbolic import bits, casts, constants, order, quotients, sums, validity
from morok.symbolic.sets import full, simplify

X, Y, Z = variable("x", 0, 15), variable("y", 0, 7), variable("z", -50, 100)


def num(value: int, dtype: DType = index) -> UOp:
    return const(dtype, value)


# --- quotients


def test_a_sum_is_taken_apart_and_put_together() -> None:
    assert quotients.split_sum((X * 3 + Y) + 7) == ([(X, 3), (Y, 1)], 7)
    assert quotients.split_sum(num(5)) == ([], 5)
    assert quotients.split_sum(alu(Ops.MUL, X, Y)) == ([(alu(Ops.MUL, X, Y), 1)], 0)
    assert quotients.split_sum((X + 2) + (Y + 3)) == ([(X, 1), (Y, 1)], 5)
    assert quotients.split_sum(X // 2) == ([(X // 2, 1)], 0)
    assert quotients.join_sum([(X, 3), (Y, 1)], 7, X) is (X * 3 + Y) + 7
    assert quotients.join_sum([(X, 3), (Y, 1)], 0, X) is X * 3 + Y
    assert quotients.join_sum([(X, 1)], 1, X) is X + 1
    assert quotients.join_sum([(X, 1)], -1, X) is X + -1
    assert quotients.join_sum([(X, 0)], 0, X) is X * 0
    assert quotients.join_sum([(X, 2)], 0, X) is X * 2
    assert quotients.join_sum([], 4, X) is num(4)


def test_intervals_of_sums() -> None:
    assert quotients._interval([(X, 2), (Z, -3)], 5) == (2 * 0 - 3 * 100 + 5, 2 * 15 + 3 * 50 + 5)
    assert quotients._interval([(Z, 1)], 0) == (-50, 100)
    assert quotients._interval([(Z, -1)], 0) == (-100, 50)
    assert quotients._interval([], -4) == (-4, -4)


def divided(x: UOp, c: int) -> UOp | None:
    return quotients.divide_sum(make(Ops.FLOORDIV, index, (x, num(c))), num(c))


def remainder(x: UOp, c: int) -> UOp | None:
    return quotients.reduce_sum(make(Ops.FLOORMOD, index, (x, num(c))), num(c))


def test_quotients_of_sums() -> None:
    assert divided(X * 8 + Z, 8) is X + Z // 8
    assert divided(X * -16 + Z, 8) is X * -2 + Z // 8
    assert divided(Z + 8, 8) is num(1) + Z // 8
    assert divided(Z + 7, 8) is None
    assert divided(Z + -1, 8) is num(-1) + (Z + 7) // 8
    assert divided(X * 8 + Z + 17, 8) is (X + 2) + (Z + 1) // 8
    assert divided(X * 4 + Z * 6 + 3, 8) is (X * 2 + Z * 3 + 1) // 4
    assert divided(X * 3 + Z * 6 + 2, 9) is (X + Z * 2) // 3
    assert divided(X * 4 + Z * 5, 8) is None
    # what stays below a divisor does not reach the quotient
    for high, fits in ((3, True), (4, False)):
        small = variable("s", 0, high)
        assert (divided(Z * 4 + small, 8) is Z // 2) == fits
        assert (divided(Z * 4 + small, 8) is None) != fits
    for low, fits in ((0, True), (-1, False)):
        small = variable("s", low, 3)
        assert (divided(Z * 4 + small, 8) is Z // 2) == fits
    small = variable("s", 0, 2)
    assert divided(Z * 4 + small + 1, 8) is Z // 2
    assert divided(Z * 4 + small + 5, 8) is (Z + 1) // 2
    assert divided(Z * 4 + small + 2, 8) is None
    two = variable("s", 0, 1)
    assert divided(Z * 4 + X * 2 + two, 8) is (Z * 2 + X) // 4, "30 is no remainder of 4, 1 is one of 2"
    assert divided(Z * 4 + variable("t", 0, 1) * 2 + two, 8) is Z // 2
    assert divided(Z * 12 + Y * 4 + variable("s", 0, 3), 24) is (Z * 3 + Y) // 6
    assert divided(Z * 3 + small, 8) is None


def test_remainders_of_sums() -> None:
    assert remainder(X * 8 + Z, 8) is Z % 8
    assert remainder(Z + X * 8, 8) is Z % 8
    assert remainder(X * 9 + Z, 8) is (X + Z) % 8
    assert remainder(X * -3 + Z, 8) is None
    assert remainder(X * -8 + Z, 8) is Z % 8
    assert remainder(X * 8 + Z + 9, 8) is (Z + 1) % 8
    assert remainder(Z + 9, 8) is None, "the constant alone is another rule's"
    assert remainder(X * 4 + Z * 6 + 3, 8) is (X * 2 + Z * 3 + 1) % 4 * 2 + 1
    assert remainder(X * 4 + Z * 6 + 7, 8) is (X * 2 + Z * 3 + 3) % 4 * 2 + 1
    assert remainder(X * 4 + Z * 6 + 8, 8) is (X * 2 + Z * 3 + 4) % 4 * 2
    assert remainder(X * 4 + Z * 6, 8) is (X * 2 + Z * 3) % 4 * 2
    for high, fits in ((3, True), (4, False)):
        small = variable("s", 0, high)
        assert (remainder(Z * 4 + small, 8) is Z % 2 * 4 + small) == fits
        assert (remainder(Z * 4 + small, 8) is None) != fits
    small = variable("s", 0, 2)
    assert remainder(Z * 4 + small + 1, 8) is Z % 2 * 4 + small + 1
    assert remainder(Z * 4 + small + 5, 8) is (Z + 1) % 2 * 4 + small + 1
    assert remainder(Z * 3 + small, 8) is None


# --- bits and casts


def test_masks_and_shifts() -> None:
    for c, power in ((1, 2), (3, 4), (7, 8), (255, 256), ((1 << 40) - 1, 1 << 40)):
        node = alu(Ops.AND, Z, num(c))
        assert bits.mask_to_remainder(node, Z, num(c)) is Z % power
    for c in (2, 4, 5, 6, 8, 9, 254):
        assert bits.mask_to_remainder(alu(Ops.AND, Z, num(c)), Z, num(c)) is None
    assert bits.shift_to_product(alu(Ops.SHL, Z, num(3)), Z, num(3)) is Z * 8
    assert bits.shift_to_product(alu(Ops.SHL, Z, num(0)), Z, num(0)) is Z * 1
    assert bits.shift_to_quotient(alu(Ops.SHR, Z, num(3)), Z, num(3)) is Z // 8


@pytest.mark.parametrize("dtype", [int8, uint8, int32, uint32, int64])
def test_two_shifts_that_leave_a_bit(dtype: DType) -> None:
    node = variable("v", 0, 7, dtype)
    for k in (1, 3, dtype.bits - 2):
        for m, fits in ((dtype.bits - 1 - k, True), (dtype.bits - k, False)):
            assert bits.within_width(node, num(k, dtype), num(m, dtype)) == fits


def through(source: DType, middle: DType, target: DType, bounds: tuple[int, int] = (0, 1)) -> tuple[UOp, ...]:
    if source.is_bool or source.is_float:
        x = make(Ops.DEFINE_VAR, source, (), ("v", source.min, source.max))
    else:
        x = variable("v", *bounds, source)
    m = make(Ops.CAST, middle, (x,))
    return make(Ops.CAST, target, (m,)), m, x


def test_types_in_the_middle() -> None:
    holds, fits, shrinks = casts.middle_holds_all, casts.value_fits, casts.integers_shrink
    assert holds(*through(int8, int32, float64))
    assert not holds(*through(int32, int8, float64))
    assert holds(*through(int8, float32, float64))
    assert holds(*through(int8, float32, int16)), "a float between integers that hold the values"
    assert not holds(*through(int8, float32, uint8)), "-1 saturates on this way"
    assert not holds(*through(int16, float16, int32))
    assert holds(*through(uint8, float16, int16))
    assert holds(*through(int32, float64, float32)), "rounds once, as it would at once"
    assert holds(*through(float16, float32, int8))
    assert holds(*through(bool_, float32, int8))
    assert holds(*through(int8, int16, uint8))
    assert not holds(*through(float32, float16, int8))
    assert shrinks(*through(int64, int32, int16))
    assert shrinks(*through(int64, int32, int32))
    assert shrinks(*through(int8, int32, int16))
    assert not shrinks(*through(int64, int16, int32))
    assert not shrinks(*through(float32, int32, int16))
    assert not shrinks(*through(int64, float32, int16))
    assert not shrinks(*through(int64, int32, float16))
    assert shrinks(*through(index, int64, int32))
    assert not shrinks(*through(int64, index, int32))
    assert not shrinks(*through(int64, int32, index))
    for low, high, yes in ((-128, 127, True), (-129, 0, False), (0, 128, False), (0, 0, True)):
        assert fits(*through(int32, int8, int32, (low, high))) == yes
        assert fits(*through(index, int8, index, (low, high))) == yes
        assert not fits(*through(int32, int8, float32, (low, high)))
    assert not fits(*through(float32, int8, int32))
    assert not fits(*through(int8, index, int32))
    assert not fits(*through(int8, float32, int32))


# --- constants


def test_what_is_not_folded() -> None:
    power = constants.fold(Ops.POW)
    assert power(alu(Ops.POW, const(float32, 2.0), const(float32, 3.0))) is None
    assert power(alu(Ops.POW, num(3), num(4))) is num(81)
    assert power(alu(Ops.POW, num(3, int32), num(4, int32))) is num(81, int32)
    for op in (Ops.POW, Ops.SHL):
        folded = constants.fold(op)
        assert folded(alu(op, num(1), num(256))) is not None
        assert folded(alu(op, num(1), num(257))) is None
        assert folded(alu(op, num(1, int64), num(257, int64))) is not None, "wraps, so it is not long"
    assert constants.fold(Ops.ADD)(alu(Ops.ADD, num(1), num(400))) is num(401)
    assert constants.fold(Ops.SHR)(alu(Ops.SHR, num(1), num(400))) is num(0)
    assert constants.fold(Ops.ADD)(alu(Ops.ADD, const(float32, 1.0), const(float32, 2.0))) is const(
        float32, 3.0
    )
    less = constants.fold(Ops.CMPLT)(alu(Ops.CMPLT, num(200, uint8), num(100, uint8)))
    assert less is const(bool_, False), "compared as what it is, not as booleans"
    assert constants.fold(Ops.CMPLT).__name__ == "fold_cmplt"


# --- order


NODES = [
    X, Y, Z, X * 2, X * 3, Y * 2, X + Y, X + Z, X // 2, X % 2, variable("x", 0, 14),
    variable("x", 0, 15, int32), num(1), num(2), num(-1), const(float32, 0.0), const(float32, -0.0),
    const(float32, 1.0), rng(4, 0), rng(4, 1), alu(Ops.MAX, X, Y), alu(Ops.MAX, X, Z),
    alu(Ops.WHERE, X < Y, X, Y), alu(Ops.MUL, X, Y), const(bool_, True),
]  # fmt: skip


def test_the_order_of_nodes_is_total() -> None:
    for less in (order.structurally_less, order.precedes):
        for a, b in itertools.combinations(NODES, 2):
            assert less(a, b) != less(b, a), (a, b)
        for a in NODES:
            assert not less(a, a)
        for a, b, c in itertools.permutations(NODES, 3):
            assert not (less(a, b) and less(b, c)) or less(a, c), (a, b, c)


def test_constants_stand_last_and_like_terms_side_by_side() -> None:
    before, first = order.precedes, order.structurally_less
    for x in (X, X * 2, X + Y, X // 2, rng(4, 0)):
        assert before(x, num(1)) and not before(num(1), x)
        assert first(x, num(1)) and not first(num(1), x)
    assert before(num(1), num(2)) and not before(num(2), num(1))
    assert before(const(float32, -0.0), const(float32, 0.0)) != before(
        const(float32, 0.0), const(float32, -0.0)
    )
    assert order.base(X * 2) is X
    assert order.base(X) is X
    assert order.base(alu(Ops.MUL, X, Y)) is alu(Ops.MUL, X, Y)
    assert order.base(X + 2) is X + 2
    assert order.base(X // 2) is X // 2
    assert before(X, Y) and before(Y, Z), "by name"
    assert before(X * 9, Y) and before(X, Y * 2) and before(X * 9, Y * 2), "by what is multiplied"
    assert before(X, X * 2) and before(X * 2, X * 3)
    assert not before(X * 3, X * 2)
    by_number = sorted((X + Y, X // 2, alu(Ops.MAX, X, Y), X), key=lambda n: n.op.number)
    for a, b in itertools.pairwise(by_number):
        assert before(a, b) and not before(b, a)
    assert order._arg_less(1, 2) and not order._arg_less(2, 1)
    assert order._arg_less(1, "a") and not order._arg_less("a", 1), "int comes before str"
    longer = make(Ops.CAT, float32.vec(3), (const(float32.vec(2), 0.0), const(float32, 0.0)))
    shorter = make(Ops.VECTORIZE, float32.vec(2), (const(float32, 0.0),) * 2)
    assert longer is not shorter
    three, two = (make(Ops.SINK, X.dtype, (X,) * n) for n in (3, 2))
    assert first(two, three) and not first(three, two), "fewer sources first"


@pytest.mark.parametrize("op", [Ops.ADD, Ops.MUL, Ops.AND])
def test_chains_are_sorted(op: Op) -> None:
    a, b, c, d = (variable(n, 0, 9) for n in "abcd")

    def chain(*nodes: UOp) -> UOp:
        total = nodes[0]
        for n in nodes[1:]:
            total = make(op, index, (total, n))
        return total

    for place in range(4):
        others = [n for i, n in enumerate((a, b, c, d)) if i != place]
        z = (a, b, c, d)[place]
        assert sums.insert(chain(*others, z), z) is chain(a, b, c, d)
    assert sums.insert(chain(b, a), a) is chain(a, b)
    assert sums.z_first(b, a) and not sums.z_first(a, b) and not sums.z_first(a, a)
    node = chain(b, a)
    assert sums.y_first(node, b, a)
    assert not sums.y_first(chain(a, b), a, b)
    assert not sums.y_first(chain(chain(b, c), a), chain(b, c), a), "the sorting rule's part"
    late = alu(Ops.WHERE, a < b, c, d)
    assert order.precedes(chain(a, b), late)
    assert not sums.y_first(make(op, index, (late, chain(a, b))), late, chain(a, b)), (
        "the leaning rule's part"
    )


# --- values under conditions


def test_conditions_as_bounds() -> None:
    known = validity.known_bounds
    assert known(Z < 12) == {Z: (-50, 11)}
    assert known(num(3) < Z) == {Z: (4, 100)}
    assert known(Z.eq(7)) == {Z: (7, 7)}
    assert known(Z.ne(7)) == {}
    assert known((Z < 12) & (num(3) < Z)) == {Z: (4, 11)}
    assert known((Z < 12) & (Z < 5)) == {Z: (-50, 4)}
    assert known((Z < 5) & (Z < 12)) == {Z: (-50, 4)}
    assert known((num(3) < Z) & (num(5) < Z)) == {Z: (6, 100)}
    assert known((Z < 12) & (X < 3)) == {Z: (-50, 11), X: (0, 2)}
    assert known((Z < 12) | (X < 3)) == {}
    assert known(Z < 101) == {}, "nothing new"
    assert known(Z < 100) == {Z: (-50, 99)}
    assert known(num(-51) < Z) == {}
    assert known(num(-50) < Z) == {Z: (-49, 100)}
    assert known(Z < X) == {}
    assert known(~(Z < 12)) == {}
    assert known(variable("v", 0, 9, int32) < 5) == {}, "only indices"
    assert known(variable("v", 0, 9, int32).eq(5)) == {}
    assert known(Z + X < 12) == {Z + X: (-50, 11)}
    free = make(Ops.DEFINE_VAR, index, (), ("f", -math.inf, math.inf))
    assert known(free < 4) == {}, "one end is not enough"
    assert known(num(-1) < free) == {}
    assert known((free < 4) & (num(-1) < free)) == {} or known((free < 4) & (num(-1) < free)) == {
        free: (0, 3)
    }
    half = make(Ops.DEFINE_VAR, index, (), ("h", 0, math.inf))
    assert known(half < 4) == {half: (0, 3)}
    other = make(Ops.DEFINE_VAR, index, (), ("g", -math.inf, 0))
    assert known(num(-4) < other) == {other: (-3, 0)}
    assert list(validity.conjuncts((Z < 12) & ((X < 3) & (Y < 2)))) == [Z < 12, X < 3, Y < 2]
    assert list(validity.conjuncts((Z < 12) | (X < 3))) == [(Z < 12) | (X < 3)]
    wide = alu(Ops.AND, num(6), num(3))
    assert list(validity.conjuncts(wide)) == [wide], "bits of integers are no conjunction"


def test_values_are_simpler_under_conditions() -> None:
    def under(p: UOp, x: UOp) -> UOp:
        return validity.simplify_under(p, x, full)

    assert under(X < 4, X % 4) is X
    assert under(X < 5, X % 4) is X % 4
    assert under(num(11) < X, X // 4) is num(3)
    assert under(X.eq(7), X * 2) is num(14)
    assert under((X < 4) & (Y < 2), (X % 4) * 2 + Y % 2) is X * 2 + Y
    assert under(Z + X < 4, Y % 4) is Y % 4, "says nothing about Y"
    raw = alu(Ops.SUB, X + Y, Y)
    assert under(Z < 4, raw) is raw, "nor does it simplify what it knows nothing about"
    assert under(X < 4, Y + X) is Y + X, "another order is no gain"
    nowhere = (X < 3) & (num(5) < X)
    assert under(nowhere, X % 4) is X % 4, "where nothing holds, anything does; it stays"
    memory = define_global(int32, 64, 0)
    read = make(Ops.INDEX, int32, (memory, X % 4))
    kept = cast(read, index) + X % 4
    assert under(X < 4, kept) is simplify(cast(read, index) + X), "the place of the read stays"
    same = validity._stand_in(X, 0, 3, 3)
    assert same is num(3)
    assert validity._stand_in(X, 0, 3, 4).arg[1:] == (3, 4)


# --- loops whose end is known later


def test_a_loop_divided_by_its_end():
    """r // n = 0 and r % n = r for r in 0 … n-1, and for no other divisor, and not the other way round."""
    n, m = variable("n", 1, 64), variable("m", 1, 64)
    r = rng(n, 0)
    assert simplify(r // n) is const(index, 0)
    assert simplify(r % n) is r
    for wrong in (r // m, r % m, n // r, n % r, m // n, m % n, (r + 1) // n, (r + 1) % n):
        assert simplify(wrong).op in (Ops.FLOORDIV, Ops.FLOORMOD), wrong
