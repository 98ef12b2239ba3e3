"""Many rows in order on a processor: a network of comparisons, of which a lane is a row.

Runs are merged: an element of the first is compared with its mirror image in the second, and then elements
at distances that are halved. Which elements are compared depends on no value, so that rows side by side are
sorted by the same instructions. What would be compared with something behind the end of a row stays.

Some elements fit the registers: they are sorted there (by Batcher's merge, which needs fewer comparisons),
and so are the last steps of every merge. Only the first steps of a merge of longer runs go through memory.

Words are all different, whole ones or pairs: equal keys are in the order of the positions beside them. Of
elements equal ones are the same, but for zeros and NaN: rows with NaN or -0 take them from where they were,
in order.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import final

from morok import dtype as dt
from morok.codegen.written import Code, Memory, Value, writes
from morok.dtype import DType
from morok.ir.ops import AxisKind
from morok.machine.machine import Machine
from morok.tensor.arrays.written_keys import Form, What

_LEAST = 4  # elements that the registers hold
_UNROLLED = 4  # comparisons of elements in memory that are written out
Lanes = list[Value]  # of each number of a word a vector


def key_type(form: Form) -> DType:
    """What is compared."""
    return dt.uint64 if isinstance(form.what, int) else form.wide


def lanes_of(machine: Machine, form: Form) -> int:
    """Rows that are sorted side by side."""
    kind = key_type(form)
    return max(16 // kind.itemsize, machine.lanes(kind))


def held_by(machine: Machine, form: Form) -> int:
    """Elements that the registers hold: a power of two."""
    most = machine.registers // (2 * form.width)
    return int(max(_LEAST, 1 << (most.bit_length() - 1)))


# --- which elements are compared


def _merged(first: int, size: int, step: int) -> Iterator[tuple[int, int]]:
    """Batcher's merge of every step-th of some sorted ones."""
    if 2 * step >= size:
        yield first, first + step
        return
    yield from _merged(first, size, 2 * step)
    yield from _merged(first + step, size, 2 * step)
    for i in range(first + step, first + size - step, 2 * step):
        yield i, i + step


def ordered(size: int, first: int = 0) -> Iterator[tuple[int, int]]:
    """The pairs that sort so many, a power of two."""
    if size > 1:
        yield from ordered(size // 2, first)
        yield from ordered(size // 2, first + size // 2)
        yield from _merged(first, size, 1)


def _cleaned(size: int) -> Iterator[tuple[int, int]]:
    """The pairs at distances that are halved, of so many, a power of two."""
    distance = size // 2
    while distance:
        for i in range(size):
            if not i & distance:
                yield i, i + distance
        distance //= 2


def effort(count: int, held: int) -> tuple[int, int]:
    """How many comparisons a row takes, and how often an element goes from memory and back."""
    whole, rest = divmod(count, held)

    def of(pairs: list[tuple[int, int]]) -> int:
        return whole * len(pairs) + sum(j < rest for _, j in pairs)

    compared, moved = of(list(ordered(held))), count
    last = of(list(_cleaned(held)))
    run = held
    while run < count:
        for size in _sizes(run, held):
            blocks, left = divmod(count, size)
            pairs = blocks * size // 2 + max(0, left - size // 2)
            compared, moved = compared + pairs, moved + 2 * pairs
        compared, moved = compared + last, moved + count
        run *= 2
    return compared, moved


def _sizes(run: int, held: int) -> Iterator[int]:
    """Of the blocks of each step of a merge that goes through memory; the first is the one with mirrors."""
    yield 2 * run
    size = run
    while size > held:
        yield size
        size //= 2


# --- the kernel


@final
class _Tile:
    """Rows side by side."""

    def __init__(self, code: Code, form: Form, lanes: int, count: int) -> None:
        self.code, self.form, self.lanes, self.count = code, form, lanes, count
        self.parts = [code.local(key_type(form), count * lanes) for _ in range(form.width)]

    def load(self, at: Value) -> Lanes:
        return [part.load(at * self.lanes, self.lanes) for part in self.parts]

    def store(self, at: Value, what: Lanes) -> None:
        for part, one in zip(self.parts, what, strict=True):
            part.store(at * self.lanes, one)

    def compare(self, at: Value, there: Value) -> None:
        """The smaller of two, in every lane, comes first."""
        first, second = _in_order(self.load(at), self.load(there))
        self.store(at, first)
        self.store(there, second)

    def in_registers(self, base: Value, size: int, pairs: Iterator[tuple[int, int]]) -> None:
        held = [self.load(base + i) for i in range(size)]
        for i, j in pairs:
            if j < size:
                held[i], held[j] = _in_order(held[i], held[j])
        for i in range(size):
            self.store(base + i, held[i])

    def sort(self, held: int) -> None:
        code, count = self.code, self.count
        whole, rest = divmod(count, held)

        def everywhere(cleans: bool) -> None:
            def pairs() -> Iterator[tuple[int, int]]:
                return _cleaned(held) if cleans else ordered(held)

            if whole:
                with code.loop(whole) as block:
                    self.in_registers(block * held, held, pairs())
            if rest:
                self.in_registers(code.value(whole * held, dt.int64), rest, pairs())

        everywhere(False)
        run = held
        while run < count:
            for n, size in enumerate(_sizes(run, held)):
                blocks, left = divmod(count, size)
                if blocks:
                    with code.loop(blocks) as block:
                        self._step(block * size, size, size, n == 0)
                if left > size // 2:
                    self._step(code.value(blocks * size, dt.int64), left, size, n == 0)
            everywhere(True)
            run *= 2

    def _step(self, base: Value, here: int, size: int, mirrors: bool) -> None:
        """A step of a merge in a block of which so many elements are here."""
        half = size // 2
        many = here - half
        if mirrors:  # the elements next to the middle
            first, then, step = base + (half - 1), base + half, -1
        else:
            first, then, step = base, base + half, 1
        whole = many // _UNROLLED
        with self.code.loop(whole) as i:
            for k in range(_UNROLLED):
                n = i * _UNROLLED + k
                self.compare(first + n * step, then + n)
        for k in range(whole * _UNROLLED, many):
            self.compare(first + k * step, then + k)


def _in_order(x: Lanes, y: Lanes) -> tuple[Lanes, Lanes]:
    if len(x) == 1:
        return [x[0].minimum(y[0])], [x[0].maximum(y[0])]
    swapped = (y[0] < x[0]) | (x[0].equals(y[0]) & (y[1] < x[1]))
    first = [swapped.where(other, own) for own, other in zip(x, y, strict=True)]
    return first, [swapped.where(own, other) for own, other in zip(x, y, strict=True)]


@writes
def sort_lanes(code: Code, machine: Machine, what: What, rows: int, count: int) -> None:
    """Rows in order: words in that of all bits."""
    form = Form(what)
    kind = dt.uint64 if isinstance(what, int) else form.memory
    out = code.memory(kind, rows * count * form.width)
    given = code.memory(kind, rows * count * form.width)
    lanes = lanes_of(machine, form)
    tile = _Tile(code, form, lanes, count)
    groups = -(-rows // lanes)
    shared = AxisKind.THREAD if machine.threads and groups > 1 else AxisKind.LOOP
    with code.loop(groups, shared) as group:
        starts = []
        for lane in range(lanes):  # behind the end the last row comes up again, and is the same
            row = group * lanes + lane
            starts.append((row < rows).where(row, rows - 1) * (count * form.width))
        _turn(code, tile, given, starts, False)
        tile.sort(held_by(machine, form))
        _turn(code, tile, out, starts, True)
        if form.is_float:
            _mend(code, tile, out, given, starts)


def _turn(code: Code, tile: _Tile, memory: Memory, starts: list[Value], back: bool) -> None:
    """Rows of memory to lanes, or back."""
    lanes, count, form = tile.lanes, tile.count, tile.form

    def square(at: Value) -> None:
        if back:
            first, *others = (tile.load(at + i)[0] for i in range(lanes))
            for start, row in zip(starts, first.turned(others), strict=True):
                memory.store(start + at, _element(form, row))
        else:
            first, *others = (_key(form, memory.load(start + at, lanes)) for start in starts)
            for i, column in enumerate(first.turned(others)):
                tile.store(at + i, [column])

    if form.width == 1 and count >= lanes:
        with code.loop(count // lanes) as n:
            square(n * lanes)
        if count % lanes:  # some once more
            square(code.value(count - lanes, dt.int64))
        return
    with code.loop(count) as i:
        for lane, start in enumerate(starts):
            for which, part in enumerate(tile.parts):
                at = start + i * form.width + which
                if back:
                    memory.store(at, _element(form, part.load(i * lanes + lane)))
                else:
                    part.store(i * lanes + lane, _key(form, memory.load(at)))


def _key(form: Form, x: Value) -> Value:
    return x if isinstance(form.what, int) else form.key_of(x)


def _element(form: Form, x: Value) -> Value:
    return x if isinstance(form.what, int) else form.element_of(x)


def _mend(code: Code, tile: _Tile, out: Memory, given: Memory, starts: list[Value]) -> None:
    """Rows with NaN or -0 get these, and all zeros, as they were there, one after the other."""
    form, lanes, count = tile.form, tile.lanes, tile.count
    marks = code.register(code.value(0, form.wide).spread(lanes), form.wide)
    with code.loop(count) as i:
        marks.set(form.is_lost(tile.load(i)[0]).where(1, marks.get()))
    found = marks.get()
    assert not isinstance(form.what, int)
    most, largest = (1 << (8 * form.memory.itemsize - 1)) - 1, form.what[1]
    with code.given(found.equals(1).any()):
        each, begin = code.local(form.wide, lanes), code.local(dt.int64, lanes)
        each.store(0, found)
        for lane, start in enumerate(starts):
            begin.store(lane, start)
        with code.loop(lanes) as row, code.given(each.load(row).equals(1)):
            start = begin.load(row)
            before, last = code.register(0), code.register(0)
            with code.loop(count) as i:
                bits = given.load(start + i)
                size = bits & most
                nan = size > largest
                is_below = (bits > most) if not form.what[2] else (bits < most + 1)
                below = is_below & size.differs(0) & nan.equals(False)
                before.set(before.get() + below.where(code.value(1, dt.int64), 0))
                last.set(last.get() + nan.where(code.value(1, dt.int64), 0))
            nans = last.get()
            zero = code.register(before.get() + nans if form.what[2] else before.get())
            end = code.register(0 if form.what[2] else code.value(count, dt.int64) - nans)
            with code.loop(count) as i:
                bits = given.load(start + i)
                with code.given((bits & most).equals(0)):
                    out.store(start + zero.get(), bits)
                    zero.set(zero.get() + 1)
                with code.given((bits & most) > largest):
                    out.store(start + end.get(), bits)
                    end.set(end.get() + 1)


# --- one row in registers: vectors of neighbours


def in_order(held: list[Value]) -> list[Value]:
    """The elements of vectors, a power of two of them, from the first lane of the first one on.

    As many vectors as lanes are sorted lane by lane and turned, so that each holds a run; fewer are sorted
    each by itself. Runs are merged with their mirror images, at distances that are halved: first among
    vectors, then among the lanes of each.
    """
    lanes, many = held[0].dtype.lanes, len(held)
    if many % lanes:
        held = [_sorted_lanes(x) for x in held]
    else:
        squares = [_turned_columns(held[i : i + lanes]) for i in range(0, many, lanes)]
        held = [x for square in squares for x in square]
    run = 1
    while run < many:
        merged: list[Value] = []
        for i in range(0, many, 2 * run):
            merged += _two_runs(held[i : i + run], held[i + run : i + 2 * run])
        held, run = merged, 2 * run
    return held


def _turned_columns(held: list[Value]) -> list[Value]:
    """As many vectors as lanes: each lane in order, as a vector."""
    held = list(held)
    for i, j in ordered(len(held)):
        held[i], held[j] = held[i].minimum(held[j]), held[i].maximum(held[j])
    return held[0].turned(held[1:])


def _two_runs(first: list[Value], then: list[Value]) -> list[Value]:
    """Two runs as one."""
    lanes = first[0].dtype.lanes
    mirrored = [x.chosen(tuple(range(lanes - 1, -1, -1))) for x in reversed(then)]
    pairs = list(zip(first, mirrored, strict=True))
    return _cleaned_vectors([x.minimum(y) for x, y in pairs]) + _cleaned_vectors(
        [x.maximum(y) for x, y in pairs]
    )


def _cleaned_vectors(held: list[Value]) -> list[Value]:
    """What rises and falls, or the reverse, in order."""
    distance = len(held) // 2
    while distance:
        for i in range(len(held)):
            if not i & distance:
                x, y = held[i], held[i + distance]
                held[i], held[i + distance] = x.minimum(y), x.maximum(y)
        distance //= 2
    return [_cleaned_lanes(x, x.dtype.lanes // 2) for x in held]


def _cleaned_lanes(x: Value, distance: int) -> Value:
    while distance:
        x = _compared(x, distance, distance)
        distance //= 2
    return x


def _sorted_lanes(x: Value) -> Value:
    size = 2
    while size <= x.dtype.lanes:
        x = _cleaned_lanes(_compared(x, size - 1, size // 2), size // 4)
        size *= 2
    return x


def _compared(x: Value, across: int, upper: int) -> Value:
    """Every lane with the one whose number differs in the bits `across`; those with bit `upper` get the
    larger one."""
    lanes = x.dtype.lanes
    other = x.chosen(tuple(i ^ across for i in range(lanes)))
    taken = tuple(i + lanes if i & upper else i for i in range(lanes))
    return x.minimum(other).chosen(taken, x.maximum(other))
