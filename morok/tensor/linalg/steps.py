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
from morok.tensor.arrays.index import take
from morok.tensor.arrays.movement import narrow, permute
from morok.tensor.core import iota
from morok.tensor.creation.constructors import contiguous as in_rows
from morok.tensor.elementwise import arithmetic
from morok.tensor.elementwise.comparison import eq, where
from morok.tensor.elementwise.functions import rsqrt, sqrt


def batch_is_last(shape: tuple[Any, ...]) -> bool:
    """Whether many small matrices lie in memory element by element, so that a vector holds many of them."""
    return len(shape) == 3 and shape[0] >= 8 and shape[-2] * shape[-1] <= 2048


def _many(x: Any) -> bool:
    """Whether a step works on many matrices, one in each lane of a vector."""
    return bool(x.ndim == 3 and x.shape[0] >= 8)


def contiguous(x: Any) -> Any:
    """Memory for a part of a step, in the order in which the state lies there."""
    if _many(x):
        return permute(in_rows(permute(x, 1, 2, 0)), 2, 0, 1)
    return in_rows(x)


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
    scale = rsqrt(_column(_row(x, k), k))
    if _many(x):  # else it is one number for a whole kernel
        scale = contiguous(scale)
    column = _column(x, k) * scale
    left = x - column * matrix_transpose(column)
    return where(eq(j, k), where(i >= k, column, 0.0), where((j > k) & (i >= j), left, x))


def substitute(x: Any, k: Any, size: int, unit: bool) -> Any:
    """(L | B) with unknown k found, and taken out of the right sides below it."""
    i, j = _place(x, -2), _place(x, -1)
    row = _row(x, k)
    found = contiguous(row if unit else row / _column(row, k))
    left = where(i > k, x - _column(x, k) * found, where(eq(i, k), found, x))
    return where(j < size, x, left)


def least_square(dtype: dt.DType) -> float:
    """A sum of squares from which on the digits that subnormal addends have lost do not count."""
    return float(dtype.smallest_normal / dtype.eps)


def reflect(x: Any, k: Any, columns: int) -> Any:
    """(A | V) after a reflection that puts column k of A on the upper triangle; V gets its vector.

    A column that is zero below its head is left alone, as in LAPACK: its vector is zero. So is one whose
    squares there have lost digits: with columns of size 1 that is far below their rounding.
    """
    i, j = _place(x, -2), _place(x, -1)
    column = _column(x, k)
    tail = where(i > k, column, 0.0)
    below = contiguous(reduce.sum(tail * tail, -2, keepdim=True))
    head = _column(_row(x, k), k)
    flat = below < least_square(x.dtype)
    length = sqrt(head * head + below)
    # away from the axis on the side where nothing cancels
    tip = head + where(head < 0.0, -length, length)
    scale = where(flat, 0.0, rsqrt(where(flat, 1.0, tip * tip + below) * 0.5))
    v = contiguous(where(eq(i, k), tip, tail) * scale)
    along = contiguous(where(_row(j, 0) < columns, reduce.sum(v * x, -2, keepdim=True), 0.0))
    return where(eq(j, k + columns), v, x - v * along)


def unreflect(x: Any, k: Any, width: int, count: int) -> Any:
    """(Q | V) with the reflections of V applied to Q, the last one first."""
    v = narrow(x, -1, -k + (width + count - 1), 1)
    j = _row(_place(x, -1), 0)
    along = contiguous(where(j < width, reduce.sum(v * x, -2, keepdim=True), 0.0))
    return x - v * along


# --- rotations of pairs of rows, dealt out anew after each round (a round robin)


def _angle(a: Any, b: Any, c: Any, terms: int) -> tuple[Any, Any]:
    """(cos, sin) of the rotation that makes (a c; c b) diagonal, where each is a sum of so many terms.

    What is at right angles but for rounding stays: rows of equal length would be turned by half a right angle
    because of it, in every sweep, and what the sweeps had won be lost.
    """
    rounding = 2.0**-a.dtype.mantissa_bits * terms**0.5
    flat = arithmetic.abs(c) <= sqrt(a) * sqrt(b) * rounding
    zeta = (b - a) / where(flat, 1.0, c * 2.0)
    t = where(zeta < 0.0, -1.0, 1.0) / (arithmetic.abs(zeta) + sqrt(zeta * zeta + 1.0))
    t = where(flat, 0.0, t)
    cosine = rsqrt(t * t + 1.0)
    return cosine, cosine * t


def _dealt(half: int) -> list[int]:
    """Which row goes where for the next round: the first stays, the others move on by one."""
    if half == 1:
        return [0, 1]
    return [0, half, *range(1, half - 1), *range(half + 1, 2 * half), half - 1]


def rotate_rows(x: Any, k: Any, columns: int) -> Any:
    """Pairs of rows (i, i + half) turned until their first columns are at right angles; the rest goes along.

    Rows are taken by number from where they lie, so nothing moves but what is turned.
    """
    half = x.shape[-2] // 2
    a = narrow(x, -1, 0, columns)
    p, q = narrow(a, -2, 0, half), narrow(a, -2, half, half)
    pp, qq, pq = (contiguous(reduce.sum(u * v, -1, keepdim=True)) for u, v in ((p, p), (q, q), (p, q)))
    cosine, sine = _angle(pp, qq, pq, columns)
    if _many(x):  # else it is one number for a whole row, and cheaper than one more kernel
        cosine, sine = contiguous(cosine), contiguous(sine)
    order = _dealt(half)
    partner = [i + half if i < half else i - half for i in order]
    pair = [i % half for i in order]
    sign = x._new(iota((2 * half, 1), 0, dt.int64))
    left = eq(sign, 0) if half == 1 else ((sign < half) & ~eq(sign, 1)) | eq(sign, 2 * half - 1)
    turned = take(sine, pair, -2)
    return take(x, order, -2) * take(cosine, pair, -2) + take(x, partner, -2) * where(left, -turned, turned)
