"""Windows that slide over axes: convolutions of one to three dimensions and back, pools, and resizing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from morok.errors import ArgumentError, ShapeError
from morok.ir.infer import show_shape
from morok.tensor.arrays.index import Index
from morok.tensor.elementwise.once import is_narrow, narrowed, rounded_once, widened
from morok.tensor.linalg.contract import Contract
from morok.tensor.record import recorded
from morok.tensor.sizes import as_axis


@recorded
class Windows(Contract, Index):
    """Convolutions and relatives. (N, C, …): the last axes are the ones that windows slide over."""

    def unfold(self, dim: Any = None, size: int = 1, step: int = 1, *, axis: int | None = None) -> Self:
        """Windows of an axis, `step` apart, as a new last axis.

        >>> Tensor([1, 2, 3, 4]).unfold(0, 2, 1).tolist()
        [[1, 2], [2, 3], [3, 4]]
        """
        at = as_axis(dim if axis is None else axis, self.ndim, self.shape)
        total = self.shape[at]
        if not isinstance(total, int) or not 1 <= size <= total or step < 1:
            raise ShapeError(
                f"unfold of axis {at} of shape {show_shape(self.shape)} takes windows of 1 … {total}"
                f" in steps of 1 or more, not {size} and {step}"
            )
        return self._window(at, size, step, 1)

    # --- convolutions

    def _of_rank(self, weight: Any, count: int, what: str) -> Self:
        w = self._operand(weight)
        if self.ndim not in (count + 1, count + 2) or w.ndim != count + 2:
            raise ShapeError(
                f"{what} takes (N, C, …) or (C, …) and weights with {count} more axes each, not "
                f"{show_shape(self.shape)} and {show_shape(w.shape)}"
            )
        return w

    def conv1d(
        self,
        weight: Any,
        bias: Any = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Self:
        """The convolution of (N, C, L) with weights (out, C / groups, k).

        >>> Tensor.ones(1, 1, 3).conv1d(Tensor.ones(1, 1, 2)).tolist()
        [[[2.0, 2.0]]]
        """
        w = self._of_rank(weight, 1, "conv1d")
        return self.conv2d(w, bias, stride, padding, dilation, groups)

    def conv3d(
        self,
        weight: Any,
        bias: Any = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Self:
        """The convolution of (N, C, D, H, W) with weights (out, C / groups, kd, kh, kw).

        >>> Tensor.ones(1, 1, 2, 2, 2).conv3d(Tensor.ones(1, 1, 2, 2, 2)).tolist()
        [[[[[8.0]]]]]
        """
        w = self._of_rank(weight, 3, "conv3d")
        return self.conv2d(w, bias, stride, padding, dilation, groups)

    def conv_transpose(
        self,
        weight: Any,
        bias: Any = None,
        stride: Any = 1,
        padding: Any = 0,
        output_padding: Any = 0,
        groups: int = 1,
        dilation: Any = 1,
    ) -> Self:
        """The convolution backwards: (N, C, …) with weights (C, out / groups, …), of any dimensions.

        Zeros go between the inputs, and the weights run over them backwards.

        >>> Tensor.ones(1, 1, 2).conv_transpose(Tensor.ones(1, 1, 2), stride=2).tolist()
        [[[1.0, 1.0, 1.0, 1.0]]]
        """
        x, w = self, self._operand(weight)
        if x.ndim == w.ndim - 1 > 1:  # one sample
            one = x.unsqueeze(0)
            return one.conv_transpose(w, bias, stride, padding, output_padding, groups, dilation).squeeze(0)
        count = x.ndim - 2
        if w.ndim != x.ndim or count < 1 or w.shape[0] != x.shape[1] or int(w.shape[0]) % groups:  # type: ignore[arg-type]
            raise ShapeError(
                f"a transposed convolution of {show_shape(x.shape)} with weights {show_shape(w.shape)} in "
                f"{groups} groups needs (N, C, …) and (C, out / groups, …), with groups that divide C"
            )
        s, p, o, d = (_numbers(v, count) for v in (stride, padding, output_padding, dilation))
        inner, per_group, *kernel = (int(size) for size in w.shape)  # type: ignore[arg-type]
        for i in range(count):
            x = x._spread(2 + i, s[i])
        edges = [d[i] * (kernel[i] - 1) - p[i] for i in range(count)]
        x = x.pad([None, None, *((edge, edge + o[i]) for i, edge in enumerate(edges))])
        w = w.reshape(groups, inner // groups, per_group, *kernel).transpose(1, 2)
        w = w.reshape(groups * per_group, inner // groups, *kernel).flip(*range(2, 2 + count))
        return x.conv2d(w, bias, dilation=d, groups=groups)

    def _spread(self, axis: int, stride: int) -> Self:
        """An axis with stride-1 zeros between its elements."""
        if stride == 1:
            return self
        gaps: list[Any] = [None] * (self.ndim + 1)
        gaps[axis + 1] = (0, stride - 1)
        size = int(self.shape[axis])  # type: ignore[arg-type]
        wide = self.unsqueeze(axis + 1).pad(gaps).flatten(axis, axis + 1)
        return wide.narrow(axis, 0, (size - 1) * stride + 1)

    def conv_transpose1d(
        self,
        weight: Any,
        bias: Any = None,
        stride: Any = 1,
        padding: Any = 0,
        output_padding: Any = 0,
        groups: int = 1,
        dilation: Any = 1,
    ) -> Self:
        """The transposed convolution of (N, C, L) with weights (C, out / groups, k).

        >>> Tensor.ones(1, 1, 2).conv_transpose1d(Tensor.ones(1, 1, 2)).tolist()
        [[[1.0, 2.0, 1.0]]]
        """
        w = self._of_rank(weight, 1, "conv_transpose1d")
        return self.conv_transpose(w, bias, stride, padding, output_padding, groups, dilation)

    def conv_transpose2d(
        self,
        weight: Any,
        bias: Any = None,
        stride: Any = 1,
        padding: Any = 0,
        output_padding: Any = 0,
        groups: int = 1,
        dilation: Any = 1,
    ) -> Self:
        """The transposed convolution of (N, C, H, W) with weights (C, out / groups, kh, kw).

        >>> Tensor.ones(1, 1, 1, 2).conv_transpose2d(Tensor.ones(1, 1, 1, 2)).tolist()
        [[[[1.0, 2.0, 1.0]]]]
        """
        w = self._of_rank(weight, 2, "conv_transpose2d")
        return self.conv_transpose(w, bias, stride, padding, output_padding, groups, dilation)

    def conv_transpose3d(
        self,
        weight: Any,
        bias: Any = None,
        stride: Any = 1,
        padding: Any = 0,
        output_padding: Any = 0,
        groups: int = 1,
        dilation: Any = 1,
    ) -> Self:
        """The transposed convolution of (N, C, D, H, W) with weights (C, out / groups, kd, kh, kw).

        >>> Tensor.ones(1, 1, 1, 1, 2).conv_transpose3d(Tensor.ones(1, 1, 1, 1, 2)).tolist()
        [[[[[1.0, 2.0, 1.0]]]]]
        """
        w = self._of_rank(weight, 3, "conv_transpose3d")
        return self.conv_transpose(w, bias, stride, padding, output_padding, groups, dilation)

    # --- pools

    def max_pool1d(
        self,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> Any:
        """The largest value of each window of the last axis.

        >>> Tensor([[[1.0, 3.0, 2.0, 0.0]]]).max_pool1d(2).tolist()
        [[[3.0, 2.0]]]
        """
        kernel = _numbers(kernel_size, 1)
        return self.max_pool2d(kernel, stride, padding, dilation, ceil_mode, return_indices)

    def max_pool3d(
        self,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> Any:
        """The largest value of each window of the last three axes.

        >>> Tensor.ones(1, 1, 2, 2, 2).max_pool3d(2).shape
        (1, 1, 1, 1, 1)
        """
        kernel = _numbers(kernel_size, 3)
        return self.max_pool2d(kernel, stride, padding, dilation, ceil_mode, return_indices)

    def avg_pool1d(
        self,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        count_include_pad: bool = True,
        ceil_mode: bool = False,
        divisor_override: int | None = None,
    ) -> Self:
        """The average of each window of the last axis.

        >>> Tensor([[[1.0, 3.0, 2.0, 0.0]]]).avg_pool1d(2).tolist()
        [[[2.0, 1.0]]]
        """
        kernel = _numbers(kernel_size, 1)
        return self.avg_pool2d(kernel, stride, padding, count_include_pad, ceil_mode, divisor_override)

    def avg_pool3d(
        self,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        count_include_pad: bool = True,
        ceil_mode: bool = False,
        divisor_override: int | None = None,
    ) -> Self:
        """The average of each window of the last three axes.

        >>> Tensor.ones(1, 1, 2, 2, 2).avg_pool3d(2).tolist()
        [[[[[1.0]]]]]
        """
        kernel = _numbers(kernel_size, 3)
        return self.avg_pool2d(kernel, stride, padding, count_include_pad, ceil_mode, divisor_override)

    def _adaptive(self, output_size: Any, count: int, largest: bool) -> Self:
        """Windows of nearly equal size, so many as are asked for, one axis after the other."""
        x = self
        for i, wanted in enumerate(_numbers(output_size, count)):
            axis = self.ndim - count + i
            size = x.shape[axis]
            if not isinstance(size, int) or wanted < 1 or size < 1:
                raise ShapeError(
                    f"a pool of shape {show_shape(self.shape)} to {output_size!r} needs known sizes"
                )
            x = x._adaptive_axis(axis, size, wanted, largest)
        return x

    def _adaptive_axis(self, axis: int, size: int, wanted: int, largest: bool) -> Self:
        if size % wanted == 0:
            rows = self.unflatten(axis, (wanted, size // wanted))
            return rows.max(axis + 1) if largest else rows.mean(axis + 1)
        starts = [i * size // wanted for i in range(wanted)]
        stops = [-(-(i + 1) * size // wanted) for i in range(wanted)]
        pieces = [self.narrow(axis, a, b - a) for a, b in zip(starts, stops, strict=True)]
        parts = [(p.max(axis, True) if largest else p.mean(axis, True)) for p in pieces]
        return parts[0].cat(*parts[1:], dim=axis)

    @rounded_once
    def adaptive_avg_pool1d(self, output_size: Any) -> Self:
        """The averages of so many windows of nearly equal size of the last axis.

        >>> Tensor([[[1.0, 3.0, 5.0]]]).adaptive_avg_pool1d(2).tolist()
        [[[2.0, 4.0]]]
        """
        return self._adaptive(output_size, 1, False)

    @rounded_once
    def adaptive_avg_pool2d(self, output_size: Any) -> Self:
        """The averages of so many windows of nearly equal size of the last two axes.

        >>> Tensor.ones(1, 1, 4, 6).adaptive_avg_pool2d((2, 3)).shape
        (1, 1, 2, 3)
        """
        return self._adaptive(output_size, 2, False)

    def adaptive_max_pool1d(self, output_size: Any) -> Self:
        """The largest values of so many windows of nearly equal size of the last axis.

        >>> Tensor([[[1.0, 3.0, 5.0]]]).adaptive_max_pool1d(2).tolist()
        [[[3.0, 5.0]]]
        """
        return self._adaptive(output_size, 1, True)

    def adaptive_max_pool2d(self, output_size: Any) -> Self:
        """The largest values of so many windows of nearly equal size of the last two axes.

        >>> Tensor.ones(1, 1, 4, 6).adaptive_max_pool2d(1).shape
        (1, 1, 1, 1)
        """
        return self._adaptive(output_size, 2, True)

    # --- resizing

    def interpolate(
        self, size: Any = None, scale_factor: Any = None, mode: str = "nearest", align_corners: bool = False
    ) -> Self:
        """(N, C, …) resized to `size`, or by a factor: "nearest", or "linear" in every direction.

        "bilinear" and "trilinear" are other names of "linear", as in PyTorch.

        >>> Tensor([[[1.0, 2.0]]]).interpolate(4).tolist()
        [[[1.0, 1.0, 2.0, 2.0]]]
        """
        if mode != "nearest" and is_narrow(self.dtype):
            return narrowed(widened(self).interpolate(size, scale_factor, mode, align_corners), self.dtype)  # type: ignore[no-any-return]
        count = self.ndim - 2
        if mode not in ("nearest", "linear", "bilinear", "trilinear"):
            raise ArgumentError(f'interpolate has the modes "nearest" and "linear", not {mode!r}')
        if count < 1 or (size is None) == (scale_factor is None):
            raise ShapeError(
                f"interpolate of shape {show_shape(self.shape)} needs (N, C, …) and a size or a factor"
            )
        factors = _each(scale_factor, count) if size is None else [None] * count
        wanted = _numbers(size, count) if size is not None else []
        x = self
        for i in range(count):
            old = x.shape[2 + i]
            if not isinstance(old, int):
                raise ShapeError(f"interpolate of shape {show_shape(x.shape)} needs known sizes")
            factor = factors[i]
            new = wanted[i] if factor is None else int(old * factor)
            ratio = old / new if factor is None else 1.0 / factor
            x = x._resized(2 + i, old, new, ratio, mode, align_corners)
        return x

    def _resized(self, axis: int, old: int, new: int, ratio: float, mode: str, corners: bool) -> Self:
        places = np.arange(new)
        if mode == "nearest":
            whole = np.minimum((places * ratio).astype(np.int64), old - 1)
            if new % old == 0 and np.array_equal(whole, places // (new // old)):
                return self.repeat_interleave(new // old, axis)
            return self.take(whole, axis)
        step = (old - 1) / (new - 1) if corners and new > 1 else 0.0 if corners else ratio
        at = places * step if corners else np.maximum((places + 0.5) * ratio - 0.5, 0.0)
        low = np.minimum(at.astype(np.int64), old - 1)
        high = np.minimum(low + 1, old - 1)
        weight = np.clip(at - low, 0.0, 1.0).reshape([new if i == axis else 1 for i in range(self.ndim)])
        share = self._from_data(weight).cast(self._floating().dtype)
        below, above = self.take(low, axis), self.take(high, axis)
        return below * (-share + 1.0) + above * share


def _numbers(value: Any, count: int) -> tuple[int, ...]:
    """One whole number per dimension, from one or from all."""
    many = tuple(value) if isinstance(value, tuple | list) else (value,) * count
    if len(many) != count or any(not isinstance(v, int) or v < 0 for v in many):
        raise ShapeError(f"{count} whole numbers are needed, one per dimension, not {value!r}")
    return many


def _each(value: Any, count: int) -> Sequence[float]:
    many = tuple(value) if isinstance(value, tuple | list) else (value,) * count
    if len(many) != count or any(not v > 0 for v in many):
        raise ShapeError(f"{count} factors above 0 are needed, one per dimension, not {value!r}")
    return many
