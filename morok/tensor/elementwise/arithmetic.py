"""Arithmetic with NumPy's broadcasting and promotion.

Python numbers are weak: they take the tensor's type. Two tensors meet in the type that `morok.dtype.promote`
says, and expand to a common shape.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from morok import dtype as dt
from morok.dtype import promote, promote_scalar
from morok.errors import DTypeError, MorokError
from morok.ir import build
from morok.ir.node import UOp, alu, const
from morok.ir.ops import Op, Ops
from morok.tensor.core import C, Core, as_scalar_node, operand, require_shape
from morok.tensor.creation.constructors import from_data
from morok.tensor.dtypes import float_of
from morok.tensor.elementwise.remainders import divmod_rounded_down, named_remainder
from morok.tensor.sizes import broadcast_shapes

# --- operands


def _other(x: C, value: Any) -> UOp | bool | int | float:
    """The other operand: a node, or a Python number, which is weak."""
    if isinstance(value, Core):
        return value.uop
    if isinstance(value, bool | int | float) and not isinstance(value, np.generic):
        return value
    symbolic = as_scalar_node(value, x.dtype if x.dtype.is_float else dt.int64)
    if symbolic is not None:
        return symbolic
    if isinstance(value, np.ndarray | np.generic | list | tuple):
        return from_data(x, value).uop
    raise DTypeError(f"a tensor cannot be combined with {value!r}")


def meet(x: C, value: Any, floating: bool = False) -> tuple[UOp, UOp]:
    """Both operands in one type and one shape."""
    mine, other = x.uop, _other(x, value)
    if not isinstance(other, UOp):
        dtype = promote_scalar(mine.dtype, other)
        dtype = float_of(dtype) if floating else dtype
        return build.cast(mine, dtype), const(dtype, other)
    dtype = promote(mine.dtype, other.dtype)
    dtype = float_of(dtype) if floating else dtype
    sizes = broadcast_shapes(require_shape(mine), require_shape(other))
    return operand(build.cast(mine, dtype), sizes), operand(build.cast(other, dtype), sizes)


def binary(t: C, op: Op, value: Any, reverse: bool = False, floating: bool = False) -> C:
    x, y = meet(t, value, floating)
    return t._new(alu(op, y, x) if reverse else alu(op, x, y))


# --- arithmetic


def radd(x: C, other: Any) -> C:
    return binary(x, Ops.ADD, other, reverse=True)


def _subtract(t: C, other: Any, reverse: bool = False) -> C:
    x, y = meet(t, other)
    if x.dtype.is_bool:
        raise DTypeError("booleans have no -; use ^ or cast them first")
    return t._new(alu(Ops.SUB, y, x) if reverse else alu(Ops.SUB, x, y))


def rsub(x: C, other: Any) -> C:
    return _subtract(x, other, reverse=True)


def rmul(x: C, other: Any) -> C:
    return binary(x, Ops.MUL, other, reverse=True)


def rdiv(x: C, other: Any) -> C:
    return binary(x, Ops.FDIV, other, reverse=True, floating=True)


def divmod_nodes(t: C, other: Any, reverse: bool) -> tuple[UOp, UOp]:
    x, y = meet(t, other)
    x, y = (y, x) if reverse else (x, y)
    if x.dtype.is_bool:
        x, y = build.cast(x, dt.int8), build.cast(y, dt.int8)
    if not x.dtype.is_float:
        return alu(Ops.FLOORDIV, x, y), alu(Ops.FLOORMOD, x, y)
    quotient, rest = divmod_rounded_down(x, y)
    return quotient, named_remainder(rest, x, y)


def rfloor_divide(x: C, other: Any) -> C:
    return x._new(divmod_nodes(x, other, True)[0])


def rremainder(x: C, other: Any) -> C:
    return x._new(divmod_nodes(x, other, True)[1])


def rpow(t: C, other: Any) -> C:
    x, y = meet(t, other)
    return t._new(_power(y, x))


def _require_power(x: C, exponent: Any) -> None:
    """Integers have no negative powers; exponents that are not known yet are not looked at."""
    known = isinstance(exponent, int | np.integer | np.ndarray) and not isinstance(exponent, bool)
    if x.dtype.is_float or not known or np.asarray(exponent).dtype.kind not in "iO":
        return
    if np.any(np.asarray(exponent) < 0):
        raise DTypeError(
            f"integers to negative integer powers are no integers; cast the {x.dtype} to a float first"
        )


def _quick_power(x: C, exponent: float) -> C | None:
    """The exponents for which NumPy takes a shorter way; the results are NumPy's."""
    if exponent == 1:
        return x
    if exponent == 2:
        return mul(x, x)
    if exponent == 0.5:
        return x._new(alu(Ops.SQRT, x.uop))
    return x._new(alu(Ops.RECIP, x.uop)) if exponent == -1 else None


def _times(x: C, alpha: Any, other: Any) -> Any:
    """alpha · y for the other operand of a sum."""
    if alpha == 1:
        return other
    y = x._new(meet(x, other)[1])
    if isinstance(alpha, float) and not y.dtype.is_float:
        raise DTypeError(f"alpha={alpha} of a sum of {y.dtype} must be a whole number")
    return y * alpha


def add(x: C, other: Any, *, alpha: Any = 1) -> C:
    """`x + alpha · y`, broadcast.

    >>> Tensor([1, 2]).add(3).tolist()
    [4, 5]
    """
    return binary(x, Ops.ADD, _times(x, alpha, other))


def sub(x: C, other: Any, *, alpha: Any = 1) -> C:
    """`x - alpha · y`, broadcast.

    >>> Tensor([1, 2]).sub(3, alpha=2).tolist()
    [-5, -4]
    """
    return _subtract(x, _times(x, alpha, other))


def mul(x: C, other: Any) -> C:
    """`x * y`, broadcast.

    >>> Tensor([1, 2]).mul(3).tolist()
    [3, 6]
    """
    return binary(x, Ops.MUL, other)


def div(t: C, other: Any, *, rounding_mode: str | None = None) -> C:
    """`x / y`, broadcast; integers give float32. Rounded down by "floor", toward zero by "trunc".

    >>> Tensor([1, 2]).div(2).tolist()
    [0.5, 1.0]
    >>> Tensor([-7, 7]).div(2, rounding_mode="trunc").tolist()
    [-3, 3]
    """
    if rounding_mode is None:
        return binary(t, Ops.FDIV, other, floating=True)
    if rounding_mode == "floor":
        return floor_divide(t, other)
    if rounding_mode != "trunc":
        raise MorokError(f'rounding_mode is None, "floor" or "trunc", not {rounding_mode!r}')
    x, y = meet(t, other)
    if x.dtype.is_bool:
        x, y = build.cast(x, dt.int8), build.cast(y, dt.int8)
    if not x.dtype.is_float:
        return t._new(alu(Ops.CDIV, x, y))
    return t._new(alu(Ops.TRUNC, alu(Ops.FDIV, x, y)))


def floor_divide(x: C, other: Any) -> C:
    """`x // y`, rounded down.

    >>> Tensor([7, -7]).floor_divide(2).tolist()
    [3, -4]
    """
    return x._new(divmod_nodes(x, other, False)[0])


def remainder(x: C, other: Any) -> C:
    """`x % y`, with the sign of y.

    >>> Tensor([7, -7]).remainder(3).tolist()
    [1, 2]
    """
    return x._new(divmod_nodes(x, other, False)[1])


def pow(t: C, other: Any) -> C:
    """`x ** y`.

    >>> Tensor([1.0, 2.0, 3.0]).pow(2).tolist()
    [1.0, 4.0, 9.0]
    """
    _require_power(t, other)
    if t.dtype.is_float and isinstance(other, int | float) and not isinstance(other, bool):
        quick = _quick_power(t, other)
        if quick is not None:
            return quick
    x, y = meet(t, other)
    return t._new(_power(x, y))


def neg(x: C) -> C:
    """`-x`.

    >>> Tensor([1, -2]).neg().tolist()
    [-1, 2]
    """
    if x.dtype.is_bool:
        raise DTypeError("booleans have no -; use ~ for the opposite")
    return x._new(alu(Ops.NEG, x.uop))


def pos(x: C) -> C:
    """`+x`: the tensor itself."""
    return x


def abs(x: C) -> C:
    """`|x|`.

    >>> Tensor([1, -2]).abs().tolist()
    [1, 2]
    """
    unsigned = x.dtype.is_bool or x.dtype.is_unsigned
    return x if unsigned else x._new(alu(Ops.ABS, x.uop))


def _power(x: UOp, y: UOp) -> UOp:
    if x.dtype.is_bool:
        x, y = build.cast(x, dt.int8), build.cast(y, dt.int8)
    return alu(Ops.POW, x, y)
