"""A worker of a search: a process of its own that compiles candidates and times them.

It reads messages from its input and answers each on its output: a line of JSON with the length of the bytes
that follow. If a candidate crashes it or never ends, whoever has sent it loses this process and nothing else.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import astuple
from importlib import import_module
from typing import IO, Any, final

import numpy as np

from morok import knobs
from morok.device.base import Device, Program
from morok.device.buffer import Buffer
from morok.device.tuning.tunable import Tunable, Turns
from morok.dtype import DType
from morok.errors import OutOfMemory
from morok.ir.arithmetic.arrays import storage
from morok.ir.checks import memory_of
from morok.ir.node import UOp, toposort
from morok.ir.ops import Ops
from morok.ir.python_form import parse
from morok.optimize.actions.table import apply_all
from morok.optimize.record import Opt
from morok.optimize.search.race import PairedTiming, Stopwatch, uncontended_turns
from morok.symbolic.quotients import split_sum
from morok.symbolic.sets import simplify

ENOUGH = 0.02  # seconds of measuring
SHORTEST = 2e-4  # seconds that a clock is read for
REPEATS = 5  # at least, unless the first is too slow
KEPT = 8  # programs that stay loaded
COPIES = 32  # sets of buffers at most, to take turns with
COLD = 2  # times the largest cache: what was touched so long ago is not in it any more
_PATTERN = 1 << 20  # random elements, repeated
_BLOCK = 1 << 18  # elements that are compared at a time

Message = dict[str, Any]


def as_bytes(message: Message, blob: bytes = b"") -> bytes:
    """One message with its bytes."""
    return json.dumps({**message, "bytes": len(blob)}).encode() + b"\n" + blob


def read_message(pipe: IO[bytes]) -> tuple[Message, bytes] | None:
    """The next message; None when the other side is gone."""
    line = pipe.readline()
    if not line.endswith(b"\n"):
        return None
    message: Message = json.loads(line)
    blob = pipe.read(message["bytes"])
    return (message, blob) if len(blob) == message["bytes"] else None


def opts_from(rows: Sequence[Sequence[Any]]) -> tuple[Opt, ...]:
    """Actions as they were written with `opts_to`."""
    return tuple(Opt(str(n), int(a), int(m), tuple(map(int, axes))) for n, a, m, axes in rows)


def opts_to(opts: Sequence[Opt]) -> list[list[Any]]:
    """Actions as plain values."""
    return [[opt.name, opt.axis, opt.amount, list(opt.axes)] for opt in opts]


# --- data for a kernel


def index_limits(ast: UOp) -> dict[int, int]:
    """How large the elements of buffers that hold indices may be, so that they point into what they index."""
    found: dict[int, int] = {}
    types = memory_of(ast)
    for node in toposort(ast):
        if node.op is not Ops.INDEX or node.src[0].op is not Ops.DEFINE_GLOBAL:
            continue
        size = types[int(node.src[0].arg)][1]
        for term, factor in split_sum(simplify(node.src[1]))[0]:
            for read in toposort(term):
                if read.op is Ops.INDEX and read.src[0].op is Ops.DEFINE_GLOBAL and not read.dtype.is_float:
                    limit = max(1, size // max(1, abs(factor)))
                    number = int(read.src[0].arg)
                    found[number] = min(found.get(number, limit), limit)
    return found


def random_data(dtype: DType, size: int, limit: int, seed: int) -> Any:
    """Elements to time a kernel with: normal ones, or whole numbers below a limit."""
    random = np.random.default_rng(seed)
    count = min(size, _PATTERN)
    if dtype.is_float:
        pattern: Any = random.standard_normal(count, dtype=np.float32)
    else:
        pattern = random.integers(0, 2 if dtype.is_bool else max(1, limit), count)
    return np.resize(pattern, size).astype(storage(dtype))


def written_buffers(ast: UOp) -> list[int]:
    """The buffers that a kernel writes."""
    stores = (effect.src[0] if effect.op is Ops.END else effect for effect in ast.src)
    return sorted({int(store.src[0].src[0].arg) for store in stores})


def is_same(got: Any, want: Any) -> bool:
    """Equal, up to the order in which floats are added. Block by block: results may be large."""
    exact = want.dtype.kind in "iub"
    wide = np.float64 if want.dtype.itemsize == 8 else np.float32
    limit = None
    for i in range(0, want.size, _BLOCK):
        a, b = got[i : i + _BLOCK], want[i : i + _BLOCK]
        if np.array_equal(a.view(np.uint8), b.view(np.uint8)):
            continue
        if exact:
            return False
        if limit is None:
            tolerance = {2: 5e-2, 4: 1e-3, 8: 1e-6}.get(want.dtype.itemsize, 0.3)
            limit = tolerance * max(1e-6, _largest(want, wide))
        a, b = a.astype(wide), b.astype(wide)
        finite = np.isfinite(b)
        if not finite.all():
            if not np.array_equal(a[~finite], b[~finite], equal_nan=True):
                return False
            a, b = a[finite], b[finite]
        if a.size and not np.abs(a - b).max() <= limit:
            return False
    return True


def _largest(values: Any, wide: Any) -> float:
    """The largest finite magnitude."""
    found = 0.0
    for i in range(0, values.size, _BLOCK):
        part = np.abs(values[i : i + _BLOCK].astype(wide))
        found = max(found, float(part.max(initial=0.0, where=np.isfinite(part))))
    return found


# --- the work


@final
class _Kernel:
    """The kernel that is searched for, with memory to run it on."""

    def __init__(self, device: Device, ast: UOp) -> None:
        self.device = device
        self.ast = ast
        self.types = memory_of(ast)
        self.limits = index_limits(ast)
        self.written = written_buffers(ast)
        self.values = {str(n.arg[0]): int(n.arg[2]) for n in toposort(ast) if n.op is Ops.DEFINE_VAR}
        self.buffers: list[Buffer] | None = None
        self.fresh: dict[int, Buffer] = {}
        self.copies: list[list[Buffer]] | None = None
        self.wanted: list[Any] | None = None
        self.programs: dict[int, Program] = {}

    def memory(self) -> list[Buffer]:
        """The buffers, filled when they are first asked for."""
        if self.buffers is None:
            self.buffers = [self.device.buffer(size, dtype) for dtype, size in self.types.values()]
            self._fill(list(self.types))
            with contextlib.suppress(OutOfMemory):
                self.fresh = {number: self.buffers[number].clone() for number in self.written}
        return self.buffers

    def _fill(self, numbers: Sequence[int]) -> None:
        assert self.buffers is not None
        for number in numbers:
            dtype, size = self.types[number]
            limit = self.limits.get(number, 5)
            self.buffers[number].copy_in(random_data(dtype, size, limit, number))

    def _renew(self) -> None:
        """What candidates write gets back what it was filled with."""
        buffers = self.memory()
        for number in self.written:
            if number in self.fresh:
                buffers[number].copy_from(self.fresh[number])
            else:
                self._fill([number])

    def sets(self) -> list[list[Buffer]]:
        """Copies of all buffers, so many that none of the caches holds them: one where one is too large."""
        if self.copies is None:
            assert isinstance(self.device, Tunable)
            own = self.memory()
            total = max(1, sum(buffer.nbytes for buffer in own))
            wanted = min(COPIES, 1 + COLD * self.device.cache_bytes() // total)
            self.copies = [own]
            with contextlib.suppress(OutOfMemory):
                for _ in range(wanted - 1):
                    self.copies.append([buffer.clone() for buffer in own])
        return self.copies

    def program(self, number: int, code: bytes) -> Program:
        """A candidate, loaded and checked. The first one that runs is what all others are compared with."""
        found = self.programs.get(number)
        if found is not None:
            return found
        assert isinstance(self.device, Tunable)
        buffers = self.memory()
        self._renew()
        program = self.device.load(code, "candidate")
        program(buffers, self.values)
        self.device.synchronize()
        results = [buffers[n].copy_out() for n in self.written]
        if self.wanted is None:
            self.wanted = results
        elif not all(map(is_same, results, self.wanted)):
            raise ValueError("the results differ from those of the first candidate")
        if len(self.programs) >= KEPT:
            self.programs.pop(next(iter(self.programs)))
        self.programs[number] = program
        return program

    def clock(self, program: Program, turns: Turns) -> Stopwatch:
        """The stopwatch of a candidate."""
        assert isinstance(self.device, Tunable)
        return self.device.stopwatch(program, turns, self.values)

    def race(self, old: Program, new: Program, seconds: float) -> list[PairedTiming]:
        """Two candidates in turns: with all data in the caches, and with data that have to be fetched."""
        assert isinstance(self.device, Tunable)
        started = time.perf_counter()
        conditions = {"warm": [self.memory()]}
        if len(self.sets()) > 1:
            conditions["cold"] = self.sets()
        found: list[PairedTiming] = []
        for i, (name, turns) in enumerate(conditions.items(), 1):
            until = started + seconds * i / len(conditions)
            watches = self.clock(old, turns), self.clock(new, turns)
            timing = uncontended_turns(
                name, *watches, time.perf_counter, until, self.device.contention_monitor, time.sleep
            )
            if timing is None:  # half of the truth is none
                return []
            found.append(timing)
        return found


def measure(watch: Stopwatch, cutoff: float) -> float:
    """The best time of some runs, after one that was for the caches; one is enough if it is too slow."""
    once = watch(1)
    if once > cutoff:
        return once
    count = max(1, math.ceil(SHORTEST / max(once, 1e-9)))
    best, spent, runs = once, 0.0, 0
    while spent < ENOUGH or runs < REPEATS:
        seconds = watch(count)
        best = min(best, seconds / count)
        spent += seconds
        runs += 1
        if best > cutoff or spent > 10 * ENOUGH:
            break
    return best


@final
class _Worker:
    def __init__(self) -> None:
        self.device: Any = None
        self.kernel: _Kernel | None = None
        self.options = contextlib.ExitStack()

    @property
    def is_lost(self) -> bool:
        """Whether the device does nothing more for this process, after what a candidate has done to it."""
        return getattr(getattr(self.device, "driver", None), "lost", None) is not None

    def answer(self, message: Message, blob: bytes) -> tuple[Message, bytes]:
        """What a message asks for."""
        task = message["do"]
        if task == "open":
            sys.path[:0] = [path for path in message["path"] if path not in sys.path]
            # For as long as the process lives: the options of whoever searches. A block that nobody holds
            # would end at once.
            self.options.enter_context(knobs.override(**message["knobs"]))
            module, _, function = message["opener"].partition(":")
            self.device = getattr(import_module(module), function)(message["device"])
            return {}, b""
        if task == "kernel":
            self.kernel = _Kernel(self.device, parse(blob.decode()))
            return {}, b""
        assert self.kernel is not None
        if task == "build":
            started = time.perf_counter()
            ast = apply_all(self.kernel.ast, opts_from(message["opts"]), self.device.machine)
            code = self.device.build(ast, "candidate")
            return {"took": time.perf_counter() - started}, code
        kernel = self.kernel
        if task == "race":
            cut = message["cut"]  # both codes lie in the bytes
            old, new = kernel.program(message["old"], blob[:cut]), kernel.program(message["new"], blob[cut:])
            return {"timings": [astuple(timing) for timing in kernel.race(old, new, message["seconds"])]}, b""
        watch = kernel.clock(kernel.program(message["number"], blob), [kernel.memory()])
        return {"seconds": measure(watch, message["cutoff"])}, b""


def main() -> None:
    """Answers messages until there are no more. What is printed meanwhile goes to the error output."""
    source, target = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    worker = _Worker()
    while (received := read_message(source)) is not None:
        try:
            message, blob = worker.answer(*received)
        except Exception as error:  # a candidate that cannot be compiled is one of many
            message, blob = {"error": f"{type(error).__name__}: {error}", "lost": worker.is_lost}, b""
        target.write(as_bytes(message, blob))
        target.flush()
