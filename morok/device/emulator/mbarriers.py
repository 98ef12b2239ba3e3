"""Warp roles on the emulator: parts of a block that run side by side, mbarriers, TMA copies.

Each role is a coroutine. It runs until it waits for a phase that is not over; then the next one goes on. If
none can, that is a deadlock, and the error says who waits for what. Blocks run one after the other, those
of a cluster side by side.

A copy of a box destroys its target when it starts. Its bytes count for its barrier at once, but what it has
brought is seen only by those who wait for the phase. What has been brought or written must be read before
somebody puts something else there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, final

import numpy as np

from morok.device.buffer import Array
from morok.device.emulator.memory import Fault, GlobalMemory, SharedMemory
from morok.device.emulator.state import Context, MBarrier, Threads
from morok.errors import DeviceError
from morok.ir.arithmetic.arrays import storage
from morok.ir.matrix import PANEL
from morok.ir.node import UOp
from morok.ir.ops import AxisKind, Op, Ops
from morok.ir.provenance import place
from morok.ir.warp_roles import Box, MBarrierStep, Role, Walk, at_first

BOX_UNIT = 16  # bytes: where the rows of a box may begin
MOST_OF_A_BOX = 256  # elements in one of its dimensions


def is_role(node: UOp) -> bool:
    return node.op is Ops.RANGE and node.arg[1] is AxisKind.ROLE


def together(runs: Sequence[Threads], parts: Sequence[Iterator[None]]) -> None:
    """Runs the blocks of a cluster until all are done."""
    for run in runs:
        run.cluster = list(runs)
    alive = list(range(len(runs)))
    while alive:
        before = sum(run.progress for run in runs)
        for i in list(alive):
            if next(parts[i], True):
                alive.remove(i)
                runs[i].progress += 1
        if alive and sum(run.progress for run in runs) == before:
            raise Fault(f"is in a deadlock, all blocks of a cluster wait: {waiting(runs[alive[0]])}", 0)


def waiting(run: Threads) -> str:
    """Who waits for what."""
    found = [f"{c.role.name} waits for {c.waits_for}" for c in run.contexts if c.waits_for]
    return "; ".join(found) or "for the other blocks"


def meet(run: Threads) -> Iterator[None]:
    """All threads of all blocks of a cluster wait for one another."""
    run.met += 1
    run.progress += 1
    while any(other.met < run.met for other in run.cluster):
        yield


def side_by_side(run: Threads, parts: list[tuple[UOp, int, int]]) -> Iterator[None]:
    """Runs the stretches of several roles until all are done; stops where other blocks go on first."""
    contexts = [Context(run, node.arg[2]) for node, _, _ in parts]
    _have_registers([context.role for context in contexts])
    steps: list[Iterator[None]] = []
    for node, start, stop in parts:
        run.values[node] = np.asarray(0, dtype=storage(node.dtype))
        steps.append(run.stretch(start, stop))
    run.contexts = contexts
    alive = list(range(len(parts)))
    before = (run.active, run.masks, run.state)
    while alive:
        moved = False
        for i in list(alive):
            context = contexts[i]
            run.context = context
            run.active, run.masks, run.state = context.active, context.masks, context.state
            progress = run.progress
            try:
                next(steps[i])
            except StopIteration:
                alive.remove(i)
                moved = True
                finish(run)
            moved |= run.progress > progress
            context.active, context.masks = run.active, run.masks
        if alive and not moved and len(run.cluster) > 1:
            before_others = (run.active, run.masks, run.state, run.context)
            yield
            run.active, run.masks, run.state, run.context = before_others
        elif alive and not moved:
            waits = "; ".join(f"{contexts[i].role.name} waits for {contexts[i].waits_for}" for i in alive)
            raise Fault(f"is in a deadlock, all threads wait: {waits}", contexts[alive[0]].role.first)
    run.active, run.masks, run.state = before
    run.context = None


def _have_registers(roles: list[Role]) -> None:
    """Whoever wants more registers waits until others have given theirs back."""
    threads = sum(role.threads for role in roles)
    first = at_first(threads)
    wanted = sum(role.threads * (role.registers or first) for role in roles)
    if wanted > threads * first:
        raise Fault(
            f"is in a deadlock, all threads wait: roles want {wanted} registers of {threads * first}",
            roles[0].first,
        )


def finish(run: Threads) -> None:
    """The end of a block: nothing may be under way, for memory is somebody else's by then."""
    for group in [*run.state.get("groups", []), run.state.get("open", [])]:
        for memory, threads, _, _ in group:
            raise Fault(f"ends with a copy to {memory.name} under way", int(threads[0]))


def done(run: Threads) -> None:
    """The end of a block: no copy may be under way, for memory is somebody else's by then."""
    for barrier in run.barriers.values():
        if barrier.copies or barrier.bytes:
            raise Fault(f"ends with copies under way that arrive at {barrier.name}", 0)


# --- barriers


def _find_mbarrier(run: Threads, node: UOp, threads: Array) -> MBarrier:
    address = run.address(node)
    places = run.spread(address.places)[threads]
    if (places != places[0]).any():
        raise Fault("does one thing to several barriers at once", int(threads[0]))
    key = (address.memory, int(places[0]))
    found = run.barriers.get(key)
    if found is None:
        raise Fault(f"uses a barrier of {address.memory.name} that nobody has set up", int(threads[0]))
    if not found.met:
        raise Fault(f"uses {found.name}, which others may not have set up yet", int(threads[0]))
    return found


def _who(run: Threads, node: UOp) -> Array:
    chosen = run.who(run.address(node).gate)
    return run.numbers if chosen is None else run.numbers[chosen]


def mbarrier(run: Threads, node: UOp) -> bool | None:
    """MBARRIER; False if it has to be tried again."""
    what: MBarrierStep = node.arg
    where = node.src[0]
    threads = _who(run, where)
    if len(threads) == 0:
        return None
    if what.what == "init":
        memory: Any = run.address(where).memory
        slot = int(run.spread(run.address(where).places)[threads[0]])
        run.barriers[(memory, slot)] = MBarrier(f"barrier {slot} of {memory.name}", what.amount)
        return None
    barrier = _find_mbarrier(run, where, threads)
    if what.what == "wait":
        parity = run.spread(run.value(node.src[1]))[threads]
        if not barrier.is_over(int(parity[0])):
            if run.context is not None:
                run.context.waits_for = f"{barrier.name}, phase {int(parity[0])}"
            return False
        _receive(run, barrier)
    else:
        barrier.arrive(threads, what.amount if what.what == "expect" else 0)
        for other in _others(run, what.blocks):
            twin = _twin(other, barrier.name, int(threads[0]))
            twin.arrive_from_another_block(len(threads), int(threads[0]))
            other.progress += 1
    run.progress += 1
    return None


def _others(run: Threads, blocks: int) -> list[Threads]:
    """The other blocks of the cluster, for what is done in so many of them."""
    if blocks not in (1, len(run.cluster)):
        raise Fault(f"does something in {blocks} blocks of a cluster of {len(run.cluster)}", 0)
    return [other for other in run.cluster if other is not run] if blocks > 1 else []


def _twin(other: Threads, name: str, thread: int) -> MBarrier:
    """The barrier of that name in another block."""
    for barrier in other.barriers.values():
        if barrier.name == name:
            return barrier
    raise Fault(f"uses {name} of another block, which nobody has set up", thread)


def _receive(run: Threads, barrier: MBarrier) -> None:
    """What was done before the arrivals is seen by those who have waited."""
    for memory, places, data in barrier.landed:
        memory.land(places, data)
    if barrier.came:
        came = np.concatenate(barrier.came)
        for shared in run.shared:
            shared.seen(came)
    barrier.landed, barrier.came = [], []


# --- boxes


@final
class TensorMap:
    """A buffer as TMA sees it."""

    def __init__(self, memory: GlobalMemory, box: Box) -> None:
        self.memory = memory
        self.box = box

    def read(self, thread: int, at: list[int]) -> Array:
        """The box that begins there, rows of its first dimension; zeros outside."""
        box = self.box
        grids: list[Array] = []
        if box.walk is None:
            axes = [np.arange(n) + a for n, a in zip(box.part, at, strict=True)]
            grids += np.meshgrid(*axes, indexing="ij")
        else:
            grids += self._walked(box.walk, at)
        inside = np.ones(box.part, dtype=np.bool_)
        where = np.zeros(box.part, dtype=np.int64)
        for g, size, stride in zip(grids, box.sizes, box.strides, strict=True):
            inside &= (g >= 0) & (g < size)
            where += g * stride
        data = np.zeros(box.part, dtype=storage(self.memory.dtype))
        chosen = where[inside]
        if chosen.size:
            data[inside] = self.memory.read(np.full(chosen.size, thread), chosen)
        if box.tf32:
            bits = data.view(np.uint32)
            nan = np.isnan(data)
            rounded = (bits + (0xFFF + (bits >> 13 & 1))) & ~np.uint32(0x1FFF)
            data = np.where(nan, bits, rounded.astype(np.uint32)).view(np.float32)
        # first dimension fastest: rows of the tile
        return data.transpose(*reversed(range(data.ndim))).reshape(-1, box.part[0])

    def _walked(self, walk: Walk, at: list[int]) -> list[Array]:
        """Coordinates of an im2col copy's elements: in each dimension, for elements of a row and places."""
        box, rank = self.box, len(self.box.sizes)
        first, *begin, image = at[:rank]
        offsets = at[rank:]
        counts = [
            (size - 1 + high - low) // step + 1
            for size, low, high, step in zip(box.sizes[1:-1], walk.lower, walk.upper, walk.steps, strict=True)
        ]
        number = image
        for place_, low, step, count in reversed(
            list(zip(begin, walk.lower, walk.steps, counts, strict=True))
        ):
            turn, rest = divmod(place_ - low, step)
            if rest or not 0 <= turn < count:
                raise DeviceError(f"a walk through images begins at {at}, which is none of its places")
            number = number * count + turn
        left = number + np.arange(box.part[1])
        found = [first + np.arange(box.part[0])[:, None] + 0 * left]
        for low, step, count, offset in zip(walk.lower, walk.steps, counts, offsets, strict=True):
            if not 0 <= offset < 1 << 16:
                raise DeviceError(f"a window cannot be shifted by {offset}")
            found.append(np.broadcast_to(low + step * (left % count) + offset, box.part))
            left = left // count
        return [*found, np.broadcast_to(left, box.part)]


def define_tensor_map(run: Threads, node: UOp) -> TensorMap:
    """DEFINE_TENSOR_MAP."""
    memory: Any = run.values[node.src[0]]
    box: Box = node.arg
    size = memory.dtype.itemsize
    rows = [stride * size for stride in box.strides[1:]]
    if memory.offset % BOX_UNIT or any(nbytes % BOX_UNIT for nbytes in rows):
        raise Fault(f"describes {memory.name}, whose rows do not begin at multiples of {BOX_UNIT} bytes", 0)
    if max(box.part) > MOST_OF_A_BOX or box.part[0] * size > PANEL:
        raise Fault(f"copies a box of {box.part} elements at once, which is too large", 0)
    return TensorMap(memory, box)


def copy_box(run: Threads, node: UOp) -> None:
    """ASYNC_COPY of a box: rows of 128 bytes, their chunks swizzled by the row's number."""
    target, source, where, *coordinates = node.src
    threads = _who(run, target)
    if len(threads) != 1:
        raise DeviceError("a box is copied by one thread", place=place(node))
    thread = int(threads[0])
    described: TensorMap = run.values[source]
    at = [int(run.spread(run.value(c))[thread]) for c in coordinates]
    data = described.read(thread, at)
    address = run.address(target)
    memory = address.memory
    assert isinstance(memory, SharedMemory)
    size = memory.dtype.itemsize
    start = int(run.spread(address.places)[thread]) * size
    rows, columns = np.indices(data.shape)
    linear = start + rows * PANEL + columns * size
    linear ^= (linear >> 7 & 7) << 4
    places = (linear // size).reshape(-1)
    flat = data.reshape(-1)
    if flat.dtype != memory.data.dtype:
        flat = flat.view(memory.data.dtype)
    barrier = _find_mbarrier(run, where, threads)
    if not barrier.fenced:
        raise Fault(f"copies for {barrier.name}, which was set up without a fence", thread)
    box = described.box
    behind = np.broadcast_to(at[0] + np.arange(data.shape[1]) >= box.sizes[0], data.shape).reshape(-1)
    memory.fills(places, behind)
    _bring(run, memory, places, flat, barrier, thread)
    for other in _others(run, box.blocks):
        same = next(m for m in other.shared if m.name == memory.name)
        same.fills(places, behind)
        _bring(other, same, places, flat, _twin(other, barrier.name, thread), thread)


def _bring(
    run: Threads, memory: SharedMemory, places: Array, data: Array, barrier: MBarrier, thread: int
) -> None:
    """A copy into the memory of a block, on its way."""
    _unread(run, memory, places, thread)
    memory.replaced(places, thread)
    barrier.copies.append((memory, places, data))
    barrier.bytes -= data.nbytes
    barrier.look()
    run.progress += 1


def _unread(run: Threads, memory: SharedMemory, places: Array, thread: int) -> None:
    """No unit of any role may still be reading what is overwritten."""
    wanted = np.zeros(memory.size, dtype=np.bool_)
    wanted[places] = True
    for context in run.contexts:
        for group in [*context.state.get("products", []), context.state.get("reading", [])]:
            for other, _, where in group:
                if other is memory and wanted[where].any():
                    raise Fault(f"overwrites {memory.name} while a unit still reads it", thread)


WARP_ROLE_OPS: dict[Op, Callable[[Threads, UOp], Any]] = {Ops.DEFINE_TENSOR_MAP: define_tensor_map}
