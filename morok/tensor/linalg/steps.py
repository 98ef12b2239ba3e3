"""One step of each sequential algorithm, as a function of the state and of the step's number.

A state is one tensor (…, rows, columns) in which everything is carried: what is left of the matrix, and
beside or below it what has been found. Steps look at rows and columns by number, compare
positions with k, and add: whole matrices at a time, and a batch of them costs as many kernels as one.
"""

from __future__ import annotations

from typing import Any

from morok import dtype as dt
from morok.tensor.arrays import reduce
from morok.tensor.arrays.arrange import matrix_transpose
from morok.tensor.arrays.joining import cat
from morok.tensor.arrays.movement import narrow
from morok.tensor.core import iota
from morok.tensor.creation.constructors import contiguous
from morok.tensor.elementwise import arithmetic
from morok.tensor.elementwise.comparison import eq, where
from morok.tensor.elementwise.functions import rsqrt, sqrt


def _place(x: Any, axis: int) -> Any:
    """The number of each row, or of each column."""
    sizes = (1,) * (x.ndim - 2) + tuple(x.shape[-2:])
    return x._new(iota(sizes, len(sizes) + axis, dt.int64))


def _column(x: Any, k: Any) -> Any:
    return narrow(x, -1, k, 1)


def _row(x: Any, k: Any) -> Any:
    return narrow(x, -2, k, 1)


def _pivoted(x: Any, k: Any, pivot: bool) -> tuple[Any, Any, Any, Any]:
    """(the state with rows k and p swapped, row k of it, the pivot, p); p has the largest element below k."""
    if not pivot:
        row = _row(x, k)
        return x, row, _column(row, k), k
    i = _place(x, -2)
    size = where(i >= k, arithmetic.abs(_column(x, k)), -1.0)
    p = contiguous(reduce.argmax(size, -2, keepdim=True))
    row = contiguous(reduce.sum(where(eq(i, p), x, 0.0), -2, keepdim=True))
    swapped = where(eq(i, k), row, where(eq(i, p), _row(x, k), x))
    return swapped, row, _column(row, k), p


def gauss_jordan(x: Any, k: Any) -> Any:
    """(A | B) with column k of A made that of the unit matrix: after all of them it is (1 | A⁻¹ B)."""
    swapped, row, pivot, _ = _pivoted(x, k, True)
    unit = contiguous(row / pivot)
    i = _place(x, -2)
    return where(eq(i, k), unit, swapped - _column(swapped, k) * unit)


def lu(x: Any, k: Any, columns: int, pivot: bool) -> Any:
    """(A | order | signs) → column k of L and row k of U; rows are swapped along with their numbers.

    Column `columns` holds the number of each row, the next one -1 where a step has swapped rows.
    """
    swapped, row, head, p = _pivoted(x, k, pivot)
    i, j = _place(x, -2), _place(x, -1)
    safe = where(eq(head, 0.0), 1.0, head)
    factor = where(i > k, _column(swapped, k) / safe, 0.0)
    inside = (j > k) & (j < columns)
    found = where(inside, swapped - factor * row, swapped)
    found = where(eq(j, k) & (i > k), factor, found)
    if not pivot:
        return found
    here = eq(i, k) & eq(j, columns + 1)
    return where(eq(j, columns + 1), where(here, where(eq(p, k), 1.0, -1.0), x), found)


def cholesky(x: Any, k: Any) -> Any:
    """Column k of L, and what is left of the columns behind it. Only the lower triangle is looked at."""
    i, j = _place(x, -2), _place(x, -1)
    head = _column(_row(x, k), k)
    column = _column(x, k)
    other = matrix_transpose(column)
    left = x - column * other / head
    return where(eq(j, k), where(i >= k, column * rsqrt(head), 0.0), where((j > k) & (i >= j), left, x))


def substitute(x: Any, k: Any, size: int, unit: bool) -> Any:
    """(L | B) with unknown k found, and taken out of the right sides below it."""
    i, j = _place(x, -2), _place(x, -1)
    row = _row(x, k)
    found = contiguous(row if unit else row / _column(row, k))
    left = where(i > k, x - _column(x, k) * found, where(eq(i, k), found, x))
    return where(j < size, x, left)


def reflect(x: Any, k: Any, columns: int) -> Any:
    """(A | V) after a reflection that puts column k of A on the upper triangle; V gets its vector.

    A column that is zero below its head is left alone, as in LAPACK: its vector is zero.
    """
    a, kept = narrow(x, -1, 0, columns), narrow(x, -1, columns, columns)
    i, j = _place(a, -2), _place(a, -1)
    column = _column(a, k)
    tail = where(i > k, column, 0.0)
    below = contiguous(reduce.sum(tail * tail, -2, keepdim=True))
    head = _column(_row(a, k), k)
    flat = eq(below, 0.0)
    length = sqrt(head * head + below)
    # away from the axis on the side where nothing cancels
    tip = head + where(head < 0.0, -length, length)
    scale = where(flat, 0.0, rsqrt(where(flat, 1.0, tip * tip + below) * 0.5))
    v = contiguous(where(eq(i, k), tip, tail) * scale)
    along = contiguous(reduce.sum(v * a, -2, keepdim=True))
    return cat(a - v * along, where(eq(j, k), v, kept), dim=-1)


def unreflect(x: Any, k: Any, width: int, count: int) -> Any:
    """(Q | V) with the reflections of V applied to Q, the last one first."""
    q = narrow(x, -1, 0, width)
    v = narrow(x, -1, -k + (width + count - 1), 1)
    along = contiguous(reduce.sum(v * q, -2, keepdim=True))
    return cat(q - v * along, narrow(x, -1, width, count), dim=-1)


# --- rotations of pairs of columns, dealt out anew after each round (a round robin)


def _angle(a: Any, b: Any, c: Any) -> tuple[Any, Any]:
    """(cos, sin) of the rotation that makes (a c; c b) diagonal."""
    flat = eq(c, 0.0)
    zeta = (b - a) / where(flat, 1.0, c * 2.0)
    t = where(zeta < 0.0, -1.0, 1.0) / (arithmetic.abs(zeta) + sqrt(zeta * zeta + 1.0))
    t = where(flat, 0.0, t)
    cosine = rsqrt(t * t + 1.0)
    return cosine, cosine * t


def _dealt(left: Any, right: Any, axis: int) -> Any:
    """The first stays, the others move on by one."""
    half = left.shape[axis]
    if half == 1:
        return cat(left, right, dim=axis)
    top = [narrow(left, axis, 0, 1), narrow(right, axis, 0, 1), narrow(left, axis, 1, half - 2)]
    bottom = [narrow(right, axis, 1, half - 1), narrow(left, axis, half - 1, 1)]
    parts = [p for p in (*top, *bottom) if p.shape[axis]]
    return cat(parts[0], *parts[1:], dim=axis)


def rotate_columns(x: Any, k: Any, rows: int) -> Any:
    """Pairs of columns of the first rows turned until they are at right angles; the rows below go along."""
    half = x.shape[-1] // 2
    left, right = narrow(x, -1, 0, half), narrow(x, -1, half, half)
    p, q = narrow(left, -2, 0, rows), narrow(right, -2, 0, rows)
    a, b, c = (contiguous(reduce.sum(u * v, -2, keepdim=True)) for u, v in ((p, p), (q, q), (p, q)))
    cosine, sine = (contiguous(v) for v in _angle(a, b, c))
    return _dealt(left * cosine - right * sine, left * sine + right * cosine, -1)


def rotate_both(x: Any, k: Any) -> Any:
    """(A; V) with pairs of rows and columns of the symmetric A turned; V's columns go along."""
    n = x.shape[-1]
    half = n // 2
    a = narrow(x, -2, 0, n)
    first, second = (narrow(narrow(a, -2, s, half), -1, s, half) for s in (0, half))
    mixed = narrow(narrow(a, -2, 0, half), -1, half, half)
    corners = [m.diagonal(0, -2, -1) for m in (first, second, mixed)]
    cosine, sine = (contiguous(v).unsqueeze(-2) for v in _angle(*corners))
    left, right = narrow(x, -1, 0, half), narrow(x, -1, half, half)
    turned = contiguous(_dealt(left * cosine - right * sine, left * sine + right * cosine, -1))
    up, down = narrow(turned, -2, 0, half), narrow(turned, -2, half, half)
    c, s = matrix_transpose(cosine), matrix_transpose(sine)
    both = _dealt(up * c - down * s, up * s + down * c, -2)
    return cat(both, narrow(turned, -2, n, n), dim=-2)
