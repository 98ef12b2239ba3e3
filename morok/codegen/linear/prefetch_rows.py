"""Software prefetch of rows at places that are read from memory: the next rows' places are known already.

    for r: i = index[r]; for c: … x[i·n + c] …
    →   for r: i = index[r]; j = index[min(r + ahead, last)]; for c: … x[i·n + c] …; hint x[j·n + c]

A processor asks by itself for what follows in order. Of rows that lie anywhere it asks for those whose
addresses it has computed, and while its instructions wait these are no more than one or two. So each line of
a row is asked for while the same line of a row before it is read.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from morok.codegen.linear.prefetch_blocks import LARGE
from morok.dtype import AddrSpace, PtrDType, void
from morok.ir.bounds import vmax
from morok.ir.infer import ranges
from morok.ir.node import UOp, alu, const, make, toposort
from morok.ir.ops import Ops
from morok.machine.machine import Machine
from morok.rewrite.engine import substitute


class _Read(NamedTuple):
    """A vector of a row: its LOAD, what its place is computed from, the loop from row to row, the loops
    inside of that, and where in the list they begin and it stands."""

    load: UOp
    indices: frozenset[UOp]
    rows: UOp
    inside: tuple[UOp, ...]
    front: int
    position: int

    @property
    def memory(self) -> UOp:
        return self.load.src[0].src[0]

    @property
    def nbytes(self) -> int:
        """Of a step from row to row."""
        return self.load.dtype.itemsize * math.prod(int(vmax(loop)) + 1 for loop in self.inside)


def prefetch_rows(root: UOp, machine: Machine) -> UOp:
    """LINEAR with hints for rows whose places come from memory."""
    groups: dict[tuple[UOp, UOp], list[_Read]] = {}
    for read in _reads(root):
        groups.setdefault((read.memory, read.rows), []).append(read)
    wanted: dict[int, list[UOp]] = {}  # what is written before an instruction
    for reads in groups.values():
        nbytes = sum(read.nbytes for read in reads)
        if nbytes <= machine.l1_bytes * len({read.indices for read in reads}):
            for read in _one_per_line(reads, machine.line_bytes):
                _put(wanted, read, max(1, machine.prefetch_bytes // nbytes))
    return _written(root, wanted) if wanted else root


def _reads(root: UOp) -> list[_Read]:
    """Vectors of far arrays at places that are read from memory, and differ from step to step of a loop."""
    found = []
    loops: list[tuple[UOp, int]] = []  # that are open, and where they begin
    branches = 0
    for position, node in enumerate(root.src):
        if node.op is Ops.RANGE:
            loops.append((node, position))
        elif node.op is Ops.END:
            loops = [pair for pair in loops if pair[0] is not node.src[1]]
        elif node.op in (Ops.IF, Ops.ENDIF):
            branches += 1 if node.op is Ops.IF else -1
        elif node.op is Ops.LOAD and node.dtype.lanes > 1 and not branches and _is_large(node.src[0]):
            indices = frozenset(n for n in toposort(node.src[0].src[1]) if n.op is Ops.LOAD)
            by = [n for n, (loop, _) in enumerate(loops) if any(loop in ranges(i) for i in indices)]
            if by and all(_is_global(i.src[0]) for i in indices):
                inside = loops[by[-1] + 1 :]
                front = inside[0][1] if inside else position
                rows = loops[by[-1]][0]
                found.append(_Read(node, indices, rows, tuple(r for r, _ in inside), front, position))
    return found


def _is_global(address: UOp) -> bool:
    dtype = address.dtype
    return address.op is Ops.INDEX and isinstance(dtype, PtrDType) and dtype.space is AddrSpace.GLOBAL


def _is_large(address: UOp) -> bool:
    if not _is_global(address) or address.src[0].op is not Ops.DEFINE_GLOBAL:
        return False
    dtype = address.dtype
    assert isinstance(dtype, PtrDType)
    return dtype.size * dtype.elem.scalar.itemsize >= LARGE


def _one_per_line(reads: list[_Read], line_bytes: int) -> list[_Read]:
    """The first of all reads of a line, as far as constants tell."""
    first: dict[tuple[UOp, int], _Read] = {}
    for read in reads:
        place, offset = read.load.src[0].src[1], 0
        if place.op is Ops.ADD and place.src[1].op is Ops.CONST:
            place, offset = place.src[0], int(place.src[1].arg)
        first.setdefault((place, offset * read.load.dtype.scalar.itemsize // line_bytes), read)
    return list(first.values())


def _put(wanted: dict[int, list[UOp]], read: _Read, ahead: int) -> None:
    """The hint for such a line some steps ahead, and what it needs: before the loops inside of a row's what
    is the same in all of their steps, beside the read the rest."""
    rows = read.rows
    size = rows.src[0]
    last = (
        const(rows.dtype, int(size.arg) - 1)
        if size.op is Ops.CONST
        else alu(Ops.SUB, size, const(size.dtype, 1))
    )
    later = alu(Ops.MIN, alu(Ops.ADD, rows, const(rows.dtype, ahead)), last)
    address = read.load.src[0]
    place = substitute(address.src[1], {rows: later})
    hint = make(Ops.PREFETCH, void, (make(Ops.INDEX, address.dtype, (address.src[0], place)),))
    inside = frozenset(read.inside)
    for n in toposort(hint):
        wanted.setdefault(read.position if not inside.isdisjoint(ranges(n)) else read.front, []).append(n)


def _written(root: UOp, wanted: dict[int, list[UOp]]) -> UOp:
    """The list with what is wanted in it, as far as it is not known there."""
    out: list[UOp] = []
    scopes: list[set[UOp]] = [set()]
    for position, node in enumerate(root.src):
        for n in (*wanted.get(position, ()), node):
            if n is not node and (n.op is Ops.CONST or any(n in scope for scope in scopes)):
                continue
            if n.op in (Ops.END, Ops.ENDIF):
                scopes.pop()
            scopes[-1].add(n)
            if n.op in (Ops.RANGE, Ops.IF):
                scopes.append({n})
            out.append(n)
    return make(Ops.LINEAR, void, tuple(out))
