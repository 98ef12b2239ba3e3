"""Weights that are computed from others: `weight_norm` and `spectral_norm`, with PyTorch's names of tensors.

A layer stays the object that it is; it gets a class of its own in which the weight is a property. What is
learned are plain attributes (`weight_g`, `weight_v`, `weight_orig`), so optimisers and files find them.
"""

from __future__ import annotations

from functools import partial
from typing import Any, TypeVar

from morok.errors import ArgumentError
from morok.nn.init import parameter
from morok.nn.module import is_training, note_update
from morok.tensor.tensor import Tensor

L = TypeVar("L")


def weight_norm(module: L, name: str = "weight", dim: int | None = 0) -> L:
    """Direction and length of a weight are learned apart: weight = g · v / ‖v‖, a length for each row.

    >>> from morok import nn
    >>> layer = nn.weight_norm(nn.Linear(3, 2))
    >>> list(layer.state_dict())
    ['bias', 'weight_g', 'weight_v']
    """
    weight = _taken(module, name)
    setattr(module, f"{name}_g", parameter(_length(weight, dim).detach().contiguous()))
    setattr(module, f"{name}_v", parameter(weight.detach()))
    _becomes(module, name, partial(_normed, name=name, dim=dim))
    return module


def spectral_norm(
    module: L, name: str = "weight", n_power_iterations: int = 1, eps: float = 1e-12, dim: int | None = None
) -> L:
    """A weight over its largest singular value, which is followed by power iterations in training.

    >>> from morok import nn
    >>> layer = nn.spectral_norm(nn.Linear(3, 2))
    >>> list(layer.state_dict())
    ['bias', 'weight_orig', 'weight_u', 'weight_v']
    """
    if n_power_iterations < 1:
        raise ArgumentError(f"power iterations are at least one, not {n_power_iterations}")
    if dim is None:  # transposed convolutions have their outputs second
        dim = 1 if type(module).__name__.startswith("ConvTranspose") else 0
    weight = _taken(module, name)
    setattr(module, f"{name}_orig", parameter(weight.detach()))
    matrix = _as_matrix(weight.detach(), dim)
    u = _unit(Tensor.randn(matrix.shape[0], dtype=weight.dtype, device=weight.device), eps)
    v = u
    for _ in range(15):
        u, v = _iterated(matrix, u, eps)
    for end, vector in (("u", u), ("v", v)):
        setattr(module, f"{name}_{end}", vector.detach().realize())
    how: dict[str, Any] = {"name": name, "turns": n_power_iterations, "eps": eps, "dim": dim}
    _becomes(module, name, partial(_divided, **how))
    return module


def remove_weight_norm(module: L, name: str = "weight") -> L:
    """The layer as it was, with the weight that it has now.

    >>> from morok.nn import Linear, state
    >>> list(state.state_dict(remove_weight_norm(weight_norm(Linear(2, 3)))))
    ['bias', 'weight']
    """
    _restore(module, name, ("_g", "_v"))
    return module


def remove_spectral_norm(module: L, name: str = "weight") -> L:
    """The layer as it was, with the weight that it has now.

    >>> from morok.nn import Linear, state
    >>> list(state.state_dict(remove_spectral_norm(spectral_norm(Linear(2, 3)))))
    ['bias', 'weight']
    """
    _restore(module, name, ("_orig", "_u", "_v"))
    return module


# --- how a layer gets a property


def _taken(module: Any, name: str) -> Tensor:
    weight = vars(module).get(name)
    if not isinstance(weight, Tensor):
        raise ArgumentError(f"this {type(module).__name__} has no tensor {name!r}")
    del vars(module)[name]
    return weight


def _becomes(module: Any, name: str, compute: Any) -> None:
    """Gives an object a class in which a name is computed."""
    plain = type(module)

    def reduce(layer: Any, protocol: Any = None) -> Any:
        return _unpickled, (plain, name, compute), vars(layer)

    space = {name: property(compute), "__reduce_ex__": reduce, "_plain": plain}
    module.__class__ = type(plain.__name__, (plain,), space)


def _unpickled(plain: Any, name: str, compute: Any) -> Any:
    layer = plain.__new__(plain)
    _becomes(layer, name, compute)
    return layer


def _restore(module: Any, name: str, ends: tuple[str, ...]) -> None:
    if not all(hasattr(module, name + end) for end in ends):
        raise ArgumentError(f"the {name!r} of this {type(module).__name__} is not computed from others")
    weight = getattr(module, name).detach().realize()
    for end in ends:
        delattr(module, name + end)
    module.__class__ = type(module)._plain
    setattr(module, name, parameter(weight))


# --- what is computed


def _length(v: Tensor, dim: int | None) -> Tensor:
    if dim is None:
        return (v * v).sum().sqrt()
    axes = tuple(i for i in range(v.ndim) if i != dim % v.ndim)
    return (v * v).sum(axes, keepdim=True).sqrt() if axes else v.abs()


def _normed(layer: Any, *, name: str, dim: int | None) -> Tensor:
    g, v = getattr(layer, f"{name}_g"), getattr(layer, f"{name}_v")
    found: Tensor = v * (g / _length(v, dim))
    return found


def _as_matrix(weight: Tensor, dim: int) -> Tensor:
    return weight.movedim(dim, 0).reshape(weight.shape[dim], -1)


def _unit(x: Tensor, eps: float) -> Tensor:
    return x / (x * x).sum().sqrt().maximum(eps)


def _iterated(matrix: Tensor, u: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    v = _unit(matrix.mT @ u, eps)
    return _unit(matrix @ v, eps), v


def _divided(layer: Any, *, name: str, turns: int, eps: float, dim: int) -> Tensor:
    weight: Tensor = getattr(layer, f"{name}_orig")
    left, right = getattr(layer, f"{name}_u"), getattr(layer, f"{name}_v")
    matrix = _as_matrix(weight, dim)
    u, v = left.detach(), right.detach()
    if is_training():
        for _ in range(turns):
            u, v = _iterated(matrix.detach(), u, eps)
        for held, new in ((left, u), (right, v)):
            held.assign(new)
            note_update(held)
        u, v = (x.detach() for x in (u, v))
    found: Tensor = weight / (u * (matrix @ v)).sum()
    return found
