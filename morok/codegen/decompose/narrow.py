"""Narrow floats on devices without them: stored as they are, computed in float32, rounded once.

A float type that the device has no arithmetic for is widened around every op. One that it cannot even store
or convert (bfloat16 and the 8-bit floats on most processors) is its bits: an unsigned integer, packed and
unpacked with integer arithmetic. Rounding is to nearest, ties to even, with subnormals; float64 goes to a
narrow type through a float32 that is rounded to odd, so there is one rounding in all.
"""

from __future__ import annotations

import math
from typing import Any

from morok.codegen.decompose.pieces import absolute, as_type, bits_of, float_of, like, shl, shr, where
from morok.dtype import DType, PtrDType, bfloat16, float32, float64, to_bits, uint8, uint16, uint32
from morok.ir.build import approximate_op, bitcast, cast
from morok.ir.node import UOp, alu, const, make, toposort
from morok.ir.ops import Op, Ops
from morok.machine.machine import Machine
from morok.rewrite.observe import change

_EXACT = 1 << 53  # integers up to here are float64 numbers
LOG2_E = math.log2(math.e)


def bits_type(dtype: DType) -> DType:
    """The integers that hold a narrow float's bits."""
    return (uint8 if dtype.scalar.bits == 8 else uint16).vec(dtype.lanes)


def _bias(dtype: DType) -> int:
    return (1 << dtype.exponent_bits - 1) - 1


def unpack(bits: UOp, dtype: DType) -> UOp:
    """The float32 of a narrow float's bits; exact."""
    scalar = dtype.scalar
    lanes = bits.dtype.lanes
    word = as_type(bits, uint32)
    if scalar is bfloat16:
        return bitcast(shl(word, 16), float32.vec(lanes))
    sign = shl(shr(word, scalar.bits - 1), 31)
    magnitude = word & ((1 << scalar.bits - 1) - 1)
    moved = shl(magnitude, 23 - scalar.mantissa_bits)
    # the exponent is biased otherwise: a product with a power of two also sets subnormals right
    value = bitcast(moved, float32.vec(lanes)) * 2.0 ** (127 - _bias(scalar))
    result = bitcast(value, uint32.vec(lanes))
    if scalar.has_inf:
        top = ((1 << scalar.exponent_bits) - 1) << scalar.mantissa_bits
        result = where(magnitude < top, result, moved | 0x7F800000)
    else:
        result = where(magnitude.eq((1 << scalar.bits - 1) - 1), like(result, 0x7FC00000), result)
    return bitcast(result | sign, float32.vec(lanes))


def pack(x: UOp, dtype: DType) -> UOp:
    """The bits of a float32 rounded to a narrow float."""
    scalar = dtype.scalar
    lanes = x.dtype.lanes
    bits = bitcast(x, uint32.vec(lanes))
    nan = x.ne(x)
    if scalar is bfloat16:
        rounded = shr(bits + 0x7FFF + (shr(bits, 16) & 1), 16)
        return as_type(where(nan, shr(bits, 16) | 0x40, rounded), bits_type(dtype).scalar)
    mantissa, bias = scalar.mantissa_bits, _bias(scalar)
    sign = shl(shr(bits, 31), scalar.bits - 1)
    magnitude = bits & 0x7FFFFFFF
    drop = 23 - mantissa
    normal = shr(magnitude + ((1 << drop - 1) - 1) + (shr(magnitude, drop) & 1), drop) - (
        (127 - bias) << mantissa
    )
    # below the normal numbers: adding this power of two leaves the bits of the smallest step at the end
    step = 2.0 ** (23 + 1 - bias - mantissa)
    shifted = bitcast(absolute(x) + step, uint32.vec(lanes)) - to_bits(step, float32)
    result = where(magnitude < (127 - bias + 1) << 23, shifted, normal)
    if scalar.has_inf:
        infinite = ((1 << scalar.exponent_bits) - 1) << mantissa
        # a finite value beyond the largest becomes infinite; rounding may have carried into it already
        result = result.minimum(infinite)
        result = where(magnitude < (127 + bias + 2) << 23, result, like(result, infinite))
        not_a_number = infinite | 1 << mantissa - 1
    else:
        not_a_number = (1 << scalar.bits - 1) - 1
        result = where(
            magnitude < (127 + bias + 2) << 23, result.minimum(not_a_number), like(result, not_a_number)
        )
    result = where(nan, like(result, not_a_number), result) | sign
    return as_type(result, bits_type(dtype).scalar)


def round_to_odd(x: UOp, dtype: DType) -> UOp:
    """A float64 as float32 on its way to a narrow float, so that only the rounding to that one counts.

    Three bits more than it has are kept, and what is cut off is told by the last one: a neighbour with an odd
    last bit is never half way between two narrow floats. float32 has so few bits also of subnormals.
    """
    bits = bits_of(x)
    cut = (1 << 52 - dtype.scalar.mantissa_bits - 3) - 1
    odd = (bits | ((bits & cut) + cut)) & ~cut
    return as_type(float_of(odd, float64), float32)


def to_single(x: UOp, dtype: DType) -> UOp:
    """A number of another type on its way to a narrow float."""
    if x.dtype.scalar is float64:
        return round_to_odd(x, dtype)
    if x.dtype.is_int and x.dtype.scalar.bits > 16:
        if x.dtype.scalar.bits == 64 and _bias(dtype.scalar) >= 53:
            x = _few_bits(x)
        return round_to_odd(as_type(x, float64), dtype)
    return as_type(x, float32)


def _few_bits(x: UOp) -> UOp:
    """An integer that float64 has: beyond 2^53 what does not fit is told by the last bit that does."""
    odd = (x | ((x & 0x7FF) + 0x7FF)) & ~like(x, 0x7FF)
    exact = x < _EXACT
    if not x.dtype.scalar.is_unsigned:
        exact = exact & (like(x, -_EXACT) < x)
    return where(exact, x, odd)


@change
def narrow_floats(root: UOp, ctx: Any) -> UOp:
    """The graph without arithmetic on narrow floats, and without types that the device cannot hold."""
    machine: Machine = ctx.machine
    order = toposort(root)
    if all(not n.dtype.base.is_float or n.dtype.base in machine.floats for n in order):
        return root
    done: dict[UOp, UOp] = {}
    for node in order:
        done[node] = _lower(node, tuple([done[s] for s in node.src]), machine)
    return done[root]


def _storage_type(dtype: DType, machine: Machine) -> DType:
    """The type that stands for this one: itself, or its bits."""
    if isinstance(dtype, PtrDType):
        elem = _storage_type(dtype.elem, machine)
        if elem is dtype.elem:
            return dtype
        pointer = elem.ptr(dtype.size, dtype.space)
        return pointer.vec(dtype.lanes) if dtype.lanes > 1 else pointer
    if not dtype.is_float or dtype.scalar in machine.floats or dtype.scalar in machine.stored_floats:
        return dtype
    return bits_type(dtype)


def _widen(x: UOp, original: DType, machine: Machine) -> UOp:
    """A source as float32."""
    if not original.is_float or original.scalar in machine.floats:
        return x
    return unpack(x, original) if x.dtype.is_int else as_type(x, float32)


def _narrow(x: UOp, dtype: DType, machine: Machine) -> UOp:
    """A value of some type as what stands for `dtype`."""
    if dtype.scalar in machine.floats or not dtype.is_float:
        return as_type(x, dtype.scalar)
    single = to_single(x, dtype)
    return as_type(single, dtype.scalar) if dtype.scalar in machine.stored_floats else pack(single, dtype)


def _lower(node: UOp, src: tuple[UOp, ...], machine: Machine) -> UOp:
    op, dtype = node.op, node.dtype
    held = _storage_type(dtype, machine)
    if op is Ops.CONST and held is not dtype:
        return const(held, to_bits(node.arg, dtype.scalar))
    if op is Ops.VCONST and held is not dtype:
        return make(op, held, (), tuple(to_bits(v, dtype.scalar) for v in node.arg))
    narrow = any(_is_narrow(s.dtype, machine) for s in (node, *node.src))
    if not op.is_alu or not narrow or op is Ops.WHERE:
        return make(op, held, src, node.arg, node.origin) if held is not dtype or src != node.src else node
    if op is Ops.BITCAST:
        return bitcast(src[0], held)
    wide = tuple(_widen(s, old.dtype, machine) for s, old in zip(src, node.src, strict=True))
    if op is Ops.CAST:
        return (
            _narrow(_rounded(wide[0], dtype, machine), dtype, machine)
            if not dtype.is_bool
            else cast(wide[0], dtype)
        )
    rough = _roughly(op, wide, machine)
    if rough is not None:
        return _narrow(rough, dtype, machine)
    result_type = dtype if dtype.is_bool else float32.vec(dtype.lanes)
    return _narrow_result(make(op, result_type, wide, node.arg), dtype, machine)


def _rounded(x: UOp, dtype: DType, machine: Machine) -> UOp:
    """What was asked for in float32 and is rounded to a narrow float need not be more exact than that."""
    if x.dtype.scalar is not float32 or not _is_narrow(dtype, machine) or not machine.approximate:
        return x
    rough = _roughly(x.op, x.src, machine)
    return x if rough is None else rough


def _roughly(op: Op, given: tuple[UOp, ...], machine: Machine) -> UOp | None:
    """A function of float32 numbers as exactly as a narrow float can tell; None if there is no such way."""
    if op is Ops.EXP2:
        return approximate_op(op, given[0])
    if op is Ops.EXP:
        return approximate_op(Ops.EXP2, alu(Ops.MUL, given[0], const(given[0].dtype, LOG2_E)))
    if op is Ops.TANH and {Ops.EXP2, Ops.RECIP} <= machine.approximate:
        return rough_tanh(given[0])
    return None


def rough_tanh(x: UOp) -> UOp:
    """tanh with a relative error of 2^-15, and without a division: 1 - 2 / (e^2x + 1).

    Near 0 nothing would be left of the difference: there it is x (1 - x^2/3 + 2x^4/15).
    """
    power = approximate_op(Ops.EXP2, alu(Ops.MUL, x, const(x.dtype, 2.0 * LOG2_E)))
    share = approximate_op(Ops.RECIP, alu(Ops.ADD, power, const(x.dtype, 1.0)))
    far = alu(Ops.SUB, const(x.dtype, 1.0), alu(Ops.MUL, share, const(x.dtype, 2.0)))
    square = alu(Ops.MUL, x, x)
    inner = alu(Ops.ADD, alu(Ops.MUL, square, const(x.dtype, 2 / 15)), const(x.dtype, -1 / 3))
    near = alu(Ops.MUL, x, alu(Ops.ADD, alu(Ops.MUL, square, inner), const(x.dtype, 1.0)))
    return where(absolute(x) < 0.25, near, far)


def _narrow_result(x: UOp, dtype: DType, machine: Machine) -> UOp:
    return x if dtype.is_bool else _narrow(x, dtype, machine)


def _is_narrow(dtype: DType, machine: Machine) -> bool:
    return dtype.is_float and dtype.scalar not in machine.floats
