"""Attention: softmax(Q Kᵀ) V, and its gradient in closed form.

With W the weights, O = W V the result and g its gradient:

    V gets  Wᵀ g
    the scores get  S' = W ∘ (g Vᵀ - r)      r = Σ over columns of g ∘ O, which is Σ over keys of W ∘ (g Vᵀ)
    Q gets  S' K · scale,   K gets  S'ᵀ Q · scale

r needs no scores, so nothing that is as large as they are has to be summed first. S' is multiplied in the
type of the operands, as the weights are: a matrix unit takes both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from morok import dtype as dt
from morok.dtype import promote
from morok.errors import ShapeError
from morok.ir.call import attributes, call
from morok.ir.node import UOp
from morok.tensor.arrays.movement import transpose
from morok.tensor.creation.constructors import as_operand
from morok.tensor.dtypes import float_of
from morok.tensor.elementwise.comparison import where
from morok.tensor.elementwise.conversion import cast
from morok.tensor.elementwise.once import widened
from morok.tensor.elementwise.operators import T
from morok.tensor.linalg.normalization import softmax_weights, triangle
from morok.tensor.linalg.products import matmul
from morok.tensor.linalg.solve_gradients import summed_to


def scaled_dot_product_attention(
    x: T, key: Any, value: Any, mask: Any = None, is_causal: bool = False, scale: float | None = None
) -> T:
    """softmax(Q Kᵀ · scale + mask) V over the last two axes; a boolean mask says where to look.

    >>> q = k = v = Tensor.ones(1, 2, 4)
    >>> q.scaled_dot_product_attention(k, v).shape
    (1, 2, 4)
    """
    k, v = as_operand(x, key), as_operand(x, value)
    width = x.shape[-1]
    if scale is None:
        if not isinstance(width, int):
            raise ShapeError("attention over a symbolic width needs its scale")
        scale = width**-0.5
    m = None if mask is None else as_operand(x, mask)
    scores, own = _scores(x, k, m, is_causal, scale)
    weights = cast(softmax_weights(scores, (scores.ndim - 1,), own), own)
    inputs = [n.uop for n in (x, k, v, m) if n is not None]
    result = matmul(weights, v).uop
    return x._new(call("attention", result, *inputs, is_causal=is_causal, scale=float(scale)))


def _scores(q: T, k: T, mask: T | None, is_causal: bool, scale: float) -> tuple[T, dt.DType]:
    """Scores, and the type of the weights that they give.

    Scores stay in float32: rounded, or infinite, they are worth less than the weights.
    """
    own = promote(q.dtype, k.dtype)
    scores = matmul(widened(q), transpose(widened(k), -1, -2)) * scale
    if is_causal:
        scores = where(triangle(scores, 0), scores, float("-inf"))
    if mask is not None:
        if mask.dtype is dt.bool_:
            scores = where(mask, scores, float("-inf"))
        else:
            scores, own = scores + mask, promote(own, mask.dtype)
    return scores, float_of(own)


def pull_attention(new: Callable[[UOp], Any], node: UOp, g: UOp, source: int) -> UOp | None:
    """The gradient of queries, keys, values or a mask: sources 1 to 4."""
    inputs = [new(s) for s in node.src[1:]]
    target = inputs[source - 1]
    if not target.dtype.is_float:
        return None
    q, k, v = inputs[:3]
    mask = inputs[3] if len(inputs) > 3 else None
    how = attributes(node)
    out = None if source == 3 else new(node)
    found = attention_gradient(q, k, v, mask, how["is_causal"], how["scale"], new(g), out, source)
    uop: UOp = cast(summed_to(found, target.shape), target.dtype).uop
    return uop


def attention_gradient(
    q: T, k: T, v: T, mask: T | None, is_causal: bool, scale: float, g: T, out: T | None, source: int,
    looks: T | None = None,
) -> Any:  # fmt: skip
    """What queries, keys, values or the mask (sources 1 to 4) get of the gradient of `out`.

    With `looks`, whether a row counts at all; the others' weights are 0.
    """
    scores, own = _scores(q, k, mask, is_causal, scale)
    weights = softmax_weights(scores, (scores.ndim - 1,), own)
    if looks is not None:
        weights = where(looks, weights, 0.0)
    elif source == 3 and mask is not None and mask.dtype is dt.bool_:
        weights = where(mask, weights, 0.0)  # a row that looks at nothing is 0/0, and values get none of it
    wide = widened(g)
    if source == 3:
        return matmul(transpose(widened(cast(weights, own)), -1, -2), wide)
    # memory, for whoever needs it: a kernel that multiplies has no tiles where it sums rows up beside
    share = (wide * widened(out)).sum(-1, keepdim=True).contiguous()
    slopes = weights * (matmul(wide, transpose(widened(v), -1, -2)) - share)
    # what is masked has no slope, even where nothing else is left in a row
    if is_causal:
        slopes = where(triangle(scores, 0), slopes, 0.0)
    if mask is not None and mask.dtype is dt.bool_:
        slopes = where(mask, slopes, 0.0)
    narrow = widened(cast(slopes, own))
    if source == 1:
        return matmul(narrow, widened(k)) * scale
    return matmul(transpose(narrow, -1, -2), widened(q)) * scale if source == 2 else slopes
