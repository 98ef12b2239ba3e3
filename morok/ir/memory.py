"""Memory in a graph of tensors: which one a view shows, and on which device a node is computed; and stores
that join what they bring with what is there, at once (atomics): STORE with an op as its `arg`.

    STORE(y[i], z)        y[i] = z
    STORE(y[i], z, ADD)   y[i] = y[i] + z, whoever else does the same there

Only ops and types whose result is the same in every order: whole numbers of 4 or 8 bytes.

Or stores of which each has its place to itself, as whoever computes the places knows: STORE and SCATTER with
ALONE as `arg`. There are as many rows as places, so that no place is left out: what the table held before
nobody sees, and steps need no order. Places that meet are a mistake of who said so; the emulator finds it.
"""

from __future__ import annotations

from collections.abc import Mapping

from morok.dtype import DType
from morok.errors import IRError
from morok.ir.node import UOp
from morok.ir.ops import Op, Ops
from morok.ir.provenance import place

MEMORY = frozenset((Ops.BUFFER, Ops.PARAM))
_SHOWS_FIRST = frozenset((Ops.AFTER, Ops.ASSIGN, Ops.PLACE, Ops.DETACH, Ops.IDENTITY, Ops.CONTIGUOUS))

ALONE = ("alone",)

_OPS: frozenset[Op] = frozenset((Ops.ADD, Ops.MAX, Ops.MIN))
_WIDTHS = (4, 8)  # bytes of what memory joins


def base_of(view: UOp) -> UOp:
    """The memory that a view, a state of it or a part of one shows: a BUFFER, or a PARAM of a schedule."""
    node = view
    while node.op not in MEMORY:
        if not node.op.is_movement and node.op not in _SHOWS_FIRST:
            raise IRError(
                f"only a tensor or a part of one can be assigned to, not {node.op.name}", place=place(node)
            )
        node = node.src[0]
    return node


def own_device(node: UOp) -> str:
    """The device that a node itself names: memory, and copies to somewhere; empty for others."""
    if node.op is Ops.PARAM:
        return str(node.arg[2])
    return str(node.src[1].arg) if node.op in (Ops.BUFFER, Ops.COPY) else ""


def device_of(node: UOp, known: Mapping[UOp, str]) -> str:
    """Where a node is computed, as far as memory says, given the devices of its sources.

    Empty where nothing below it is memory: it is computed wherever it is needed.
    """
    return own_device(node) or next((known[s] for s in node.src if known[s]), "")


def joined_by(store: UOp) -> Op | None:
    """The op by which a STORE joins its value with what is there; None: it takes its place."""
    return store.arg if isinstance(store.arg, Op) else None


def is_alone(node: UOp) -> bool:
    """Whether steps of a SCATTER, an ASSIGN to places or a STORE have a place each, and leave none out."""
    return bool(node.arg == ALONE)


def written_in(kernel: UOp) -> UOp | None:
    """The WRITTEN of a kernel that is nothing else."""
    if len(kernel.src) != 1 or kernel.src[0].op is not Ops.STORE:
        return None
    found = kernel.src[0].src[1]
    return found if found.op is Ops.WRITTEN else None


def memory_joins(op: Op, dtype: DType) -> bool:
    """Whether the memory of a device with atomics joins these, and no order changes the result."""
    return op in _OPS and dtype.is_bounded_int and dtype.lanes == 1 and dtype.itemsize in _WIDTHS
