"""Stage 22n, bounds checks: checks of positions become choices, and a branch that is hardly ever taken.

    p = CHECK(x, n, y)   →   ok = x < n without their signs; p = ok ? x : y; …; IF not ok: notes[slot] = x

A negative number without its sign is a large one, so one comparison is enough. All checks of a basic
block share one branch at its end, however many lanes they have: what is hot pays a comparison and an
AND for each position. Of several that are outside the first is noted.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

from morok.dtype import DType, bool_, int8, int16, int32, int64, uint8, uint16, uint32, uint64, void
from morok.ir.bounds import bounds
from morok.ir.build import cast, define_global
from morok.ir.checks import NOTE, Slot
from morok.ir.node import UOp, alu, const, make
from morok.ir.ops import Ops

_UNSIGNED: dict[DType, DType] = {int8: uint8, int16: uint16, int32: uint32, int64: uint64}
_OPENS = frozenset((Ops.RANGE, Ops.IF))
_CLOSES = frozenset((Ops.END, Ops.ENDIF))
_ENDS_BASIC_BLOCK = _OPENS | _CLOSES | {Ops.BARRIER, Ops.MBARRIER, Ops.ASYNC_WAIT}


def check_stage(root: UOp, ctx: Any) -> UOp:
    """LINEAR without CHECKs."""
    checks = [n for n in root.src if n.op is Ops.CHECK]
    if not checks:
        return root
    slots = [n.arg for n in checks if isinstance(n.arg, Slot)]
    whole = ctx is not None and not ctx.machine.has_grid
    writer = _Writer(slots[0] if slots else None, whole)
    for node in root.src:
        writer.instruction(node)
    writer.flush()
    return make(Ops.LINEAR, void, tuple(writer.out))


class _Writer:
    """A list that is written anew."""

    def __init__(self, slot: Slot | None, whole: bool) -> None:
        self.whole = whole  # vectors of conditions are asked at once
        self.out: list[UOp] = []
        self.done: dict[UOp, UOp] = {}
        self.visible: list[set[UOp]] = [set()]  # what has been written, per loop or branch that is open
        self.pending: dict[int, list[tuple[UOp, UOp]]] = {}  # by place: (positions, whether they are some)
        self.branches: list[UOp] = []
        self.memory = None if slot is None else define_global(int64, slot.size, slot.buffer)
        if self.memory is not None:
            self.put(self.memory)

    def put(self, node: UOp) -> UOp:
        """An instruction; nothing is computed again where it is known."""
        if node.op in (Ops.CONST, Ops.VCONST):
            return node
        if (node.op.is_alu or node.op is Ops.GEP) and any(node in seen for seen in self.visible):
            return node
        self.out.append(node)
        self.visible[-1].add(node)
        return node

    def alu(self, op: Any, *src: UOp) -> UOp:
        return self.put(alu(op, *src))

    def instruction(self, node: UOp) -> None:
        src = tuple([self.done.get(s, s) for s in node.src])
        if node.op is Ops.CHECK:
            self.done[node] = self.check(node, src)
            return
        if node.op in _ENDS_BASIC_BLOCK:
            self.flush()
        if node.op in _CLOSES:
            self.visible.pop()
        new = self.done[node] = node.replace(src)
        self.put(new)
        if node.op in _OPENS:
            self.visible.append(set())

    def check(self, node: UOp, src: tuple[UOp, ...]) -> UOp:
        """The value; what has to be noted waits for the end of the basic block."""
        x, limit, other = src
        ok = self.inside(x, limit)
        if isinstance(node.arg, Slot):
            found = self.pending.setdefault(node.arg.place, [])
            if self.whole:
                found.append((x, ok))
            else:
                found += [(self.lane(x, i), self.lane(ok, i)) for i in range(x.dtype.lanes)]
        return self.alu(Ops.WHERE, ok, x, other)

    def inside(self, x: UOp, limit: UOp) -> UOp:
        """0 ≤ x < limit."""
        plain = _UNSIGNED.get(x.dtype.scalar)
        if plain is None:
            return self.alu(Ops.CMPLT, x, limit)
        if bounds(limit)[0] >= 0:
            wide = plain.vec(x.dtype.lanes)
            return self.alu(Ops.CMPLT, *(self.put(_without_sign(s, wide)) for s in (x, limit)))
        negative = self.alu(Ops.CMPLT, x, const(x.dtype, 0))
        return self.alu(Ops.AND, self.alu(Ops.NOT, negative), self.alu(Ops.CMPLT, x, limit))

    def lane(self, x: UOp, i: int) -> UOp:
        return x if x.dtype.lanes == 1 else self.put(make(Ops.GEP, x.dtype.scalar, (x,), (i,)))

    def any_outside(self, ok: UOp) -> UOp:
        """Whether a condition does not hold in some lane."""
        outside = self.alu(Ops.NOT, ok)
        return outside if ok.dtype.lanes == 1 else self.put(make(Ops.VREDUCE, bool_, (outside,), Ops.OR))

    def flush(self) -> None:
        """One branch for all that was checked since the last one."""
        pending, self.pending = self.pending, {}
        if not pending or self.memory is None:
            return
        asked: dict[int, UOp] = {}  # by lanes
        for found in pending.values():
            for _, ok in found:
                before = asked.get(ok.dtype.lanes)
                asked[ok.dtype.lanes] = ok if before is None else self.alu(Ops.AND, before, ok)
        self.open(reduce(lambda a, b: self.alu(Ops.OR, a, b), map(self.any_outside, asked.values())))
        for place, vectors in pending.items():
            noted: UOp = const(int64, 0)
            found = [(self.lane(x, i), self.lane(ok, i)) for x, ok in vectors for i in range(x.dtype.lanes)]
            for x, ok in reversed(found):
                wide = x if x.dtype is int64 else self.put(cast(x, int64))
                noted = self.alu(Ops.WHERE, ok, noted, wide)
            if len(pending) > 1:
                self.open(self.alu(Ops.CMPNE, noted, const(int64, 0)))
            address = self.put(make(Ops.INDEX, self.memory.dtype, (self.memory, const(int64, place))))
            self.put(make(Ops.STORE, void, (address, noted), NOTE))
            if len(pending) > 1:
                self.close()
        self.close()

    def open(self, condition: UOp) -> None:
        self.branches.append(self.put(make(Ops.IF, void, (condition,))))
        self.visible.append(set())

    def close(self) -> None:
        self.visible.pop()
        self.put(make(Ops.ENDIF, void, (self.branches.pop(),)))


def _without_sign(x: UOp, dtype: DType) -> UOp:
    if x.op is Ops.CONST:
        return const(dtype, x.arg)
    if x.op is Ops.VCONST:
        return make(Ops.VCONST, dtype, (), x.arg)
    return make(Ops.BITCAST, dtype, (x,))
