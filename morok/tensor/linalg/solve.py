"""Systems of equations and factorisations, as sequences of tensor operations.

A matrix of size n takes a number of steps in the order of n, each of which is a few kernels over whole
matrices (a batch of matrices costs as many kernels as one). Gradients have closed forms, which are in
`linalg/solve_gradients.py`. Floats narrower than 32 bits are computed in float32 and rounded once.
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
from morok.tensor.arrays.movement import expand, narrow, squeeze, unsqueeze
from morok.tensor.arrays.padding import pad
from morok.tensor.calls.tracing import is_tracing
from morok.tensor.creation.constructors import as_operand, contiguous, detach, eye, ones, zeros
from morok.tensor.dtypes import accumulator, float_of
from morok.tensor.elementwise import arithmetic
from morok.tensor.elementwise.comparison import eq, where
from morok.tensor.elementwise.conversion import cast
from morok.tensor.elementwise.floats import floating
from morok.tensor.elementwise.functions import rsqrt, sqrt
from morok.tensor.elementwise.operators import T
from morok.tensor.export import realize
from morok.tensor.linalg.normalization import triu
from morok.tensor.linalg.products import matmul
from morok.tensor.sizes import broadcast_shapes

_SWEEPS = 12  # of Jacobi's method; each squares what is left off the diagonal


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
    found = _substitute(x, wide.expand([*batch, *wide.shape[-2:]]), 0, size, upper, unit)
    return marked("solve_triangular", found, t, y, upper=upper, unit=unit)


def _block(x: T, row: int, rows: int, column: int, columns: int) -> T:
    return narrow(narrow(x, -2, row, rows), -1, column, columns)


def _substitute(x: T, y: Any, start: int, size: int, upper: bool, unit: bool) -> Any:
    """One half of the unknowns, then the other with the first taken out; `y` holds their right sides."""
    if size <= 1:
        return y if unit or not size else y / _block(x, start, 1, start, 1)
    half = size // 2
    if upper:
        below = _substitute(x, y.narrow(-2, half, size - half), start + half, size - half, True, unit)
        coupling = _block(x, start, half, start + half, size - half)
        rest = (y.narrow(-2, 0, half) - coupling @ below).contiguous()
        return _substitute(x, rest, start, half, True, unit).cat(below, dim=-2)
    above = _substitute(x, y.narrow(-2, 0, half), start, half, False, unit)
    coupling = _block(x, start + half, size - half, start, half)
    rest = (y.narrow(-2, half, size - half) - coupling @ above).contiguous()
    return above.cat(_substitute(x, rest, start + half, size - half, False, unit), dim=-2)


def solve(x: T, b: Any) -> T:
    """X with A · X = b, by way of QR; b of one axis is a vector, else its last two axes are a matrix.

    >>> [round(x, 4) for x in Tensor([[2.0, 1.0], [1.0, 3.0]]).solve(Tensor([3.0, 5.0])).tolist()]
    [0.8, 1.4]
    """
    _matrix(x, "solve")
    y, vector = _right_side(x, b, "solve")
    found = solved(_precise(x), y)
    return _as_given(x, found.squeeze(-1) if vector else found, b)


def solved(x: T, y: Any, transposed: bool = False) -> Any:
    """The solution of A · X = y, or of Aᵀ · X = y, under its name."""
    q, r, _ = reflected(detach(x))
    if transposed:
        found = q @ solved_triangular(r.mT, y.detach(), False, False)
    else:
        found = solved_triangular(r, q.mT @ y.detach(), True, False)
    return marked("solve", found, x, y, transposed=transposed)


def inv(t: T) -> T:
    """The matrix whose product with x is the unit matrix, by way of QR.

    >>> [round(x, 4) for x in Tensor([[2.0, 1.0], [1.0, 1.0]]).inv().flatten().tolist()]
    [1.0, -1.0, -1.0, 2.0]
    """
    size, _ = _matrix(t, "inv")
    x = _precise(t)
    found = solved(detach(x), unit_matrix(x, size))
    return _as_given(t, marked("inv", found, x))


def det(t: T) -> T:
    """The determinant, by way of QR.

    >>> round(Tensor([[2.0, 1.0], [1.0, 3.0]]).det().item(), 4)
    5.0
    """
    size, _ = _matrix(t, "det")
    if size == 0:
        return reduce.sum(floating(t), (-2, -1)) + 1.0
    x = _precise(t)
    _, r, sign = reflected(detach(x))
    found = r.diagonal(0, -2, -1).prod(-1) * sign
    return _as_given(t, marked("det", found, x))


# --- factorisations


def cholesky(t: T, upper: bool = False) -> T:
    """The lower triangle L with L · Lᵀ = A, of a symmetric positive definite A; or the upper one.

    Only A's lower triangle is looked at; its gradient is the symmetric one.

    >>> Tensor([[4.0, 2.0], [2.0, 5.0]]).cholesky().tolist()
    [[2.0, 0.0], [1.0, 2.0]]
    """
    size, _ = _matrix(t, "cholesky")
    x = _precise(t)
    found = _as_given(t, marked("cholesky", _cholesky(detach(x), size), x))
    return matrix_transpose(found) if upper else found


def _cholesky(x: T, size: int) -> Any:
    if size <= 1:
        return sqrt(x)
    half = size // 2
    a = _cholesky(_block(x, 0, half, 0, half), half)
    # L₂₁ · L₁₁ᵀ = A₂₁
    low = _substitute(
        a, matrix_transpose(_block(x, half, size - half, 0, half)), 0, half, False, False
    ).mT.contiguous()
    rest = (_block(x, half, size - half, half, size - half) - low @ low.mT).contiguous()
    b = _cholesky(rest, size - half)
    none: list[Any] = [None] * (x.ndim - 1)
    top = a.pad([*none, (0, size - half)])
    return top.cat(low.cat(b, dim=-1), dim=-2)


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
        rest = _as_given(t, marked(FREE, q.narrow(-1, count, rows - count), x, of="qr"))
        return QR(cat(first, rest, dim=-1), pad(triangle, [*none, (0, rows - count), None]))
    return QR(t._new(zeros(type(t), 0, dtype=both.dtype).uop) if mode == "r" else first, triangle)


def reflected(x: T, complete: bool = False) -> tuple[Any, Any, Any]:
    """(Q, R, det Q of a square A). A column that is zero below its head is left alone, as in LAPACK."""
    rows, columns = x.shape[-2:]
    assert isinstance(rows, int) and isinstance(columns, int)
    a, count = x, min(rows, columns)
    none: list[Any] = [None] * (a.ndim - 2)
    reflections = []
    sign = x._new(ones(type(x), *a.shape[:-2], dtype=a.dtype).uop)
    for i in range(min(columns, rows - 1)):
        head, tail = _block(a, i, 1, i, 1), _block(a, i + 1, rows - i - 1, i, 1)
        below = reduce.sum(tail * tail, -2, keepdim=True)
        flat = eq(below, 0.0)
        length = sqrt(head * head + below)
        # Away from the axis on the side where nothing cancels.
        tip = head + where(head < 0.0, -length, length)
        scale = where(flat, 0.0, rsqrt(where(flat, 1.0, tip * tip + below) * 0.5))
        v = pad(contiguous(cat(tip, tail, dim=-2) * scale), [*none, (i, 0), None])
        a = contiguous(a - matmul(v, contiguous(matmul(matrix_transpose(v), a))))
        sign = where(squeeze(squeeze(flat, -1), -1), sign, -sign)
        reflections.append(v)
    width = rows if complete else count
    q = expand(unit_matrix(x, rows, width), [*a.shape[:-2], rows, width])
    for v in reversed(reflections):
        q = contiguous(q - matmul(v, contiguous(matmul(matrix_transpose(v), q))))
    return q, triu(narrow(a, -2, 0, count)), sign


def svd(t: T, full_matrices: bool = False) -> SVD:
    """(U, S, Vh) with U · diag(S) · Vh = A, by Jacobi's rotations of pairs of columns.

    Columns of U and V beyond the number of values are computed with `full_matrices` only. It runs at
    once: how often columns are turned does not depend on the values, but the number of steps is large.

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
        free = marked(FREE, u.narrow(-1, columns, rows - columns), x, of="svd")
        first = cat(first, _as_given(t, free), dim=-1)
    return SVD(first, value, matrix_transpose(narrow(both, -2, rows + 1, columns)))


def _jacobi_svd(x: T, full: bool) -> tuple[Any, Any, Any]:
    """(U, S, V) of a matrix with at least as many rows as columns."""
    rows, columns = x.shape[-2:]
    assert isinstance(rows, int) and isinstance(columns, int)
    a, odd = x, columns % 2
    none: list[Any] = [None] * (a.ndim - 2)
    width = columns + odd
    work = pad(a, [*none, None, (0, odd)])
    turns = expand(unit_matrix(x, width), [*a.shape[:-2], width, width])
    both: Any = realize(cat(work, turns, dim=-2))
    for _ in range(_SWEEPS * max(1, width - 1) if a.numel() else 0):
        both = realize(_rotated(both, rows, width))
    work, turns = both.narrow(-2, 0, rows), both.narrow(-2, rows, width)
    lengths = (work * work).sum(-2).sqrt()
    order = lengths.argsort(-1, descending=True)
    order = order.narrow(-1, 0, columns)
    s = lengths.gather(-1, order).realize()
    spread = order.unsqueeze(-2)
    v = turns.take_along_dim(spread, -1).narrow(-2, 0, columns)
    found = ~(s <= s.narrow(-1, 0, min(1, columns)) * (x.dtype.eps * rows))  # NaN stays
    u = found.unsqueeze(-2).where(work.take_along_dim(spread, -1) / s.unsqueeze(-2), 0.0)
    if full or is_tracing() or not found.all().item():
        u = _completed(u, found, rows if full else columns)
    return u, s, v


def _completed(x: T, known: Any, width: int) -> Any:
    """Orthonormal columns, those that are known as they are, the others at right angles to them."""
    columns = x.shape[-1]
    q = reflected(x, complete=True)[0]
    # A reflection puts an orthonormal column on its axis, up to the sign; one of zeros leaves it free.
    none: list[Any] = [None] * (x.ndim - 1)
    fixed = known.unsqueeze(-2).pad([*none, (0, width - columns)])
    own = pad(x, [*none, (0, width - columns)])
    return fixed.where(own, q.narrow(-1, 0, width))


def _rotated(x: T, rows: int, width: int) -> T:
    """Columns turned in pairs until each pair is at right angles, then dealt out anew."""
    half = width // 2
    # Pairs of a round robin: the first stays, the others move on by one.
    left, right = narrow(x, -1, 0, half), narrow(x, -1, half, half)
    p, q = narrow(left, -2, 0, rows), narrow(right, -2, 0, rows)
    a, b, c = (reduce.sum(u * v, -2, keepdim=True) for u, v in ((p, p), (q, q), (p, q)))
    flat = eq(c, 0.0)
    zeta = (b - a) / where(flat, 1.0, c * 2.0)
    t = where(zeta < 0.0, -1.0, 1.0) / (arithmetic.abs(zeta) + sqrt(zeta * zeta + 1.0))
    t = where(flat, 0.0, t)
    cos = rsqrt(t * t + 1.0)
    sin = cos * t
    new_left, new_right = left * cos - right * sin, left * sin + right * cos
    if half == 1:
        return cat(new_left, new_right, dim=-1)
    top = cat(
        narrow(new_left, -1, 0, 1), narrow(new_right, -1, 0, 1), narrow(new_left, -1, 1, half - 2), dim=-1
    )
    bottom = cat(narrow(new_right, -1, 1, half - 1), narrow(new_left, -1, half - 1, 1), dim=-1)
    return cat(top, bottom, dim=-1)


def marked(name: str, result: Any, *inputs: Any, **how: Any) -> Any:
    """A result under the name of the function that it is of its inputs."""
    return result._new(call(name, result.uop, *(x.uop for x in inputs), **how))
