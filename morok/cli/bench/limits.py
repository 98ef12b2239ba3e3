"""What the machine can do at most, measured in the same run: multiply-adds in registers, copies of memory.

Both are a few lines of LLVM IR, so that no library and no compiler of tensors is part of the yardstick.
"""

from __future__ import annotations

import ctypes
import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import final

import numpy as np

_CHAINS = 16  # independent sums: enough to hide the latency, few enough for the registers
_STEPS = 1_000_000
_COPIED = 128 << 20  # bytes, far beyond the caches
_REPEATS = 8


@final
@dataclass(frozen=True)
class Limits:
    """Of all threads together."""

    flops: float  # float32, per second
    copy: float  # bytes per second, read and written
    threads: int

    def raised(self, again: Limits) -> Limits:
        """The better of two measurements."""
        return Limits(max(self.flops, again.flops), max(self.copy, again.copy), self.threads)


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
    """A loop of loads and stores, four vectors at a time."""
    v = f"<{lanes} x float>"
    lines = [
        "define void @copy(ptr %from, ptr %to, i64 %n) {",
        "entry:",
        "  br label %loop",
        "loop:",
        "  %i = phi i64 [0, %entry], [%j, %loop]",
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
        "  br i1 %more, label %loop, label %done",
        "done:",
        "  ret void",
        "}",
    ]
    return "\n".join(lines)


def measure_limits(threads: int) -> Limits:
    """Runs both loops on all threads, the best of some repeats."""
    from morok.device.cpu.llvm import Code, compile_object, host
    from morok.machine.choose import cpu_machine

    lanes = max(4, cpu_machine(host()).vector_bytes // 4)
    code = Code(compile_object(peak_ir(lanes) + "\n" + copy_ir(lanes)), ("peak", "copy"))
    # ctypes lets go of Python's lock while they run
    peak = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_void_p)(code.addresses["peak"])
    copy = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)(code.addresses["copy"])
    outs = np.full((threads, 64), 0.5, np.float32)
    count = _COPIED // 4 // threads // (4 * lanes) * (4 * lanes)
    source, target = np.ones((threads, count), np.float32), np.zeros((threads, count), np.float32)

    def multiply(t: int) -> None:
        peak(_STEPS, outs[t].ctypes.data)

    def move(t: int) -> None:
        copy(source[t].ctypes.data, target[t].ctypes.data, count)

    with ThreadPoolExecutor(threads) as pool:
        flops = 2.0 * _STEPS * _CHAINS * lanes * threads / _best(pool, multiply, threads)
        moved = 2.0 * source.nbytes / _best(pool, move, threads)
    if not (target == 1).all():
        raise RuntimeError("the copy that measures the memory has copied wrong")
    return Limits(flops, moved, threads)


def _best(pool: ThreadPoolExecutor, work: Callable[[int], None], threads: int) -> float:
    best = math.inf
    for _ in range(_REPEATS):
        started = time.perf_counter()
        list(pool.map(work, range(threads)))
        best = min(best, time.perf_counter() - started)
    return best
