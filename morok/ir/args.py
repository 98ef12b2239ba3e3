"""What a node's argument may be, and how it is written down: as Python text, and as bytes for the content
hash.

An argument is None, a bool, int, float, string, bytes, an Op, a DType, a member of a registered Enum, a tuple
of such things, or a registered frozen dataclass whose fields are such things. Registration gives a class a
name that is the same in every process, which `repr` and `pickle` do not promise.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from enum import Enum
from typing import Any, TypeVar

from morok.dtype import AddrSpace, DType, PtrDType, bool_
from morok.dtype.records import is_frozen
from morok.errors import IRError
from morok.ir.ops import AxisKind, Op

_C = TypeVar("_C", bound=type[Any])
_RESERVED = frozenset(("UOp", "Ops", "dtypes", "float"))

REGISTERED: dict[str, type[Any]] = {}

# Types whose `==` is not what makes two arguments the same: 1 == True, 0.0 == -0.0, nan != nan.
LOOSE: set[type[Any]] = {bool, float, tuple}


def register_arg(cls: _C) -> _C:
    """Class decorator: instances of this frozen dataclass, or members of this Enum, may be arguments."""
    frozen = is_frozen(cls)
    if not frozen and not issubclass(cls, Enum):
        raise IRError(
            f"{cls.__name__} cannot be an argument of nodes: it is neither a frozen dataclass nor an Enum"
        )
    known = REGISTERED.setdefault(cls.__name__, cls)
    if cls.__name__ in _RESERVED or (known.__module__, known.__qualname__) != (
        cls.__module__,
        cls.__qualname__,
    ):
        raise IRError(f"the name {cls.__name__} is taken, so arguments of that class could not be told apart")
    REGISTERED[cls.__name__] = cls
    if frozen:
        LOOSE.add(cls)
    return cls


register_arg(AxisKind)
register_arg(AddrSpace)


def _unknown(value: Any) -> IRError:
    return IRError(
        f"{value!r} cannot be an argument of a node: {type(value).__name__} is not registered (register_arg)"
    )


def _fields(value: Any) -> list[tuple[str, Any]]:
    return [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)]


# --- as a key of a dictionary

_KEY = "key of an argument"  # no name of a field


def arg_key(value: Any) -> Any:
    """A hashable thing that equals another argument's just when the two are the same, in type and in bits."""
    kind = value.__class__
    if kind is tuple:
        for item in value:
            if item.__class__ in LOOSE:
                return tuple([(item.__class__, arg_key(item)) for item in value])
        return value
    if kind is float:
        if value != value:
            return "nan"
        return value if value != 0.0 or math.copysign(1.0, value) > 0 else "-0.0"
    if kind in LOOSE and kind is not bool:
        return _class_key(value)
    return value


def _class_key(value: Any) -> Any:
    """The key of an object, kept in it: it is frozen, and often part of one argument after the other."""
    known = getattr(value, "__dict__", None)
    found = None if known is None else known.get(_KEY)
    if found is None:
        found = tuple([(v.__class__, arg_key(v)) for _, v in _fields(value)])
        if known is not None:
            known[_KEY] = found
    return found


# --- as Python


def write_arg(value: Any) -> str:
    """The argument as an expression of Python that `parse` understands."""
    writer = _WRITERS.get(type(value))
    if writer is not None:
        return writer(value)
    if isinstance(value, DType):
        return write_dtype(value)
    name = type(value).__name__
    if REGISTERED.get(name) is not type(value):
        raise _unknown(value)
    if isinstance(value, Enum):
        return f"{name}.{value.name}"
    return f"{name}({', '.join(f'{field}={write_arg(v)}' for field, v in _fields(value))})"


def write_dtype(dtype: DType) -> str:
    """A type as it is written in Python."""
    scalar = dtype.scalar
    if isinstance(scalar, PtrDType):
        text = f"{write_dtype(scalar.elem)}.ptr({scalar.size}, AddrSpace.{scalar.space.name})"
    else:
        text = "dtypes.bool_" if scalar is bool_ else f"dtypes.{scalar.name}"
    return text if dtype.lanes == 1 else f"{text}.vec({dtype.lanes})"


def _write_float(value: float) -> str:
    return repr(value) if math.isfinite(value) else f'float("{value}")'


def _write_tuple(value: tuple[Any, ...]) -> str:
    return f"({', '.join(map(write_arg, value))}{',' if len(value) == 1 else ''})"


_WRITERS: dict[type, Callable[[Any], str]] = {
    **dict.fromkeys((type(None), bool, int, str, bytes), repr),
    float: _write_float,
    Op: repr,
    tuple: _write_tuple,
}


# --- as bytes


def encode_arg(value: Any) -> bytes:
    """The argument as bytes that differ whenever the argument does, in type or in value."""
    encoder = _ENCODERS.get(type(value))
    if encoder is not None:
        return encoder(value)
    if isinstance(value, DType):
        return _sized(b"d", value.name.encode())
    name = type(value).__name__
    if REGISTERED.get(name) is not type(value):
        raise _unknown(value)
    if isinstance(value, Enum):
        return _sized(b"e", f"{name}.{value.name}".encode())
    fields = b"".join(_sized(b"k", field.encode()) + encode_arg(v) for field, v in _fields(value))
    return _sized(b"c", name.encode()) + _sized(b"v", fields)


def _sized(tag: bytes, content: bytes) -> bytes:
    return b"%b%d:%b" % (tag, len(content), content)


def _encode_float(value: float) -> bytes:
    return _sized(b"f", b"nan" if value != value else value.hex().encode())


_ENCODERS: dict[type, Callable[[Any], bytes]] = {
    type(None): lambda _: b"n",
    bool: lambda value: b"T" if value else b"F",
    int: lambda value: b"i%d;" % value,
    float: _encode_float,
    str: lambda value: _sized(b"s", value.encode("utf-8", "surrogatepass")),
    bytes: lambda value: _sized(b"b", value),
    Op: lambda value: _sized(b"o", value.name.encode()),
    tuple: lambda value: b"t%d(%b)" % (len(value), b"".join(map(encode_arg, value))),
}
