"""The meaning of every arithmetic op, in one table.

`MEANING` is what constant folding, the interpreter and the tests believe. Each op has a form for booleans,
for integers and for floats, or none, and each form twice: on Python numbers (`evaluate`) and on NumPy arrays
(`evaluate_array`). The two agree bit for bit; only the payload of a NaN is nobody's business.

Integers
- A result that does not fit wraps around, for every width: `2^31 - 1 + 1 = -2^31`, `-INT_MIN = INT_MIN`,
  `|INT_MIN| = INT_MIN`, `INT_MIN // -1 = INT_MIN`. `index` has no width and never wraps; in arrays it is
  int64.
- FLOORDIV and FLOORMOD round down, so the remainder has the sign of the divisor (Python, NumPy). CDIV and
  CMOD round toward zero, so the remainder has the sign of the dividend (C, processors). All four give 0 for a
  divisor of 0.
- SHL and SHR by an amount outside of 0 … bits-1 are as if every bit had been shifted out: 0, or -1 for SHR of
  a negative number. MULHI, POPCOUNT and bit patterns need a width, so `index` has none of them.
- POW with a negative exponent is the rational result truncated: ±1 for x = ±1, else 0, also for x = 0.
- TRUNC, FLOOR, CEIL and RINT leave integers as they are.

Booleans: AND, OR, XOR and NOT are logical; ADD and MAX are OR, MUL and MIN are AND (as in NumPy and C); false
< true.

Floats
- One rounding to the type, ties to even. ADD, SUB, MUL, FDIV, RECIP, SQRT and MULACC are correctly rounded in
  every format; the other functions are computed in float64 and rounded once.
- MAX and MIN give NaN if either is NaN. Zeros are ordered -0 < +0 there, which makes both ops commutative to
  the bit.
- Comparisons with NaN are false, except for CMPNE.

Casts: float to integer truncates toward zero and saturates, NaN gives 0 (`index` saturates as int64); integer
to integer wraps; to bool is `x ≠ 0`, so NaN is true; integer to float and float to float round once, also
from 64 bits to 8.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from ctypes import c_float
from typing import Any, final

import numpy as np

from morok.dtype import DType, bool_, float32, float64, int32, round_float, uint64
from morok.dtype.records import record
from morok.errors import DTypeError
from morok.ir.arithmetic import arrays, scalars
from morok.ir.arithmetic.arrays import Array, storage
from morok.ir.ops import Op, Ops

Function = Callable[..., Any]


@final
@record(frozen=True)
class Form:
    """One op on one family of types, on Python numbers and on arrays."""

    scalar: Function
    array: Function
    exact: bool = False  # the result is a value of the type already: nothing to wrap or round
    native: bool = False  # float32 arrays need no detour through float64 for the right rounding


@final
@record(frozen=True)
class Meaning:
    """What an op does to each family of types; None where it is not defined."""

    bools: Form | None = None
    ints: Form | None = None
    floats: Form | None = None
    only: DType | None = None  # the single type it is defined on
    sized: bool = False  # needs integers of a known width, so not `index`


def _exact(scalar: Function, array: Function) -> Form:
    return Form(scalar, array, exact=True, native=True)


def _native(scalar: Function, array: Function) -> Form:
    return Form(scalar, array, native=True)


def _function(array: Function) -> Meaning:
    """A transcendental function of floats: NumPy's float64 one, then one rounding."""
    return Meaning(floats=Form(scalars.by_numpy(array), array))


def _whole(scalar: Function, array: Function) -> Meaning:
    same = _exact(lambda x: x, lambda x: x)
    return Meaning(ints=same, floats=_exact(scalars.whole(scalar), array))


def _everywhere(form: Form) -> Meaning:
    return Meaning(bools=form, ints=form, floats=form)


def _not_a_form(*_: Any) -> Any:
    raise AssertionError("conversions and bit counts are built from their types")


_AND = _exact(operator.and_, np.bitwise_and)
_OR = _exact(operator.or_, np.bitwise_or)
_TYPED = Form(_not_a_form, _not_a_form, exact=True)

MEANING: dict[Op, Meaning] = {
    # conversions and what depends on the width; their functions are made in `_scalar_function` and
    # `_array_function`
    Ops.CAST: _everywhere(_TYPED),
    Ops.BITCAST: Meaning(bools=_TYPED, ints=_TYPED, floats=_TYPED, sized=True),
    Ops.POPCOUNT: Meaning(ints=Form(_not_a_form, arrays.popcount, exact=True), sized=True),
    Ops.MULHI: Meaning(ints=Form(_not_a_form, arrays.mulhi, exact=True), sized=True),
    Ops.SHL: Meaning(ints=Form(_not_a_form, arrays.shl)),
    Ops.SHR: Meaning(ints=Form(_not_a_form, arrays.shr, exact=True)),
    # one operand
    Ops.NEG: Meaning(ints=Form(operator.neg, np.negative), floats=_exact(operator.neg, np.negative)),
    Ops.NOT: Meaning(bools=_exact(operator.not_, np.logical_not), ints=Form(operator.invert, np.invert)),
    Ops.ABS: Meaning(ints=Form(abs, np.abs), floats=_exact(abs, np.abs)),
    Ops.RECIP: Meaning(floats=_native(scalars.recip, arrays.recip)),
    Ops.SQRT: Meaning(floats=_native(scalars.sqrt, np.sqrt)),
    Ops.RSQRT: Meaning(floats=Form(scalars.rsqrt, arrays.rsqrt)),
    Ops.EXP: _function(np.exp),
    Ops.EXP2: _function(np.exp2),
    Ops.LOG: _function(np.log),
    Ops.LOG2: _function(np.log2),
    Ops.SIN: _function(np.sin),
    Ops.COS: _function(np.cos),
    Ops.TAN: _function(np.tan),
    Ops.TANH: _function(np.tanh),
    Ops.ERF: Meaning(floats=Form(math.erf, arrays.erf)),
    Ops.TRUNC: _whole(math.trunc, np.trunc),
    Ops.FLOOR: _whole(math.floor, np.floor),
    Ops.CEIL: _whole(math.ceil, np.ceil),
    Ops.RINT: _whole(round, np.rint),
    # two operands
    Ops.ADD: Meaning(_OR, Form(operator.add, np.add), _native(operator.add, np.add)),
    Ops.SUB: Meaning(None, Form(operator.sub, np.subtract), _native(operator.sub, np.subtract)),
    Ops.MUL: Meaning(_AND, Form(operator.mul, np.multiply), _native(operator.mul, np.multiply)),
    Ops.FDIV: Meaning(floats=_native(scalars.fdiv, np.divide)),
    Ops.FLOORDIV: Meaning(ints=Form(scalars.floordiv, np.floor_divide)),
    Ops.FLOORMOD: Meaning(ints=_exact(scalars.floormod, np.remainder)),
    Ops.CDIV: Meaning(ints=Form(scalars.cdiv, arrays.cdiv)),
    Ops.CMOD: Meaning(ints=_exact(scalars.cmod, arrays.cmod)),
    Ops.FMOD: Meaning(floats=_exact(scalars.fmod, np.fmod)),
    Ops.POW: Meaning(ints=Form(scalars.int_pow, arrays.int_pow), floats=Form(scalars.fpow, arrays.float_pow)),
    Ops.MAX: Meaning(_OR, _exact(max, np.maximum), _exact(scalars.fmax, arrays.fmax)),
    Ops.MIN: Meaning(_AND, _exact(min, np.minimum), _exact(scalars.fmin, arrays.fmin)),
    Ops.CMPLT: _everywhere(_exact(operator.lt, np.less)),
    Ops.CMPNE: _everywhere(_exact(operator.ne, np.not_equal)),
    Ops.CMPEQ: _everywhere(_exact(operator.eq, np.equal)),
    Ops.AND: Meaning(_AND, _AND),
    Ops.OR: Meaning(_OR, _OR),
    Ops.XOR: Meaning(*(_exact(operator.xor, np.bitwise_xor),) * 2),
    Ops.ATAN2: _function(np.arctan2),
    Ops.DOT4: Meaning(ints=_exact(scalars.dot4, arrays.dot4), only=int32),
    Ops.DOT2: Meaning(floats=_native(scalars.dot2, arrays.dot2), only=float32),
    Ops.THREEFRY: Meaning(ints=_exact(scalars.threefry, arrays.threefry), only=uint64),
    # three operands
    Ops.WHERE: _everywhere(_exact(scalars.where, np.where)),
    Ops.MULACC: Meaning(
        ints=Form(scalars.muladd, arrays.muladd), floats=Form(scalars.odd_fma, arrays.float_muladd)
    ),
    Ops.CHECK: Meaning(ints=_exact(scalars.check, arrays.check)),
}


def form_of(op: Op, dtype: DType) -> Form:
    """The form of an op on a scalar type; a DTypeError if there is none."""
    meaning = MEANING.get(op)
    if meaning is None:
        raise DTypeError(f"{op.name} is not arithmetic, so it has no value on its own")
    form = meaning.floats if dtype.is_float else meaning.ints if dtype.is_int else None
    if dtype.is_bool:
        form = meaning.bools
    if form is None or (meaning.sized and dtype.is_index) or meaning.only not in (None, dtype):
        raise DTypeError(f"{op.name} is not defined on {dtype}")
    return form


def defined(op: Op, dtype: DType) -> bool:
    """Does the op have a meaning on this scalar type?"""
    try:
        form_of(op, dtype)
    except DTypeError:
        return False
    return True


def _target(op: Op, source: DType, to: DType | None) -> DType:
    if to is None:
        raise DTypeError(f"{op.name} from {source} needs the type to convert to")
    form_of(op, to.scalar)
    if op is Ops.BITCAST and source.bits != to.scalar.bits:
        raise DTypeError(
            f"BITCAST keeps the bits, but {source} has {source.bits} and {to.scalar} has {to.scalar.bits}"
        )
    return to.scalar


# --- Python numbers


def evaluate(op: Op, dtype: DType, *values: Any, to: DType | None = None) -> Any:
    """The value of `op` on Python numbers of the scalar type `dtype` (for WHERE, the type of the branches).

    `to` is the target of a CAST or BITCAST and unused otherwise.
    """
    function = _functions.get((op, dtype, to))
    if function is None:
        function = evaluator(op, dtype, to)
    return function(*values)


def evaluator(op: Op, dtype: DType, to: DType | None = None) -> Function:
    """What `evaluate` calls, for many values of the same types."""
    function = _functions.get((op, dtype, to))
    if function is None:
        function = _functions[op, dtype, to] = _scalar_function(op, dtype.scalar, to)
    return function


_functions: dict[tuple[Op, DType, DType | None], Function] = {}


def _scalar_function(op: Op, dtype: DType, to: DType | None) -> Function:
    form = form_of(op, dtype)
    if op is Ops.CAST:
        return scalars.caster(dtype, _target(op, dtype, to))
    if op is Ops.BITCAST:
        return scalars.bitcaster(dtype, _target(op, dtype, to))
    function = _sized_function(op, dtype) or form.scalar
    if form.exact:
        return function
    if not dtype.is_float:
        return function if dtype.is_index else _wrapped(function, op.arity, dtype)
    if op is Ops.MULACC and dtype.bits == 64:
        function = scalars.fma
    return _rounded(function, op.arity, dtype)


# Folding calls these for every constant expression, so the usual arity is spelled out: passing `*values` on
# costs more than the arithmetic.


def _wrapped(function: Function, arity: int, dtype: DType) -> Function:
    low: int = dtype.min
    mask = (1 << dtype.bits) - 1
    if arity == 2:
        return lambda x, y: ((function(x, y) - low) & mask) + low
    return lambda *values: ((function(*values) - low) & mask) + low


def _rounded(function: Function, arity: int, dtype: DType) -> Function:
    if dtype is float64:
        return function
    if dtype is float32:
        return lambda *values: c_float(function(*values)).value
    if arity == 2:
        return lambda x, y: round_float(function(x, y), dtype)
    return lambda *values: round_float(function(*values), dtype)


def _sized_function(op: Op, dtype: DType) -> Function | None:
    """Functions that depend on the width of their integers."""
    bits = dtype.bits
    width: float = math.inf if dtype.is_index else bits
    if op is Ops.POPCOUNT:
        return lambda x: (x & ((1 << bits) - 1)).bit_count()
    if op is Ops.MULHI:
        return lambda x, y: x * y >> bits
    if op is Ops.SHL:
        return lambda x, y: x << y if 0 <= y < width else 0
    if op is Ops.SHR:
        return lambda x, y: x >> y if 0 <= y < width else -(x < 0)
    if op is Ops.POW and dtype.is_bounded_int:
        return lambda x, y: scalars.int_pow(x, y, 1 << bits)
    return None


# --- arrays


def evaluate_array(op: Op, dtype: DType, *values: Any, to: DType | None = None) -> Array:
    """The value of `op` on arrays of the scalar type `dtype`; they broadcast.

    The arguments are as in `evaluate`.
    """
    dtype = dtype.scalar
    form = form_of(op, dtype)
    own = storage(dtype)
    with np.errstate(all="ignore"):
        operands = [np.asarray(v, dtype=own) for v in values]
        if op is Ops.WHERE:
            operands[0] = np.asarray(values[0], dtype=np.bool_)
        if op is Ops.CAST:
            return np.asarray(arrays.cast(operands[0], dtype, _target(op, dtype, to)))
        if op is Ops.BITCAST:
            return arrays.bitcast(operands[0], _target(op, dtype, to))
        if dtype.is_float and op is not Ops.WHERE:
            return np.asarray(_float_array(op, form, dtype, operands))
        return np.asarray(form.array(*operands), dtype=np.bool_ if op.is_compare else own)


def _float_array(op: Op, form: Form, dtype: DType, operands: list[Array]) -> Array:
    if form.native and dtype.bits >= 32:
        return np.asarray(form.array(*operands))
    wide = [x.astype(np.float64) for x in operands]
    if op is Ops.MULACC:
        return arrays.float_muladd(dtype, *wide)
    result = np.asarray(form.array(*wide))
    return result if op.is_compare else arrays.narrow(result, dtype)


def result_dtype(op: Op, dtype: DType, to: DType | None = None) -> DType:
    """The type of the result of `op` on operands of `dtype`, vectors included."""
    if op in (Ops.CAST, Ops.BITCAST):
        return _target(op, dtype.scalar, to).vec(dtype.lanes)
    return bool_.vec(dtype.lanes) if op.is_compare else dtype
