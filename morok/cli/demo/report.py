"""What the compiler did, for people: kernels with their lines, what was fused, rewrites, caches."""

from __future__ import annotations

import linecache
import os
import time
from collections import Counter
from collections.abc import Sequence
from typing import TextIO

from morok import knobs
from morok.ir.node import UOp, toposort
from morok.ir.ops import Ops
from morok.ir.provenance import place
from morok.runtime.plan import PlannedKernel
from morok.runtime.profile import Profile
from morok.runtime.requests import requests

_WIDTH = 30


class Bar:
    """A line that is written over and over; in a file, one line at the end."""

    def __init__(self, total: int, out: TextIO) -> None:
        self.total, self.out = total, out
        self.began = time.perf_counter()

    def show(self, done: int, loss: float) -> None:
        last = done == self.total
        if not (last or self.out.isatty()):
            return
        filled = _WIDTH * done // max(self.total, 1)
        spent = time.perf_counter() - self.began
        line = (
            f"  {'█' * filled}{'░' * (_WIDTH - filled)} {done}/{self.total}  loss {loss:.3f}  {spent:.1f} s"
        )
        self.out.write(("\r" if self.out.isatty() else "") + line + ("\n" if last else ""))
        self.out.flush()


def kernel_table(taken: Profile, kernels: Sequence[PlannedKernel], source: str, most: int = 12) -> str:
    """The kernels of a profile, the longest first, each with its line and what was fused into it."""
    inside = {(k.name, k.place or "-"): k.ast for k in kernels}
    rows = [f"  {'µs':>6} {'share':>6} {'GFLOP/s':>8} {'GB/s':>6} {'ops':>4}  {'kernel':<22} your line"]
    found = taken.rows()
    for name, where, _, seconds, rate, width, share in found[:most]:
        ast = inside.get((name, where))
        count = len(computed(ast)) if ast is not None else 0
        numbers = f"{seconds * 1e6:>6.0f} {share:>6.1%} {rate:>8.1f} {width:>6.1f} {count:>4}"
        line = _line(where, source)
        also = [w for w in fused_lines(ast) if w != where] if ast is not None else []
        and_also = f"  + line {', '.join(w.rpartition(':')[2] for w in also)}" if also else ""
        rows.append(f"  {numbers}  {name:<22.22} {line}{and_also}")
    rest = found[most:]
    if rest:
        rows.append(f"  {sum(row[3] for row in rest) * 1e6:>6.0f}  in {len(rest)} smaller ones")
    return "\n".join(rows)


def _line(where: str, source: str) -> str:
    """A place, with what is written there if it is in the program's own file."""
    name, _, number = where.rpartition(":")
    if name != os.path.basename(source) or not number.isdigit():
        return where
    text = linecache.getline(source, int(number)).strip()
    return f"{number}: {text[:44]}{'…' if len(text) > 44 else ''}"


def computed(ast: UOp) -> list[UOp]:
    """The operations on values in a kernel."""
    return [n for n in toposort(ast) if (n.op.is_alu or n.op is Ops.REDUCE) and not n.dtype.is_index]


def fused_lines(ast: UOp) -> list[str]:
    """The lines whose operations a kernel computes, those with most operations first."""
    counts = Counter(where for n in computed(ast) if (where := place(n)) is not None)
    return [where for where, _ in counts.most_common(4)]


def operations(kernels: Sequence[PlannedKernel]) -> int:
    """How many operations on values the kernels compute together."""
    return sum(len(computed(k.ast)) for k in kernels)


def cache_lines() -> list[str]:
    """How often a kernel was there already."""
    keeps = knobs.CACHE.value and requests.compiled > 0
    total = requests.remembered + requests.from_disk + requests.compiled
    later = "; the next run finds them on disk" if keeps else ""
    first = f"{total:,} times a kernel was asked for: {requests.remembered:,} times it was in memory"
    second = f"{requests.from_disk:,} times on disk, {requests.compiled:,} times it was compiled{later}"
    return [f"{first},", second]


def short_path(path: str | os.PathLike[str]) -> str:
    """A path as one would type it here."""
    relative = os.path.relpath(path)
    return relative if not relative.startswith("..") else os.fspath(path)
