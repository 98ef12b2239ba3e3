"""The rules of stage 18: which op is decomposed how, unless the device has it."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from morok.codegen.decompose import exponential, integers, rounding, trigonometric
from morok.dtype import float32
from morok.ir.build import APPROXIMATE, WEIGHT
from morok.ir.node import UOp, alu, const
from morok.ir.ops import Op, Ops
from morok.machine.machine import BASIC_OPS, Machine
from morok.rewrite.rules import REASSOCIATING, Rules, grows, unproved, why
from morok.rewrite.ruleset import RuleSet, join, rules
from morok.rewrite.terms import Bounded, Float, Head, Mulacc
from morok.symbolic.boolean import boolean_rules

_FUNCTIONS: dict[Op, Callable[..., UOp]] = {
    Ops.EXP: exponential.exp,
    Ops.EXP2: exponential.exp2,
    Ops.LOG: exponential.log,
    Ops.LOG2: exponential.log2,
    Ops.ERF: exponential.erf,
    Ops.SIN: trigonometric.sin,
    Ops.COS: trigonometric.cos,
    Ops.TAN: trigonometric.tan,
    Ops.ATAN2: trigonometric.atan2,
}
_NEEDED = why("the expansion depends on the device")
_CODE = unproved("floating-point polynomials: errors are measured, not proved")


def _unless_native(function: Callable[[UOp], UOp | None]) -> Callable[..., UOp | None]:
    """The function, for ops that the device lacks."""

    def decompose(node: UOp, ctx: Any) -> UOp | None:
        machine: Machine = ctx.machine
        roughly = node.arg == APPROXIMATE and node.op in machine.approximate and node.dtype.scalar is float32
        return None if node.op in machine.ops or roughly else function(node)

    decompose.__name__ = function.__name__
    return decompose


def quotient_of(x: UOp, machine: Machine) -> exponential.Quotient:
    """How normal numbers are divided for a function of x."""
    quick = x.dtype.scalar is float32 and Ops.RECIP in machine.approximate
    return exponential.quick_quotient if quick else exponential.exact_quotient


def tanh(node: UOp, ctx: Any) -> UOp | None:
    """The hyperbolic tangent, unless the device has it."""
    if Ops.TANH in ctx.machine.ops:
        return None
    x = node.src[0]
    return exponential.tanh(x, quotient_of(x, ctx.machine))


def float_power(node: UOp) -> UOp | None:
    """Powers of floats; those of integers have a rule of their own, which is exact."""
    return exponential.pow_(*node.src) if node.dtype.is_float else None


def reciprocal(node: UOp) -> UOp:
    """1 / x."""
    return alu(Ops.FDIV, const(node.dtype, 1.0), node.src[0])


def reciprocal_root(node: UOp) -> UOp:
    """1 / √x: two roundings, at most 1.5 ULP."""
    return alu(Ops.FDIV, const(node.dtype, 1.0), alu(Ops.SQRT, node.src[0]))


def separate_product(node: UOp, ctx: Any) -> UOp | None:
    """x·y + z of integers in two steps, where the device cannot do it in one."""
    if node.dtype.is_float or Ops.MULACC in ctx.machine.ops:
        return None
    x, y, z = node.src
    return alu(Ops.ADD, alu(Ops.MUL, x, y), z)


def twice_rounded_product(node: UOp, ctx: Any) -> UOp | None:
    """x·y + z of floats with two roundings, where the device has no fused product."""
    if not node.dtype.is_float or ctx.machine.fma or Ops.MULACC in ctx.machine.ops:
        return None
    x, y, z = node.src
    return alu(Ops.ADD, alu(Ops.MUL, x, y), z)


def unsigned_magnitude(node: UOp) -> UOp | None:
    """What has no sign is its own magnitude."""
    return node.src[0] if node.dtype.is_unsigned else None


_ROUNDINGS = {
    Ops.RINT: rounding.rint,
    Ops.FLOOR: rounding.floor,
    Ops.CEIL: rounding.ceil,
    Ops.TRUNC: rounding.trunc,
}


def to_whole(node: UOp, ctx: Any) -> UOp | None:
    """Integers are whole already; floats are rounded by arithmetic where there is no instruction."""
    if not node.dtype.is_float:
        return node.src[0]
    return None if node.op in ctx.machine.ops else _ROUNDINGS[node.op](node.src[0])


def proof_contexts() -> tuple[Any, ...]:
    """What the prover runs these rules with: a usual processor, and one that cannot even round."""
    plain = Machine("plain", scalar_alu=True, fma=False, ops=BASIC_OPS - set(_ROUNDINGS))
    return tuple(SimpleNamespace(machine=machine) for machine in (Machine("usual", scalar_alu=True), plain))


@rules("codegen.decompose")
def decompose_rules() -> Rules:
    """One line per op."""
    for op, function in _FUNCTIONS.items():

        def expand(node: UOp, function: Callable[..., UOp] = function) -> UOp:
            how = exponential.exp_of_weight if node.op is Ops.EXP and node.arg == WEIGHT else function
            return how(*node.src)

        expand.__name__ = op.name.lower()
        yield op.name.lower(), Head(op).any() >> _unless_native(expand), _NEEDED, _CODE
    yield "tanh", Head(Ops.TANH).any() >> tanh, _NEEDED, _CODE
    yield "pow", Head(Ops.POW).any() >> _unless_native(float_power), _NEEDED, _CODE
    # 1/x and 1/√x
    yield "recip", Head(Ops.RECIP).any() >> _unless_native(reciprocal), _NEEDED
    yield (
        "rsqrt",
        Head(Ops.RSQRT).any() >> _unless_native(reciprocal_root),
        _NEEDED,
        unproved("two roundings: at most 1.5 ULP"),
    )
    yield "mulacc", Head(Ops.MULACC).any() >> separate_product, _NEEDED
    twice = unproved("not the same: a device without fused products rounds twice")
    yield "mulacc-twice", Head(Ops.MULACC).any() >> twice_rounded_product, _NEEDED, twice
    whole = Head(Ops.TRUNC, Ops.FLOOR, Ops.CEIL, Ops.RINT)
    yield "whole", whole.any() >> to_whole, _NEEDED
    yield "abs", Head(Ops.ABS).any() >> unsigned_magnitude, why("by type")
    # a·b + c·d + e·f + g·h
    yield "dot4", Head(Ops.DOT4).any() >> _unless_native(integers.dot4), _NEEDED
    yield "dot2", Head(Ops.DOT2).any() >> _unless_native(integers.dot2), _NEEDED
    yield "threefry", Head(Ops.THREEFRY).any() >> _unless_native(integers.threefry), _NEEDED


_BOUNDS = why("depends on the bounds of the operands")


@rules("codegen.decompose_divisions")
def division_rules(x: Bounded, y: Bounded) -> Rules:
    """Division and remainder, by multiplication where the bounds of x allow it.

    They are looked for before x has been decomposed as well (`fused.py`): x % 5 is within 0 … 4, and nobody
    sees that of x - (x*7 >> 5)*5.
    """
    # rounding down is rounding toward zero, corrected
    yield "floor-divide", Head(Ops.FLOORDIV)(x, y) >> _unless_native(integers.floor_divide), _BOUNDS
    yield "floor-modulo", Head(Ops.FLOORMOD)(x, y) >> _unless_native(integers.floor_modulo), _BOUNDS
    # x / c = (x * m) >> s
    yield "divide-constant", Head(Ops.CDIV)(x, y) >> integers.c_divide_constant, _BOUNDS
    yield "modulo-constant", Head(Ops.CMOD)(x, y) >> integers.c_modulo_constant, _BOUNDS


@rules("codegen.decompose_integers")
def integer_rules(x: Bounded, y: Bounded) -> Rules:
    """Divisors of 0, shifts and powers."""
    # x / 0 = 0
    yield "divide-safely", Head(Ops.CDIV, Ops.CMOD)(x, y) >> integers.guard_division, _BOUNDS
    # x * 2^k = x << k
    yield "shift", Head(Ops.MUL)(x, y) >> integers.multiply_by_power, _BOUNDS
    # x^y by squaring
    yield "power", Head(Ops.POW)(x, y) >> _unless_native(integers.integer_power), _BOUNDS
    yield "shift-far", Head(Ops.SHL, Ops.SHR)(x, y) >> integers.guard_shift, _BOUNDS


@rules("codegen.contract")
def contract_rules(x: Float, y: Float, z: Float) -> Rules:
    """Products into sums, where a changed rounding is asked for; accumulators do so on their own."""
    # x*y + z with one rounding
    yield (
        "product-sum",
        x * y + z >> Mulacc(x, y, z),
        REASSOCIATING,
        grows("one op instead of two; no rule leads back"),
    )


decompositions: RuleSet = join(
    "codegen.decompositions", decompose_rules, division_rules, integer_rules, contract_rules, boolean_rules
)
