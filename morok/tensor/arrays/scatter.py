"""Writing to places that are known when the program runs, as functions: the result is a new tensor.

One mechanism: the tensor as a table of rows, rows put one after the other (`rows.py`). Later ones win; with a
reduction they add up. In order on a processor; on a GPU in any order, with sums that no order changes
(`schedule/graph/scatters.py`). So the result is the same every time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from morok.dtype import int64, promote_scalar
from morok.errors import ArgumentError, DTypeError, ShapeError
from morok.ir import build
from morok.ir.infer import Shape, show_shape
from morok.ir.node import UOp, const
from morok.ir.ops import Op, Ops
from morok.tensor.arrays.index import Steps, as_rows, index_along, places_along, whole_positions
from morok.tensor.arrays.movement import expand, permute, reshape, shrink, squeeze
from morok.tensor.arrays.rows import put_rows
from morok.tensor.core import Core, expand_to, iota
from morok.tensor.creation.constructors import as_operand, full_like
from morok.tensor.dtypes import accumulator
from morok.tensor.elementwise.conversion import cast
from morok.tensor.elementwise.operators import T
from morok.tensor.memory.storage import before_expand
from morok.tensor.sizes import as_axis, broadcast_shapes

_REDUCTIONS: dict[str, Op] = {
    "sum": Ops.ADD, "add": Ops.ADD, "mean": Ops.ADD, "prod": Ops.MUL, "multiply": Ops.MUL,
    "amax": Ops.MAX, "max": Ops.MAX, "amin": Ops.MIN, "min": Ops.MIN,
}  # fmt: skip


def fitted(x: T, value: Any, sizes: Shape) -> UOp:
    """A value in this tensor's type and in the shape that it is written to."""
    if isinstance(value, bool | int | float):
        if not isinstance(value, float):
            promote_scalar(x.dtype, value)  # refuses integers that do not fit
        return expand_to(const(x.dtype, value), sizes)
    tensor = as_operand(x, value)
    own = tensor.shape
    if len(own) > len(sizes):  # leading axes of size 1 may go, as in NumPy
        extra = len(own) - len(sizes)
        tensor = x._new(tensor.uop)
        tensor = squeeze(tensor, tuple(range(extra))) if own[:extra] == (1,) * extra else tensor
    try:
        fits = broadcast_shapes(tensor.shape, sizes) == sizes
    except ShapeError:
        fits = False
    if not fits:
        raise ShapeError(
            f"a value of shape {show_shape(own)} does not fit into {show_shape(sizes)}; "
            "it must broadcast to it"
        )
    return expand_to(build.cast(tensor.uop, x.dtype), sizes)


def with_rows(x: T, steps: Steps, value: Any, op: Op | None = None) -> UOp:
    """The tensor with what arrays of integers name overwritten, or joined with a value by an op."""
    rows = as_rows(x, steps.arrays, writes=True)
    order = rows.order(steps.at)
    inner = (*rows.places.shape, *(x.shape[axis] for axis in rows.rest))
    new = x._new(fitted(x, value, tuple(inner[i] for i in order)))
    new = permute(new, sorted(range(len(order)), key=order.__getitem__))
    table = put(x, rows.table, rows.places, new, op)
    back = reshape(table, [x.shape[axis] for axis in (*rows.axes, *rows.rest)])
    moved = [*rows.axes, *rows.rest]
    return permute(back, sorted(range(len(moved)), key=moved.__getitem__)).uop


def put(x: T, table: Core, places: Core, new: Core, op: Op | None) -> T:
    """Rows put into a table; sums and products of narrow floats are carried in 32 bits."""
    own = x.dtype
    wide = accumulator(own) if op in (Ops.ADD, Ops.MUL) and own.is_float else own
    rows = put_rows(build.cast(table.uop, wide), places.uop, build.cast(new.uop, wide), op)
    return x._new(build.cast(rows, own))


def _scattered(x: T, index: Any, axis: int, source: Any, op: Op | None, what: str) -> T:
    """One element per place of an index that has x's axes."""
    where = index_along(x, index, axis, what, writes=True)
    if not isinstance(source, Core):
        new = x._new(fitted(x, source, where.shape))
    else:
        new = x._new(source.uop)
        if new.ndim != where.ndim or any(_shorter(n, m) for n, m in zip(new.shape, where.shape, strict=True)):
            raise ShapeError(
                f"{what} with an index of shape {show_shape(where.shape)} needs as many values or more "
                f"along each axis, not {show_shape(new.shape)}"
            )
        if new.dtype is not x.dtype:
            raise DTypeError(f"{what} into {x.dtype} needs values of that type, not {new.dtype}; cast them")
        new = shrink(new, [(0, size) for size in where.shape])
    axes = 1 + max(i for i in range(x.ndim) if i == axis or not _is_repeated(index, x, i))
    if axes < x.ndim:
        return _scattered_rows(x, index, axis, axes, new, op)
    flat = reshape(x, x.numel())
    places = places_along(x, where, axis).reshape(where.numel())
    return reshape(put(x, flat, places, reshape(new, where.numel()), op), x.shape)


def _is_repeated(index: Any, x: T, axis: int) -> bool:
    """Whether an index is one number over and over along the whole of an axis."""
    if not isinstance(index, Core) or index.shape[axis] != x.shape[axis] or x.shape[axis] == 1:
        return False
    before = before_expand(index.uop)  # sums of rows are not added as those of numbers are
    return before is not None and before[axis] == 1


def _scattered_rows(x: T, index: Core, axis: int, axes: int, new: T, op: Op | None) -> T:
    """As above, where an index is the same along all axes behind the first ones: whole rows go to places."""
    where = x._new(index.uop)
    where = shrink(where, [(0, n if i < axes else 1) for i, n in enumerate(where.shape)])
    sizes = where.shape[:axes]
    own = reshape(where, sizes)
    arrays: list[tuple[int, Any]] = [
        (i, own if i == axis else x._new(expand_to(iota(sizes, i, int64), sizes))) for i in range(axes)
    ]
    rows = as_rows(x, arrays, writes=True)
    return reshape(put(x, rows.table, rows.places, new, op), x.shape)


def scatter(
    x: T,
    dim: Any = None,
    index: Any = None,
    src: Any = None,
    reduce: str | None = None,
    *,
    axis: Any = None,
) -> T:
    """x with `src` at the places along `dim` that `index` names; the last of several wins.

    Negative positions count from the end; others that there are not raise OutOfRange.

    >>> Tensor([0, 0, 0]).scatter(0, Tensor([2, 0]), Tensor([5, 6])).tolist()
    [6, 0, 5]
    """
    if not x.ndim:
        return _as_one(x, index, src, lambda t, i, s: scatter(t, dim, i, s, reduce, axis=axis))
    at = as_axis(dim if axis is None else axis, x.ndim, x.shape)
    return _scattered(x, index, at, src, None if reduce is None else _reduction(reduce), "scatter")


def scatter_add(x: T, dim: Any = None, index: Any = None, src: Any = None, *, axis: Any = None) -> T:
    """x with `src` added at the places along `dim` that `index` names.

    >>> Tensor([0, 0, 0]).scatter_add(0, Tensor([2, 2]), Tensor([5, 6])).tolist()
    [0, 0, 11]
    """
    return scatter(x, dim, index, src, "add", axis=axis)


def scatter_reduce(
    x: T,
    dim: Any = None,
    index: Any = None,
    src: Any = None,
    reduce: str = "sum",
    include_self: bool = True,
    *,
    axis: Any = None,
) -> T:
    """x joined with `src` at places along `dim`, by "sum", "prod", "mean", "amax" or "amin".

    >>> Tensor([1, 1]).scatter_reduce(0, Tensor([0, 0]), Tensor([5, 6]), "amax").tolist()
    [6, 1]
    """
    op = _reduction(reduce)
    if not x.ndim:
        return _as_one(
            x, index, src, lambda t, i, s: scatter_reduce(t, dim, i, s, reduce, include_self, axis=axis)
        )
    at = as_axis(dim if axis is None else axis, x.ndim, x.shape)
    where = as_operand(x, index)
    base = x
    if not include_self:
        neutral = 0 if op is Ops.ADD else 1 if op is Ops.MUL else None
        start = neutral if neutral is not None else x.dtype.min if op is Ops.MAX else x.dtype.max
        base = _scattered(x, where, at, start, None, "scatter_reduce")
    result = _scattered(base, where, at, src, op, "scatter_reduce")
    if reduce != "mean":
        return result
    ones = full_like(x, 1 if include_self else 0, int64)
    if not include_self:
        ones = _scattered(full_like(x, 1, int64), where, at, 0, None, "scatter_reduce")
    count = _scattered(ones, where, at, 1, Ops.ADD, "scatter_reduce")
    return result / cast(count, x.dtype) if x.dtype.is_float else cast(result // count, x.dtype)


def index_add(
    x: T, dim: Any = None, index: Any = None, source: Any = None, alpha: Any = 1, *, axis: Any = None
) -> T:
    """x with slices of `source`, times alpha, added to the slices along `dim` that `index` names.

    >>> Tensor([[1, 1], [2, 2]]).index_add(0, Tensor([1, 1]), Tensor([[1, 0], [1, 0]])).tolist()
    [[1, 1], [4, 2]]
    """
    value = source if alpha == 1 else source * alpha
    if not x.ndim:
        return reshape(index_add(reshape(x, 1), dim, index, reshape(as_operand(x, value), 1), axis=axis), ())
    at = as_axis(dim if axis is None else axis, x.ndim, x.shape)
    return x._new(with_rows(x, Steps(arrays=[(at, index)], at=at), value, Ops.ADD))


def index_copy(x: T, dim: Any = None, index: Any = None, source: Any = None, *, axis: Any = None) -> T:
    """x with slices along `dim` replaced by those of `source`.

    >>> Tensor([[1, 1], [2, 2]]).index_copy(0, Tensor([1]), Tensor([[7, 8]])).tolist()
    [[1, 1], [7, 8]]
    """
    if not x.ndim:
        return reshape(
            index_copy(reshape(x, 1), dim, index, reshape(as_operand(x, source), 1), axis=axis), ()
        )
    at = as_axis(dim if axis is None else axis, x.ndim, x.shape)
    return x._new(with_rows(x, Steps(arrays=[(at, index)], at=at), source))


def index_fill(x: T, dim: Any = None, index: Any = None, value: Any = 0, *, axis: Any = None) -> T:
    """x with slices along `dim` filled with a value.

    >>> Tensor([[1, 1], [2, 2]]).index_fill(0, Tensor([1]), 7).tolist()
    [[1, 1], [7, 7]]
    """
    at = as_axis(dim if axis is None else axis, max(x.ndim, 1), x.shape)
    if not x.ndim:
        return reshape(index_fill(reshape(x, 1), 0, index, value), ())
    where = as_operand(x, index)
    where = reshape(where, 1) if not where.ndim else where
    return x._new(with_rows(x, Steps(arrays=[(at, where)], at=at), value))


def index_reduce(x: T, dim: int, index: Any, source: Any, reduce: str, include_self: bool = True) -> T:
    """x joined with slices of `source` at the slices that `index` names, by "prod", "mean", "amax", "amin".

    >>> Tensor([1.0, 2.0]).index_reduce(0, Tensor([0, 0]), Tensor([3.0, 5.0]), "amax").tolist()
    [5.0, 2.0]
    """
    if not x.ndim:
        y = reshape(as_operand(x, source), 1)
        return reshape(index_reduce(reshape(x, 1), 0, index, y, reduce, include_self), ())
    at = as_axis(dim, x.ndim, x.shape)
    y, where = as_operand(x, source), as_operand(x, index)
    where = reshape(where, 1) if not where.ndim else where
    shape = [where.shape[0] if i == at else 1 for i in range(x.ndim)]
    wide = expand(reshape(where, shape), [where.shape[0] if i == at else n for i, n in enumerate(x.shape)])
    return scatter_reduce(x, at, wide, y, reduce, include_self)


def put_flat(x: T, index: Any, source: Any, accumulate: bool = False) -> T:
    """x with elements at places of the flattened tensor replaced, or added to; PyTorch's `put`.

    >>> Tensor([[1, 2], [3, 4]]).put(Tensor([3, 0]), Tensor([7, 8])).tolist()
    [[8, 2], [3, 7]]
    """
    where, new = as_operand(x, index), as_operand(x, source)
    count = where.numel()
    flat = reshape(x, x.numel())
    value = reshape(new, count)
    return reshape(
        x._new(
            with_rows(
                flat, Steps(arrays=[(0, reshape(where, count))]), value, Ops.ADD if accumulate else None
            )
        ),
        x.shape,
    )


def index_put(x: T, indices: Any, values: Any, accumulate: bool = False) -> T:
    """x with `values` at x[indices], where indices is a tuple of positions or masks; or added there.

    >>> Tensor([1, 2, 3]).index_put((Tensor([0, 0]),), Tensor([10, 20]), accumulate=True).tolist()
    [31, 2, 3]
    """
    arrays = list(enumerate(whole_positions(indices, x.shape)))
    if not arrays or len(arrays) > x.ndim:
        raise ShapeError(f"index_put into {show_shape(x.shape)} needs 1 … {x.ndim} indices")
    return x._new(with_rows(x, Steps(arrays=arrays), values, Ops.ADD if accumulate else None))


def _as_one(x: T, index: Any, src: Any, function: Callable[[T, T, T], T]) -> T:
    """PyTorch: a number has one position, and keeps being a number."""
    there, new = as_operand(x, index), as_operand(x, src)
    return reshape(function(reshape(x, 1), reshape(there, -1), reshape(new, -1)), ())


def _reduction(name: str) -> Op:
    if name not in _REDUCTIONS:
        raise ArgumentError(f"a reduction is one of {', '.join(map(repr, _REDUCTIONS))}, not {name!r}")
    return _REDUCTIONS[name]


def _shorter(n: Any, m: Any) -> bool:
    return isinstance(n, int) and isinstance(m, int) and n < m
