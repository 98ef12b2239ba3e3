"""Shapes and movement: what changes where elements are, and not what they are."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto

from morok import dtype as dt
from morok.errors import ShapeError, UnsupportedModel
from morok.ir.bounds import vmax
from morok.ir.infer import show_shape
from morok.ir.node import UOp
from morok.ir.ops import Ops
from morok.onnx.ops.common import axes_of, axis_of, bordered, kept, known, product
from morok.onnx.table import Call, Ints, Nums, T, converted, op
from morok.onnx.types import dtype_of_elem, is_coded, numpy_type
from morok.onnx.values import Coded, Host, Value, elem_of
from morok.tensor.tensor import Tensor


def sizes_as_value(sizes: Any, elem: int = TensorProto.INT64) -> Host:
    """Sizes as a vector; symbolic ones stay what they are."""
    if any(isinstance(n, UOp) for n in sizes):
        array = np.empty(len(sizes), object)
        array[:] = list(sizes)
        return Host(array, elem)
    return Host(np.array([int(n) for n in sizes], np.int64), elem)


def shape_of(value: Value) -> tuple[Any, ...]:
    if isinstance(value, Host | Coded | Tensor):
        return tuple(value.shape)
    raise ShapeError(f"a {type(value).__name__} has no shape")


@op("Shape", since=1)
def shape(x: Value, *, start: int = 0, end: Any = None) -> Value:
    """The sizes, without looking at the values; symbolic ones stay symbolic."""
    sizes = shape_of(x)
    n = len(sizes)
    first = max(0, min(n, start + n if start < 0 else start))
    last = n if end is None else max(0, min(n, end + n if end < 0 else end))
    return sizes_as_value(sizes[first:last] if last > first else ())


@op("Size", since=1)
def size(x: Value) -> Value:
    made = sizes_as_value([product(shape_of(x))])
    return Host(made.array.reshape(()), made.elem)


@op("Constant", since=1)
def constant(
    *,
    value: Any = None,
    sparse_value: Any = None,
    value_float: Any = None,
    value_floats: Any = None,
    value_int: Any = None,
    value_ints: Any = None,
    value_string: Any = None,
    value_strings: Any = None,
) -> Value:
    """A value of the file: a tensor, a sparse one, a number, a string, or a list."""
    if value is not None or sparse_value is not None:
        held: Host = value if value is not None else sparse_value
        held.lasting = True
        return held
    for given, kind in (
        (value_float, np.float32),
        (value_floats, np.float32),
        (value_int, np.int64),
        (value_ints, np.int64),
    ):
        if given is not None:
            return Host(np.array(given, kind), lasting=True)
    if value_string is not None or value_strings is not None:
        text = np.array(value_string if value_string is not None else value_strings, object)
        return Host(text, TensorProto.STRING, lasting=True)
    raise UnsupportedModel("a Constant has no value")


@op("ConstantOfShape", since=9)
def constant_of_shape(shape: Ints, *, value: Any = None) -> Value:
    given: Host = value if value is not None else Host(np.zeros(1, np.float32))
    if is_coded(given.elem):
        return Host(
            np.full(
                tuple(known(n, "a shape") for n in shape), given.array.reshape(-1)[0], numpy_type(given.elem)
            ),
            given.elem,
        )
    return Tensor.full(tuple(shape), given.array.reshape(-1)[0].item(), dtype=dtype_of_elem(given.elem))


@op("Reshape", since=5, moves=True)
def reshape(x: T, shape: Ints, *, allowzero: int = 0) -> T:
    return _reshaped(x, shape, allowzero)


@op("Reshape", until=4)
def reshape_old(x: T, *, shape: Any, consumed_inputs: Any = None) -> T:
    return _reshaped(x, tuple(shape), 0)


def _reshaped(x: Tensor, shape: tuple[Any, ...], allowzero: int) -> Tensor:
    return x.reshape(resolved_shape(x.shape, shape, allowzero))


def resolved_shape(own: tuple[Any, ...], shape: tuple[Any, ...], allowzero: int) -> tuple[Any, ...]:
    """What a Reshape asks for, in sizes: 0 is the size that was there, -1 what is left."""
    sizes: list[Any] = []
    for i, n in enumerate(shape):
        if isinstance(n, int | np.integer) and n == 0 and not allowzero:
            if i >= len(own):
                raise ShapeError(f"axis {i} is to keep a size that shape {show_shape(own)} does not have")
            n = own[i]
        sizes.append(n)
    if any(isinstance(n, int | np.integer) and n == -1 for n in sizes):
        place = next(i for i, n in enumerate(sizes) if isinstance(n, int | np.integer) and n == -1)
        rest = product([n for i, n in enumerate(sizes) if i != place])
        total = product(own)
        if isinstance(rest, int) and isinstance(total, int):
            if rest == 0 or total % rest:
                raise ShapeError(f"shape {show_shape(own)} cannot become {show_shape(tuple(sizes))}")
            sizes[place] = total // rest
        else:
            sizes[place] = _quotient(own, [n for i, n in enumerate(sizes) if i != place])
    return tuple(sizes)


def _quotient(own: tuple[Any, ...], rest: list[Any]) -> Any:
    """The product of sizes over that of others, by leaving out what both have."""
    above, below = _factors(own), []
    for n in _factors(tuple(rest)):
        match = next((i for i, m in enumerate(above) if m is n or (isinstance(m, int) and m == n)), None)
        if match is None:
            below.append(n)
        else:
            above.pop(match)
    top, bottom = product(above), product(below)
    if isinstance(bottom, int) and bottom == 1:
        return top
    numbers = product([n for n in above if isinstance(n, int)])
    if isinstance(bottom, int) and bottom and numbers % bottom == 0:
        return product([*[n for n in above if not isinstance(n, int)], numbers // bottom])
    return top // bottom


def _factors(sizes: tuple[Any, ...]) -> list[Any]:
    """What sizes are products of: symbols one by one, and last one number."""
    found: list[Any] = []
    number, left = 1, list(sizes)
    while left:
        n = left.pop(0)
        if isinstance(n, UOp) and n.op is Ops.MUL:
            left += n.src
        elif isinstance(n, UOp) and n.op is not Ops.CONST:
            found.append(n)
        else:
            number *= int(n.arg) if isinstance(n, UOp) else int(n)
    return [*found, number] if number != 1 else found


@op("Flatten", since=1, moves=True)
def flatten(x: T, *, axis: int = 1) -> T:
    axis = axis_of(axis, x.ndim) if axis != x.ndim else axis
    return x.reshape((product(x.shape[:axis]), product(x.shape[axis:])))


@op("Squeeze", since=13, moves=True)
def squeeze(x: T, axes: Ints | None) -> T:
    return _squeezed(x, axes)


@op("Squeeze", until=12, moves=True)
def squeeze_old(x: T, *, axes: Any = None) -> T:
    return _squeezed(x, axes)


def _squeezed(x: Tensor, axes: Any) -> Tensor:
    if axes is None:
        gone = {i for i, n in enumerate(x.shape) if isinstance(n, int) and n == 1}
    else:
        gone = set(axes_of(axes, x.ndim))
        for i in gone:
            if x.shape[i] != 1:
                raise ShapeError(f"axis {i} of shape {show_shape(x.shape)} is not of size 1")
    return x.reshape(tuple(n for i, n in enumerate(x.shape) if i not in gone))


@op("Unsqueeze", since=13, moves=True)
def unsqueeze(x: T, axes: Ints) -> T:
    return x.reshape(unsqueezed_shape(x.shape, axes))


@op("Unsqueeze", until=12, moves=True)
def unsqueeze_old(x: T, *, axes: Any) -> T:
    return x.reshape(unsqueezed_shape(x.shape, axes))


def unsqueezed_shape(own: tuple[Any, ...], axes: Any) -> tuple[Any, ...]:
    ndim = len(own) + len(axes)
    new = set(axes_of(axes, ndim))
    if len(new) != len(axes):
        raise ShapeError(f"axes {list(axes)} name an axis twice")
    rest = iter(own)
    return tuple(1 if i in new else next(rest) for i in range(ndim))


@op("Transpose", since=1, moves=True)
def transpose(x: T, *, perm: Any = None) -> T:
    return x.permute(tuple(perm) if perm is not None else tuple(range(x.ndim))[::-1])


@op("Expand", since=8, moves=True)
def expand(x: T, shape: Ints) -> T:
    return x.expand(broadcast_with(x.shape, shape))


def broadcast_with(own: tuple[Any, ...], shape: tuple[Any, ...]) -> tuple[Any, ...]:
    ndim = max(len(own), len(shape))
    a, b = (1,) * (ndim - len(own)) + tuple(own), (1,) * (ndim - len(shape)) + tuple(shape)
    return tuple(m if isinstance(n, int | np.integer) and n == 1 else n for m, n in zip(a, b, strict=True))


@op("Concat", since=4, moves=True)
def concat(*xs: T, axis: int) -> T:
    return kept(xs[0]).cat(*map(kept, xs[1:]), dim=axis) if len(xs) > 1 else xs[0]


@op("Concat", until=3, moves=True)
def concat_old(*xs: T, axis: int = 1) -> T:
    return concat(*xs, axis=axis)


@op("Slice", since=10, moves=True)
def slice_(x: T, starts: Ints, ends: Ints, axes: Ints | None, steps: Ints | None) -> T:
    return _sliced(x, starts, ends, axes, steps)


@op("Slice", until=9, moves=True)
def slice_old(x: T, *, starts: Any, ends: Any, axes: Any = None) -> T:
    return _sliced(x, tuple(starts), tuple(ends), axes, None)


def slices(own: tuple[Any, ...], starts: Any, ends: Any, axes: Any, steps: Any) -> list[Any]:
    """Python's slices for what a Slice asks for; ends beyond the axis are cut as the specification says."""
    found: list[Any] = [slice(None)] * len(own)
    places = axes_of(axes, len(own)) if axes is not None else range(len(starts))
    for i, axis in enumerate(places):
        step = 1 if steps is None else known(steps[i], "the step of a slice")
        found[axis] = _slice(own[axis], starts[i], ends[i], step)
    return found


def _slice(size: Any, start: Any, end: Any, step: int) -> slice:
    if isinstance(size, int) and not isinstance(start, UOp) and not isinstance(end, UOp):
        return _known_slice(size, int(start), int(end), step)
    most = size if isinstance(size, int) else vmax(size)  # ends that no size reaches are the axis's own
    up = step > 0
    if not isinstance(start, UOp) and (start <= -most if up else start >= most - 1):
        start = None
    if not isinstance(end, UOp) and (end >= most if up else end < -most):
        end = None
    return slice(start, end, step if step != 1 else None)


def _known_slice(size: int, start: int, end: int, step: int) -> slice:
    if step == 0:
        raise ShapeError("the step of a slice is not 0")
    start, end = start + size if start < 0 else start, end + size if end < 0 else end
    if step > 0:
        start, end = min(max(start, 0), size), min(max(end, 0), size)
        return slice(start, max(end, start), step)
    start, end = min(max(start, 0), size - 1), min(max(end, -1), size - 1)
    if start <= end:
        return slice(0, 0, 1)
    return slice(start, end if end >= 0 else None, step)


def _sliced(x: Tensor, starts: Any, ends: Any, axes: Any, steps: Any) -> Tensor:
    return x[tuple(slices(x.shape, starts, ends, axes, steps))] if x.ndim else x


@op("Split", since=18, moves=True)
def split(call: Call, x: T, sizes: Ints | None, *, axis: int = 0, num_outputs: Any = None) -> Any:
    count = num_outputs if num_outputs is not None else len(call.outputs)
    return tuple(x.split(list(split_sizes(x.shape[axis], sizes, count)), dim=axis))


@op("Split", since=13, until=17, moves=True)
def split_13(call: Call, x: T, sizes: Ints | None, *, axis: int = 0) -> Any:
    return tuple(x.split(list(split_sizes(x.shape[axis], sizes, len(call.outputs))), dim=axis))


@op("Split", until=12, moves=True)
def split_old(call: Call, x: T, sizes: Ints | None, *, axis: int = 0, split: Any = None) -> Any:
    given = split if split is not None else sizes
    return tuple(x.split(list(split_sizes(x.shape[axis], given, len(call.outputs))), dim=axis))


def split_sizes(size: Any, sizes: Any, count: int) -> tuple[Any, ...]:
    if sizes is not None:
        return tuple(sizes)
    size = known(size, "a split into equal parts")
    each = -(-size // count)
    parts = [max(0, min(each, size - i * each)) for i in range(count)]
    return tuple(parts)


@op("Tile", since=6, moves=True)
def tile(x: T, repeats: Ints) -> T:
    return x.repeat(*repeats) if x.ndim else x


@op("Tile", until=5, moves=True)
def tile_old(x: T, tiles: Nums, axis: Nums) -> T:
    return x.repeat(*[int(tiles[0]) if i == int(axis[0]) else 1 for i in range(x.ndim)])


@op("Pad", since=11)
def pad(x: T, pads: Ints, value: T | None, axes: Ints | None, *, mode: str = "constant") -> T:
    """A border of a value, or of what lies inside: reflected, the edge, or wrapped; negative ones cut."""
    return _padded(x, pads, value, axes, mode)


@op("Pad", until=10)
def pad_old(x: T, *, pads: Any = None, paddings: Any = None, value: float = 0.0, mode: str = "constant") -> T:
    filling = Tensor(value, dtype=x.dtype)
    return _padded(x, tuple(pads if pads is not None else paddings), filling, None, mode)


def _padded(x: Tensor, pads: Any, value: Tensor | None, axes: Any, mode: str) -> Tensor:
    places = axes_of(axes, x.ndim)
    around: list[tuple[Any, Any]] = [(0, 0)] * x.ndim
    for i, axis in enumerate(places):
        around[axis] = (pads[i], pads[i + len(places)])
    if mode == "constant":
        if any(_negative(p) for pair in around for p in pair):
            x = x.shrink(
                tuple((-a, n + b) for (a, b), n in zip(_only_negative(around), x.shape, strict=True))
            )
            around = [(0 if _negative(a) else a, 0 if _negative(b) else b) for a, b in around]
        return _filled(x, tuple(around), value)
    named = {"reflect": "reflect", "edge": "replicate", "wrap": "circular"}.get(mode)
    if named is None:
        raise UnsupportedModel(f"a border of mode {mode!r} is not known")
    for axis, (before, after) in enumerate(around):
        before, after = known(before, "a border"), known(after, "a border")
        if before or after:
            x = bordered(x, axis, before, after, mode)
    return x


def _negative(n: Any) -> bool:
    return not isinstance(n, UOp) and n < 0


def _less_zero(n: Any) -> Any:
    return n if _negative(n) else 0


def _only_negative(around: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    return [(_less_zero(a), _less_zero(b)) for a, b in around]


def _filled(x: Tensor, around: tuple[Any, ...], value: Tensor | None) -> Tensor:
    if all(not isinstance(p, UOp) and p == 0 for pair in around for p in pair):
        return x
    x = kept(x)
    if value is None:
        return x.pad(around)
    inside = Tensor.full(x.shape, True, dtype=dt.bool_).pad(around)
    return inside.where(x.pad(around), value.reshape(()).cast(x.dtype))


@op("Trilu", since=14)
def trilu(x: T, k: Ints | None, *, upper: int = 1) -> T:
    diagonal = k[0] if k else 0
    return x.triu(diagonal) if upper else x.tril(diagonal)


@op("EyeLike", since=9)
def eye_like(x: Value, *, dtype: Any = None, k: int = 0) -> T:
    rows, columns = (known(n, "EyeLike") for n in shape_of(x))
    kind = dtype_of_elem(dtype if dtype is not None else elem_of(x))
    return Tensor(np.eye(rows, columns, k, np.int8)).cast(kind)


@op("DepthToSpace", since=11)
def depth_to_space(x: T, *, blocksize: int, mode: str = "DCR") -> T:
    return _depth_to_space(x, blocksize, mode)


@op("DepthToSpace", until=10)
def depth_to_space_old(x: T, *, blocksize: int) -> T:
    return _depth_to_space(x, blocksize, "DCR")


def _depth_to_space(x: Tensor, block: int, mode: str) -> Tensor:
    b, c, h, w = x.shape
    inner = known(c, "channels") // (block * block)
    if mode == "DCR":
        parts = x.reshape(b, block, block, inner, h, w).permute(0, 3, 4, 1, 5, 2)
    else:
        parts = x.reshape(b, inner, block, block, h, w).permute(0, 1, 4, 2, 5, 3)
    return parts.reshape(b, inner, h * block, w * block)


@op("SpaceToDepth", since=28)
def space_to_depth_28(x: T, *, blocksize: int, mode: str = "DCR") -> T:
    return _space_to_depth(x, blocksize, mode)


@op("SpaceToDepth", until=27)
def space_to_depth(x: T, *, blocksize: int) -> T:
    return _space_to_depth(x, blocksize, "DCR")


def _space_to_depth(x: Tensor, block: int, mode: str) -> Tensor:
    b, c, h, w = x.shape
    h, w = known(h, "SpaceToDepth") // block, known(w, "SpaceToDepth") // block
    parts = x.reshape(b, c, h, block, w, block)
    order = (0, 3, 5, 1, 2, 4) if mode == "DCR" else (0, 1, 3, 5, 2, 4)
    return parts.permute(*order).reshape(b, known(c, "channels") * block * block, h, w)


@op("ReverseSequence", since=10)
def reverse_sequence(x: T, lengths: T, *, batch_axis: int = 1, time_axis: int = 0) -> T:
    n, rows = x.shape[time_axis], x.shape[batch_axis]
    ndim = x.ndim
    places = Tensor.arange(n).reshape([n if i == time_axis else 1 for i in range(ndim)])
    each = lengths.cast(dt.int64).reshape([rows if i == batch_axis else 1 for i in range(ndim)])
    turned = (places < each).where(each - 1 - places, places)
    return x.gather(time_axis, turned.expand(x.shape))


@op("Range", since=11)
def range_(call: Call, start: Value, limit: Value, step: Value, *, stash_type: int = 1) -> T:
    """Numbers in steps; the three have to be known, and whole ones may be symbolic sizes."""
    first, last, by = (converted("Nums", v, n)[0] for n, v in enumerate((start, limit, step)))
    elem = elem_of(start)
    if any(isinstance(n, UOp) for n in (first, last, by)):
        first, by = (int(n) if isinstance(n, float) and n.is_integer() else n for n in (first, by))
        return Tensor.arange(first, last, known(by, "the step of a range"), dtype=dtype_of_elem(elem))
    kind = numpy_type(elem)
    first, last, by = (
        np.array(n, kind).astype(np.float64 if kind.kind not in "iu" else kind).item()
        for n in (first, last, by)
    )
    count = (
        max(int(np.ceil((last - first) / by)), 0) if kind.kind not in "iu" else len(range(first, last, by))
    )
    return Tensor((first + np.arange(count) * by).astype(kind)) if count else Tensor(np.zeros(0, kind))
