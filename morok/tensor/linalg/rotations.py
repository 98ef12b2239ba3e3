"""Jacobi's rotations: eigenvectors of symmetric matrices, on which singular values rest as well."""

from __future__ import annotations

from typing import Any

from morok import dtype as dt
from morok.tensor.arrays import reduce
from morok.tensor.arrays.movement import squeeze, unsqueeze
from morok.tensor.arrays.padding import pad
from morok.tensor.creation.constructors import eye
from morok.tensor.elementwise import arithmetic
from morok.tensor.elementwise.comparison import where
from morok.tensor.elementwise.operators import T
from morok.tensor.linalg.loops import steps
from morok.tensor.linalg.steps import rotate_rows
from morok.tensor.linalg.written import use


def sweeps(dtype: dt.DType, size: int) -> int:
    """Of Jacobi's method: each squares what is left off the diagonal, once that is small.

    Until it is, more of them are needed the more rows there are. By measurement, over random spectra, many
    equal values and twelve decades, of 16 to 256 rows: at most 8 in float32; in float64 12 of 25 rows, 17 of
    64 and 23 of 256.
    """
    doublings = max(size - 1, 1).bit_length()
    return max(9, 1 + doublings) if dtype.bits < 64 else max(12, 3 * doublings)


def diagonalized(x: T, size: int) -> tuple[Any, Any]:
    """(eigenvalues in ascending order, eigenvectors as columns) of a symmetric matrix.

    Pairs of rows of A + shift are turned until all are at right angles; the shift makes all eigenvalues
    positive and of one order, so that this takes few sweeps. Rows are then the eigenvectors, times these
    values. The eigenvalues themselves are computed from A, where no shift has cost them digits.
    """
    if use.is_written(x):
        return use.eigh(x)
    odd = size % 2
    none: list[Any] = [None] * (x.ndim - 2)
    largest = reduce.max(reduce.sum(arithmetic.abs(x), -1), -1)
    bound = unsqueeze(unsqueeze(where(largest > 0.0, largest, 1.0), -1), -1)
    scaled: Any = x / bound
    unit = x._new(eye(type(x), size, dtype=x.dtype, device=x.device).uop)
    a = pad(scaled + unit * 2.0, [*none, (0, odd), (0, odd)])
    done: Any = steps(a, sweeps(x.dtype, size) * (size + odd - 1), rotate_rows, size + odd) if size > 1 else a
    lengths = (done * done).sum(-1).sqrt()
    order = lengths.argsort(-1, descending=True).narrow(-1, 0, size)  # a row of zeros comes last
    rows = (done / lengths.unsqueeze(-1)).narrow(-1, 0, size)
    rows = rows.take_along_dim(order.unsqueeze(-1), -2).realize()
    # nearly at right angles: a step of Newton's method leaves nothing but rounding of what is missing
    rows = (rows * 1.5 - (rows @ rows.mT).realize() @ rows * 0.5).realize()
    values = ((rows @ scaled) * rows).sum(-1) * squeeze(bound, -1)
    order = values.argsort(-1)
    return values.gather(-1, order), rows.take_along_dim(order.unsqueeze(-1), -2).mT
