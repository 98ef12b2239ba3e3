"""Scatters on a grid whose memory joins whole numbers: every step by a thread of its own, in any order, and
the result is that of one order all the same.

    whole numbers added, the largest, the smallest   as they are: no order changes these
    the largest or smallest float                    of whole numbers that order as floats do
    rows that take a place, the last one stays       the largest step number of each place; its row is read
    floats added                                     as whole numbers, in units of a place or by their sizes
    or                                               sorted by their places, in segments (`segments.py`)

Floats as whole numbers: the largest exponent that comes to a place is found first. In units of 2^-k of it,
with k such that all steps together stay below 2^62, every float is a whole number (its lowest bits may fall
off, far below those of the result), and whole numbers add up to the same in every order. What is rounded is
the sum, once. An infinity or NaN counts as an exponent above all others.

A place that few others are beside gets several copies, which steps take in turn and which are joined at the
end: updates of one place wait for each other. Where the table is much larger than what comes to it, sums are
made in a small one: each place has the number of its first step there. All by the time of a grid, beside that
of threads which walk through all steps and take those of their own places (`actions/partition.py`).

On a processor steps are cut into runs, each of which has its own tables; they are joined in the end.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from typing import final

from morok.dtype import (
    DType,
    float32,
    float64,
    identity,
    int8,
    int16,
    int32,
    int64,
    uint8,
    uint16,
)
from morok.ir.build import bitcast, cast
from morok.ir.infer import Shape, Size, numel, size_node
from morok.ir.memory import device_of, is_alone, memory_joins
from morok.ir.movement import found_rows, iota, reduce_axis, reshape, spread_to
from morok.ir.node import UOp, alu, const, toposort
from morok.ir.ops import Op, Ops
from morok.machine.devices import machine_of
from morok.machine.grid_time import memory_clocks
from morok.machine.machine import Machine
from morok.schedule.costs import STORED, elements
from morok.schedule.graph.scatter_runs import MOST_STEPS, WHY, computed, filled, in_runs, kept, put
from morok.schedule.graph.segments import KERNELS, MOVED, PAIR, bare_rows, segment_sums
from morok.schedule.graph.whole_floats import BySize, Floats
from morok.schedule.indexing import known_shape


def scatters_in_any_order(sink: UOp, ctx: object = None) -> UOp:
    """Scatters as far as they are sooner done by threads that do not wait for each other."""
    order = toposort(sink)
    if not any(node.op is Ops.SCATTER for node in order):
        return sink
    devices: dict[UOp, str] = {}
    done: dict[UOp, UOp] = {}
    users = Counter(s for node in order for s in dict.fromkeys(node.src))
    stored = {s for node in order if not node.op.is_alu for s in node.src}
    assigned = Counter(node.src[1] for node in order if node.op is Ops.ASSIGN)
    in_place = {node for node in assigned if users[node] == 1}
    only_computed = {node for node in order if node.op is Ops.SCATTER} - stored
    for node in order:
        devices[node] = device_of(node, devices)
        new = node.replace(tuple([done[s] for s in node.src]))
        if node.op is Ops.SCATTER and devices[node]:
            found = _for_machine(new, machine_of(devices[node]), node in in_place)
            if found is not None:
                free = node in only_computed and not _reads_memory(new.src[0])
                new = found if found.op is Ops.SCATTER or free else kept(found)
        elif node.op is Ops.ASSIGN and node.src[1] in in_place and _is_ours(node.src[1], done):
            # where it is assigned to is as good a place
            new = node.replace((new.src[0], new.src[1].src[0], *new.src[2:]))
        done[node] = new
    return done[sink]


def _reads_memory(x: UOp) -> bool:
    """Whether a value might be another one later."""
    return any(n.op in STORED for n in toposort(x))


def _is_ours(value: UOp, done: dict[UOp, UOp]) -> bool:
    """Whether a scatter has become a value that is stored."""
    return value.op is Ops.SCATTER and done[value].op is Ops.CONTIGUOUS


@final
@dataclass(frozen=True)
class Steps:
    """A SCATTER taken apart: the table, places (n,), rows (n, …), its op, the machine, and whether the table
    is the memory that the result goes to."""

    table: UOp
    places: UOp
    rows: UOp
    op: Op | None
    machine: Machine
    in_place: bool

    @property
    def count(self) -> Size:
        return known_shape(self.places)[0]

    @property
    def most(self) -> int:
        return elements((self.count,))

    @property
    def height(self) -> Size:
        return known_shape(self.table)[0]

    @property
    def rest(self) -> Shape:
        return known_shape(self.table)[1:]

    @property
    def number(self) -> UOp:
        """Of each step."""
        return iota((self.count,), 0, int32)

    @property
    def where(self) -> UOp:
        """The places, in numbers that hold all of them."""
        fits = self.places.dtype in (int8, uint8, int16, uint16, int32)
        return cast(self.places, int32 if fits else int64)

    @property
    def inside(self) -> UOp:
        """Whether the place of a step exists."""
        where = self.where
        below = alu(Ops.CMPLT, where, cast(size_node(self.height), where.dtype))
        return alu(Ops.AND, alu(Ops.CMPLT, const(where.dtype, -1), where), below)

    def beside_rows(self, x: UOp, count: Size) -> UOp:
        """Something for each row, for each of its elements."""
        return spread_to(reshape(x, (count, *(1 for _ in self.rest))), (count, *self.rest))


def _for_machine(node: UOp, machine: Machine, in_place: bool) -> UOp | None:
    """What a scatter becomes; None: it stays as it is."""
    table, places, rows = node.src
    sizes = (*known_shape(table), *known_shape(rows))
    common = len(known_shape(places)) + len(sizes) - 2 * len(known_shape(rows)) - 1  # axes: steps are apart
    if is_alone(node) or common or not known_shape(places) or 0 in sizes:
        return None
    if machine.scatters is None or machine.grid is None:
        return None if machine.block_threads else in_runs(node, machine)
    count = numel(known_shape(places))
    places = _narrow(reshape(places, (count,)), known_shape(table)[0])
    new = reshape(rows, (count, *known_shape(table)[1:]))
    steps = Steps(table, places, new, node.arg, machine, in_place)
    if steps.most >= MOST_STEPS or elements((steps.height,)) >= MOST_STEPS:
        return None
    return _in_any_order(steps)


def _narrow(places: UOp, height: Size) -> UOp:
    """Places that are computed anyway, in as few bytes as hold them; what does not exist is at -1."""
    source = computed(places)
    if source is places or places.dtype.itemsize <= 4:
        return places
    return _existing(source, height)


def _existing(where: UOp, height: Size) -> UOp:
    """Places in 32 bits, or -1."""
    below = alu(Ops.CMPLT, where, cast(size_node(height), where.dtype))
    inside = alu(Ops.AND, alu(Ops.CMPLT, const(where.dtype, -1), where), below)
    return kept(alu(Ops.WHERE, inside, cast(where, int32), const(int32, -1)))


def _in_any_order(steps: Steps) -> UOp | None:
    op, own = steps.op, steps.table.dtype
    if steps.height == 1 and op is not None:
        return _reduced(steps, op)
    if op is None:
        return _last(steps) if _is_sooner(steps, 3, 1, _table_bytes(steps, own.itemsize)) else None
    if own.is_bool:
        truth = {Ops.ADD: Ops.MAX, Ops.MUL: Ops.MIN}.get(op, op)
        steps = _as_type(replace(steps, op=truth), int32)
    elif own.is_int and own.itemsize < int32.itemsize:
        steps = _as_type(steps, int32)
    elif own.is_float and own.itemsize < float32.itemsize:
        steps = _as_type(steps, float32)
    kind = steps.table.dtype
    if kind.is_float and op in (Ops.MAX, Ops.MIN):
        return cast(_extreme(steps), own)
    if kind.is_float and op is Ops.ADD:
        found = _sum(steps)
        return None if found is None else cast(found, own)
    assert steps.op is not None
    return cast(_joined(steps), own) if memory_joins(steps.op, kind) else None


def _as_type(steps: Steps, dtype: DType) -> Steps:
    return replace(steps, table=cast(steps.table, dtype), rows=cast(steps.rows, dtype))


# --- by the time of a grid


def _table_bytes(steps: Steps, width: int) -> int:
    """Of a table that is written and read."""
    return 2 * width * elements(known_shape(steps.table))


def _is_sooner(steps: Steps, kernels: int, passes: int, nbytes: int) -> bool:
    """Whether it is sooner done than by threads that walk through all steps, in a copy of the table."""
    machine = steps.machine
    assert machine.scatters is not None and machine.grid is not None
    return _clocks(steps, kernels, passes, nbytes) < _walk_clocks(steps)


def _walk_clocks(steps: Steps) -> float:
    """The time of threads that walk through all steps."""
    machine = steps.machine
    assert machine.scatters is not None and machine.grid is not None
    walk = steps.most * machine.scatters.step + machine.grid.launch
    if steps.in_place:
        return walk
    copied = _table_bytes(steps, steps.table.dtype.itemsize)
    return walk + machine.grid.launch + memory_clocks(copied, machine.cores, machine)


def _segments_clocks(steps: Steps) -> float:
    """The time of sorted rows, of which every place has a segment."""
    machine = steps.machine
    assert machine.grid is not None
    moved = MOVED * bare_rows(steps.rows).dtype.itemsize * elements(known_shape(steps.rows))
    nbytes = moved + _table_bytes(steps, steps.table.dtype.itemsize) // (2 if _is_zero(steps.table) else 1)
    pairs = PAIR * steps.most**2 / (machine.grid.operations * machine.cores)
    return KERNELS * machine.grid.launch + pairs + memory_clocks(nbytes, machine.cores, machine)


def _clocks(steps: Steps, kernels: int, passes: int, nbytes: float) -> float:
    machine = steps.machine
    assert machine.scatters is not None and machine.grid is not None
    updates = passes * elements(known_shape(steps.rows)) / (machine.scatters.updates * machine.cores)
    return kernels * machine.grid.launch + updates + memory_clocks(nbytes, machine.cores, machine)


def _copies(steps: Steps, rows: int, width: int, op: Op | None) -> int:
    """So many copies of a table of so many rows, that updates seldom wait for others of the same line.

    A largest or smallest value is looked at first, and hardly ever updated.
    """
    machine = steps.machine
    rates = machine.scatters
    assert rates is not None and machine.grid is not None
    wide = elements(steps.rest)
    lines = max(1, rows) * wide * width / machine.line_bytes
    waits = steps.most * wide * rates.meeting / max(1.0, lines)  # those of a line, one after the other
    if waits <= machine.grid.launch or op in (Ops.MAX, Ops.MIN):
        return 1
    wanted = machine.cores * rates.updates * rates.meeting * rates.crowd / lines
    return 1 << max(0, int(min(wanted, steps.most / rows / 8)) - 1).bit_length()


# --- one place


def _reduced(steps: Steps, op: Op) -> UOp:
    """All steps go to one place, or nowhere."""
    nothing = filled(identity(op.name, steps.rows.dtype), steps.rows.dtype, known_shape(steps.rows))
    coming = alu(Ops.WHERE, steps.beside_rows(steps.inside, steps.count), steps.rows, nothing)
    return alu(op, steps.table, reshape(reduce_axis(coming, op, (0,)), (1, *steps.rest)))


# --- whole numbers


def _joined(steps: Steps) -> UOp:
    """Whole numbers: any order is as good."""
    assert steps.op is not None
    copies = _copies(steps, elements((steps.height,)), steps.table.dtype.itemsize, steps.op)
    if copies == 1:
        return put(steps.table, steps.places, steps.rows, steps.op)
    return alu(steps.op, steps.table, _in_copies(steps, steps.places, steps.height, steps.rows, copies))


def _in_copies(steps: Steps, places: UOp, height: Size, rows: UOp, copies: int) -> UOp:
    """Rows joined in a table of their own, of which there are several."""
    op, dtype = steps.op, rows.dtype
    assert op is not None
    nothing = identity(op.name, dtype)
    if copies == 1:
        return put(filled(nothing, dtype, (height, *steps.rest)), places, rows, op)
    turn = alu(Ops.FLOORMOD, cast(steps.number, int64), const(int64, copies))
    start = alu(Ops.MUL, turn, cast(size_node(height), int64))
    there = alu(Ops.ADD, start, cast(steps.where, int64))
    own = kept(alu(Ops.WHERE, steps.inside, there, const(int64, -1)))
    sizes = (copies, height, *steps.rest)
    flat = (numel((copies, height)), *steps.rest)
    table = reshape(put(filled(nothing, dtype, flat), own, rows, op), sizes)
    return reshape(reduce_axis(table, op, (0,)), sizes[1:])


def _extreme(steps: Steps) -> UOp:
    """The largest or smallest floats, as whole numbers in their order; NaN is beyond all."""
    assert steps.op is not None
    kind = int64 if steps.table.dtype is float64 else int32
    keys = replace(
        steps,
        table=_key(steps.table, kind, steps.op),
        rows=_key(steps.rows, kind, steps.op),
    )
    found = _joined(keys)
    return bitcast(_folded(found), steps.table.dtype)


def _folded(x: UOp) -> UOp:
    """Bits of negative floats the other way round, but for the sign; twice it is what it was."""
    negative = alu(Ops.CMPLT, x, const(x.dtype, 0))
    return alu(Ops.WHERE, negative, alu(Ops.XOR, x, const(x.dtype, x.dtype.max)), x)


def _key(x: UOp, kind: DType, op: Op) -> UOp:
    beyond = kind.max if op is Ops.MAX else kind.min
    return alu(Ops.WHERE, alu(Ops.CMPNE, x, x), const(kind, beyond), _folded(bitcast(x, kind)))


# --- rows that take a place


def _last(steps: Steps) -> UOp:
    """Every place takes the row of its last step, or keeps what it has."""
    last = put(filled(-1, int32, (steps.height,)), steps.places, steps.number, Ops.MAX)
    there = alu(Ops.CMPLT, const(int32, -1), last)
    row = found_rows(steps.rows, last)
    return alu(Ops.WHERE, steps.beside_rows(there, steps.height), row, steps.table)


# --- floats that are added


def _sum(steps: Steps) -> UOp | None:
    """Sums of floats by whole numbers, in a table of all places or of as many as there are steps."""
    dtype = steps.table.dtype
    limbs = 2 if dtype is float64 else 1
    height, most = elements((steps.height,)), steps.most
    wide, width = elements(steps.rest), int32.itemsize + limbs * int64.itemsize
    result = _table_bytes(steps, dtype.itemsize)
    copies = _copies(steps, height, int64.itemsize, Ops.ADD)
    dense = 2 * width * wide * (height + copies * height) + result
    small = 2 * width * wide * most + 4 * int32.itemsize * (height + most) + result
    ways = [
        (_clocks(steps, kernels, 1 + limbs, nbytes), kernels, nbytes)
        for kernels, nbytes in ((3 + 2 * limbs + (copies > 1), dense), (6 + 2 * limbs, small))
    ]
    best, _, nbytes = min(ways)
    sizes = BySize.of(most) if dtype is float32 and _is_zero(steps.table) and copies == 1 else None
    by_size = math.inf if sizes is None else _by_size_clocks(steps, sizes)
    sooner = min(best, by_size, _walk_clocks(steps))
    if _segments_clocks(steps) < sooner:
        return _by_segments(steps)
    if sizes is not None and by_size == sooner:
        return _by_size(steps, sizes)
    if best > sooner:
        return None
    return _by_first_steps(steps) if nbytes == small else _by_places(steps, copies)


def _by_places(steps: Steps, copies: int) -> UOp:
    added, any_ = _sums(steps, steps.places, steps.height, copies)
    return alu(Ops.WHERE, any_, alu(Ops.ADD, steps.table, added), steps.table)


def _by_segments(steps: Steps) -> UOp:
    keys = steps.places
    if keys.op is not Ops.CONTIGUOUS or keys.arg != WHY:  # then they are narrow, and exist or are -1
        keys = _existing(replace(steps, places=computed(keys)).where, steps.height)
    sums, any_ = segment_sums(keys, steps.rows, steps.height)
    if _is_zero(steps.table):
        return sums
    there = steps.beside_rows(any_, steps.height)
    return alu(Ops.WHERE, there, alu(Ops.ADD, steps.table, sums), steps.table)


def _is_zero(x: UOp) -> bool:
    while x.op.is_movement or x.op in (Ops.CAST, Ops.COPY):
        x = x.src[0]
    return x.op is Ops.CONST and x.arg == 0


def _by_size_clocks(steps: Steps, sizes: BySize) -> float:
    places = elements(known_shape(steps.table))
    nbytes = (2 * sizes.sums * int64.itemsize + steps.table.dtype.itemsize) * places
    return math.inf if sizes.sums * places >= MOST_STEPS else _clocks(steps, 3, 1, nbytes)


def _by_size(steps: Steps, sizes: BySize) -> UOp:
    """Each float goes to the sum of its size, of which a place has several. A table of zeros."""
    once = steps.places.op is Ops.CONTIGUOUS and steps.places.arg == WHY  # then they need no memory
    own = replace(steps, places=steps.places.src[0]) if once else steps
    width = cast(size_node(numel(steps.rest)), int32)
    total = numel(known_shape(steps.rows))
    here = alu(Ops.MUL, alu(Ops.WHERE, own.inside, cast(own.where, int32), const(int32, 0)), width)
    here, inside = (reshape(own.beside_rows(x, steps.count), (total,)) for x in (here, own.inside))
    if steps.rest:
        here = alu(Ops.ADD, here, alu(Ops.FLOORMOD, iota((total,), 0, int32), width))
    sums = sizes.added(reshape(steps.rows, (total,)), here, inside, numel(known_shape(steps.table)))
    return reshape(sums, known_shape(steps.table))


def _by_first_steps(steps: Steps) -> UOp:
    """Each place has the number of its first step, which is a place in a table of as many rows as steps."""
    count, height = steps.count, steps.height
    none = cast(size_node(count), int32)
    first = put(spread_to(none, (height,)), steps.places, steps.number, Ops.MIN)
    own = kept(alu(Ops.WHERE, steps.inside, found_rows(first, steps.where), const(int32, -1)))
    added, _ = _sums(steps, own, count, 1)
    there = alu(Ops.CMPLT, first, none)
    sums = found_rows(added, first)
    total = alu(Ops.ADD, steps.table, sums)
    return alu(Ops.WHERE, steps.beside_rows(there, height), total, steps.table)


def _sums(steps: Steps, places: UOp, height: Size, copies: int) -> tuple[UOp, UOp]:
    """What floats add up to in the rows of a table, and whether anything but zeros came there."""
    floats = Floats.of(steps.rows.dtype, steps.most)
    nothing = filled(0, int32, (height, *steps.rest))
    largest = put(nothing, places, floats.exponent(steps.rows), Ops.MAX)
    there = found_rows(largest, places if places is not steps.places else steps.where)
    adding = replace(steps, op=Ops.ADD)
    parts = floats.in_units(steps.rows, there)
    totals = [_in_copies(adding, places, height, part, copies) for part in parts]
    return floats.sum(totals, largest), alu(Ops.CMPNE, largest, const(int32, 0))
