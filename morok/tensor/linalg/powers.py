"""Powers and exponentials of matrices, products of several, and tensors taken as matrices."""

from __future__ import annotations

import math
from typing import Any

from morok import dtype as dt
from morok.errors import ArgumentError, ShapeError
from morok.ir.infer import show_shape
from morok.tensor.arrays import reduce
from morok.tensor.arrays.arrange import matrix_transpose
from morok.tensor.arrays.movement import expand, narrow, squeeze, unsqueeze
from morok.tensor.creation.constructors import as_operand, detach
from morok.tensor.elementwise import arithmetic
from morok.tensor.elementwise.comparison import where
from morok.tensor.elementwise.conversion import cast
from morok.tensor.elementwise.operators import T
from morok.tensor.linalg.normalization import tril
from morok.tensor.linalg.products import matmul
from morok.tensor.linalg.solve import _as_given, _matrix, _precise, inv, solved, unit_matrix
from morok.tensor.sizes import concrete, concrete_shape


def matrix_power(t: T, n: int) -> T:
    """A multiplied by itself n times; by its inverse if n is negative.

    >>> Tensor([[2.0]]).matrix_power(3).tolist()
    [[8.0]]
    """
    size, _ = _matrix(t, "matrix_power")
    if n == 0:
        return t * 0.0 + unit_matrix(t, size)
    base: Any = t
    if n < 0:
        base = _as_given(t, solved(_precise(t), unit_matrix(_precise(t), size)))
    found: Any = None
    left = abs(n)
    while left:
        if left & 1:
            found = base if found is None else matmul(found, base)
        left >>= 1
        base = matmul(base, base) if left else base
    result: T = found
    return result


_PADE = (
    64764752532480000.0, 32382376266240000.0, 7771770303897600.0, 1187353796428800.0, 129060195264000.0,
    10559470521600.0, 670442572800.0, 33522128640.0, 1323241920.0, 40840800.0, 960960.0, 16380.0, 182.0, 1.0,
)  # fmt: skip
_HALVINGS = 12  # a matrix of a norm up to 4096 is halved below 1


def matrix_exp(t: T) -> T:
    """The exponential series of a matrix: Padé's quotient of A / 2^s, squared s times.

    >>> Tensor([[0.0, 0.0], [0.0, 0.0]]).matrix_exp().tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    size, _ = _matrix(t, "matrix_exp")
    if 0 in t.shape:
        return t
    x = cast(_precise(t), dt.float64)
    eye = unit_matrix(x, size)
    largest = reduce.max(reduce.sum(arithmetic.abs(detach(x)), -1, keepdim=True), -2, keepdim=True)
    halvings: Any = 0.0
    for k in range(_HALVINGS):
        halvings = where(largest > 2.0**k, k + 1.0, halvings)
    a: Any = x * (-halvings).exp2()
    a2 = matmul(a, a).contiguous()
    a4 = matmul(a2, a2).contiguous()
    a6 = matmul(a2, a4).contiguous()
    c = _PADE
    odd = matmul(a6, a6 * c[13] + a4 * c[11] + a2 * c[9]) + a6 * c[7] + a4 * c[5] + a2 * c[3] + eye * c[1]
    odd = matmul(a, odd.contiguous())
    even = matmul(a6, a6 * c[12] + a4 * c[10] + a2 * c[8]) + a6 * c[6] + a4 * c[4] + a2 * c[2] + eye * c[0]
    found = solved((even - odd).contiguous(), (even + odd).contiguous())
    for k in range(_HALVINGS):
        found = where(halvings > float(k), matmul(found, found), found).contiguous()
    return _as_given(t, found)


def multi_dot(first: Any, *others: Any) -> Any:
    """The product of several matrices, in the order that takes the fewest multiplications.

    >>> multi_dot([Tensor([[1.0, 2.0]]), Tensor([[3.0], [4.0]])]).tolist()
    [[11.0]]
    """
    parts = [*(first if isinstance(first, tuple | list) else (first,)), *others]
    if len(parts) < 2:
        raise ShapeError("multi_dot needs two matrices or more")
    row, column = parts[0].ndim == 1, parts[-1].ndim == 1
    parts = [
        unsqueeze(parts[0], 0) if row else parts[0],
        *parts[1:-1],
        unsqueeze(parts[-1], 1) if column else parts[-1],
    ]
    sizes = [concrete(p.shape[0]) for p in parts] + [concrete(parts[-1].shape[1])]
    count = len(parts)
    cost = {(i, i): 0 for i in range(count)}
    cut: dict[tuple[int, int], int] = {}
    for length in range(1, count):
        for i in range(count - length):
            j = i + length
            choices = [
                (cost[i, k] + cost[k + 1, j] + sizes[i] * sizes[k + 1] * sizes[j + 1], k) for k in range(i, j)
            ]
            cost[i, j], cut[i, j] = min(choices)

    def product(i: int, j: int) -> Any:
        return parts[i] if i == j else matmul(product(i, cut[i, j]), product(cut[i, j] + 1, j))

    found = product(0, count - 1)
    found = squeeze(found, 0) if row else found
    return squeeze(found, -1) if column else found


def vecdot(x: T, other: Any, dim: int = -1) -> T:
    """The sums of products along an axis.

    >>> vecdot(Tensor([[1.0, 2.0]]), Tensor([3.0, 4.0])).tolist()
    [11.0]
    """
    return reduce.sum(x * as_operand(x, other), dim)


def tensorinv(t: T, ind: int = 2) -> T:
    """The tensor whose `tensordot` with x over the last axes is the unit.

    >>> tensorinv(Tensor([[2.0]]), 1).tolist()
    [[0.5]]
    """
    if ind < 1:
        raise ArgumentError(f"the number of first axes is 1 or more, not {ind}")
    lead, rest = t.shape[:ind], t.shape[ind:]
    rows, columns = math.prod(concrete_shape(lead)), math.prod(concrete_shape(rest))
    if rows != columns:
        raise ShapeError(f"tensorinv with {ind} first axes needs a square, not shape {show_shape(t.shape)}")
    x: Any = t.reshape(rows, columns)  # type: ignore[attr-defined]
    found: T = inv(x).reshape(*rest, *lead)
    return found


def tensorsolve(t: T, b: Any, dims: Any = None) -> T:
    """X whose `tensordot` with the last axes of A is b.

    >>> tensorsolve(Tensor([[2.0]]), Tensor([4.0])).tolist()
    [2.0]
    """
    y = as_operand(t, b)
    x: Any = t
    if dims is not None:
        moved = [d % t.ndim for d in dims]
        x = x.permute(*[i for i in range(t.ndim) if i not in moved], *moved)
    rest = x.shape[y.ndim :]
    size = math.prod(concrete_shape(y.shape))
    found: Any = solved(_precise(x.reshape(size, size)), _precise(y.reshape(size, 1)))  # type: ignore[attr-defined]
    result: T = _as_given(t, found.reshape(*rest), b)
    return result


def householder_product(a: T, tau: Any) -> T:
    """The first columns of the product of reflections 1 - tau · v · vᵀ, whose vectors lie below A's diagonal.

    >>> householder_product(Tensor([[0.0], [0.0]]), Tensor([0.0])).tolist()
    [[1.0], [0.0]]
    """
    rows, columns = _matrix(a, "householder_product", square=False)
    factors: Any = as_operand(a, tau)
    count = concrete(factors.shape[-1])
    v = tril(a, -1) + unit_matrix(a, rows, columns)
    found: Any = expand(unit_matrix(a, rows, columns), a.shape)
    for k in reversed(range(count)):
        column = narrow(v, -1, k, 1)
        along = matmul(matrix_transpose(column), found)
        found = (found - column * unsqueeze(narrow(factors, -1, k, 1), -1) * along).contiguous()
    result: T = found
    return result
