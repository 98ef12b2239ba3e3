"""Python's operators, by the functions that they are.

Functions of tensors are typed against `T`: whatever has a storage and these operators. Everything else that a
function needs of a tensor is a function that it imports, so the imports say who calls whom.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self, TypeVar

from morok.tensor.calls.record import methods
from morok.tensor.core import Core
from morok.tensor.elementwise import arithmetic, comparison, conversion


@methods(pure=(arithmetic, comparison, conversion))
class Operators(Core):
    """A tensor as far as arithmetic goes."""

    __add__, __radd__ = arithmetic.add, arithmetic.radd
    __sub__, __rsub__ = arithmetic.sub, arithmetic.rsub
    __mul__, __rmul__ = arithmetic.mul, arithmetic.rmul
    __truediv__, __rtruediv__ = arithmetic.div, arithmetic.rdiv
    __floordiv__, __rfloordiv__ = arithmetic.floor_divide, arithmetic.rfloor_divide
    __mod__, __rmod__ = arithmetic.remainder, arithmetic.rremainder
    __pow__, __rpow__ = arithmetic.pow, arithmetic.rpow
    __neg__, __pos__, __abs__ = arithmetic.neg, arithmetic.pos, arithmetic.abs

    __lt__, __gt__ = comparison.lt, comparison.gt
    __le__, __ge__ = comparison.le, comparison.ge
    __and__, __rand__ = comparison.bitwise_and, comparison.rbitwise_and
    __or__, __ror__ = comparison.bitwise_or, comparison.rbitwise_or
    __xor__, __rxor__ = comparison.bitwise_xor, comparison.rbitwise_xor
    __lshift__, __rlshift__ = comparison.bitwise_left_shift, comparison.rleft_shift
    __rshift__, __rrshift__ = comparison.bitwise_right_shift, comparison.rright_shift
    __invert__ = comparison.bitwise_not

    if TYPE_CHECKING:  # said once more, because every object has these

        def __eq__(self, other: object) -> Self: ...  # type: ignore[override]

        def __ne__(self, other: object) -> Self: ...  # type: ignore[override]

    else:
        __eq__, __ne__ = comparison.equals, comparison.differs
    __hash__ = Core.__hash__


T = TypeVar("T", bound=Operators)
