"""Where tensors lie in memory: sizes and strides of torch's, and what morok reads and writes there."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch

from morok.ir.node import UOp
from morok.ir.ops import Ops
from morok.ir.sizes import largest
from morok.machine.devices import machine_of
from morok.tensor.memory.states import view_of
from morok.tensor.tensor import Tensor
from morok.torch.private import OpOverload
from morok.torch.types import memory_order

# Views that torch's own schemas do not mark as such, or not all of them.
_SHOWS = frozenset(
    f"aten.{name}"
    for name in ("_unsafe_view.default", "reshape.default", "alias.default", "detach.default")
)  # fmt: skip


@dataclass(frozen=True)
class Layout:
    """Where the elements of a tensor lie."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def order(self) -> tuple[int, ...] | None:
        return memory_order(self.sizes, self.strides)

    @property
    def room(self) -> tuple[int, ...]:
        """The sizes without repetition."""
        return tuple([1 if s > 1 and not t else s for s, t in zip(self.sizes, self.strides, strict=True)])

    @property
    def form(self) -> tuple[Any, ...]:
        """What tensors of other sizes must have in common to be read by the same kernels."""
        repeated = tuple([s > 1 and not t for s, t in zip(self.sizes, self.strides, strict=True)])
        return self.order, repeated, 0 in self.sizes


def layout_of(value: Any) -> Layout:
    """The layout of a tensor of torch's."""
    return Layout(tuple(value.shape), tuple(value.stride()))


def known_layout(val: Any, known: Callable[[Any], Any]) -> Layout:
    """Where torch says that a tensor lies."""
    return Layout(tuple([known(n) for n in val.shape]), tuple([known(n) for n in val.stride()]))


def channels_last(val: Any, device: str) -> tuple[int, ...] | None:
    """The order of axes of images whose channels lie side by side in torch, where a device prefers it.

    Threads of a grid read them side by side; a core of a processor walks along rows. None for all others.
    """
    if not isinstance(val, torch.Tensor) or val.ndim < 4:
        return None
    sizes, strides = tuple(val.shape), tuple(val.stride())
    if not all(isinstance(n, int) for n in (*sizes, *strides)) or strides[1] != 1 or sizes[1] == 1:
        return None
    order = (0, *range(2, val.ndim), 1)
    return order if memory_order(sizes, strides) == order and machine_of(device).grid is not None else None


def row_major(sizes: Sequence[int]) -> tuple[int, ...]:
    strides, step = [], 1
    for size in reversed(sizes):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def room_for(sizes: Sequence[Any]) -> int:
    """Elements that memory must have for all values of the sizes."""
    return prod([largest(n) for n in sizes])


def input_tensor(node: UOp, layout: Layout, sizes: Sequence[Any] | None = None) -> Tensor:
    """A tensor of morok's on memory in a layout that has no gaps; `sizes` are its own if they may vary."""
    order, room = layout.order, layout.room
    assert order is not None
    whole = layout.sizes if sizes is None else tuple(sizes)
    own = tuple([1 if r == 1 and s != 1 else n for r, s, n in zip(room, layout.sizes, whole, strict=True)])
    placed = tuple([own[axis] for axis in order])
    if all(isinstance(n, int) for n in placed):
        tensor = Tensor._new(view_of(node, placed))
    else:
        count: Any = 1
        for n in placed:
            count = count * n
        tensor = Tensor._new(view_of(node, (node.arg,)))[:count].reshape(*placed)
    if order != tuple(range(len(order))):
        tensor = tensor.permute(*sorted(range(len(order)), key=order.__getitem__))
    return tensor.expand(*whole) if own != whole else tensor


def in_layout(tensor: Tensor, layout: Layout) -> Tensor:
    """What is written to memory for a result in a layout without gaps."""
    order, room = layout.order, layout.room
    assert order is not None
    if room != layout.sizes:
        pairs = [(0, 1 if r == 1 else n) for r, n in zip(room, tensor.shape, strict=True)]
        tensor = tensor.shrink(tuple(pairs))
    node = tensor._uop
    while node.op is Ops.PERMUTE:  # what is turned there and back is what it was
        order, node = tuple([node.arg[axis] for axis in order]), node.src[0]
    return Tensor._new(node).permute(*order) if order != tuple(range(len(order))) else Tensor._new(node)


def stored_in(tensor: Tensor, layout: Layout) -> Tensor:
    """A tensor that lies in memory as a layout says, for all who read it."""
    order = layout.order
    assert order is not None
    back = sorted(range(len(order)), key=order.__getitem__)
    return tensor.permute(*order).contiguous().permute(*back)


def turned_results(
    outputs: Sequence[Any], inputs: Collection[Any], known: Callable[[Any], Any], device: str
) -> dict[Any, Layout]:
    """Computed results that do not lie in row-major order: there is one memory for them and all who read
    them, rather than one in each order."""
    found: dict[Any, Layout] = {}
    for node in (*outputs, *shared_bases(outputs, inputs, device)):
        val = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
        if not isinstance(val, torch.Tensor) or node in inputs or shown_by(node) is not None:
            continue
        layout = known_layout(val, known)
        order = layout.order
        if order is None or layout.room != layout.sizes or 0 in layout.sizes:
            continue
        if order != tuple(range(len(order))):
            found[node] = layout
    return found


def shown_by(node: Any) -> Any | None:
    """The node whose memory a view shows; None for what is computed."""
    if node.op != "call_function":
        return None
    whole = node
    if "getitem" in str(node.target):  # one of several views: parts of a split
        whole = node.args[0]
    target = whole.target
    if not isinstance(target, OpOverload) or not (target.is_view or str(target) in _SHOWS):
        return None
    base = whole.args[0]
    val, other = node.meta["val"], base.meta["val"]
    tensors = isinstance(val, torch.Tensor) and isinstance(other, torch.Tensor)
    if not tensors or val.dtype != other.dtype:
        return None
    return base if val.untyped_storage()._cdata == other.untyped_storage()._cdata else None


def shared_bases(outputs: Sequence[Any], inputs: Collection[Any], device: str) -> list[Any]:
    """What is no result itself, but is shown by several: they show the same memory, as in torch. Images that
    one result shows in another order of axes are there once, too."""
    wanted = {node for node in outputs if isinstance(node, torch.fx.Node)}
    seen: dict[Any, int] = {}
    for node in dict.fromkeys(n for n in outputs if n in wanted):
        base = node
        while base not in inputs and (base is node or base not in wanted):
            below = shown_by(base)
            if below is None:
                break
            base = below
        if base not in wanted and base not in inputs:
            seen[base] = seen.get(base, 0) + 1
    return [b for b, count in seen.items() if count > 1 or channels_last(b.meta.get("val"), device)]
