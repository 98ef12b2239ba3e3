"""A stretch of a graph as tensors that nothing has run for yet: its inputs on memory, its nodes computed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, final

import torch

from morok import knobs
from morok.device.buffer import bind_buffer
from morok.device.registry import get_device
from morok.dtype import uint64
from morok.ir.node import UOp
from morok.tensor.calls.tracing import tracing
from morok.tensor.memory.names import new_buffer
from morok.tensor.random import Draws, drawing_from
from morok.tensor.tensor import Tensor
from morok.torch.layout import Layout, input_tensor, layout_of, room_for, row_major
from morok.torch.lower import lower
from morok.torch.sizes import Variables
from morok.torch.types import from_torch


@final
class Traced:
    """What nodes have become. Sizes are numbers, or those that `known` makes of torch's symbolic ones."""

    def __init__(self, device: str, known: Callable[[Any], Any]) -> None:
        self.device = device
        self.known = known
        self.env: dict[Any, Any] = {}
        self.inputs: list[Any] = []
        self.layouts: dict[Any, Layout] = {}
        # of an argument: its number, the memory that is read, and whether it is copied there first
        self.places: list[tuple[int, UOp, bool]] = []
        self.cell = new_buffer(uint64, 2, device)
        bind_buffer(self.cell, get_device(device).buffer(2, uint64))
        self.turned: dict[Any, Layout] = {}  # results that lie in memory in another order of axes
        self._draws: Draws | None = None

    @property
    def draws(self) -> bool:
        """Whether random numbers are drawn."""
        return self._draws is not None and self._draws.count > 0

    def take(self, node: Any, value: Any, layout: Layout | None = None) -> None:
        """The next input: a tensor of torch's (a fake one does, with a layout), or a number."""
        self.inputs.append(node)
        if not isinstance(value, torch.Tensor):
            varies = isinstance(self.known, Variables) and isinstance(node.meta.get("val"), torch.SymInt)
            self.env[node] = self.known(node.meta["val"]) if varies else value
            return
        seen = layout or layout_of(value)
        copied = seen.order is None or value.is_neg() or value.is_conj()
        layout = Layout(seen.sizes, row_major(seen.sizes)) if copied else seen
        self.layouts[node] = seen
        sizes: Sequence[Any] = seen.sizes
        if isinstance(self.known, Variables) and isinstance(node.meta.get("val"), torch.Tensor):
            sizes = tuple([self.known(n) for n in node.meta["val"].shape])
        self.env[node], memory = self.placed(value.dtype, layout, sizes)
        if memory is not None:
            self.places.append((len(self.inputs) - 1, memory, copied))

    def placed(self, dtype: Any, layout: Layout, sizes: Sequence[Any]) -> tuple[Tensor, UOp | None]:
        """A tensor on new memory, in a layout without gaps; where there is nothing in it, on none."""
        kind = from_torch(dtype)
        if 0 in layout.sizes:
            return Tensor.zeros(*sizes, dtype=kind), None
        pairs = zip(layout.room, layout.sizes, sizes, strict=True)
        memory = new_buffer(kind, room_for([1 if r == 1 and s != 1 else n for r, s, n in pairs]), self.device)
        return input_tensor(memory, layout, sizes), memory

    def lower(self, nodes: Iterable[Any]) -> None:
        """Compute nodes."""
        with self.recording():
            lower(nodes, self.env, self.known, self.turned)

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Inside, nothing runs, and random numbers come from the cell."""
        with knobs.override(DEVICE=self.device), tracing(), drawing_from(self.cell) as draws:
            if self._draws is not None:
                draws.count = self._draws.count
            self._draws = draws
            yield
