"""A block of a transformer that can be cut in every way: by columns and rows, along the length, by stages.

The block is the usual one, attention and two linear maps beside what was there. Its parameters may have one
more axis in front, that of the stages of a pipeline; activations then have it too.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, final

from morok.errors import MeshError
from morok.ir.layout import Mesh
from morok.nn.distributed.recipes import holders, shard_model
from morok.nn.linear import Linear
from morok.nn.module import Module
from morok.nn.norm import LayerNorm
from morok.tensor.sharding import P
from morok.tensor.tensor import Tensor
from morok.tensor.transforms import custom_gradient


@final
class Block(Module):
    """Causal attention and two linear maps, (batch, length, width) to the same.

    >>> morok.distributed.Block(8, 2)(Tensor.ones(1, 3, 8)).shape
    (1, 3, 8)
    """

    def __init__(
        self, width: int, heads: int, hidden: int | None = None, causal: bool = True, dtype: Any = None
    ) -> None:
        if width % heads:
            raise MeshError(f"{heads} heads do not divide a width of {width}")
        inner = hidden or 4 * width
        self.heads, self.causal = heads, causal
        self.norm1, self.norm2 = LayerNorm(width, dtype=dtype), LayerNorm(width, dtype=dtype)
        self.q, self.k, self.v = (Linear(width, width, dtype=dtype) for _ in range(3))
        self.out = Linear(width, width, dtype=dtype)
        self.up, self.down = Linear(width, inner, dtype=dtype), Linear(inner, width, dtype=dtype)
        self._along: tuple[Mesh, Any, str] | None = None  # mesh, what cuts batches, what cuts the length

    def __call__(self, x: Tensor) -> Tensor:
        y = self._gathered(_norm(self.norm1, x))
        *front, length, width = y.shape
        q, k, v = (
            _linear(f, y).reshape(*front, length, self.heads, -1).transpose(-3, -2)
            for f in (self.q, self.k, self.v)
        )
        heads = q.scaled_dot_product_attention(k, v, is_causal=self.causal)
        joined = heads.transpose(-3, -2).reshape(*front, length, width)
        x = x + self._row(self.out, joined)
        y = self._gathered(_norm(self.norm2, x))
        return x + self._row(self.down, _linear(self.up, y).gelu())

    def _gathered(self, x: Tensor) -> Tensor:
        """Before a layer that is cut by columns: all of the length; of the gradients' sum each its part."""
        if self._along is None:
            return x
        mesh, batch, axis = self._along
        return _moved(mesh, P(batch), P(batch, axis))(x)

    def _row(self, layer: Linear, x: Tensor) -> Tensor:
        """A layer that is cut by rows: of the sum, each device its part of the length."""
        if self._along is None:
            return _linear(layer, x)
        mesh, batch, axis = self._along
        y = _moved(mesh, P(batch, axis), P(batch))(x @ layer.weight.transpose(-1, -2))
        return y if layer.bias is None else y + layer.bias


@lru_cache(64)
def _moved(mesh: Mesh, there: P, back: P) -> Callable[[Tensor], Tensor]:
    """A change of placement whose gradients go to another one: sums that are cut come back whole."""

    @custom_gradient(lambda g, result, x: g.shard(mesh, back))
    def moved(x: Tensor) -> Tensor:
        return x.shard(mesh, there)

    return moved


def _in_front(x: Tensor, like: Tensor, own: int) -> Tensor:
    """A parameter with stages, (stages, …), made to meet activations (stages, …): ones in between."""
    between = like.ndim - x.ndim
    return x.reshape(x.shape[0], *(1,) * between, *x.shape[1:]) if x.ndim > own else x


def _linear(layer: Linear, x: Tensor) -> Tensor:
    if layer.weight.ndim == 2:
        return layer(x)
    y = x @ _in_front(layer.weight, x, 2).transpose(-1, -2)
    return y if layer.bias is None else y + _in_front(layer.bias, x, 1)


def _norm(layer: LayerNorm, x: Tensor) -> Tensor:
    if layer.weight is None or layer.weight.ndim == 1:
        return layer(x)
    mean = x.mean(-1, keepdim=True)
    y = (x - mean) * (((x - mean) ** 2).mean(-1, keepdim=True) + layer.eps).rsqrt()
    y = y * _in_front(layer.weight, x, 1)
    return y if layer.bias is None else y + _in_front(layer.bias, x, 1)


def sequence_parallel(
    blocks: Sequence[Block], mesh: Mesh, axis: str = "model", batch: str | None = None
) -> None:
    """Activations between the products of blocks are cut along their length, beside `tensor_parallel`.

    What was one ALLREDUCE is an ALLGATHER before the columns and a REDUCE_SCATTER behind the rows: the same
    bytes, and norms and sums are computed, and kept for the backward pass, once and not by every device.
    """
    for name in (axis, *([batch] if batch else [])):
        if name not in mesh.axes:
            raise MeshError(f"the mesh has no axis {name!r}; it has {', '.join(mesh.axes)}")
    for block in blocks:
        block._along = mesh, batch, axis


def stages(blocks: Sequence[Block], mesh: Mesh, axis: str = "stage") -> list[Block]:
    """Blocks in stages for a `pipeline`: of each stage one after the other, on the stage's own device.

    Of 8 blocks on 4 devices 2 come back, whose parameters have an axis of 4 in front, cut along the axis.

    >>> mesh = morok.mesh(2, "stage")
    >>> [b.up.weight.shape for b in morok.distributed.stages([morok.distributed.Block(4, 2)] * 4, mesh)]
    [(2, 16, 4), (2, 16, 4)]
    """
    count = mesh.size((axis,)) if axis in mesh.axes else 0
    if not count or len(blocks) % count:
        raise MeshError(f"{len(blocks)} blocks are no whole number of stages along {axis!r} of {mesh}")
    each = len(blocks) // count
    found = []
    for number in range(each):
        own = [blocks[stage * each + number] for stage in range(count)]
        made = copy.copy(own[0])
        for key, value in vars(made).items():
            if isinstance(value, Module):
                setattr(made, key, copy.copy(value))
        parts = [list(holders(block)) for block in own]
        for n, (holder, key, _, first) in enumerate(list(holders(made))):
            own_parts = [part[n][3].detach() for part in parts]
            tensor = own_parts[0].stack(*own_parts[1:])
            setattr(holder, key, tensor.requires_grad_() if first.requires_grad else tensor)
        found.append(shard_model(made, mesh, lambda name, tensor: P(axis)))
    return found
