"""Scatters on a processor in runs, each with tables of its own; and what all of them are made of."""

from __future__ import annotations

from morok.dtype import DType, identity, int32, int64, uint32, uint64
from morok.ir.build import bitcast, cast
from morok.ir.infer import Shape, numel
from morok.ir.movement import permute, reshape, shrink, spread_to
from morok.ir.node import UOp, alu, const, make
from morok.ir.ops import Op, Ops
from morok.machine.machine import Machine
from morok.schedule.costs import STORED, elements
from morok.schedule.indexing import known_shape

MOST_STEPS = 1 << 31
MOST_TABLES = 16
STEPS_OF_ROW = 4  # for every row of all tables: filling and joining these is little beside them
FEWEST_STEPS = 2  # so that two tables are filled sooner than one
WIDE = 4  # lines of a row, from which on threads share its columns
_PLAIN = frozenset((Ops.CAST, Ops.BITCAST, Ops.CHECK, Ops.CONST, Ops.IOTA, Ops.DEFINE_VAR, Ops.BIND))
WHY = "steps that meet in a place come in any order"


def kept(x: UOp) -> UOp:
    return make(Ops.CONTIGUOUS, x.dtype, (x,), WHY, x.origin)


def put(table: UOp, places: UOp, rows: UOp, op: Op) -> UOp:
    return make(Ops.SCATTER, table.dtype, (table, places, rows), op)


def filled(value: object, dtype: DType, sizes: Shape) -> UOp:
    return spread_to(const(dtype, value), sizes)


def computed(places: UOp) -> UOp:
    """What places are stored from; themselves, if they are memory."""
    stored = places
    while stored.op is Ops.RESHAPE:
        stored = stored.src[0]
    if stored.op is not Ops.CONTIGUOUS or stored.arg is not None:
        return places
    return reshape(stored.src[0], known_shape(places))


def in_runs(node: UOp, machine: Machine) -> UOp | None:
    """Runs of steps are joined in tables of their own, and these in order. How many there are depends on
    what is to be done and on caches, not on how many threads do it. Lanes have tables of their own too: what
    a vector of steps goes to are different places, and equal neighbours do not wait for each other.

    Before and behind its places a table has one for steps that go nowhere, so that none needs to be asked.
    None where it is no sooner: rows that are wide enough are shared by columns, and steps that take a place
    have one order.
    """
    (table, places, rows), op = node.src, node.arg
    own, dtype = known_shape(table), table.dtype
    count, height = numel(known_shape(places)), own[0]
    if op is None or dtype.is_bool or not isinstance(count, int) or not isinstance(height, int):
        return None
    if height >= MOST_STEPS:
        return None
    wide = elements(own[1:])
    if wide * dtype.itemsize >= WIDE * machine.line_bytes:
        return None
    runs, lanes = _runs_and_lanes(count, height, wide, dtype, machine)
    if runs * lanes == 1:
        return None
    run = count // (runs * lanes)
    whole = runs * lanes * run
    flat, rows = reshape(_in_kernel(places), (count,)), reshape(rows, (count, *own[1:]))
    behind = [(0, n) for n in own[1:]]
    nothing = -0.0 if op is Ops.ADD and dtype.is_float else identity(op.name, dtype)  # -0 + 0 is no -0
    tables = filled(nothing, dtype, (runs, lanes, height + 2, *own[1:]))
    first, values = shrink(flat, ((0, whole),)), shrink(rows, ((0, whole), *behind))
    by_lane = (0, 2, 1)
    first = permute(reshape(_beside_nowhere(first, height), (runs, run, lanes)), by_lane)
    values = reshape(values, (runs, run, lanes, *own[1:]))
    values = permute(values, (*by_lane, *range(3, 2 + len(own))))
    joined = shrink(put(tables, first, values, op), ((0, runs), (0, lanes), (1, height + 1), *behind))
    each = [
        reshape(shrink(joined, ((r, r + 1), (k, k + 1), (0, height), *behind)), own)
        for r in range(runs)
        for k in range(lanes)
    ]
    while len(each) > 1:
        each = [alu(op, a, b) for a, b in zip(each[::2], each[1::2], strict=True)]
    found = alu(op, table, each[0])
    if whole == count:
        return found
    left = kept(shrink(flat, ((whole, count),)))
    return put(found, left, shrink(rows, ((whole, count), *behind)), op)


def _runs_and_lanes(count: int, height: int, wide: int, dtype: DType, machine: Machine) -> tuple[int, int]:
    """So many runs, and tables of each: lanes as many as the first cache holds tables of beside what comes
    by, runs as many as are little work beside the steps, and two where these are worth it at all."""
    table = (height + 2) * wide * dtype.itemsize
    lanes = 1
    if wide == 1 and machine.vector_bytes:
        most = min(machine.lanes(int64), machine.l1_bytes // (2 * table), count // (STEPS_OF_ROW * height))
        lanes = 1 << max(0, most.bit_length() - 1)
    least = min(2, count // (FEWEST_STEPS * height * lanes))
    runs = max(least, count // (STEPS_OF_ROW * height * lanes))
    runs = min(runs, MOST_TABLES, 2 * count * wide // machine.rates.shared_work)
    return 1 << max(0, runs.bit_length() - 1), lanes


def _beside_nowhere(places: UOp, height: int) -> UOp:
    """Places from 1 on; the first and the last one for those that there are not."""
    narrow = places.dtype.itemsize < 4 or (places.dtype is int32 and height < MOST_STEPS - 2)
    kind, bits = (int32, uint32) if narrow else (int64, uint64)
    number = bitcast(alu(Ops.ADD, cast(places, kind), const(kind, 1)), bits)
    return cast(alu(Ops.MIN, number, const(bits, height + 1)), kind)


def _in_kernel(places: UOp) -> UOp:
    """Places as they are computed of memory, element by element; as they are stored, where it takes more."""
    found = computed(places)
    todo, seen = [found], {found}
    while todo:
        node = todo.pop()
        if node.op in STORED:
            continue
        if not (node.op.is_alu or node.op.is_movement or node.op in _PLAIN):
            return places
        todo += [s for s in node.src if s not in seen]
        seen.update(node.src)
    return found
