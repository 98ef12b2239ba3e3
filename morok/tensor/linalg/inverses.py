"""Pseudo-inverses, least squares, ranks and norms of matrices."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from morok import dtype as dt
from morok.errors import ArgumentError, ShapeError
from morok.tensor.arrays import reduce
from morok.tensor.arrays.arrange import matrix_transpose
from morok.tensor.arrays.movement import flatten, narrow, reshape, squeeze, unsqueeze
from morok.tensor.creation.constructors import as_operand, detach
from morok.tensor.elementwise import arithmetic
from morok.tensor.elementwise.comparison import where
from morok.tensor.elementwise.conversion import cast
from morok.tensor.elementwise.operators import T
from morok.tensor.linalg.factors import eigh, eigvalsh, svdvals
from morok.tensor.linalg.products import matmul
from morok.tensor.linalg.solve import _as_given, _matrix, _precise, marked, solved, svd, unit_matrix
from morok.tensor.sizes import concrete, concrete_shape


def _tolerance(x: Any, values: Any, atol: Any, rtol: Any) -> Any:
    """What counts as zero among singular values, of which the first is the largest."""
    if rtol is None:
        loose = as_operand(x, 0.0) if atol is None else as_operand(x, atol)
        usual = max(concrete_shape(x.shape[-2:])) * float(x.dtype.eps) if values.shape[-1] else 0.0
        rtol = usual if atol is None else where(loose > 0.0, 0.0, usual)
    top = reduce.max(values, -1, keepdim=True)
    relative = top * (unsqueeze(as_operand(x, rtol), -1) if hasattr(rtol, "ndim") and rtol.ndim else rtol)
    if atol is None:
        return relative
    absolute = as_operand(x, atol)
    absolute = unsqueeze(absolute, -1) if absolute.ndim else absolute
    return where(relative > absolute, relative, absolute)


def pinv(t: T, atol: Any = None, rtol: Any = None, hermitian: bool = False, rcond: Any = None) -> T:
    """The pseudo-inverse: singular values that count as zero stay zero.

    >>> Tensor([[2.0, 0.0], [0.0, 0.0]]).pinverse().tolist()
    [[0.5, 0.0], [0.0, 0.0]]
    """
    _matrix(t, "pinv", square=hermitian)
    rtol = rcond if rtol is None else rtol
    if hermitian and 0 not in t.shape:
        x = _precise(t)
        values, v = eigh(x)
        sizes = arithmetic.abs(values)
        kept = sizes > _tolerance(x, detach(sizes), atol, rtol)
        inverse = where(kept, 1.0 / where(kept, values, 1.0), 0.0)
        return _as_given(t, matmul(v * unsqueeze(inverse, -2), matrix_transpose(v)))
    return _inverted(t, atol, rtol)[0]


def _inverted(t: T, atol: Any, rtol: Any) -> tuple[T, Any]:
    """(the pseudo-inverse, the singular values; None of an empty matrix)."""
    if 0 in t.shape:
        return matrix_transpose(t), None
    x = _precise(t)
    u, s, vh = svd(detach(x))
    kept = s > _tolerance(x, s, atol, rtol)
    inverse = where(kept, 1.0 / where(kept, s, 1.0), 0.0)
    found = matmul(matrix_transpose(vh) * unsqueeze(inverse, -2), matrix_transpose(u))
    return _as_given(t, marked("pinv", found, x)), s


def _counted(t: T, values: Any, atol: Any, rtol: Any) -> T:
    found: T = reduce.sum(values > _tolerance(_precise(t), values, atol, rtol), -1)
    return found


def matrix_rank(t: T, atol: Any = None, rtol: Any = None, hermitian: bool = False, tol: Any = None) -> T:
    """How many singular values count as more than zero.

    >>> matrix_rank(Tensor([[2.0, 0.0], [0.0, 0.0]])).item()
    1
    """
    _matrix(t, "matrix_rank", square=hermitian)
    atol = tol if atol is None else atol
    if 0 in t.shape[-2:]:
        return cast(reduce.sum(t, (-2, -1)), dt.int64)
    x = _precise(t)
    values = arithmetic.abs(eigvalsh(x)) if hermitian else svdvals(x)
    return _counted(t, values, atol, 0.0 if tol is not None and rtol is None else rtol)


class Lstsq(NamedTuple):
    """The solution of least squares, what is left of the right side, the rank, the singular values."""

    solution: Any
    residuals: Any
    rank: Any
    singular_values: Any


def lstsq(t: T, b: Any, rcond: Any = None, driver: str | None = None) -> Lstsq:
    """X that makes |A · X - b| least, and among those |X|.

    >>> found = lstsq(Tensor([[1.0], [1.0]]), Tensor([[1.0], [3.0]])).solution
    >>> round(found.item(), 4)
    2.0
    """
    rows, columns = _matrix(t, "lstsq", square=False)
    y = as_operand(t, b)
    vector = y.ndim == 1 or (t.ndim - 1 == y.ndim and y.shape == t.shape[:-1])
    right = unsqueeze(y, -1) if vector else y
    x, singular = _inverted(t, None, rcond)
    found = matmul(x, right)
    away = matmul(t, found) - right
    empty = narrow(flatten(right), 0, 0, 0)
    residuals = reduce.sum(away * away, -2) if rows > columns and driver != "gelsy" else empty
    values = svdvals(t) if driver in ("gelss", "gelsd") else narrow(flatten(t), 0, 0, 0)
    rank = matrix_rank(t, rtol=rcond) if singular is None else _counted(t, singular, None, rcond)
    if driver == "gels":  # which takes a full rank for granted
        rank = narrow(reshape(rank, rank.numel()), 0, 0, 0)
    return Lstsq(squeeze(found, -1) if vector else found, residuals, rank, values)


def cond(t: T, p: Any = None) -> T:
    """How much a matrix may blow up errors: the norm of it times that of its inverse.

    >>> round(cond(Tensor([[2.0, 0.0], [0.0, 1.0]])).item(), 4)
    2.0
    """
    if p in (None, 2, -2):
        values = svdvals(t)
        first, last = narrow(values, -1, 0, 1), narrow(values, -1, concrete(values.shape[-1]) - 1, 1)
        return squeeze(last / first if p == -2 else first / last, -1)
    size, _ = _matrix(t, "cond")
    inverse: Any = solved(_precise(t), unit_matrix(_precise(t), size))
    return _as_given(t, matrix_norm(t, p) * matrix_norm(inverse, p))


# --- norms


def matrix_norm(t: T, ord: Any = "fro", dim: Any = (-2, -1), keepdim: bool = False, dtype: Any = None) -> T:
    """The norm of matrices: "fro", "nuc", 1, 2, inf and their opposites.

    >>> matrix_norm(Tensor([[3.0, 4.0]]), 1).item()
    4.0
    """
    x = t if dtype is None else cast(t, dtype)
    a, b = (axis % x.ndim for axis in dim)
    if a == b:
        raise ShapeError(f"the norm of matrices is over two axes, not twice over {a}")
    if ord == "fro":
        return reduce.norm(x, 2, (a, b), keepdim)
    if ord in (2, -2, "nuc"):
        rest = [i for i in range(x.ndim) if i not in (a, b)]
        values = svdvals(x.permute(*rest, a, b))  # type: ignore[attr-defined]
        found = (
            reduce.sum(values, -1)
            if ord == "nuc"
            else reduce.max(values, -1)
            if ord == 2
            else reduce.min(values, -1)
        )
        if keepdim:
            shape = [1 if i in (a, b) else n for i, n in enumerate(x.shape)]
            found = found.reshape(shape)
        spectral: T = found
        return spectral
    if ord not in (1, -1, math.inf, -math.inf):
        raise ArgumentError(f'a matrix has the norms "fro", "nuc", ±1, ±2 and ±inf, not {ord!r}')
    over, across = (a, b) if abs(ord) == 1 else (b, a)
    sums = reduce.sum(arithmetic.abs(x), over, keepdim=True)
    found = (reduce.max if ord > 0 else reduce.min)(sums, across, keepdim=True)
    return found if keepdim else squeeze(found, (a, b))


def norm(t: T, ord: Any = None, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> T:
    """NumPy's `linalg.norm`: of vectors or of matrices, by the number of axes.

    >>> norm(Tensor([3.0, 4.0])).item()
    5.0
    """
    x = t if dtype is None else cast(t, dtype)
    many = isinstance(dim, tuple | list)
    if (
        isinstance(ord, str)
        or (many and len(dim) == 2 and ord is not None)
        or (dim is None and x.ndim == 2 and ord is not None)
    ):
        return matrix_norm(x, ord, (-2, -1) if dim is None else dim, keepdim)
    return vector_norm(x, 2 if ord is None else ord, dim, keepdim)


def vector_norm(t: T, ord: Any = 2, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> T:
    """The p-norm over axes, or over everything.

    >>> vector_norm(Tensor([[3.0], [4.0]])).item()
    5.0
    """
    axes = tuple(dim) if isinstance(dim, list) else dim
    return reduce.norm(t if dtype is None else cast(t, dtype), ord, axes, keepdim)
