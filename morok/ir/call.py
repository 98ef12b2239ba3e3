"""Calls: a result under the name of the function of its inputs that it is.

    CALL(result, *inputs)       arg = (name, *((attribute, value), …))

The value is the result, computed by whatever formula stands there. The name is for those who do not look
inside: gradients go by it, to the inputs and not into the formula, and people read it. A call whose name has
no rule is transparent to gradients. Scheduling sees through all calls: kernels are made of formulas.
"""

from __future__ import annotations

from typing import Any, final

from morok.dtype.records import record
from morok.ir.args import register_arg
from morok.ir.node import UOp, make
from morok.ir.ops import Ops


@register_arg
@final
@record(frozen=True)
class CustomRule:
    """A gradient rule of one function of a user's: the attribute `gradient` of its calls."""

    number: int


def call(name: str, result: UOp, *inputs: UOp, **attributes: Any) -> UOp:
    """A result under the name of a function; attributes are what it takes besides tensors."""
    return make(Ops.CALL, result.dtype, (result, *inputs), (name, *attributes.items()), None, 2)


def call_name(node: UOp) -> str:
    """The function that a CALL is of."""
    return str(node.arg[0])


def attributes(node: UOp) -> dict[str, Any]:
    """What the function takes besides tensors, by name."""
    return dict(node.arg[1:])
