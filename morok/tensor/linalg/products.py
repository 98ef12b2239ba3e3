"""Matrix products, as products and sums over expanded views.

There is no matrix-product op: `a @ b` is multiply and add over a third axis. The optimiser recognises the
pattern, and everything around it (bias, activation, a transposed or padded operand) fuses as usual. Floats
narrower than 32 bits are multiplied and added in float32.
"""

from __future__ import annotations

from typing import Any

from morok.dtype import promote
from morok.errors import ShapeError
from morok.ir import build
from morok.ir import movement as move
from morok.ir.infer import show_shape
from morok.ir.node import UOp, alu
from morok.ir.ops import Ops
from morok.tensor.arrays.movement import flatten, transpose, unsqueeze
from morok.tensor.arrays.reduce import reduce_axes
from morok.tensor.assign import in_place
from morok.tensor.core import Core, expand_to, require_shape
from morok.tensor.creation.constructors import as_operand
from morok.tensor.dtypes import accumulator
from morok.tensor.elementwise.arithmetic import add
from morok.tensor.elementwise.conversion import cast
from morok.tensor.elementwise.once import rounded_once
from morok.tensor.elementwise.operators import T
from morok.tensor.sizes import broadcast_shapes


def contract(x: T, other: T, axes: tuple[int, ...], keep: bool = False) -> T:
    """The sum over axes of a product of two tensors that broadcast; in the operands' common type."""
    dtype = promote(x.dtype, other.dtype)
    wide = accumulator(dtype) if dtype.is_float else dtype
    product = cast(x, wide) * cast(other, wide)
    return cast(reduce_axes(product, Ops.ADD, axes, keep), dtype)


def matmul(x: T, other: Any) -> T:
    """The matrix product of the last two axes; axes before them broadcast, vectors are rows or columns.

    >>> Tensor([[1, 2], [3, 4]]).matmul(Tensor([1, 1])).tolist()
    [3, 7]
    """
    y = as_operand(x, other)
    if not x.ndim or not y.ndim:
        raise ShapeError(
            f"a matrix product needs at least one axis each, got {show_shape(x.shape)} and "
            f"{show_shape(y.shape)}; use * for scalars"
        )
    inner, outer = x.shape[-1], y.shape[-2] if y.ndim > 1 else y.shape[0]
    if inner != outer:
        raise ShapeError(_no_match(x, y))
    return x._new(_matrix_product(x.uop, y.uop))


def rmatmul(x: T, other: Any) -> T:
    """`y @ x` for a y that is no tensor."""
    return matmul(as_operand(x, other), x)


def imatmul(x: T, other: Any) -> T:
    """`x @= y`."""
    return in_place(x, "@", matmul(x, other))


def outer(x: T, other: Any) -> T:
    """All products of two vectors.

    >>> Tensor([1, 2]).outer(Tensor([3, 4])).tolist()
    [[3, 4], [6, 8]]
    """
    return unsqueeze(flatten(x), 1) * unsqueeze(flatten(as_operand(x, other)), 0)


@rounded_once
def linear(x: T, weight: Any, bias: Any = None) -> T:
    """x · weightᵀ + bias, with the weight as (out, in), as PyTorch keeps it.

    >>> Tensor([[1.0, 2.0]]).linear(Tensor([[1.0, 1.0]])).tolist()
    [[3.0]]
    """
    y = matmul(x, transpose(as_operand(x, weight), -1, -2))
    return y if bias is None else add(y, bias)


def _no_match(x: Core, y: Core) -> str:
    inner = show_shape((x.shape[-1],))[1:-2]
    rows = "elements" if y.ndim == 1 else "rows"
    return (
        f"shapes {show_shape(x.shape)} and {show_shape(y.shape)} do not multiply: "
        f"{inner} columns on the left need {inner} {rows} on the right"
    )


def _matrix_product(x: UOp, y: UOp) -> UOp:
    """The product of matrices whose inner sizes agree, as nodes: models are full of them, so no detour by
    tensors."""
    left, right = require_shape(x), require_shape(y)
    rows = left if len(left) > 1 else (1, *left)
    columns = right if len(right) > 1 else (*right, 1)
    batch = broadcast_shapes(rows[:-2], columns[:-2])
    dtype = promote(x.dtype, y.dtype)
    wide = accumulator(dtype) if dtype.is_float else dtype
    m, k, n = rows[-2], rows[-1], columns[-1]
    full = (*batch, m, n, k)
    a = move.reshape(build.cast(x, wide), (*rows[:-1], 1, k))
    last = len(columns) - 1
    b = move.permute(move.reshape(build.cast(y, wide), columns), (*range(last - 1), last, last - 1))
    product = alu(Ops.MUL, expand_to(a, full), expand_to(move.reshape(b, (*columns[:-2], 1, n, k)), full))
    total = move.reduce_axis(product, Ops.ADD, (len(full) - 1,))
    kept = (*batch, *((m,) if len(left) > 1 else ()), *((n,) if len(right) > 1 else ()))
    return build.cast(move.reshape(total, kept), dtype)
