"""Optimisers: how parameters follow their gradients.

    opt = Adam(parameters(model), lr=1e-3)
    opt.zero_grad(); loss.backward(); opt.step()

Parameters may come in groups that have options of their own; what a group does not say keywords say:

    opt = AdamW([{"params": matrices}, {"params": biases, "weight_decay": 0.0}], lr=3e-4, weight_decay=0.1)

All updates of a step are computed together, with everything else that is waiting for them. Learning rates
and the number of steps stand in memory, so a changed one runs the same kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from typing import Any, final

import numpy as np

from morok.errors import ArgumentError, MorokError, ShapeError
from morok.ir.infer import show_shape
from morok.ir.layout import is_mesh
from morok.nn.init import stored
from morok.nn.module import named_tensors, take_updates
from morok.rewrite.gc_pause import gc_paused
from morok.tensor.tensor import Tensor

Parameters = Iterable[Tensor] | Iterable[Mapping[str, Any]]  # or groups of them, with options


def wide(tensor: Tensor) -> Any:
    """The type of a parameter's statistics: at least 32 bits."""
    return tensor.dtype if tensor.dtype.bits >= 32 else "float32"


def at_least_zero(name: str, value: float) -> float:
    if not value >= 0.0:
        raise ArgumentError(f"{name} must not be negative, as {value} is")
    return value


def below_one(name: str, value: float) -> float:
    if not 0.0 <= value < 1.0:
        raise ArgumentError(f"{name} lies between 0 and 1 and is not 1, unlike {value}")
    return value


def two_below_one(name: str, value: Any) -> tuple[float, float]:
    first, second = value
    return below_one(f"the first of {name}", first), below_one(f"the second of {name}", second)


def as_it_is(name: str, value: Any) -> Any:
    return value


@final
class Option:
    """A setting of an optimiser. It is read for the parameter that changes at the moment, otherwise for the
    first group; setting it sets it for all groups."""

    def __init__(self, check: Callable[[str, Any], Any] = as_it_is) -> None:
        self.check = check

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, optimizer: Any, owner: type) -> Any:
        return self if optimizer is None else optimizer._group[self.name]

    def __set__(self, optimizer: Any, value: Any) -> None:
        for group in optimizer.param_groups:
            group[self.name] = value


@final
class Group(MutableMapping[str, Any]):
    """Parameters that share their options, by name: `group["lr"] = 1e-4`. They can be read and set at any
    time; `rate` is the learning rate as kernels see it."""

    def __init__(
        self, params: list[Tensor], options: Mapping[str, Any], checks: Mapping[str, Any], device: str
    ) -> None:
        self.params = params
        self._checks, self._device = checks, device
        self.rate: Tensor
        for name, value in options.items():
            self[name] = value

    def __getitem__(self, name: str) -> Any:
        if name == "params":
            return self.params
        if name not in self._checks:
            raise KeyError(name)
        return vars(self)["_lr" if name == "lr" else name]

    def __setitem__(self, name: str, value: Any) -> None:
        if name not in self._checks:
            known = ", ".join(self._checks)
            raise ArgumentError(f"{name!r} is no option of this optimiser's groups; those are {known}")
        value = self._checks[name](name, value)
        if name != "lr":
            vars(self)[name] = value
            return
        self._lr = float(value)  # private, so that a recorded step is not recorded again for another one
        self.rate = Tensor(np.array([value], dtype=np.float32), device=self._device)

    def __delitem__(self, name: str) -> None:
        raise ArgumentError(f"the option {name!r} of a group can be set and not removed")

    def __iter__(self) -> Iterator[str]:
        yield "params"
        yield from self._checks

    def __len__(self) -> int:
        return len(self._checks) + 1

    def __repr__(self) -> str:
        settings = ", ".join(f"{name}={self[name]!r}" for name in self._checks)
        return f"Group({len(self.params)} parameters, {settings})"


def _checked(params: Iterable[Tensor], seen: set[int]) -> list[Tensor]:
    """Those that can be optimised, each once."""
    found = {}
    for p in [params] if isinstance(params, Tensor) else params:
        if not isinstance(p, Tensor):
            raise ArgumentError(
                f"an optimiser takes tensors, or groups of them with options, not a {type(p).__name__}"
            )
        if not p.requires_grad:
            continue
        if not p.is_leaf:
            raise MorokError("an optimiser changes tensors that require gradients, not what is made of them")
        if id(p) in seen:
            raise ArgumentError("a parameter stands in two groups; it can have the options of one only")
        found[id(p)] = p
    seen.update(found)
    return list(found.values())


class Optimizer:
    """What all of them share. A subclass says by how much a parameter changes.

    Tensors among the parameters that require no gradient are not touched.

    >>> class Signs(Optimizer):
    ...     def _changed(self, i, p, g):
    ...         return p - g.sign() * self.rate, []
    >>> x = Tensor([3.0], requires_grad=True)
    >>> descent = Signs([x], lr=0.5)
    >>> (x * x).sum().backward()
    >>> descent.step()
    >>> x.tolist()
    [2.5]
    """

    lr = Option(at_least_zero)
    weight_decay = Option(at_least_zero)

    def __init__(self, params: Parameters, lr: float, weight_decay: float = 0.0, **options: Any) -> None:
        parts: list[Any] = [params] if isinstance(params, Tensor) else list(params)
        if not any(isinstance(part, Mapping) for part in parts):
            parts = [{"params": parts}]
        defaults = {"lr": lr, "weight_decay": weight_decay, **options}
        seen: set[int] = set()
        found = []
        for part in parts:
            if not isinstance(part, Mapping) or "params" not in part:
                raise ArgumentError('each group is a dictionary with "params" and options, if any is one')
            found.append((_checked(part["params"], seen), {k: v for k, v in part.items() if k != "params"}))
        self.params = [p for own, _ in found for p in own]
        if not self.params:
            raise MorokError("there is nothing to optimise: no tensor here requires gradients")
        checks, device = {name: getattr(type(self), name).check for name in defaults}, self.params[0].device
        self.param_groups = [Group(own, {**defaults, **given}, checks, device) for own, given in found]
        self._group_of = [group for group in self.param_groups for _ in group.params]
        self._group = self.param_groups[0]  # whose parameter changes
        self.steps = stored(0.0, 1, dtype="float64", device=device)
        self.params[0].realize(*self.params[1:])

    @property
    def rate(self) -> Tensor:
        """The learning rate of the parameter that changes, in memory."""
        return self._group.rate

    @property
    def rates(self) -> list[Tensor]:
        """The learning rates of all groups, in memory."""
        return [group.rate for group in self.param_groups]

    def learning_rates(self) -> float | list[float]:
        """One number, or one for each group if there are several."""
        found = [float(group["lr"]) for group in self.param_groups]
        return found if len(found) > 1 else found[0]

    def set_learning_rates(self, values: float | list[float]) -> None:
        """As `learning_rates` has given them."""
        given = values if isinstance(values, list) else [values]
        if len(given) != len(self.param_groups):
            raise MorokError(f"{len(given)} learning rates for {len(self.param_groups)} groups of parameters")
        for group, value in zip(self.param_groups, given, strict=True):
            group["lr"] = float(value)

    def state_dict(self) -> dict[str, Any]:
        """What it has gathered so far, by name: its tensors, and the learning rate as a number,
        or one for each group.

        >>> sorted(SGD([Tensor([1.0], requires_grad=True)], momentum=0.9).state_dict())
        ['lr', 'steps', 'velocity.0']
        """
        found = named_tensors(self)
        own = {name: t for name, t in found.items() if not name.startswith(("params.", "param_groups."))}
        return {"lr": self.learning_rates(), **own}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state of the same optimiser for the same parameters. Nothing changes if it is not."""
        own = self.state_dict()
        if own.keys() != state.keys():
            names = ", ".join(sorted(own.keys() ^ state.keys())[:4])
            raise MorokError(f"this is no state of such an {type(self).__name__}: only one side has {names}")
        tensors = [(name, t) for name, t in own.items() if isinstance(t, Tensor)]
        for name, t in tensors:
            if state[name].shape != t.shape:
                raise ShapeError(
                    f"{name} has shape {show_shape(t.shape)} here and "
                    f"{show_shape(state[name].shape)} in the state"
                )
        self.set_learning_rates(state["lr"])
        for name, t in tensors:
            t.assign(state[name].detach().to(t.device))
        self.steps.realize(*(t for _, t in tensors))

    def _state(self, value: float = 0.0) -> list[Tensor]:
        """A number for every element of every parameter, to keep a running average in."""
        return [stored(value, *sizes(p), dtype=wide(p), device=p.device) for p in self.params]

    def _state_where(self, option: str) -> list[Tensor | None]:
        """The same for parameters of groups that have the option."""
        return [
            stored(0.0, *sizes(p), dtype=wide(p), device=p.device) if group[option] else None
            for p, group in zip(self.params, self._group_of, strict=True)
        ]

    def zero_grad(self) -> None:
        """Forget all gradients."""
        for p in self.params:
            p.zero_grad()

    def step(self) -> None:
        """Change every parameter that has a gradient, and compute everything that waits for it.

        Gradients stay until `zero_grad`.
        """
        changed = self.update()
        changed[0].realize(*changed[1:], *take_updates())

    def update(self) -> list[Tensor]:
        """As `step`, but nothing is computed yet. Returns the tensors that change."""
        active = [(i, p) for i, p in enumerate(self.params) if p.grad is not None]
        if not active:
            raise MorokError("no parameter has a gradient; call backward() on the loss before step()")
        changed = [self.steps.assign(self.steps + 1.0)]
        with gc_paused, self._one_after_another():
            for i, p in active:
                assert p.grad is not None
                if is_mesh(p.device):
                    p.grad = _laid_out_as(p, p.grad)
                value, gradient = p.detach().cast(wide(p)), p.grad.detach().cast(wide(p))
                self._group = self._group_of[i]
                new, states = self._changed(i, value, gradient)
                changed.append(p.assign(new.detach().cast(p.dtype)))
                changed += states
        return changed

    @contextmanager
    def _one_after_another(self) -> Iterator[None]:
        """Inside, options are those of the group whose parameter changes."""
        try:
            yield
        finally:
            self._group = self.param_groups[0]

    def _changed(self, i: int, p: Tensor, g: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The new value of parameter number i, and the states that were assigned to."""
        raise NotImplementedError

    def _decayed(self, p: Tensor, g: Tensor) -> Tensor:
        """The gradient with that of the weight decay."""
        return g + p * self.weight_decay if self.weight_decay else g

    def _debiased(self, beta: float) -> Tensor:
        """1 - betaⁿ: what an average that began at zero lacks after n steps."""
        exact = -(Tensor(beta, "float64") ** self.steps) + 1.0  # in single precision 1 - 0.999 is off by 5e-5
        return exact.cast("float32")


def _laid_out_as(p: Tensor, gradient: Tensor) -> Tensor:
    """A gradient in its parameter's placement: what devices have summed up each keeps its part of."""
    layout = p.placement
    return gradient if layout is None else gradient.shard(layout.mesh, layout.spec)


def sizes(p: Tensor) -> tuple[int, ...]:
    return tuple(int(size) for size in p.shape)  # type: ignore[arg-type]
