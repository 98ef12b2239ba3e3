"""Recipes: how people train on several devices, each a few placements.

A model is any object with tensors in it, as `morok.nn` has them. Recipes change where its parameters lie, in
place, and nothing else of it; gradients and states of optimisers lie as the parameters do.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from morok.errors import MeshError
from morok.ir.layout import Mesh
from morok.tensor.sharding import P
from morok.tensor.tensor import Tensor
from morok.tensor.transforms import checkpoint

M = TypeVar("M")


def holders(model: Any, prefix: str = "") -> Iterator[tuple[Any, Any, str, Tensor]]:
    """Every tensor of a model: who holds it, under which key, by which name."""
    if isinstance(model, list):
        found: Any = enumerate(model)
    elif isinstance(model, dict):
        found = model.items()
    else:
        found = vars(model).items() if hasattr(model, "__dict__") else ()
    for key, value in list(found):
        name = f"{prefix}{key}"
        if isinstance(value, Tensor):
            yield model, key, name, value
        elif not isinstance(key, str) or not key.startswith("_"):
            if isinstance(value, list | dict) or (hasattr(value, "__dict__") and not callable_only(value)):
                yield from holders(value, f"{name}.")


def callable_only(value: Any) -> bool:
    """Whether something is a function or a type, which holds no parameters of a model."""
    return isinstance(value, type) or type(value).__name__ in ("function", "method", "module", "Mesh")


def _put(holder: Any, key: Any, value: Tensor) -> None:
    if isinstance(holder, list | dict):
        holder[key] = value
    else:
        setattr(holder, key, value)


def shard_model(model: M, mesh: Mesh, spec_of: Callable[[str, Tensor], Sequence[Any]]) -> M:
    """Puts every tensor of a model where a function of its name and itself says."""
    for holder, key, name, tensor in holders(model):
        value = tensor.detach().shard(mesh, spec_of(name, tensor)).realize()
        if tensor.requires_grad:
            value.requires_grad_()
        _put(holder, key, value)
    return model


def replicate(model: M, mesh: Mesh) -> M:
    """Everything on every device."""
    return shard_model(model, mesh, lambda name, tensor: P())


def data_parallel(model: M, mesh: Mesh, axis: str = "data") -> M:
    """The same parameters everywhere: of batches that are cut, the gradients are summed up."""
    _known(mesh, axis)
    return replicate(model, mesh)


def shard_batch(mesh: Mesh, *batch: Tensor, axis: str = "data") -> Any:
    """Tensors of a batch, their first axis cut."""
    _known(mesh, axis)
    found = tuple([x.shard(mesh, P(axis)) for x in batch])
    return found[0] if len(found) == 1 else found


def _known(mesh: Mesh, axis: str) -> None:
    if axis not in mesh.axes:
        raise MeshError(f"the mesh has no axis {axis!r}; it has {', '.join(mesh.axes)}")


# --- tensor parallel


def column_parallel(linear: M, mesh: Mesh, axis: str = "model") -> M:
    """A linear layer whose outputs are cut: (outputs, inputs) by rows, the bias with them."""
    specs = {"weight": P(axis), "bias": P(axis)}
    return shard_model(linear, mesh, lambda name, tensor: specs.get(name, P()))


def row_parallel(linear: M, mesh: Mesh, axis: str = "model") -> M:
    """A linear layer whose inputs are cut: each device has a summand of all outputs, the bias comes after."""
    return shard_model(linear, mesh, lambda name, tensor: P(None, axis) if name == "weight" else P())


# Linear layers of transformers as people call them, by the end of their names.
COLUMNS = (
    "q",
    "k",
    "v",
    "up",
    "gate",
    "q_proj",
    "k_proj",
    "v_proj",
    "up_proj",
    "gate_proj",
    "linear1",
    "c_fc",
)
ROWS = ("out", "down", "o_proj", "out_proj", "down_proj", "linear2")
TRANSFORMER = {rf"(^|\.)({'|'.join(COLUMNS)})$": "column", rf"(^|\.)({'|'.join(ROWS)})$": "row"}


def tensor_parallel(model: M, mesh: Mesh, plan: Mapping[str, str] = TRANSFORMER, axis: str = "model") -> M:
    """Linear layers by a part of their names as "column" or "row"; the rest is on every device.

    Without a plan: the names that the layers of transformers usually have.

    >>> morok.distributed.tensor_parallel({}, morok.mesh(2, "model"), {"up": "column", "down": "row"})
    {}
    """
    _known(mesh, axis)
    for pattern, kind in plan.items():
        if kind not in ("column", "row"):
            raise MeshError(f"a layer is cut by column or by row, and {pattern!r} by {kind!r}")

    def kind_of(name: str) -> str | None:
        layer = name.rpartition(".")[0]
        return next((how for pattern, how in plan.items() if re.search(pattern, layer)), None)

    def spec(name: str, tensor: Tensor) -> Sequence[Any]:
        kind = kind_of(name)
        if kind == "column":
            return P(axis)
        return P(None, axis) if kind == "row" and name.rpartition(".")[2] == "weight" else P()

    names = [name for _, _, name, _ in holders(model)]
    if names and not any(map(kind_of, names)):
        raise MeshError(
            "no layer of the model has a name that the plan knows, so nothing would be cut; a plan is as "
            '{"up": "column", "down": "row"}, and single layers have column_parallel and row_parallel'
        )
    return shard_model(model, mesh, spec)


# --- fully sharded


def cut_evenly(mesh: Mesh, axis: str, shape: Sequence[Any]) -> Sequence[Any]:
    """The longest axis of a tensor that the devices share evenly; P() if there is none."""
    devices = mesh.size((axis,))
    fits = [(size, -n) for n, size in enumerate(shape) if size % devices == 0 and size >= devices]
    if not fits:
        return P()
    longest = -max(fits)[1]
    return P(*[axis if n == longest else None for n in range(len(shape))])


@contextmanager
def gathered(model: Any, mesh: Mesh) -> Iterator[None]:
    """Inside, every tensor of a model is whole on every device; gradients go back to the parts."""
    found = list(holders(model))
    for holder, key, _, tensor in found:
        _put(holder, key, tensor.shard(mesh))
    try:
        yield
    finally:
        for holder, key, _, tensor in found:
            _put(holder, key, tensor)


def fully_sharded(model: M, mesh: Mesh, layers: Sequence[Any] = (), axis: str = "data") -> M:
    """Parameters, gradients and states cut along an axis (ZeRO-3).

    Each of the layers gathers its own parameters when it is called and drops them afterwards; the backward
    pass gathers them once more. What belongs to no layer is gathered where it is used.
    """
    _known(mesh, axis)
    shard_model(model, mesh, lambda name, tensor: cut_evenly(mesh, axis, tensor.shape))
    for layer in layers:
        _gather_when_called(layer, mesh)
    return model


def _gather_when_called(layer: Any, mesh: Mesh) -> None:
    kind = type(layer)

    def call(self: Any, *inputs: Any) -> Any:
        def whole(*given: Any) -> Any:
            with gathered(self, mesh):
                return kind.__call__(self, *given)

        return checkpoint(whole, *inputs)

    layer.__class__ = type(kind.__name__, (kind,), {"__call__": call, "__module__": kind.__module__})


# --- several batches for one step


def accumulate(loss_of: Callable[..., Tensor], *batches: Sequence[Tensor]) -> Tensor:
    """The mean loss of equal batches, each a tuple of arguments; its gradients are summed up by devices once.

    >>> w = Tensor([2.0]).requires_grad_()
    >>> loss = morok.distributed.accumulate(lambda x: (w * x).sum(), (Tensor([1.0]),), (Tensor([3.0]),))
    >>> loss.item(), loss.gradient(w)[0].tolist()
    (4.0, [2.0])
    """
    if not batches:
        raise MeshError("there is nothing to accumulate: give one batch at least")
    total: Tensor | None = None
    for batch in batches:
        loss = loss_of(*batch)
        total = loss if total is None else total + loss
    assert total is not None
    return total / len(batches)


# --- pipeline


def pipeline(
    stage: Callable[[Any, Tensor], Tensor], weights: Any, batches: Sequence[Tensor], mesh: Mesh, axis: str
) -> list[Tensor]:
    """Microbatches through stages that lie on the devices of an axis, one stage on each.

    `weights` is whatever `stage(weights, x)` takes, tensors whose first axis is that of the stages; it does
    all stages at once, to x with a first axis of stages. Every tick each device works on its own microbatch
    and sends the result to the next one: m microbatches take m + s - 1 ticks for s stages. Devices that have
    nothing to do yet, or no more, compute with a batch whose result nobody looks at.
    """
    _known(mesh, axis)
    count = mesh.size((axis,))
    first = batches[0]
    state = first.unsqueeze(0).expand(count, *first.shape).shard(mesh, P(axis))
    results: list[Tensor] = []
    for tick in range(len(batches) + count - 1):
        if tick:
            new = batches[min(tick, len(batches) - 1)].unsqueeze(0)
            handed = state[:-1].pad(((1, 0), *((0, 0),) * first.ndim)) if count > 1 else None
            entering = new.pad(((0, count - 1), *((0, 0),) * first.ndim)).shard(mesh, P(axis))
            state = entering if handed is None else handed + entering
        state = stage(weights, state)
        if tick >= count - 1:
            results.append(state[-1])
    return results
