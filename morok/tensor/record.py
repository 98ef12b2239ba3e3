"""Provenance of tensor methods: one look at the call stack per call of the user's.

All nodes that a method makes, and those of the methods it calls in turn, come from the user's line. An error
on the way gets the same line, unless it knows a better one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from morok.errors import MorokError
from morok.ir.provenance import capture, here

C = TypeVar("C", bound=type)

# Python calls these for the user; the rest of the special methods are plumbing.
_OPERATORS = frozenset(
    f"__{name}__"
    for name in [
        "add",
        "radd",
        "sub",
        "rsub",
        "mul",
        "rmul",
        "truediv",
        "rtruediv",
        "floordiv",
        "rfloordiv",
        "mod",
        "rmod",
        "pow",
        "rpow",
        "matmul",
        "rmatmul",
        "and",
        "rand",
        "or",
        "ror",
        "xor",
        "rxor",
        "lshift",
        "rlshift",
        "rshift",
        "rrshift",
        "neg",
        "pos",
        "abs",
        "invert",
        "eq",
        "ne",
        "lt",
        "le",
        "gt",
        "ge",
        "iadd",
        "isub",
        "imul",
        "itruediv",
        "getitem",
        "setitem",
        "init",
        "bool",
        "int",
        "float",
        "index",
        "iter",
        "array",
        "dlpack",
        "round",
    ]
)


def recorded(cls: C) -> C:
    """A class decorator: every public method of the class remembers the user's line."""
    for name, member in list(vars(cls).items()):
        if name.startswith("_") and name not in _OPERATORS:
            continue
        if isinstance(member, classmethod):
            setattr(cls, name, classmethod(_recording(member.__func__)))
        elif isinstance(member, staticmethod):
            setattr(cls, name, staticmethod(_recording(member.__func__)))
        elif callable(member):
            setattr(cls, name, _recording(member))
    return cls


def _recording(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if here.origin is not None:  # called by another method: the line is known
            return function(*args, **kwargs)
        here.origin = origin = capture(2)
        try:
            return function(*args, **kwargs)
        except MorokError as error:
            if error.place is None and origin is not None:
                error.place = repr(origin)
            raise
        finally:
            here.origin = None

    return call
