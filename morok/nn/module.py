"""What a model is: any Python object. Its tensors are found by walking through it.

No base class is needed. A layer is an object that one can call; its weights are attributes. Whether a forward
pass is for training is a matter of the moment, not of the model:

    with nn.training():
        loss = model(x).cross_entropy(y)

`Module` is for those who like methods: it has `parameters()`, `state_dict()` and a text, and nothing else.
"""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any, NoReturn, TypeVar

from morok.errors import ArgumentError, MorokError, ShapeError
from morok.ir.infer import show_shape
from morok.tensor.calls.tracing import TRACE_ENVIRONMENT
from morok.tensor.jit.functionalize import copy_whole
from morok.tensor.tensor import Tensor

_training: ContextVar[bool] = ContextVar("morok.training", default=False)
# Tensors that a forward pass has assigned to; whoever computes a training step computes them along.
_updated: list[weakref.ref[Tensor]] = []
_LATER = ("num_batches_tracked",)  # what files that were written earlier do not have
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
    """Whether the forward pass of this moment is for training.

    >>> with training():
    ...     is_training()
    True
    """
    return _training.get()


TRACE_ENVIRONMENT.append(is_training)  # a function that was traced in training is traced again outside


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
    """How many numbers a model learns.

    >>> parameter_count([Tensor([[1.0, 2.0]], requires_grad=True), Tensor([1.0])])
    2
    """
    return sum(int(p.numel()) for p in parameters(model))


def zero_grad(model: Any) -> None:
    """Forget the gradients of all parameters.

    >>> x = Tensor([3.0], requires_grad=True)
    >>> (x * x).sum().backward()
    >>> zero_grad([x])
    >>> x.grad is None
    True
    """
    for tensor in parameters(model):
        tensor.zero_grad()


def load_state_dict(model: Any, state: Mapping[str, Tensor], strict: bool = True) -> None:
    """Overwrite a model's tensors with those of the same names; types are converted, shapes must fit.

    Unless `strict`, names that only one side has are passed over. Nothing is changed if something is wrong.

    >>> model = {"w": Tensor([0.0])}
    >>> load_state_dict(model, {"w": Tensor([2.0])})
    >>> model["w"].tolist()
    [2.0]
    """
    own, names = fitting(model, state, strict)
    others = [name for name in names if not copy_whole(own[name], state[name])]
    for name in others:
        own[name].assign(state[name].detach().to(own[name].device))
    if others:
        own[others[0]].realize(*(own[name] for name in others[1:]))


def fitting(
    model: Any, state: Mapping[str, Tensor], strict: bool = True
) -> tuple[dict[str, Tensor], list[str]]:
    """A model's tensors, and the names of those that a state has too; an error if the two do not fit."""
    own = named_tensors(model)
    missing, unknown = sorted(own.keys() - state.keys()), sorted(state.keys() - own.keys())
    missing = [name for name in missing if name.rpartition(".")[2] not in _LATER]
    if strict and (missing or unknown):
        parts = [f"no {_listed(missing)}"] * bool(missing) + [f"unknown {_listed(unknown)}"] * bool(unknown)
        raise MorokError(f"the state does not fit the model: {' and '.join(parts)}")
    names = [name for name in own if name in state]
    for name in names:
        if own[name].shape != state[name].shape:
            raise ShapeError(
                f"{name} has shape {show_shape(own[name].shape)} in the model and "
                f"{show_shape(state[name].shape)} in the state"
            )
    return own, names


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:4])
    return shown if len(names) <= 4 else f"{shown} and {len(names) - 4} more"


F = TypeVar("F", bound=Callable[..., None])


def also(**names: str) -> Callable[[F], F]:
    """A decorator of constructors whose arguments have PyTorch's names, too: `also(in_features="inputs")`."""

    def decorate(init: F) -> F:
        @wraps(init)
        def call(self: Any, *args: Any, **kwargs: Any) -> None:
            for name in [k for k in kwargs if k in names]:
                if names[name] in kwargs:
                    raise ArgumentError(f"{name} and {names[name]} are one argument; give one of them")
                kwargs[names[name]] = kwargs.pop(name)
            init(self, *args, **kwargs)

        return call  # type: ignore[return-value]

    return decorate


class Module:
    """What layers can do beside being called. A model may have it as its base class, and need not.

    >>> class Net(Module):
    ...     def __init__(self) -> None:
    ...         self.w = Tensor([1.0, 2.0], requires_grad=True)
    >>> Net()
    Net(w: (2,))
    >>> len(Net().parameters())
    1
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What `forward` computes, for models that are written so."""
        forward = getattr(self, "forward", None)
        if forward is None:
            raise MorokError(f"a {type(self).__name__} has neither __call__ nor forward")
        return forward(*args, **kwargs)

    def zero_grad(self) -> None:
        """Forget the gradients of all parameters: `nn.zero_grad(self)`."""
        zero_grad(self)

    def named_parameters(self) -> list[tuple[str, Tensor]]:
        """The tensors that gradients are wanted for, with their paths."""
        return [(name, tensor) for name, tensor in named_tensors(self).items() if tensor.is_leaf]

    def parameters(self) -> list[Tensor]:
        """The tensors that gradients are wanted for: `nn.parameters(self)`."""
        return parameters(self)

    def state_dict(self) -> dict[str, Tensor]:
        """All tensors by name: `nn.state.state_dict(self)`."""
        return named_tensors(self)

    def load_state_dict(self, state: Mapping[str, Tensor], strict: bool = True) -> None:
        """Overwrite the tensors with those of the same names: `nn.state.load_state_dict(self, state)`."""
        load_state_dict(self, state, strict)

    def train(self, mode: bool = True) -> NoReturn:
        """Not here: says where."""
        raise MorokError(
            f"a {type(self).__name__} does not keep whether it is in training: write `with nn.training():` "
            "around what is; everything else is not"
        )

    def eval(self) -> NoReturn:
        """Not here: says where."""
        self.train(False)

    def __repr__(self) -> str:
        own: list[str] = []
        inner: list[str] = []
        for name, part in _parts(self):
            if isinstance(part, Tensor):
                own.append(f"{name}: {part.shape}")
            elif isinstance(part, Module | list | dict) or (isinstance(part, tuple) and _holds_layers(part)):
                inner.append(_indented(name, part))
            elif part is not None:
                own.append(f"{name}={part!r}")
        head = f"{type(self).__name__}({', '.join(own)}"
        return head + ")" if not inner else "\n".join([head, *inner, ")"])


def _holds_layers(parts: tuple[Any, ...]) -> bool:
    return any(isinstance(part, Module) for part in parts)


def _indented(name: str, part: Any) -> str:
    text = _text(part)
    return f"  {name}:{'' if text.startswith(chr(10)) else ' '}{text}".replace("\n", "\n  ")


def _text(part: Any) -> str:
    """A layer, or several, in the text of the one that holds them; functions by their names."""
    if isinstance(part, dict | list | tuple):
        return "".join("\n" + _indented(name, p) for name, p in _parts(part))
    return str(part.shape) if isinstance(part, Tensor) else getattr(part, "__qualname__", None) or repr(part)


class Sequential(Module):
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
