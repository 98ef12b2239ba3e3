"""Convolutions and transposed convolutions of one to three dimensions, with PyTorch's layout of weights."""

from __future__ import annotations

import math
from typing import Any

from morok.errors import ArgumentError, ShapeError
from morok.ir.infer import show_shape
from morok.nn.init import parameter, uniform_fan_in
from morok.nn.module import Module, also
from morok.tensor.tensor import Tensor

_EDGES = ("zeros", "reflect", "replicate", "circular")


def _each(value: Any, count: int, what: str, least: int = 1) -> tuple[int, ...]:
    many = tuple(value) if isinstance(value, tuple | list) else (value,) * count
    if len(many) != count or any(not isinstance(v, int) or v < least for v in many):
        raise ShapeError(
            f"{what} is made of {count} whole numbers, one per dimension, from {least} on, not {value!r}"
        )
    return many


def _check_padding(padding: Any, stride: tuple[int, ...]) -> None:
    """Edges are numbers, or a name for what they are to achieve."""
    if not isinstance(padding, str):
        _each(padding, len(stride), "padding", 0)
    elif padding not in ("same", "valid"):
        raise ArgumentError(f'padding is "same", "valid" or numbers, not {padding!r}')
    elif padding == "same" and any(s != 1 for s in stride):
        raise ArgumentError('padding="same" keeps sizes, which needs a stride of 1')


def _around(padding: Any, kernel: tuple[int, ...], dilation: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """What goes before and behind each axis of (N, C, …), where it is no zeros."""
    if padding == "valid":
        return ()
    if padding == "same":  # the larger half behind
        whole = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
        sides = [(n // 2, n - n // 2) for n in whole]
    else:
        sides = [(n, n) for n in _each(padding, len(kernel), "padding", 0)]
    return ((0, 0), (0, 0), *sides) if any(map(any, sides)) else ()


def _check_groups(groups: int, inputs: int, outputs: int) -> None:
    if groups < 1 or inputs % groups or outputs % groups:
        raise ShapeError(f"{groups} groups must divide {inputs} inputs and {outputs} outputs")


def conv_transpose(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    """The convolution whose gradient is a convolution: (N, C, …) with weights (C, out / groups, …).

    Zeros go between the inputs, and the weights run over them backwards.

    >>> conv_transpose(Tensor.ones(1, 1, 2), Tensor.ones(1, 1, 2), stride=2).tolist()
    [[[1.0, 1.0, 1.0, 1.0]]]
    """
    return x.conv_transpose(weight, bias, stride, padding, output_padding, groups, dilation)


class _Conv(Module):
    """What the convolutions share; `dims` is the number of dimensions."""

    dims = 0
    padding_mode = "zeros"

    @also(in_channels="inputs", out_channels="outputs")
    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel_size: Any,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        dtype: Any = None,
    ) -> None:
        _check_groups(groups, inputs, outputs)
        kernel = _each(kernel_size, self.dims, "kernel_size")
        steps = _each(dilation, self.dims, "dilation")
        _check_padding(padding, _each(stride, self.dims, "stride"))
        if padding_mode not in _EDGES:
            raise ArgumentError(
                f"padding_mode is one of {', '.join(map(repr, _EDGES))}, not {padding_mode!r}"
            )
        if padding_mode != "zeros":
            self.padding_mode = padding_mode
        self._edges = _around(padding, kernel, steps) if padding_mode != "zeros" else ()
        fan = inputs // groups * math.prod(kernel)
        self.weight = parameter(uniform_fan_in(outputs, inputs // groups, *kernel, dtype=dtype))
        self.bias = parameter(uniform_fan_in(outputs, fan=fan, dtype=dtype)) if bias else None
        self.stride, self.padding, self.dilation, self.groups = stride, padding, dilation, groups

    def __call__(self, x: Tensor) -> Tensor:
        if x.ndim == self.dims + 1:
            return self(x.unsqueeze(0)).squeeze(0)
        if x.ndim != self.dims + 2:
            raise ShapeError(
                f"{type(self).__name__} takes (N, C, …) or (C, …) with {self.dims} more axes, "
                f"not {show_shape(x.shape)}"
            )
        padding = self.padding
        if self._edges:
            x, padding = x.pad(self._edges, mode=self.padding_mode), 0
        return x.conv2d(self.weight, self.bias, self.stride, padding, self.dilation, self.groups)


class Conv1d(_Conv):
    """Convolution over one axis.

    >>> Conv1d(2, 3, 5, padding=2)(Tensor.ones(1, 2, 8)).shape
    (1, 3, 8)
    """

    dims = 1


class Conv2d(_Conv):
    """Convolution over two axes.

    >>> Conv2d(2, 3, 3, stride=2)(Tensor.ones(1, 2, 7, 7)).shape
    (1, 3, 3, 3)
    """

    dims = 2


class Conv3d(_Conv):
    """Convolution over three axes.

    >>> Conv3d(2, 3, 2)(Tensor.ones(1, 2, 4, 4, 4)).shape
    (1, 3, 3, 3, 3)
    """

    dims = 3


class _ConvTranspose(Module):
    """What the transposed convolutions share."""

    dims = 0

    @also(in_channels="inputs", out_channels="outputs")
    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel_size: Any,
        stride: Any = 1,
        padding: Any = 0,
        output_padding: Any = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: Any = 1,
        dtype: Any = None,
    ) -> None:
        _check_groups(groups, inputs, outputs)
        kernel = _each(kernel_size, self.dims, "kernel_size")
        for name, value in (("stride", stride), ("dilation", dilation)):
            _each(value, self.dims, name)
        for name, value in (("padding", padding), ("output_padding", output_padding)):
            _each(value, self.dims, name, 0)
        fan = outputs // groups * math.prod(kernel)
        self.weight = parameter(uniform_fan_in(inputs, outputs // groups, *kernel, fan=fan, dtype=dtype))
        self.bias = parameter(uniform_fan_in(outputs, fan=fan, dtype=dtype)) if bias else None
        self.stride, self.padding, self.output_padding = stride, padding, output_padding
        self.dilation, self.groups = dilation, groups

    def __call__(self, x: Tensor) -> Tensor:
        if x.ndim == self.dims + 1:
            return self(x.unsqueeze(0)).squeeze(0)
        if x.ndim != self.dims + 2:
            raise ShapeError(
                f"{type(self).__name__} takes (N, C, …) or (C, …) with {self.dims} more axes, "
                f"not {show_shape(x.shape)}"
            )
        return conv_transpose(
            x,
            self.weight,
            self.bias,
            self.stride,
            self.padding,
            self.output_padding,
            self.dilation,
            self.groups,
        )


class ConvTranspose1d(_ConvTranspose):
    """Transposed convolution over one axis.

    >>> ConvTranspose1d(2, 3, 2, stride=2)(Tensor.ones(1, 2, 4)).shape
    (1, 3, 8)
    """

    dims = 1


class ConvTranspose2d(_ConvTranspose):
    """Transposed convolution over two axes.

    >>> ConvTranspose2d(2, 3, 2, stride=2)(Tensor.ones(1, 2, 4, 4)).shape
    (1, 3, 8, 8)
    """

    dims = 2


class ConvTranspose3d(_ConvTranspose):
    """Transposed convolution over three axes.

    >>> ConvTranspose3d(1, 1, 2)(Tensor.ones(1, 1, 2, 2, 2)).shape
    (1, 1, 3, 3, 3)
    """

    dims = 3
