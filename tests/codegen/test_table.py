"""Which op is decomposed for which machine: what it has stays, what it lacks is gone."""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace
from typing import Any

import pytest

from morok.codegen.decompose import table
from morok.codegen.decompose.pieces import copy_sign
from morok.codegen.decompose.table import decompose_rules, decompositions
from morok.dtype import DType, float16, float32, float64, int32, uint32, uint64
from morok.ir.build import APPROXIMATE, approximate_op, variable
from morok.ir.node import UOp, alu, make, toposort
from morok.ir.ops import Op, Ops
from morok.machine.machine import BASIC_OPS, Machine
from morok.rewrite.engine import rewrite
from tests.expressions import same_value, value_of

ROUNDINGS = (Ops.RINT, Ops.FLOOR, Ops.CEIL, Ops.TRUNC)
FUNCTIONS = (
    Ops.EXP, Ops.EXP2, Ops.LOG, Ops.LOG2, Ops.TANH, Ops.ERF, Ops.SIN, Ops.COS, Ops.TAN, Ops.RECIP, Ops.RSQRT,
)  # fmt: skip


def machine(*more: Op, less: tuple[Op, ...] = (), **facts: Any) -> Any:
    ops = (BASIC_OPS | frozenset(more)) - frozenset(less)
    return SimpleNamespace(machine=Machine("given", scalar_alu=True, ops=ops, **facts))


def given(dtype: DType, name: str = "x") -> UOp:
    return make(Ops.DEFINE_VAR, dtype, (), (name, 0, 9))


def ops(root: UOp) -> set[Op]:
    return {n.op for n in toposort(root)}


@pytest.mark.parametrize("op", FUNCTIONS, ids=lambda op: op.name)
def test_a_function_is_decomposed_unless_the_machine_has_it(op: Op) -> None:
    node = alu(op, given(float32))
    assert rewrite(node, decompose_rules, machine(op)) is node
    made = rewrite(node, decompose_rules, machine())
    assert op not in ops(made) and made.dtype is float32


def test_a_decomposition_asks_the_machine_first() -> None:
    node, other = alu(Ops.RECIP, given(float32)), given(float32, "y")
    decompose = table._unless_native(lambda _: other)
    assert decompose(node, machine()) is other
    assert decompose(node, machine(Ops.RECIP)) is None


@pytest.mark.parametrize("op", [Ops.EXP2, Ops.RECIP], ids=lambda op: op.name)
def test_an_approximate_function_is_for_float32_that_asks_for_it(op: Op) -> None:
    roughly = approximate_op(op, given(float32))
    has = machine(approximate=frozenset((op,)))
    assert rewrite(roughly, decompose_rules, has) is roughly
    assert op not in ops(rewrite(roughly, decompose_rules, machine())), "the machine has none"
    other = machine(approximate=frozenset((Ops.EXP2, Ops.RECIP)) - {op})
    assert op not in ops(rewrite(roughly, decompose_rules, other)), "the machine has another one"
    assert op not in ops(rewrite(alu(op, given(float32)), decompose_rules, has)), "it has to be as usual"
    wider = make(op, float64, (given(float64),), APPROXIMATE)
    assert op not in ops(rewrite(wider, decompose_rules, has)), "it is not narrow enough"


@pytest.mark.parametrize("op", [Ops.FLOORDIV, Ops.FLOORMOD, Ops.POW], ids=lambda op: op.name)
def test_an_op_of_integers_is_decomposed_unless_the_machine_has_it(op: Op) -> None:
    node = alu(op, variable("x", -9, 9, int32), variable("y", 1, 9, int32))
    assert rewrite(node, decompositions, machine(op)) is node
    assert op not in ops(rewrite(node, decompositions, machine()))


def test_random_bits() -> None:
    node = alu(Ops.THREEFRY, given(uint64), given(uint64, "key"))
    assert rewrite(node, decompose_rules, machine(Ops.THREEFRY)) is node
    assert Ops.THREEFRY not in ops(rewrite(node, decompose_rules, machine()))


@pytest.mark.parametrize("fma", [False, True])
@pytest.mark.parametrize("dtype", [int32, uint32, float16, float32, float64], ids=str)
def test_products_and_sums(dtype: DType, fma: bool) -> None:
    """Floats have a fused product where the machine has one; integers where MULACC is an op of it."""
    x, y, z = (given(dtype, name) for name in "xyz")
    node = alu(Ops.MULACC, x, y, z)
    apart = alu(Ops.ADD, alu(Ops.MUL, x, y), z)
    for context in (machine(fma=fma), machine(Ops.MULACC, fma=fma)):
        native = Ops.MULACC in context.machine.ops
        assert table.separate_product(node, context) is (None if dtype.is_float or native else apart)
        rounds_twice = dtype.is_float and not fma and not native
        assert table.twice_rounded_product(node, context) is (apart if rounds_twice else None)


@pytest.mark.parametrize("op", ROUNDINGS, ids=lambda op: op.name)
def test_roundings(op: Op) -> None:
    node, whole = alu(op, given(float32)), alu(op, given(int32))
    assert rewrite(node, decompose_rules, machine()) is node
    assert op not in ops(rewrite(node, decompose_rules, machine(less=ROUNDINGS)))
    for context in (machine(), machine(less=ROUNDINGS)):
        assert rewrite(whole, decompose_rules, context) is whole.src[0]


def test_magnitudes() -> None:
    assert rewrite(alu(Ops.ABS, given(uint32)), decompose_rules, machine()) is given(uint32)
    signed = alu(Ops.ABS, given(int32))
    assert rewrite(signed, decompose_rules, machine()) is signed


@pytest.mark.parametrize("dtype", [float16, float32, float64], ids=str)
def test_the_sign_of_another(dtype: DType) -> None:
    """Bit for bit, as the C library does."""
    x, y = given(dtype), given(dtype, "y")
    root = copy_sign(x, y)
    values = [0.0, -0.0, 1.0, -1.0 - float(dtype.eps), 1.0 + float(dtype.eps), -math.inf, math.inf]
    for a, b in itertools.product(values, repeat=2):
        assert same_value(value_of(root, {x: a, y: b}), math.copysign(a, b)), (a, b)
