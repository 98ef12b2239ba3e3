"""Softmax, norms and losses: several reductions over the same rows.

Written as their definitions; that the reductions of a row end up in one kernel is the scheduler's business.
Floats narrower than 32 bits are carried in float32 throughout and rounded once.
"""

from __future__ import annotations

import math
from typing import Any

from morok import dtype as dt
from morok.errors import ArgumentError, DTypeError, OutOfRange, ShapeError
from morok.ir import movement as move
from morok.ir.build import approximate_op
from morok.ir.checks import Complaint
from morok.ir.infer import Size, show_shape
from morok.ir.node import alu
from morok.ir.ops import Ops
from morok.tensor.arrays import reduce
from morok.tensor.arrays.movement import reshape, squeeze, unsqueeze
from morok.tensor.arrays.padding import pad
from morok.tensor.arrays.reduce import cummax, mean, reduce_axes
from morok.tensor.arrays.rows import checked, wide_enough
from morok.tensor.core import Core, expand_to, iota
from morok.tensor.creation.constructors import as_operand, detach, lower_triangle
from morok.tensor.dtypes import float_of
from morok.tensor.elementwise import comparison
from morok.tensor.elementwise.activations import softplus
from morok.tensor.elementwise.arithmetic import add, mul, sub
from morok.tensor.elementwise.comparison import eq, ne, where
from morok.tensor.elementwise.conversion import cast
from morok.tensor.elementwise.floats import floating, widen
from morok.tensor.elementwise.functions import exp, log, reciprocal, rsqrt
from morok.tensor.elementwise.once import rounded_once
from morok.tensor.elementwise.operators import T
from morok.tensor.elementwise.rounding import isfinite
from morok.tensor.sizes import _UNSET, SizeLike, as_axes, as_axis, as_shape, as_size, axis_or_dim


def _power(x: T, own: dt.DType) -> T:
    """e^x, as exactly as results of this type need it."""
    if x.dtype is own:
        return exp(x)
    return x._new(approximate_op(Ops.EXP2, (x * math.log2(math.e)).uop))


def softmax(x: T, axis: Any = None, *, dim: Any = _UNSET, dtype: Any = None) -> T:
    """exp(x) over its sum along an axis (the last one); in another type if one is given.

    >>> Tensor([0.0, 0.0]).softmax().tolist()
    [0.5, 0.5]
    """
    if dtype is not None:
        return softmax(cast(x, dtype), axis, dim=dim)
    own = float_of(x.dtype)
    return cast(softmax_weights(x, _one(x, axis, dim), own), own)


def softmax_weights(x: T, axes: tuple[int, ...], own: dt.DType) -> T:
    """softmax before it is rounded to the type `own`."""
    x = widen(x)
    e = _power(x - detach(reduce_axes(x, Ops.MAX, axes, True)), own)  # the shift cancels: it has no gradient
    total = reduce.sum(e, axes, keepdim=True)
    return e / total if x.dtype is own else e * reciprocal(total)


def log_softmax(t: T, axis: Any = None, *, dim: Any = _UNSET, dtype: Any = None) -> T:
    """The logarithm of softmax, without computing softmax; in another type if one is given.

    >>> Tensor([0.0, 0.0]).log_softmax().exp().tolist()
    [0.5, 0.5]
    """
    if dtype is not None:
        return log_softmax(cast(t, dtype), axis, dim=dim)
    axes = _one(t, axis, dim)
    x = widen(t)
    y = x - detach(reduce_axes(x, Ops.MAX, axes, True))
    own = float_of(t.dtype)
    return cast(y - log(reduce.sum(_power(y, own), axes, keepdim=True)), own)


def logsumexp(
    t: T, axis: Any = None, keepdim: bool = False, *, dim: Any = _UNSET, keepdims: bool = False
) -> T:
    """log(sum(exp(x))) without overflow.

    >>> Tensor([1000.0]).logsumexp().item()
    1000.0
    """
    axes = as_axes(axis_or_dim(axis, dim), t.shape)
    x = widen(t)
    top = detach(reduce_axes(x, Ops.MAX, axes, True))
    shift = where(isfinite(top), top, 0.0)
    own = float_of(t.dtype)
    total = log(reduce.sum(_power(x - shift, own), axes, keepdim=True)) + shift
    result = total if keepdim or keepdims else squeeze(total, axes)
    return cast(result, own)


def logcumsumexp(t: T, axis: Any = None, *, dim: Any = _UNSET) -> T:
    """The logarithm of running sums of exp(x) along an axis, without overflow.

    >>> [round(x, 2) for x in Tensor([1000.0, 1000.0]).logcumsumexp(0).tolist()]
    [1000.0, 1000.69]
    """
    where = axis_or_dim(axis, dim)
    if where is None or not t.ndim:
        return logcumsumexp(reshape(t, t.numel()), 0 if where is None else where)
    at = as_axis(where, t.ndim, t.shape)
    x = widen(t)
    if 0 in x.shape:
        return cast(x, float_of(t.dtype))
    # s = s·exp(m before - m) + exp(x - m), where m is the largest value so far, if that is a number
    top: T = cummax(x, at).detach()
    shift = comparison.where(isfinite(top), top, 0.0)
    back = [(1, -1) if a == at else None for a in range(x.ndim)]
    before, held = pad(top, back, -math.inf), pad(shift, back)
    kept = comparison.where(eq(before, -math.inf), 0.0, exp(held - shift))
    sums = t._new(move.scan_axis(kept.uop, Ops.MULACC, at, exp(x - shift).uop))
    return cast(log(sums) + shift, float_of(t.dtype))


# --- norms


def layer_norm(t: T, axes: Any = -1, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> T:
    """Mean 0 and variance 1 over the given axes (default: the last), then scaled and shifted.

    `axes` may also be a shape, as in PyTorch: the last axes, which must have these sizes.

    >>> Tensor([1.0, 3.0]).layer_norm(eps=0.0).tolist()
    [-1.0, 1.0]
    """
    where = _norm_axes(t, axes)
    x = widen(t)
    distance = x - mean(x, where, keepdim=True)
    y = distance * rsqrt(mean(distance * distance, where, keepdim=True) + eps)
    return _scaled(t, y, weight, bias)


def rms_norm(t: T, axes: Any = -1, weight: Any = None, eps: float = 1e-6) -> T:
    """Mean square 1 over the given axes (default: the last), then scaled.

    >>> Tensor([2.0, 2.0]).rms_norm(eps=0.0).tolist()
    [1.0, 1.0]
    """
    where = _norm_axes(t, axes)
    x = widen(t)
    return _scaled(t, x * rsqrt(mean(x * x, where, keepdim=True) + eps), weight, None)


@rounded_once
def batch_norm(x: T, mean: Any, var: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> T:
    """Channels (axis 1) normalised by given means and variances.

    >>> x = Tensor([[1.0, 2.0], [3.0, 4.0]])
    >>> x.batch_norm(Tensor([1.0, 2.0]), Tensor([1.0, 4.0]), eps=0.0).tolist()
    [[0.0, 0.0], [2.0, 1.0]]
    """
    sizes = (1, -1) + (1,) * (x.ndim - 2)
    scale = (var + eps).rsqrt() if weight is None else (var + eps).rsqrt() * weight
    y: T = (x - mean.reshape(sizes)) * scale.reshape(sizes)
    return y if bias is None else y + bias.reshape(sizes)


def _norm_axes(x: T, axes: Any) -> tuple[int, ...]:
    many = tuple(axes) if isinstance(axes, tuple | list) else (axes,)
    own = x.shape
    if any(not isinstance(a, int) or a >= 0 for a in many) and len(many) <= len(own):
        sizes = tuple(as_size(a) for a in many)
        if own[len(own) - len(many) :] == sizes:
            return tuple(range(len(own) - len(many), len(own)))
    return as_axes(axes, own)


def _scaled(x: T, y: T, weight: Any, bias: Any) -> T:
    y = y if weight is None else mul(y, weight)
    y = y if bias is None else add(y, bias)
    return cast(y, float_of(x.dtype))


# --- losses


def one_hot(x: T, classes: int) -> T:
    """A new last axis with 1 at the place that the element names and 0 elsewhere.

    An element that is none of 0 … classes-1 is an error; negative ones do not count from the end.

    >>> Tensor([2, 0]).one_hot(3).tolist()
    [[0, 0, 1], [1, 0, 0]]
    """
    return cast(_hot(x, classes), dt.int64)


def _hot(x: T, classes: Any) -> T:
    """As `one_hot`, of truths."""
    (size,) = as_shape((classes,))
    labels = _labels(x, size)
    sizes = (*x.shape, size)
    places = expand_to(iota(sizes, len(sizes) - 1, labels.dtype), sizes)
    return x._new(alu(Ops.CMPEQ, expand_to(unsqueeze(labels, -1).uop, sizes), places))


def _labels(x: T, classes: Size) -> T:
    """Class labels, each of which has to be one; checked where they are used."""
    if not x.dtype.is_bounded_int:
        raise DTypeError(f"class labels are integers, not {x.dtype}")
    if classes == 0 and x.numel() != 0:
        raise OutOfRange("a label needs classes, and there are none")
    places, limit = wide_enough(x.uop, classes)
    text = "label {} is no class" + (f"; use 0 … {classes - 1}" if isinstance(classes, int) else "")
    return x._new(checked(places, limit, Complaint(text), nowhere=True))


def cross_entropy(
    x: T,
    target: Any,
    reduction: str = "mean",
    ignore_index: int | None = -100,
    label_smoothing: float = 0.0,
) -> T:
    """The loss of logits (…, classes) against integer targets (…), averaged.

    Targets that equal `ignore_index` count neither in the sum nor in the mean. Any other one that is no
    class is an error; negative ones do not count from the end.

    >>> Tensor([[0.0, 0.0]]).cross_entropy(Tensor([1])).item()
    0.6931471824645996
    """
    logs = log_softmax(widen(x), -1)
    loss, counted = _of_labels(logs, target, ignore_index, "cross_entropy", label_smoothing)
    return cast(_reduced(loss, counted, reduction), float_of(x.dtype))


def nll_loss(x: T, target: Any, reduction: str = "mean", ignore_index: int | None = -100) -> T:
    """The loss of log-probabilities (…, classes) against integer targets (…), averaged.

    Targets are taken as in `cross_entropy`.

    >>> Tensor([[-1.0, -2.0]]).nll_loss(Tensor([1])).item()
    2.0
    """
    loss, counted = _of_labels(widen(x), target, ignore_index, "nll_loss")
    return cast(_reduced(loss, counted, reduction), float_of(x.dtype))


def _of_labels(
    x: T, target: Any, ignore_index: int | None, what: str, smoothing: float = 0.0
) -> tuple[T, T | None]:
    """Of logarithms (…, classes) the negative ones at the labels (…), and which of them count."""
    y = as_operand(x, target)
    if y.shape != x.shape[:-1]:
        raise ShapeError(
            f"{what} of shape {show_shape(x.shape)} needs targets "
            f"{show_shape(x.shape[:-1])}, not {show_shape(y.shape)}"
        )
    counted = None
    if ignore_index is not None and y.dtype.is_int and y.dtype.min <= ignore_index <= y.dtype.max:
        counted = ne(y, ignore_index)
        y = where(counted, y, 0)
    loss = -reduce.sum(where(_hot(y, x.shape[-1]), x, 0.0), -1)
    if smoothing:
        loss = loss * (1.0 - smoothing) - mean(x, -1) * smoothing
    return (loss if counted is None else where(counted, loss, 0.0)), counted


@rounded_once
def mse_loss(x: T, target: Any, reduction: str = "mean") -> T:
    """The squared distance from a target, averaged.

    >>> Tensor([1.0, 2.0]).mse_loss(Tensor([1.0, 4.0])).item()
    2.0
    """
    distance = sub(x, target)
    return _reduced(distance * distance, None, reduction)


@rounded_once
def binary_cross_entropy_with_logits(x: T, target: Any, reduction: str = "mean") -> T:
    """The loss of logits against probabilities, averaged.

    >>> Tensor([0.0]).binary_cross_entropy_with_logits(Tensor([1.0])).item()
    0.6931471824645996
    """
    x = floating(x)
    loss = softplus(x) - mul(x, target)
    return _reduced(loss, None, reduction)


def tril(x: T, diagonal: SizeLike = 0) -> T:
    """Zero above a diagonal of the last two axes.

    >>> Tensor.ones(2, 2).tril().tolist()
    [[1.0, 0.0], [1.0, 1.0]]
    """
    return where(triangle(x, diagonal), x, False)


def triu(x: T, diagonal: SizeLike = 0) -> T:
    """Zero below a diagonal of the last two axes.

    >>> Tensor.ones(2, 2).triu().tolist()
    [[1.0, 1.0], [0.0, 1.0]]
    """
    return where(triangle(x, diagonal - 1), False, x)


def triangle(x: T, diagonal: SizeLike) -> T:
    if x.ndim < 2:
        raise ShapeError(f"a triangle needs two axes, not shape {show_shape(x.shape)}")
    return x._new(lower_triangle(x.shape[-2:], as_size(diagonal, "a diagonal")))


def _one(x: Core, axis: Any, dim: Any) -> tuple[int, ...]:
    where = axis_or_dim(axis, dim)
    return as_axes(-1 if where is None and x.ndim else where, x.shape)


def _reduced(loss: T, counted: T | None, reduction: str) -> T:
    if reduction == "none":
        return loss
    if reduction == "sum":
        return reduce.sum(loss)
    if reduction != "mean":
        raise ArgumentError(f'reduction must be "mean", "sum" or "none", not {reduction!r}')
    return mean(loss) if counted is None else reduce.sum(loss) / cast(reduce.sum(counted), loss.dtype)
