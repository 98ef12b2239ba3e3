"""A list of instructions, run by all threads of some blocks in lock-step (SIMT), in NumPy.

A value is an array with one row per thread, and one column per lane if it is a vector; what is the same for
all threads has no rows. Threads are numbered through all blocks of the run; within a block the first
dimension is the fastest, as on the hardware. A mask says who takes part inside of an IF, or of a loop that
ends earlier for some.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any, final

import numpy as np

from morok.device.emulator.in_flight import watch_for
from morok.device.emulator.mbarriers import (
    WARP_ROLE_OPS,
    done,
    finish,
    is_role,
    mbarrier,
    meet,
    side_by_side,
    together,
)
from morok.device.emulator.memory import Fault, GlobalMemory, Memory, Registers, SharedMemory
from morok.device.emulator.state import Address, Threads
from morok.device.emulator.units import UNITS, WARP, check_unread
from morok.dtype import PtrDType
from morok.errors import DeviceError, VariableError
from morok.ir.arithmetic.alu import evaluate_array
from morok.ir.arithmetic.arrays import storage
from morok.ir.checks import NOTE
from morok.ir.memory import joined_by
from morok.ir.node import UOp, toposort
from morok.ir.ops import Op, Ops
from morok.ir.provenance import place
from morok.render.cuda.shared import places


def _is_of_block(x: UOp) -> bool:
    return any(n.op is Ops.SPECIAL and str(n.arg).startswith("gidx") for n in toposort(x))


@final
class Code:
    """An instruction list with the ends of its loops found."""

    def __init__(self, linear: UOp, name: str) -> None:
        self.name = name
        self.list = linear.src
        self.closing: dict[int, int] = {}
        stack = []
        for i, node in enumerate(self.list):
            if node.op is Ops.RANGE:
                stack.append(i)
            elif node.op is Ops.END:
                self.closing[stack.pop()] = i
        self.roles = any(is_role(n) for n in self.list)
        self.cluster = next((int(n.arg) for n in self.list if n.op is Ops.BARRIER and n.arg is not None), 1)
        # loops that end sooner in some blocks than in others: they meet at no barrier together
        self.uneven = any(n.op is Ops.RANGE and _is_of_block(n.src[0]) for n in self.list)
        # buffers of a block that are never needed together lie in one place
        shared = [n for n in self.list if n.op is Ops.DEFINE_LOCAL]
        self.offsets = dict(zip(shared, places(self.list)[0], strict=True))
        self.specials = {str(n.arg): n for n in self.list if n.op is Ops.SPECIAL}

    def sizes(self, kind: str) -> list[UOp | None]:
        """The ends of the hardware indices of a kind, by dimension; None where there is none."""
        found = {int(name[4:]): n.src[0] for name, n in self.specials.items() if name.startswith(kind)}
        return [found.get(i) for i in range(max(found, default=-1) + 1)]


@final
class Run(Threads):
    """Blocks `first` … `first + count - 1` of a launch."""

    def __init__(
        self,
        code: Code,
        arrays: Mapping[int, Memory],
        values: Mapping[str, int],
        grid: Sequence[int],
        block: Sequence[int],
        first: int,
        count: int,
    ) -> None:
        super().__init__(math.prod(block), count)
        self.code = code
        self.arrays = arrays
        self.variables = values
        self.grid, self.block = grid, block
        self.first, self.count = first, count
        self.at: UOp | None = None
        self.watch = watch_for(code.list)

    def run(self) -> None:
        try:
            for _ in self.whole():
                self.fail("waits for a phase that never ends", 0)
        except Fault as fault:
            self.fail(str(fault), fault.thread)

    def whole(self) -> Iterator[None]:
        """All instructions. Blocks of a cluster end together: what others copy may still be under way."""
        yield from self.stretch(0, len(self.code.list))
        finish(self)
        if len(self.cluster) > 1:
            yield from meet(self)
        done(self)

    def fail(self, what: str, thread: int) -> None:
        """An error that names the kernel, the instruction and the thread."""
        node = self.at
        assert node is not None
        number = self.code.list.index(node)
        inside, block = thread % self.block_size, self.first + thread // self.block_size
        raise DeviceError(
            f"kernel {self.code.name}: instruction {number}, {node.op.name}, in thread {inside} of block "
            f"{block} {what}",
            place=place(node),
        )

    def stretch(self, start: int, stop: int) -> Iterator[None]:
        """Instructions start … stop-1; stops wherever others have to go on first."""
        i = start
        while i < stop:
            node = self.code.list[i]
            if node.op is Ops.RANGE:
                end = self.code.closing[i]
                if is_role(node):
                    end = yield from self.roles(i)
                else:
                    yield from self.loop(node, i + 1, end)
                i = end + 1
                continue
            self.at = node
            if node.op is Ops.BARRIER and node.arg is not None:
                self.step(node)
                yield from meet(self)
            elif node.op is Ops.MBARRIER:
                while mbarrier(self, node) is False:
                    yield
                    self.at = node
            else:
                self.step(node)
            i += 1

    def roles(self, first: int) -> Generator[None, None, int]:
        """All roles from here on, side by side; where the last of them ends."""
        parts = []
        i = first
        while i < len(self.code.list) and is_role(self.code.list[i]):
            end = self.code.closing[i]
            parts.append((self.code.list[i], i + 1, end))
            i = end + 1
        for memory in self.shared:
            memory.fresh = np.zeros(memory.size, dtype=np.bool_)
        yield from side_by_side(self, parts)
        return i - 1

    def step(self, node: UOp) -> None:
        op = node.op
        if self.watch is not None:
            self.watch.before(self, node)
        if op.is_alu:
            own = node.src[-1].dtype
            with np.errstate(all="ignore"):
                operands = [self.value(s) for s in node.src]
                self.values[node] = evaluate_array(op, own, *operands, to=node.dtype)
            return
        handler = _HANDLERS.get(op)
        if handler is not None:
            handler(self, node)
        elif op in UNITS:
            self.values[node] = UNITS[op](self, node)
        elif op in WARP_ROLE_OPS:
            self.values[node] = WARP_ROLE_OPS[op](self, node)
        elif op not in (Ops.CONST, Ops.VCONST, Ops.PREFETCH):
            raise DeviceError(f"the emulator does not know {op.name}", place=place(node))

    def loop(self, node: UOp, start: int, stop: int) -> Iterator[None]:
        """The body, until the last thread is done."""
        self.at = node
        ends = self.value(node.src[0])
        kind = storage(node.dtype)
        before = self.active
        if ends.ndim == 0 or (ends == ends.flat[0]).all():
            for i in range(int(ends.flat[0])):
                self.values[node] = np.asarray(i, dtype=kind)
                yield from self.stretch(start, stop)
            return
        for i in range(int(ends.max())):
            more = self.spread(i < ends)
            self.active = more if before is None else more & before
            if self.active.any():
                self.values[node] = np.asarray(i, dtype=kind)
                yield from self.stretch(start, stop)
        self.active = before

    # --- definitions

    def define_global(self, node: UOp) -> None:
        self.values[node] = self.arrays[node.arg]

    def define_variable(self, node: UOp) -> None:
        name, low, high = node.arg
        found = self.variables.get(name)
        if found is None:
            raise VariableError(f"kernel {self.code.name} needs a value for the variable {name}")
        if not low <= found <= high:
            raise VariableError(f"variable {name} lies in {low} … {high}, so it cannot be {found}")
        self.values[node] = np.asarray(found, dtype=storage(node.dtype))

    def define_registers(self, node: UOp) -> None:
        dtype = node.dtype
        assert isinstance(dtype, PtrDType)
        self.values[node] = Registers(f"the registers {node.arg}", dtype.elem, dtype.size, self.threads)

    def define_shared(self, node: UOp) -> None:
        if node in self.values:  # wherever it stands, also in a loop, it is one place of the block
            return
        dtype = node.dtype
        assert isinstance(dtype, PtrDType)
        name = f"the local memory {node.arg}"
        made = SharedMemory(name, dtype.elem, dtype.size, self.count, self.block_size)
        made.offset = self.code.offsets[node]
        for other in self.shared:
            if made.overlaps(other):
                made.beside.append(other)
                other.beside.append(made)
        self.shared.append(made)
        self.values[node] = made

    def hardware_index(self, node: UOp) -> None:
        kind, dimension = str(node.arg)[:4], int(str(node.arg)[4:])
        sizes = self.grid if kind == "gidx" else self.block
        flat = self.numbers % self.block_size
        if kind == "ridx":  # among the threads of a role
            self.values[node] = (flat - dimension).astype(storage(node.dtype))
            return
        if kind == "gidx":
            flat = self.first + self.numbers // self.block_size
        below = math.prod(sizes[:dimension])
        self.values[node] = (flat // below % sizes[dimension]).astype(storage(node.dtype))

    # --- memory

    def index(self, node: UOp) -> None:
        gate = self.value(node.src[2]) if len(node.src) > 2 else None
        memory: Any = self.values[node.src[0]]
        self.values[node] = Address(memory, self.value(node.src[1]), gate)

    def load(self, node: UOp) -> None:
        address, lanes = self.address(node.src[0]), node.dtype.lanes
        chosen = self.who(address.gate)
        threads, where = self.places(address, lanes, chosen)
        if chosen is None:
            self.values[node] = address.memory.read(threads, where)
            return
        shape = (self.threads,) if lanes == 1 else (self.threads, lanes)
        result = np.zeros(shape, dtype=storage(node.dtype.scalar))
        if len(node.src) > 1:
            result[...] = self.value(node.src[1])
        if len(threads):
            result[chosen] = address.memory.read(threads, where)
        self.values[node] = result

    def store(self, node: UOp) -> None:
        address, value = self.address(node.src[0]), node.src[1]
        chosen = self.who(address.gate)
        threads, where = self.places(address, value.dtype.lanes, chosen)
        if len(threads) == 0:
            return
        data = self.spread(self.value(value), value.dtype.lanes)
        check_unread(self, address.memory, threads, where)
        if node.arg == NOTE and isinstance(
            address.memory, GlobalMemory
        ):  # whoever comes last is as right as the others
            where, data = where[:1], data[:1] if chosen is None else data[chosen][:1]
            address.memory.note(threads[:1], where, data)
            return
        brought = data if chosen is None else data[chosen]
        op = joined_by(node)
        if op is None:
            address.memory.write(threads, where, brought)
        elif isinstance(address.memory, GlobalMemory):
            address.memory.join(threads, where, brought, op)
        else:
            self.fail("joins what it brings with memory of a block", int(threads[0]))

    # --- vectors

    def lanes_of(self, node: UOp) -> None:
        found = self.value(node.src[0])
        if node.src[0].dtype.lanes > 1 and found.ndim == 0:
            found = np.broadcast_to(found, (node.src[0].dtype.lanes,))
        self.values[node] = found[..., node.arg[0]] if len(node.arg) == 1 else found[..., list(node.arg)]

    def join(self, node: UOp) -> None:
        parts = []
        for s in node.src:
            x = self.value(s)
            lanes = s.dtype.lanes
            if lanes == 1:
                x = x[..., None]
            elif x.ndim == 0:
                x = np.broadcast_to(x, (lanes,))
            parts.append(x)
        if any(p.ndim > 1 for p in parts):
            parts = [np.broadcast_to(p, (self.threads, p.shape[-1])) for p in parts]
        self.values[node] = np.concatenate(parts, axis=-1)

    # --- threads among themselves

    def barrier(self, node: UOp) -> None:
        missing = self.absent()
        if missing is not None:
            self.fail("does not come to the barrier that others wait at", missing)
        for memory in self.shared:
            memory.barrier()
        for barrier in self.barriers.values():
            barrier.met = True

    def shuffle(self, node: UOp) -> None:
        width = int(node.arg)
        if width > WARP or WARP % width:
            self.fail(f"asks among {width} lanes; a warp has {WARP}", 0)
        inside = self.numbers % self.block_size
        base = inside // width * width
        wanted = base + self.spread(self.value(node.src[1])) % width
        there = wanted < self.block_size
        if not there.all():
            thread = int(np.flatnonzero(~there)[0])
            self.fail(f"asks lane {int(wanted[thread])} of its block, which does not take part", thread)
        chosen = self.who()
        if chosen is not None:  # the instruction waits for the whole warp, whoever is asked
            warps = (self.numbers - inside) // self.block_size * -(-self.block_size // WARP) + inside // WARP
            missing = ~chosen & np.isin(warps, warps[chosen])
            if missing.any():
                thread = int(np.flatnonzero(missing)[0])
                self.fail("does not come to the exchange of values that others of its warp wait at", thread)
        lanes = node.dtype.lanes
        self.values[node] = self.spread(self.value(node.src[0]), lanes)[self.numbers - inside + wanted]

    # --- conditions

    def open_if(self, node: UOp) -> None:
        self.masks.append(self.active)
        gate = self.spread(self.value(node.src[0]))
        self.active = gate if self.active is None else self.active & gate

    def close_if(self, node: UOp) -> None:
        self.active = self.masks.pop()

    def after(self, node: UOp) -> None:
        if node.src[0] in self.values:
            self.values[node] = self.values[node.src[0]]


def run_cluster(runs: Sequence[Run], switch: Callable[[Run], None]) -> None:
    """Blocks of a cluster, side by side; `switch` is told which one goes on."""

    current = runs[0]

    def steps(run: Run) -> Iterator[None]:
        nonlocal current
        whole = run.whole()
        while True:
            current = run
            switch(run)
            if next(whole, True):
                return
            yield

    try:
        together(runs, [steps(run) for run in runs])
    except Fault as fault:
        current.fail(str(fault), fault.thread)


_HANDLERS: dict[Op, Callable[[Run, UOp], None]] = {
    Ops.DEFINE_GLOBAL: Run.define_global,
    Ops.DEFINE_VAR: Run.define_variable,
    Ops.DEFINE_REG: Run.define_registers,
    Ops.DEFINE_LOCAL: Run.define_shared,
    Ops.SPECIAL: Run.hardware_index,
    Ops.INDEX: Run.index,
    Ops.LOAD: Run.load,
    Ops.STORE: Run.store,
    Ops.GEP: Run.lanes_of,
    Ops.VECTORIZE: Run.join,
    Ops.CAT: Run.join,
    Ops.BARRIER: Run.barrier,
    Ops.SHUFFLE: Run.shuffle,
    Ops.IF: Run.open_if,
    Ops.ENDIF: Run.close_if,
    Ops.AFTER: Run.after,
}

__all__ = ["Address", "Code", "Run", "run_cluster"]
