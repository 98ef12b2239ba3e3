"""Python's operators for anything that can be combined by an op: nodes, and the terms of rules.

A class that mixes this in says how to combine (`_combine`) and gets the arithmetic spelling for free, so that
a rule reads like the expression it matches. Equality stays identity for nodes; use `.eq` and `.ne` for
comparisons.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from morok.ir.ops import Op, Ops

T = TypeVar("T")


class Operators(Generic[T]):
    """`T` is what combining gives."""

    __slots__ = ()

    def _combine(self, op: Op, *operands: Any) -> T:
        """The node or term `op(*operands)`; operands may be Python numbers."""
        raise NotImplementedError

    def __add__(self, y: Any) -> T:
        return self._combine(Ops.ADD, self, y)

    def __radd__(self, y: Any) -> T:
        return self._combine(Ops.ADD, y, self)

    def __sub__(self, y: Any) -> T:
        return self._combine(Ops.SUB, self, y)

    def __rsub__(self, y: Any) -> T:
        return self._combine(Ops.SUB, y, self)

    def __mul__(self, y: Any) -> T:
        return self._combine(Ops.MUL, self, y)

    def __rmul__(self, y: Any) -> T:
        return self._combine(Ops.MUL, y, self)

    def __truediv__(self, y: Any) -> T:
        return self._combine(Ops.FDIV, self, y)

    def __rtruediv__(self, y: Any) -> T:
        return self._combine(Ops.FDIV, y, self)

    def __floordiv__(self, y: Any) -> T:
        return self._combine(Ops.FLOORDIV, self, y)

    def __rfloordiv__(self, y: Any) -> T:
        return self._combine(Ops.FLOORDIV, y, self)

    def __mod__(self, y: Any) -> T:
        return self._combine(Ops.FLOORMOD, self, y)

    def __rmod__(self, y: Any) -> T:
        return self._combine(Ops.FLOORMOD, y, self)

    def __and__(self, y: Any) -> T:
        return self._combine(Ops.AND, self, y)

    def __rand__(self, y: Any) -> T:
        return self._combine(Ops.AND, y, self)

    def __or__(self, y: Any) -> T:
        return self._combine(Ops.OR, self, y)

    def __ror__(self, y: Any) -> T:
        return self._combine(Ops.OR, y, self)

    def __xor__(self, y: Any) -> T:
        return self._combine(Ops.XOR, self, y)

    def __rxor__(self, y: Any) -> T:
        return self._combine(Ops.XOR, y, self)

    def __lt__(self, y: Any) -> T:
        return self._combine(Ops.CMPLT, self, y)

    def __gt__(self, y: Any) -> T:
        return self._combine(Ops.CMPLT, y, self)

    def __neg__(self) -> T:
        return self._combine(Ops.NEG, self)

    def __invert__(self) -> T:
        return self._combine(Ops.NOT, self)

    def eq(self, y: Any) -> T:
        """x = y as a value; `==` on nodes is identity."""
        return self._combine(Ops.CMPEQ, self, y)

    def ne(self, y: Any) -> T:
        """x ≠ y as a value."""
        return self._combine(Ops.CMPNE, self, y)

    def maximum(self, y: Any) -> T:
        return self._combine(Ops.MAX, self, y)

    def minimum(self, y: Any) -> T:
        return self._combine(Ops.MIN, self, y)

    def where(self, x: Any, y: Any) -> T:
        """x where self holds, else y."""
        return self._combine(Ops.WHERE, self, x, y)
