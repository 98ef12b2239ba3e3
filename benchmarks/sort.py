"""Sorting on an NVIDIA GPU: values and positions, beside torch's stable sort, compared bit by bit.

Times are medians of device events around single calls, in µs; the last column is torch's time over morok's.

    python benchmarks/sort.py [--sizes 1,16,64] [--types float32,int64] [--calls 20] [--kernels]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--sizes", default="1,16,64", help="in millions (2^20)")
    parser.add_argument("--types", default="float32,int64")
    parser.add_argument("--calls", type=int, default=20)
    parser.add_argument("--kernels", action="store_true", help="the time of each kernel as well")
    given = parser.parse_args()
    print(f"{'elements':>9} {'type':<8} {'morok':>9} {'torch':>9} {'ratio':>6}")
    for size in given.sizes.split(","):
        for dtype in given.types.split(","):
            print(row(int(size) << 20, dtype, given.calls, given.kernels), flush=True)


if __name__ == "__main__":
    main()
