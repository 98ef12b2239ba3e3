"""Sorting, beside NumPy and torch; results are compared bit by bit.

On an NVIDIA GPU values and positions, beside torch's stable sort: medians of device events around single
calls, in µs; the last column is torch's time over morok's.

On a processor (`--device CPU`, with MOROK_THREADS for both) also the programs nearest to these: rows of some
lengths, columns, other types, descending, values or positions alone, an expression, the k largest. Times are
medians in ms, of a call by itself and of one inside of `jit`; the last two columns are the better of NumPy
and torch over each of these. What need not be stable is compared by value.

    python benchmarks/sort.py [--sizes 1,16,64] [--types float32,int64] [--calls 20] [--kernels]
    MOROK_THREADS=2 python benchmarks/sort.py --device CPU [--sizes 1,64] [--only int8]
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np


def numbers(count: int, dtype: str) -> np.ndarray:
    """A third of them rounded, so that many are equal; floats with zeros of both signs and NaN."""
    random = np.random.default_rng(5)
    if dtype != "float32":
        a = random.integers(-(1 << 63), (1 << 63) - 1, count, dtype=np.int64)
        a[1::3] >>= 40
        return a.astype(dtype)
    a = random.standard_normal(count, dtype=np.float32)
    a[1::3] = np.round(a[1::3], 2)
    a[::1009], a[5::997], a[7::997] = np.nan, -0.0, 0.0
    return a


def median(once: Callable[[], float], calls: int) -> float:
    for _ in range(2):
        once()
    return sorted(once() for _ in range(calls))[calls // 2]


def same(got: Any, want: Any) -> bool:
    return np.array_equal(np.ascontiguousarray(got).view(np.uint8), want.view(np.uint8))


def row(count: int, dtype: str, calls: int, kernels: bool) -> str:
    import torch

    import morok
    from morok.device.registry import get_device

    device: Any = get_device("CUDA")
    a = numbers(count, dtype)
    x, t = morok.Tensor(a, device="cuda").realize(), torch.from_numpy(a).cuda()
    function = morok.jit(lambda x: tuple(x.sort()))
    pairs = zip(function(x), torch.sort(t, stable=True), strict=True)
    right = all(same(got.numpy(), want.cpu().numpy()) for got, want in pairs)
    mine = median(lambda: float(device.measure(lambda: function(x))), calls) * 1e6
    first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)

    def other() -> float:
        first.record()
        torch.sort(t, stable=True)
        last.record()
        last.synchronize()
        return float(first.elapsed_time(last)) * 1e3

    theirs = median(other, calls)
    found = f"{count:>9} {dtype:<8} {mine:>9.0f} {theirs:>9.0f} {theirs / mine:>6.2f}"
    if not right:
        found += "  WRONG"
    if kernels:
        with morok.profile() as profile:
            function(x)
        found += "\n" + " ".join(f"{e.seconds * 1e6:.0f}" for e in profile.events)
    return found


# --- on a processor

Program = tuple[str, np.ndarray, Callable[[Any], Any], Callable[[Any], Any] | None, Callable[[Any], Any]]


def _both(x: Any) -> Any:
    return tuple(x.sort())


def _largest(x: Any) -> Any:
    return x.topk(50).values


def programs(sizes: list[int], types: list[str]) -> Iterator[Program]:
    """Names, inputs, and what morok, NumPy and torch do with them."""
    import torch

    def stable(a: np.ndarray) -> Any:
        return np.argsort(a, kind="stable")

    for size in sizes:
        for dtype in types:
            a = numbers(size << 20, dtype)
            name = f"{size} M {dtype}"
            yield f"{name}, both", a, _both, stable, lambda t: torch.sort(t, stable=True)
            yield f"{name}, values", a, lambda x: x.sort()[0], np.sort, lambda t: torch.sort(t)[0]
            yield f"{name}, order", a, lambda x: x.argsort(), stable, lambda t: torch.argsort(t, stable=True)
    flat = numbers(1 << 20, "float32")
    for rows, count in ((200_000, 5), (20_000, 50), (1000, 1000), (64, 50257)):
        a = numbers(rows * count, "float32").reshape(rows, count)
        name = f"{rows} rows of {count}"
        yield f"{name}, both", a, _both, stable, lambda t: torch.sort(t, stable=True)
        yield f"{name}, values", a, lambda x: x.sort()[0], np.sort, lambda t: torch.sort(t)[0]
    a = numbers(1 << 20, "float32").reshape(1024, 1024)
    yield (
        "columns",
        a,
        lambda x: tuple(x.sort(0)),
        lambda a: np.argsort(a, 0, "stable"),
        lambda t: t.sort(dim=0, stable=True),
    )
    for other in ("int8", "float16", "bool", "int32", "float64"):
        a = numbers(1 << 20, "int64" if other in ("int8", "int32") else "float32").astype(other)
        yield f"1 M {other}, both", a, _both, stable, lambda t: torch.sort(t, stable=True)
        yield f"1 M {other}, values", a, lambda x: x.sort()[0], np.sort, lambda t: torch.sort(t)[0]
    yield (
        "descending",
        flat,
        lambda x: tuple(x.sort(descending=True)),
        None,
        lambda t: t.sort(descending=True, stable=True),
    )
    yield (
        "x·x + x",
        flat,
        lambda x: (x * x + x).sort()[0],
        lambda a: np.sort(a * a + a),
        lambda t: torch.sort(t * t + t)[0],
    )
    a = numbers(64 * 50257, "float32").reshape(64, 50257)
    a = np.nan_to_num(a)
    yield "50 largest of 64 × 50257", a, _largest, None, lambda t: torch.topk(t, 50)[0]


def on_processor(program: Program, calls: int) -> str:
    import torch

    import morok

    name, a, mine, numpys, torchs = program
    x, t = morok.Tensor(a, device="CPU").realize(), torch.from_numpy(a)
    function = morok.jit(mine)

    def at_once() -> None:
        found = mine(x)
        first, *others = found if isinstance(found, tuple) else (found,)
        first.realize(*others)

    def clocked(once: Callable[[], Any]) -> float:
        def seconds() -> float:
            started = time.perf_counter()
            once()
            return time.perf_counter() - started

        return median(seconds, calls) * 1e3

    traced, eager = clocked(lambda: function(x)), clocked(at_once)
    numpys_time = clocked(lambda: numpys(a)) if numpys is not None else math.inf
    torchs_time = clocked(lambda: torchs(t))
    best = min(numpys_time, torchs_time)
    times = " ".join(f"{n:>9.2f}" for n in (eager, traced, numpys_time, torchs_time))
    found = f"{name:<28} {times} {best / eager:>6.2f} {best / traced:>6.2f}"
    return found if is_right(function(x), torchs(t)) else f"{found}  WRONG"


def is_right(got: Any, want: Any) -> bool:
    """Values alone are compared as numbers: zeros of both signs may have changed places."""
    if isinstance(got, tuple):
        exact = np.array_equal(got[1].numpy(), want[1].numpy())
        got, want = got[0], want[0]
        return same(got.numpy(), want.numpy()) if exact else False
    return np.array_equal(got.numpy(), want.numpy(), equal_nan=want.is_floating_point())


def run_on_processor(given: argparse.Namespace) -> None:
    import torch

    from morok import knobs

    torch.set_num_threads(knobs.THREADS.value or torch.get_num_threads())
    print(f"{'':<28} {'eager':>9} {'jit':>9} {'NumPy':>9} {'torch':>9} {'eager':>6} {'jit':>6}")
    sizes = [int(size) for size in given.sizes.split(",")]
    for program in programs(sizes, given.types.split(",")):
        if given.only in program[0]:
            print(on_processor(program, given.calls), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--sizes", default="1,16,64", help="in millions (2^20)")
    parser.add_argument("--types", default="float32,int64")
    parser.add_argument("--calls", type=int, default=20)
    parser.add_argument("--kernels", action="store_true", help="the time of each kernel as well")
    parser.add_argument("--device", default="CUDA")
    parser.add_argument("--only", default="", help="programs of a processor with this in their names")
    given = parser.parse_args()
    if given.device.upper() == "CPU":
        run_on_processor(given)
        return
    print(f"{'elements':>9} {'type':<8} {'morok':>9} {'torch':>9} {'ratio':>6}")
    for size in given.sizes.split(","):
        for dtype in given.types.split(","):
            print(row(int(size) << 20, dtype, given.calls, given.kernels), flush=True)


if __name__ == "__main__":
    main()
