"""Weights of products with few rows, laid out once in the order in which registers take them.

    y = x wᵀ,  x (rows, inner),  w (columns, inner)

Where rows are few, as in a step of a recurrence, nothing is gained by packing weights while they are
multiplied, and they are read again and again. As they come, lanes run along the sum, and each result ends in
a sum across lanes. In panels (columns / width, inner, width) lanes are results, and a panel is read from
front to end: so many registers wide that all results of a panel are sums in registers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import final

import numpy as np

from morok.device.registry import default_device
from morok.machine.devices import machine_of
from morok.onnx.types import Array
from morok.onnx.values import Host, Value
from morok.optimize.heuristics.blocked_rows import block_width, panel_width
from morok.tensor.sizes import concrete
from morok.tensor.tensor import Tensor

FLOAT_BYTES = 4
_MOST_ROWS = 32
_FEWEST, _MOST = 2, 8  # registers of a panel


def width_for(rows: object, columns: int, itemsize: int) -> int | None:
    """The width of panels for so many rows; None where weights stay as they are."""
    if not isinstance(rows, int) or rows > _MOST_ROWS or default_device() != "CPU":
        return None
    machine = machine_of("CPU")
    lanes = machine.vector_bytes // itemsize
    if not lanes or columns % lanes:
        return None
    vectors, sums = columns // lanes, machine.registers // 2
    if rows == 1 and vectors <= sums:
        return columns  # one panel
    most = min(_MOST, max(_FEWEST, sums // rows))
    return lanes * max(n for n in range(1, min(most, vectors) + 1) if vectors % n == 0)


def _waits(rows: object, nbytes: int) -> bool:
    """Whether a row waits for its weights, in whatever order they come."""
    return rows == 1 and 2 * nbytes > machine_of("CPU").l2_bytes


@final
class Weights:
    """Weights of some directions, (directions, columns, inner), and what a model knows of them."""

    def __init__(self, tensor: Tensor, host: Host | None) -> None:
        self.tensor = tensor
        self.host = host if host is not None and host.lasting and host.array.dtype.kind == "f" else None

    def times(self, x: Tensor, d: int | None, start: int = 0, stop: int | None = None) -> Tensor:
        """(…, rows, columns) of a direction for (…, rows, inner), or of all of them along a first axis."""
        columns = concrete(self.tensor.shape[1])
        stop = columns if stop is None else stop
        rows, host, width = x.shape[-2], self.host, None
        if host is not None and not _waits(rows, host.array[:, start:stop].nbytes):
            width = width_for(rows, stop - start, host.array.dtype.itemsize)
        if host is None or width is None:
            own = self.tensor[:, start:stop] if d is None else self.tensor[d, start:stop]
            return x.matmul(own.transpose(-1, -2))
        panels = host.form((width, start, stop), lambda array: panelled(array[:, start:stop], width))
        made = x.unsqueeze(-3).matmul(panels if d is None else panels[d])  # (…, panels, rows, width)
        return made.transpose(-3, -2).reshape((*x.shape[:-1], stop - start))


def layer(x: Tensor, weights: Value, turned: bool) -> Tensor | None:
    """x times a constant matrix, (inner, columns) or `turned`, (columns, inner), which is laid out once, for
    some rows; None where it stays as it is. Many rows hide that a panel is packed at each call."""
    host = weights if isinstance(weights, Host) and weights.lasting and default_device() == "CPU" else None
    sizes = [n for n in x.shape if isinstance(n, int)]
    if host is None or host.symbolic or host.array.ndim != 2 or x.ndim < 2 or len(sizes) < x.ndim:
        return None
    array = host.array if turned else host.array.T
    columns, inner = array.shape
    rows, plain = math.prod(sizes[:-1]), array.dtype.kind == "f" and array.dtype.itemsize >= FLOAT_BYTES
    width = panel_width(rows, columns, array.dtype.itemsize, machine_of("CPU")) if plain else None
    if width is None or sizes[-1] != inner or x.dtype.itemsize != array.dtype.itemsize:
        return None
    panels = host.form(("layer", width, turned), lambda _: panelled(array[None], width)[0])
    made = x.reshape((1, rows, inner)).matmul(panels)  # (panels, rows, width)
    return made.transpose(0, 1).reshape((*sizes[:-1], columns))


def panelled(array: Array, width: int) -> Array:
    """(directions, columns, inner) as (directions, columns / width, inner, width)."""
    directions, columns, inner = array.shape
    parts = array.reshape(directions, columns // width, width, inner)
    return parts.transpose(0, 1, 3, 2)


def in_blocks(host: Host, group: int, batch: object, places: Sequence[int]) -> Tensor:
    """Weights of a convolution with windows, (out, inner, …), in blocks of outputs where that is faster for
    so many places of a result; what is asked for is a view of them."""
    array, plain = host.array, host.tensor()
    assert isinstance(plain, Tensor)
    if default_device() != "CPU" or array.dtype.kind != "f" or math.prod(array.shape[2:]) == 1:
        return plain
    if not all(places):
        return plain
    out, steps, count = array.shape[0], math.prod(array.shape[1:]), math.prod(places)
    count *= batch if isinstance(batch, int) else 1
    nbytes = max(4, array.dtype.itemsize)  # halves are multiplied as floats
    width = block_width(out // group, places[-1], count, steps, nbytes, machine_of("CPU"))
    if width is None:
        return plain
    blocks = host.form(("blocks", width), lambda values: blocked(values, width))
    return blocks.permute(0, blocks.ndim - 1, *range(1, blocks.ndim - 1)).reshape(array.shape)


def blocked(array: Array, width: int) -> Array:
    """(out, …) as (out / width, …, width)."""
    out, *inner = array.shape
    return np.moveaxis(array.reshape(out // width, width, *inner), 1, -1)
