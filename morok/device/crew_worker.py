"""A worker of a search: a process of its own that compiles candidates and times them.

It reads messages from its input and answers each on its output: a line of JSON with the length of the bytes
that follow. If a candidate crashes it or never ends, whoever has sent it loses this process and nothing else.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import IO, Any, final

import numpy as np

from morok import knobs
from morok.device.base import Device
from morok.device.buffer import Buffer
from morok.device.tunable import Stopwatch, Tunable
from morok.dtype import DType, PtrDType
from morok.ir.alu_array import storage
from morok.ir.node import UOp, toposort
from morok.ir.ops import Ops
from morok.ir.python_form import parse
from morok.optimize.actions import apply_all
from morok.optimize.record import Opt
from morok.symbolic.quotients import split_sum
from morok.symbolic.sets import simplify

ENOUGH = 0.02  # seconds of measuring
SHORTEST = 2e-4  # seconds that a clock is read for
REPEATS = 5  # at least, unless the first is too slow
KEPT = 8  # programs that stay loaded
_PATTERN = 1 << 20  # random elements, repeated

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


def element_types(ast: UOp) -> dict[int, tuple[DType, int]]:
    """Type and size of every buffer of a kernel, by number."""
    found: dict[int, tuple[DType, int]] = {}
    for node in toposort(ast):
        if node.op is Ops.DEFINE_GLOBAL and isinstance(node.dtype, PtrDType):
            found[int(node.arg)] = node.dtype.elem, node.dtype.size
    return dict(sorted(found.items()))


def index_limits(ast: UOp) -> dict[int, int]:
    """How large the elements of buffers that hold indices may be, so that they point into what they index."""
    found: dict[int, int] = {}
    types = element_types(ast)
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
    """Equal, up to the order in which floats are added."""
    if want.dtype.kind in "iub" or got.size == 0:
        return bool(np.array_equal(got, want))
    a, b = got.astype(np.float64), want.astype(np.float64)
    finite = np.isfinite(b)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True) or not finite.any():
        return not finite.any() and bool(np.array_equal(a, b, equal_nan=True))
    tolerance = {2: 5e-2, 4: 1e-3, 8: 1e-6}.get(want.dtype.itemsize, 0.3)
    return bool(np.abs(a[finite] - b[finite]).max() <= tolerance * max(1e-6, float(np.abs(b[finite]).max())))


# --- the work


@final
class _Kernel:
    """The kernel that is searched for, with memory to run it on."""

    def __init__(self, device: Device, ast: UOp) -> None:
        self.device = device
        self.ast = ast
        self.types = element_types(ast)
        self.limits = index_limits(ast)
        self.written = written_buffers(ast)
        self.values = {str(n.arg[0]): int(n.arg[2]) for n in toposort(ast) if n.op is Ops.DEFINE_VAR}
        self.buffers: list[Buffer] | None = None
        self.wanted: list[Any] | None = None
        self.programs: dict[int, Stopwatch] = {}

    def fill(self, numbers: Sequence[int]) -> None:
        assert self.buffers is not None
        for number in numbers:
            dtype, size = self.types[number]
            limit = self.limits.get(number, 5)
            self.buffers[number].copy_in(random_data(dtype, size, limit, number))

    def clock(self, number: int, code: bytes) -> Stopwatch:
        """The stopwatch of a candidate. The first one that runs is what all others are compared with."""
        found = self.programs.get(number)
        if found is not None:
            return found
        assert isinstance(self.device, Tunable)
        if self.buffers is None:
            self.buffers = [self.device.buffer(size, dtype) for dtype, size in self.types.values()]
            self.fill(list(self.types))
        else:
            self.fill(self.written)
        program = self.device.load(code, "candidate")
        watch = self.device.stopwatch(program, self.buffers, self.values)
        watch(1)
        results = [self.buffers[n].copy_out() for n in self.written]
        if self.wanted is None:
            self.wanted = results
        elif not all(map(is_same, results, self.wanted)):
            raise ValueError("the results differ from those of the first candidate")
        if len(self.programs) >= KEPT:
            self.programs.pop(next(iter(self.programs)))
        self.programs[number] = watch
        return watch


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

    def answer(self, message: Message, blob: bytes) -> tuple[Message, bytes]:
        """What a message asks for."""
        task = message["do"]
        if task == "open":
            sys.path[:0] = [path for path in message["path"] if path not in sys.path]
            # For as long as the process lives: the options of whoever searches.
            knobs.override(**message["knobs"]).__enter__()
            module, _, function = message["opener"].partition(":")
            self.device = getattr(import_module(module), function)(message["device"])
            return {}, b""
        if task == "kernel":
            self.kernel = _Kernel(self.device, parse(blob.decode()))
            return {}, b""
        assert self.kernel is not None
        if task == "build":
            ast = apply_all(self.kernel.ast, opts_from(message["opts"]), self.device.facts())
            return {}, self.device.build(ast, "candidate")
        watch = self.kernel.clock(message["number"], blob)
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
            message, blob = {"error": f"{type(error).__name__}: {error}"}, b""
        target.write(as_bytes(message, blob))
        target.flush()
