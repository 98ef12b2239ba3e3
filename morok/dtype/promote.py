"""Which type two types meet in.

Between arrays the answers are NumPy 2's. NumPy knows nothing of bfloat16 and the 8-bit floats, so for those:
two floats meet in the smallest float that holds every value of both, and a narrow float meets integers just
as float16 does (8 bits: the float itself; 16 bits: float32; more: float64).

Python numbers are weak: they take the array's type if it is of their kind or a richer one. There is one
deliberate difference from NumPy, and it is PyTorch's and JAX's choice as well: a Python float meeting an
integer or boolean array gives float32, not float64, because models live in float32 and a stray `* 0.5`
should not double their memory.
"""

from __future__ import annotations

from functools import reduce
from itertools import product

from morok.dtype.types import (
    ALL_SCALARS,
    DType,
    bfloat16,
    bool_,
    default_float,
    default_int,
    float8_e4m3,
    float8_e5m2,
    float16,
    float32,
    float64,
    index,
    parse,
    uint64,
)
from morok.errors import DTypeError

_FLOAT_RANK = {float8_e4m3: 0, float8_e5m2: 0, float16: 1, bfloat16: 1, float32: 2, float64: 3}
_NEXT_FLOAT = (float16, float32)  # where two different floats of rank 0, of rank 1, meet


def _meet(a: DType, b: DType) -> DType | None:
    """Where two scalars meet; None if they should not."""
    if a is b or b is bool_:
        return a
    if a is bool_:
        return b
    if a.is_float and b.is_float:
        return _meet_floats(a, b)
    if a.is_float or b.is_float:
        return _meet_float_int(a, b) if a.is_float else _meet_float_int(b, a)
    if a.is_index or b.is_index:
        return index
    if a.is_unsigned == b.is_unsigned:
        return a if a.bits > b.bits else b
    signed, unsigned = (b, a) if a.is_unsigned else (a, b)
    if signed.bits > unsigned.bits:
        return signed
    return float64 if unsigned is uint64 else parse(f"int{unsigned.bits * 2}")


def _meet_floats(a: DType, b: DType) -> DType:
    rank_a, rank_b = _FLOAT_RANK[a], _FLOAT_RANK[b]
    if rank_a == rank_b:
        return _NEXT_FLOAT[rank_a]
    return a if rank_a > rank_b else b


def _meet_float_int(a: DType, b: DType) -> DType | None:
    if b.is_index:
        return None  # an index has no width, so no float can be said to hold it: the cast must be written
    enough = a if b.bits == 8 else float32 if b.bits == 16 else float64
    return _meet(a, enough)


_MEET: dict[tuple[DType, ...], DType | None] = {
    (a, b): _meet(a, b) for a, b in product(ALL_SCALARS, repeat=2)
}


def _meet_or_fail(a: DType, b: DType) -> DType:
    met = _MEET.get((a, b))
    if met is None:
        raise DTypeError(f"{a} and {b} have no common type: cast one of them first")
    return met


def promote(*dtypes: DType) -> DType:
    """The common type of arrays of these types. Vectors must be equally long; scalars spread over them."""
    met = _MEET.get(dtypes)
    if met is not None:
        return met  # the common case: two scalars
    if not dtypes:
        raise DTypeError("promote needs at least one dtype")
    lanes = max(dtype.lanes for dtype in dtypes)
    if any(dtype.lanes not in (1, lanes) for dtype in dtypes):
        raise DTypeError(f"vectors of different lengths have no common type: {', '.join(map(str, dtypes))}")
    scalars = [dtype.scalar for dtype in dtypes]
    if len(scalars) == 1:
        return _meet_or_fail(scalars[0], scalars[0]).vec(lanes)
    # Each float meets each number first: an integer pair must not wander to float64 when a float32 is enough.
    floats = [scalar for scalar in scalars if scalar.is_float]
    pairs = [_meet_or_fail(f, scalar) for f in floats for scalar in scalars]
    return reduce(_meet_or_fail, pairs or sorted(scalars, key=lambda s: (s.is_unsigned, s.bits))).vec(lanes)


def dtype_of(value: object) -> DType:
    """The type of a Python number on its own: bool, int64 (uint64 if only that holds it) or float32."""
    if isinstance(value, bool):
        return bool_
    if isinstance(value, float):
        return default_float
    if not isinstance(value, int):
        raise DTypeError(f"{value!r} is not a Python number")
    for dtype in (default_int, uint64):
        if dtype.min <= value <= dtype.max:
            return dtype
    raise DTypeError(f"Python integer {value} does not fit in 64 bits")


def promote_scalar(dtype: DType, value: object) -> DType:
    """The common type of an array and a weak Python number.

    As NumPy 2, with one documented difference: a float with an integer or boolean array gives float32.
    An integer that the array's integer type cannot hold is an error, not a wider type.
    """
    scalar = dtype.scalar
    if not isinstance(value, int | float):
        raise DTypeError(f"{value!r} is not a Python number")
    if scalar.is_void or scalar.is_ptr or (scalar.is_index and isinstance(value, float)):
        raise DTypeError(f"{dtype} and the Python number {value!r} have no common type")
    if isinstance(value, bool) or scalar.is_float or scalar.is_index:
        return dtype
    if isinstance(value, float):
        return default_float.vec(dtype.lanes)
    target = default_int if scalar is bool_ else scalar
    if not target.min <= value <= target.max:
        raise DTypeError(f"Python integer {value} is out of range for {target}")
    return target.vec(dtype.lanes)


def lossless(source: DType, target: DType) -> bool:
    """Does every value of `source` survive a cast to `target` (and so the way back)?"""
    if source.lanes != target.lanes or source.is_ptr or target.is_ptr or source.is_void or target.is_void:
        return False
    a, b = source.scalar, target.scalar
    if a is b or a is bool_:
        return True
    if b is bool_:
        return False
    if a.is_float:
        return b.is_float and _meet_floats(a, b) is b
    if b.is_index or a.is_index:
        return b.is_index
    if b.is_float:
        return bool(a.max.bit_length() <= b.mantissa_bits + 1 and -a.min <= b.largest and a.max <= b.largest)
    return bool(b.min <= a.min and a.max <= b.max)
