"""The same bits read as another type, also of another size: NumPy's `view` of a type.

A wider type takes several neighbours of the last axis, the first of them as its lowest bits; a narrower type
makes several of each element. It is arithmetic on unsigned integers, so it fuses as anything else does, and
the order of bytes does not depend on the device.
"""

from __future__ import annotations

from morok import dtype as dt
from morok.dtype import DType
from morok.errors import ShapeError
from morok.ir import movement as move
from morok.ir.build import bitcast, cast
from morok.ir.infer import numel, show_shape
from morok.ir.node import UOp, alu, const
from morok.ir.ops import Ops
from morok.tensor.core import expand_to, iota, require_shape

_UNSIGNED = {8: dt.uint8, 16: dt.uint16, 32: dt.uint32, 64: dt.uint64}


def reinterpreted(x: UOp, target: DType) -> UOp:
    """The bits of x as elements of another type. A truth is a byte of 0 or 1, and any other byte is true."""
    if x.dtype is target:
        return x
    if x.dtype.is_bool:
        return reinterpreted(cast(x, dt.uint8), target)
    if target.is_bool:
        return alu(Ops.CMPNE, reinterpreted(x, dt.uint8), const(dt.uint8, 0))
    if x.dtype.bits == target.bits:
        return bitcast(x, target)
    sizes = require_shape(x)
    if not sizes:
        raise ShapeError(
            f"the bits of one {x.dtype} are no single {target}; reshape the scalar to one axis first"
        )
    narrow, wide = _UNSIGNED[min(x.dtype.bits, target.bits)], _UNSIGNED[max(x.dtype.bits, target.bits)]
    times = wide.bits // narrow.bits
    whole = bitcast(x, _UNSIGNED[x.dtype.bits])
    if x.dtype.bits > target.bits:
        inner = (*sizes, times)
        steps = _distances(inner, wide, narrow.bits)
        parts = alu(Ops.SHR, expand_to(move.reshape(whole, (*sizes, 1)), inner), steps)
        flat = move.reshape(cast(parts, narrow), (*sizes[:-1], numel(inner[-2:])))
        return bitcast(flat, target)
    last = sizes[-1]
    if not isinstance(last, int) or last % times:
        raise ShapeError(
            f"{times} {x.dtype} make a {target}, but the last axis of shape {show_shape(sizes)} is no "
            f"multiple of {times}"
        )
    inner = (*sizes[:-1], last // times, times)
    parts = alu(Ops.SHL, cast(move.reshape(whole, inner), wide), _distances(inner, wide, narrow.bits))
    joined = move.reduce_axis(parts, Ops.ADD, (len(inner) - 1,))  # no two have a bit in common
    return bitcast(move.reshape(joined, inner[:-1]), target)


def _distances(sizes: tuple[object, ...], dtype: DType, bits: int) -> UOp:
    """How far each part of an element is shifted."""
    number = expand_to(iota(sizes, len(sizes) - 1, dtype), sizes)  # type: ignore[arg-type]
    return alu(Ops.MUL, number, const(dtype, bits))
