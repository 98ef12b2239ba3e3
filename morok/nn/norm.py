"""Normalisation: over a batch, over features, over groups of channels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from morok.errors import ShapeError
from morok.ir.infer import show_shape
from morok.nn.init import parameter, stored
from morok.nn.module import Module, also, is_training, note_update
from morok.tensor.elementwise.once import common_type, is_narrow, rounded_once, widened
from morok.tensor.tensor import Tensor


class BatchNorm(Module):
    """Channels (axis 1) with mean 0 and variance 1 over the batch, scaled and shifted.

    In training by the batch's own statistics, which are averaged into `running_mean` and `running_var`;
    otherwise by those. Without a momentum they are the averages of all batches so far. Any number of axes
    from two on: BatchNorm1d, 2d and 3d are the same.

    >>> BatchNorm(3)(Tensor.ones(2, 3, 4, 4)).shape
    (2, 3, 4, 4)
    """

    @also(num_features="channels")
    def __init__(
        self,
        channels: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        dtype: Any = None,
    ) -> None:
        self.channels, self.eps, self.momentum = channels, eps, momentum
        self.weight = parameter(Tensor.ones(channels, dtype=dtype)) if affine else None
        self.bias = parameter(Tensor.zeros(channels, dtype=dtype)) if affine else None
        self.running_mean = stored(0.0, channels, dtype=dtype) if track_running_stats else None
        self.running_var = stored(1.0, channels, dtype=dtype) if track_running_stats else None
        self.num_batches_tracked = stored(0, dtype="int64") if track_running_stats else None

    def __call__(self, x: Tensor) -> Tensor:
        if x.ndim < 2 or x.shape[1] != self.channels:
            raise ShapeError(f"this batch norm takes (N, {self.channels}, …), not {show_shape(x.shape)}")
        if self.running_mean is not None and self.running_var is not None and not is_training():
            return x.batch_norm(self.running_mean, self.running_var, self.weight, self.bias, self.eps)
        axes = tuple(axis for axis in range(x.ndim) if axis != 1)
        if is_training() and all(x.shape[axis] == 1 for axis in axes):
            raise ShapeError(
                f"one value per channel, as in {show_shape(x.shape)}, has no variance to learn from"
            )
        wide = widened(x)
        mean, var = wide.mean(axes), wide.var(axes, correction=0)
        if is_training():
            self._learn(mean.detach(), var.detach(), x)
        y: Tensor = wide.batch_norm(mean, var, self.weight, self.bias, self.eps)
        own = common_type(x, self.weight, self.bias)
        return y.cast(own) if is_narrow(own) else y

    def _learn(self, mean: Tensor, var: Tensor, x: Tensor) -> None:
        seen = self.num_batches_tracked
        if self.running_mean is None or self.running_var is None or seen is None:
            return
        count = x.numel() / x.shape[1]
        unbiased = var * (count / max(count - 1, 1))
        seen.assign(seen + 1)
        part: Any = (
            self.momentum if self.momentum is not None else seen.cast(self.running_mean.dtype).reciprocal()
        )
        for running, new in ((self.running_mean, mean), (self.running_var, unbiased)):
            running.assign((running * (-part + 1.0) + new * part).cast(running.dtype))
        for changed in (seen, self.running_mean, self.running_var):
            note_update(changed)


BatchNorm1d = BatchNorm2d = BatchNorm3d = BatchNorm


class LayerNorm(Module):
    """Mean 0 and variance 1 over the last axes, scaled and shifted.

    >>> LayerNorm(4)(Tensor.ones(2, 4)).shape
    (2, 4)
    """

    @also(normalized_shape="shape", elementwise_affine="affine")
    def __init__(
        self,
        shape: int | Sequence[int],
        eps: float = 1e-5,
        affine: bool = True,
        bias: bool = True,
        dtype: Any = None,
    ) -> None:
        self.shape = (shape,) if isinstance(shape, int) else tuple(shape)
        self.eps = eps
        self.weight = parameter(Tensor.ones(*self.shape, dtype=dtype)) if affine else None
        self.bias = parameter(Tensor.zeros(*self.shape, dtype=dtype)) if affine and bias else None

    def __call__(self, x: Tensor) -> Tensor:
        return x.layer_norm(_last(x, self.shape), self.weight, self.bias, self.eps)


class RMSNorm(Module):
    """Mean square 1 over the last axes, scaled.

    >>> RMSNorm(4)(Tensor.ones(2, 4)).shape
    (2, 4)
    """

    @also(normalized_shape="shape", elementwise_affine="affine")
    def __init__(
        self, shape: int | Sequence[int], eps: float = 1e-6, affine: bool = True, dtype: Any = None
    ) -> None:
        self.shape = (shape,) if isinstance(shape, int) else tuple(shape)
        self.eps = eps
        self.weight = parameter(Tensor.ones(*self.shape, dtype=dtype)) if affine else None

    def __call__(self, x: Tensor) -> Tensor:
        return x.rms_norm(_last(x, self.shape), self.weight, self.eps)


def _last(x: Tensor, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The last axes, which must have the given sizes."""
    if x.shape[x.ndim - len(shape) :] != shape or x.ndim < len(shape):
        raise ShapeError(f"this norm takes (…, {', '.join(map(str, shape))}), not {show_shape(x.shape)}")
    return tuple(range(-len(shape), 0))


class GroupNorm(Module):
    """Mean 0 and variance 1 over groups of channels (axis 1) of each sample, scaled and shifted.

    >>> GroupNorm(2, 6)(Tensor.ones(3, 6, 4)).shape
    (3, 6, 4)
    """

    @also(num_groups="groups", num_channels="channels")
    def __init__(
        self, groups: int, channels: int, eps: float = 1e-5, affine: bool = True, dtype: Any = None
    ) -> None:
        if channels % groups:
            raise ShapeError(f"{channels} channels do not fall into {groups} equal groups")
        self.groups, self.channels, self.eps = groups, channels, eps
        self.weight = parameter(Tensor.ones(channels, dtype=dtype)) if affine else None
        self.bias = parameter(Tensor.zeros(channels, dtype=dtype)) if affine else None

    def __call__(self, x: Tensor) -> Tensor:
        if x.ndim < 2 or x.shape[1] != self.channels:
            raise ShapeError(f"this norm takes (N, {self.channels}, …), not {show_shape(x.shape)}")
        sizes = (1, self.channels, *(1,) * (x.ndim - 2))
        return _group_norm(x, self.weight, self.bias, self.groups, sizes, self.eps)


@rounded_once
def _group_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, groups: int, sizes: tuple[int, ...], eps: float
) -> Tensor:
    y = x.reshape(x.shape[0], groups, -1).layer_norm(-1, eps=eps).reshape(*x.shape)
    y = y if weight is None else y * weight.reshape(*sizes)
    return y if bias is None else y + bias.reshape(*sizes)


class InstanceNorm(GroupNorm):
    """Mean 0 and variance 1 of every channel of each sample.

    >>> InstanceNorm(3)(Tensor.ones(2, 3, 4, 4)).shape
    (2, 3, 4, 4)
    """

    @also(num_features="channels")
    def __init__(self, channels: int, eps: float = 1e-5, affine: bool = False, dtype: Any = None) -> None:
        super().__init__(channels, channels, eps, affine, dtype)


InstanceNorm1d = InstanceNorm2d = InstanceNorm3d = InstanceNorm
