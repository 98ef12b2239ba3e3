"""What the hardware ops mean, lane by lane: matrix units, fragments, asynchronous copies.

`UNITS` has a function per op: it gets the run and the node, and returns the value of the node, one row per
thread (None for an effect). `run.value(source)` is an operand, `run.address(index)` an address. How the same
op is written for a real GPU is in `render/cuda/units.py`.

A copy is under way from its start until somebody waits for it. In between nobody may touch its target: what
lay there is gone when the copy starts, and what is copied is there after the wait, for the thread itself, and
after a barrier for the others.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from morok.device.buffer import Array
from morok.device.emulator.mbarriers import copy_box
from morok.device.emulator.memory import Fault, Memory, SharedMemory, check_known, check_places
from morok.device.emulator.state import Threads
from morok.dtype import float32
from morok.errors import DeviceError
from morok.ir.arithmetic.arrays import storage
from morok.ir.matrix import PANEL, Fragment, MatrixUnit, Panels, Products, Rows
from morok.ir.node import UOp, toposort
from morok.ir.ops import Op, Ops
from morok.ir.provenance import place

WARP = 32
ROW = 16  # bytes of a row of LDMATRIX
_TF32 = np.uint32(0xFFFFE000)  # the bits that a unit for tf32 looks at


def _whole_warps(run: Threads, node: UOp) -> int:
    """The number of warps, all of whose lanes take part."""
    if run.block_size % WARP:
        raise DeviceError(
            f"{node.op.name} needs whole warps, and a block has {run.block_size} threads", place=place(node)
        )
    missing = run.absent()
    if missing is not None:
        raise Fault("does not take part in what its warp does together", missing)
    return run.threads // WARP


# --- matrix units


@cache
def _places(fragment: Fragment, lanes: int) -> tuple[Array, Array]:
    """Rows and columns of all elements, by lane and register."""
    rows = np.zeros((lanes, fragment.registers), dtype=np.int64)
    columns = np.zeros_like(rows)
    for lane, register, row, column in fragment.places(lanes):
        rows[lane, register], columns[lane, register] = row, column
    return rows, columns


def _matrix(x: Array, fragment: Fragment, shape: tuple[int, int], lanes: int) -> Array:
    """The matrices that warps hold in fragments; x has a row per thread."""
    out = np.zeros((len(x) // lanes, *shape), dtype=x.dtype)
    rows, columns = _places(fragment, lanes)
    out[:, rows, columns] = x.reshape(-1, lanes, fragment.registers)
    return out


def product(run: Threads, node: UOp) -> Array:
    """WMMA: every warp multiplies its fragments."""
    unit = node.arg
    if not isinstance(unit, MatrixUnit):
        raise DeviceError(f"the emulator knows no matrix unit {unit}", place=place(node))
    _whole_warps(run, node)
    if unit.fused:
        return _fused(run, node, unit)
    if unit.shared:
        return _wgmma(run, node, unit)
    a = _from_registers(run, node.src[0], unit, unit.a, (unit.m, unit.k))
    return _added(run, node, unit, a, _from_registers(run, node.src[1], unit, unit.b, (unit.k, unit.n)))


def _from_registers(
    run: Threads, source: UOp, unit: MatrixUnit, fragment: Fragment, shape: tuple[int, int]
) -> Array:
    """An operand that lanes hold in registers."""
    x = run.spread(run.value(source), fragment.registers)
    held = storage(unit.inputs)
    typed = x if x.dtype == held else np.ascontiguousarray(x).view(held)
    return _multiplied(_matrix(typed, fragment, shape, unit.lanes), unit)


def _multiplied(matrix: Array, unit: MatrixUnit) -> Array:
    """Elements as a unit multiplies them."""
    if unit.words:  # (…, rows, words) → (…, rows, bytes); steps of b are its rows
        held = np.ascontiguousarray(matrix)
        if unit.inputs.is_float:
            return held.view(np.float16).reshape(*held.shape, 2).astype(storage(unit.output))
        return held.view(np.int8).reshape(*held.shape, 4).astype(np.int32)
    wide = matrix.astype(storage(unit.output))
    return (
        (wide.view(np.uint32) & _TF32).view(np.float32) if unit.inputs is float32 and not unit.fused else wide
    )


def _added(run: Threads, node: UOp, unit: MatrixUnit, a: Array, b: Array) -> Array:
    """a·b + c, as fragments."""
    return _summed(run, run.spread(run.value(node.src[2]), unit.c.registers), unit, a, b)


def _summed(run: Threads, c: Array, unit: MatrixUnit, a: Array, b: Array) -> Array:
    if unit.words:
        a, b = a.reshape(*a.shape[:2], -1), b.swapaxes(2, 3).reshape(len(b), -1, unit.n)
    with np.errstate(all="ignore"):
        total = a @ b + _matrix(c, unit.c, (unit.m, unit.n), unit.lanes)
    rows, columns = _places(unit.c, unit.lanes)
    result: Array = total[:, rows, columns].reshape(run.threads, unit.c.registers)
    return result


class Tile(NamedTuple):
    """A description of a shared tile, as a unit gets it."""

    memory: SharedMemory
    places: Array  # where it starts, per thread
    layout: Panels

    def elements(self, outer: int, steps: int) -> Array:
        """Offsets in bytes of all (outer, step), before they are swizzled."""
        size = self.memory.dtype.itemsize
        o, k = np.arange(outer)[:, None], np.arange(steps)[None, :]
        per_row = PANEL // size
        row, along = (k, o) if self.layout.transposed else (o, k)
        linear = row // 8 * self.layout.stride + row % 8 * PANEL + along % per_row * size
        return linear + (along // per_row * self.layout.lead if self.layout.transposed else 0)

    def where(self, run: Threads, lanes: int, outer: int, steps: int) -> tuple[Array, Array, Array]:
        """Per group of lanes that takes part: its number, its first thread, and the places."""
        size = self.memory.dtype.itemsize
        taking_part = run.who()
        groups = np.arange(run.threads // lanes) if taking_part is None else taking_part[::lanes].nonzero()[0]
        first = run.numbers[::lanes][groups]
        start = run.spread(self.places).astype(np.int64).reshape(-1, lanes)[groups]
        if (start != start[:, :1]).any():
            raise Fault("describes another tile than the rest of its group", int(first[0]))
        if (start * size // PANEL % 8).any():  # the swizzle counts rows from a multiple of eight
            raise Fault(
                f"describes a tile of {self.memory.name} that begins within eight rows", int(first[0])
            )
        address = start[:, 0, None, None] * size + self.elements(outer, steps)
        address ^= (address >> 7 & 7) << 4
        where = (address // size).reshape(len(first), -1)
        check_places(self.memory.name, self.memory.size, first, where)
        return groups, first, where

    def read(self, run: Threads, lanes: int, outer: int, steps: int) -> tuple[Array, Array, Array]:
        """What a unit reads: the elements per group, the blocks, and their places."""
        groups, first, where = self.where(run, lanes, outer, steps)
        # one thread stands for the group; nobody may write what it reads until the products are done
        blocks = (first // run.block_size)[:, None]
        check_known(self.memory.name, self.memory.known[blocks, where], first, where)
        self.memory.unseen.check(self.memory.name, (blocks, where), int(first[0]))
        self.memory.used(where)
        found: Array = np.zeros((run.threads // lanes, outer, steps), dtype=self.memory.data.dtype)
        found[groups] = self.memory.data[blocks, where].reshape(len(first), outer, steps)
        return found, blocks, where

    def read_by_lanes(self, run: Threads, lanes: int, outer: int, steps: int) -> Array:
        """What lanes read by themselves; two of them stand for the group, which no single thread is."""
        groups, first, where = self.where(run, lanes, outer, steps)
        flat = where.reshape(-1)
        for other in (0, 1):
            read = self.memory.read(np.repeat(first + other, where.shape[1]), flat)
        found: Array = np.zeros((run.threads // lanes, outer, steps), dtype=self.memory.data.dtype)
        found[groups] = read.reshape(len(first), outer, steps)
        return found


def _wgmma(run: Threads, node: UOp, unit: MatrixUnit) -> Array:
    """WMMA of warp groups: operands lie in shared tiles, the left one perhaps in registers."""
    if "a" in unit.shared:
        a = _read(run, node.src[0], unit, unit.m)
    else:
        a = _from_registers(run, node.src[0], unit, unit.a, (unit.m, unit.k))
        if run.context is not None:
            run.state.setdefault("taken", []).extend(_sources(run, node.src[0]))
    return _added(run, node, unit, a, _read(run, node.src[1], unit, unit.n).transpose(0, 2, 1))


def _fused(run: Threads, node: UOp, unit: MatrixUnit) -> Array:
    """WMMA of lanes themselves: tiles of one left operand, whose products have all been added afterwards."""
    if "a" in unit.shared:
        a = _tile_of(run, node.src[0], unit, unit.m)
    else:
        a = _from_registers(run, node.src[0], unit, unit.a, (unit.m, unit.k))
    width = unit.c.registers
    c = run.spread(run.value(node.src[2]), node.dtype.lanes)
    found = []
    for n, source in enumerate((node.src[1], *node.src[3:])):
        b = _tile_of(run, source, unit, unit.n).transpose(0, 2, 1)
        found.append(_summed(run, c[:, n * width : (n + 1) * width], unit, a, b))
    return np.concatenate(found, axis=1)


def _tile_of(run: Threads, source: UOp, unit: MatrixUnit, outer: int) -> Array:
    """A tile that lanes read now."""
    tile: Tile = run.values[source]
    return tile.read_by_lanes(run, unit.lanes, outer, unit.k)


def _sources(run: Threads, held: UOp) -> list[tuple[SharedMemory, Array]]:
    """The places in shared memory that an operand in registers was read from."""
    out = []
    for n in toposort(held, stop=_is_access):
        if _is_access(n):
            address = run.address(n.src[0])
            if isinstance(address.memory, SharedMemory):
                lanes = ROW // address.memory.dtype.itemsize if n.op is Ops.LDMATRIX else n.dtype.lanes
                out.append((address.memory, run.places(address, lanes, run.who())[1]))
    return out


def _is_access(node: UOp) -> bool:
    return node.op in (Ops.LOAD, Ops.LDMATRIX)


def _read(run: Threads, source: UOp, unit: MatrixUnit, outer: int) -> Array:
    """An operand that a unit reads out of a shared tile, from now on."""
    tile: Tile = run.values[source]
    found, blocks, where = tile.read(run, unit.lanes, outer, unit.k)
    run.state.setdefault("reading", []).append((tile.memory, blocks, where))
    held = storage(unit.inputs)
    return _multiplied(found if found.dtype == held else found.view(held), unit)


def rows(run: Threads, node: UOp) -> Any:
    """LDMATRIX: lane 8·i + r gives the address of row r of matrix i; word i of a lane lies in it."""
    kind: Rows | Panels = node.arg
    warps = _whole_warps(run, node)
    address = run.address(node.src[0])
    if isinstance(kind, Panels):
        assert isinstance(address.memory, SharedMemory)
        return Tile(address.memory, address.places, kind)
    each = ROW // address.memory.dtype.itemsize
    given = run.numbers % WARP < kind.count * 8
    threads, where = run.places(address, each, run.who(given))
    found = np.zeros((warps, kind.count, 8, each), dtype=storage(address.memory.dtype))
    read = address.memory.read(threads, where).reshape(-1, kind.count, 8, each)
    found[np.unique(threads // WARP)] = read
    per_word = each // 4
    if kind.transposed:
        if per_word != 2:
            raise DeviceError("only matrices of 16-bit elements can be turned", place=place(node))
        found = found.transpose(0, 1, 3, 2)
    words = found.reshape(warps, kind.count, WARP, per_word).transpose(0, 2, 1, 3)
    return np.ascontiguousarray(words).reshape(run.threads, kind.count * per_word)


# --- copies


def copy(run: Threads, node: UOp) -> None:
    """ASYNC_COPY: reads now, and writes when somebody waits; zeros where the source's gate is false."""
    if len(node.src) > 2:
        copy_box(run, node)
        return
    target, source = (run.address(s) for s in node.src)
    memory = target.memory
    assert isinstance(memory, SharedMemory)
    lanes = node.arg // memory.dtype.itemsize
    chosen = run.who(target.gate)
    threads, places = run.places(target, lanes, chosen)
    if len(threads) == 0:
        return
    shape = places.shape
    data = np.zeros(shape, dtype=storage(memory.dtype))
    inside = run.who(source.gate)
    if chosen is not None:
        inside = run.who(_both(run, chosen, source.gate))
    readers, origin = run.places(source, lanes, inside)
    if len(readers):
        row = np.searchsorted(threads, readers)
        data[row] = source.memory.read(readers, origin)
    memory.start_copy(threads, places)
    check_unread(run, memory, threads, places)
    run.state.setdefault("open", []).append((memory, threads, places, data))


def _both(run: Threads, chosen: Array, gate: Array | None) -> Array:
    return chosen if gate is None else chosen & run.spread(gate)


def check_unread(run: Threads, memory: Memory, threads: Array, places: Array) -> None:
    """No unit may still be reading what is overwritten."""
    if not isinstance(memory, SharedMemory):
        return
    for other in memory.beside:
        who, elements = memory.same_bytes(other, threads, places)
        _check_unread(run, other, who, elements[:, None])
    _check_unread(run, memory, threads, places.reshape(len(threads), -1))


def _check_unread(run: Threads, memory: SharedMemory, threads: Array, places: Array) -> None:
    for group in [*run.state.get("products", []), run.state.get("reading", [])]:
        for other, blocks, where in group:
            if other is not memory:
                continue
            busy = np.zeros(memory.data.shape, dtype=np.bool_)
            busy[blocks, where] = True
            hit = busy[(threads // run.block_size)[:, None], places]
            if hit.any():
                thread = int(threads[np.flatnonzero(hit.any(axis=1))[0]])
                raise Fault(f"overwrites {memory.name} while a unit still reads it", thread)


def commit(run: Threads, node: UOp) -> None:
    """ASYNC_COMMIT: what was started since the last one is a group."""
    if isinstance(node.arg, Products):
        run.state.setdefault("products", []).append(run.state.pop("reading", []))
        run.state.setdefault("filled", []).append(run.state.pop("taken", []))
        return
    run.state.setdefault("groups", []).append(run.state.pop("open", []))


def wait(run: Threads, node: UOp) -> None:
    """ASYNC_WAIT: the oldest groups arrive, until no more than `arg` are under way."""
    if isinstance(node.arg, Products):
        products, filled = (run.state.setdefault(name, []) for name in ("products", "filled"))
        over = max(0, len(products) - node.arg.pending)
        # a warp group is done together: all of its lanes have read what their registers hold
        for memory, places in (taken for group in filled[:over] for taken in group):
            memory.taken(places)
        del products[:over], filled[:over]
        return
    groups: list[list[tuple[Memory, Array, Array, Array]]] = run.state.setdefault("groups", [])
    while len(groups) > node.arg:
        for memory, threads, places, data in groups.pop(0):
            memory.write(threads, places, data)


def fence(run: Threads, node: UOp) -> None:
    """FENCE: what threads have written is on its way to those who read memory another way; or registers are
    handed over, which `in_flight.py` follows."""
    if not isinstance(node.arg, Products):
        return
    chosen = run.who()
    for memory in run.shared:
        memory.unseen.fence(None if chosen is None else run.numbers[chosen])
    for barrier in run.barriers.values():
        barrier.fenced = True


UNITS: dict[Op, Callable[[Threads, UOp], Any]] = {
    Ops.WMMA: product,
    Ops.LDMATRIX: rows,
    Ops.ASYNC_COPY: copy,
    Ops.ASYNC_COMMIT: commit,
    Ops.ASYNC_WAIT: wait,
    Ops.FENCE: fence,
}
