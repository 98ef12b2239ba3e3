"""Factorisations by kernels that are written by hand: of tensors of any number of axes, to tensors.

Small matrices of a batch are lanes of vectors (`lanes.py`), others are dealt with one by one (`rows.py`).
"""

from __future__ import annotations

from typing import Any

from morok import dtype as dt
from morok.tensor.arrays.arrange import matrix_transpose
from morok.tensor.arrays.movement import expand
from morok.tensor.creation.written import run
from morok.tensor.elementwise.conversion import cast
from morok.tensor.linalg.written import lanes, lanes_orthogonal, rows, rows_symmetric
from morok.tensor.linalg.written.calls import flat_batch, is_written
from morok.tensor.sizes import broadcast_shapes, concrete_shape

__all__ = ["is_written"]

_FEW = 512  # elements of a matrix that is small


def as_lanes(x: Any) -> bool:
    """Whether matrices are many and small."""
    count, height, width = flat_batch(x)
    return count >= 8 and height * width <= _FEW


def cholesky(x: Any) -> Any:
    count, size, _ = flat_batch(x)
    shape, room = concrete_shape(x.shape), lanes if as_lanes(x) else rows
    return run(room.cholesky, (x.dtype, count, size), [(shape, x.dtype)], x)[0]


def lu(x: Any, pivot: bool) -> tuple[Any, Any, Any, Any]:
    """(L and U in one, the order of rows, its sign, with which row each was swapped, from 0 on)."""
    count, height, width = flat_batch(x)
    shape = concrete_shape(x.shape)
    lead, turns = shape[:-2], min(height, width)
    results = [(s, x.dtype) for s in (shape, (*lead, height), (*lead, turns), lead)]
    if pivot and as_lanes(x):
        found = run(lanes.lu, (x.dtype, count, height, width), results, x)
    else:
        found = run(rows.lu, (x.dtype, count, height, width, pivot), results, x)
    packed, order, swaps, sign = found
    return packed, cast(order, dt.int64), sign, cast(swaps, dt.int64)


def determinant(x: Any) -> tuple[Any, Any, Any]:
    """(the determinant, the diagonal of U, the sign of the rows' order) of small matrices."""
    count, size, _ = flat_batch(x)
    shape = concrete_shape(x.shape)
    results = [(s, x.dtype) for s in (shape[:-2], shape[:-1], shape[:-2])]
    found, diagonal, sign = run(lanes.determinant, (x.dtype, count, size), results, x)
    return found, diagonal, sign


def solve(a: Any, b: Any) -> Any:
    """X with A X = B."""
    batch = broadcast_shapes(a.shape[:-2], b.shape[:-2])
    (size, wide), dtype = concrete_shape(b.shape[-2:]), a.dtype
    b = expand(b, [*batch, size, wide])
    shape = concrete_shape(b.shape)
    count = flat_batch(b)[0]
    if as_lanes(expand(a, [*batch, size, size])):
        a = expand(a, [*batch, size, size])
        return run(lanes.solve, (dtype, count, size, wide), [(shape, dtype)], a, b)[0]
    packed, order, _, _ = _lu_as_it_is(a)
    packed, order = expand(packed, [*batch, size, size]), expand(order, [*batch, size])
    return run(rows.lu_solve, (dtype, count, size, wide), [(shape, dtype)], packed, order, b)[0]


def _lu_as_it_is(x: Any) -> list[Any]:
    count, size, _ = flat_batch(x)
    shape = concrete_shape(x.shape)
    results = [(s, x.dtype) for s in (shape, shape[:-1], shape[:-1], shape[:-2])]
    return run(rows.lu, (x.dtype, count, size, size, True), results, x)


def qr(x: Any, width: int) -> tuple[Any, Any, Any]:
    """(Q of so many columns, R, det Q) of small matrices."""
    count, height, columns = flat_batch(x)
    lead = concrete_shape(x.shape[:-2])
    shapes = ((*lead, height, width), (*lead, min(height, columns), columns), lead)
    key = (x.dtype, count, height, columns, width)
    q, r, sign = run(lanes_orthogonal.qr, key, [(s, x.dtype) for s in shapes], x)
    return q, r, sign


def eigh(x: Any) -> tuple[Any, Any]:
    """(values in ascending order, vectors as columns)."""
    count, size, _ = flat_batch(x)
    shape = concrete_shape(x.shape)
    values, square = (shape[:-1], x.dtype), (shape, x.dtype)
    if as_lanes(x):
        found = run(lanes_orthogonal.eigh, (x.dtype, count, size), [values, square], x)
        return found[0], found[1]
    found = run(rows_symmetric.eigh, (x.dtype, count, size), [values, square, square], x)
    return found[0], matrix_transpose(found[1])


def svd(x: Any, width: int) -> tuple[Any, Any, Any]:
    """(U of so many columns, S, V) of small matrices with at least as many rows as columns."""
    count, height, columns = flat_batch(x)
    lead = concrete_shape(x.shape[:-2])
    shapes = ((*lead, height, width), (*lead, columns), (*lead, columns, columns))
    key = (x.dtype, count, height, columns, width)
    u, s, v = run(lanes_orthogonal.svd, key, [(n, x.dtype) for n in shapes], x)
    return u, s, v


def rotated(work: Any, v: Any) -> tuple[Any, Any]:
    """Columns of A V turned in pairs until they are at right angles, and V along with them."""
    turned, side = matrix_transpose(work), matrix_transpose(v)
    count, size, columns = flat_batch(turned)
    shapes = (concrete_shape(turned.shape), concrete_shape(side.shape))
    key = (work.dtype, count, size, columns)
    w, v = run(rows_symmetric.rotate, key, [(s, work.dtype) for s in shapes], turned, side)
    return matrix_transpose(w), matrix_transpose(v)
