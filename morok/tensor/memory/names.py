"""Names of memory: BUFFER nodes that no other equals.

A name stands for one state of its memory. After an assignment the memory has another name, see
`tensor/realize.py`; and so it has after somebody outside could have written to it: an array that a tensor was
made of shares its memory, and so does one that a tensor has given. What was computed from the memory is found
under the old name, by graphs that were built before, and never by later lines.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

from morok.device.buffer import Buffer, bind_buffer, find_buffer
from morok.dtype import DType, void
from morok.ir.build import buffer
from morok.ir.layout import is_mesh, layout_of, placed
from morok.ir.memory import base_of
from morok.ir.node import UOp, make
from morok.ir.ops import Ops
from morok.rewrite.engine import substitute
from morok.tensor.gradient_track import is_marked, is_tracked, mark
from morok.tensor.memory.states import is_memory, resolve
from morok.tensor.memory.storage import Storage, follow_places, inherit, owner_of, set_realized

_numbers = itertools.count()

# Asked whether names stay as they are now. Traces enter themselves: names tell what a function has written.
FIXED: list[Callable[[], bool]] = []


def new_buffer(dtype: DType, size: int, device: str) -> UOp:
    """A BUFFER node that no other equals."""
    if is_mesh(device):
        layout = layout_of(device)
        device = device if layout is not None and layout.numel == size else placed(device, (size,))
    return buffer(dtype, size, device, next(_numbers))


def buffer_on(device: UOp, dtype: DType, size: int) -> UOp:
    """The same for a DEVICE node that is known, and no mesh."""
    number = make(Ops.UNIQUE, void, (), next(_numbers), depth=2)
    return make(Ops.BUFFER, dtype, (number, device), size, number.origin)


def renewed_buffer(old: UOp) -> UOp:
    """Another BUFFER node like one, of the same line."""
    number = make(Ops.UNIQUE, void, (), next(_numbers), old.origin)
    return make(Ops.BUFFER, old.dtype, (number, old.src[1]), old.arg, old.origin)


def another_name(memory: UOp, fresh: UOp, held: Buffer) -> None:
    """A BUFFER node is the name of some memory from now on, instead of another one."""
    held.renamed = True
    bind_buffer(fresh, held)
    inherit(memory, fresh)
    if is_marked(memory):
        mark(fresh, fresh=True)


# --- memory that somebody outside can write


def is_exposed(memory: UOp) -> bool:
    """Whether somebody outside can write to the memory of a BUFFER node now."""
    found = find_buffer(memory)
    return found is not None and found.is_exposed


def read_from_outside(memory: list[UOp]) -> None:
    """Values were computed from memory: those that somebody outside may change are not for later lines."""
    for node in memory:
        if is_exposed(node):
            owner = owner_of(node)
            if owner is not None:
                owner.exposed = True


def renew(storage: Storage) -> None:
    """Somebody outside may have written since values were computed from a storage's memory."""
    if any(fixed() for fixed in FIXED):
        return
    storage.exposed = False
    if (
        is_tracked(storage.node) and not storage.leaf
    ):  # what a gradient wants to know is by how it was computed
        return
    node = resolve([storage.node])[0]  # an earlier state may have been copied
    if not is_memory(node):
        return
    memory = base_of(node)
    held = find_buffer(memory)
    if held is None:
        return
    fresh = renewed_buffer(memory)
    another_name(memory, fresh, held)
    set_realized(memory, fresh)
    views = follow_places(memory, fresh, lambda view: substitute(view, {memory: fresh}))
    storage.become(substitute(node, {memory: fresh}))
    del views
