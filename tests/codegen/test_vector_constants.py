"""Vector constants are computed lane by lane."""

import math

from morok.codegen.vector.vector_constants import lane_rules
from morok.dtype import bool_, float32, index, int32
from morok.ir.node import UOp, alu, const, make
from morok.ir.ops import Ops
from morok.rewrite.engine import rewrite


def vector(*values: int) -> UOp:
    return make(Ops.VCONST, int32.vec(len(values)), (), values)


def test_arithmetic_and_comparisons_fold() -> None:
    four = const(int32.vec(4), 4)
    assert rewrite(vector(1, 2, 3, 2**31 - 4) + four, lane_rules) is vector(5, 6, 7, -(2**31))
    below = rewrite(vector(2, 3, 4, 5) < four, lane_rules)
    assert below is make(Ops.VCONST, bool_.vec(4), (), (True, True, False, False))
    assert rewrite(vector(2, 3, 1, 0) < four, lane_rules) is const(bool_.vec(4), True)


def test_casts_fold() -> None:
    got = rewrite(make(Ops.CAST, float32.vec(2), (vector(1, 2),)), lane_rules)
    assert got is make(Ops.VCONST, float32.vec(2), (), (1.0, 2.0))


def test_constants_side_by_side_join() -> None:
    pair = make(Ops.CAT, int32.vec(4), (const(int32.vec(2), 7), vector(8, 9)))
    assert rewrite(pair, lane_rules) is vector(7, 7, 8, 9)
    zeros = make(Ops.VECTORIZE, float32.vec(2), (const(float32, 0.0), const(float32, -0.0)))
    got = rewrite(zeros, lane_rules)
    assert got.op is Ops.VCONST and math.copysign(1, got.arg[1]) == -1


def test_lanes_of_constants_are_constants() -> None:
    assert rewrite(make(Ops.GEP, int32.vec(3), (vector(5, 6, 7, 8),), (3, 0, 0)), lane_rules) is vector(
        8, 5, 5
    )
    one = make(Ops.GEP, int32, (vector(5, 6, 7, 8),), (2,))
    assert rewrite(one, lane_rules) is const(int32, 7)


def test_what_is_not_constant_stays() -> None:
    x = make(Ops.DEFINE_VAR, index.vec(2), (), ("x", 0, 9))
    assert rewrite(x + 1, lane_rules) is x + 1


def test_functions_that_devices_approximate_stay() -> None:
    """Floats only: the same op on integers is exact."""
    halves = make(Ops.VCONST, float32.vec(2), (), (0.5, 1.5))
    for op in (Ops.EXP, Ops.EXP2, Ops.SIN, Ops.RSQRT):
        assert rewrite(alu(op, halves), lane_rules) is alu(op, halves)
    assert rewrite(alu(Ops.POW, halves, halves), lane_rules) is alu(Ops.POW, halves, halves)
    doubled = make(Ops.VCONST, float32.vec(2), (), (1.0, 3.0))
    assert rewrite(halves + halves, lane_rules) is doubled
    assert rewrite(alu(Ops.POW, vector(2, 3), vector(5, 2)), lane_rules) is vector(32, 9)


def test_scalars_are_left_to_others() -> None:
    far = alu(Ops.SHL, const(index, 1), const(index, 10**6))
    for node in (const(int32, 1) + const(int32, 2), far):
        assert rewrite(node, lane_rules) is node
