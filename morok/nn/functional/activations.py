"""Activation functions with PyTorch's arguments. `inplace` is taken and changes nothing: results are new."""

from __future__ import annotations

from typing import Any

from morok.tensor.tensor import Tensor

relu6, silu, mish = Tensor.relu6, Tensor.silu, Tensor.mish
logsigmoid, sigmoid, tanh = Tensor.logsigmoid, Tensor.sigmoid, Tensor.tanh
hardsigmoid, hardswish = Tensor.hardsigmoid, Tensor.hardswish
softsign, tanhshrink, softshrink, hardshrink = (
    Tensor.softsign,
    Tensor.tanhshrink,
    Tensor.softshrink,
    Tensor.hardshrink,
)
prelu = Tensor.prelu


def relu(input: Tensor, inplace: bool = False) -> Tensor:
    """max(0, x).

    >>> relu(Tensor([-1.0, 2.0])).tolist()
    [0.0, 2.0]
    """
    return input.relu()


def leaky_relu(input: Tensor, negative_slope: float = 0.01, inplace: bool = False) -> Tensor:
    """x, times a slope below zero.

    >>> leaky_relu(Tensor([-2.0]), 0.5).tolist()
    [-1.0]
    """
    return input.leaky_relu(negative_slope)


def rrelu(
    input: Tensor,
    lower: float = 1.0 / 8,
    upper: float = 1.0 / 3,
    training: bool = False,
    inplace: bool = False,
) -> Tensor:
    """x, times a slope below zero: the mean of two, or in training a random one between them.

    >>> rrelu(Tensor([-1.0]), 0.25, 0.75).tolist()
    [-0.5]
    """
    if not training:
        return input.leaky_relu((lower + upper) / 2.0)
    return (input >= 0.0).where(input, input * (input.rand_like() * (upper - lower) + lower))


def elu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """x, and alpha · (exp(x) - 1) below zero.

    >>> elu(Tensor([2.0])).tolist()
    [2.0]
    """
    return input.elu(alpha)


def celu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """x, and alpha · (exp(x / alpha) - 1) below zero.

    >>> celu(Tensor([2.0])).tolist()
    [2.0]
    """
    return input.celu(alpha)


def selu(input: Tensor, inplace: bool = False) -> Tensor:
    """The scaled elu that keeps mean 0 and variance 1.

    >>> selu(Tensor([0.0])).tolist()
    [0.0]
    """
    return input.selu()


def gelu(input: Tensor, approximate: str = "none") -> Tensor:
    """x times the normal distribution function; `approximate="tanh"` by way of a tanh.

    >>> gelu(Tensor([0.0])).tolist()
    [0.0]
    """
    return input.gelu(approximate)


def glu(input: Tensor, dim: int = -1) -> Tensor:
    """One half of an axis times the sigmoid of the other.

    >>> glu(Tensor([2.0, 0.0])).tolist()
    [1.0]
    """
    return input.glu(dim)


def hardtanh(input: Tensor, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Tensor:
    """x between two bounds.

    >>> hardtanh(Tensor([3.0])).tolist()
    [1.0]
    """
    return input.hardtanh(min_val, max_val)


def threshold(input: Tensor, threshold: float, value: float, inplace: bool = False) -> Tensor:
    """x where it is above a threshold, else a value.

    >>> threshold(Tensor([0.5, 2.0]), 1.0, 7.0).tolist()
    [7.0, 2.0]
    """
    return input.threshold(threshold, value)


def softplus(input: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """log(1 + exp(beta · x)) / beta; x itself where beta · x is above the threshold.

    >>> round(softplus(Tensor([0.0])).item(), 4)
    0.6931
    """
    return input.softplus(beta, threshold)


def softmax(input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None) -> Tensor:
    """exp(x) over its sum along an axis.

    >>> softmax(Tensor([0.0, 0.0]), 0).tolist()
    [0.5, 0.5]
    """
    return input.softmax(-1 if dim is None else dim, dtype=dtype)


def log_softmax(input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None) -> Tensor:
    """The logarithm of `softmax`.

    >>> log_softmax(Tensor([0.0, 0.0]), 0).exp().tolist()
    [0.5, 0.5]
    """
    return input.log_softmax(-1 if dim is None else dim, dtype=dtype)


def softmin(input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None) -> Tensor:
    """`softmax` of -x.

    >>> softmin(Tensor([0.0, 0.0]), 0).tolist()
    [0.5, 0.5]
    """
    return softmax(-(input if dtype is None else input.cast(dtype)), dim)


def gumbel_softmax(logits: Tensor, tau: float = 1.0, hard: bool = False, dim: int = -1) -> Tensor:
    """`softmax` of logits with Gumbel noise; `hard`: one 1, with the gradient of the soft one.

    >>> gumbel_softmax(Tensor([0.0, 0.0]), hard=True).sum().item()
    1.0
    """
    noise = -(-(logits.rand_like() + 1e-20).log() + 1e-20).log()
    soft = ((logits + noise) / tau).softmax(dim)
    if not hard:
        return soft
    one = soft.argmax(dim, keepdim=True)
    place = Tensor.arange(logits.shape[dim]).reshape(
        [-1 if i == dim % logits.ndim else 1 for i in range(logits.ndim)]
    )
    return place.eq(one).cast(soft.dtype) - soft.detach() + soft


# --- dropout


def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Zero with probability p, the rest scaled up so that the mean stays.

    >>> dropout(Tensor([1.0]), 0.5, training=False).tolist()
    [1.0]
    """
    return input.dropout(p, training)


def _dropped_channels(x: Tensor, p: float, training: bool, axes: int) -> Tensor:
    """Whole channels, or elements with as many axes less as a channel has."""
    lead = x.shape[: x.ndim - axes] if x.ndim >= axes + 1 else x.shape
    mask = Tensor.ones(*lead, *(1,) * (x.ndim - len(lead)), dtype=x.dtype).dropout(p, training)
    return x * mask


def dropout1d(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Whole channels of (N, C, L) zero with probability p.

    >>> dropout1d(Tensor.ones(1, 2, 3), 0.5, False).sum().item()
    6.0
    """
    return _dropped_channels(input, p, training, 1)


def dropout2d(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Whole channels of (N, C, H, W) zero with probability p.

    >>> dropout2d(Tensor.ones(1, 2, 3, 3), 0.5, False).sum().item()
    18.0
    """
    return _dropped_channels(input, p, training, 2)


def dropout3d(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Whole channels of (N, C, D, H, W) zero with probability p.

    >>> dropout3d(Tensor.ones(1, 2, 2, 2, 2), 0.5, False).sum().item()
    16.0
    """
    return _dropped_channels(input, p, training, 3)


_ALPHA = -1.7580993408473766  # what selu tends to on the left


def _alpha_dropped(x: Tensor, p: float, training: bool, lead: int) -> Tensor:
    if not training or p == 0.0:
        return x
    if p == 1.0:
        return x * 0.0
    shape = (*x.shape[:lead], *(1,) * (x.ndim - lead))
    kept = Tensor.rand(*shape) >= p
    scale = ((1.0 - p) * (1.0 + p * _ALPHA * _ALPHA)) ** -0.5
    found: Tensor = kept.where(x, _ALPHA) * scale - scale * _ALPHA * p
    return found


def alpha_dropout(input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False) -> Tensor:
    """Dropout that keeps mean and variance behind a selu.

    >>> alpha_dropout(Tensor([1.0]), 0.5).tolist()
    [1.0]
    """
    return _alpha_dropped(input, p, training, input.ndim)


def feature_alpha_dropout(
    input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False
) -> Tensor:
    """`alpha_dropout` of whole channels.

    >>> feature_alpha_dropout(Tensor.ones(1, 2, 2), 0.5).sum().item()
    4.0
    """
    return _alpha_dropped(input, p, training, 2)
