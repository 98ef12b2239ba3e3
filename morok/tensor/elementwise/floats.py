"""Floats for functions of them: the type that a formula is computed in, and the name of what it computes."""

from __future__ import annotations

from morok.dtype import float32
from morok.ir import build
from morok.ir.call import call
from morok.ir.node import UOp
from morok.tensor.dtypes import float_of
from morok.tensor.elementwise.operators import T


def float_node(x: T) -> UOp:
    """The node of x as floats; integers and booleans are taken as float32."""
    return build.cast(x.uop, float_of(x.dtype))


def floating(x: T) -> T:
    """x as floats."""
    return x if x.dtype.is_float else x._new(float_node(x))


def widen(x: T) -> T:
    """x in a type in which a formula of several steps is rounded once, at its end."""
    x = floating(x)
    return x._new(build.cast(x.uop, float32)) if x.dtype.bits < 32 else x


def rounded_to(result: T, x: T) -> T:
    """A result in the type of what it was computed from."""
    return result if result.dtype is x.dtype else result._new(build.cast(result.uop, x.dtype))


def named(x: T, name: str, result: T) -> T:
    """A result under the name of the function of x that it is.

    Gradients go by the name: the chain rule through a formula that guards against overflow gives NaN
    where the guard is at work.
    """
    return x._new(call(name, result.uop, x.uop))
