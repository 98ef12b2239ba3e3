"""Worst errors of operations in half precision, in units in the last place, beside PyTorch's.

    python benchmarks/half.py [--points 4000] [softmax lerp ...]

Every operation gets the same float16 (then bfloat16) numbers. The judge is the same operation on these
numbers in double precision, rounded once; so what is rounded rightly has an error of 0. PyTorch computes the
same line, where it is installed and has the method. Where terms cancel, the unit is that of the largest term.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from morok import Tensor

Array = Any
KINDS = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}


@dataclass(frozen=True)
class Case:
    """An operation as a line that morok and PyTorch both understand, and the arrays that it takes."""

    call: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    low: float = -4.0
    high: float = 4.0
    torch: Callable[..., Any] | None = None  # PyTorch's way to say it, where that differs
    scale: Callable[..., Array] | None = None  # the size of the largest term, where terms cancel


def _functional(name: str, *args: Any, **kwargs: Any) -> Callable[..., Any]:
    """One of PyTorch's functions that are no methods."""

    def call(*tensors: Any) -> Any:
        import torch.nn.functional as functional

        return getattr(functional, name)(*tensors, *args, **kwargs)

    return call


def _method(name: str, *args: Any, **kwargs: Any) -> Callable[..., Any]:
    return lambda x, *others: getattr(x, name)(*others, *args, **kwargs)


_N = -1  # stands for the number of points
_ONE: tuple[tuple[int, ...], ...] = ((_N,),)
_TWO, _THREE = _ONE * 2, _ONE * 3


def _table() -> dict[str, Case]:
    one = {
        name: Case(_method(name), _ONE)
        for name in (
            "exp", "exp2", "expm1", "sin", "cos", "tan", "atan", "sinh", "cosh", "tanh", "asinh", "erf",
            "square", "sinc", "sigmoid", "relu", "abs", "neg", "frac", "deg2rad", "rad2deg",
        )
    }  # fmt: skip
    positive = {
        name: Case(_method(name), _ONE, 0.01, 9.0)
        for name in ("log", "log2", "log10", "log1p", "sqrt", "rsqrt", "reciprocal")
    }
    unit = {name: Case(_method(name), _ONE, -1.0, 1.0) for name in ("asin", "acos", "atanh")}
    other = {
        "acosh": Case(_method("acosh"), _ONE, 1.0, 9.0),
        "logit": Case(_method("logit"), _ONE, 0.0, 1.0),
    }
    activations = {
        name: Case(_method(name), _ONE, torch=_functional(name))
        for name in (
            "silu", "gelu", "mish", "softplus", "logsigmoid", "elu", "celu", "selu", "softsign",
            "hardsigmoid", "hardswish", "leaky_relu", "softshrink", "hardshrink", "tanhshrink", "relu6",
            "hardtanh",
        )
    }  # fmt: skip
    two = {
        name: Case(_method(name), _TWO)
        for name in (
            "add", "sub", "mul", "div", "remainder", "fmod", "floor_divide", "atan2", "hypot", "logaddexp",
            "logaddexp2", "maximum", "minimum", "copysign",
        )
    }  # fmt: skip
    powers = {"pow": Case(_method("pow"), _TWO, 0.1, 3.0), "xlogy": Case(_method("xlogy"), _TWO, 0.1, 3.0)}
    several = {
        "lerp": Case(_method("lerp", 0.3), _TWO, scale=lambda x, y: np.maximum(np.abs(x), np.abs(y))),
        "addcmul": Case(
            _method("addcmul", value=0.7), _THREE, scale=lambda x, y, z: np.abs(x) + np.abs(y * z)
        ),
        "addcdiv": Case(_method("addcdiv", value=0.7), _THREE, 0.5, 4.0),
    }
    return one | positive | unit | other | activations | two | powers | several | _rows() | _products()


def _rows() -> dict[str, Case]:
    rows: tuple[tuple[int, ...], ...] = ((64, 257),)
    plain = {
        name: Case(_method(name, -1), rows)
        for name in ("sum", "mean", "softmax", "log_softmax", "logsumexp", "cumsum", "logcumsumexp")
    }
    sized = {"sum", "mean", "cumsum"}
    plain |= {
        name: Case(plain[name].call, rows, scale=lambda x: np.abs(x).max(-1, keepdims=True) + 0 * x)
        for name in sized & {"cumsum"}
    }
    return plain | {
        "prod": Case(_method("prod", -1), ((64, 9),), 0.5, 2.0),
        "var": Case(_method("var", -1), rows),
        "std": Case(_method("std", -1), rows),
        "norm": Case(lambda x: x.norm(2, -1), rows),
        "norm 3": Case(lambda x: x.norm(3, -1), rows),
        "layer_norm": Case(
            lambda x, w, b: x.layer_norm((257,), w, b), (*rows, (257,), (257,)),
            torch=lambda x, w, b: _functional("layer_norm", (257,), w, b)(x),
            scale=lambda x, w, b: np.abs(b) + np.abs(w) + 0 * x,
        ),
        "group_norm": Case(
            _group_norm, ((4, 6, 33), (6,), (6,)),
            torch=lambda x, w, b: _functional("group_norm", 3, w, b)(x),
            scale=lambda x, w, b: (np.abs(b) + np.abs(w))[None, :, None] + 0 * x,
        ),
        "batch_norm": Case(
            lambda x, m, v, w, b: x.batch_norm(m, v, w, b), ((8, 6, 33), (6,), (6,), (6,), (6,)), 0.2, 4.0,
            torch=_functional("batch_norm"), scale=lambda x, m, v, w, b: np.maximum(x, b[None, :, None]) * 4,
        ),
        "quantile": Case(
            lambda x: x.quantile(0.3, -1), rows, torch=lambda x: x.float().quantile(0.3, -1).to(x.dtype)
        ),
        "cross_entropy": Case(_cross_entropy, rows, torch=_torch_cross_entropy),
        "mse_loss": Case(lambda x, y: x.mse_loss(y), rows * 2, torch=_functional("mse_loss")),
    }  # fmt: skip


def _group_norm(x: Any, w: Any, b: Any) -> Any:
    from morok import nn

    layer = nn.GroupNorm(3, 6)
    layer.weight, layer.bias = w, b
    return layer(x)


def _cross_entropy(x: Any) -> Any:
    return x.cross_entropy(Tensor(np.arange(64) % 257), "none")


def _torch_cross_entropy(x: Any) -> Any:
    import torch

    return torch.nn.functional.cross_entropy(x, torch.arange(64) % 257, reduction="none")


def _term(axis: int, other: int) -> Callable[..., Array]:
    """The largest product of a sum over an axis of one and of the other operand."""
    return lambda x, y, *rest: np.sqrt((x**2).sum(axis, keepdims=True) * (y**2).sum(other))


def _products() -> dict[str, Case]:
    image: tuple[int, ...] = (2, 3, 17, 19)
    heads: tuple[int, ...] = (2, 33, 16)
    size = _term(-1, -1)
    biggest = lambda *x: np.abs(x[0]).max()  # noqa: E731
    return {
        "matmul": Case(lambda x, y: x @ y.T, ((33, 65), (17, 65)), scale=size),
        "linear": Case(
            lambda x, w, b: x.linear(w, b), ((33, 65), (17, 65), (17,)), torch=_functional("linear"),
            scale=size,
        ),
        "addmm": Case(
            lambda x, y, z: x.addmm(y, z.T, beta=0.5, alpha=0.3), ((33, 17), (33, 65), (17, 65)),
            scale=lambda x, y, z: size(y, z),
        ),
        "attention": Case(
            lambda q, k, v: q.scaled_dot_product_attention(k, v), (heads,) * 3,
            torch=_functional("scaled_dot_product_attention"), scale=lambda q, k, v: np.abs(v).max(),
        ),
        "conv2d": Case(
            lambda x, w, b: x.conv2d(w, b, padding=1), (image, (5, 3, 3, 3), (5,)),
            torch=_functional("conv2d", padding=1), scale=lambda x, w, b: np.float64(27.0),
        ),
        "avg_pool2d": Case(
            lambda x: x.avg_pool2d(3, 2), (image,), torch=_functional("avg_pool2d", 3, 2), scale=biggest
        ),
        "adaptive_avg_pool2d": Case(
            lambda x: x.adaptive_avg_pool2d((5, 7)), (image,),
            torch=_functional("adaptive_avg_pool2d", (5, 7)), scale=biggest,
        ),
        "interpolate": Case(
            lambda x: x.interpolate((23, 31), mode="bilinear"), (image,),
            torch=_functional("interpolate", size=(23, 31), mode="bilinear"), scale=biggest,
        ),
        "einsum": Case(
            lambda x, y: x.einsum("ij,kj->ik", y), ((33, 65), (17, 65)),
            torch=lambda x, y: __import__("torch").einsum("ij,kj->ik", x, y), scale=size,
        ),
        "cross": Case(
            lambda x, y: x.cross(y, dim=-1), ((99, 3), (99, 3)), scale=lambda x, y: np.float64(16.0)
        ),
    }  # fmt: skip


TABLE = _table()


def inputs(case: Case, kind: np.dtype[Any], points: int, seed: int = 0) -> list[Array]:
    rng = np.random.default_rng(seed)
    sizes = [tuple(points if n == _N else n for n in shape) for shape in case.shapes]
    return [rng.uniform(case.low, case.high, size).astype(kind) for size in sizes]


def error(got: Array, exact: Array, kind: np.dtype[Any], scale: Array | None = None) -> float:
    """The worst distance from the exact results, rounded to the type, in units in the last place."""
    limits = ml_dtypes.finfo(kind)
    with np.errstate(all="ignore"):
        want = exact.astype(kind).astype(np.float64)
        size = np.maximum(np.abs(want), float(limits.tiny))
        if scale is not None:
            size = np.maximum(size, np.broadcast_to(scale, size.shape))
        step = np.exp2(np.floor(np.log2(size))) * float(limits.eps)
        same = (got == want) | (np.isnan(got) & np.isnan(want))
        distance = np.abs(got - want) / step
    return float(np.where(same, 0.0, np.where(np.isnan(distance), np.inf, distance)).max(initial=0.0))


def worst(name: str, kind: np.dtype[Any], points: int) -> tuple[float, float | None]:
    """The worst errors of morok and of PyTorch (None where it is not installed or has no such thing)."""
    case = TABLE[name]
    given = inputs(case, kind, points)
    wide = [x.astype(np.float64) for x in given]
    exact = case.call(*map(Tensor, wide)).numpy()
    scale = None if case.scale is None else case.scale(*wide)
    got = case.call(*map(Tensor, given)).numpy().astype(np.float64)
    return error(got, exact, kind, scale), _torch_error(case, given, exact, kind, scale)


def _torch_error(
    case: Case, given: list[Array], exact: Array, kind: np.dtype[Any], scale: Any
) -> float | None:
    if importlib.util.find_spec("torch") is None:
        return None
    import torch

    target = torch.float16 if kind == np.float16 else torch.bfloat16
    tensors = [torch.from_numpy(x.astype(np.float32)).to(target) for x in given]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about instructions that this processor does not have
            found = (case.torch or case.call)(*tensors)
    except (AttributeError, RuntimeError, TypeError):
        return None
    return error(found.to(torch.float64).numpy(), exact, kind, scale)


def main() -> int:
    parser = argparse.ArgumentParser(description="worst errors of operations in half precision")
    parser.add_argument("names", nargs="*", help="such as softmax; all if none is given")
    parser.add_argument("--points", type=int, default=4000)
    options = parser.parse_args()
    print(f"{'worst ULP':<22}{'float16':>9}{'torch':>9}{'bfloat16':>11}{'torch':>9}")
    failed = []
    for name in options.names or TABLE:
        line = f"{name:<22}"
        for kind, width in zip(KINDS.values(), (9, 11), strict=True):
            mine, other = worst(name, kind, options.points)
            shown = "–" if other is None else f"{other:.3g}"
            line += f"{mine:>{width}.3g}{shown:>9}"
            if mine > max(1.0, 2.0 * (other or 0.0)):
                failed.append(name)
        print(line, flush=True)
    bound = "1 ULP, or 2 times PyTorch's error"
    print(f"above {bound}: {', '.join(dict.fromkeys(failed))}" if failed else f"all within {bound}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
