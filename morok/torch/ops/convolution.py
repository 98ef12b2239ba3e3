"""Convolutions and their gradients."""

from __future__ import annotations

from typing import Any

from morok.knobs import default_device
from morok.tensor.linalg.convolution import conv_channels_last, with_channels_last
from morok.tensor.tensor import Tensor
from morok.torch.layout import channels_last
from morok.torch.table import Call, T, op
from morok.torch.types import from_torch, wide


def _convolved(
    x: T, weight: T, bias: T | None, stride: Any, padding: Any, dilation: Any, transposed: bool,
    output_padding: Any, groups: int, last: bool = False,
) -> T:  # fmt: skip
    single = x.ndim == weight.ndim - 1
    x = x.unsqueeze(0) if single else x
    count = weight.ndim - 2
    stride, padding, dilation = (_each(v, count) for v in (stride, padding, dilation))
    if transposed:
        made = x.conv_transpose(weight, bias, stride, padding, _each(output_padding, count), groups, dilation)
    else:
        convolution = conv_channels_last if last else Tensor.conv2d
        made = convolution(x, weight, bias, stride, padding, dilation, groups)
    return made.squeeze(0) if single else made


def _each(value: Any, count: int) -> Any:
    many = list(value) if isinstance(value, list | tuple) else [value]
    return tuple(many * count if len(many) == 1 else many)


@op("convolution.default")
def convolution(
    x: T, weight: T, bias: T | None, stride: Any, padding: Any, dilation: Any, transposed: bool,
    output_padding: Any, groups: int, call: Call,
) -> T:  # fmt: skip
    last = weight.shape[1] == 1 < groups and channels_last(call.val, default_device()) is not None
    return _convolved(x, weight, bias, stride, padding, dilation, transposed, output_padding, groups, last)


@op("convolution_backward.default")
def convolution_backward(
    grad: T, x: T, weight: T, bias_sizes: Any, stride: Any, padding: Any, dilation: Any, transposed: bool,
    output_padding: Any, groups: int, mask: Any, call: Call,
) -> Any:  # fmt: skip
    made: list[Any] = [None, None, None]
    targets = [t for t, wanted in zip((x, weight), mask, strict=False) if wanted]
    if targets:
        kind = from_torch(wide(call.arg(0).dtype))
        # each is a target of its own, also where both are one tensor or one is made of the other
        a, b = (t.cast(kind).detach() for t in (x, weight))
        b = b.contiguous().detach() if a.uop is b.uop else b
        last = channels_last(call.arg(0), default_device()) is not None
        each = last and weight.shape[1] == 1 < groups
        out = _convolved(a, b, None, stride, padding, dilation, transposed, output_padding, groups, each)
        wanted = [t for t, w in zip((a, b), mask, strict=False) if w]
        found = iter(out.gradient(*wanted, gradient=grad.cast(kind), allow_unused=True))
        made[:2] = [next(found) if w else None for w in mask[:2]]
        # places between two steps are put together by a kernel of its own, which may write any order
        if mask[0] and (each or (last and max(stride) > 1)):
            made[0] = with_channels_last(made[0], lambda turned: turned.cast(x.dtype))
    if mask[2]:
        axes = tuple([a for a in range(grad.ndim) if a != grad.ndim - weight.ndim + 1])
        made[2] = grad.sum(axes)
    return made
