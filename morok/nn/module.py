"""What a model is: any Python object. Its tensors are found by walking through it.

There is no base class. A layer is an object that one can call; its weights are attributes. Whether a forward
pass is for training is a matter of the moment, not of the model:

    with nn.training():
        loss = model(x).cross_entropy(y)
"""

from __future__ import annotations

import types
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from morok.tensor.tensor import Tensor
from morok.tensor.tracing import SURROUNDINGS

_training: ContextVar[bool] = ContextVar("morok.training", default=False)
# Tensors that a forward pass has assigned to; whoever computes a training step computes them along.
_updated: list[weakref.ref[Tensor]] = []
_OPAQUE = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodType)


@contextmanager
def training(on: bool = True) -> Iterator[None]:
    """Inside, dropout drops and batch norm uses (and learns) the batch's statistics.

    >>> with training():
    ...     is_training()
    True
    """
    token = _training.set(on)
    try:
        yield
    finally:
        _training.reset(token)


def is_training() -> bool:
    """Whether the forward pass of this moment is for training."""
    return _training.get()


SURROUNDINGS.append(is_training)  # a function that was traced in training is traced again outside


def note_update(tensor: Tensor) -> None:
    """A forward pass has assigned to a tensor: it is computed with the next step of an optimiser."""
    _updated.append(weakref.ref(tensor))


def take_updates() -> list[Tensor]:
    """The tensors noted since the last call."""
    found = {id(t): t for ref in _updated if (t := ref()) is not None}
    _updated.clear()
    return list(found.values())


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """What is directly inside of a value, with names. Attributes that begin with _ are nobody's business."""
    if isinstance(value, dict):
        yield from ((str(key), part) for key, part in value.items())
    elif isinstance(value, list | tuple):
        names = getattr(value, "_fields", range(len(value)))
        yield from ((str(name), part) for name, part in zip(names, value, strict=True))
    elif not isinstance(value, _OPAQUE):
        space = getattr(value, "__dict__", {})
        yield from ((name, part) for name, part in space.items() if not name.startswith("_"))


def named_tensors(model: Any, prefix: str = "") -> dict[str, Tensor]:
    """All tensors of a model by their path, such as "layers.0.weight"; each once, under its first name.

    >>> list(named_tensors({"w": Tensor([1.0]), "layers": [Tensor([2.0])]}))
    ['w', 'layers.0']
    """
    found: dict[str, Tensor] = {}
    seen: set[int] = set()
    stack = [(prefix, model)]
    while stack:
        path, value = stack.pop()
        if isinstance(value, str | bytes | int | float | None.__class__) or id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, Tensor):
            found[path] = value
            continue
        parts = [(f"{path}.{name}" if path else name, part) for name, part in _parts(value)]
        stack += reversed(parts)
    return found


def parameters(model: Any) -> list[Tensor]:
    """The tensors of a model that gradients are wanted for.

    >>> len(parameters([Tensor([1.0], requires_grad=True), Tensor([2.0])]))
    1
    """
    return [tensor for tensor in named_tensors(model).values() if tensor.is_leaf]


def parameter_count(model: Any) -> int:
    """How many numbers a model learns."""
    return sum(int(p.numel()) for p in parameters(model))


def zero_grad(model: Any) -> None:
    """Forget the gradients of all parameters."""
    for tensor in parameters(model):
        tensor.zero_grad()


class Sequential:
    """Layers (anything that can be called with a tensor) one after the other.

    >>> Sequential(Tensor.relu, Tensor.exp)(Tensor([-1.0])).tolist()
    [1.0]
    """

    def __init__(self, *layers: Any) -> None:
        self.layers = list(layers)

    def __call__(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x

    def __len__(self) -> int:
        return len(self.layers)

    def __getitem__(self, i: int) -> Any:
        return self.layers[i]
