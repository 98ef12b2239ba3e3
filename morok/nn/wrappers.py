"""Layers that are a function and its options: activations, pools, paddings, losses, under PyTorch's names.

Each takes what the function of the same meaning in `nn.functional` takes after its inputs, by position or by
name. Lists and dicts of layers need no class (a model is any object); those here are for programs that name
one.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, ClassVar

from morok.nn import functional
from morok.nn.examples import EXAMPLES
from morok.nn.init import parameter
from morok.nn.module import Module, also, is_training
from morok.tensor.tensor import Tensor

_IGNORED = ("inplace",)


class Wrapper(Module):
    """A function with options that were given before."""

    function: ClassVar[Callable[..., Any]]
    inputs: ClassVar[int] = 1
    learns: ClassVar[bool] = False  # whether the function asks if this is training

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        options = {key: value for key, value in kwargs.items() if key not in _IGNORED}
        call = inspect.signature(type(self).function).bind_partial(*(None,) * self.inputs, *args, **options)
        self.options = dict(list(call.arguments.items())[self.inputs :])

    def __call__(self, *inputs: Any, **more: Any) -> Any:
        moment = {"training": is_training()} if self.learns else {}
        return type(self).function(*inputs, **self.options, **moment, **more)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in self.options.items())})"


def _layer(name: str, function: Callable[..., Any], inputs: int = 1, learns: bool = False) -> Any:
    """A class for a function."""
    of = function.__name__ if hasattr(functional, function.__name__) else f"Tensor.{function.__name__[1:]}"
    of = of if of.startswith("Tensor") else f"nn.functional.{of}"
    call, result = EXAMPLES[name]
    space = {
        "__doc__": f"`{of}` with options that are given once.\n\n    >>> {call}\n    {result}\n    ",
        "__module__": __name__,
        "function": staticmethod(function),
        "inputs": inputs,
        "learns": learns,
    }
    return type(name, (Wrapper,), space)


F = functional
ReLU, ReLU6, LeakyReLU = _layer("ReLU", F.relu), _layer("ReLU6", F.relu6), _layer("LeakyReLU", F.leaky_relu)
ELU, CELU, SELU = _layer("ELU", F.elu), _layer("CELU", F.celu), _layer("SELU", F.selu)
GELU, SiLU, Mish, GLU = (
    _layer("GELU", F.gelu),
    _layer("SiLU", F.silu),
    _layer("Mish", F.mish),
    _layer("GLU", F.glu),
)
Sigmoid, LogSigmoid, Tanh = (
    _layer("Sigmoid", F.sigmoid),
    _layer("LogSigmoid", F.logsigmoid),
    _layer("Tanh", F.tanh),
)
Hardsigmoid, Hardswish = _layer("Hardsigmoid", F.hardsigmoid), _layer("Hardswish", F.hardswish)
Hardtanh, Hardshrink = _layer("Hardtanh", F.hardtanh), _layer("Hardshrink", F.hardshrink)
Softplus, Softsign, Softshrink = (
    _layer("Softplus", F.softplus), _layer("Softsign", F.softsign), _layer("Softshrink", F.softshrink),
)  # fmt: skip
Tanhshrink, Threshold = _layer("Tanhshrink", F.tanhshrink), _layer("Threshold", F.threshold)
Softmax, LogSoftmax, Softmin = (
    _layer("Softmax", F.softmax), _layer("LogSoftmax", F.log_softmax), _layer("Softmin", F.softmin),
)  # fmt: skip
RReLU = _layer("RReLU", F.rrelu, learns=True)
Dropout1d, Dropout2d, Dropout3d = (
    _layer(f"Dropout{n}d", f, learns=True) for n, f in ((1, F.dropout1d), (2, F.dropout2d), (3, F.dropout3d))
)
AlphaDropout = _layer("AlphaDropout", F.alpha_dropout, learns=True)
FeatureAlphaDropout = _layer("FeatureAlphaDropout", F.feature_alpha_dropout, learns=True)

MaxPool1d, MaxPool2d, MaxPool3d = (
    _layer(f"MaxPool{n}d", f) for n, f in ((1, F.max_pool1d), (2, F.max_pool2d), (3, F.max_pool3d))
)
AvgPool1d, AvgPool2d, AvgPool3d = (
    _layer(f"AvgPool{n}d", f) for n, f in ((1, F.avg_pool1d), (2, F.avg_pool2d), (3, F.avg_pool3d))
)
AdaptiveAvgPool1d, AdaptiveAvgPool2d, AdaptiveAvgPool3d = (
    _layer(f"AdaptiveAvgPool{n}d", f)
    for n, f in ((1, F.adaptive_avg_pool1d), (2, F.adaptive_avg_pool2d), (3, F.adaptive_avg_pool3d))
)
AdaptiveMaxPool1d, AdaptiveMaxPool2d, AdaptiveMaxPool3d = (
    _layer(f"AdaptiveMaxPool{n}d", f)
    for n, f in ((1, F.adaptive_max_pool1d), (2, F.adaptive_max_pool2d), (3, F.adaptive_max_pool3d))
)
LPPool1d, LPPool2d, LPPool3d = (
    _layer(f"LPPool{n}d", f) for n, f in ((1, F.lp_pool1d), (2, F.lp_pool2d), (3, F.lp_pool3d))
)
FractionalMaxPool2d = _layer("FractionalMaxPool2d", F.fractional_max_pool2d)
FractionalMaxPool3d = _layer("FractionalMaxPool3d", F.fractional_max_pool3d)
MaxUnpool1d, MaxUnpool2d, MaxUnpool3d = (
    _layer(f"MaxUnpool{n}d", f, 2) for n, f in ((1, F.max_unpool1d), (2, F.max_unpool2d), (3, F.max_unpool3d))
)
Upsample = _layer("Upsample", F.interpolate)
PixelShuffle, PixelUnshuffle = (
    _layer("PixelShuffle", F.pixel_shuffle),
    _layer("PixelUnshuffle", F.pixel_unshuffle),
)
ChannelShuffle = _layer("ChannelShuffle", F.channel_shuffle)
Fold, Unfold = _layer("Fold", F.fold), _layer("Unfold", F.unfold)
LocalResponseNorm = _layer("LocalResponseNorm", F.local_response_norm)
CosineSimilarity = _layer("CosineSimilarity", F.cosine_similarity, 2)
PairwiseDistance = _layer("PairwiseDistance", F.pairwise_distance, 2)


def _flatten(input: Tensor, start_dim: int = 1, end_dim: int = -1) -> Tensor:
    return input.flatten(start_dim, end_dim)


def _unflatten(input: Tensor, dim: int, unflattened_size: tuple[int, ...]) -> Tensor:
    return input.unflatten(dim, unflattened_size)


Flatten, Unflatten = _layer("Flatten", _flatten), _layer("Unflatten", _unflatten)


def _padding(name: str, mode: str, axes: int) -> Any:
    """A layer that pads the last axes: one number for all edges, or (left, right, top, bottom, …)."""

    def pad(input: Tensor, padding: Any, value: float = 0.0) -> Tensor:
        edges = list(padding) if isinstance(padding, tuple | list) else [padding] * (2 * axes)
        return (
            functional.pad(input, edges, mode)
            if mode != "constant"
            else functional.pad(input, edges, mode, value)
        )

    pad.__name__ = "pad"
    return _layer(name, pad)


ConstantPad1d, ConstantPad2d, ConstantPad3d = (_padding(f"ConstantPad{n}d", "constant", n) for n in (1, 2, 3))
ZeroPad1d, ZeroPad2d, ZeroPad3d = (_padding(f"ZeroPad{n}d", "constant", n) for n in (1, 2, 3))
ReflectionPad1d, ReflectionPad2d, ReflectionPad3d = (
    _padding(f"ReflectionPad{n}d", "reflect", n) for n in (1, 2, 3)
)
ReplicationPad1d, ReplicationPad2d, ReplicationPad3d = (
    _padding(f"ReplicationPad{n}d", "replicate", n) for n in (1, 2, 3)
)
CircularPad1d, CircularPad2d, CircularPad3d = (_padding(f"CircularPad{n}d", "circular", n) for n in (1, 2, 3))

CrossEntropyLoss, NLLLoss = _layer("CrossEntropyLoss", F.cross_entropy, 2), _layer("NLLLoss", F.nll_loss, 2)
MSELoss, L1Loss = _layer("MSELoss", F.mse_loss, 2), _layer("L1Loss", F.l1_loss, 2)
HuberLoss, SmoothL1Loss = _layer("HuberLoss", F.huber_loss, 2), _layer("SmoothL1Loss", F.smooth_l1_loss, 2)
BCELoss = _layer("BCELoss", F.binary_cross_entropy, 2)
BCEWithLogitsLoss = _layer("BCEWithLogitsLoss", F.binary_cross_entropy_with_logits, 2)
KLDivLoss, CTCLoss = _layer("KLDivLoss", F.kl_div, 2), _layer("CTCLoss", F.ctc_loss, 4)
PoissonNLLLoss = _layer("PoissonNLLLoss", F.poisson_nll_loss, 2)
GaussianNLLLoss = _layer("GaussianNLLLoss", F.gaussian_nll_loss, 3)
MarginRankingLoss = _layer("MarginRankingLoss", F.margin_ranking_loss, 3)
HingeEmbeddingLoss = _layer("HingeEmbeddingLoss", F.hinge_embedding_loss, 2)
SoftMarginLoss = _layer("SoftMarginLoss", F.soft_margin_loss, 2)
MultiMarginLoss = _layer("MultiMarginLoss", F.multi_margin_loss, 2)
MultiLabelMarginLoss = _layer("MultiLabelMarginLoss", F.multilabel_margin_loss, 2)
MultiLabelSoftMarginLoss = _layer("MultiLabelSoftMarginLoss", F.multilabel_soft_margin_loss, 2)
CosineEmbeddingLoss = _layer("CosineEmbeddingLoss", F.cosine_embedding_loss, 3)
TripletMarginLoss = _layer("TripletMarginLoss", F.triplet_margin_loss, 3)
TripletMarginWithDistanceLoss = _layer(
    "TripletMarginWithDistanceLoss", F.triplet_margin_with_distance_loss, 3
)


# --- with weights


class PReLU(Module):
    """x where it is positive, else x times a number that is learned, for all channels or for each.

    >>> PReLU()(Tensor([-4.0, 2.0])).tolist()
    [-1.0, 2.0]
    """

    def __init__(self, num_parameters: int = 1, init: float = 0.25, dtype: Any = None) -> None:
        self.weight = parameter(Tensor.full((num_parameters,), init, dtype=dtype))

    def __call__(self, x: Tensor) -> Tensor:
        return functional.prelu(x, self.weight)


class EmbeddingBag(Module):
    """Sums, averages or maxima of rows of a table, in bags of numbers.

    >>> EmbeddingBag(10, 4)(Tensor([[1, 2, 3], [4, 5, 6]])).shape
    (2, 4)
    """

    @also(num_embeddings="count", embedding_dim="width")
    def __init__(self, count: int, width: int, mode: str = "mean", dtype: Any = None, **options: Any) -> None:
        self.weight = parameter(Tensor.randn(count, width, dtype=dtype))
        self.mode, self.options = mode, options

    def __call__(self, index: Tensor, offsets: Tensor | None = None, **more: Any) -> Tensor:
        found: Tensor = functional.embedding_bag(
            index, self.weight, offsets, mode=self.mode, **self.options, **more
        )
        return found


# --- lists and dicts, for those who name them


def Parameter(value: Any, requires_grad: bool = True) -> Tensor:
    """A tensor that is learned.

    >>> Parameter([1.0, 2.0]).requires_grad
    True
    """
    tensor = (value if isinstance(value, Tensor) else Tensor(value)).detach()
    return tensor.requires_grad_(requires_grad)


class ModuleList(list[Any]):
    """A list of layers; a plain one does as well.

    >>> len(ModuleList([ReLU(), Tanh()]))
    2
    """


class ModuleDict(dict[str, Any]):
    """A dict of layers; a plain one does as well.

    >>> list(ModuleDict({"relu": ReLU()}))
    ['relu']
    """


class ParameterList(list[Any]):
    """A list of tensors that are learned.

    >>> all(p.requires_grad for p in ParameterList([Tensor([1.0]), Tensor([2.0])]))
    True
    """

    def __init__(self, values: Any = ()) -> None:
        super().__init__(_learned(value) for value in values)

    def append(self, value: Any) -> None:
        super().append(_learned(value))

    def extend(self, values: Any) -> None:
        super().extend(_learned(value) for value in values)


class ParameterDict(dict[str, Any]):
    """A dict of tensors that are learned.

    >>> ParameterDict({"w": Tensor([1.0])})["w"].requires_grad
    True
    """

    def __init__(self, values: Any = ()) -> None:
        super().__init__({key: _learned(value) for key, value in dict(values).items()})

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, _learned(value))


def _learned(value: Any) -> Any:
    return parameter(value) if isinstance(value, Tensor) and value.dtype.is_float else value
