"""A list of instructions, read: who touches which memory where, and under what conditions.

Places and conditions are taken apart into lanes and closed: what comes from memory or from other threads is a
variable that may have any value of its type, so that only arithmetic is left. Equal sources give equal
variables; nothing else is known about them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import final

from morok.dtype import AddrSpace, DType, PtrDType, bool_, int32
from morok.ir.bounds import bounds
from morok.ir.matrix import TileProduct
from morok.ir.node import UOp, const, make
from morok.ir.ops import AxisKind, Ops
from morok.ir.warp_roles import Box
from morok.proof.kernels.lanes import Lane, compute, memory_of, sources_of

_ROW = 16  # bytes that a thread names to LDMATRIX
HARDWARE = (Ops.ASYNC_COPY, Ops.MBARRIER)


@final
@dataclass(frozen=True, eq=False)
class Access:
    """One instruction at one address."""

    node: UOp
    address: UOp  # INDEX
    memory: UOp  # DEFINE_…
    lanes: int
    writes: bool
    position: int
    loops: tuple[UOp, ...]  # open at this position, outer ones first
    conditions: tuple[UOp, ...]  # of the IFs around it

    @property
    def space(self) -> AddrSpace:
        dtype = self.memory.dtype
        assert isinstance(dtype, PtrDType)
        return dtype.space

    @property
    def elem(self) -> DType:
        dtype = self.memory.dtype
        assert isinstance(dtype, PtrDType)
        return dtype.elem

    @property
    def size(self) -> int:
        dtype = self.memory.dtype
        assert isinstance(dtype, PtrDType)
        return dtype.size


@final
@dataclass
class Listing:
    """What a list does to memory."""

    accesses: list[Access] = field(default_factory=list)
    partial: list[tuple[UOp, tuple[UOp, ...]]] = field(default_factory=list)  # divisions and shifts, with IFs
    barriers: list[int] = field(default_factory=list)
    bodies: dict[UOp, tuple[int, int]] = field(default_factory=dict)  # first and last position of each loop
    specials: list[UOp] = field(default_factory=list)
    threads: list[UOp] = field(default_factory=list)  # loops that workers share
    roles: bool = False
    asynchronous: bool = False


_PARTIAL = frozenset((Ops.CDIV, Ops.CMOD, Ops.SHL, Ops.SHR))


def read_list(linear: UOp) -> Listing:
    """All that has to be looked at."""
    found = Listing()
    loops: list[UOp] = []
    starts: list[int] = []
    conditions: list[UOp] = []
    for position, node in enumerate(linear.src):
        if node.op is Ops.RANGE:
            loops.append(node)
            starts.append(position)
            kind = node.arg[1]
            found.roles |= kind is AxisKind.ROLE
            if kind is AxisKind.THREAD:
                found.threads.append(node)
        elif node.op is Ops.END:
            found.bodies[loops.pop()] = (starts.pop(), position)
        elif node.op is Ops.IF:
            conditions.append(node.src[0])
        elif node.op is Ops.ENDIF:
            conditions.pop()
        elif node.op is Ops.BARRIER:
            found.barriers.append(position)
        elif node.op is Ops.SPECIAL:
            found.specials.append(node)
        elif node.op in _PARTIAL:
            found.partial.append((node, tuple(conditions)))
        elif node.op is not Ops.PREFETCH:
            found.asynchronous |= node.op in HARDWARE
            for address in node.src:
                if address.op is Ops.INDEX:
                    found.accesses.append(_access(node, address, position, loops, conditions))
    return found


def _access(node: UOp, address: UOp, position: int, loops: list[UOp], conditions: list[UOp]) -> Access:
    memory = memory_of(address)
    dtype = address.dtype
    assert isinstance(dtype, PtrDType)
    lanes = dtype.elem.lanes
    if node.op is Ops.LDMATRIX:
        lanes = max(1, _ROW // dtype.elem.scalar.itemsize)
    if isinstance(node.arg, TileProduct):
        lanes = node.arg.lengths()[node.src.index(address)]
    writes = node.op in (Ops.STORE, Ops.TILE_PRODUCT, *HARDWARE) and node.src[0] is address
    around = tuple(conditions)
    if node.op is Ops.ASYNC_COPY:
        target = node.src[0]
        if address is not target and len(target.src) > 2:
            around += (target.src[2],)  # the gate is for the copy as a whole
        box = node.src[1].arg
        if address is target and isinstance(box, Box):
            lanes = math.prod(box.part)
    return Access(node, address, memory, lanes, writes, position, tuple(loops), around)


@final
class Closer:
    """Lanes of nodes in terms of loops, hardware indices and variables."""

    def __init__(self) -> None:
        self.known: dict[Lane, UOp] = {}
        self.data: dict[UOp, UOp] = {}  # variables that stand for what is not followed: where they come from

    def lane(self, root: UOp, lane: int = 0) -> UOp:
        """The value of one lane, closed."""
        return compute((root, lane), self.known, self._sources, self._made)

    @staticmethod
    def _sources(node: UOp, lane: int) -> list[Lane] | None:
        return None if node.op is Ops.VREDUCE else sources_of(node, lane)  # no place is a sum of lanes

    def _made(self, node: UOp, lane: int, src: tuple[UOp, ...] | None) -> UOp:
        if src is None:
            return self._unknown(node)
        op, dtype = node.op, node.dtype.scalar
        if op is Ops.CONST:
            return node if node.dtype.lanes == 1 else const(dtype, node.arg)
        if op is Ops.VCONST:
            return const(dtype, node.arg[lane])
        if op is Ops.DEFINE_VAR:
            return node
        if op in (Ops.GEP, Ops.VECTORIZE, Ops.CAT):
            return src[0]
        return make(op, dtype, src, node.arg, node.origin)

    def _unknown(self, node: UOp) -> UOp:
        """Any value of its type, and of its interval."""
        name = f"{node.op.name.lower()}{len(self.data)}"
        if node.dtype.is_bool:
            flag = make(Ops.DEFINE_VAR, int32, (), (name, 0, 1))
            self.data[flag] = node
            return make(Ops.CMPNE, bool_, (flag, const(int32, 0)))
        low, high = bounds(node)
        found = make(Ops.DEFINE_VAR, node.dtype.scalar, (), (name, low, high))
        self.data[found] = node
        return found


def conjuncts(condition: UOp) -> list[UOp]:
    """The conditions that hold where this one does."""
    found, stack = [], [condition]
    while stack:
        node = stack.pop()
        if node.op is Ops.AND and node.dtype.is_bool:
            stack += node.src
        elif not (node.op is Ops.CONST and node.arg):
            found.append(node)
    return found
