"""Convolutions and their gradients."""

from __future__ import annotations

from typing import Any

from morok.torch.table import Call, T, op


def _convolved(
    x: T, weight: T, bias: T | None, stride: Any, padding: Any, dilation: Any, transposed: bool,
    output_padding: Any, groups: int,
) -> T:  # fmt: skip
    single = x.ndim == weight.ndim - 1
    x = x.unsqueeze(0) if single else x
    count = weight.ndim - 2
    stride, padding, dilation = (_each(v, count) for v in (stride, padding, dilation))
    if transposed:
        made = x.conv_transpose(weight, bias, stride, padding, _each(output_padding, count), groups, dilation)
    else:
        made = x.conv2d(weight, bias, stride, padding, dilation, groups)
    return made.squeeze(0) if single else made


def _each(value: Any, count: int) -> Any:
    many = list(value) if isinstance(value, list | tuple) else [value]
    return tuple(many * count if len(many) == 1 else many)


@op("convolution.default")
def convolution(
    x: T, weight: T, bias: T | None, stride: Any, padding: Any, dilation: Any, transposed: bool,
    output_padding: Any, groups: int,
) -> T:  # fmt: skip
    return _convolved(x, weight, bias, stride, padding, dilation, transposed, output_padding, groups)


@op("convolution_backward.default")
def convolution_backward(
    grad: T, x: T, weight: T, bias_sizes: Any, stride: Any, padding: Any, dilation: Any, transposed: bool,
    output_padding: Any, groups: int, mask: Any, call: Call,
) -> Any:  # fmt: skip
    made: list[Any] = [None, None, None]
    targets = [t for t, wanted in zip((x, weight), mask, strict=False) if wanted]
    if targets:
        # each is a target of its own, also where both are one tensor
        a, b = x.contiguous(), weight.contiguous()
        out = _convolved(a, b, None, stride, padding, dilation, transposed, output_padding, groups)
        wanted = [t for t, w in zip((a, b), mask, strict=False) if w]
        found = iter(out.gradient(*wanted, gradient=grad, allow_unused=True))
        made[:2] = [next(found) if w else None for w in mask[:2]]
    if mask[2]:
        axes = tuple([a for a in range(grad.ndim) if a != grad.ndim - weight.ndim + 1])
        made[2] = grad.sum(axes)
    return made
