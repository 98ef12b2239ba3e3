"""The libraries that take part, behind one small vocabulary, so that a row of the benchmark is written once.

A library makes tensors of arrays, turns a function of tensors into something that can be called again and
again the way its users would (compiled where it compiles), waits for results, and gives arrays back.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np

Array = Any
Function = Callable[..., Any]
EPS = 1e-5


def mapped(f: Callable[[Any], Any], value: Any) -> Any:
    """A function on every array of an argument."""
    return {k: f(v) for k, v in value.items()} if isinstance(value, dict) else f(value)


class Library:
    """What all have in common; the names are those of the arithmetic that rows are written in."""

    name = ""

    def tensor(self, array: Array) -> Any:
        raise NotImplementedError

    def array(self, result: Any) -> Array:
        return np.asarray(result)

    def compiled(self, function: Function) -> Function:
        """The function as a user would call it repeatedly; it returns when the result is there."""
        return lambda *xs: function(self, *xs)

    def relu(self, x: Any) -> Any:
        return self.maximum(x, 0.0)

    def maximum(self, x: Any, y: float) -> Any:
        raise NotImplementedError

    def norm(self, x: Any, weight: Any, bias: Any) -> Any:
        """Layer norm with weights."""
        return self.layer_norm(x) * weight + bias

    def layer_norm(self, x: Any) -> Any:
        raise NotImplementedError


class Numpy(Library):
    """Always there, and what the others are checked against."""

    name = "numpy"

    def tensor(self, array: Array) -> Any:
        return array

    def exp(self, x: Any) -> Any:
        return np.exp(x)

    def tanh(self, x: Any) -> Any:
        return np.tanh(x)

    def maximum(self, x: Any, y: float) -> Any:
        return np.maximum(x, np.float32(y))

    def gelu(self, x: Any) -> Any:
        cubic = x + np.float32(0.044715) * x * x * x
        return np.float32(0.5) * x * (np.float32(1.0) + np.tanh(np.float32(0.7978845608028654) * cubic))

    def sigmoid(self, x: Any) -> Any:
        return np.float32(1.0) / (np.float32(1.0) + np.exp(-x))

    def sum(self, x: Any, axis: int | None = None) -> Any:
        return x.sum(axis)

    def max(self, x: Any) -> Any:
        return x.max()

    def argmax(self, x: Any) -> Any:
        return x.argmax()

    def softmax(self, x: Any) -> Any:
        e = np.exp(x - x.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True)

    def layer_norm(self, x: Any) -> Any:
        centred = x - x.mean(-1, keepdims=True)
        return centred / np.sqrt((centred * centred).mean(-1, keepdims=True) + np.float32(EPS))

    def rms_norm(self, x: Any) -> Any:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(EPS))

    def swap(self, x: Any, a: int, b: int) -> Any:
        return np.swapaxes(x, a, b)

    def copy(self, x: Any) -> Any:
        return np.ascontiguousarray(x)

    def rows(self, table: Any, places: Any) -> Any:
        return table[places]

    def cumsum(self, x: Any) -> Any:
        return np.cumsum(x, -1)

    def where(self, condition: Any, x: Any, y: float) -> Any:
        return np.where(condition, x, np.float32(y))

    def conv(self, x: Any, w: Any, stride: int, padding: int, groups: int = 1) -> Any:
        x = np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
        windows = np.lib.stride_tricks.sliding_window_view(x, w.shape[2:], axis=(2, 3))
        windows = windows[:, :, ::stride, ::stride]
        if groups == 1:
            return np.tensordot(windows, w, axes=((1, 4, 5), (1, 2, 3))).transpose(0, 3, 1, 2)
        return np.einsum("bchwij,cij->bchw", windows, w[:, 0])

    def max_pool(self, x: Any, size: int, stride: int, padding: int) -> Any:
        edge = ((0, 0), (0, 0), (padding, padding), (padding, padding))
        x = np.pad(x, edge, constant_values=-np.inf)
        windows = np.lib.stride_tricks.sliding_window_view(x, (size, size), axis=(2, 3))
        return windows[:, :, ::stride, ::stride].max((-1, -2))

    def mean(self, x: Any, axes: tuple[int, ...]) -> Any:
        return x.mean(axes)


class Morok(Library):
    name = "morok"
    Tensor: Any
    jit: Any

    def __init__(self) -> None:
        from morok.tensor.jit.jit import jit
        from morok.tensor.tensor import Tensor

        self.Tensor, self.jit = Tensor, jit

    def tensor(self, array: Array) -> Any:
        return self.Tensor(array).realize()

    def array(self, result: Any) -> Array:
        return result.numpy()

    def compiled(self, function: Function) -> Function:
        run: Function = self.jit(lambda *xs: function(self, *xs))
        return run

    def exp(self, x: Any) -> Any:
        return x.exp()

    def tanh(self, x: Any) -> Any:
        return x.tanh()

    def maximum(self, x: Any, y: float) -> Any:
        return x.maximum(y)

    def gelu(self, x: Any) -> Any:
        return x.gelu(approximate="tanh")

    def sigmoid(self, x: Any) -> Any:
        return x.sigmoid()

    def sum(self, x: Any, axis: int | None = None) -> Any:
        return x.sum(axis)

    def max(self, x: Any) -> Any:
        return x.max()

    def argmax(self, x: Any) -> Any:
        return x.argmax()

    def softmax(self, x: Any) -> Any:
        return x.softmax(-1)

    def layer_norm(self, x: Any) -> Any:
        return x.layer_norm(-1, eps=EPS)

    def rms_norm(self, x: Any) -> Any:
        return x.rms_norm(-1, eps=EPS)

    def swap(self, x: Any, a: int, b: int) -> Any:
        return x.transpose(a, b)

    def copy(self, x: Any) -> Any:
        return x.contiguous()

    def rows(self, table: Any, places: Any) -> Any:
        return table[places]

    def cumsum(self, x: Any) -> Any:
        return x.cumsum(-1)

    def where(self, condition: Any, x: Any, y: float) -> Any:
        return condition.where(x, y)

    def conv(self, x: Any, w: Any, stride: int, padding: int, groups: int = 1) -> Any:
        return x.conv2d(w, stride=stride, padding=padding, groups=groups)

    def max_pool(self, x: Any, size: int, stride: int, padding: int) -> Any:
        return x.max_pool2d(size, stride, padding=padding)

    def mean(self, x: Any, axes: tuple[int, ...]) -> Any:
        return x.mean(axes)


class Torch(Library):
    """Eager, as most people run it."""

    name = "torch"

    def __init__(self, threads: int) -> None:
        import torch

        self.torch, self.functional = torch, torch.nn.functional
        torch.set_num_threads(threads)

    def tensor(self, array: Array) -> Any:
        return self.torch.from_numpy(array)

    def array(self, result: Any) -> Array:
        return result.numpy()

    def compiled(self, function: Function) -> Function:
        def run(*xs: Any) -> Any:
            with self.torch.no_grad():
                return function(self, *xs)

        return run

    def exp(self, x: Any) -> Any:
        return x.exp()

    def tanh(self, x: Any) -> Any:
        return x.tanh()

    def maximum(self, x: Any, y: float) -> Any:
        return self.torch.clamp_min(x, y)

    def relu(self, x: Any) -> Any:
        return self.torch.relu(x)

    def gelu(self, x: Any) -> Any:
        return self.functional.gelu(x, approximate="tanh")

    def sigmoid(self, x: Any) -> Any:
        return x.sigmoid()

    def sum(self, x: Any, axis: int | None = None) -> Any:
        return x.sum() if axis is None else x.sum(axis)

    def max(self, x: Any) -> Any:
        return x.max()

    def argmax(self, x: Any) -> Any:
        return x.argmax()

    def softmax(self, x: Any) -> Any:
        return self.torch.softmax(x, -1)

    def layer_norm(self, x: Any) -> Any:
        return self.functional.layer_norm(x, x.shape[-1:], eps=EPS)

    def norm(self, x: Any, weight: Any, bias: Any) -> Any:
        return self.functional.layer_norm(x, x.shape[-1:], weight, bias, eps=EPS)

    def rms_norm(self, x: Any) -> Any:
        return self.functional.rms_norm(x, x.shape[-1:], eps=EPS)

    def swap(self, x: Any, a: int, b: int) -> Any:
        return x.transpose(a, b)

    def copy(self, x: Any) -> Any:
        return x.contiguous()

    def rows(self, table: Any, places: Any) -> Any:
        return self.functional.embedding(places, table)

    def cumsum(self, x: Any) -> Any:
        return x.cumsum(-1)

    def where(self, condition: Any, x: Any, y: float) -> Any:
        return x.masked_fill(~condition, y)

    def conv(self, x: Any, w: Any, stride: int, padding: int, groups: int = 1) -> Any:
        return self.functional.conv2d(x, w, stride=stride, padding=padding, groups=groups)

    def max_pool(self, x: Any, size: int, stride: int, padding: int) -> Any:
        return self.functional.max_pool2d(x, size, stride, padding)

    def mean(self, x: Any, axes: tuple[int, ...]) -> Any:
        return x.mean(axes)


class TorchCompile(Torch):
    name = "torch.compile"

    def compiled(self, function: Function) -> Function:
        self.torch._dynamo.reset()  # it counts compilations by the line below, and gives up after a few
        run = self.torch.compile(lambda *xs: function(self, *xs))

        def call(*xs: Any) -> Any:
            with self.torch.no_grad():
                return run(*xs)

        return call


class Jax(Library):
    name = "jax"

    def __init__(self) -> None:
        import jax

        self.jax, self.np, self.nn = jax, jax.numpy, jax.nn

    def tensor(self, array: Array) -> Any:
        return self.jax.device_put(array, self.jax.devices("cpu")[0])

    def compiled(self, function: Function) -> Function:
        run = self.jax.jit(lambda *xs: function(self, *xs))
        return lambda *xs: run(*xs).block_until_ready()

    def exp(self, x: Any) -> Any:
        return self.np.exp(x)

    def tanh(self, x: Any) -> Any:
        return self.np.tanh(x)

    def maximum(self, x: Any, y: float) -> Any:
        return self.np.maximum(x, y)

    def gelu(self, x: Any) -> Any:
        return self.nn.gelu(x, approximate=True)

    def sigmoid(self, x: Any) -> Any:
        return self.nn.sigmoid(x)

    def sum(self, x: Any, axis: int | None = None) -> Any:
        return x.sum(axis)

    def max(self, x: Any) -> Any:
        return x.max()

    def argmax(self, x: Any) -> Any:
        return x.argmax()

    def softmax(self, x: Any) -> Any:
        return self.nn.softmax(x, -1)

    def layer_norm(self, x: Any) -> Any:
        centred = x - x.mean(-1, keepdims=True)
        return centred * self.jax.lax.rsqrt((centred * centred).mean(-1, keepdims=True) + EPS)

    def rms_norm(self, x: Any) -> Any:
        return x * self.jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + EPS)

    def swap(self, x: Any, a: int, b: int) -> Any:
        return self.np.swapaxes(x, a, b)

    def copy(self, x: Any) -> Any:
        return x

    def rows(self, table: Any, places: Any) -> Any:
        return table[places]

    def cumsum(self, x: Any) -> Any:
        return self.np.cumsum(x, -1)

    def where(self, condition: Any, x: Any, y: float) -> Any:
        return self.np.where(condition, x, y)

    def conv(self, x: Any, w: Any, stride: int, padding: int, groups: int = 1) -> Any:
        edges = [(padding, padding)] * 2
        return self.jax.lax.conv_general_dilated(x, w, (stride, stride), edges, feature_group_count=groups)

    def max_pool(self, x: Any, size: int, stride: int, padding: int) -> Any:
        edges = ((0, 0), (0, 0), (padding, padding), (padding, padding))
        window, steps = (1, 1, size, size), (1, 1, stride, stride)
        return self.jax.lax.reduce_window(x, -self.np.inf, self.jax.lax.max, window, steps, edges)

    def mean(self, x: Any, axes: tuple[int, ...]) -> Any:
        return x.mean(axes)


class Tinygrad(Morok):
    """Its tensors answer to the names that morok's do."""

    name = "tinygrad"

    def __init__(self) -> None:
        import tinygrad

        self.Tensor, self.device = tinygrad.Tensor, tinygrad.Device["CPU"]
        self.jit = tinygrad.TinyJit

    def tensor(self, array: Array) -> Any:
        return self.Tensor(array, device="CPU").realize()

    def compiled(self, function: Function) -> Function:
        run = self.jit(lambda *xs: function(self, *xs).realize())

        def call(*xs: Any) -> Any:
            result = run(*xs)
            self.device.synchronize()
            return result

        return call

    def gelu(self, x: Any) -> Any:
        return x.gelu()

    def layer_norm(self, x: Any) -> Any:
        return x.layernorm(-1, eps=EPS)

    def rms_norm(self, x: Any) -> Any:
        return x * (x.square().mean(-1, keepdim=True) + EPS).rsqrt()


class Broken(Library):
    """A peer that is installed and cannot be used: every row has a dash for it, and says why."""

    def __init__(self, name: str, error: Exception) -> None:
        self.name = name
        self.error = error

    def tensor(self, array: Array) -> Any:
        raise self.error


def libraries(wanted: tuple[str, ...], threads: int) -> list[Library]:
    """morok, NumPy and those of the wanted peers that are installed; no names: all of them."""
    peers: dict[str, Callable[[], Library]] = {
        "torch": lambda: Torch(threads),
        "torch.compile": lambda: TorchCompile(threads),
        "jax": Jax,
        "tinygrad": Tinygrad,
    }
    found: list[Library] = [Morok(), Numpy()]
    for name, make in peers.items():
        if find_spec(name.partition(".")[0]) and _asked(name, wanted):
            try:
                found.append(make())
            except Exception as error:  # installed, but something that it needs is not
                found.append(Broken(name, error))
    return found


def reason(error: BaseException) -> str:
    """What went wrong with a peer, in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:100]


def _asked(name: str, wanted: tuple[str, ...]) -> bool:
    return not wanted or name in wanted
