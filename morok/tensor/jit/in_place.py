"""Parts of memory that a traced function writes, a cache above all: they are written where they are.

What a function assigns is otherwise a new value with memory of its own, which is as good for a whole tensor;
for a row of a cache it would copy the cache. So a storage of which parts are written keeps its assignments in
the plan, on a BUFFER node that belongs to the trace, and at each replay the plan gets the storage's memory.
That is right only if nobody else reads what the memory holds. The storage is given a new BUFFER node first:
if the old one lives on, somebody reads it, who keeps the memory, and the storage goes on with a copy.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence

from morok.device.buffer import Buffer, bind_buffer
from morok.ir.memory import base_of
from morok.ir.node import UOp, make
from morok.ir.ops import Ops
from morok.runtime.plan import buffer_for
from morok.tensor.core import require_shape
from morok.tensor.gradient_track import is_tracked
from morok.tensor.jit.arguments import plain_memory, whole_memory
from morok.tensor.memory.names import renewed_buffer
from morok.tensor.memory.states import is_memory, resolve, shown, view_of
from morok.tensor.memory.storage import Storage, claim, inherit
from morok.tensor.realize import lose_values


def written_in_place(storage: Storage, before: UOp) -> UOp | None:
    """The memory of a storage if the assignments since a state wrote parts of it; None if that is no gain."""
    node = storage.node
    if storage.leaf or is_tracked(node) or not is_memory(before):
        return None
    memory, parts = base_of(before), False
    while node.op is Ops.AFTER and len(node.src) == 2 and node.src[1].op is Ops.ASSIGN:
        part = node.src[1].src[0]
        parts = parts or node.src[1].src[1].op is Ops.SCATTER  # some rows of it
        while part.op is not Ops.PLACE:
            parts = parts or part.op is Ops.SHRINK
            part = part.src[0]
        node = part.src[0]
    return memory if parts and node is before and before is view_of(memory, require_shape(before)) else None


def shows_written(node: UOp, memory: set[UOp]) -> bool:
    """Whether a node is nothing but memory that is written in place: a result must be a copy of it."""
    found = shown(node)
    return found.op is Ops.AFTER or found in memory


def take_memory(storage: Storage) -> Buffer | None:
    """Memory of a storage that may be written: its own, or a copy where others read what it holds.

    None if it is shared with somebody outside, who is told by an ordinary assignment.
    """
    old = plain_memory(storage.node)
    held = resolve([storage.node]) if old is None else None  # somebody else may have it, and drop it
    buffer = whole_memory(storage) if old is None else buffer_for(old)
    plain = old is not None
    if old is None:
        old = base_of(resolve([storage.node])[0])
    del held
    if buffer.is_shared or not claim(old, storage):
        return None
    fresh = renewed_buffer(old)
    bind_buffer(fresh, buffer)
    inherit(old, fresh)
    node = storage.node
    if plain:  # the same view of the new node, without asking what it is
        storage.become(fresh if node is old else node.replace((fresh, *node.src[1:])))
    else:
        storage.become(view_of(fresh, require_shape(node)))
    del node
    known = weakref.ref(old)
    del old
    if known() is not None or not buffer.is_private:
        buffer = buffer.clone()
        bind_buffer(fresh, buffer)
    else:
        buffer.renamed = True
    return buffer


def lose(storages: Sequence[Storage]) -> None:
    """A run has stopped half-way: nobody knows what these hold, so whoever asks is told."""
    for storage in storages:
        node = storage.node
        lose_values(base_of(node))
        storage.become(make(Ops.CONTIGUOUS, node.dtype, (node,)))
