"""Matrix products and convolutions, as products and sums over expanded views.

There is no matrix-product op: `a @ b` is multiply and add over a third axis. The optimiser recognises the
pattern, and everything around it (bias, activation, a transposed or padded operand) fuses as usual. Floats
narrower than 32 bits are multiplied and added in float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Self

from morok import dtype as dt
from morok.dtype import promote
from morok.errors import ArgumentError, ShapeError
from morok.ir import movement as move
from morok.ir.build import cast
from morok.ir.infer import Size, show_shape
from morok.ir.node import UOp, alu, make
from morok.ir.ops import Ops
from morok.tensor.core import expand_to, require_shape
from morok.tensor.dtypes import accumulator, float_of
from morok.tensor.elementwise.once import rounded_once, widened
from morok.tensor.gradient.walk import NAMED
from morok.tensor.linalg.convolution import convolved, pull_convolution
from morok.tensor.linalg.normalization import Normalization
from morok.tensor.record import pure
from morok.tensor.sizes import broadcast_shapes


@pure
class Linalg(Normalization):
    """Contractions."""

    def _operand(self, other: Any) -> Self:
        return self._new(other.uop) if isinstance(other, Linalg) else self._from_data(other)

    def _contract(self, other: Self, axes: tuple[int, ...], keep: bool = False) -> Self:
        """The sum over axes of a product of two tensors that broadcast; in the operands' common type."""
        dtype = promote(self.dtype, other.dtype)
        wide = accumulator(dtype) if dtype.is_float else dtype
        product = self.cast(wide) * other.cast(wide)
        return product._reduce(Ops.ADD, axes, keep).cast(dtype)

    def matmul(self, other: Any) -> Self:
        """The matrix product of the last two axes; axes before them broadcast, vectors are rows or columns.

        >>> Tensor([[1, 2], [3, 4]]).matmul(Tensor([1, 1])).tolist()
        [3, 7]
        """
        x, y = self, self._operand(other)
        if not x.ndim or not y.ndim:
            raise ShapeError(
                f"a matrix product needs at least one axis each, got {show_shape(x.shape)} and "
                f"{show_shape(y.shape)}; use * for scalars"
            )
        inner, outer = x.shape[-1], y.shape[-2] if y.ndim > 1 else y.shape[0]
        if inner != outer:
            raise ShapeError(_no_match(x, y))
        return self._new(_matrix_product(x.uop, y.uop))

    def __matmul__(self, other: Any) -> Self:
        return self.matmul(other)

    def __rmatmul__(self, other: Any) -> Self:
        return self._operand(other).matmul(self)

    def outer(self, other: Any) -> Self:
        """All products of two vectors.

        >>> Tensor([1, 2]).outer(Tensor([3, 4])).tolist()
        [[3, 4], [6, 8]]
        """
        return self.flatten().unsqueeze(1) * self._operand(other).flatten().unsqueeze(0)

    @rounded_once
    def linear(self, weight: Any, bias: Any = None) -> Self:
        """x · weightᵀ + bias, with the weight as (out, in), as PyTorch keeps it.

        >>> Tensor([[1.0, 2.0]]).linear(Tensor([[1.0, 1.0]])).tolist()
        [[3.0]]
        """
        y = self.matmul(self._operand(weight).transpose(-1, -2))
        return y if bias is None else y.__add__(bias)

    def scaled_dot_product_attention(
        self, key: Any, value: Any, mask: Any = None, is_causal: bool = False, scale: float | None = None
    ) -> Self:
        """softmax(Q Kᵀ · scale + mask) V over the last two axes; a boolean mask says where to look.

        >>> q = k = v = Tensor.ones(1, 2, 4)
        >>> q.scaled_dot_product_attention(k, v).shape
        (1, 2, 4)
        """
        k, v = self._operand(key), self._operand(value)
        width = self.shape[-1]
        if scale is None:
            if not isinstance(width, int):
                raise ShapeError("attention over a symbolic width needs its scale")
            scale = width**-0.5
        # scores stay in float32: rounded, or infinite, they are worth less than the weights they give
        own = promote(self.dtype, k.dtype)
        scores: Self = widened(self).matmul(widened(k).transpose(-1, -2)) * scale
        if is_causal:
            scores = scores._triangle(0).where(scores, float("-inf"))
        if mask is not None:
            m = self._operand(mask)
            scores = m.where(scores, float("-inf")) if m.dtype is dt.bool_ else scores + m
            own = own if m.dtype is dt.bool_ else promote(own, m.dtype)
        return scores._softmax((scores.ndim - 1,), float_of(own)).matmul(v)

    # --- windows

    def _windows(self, kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]) -> Self:
        """The last axes as (…, places, offsets): x[…, p·stride + k·dilation] for each place p and offset k.

        Repeating an axis of n elements and cutting the result into rows of n + d makes row k begin d·k
        further along: a window is then a column. The index arithmetic of it simplifies to p·s + k·d.
        """
        x = self
        count = len(kernel)
        lead = x.ndim - count
        for i, (k, s, d) in enumerate(zip(kernel, stride, dilation, strict=True)):
            x = x._window(lead + i, k, s, d)
        # axes are now (lead…, p0, p1, …, k0, k1, …)
        return x

    def _window(self, axis: int, k: int, s: int, d: int) -> Self:
        """One axis of windows; the axis of offsets goes last."""
        n = self.shape[axis]
        if not isinstance(n, int):
            raise ShapeError(f"a window slides over a known number of elements, not over {show_shape((n,))}")
        places = (n - d * (k - 1) - 1) // s + 1
        x = self.transpose(axis, -1)
        lead = x.shape[:-1]
        if k <= s and d == 1:  # windows do not overlap: rows of s, of which the first k are taken
            total = places * s
            x = x.pad([None] * len(lead) + [(0, max(0, total - n))]).shrink([None] * len(lead) + [(0, total)])
            x = x.reshape(*lead, places, s).shrink([None] * len(lead) + [None, (0, k)])
        else:
            row = x.uop
            width = max(n + d, places * s)
            n = width - d
            x = x.pad([None] * len(lead) + [(0, n - x.shape[-1])])
            copies = -(-k * width // n)
            x = x.unsqueeze(-2).expand(*lead, copies, n).reshape(*lead, copies * n)
            x = x.shrink([None] * len(lead) + [(0, k * width)]).reshape(*lead, k, width)
            x = x.shrink([None] * len(lead) + [None, (0, places * s)]).reshape(*lead, k, places, s)
            x = x.shrink([None] * len(lead) + [None, None, (0, 1)]).squeeze(-1)
            # By name, because the way back is shorter than this one backwards.
            x = self._new(make(Ops.NOOP, x.dtype, (x.uop, row), ("windows", s, d))).transpose(-1, -2)
        # (…, places, k) with `places` where the last axis was; bring it back to `axis`
        last = x.ndim - 1
        order = list(range(x.ndim))
        order[axis], order[last - 1] = order[last - 1], order[axis]
        return x.permute(order)

    @rounded_once
    def conv2d(
        self,
        weight: Any,
        bias: Any = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Self:
        """The convolution of (N, C, …) with weights (out, C / groups, …), of any number of dimensions.

        >>> Tensor.ones(1, 1, 3, 3).conv2d(Tensor.ones(1, 1, 2, 2)).tolist()
        [[[[4.0, 4.0], [4.0, 4.0]]]]
        """
        w = self._operand(weight)
        count = w.ndim - 2
        if self.ndim == w.ndim - 1 > 1:  # one sample
            return self.unsqueeze(0).conv2d(w, bias, stride, padding, dilation, groups).squeeze(0)
        _check_conv(self, w, groups)
        kernel = [_known(size, "a kernel") for size in w.shape[2:]]
        s, d = _each(stride, count, "stride"), _each(dilation, count, "dilation")
        pads = _conv_padding(padding, kernel, d)
        _check_windows(self.pad([None, None, *pads]).shape[2:], kernel, d)
        y: Self = convolved(self, w, s, pads, d, groups)
        return y if bias is None else y + self._operand(bias).reshape(1, -1, *(1,) * count)

    def _pool(
        self, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool
    ) -> tuple[Callable[[Self, float, float], Self], tuple[int, ...], bool]:
        """Windows of something of this shape, given what fills its edge and what lies beyond; their axes.

        Beyond: with `ceil_mode` the last window may reach over the edge, as long as it begins inside of it.
        """
        count = len(kernel) if isinstance(kernel, tuple | list) else 2
        sizes = _each(kernel, count, "kernel size")
        steps = sizes if stride is None else _each(stride, count, "stride")
        d = _each(dilation, count, "dilation")
        lead: list[Any] = [None] * (self.ndim - count)
        pads = _conv_padding(padding, sizes, d)
        beyond = [0] * count
        if ceil_mode:
            for i, size in enumerate(self.shape[self.ndim - count :]):
                beyond[i] = _beyond(_known(size, "a pooled axis"), sizes[i], steps[i], d[i], pads[i])

        def windows(x: Self, edge: float, outside: float) -> Self:
            x = x.pad([*lead, *pads], edge)
            if any(beyond):
                x = x.pad([*lead, *((0, n) for n in beyond)], outside)
            _check_windows(x.shape[-count:], sizes, d)
            return x._windows(sizes, steps, d)

        axes = tuple(range(self.ndim, self.ndim + count))
        return windows, axes, any(beyond)

    def max_pool2d(
        self,
        kernel_size: Any = 2,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> Any:
        """The largest value of each window of the last axes; with `return_indices` also where it is in them.

        >>> Tensor([[[[1.0, 2.0], [3.0, 4.0]]]]).max_pool2d(2).tolist()
        [[[[4.0]]]]
        >>> Tensor([[[[1.0, 2.0], [3.0, 4.0]]]]).max_pool2d(2, return_indices=True)[1].tolist()
        [[[[3]]]]
        """
        windows, axes, _ = self._pool(kernel_size, stride, padding, dilation, ceil_mode)
        least = self.dtype.min
        x = windows(self, least, least)
        top = x.max(axes)
        if not return_indices:
            return top
        sizes = self.shape[self.ndim - len(axes) :]
        count = math.prod(_known(size, "a pooled axis") for size in sizes)
        places = self.arange(count, device=self.device).reshape(*(1,) * (self.ndim - len(axes)), *sizes)
        at = windows(places.expand(*self.shape), -1, -1)
        level = top.reshape(*top.shape, *(1,) * len(axes))
        hit = (at >= 0) & (x.eq(level) | x.ne(x))
        first = hit.where(at, count).min(axes)
        # among several NaNs the last one is meant, as elsewhere
        return top, top.ne(top).where(hit.where(at, -1).max(axes), first) if self.dtype.is_float else first

    @rounded_once
    def avg_pool2d(
        self,
        kernel_size: Any = 2,
        stride: Any = None,
        padding: Any = 0,
        count_include_pad: bool = True,
        ceil_mode: bool = False,
        divisor_override: int | None = None,
    ) -> Self:
        """The average of each window of the last axes; the sum over `divisor_override`, if that is given.

        >>> Tensor([[[[1.0, 2.0], [3.0, 4.0]]]]).avg_pool2d(2).tolist()
        [[[[2.5]]]]
        """
        windows, axes, reaches = self._pool(kernel_size, stride, padding, 1, ceil_mode)
        x = windows(self, 0, 0)
        if divisor_override is not None:
            if not divisor_override:
                raise ArgumentError("divisor_override must not be 0")
            return x.sum(axes) / divisor_override
        if count_include_pad and not reaches:
            return x.mean(axes)
        inside = windows(self.ones_like(), float(count_include_pad), 0)
        return x.sum(axes) / inside.sum(axes)


def _beyond(size: int, kernel: int, stride: int, dilation: int, pads: tuple[int, int]) -> int:
    """How far the last window reaches over the edge, if it is to be there."""
    low, high = pads
    reach = dilation * (kernel - 1) + 1
    over = size + low + high - reach
    count = -(-over // stride) + 1
    if (count - 1) * stride >= size + low:  # it would begin outside
        count -= 1
    return max(0, (count - 1) * stride - over)


def _no_match(x: Linalg, y: Linalg) -> str:
    inner = show_shape((x.shape[-1],))[1:-2]
    rows = "elements" if y.ndim == 1 else "rows"
    return (
        f"shapes {show_shape(x.shape)} and {show_shape(y.shape)} do not multiply: "
        f"{inner} columns on the left need {inner} {rows} on the right"
    )


def _known(size: Size, what: str) -> int:
    if not isinstance(size, int):
        raise ShapeError(f"{what} must have a known size, not {show_shape((size,))}")
    return size


def _each(value: Any, count: int, what: str) -> list[int]:
    """One number per dimension, from one or from all."""
    many = list(value) if isinstance(value, tuple | list) else [value] * count
    if len(many) != count or any(not isinstance(v, int) or v < 1 for v in many):
        raise ShapeError(f"{what} needs {count} whole numbers of 1 or more, not {value!r}")
    return many


def _conv_padding(padding: Any, kernel: Sequence[int], dilation: Sequence[int]) -> list[Any]:
    """A pair (before, after) per dimension."""
    if padding == "valid":
        padding = 0
    if isinstance(padding, str) and padding != "same":
        raise ArgumentError(f'padding is "same", "valid" or numbers, not {padding!r}')
    if padding == "same":
        totals = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
        return [(t // 2, t - t // 2) for t in totals]
    count = len(kernel)
    many = list(padding) if isinstance(padding, tuple | list) else [padding] * count
    if len(many) != count:
        raise ShapeError(f"padding needs one number or {count}, not {padding!r}")
    return [tuple(p) if isinstance(p, tuple | list) else (p, p) for p in many]


def _check_conv(x: Linalg, w: Linalg, groups: int) -> None:
    if w.ndim < 3 or x.ndim != w.ndim:
        raise ShapeError(
            f"a convolution of {show_shape(x.shape)} with weights {show_shape(w.shape)} needs (N, C, …) or "
            "(C, …) and (out, C / groups, …) with equally many axes, 3 or more"
        )
    channels, inner, out = x.shape[1], w.shape[1], w.shape[0]
    fits = (
        isinstance(inner, int) and channels == inner * groups and isinstance(out, int) and out % groups == 0
    )
    if not fits:
        raise ShapeError(
            f"a convolution of {show_shape(x.shape)} with weights {show_shape(w.shape)} in {groups} groups "
            f"needs as many input channels as groups times the weights' second axis, and groups that divide "
            f"the outputs"
        )


def _check_windows(sizes: Sequence[Size], kernel: Sequence[int], dilation: Sequence[int]) -> None:
    for size, k, d in zip(sizes, kernel, dilation, strict=True):
        if isinstance(size, int) and size < d * (k - 1) + 1:
            raise ShapeError(f"a window of {d * (k - 1) + 1} does not fit in an axis of {size}; pad it")


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
    a = move.reshape(cast(x, wide), (*rows[:-1], 1, k))
    last = len(columns) - 1
    b = move.permute(move.reshape(cast(y, wide), columns), (*range(last - 1), last, last - 1))
    product = alu(Ops.MUL, expand_to(a, full), expand_to(move.reshape(b, (*columns[:-2], 1, n, k)), full))
    total = move.reduce_axis(product, Ops.ADD, (len(full) - 1,))
    kept = (*batch, *((m,) if len(left) > 1 else ()), *((n,) if len(right) > 1 else ()))
    return cast(move.reshape(total, kept), dtype)


NAMED["conv"] = partial(pull_convolution, Linalg._new)
