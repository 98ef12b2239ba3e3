"""Elements in order on a processor whose stores put chosen lanes side by side: quicksort.

What is smaller than a pivot goes to the front of a part and what is not to its end, a vector at a time and in
place; what fits the registers is sorted there (`written_network.py`). Long rows are cut into a few parts
first, by all threads: how many elements of a block belong to each is counted, and then they are put there.

Parts know between which keys theirs lie. A pivot is above the lower end, so elements that are all equal are
done after two turns; and after many turns it is the middle between the ends, so that there are never more
than the logarithm of the length and the bits of a key.

The order of equals is lost. It shows in zeros, which have signs, and NaN: where there is a -0 or a NaN these
are taken from where they were, in order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from morok import dtype as dt
from morok.codegen.written import Code, Memory, Value, writes
from morok.machine.machine import Machine
from morok.tensor.arrays.written_keys import Form, What
from morok.tensor.arrays.written_network import in_order
from morok.tensor.arrays.written_order import Block, count_type, shared_loop

HELD = 16  # vectors that are sorted in registers: half of them
PARTS = 16  # of a long row
_AT_ONCE = 4  # vectors of which is decided at once where they go
_SAMPLES = 8  # vectors among which a pivot is looked for
_EVER = 1 << 62


def can_split(machine: Machine, form: Form) -> bool:
    """Whether a processor can sort elements this way."""
    wide = not isinstance(form.what, int) and form.memory.itemsize >= 4
    return wide and machine.packed_stores and machine.registers >= 2 * HELD


def held_elements(machine: Machine, form: Form) -> int:
    """What is sorted in registers."""
    return HELD * machine.lanes(form.wide)


@final
class Sorter:
    """Parts of a memory of keys, which becomes one of elements."""

    def __init__(self, code: Code, machine: Machine, form: Form, out: Memory, count: int) -> None:
        self.code, self.form, self.out = code, form, out
        self.lanes = machine.lanes(form.wide)
        self.counting = code.counting(self.lanes, form.wide)
        self.fair = 2 * count.bit_length()  # turns after which pivots are middles
        self.nans, self.zeros = code.register(0), code.register(0)

    # --- vectors of keys

    def keys(self, at: Value) -> Value:
        return self.out.load(at, self.lanes).cast(self.form.wide)

    def some_keys(self, at: Value, mask: Value) -> Value:
        bits = self.form.wide.max  # behind everything else
        return self.out.load_some(at, mask, bits).cast(self.form.wide)

    def key_at(self, source: Memory, at: Value, mask: Value | None, is_key: bool = False) -> Value:
        """The keys of a vector of elements; those that the mask leaves out are of 1."""
        bits = source.load(at, self.lanes) if mask is None else source.load_some(at, mask, 1)
        return bits.cast(self.form.wide) if is_key else self.form.key_of(bits)

    def mask(self, left: Value) -> Value:
        """The lanes of which so many elements are there."""
        few = (left < self.lanes).where(left, self.lanes)
        return self.counting < few.cast(self.form.wide).spread(self.lanes)

    def walk(self, size: Value, use: Callable[[list[Value], Value | None], None]) -> None:
        """Goes through so many elements: `use(places, mask)`, some vectors at a time."""
        code, lanes = self.code, self.lanes
        block = _AT_ONCE * lanes
        whole = size // block
        with code.loop(whole) as i:
            use([i * block + k * lanes for k in range(_AT_ONCE)], None)
        left = size - whole * block
        with code.loop((left + (lanes - 1)) // lanes) as i:
            use([whole * block + i * lanes], self.mask(left - i * lanes))

    # --- from memory, and to what it shall be

    def fetch(self, source: Memory, start: Value, to: Value, size: Value, are_keys: bool) -> None:
        """Elements, or their keys, into the memory; remembers whether there are such as keys have lost."""
        form = self.form

        def use(places: list[Value], mask: Value | None) -> None:
            found = [self.key_at(source, start + at, mask, are_keys) for at in places]
            for at, key in zip(places, found, strict=True):
                bits = key.cast(form.memory)
                if mask is None:
                    self.out.store(to + at, bits)
                else:
                    self.out.store_some(to + at, bits, mask)
            if form.is_float:
                self.remember(found)

        self.walk(size, use)

    def remember(self, keys: list[Value]) -> None:
        lost = self.form.is_lost(keys[0])
        for key in keys[1:]:
            lost = lost | self.form.is_lost(key)
        with self.code.given(lost.any()):
            for register, value in ((self.nans, self.form.lost_nan), (self.zeros, self.form.lost_zero)):
                found = keys[0].equals(value)
                for key in keys[1:]:
                    found = found | key.equals(value)
                register.set(found.any().where(self.code.value(1, dt.int64), register.get()))

    def finish(self, start: Value, size: Value) -> None:
        """Keys become elements where they are."""

        def use(places: list[Value], mask: Value | None) -> None:
            for at in places:
                if mask is None:
                    self.out.store(start + at, self.form.element_of(self.keys(start + at)))
                else:
                    key = self.some_keys(start + at, mask)
                    self.out.store_some(start + at, self.form.element_of(key), mask)

        self.walk(size, use)

    # --- sorting

    def sort(self, start: Value, size: Value) -> None:
        code, wide = self.code, self.form.wide
        depth = self.fair + 8 * wide.itemsize + 4
        self.starts, self.sizes, self.turns = (code.local(dt.int64, depth) for _ in range(3))
        self.lows, self.highs = (code.local(wide, depth) for _ in range(2))
        self.top = code.register(0)
        ends = [code.value(wide.min, wide), code.value(wide.max, wide)]
        self.push([start, size, *ends], code.value(0, dt.int64))
        with code.loop(_EVER, again=lambda: self.top.get() > 0):
            at = self.top.get() - 1
            self.top.set(at)
            start, size, turn = (each.load(at) for each in (self.starts, self.sizes, self.turns))
            low, high = self.lows.load(at), self.highs.load(at)
            many = size > HELD * self.lanes
            same = low.equals(high)
            with code.given(many & same):
                self.finish(start, size)
            with code.given(many & same.equals(False)):
                self.split(start, size, low, high, turn)
            vectors, fewer = HELD, 0
            while vectors:
                fewer = vectors // 2
                fits = (size > fewer * self.lanes) & (size < vectors * self.lanes + 1)
                with code.given(fits):
                    self.leaf(start, size, vectors)
                vectors = fewer

    def push(self, part: list[Value], turn: Value) -> None:
        """A part to be sorted: where it begins, how long it is, and the ends of its keys."""
        at = self.top.get()
        each = (self.starts, self.sizes, self.lows, self.highs, self.turns)
        for memory, value in zip(each, (*part, turn), strict=True):
            memory.store(at, value)
        self.top.set(at + 1)

    def leaf(self, start: Value, size: Value, vectors: int) -> None:
        """What fits so many vectors, and not half of them."""
        places = [start + k * self.lanes for k in range(vectors)]
        masks = [None if k < vectors // 2 else self.mask(size - k * self.lanes) for k in range(vectors)]
        found = [
            self.keys(at) if mask is None else self.some_keys(at, mask)
            for at, mask in zip(places, masks, strict=True)
        ]
        for at, mask, key in zip(places, masks, in_order(found), strict=True):
            element = self.form.element_of(key)
            if mask is None:
                self.out.store(at, element)
            else:
                self.out.store_some(at, element, mask)

    def split(self, start: Value, size: Value, low: Value, high: Value, turn: Value) -> None:
        sampled = self.sample(start, size)
        pivot = (sampled > low).where(sampled, low + 1)
        middle = (low >> 1) + (high >> 1) + 1
        pivot = (turn < self.fair).where(pivot, middle)
        below = self.partition(start, size, pivot) - start
        front = (start, below, low, pivot - 1)
        back = (start + below, size - below, pivot, high)
        is_long = below + below > size
        pairs = list(zip(front, back, strict=True))
        longer = [is_long.where(a, b) for a, b in pairs]
        shorter = [is_long.where(b, a) for a, b in pairs]
        self.push(longer, turn + 1)
        self.push(shorter, turn + 1)  # comes next

    def sample(self, start: Value, size: Value) -> Value:
        """The middle one of some elements."""
        step = (size - self.lanes) // (_SAMPLES - 1)
        held = [self.keys(start + step * k) for k in range(_SAMPLES)]
        middle = in_order([median_of(held)])[0]
        return middle.lane(self.lanes // 2)

    def partition(self, start: Value, size: Value, pivot: Value) -> Value:
        """Elements below the pivot come first. Where the others begin."""
        code, lanes = self.code, self.lanes
        block = _AT_ONCE * lanes
        rest = size & (block - 1)
        last = start + size - rest  # of whole blocks
        front = self.block(start)
        back = self.block(last - block)
        masks = [self.mask(rest - k * lanes) for k in range(_AT_ONCE)]
        places = [last + k * lanes for k in range(_AT_ONCE)]
        others = [self.some_keys(at, mask) for at, mask in zip(places, masks, strict=True)]
        first, end = code.register(start + block), code.register(last - block)  # of what is not read
        low, high = code.register(start), code.register(start + size)  # of what is not written
        bound = pivot.spread(lanes)

        def put(held: list[Value], masks: list[Value] | None = None) -> None:
            below = [x < bound for x in held]
            above = [one.equals(False) for one in below]
            if masks is not None:
                below = [one & mask for one, mask in zip(below, masks, strict=True)]
                above = [one & mask for one, mask in zip(above, masks, strict=True)]
            front, back = low.get(), high.get()
            for x, here, there in zip(held, below, above, strict=True):
                bits = x.cast(self.form.memory)
                self.out.pack(front, bits, here)
                front = front + here.true_lanes()
                back = back - there.true_lanes()
                self.out.pack(back, bits, there)
            low.set(front)
            high.set(back)

        with code.loop((last - start) // block - 2):
            at, to = first.get(), end.get()
            forward = (at - low.get()) < (high.get() - to)
            source = forward.where(at, to - block)
            first.set(forward.where(at + block, at))
            end.set(forward.where(to, to - block))
            put(self.block(source))
        put(front)
        put(back)
        put(others, masks)
        return low.get()

    def block(self, at: Value) -> list[Value]:
        return [self.keys(at + k * self.lanes) for k in range(_AT_ONCE)]

    # --- what keys have lost

    def mend(self, given: Memory, row: tuple[Value, int | Value], start: Value, size: Value) -> None:
        """Zeros and NaN of a sorted part, from their row, if it has such as keys have lost."""
        if self.form.is_float:
            with self.code.given((self.nans.get() + self.zeros.get()) > 0):
                self._mend(given, row, start, size)

    def _mend(self, given: Memory, row: tuple[Value, int | Value], start: Value, size: Value) -> None:
        code, form = self.code, self.form
        first, count = row
        most = (1 << (8 * form.memory.itemsize - 1)) - 1
        nan = form.lost_nan
        zero = code.register(self.place(start, size, -1))  # keys of zeros are -1 and 0
        nans = code.register(self.place(start, size, nan) if nan > 0 else start)
        has_zeros, has_nans = self.zeros.get().equals(1), self.nans.get().equals(1)

        def use(places: list[Value], mask: Value | None) -> None:
            if mask is None:
                found = [given.load(first + at, self.lanes) for at in places]
            else:
                found = [given.load_some(first + at, mask, 1) for at in places]
            sizes = [bits & most for bits in found]
            zeros = [one.equals(0) & has_zeros for one in sizes]
            others = [(one > form.largest) & has_nans for one in sizes]
            either = zeros[0] | others[0]
            for one, other in zip(zeros[1:], others[1:], strict=True):
                either = either | one | other
            with code.given(either.any()):
                for bits, one, other in zip(found, zeros, others, strict=True):
                    self.out.pack(zero.get(), bits, one)
                    zero.set(zero.get() + one.true_lanes())
                    self.out.pack(nans.get(), bits, other)
                    nans.set(nans.get() + other.true_lanes())

        self.walk(code.value(count, dt.int64), use)

    def place(self, start: Value, size: Value, key: int) -> Value:
        """Where in a sorted part keys begin that are no smaller."""
        code = self.code
        low, left = code.register(start), code.register(size)
        with code.given(size > 0), code.loop(_EVER, again=lambda: left.get() > 0):
            half = left.get() >> 1
            at = low.get() + half
            smaller = self.form.key_of(self.out.load(at)) < key
            low.set(smaller.where(at + 1, low.get()))
            left.set(smaller.where(left.get() - half - 1, half))
        return low.get()


def median_of(held: list[Value]) -> Value:
    """Of each lane of some vectors about the middle one."""
    while len(held) > 1:
        if len(held) == 2:
            return held[0].minimum(held[1])
        held = [
            held[i].minimum(held[i + 1]).maximum(held[i + 2].minimum(held[i + 3]))
            if i % 8 < 4
            else held[i].maximum(held[i + 1]).minimum(held[i + 2].maximum(held[i + 3]))
            for i in range(0, len(held), 4)
        ]
    return held[0]


@writes
def quick_rows(code: Code, machine: Machine, what: What, rows: int, count: int) -> None:
    """Rows in order, each by one thread."""
    form = Form(what)
    out, given = (code.memory(form.memory, rows * count) for _ in range(2))
    with code.loop(rows, shared_loop(machine, rows)) as row:
        sorter = Sorter(code, machine, form, out, count)
        start, size = row * count, code.value(count, dt.int64)
        sorter.fetch(given, start, start, size, False)
        sorter.sort(start, size)
        sorter.mend(given, (start, count), start, size)


# --- long rows in parts: blocks say how many of their elements belong to each, which tells where they go


def _splitters(code: Code, sorter: Sorter, given: Memory, block: Block, count: int) -> list[Value]:
    """Keys between the parts of a row, as vectors: the first lanes of a sorted sample. -0 is not told from
    0, so all zeros are in one part."""
    form, lanes = sorter.form, sorter.lanes
    step = (count - lanes) // (HELD - 1)
    held = [form.key_of(given.load(block.start + k * step, lanes)) for k in range(HELD)]
    found = []
    for vector in in_order(held)[:: HELD // PARTS][1:]:
        key = vector.lane(0)
        if form.is_float:
            key = key.equals(0).where(-1, key)
        found.append(key.spread(lanes))
    return found


@writes
def count_parts(code: Code, machine: Machine, what: What, rows: int, count: int, blocks: int) -> None:
    """(rows, blocks, parts): how many elements of blocks of rows belong to each part."""
    form, kind = Form(what), count_type(count)
    out, given = code.memory(kind, rows * blocks * PARTS), code.memory(form.memory, rows * count)
    with code.loop(rows * blocks, shared_loop(machine, rows * blocks)) as b:
        sorter = Sorter(code, machine, form, given, count)
        block = Block(code, b, count, blocks)
        splitters = _splitters(code, sorter, given, block, count)
        below = [code.register(0) for _ in splitters]

        def use(places: list[Value], mask: Value | None) -> None:
            keys = [sorter.key_at(given, block.first + at, mask) for at in places]
            for register, splitter in zip(below, splitters, strict=True):
                total = register.get()
                for key in keys:
                    less = key < splitter
                    total = total + (less if mask is None else less & mask).true_lanes()
                register.set(total)

        sorter.walk(block.size, use)
        before = code.value(0, dt.int64)
        for k, end in enumerate([*(register.get() for register in below), block.size]):
            out.store(b * PARTS + k, (end - before).cast(kind))
            before = end


@writes
def put_parts(code: Code, machine: Machine, what: What, rows: int, count: int, blocks: int) -> None:
    """The keys of rows, part after part."""
    form, kind = Form(what), count_type(count)
    out, given = (code.memory(form.memory, rows * count) for _ in range(2))
    counts = code.memory(kind, rows * blocks * PARTS)
    with code.loop(rows * blocks, shared_loop(machine, rows * blocks)) as b:
        sorter = Sorter(code, machine, form, given, count)
        block = Block(code, b, count, blocks)
        splitters = _splitters(code, sorter, given, block, count)
        places = [code.register(0) for _ in range(PARTS)]
        total = code.register(block.start)
        for k, place in enumerate(places):
            with code.loop(blocks) as other:
                held = counts.load((block.row * blocks + other) * PARTS + k).cast(dt.int64)
                place.set((other.equals(block.number)).where(total.get(), place.get()))
                total.set(total.get() + held)

        def use(at: list[Value], mask: Value | None) -> None:
            for one in at:
                key = sorter.key_at(given, block.first + one, mask)
                bits, below = key.cast(form.memory), None
                for k, place in enumerate(places):
                    less = key < splitters[k] if k < len(splitters) else key.equals(key)
                    mine = less if below is None else less & below.equals(False)
                    below = less
                    mine = mine if mask is None else mine & mask
                    out.pack(place.get(), bits, mine)
                    place.set(place.get() + mine.true_lanes())

        sorter.walk(block.size, use)


@writes
def sort_parts(code: Code, machine: Machine, what: What, rows: int, count: int, blocks: int) -> None:
    """Rows in order, of which the keys are there part after part, and how many there are of each."""
    form, kind = Form(what), count_type(count)
    out, keys, given = (code.memory(form.memory, rows * count) for _ in range(3))
    counts = code.memory(kind, rows * blocks * PARTS)
    with code.loop(rows * PARTS, shared_loop(machine, rows * PARTS)) as number:
        row = number // PARTS
        part = number - row * PARTS
        start, size = code.register(row * count), code.register(0)
        with code.loop(blocks) as b, code.loop(PARTS) as k:
            held = counts.load((row * blocks + b) * PARTS + k).cast(dt.int64)
            start.set((k < part).where(start.get() + held, start.get()))
            size.set(k.equals(part).where(size.get() + held, size.get()))
        sorter = Sorter(code, machine, form, out, count)
        begin, many = start.get(), size.get()
        sorter.fetch(keys, begin, begin, many, True)
        sorter.sort(begin, many)
        sorter.mend(given, (row * count, count), begin, many)
