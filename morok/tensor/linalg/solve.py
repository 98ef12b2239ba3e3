"""Systems of equations and factorisations.

A matrix of size n takes n steps, or rounds of rotations. A step (`linalg/steps.py`) is compiled once for all
of them and runs at once (`linalg/loops.py`); a batch of matrices costs as many kernels as one. Gradients have
closed forms, which are in `linalg/solve_gradients.py`. Floats narrower than 32 bits are computed in float32
and rounded once.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from morok import dtype as dt
from morok.errors import MorokError, ShapeError
from morok.ir.call import call
from morok.ir.infer import show_shape
from morok.tensor.arrays import reduce
from morok.tensor.arrays.arrange import matrix_transpose
from morok.tensor.arrays.joining import cat
from morok.tensor.arrays.movement import expand, flip, narrow, squeeze, unsqueeze
from morok.tensor.arrays.padding import pad
from morok.tensor.core import iota
from morok.tensor.creation.constructors import as_operand, contiguous, detach, eye, ones, zeros
from morok.tensor.dtypes import accumulator, float_of
from morok.tensor.elementwise import arithmetic
from morok.tensor.elementwise.comparison import ne, where
from morok.tensor.elementwise.conversion import cast
from morok.tensor.elementwise.floats import floating
from morok.tensor.elementwise.operators import T
from morok.tensor.export import realize
from morok.tensor.linalg.loops import steps
from morok.tensor.linalg.normalization import tril, triu
from morok.tensor.linalg.panels import CHOLESKY, LU, WIDTH, bordered, by_panels, in_panels, unreflect_block
from morok.tensor.linalg.panels import QR as QR_PANELS
from morok.tensor.linalg.rotations import diagonalized
from morok.tensor.linalg.steps import cholesky as cholesky_step
from morok.tensor.linalg.steps import gauss_jordan, reflect, rotate_rows, substitute, unreflect
from morok.tensor.linalg.steps import lu as lu_step
from morok.tensor.linalg.written import use
from morok.tensor.sizes import broadcast_shapes, concrete_shape

FREE = "free columns"  # the name of columns that only complete a basis


class QR(NamedTuple):
    """Orthonormal columns times an upper triangle."""

    Q: Any
    R: Any


class SVD(NamedTuple):
    """U · diag(S) · Vh with orthonormal U and V and the largest S first."""

    U: Any
    S: Any
    Vh: Any


def _matrix(x: T, what: str, square: bool = True) -> tuple[int, int]:
    rows, columns = x.shape[-2:] if x.ndim >= 2 else (None, None)
    if not isinstance(rows, int) or not isinstance(columns, int) or (square and rows != columns):
        kind = "square matrices" if square else "matrices"
        raise ShapeError(f"{what} takes {kind} of known size, not shape {show_shape(x.shape)}")
    return rows, columns


def _precise(x: T) -> T:
    """Floats in which long sequences of operations make sense."""
    return cast(x, accumulator(float_of(x.dtype)))


def unit_matrix(x: T, rows: int, columns: int | None = None) -> T:
    return x._new(eye(type(x), rows, columns, dtype=x.dtype, device=x.device).uop)


# --- systems of equations


def _right_side(x: T, b: Any, what: str) -> tuple[T, bool]:
    """(b as columns, whether it was one vector): NumPy 2's rule, by the number of axes of b alone."""
    y = as_operand(x, b)
    size, vector = x.shape[-1], y.ndim == 1
    y = unsqueeze(y, -1) if vector else y
    if y.ndim < 2 or y.shape[-2] != size:
        raise ShapeError(
            f"{what} with a matrix of shape {show_shape(x.shape)} needs a right side of shape "
            f"({size},) or (…, {size}, k), not {show_shape(as_operand(x, b).shape)}"
        )
    broadcast_shapes(x.shape[:-2], y.shape[:-2])
    return _precise(y), vector


def solve_triangular(x: T, b: Any, upper: bool = False, left: bool = True, unitriangular: bool = False) -> T:
    """X with A · X = b for a triangular A, of which the other half is not looked at; or X · A = b.

    >>> Tensor([[2.0, 0.0], [1.0, 1.0]]).solve_triangular(Tensor([[2.0], [3.0]])).tolist()
    [[1.0], [2.0]]
    """
    _matrix(x, "solve_triangular")
    if not left:
        y = as_operand(x, b)
        return matrix_transpose(
            solve_triangular(
                matrix_transpose(x), y if y.ndim == 1 else matrix_transpose(y), not upper, True, unitriangular
            )
        )
    y, vector = _right_side(x, b, "solve_triangular")
    found = solved_triangular(_precise(x), y, upper, unitriangular)
    return _as_given(x, found.squeeze(-1) if vector else found, b)


def _as_given(x: T, found: Any, *others: Any) -> T:
    """A result in the type that its operands promote to."""
    own = float_of(x.dtype)
    for other in others:
        own = dt.promote(own, float_of(as_operand(x, other).dtype))
    result: T = found.cast(own)
    return result


def solved_triangular(t: T, y: Any, upper: bool, unit: bool) -> Any:
    """The solution under its name; both sides are as precise as they get."""
    size = _matrix(t, "solve_triangular")[0]
    x, wide = detach(t), y.detach()
    batch = broadcast_shapes(x.shape[:-2], wide.shape[:-2])
    if upper:  # the same from the other end
        x, wide = flip(x, -2, -1), flip(wide, -2)
    found: Any = steps(_beside(x, wide, batch), size, substitute, size, unit)
    found = found.narrow(-1, size, wide.shape[-1])
    found = found.flip(-2) if upper else found
    return marked("solve_triangular", found, t, y, upper=upper, unit=unit)


def _beside(x: T, y: Any, batch: tuple[Any, ...]) -> T:
    """Two matrices side by side, for each of a batch."""
    return cat(expand(x, [*batch, *x.shape[-2:]]), y.expand([*batch, *y.shape[-2:]]), dim=-1)


def solve(x: T, b: Any) -> T:
    """X with A · X = b, by elimination with pivots.

    b of one axis is a vector, else its last two axes are a matrix.

    >>> [round(x, 4) for x in Tensor([[2.0, 1.0], [1.0, 3.0]]).solve(Tensor([3.0, 5.0])).tolist()]
    [0.8, 1.4]
    """
    _matrix(x, "solve")
    y, vector = _right_side(x, b, "solve")
    found = solved(_precise(x), y)
    return _as_given(x, found.squeeze(-1) if vector else found, b)


def solved(x: T, y: Any, transposed: bool = False) -> Any:
    """The solution of A · X = y, or of Aᵀ · X = y, under its name."""
    a, wide = detach(x), y.detach()
    size = _matrix(a, "solve")[0]
    a = matrix_transpose(a) if transposed else a
    batch = broadcast_shapes(a.shape[:-2], wide.shape[:-2])
    if use.is_written(a, wide) and a.dtype is wide.dtype and 0 not in batch:
        found = use.solve(a, wide)
    else:
        found = narrow(steps(_beside(a, wide, batch), size, gauss_jordan), -1, size, wide.shape[-1])
    return marked("solve", found, x, y, transposed=transposed)


def inv(t: T) -> T:
    """The matrix whose product with x is the unit matrix, by elimination with pivots.

    >>> [round(x, 4) for x in Tensor([[2.0, 1.0], [1.0, 1.0]]).inv().flatten().tolist()]
    [1.0, -1.0, -1.0, 2.0]
    """
    size, _ = _matrix(t, "inv")
    x = _precise(t)
    found = solved(detach(x), unit_matrix(x, size))
    return _as_given(t, marked("inv", found, x))


def det(t: T) -> T:
    """The determinant, by elimination with pivots.

    >>> round(Tensor([[2.0, 1.0], [1.0, 3.0]]).det().item(), 4)
    5.0
    """
    size, _ = _matrix(t, "det")
    if size == 0:
        return reduce.sum(floating(t), (-2, -1)) + 1.0
    x = _precise(t)
    a = detach(x)
    if use.is_written(a) and use.as_lanes(a):
        found = use.determinant(a)[0]
    else:
        diagonal, sign = pivots(a)
        found = reduce.prod(diagonal, -1) * sign
    return _as_given(t, marked("det", found, x))


def pivots(x: T) -> tuple[Any, Any]:
    """(the diagonal of U, the sign of the order of the rows)."""
    if use.is_written(x) and use.as_lanes(x):
        return use.determinant(x)[1:]
    packed, _, sign, _ = factored(x, True)
    return packed.diagonal(0, -2, -1), sign


def factored(x: T, pivot: bool) -> tuple[Any, Any, Any, Any]:
    """(L below U's diagonal and U, the order of the rows, its sign, swaps); A[order] = L U.

    Swaps are the rows, from 0 on, with which each was swapped; None where they were not noted.
    """
    rows, columns = _matrix(x, "lu", square=False)
    if use.is_written(x):
        return use.lu(x, pivot)
    if rows == columns and rows % WIDTH and in_panels(x.shape, rows):
        packed, order, sign, _ = factored(bordered(x), pivot)
        return packed.narrow(-1, 0, rows).narrow(-2, 0, rows), order.narrow(-1, 0, rows), sign, None
    lead = x.shape[:-2]
    order = cast(x._new(iota((rows, 1), 0, dt.int64)), x.dtype)
    signs = x._new(ones(type(x), rows, 1, dtype=x.dtype, device=x.device).uop)
    state = cat(x, expand(order, [*lead, rows, 1]), expand(signs, [*lead, rows, 1]), dim=-1)
    count = min(rows, columns)
    if in_panels(x.shape, count):
        done = by_panels(state, count, LU, columns, pivot)
    else:
        done = steps(state, count, lu_step, columns, pivot)
    places = cast(squeeze(narrow(done, -1, columns, 1), -1), dt.int64)
    sign = reduce.prod(narrow(done, -1, columns + 1, 1), (-2, -1))
    return narrow(done, -1, 0, columns), places, sign, None


# --- factorisations


def cholesky(t: T, upper: bool = False) -> T:
    """The lower triangle L with L · Lᵀ = A, of a symmetric positive definite A; or the upper one.

    Only A's lower triangle is looked at; its gradient is the symmetric one.

    >>> Tensor([[4.0, 2.0], [2.0, 5.0]]).cholesky().tolist()
    [[2.0, 0.0], [1.0, 2.0]]
    """
    size, _ = _matrix(t, "cholesky")
    x = _precise(t)
    a = detach(x)
    if use.is_written(a):
        done = use.cholesky(a)
    elif in_panels(x.shape, size):
        done = by_panels(bordered(a), size + -size % WIDTH, CHOLESKY)
        done = tril(narrow(narrow(done, -1, 0, size), -2, 0, size))
    else:
        done = tril(steps(a, size, cholesky_step))
    found = _as_given(t, marked("cholesky", done, x))
    return matrix_transpose(found) if upper else found


def qr(t: T, mode: str = "reduced") -> QR:
    """(Q, R): orthonormal columns times an upper triangle, by Householder's reflections.

    "complete" makes Q square; "r" leaves it out: (an empty Q, R), as PyTorch.

    >>> q, r = Tensor([[3.0, 1.0], [4.0, 2.0]]).qr()
    >>> [round(x, 3) for x in (q @ r).flatten().tolist()]
    [3.0, 1.0, 4.0, 2.0]
    """
    if mode not in ("reduced", "complete", "r"):
        raise MorokError(f'mode is "reduced", "complete" or "r", not {mode!r}')
    rows, columns = _matrix(t, "qr", square=False)
    x, count = _precise(t), min(rows, columns)
    q, r, _ = reflected(detach(x), complete=mode == "complete")
    both = q.narrow(-1, 0, count).cat(r.mT, dim=-2)
    both = _as_given(t, marked("qr", both, x))
    first, triangle = narrow(both, -2, 0, rows), matrix_transpose(narrow(both, -2, rows, columns))
    none: list[Any] = [None] * (t.ndim - 2)
    if mode == "complete" and rows > count:
        rest = _as_given(t, _free(q.narrow(-1, count, rows - count), x, "qr"))
        return QR(cat(first, rest, dim=-1), pad(triangle, [*none, (0, rows - count), None]))
    return QR(t._new(zeros(type(t), 0, dtype=both.dtype).uop) if mode == "r" else first, triangle)


def reflected(x: T, complete: bool = False) -> tuple[Any, Any, Any]:
    """(Q, R, det Q of a square A). A column that is zero below its head is left alone, as in LAPACK."""
    rows, columns = x.shape[-2:]
    assert isinstance(rows, int) and isinstance(columns, int)
    lead, count = x.shape[:-2], min(rows, columns)
    if use.is_written(x) and use.as_lanes(x):
        return use.qr(x, rows if complete else count)
    if not count or 0 in lead:
        return _reflected_by_steps(x, complete)
    # A D = Q (R D) for every diagonal D, so each column may have a size at which its squares are numbers
    largest = reduce.max(arithmetic.abs(x), -2, keepdim=True)
    scale = where(largest > 0.0, largest, 1.0)
    x = x / scale
    if in_panels(x.shape, count):
        q, r, sign = _reflected_by_panels(x, rows if complete else count)
    else:
        q, r, sign = _reflected_by_steps(x, complete)
    return q, r * scale, sign


def _reflected_by_steps(x: T, complete: bool) -> tuple[Any, Any, Any]:
    """As `reflected`, one column after the other."""
    rows, columns = concrete_shape(x.shape[-2:])
    lead, count = x.shape[:-2], min(rows, columns)
    turns = min(columns, rows - 1)
    nothing = x._new(zeros(type(x), *lead, rows, columns, dtype=x.dtype, device=x.device).uop)
    done = steps(cat(x, nothing, dim=-1), max(turns, 0), reflect, columns)
    a, v = narrow(done, -1, 0, columns), narrow(done, -1, columns, count)
    moved = reduce.any(ne(v, 0.0), -2)
    sign = reduce.prod(where(moved, -1.0, 1.0), -1)
    width = rows if complete else count
    q = expand(unit_matrix(x, rows, width), [*lead, rows, width])
    q = narrow(steps(cat(q, v, dim=-1), count, unreflect, width, count), -1, 0, width)
    return q, triu(narrow(a, -2, 0, count)), cast(sign, x.dtype)


def _reflected_by_panels(x: T, width: int) -> tuple[Any, Any, Any]:
    """As `reflected`, a panel of columns at a time."""
    given, given_columns = concrete_shape(x.shape[-2:])
    x = bordered(x) if given == given_columns else x
    lead, (rows, columns) = x.shape[:-2], concrete_shape(x.shape[-2:])
    count, width = min(rows, columns), width + rows - given
    none: list[Any] = [None] * (x.ndim - 1)
    done = by_panels(pad(x, [*none, (0, 1)]), count, QR_PANELS, columns)
    v = realize(contiguous(tril(narrow(done, -1, 0, count))))
    q = expand(unit_matrix(x, rows, width), [*lead, rows, width])
    q = narrow(steps(cat(q, v, dim=-1), count // WIDTH, unreflect_block, width, count), -1, 0, width)
    head = narrow(narrow(done, -1, columns, 1), -2, 0, count)
    upper = narrow(narrow(done, -1, 0, columns), -2, 0, count)
    r = triu(upper, 1) + head * unit_matrix(x, count, columns)
    sign = reduce.prod(where(reduce.any(ne(v, 0.0), -2), -1.0, 1.0), -1)
    cut = rows - given
    if cut:
        q = narrow(narrow(q, -1, 0, width - cut), -2, 0, given)
        r = narrow(narrow(r, -1, 0, columns - cut), -2, 0, given)
    return q, r, cast(sign, x.dtype)


def svd(t: T, full_matrices: bool = False) -> SVD:
    """(U, S, Vh) with U · diag(S) · Vh = A, by Jacobi's rotations of pairs of columns.

    Columns of U and V beyond the number of values are computed with `full_matrices` only.

    >>> [round(x, 4) for x in Tensor([[3.0, 0.0], [0.0, -2.0]]).svd().S.tolist()]
    [3.0, 2.0]
    """
    rows, columns = _matrix(t, "svd", square=False)
    if rows < columns:
        u, s, vh = svd(matrix_transpose(t), full_matrices)
        return SVD(vh.mT, s, u.mT)
    x = _precise(t)
    u, s, v = _jacobi_svd(detach(x), full_matrices)
    both = marked("svd", u.narrow(-1, 0, columns).cat(s.unsqueeze(-2), v, dim=-2), x)
    both = _as_given(t, both)
    first, value = narrow(both, -2, 0, rows), squeeze(narrow(both, -2, rows, 1), -2)
    if full_matrices and rows > columns:
        free = _free(u.narrow(-1, columns, rows - columns), x, "svd")
        first = cat(first, _as_given(t, free), dim=-1)
    return SVD(first, value, matrix_transpose(narrow(both, -2, rows + 1, columns)))


def _jacobi_svd(x: T, full: bool) -> tuple[Any, Any, Any]:
    """(U, S, V) of a matrix with at least as many rows as columns.

    V are the eigenvectors of AᵀA, in double precision, so that A V has columns that are at right angles as
    far as float32 can tell. For doubles that is only a good start, and rotations of pairs of columns go on.
    """
    rows, columns = x.shape[-2:]
    assert isinstance(rows, int) and isinstance(columns, int)
    if not x.numel():
        lead = x.shape[:-2]
        none = zeros(type(x), *lead, columns, dtype=x.dtype, device=x.device)
        u, v = (expand(unit_matrix(x, n), [*lead, n, n]) for n in (rows, columns))
        return u, x._new(none.uop), v
    if use.is_written(x) and use.as_lanes(x):
        return use.svd(x, rows if full else columns)
    largest = reduce.max(arithmetic.abs(x), (-2, -1), keepdim=True)
    scale = cast(where(largest > 0.0, largest, 1.0), dt.float64)
    a: Any = cast(x, dt.float64) / scale
    v = diagonalized(a.mT @ a, columns)[1].flip(-1)
    work: Any = (a @ v).realize()
    if x.dtype is dt.float64:
        work, v = use.rotated(work, v) if use.is_written(x) else _rotated(work, v)
    lengths = work.square().sum(-2).sqrt()
    order = lengths.argsort(-1, descending=True)
    sorted_ = work.cat(v, lengths.unsqueeze(-2), dim=-2).take_along_dim(order.unsqueeze(-2), -1).realize()
    work, v = sorted_.narrow(-2, 0, rows), sorted_.narrow(-2, rows, columns)
    s = squeeze(sorted_.narrow(-2, rows + columns, 1), -2)
    # Columns that are tiny may be at any angle to others: reflections put them at right angles.
    q, r, _ = reflected(work, complete=full)
    heads = r.diagonal(0, -2, -1)
    sign = where(heads < 0.0, -1.0, 1.0).unsqueeze(-2)
    none_: list[Any] = [None] * (x.ndim - 1)
    rest = int(q.shape[-1]) - columns
    u = q * (sign.pad([*none_, (0, rest)], 1.0) if rest else sign)
    s = (s * squeeze(scale, -1)).cast(x.dtype)
    return u.cast(x.dtype), s, v.cast(x.dtype)


def _rotated(work: Any, v: Any) -> tuple[Any, Any]:
    """Pairs of columns turned until they are at right angles, and V along with them."""
    rows, columns = work.shape[-2:]
    odd = columns % 2
    none: list[Any] = [None] * (work.ndim - 2)
    state = work.mT.cat(v.mT, dim=-1).pad([*none, (0, odd), None])
    rounds = _SWEEPS * max(1, columns + odd - 1) if columns > 1 else 0
    done: Any = matrix_transpose(steps(state, rounds, rotate_rows, rows)).narrow(-1, 0, columns + odd)
    # A thousand rotations are each off by a rounding, in A and V alike: V's columns show by how much
    lengths = done.narrow(-2, rows, columns).square().sum(-2, keepdim=True)
    done = done * where(lengths > 0.5, lengths.rsqrt(), 0.0)
    order = lengths.argsort(-1, descending=True).narrow(-1, 0, columns)
    done = done.take_along_dim(order, -1).realize()
    return done.narrow(-2, 0, rows), done.narrow(-2, rows, columns)


_SWEEPS = 6  # from a good start


def _free(columns: Any, x: T, of: str) -> Any:
    """Columns that complete a basis; those of a matrix without elements depend on nothing."""
    return marked(FREE, columns, x, of=of) if x.numel() else columns


def marked(name: str, result: Any, *inputs: Any, **how: Any) -> Any:
    """A result under the name of the function that it is of its inputs."""
    return result._new(call(name, result.uop, *(x.uop for x in inputs), **how))
