"""Steps of optimisers, and gradients of a part of the graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from morok.errors import UnsupportedModel
from morok.onnx.graph import Node, Program
from morok.onnx.ops.common import back
from morok.onnx.table import Call, NeedSteps, T, as_tensor, op
from morok.tensor.tensor import Tensor

_DOMAIN = "ai.onnx.preview.training"


def _each(xs: tuple[Tensor, ...], kinds: int) -> list[tuple[Tensor, ...]]:
    """Tensors in the order of their kinds, one group for each that is optimised."""
    count = len(xs) // kinds
    return [tuple(xs[k * count + i] for k in range(kinds)) for i in range(count)]


def _listed(made: Sequence[tuple[Tensor, ...]], xs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    kinds = len(made[0])
    return tuple(back(group[k], xs[0].dtype) for k in range(kinds) for group in made)


@op("Adagrad", domain=_DOMAIN)
def adagrad(
    r: T, t: T, *xs: T, decay_factor: float = 0.0, epsilon: float = 1e-6, norm_coefficient: float = 0.0
) -> Any:
    rate = r / (t.cast(r.dtype) * decay_factor + 1)
    made = []
    for x, g, h in _each(xs, 3):
        whole = x * norm_coefficient + g
        new = h + whole * whole
        made.append((x - rate * whole / (new.sqrt() + epsilon), new))
    return _listed(made, xs)


@op("Adam", domain=_DOMAIN)
def adam(
    r: T,
    t: T,
    *xs: T,
    alpha: float = 0.9,
    beta: float = 0.999,
    epsilon: float = 1e-6,
    norm_coefficient: float = 0.0,
    norm_coefficient_post: float = 0.0,
) -> Any:
    steps = t.cast(r.dtype)
    one = Tensor(1.0, dtype=r.dtype)
    adjusted = r * (one - (one * beta) ** steps).sqrt() / (one - (one * alpha) ** steps)
    rate = (t > 0).where(adjusted, r)
    made = []
    for x, g, v, h in _each(xs, 4):
        whole = x * norm_coefficient + g
        first = v * alpha + whole * (1 - alpha)
        second = h * beta + whole * whole * (1 - beta)
        new = x - rate * first / (second.sqrt() + epsilon)
        made.append((new * (1 - norm_coefficient_post), first, second))
    return _listed(made, xs)


@op("Momentum", domain=_DOMAIN)
def momentum(r: T, t: T, *xs: T, alpha: float, beta: float, mode: str, norm_coefficient: float) -> Any:
    factor = (t > 0).where(Tensor(beta, dtype=r.dtype), 1.0)
    made = []
    for x, g, v in _each(xs, 3):
        whole = x * norm_coefficient + g
        new = v * alpha + whole * factor
        made.append((x - r * (whole + new * alpha if mode == "nesterov" else new), new))
    return _listed(made, xs)


@op("Gradient", domain=_DOMAIN)
def gradient(call: Call, *xs_values: T, xs: Any, y: str, zs: Any = None) -> Any:
    """The gradient of a value with respect to others; the nodes between them are computed again."""
    names = [*xs, *(zs or ())]
    leaves = {name: value + 0 for name, value in zip(names, xs_values, strict=True)}
    program: Program = call.program
    env = {**call.env, **leaves}
    for node in _between(program, set(names), y):
        try:
            call.tracer.node(program, node, env)
        except NeedSteps:
            raise UnsupportedModel(f"there is no gradient through {node!r}") from None
    made = as_tensor(env[y]).sum().gradient(*[leaves[name] for name in xs])
    return tuple(made)


def _between(program: Program, given: set[str], y: str) -> list[Node]:
    """The nodes that make a value from given ones, in order."""
    makers = {name: node for node in program.nodes for name in node.outputs if name}
    wanted, found = [y], {}
    while wanted:
        name = wanted.pop()
        node = makers.get(name)
        if name in given or node is None or node.index in found:
            continue
        found[node.index] = node
        wanted += [n for n in node.inputs if n]
    return [found[index] for index in sorted(found)]
