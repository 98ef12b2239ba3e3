"""Where the buffers of a block lie in shared memory. Buffers that are never needed together share a place.

A buffer is needed from its first access to its last, and all through a loop that accesses it. Another one may
follow in the same place if a barrier lies between the two: then nobody is still using the first.
"""

from __future__ import annotations

from collections.abc import Sequence

from morok.dtype import PtrDType
from morok.ir.matrix import Panels
from morok.ir.node import UOp
from morok.ir.ops import AxisKind, Ops

ALIGN = 1024  # what matrix units read by themselves begins at such a place
SMALL = 64  # of what is smaller than that


def lifetimes(instructions: Sequence[UOp]) -> dict[UOp, tuple[int, int]]:
    """The first and the last instruction that needs each local buffer."""
    base: dict[UOp, UOp] = {}
    accesses: dict[UOp, list[int]] = {}
    loops: list[tuple[int, int]] = []
    open_: list[int] = []
    for i, node in enumerate(instructions):
        if node.op is Ops.DEFINE_LOCAL:
            base[node] = node
            accesses[node] = []
        elif (node.op in (Ops.AFTER, Ops.INDEX) or _describes(node)) and node.src[0] in base:
            base[node] = base[node.src[0]]
        elif node.op is Ops.RANGE:
            open_.append(i)
        elif node.op is Ops.END:
            loops.append((open_.pop(), i))
        else:
            for s in node.src:
                if s in base:
                    accesses[base[s]].append(i)
    out = {}
    if any(n.op is Ops.RANGE and n.arg[1] is AxisKind.ROLE for n in instructions):
        # roles run side by side: everything is needed all the time
        return dict.fromkeys(accesses, (0, len(instructions)))
    for buffer, found in accesses.items():
        first, last = min(found, default=0), max(found, default=0)
        for start, stop in loops:  # inner loops come first
            if start <= last and first <= stop:
                first, last = min(first, start), max(last, stop)
        out[buffer] = (first, last)
    return out


def _describes(node: UOp) -> bool:
    """Whether a node says where a tile lies, for others that read it."""
    return node.op is Ops.LDMATRIX and isinstance(node.arg, Panels)


def _nbytes(buffer: UOp) -> int:
    dtype = buffer.dtype
    assert isinstance(dtype, PtrDType)
    return dtype.elem.itemsize * max(1, dtype.size)


def places(instructions: Sequence[UOp]) -> tuple[list[int], int]:
    """The offset of each local buffer, in the order of their definitions, and the bytes of all."""
    alive = lifetimes(instructions)
    barriers = [i for i, node in enumerate(instructions) if node.op is Ops.BARRIER]
    placed: dict[UOp, tuple[int, int]] = {}
    for buffer in sorted(alive, key=lambda b: (alive[b][0], -_nbytes(b))):
        unit = ALIGN if _nbytes(buffer) >= ALIGN else SMALL
        nbytes = -(-_nbytes(buffer) // unit) * unit
        taken = sorted(placed[b] for b in placed if not _apart(alive[b], alive[buffer], barriers))
        offset = 0
        for start, stop in taken:
            if offset + nbytes <= start:
                break
            offset = max(offset, -(-stop // unit) * unit)
        placed[buffer] = (offset, offset + nbytes)
    order = [n for n in instructions if n.op is Ops.DEFINE_LOCAL]
    return [placed[b][0] for b in order], max((stop for _, stop in placed.values()), default=0)


def _apart(a: tuple[int, int], b: tuple[int, int], barriers: list[int]) -> bool:
    """Whether everybody is done with one before anybody touches the other."""
    (_, last), (first, _) = (a, b) if a[1] < b[0] else (b, a)
    return any(last < i < first for i in barriers)
