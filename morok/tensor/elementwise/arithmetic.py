"""Arithmetic, comparison, bits, choice and conversion, with NumPy's broadcasting and promotion.

Python numbers are weak: they take the tensor's type. Two tensors meet in the type that `morok.dtype.promote`
says, and expand to a common shape.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import numpy as np

from morok import dtype as dt
from morok.dtype import promote, promote_scalar
from morok.errors import DTypeError, MorokError
from morok.ir.build import cast, ge, le, logical_not
from morok.ir.node import UOp, alu, const
from morok.ir.ops import Op, Ops
from morok.tensor.core import Core, as_scalar_node, expand_to, operand, require_shape
from morok.tensor.dtypes import as_dtype, float_of
from morok.tensor.elementwise.bits import reinterpreted
from morok.tensor.elementwise.remainders import divmod_rounded_down, named_remainder
from morok.tensor.record import pure
from morok.tensor.sizes import broadcast_shapes

_SYMBOLS = {
    Ops.SHL: "<<", Ops.SHR: ">>", Ops.AND: "&", Ops.OR: "|", Ops.XOR: "^", Ops.SUB: "-",
}  # fmt: skip


@pure
class Elementwise(Core):
    """One result per element."""

    # --- operands

    def _other(self, value: Any) -> UOp | bool | int | float:
        """The other operand: a node, or a Python number, which is weak."""
        if isinstance(value, Core):
            return value.uop
        if isinstance(value, bool | int | float) and not isinstance(value, np.generic):
            return value
        symbolic = as_scalar_node(value, self.dtype if self.dtype.is_float else dt.int64)
        if symbolic is not None:
            return symbolic
        if isinstance(value, np.ndarray | np.generic | list | tuple):
            return self._from_data(value).uop
        raise DTypeError(f"a tensor cannot be combined with {value!r}")

    def _meet(self, value: Any, floating: bool = False) -> tuple[UOp, UOp]:
        """Both operands in one type and one shape."""
        mine, other = self.uop, self._other(value)
        if not isinstance(other, UOp):
            dtype = promote_scalar(mine.dtype, other)
            dtype = float_of(dtype) if floating else dtype
            return cast(mine, dtype), const(dtype, other)
        dtype = promote(mine.dtype, other.dtype)
        dtype = float_of(dtype) if floating else dtype
        sizes = broadcast_shapes(require_shape(mine), require_shape(other))
        return operand(cast(mine, dtype), sizes), operand(cast(other, dtype), sizes)

    def _binary(self, op: Op, value: Any, reverse: bool = False, floating: bool = False) -> Self:
        x, y = self._meet(value, floating)
        return self._new(alu(op, y, x) if reverse else alu(op, x, y))

    def _integral(self, op: Op, value: Any, reverse: bool = False) -> Self:
        """An op that only integers and booleans have."""
        x, y = self._meet(value)
        if not (x.dtype.is_int or x.dtype.is_bool):
            raise DTypeError(f"{_SYMBOLS[op]} needs integers or booleans, not {x.dtype}")
        if x.dtype.is_bool and op in (Ops.SHL, Ops.SHR):  # as NumPy: the smallest integers there are
            x, y = cast(x, dt.int8), cast(y, dt.int8)
        return self._new(alu(op, y, x) if reverse else alu(op, x, y))

    # --- arithmetic

    def __add__(self, other: Any) -> Self:
        return self._binary(Ops.ADD, other)

    def __radd__(self, other: Any) -> Self:
        return self._binary(Ops.ADD, other, reverse=True)

    def _subtract(self, other: Any, reverse: bool = False) -> Self:
        x, y = self._meet(other)
        if x.dtype.is_bool:
            raise DTypeError("booleans have no -; use ^ or cast them first")
        return self._new(alu(Ops.SUB, y, x) if reverse else alu(Ops.SUB, x, y))

    def __sub__(self, other: Any) -> Self:
        return self._subtract(other)

    def __rsub__(self, other: Any) -> Self:
        return self._subtract(other, reverse=True)

    def __mul__(self, other: Any) -> Self:
        return self._binary(Ops.MUL, other)

    def __rmul__(self, other: Any) -> Self:
        return self._binary(Ops.MUL, other, reverse=True)

    def __truediv__(self, other: Any) -> Self:
        return self._binary(Ops.FDIV, other, floating=True)

    def __rtruediv__(self, other: Any) -> Self:
        return self._binary(Ops.FDIV, other, reverse=True, floating=True)

    def _divmod(self, other: Any, reverse: bool) -> tuple[UOp, UOp]:
        x, y = self._meet(other)
        x, y = (y, x) if reverse else (x, y)
        if x.dtype.is_bool:
            x, y = cast(x, dt.int8), cast(y, dt.int8)
        if not x.dtype.is_float:
            return alu(Ops.FLOORDIV, x, y), alu(Ops.FLOORMOD, x, y)
        quotient, rest = divmod_rounded_down(x, y)
        return quotient, named_remainder(rest, x, y)

    def __floordiv__(self, other: Any) -> Self:
        return self._new(self._divmod(other, False)[0])

    def __rfloordiv__(self, other: Any) -> Self:
        return self._new(self._divmod(other, True)[0])

    def __mod__(self, other: Any) -> Self:
        return self._new(self._divmod(other, False)[1])

    def __rmod__(self, other: Any) -> Self:
        return self._new(self._divmod(other, True)[1])

    def __pow__(self, other: Any) -> Self:
        self._require_power(other)
        if self.dtype.is_float and isinstance(other, int | float) and not isinstance(other, bool):
            quick = self._quick_power(other)
            if quick is not None:
                return quick
        x, y = self._meet(other)
        return self._new(_power(x, y))

    def __rpow__(self, other: Any) -> Self:
        x, y = self._meet(other)
        return self._new(_power(y, x))

    def _require_power(self, exponent: Any) -> None:
        """Integers have no negative powers; exponents that are not known yet are not looked at."""
        known = isinstance(exponent, int | np.integer | np.ndarray) and not isinstance(exponent, bool)
        if self.dtype.is_float or not known or np.asarray(exponent).dtype.kind not in "iO":
            return
        if np.any(np.asarray(exponent) < 0):
            raise DTypeError(
                f"integers to negative integer powers are no integers; cast the {self.dtype} to a float first"
            )

    def _quick_power(self, exponent: float) -> Self | None:
        """The exponents for which NumPy takes a shorter way; the results are NumPy's."""
        if exponent == 1:
            return self
        if exponent == 2:
            return self * self
        if exponent == 0.5:
            return self._new(alu(Ops.SQRT, self.uop))
        return self._new(alu(Ops.RECIP, self.uop)) if exponent == -1 else None

    def __neg__(self) -> Self:
        if self.dtype.is_bool:
            raise DTypeError("booleans have no -; use ~ for the opposite")
        return self._new(alu(Ops.NEG, self.uop))

    def __pos__(self) -> Self:
        return self

    def __abs__(self) -> Self:
        unsigned = self.dtype.is_bool or self.dtype.is_unsigned
        return self if unsigned else self._new(alu(Ops.ABS, self.uop))

    def _times(self, alpha: Any, other: Any) -> Any:
        """alpha · y for the other operand of a sum."""
        if alpha == 1:
            return other
        y = self._new(self._meet(other)[1])
        if isinstance(alpha, float) and not y.dtype.is_float:
            raise DTypeError(f"alpha={alpha} of a sum of {y.dtype} must be a whole number")
        return y * alpha

    def add(self, other: Any, *, alpha: Any = 1) -> Self:
        """`x + alpha · y`, broadcast.

        >>> Tensor([1, 2]).add(3).tolist()
        [4, 5]
        """
        return self.__add__(self._times(alpha, other))

    def sub(self, other: Any, *, alpha: Any = 1) -> Self:
        """`x - alpha · y`, broadcast.

        >>> Tensor([1, 2]).sub(3, alpha=2).tolist()
        [-5, -4]
        """
        return self._subtract(self._times(alpha, other))

    def mul(self, other: Any) -> Self:
        """`x * y`, broadcast.

        >>> Tensor([1, 2]).mul(3).tolist()
        [3, 6]
        """
        return self.__mul__(other)

    def div(self, other: Any, *, rounding_mode: str | None = None) -> Self:
        """`x / y`, broadcast; integers give float32. Rounded down by "floor", toward zero by "trunc".

        >>> Tensor([1, 2]).div(2).tolist()
        [0.5, 1.0]
        >>> Tensor([-7, 7]).div(2, rounding_mode="trunc").tolist()
        [-3, 3]
        """
        if rounding_mode is None:
            return self.__truediv__(other)
        if rounding_mode == "floor":
            return self.__floordiv__(other)
        if rounding_mode != "trunc":
            raise MorokError(f'rounding_mode is None, "floor" or "trunc", not {rounding_mode!r}')
        x, y = self._meet(other)
        if x.dtype.is_bool:
            x, y = cast(x, dt.int8), cast(y, dt.int8)
        if not x.dtype.is_float:
            return self._new(alu(Ops.CDIV, x, y))
        return self._new(alu(Ops.TRUNC, alu(Ops.FDIV, x, y)))

    def floor_divide(self, other: Any) -> Self:
        """`x // y`, rounded down.

        >>> Tensor([7, -7]).floor_divide(2).tolist()
        [3, -4]
        """
        return self.__floordiv__(other)

    def remainder(self, other: Any) -> Self:
        """`x % y`, with the sign of y.

        >>> Tensor([7, -7]).remainder(3).tolist()
        [1, 2]
        """
        return self.__mod__(other)

    def pow(self, other: Any) -> Self:
        """`x ** y`.

        >>> Tensor([1.0, 2.0, 3.0]).pow(2).tolist()
        [1.0, 4.0, 9.0]
        """
        return self.__pow__(other)

    def neg(self) -> Self:
        """`-x`.

        >>> Tensor([1, -2]).neg().tolist()
        [-1, 2]
        """
        return -self

    def abs(self) -> Self:
        """`|x|`.

        >>> Tensor([1, -2]).abs().tolist()
        [1, 2]
        """
        return self.__abs__()

    # --- comparison

    def __eq__(self, other: object) -> Self:  # type: ignore[override]
        if other is None:
            return NotImplemented  # then Python says that no tensor is None
        return self._compare(UOp.eq, other)

    def __ne__(self, other: object) -> Self:  # type: ignore[override]
        if other is None:
            return NotImplemented
        return self._compare(UOp.ne, other)

    def __lt__(self, other: Any) -> Self:
        return self._compare(UOp.__lt__, other)

    def __gt__(self, other: Any) -> Self:
        return self._compare(UOp.__gt__, other)

    def __le__(self, other: Any) -> Self:
        return self._compare(le, other)

    def __ge__(self, other: Any) -> Self:
        return self._compare(ge, other)

    def _compare(self, relation: Callable[[UOp, UOp], UOp], value: Any) -> Self:
        """A relation between integers is exact, as NumPy's, also where no type holds both sides."""
        mine = self.uop
        if not mine.dtype.is_int:
            return self._new(relation(*self._meet(value)))
        other = self._other(value)
        if isinstance(other, UOp):
            if {mine.dtype, other.dtype} == {dt.int64, dt.uint64}:
                return self._new(_compare_signs(relation, mine, other))
        elif isinstance(other, int) and not mine.dtype.min <= other <= mine.dtype.max:
            beyond = relation(const(dt.int64, 0), const(dt.int64, 1 if other > 0 else -1))
            return self._new(expand_to(beyond, require_shape(mine)))
        return self._new(relation(*self._meet(self._new(other) if isinstance(other, UOp) else other)))

    __hash__ = Core.__hash__

    def eq(self, other: Any) -> Self:
        """`x == y`, element by element.

        >>> Tensor([1, 2]).eq(2).tolist()
        [False, True]
        """
        return self._compare(UOp.eq, other)

    def ne(self, other: Any) -> Self:
        """`x != y`, element by element.

        >>> Tensor([1, 2]).ne(2).tolist()
        [True, False]
        """
        return self._compare(UOp.ne, other)

    def maximum(self, other: Any) -> Self:
        """The larger of two; NaN if either is.

        >>> Tensor([1, 5]).maximum(3).tolist()
        [3, 5]
        """
        return self._binary(Ops.MAX, other)

    def minimum(self, other: Any) -> Self:
        """The smaller of two; NaN if either is.

        >>> Tensor([1, 5]).minimum(3).tolist()
        [1, 3]
        """
        return self._binary(Ops.MIN, other)

    def clamp(self, min: Any = None, max: Any = None) -> Self:
        """Between `min` and `max`, either of which may be left out.

        >>> Tensor([-1, 0, 9]).clamp(0, 3).tolist()
        [0, 0, 3]
        """
        limits = self.dtype
        if limits.is_int:  # beyond all that the type holds a limit is none
            min = None if isinstance(min, int) and min < limits.min else min
            max = None if isinstance(max, int) and max > limits.max else max
        low = self if min is None else self.maximum(min)
        return low if max is None else low.minimum(max)

    clip = clamp

    # --- bits

    def __and__(self, other: Any) -> Self:
        return self._integral(Ops.AND, other)

    def __rand__(self, other: Any) -> Self:
        return self._integral(Ops.AND, other, reverse=True)

    def __or__(self, other: Any) -> Self:
        return self._integral(Ops.OR, other)

    def __ror__(self, other: Any) -> Self:
        return self._integral(Ops.OR, other, reverse=True)

    def __xor__(self, other: Any) -> Self:
        return self._integral(Ops.XOR, other)

    def __rxor__(self, other: Any) -> Self:
        return self._integral(Ops.XOR, other, reverse=True)

    def __lshift__(self, other: Any) -> Self:
        return self._integral(Ops.SHL, other)

    def __rlshift__(self, other: Any) -> Self:
        return self._integral(Ops.SHL, other, reverse=True)

    def __rshift__(self, other: Any) -> Self:
        return self._integral(Ops.SHR, other)

    def __rrshift__(self, other: Any) -> Self:
        return self._integral(Ops.SHR, other, reverse=True)

    def __invert__(self) -> Self:
        if self.dtype.is_float:
            raise DTypeError(f"~ needs integers or booleans, not {self.dtype}")
        return self._new(alu(Ops.NOT, self.uop))

    def logical_not(self) -> Self:
        """True where x is zero.

        >>> Tensor([0, 2]).logical_not().tolist()
        [True, False]
        """
        return self._new(logical_not(cast(self.uop, dt.bool_)))

    # --- choice

    def where(self, x: Any, y: Any) -> Self:
        """`x` where self holds, else `y`.

        >>> Tensor([True, False]).where(1, Tensor([5, 6])).tolist()
        [1, 6]
        """
        if not self.dtype.is_bool:
            raise DTypeError(
                f"the condition of a choice must be bool, not {self.dtype}: write (x > 0).where(x, 0)"
            )
        yes, no = _branches(self, x, y)
        sizes = broadcast_shapes(*map(require_shape, (self.uop, yes, no)))
        return self._new(alu(Ops.WHERE, expand_to(self.uop, sizes), operand(yes, sizes), operand(no, sizes)))

    def masked_fill(self, mask: Any, value: Any) -> Self:
        """`value` where the mask holds, else x.

        >>> Tensor([1, 2]).masked_fill(Tensor([True, False]), 0).tolist()
        [0, 2]
        """
        condition = mask if isinstance(mask, Elementwise) else self._from_data(mask)
        return self._new(condition.where(value, self).uop)

    # --- conversion

    def cast(self, dtype: Any) -> Self:
        """The values in another type; floats become integers by dropping their fraction.

        >>> Tensor([1.7, -1.7]).cast("int32").tolist()
        [1, -1]
        """
        target = as_dtype(dtype)
        return self if target is self.dtype else self._new(cast(self.uop, target))

    astype = cast

    def bitcast(self, dtype: Any) -> Self:
        """The same bits read as another type; the last axis grows or shrinks with its size, as NumPy's view.

        >>> Tensor([1.0]).bitcast("int32").tolist()
        [1065353216]
        >>> Tensor([1, 258], dtype="int16").bitcast("uint8").tolist()
        [1, 0, 2, 1]
        """
        return self._new(reinterpreted(self.uop, as_dtype(dtype)))


def _branches(like: Elementwise, x: Any, y: Any) -> tuple[UOp, UOp]:
    """Both values of a choice in one type; a Python number is weak here as well."""
    first, second = like._other(x), like._other(y)
    if isinstance(first, UOp) and isinstance(second, UOp):
        dtype = promote(first.dtype, second.dtype)
        return cast(first, dtype), cast(second, dtype)
    if isinstance(first, UOp):
        assert not isinstance(second, UOp)
        dtype = promote_scalar(first.dtype, second)
        return cast(first, dtype), const(dtype, second)
    if isinstance(second, UOp):
        dtype = promote_scalar(second.dtype, first)
        return const(dtype, first), cast(second, dtype)
    dtype = promote_scalar(dt.dtype_of(first), second)
    return const(dtype, first), const(dtype, second)


def _compare_signs(relation: Callable[[UOp, UOp], UOp], x: UOp, y: UOp) -> UOp:
    """A relation between int64 and uint64: what is negative is less than anything, the rest is unsigned."""
    sizes = broadcast_shapes(require_shape(x), require_shape(y))
    x, y = operand(x, sizes), operand(y, sizes)
    signed = y if x.dtype is dt.uint64 else x
    less, more = const(dt.int64, -1), const(dt.int64, 0)
    outright = relation(more, less) if signed is y else relation(less, more)
    negative = alu(Ops.CMPLT, signed, more)
    return alu(Ops.WHERE, negative, outright, relation(cast(x, dt.uint64), cast(y, dt.uint64)))


def _power(x: UOp, y: UOp) -> UOp:
    if x.dtype.is_bool:
        x, y = cast(x, dt.int8), cast(y, dt.int8)
    return alu(Ops.POW, x, y)
