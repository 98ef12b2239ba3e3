"""Convolutions and transposed convolutions of one to three dimensions, with PyTorch's layout of weights."""

from __future__ import annotations

import math
from typing import Any

from morok.errors import ShapeError
from morok.ir.infer import show_shape
from morok.nn.init import parameter, uniform_fan_in
from morok.tensor.tensor import Tensor


def _each(value: Any, count: int) -> tuple[int, ...]:
    many = tuple(value) if isinstance(value, tuple | list) else (value,) * count
    if len(many) != count or any(not isinstance(v, int) for v in many):
        raise ShapeError(f"{count} whole numbers are needed, one per dimension, not {value!r}")
    return many


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


class _Conv:
    """What the convolutions share; `dims` is the number of dimensions."""

    dims = 0

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
        dtype: Any = None,
    ) -> None:
        if inputs % groups or outputs % groups:
            raise ShapeError(f"{groups} groups must divide {inputs} inputs and {outputs} outputs")
        kernel = _each(kernel_size, self.dims)
        fan = inputs // groups * math.prod(kernel)
        self.weight = parameter(uniform_fan_in(outputs, inputs // groups, *kernel, dtype=dtype))
        self.bias = parameter(uniform_fan_in(outputs, fan=fan, dtype=dtype)) if bias else None
        self.stride, self.padding, self.dilation, self.groups = stride, padding, dilation, groups

    def __call__(self, x: Tensor) -> Tensor:
        if x.ndim != self.dims + 2:
            raise ShapeError(
                f"{type(self).__name__} takes (N, C, …) with {self.dims} more axes, not {show_shape(x.shape)}"
            )
        return x.conv2d(self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups)


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


class _ConvTranspose:
    """What the transposed convolutions share."""

    dims = 0

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
        if inputs % groups or outputs % groups:
            raise ShapeError(f"{groups} groups must divide {inputs} inputs and {outputs} outputs")
        kernel = _each(kernel_size, self.dims)
        fan = outputs // groups * math.prod(kernel)
        self.weight = parameter(uniform_fan_in(inputs, outputs // groups, *kernel, fan=fan, dtype=dtype))
        self.bias = parameter(uniform_fan_in(outputs, fan=fan, dtype=dtype)) if bias else None
        self.stride, self.padding, self.output_padding = stride, padding, output_padding
        self.dilation, self.groups = dilation, groups

    def __call__(self, x: Tensor) -> Tensor:
        if x.ndim != self.dims + 2:
            raise ShapeError(
                f"{type(self).__name__} takes (N, C, …) with {self.dims} more axes, not {show_shape(x.shape)}"
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
