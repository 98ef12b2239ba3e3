"""Running sums of long rows on a processor, by a kernel that is written by hand: as fast as memory is.

All workers go along a row together. A stretch of it is cut into a piece for each, which its second cache
holds: everybody adds up his piece, and then everybody goes through it again, after what comes before it. So
memory is read once, and the second time the cache is. While a worker goes through his piece of a stretch he
adds up the one of the next stretch, step by step, so that memory has something to do meanwhile.

In vectors: what the last 2, 4, … elements up to each one add up to, until these are as many as there are
lanes. A vector of running sums is then the one before and such a vector: lane by lane, with nothing that has
to be handed from lane to lane. Products and extremes go the same way.
"""

from __future__ import annotations

from typing import final

from morok import dtype as dt
from morok.codegen.written import Code, Memory, Value, writes
from morok.dtype import DType
from morok.ir.ops import Op, Ops
from morok.ir.scan import neutral
from morok.machine.machine import Machine

KINDS = {kind.name: kind for kind in (dt.float32, dt.float64, dt.int32, dt.int64, dt.uint32, dt.uint64)}
OPS = {op.name: op for op in (Ops.ADD, Ops.MUL, Ops.MAX, Ops.MIN)}
_PART = 2  # of the second cache is a piece: with smaller ones workers wait for each other more often
_UNROLLED = 4  # vectors that are written out, and summed up side by side


@final
class _Piece:
    """What a worker has of a stretch of a row. The last one also has what would be too little for another."""

    def __init__(self, code: Code, size: Value, worker: Value, workers: int, lanes: int) -> None:
        each = (size + (workers - 1)) // workers
        least = max(lanes, workers)
        each = (each < least).where(least, each)
        first = worker * each
        last = first + each
        last = (size - last < least).where(size, last)
        nothing = (size - first < least) & (worker > 0)
        self.first, self.whole, self.least = first, size, least
        self.size = nothing.where(code.value(0, dt.int64), last - first)
        self.each = each


@writes
def running(code: Code, machine: Machine, op_name: str, kind_name: str, rows: int, count: int) -> None:
    """Rows of running sums, products or extremes."""
    op, kind = OPS[op_name], KINDS[kind_name]
    out, given = code.memory(kind, rows * count), code.memory(kind, rows * count)
    workers = machine.cores if machine.threads else 1
    stretch = workers * (machine.l2_bytes // (_PART * kind.itemsize))
    stretches = -(-count // stretch)
    lanes = max(2, machine.lanes(kind))
    with code.phases((stretches + 1) * rows, workers) as (phase, worker):
        row = phase // (stretches + 1)
        number = phase - row * (stretches + 1)
        start = row * count

        def piece_of(at: Value) -> _Piece:
            left = code.value(count, dt.int64) - at
            size = (left < stretch).where(left, stretch)
            return _Piece(code, (size < 0).where(0, size), worker, workers, lanes)

        at = (number - 1) * stretch
        behind = at + stretch
        mine, coming = piece_of((number > 0).where(at, count)), piece_of(behind)
        first = start + at + mine.first
        before = code.register(neutral(op, kind), kind)
        with code.given(mine.size > 0):
            with code.given(at > 0):
                before.set(out.load(start + at - 1))
            with code.loop(worker) as i:
                before.set(before.get().joined(op, out.load(first + i)))
        scan = _Scan(code, op, kind, lanes, out, given)
        total = scan.along((first, mine.size), (start + behind + coming.first, coming.size), before.get())
        # for the pieces behind it, at their beginnings, where nothing is yet
        for other in range(1, workers):
            later = coming.each * other
            with code.given((worker < other) & (coming.whole - later > coming.least - 1)):
                out.store(start + behind + later + worker, total)


@final
class _Scan:
    """Loops over pieces."""

    def __init__(self, code: Code, op: Op, kind: DType, lanes: int, out: Memory, given: Memory) -> None:
        self.code, self.op, self.kind, self.lanes, self.out, self.given = code, op, kind, lanes, out, given
        none = code.value(neutral(op, kind), kind)
        self.sums = [code.register(none.spread(lanes), kind) for _ in range(_UNROLLED)]
        self.running = code.register(none.spread(lanes), kind)
        self.steps = []  # of 2, 4, … elements
        distance = 1
        while distance < lanes:
            self.steps.append((distance, code.register(none.spread(lanes), kind)))
            distance *= 2

    def along(self, mine: tuple[Value, Value], coming: tuple[Value, Value], before: Value) -> Value:
        """Everything up to each element of a piece; and the total of another one."""
        code, lanes = self.code, self.lanes
        group = lanes * _UNROLLED
        self.running.set(before.spread(lanes))
        (first, size), (there, others) = mine, coming
        groups, sums = size // group, others // group
        both = (groups < sums).where(groups, sums)
        with code.loop(both) as i:
            for k in range(_UNROLLED):
                self._add(there + i * group + k * lanes, k)
                self._step(first + i * group + k * lanes)
        with code.loop(groups - both) as i:
            for k in range(_UNROLLED):
                self._step(first + (both + i) * group + k * lanes)
        last = code.register(self.running.get().lane(lanes - 1), self.kind)
        with code.loop(size - groups * group) as i:
            at = first + groups * group + i
            last.set(last.get().joined(self.op, self.given.load(at)))
            self.out.store(at, last.get())
        with code.loop(sums - both) as i:
            for k in range(_UNROLLED):
                self._add(there + (both + i) * group + k * lanes, k)
        found = self.sums[0].get()
        for one in self.sums[1:]:
            found = found.joined(self.op, one.get())
        total = code.register(_whole(found, self.op), self.kind)
        with code.loop(others - sums * group) as i:
            total.set(total.get().joined(self.op, self.given.load(there + sums * group + i)))
        return total.get()

    def _add(self, at: Value, number: int) -> None:
        one = self.sums[number]
        one.set(one.get().joined(self.op, self.given.load(at, self.lanes)))

    def _step(self, at: Value) -> None:
        """A vector. What comes before the piece is nothing, and what was carried is in all lanes."""
        window = self.given.load(at, self.lanes)
        for distance, held in self.steps:
            wider = window.joined(self.op, window.after(held.get(), distance))
            held.set(window)
            window = wider
        self.running.set(self.running.get().joined(self.op, window))
        self.out.store(at, self.running.get())


def _whole(x: Value, op: Op) -> Value:
    """Of all lanes, in a tree."""
    found = [x.lane(i) for i in range(x.dtype.lanes)]
    while len(found) > 1:
        found = [a.joined(op, b) for a, b in zip(found[::2], found[1::2], strict=True)]
    return found[0]
