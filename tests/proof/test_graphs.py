"""Equality of two graphs, and indices inside their buffers."""

import math

import pytest

pytest.importorskip("z3")

from morok.dtype import DType, bfloat16, bool_, float16, float32, index, int8, int32, uint8
from morok.ir.build import cast, variable
from morok.ir.node import UOp, alu, const, make
from morok.ir.ops import AxisKind, Ops
from morok.proof.graphs import evaluate_graph, prove_equal, prove_in_bounds
from morok.proof.verdicts import PROVED, REFUTED, UNKNOWN
from morok.rewrite.rules import REASSOCIATING, ZERO_SIGN


def var(name: str, dtype: DType = int8) -> UOp:
    low, high = (dtype.min, dtype.max) if dtype.min is not None else (-math.inf, math.inf)
    return make(Ops.DEFINE_VAR, dtype, (), (name, low, high))


def rng(number: int, end: int) -> UOp:
    return make(Ops.RANGE, index, (const(index, end),), (number, AxisKind.LOOP))


def load(pointer: UOp, *indices: UOp) -> UOp:
    return make(Ops.LOAD, float32, (make(Ops.INDEX, pointer.dtype, (pointer, *indices)),))


def test_wrap_around_is_equal_only_where_it_is() -> None:
    x, y = var("x"), var("y")
    assert prove_equal((x + y) * 2, x * 2 + y * 2)
    verdict = prove_equal((x + y) // 2, x // 2 + y // 2)
    assert verdict.status == REFUTED
    values = {x: verdict.counterexample["x"], y: verdict.counterexample["y"]}
    assert evaluate_graph((x + y) // 2, values) != evaluate_graph(x // 2 + y // 2, values)


@pytest.mark.parametrize("dtype", [bfloat16, float16, float32], ids=str)
def test_a_condition_as_an_index_as_a_float(dtype: DType) -> None:
    p = var("x", index).eq(0)
    assert prove_equal(cast(cast(p, index), dtype), cast(p, dtype)).status == PROVED
    assert prove_equal(cast(cast(p, index), dtype), cast(~p, dtype)).status == REFUTED


def test_bits_of_indices_are_compared_one_by_one() -> None:
    w, x, y, z = (var(name, index) for name in "wxyz")
    chain = alu(Ops.AND, alu(Ops.AND, alu(Ops.AND, w * 3, x), y), z + 1)
    other = alu(Ops.AND, alu(Ops.AND, alu(Ops.AND, z + 1, w * 3), y), x)
    verdict = prove_equal(chain, other)
    assert verdict.status == PROVED and verdict.note == "bit by bit"
    assert prove_equal(chain, alu(Ops.AND, chain, w)).status != PROVED


def test_bounds_of_variables_count() -> None:
    near, far = variable("n", 0, 7), variable("n", 0, 8)
    assert prove_equal(near % 8, near)
    verdict = prove_equal(far % 8, far)
    assert verdict.status == REFUTED and verdict.counterexample == {"n": 8}
    assert "gives 0 before and 8 after" in verdict.note


def test_loops_run_below_their_end() -> None:
    i, j = rng(0, 4), rng(1, 8)
    flat = i * 8 + j
    assert prove_equal(flat // 8, i)
    assert prove_equal(flat % 8, j)
    assert prove_equal(flat // 4, i).status == REFUTED


def test_a_symbolic_end() -> None:
    n = variable("n", 1, 100)
    i = make(Ops.RANGE, index, (n,), (0, AxisKind.LOOP))
    assert prove_equal(alu(Ops.CMPLT, i, n), const(bool_, True))
    assert prove_equal(alu(Ops.FLOORDIV, i, n), const(index, 0))


def test_floats_by_value() -> None:
    f, g = var("f", float16), var("g", float16)
    assert prove_equal(f + g, g + f)
    assert prove_equal(f - f, const(float16, 0.0)).status == REFUTED
    assert prove_equal(f + 0.0, f).status == REFUTED
    assert prove_equal(f + 0.0, f, numeric=ZERO_SIGN)
    assert prove_equal((f + g) - g, f).status == REFUTED
    assert prove_equal((f + g) - g, f, numeric=REASSOCIATING)


def test_unsigned_and_signed_differ() -> None:
    assert prove_equal(var("x", uint8) < 0, const(bool_, False))
    assert prove_equal(var("x", int8) < 0, const(bool_, False)).status == REFUTED


def test_variables_of_one_name_with_other_bounds_are_not_the_same() -> None:
    near, far = variable("n", 0, 7), variable("n", 0, 9)
    verdict = prove_equal(near + far, near + near)
    assert verdict.status == REFUTED and set(verdict.counterexample) == {"n", "n'"}


def test_types_must_agree() -> None:
    verdict = prove_equal(var("x", int8), var("x", uint8))
    assert verdict.status == REFUTED and "types differ" in verdict.note


def test_the_same_node_needs_no_solver() -> None:
    assert prove_equal(var("x"), var("x")).status == PROVED


def test_what_is_not_arithmetic_is_a_function_of_its_sources() -> None:
    pointer = make(Ops.DEFINE_GLOBAL, float32.ptr(64), (), 0)
    i, j = rng(0, 4), rng(1, 8)
    flat = i * 8 + j
    assert prove_equal(load(pointer, (flat // 8) * 8 + flat % 8), load(pointer, flat))
    assert prove_equal(load(pointer, flat), load(pointer, flat + 1)).status == REFUTED
    assert prove_equal(alu(Ops.EXP, load(pointer, flat)), alu(Ops.EXP, load(pointer, j + i * 8)))


def test_a_difference_that_only_a_missing_theory_sees_is_no_refutation() -> None:
    f = const(float32, 0.0)
    assert prove_equal(alu(Ops.EXP, f), const(float32, 1.0)).status == UNKNOWN


def test_indices_are_equal_under_their_gate() -> None:
    pointer = make(Ops.DEFINE_GLOBAL, float32.ptr(64), (), 0)
    x = variable("x", -4, 12)
    gate = alu(Ops.AND, alu(Ops.CMPLT, const(index, -1), x), x < 8)

    def at(i: UOp, g: UOp) -> UOp:
        return make(Ops.INDEX, pointer.dtype, (pointer, i, g))

    assert prove_equal(at(x % 8, gate), at(x, gate))
    assert prove_equal(at(x % 8, x < 9), at(x, x < 9)).status == REFUTED
    assert prove_equal(at(x, gate), at(x, x < 8)).status == REFUTED


def test_vectors_lane_by_lane() -> None:
    x, y = var("x", int32), var("y", int32)
    pair = make(Ops.VECTORIZE, int32.vec(2), (x, y))
    swapped = make(Ops.VECTORIZE, int32.vec(2), (y, x))
    two = const(int32.vec(2), 2)
    assert prove_equal(make(Ops.GEP, int32.vec(2), (pair,), (1, 0)), swapped)
    assert prove_equal(alu(Ops.MUL, pair, two), alu(Ops.ADD, pair, pair))
    assert prove_equal(pair, swapped).status == REFUTED


def test_a_bound_variable_has_its_value() -> None:
    n = variable("n", 1, 10)
    bound = make(Ops.BIND, index, (n, const(index, 4)))
    assert prove_equal(bound * 2, const(index, 8))


def test_an_index_stays_inside() -> None:
    i, j = rng(0, 4), rng(1, 8)
    assert prove_in_bounds(i * 8 + j, 32)
    verdict = prove_in_bounds(i * 8 + j, 31)
    assert verdict.status == REFUTED and verdict.counterexample == {"r0": 3, "r1": 7, "index": 31}
    assert prove_in_bounds(i * 8 + j, 31, gate=(i * 8 + j) < 31)
    assert prove_in_bounds(i - 1, 4).status == REFUTED
    n = variable("n", 1, 100)
    assert prove_in_bounds(make(Ops.RANGE, index, (n,), (0, AxisKind.LOOP)), n)


def test_how_sizes_follow_from_variables_is_not_asked_where_it_does_not_matter() -> None:
    """Rows of (n+3)//4 elements; each part of the place is below what it is counted by."""
    n, m = variable("n", 8, 128), variable("m", 8, 64)
    row, rows = (n + 3) // 4, (m + 1) // 2
    r, p, q = rng(0, 8), rng(1, 40), rng(2, 40)
    x, y = (p * 2 + q) % 61, (p * 4 + q) % 63
    place = r * rows * row + row * x + y
    inside = alu(Ops.AND, y < row, x < rows)
    verdict = prove_in_bounds(place, 8 * 32 * 32, inside)
    assert verdict.status == PROVED and verdict.note == "whatever its quotients are"
    assert prove_in_bounds(place, 8 * 32 * 32 - 1, inside, 10_000).status != PROVED
    assert prove_in_bounds(n - n // 2 * 2, 2).status == PROVED  # here it does
