"""The programs that `hunt.py` draws: expressions and small layers as users write them, by families.

Each family takes a `Draw`, chooses sizes, axes and types, names its inputs, and gives a function of `Words`
and of those inputs, the same for both libraries. `@smooth` says that it has gradients.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

FLOATS = ("float32", "float32", "float32", "float16", "bfloat16", "float64")
INTS = ("uint8", "int8", "int16", "int32", "int64")
SHORT = (2, 3, 5, 7, 17, 33, 100, 1000)


Input = tuple[tuple[int, ...], str, int]  # sizes, type, and what whole numbers are smaller than


@dataclass
class Draw:
    """Random choices of one row, and what it has asked for: its name and its inputs."""

    rng: np.random.Generator
    words: list[str] = field(default_factory=list)
    inputs: list[Input] = field(default_factory=list)

    def pick(self, *choices: Any) -> Any:
        found = choices[int(self.rng.integers(len(choices)))]
        self.words.append(getattr(found, "__name__", str(found)))
        return found

    def dtype(self, *choices: str) -> str:
        return str(self.pick(*(choices or FLOATS)))

    def size(self, low: int, high: int) -> int:
        return round(math.exp(self.rng.uniform(math.log(low), math.log(high))))

    def shape(self, total: int, rank: int) -> tuple[int, ...]:
        """A shape of about so many elements: short and odd sizes, and one that makes up for the rest."""
        if rank == 1:
            return (total,)
        while True:
            sizes = [int(self.rng.choice(SHORT)) for _ in range(rank - 1)]
            if math.prod(sizes) <= total:
                break
        sizes.insert(int(self.rng.integers(rank)), max(1, total // math.prod(sizes)))
        return tuple(sizes)

    def tensor(self, shape: tuple[int, ...], dtype: str, below: int = 100) -> int:
        self.inputs.append((shape, dtype, below))
        return len(self.inputs) - 1

    def name(self, family: str) -> str:
        shapes = " ".join(f"{d}{list(s)}".replace(" ", "") for s, d, _ in self.inputs)
        return f"{family}({','.join(self.words)}) {shapes}"


class Words:
    """What the libraries spell differently."""

    def __init__(self, torch: Any = None) -> None:
        from morok import Tensor

        self.torch, self.lib = torch, torch if torch is not None else Tensor

    def cast(self, x: Any, dtype: str) -> Any:
        return x.to(getattr(self.torch, dtype)) if self.torch else x.cast(dtype)

    def stack(self, xs: list[Any], dim: int) -> Any:
        return self.torch.stack(xs, dim) if self.torch else self.lib.stack(*xs, dim=dim)

    def cat(self, xs: list[Any], dim: int) -> Any:
        return self.torch.cat(xs, dim) if self.torch else self.lib.cat(*xs, dim=dim)

    def step(self, x: Any, axis: int, start: int, step: int) -> Any:
        """Every step-th element; from the end if it is negative."""
        if step < 0:
            x, step = x.flip(axis), -step
        return x[(slice(None),) * axis + (slice(start, None, step),)]

    def pad(self, x: Any, widths: list[tuple[int, int]], mode: str = "constant") -> Any:
        flat = [n for pair in reversed(widths) for n in pair]
        return self.torch.nn.functional.pad(x, flat, mode=mode) if self.torch else x.pad(widths, mode=mode)

    def f(self, name: str, x: Any, *more: Any, **options: Any) -> Any:
        """A function of torch.nn.functional, or the method of that name."""
        if self.torch:
            return getattr(self.torch.nn.functional, name)(x, *more, **options)
        if not hasattr(x, name):
            from morok.nn import functional

            return getattr(functional, name)(x, *more, **options)
        return getattr(x, name)(*more, **options)

    def values(self, x: Any) -> Any:
        return x[0] if isinstance(x, tuple) else x


Program = Callable[..., Any]
FAMILIES: dict[str, Callable[[Draw], Program]] = {}
SMOOTH: set[str] = set()  # families that have gradients


def family(make: Callable[[Draw], Program]) -> Callable[[Draw], Program]:
    FAMILIES[make.__name__] = make
    return make


def smooth(make: Callable[[Draw], Program]) -> Callable[[Draw], Program]:
    SMOOTH.add(make.__name__)
    return family(make)


@smooth
def broadcast(d: Draw) -> Program:
    shape = d.shape(d.size(20_000, 400_000), d.pick(2, 3, 4))
    dtype = d.dtype()
    d.tensor(shape, dtype)
    for _ in range(2):
        keep = d.rng.random(len(shape)) < 0.5
        d.tensor(tuple(n if k else 1 for n, k in zip(shape, keep, strict=True)), dtype)
    kind = d.pick("affine", "exp", "where", "max")
    if kind == "affine":
        return lambda w, x, y, z: (x + y) * z
    if kind == "exp":
        return lambda w, x, y, z: (x - y).exp() * z
    if kind == "where":
        return lambda w, x, y, z: w.lib.where(x < y, z, x) if w.torch else (x < y).where(z, x)
    return lambda w, x, y, z: (x - y).abs().clamp(0.1, 0.9) + z


@family
def integers(d: Draw) -> Program:
    shape = d.shape(d.size(20_000, 400_000), d.pick(1, 2, 3))
    dtype = d.dtype(*INTS)
    d.tensor(shape, dtype)
    d.tensor(shape[-1:] if d.pick("row", "same") == "row" else shape, dtype)
    ops: dict[str, Program] = {
        "add": lambda w, x, y: x + y * 3,
        "divide": lambda w, x, y: x // (y + 1),
        "remainder": lambda w, x, y: x % (y + 1),
        "bits": lambda w, x, y: ((x ^ y) & 7) | (x >> 1),
        "compare": lambda w, x, y: (x > y) & (x != 3),
        "extremes": lambda w, x, y: w.lib.maximum(x, y),
        "constant": lambda w, x, y: x // 3 + y % 10,
    }
    return ops[d.pick(*ops)]


@family
def cast(d: Draw) -> Program:
    shape = d.shape(d.size(50_000, 500_000), d.pick(1, 2))
    d.tensor(shape, d.dtype(*FLOATS[2:], *INTS, "bool"))
    target = d.dtype(*(n for n in (*FLOATS[2:], *INTS, "bool") if n != d.inputs[0][1]))
    return lambda w, x: w.cast(x, target)


@smooth
def unary(d: Draw) -> Program:
    d.tensor(d.shape(d.size(20_000, 200_000), d.pick(1, 2)), d.dtype())
    name = d.pick(
        *[
            "exp",
            "log",
            "sqrt",
            "rsqrt",
            "sin",
            "cos",
            "tan",
            "tanh",
            "sigmoid",
            "erf",
            "log1p",
            "expm1",
            "floor",
            "round",
            "abs",
            "sign",
            "reciprocal",
            "square",
            "atan",
            "asin",
            "sinh",
            "log2",
            "exp2",
            "trunc",
        ]
    )
    return lambda w, x: getattr(x, name)()


@smooth
def activation(d: Draw) -> Program:
    d.tensor(d.shape(d.size(20_000, 200_000), d.pick(1, 2)), d.dtype())
    name = d.pick(
        *[
            "relu",
            "gelu",
            "silu",
            "softplus",
            "elu",
            "leaky_relu",
            "hardtanh",
            "mish",
            "selu",
            "hardswish",
            "logsigmoid",
        ]
    )
    return lambda w, x: w.f(name, x - 0.5)


def _axes(d: Draw, rank: int) -> Any:
    return d.pick(*range(rank), *([(0, rank - 1), tuple(range(rank - 1))] if rank > 2 else []))


@smooth
def reduce(d: Draw) -> Program:
    shape = d.shape(d.size(30_000, 500_000), d.pick(2, 3, 4))
    axes = _axes(d, len(shape))
    name = d.pick("sum", "mean", "amax", "var", "norm", "logsumexp", "std", "squares")
    d.tensor(shape, d.dtype())
    if name == "norm":
        return lambda w, x: w.torch.linalg.vector_norm(x, dim=axes) if w.torch else x.norm(axis=axes)
    if name == "amax":
        return lambda w, x: x.amax(axes)
    if name == "squares":
        return lambda w, x: (x * x).sum(axes)
    return lambda w, x: getattr(x, name)(axes)


@family
def reduce_integers(d: Draw) -> Program:
    shape = d.shape(d.size(30_000, 500_000), d.pick(1, 2, 3))
    axis = d.pick(*range(len(shape)))
    name = d.pick("sum", "amax", "any", "all", "amin", "count", "mean")
    d.tensor(shape, d.dtype(*INTS, "bool") if name not in ("amax", "amin") else d.dtype(*INTS))
    if name == "count":
        return lambda w, x: (x == 1).sum(axis)
    if name == "mean":
        return lambda w, x: w.cast(x, "float32").mean(axis)
    return lambda w, x: getattr(x, name)(axis)


@family
def argreduce(d: Draw) -> Program:
    shape = d.shape(d.size(30_000, 500_000), d.pick(1, 2, 3))
    axis = d.pick(*range(len(shape)))
    name = d.pick("argmax", "argmin")
    d.tensor(shape, d.dtype(*FLOATS, *INTS))
    return lambda w, x: getattr(x, name)(axis)


@smooth
def normalise(d: Draw) -> Program:
    shape = d.shape(d.size(20_000, 300_000), d.pick(2, 3))
    axis = d.pick(*range(len(shape)))
    d.tensor(shape, d.dtype())
    kinds: dict[str, Program] = {
        "softmax": lambda w, x: x.softmax(axis),
        "log_softmax": lambda w, x: x.log_softmax(axis),
        "standard": lambda w, x: (x - x.mean(axis, keepdim=True)) / (x.std(axis, keepdim=True) + 1e-3),
        "unit": lambda w, x: x / ((x * x).sum(axis, keepdim=True) + 1e-3).sqrt(),
        "range": lambda w, x: x - x.amax(axis, keepdim=True),
    }
    return kinds[d.pick(*kinds)]


@smooth
def scan(d: Draw) -> Program:
    shape = d.shape(d.size(20_000, 300_000), d.pick(1, 2, 3))
    axis = d.pick(*range(len(shape)))
    name = d.pick("cumsum", "cumsum", "cumprod", "cummax", "logcumsumexp")
    dtype = d.dtype(*FLOATS, *(INTS if name == "cumsum" else ()))
    d.tensor(shape, dtype)
    return lambda w, x: w.values(getattr(x, name)(axis))


@family
def order(d: Draw) -> Program:
    shape = d.shape(d.size(5_000, 60_000), d.pick(1, 2, 3))
    axis = d.pick(*range(len(shape)))
    name = d.pick("sort", "argsort", "topk", "median")
    d.tensor(shape, d.dtype(*FLOATS, "int32", "int64", "uint8"))
    if name == "topk":
        count = min(shape[axis], int(d.pick(1, 5)))
        return lambda w, x: x.topk(count, axis)[0]
    if name == "median":
        return lambda w, x: (
            w.values(x.median(axis)) if w.torch else w.values(x.kthvalue((shape[axis] + 1) // 2, axis))
        )
    if name == "argsort":  # of equal elements any may come first
        return lambda w, x: x.gather(axis, x.argsort(axis))
    return lambda w, x: w.values(getattr(x, name)(axis))


@smooth
def view(d: Draw) -> Program:
    rank = d.pick(2, 3, 4)
    shape = d.shape(d.size(30_000, 400_000), rank)
    dtype = d.dtype(*FLOATS, "uint8", "int16")
    d.tensor(shape, dtype)
    kind = d.pick(
        "permute", "flip", "step", "roll", "pad", "repeat", "interleave", "transpose_add", "window", "diff"
    )
    axis = d.pick(*range(rank))
    if kind == "permute":
        order_ = [int(n) for n in d.rng.permutation(rank)]
        d.words.append(str(order_).replace(" ", ""))
        return lambda w, x: x.permute(*order_).contiguous() + 1
    if kind == "flip":
        return lambda w, x: x.flip(axis) * 2
    if kind == "step":
        step = d.pick(2, 3, -1, -2)
        return lambda w, x: w.step(x, axis, 1, step) * 2
    if kind == "roll":
        return lambda w, x: x.roll(1, axis) - x
    if kind == "pad":
        widths = [(1, 2) if n == axis else (0, 0) for n in range(rank)]
        return lambda w, x: w.pad(x * 2, widths)
    if kind == "repeat":
        times = [2 if n == axis else 1 for n in range(rank)]
        return lambda w, x: x.repeat(*times) * 2
    if kind == "interleave":
        return lambda w, x: x.repeat_interleave(3, axis) * 2
    if kind == "transpose_add":
        other = d.pick(*range(rank))
        side = min(shape[axis], shape[other])
        index = tuple(slice(side) if n in (axis, other) else slice(None) for n in range(rank))
        return lambda w, x: x[index] + x[index].transpose(axis, other)
    if kind == "window":
        size = min(3, shape[axis])
        return lambda w, x: x.unfold(axis, size, 1).sum(-1)
    return lambda w, x: (
        x.narrow(axis, 1, shape[axis] - 1) - x.narrow(axis, 0, shape[axis] - 1)
        if w.torch
        else x.diff(dim=axis)
    )


@smooth
def join(d: Draw) -> Program:
    rank = d.pick(1, 2, 3)
    shape = d.shape(d.size(20_000, 200_000), rank)
    axis = d.pick(*range(rank))
    count = d.pick(2, 3, 5)
    dtype = d.dtype(*FLOATS, "uint8")
    for _ in range(count):
        d.tensor(shape, dtype)
    if d.pick("cat", "stack") == "cat":
        return lambda w, *xs: w.cat(list(xs), axis)
    return lambda w, *xs: w.stack(list(xs), axis)


@smooth
def gather(d: Draw) -> Program:
    shape = d.shape(d.size(20_000, 200_000), 2)
    dtype = d.dtype()
    kind = d.pick("rows", "columns", "take_along", "bag", "pair")
    d.tensor(shape, dtype)
    if kind == "rows":
        d.tensor((max(8, d.size(10_000, 100_000) // shape[1]),), "int64", shape[0])
        return lambda w, x, i: x[i]
    if kind == "columns":
        d.tensor((max(8, min(1000, d.size(10_000, 100_000) // shape[0])),), "int64", shape[1])
        return lambda w, x, i: x[:, i]
    if kind == "bag":
        d.tensor((max(8, d.size(10_000, 100_000) // shape[1] // 4), 4), "int64", shape[0])
        return lambda w, x, i: x[i].sum(1)
    if kind == "pair":
        for n in shape:
            d.tensor((d.size(10_000, 50_000),) if not d.inputs[1:] else d.inputs[1][0], "int64", n)
        return lambda w, x, i, j: x[i, j]
    axis = d.pick(0, 1)
    d.tensor(shape, "int64", shape[axis])
    return lambda w, x, i: x.gather(axis, i)


@family
def scatter(d: Draw) -> Program:
    rows, width = d.size(100, 5000), d.pick(1, 3, 16, 33)
    count = d.size(2_000, 50_000) // width + 1
    d.tensor((count, width), d.dtype())
    d.tensor((count,), "int64", rows)
    kind = d.pick("sum", "count", "one_hot", "scatter")
    if kind == "sum":
        return lambda w, x, i: w.lib.zeros(rows, width, dtype=x.dtype).index_add(0, i, x)
    if kind == "count":
        return lambda w, x, i: i.bincount(minlength=rows) if w.torch else i.bincount(size=rows)
    if kind == "one_hot":
        classes = min(rows, 100)
        return lambda w, x, i: (
            w.torch.nn.functional.one_hot(i % classes, classes).float()
            if w.torch
            else (i % classes).one_hot(classes).float()
        )
    return lambda w, x, i: w.lib.zeros(rows, width, dtype=x.dtype).scatter_add(
        0, i.reshape(-1, 1).expand(count, width), x
    )
