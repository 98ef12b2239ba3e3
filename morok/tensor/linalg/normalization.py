"""Softmax, norms and losses: several reductions over the same rows.

Written as their definitions; that the reductions of a row end up in one kernel is the scheduler's business.
Floats narrower than 32 bits are carried in float32 throughout and rounded once.
"""

from __future__ import annotations

import math
from typing import Any, Self, TypeVar

from morok import dtype as dt
from morok.errors import ArgumentError, DTypeError, OutOfRange, ShapeError
from morok.ir import movement as move
from morok.ir.build import approximate_op
from morok.ir.checks import Complaint
from morok.ir.infer import Size, show_shape
from morok.ir.node import alu
from morok.ir.ops import Ops
from morok.tensor.arrays.nan_reductions import NanReductions
from morok.tensor.arrays.rows import checked, wide_enough
from morok.tensor.core import expand_to, iota
from morok.tensor.creation.constructors import lower_triangle
from morok.tensor.dtypes import accumulator, float_of
from morok.tensor.elementwise.once import rounded_once
from morok.tensor.record import pure
from morok.tensor.sizes import _UNSET, as_axes, as_axis, as_shape, as_size, axis_or_dim


@pure
class Normalization(NanReductions):
    """Functions of whole rows."""

    def _wide(self) -> Self:
        own = float_of(self.dtype)
        return self.cast(accumulator(own))

    def _power(self, own: dt.DType) -> Self:
        """e^x, as exactly as results of this type need it."""
        if self.dtype is own:
            return self.exp()
        return self._new(approximate_op(Ops.EXP2, (self * math.log2(math.e)).uop))

    def softmax(self, axis: Any = None, *, dim: Any = _UNSET, dtype: Any = None) -> Self:
        """exp(x) over its sum along an axis (the last one); in another type if one is given.

        >>> Tensor([0.0, 0.0]).softmax().tolist()
        [0.5, 0.5]
        """
        if dtype is not None:
            return self.cast(dtype).softmax(axis, dim=dim)
        return self._softmax(_one(self, axis, dim), float_of(self.dtype))

    def _softmax(self, axes: tuple[int, ...], own: dt.DType) -> Self:
        """softmax as a tensor of type `own`."""
        x = self._wide()
        e = (x - x._reduce(Ops.MAX, axes, True).detach())._power(own)  # the shift cancels: it has no gradient
        total = e.sum(axes, keepdim=True)
        return e / total if x.dtype is own else (e * total.reciprocal()).cast(own)

    def log_softmax(self, axis: Any = None, *, dim: Any = _UNSET, dtype: Any = None) -> Self:
        """The logarithm of softmax, without computing softmax; in another type if one is given.

        >>> Tensor([0.0, 0.0]).log_softmax().exp().tolist()
        [0.5, 0.5]
        """
        if dtype is not None:
            return self.cast(dtype).log_softmax(axis, dim=dim)
        axes = _one(self, axis, dim)
        x = self._wide()
        y = x - x._reduce(Ops.MAX, axes, True).detach()
        own = float_of(self.dtype)
        return (y - y._power(own).sum(axes, keepdim=True).log()).cast(own)

    def logsumexp(
        self, axis: Any = None, keepdim: bool = False, *, dim: Any = _UNSET, keepdims: bool = False
    ) -> Self:
        """log(sum(exp(x))) without overflow.

        >>> Tensor([1000.0]).logsumexp().item()
        1000.0
        """
        axes = as_axes(axis_or_dim(axis, dim), self.shape)
        x = self._wide()
        top = x._reduce(Ops.MAX, axes, True).detach()
        shift = top.isfinite().where(top, 0.0)
        own = float_of(self.dtype)
        total = (x - shift)._power(own).sum(axes, keepdim=True).log() + shift
        result = total if keepdim or keepdims else total.squeeze(axes)
        return result.cast(own)

    def logcumsumexp(self, axis: Any = None, *, dim: Any = _UNSET) -> Self:
        """The logarithm of running sums of exp(x) along an axis, without overflow.

        >>> [round(x, 2) for x in Tensor([1000.0, 1000.0]).logcumsumexp(0).tolist()]
        [1000.0, 1000.69]
        """
        where = axis_or_dim(axis, dim)
        if where is None or not self.ndim:
            return self.reshape(self.numel()).logcumsumexp(0 if where is None else where)
        at = as_axis(where, self.ndim, self.shape)
        x = self._wide()
        if 0 in x.shape:
            return x.cast(float_of(self.dtype))
        # s = s·exp(t before - t) + exp(x - t), where t is the largest value so far, if that is a number
        top: Self = x.cummax(at).detach()
        shift = top.isfinite().where(top, 0.0)
        back = [(1, -1) if a == at else None for a in range(x.ndim)]
        before, held = top.pad(back, -math.inf), shift.pad(back)
        kept = before.eq(-math.inf).where(0.0, (held - shift).exp())
        sums = self._new(move.scan_axis(kept.uop, Ops.MULACC, at, (x - shift).exp().uop))
        return (sums.log() + shift).cast(float_of(self.dtype))

    # --- norms

    def layer_norm(self, axes: Any = -1, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Self:
        """Mean 0 and variance 1 over the given axes (default: the last), then scaled and shifted.

        `axes` may also be a shape, as in PyTorch: the last axes, which must have these sizes.

        >>> Tensor([1.0, 3.0]).layer_norm(eps=0.0).tolist()
        [-1.0, 1.0]
        """
        where = self._norm_axes(axes)
        x = self._wide()
        distance = x - x.mean(where, keepdim=True)
        y = distance * ((distance * distance).mean(where, keepdim=True) + eps).rsqrt()
        return self._scaled(y, weight, bias)

    def rms_norm(self, axes: Any = -1, weight: Any = None, eps: float = 1e-6) -> Self:
        """Mean square 1 over the given axes (default: the last), then scaled.

        >>> Tensor([2.0, 2.0]).rms_norm(eps=0.0).tolist()
        [1.0, 1.0]
        """
        where = self._norm_axes(axes)
        x = self._wide()
        return self._scaled(x * ((x * x).mean(where, keepdim=True) + eps).rsqrt(), weight, None)

    @rounded_once
    def batch_norm(
        self, mean: Any, var: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
    ) -> Self:
        """Channels (axis 1) normalised by given means and variances.

        >>> x = Tensor([[1.0, 2.0], [3.0, 4.0]])
        >>> x.batch_norm(Tensor([1.0, 2.0]), Tensor([1.0, 4.0]), eps=0.0).tolist()
        [[0.0, 0.0], [2.0, 1.0]]
        """
        sizes = (1, -1) + (1,) * (self.ndim - 2)
        scale = (var + eps).rsqrt() if weight is None else (var + eps).rsqrt() * weight
        y: Self = (self - mean.reshape(sizes)) * scale.reshape(sizes)
        return y if bias is None else y + bias.reshape(sizes)

    def _norm_axes(self, axes: Any) -> tuple[int, ...]:
        many = tuple(axes) if isinstance(axes, tuple | list) else (axes,)
        own = self.shape
        if any(not isinstance(a, int) or a >= 0 for a in many) and len(many) <= len(own):
            sizes = tuple(as_size(a) for a in many)
            if own[len(own) - len(many) :] == sizes:
                return tuple(range(len(own) - len(many), len(own)))
        return as_axes(axes, own)

    def _scaled(self, y: Self, weight: Any, bias: Any) -> Self:
        y = y if weight is None else y.__mul__(weight)
        y = y if bias is None else y.__add__(bias)
        return y.cast(float_of(self.dtype))

    # --- losses

    def one_hot(self, classes: int) -> Self:
        """A new last axis with 1 at the place that the element names and 0 elsewhere.

        An element that is none of 0 … classes-1 is an error; negative ones do not count from the end.

        >>> Tensor([2, 0]).one_hot(3).tolist()
        [[0, 0, 1], [1, 0, 0]]
        """
        return self._hot(classes).cast(dt.int64)

    def _hot(self, classes: Any) -> Self:
        """As `one_hot`, of truths."""
        (size,) = as_shape((classes,))
        labels = self._labels(size)
        sizes = (*self.shape, size)
        places = expand_to(iota(sizes, len(sizes) - 1, labels.dtype), sizes)
        return self._new(alu(Ops.CMPEQ, expand_to(labels.unsqueeze(-1).uop, sizes), places))

    def _labels(self, classes: Size) -> Self:
        """Class labels, each of which has to be one; checked where they are used."""
        if not self.dtype.is_bounded_int:
            raise DTypeError(f"class labels are integers, not {self.dtype}")
        if classes == 0 and self.numel() != 0:
            raise OutOfRange("a label needs classes, and there are none")
        places, limit = wide_enough(self.uop, classes)
        text = "label {} is no class" + (f"; use 0 … {classes - 1}" if isinstance(classes, int) else "")
        return self._new(checked(places, limit, Complaint(text), nowhere=True))

    def cross_entropy(
        self,
        target: Any,
        reduction: str = "mean",
        ignore_index: int | None = -100,
        label_smoothing: float = 0.0,
    ) -> Self:
        """The loss of logits (…, classes) against integer targets (…), averaged.

        Targets that equal `ignore_index` count neither in the sum nor in the mean. Any other one that is no
        class is an error; negative ones do not count from the end.

        >>> Tensor([[0.0, 0.0]]).cross_entropy(Tensor([1])).item()
        0.6931471824645996
        """
        logs = self._wide().log_softmax(-1)
        loss, counted = logs._of_labels(target, ignore_index, "cross_entropy", label_smoothing)
        return _reduced(loss, counted, reduction).cast(float_of(self.dtype))

    def nll_loss(self, target: Any, reduction: str = "mean", ignore_index: int | None = -100) -> Self:
        """The loss of log-probabilities (…, classes) against integer targets (…), averaged.

        Targets are taken as in `cross_entropy`.

        >>> Tensor([[-1.0, -2.0]]).nll_loss(Tensor([1])).item()
        2.0
        """
        loss, counted = self._wide()._of_labels(target, ignore_index, "nll_loss")
        return _reduced(loss, counted, reduction).cast(float_of(self.dtype))

    def _of_labels(
        self, target: Any, ignore_index: int | None, what: str, smoothing: float = 0.0
    ) -> tuple[Self, Self | None]:
        """Of logarithms (…, classes) the negative ones at the labels (…), and which of them count."""
        y = self._new((target if isinstance(target, Normalization) else self._from_data(target)).uop)
        if y.shape != self.shape[:-1]:
            raise ShapeError(
                f"{what} of shape {show_shape(self.shape)} needs targets "
                f"{show_shape(self.shape[:-1])}, not {show_shape(y.shape)}"
            )
        counted = None
        if ignore_index is not None and y.dtype.is_int and y.dtype.min <= ignore_index <= y.dtype.max:
            counted = y.ne(ignore_index)
            y = counted.where(y, 0)
        loss = -y._hot(self.shape[-1]).where(self, 0.0).sum(-1)
        if smoothing:
            loss = loss * (1.0 - smoothing) - self.mean(-1) * smoothing
        return (loss if counted is None else counted.where(loss, 0.0)), counted

    @rounded_once
    def mse_loss(self, target: Any, reduction: str = "mean") -> Self:
        """The squared distance from a target, averaged.

        >>> Tensor([1.0, 2.0]).mse_loss(Tensor([1.0, 4.0])).item()
        2.0
        """
        distance = self.__sub__(target)
        return _reduced(distance * distance, None, reduction)

    @rounded_once
    def binary_cross_entropy_with_logits(self, target: Any, reduction: str = "mean") -> Self:
        """The loss of logits against probabilities, averaged.

        >>> Tensor([0.0]).binary_cross_entropy_with_logits(Tensor([1.0])).item()
        0.6931471824645996
        """
        x = self._floating()
        loss = x.softplus() - x.__mul__(target)
        return _reduced(loss, None, reduction)

    def tril(self, diagonal: int = 0) -> Self:
        """Zero above a diagonal of the last two axes.

        >>> Tensor.ones(2, 2).tril().tolist()
        [[1.0, 0.0], [1.0, 1.0]]
        """
        return self._triangle(diagonal).where(self, False)

    def triu(self, diagonal: int = 0) -> Self:
        """Zero below a diagonal of the last two axes.

        >>> Tensor.ones(2, 2).triu().tolist()
        [[1.0, 1.0], [0.0, 1.0]]
        """
        return self._triangle(diagonal - 1).where(False, self)

    def _triangle(self, diagonal: int) -> Self:
        if self.ndim < 2:
            raise ShapeError(f"a triangle needs two axes, not shape {show_shape(self.shape)}")
        return self._new(lower_triangle(self.shape[-2:], diagonal))


def _one(x: NanReductions, axis: Any, dim: Any) -> tuple[int, ...]:
    where = axis_or_dim(axis, dim)
    return as_axes(-1 if where is None and x.ndim else where, x.shape)


N = TypeVar("N", bound=NanReductions)


def _reduced(loss: N, counted: N | None, reduction: str) -> N:
    if reduction == "none":
        return loss
    if reduction == "sum":
        return loss.sum()
    if reduction != "mean":
        raise ArgumentError(f'reduction must be "mean", "sum" or "none", not {reduction!r}')
    return loss.mean() if counted is None else loss.sum() / counted.sum().cast(loss.dtype)
