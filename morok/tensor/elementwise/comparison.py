"""Relations, extremes of two, bits and truths, and the choice between two values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from morok import dtype as dt
from morok.dtype import promote, promote_scalar
from morok.errors import DTypeError
from morok.ir import build
from morok.ir.call import call
from morok.ir.node import UOp, alu, const
from morok.ir.ops import Op, Ops
from morok.tensor.core import C, Core, expand_to, operand, require_shape
from morok.tensor.creation.constructors import as_operand
from morok.tensor.elementwise.arithmetic import _other, binary, meet
from morok.tensor.sizes import broadcast_shapes

_SYMBOLS = {
    Ops.SHL: "<<", Ops.SHR: ">>", Ops.AND: "&", Ops.OR: "|", Ops.XOR: "^", Ops.SUB: "-",
}  # fmt: skip


def lt(x: C, other: Any) -> C:
    """`x < y`, element by element.

    >>> Tensor([1, 2]).lt(2).tolist()
    [True, False]
    """
    return _compare(x, UOp.__lt__, other)


def le(x: C, other: Any) -> C:
    """`x <= y`, element by element.

    >>> Tensor([1, 3]).le(2).tolist()
    [True, False]
    """
    return _compare(x, build.le, other)


def gt(x: C, other: Any) -> C:
    """`x > y`, element by element.

    >>> Tensor([1, 3]).gt(2).tolist()
    [False, True]
    """
    return _compare(x, UOp.__gt__, other)


def ge(x: C, other: Any) -> C:
    """`x >= y`, element by element.

    >>> Tensor([1, 2]).ge(2).tolist()
    [False, True]
    """
    return _compare(x, build.ge, other)


def eq(x: C, other: Any) -> C:
    """`x == y`, element by element.

    >>> Tensor([1, 2]).eq(2).tolist()
    [False, True]
    """
    return _compare(x, UOp.eq, other)


def ne(x: C, other: Any) -> C:
    """`x != y`, element by element.

    >>> Tensor([1, 2]).ne(2).tolist()
    [True, False]
    """
    return _compare(x, UOp.ne, other)


def _compare(x: C, relation: Callable[[UOp, UOp], UOp], value: Any) -> C:
    """A relation between integers is exact, as NumPy's, also where no type holds both sides."""
    mine = x.uop
    if not mine.dtype.is_int:
        return x._new(relation(*meet(x, value)))
    other = _other(x, value)
    if isinstance(other, UOp):
        if {mine.dtype, other.dtype} == {dt.int64, dt.uint64}:
            return x._new(_compare_signs(relation, mine, other))
    elif isinstance(other, int) and not mine.dtype.min <= other <= mine.dtype.max:
        beyond = relation(const(dt.int64, 0), const(dt.int64, 1 if other > 0 else -1))
        return x._new(expand_to(beyond, require_shape(mine)))
    return x._new(relation(*meet(x, x._new(other) if isinstance(other, UOp) else other)))


def _compare_signs(relation: Callable[[UOp, UOp], UOp], x: UOp, y: UOp) -> UOp:
    """A relation between int64 and uint64: what is negative is less than anything, the rest is unsigned."""
    sizes = broadcast_shapes(require_shape(x), require_shape(y))
    x, y = operand(x, sizes), operand(y, sizes)
    signed = y if x.dtype is dt.uint64 else x
    less, more = const(dt.int64, -1), const(dt.int64, 0)
    outright = relation(more, less) if signed is y else relation(less, more)
    negative = alu(Ops.CMPLT, signed, more)
    return alu(Ops.WHERE, negative, outright, relation(build.cast(x, dt.uint64), build.cast(y, dt.uint64)))


def equals(x: C, other: object) -> C:
    """`x == y`; of None Python itself says that no tensor is it."""
    return NotImplemented if other is None else eq(x, other)


def differs(x: C, other: object) -> C:
    """`x != y`, as `equals`."""
    return NotImplemented if other is None else ne(x, other)


def maximum(x: C, other: Any) -> C:
    """The larger of two; NaN if either is.

    >>> Tensor([1, 5]).maximum(3).tolist()
    [3, 5]
    """
    return binary(x, Ops.MAX, other)


def minimum(x: C, other: Any) -> C:
    """The smaller of two; NaN if either is.

    >>> Tensor([1, 5]).minimum(3).tolist()
    [1, 3]
    """
    return binary(x, Ops.MIN, other)


def clamp(x: C, min: Any = None, max: Any = None) -> C:
    """Between `min` and `max`, either of which may be left out.

    >>> Tensor([-1, 0, 9]).clamp(0, 3).tolist()
    [0, 0, 3]
    """
    limits = x.dtype
    if limits.is_int:  # beyond all that the type holds a limit is none
        min = None if isinstance(min, int) and min < limits.min else min
        max = None if isinstance(max, int) and max > limits.max else max
    low = x if min is None else _bounded(x, Ops.MAX, min, "at_least")
    return low if max is None else _bounded(low, Ops.MIN, max, "at_most")


def between(x: C, low: Any, high: Any) -> C:
    """As `clamp`, as a function that is flat at its ends, too: it has no slope there."""
    return _bounded(_bounded(x, Ops.MAX, low, "above"), Ops.MIN, high, "below")


def _bounded(t: C, op: Op, bound: Any, name: str) -> C:
    """The larger or the smaller of two, of which the second is a bound: gradients go by the name."""
    x, y = meet(t, bound)
    result = alu(op, x, y)
    return t._new(call(name, result, x, y) if x.dtype.is_float else result)


def _integral(t: C, op: Op, value: Any, reverse: bool = False) -> C:
    """An op that only integers and booleans have."""
    x, y = meet(t, value)
    if not (x.dtype.is_int or x.dtype.is_bool):
        raise DTypeError(f"{_SYMBOLS[op]} needs integers or booleans, not {x.dtype}")
    if x.dtype.is_bool and op in (Ops.SHL, Ops.SHR):  # as NumPy: the smallest integers there are
        x, y = build.cast(x, dt.int8), build.cast(y, dt.int8)
    return t._new(alu(op, y, x) if reverse else alu(op, x, y))


def bitwise_and(x: C, other: Any) -> C:
    """`x & y`.

    >>> Tensor([6, 3]).bitwise_and(2).tolist()
    [2, 2]
    """
    return _integral(x, Ops.AND, other)


def rbitwise_and(x: C, other: Any) -> C:
    return _integral(x, Ops.AND, other, reverse=True)


def bitwise_or(x: C, other: Any) -> C:
    """`x | y`.

    >>> Tensor([4, 3]).bitwise_or(2).tolist()
    [6, 3]
    """
    return _integral(x, Ops.OR, other)


def rbitwise_or(x: C, other: Any) -> C:
    return _integral(x, Ops.OR, other, reverse=True)


def bitwise_xor(x: C, other: Any) -> C:
    """`x ^ y`.

    >>> Tensor([6, 3]).bitwise_xor(2).tolist()
    [4, 1]
    """
    return _integral(x, Ops.XOR, other)


def rbitwise_xor(x: C, other: Any) -> C:
    return _integral(x, Ops.XOR, other, reverse=True)


def bitwise_left_shift(x: C, other: Any) -> C:
    """`x << y`; 0 where y is not less than the number of bits.

    >>> Tensor([1, 3]).bitwise_left_shift(2).tolist()
    [4, 12]
    """
    return _integral(x, Ops.SHL, other)


def rleft_shift(x: C, other: Any) -> C:
    return _integral(x, Ops.SHL, other, reverse=True)


def bitwise_right_shift(x: C, other: Any) -> C:
    """`x >> y`, rounded down.

    >>> Tensor([8, -3]).bitwise_right_shift(1).tolist()
    [4, -2]
    """
    return _integral(x, Ops.SHR, other)


def rright_shift(x: C, other: Any) -> C:
    return _integral(x, Ops.SHR, other, reverse=True)


def bitwise_not(x: C) -> C:
    """`~x`.

    >>> Tensor([0, 5]).bitwise_not().tolist()
    [-1, -6]
    """
    if x.dtype.is_float:
        raise DTypeError(f"~ needs integers or booleans, not {x.dtype}")
    return x._new(alu(Ops.NOT, x.uop))


def logical_not(x: C) -> C:
    """True where x is zero.

    >>> Tensor([0, 2]).logical_not().tolist()
    [True, False]
    """
    return x._new(build.logical_not(build.cast(x.uop, dt.bool_)))


def where(condition: C, x: Any, y: Any) -> C:
    """`x` where self holds, else `y`.

    >>> Tensor([True, False]).where(1, Tensor([5, 6])).tolist()
    [1, 6]
    """
    if not condition.dtype.is_bool:
        raise DTypeError(
            f"the condition of a choice must be bool, not {condition.dtype}: write (x > 0).where(x, 0)"
        )
    yes, no = _branches(condition, x, y)
    sizes = broadcast_shapes(*map(require_shape, (condition.uop, yes, no)))
    return condition._new(
        alu(Ops.WHERE, expand_to(condition.uop, sizes), operand(yes, sizes), operand(no, sizes))
    )


def masked_fill(x: C, mask: Any, value: Any) -> C:
    """`value` where the mask holds, else x.

    >>> Tensor([1, 2]).masked_fill(Tensor([True, False]), 0).tolist()
    [0, 2]
    """
    condition = as_operand(x, mask)
    return x._new(where(condition, value, x).uop)


def _branches(like: Core, x: Any, y: Any) -> tuple[UOp, UOp]:
    """Both values of a choice in one type; a Python number is weak here as well."""
    first, second = _other(like, x), _other(like, y)
    if isinstance(first, UOp) and isinstance(second, UOp):
        dtype = promote(first.dtype, second.dtype)
        return build.cast(first, dtype), build.cast(second, dtype)
    if isinstance(first, UOp):
        assert not isinstance(second, UOp)
        dtype = promote_scalar(first.dtype, second)
        return build.cast(first, dtype), const(dtype, second)
    if isinstance(second, UOp):
        dtype = promote_scalar(second.dtype, first)
        return const(dtype, first), build.cast(second, dtype)
    dtype = promote_scalar(dt.dtype_of(first), second)
    return const(dtype, first), const(dtype, second)
