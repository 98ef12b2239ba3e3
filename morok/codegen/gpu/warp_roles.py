"""Warp roles, part of stage 10: the loop over steps exists once per role, and the roles meet at mbarriers.

A kernel whose rings have roles becomes two or three effects, each inside of a RANGE of kind ROLE:

    producer:  for tile: for k:  wait until slot k mod n is empty; expect bytes; copy boxes into it
    consumer:  for tile: for k:  wait until slot k mod n is full; products; step k-1 has been read: empty
               wait until the result's place is empty; put the result there: full
    epilogue:  for tile:         wait until the result is full; read it, compute, store: empty

Blocks of a cluster share tiles: each copies its part of them for all, and so a slot is empty when the
consumers of all blocks have read it.

What step k of a tile uses is counted through all tiles of a block: slot and phase follow from the count. The
release of a slot is part of the sum's loop, which stage 11 makes; it finds the barrier's name in the wait.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from morok.codegen.gpu import slots
from morok.codegen.gpu.shared import one_loop, outermost, swizzled
from morok.codegen.scopes import merge_sibling_ends, next_number
from morok.codegen.vector.fragments import is_shared
from morok.codegen.vector.vectors import splat
from morok.dtype import PtrDType, index, uint64, void
from morok.errors import CompileError
from morok.ir.bounds import vmax
from morok.ir.build import after, define_local, special
from morok.ir.infer import closed_ranges, ranges
from morok.ir.matrix import Products, shared_layout
from morok.ir.node import UOp, alu, const, make, toposort
from morok.ir.ops import AxisKind, Op, Ops
from morok.ir.provenance import place
from morok.ir.warp_roles import MOST, WARP_GROUP, Box, MBarrierStep, Role, at_first
from morok.rewrite.engine import substitute
from morok.rewrite.loops import substitute_open
from morok.rewrite.observe import change
from morok.symbolic.im2col_boxes import walk_coordinates
from morok.symbolic.sets import simplify
from morok.symbolic.tma_boxes import coordinates

FEW = 40  # registers of a thread that only starts copies: with 24, those for other blocks too were in memory
BESIDE = 56  # registers of a thread that multiplies, beside its results
_BLOCK = (AxisKind.LOCAL, AxisKind.WARP, AxisKind.GROUP_REDUCE)
_GRID = (AxisKind.GLOBAL, AxisKind.CLUSTER)


def _on(op: Op, x: UOp, k: int) -> UOp:
    return alu(op, x, const(x.dtype, k))


def is_warp_specialized(root: UOp) -> bool:
    """Whether producer warps copy some of the kernel's tiles."""
    return any((found := shared_layout(n)) is not None and found.roles for n in toposort(root))


class MBarrier(NamedTuple):
    """Barriers of a ring in shared memory, one per slot."""

    memory: UOp
    ready: UOp  # when they have been set up

    def at(self, slot: UOp, *done: UOp, gate: UOp | None = None) -> UOp:
        """The address of one, once others have happened."""
        base = after(self.memory, self.ready, *done)
        return make(Ops.INDEX, self.memory.dtype, (base, slot) if gate is None else (base, slot, gate))

    def do(self, what: MBarrierStep, slot: UOp, *done: UOp) -> UOp:
        return make(Ops.MBARRIER, void, (self.at(slot, *done),), what)

    def wait(self, what: MBarrierStep, slot: UOp, parity: UOp, *done: UOp) -> UOp:
        return make(Ops.MBARRIER, void, (self.at(slot, *done), parity), what)


class Count(NamedTuple):
    """How often a slot has been used before: by step and tile."""

    number: UOp
    depth: int

    @property
    def slot(self) -> UOp:
        return simplify(_on(Ops.FLOORMOD, self.number, self.depth)) if self.depth > 1 else const(index, 0)

    def parity(self, before: bool = False) -> UOp:
        """Of the phase of this use, or of the one before."""
        tile_loop = _on(Ops.FLOORDIV, self.number, self.depth) if self.depth > 1 else self.number
        return simplify(_on(Ops.FLOORMOD, _on(Ops.ADD, tile_loop, 1) if before else tile_loop, 2))


def _serial(rings: Sequence[UOp]) -> UOp | None:
    """The loop over tiles that a block walks; None if it has one tile. An operand may be the same in all."""
    found = {r for buffer in rings for r in ranges(buffer) if r.arg[1] is AxisKind.LOOP}
    if len(found) > 1:
        raise CompileError("a block with roles walks its tiles in one loop", place=place(rings[0]))
    return found.pop() if found else None


def _threads(order: Sequence[UOp]) -> int:
    """How many threads these nodes need; loops that never meet use the same ones."""
    enemies = slots.rivals(order, _BLOCK)
    return slots.threads(slots.assign(sorted(enemies, key=lambda r: r.arg), enemies))


Beginnings = dict[str, list[list[UOp]]]  # by ring: where the boxes of its tiles begin


class Split:
    """One kernel on its way to roles."""

    def __init__(self, root: UOp, beginnings: Beginnings) -> None:
        self.root = root
        self.beginnings = beginnings
        self.effect = root.src[0]
        order = toposort(root)
        tiles = [n for n in order if is_shared(n)]
        self.rings = [n for n in tiles if any(r.arg[1] is AxisKind.REDUCE for r in ranges(n))]
        self.fixed = [n for n in tiles if n not in self.rings]  # the same in all steps
        self.is_chain = sum(n.op is Ops.WMMA for n in order) > 1
        self.names = {n.arg[1]: f".{i}" if self.is_chain else "" for i, n in enumerate(self.rings)}
        found = [
            n
            for n in order
            if (layout := shared_layout(n)) is not None and layout.depth == 0 and layout.roles
        ]
        self.result: UOp | None = found[0] if found else None
        self.depth: int = self.rings[0].arg[2].depth
        (self.step,) = {r for n in self.rings for r in ranges(n) if r.arg[1] is AxisKind.REDUCE}
        self.tile_loop = _serial(tiles)
        self.blocks = tuple(r for r in closed_ranges(self.effect) if r.arg[1] in _GRID)
        cluster = [r for r in self.blocks if r.arg[1] is AxisKind.CLUSTER]
        self.rank: UOp | None = cluster[0] if cluster else None  # of a block in its cluster
        self.beside = 1 if self.rank is None else int(self.rank.src[0].arg)
        self.number = next_number(root)
        self.consumers = _threads(order if self.result is None else toposort(self.result))
        outside = [n for n in toposort(root, stop=self._is_result) if not self._is_result(n)]
        self.writers = 0 if self.result is None else _threads(outside)
        total = self.consumers + self.writers + WARP_GROUP
        self.total = total
        kept = max(n.dtype.lanes for n in order if n.op is Ops.REDUCE)
        consumer, epilogue = self._registers(kept)
        self.producer = self._role(
            "producer", total - WARP_GROUP, WARP_GROUP, FEW if consumer else 0, single=True
        )
        self.consumer = self._role("consumer", 0, self.consumers, consumer)
        self.epilogue = self._role("epilogue", self.consumers, self.writers, epilogue)
        self._set_up()

    def _registers(self, kept: int) -> tuple[int, int]:
        """Of a thread that multiplies and of one that writes; 0 where everybody can have as many."""
        given = at_first(self.total)
        if given == MOST:
            return 0, 0
        left = given * self.total - FEW * WARP_GROUP  # whoever asks for more than there is waits for ever
        if not self.writers:
            return min(MOST, left // self.consumers // 8 * 8), 0
        most = (left - FEW * self.writers) // self.consumers // 8 * 8
        consumer = min(MOST, most, -(-(kept + BESIDE) // 8) * 8)
        return consumer, min(MOST, (left - consumer * self.consumers) // self.writers // 8 * 8)

    def _is_result(self, node: UOp) -> bool:
        return node is self.result

    def _role(self, name: str, first: int, threads: int, registers: int, single: bool = False) -> UOp:
        self.number += 1
        role = Role(name, first, threads, registers, single)
        return make(Ops.RANGE, index, (const(index, 1),), (self.number - 1, AxisKind.ROLE, role))

    def _fresh(self, r: UOp | None) -> dict[UOp, UOp]:
        """Another loop like this one."""
        if r is None:
            return {}
        self.number += 1
        return {r: make(Ops.RANGE, r.dtype, r.src, (self.number - 1, *r.arg[1:]), r.origin)}

    def _set_up(self) -> None:
        """All barriers, and the first instructions of the kernel, which make them ready."""
        groups = self.consumers // WARP_GROUP
        wanted = []
        for name in self.names.values():  # tiles of a chain come and go by themselves, others together
            wanted += [(f"full{name}", self.depth, 1), (f"empty{name}", self.depth, groups * self.beside)]
        wanted = list(dict.fromkeys(wanted))
        if self.fixed:
            wanted.append(("fixed", 1, 1))
        if self.result is not None:
            wanted += [("result.full", 1, self.consumers), ("result.empty", 1, self.writers)]
        first = alu(Ops.CMPEQ, special("lidx0", self.total), const(index, 0))
        inits = []
        memories = {}
        for name, length, count in wanted:
            memory = memories[name] = define_local(uint64, length, name)
            inits += [
                make(
                    Ops.MBARRIER,
                    void,
                    (make(Ops.INDEX, memory.dtype, (memory, const(index, i), first)),),
                    MBarrierStep("init", count),
                )
                for i in range(length)
            ]
        fence = make(Ops.FENCE, void, tuple(inits), Products(0))
        # nobody tells a barrier of another block anything before it is there
        ready = make(Ops.BARRIER, void, (fence,), self.beside if self.beside > 1 else None)
        self.barriers = {name: MBarrier(memory, ready) for name, memory in memories.items()}

    def count(self, step: UOp, tile_loop: UOp | None) -> Count:
        number = (
            step
            if tile_loop is None
            else alu(Ops.ADD, _on(Ops.MUL, tile_loop, int(self.step.src[0].arg)), step)
        )
        return Count(number, self.depth)

    # --- the roles

    def produced(self) -> UOp:
        """The producer: the effect that copies the tiles of all steps."""
        mapping = {**self._fresh(self.tile_loop), **self._fresh(self.step)}
        tile_loop = mapping[self.tile_loop] if self.tile_loop is not None else None
        count = self.count(mapping[self.step], tile_loop)
        copies = self.brought_once(mapping)
        for name in dict.fromkeys(self.names.values()):
            rings = [n for n in self.rings if self.names[n.arg[1]] == name]
            full, empty = self.barriers[f"full{name}"], self.barriers[f"empty{name}"]
            # every step of every tile waits for itself, also where slot and parity are the same for all tiles
            how, parity = MBarrierStep("wait"), count.parity(before=True)
            free = empty.wait(how, count.slot, parity, self.producer, *mapping.values(), *copies)
            told = full.do(MBarrierStep("expect", _bytes(rings)), count.slot, free)
            copies = []
            for n in rings:
                begin = self.beginnings[n.arg[1]]
                copies += _copies(n, begin, mapping, count.slot, told, full.at(count.slot, told), self.rank)
        loops = [mapping[self.step], *([] if tile_loop is None else [tile_loop])]
        body = make(Ops.GROUP, void, tuple(copies))
        return make(Ops.END, void, (body, *loops, *self.blocks, self.producer))

    def brought_once(self, mapping: dict[UOp, UOp]) -> list[UOp]:
        """The copies of tiles that are the same in all steps, before those of rings."""
        if not self.fixed:
            return []
        once, zero = self.barriers["fixed"], const(index, 0)
        told = once.do(MBarrierStep("expect", _bytes(self.fixed)), zero, self.producer)
        copies: list[UOp] = []
        for n in self.fixed:
            copies += _copies(n, self.beginnings[n.arg[1]], mapping, zero, told, once.at(zero, told), None)
        return copies

    def consumed(self, effect: UOp, tile_loop: UOp | None) -> UOp:
        """An effect whose reads of ring tiles wait for them; all of it belongs to the consumers."""
        mapping: dict[UOp, UOp] = {}
        rings = {n for n in toposort(effect) if is_shared(n)}
        count = self.count(self.step, tile_loop)
        pending = 1 if self.depth > 1 and not self.is_chain else 0
        steps = (self.step,) if tile_loop is None else (self.step, tile_loop)
        ready = {
            buffer: self.barriers[f"full{name}"].wait(
                MBarrierStep("wait", pending, f"empty{name}", self.beside),
                count.slot,
                count.parity(),
                self.consumer,
                *steps,
            )
            for buffer, name in self.names.items()
        }
        zero = const(index, 0)
        if self.fixed:
            once = self.barriers["fixed"].wait(MBarrierStep("wait"), zero, zero, self.consumer)
        for n in toposort(effect):
            if n.op is Ops.INDEX and n.src[0] in rings:
                buffer = n.src[0]
                memory = _memory(buffer)
                here, slot = (ready[buffer.arg[1]], count.slot) if buffer.arg[1] in ready else (once, zero)
                where = _place(buffer, n.src[1], slot)
                mapping[n] = make(
                    Ops.INDEX, n.dtype, (after(memory, here), where, *n.src[2:]), n.arg, n.origin
                )
        return substitute(effect, mapping)

    def collected(self) -> tuple[UOp, UOp]:
        """The effect that computes the result and keeps it, and the one that writes it."""
        result = self.result
        assert result is not None
        own = self._fresh(self.tile_loop)
        tile_loop = own[self.tile_loop] if self.tile_loop is not None else None
        zero = const(index, 0)
        memory, place_ = _memory(result), _result_place(result)
        full, empty = self.barriers["result.full"], self.barriers["result.empty"]
        uses = Count(zero if tile_loop is None else tile_loop, 1)
        value = substitute_open(result.src[0], own)
        free = empty.wait(
            MBarrierStep("wait"), zero, uses.parity(before=True), self.consumer, *own.values(), value
        )
        pointer = make(Ops.INDEX, memory.dtype.vec(value.dtype.lanes), (after(memory, free), place_))
        store = make(Ops.STORE, void, (pointer, value))
        loops = tuple(
            r
            for d in result.src[1:]
            for r in ([d] if d.op is Ops.RANGE else sorted(ranges(d), key=lambda r: r.arg))
        )
        filled = make(Ops.END, void, (store, *loops)) if loops else store
        kept = full.do(MBarrierStep("arrive"), zero, filled)
        outer = (*(() if tile_loop is None else (tile_loop,)), *self.blocks)
        consumer = self.consumed(make(Ops.END, void, (kept, *outer, self.consumer)), tile_loop)

        uses = Count(zero if self.tile_loop is None else self.tile_loop, 1)
        here = () if self.tile_loop is None else (self.tile_loop,)
        ready = full.wait(MBarrierStep("wait"), zero, uses.parity(), self.epilogue, *here)
        mapping = {
            n: make(
                Ops.INDEX,
                n.dtype,
                (after(memory, ready), _swizzled(result, n.src[1]), *n.src[2:]),
                n.arg,
                n.origin,
            )
            for n in toposort(self.effect)
            if n.op is Ops.INDEX and n.src[0] is result
        }
        written = substitute(self.effect, mapping)
        around = {self.tile_loop, *self.blocks}
        inner = tuple(r for r in closed_ranges(written) if r not in around)
        body = make(Ops.END, void, (written.src[0], *inner)) if inner else written.src[0]
        read = empty.do(MBarrierStep("arrive"), zero, body)
        outer = (*(() if self.tile_loop is None else (self.tile_loop,)), *self.blocks)
        return consumer, make(Ops.END, void, (read, *outer, self.epilogue))

    def kernel(self) -> UOp:
        effects: tuple[UOp, ...]
        if self.result is not None:
            effects = self.collected()
        else:
            closed = [
                make(Ops.END, void, (effect.src[0], *closed_ranges(effect), self.consumer))
                for effect in self.root.src
            ]
            whole = self.consumed(make(Ops.GROUP, void, tuple(closed)), self.tile_loop)
            effects = whole.src
        return self.root.replace((*effects, self.produced()))


def _bytes(buffers: Sequence[UOp]) -> int:
    return sum(_points(n) * n.src[0].dtype.itemsize for n in buffers)


def _points(buffer: UOp) -> int:
    return math.prod(int(d.src[0].arg) for d in buffer.src[1:])


def _memory(buffer: UOp) -> UOp:
    depth = max(1, buffer.arg[2].depth)
    points = math.prod(int(vmax(d)) + 1 for d in buffer.src[1:])
    return define_local(buffer.src[0].dtype.scalar, points * depth, buffer.arg[1])


def _place(buffer: UOp, flat: UOp, slot: UOp) -> UOp:
    """The place of a tile's point in the ring's memory."""
    row, points = int(buffer.src[-1].src[0].arg), _points(buffer)
    inner = simplify(swizzled(flat, row, buffer.src[0].dtype.itemsize, points))
    start = _on(Ops.MUL, slot, points)
    if inner.dtype.lanes > 1:
        start = splat(start, inner.dtype.lanes)
    return simplify(alu(Ops.ADD, inner, start))


def _swizzled(result: UOp, flat: UOp) -> UOp:
    points = math.prod(int(vmax(d)) + 1 for d in result.src[1:])
    return simplify(swizzled(flat, result.arg[2].row, result.src[0].dtype.scalar.itemsize, points))


def _result_place(result: UOp) -> UOp:
    """Where the lanes of a result go."""
    lanes = result.src[0].dtype.lanes
    where = const(index.vec(lanes) if lanes > 1 else index, 0)
    for d in result.src[1:]:
        wide = d if d.dtype.lanes == lanes else splat(d, lanes)
        where = alu(Ops.ADD, alu(Ops.MUL, where, const(wide.dtype, int(vmax(d)) + 1)), wide)
    return _swizzled(result, where)


def _beginning(buffer: UOp) -> list[list[UOp]]:
    """Where the boxes of a tile begin, one for each panel of its rows."""
    read, dims, box = buffer.src[0], buffer.src[1:], buffer.arg[2].box
    panels = _points(buffer) // (box.part[0] * box.part[1])
    return (coordinates if box.walk is None else walk_coordinates)(read, dims, panels, box)


def _parts(buffer: UOp, begin: list[list[UOp]], rank: UOp | None) -> tuple[Box, list[tuple[UOp, list[UOp]]]]:
    """The boxes that one block copies of a tile: what one of them is, and of each where it goes and begins.

    The blocks of a cluster have as many panels of the tile each, or else as many rows of every panel.
    """
    box: Box = buffer.arg[2].box
    blocks: int = buffer.arg[2].blocks
    panel = box.part[0] * box.part[1]
    if rank is None:
        return box, [(const(index, number * panel), at) for number, at in enumerate(begin)]
    few, rest = divmod(len(begin), blocks)
    if not rest:
        found = []
        for number in range(few):
            moved = zip(begin[number], begin[number + few], strict=True)
            at = [alu(Ops.ADD, c, alu(Ops.MUL, rank, alu(Ops.SUB, other, c))) for c, other in moved]
            found.append((alu(Ops.ADD, const(index, number * panel), _on(Ops.MUL, rank, few * panel)), at))
        return replace(box, blocks=blocks), found
    rows = box.part[1] // blocks
    found = []
    for number, (column, row, *outer) in enumerate(begin):
        to = alu(Ops.ADD, const(index, number * panel), _on(Ops.MUL, rank, panel // blocks))
        found.append((to, [column, alu(Ops.ADD, row, _on(Ops.MUL, rank, rows)), *outer]))
    return replace(box, part=(box.part[0], rows, *box.part[2:]), blocks=blocks), found


def _copies(
    buffer: UOp,
    begin: list[list[UOp]],
    mapping: dict[UOp, UOp],
    slot: UOp,
    told: UOp,
    barrier: UOp,
    rank: UOp | None,
) -> Sequence[UOp]:
    """The TMA copies that bring one tile: a box per panel of its rows, and a block's part of them in a
    cluster."""
    read = buffer.src[0]
    source = read.src[0]
    box, parts = _parts(buffer, begin, rank if buffer.arg[2].blocks > 1 else None)
    described = make(Ops.DEFINE_TENSOR_MAP, source.dtype, (source,), box)
    memory = _memory(buffer)
    assert isinstance(memory.dtype, PtrDType)
    nbytes = box.part[0] * box.part[1] * read.dtype.itemsize
    out = []
    for to, at in parts:
        place_ = simplify(alu(Ops.ADD, _on(Ops.MUL, slot, _points(buffer)), to))
        target = make(Ops.INDEX, memory.dtype, (after(memory, told), place_))
        where = [simplify(substitute(c, mapping)) for c in at]
        out.append(make(Ops.ASYNC_COPY, void, (target, described, barrier, *where), nbytes, read.origin))
    return out


@change
def lower_warp_roles(root: UOp) -> UOp:
    """A kernel with roles → one effect per role."""
    root = outermost(root)
    begin = {n.arg[1]: _beginning(n) for n in toposort(root) if is_shared(n)}
    root, digits = one_loop(root)  # places are sums as long as each loop is one of its own
    begin = {name: [[substitute(c, digits) for c in at] for at in found] for name, found in begin.items()}
    return Split(merge_sibling_ends(root), begin).kernel()
