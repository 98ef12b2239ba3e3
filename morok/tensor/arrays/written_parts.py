"""Long rows that all threads sort at once: cut into a few parts by splitters from a sample, and these.

Blocks of a row say how many of their elements belong to each part, which tells where the ones of each block
go. What lies in the parts are keys; each is sorted by one thread (`written_quick.py`).
"""

from __future__ import annotations

from morok import dtype as dt
from morok.codegen.written import Code, Memory, Value, writes
from morok.machine.machine import Machine
from morok.tensor.arrays.written_keys import Form, What
from morok.tensor.arrays.written_order import Block, count_type, shared_loop
from morok.tensor.arrays.written_quick import HELD, PARTS, Sorter
from morok.tensor.arrays.written_registers import in_order


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
                    total = total + (less if mask is None else less & mask).held()
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
                    place.set(place.get() + mine.held())

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
