"""Shared tiles, part of stage 10: local buffers that the threads of a block fill together, or in a ring.

The points of a tile are dealt out in chunks of 16 bytes, neighbouring chunks to neighbouring threads. A
chunk that is a plain read goes straight from global to shared memory (ASYNC_COPY); anything else is
computed and stored. Chunks of a row are swizzled (XOR with the row's number), so that eight rows of one
column lie in different banks.

Depth 1:    BARRIER; fill; wait; BARRIER; read
Depth n:    before the loop:  fill tiles 0 … n-2
            in step k:        wait for tile k; BARRIER; start filling tile k+n-1; read tile k

All tiles of one loop and depth wait together. In step k, tile k+n-1 lies where tile k-1 was: the barrier
says that everybody has read it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from typing import Any, NamedTuple

from morok.codegen.vector.expand import expand_rules
from morok.codegen.vector.fragments import is_shared
from morok.codegen.vector.vectors import splat
from morok.dtype import DType, PtrDType, index, void
from morok.ir.bounds import vmax
from morok.ir.build import after, define_local, rng
from morok.ir.checks import guarded
from morok.ir.infer import closed_ranges, ranges
from morok.ir.matrix import Panels, Products
from morok.ir.node import UOp, alu, const, make, toposort
from morok.ir.ops import AxisKind, Op, Ops
from morok.machine.machine import Machine
from morok.rewrite.engine import rewrite, substitute
from morok.rewrite.observe import change
from morok.schedule.kernel.ranges import replace_loops
from morok.symbolic.quotients import split_sum
from morok.symbolic.sets import simplify
from morok.symbolic.validity import conjuncts

CHUNK = 16  # bytes
LINE = 128  # bytes that all banks give at once
_BLOCK = (AxisKind.LOCAL, AxisKind.WARP, AxisKind.GROUP_REDUCE)
_SERIAL = (AxisKind.LOOP, AxisKind.REDUCE)
_COPIES = (4, 8, 16)  # bytes that a hardware copy moves
_SECTOR, _BESIDE = (
    8,
    4,
)  # elements that neighbouring threads bring into a turned tile: along memory, along rows


# --- index arithmetic on scalars and vectors


def _on(op: Op, x: UOp, k: int) -> UOp:
    return alu(op, x, const(x.dtype, k))


def _add(x: UOp, y: UOp) -> UOp:
    wide = max(x.dtype.lanes, y.dtype.lanes)
    return alu(Ops.ADD, *(s if s.dtype.lanes == wide else splat(s, wide) for s in (x, y)))


def swizzled(place: UOp, row: int, itemsize: int, points: int) -> UOp:
    """A place in a tile of rows of so many elements, chunks swizzled by the row's number.

    Rows longer than all banks together lie in panels: first the beginnings of all rows, then what follows.
    """
    panel = LINE // itemsize
    if row > panel and row % panel == 0:
        number, column = _on(Ops.FLOORDIV, place, row), _on(Ops.FLOORMOD, place, row)
        start = _on(Ops.MUL, _on(Ops.FLOORDIV, column, panel), points // row * panel)
        inside = _add(_on(Ops.MUL, number, panel), _on(Ops.FLOORMOD, column, panel))
        return _add(start, swizzled(inside, panel, itemsize, points))
    chunk = CHUNK // itemsize
    turns = min(LINE // CHUNK, row * itemsize // CHUNK)
    if turns < 2 or row & (row - 1):
        return place
    line = max(row, LINE // itemsize)
    mine = _on(Ops.FLOORMOD, _on(Ops.FLOORDIV, place, chunk), turns)
    other = _on(Ops.FLOORMOD, _on(Ops.FLOORDIV, place, line), turns)
    start = _on(Ops.MUL, _on(Ops.FLOORDIV, place, turns * chunk), turns * chunk)
    exchanged = _on(Ops.MUL, alu(Ops.XOR, mine, other), chunk)
    return _add(_add(start, exchanged), _on(Ops.FLOORMOD, place, chunk))


# --- the threads of the block


class Threads(NamedTuple):
    """All threads of a block: how many, and the number of this one."""

    total: int
    number: UOp


def threads_of(buffer: UOp, order: Sequence[UOp]) -> Threads:
    """The threads that share a tile, numbered as the hardware does: lanes of a warp are neighbours."""
    # what closes the threads that read it: the loops over outputs, or a tile that is collected
    closers = (n for n in order if n.op in (Ops.END, Ops.BUFFERIZE) and buffer in toposort(n.src[0]))
    closer = next((n for n in closers if n is not buffer), None)
    sources = () if closer is None else (closer, *closer.src)
    found = {r for n in sources for r in ranges(n) if r.arg[1] in _BLOCK}
    if closer is not None:  # and those of a reduction that they share, which are closed inside
        inside = {r for n in _above(buffer, closer) for r in (*ranges(n), *closed_ranges(n))}
        found |= {r for r in inside if r.op is Ops.RANGE and r.arg[1] in _BLOCK}
    number: UOp = const(index, 0)
    count = 1
    for r in sorted(found, key=lambda r: (r.arg[1] is AxisKind.WARP, r.arg)):
        size = int(vmax(r)) + 1
        number = _add(_on(Ops.MUL, number, size), r)
        count *= size
    return Threads(count, simplify(number))


def _above(buffer: UOp, closer: UOp) -> list[UOp]:
    """What is computed from a tile, below a node."""
    found = {buffer}
    above = []
    for n in toposort(closer.src[0]):
        if not found.isdisjoint(n.src):
            found.add(n)
            above.append(n)
    return above


# --- runs of elements


def _factor_and_remainder(x: UOp, r: UOp, size: int) -> tuple[int, int] | None:
    """x as size·(something) + factor·r + rest: factor and rest; None where it has no such form."""
    terms, rest = split_sum(simplify(x))
    factor = 0
    for term, k in terms:
        if term is r:
            factor += k
        elif r in ranges(term) or k % size:
            return None
    return factor, rest % size


def _alike(gate: UOp, r: UOp, size: int) -> bool:
    """Whether a condition is the same for all of `size` values of r, from a multiple on."""
    for c in conjuncts(gate):
        if r not in ranges(c):
            continue
        if c.op is not Ops.CMPLT or not c.src[0].dtype.is_index:
            return False
        # x < 0 for x = size·X + r + rest, or x = size·X - r + rest
        if _factor_and_remainder(alu(Ops.SUB, *c.src), r, size) not in ((1, 0), (-1, size - 1)):
            return False
    return True


# --- one tile


class Digit(NamedTuple):
    """Some bits of a coordinate, as a part of a point's number."""

    dim: UOp
    weight: int
    size: int


class Tile:
    """A shared buffer: its memory, and how it is filled."""

    def __init__(self, buffer: UOp, threads: Threads) -> None:
        self.buffer = buffer
        self.value = buffer.src[0]
        self.dims = buffer.src[1:]
        self.sizes = [int(d.src[0].arg) for d in self.dims]
        self.points = math.prod(self.sizes)
        self.around = sorted((r for r in ranges(buffer) if r.arg[1] in _SERIAL), key=lambda r: r.arg)
        # where a mask leaves one step, nothing is filled ahead
        self.depth: int = buffer.arg[2].depth if self.around else 1
        self.dtype: DType = self.value.dtype
        self.threads = threads
        self.memory = define_local(self.dtype, self.points * self.depth, buffer.arg[1])
        self.chunk, self.copied = self._chunk()
        self.by_units = False  # whether units read it by themselves
        self.dealt = self._dealt()

    def _chunk(self) -> tuple[int, bool]:
        """Elements that a thread handles at once, and whether the hardware can copy them."""
        last = self.dims[-1]
        size = CHUNK // self.dtype.itemsize
        while size > 1 and (self.sizes[-1] % size or not self._in_a_row(last, size)):
            size //= 2
        read = self.value.op is Ops.INDEX and self.value.src[0].op is Ops.DEFINE_GLOBAL
        return size, read and size * self.dtype.itemsize in _COPIES

    def _dealt(self) -> list[Digit]:
        """The digits of a point's number, lowest first: neighbouring threads handle neighbours in memory.

        Single elements of a tile that lies turned: eight along the dimension that is contiguous in memory,
        which are a whole sector, and four along the tile's rows. These are 32 different banks.
        """
        dims = list(self.dims)
        plain = [Digit(d, 1, size) for d, size in zip(reversed(dims), reversed(self.sizes), strict=True)]
        reads = [n for n in toposort(self.value) if n.op is Ops.INDEX] if self.chunk == 1 else []
        along = [
            d for d in reversed(dims) if all(_factor_and_remainder(n.src[1], d, 1) == (1, 0) for n in reads)
        ]
        if not reads or not along or along[0] is dims[-1]:
            return plain
        mine = next(d for d in plain if d.dim is along[0])
        if mine.size % _SECTOR or plain[0].size % _BESIDE:
            return [mine, *(d for d in plain if d is not mine)]
        inner = [Digit(mine.dim, 1, _SECTOR), Digit(plain[0].dim, 1, _BESIDE)]
        outer = [Digit(d.dim, i.size, d.size // i.size) for d, i in zip((mine, plain[0]), inner, strict=True)]
        return [*inner, *outer, *(d for d in plain[1:] if d is not mine)]

    def _in_a_row(self, last: UOp, size: int) -> bool:
        """Whether all reads of the value have `size` neighbours side by side, from a multiple on."""
        reads = [n for n in toposort(self.value) if n.op is Ops.INDEX and last in ranges(n)]
        return all(
            _factor_and_remainder(read.src[1], last, size) == (1, 0)
            and all(_alike(g, last, size) for g in read.src[2:])
            for read in reads
        )

    def where(self, place: UOp, slot: UOp | int) -> UOp:
        """The place in memory of a point, in one of the ring's tiles."""
        inner = simplify(swizzled(place, self.sizes[-1], self.dtype.itemsize, self.points))
        start = const(index, slot * self.points) if isinstance(slot, int) else _on(Ops.MUL, slot, self.points)
        return simplify(_add(inner, start))

    def fill(self, base: UOp, step: dict[UOp, UOp], slot: UOp | int, gate: UOp | None) -> list[UOp]:
        """The effects that fill one tile of the ring."""
        chunks = self.points // self.chunk
        out = []
        for turn in range(-(-chunks // self.threads.total)):
            mine = simplify(_on(Ops.ADD, self.threads.number, turn * self.threads.total))
            guard = gate
            if (turn + 1) * self.threads.total > chunks:
                inside = alu(Ops.CMPLT, mine, const(index, chunks))
                guard = inside if gate is None else alu(Ops.AND, gate, inside)
            first = _on(Ops.MUL, mine, self.chunk)
            out.append((self._copy if self.copied else self._store)(base, first, step, slot, guard))
        return out

    def _at(self, flat: UOp) -> dict[UOp, UOp]:
        """The coordinates of a point by its number."""
        out: dict[UOp, UOp] = {}
        below = 1
        for d in self.dealt:
            digit = _on(Ops.FLOORDIV, flat, below) if below > 1 else flat
            digit = digit if d is self.dealt[-1] else _on(Ops.FLOORMOD, digit, d.size)
            part = _on(Ops.MUL, digit, d.weight)
            out[d.dim] = simplify(_add(out[d.dim], part) if d.dim in out else part)
            below *= d.size
        return out

    def _place(self, flat: UOp) -> UOp:
        """Where a point lies in the tile, by its number."""
        if [d.dim for d in self.dealt] == list(reversed(self.dims)):
            return flat
        found = self._at(flat)
        total: UOp = const(index, 0)
        for d, size in zip(self.dims, self.sizes, strict=True):
            total = _add(_on(Ops.MUL, total, size), found[d])
        return simplify(total)

    def _copy(self, base: UOp, first: UOp, step: dict[UOp, UOp], slot: UOp | int, guard: UOp | None) -> UOp:
        """A chunk by the hardware: zeros where the read's own gate is false, nothing where the guard is."""
        read = substitute(self.value, {**self._at(first), **step})
        source = read.src[0]
        assert isinstance(source.dtype, PtrDType) and isinstance(self.memory.dtype, PtrDType)
        elem = self.dtype.vec(self.chunk)
        where = read.src[1:] if guard is None else [_guarded(part, guard) for part in read.src[1:]]
        parts = [simplify(where[0]), *_unless_true(where[1:])]
        origin = make(Ops.INDEX, elem.ptr(source.dtype.size, source.dtype.space), (source, *parts))
        size, space = self.memory.dtype.size, self.memory.dtype.space
        to = [self.where(self._place(first), slot), *_unless_true(() if guard is None else (guard,))]
        target = make(Ops.INDEX, elem.ptr(size, space), (base, *to))
        return make(Ops.ASYNC_COPY, void, (target, origin), self.chunk * self.dtype.itemsize)

    def _store(self, base: UOp, first: UOp, step: dict[UOp, UOp], slot: UOp | int, guard: UOp | None) -> UOp:
        """A chunk that is computed and stored."""
        lanes = rng(self.chunk, 1 << 20, AxisKind.UPCAST)
        flat = _add(first, lanes) if self.chunk > 1 else first
        value = substitute(self.value, {**self._at(flat), **step})
        if guard is not None:
            value = _guarded(value, guard)
        place = [self.where(self._place(flat), slot)]
        place += [] if guard is None else [simplify(guard)]
        store = make(Ops.STORE, void, (make(Ops.INDEX, self.memory.dtype, (base, *place)), simplify(value)))
        if self.chunk == 1:
            return store
        wide = rewrite(store, expand_rules)
        return wide.src[0] if wide.op is Ops.UNROLL else wide


def _unless_true(gates: Sequence[UOp]) -> list[UOp]:
    """Conditions, simplified; those that always hold are none."""
    found = [simplify(g) for g in gates]
    return [g for g in found if not (g.op is Ops.CONST and g.arg)]


def _guarded(value: UOp, guard: UOp) -> UOp:
    """The value with a further condition on what it reads and asks: there is nothing beyond the tile's end.

    Reads that others need for their places are among them, so the graph is made anew from its leaves. A
    read asks only what its own loops have to do with: what does not change in a loop stays outside of it.
    """
    parts = [(c, ranges(c)) for c in conjuncts(guard)]
    done: dict[UOp, UOp] = {}
    for node in toposort(value):
        src = tuple([done[s] for s in node.src])
        asked = node.op in (Ops.INDEX, Ops.CHECK)
        gates = [c for c, loops in parts if not loops.isdisjoint(ranges(node))] if asked else []
        if not gates:
            done[node] = node.replace(src)
        elif node.op is Ops.CHECK:
            done[node] = guarded(node, reduce(_and, gates), src)
        else:
            gate = reduce(_and, [*gates, *src[2:]])
            done[node] = make(Ops.INDEX, node.dtype, (*src[:2], gate), node.arg, node.origin)
    return done[value]


def _and(x: UOp, y: UOp) -> UOp:
    return alu(Ops.AND, x, y)


# --- tiles that wait together


def _copies(effects: Sequence[UOp]) -> bool:
    return any(e.op is Ops.ASYNC_COPY for e in effects)


def fill_once(tiles: list[Tile]) -> UOp:
    """Tiles that are filled and then read: what readers wait for."""
    around = sorted({r for t in tiles for r in t.around}, key=lambda r: r.arg)
    before = make(Ops.BARRIER, void, tuple(around)) if around else None
    bases = [t.memory if before is None else after(t.memory, before) for t in tiles]
    effects = [e for t, base in zip(tiles, bases, strict=True) for e in t.fill(base, {}, 0, None)]
    if _copies(effects):
        commit = make(Ops.ASYNC_COMMIT, void, tuple(effects))
        effects = [make(Ops.ASYNC_WAIT, void, (commit,), 0)]
    if any(t.by_units for t in tiles):
        effects = [make(Ops.FENCE, void, tuple(effects), Products(0))]
    return make(Ops.BARRIER, void, tuple(effects))


def fill_ring(tiles: list[Tile], loop: UOp, outside: frozenset[UOp]) -> UOp:
    """Tiles that are filled ahead (double buffering): what the readers of this step wait for.

    Whatever repeats the loop begins the ring anew: `outside` are those loops. Units that read tiles by
    themselves may still be at the tile of the last step; then tiles are filled one step less ahead.
    """
    depth = tiles[0].depth
    by_units = any(t.by_units for t in tiles)
    lag = 1 if by_units and depth > 2 else 0
    distance = depth - 1 - lag
    end = loop.src[0]
    count = int(vmax(end))
    outer = sorted(outside | {r for t in tiles for r in t.around if r is not loop}, key=lambda r: r.arg)
    last: UOp | None = make(Ops.BARRIER, void, tuple(outer)) if outer else None
    copies = any(t.copied for t in tiles)
    for s in range(distance):
        step = {loop: const(index, s)}
        effects = []
        for t in tiles:
            base = t.memory if last is None else after(t.memory, last)
            known = None if end.op is Ops.CONST else alu(Ops.CMPLT, const(index, s), end)
            effects += t.fill(base, step, s, known) if s < count else []
        if copies or effects:
            group = (*effects, last) if last is not None else tuple(effects)
            last = make(Ops.ASYNC_COMMIT if copies else Ops.GROUP, void, group)
    ready = (loop,) if last is None else (last, loop)
    if copies:
        ready = (make(Ops.ASYNC_WAIT, void, ready, distance - 1),)
    if by_units:
        ready = (make(Ops.FENCE, void, ready, Products(lag)),)
    barrier = make(Ops.BARRIER, void, ready)
    ahead = _on(Ops.ADD, loop, distance)
    slot = _on(Ops.FLOORMOD, ahead, depth)
    gate = alu(Ops.CMPLT, ahead, end)
    effects = [e for t in tiles for e in t.fill(after(t.memory, barrier), {loop: ahead}, slot, gate)]
    return make(Ops.ASYNC_COMMIT if copies else Ops.GROUP, void, (*effects, barrier))


def _repeating(loop: UOp, order: Sequence[UOp]) -> frozenset[UOp]:
    """The loops around a loop of a reduction."""
    sums = (n for n in order if n.op is Ops.REDUCE and loop in n.src)
    return frozenset(r for n in sums for r in ranges(n) if r.arg[1] in _SERIAL)


def one_loop(root: UOp) -> tuple[UOp, dict[UOp, UOp]]:
    """The loops around a ring, if there are several, become one: its tiles are numbered by it.

    Beside the kernel: what the loops that were there are in terms of it.
    """
    digits: dict[UOp, UOp] = {}
    while True:
        for node in toposort(root):
            if not is_shared(node) or node.arg[2].depth < 2:
                continue
            around = sorted((r for r in ranges(node) if r.arg[1] is AxisKind.REDUCE), key=lambda r: r.arg)
            if len(around) > 1:
                break
        else:
            return root, digits
        first, *others = sorted(around, key=lambda r: r.src[0].op is Ops.CONST)
        inside = math.prod(int(r.src[0].arg) for r in others)
        end = simplify(_on(Ops.MUL, first.src[0], inside))  # of the first the size may be unknown
        joint = rng(end, int(around[0].arg[0]), AxisKind.REDUCE)
        mapping: dict[UOp, tuple[UOp, tuple[UOp, ...]]] = {
            first: (_on(Ops.FLOORDIV, joint, inside), (joint,))
        }
        below = 1
        for r in reversed(others):
            size = int(r.src[0].arg)
            digit = _on(Ops.FLOORDIV, joint, below) if below > 1 else joint
            mapping[r] = (_on(Ops.FLOORMOD, digit, size), (joint,))
            below *= size
        root = replace_loops(root, mapping)
        new = {r: digit for r, (digit, _) in mapping.items()}
        digits = {**{r: substitute(digit, new) for r, digit in digits.items()}, **new}


def outermost(root: UOp) -> UOp:
    """Loops around tiles lie outside of the other loops of their reduction, which read the tiles."""
    order = toposort(root)
    around = {r for n in order if is_shared(n) for r in ranges(n) if r.arg[1] is AxisKind.REDUCE}
    mapping: dict[UOp, tuple[UOp, tuple[UOp, ...]]] = {}
    for node in order:
        if node.op is not Ops.REDUCE or around.isdisjoint(closed_ranges(node)):
            continue
        loops = sorted(closed_ranges(node), key=lambda r: r.arg)
        wanted = sorted(loops, key=lambda r: (r not in around, r.arg))
        if loops == wanted:
            continue
        for r, place in zip(wanted, loops, strict=True):
            new = make(Ops.RANGE, r.dtype, r.src, (place.arg[0], r.arg[1]), r.origin)
            mapping[r] = (new, (new,))
    return replace_loops(root, mapping) if mapping else root


@change
def lower_shared(root: UOp, machine: Machine) -> UOp:
    """All shared buffers of a kernel → memory, its filling, and reads that wait for it."""
    if not any(is_shared(n) for n in toposort(root)):
        return root
    root, _ = one_loop(outermost(root))
    order = toposort(root)
    tiles = {n: Tile(n, threads_of(n, order)) for n in order if is_shared(n)}
    for n in order:
        described = n.op is Ops.LDMATRIX and isinstance(n.arg, Panels) and not n.arg.by_threads
        if described and n.src[0].src[0] in tiles:
            tiles[n.src[0].src[0]].by_units = True
    groups: dict[tuple[Any, int], list[Tile]] = {}
    for t in tiles.values():
        inner = [r for r in t.around if r.arg[1] is AxisKind.REDUCE] or t.around
        groups.setdefault((inner[-1] if inner else None, t.depth), []).append(t)
    ready: dict[UOp, tuple[UOp, UOp | int]] = {}
    for (loop, depth), members in groups.items():
        done = fill_once(members) if depth < 2 else fill_ring(members, loop, _repeating(loop, order))
        slot: UOp | int = _on(Ops.FLOORMOD, loop, depth) if depth > 1 else 0
        for t in members:
            ready[t.buffer] = (done, slot)
    mapping: dict[UOp, UOp] = {}
    for n in order:
        if n.op is Ops.INDEX and n.src[0] in tiles:
            t = tiles[n.src[0]]
            done, slot = ready[t.buffer]
            place = t.where(n.src[1], slot)
            mapping[n] = make(Ops.INDEX, n.dtype, (after(t.memory, done), place, *n.src[2:]), n.arg, n.origin)
    return substitute(root, mapping)
