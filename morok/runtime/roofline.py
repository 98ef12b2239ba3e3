"""The roofline of a profile: how near each kernel comes to what the machine allows.

A kernel must touch so many bytes and do so much arithmetic. At the bandwidth and the rate of the machine that
takes some time, the longer of the two; this is its roof. `morok bench --roofline script.py` prints it, and
`morok view` draws it, both from the rows here.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

from morok.device.cpu.limits import Limits
from morok.device.registry import get_device
from morok.dtype import DType
from morok.ir.layout import is_mesh, mesh_of
from morok.ir.node import UOp, toposort
from morok.ir.ops import Ops
from morok.runtime.profile import Event, Profile

NOTABLE = 0.02  # of the time: a kernel that is worth a look
POOR = 0.30  # of its roofline
SMALL = 5e-6  # seconds at the roofline: starting such a kernel takes longer than running it


@final
@dataclass(frozen=True)
class Row:
    """One kernel: all of its runs together."""

    name: str
    place: str
    device: str
    calls: int
    seconds: float
    ops: int  # arithmetic on floats, of all calls
    bytes: int  # memory that it must touch
    share: float  # of the time of all kernels
    roof: float  # seconds at the roofline
    bound: str  # what decides about the roof: memory, arithmetic
    kernel: Any  # its graph; None for a copy

    @property
    def of_roof(self) -> float:
        """The part of its roofline that it reaches; 1 is all."""
        return self.roof / self.seconds if self.seconds else 0.0

    @property
    def flops(self) -> float:
        return self.ops / (self.seconds or 1e-12)

    @property
    def bandwidth(self) -> float:
        return self.bytes / (self.seconds or 1e-12)

    @property
    def is_poor(self) -> bool:
        """Whether it takes a notable part of the time and stays far below its roofline."""
        return self.share > NOTABLE and self.of_roof < POOR

    @property
    def limit(self) -> str:
        """What limits it, in words."""
        if self.of_roof >= POOR:
            return self.bound
        each, roof = self.seconds / self.calls, self.roof / self.calls
        if roof < SMALL and (each < 10 * SMALL or (roof < each / 1000 and each < 200 * SMALL)):
            return "its own start: there is too little to do"
        times = 1 / self.of_roof if self.of_roof else 0.0
        shown = f"{times:,.0f}" if times >= 10 else f"{times:.1f}"
        return f"neither memory nor arithmetic: {self.bound} would allow {shown} times the speed"


@functools.cache
def limits_of(device: str) -> Limits:
    """What a device can do at most: measured where that is possible, from its description elsewhere.

    Once per process, so that all who ask in a run say the same.
    """
    if is_mesh(device):
        return limits_of(mesh_of(device).base)  # ranks of a process take turns on it
    found = get_device(device)
    if device.startswith("CUDA"):
        from morok.device.cuda.device import Cuda
        from morok.device.cuda.limits import measure_limits

        assert isinstance(found, Cuda)
        return measure_limits(found)
    if device.startswith("EMULATOR"):
        from morok.device.cuda.limits import described_limits

        return described_limits(found.machine)
    from morok.device.cpu.limits import measure_limits as measure_cpu

    return measure_cpu(max(1, found.machine.cores), caches=True)


def peak(limits: Limits, kernel: UOp | None) -> float:
    """Operations per second that a kernel may reach: by the widest type that it computes with."""
    if kernel is None:
        return limits.flops
    product, widest = _arithmetic(kernel)
    units = dict(limits.units)
    if product is not None and product.name in units:
        return units[product.name]
    return limits.flops / 2 if widest == 8 else limits.flops


def _arithmetic(kernel: UOp) -> tuple[DType | None, int]:
    """The type of the factors of a sum of products, and the bytes of the widest float."""
    product, widest = None, 0
    for node in toposort(kernel):
        if node.op.is_alu and node.dtype.is_float and node.op is not Ops.CAST:
            widest = max(widest, node.dtype.scalar.itemsize)
        if node.op is Ops.REDUCE and product is None:
            factor = node.src[0]
            while factor.op is Ops.CAST:
                factor = factor.src[0]
            if factor.op is Ops.MUL and factor.dtype.is_float:
                inner = factor.src[0]
                product = inner.src[0].dtype.scalar if inner.op is Ops.CAST else inner.dtype.scalar
    return product, widest


def roofline(events: Sequence[Event], limits: dict[str, Limits]) -> list[Row]:
    """A row per kernel, the longest first. `limits` has those of every device."""
    profile = Profile()
    profile.events = list(events)
    total = profile.seconds or 1.0
    rows = []
    for (name, place, kernel), runs in profile.by_kernel().items():
        seconds = sum(e.seconds for e in runs)
        limit = limits[runs[0].device]
        rate = peak(limit, kernel)
        memory = sum(e.bytes / limit.bandwidth(e.bytes) for e in runs)
        arithmetic = sum(e.ops for e in runs) / rate
        rows.append(
            Row(
                name,
                place,
                runs[0].device,
                len(runs),
                seconds,
                sum(e.ops for e in runs),
                sum(e.bytes for e in runs),
                seconds / total,
                max(memory, arithmetic),
                "memory" if memory >= arithmetic else "arithmetic",
                kernel,
            )
        )
    return sorted(rows, key=lambda row: -row.seconds)


def table(rows: Sequence[Row], limits: dict[str, Limits]) -> str:
    """The rows for people, then those that are worth a look."""
    lines = []
    for device, limit in limits.items():
        how = "measured" if limit.measured else "as its file describes it"
        flops, copy = f"{limit.flops / 1e9:.1f} GFLOP/s", f"{limit.copy / 1e9:.1f} GB/s in a copy"
        inner = f", {max(r for _, r in limit.caches) / 1e9:.1f} in the caches" if limit.caches else ""
        lines.append(f"{device}, {how}: {flops} in registers, {copy}{inner}")
    lines.append(
        f"{'kernel':<28} {'line':<24} {'calls':>6} {'ms':>10} {'share':>6} {'GFLOP/s':>9} {'GB/s':>8} "
        f"{'roofline':>8}  limited by"
    )
    for row in rows:
        first = f"{row.name:<28.28} {row.place:<24.24} {row.calls:>6} {row.seconds * 1e3:>10.3f}"
        rates = f"{row.share:>6.1%} {row.flops / 1e9:>9.2f} {row.bandwidth / 1e9:>8.2f}"
        lines.append(f"{first} {rates} {row.of_roof:>8.1%}  {row.bound if row.of_roof >= POOR else '-'}")
    total = sum(row.seconds for row in rows)
    reached = sum(row.roof for row in rows) / total if total else 0.0
    lines.append(f"{len(rows)} kernels, {total * 1e3:.3f} ms, {reached:.1%} of the roofline in all")
    poor = [row for row in rows if row.is_poor]
    lines += [
        f"worth a look: {row.name} at {row.place}, {row.share:.1%} of the time at {row.of_roof:.1%} of its "
        f"roofline; limited by {row.limit}"
        for row in poor
    ]
    if not poor:
        lines.append(f"no kernel takes more than {NOTABLE:.0%} of the time below {POOR:.0%} of its roofline")
    return "\n".join(lines)
