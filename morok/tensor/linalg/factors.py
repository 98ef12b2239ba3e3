"""Further factorisations and what is made of them: LU, eigenvalues, pseudo-inverses, matrices as numbers."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from morok import dtype as dt
from morok.errors import ArgumentError
from morok.tensor.arrays import reduce
from morok.tensor.arrays.arrange import matrix_transpose
from morok.tensor.arrays.index import take_along_dim
from morok.tensor.arrays.joining import cat
from morok.tensor.arrays.movement import expand, narrow, squeeze, unsqueeze
from morok.tensor.arrays.padding import pad
from morok.tensor.core import iota
from morok.tensor.creation.constructors import as_operand, detach
from morok.tensor.elementwise import arithmetic
from morok.tensor.elementwise.comparison import eq, where
from morok.tensor.elementwise.conversion import cast
from morok.tensor.elementwise.functions import log
from morok.tensor.elementwise.operators import T
from morok.tensor.elementwise.rounding import sign
from morok.tensor.linalg.loops import steps
from morok.tensor.linalg.normalization import tril, triu
from morok.tensor.linalg.rotations import diagonalized
from morok.tensor.linalg.solve import (
    _as_given,
    _matrix,
    _precise,
    factored,
    marked,
    pivots,
    solve_triangular,
    svd,
    unit_matrix,
)


class LU(NamedTuple):
    """A permutation times a unit lower triangle times an upper one."""

    P: Any
    L: Any
    U: Any


class LUFactor(NamedTuple):
    """L and U in one matrix, and with which row each row was swapped, from 1 on as LAPACK counts."""

    LU: Any
    pivots: Any


class Eigh(NamedTuple):
    """Eigenvalues in ascending order, and the eigenvectors as columns."""

    eigenvalues: Any
    eigenvectors: Any


class SLogDet(NamedTuple):
    """The sign of a determinant, and the logarithm of its size."""

    sign: Any
    logabsdet: Any


# --- LU


def _packed(t: T, pivot: bool) -> tuple[Any, Any, Any]:
    """(L and U in one matrix, the order of the rows, swaps if they were noted); the first has a gradient."""
    x = _precise(t)
    packed, order, _, swaps = factored(detach(x), pivot)
    return _as_given(t, marked("lu", packed, x, order)), order, swaps


def lu(t: T, pivot: bool = True) -> LU:
    """(P, L, U) with P · L · U = A, rows swapped so that pivots are large.

    >>> p, l, u = lu(Tensor([[1.0, 2.0], [3.0, 4.0]]))
    >>> (p @ l @ u).tolist()
    [[1.0, 2.0], [3.0, 4.0]]
    """
    rows, columns = _matrix(t, "lu", square=False)
    packed, order, _ = _packed(t, pivot)
    count = min(rows, columns)
    lower = tril(narrow(packed, -1, 0, count), -1) + unit_matrix(packed, rows, count)
    upper = triu(narrow(packed, -2, 0, count))
    if not pivot:
        return LU(narrow(lower, -1, 0, 0).reshape(-1)[:0], lower, upper)
    place = t._new(iota((rows, 1), 0, dt.int64))
    swap = cast(eq(unsqueeze(order, -2), place), packed.dtype)
    return LU(swap, lower, upper)


def lu_factor(t: T, pivot: bool = True) -> LUFactor:
    """L and U in one matrix, and the pivots that `lu_solve` takes.

    >>> lu_factor(Tensor([[1.0, 2.0], [3.0, 4.0]])).pivots.tolist()
    [2, 2]
    """
    rows, columns = _matrix(t, "lu_factor", square=False)
    packed, order, swaps = _packed(t, pivot)
    if swaps is None:
        return LUFactor(packed, _swaps(order, rows, min(rows, columns)))
    return LUFactor(packed, cast(swaps + 1, dt.int32))


def _swaps(order: Any, rows: int, count: int) -> Any:
    """The swaps, one after the other, that put rows in an order."""
    if not count:
        return cast(narrow(order, -1, 0, 0), dt.int32)
    done = steps(_swap_state(order, rows), count, _swap_step)
    return cast(squeeze(narrow(narrow(done, -1, 0, count), -2, 0, 1), -2), dt.int32)


def _swap_state(order: Any, rows: int) -> Any:
    """(found; where each row is now; the order that is wanted) as rows of one matrix."""
    now = cast(expand(order._new(iota((rows,), 0, dt.int64)), order.shape), dt.float64)
    wanted = cast(order, dt.float64)
    return (now * 0.0).stack(now, wanted, dim=-2)


def _swap_step(x: Any, k: Any) -> Any:
    found, now, wanted = (narrow(x, -2, i, 1) for i in range(3))
    j = x._new(iota((1,) * (x.ndim - 1) + (x.shape[-1],), x.ndim - 1, dt.int64))
    target = narrow(wanted, -1, k, 1)
    at = reduce.argmax(eq(now, target), -1, keepdim=True)  # where the row lies that belongs here
    here = narrow(now, -1, k, 1)
    moved = where(eq(j, k), target, where(eq(j, at), here, now))
    noted = where(eq(j, k), cast(at, dt.float64) + 1.0, found)
    return cat(noted, moved, wanted, dim=-2)


def _order_of(pivots: Any, rows: int) -> Any:
    """The order of rows that swaps lead to."""
    count = pivots.shape[-1]
    start = cast(expand(pivots._new(iota((rows,), 0, dt.int64)), [*pivots.shape[:-1], rows]), dt.float64)
    swaps = pad(cast(pivots, dt.float64), [*[None] * (pivots.ndim - 1), (0, rows - count)])
    done = steps(start.stack(swaps, dim=-2), count, _replay_step)
    return cast(squeeze(narrow(done, -2, 0, 1), -2), dt.int64)


def _replay_step(x: Any, k: Any) -> Any:
    now, swaps = narrow(x, -2, 0, 1), narrow(x, -2, 1, 1)
    j = x._new(iota((1,) * (x.ndim - 1) + (x.shape[-1],), x.ndim - 1, dt.int64))
    at = cast(narrow(swaps, -1, k, 1), dt.int64) - 1
    other = reduce.sum(where(eq(j, at), now, 0.0), -1, keepdim=True)
    here = narrow(now, -1, k, 1)
    return cat(where(eq(j, k), other, where(eq(j, at), here, now)), swaps, dim=-2)


def lu_solve(LU: T, pivots: Any, B: Any, left: bool = True, adjoint: bool = False) -> T:
    """X with A · X = B (or X · A = B, or Aᵀ instead of A), from the factors of `lu_factor`.

    >>> factors = lu_factor(Tensor([[2.0, 0.0], [0.0, 4.0]]))
    >>> lu_solve(*factors, Tensor([[2.0], [4.0]])).tolist()
    [[1.0], [1.0]]
    """
    b = as_operand(LU, B)
    if not left:
        return matrix_transpose(lu_solve(LU, pivots, matrix_transpose(b), True, not adjoint))
    rows = _matrix(LU, "lu_solve")[0]
    order = unsqueeze(_order_of(as_operand(LU, pivots), rows), -1)
    if adjoint:
        y = solve_triangular(matrix_transpose(LU), b, False)
        y = solve_triangular(matrix_transpose(LU), y, True, True, True)
        back = order.squeeze(-1).argsort(-1).unsqueeze(-1)
        return take_along_dim(y, back, -2)
    batch = [*((LU.shape[:-2]) if LU.ndim > b.ndim else b.shape[:-2])]
    rhs = expand(b, [*batch, *b.shape[-2:]]) if b.ndim < LU.ndim else b
    swapped = take_along_dim(rhs, order, -2)
    return solve_triangular(LU, solve_triangular(LU, swapped, False, True, True), True)


def slogdet(t: T) -> SLogDet:
    """(sign, logabsdet) of the determinant, which neither overflows nor underflows.

    >>> [v.item() for v in Tensor([[0.0, 1.0], [1.0, 0.0]]).slogdet()]
    [-1.0, 0.0]
    """
    size, _ = _matrix(t, "slogdet")
    x = _precise(t)
    diagonal, swaps = pivots(detach(x))
    signs = reduce.prod(sign(diagonal), -1) * swaps if size else reduce.prod(diagonal, -1)
    size_of = reduce.sum(log(arithmetic.abs(diagonal)), -1)
    return SLogDet(_as_given(t, signs), _as_given(t, marked("logabsdet", size_of, x)))


def logdet(t: T) -> T:
    """The logarithm of the determinant; NaN if that is negative.

    >>> round(Tensor([[2.0, 1.0], [1.0, 3.0]]).logdet().item(), 4)
    1.6094
    """
    signs, size = slogdet(t)
    found: T = where(signs < 0.0, math.nan, size)
    return found


# --- symmetric matrices


def eigh(t: T, UPLO: str = "L") -> Eigh:
    """(eigenvalues, eigenvectors) of a symmetric matrix, by rotations; one triangle of it is looked at.

    >>> eigh(Tensor([[2.0, 0.0], [0.0, 1.0]])).eigenvalues.tolist()
    [1.0, 2.0]
    """
    size, _ = _matrix(t, "eigh")
    if UPLO not in ("L", "U"):
        raise ArgumentError(f'UPLO is "L" or "U", not {UPLO!r}')
    x = _precise(t)
    a = detach(x)
    half = tril(a, -1) if UPLO == "L" else matrix_transpose(triu(a, 1))
    whole = half + matrix_transpose(half) + tril(triu(a))
    values, vectors = diagonalized(whole, size) if t.numel() else (whole.diagonal(0, -2, -1), whole)  # type: ignore[attr-defined]
    both = marked("eigh", cat(unsqueeze(values, -2), vectors, dim=-2), x)
    both = _as_given(t, both)
    return Eigh(squeeze(narrow(both, -2, 0, 1), -2), narrow(both, -2, 1, size))


def eigvalsh(t: T, UPLO: str = "L") -> T:
    """The eigenvalues of a symmetric matrix in ascending order.

    >>> eigvalsh(Tensor([[2.0, 0.0], [0.0, 1.0]])).tolist()
    [1.0, 2.0]
    """
    found: T = eigh(t, UPLO).eigenvalues
    return found


def svdvals(t: T) -> T:
    """The singular values, the largest first.

    >>> [round(v, 4) for v in svdvals(Tensor([[3.0, 0.0], [0.0, -2.0]])).tolist()]
    [3.0, 2.0]
    """
    found: T = svd(t).S
    return found


def cholesky_solve(b: T, L: Any, upper: bool = False) -> T:
    """X with A · X = b, from the triangle of `cholesky`.

    >>> Tensor([[4.0]]).cholesky_solve(Tensor([[2.0]])).tolist()
    [[1.0]]
    """
    factor = as_operand(b, L)
    lower = matrix_transpose(factor) if upper else factor
    half = solve_triangular(lower, b, False)
    return solve_triangular(matrix_transpose(lower), half, True)


def cholesky_inverse(L: T, upper: bool = False) -> T:
    """The inverse of A, from the triangle of `cholesky`.

    >>> Tensor([[2.0]]).cholesky_inverse().tolist()
    [[0.25]]
    """
    size, _ = _matrix(L, "cholesky_inverse")
    eye = expand(unit_matrix(L, size), [*L.shape[:-2], size, size])
    return cholesky_solve(eye, L, upper)
