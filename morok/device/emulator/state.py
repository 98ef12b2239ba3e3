"""What the threads of some blocks have while they run: values, masks, memory, barriers.

The functions that say what an instruction does get a `Threads` and nothing else; who walks the list is in
`run.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, final

import numpy as np

from morok.device.buffer import Array
from morok.device.emulator.memory import Fault, Memory, SharedMemory
from morok.ir.arithmetic.arrays import storage
from morok.ir.node import UOp
from morok.ir.ops import Ops
from morok.ir.warp_roles import Role


@final
class Address:
    """Memory, the place of each thread in it, and the condition under which it may be touched."""

    __slots__ = ("gate", "memory", "places")

    def __init__(self, memory: Memory, places: Array, gate: Array | None) -> None:
        self.memory = memory
        self.places = places
        self.gate = gate


@final
class MBarrier:
    """One barrier of a block."""

    def __init__(self, name: str, count: int) -> None:
        self.name = name
        self.count = count  # arrivals per phase
        self.fenced = False  # whether copies by the hardware find it set up
        self.met = False  # and other threads
        self.left = count
        self.bytes = 0  # that are expected and have not come
        self.over = 0  # phases that are over
        self.copies: list[tuple[SharedMemory, Array, Array]] = []  # of this phase
        self.landed: list[tuple[SharedMemory, Array, Array]] = []  # of phases that nobody has waited for
        self.threads: list[Array] = []  # that have arrived in this phase
        self.came: list[Array] = []  # and in those that nobody has waited for

    def arrive(self, threads: Array, expected: int) -> None:
        if len(threads) > self.left:
            raise Fault(f"arrives at {self.name}, where everybody is already", int(threads[0]))
        self.left -= len(threads)
        self.bytes += expected
        self.threads.append(threads)
        self.look()

    def arrive_from_another_block(self, count: int, thread: int) -> None:
        """Arrivals of threads whose own memory this block does not see."""
        if count > self.left:
            raise Fault(f"arrives at {self.name} of another block, where everybody is already", thread)
        self.left -= count
        self.look()

    def look(self) -> None:
        """The phase is over once all have arrived, and all bytes."""
        if self.left == 0 and self.bytes == 0:
            self.over += 1
            self.left = self.count
            self.landed += self.copies
            self.came += self.threads
            self.copies, self.threads = [], []

    def is_over(self, parity: int) -> bool:
        """Whether the phase of this parity is over: the one that runs now has the other."""
        return self.over % 2 != parity


@final
class Context:
    """What a coroutine has for itself."""

    def __init__(self, run: Threads, role: Role) -> None:
        self.role = role
        inside = run.numbers % run.block_size
        last = role.first + (1 if role.single else role.threads)
        self.everybody: Array = (inside >= role.first) & (inside < last)
        self.active: Array | None = self.everybody
        self.masks: list[Array | None] = []
        self.state: dict[str, Any] = {}
        self.waits_for = ""


class Threads(ABC):
    """All threads of `count` blocks, numbered through."""

    def __init__(self, block_size: int, count: int) -> None:
        self.block_size = block_size
        self.threads = count * block_size
        self.numbers = np.arange(self.threads)
        self.values: dict[UOp, Any] = {}
        self.active: Array | None = None  # None: everybody
        self.masks: list[Array | None] = []
        self.shared: list[SharedMemory] = []
        self.state: dict[str, Any] = {}  # for hardware ops that have to remember something
        self.barriers: dict[tuple[Any, int], MBarrier] = {}
        self.contexts: list[Context] = []  # of roles
        self.context: Context | None = None  # the one that runs
        self.progress = 0  # counts what others may have waited for
        self.cluster: list[Threads] = [self]  # blocks that share tiles, by rank; this one among them
        self.met = 0  # how often it has come to where all blocks of the cluster meet

    @abstractmethod
    def stretch(self, start: int, stop: int) -> Iterator[None]:
        """Instructions start … stop-1; stops wherever others have to go on first."""

    def value(self, node: UOp) -> Array:
        """An operand."""
        if node.op in (Ops.CONST, Ops.VCONST):
            return np.asarray(node.arg, dtype=storage(node.dtype.scalar))
        found: Array = self.values[node]
        return found

    def spread(self, x: Array, lanes: int = 1) -> Array:
        """A value with a row for every thread."""
        shape = (self.threads,) if lanes == 1 else (self.threads, lanes)
        spread: Array = np.broadcast_to(x, shape)
        return spread

    def address(self, node: UOp) -> Address:
        found: Address = self.values[node]
        return found

    def who(self, gate: Array | None = None) -> Array | None:
        """The threads that take part, under a condition; None: all."""
        mask = self.active
        if gate is not None:
            wide = self.spread(gate)
            mask = wide if mask is None else mask & wide
        return None if mask is None or mask.all() else mask

    def absent(self) -> int | None:
        """A thread of the block, or of the role that runs, that does not take part here."""
        mask = self.who()
        if mask is None:
            return None
        wanted = self.context.everybody if self.context is not None else np.ones_like(mask)
        missing = np.flatnonzero(wanted & ~mask)
        return int(missing[0]) if len(missing) else None

    def places(self, address: Address, lanes: int, chosen: Array | None) -> tuple[Array, Array]:
        """(threads, places) of those who take part; a vector has a column per lane."""
        where = self.spread(address.places).astype(np.int64)
        threads = self.numbers
        if chosen is not None:
            threads, where = threads[chosen], where[chosen]
        return threads, where if lanes == 1 else where[:, None] + np.arange(lanes)
