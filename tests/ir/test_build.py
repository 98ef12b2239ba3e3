"""Constructors: what they make, what they leave alone, and what they say when they refuse."""

import math
from collections.abc import Callable
from typing import Any

import pytest

from morok.dtype import AddrSpace, bool_, float32, float64, int32, uint32, uint64, void
from morok.dtype import index as index_dtype
from morok.errors import DTypeError, IRError, ShapeError, VariableError
from morok.ir import build, movement
from morok.ir.arithmetic.alu import evaluate
from morok.ir.node import UOp, alu, const, make
from morok.ir.ops import AxisKind, Ops

N = build.variable("n", 1, 64)
F = const(float32, 1.5)
I = const(int32, 3)
P = build.define_global(float32, 16, 0)
X = movement.reshape(build.buffer(float32, 24, "CPU", 0), (2, 3, 4))


def test_variables() -> None:
    assert N.dtype is index_dtype and N.arg == ("n", 1, 64)
    bound = build.bind(N, 7)
    assert bound.src == (N, const(index_dtype, 7))
    assert build.rng(4, 0).arg == (0, AxisKind.LOOP)
    assert build.special("gidx0", N).src == (N,)


def test_conversions_that_change_nothing_make_no_node() -> None:
    assert build.cast(F, float32) is F
    assert build.bitcast(F, float32) is F
    assert build.gep(F, 0) is F
    assert build.vectorize(F) is F
    assert build.broadcast(F, 1) is F
    assert build.end(F) is F
    assert build.after(F) is F
    assert build.reduce(F, Ops.ADD, ()) is F


def test_vectors() -> None:
    v = build.vectorize(F, const(float32, 2.0), F)
    assert v.dtype is float32.vec(3)
    assert build.cast(v, int32).dtype is int32.vec(3)
    assert build.gep(v, 1).dtype is float32
    assert build.gep(v, (2, 0)).dtype is float32.vec(2)
    assert build.gep(v, (0, 1, 2)) is v
    assert build.broadcast(F, 4) is make(Ops.CONST, float32.vec(4), (), 1.5)
    assert build.broadcast(N, 2) is build.vectorize(N, N)
    assert build.bitcast(build.vectorize(I, I), uint64).dtype is uint64


def test_memory() -> None:
    address = build.index(P, N)
    assert address.dtype is P.dtype
    assert build.load(address).dtype is float32
    gated = build.index(P, N, gate=N < 5)
    assert gated.src == (P, N, N < 5)
    assert build.load(gated, 0.0).src == (gated, const(float32, 0.0))
    assert build.store(address, 1.0).dtype is void
    many = build.index(P, build.broadcast(N, 4))
    assert build.load(many).dtype is float32.vec(4)
    assert build.define_local(float32, 8, "tile").dtype.space is AddrSpace.LOCAL  # type: ignore[attr-defined]
    assert build.define_reg(float32, 1, "acc").dtype.space is AddrSpace.REG  # type: ignore[attr-defined]
    value = build.bufferize(F, build.rng(4, 0))
    assert build.index(value, N).dtype is float32


def test_reductions() -> None:
    r = build.rng(8, 0, AxisKind.REDUCE)
    one = build.reduce(F, Ops.ADD, (r,))
    assert (one.dtype, one.src, one.arg) == (float32, (F, r), (Ops.ADD,))
    assert build.pick(one, 0) is one
    two = build.reduce((F, I), (Ops.MAX, Ops.ADD), (r,))
    assert two.dtype is void
    assert build.pick(two, 1).dtype is int32


@pytest.mark.parametrize("x", [-1.0, 0.0, -0.0, 1.0, math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("y", [-1.0, 0.0, 1.0, math.nan])
def test_le_and_ge_are_exact(x: float, y: float) -> None:
    a, b = const(float64, x), const(float64, y)
    assert _fold(build.le(a, b)) is (x <= y)
    assert _fold(build.ge(a, b)) is (x >= y)


def test_le_and_ge_of_integers() -> None:
    for x in (-1, 0, 1):
        assert _fold(build.le(const(int32, x), 0)) is (x <= 0)
        assert _fold(build.ge(const(int32, x), 0)) is (x >= 0)


def _fold(n: UOp) -> Any:
    return n.arg if n.op is Ops.CONST else evaluate(n.op, n.src[0].dtype, *(_fold(s) for s in n.src))


def test_movement_that_changes_nothing_makes_no_node() -> None:
    assert movement.reshape(X, (2, 3, 4)) is X
    assert movement.permute(X, (0, 1, 2)) is X
    assert movement.expand(X, (2, 3, 4)) is X
    assert movement.pad(X, ((0, 0), (0, 0), (0, 0))) is X
    assert movement.shrink(X, ((0, 2), (0, 3), (0, 4))) is X
    assert movement.flip(X, (False, False, False)) is X
    assert movement.reduce_axis(X, Ops.ADD, ()) is X
    assert movement.reduce_axis(movement.reshape(X, (24, 1)), Ops.ADD, (1,)).op is Ops.RESHAPE


def test_symbolic_sizes() -> None:
    rows = movement.expand(movement.reshape(X, (1, 24)), (N, 24))
    flat = movement.reshape(rows, (N * 24,))
    assert movement.reshape(flat, (N, 4, 6)).op is Ops.RESHAPE
    assert movement.shrink(rows, ((0, N), (0, 3))).op is Ops.SHRINK


REFUSALS: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: build.variable("2n", 0, 1), IRError, "a variable needs a name like n, not '2n'"),
    (lambda: build.variable("n", 5, 1), VariableError, "variable n needs whole bounds lo <= hi, not 5 and 1"),
    (
        lambda: build.variable("n", 0, 300, uint32.scalar and float32),
        DTypeError,
        "variable n must be an integer, not float32",
    ),
    (
        lambda: build.variable("n", -1, 3, uint32),
        VariableError,
        "the bounds -1 … 3 of variable n do not fit in uint32",
    ),
    (lambda: build.bind(N, 65), VariableError, "variable n lies in 1 … 64, so it cannot be 65"),
    (lambda: build.bind(I, 65), VariableError, "only a variable can be bound, not CONST"),
    (lambda: build.rng(4, 0, "loop"), IRError, "a range needs an AxisKind, not 'loop'"),  # type: ignore[arg-type]
    (lambda: build.rng(F, 0), DTypeError, "the end of a range must be an integer, not float32"),
    (lambda: build.cast(P, int32), DTypeError, "CAST from ptr<float32,16,global> to int32 makes no sense"),
    (
        lambda: build.cast(F, int32.vec(4)),
        DTypeError,
        "CAST keeps the lanes, but float32 has 1 and int32x4 has 4",
    ),
    (
        lambda: build.bitcast(F, float64),
        DTypeError,
        "BITCAST keeps the bits, but float32 has 32 and float64 has 64",
    ),
    (lambda: build.bitcast(N, uint64), DTypeError, "BITCAST from index to uint64: index has no fixed bits"),
    (lambda: build.gep(F, 1), IRError, "float32 has lanes 0 … 0, so there is no lane 1"),
    (lambda: build.vectorize(F, I), DTypeError, "VECTORIZE needs scalars of one type, got float32, int32"),
    (lambda: build.broadcast(build.broadcast(F, 2), 4), DTypeError, "only a scalar can be broadcast"),
    (lambda: build.index(P), IRError, "INDEX needs at least one index"),
    (lambda: build.index(P, F), DTypeError, "INDEX needs integers of equally many lanes, got float32"),
    (lambda: build.index(P, N, gate=N), DTypeError, "the gate of an INDEX must be a boolean, not index"),
    (lambda: build.load(F), DTypeError, "memory is reached through a pointer, not through float32"),
    (
        lambda: build.store(build.index(P, 0), I),
        DTypeError,
        "STORE into float32 needs a value of that type, got int32",
    ),
    (
        lambda: build.load(build.index(P, 0), I),
        DTypeError,
        "LOAD of float32 needs an alternative of it, got int32",
    ),
    (
        lambda: build.reduce(F, Ops.SUB, ()),
        IRError,
        "SUB cannot reduce: it is not associative and commutative",
    ),
    (lambda: build.reduce((F, F), (Ops.ADD,), ()), IRError, "REDUCE of 2 values needs as many ops, got 1"),
    (lambda: build.pick(F, 0), IRError, "CONST has 0 results to pick from, so there is no 0"),
    (lambda: build.where(N < 3, 1, 2), IRError, "WHERE of two numbers has no type"),
    (lambda: build.logical_not(F), DTypeError, "only a bool has an opposite, not float32"),
    (
        lambda: movement.reshape(X, (5, 5)),
        ShapeError,
        r"RESHAPE from \(2, 3, 4\) to \(5, 5\) changes the number of",
    ),
    (lambda: movement.reshape(X, (-1, 24)), ShapeError, "has a negative size"),
    (
        lambda: movement.reshape(X, (2.0, 12)),
        ShapeError,
        "RESHAPE needs sizes that are whole numbers or index nodes",
    ),
    (
        lambda: movement.permute(X, (0, 0, 1)),
        ShapeError,
        r"PERMUTE of shape \(2, 3, 4\) needs each of its axes once",
    ),
    (lambda: movement.expand(X, (2, 6, 4)), ShapeError, "repeats an axis that is not 1"),
    (lambda: movement.expand(X, (6, 4)), ShapeError, r"EXPAND of shape \(2, 3, 4\) needs 3 sizes, got 2"),
    (
        lambda: movement.pad(X, ((0, 0), (-1, 0), (0, 0))),
        ShapeError,
        "PAD adds elements, so it cannot add -1",
    ),
    (
        lambda: movement.shrink(X, ((0, 2), (0, 4), (0, 4))),
        ShapeError,
        r"SHRINK of shape \(2, 3, 4\) .* leaves the",
    ),
    (
        lambda: movement.shrink(X, ((0, 2), (2, 1), (0, 4))),
        ShapeError,
        r"SHRINK of shape \(2, 3, 4\) .* leaves the",
    ),
    (
        lambda: movement.flip(X, (True,)),
        ShapeError,
        r"FLIP of shape \(2, 3, 4\) needs 3 true-or-false entries, got 1",
    ),
    (lambda: movement.reduce_axis(X, Ops.ADD, (3,)), ShapeError, r"\(2, 3, 4\) has no axis 3 to reduce"),
    (lambda: movement.reduce_axis(X, Ops.SUB, (0,)), IRError, "SUB cannot reduce"),
    (lambda: movement.flip(build.sink(X), (True,)), ShapeError, "SINK has no value, so it has no shape"),
    (
        lambda: alu(Ops.ADD, F, I),
        IRError,
        "ADD needs operands of one type, got float32 and int32; cast one of them",
    ),
    (lambda: alu(Ops.ADD, F), IRError, "ADD takes 2 sources, got 1"),
    (lambda: alu(Ops.RANGE, F), IRError, "RANGE is not an arithmetic op"),
    (lambda: alu(Ops.WHERE, F, F, F), IRError, "WHERE needs a condition of type bool, got float32"),
    (lambda: F + "x", IRError, "'x' is neither a node nor a number"),
]


@pytest.mark.parametrize(("call", "error", "sentence"), REFUSALS, ids=[r[2][:40] for r in REFUSALS])
def test_refusals_are_one_sentence(call: Callable[[], Any], error: type[Exception], sentence: str) -> None:
    with pytest.raises(error, match=sentence) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_boolean_conditions() -> None:
    assert build.where(N < 3, N, 0).src[2] is const(index_dtype, 0)
    assert (N < 3).dtype is bool_
