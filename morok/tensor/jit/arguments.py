"""What a traced function is called with: storages in order in memory, and placeholders for them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, final

from morok.device.buffer import Buffer, bind_buffer
from morok.ir.bounds import vmax
from morok.ir.infer import Shape, numel
from morok.ir.layout import is_mesh
from morok.ir.memory import base_of
from morok.ir.node import UOp, make, toposort
from morok.ir.ops import Ops
from morok.runtime.plan import buffer_for
from morok.tensor.core import Core, bind_to_memory, require_shape
from morok.tensor.gradient.backward import become_leaf
from morok.tensor.gradient_track import mark
from morok.tensor.jit.variables import Bound, unbound_chain, unbound_shape
from morok.tensor.memory.names import new_buffer
from morok.tensor.memory.states import is_computed, is_memory, resolve, view_of
from morok.tensor.memory.storage import Storage, hand_over, has_device, is_done, set_realized
from morok.tensor.memory.strides import Chain
from morok.tensor.realize import realize, realize_storages
from morok.tensor.sharding import placement

# --- memory


def _fills(memory: UOp, sizes: Shape) -> bool:
    """Whether a tensor of these sizes takes all of a buffer: a symbolic one the front of what it may need."""
    count = numel(unbound_shape(sizes))
    return bool((count if isinstance(count, int) else vmax(count)) == memory.arg)


def _in_order(node: UOp, sizes: Shape) -> bool:
    """Whether a node is all of a buffer, in order."""
    if not is_memory(node):
        return False
    memory = base_of(node)
    return _fills(memory, sizes) and node is view_of(memory, sizes)


def plain_memory(node: UOp) -> UOp | None:
    """The BUFFER that a node is all of, in order, as far as one look says: nearly all arguments are."""
    memory = node.src[0] if node.op is Ops.RESHAPE else node
    if memory.op is not Ops.BUFFER or is_done(id(node)) or is_done(id(memory)):
        return None
    for size in node.src[1:] if memory is not node else ():
        if size.op is not Ops.CONST:
            return None
    return memory


def whole_memory(storage: Storage) -> Buffer:
    """The buffer that holds exactly this storage, in order; it is computed, or moved there, if need be."""
    memory = plain_memory(storage.node)
    if memory is not None:
        return buffer_for(memory)
    sizes = require_shape(storage.node)
    node = resolve([storage.node])[0]
    if not is_memory(node):
        realize_storages([storage])
        node = resolve([storage.node])[0]
    if not _in_order(node, sizes):
        copy = Storage(make(Ops.CONTIGUOUS, node.dtype, (node,)))
        realize_storages([copy])
        node = resolve([copy.node])[0]
        set_realized(storage.node, node, has_device(storage.node))
        bind_to_memory(storage, node)
        hand_over(base_of(node), storage)
    return buffer_for(base_of(node))


def plain_buffers(storages: Iterable[Storage]) -> list[Buffer] | None:
    """The buffers of storages that are all of their memory, each as far as one look says; None if not all."""
    found = []
    for storage in storages:
        memory = plain_memory(storage.node)
        if memory is None:
            return None
        found.append(buffer_for(memory))
    return found


def is_whole_memory(tensor: Core) -> bool:
    """Whether a tensor is all of its memory, in order."""
    node = tensor._uop
    return plain_memory(node) is not None or _in_order(node, tensor.shape)


def memory_of(tensor: Core) -> Buffer:
    """A buffer that holds exactly what a tensor shows: its own, or a copy."""
    if not tensor._chain:
        return whole_memory(tensor._storage)
    node = resolve([tensor.uop])[0]
    if not is_memory(node):
        realize([tensor])
        node = resolve([tensor._uop])[0]
    if _in_order(node, tensor.shape):
        return buffer_for(base_of(node))
    return whole_memory(Storage(make(Ops.CONTIGUOUS, node.dtype, (node,))))


def run_writes(storages: Iterable[Storage]) -> None:
    """Runs assignments that wait: what one storage writes may lie where another one's values are found."""
    waiting = []
    for storage in storages:
        if plain_memory(storage.node) is None and not is_computed(storage.node):
            if any(n.op is Ops.ASSIGN for n in toposort(*resolve([storage.node]))):
                waiting.append(storage)
    if waiting:
        realize_storages(waiting)


# --- arguments


def home(tensor: Core) -> str:
    """Where a tensor's memory is, or will be: on a mesh, in which layout."""
    name = tensor.device
    found = placement(tensor) if is_mesh(name) else None
    return name if found is None else found.name


def arrangement(
    given: Sequence[Core], outside: Sequence[Storage] = (), bound: Bound | None = None
) -> tuple[Any, ...]:
    """Which arguments are one tensor, and which of them show one storage, or one from outside, and how.

    Values of variables in how they show it are noted in `bound`.
    """
    known = {id(storage): n for n, storage in enumerate(outside)}
    tensors: dict[int, int] = {}
    storages: dict[int, list[int]] = {}
    for n, tensor in enumerate(given):
        if tensors.setdefault(id(tensor), n) == n:
            storages.setdefault(id(tensor._storage), []).append(n)
    found: list[Any] = []
    for tensor in given:
        first, key = tensors[id(tensor)], id(tensor._storage)
        if key in known:
            found.append((first, "outside", known[key], unbound_chain(tensor._chain, bound)))
        elif len(storages[key]) > 1:
            found.append((first, "shared", storages[key][0], unbound_chain(tensor._chain, bound)))
        else:
            found.append(first)
    return tuple(found)


@final
@dataclass
class Input:
    """A storage that arguments show: which one to look at, what stands for it, and its memory's node."""

    number: int
    whole: bool  # all of the argument's storage, or only what the argument shows
    storage: Storage
    node: UOp

    def memory(self, given: Sequence[Core]) -> Buffer:
        tensor = given[self.number]
        return whole_memory(tensor._storage) if self.whole else memory_of(tensor)


def gradient_of(tensor: Core) -> Any:
    """The gradient that a parameter has."""
    return getattr(tensor, "_grad", None) if tensor._leaf else None


def showing(like: Core, storage: Storage, chain: Chain) -> Any:
    """A tensor of the same class that shows a storage."""
    tensor = object.__new__(type(like))
    tensor._storage, tensor._chain = storage, chain
    return tensor


def placeholders(
    given: Sequence[Core], places: Sequence[Any], leaves: bool
) -> tuple[list[Input], dict[int, Any]]:
    """The storages of arguments, and a tensor for each argument, by its identity."""
    inputs: list[Input] = []
    shared: dict[int, Storage] = {}
    shown: dict[int, Any] = {}
    for n, (tensor, place) in enumerate(zip(given, places, strict=True)):
        whole = isinstance(place, tuple)
        if (place[0] if whole else place) != n or (whole and place[1] == "outside"):
            continue
        storage = shared.get(id(tensor._storage)) if whole else None
        if storage is None:
            memory = whole_memory(tensor._storage) if whole else memory_of(tensor)
            node = new_buffer(tensor.dtype, memory.size, memory.device)
            bind_buffer(node, memory)
            sizes = unbound_shape(require_shape(tensor._storage.node) if whole else tensor.shape)
            storage = shared[id(tensor._storage)] = Storage(view_of(node, sizes))
            inputs.append(Input(n, whole, storage, node))
        stand_in = shown[id(tensor)] = showing(tensor, storage, place[3] if whole else ())
        if leaves and tensor._leaf:
            mark(base_of(storage.node), fresh=True)
            become_leaf(stand_in)
    return inputs, shown
