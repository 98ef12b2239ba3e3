"""What the machine can do at most, measured in the same run: multiply-adds in registers, copies of memory.

Both are a few lines of LLVM IR, so that no library and no compiler of tensors is part of the yardstick.
Copies that stay in a cache are faster than others, so a few sizes are measured where that matters.
"""

from __future__ import annotations

import ctypes
import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import final

import numpy as np

_CHAINS = 16  # independent sums: enough to hide the latency, few enough for the registers
_STEPS = 1_000_000
_COPIED = 128 << 20  # bytes, far beyond the caches
_SIZES = (1 << 15, 1 << 18, 1 << 20, 1 << 22, 1 << 24)  # bytes of a copy and its source, of all threads
_CYCLES = 1 << 20  # steps of a chain of additions
_LINKS = 8  # additions of a step, each waiting for the one before
_REPEATS = 8


@final
@dataclass(frozen=True)
class Limits:
    """Of all threads together."""

    flops: float  # float32, per second
    copy: float  # bytes per second, read and written
    threads: int
    caches: tuple[tuple[int, float], ...] = ()  # the same for so many bytes in all, that fit into some cache
    clock: float = 0.0  # cycles per second of a core; 0: not measured
    units: tuple[tuple[str, float], ...] = ()  # operations per second of matrix units, by the type they take
    measured: bool = True  # or computed from what is known of the machine

    def raised(self, again: Limits) -> Limits:
        """The better of two measurements."""
        return replace(self, flops=max(self.flops, again.flops), copy=max(self.copy, again.copy))

    def bandwidth(self, nbytes: float) -> float:
        """Bytes per second for a kernel that touches so many in all: that of the smallest cache with room."""
        return max([self.copy, *(rate for size, rate in self.caches if nbytes <= size)])


def peak_ir(lanes: int, chains: int = _CHAINS) -> str:
    """A loop of multiply-adds on registers alone, in so many sums."""
    v = f"<{lanes} x float>"
    zero = "zeroinitializer"
    lines = [
        f"declare {v} @llvm.fma.v{lanes}f32({v}, {v}, {v})",
        "define void @peak(i64 %n, ptr %out) {",
        "entry:",
        f"  %x = load {v}, ptr %out, align 4",
        f"  %q = getelementptr float, ptr %out, i64 {lanes}",
        f"  %y = load {v}, ptr %q, align 4",
        "  br label %loop",
        "loop:",
        "  %i = phi i64 [0, %entry], [%j, %loop]",
    ]
    lines += [f"  %a{k} = phi {v} [{zero}, %entry], [%b{k}, %loop]" for k in range(chains)]
    for k in range(chains):
        # into the sum, as matrix products do it: some machines have no other form
        lines.append(f"  %b{k} = call {v} @llvm.fma.v{lanes}f32({v} %x, {v} %y, {v} %a{k})")
    lines += [
        "  %j = add i64 %i, 1",
        "  %more = icmp ult i64 %j, %n",
        "  br i1 %more, label %loop, label %done",
    ]
    lines.append("done:")
    total = "%b0"
    for k in range(1, chains):
        lines.append(f"  %s{k} = fadd {v} {total}, %b{k}")
        total = f"%s{k}"
    lines += [f"  store {v} {total}, ptr %out, align 4", "  ret void", "}"]
    return "\n".join(lines)


def copy_ir(lanes: int) -> str:
    """A loop of loads and stores, four vectors at a time, and all of it so many times."""
    v = f"<{lanes} x float>"
    lines = [
        "define void @copy(ptr %from, ptr %to, i64 %n, i64 %times) {",
        "entry:",
        "  br label %again",
        "again:",
        "  %t = phi i64 [0, %entry], [%u, %end]",
        "  br label %loop",
        "loop:",
        "  %i = phi i64 [0, %again], [%j, %loop]",
    ]
    for k in range(4):
        lines += [
            f"  %o{k} = add i64 %i, {k * lanes}",
            f"  %p{k} = getelementptr float, ptr %from, i64 %o{k}",
            f"  %q{k} = getelementptr float, ptr %to, i64 %o{k}",
            f"  %x{k} = load {v}, ptr %p{k}, align 4",
        ]
    lines += [f"  store {v} %x{k}, ptr %q{k}, align 4" for k in range(4)]
    lines += [
        f"  %j = add i64 %i, {4 * lanes}",
        "  %more = icmp ult i64 %j, %n",
        "  br i1 %more, label %loop, label %end",
        "end:",
        "  %u = add i64 %t, 1",
        "  %over = icmp ult i64 %u, %times",
        "  br i1 %over, label %again, label %done",
        "done:",
        "  ret void",
        "}",
    ]
    return "\n".join(lines)


def chain_ir() -> str:
    """A loop whose additions wait for one another: a cycle each."""
    lines = ["define i64 @chain(i64 %n, i64 %by) {", "entry:", "  br label %loop", "loop:"]
    lines += ["  %i = phi i64 [0, %entry], [%j, %loop]", "  %a0 = phi i64 [0, %entry], [%a8, %loop]"]
    for k in range(_LINKS):  # what is added changes, or the eight would become one
        lines.append(f"  %a{k + 1} = {'add' if k % 2 else 'xor'} i64 %a{k}, %by")
    lines += ["  %j = add i64 %i, 1", "  %more = icmp ult i64 %j, %n"]
    lines += ["  br i1 %more, label %loop, label %done", "done:", "  ret i64 %a8", "}"]
    return "\n".join(lines)


def measure_limits(threads: int, caches: bool = False) -> Limits:
    """Runs both loops on all threads, the best of some repeats; with `caches` also smaller copies."""
    from morok.device.cpu.llvm import Code, compile_object, host
    from morok.machine.choose import cpu_machine

    lanes = max(4, cpu_machine(host()).vector_bytes // 4)
    text = "\n".join((peak_ir(lanes), copy_ir(lanes), chain_ir()))
    code = Code(compile_object(text), ("peak", "copy", "chain"))
    # ctypes lets go of Python's lock while they run
    peak = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_void_p)(code.addresses["peak"])
    given = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
    copy = ctypes.CFUNCTYPE(None, *given)(code.addresses["copy"])
    chain = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)(code.addresses["chain"])
    outs = np.full((threads, 64), 0.5, np.float32)
    count = _COPIED // 4 // threads // (4 * lanes) * (4 * lanes)
    source, target = np.ones((threads, count), np.float32), np.zeros((threads, count), np.float32)

    def multiply(t: int) -> None:
        peak(_STEPS, outs[t].ctypes.data)

    def move(t: int) -> None:
        copy(source[t].ctypes.data, target[t].ctypes.data, count, 1)

    def move_part(part: int, times: int) -> Callable[[int], None]:
        def again(t: int) -> None:
            copy(source[t].ctypes.data, target[t].ctypes.data, part, times)

        return again

    found = []
    with ThreadPoolExecutor(threads) as pool:
        flops = 2.0 * _STEPS * _CHAINS * lanes * threads / _best(pool, multiply, threads)
        moved = 2.0 * source.nbytes / _best(pool, move, threads)
        for size in _SIZES if caches else ():
            part = size // 8 // threads // (4 * lanes) * (4 * lanes)
            times = max(1, (1 << 25) // size)
            if part and 8 * part * threads <= 2 * source.nbytes:
                rate = 8.0 * part * threads * times / _best(pool, move_part(part, times), threads)
                found.append((size, rate))
        clock = _LINKS * _CYCLES / _best(pool, lambda t: chain(_CYCLES, 3), 1) if caches else 0.0
    if not (target == 1).all():
        raise RuntimeError("the copy that measures the memory has copied wrong")
    return Limits(flops, moved, threads, tuple(found), clock)


def _best(pool: ThreadPoolExecutor, work: Callable[[int], None], threads: int) -> float:
    best = math.inf
    for _ in range(_REPEATS):
        started = time.perf_counter()
        list(pool.map(work, range(threads)))
        best = min(best, time.perf_counter() - started)
    return best
