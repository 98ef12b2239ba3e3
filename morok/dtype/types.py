"""The types themselves: scalars, vectors and pointers, each of which exists exactly once.

A type is asked questions on every node that is built or rewritten, so it is interned (equality is identity,
the hash is the object's own) and every answer is a plain attribute computed when the type is made. A type's
name says everything about it, which is why the table of interned types is keyed by name, and why pickling,
copying and parsing are all one look-up.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from enum import Enum
from math import inf
from typing import Any, NoReturn, TypeVar

import ml_dtypes
import numpy as np

from morok.caches import watch
from morok.errors import DTypeError
from morok.forks import at_fork


class AddrSpace(Enum):
    """Where a pointer's memory lives."""

    GLOBAL = "global"  # the device's main memory
    LOCAL = "local"  # shared by the threads of one group; on a CPU, a packed panel in the cache
    REG = "reg"  # private to one thread

    def __repr__(self) -> str:
        return f"AddrSpace.{self.name}"


class DType:
    """A type of numbers. Vectors answer as their scalars do, except for `lanes`, `itemsize` and `bits`.

    Do not construct one: use the instances below, `.vec`, `.ptr` and `parse`.
    """

    __slots__ = (
        "__weakref__",
        "base",
        "bits",
        "eps",
        "exponent_bits",
        "has_inf",
        "is_bool",
        "is_bounded_int",
        "is_float",
        "is_index",
        "is_int",
        "is_ptr",
        "is_unsigned",
        "is_void",
        "itemsize",
        "kind",
        "lanes",
        "largest",
        "mantissa_bits",
        "max",
        "min",
        "name",
        "numpy",
        "scalar",
        "smallest_normal",
    )

    name: str
    kind: str  # bool, int, uint, float, index, void or ptr
    bits: int  # of all lanes; a bool counts 1 each, index and void 0
    lanes: int
    scalar: DType  # the same with one lane
    base: DType  # the scalar that is finally stored: a vector's lane, a pointer's element's lane
    itemsize: int  # bytes in memory, of all lanes
    is_bool: bool
    is_int: bool  # signed, unsigned or index
    is_bounded_int: bool  # signed or unsigned, of a fixed width
    is_unsigned: bool
    is_index: bool
    is_float: bool
    is_ptr: bool
    is_void: bool
    numpy: np.dtype[Any] | None  # of one lane; None for index, void and pointers

    # Python numbers, or None where there is no such thing. For floats min and max are the infinities, or
    # ∓largest in the one format that has none.
    min: Any
    max: Any
    mantissa_bits: int  # explicit ones; 0 unless a float
    exponent_bits: int
    has_inf: bool
    largest: Any  # finite float
    smallest_normal: Any
    eps: Any  # distance from 1.0 to the next float

    def __setattr__(self, attribute: str, value: object) -> NoReturn:
        raise AttributeError(f"dtype {self.name} is immutable")

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[Callable[[str], DType], tuple[str]]:
        return parse, (self.name,)

    def vec(self, lanes: int) -> DType:
        """A vector of this scalar; `vec(1)` is the scalar itself."""
        if lanes == 1:
            return self
        found = _VECTORS.get((self, lanes)) if lanes.__class__ is int else None
        if found is None:
            name = f"{self.name}x{lanes}"
            if self.is_ptr:
                return _POINTERS.get(name) or _make_vector(self, lanes)
            found = _INTERNED.get(name) or _make_vector(self, lanes)
            _VECTORS[self, lanes] = found
        return found

    def ptr(self, size: int = -1, space: AddrSpace = AddrSpace.GLOBAL) -> PtrDType:
        """A pointer to `size` of these (-1: unknown) in `space`."""
        return _make_pointer(self, size, space)


class PtrDType(DType):
    """The address of elements of one type. With lanes, a vector of such addresses."""

    __slots__ = ("elem", "size", "space")

    elem: DType  # may be a vector
    size: int  # elements; -1 when unknown
    space: AddrSpace


_INTERNED: dict[str, DType] = {}
_VECTORS: dict[
    tuple[DType, int], DType
] = {}  # those of them that are vectors of numbers, by scalar and lanes
# Pointers have sizes in their names: as many as a program has sizes. Held only while somebody else does.
_POINTERS: weakref.WeakValueDictionary[str, DType] = weakref.WeakValueDictionary()
_lock = threading.Lock()


def _renew_lock() -> None:
    global _lock
    _lock = threading.Lock()


at_fork(child=_renew_lock)
watch("dtype.pointers", lambda: len(_POINTERS))


def _known(name: str) -> DType | None:
    return _INTERNED.get(name) or _POINTERS.get(name)


_D = TypeVar("_D", bound=DType)


def _intern(cls: type[_D], fields: dict[str, Any]) -> _D:
    """Make a type out of its fields, unless another thread was faster."""
    kind = fields["kind"]
    fields["is_bool"] = kind == "bool"
    fields["is_bounded_int"] = kind in ("int", "uint")
    fields["is_int"] = kind in ("int", "uint", "index")
    fields["is_unsigned"] = kind == "uint"
    fields["is_float"] = kind == "float"
    fields["is_index"] = kind == "index"
    fields["is_void"] = kind == "void"
    fields["is_ptr"] = kind == "ptr"
    made = object.__new__(cls)
    for attribute, value in fields.items():
        object.__setattr__(made, attribute, made if value is _ITSELF else value)
    if made.is_ptr:
        with _lock:
            return _POINTERS.setdefault(made.name, made)  # type: ignore[return-value]
    return _INTERNED.setdefault(made.name, made)  # type: ignore[return-value]


_ITSELF: Any = object()


def _fields(dtype: DType) -> dict[str, Any]:
    """What a derived type starts from."""
    names = (slot for cls in type(dtype).__mro__ for slot in getattr(cls, "__slots__", ()))
    return {name: getattr(dtype, name) for name in names if name != "__weakref__"}


def _make_scalar(name: str, kind: str, bits: int, itemsize: int, numpy: Any = None, **limits: Any) -> DType:
    start = dict.fromkeys(("min", "max", "largest", "smallest_normal", "eps"))
    fields = {**start, "mantissa_bits": 0, "exponent_bits": 0, "has_inf": False, **limits}
    fields.update(name=name, kind=kind, bits=bits, itemsize=itemsize, lanes=1, scalar=_ITSELF, base=_ITSELF)
    fields["numpy"] = None if numpy is None else np.dtype(numpy)
    return _intern(DType, fields)


def _make_int(bits: int) -> DType:
    limits = {"min": -(1 << bits - 1), "max": (1 << bits - 1) - 1}
    return _make_scalar(f"int{bits}", "int", bits, bits // 8, f"int{bits}", **limits)


def _make_uint(bits: int) -> DType:
    return _make_scalar(f"uint{bits}", "uint", bits, bits // 8, f"uint{bits}", min=0, max=(1 << bits) - 1)


def _make_float(name: str, exponent: int, mantissa: int, numpy: Any, has_inf: bool = True) -> DType:
    """A binary float. Without infinities the top exponent holds numbers, and only its last code is NaN."""
    bias = (1 << exponent - 1) - 1
    if has_inf:
        largest = (2 - 2.0**-mantissa) * 2.0**bias
    else:
        largest = (2 - 2.0 ** (1 - mantissa)) * 2.0 ** (bias + 1)
    bits = 1 + exponent + mantissa
    limits = {
        "min": -inf if has_inf else -largest,
        "max": inf if has_inf else largest,
        "largest": largest,
        "smallest_normal": 2.0 ** (1 - bias),
        "eps": 2.0**-mantissa,
    }
    shape = {"exponent_bits": exponent, "mantissa_bits": mantissa, "has_inf": has_inf}
    return _make_scalar(name, "float", bits, bits // 8, numpy, **limits, **shape)


def _make_vector(scalar: DType, lanes: int) -> DType:
    if scalar.lanes != 1 or scalar.is_void:
        raise DTypeError(f"{scalar} cannot be the lane of a vector")
    if type(lanes) is not int or lanes < 1:
        raise DTypeError(f"a vector of {scalar} needs a positive number of lanes, not {lanes!r}")
    fields = _fields(scalar)
    fields.update(name=f"{scalar.name}x{lanes}", lanes=lanes)
    fields.update(bits=scalar.bits * lanes, itemsize=scalar.itemsize * lanes)
    return _intern(type(scalar), fields)


def _make_pointer(elem: DType, size: int, space: AddrSpace) -> PtrDType:
    if elem.is_ptr or elem.is_void:
        raise DTypeError(f"a pointer points at numbers, not at {elem}")
    if type(size) is not int or size < -1:
        raise DTypeError(f"a pointer to {elem} needs a size of 0 or more, or -1 for unknown, not {size!r}")
    if not isinstance(space, AddrSpace):
        raise DTypeError(f"a pointer to {elem} needs an AddrSpace, not {space!r}")
    name = f"ptr<{elem.name},{'?' if size < 0 else size},{space.value}>"
    found = _POINTERS.get(name)
    if found is not None:
        assert isinstance(found, PtrDType)
        return found
    fields = {**_address(name), "base": elem.base, "elem": elem, "size": size, "space": space}
    return _intern(PtrDType, fields)


def _address(name: str) -> dict[str, Any]:
    """The fields that all pointers share: a pointer is 64 bits wide whatever it points at."""
    fields = _fields(uint64)
    fields.update(dict.fromkeys(("min", "max", "numpy")))
    fields.update(name=name, kind="ptr", scalar=_ITSELF)
    return fields


def parse(name: str) -> DType:
    """The type that prints as `name`: the inverse of `str`."""
    found = _known(name) or _parse(str(name))
    if found is None or found.name != name:
        raise DTypeError(f"{name!r} is not a dtype; float32, int8x4 and ptr<float32,1024,global> are")
    return found


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 19


def _parse(name: str) -> DType | None:
    """Build a type that nobody has asked for yet; None when the text makes no sense."""
    head, x, lanes = name.rpartition("x")
    if x and _is_number(lanes) and head:
        scalar = _known(head) or _parse(head)
        return scalar.vec(int(lanes)) if scalar is not None else None
    form, bracket, rest = name.partition("<")
    if not bracket or not rest.endswith(">"):
        return None
    parts = rest[:-1].split(",")
    elem = _known(parts[0]) or _parse(parts[0])
    if elem is None:
        return None
    spaces = {space.value: space for space in AddrSpace}
    if form == "ptr" and len(parts) == 3 and parts[2] in spaces and (parts[1] == "?" or _is_number(parts[1])):
        return elem.ptr(-1 if parts[1] == "?" else int(parts[1]), spaces[parts[2]])
    return None


void = _make_scalar("void", "void", 0, 0)
index = _make_scalar("index", "index", 0, 8)  # an integer without bounds, until codegen gives it a width
bool_ = _make_scalar("bool", "bool", 1, 1, "bool", min=False, max=True)
int8, int16, int32, int64 = (_make_int(bits) for bits in (8, 16, 32, 64))
uint8, uint16, uint32, uint64 = (_make_uint(bits) for bits in (8, 16, 32, 64))
float8_e4m3 = _make_float("float8_e4m3", 4, 3, ml_dtypes.float8_e4m3fn, has_inf=False)
float8_e5m2 = _make_float("float8_e5m2", 5, 2, ml_dtypes.float8_e5m2)
float16 = _make_float("float16", 5, 10, np.float16)
bfloat16 = _make_float("bfloat16", 8, 7, ml_dtypes.bfloat16)
float32 = _make_float("float32", 8, 23, np.float32)
float64 = _make_float("float64", 11, 52, np.float64)

SIGNED = (int8, int16, int32, int64)
UNSIGNED = (uint8, uint16, uint32, uint64)
INTS = SIGNED + UNSIGNED
FLOATS = (float8_e4m3, float8_e5m2, float16, bfloat16, float32, float64)
ALL_SCALARS = (bool_, *INTS, *FLOATS, index)

default_float = float32  # of a Python float alone: models live in float32
default_int = int64  # of a Python int alone, as NumPy
