"""What operators do with small arrays that are known while tracing: the arithmetic of shapes, and strings.

Functions get arrays as `Host` values. Elements may be symbolic sizes, in arrays of objects. Whether n is
equal to 5 is computed by a kernel then; which of n and 5 is less, if that is to be a size, is an error, upon
which the caller goes on with numbers. A symbolic size in a floating type is a whole number that the type has:
counters of loops take that way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import TensorProto

from morok.errors import OutOfRange, ShapeError
from morok.ir.bounds import bounds
from morok.ir.node import UOp
from morok.onnx.ops.common import axes_of, axis_of
from morok.onnx.ops.shape import resolved_shape, slices, split_sizes, unsqueezed_shape
from morok.onnx.table import Call, on_host
from morok.onnx.types import is_coded, numpy_type
from morok.onnx.values import SMALL, Host

_INTS = (TensorProto.INT64, TensorProto.INT32)
_PLAIN = frozenset((*_INTS, TensorProto.BOOL, TensorProto.FLOAT, TensorProto.DOUBLE))


def _numeric(*hosts: Host | None) -> bool:
    """Whether NumPy computes with these types as the specification says."""
    return all(h is None or h.elem in _PLAIN for h in hosts)


def host(array: Any, like: Host) -> Host:
    """An array of the type of another value; objects that hold no symbolic size become numbers."""
    found = np.asarray(array)
    if like.is_text:
        return Host(found.astype(object), like.elem)
    if found.dtype == object and not any(isinstance(n, UOp) for n in found.reshape(-1)):
        found = found.astype(numpy_type(like.elem))
    elif found.dtype != object:
        found = found.astype(numpy_type(like.elem), copy=False)
    return Host(found, like.elem)


_WHOLE: dict[int, int] = {
    TensorProto.FLOAT: 1 << 24,
    TensorProto.DOUBLE: 1 << 53,
}  # up to which it has all whole numbers


def _objects(value: Host) -> Any:
    if value.symbolic:
        return value.array
    whole = value.elem in _WHOLE and _are_whole(value)
    return (value.array.astype(np.int64) if whole else value.array).astype(object)


def _are_whole(value: Host) -> bool:
    """Whether the elements are whole numbers that the type counts with."""
    if value.elem in _INTS:
        return True
    most = _WHOLE.get(value.elem, 0)
    if value.symbolic:
        return all(-most <= low and high <= most for low, high in map(_interval, value.array.reshape(-1)))
    return bool(np.all((np.abs(value.array) <= most) & (value.array == np.floor(value.array))))


def _arithmetic(*names: str, ints: Callable[[Any, Any], Any], floats: Callable[[Any, Any], Any]) -> None:
    @on_host(*names)
    def compute(call: Call, a: Host, b: Host, **attributes: Any) -> Any:
        if attributes.get("broadcast") or not _numeric(a, b):
            return NotImplemented
        with np.errstate(all="ignore"):
            if a.symbolic or b.symbolic:
                if a.elem not in _INTS and (
                    names[0] in ("Div", "Pow") or not _are_whole(a) or not _are_whole(b)
                ):
                    return NotImplemented
                made = host(np.frompyfunc(ints, 2, 1)(_objects(a), _objects(b)), a)
                return made if _are_whole(made) else NotImplemented
            return host((ints if a.elem in _INTS else floats)(a.array, b.array), a)


def _quotient(a: Any, b: Any) -> Any:
    """Division toward zero; sizes are not negative."""
    if isinstance(a, UOp) or isinstance(b, UOp):
        if any(isinstance(n, UOp) and bounds(n)[0] < 0 for n in (a, b)) or (
            not isinstance(b, UOp) and b <= 0
        ):
            raise ShapeError("a symbolic size is divided by something that may not be positive")
        return a // b
    if np.any(np.equal(b, 0)):
        raise ShapeError("a known number is divided by 0")
    return np.sign(a) * np.sign(b) * (abs(a) // abs(b))


def _extreme(pick: Callable[[Any, Any], Any], larger: bool) -> Callable[[Any, Any], Any]:
    def compute(a: Any, b: Any) -> Any:
        if not isinstance(a, UOp) and not isinstance(b, UOp):
            return pick(a, b)
        low_a, high_a = _interval(a)
        low_b, high_b = _interval(b)
        if low_a >= high_b:
            return a if larger else b
        if low_b >= high_a:
            return b if larger else a
        raise ShapeError("which of two sizes is larger depends on a symbolic one")

    return compute


def _interval(n: Any) -> tuple[int, int]:
    return bounds(n) if isinstance(n, UOp) else (int(n), int(n))


_arithmetic("Add", ints=lambda a, b: a + b, floats=np.add)
_arithmetic("Sub", ints=lambda a, b: a - b, floats=np.subtract)
_arithmetic("Mul", ints=lambda a, b: a * b, floats=np.multiply)
_arithmetic("Div", ints=_quotient, floats=np.divide)
_arithmetic("Pow", ints=lambda a, b: a**b, floats=np.power)


@on_host("Max", "Min")
def extreme(call: Call, *hosts: Host, **_: Any) -> Any:
    larger = call.node.op == "Max"
    if not _numeric(*hosts):
        return NotImplemented
    if any(h.symbolic for h in hosts) and not all(map(_are_whole, hosts)):
        return NotImplemented
    pick = _extreme(np.maximum if larger else np.minimum, larger)
    result = hosts[0]
    for other in hosts[1:]:
        if result.symbolic or other.symbolic:
            result = host(np.frompyfunc(pick, 2, 1)(_objects(result), _objects(other)), result)
        else:
            result = host(pick(result.array, other.array), result)
    return result


@on_host("Mod")
def mod(call: Call, a: Host, b: Host, *, fmod: int = 0) -> Any:
    if not _numeric(a, b) or a.elem not in _INTS or not b.array.all():
        return NotImplemented
    if a.symbolic or b.symbolic:
        return host(np.frompyfunc(lambda x, y: x % y, 2, 1)(_objects(a), _objects(b)), a)
    return host((np.fmod if fmod else np.mod)(a.array, b.array), a)


def _is_equal(a: Any, b: Any) -> bool | None:
    if a[1] < b[0] or b[1] < a[0]:
        return False
    return True if a[0] == a[1] == b[0] == b[1] else None


def _is_less(a: Any, b: Any) -> bool | None:
    return True if a[1] < b[0] else False if a[0] >= b[1] else None


_COMPARISONS: dict[str, tuple[Any, Callable[..., Any]]] = {
    "Equal": (np.equal, _is_equal),
    "Less": (np.less, _is_less),
    "Greater": (np.greater, lambda a, b: _is_less(b, a)),
    "LessOrEqual": (np.less_equal, lambda a, b: None if (r := _is_less(b, a)) is None else not r),
    "GreaterOrEqual": (np.greater_equal, lambda a, b: None if (r := _is_less(a, b)) is None else not r),
}


@on_host(*_COMPARISONS)
def compare(call: Call, a: Host, b: Host, **attributes: Any) -> Any:
    plain, decide = _COMPARISONS[call.node.op]
    if a.is_text or b.is_text or attributes.get("broadcast"):
        return NotImplemented
    if a.symbolic or b.symbolic:
        same = np.frompyfunc(lambda x, y: x is y, 2, 1)(_objects(a), _objects(b))
        if call.node.op == "Equal" and np.all(same):
            return Host(np.ones(same.shape, bool))
        if a.elem not in _INTS:
            return NotImplemented
        pairs = np.frompyfunc(lambda x, y: decide(_interval(x), _interval(y)), 2, 1)
        found = np.asarray(pairs(_objects(a), _objects(b)))
        if None in found.reshape(-1).tolist():  # sizes do not say: it is computed, and read if it has to be
            return NotImplemented
        return Host(found.astype(bool))
    if not _numeric(a, b):
        return NotImplemented
    return Host(np.asarray(plain(a.array, b.array)))


@on_host("And", "Or", "Xor")
def logical(call: Call, a: Host, b: Host, **attributes: Any) -> Any:
    if attributes.get("broadcast"):
        return NotImplemented
    compute = {"And": np.logical_and, "Or": np.logical_or, "Xor": np.logical_xor}[call.node.op]
    return Host(np.asarray(compute(a.array, b.array)))


@on_host("Not")
def not_(call: Call, x: Host, **_: Any) -> Any:
    return Host(np.logical_not(x.array))


@on_host("Neg", "Abs", "Floor", "Ceil", "Sqrt", "Sign")
def unary(call: Call, x: Host, **_: Any) -> Any:
    if x.symbolic and call.node.op in ("Floor", "Ceil"):
        return x
    if not _numeric(x) or (x.symbolic and call.node.op != "Neg"):
        return NotImplemented
    name = {"Neg": "negative", "Abs": "absolute"}.get(call.node.op, call.node.op.lower())
    with np.errstate(all="ignore"):
        return host(getattr(np, name)(x.array), x)


@on_host("Where")
def where(call: Call, condition: Host, a: Host, b: Host) -> Any:
    if (a.symbolic or b.symbolic) and not (_are_whole(a) and _are_whole(b)):
        return NotImplemented
    if a.is_text or a.symbolic or b.symbolic:
        return host(np.where(condition.array, _objects(a), _objects(b)), a)
    return host(np.where(condition.array, a.array, b.array), a)


@on_host("Cast")
def cast(call: Call, x: Host, *, to: int, **_: Any) -> Any:
    if x.symbolic:
        made = Host(x.array, to)
        return made if to in _INTS or (to in _WHOLE and _are_whole(made)) else NotImplemented
    if to not in _PLAIN or not _numeric(x):
        return NotImplemented
    if x.array.dtype.kind == "f" and to in _INTS:
        if not np.all(np.isfinite(x.array)) or np.any(np.abs(x.array) >= 2.0**31):
            return NotImplemented
    return Host(x.array.astype(numpy_type(to)), to)


# --- movement, of numbers and of strings alike


@on_host("Identity")
def identity(call: Call, x: Host, **_: Any) -> Any:
    return x


@on_host("Reshape")
def reshape(call: Call, x: Host, shape: Host | None = None, *, allowzero: int = 0, **_: Any) -> Any:
    if shape is None or shape.symbolic:
        return NotImplemented
    wanted = resolved_shape(x.shape, tuple(int(n) for n in shape.array.reshape(-1)), allowzero)
    try:
        return host(x.array.reshape(wanted), x)
    except ValueError:
        raise ShapeError(f"shape {x.shape} cannot become {wanted}") from None


@on_host("Squeeze")
def squeeze(call: Call, x: Host, given: Host | None = None, *, axes: Any = None) -> Any:
    wanted = given.array.reshape(-1).tolist() if given is not None else axes
    if wanted is None:
        return host(x.array.squeeze(), x)
    places = axes_of(wanted, x.array.ndim)
    if any(x.shape[i] != 1 for i in places):
        raise ShapeError(f"axes {list(wanted)} of shape {x.shape} are not of size 1")
    return host(x.array.squeeze(tuple(places)), x)


@on_host("Unsqueeze")
def unsqueeze(call: Call, x: Host, given: Host | None = None, *, axes: Any = None) -> Any:
    wanted = given.array.reshape(-1).tolist() if given is not None else axes
    return host(x.array.reshape(unsqueezed_shape(x.shape, wanted)), x)


@on_host("Flatten")
def flatten(call: Call, x: Host, *, axis: int = 1) -> Any:
    rows = int(np.prod(x.shape[:axis])) if axis else 1
    return host(x.array.reshape(rows, -1), x)


@on_host("Transpose")
def transpose(call: Call, x: Host, *, perm: Any = None) -> Any:
    return host(x.array.transpose(perm), x)


@on_host("Concat")
def concat(call: Call, *xs: Host, axis: int) -> Any:
    axis_of(axis, xs[0].array.ndim)
    symbolic = next((x for x in xs if x.symbolic), None)
    if symbolic is not None and not all(map(_are_whole, xs)):
        return NotImplemented
    arrays = [x.array if symbolic is None else _objects(x) for x in xs]
    try:
        return host(np.concatenate(arrays, axis), xs[0])
    except ValueError as error:
        raise ShapeError(f"arrays do not fit together: {error}") from None


@on_host("Gather")
def gather(call: Call, x: Host, places: Host, *, axis: int = 0) -> Any:
    if places.symbolic:
        return NotImplemented
    n = x.shape[axis_of(axis, x.array.ndim)]
    if places.array.size and not (-n <= places.array.min() and places.array.max() < n):
        raise OutOfRange(f"a position is outside of an axis of size {n}")
    return host(np.take(x.array, places.array, axis=axis), x)


@on_host("Slice")
def slice_(
    call: Call, x: Host, starts: Any = None, ends: Any = None, axes: Any = None, steps: Any = None, **old: Any
) -> Any:
    given = [starts, ends, axes, steps]
    if old:
        given = [
            None if v is None else Host(np.array(v)) for v in (old["starts"], old["ends"], old.get("axes"))
        ]
        given.append(None)
    if any(isinstance(v, Host) and v.symbolic for v in given):
        return NotImplemented
    lists = [None if v is None else v.array.reshape(-1).tolist() for v in given]
    return host(x.array[tuple(slices(x.shape, *lists))], x)


@on_host("Split")
def split(call: Call, x: Host, sizes: Host | None = None, *, axis: int = 0, **old: Any) -> Any:
    given = sizes.array.tolist() if sizes is not None else old.get("split")
    count = old.get("num_outputs") or len(call.outputs)
    ends = np.cumsum(split_sizes(x.shape[axis], given, count))[:-1]
    return tuple(host(part, x) for part in np.split(x.array, ends, axis))


@on_host("Expand")
def expand(call: Call, x: Host, shape: Host) -> Any:
    if shape.symbolic or (not x.is_text and np.prod(shape.array) > SMALL):
        return NotImplemented
    wanted = np.broadcast_shapes(x.shape, tuple(int(n) for n in shape.array))
    return host(np.broadcast_to(x.array, wanted).copy(), x)


@on_host("Tile")
def tile(call: Call, x: Host, repeats: Host, *old: Any) -> Any:
    if repeats.symbolic or old or (not x.is_text and x.array.size * np.prod(repeats.array) > SMALL):
        return NotImplemented
    return host(np.tile(x.array, tuple(int(n) for n in repeats.array)), x)


@on_host("ConstantOfShape")
def constant_of_shape(call: Call, shape: Host, *, value: Any = None) -> Any:
    if shape.symbolic or (value is not None and is_coded(value.elem)) or np.prod(shape.array) > SMALL:
        return NotImplemented
    filling = value if value is not None else Host(np.zeros(1, np.float32))
    sizes = tuple(int(n) for n in shape.array)
    if any(n < 0 for n in sizes):
        raise ShapeError(f"shape {sizes} has a negative size")
    return host(np.full(sizes, filling.array.reshape(-1)[0], filling.array.dtype), filling)


@on_host("Range")
def range_(call: Call, start: Host, limit: Host, step: Host, **_: Any) -> Any:
    if any(h.symbolic or h.elem not in _INTS for h in (start, limit, step)):
        return NotImplemented
    numbers = range(int(start.array.item()), int(limit.array.item()), int(step.array.item()))
    if len(numbers) > SMALL:
        return NotImplemented
    return host(np.array(numbers, np.int64), start)


_REDUCE: dict[str, Any] = {
    "ReduceProd": np.prod,
    "ReduceSum": np.sum,
    "ReduceMax": np.max,
    "ReduceMin": np.min,
}


@on_host(*_REDUCE)
def reduce(call: Call, x: Host, given: Host | None = None, **attributes: Any) -> Any:
    wanted = given.array.reshape(-1).tolist() if given is not None else attributes.get("axes")
    keep = bool(attributes.get("keepdims", 1))
    if x.elem not in _INTS or (not wanted and attributes.get("noop_with_empty_axes")) or not x.array.size:
        return NotImplemented
    axes = None if not wanted else axes_of(wanted, x.array.ndim)
    if x.symbolic and call.node.op in ("ReduceMax", "ReduceMin"):
        return NotImplemented
    return host(_REDUCE[call.node.op](x.array, axis=axes, keepdims=keep), x)


@on_host("Size", "Shape")
def sizes(call: Call, x: Host, **_: Any) -> Any:
    return NotImplemented


@on_host("NonZero")
def nonzero(call: Call, x: Host) -> Any:
    if x.symbolic or x.is_text:
        return NotImplemented
    return Host(np.array(np.nonzero(x.array), np.int64).reshape(max(x.array.ndim, 1), -1))
