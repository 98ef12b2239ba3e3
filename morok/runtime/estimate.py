"""What a program would take on a machine that is not here: its plans are watched while nothing runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, final

from morok.device.buffer import show_bytes
from morok.device.registry import get_device
from morok.ir.infer import ranges
from morok.ir.layout import mesh_of
from morok.ir.node import UOp, toposort
from morok.ir.ops import COLLECTIVES, Ops
from morok.machine.cluster import Cluster
from morok.runtime.profile import Profile

_WIDENING = (Ops.CAST, Ops.BITCAST)


@final
@dataclass
class PlanCost:
    """A plan, and what one run of it costs a device."""

    place: str
    runs: int = 0
    kernels: int = 0
    ops: int = 0
    compute: float = 0.0  # seconds, of one run
    wire: float = 0.0
    sent: dict[str, int] = field(default_factory=dict)  # bytes by collective
    memory: int = 0  # bytes of one device while it ran, all that was kept included

    @property
    def seconds(self) -> float:
        return self.compute + self.wire

    def row(self) -> str:
        """As a line of a table."""
        first = f"{self.place:<30.30} {self.runs:>5} {self.kernels:>8} {_time(self.compute):>11}"
        sent = show_bytes(sum(self.sent.values()))
        return f"{first} {_time(self.wire):>11} {sent:>11} {show_bytes(self.memory):>10}"


@final
class Estimate(Profile):
    """Adds up what every plan would cost."""

    def __init__(self, cluster: Cluster, device: str) -> None:
        super().__init__()
        self.cluster = cluster
        self.plans: dict[Any, PlanCost] = {}
        self._allocator = get_device(device).allocator
        self._now: PlanCost | None = None
        self._counts = False
        self._factors: dict[UOp, str | None] = {}

    def runs(self, plan: Any) -> None:
        key = tuple((item.ast, item.bytes) for item in plan.schedule.items)
        found = self.plans.get(key)
        if found is None:
            places = [item.place for item in plan.schedule.items if item.place]
            found = self.plans[key] = PlanCost(places[-1] if places else "-")
        found.runs += 1
        self._now, self._counts = found, found.runs == 1

    def record(
        self,
        name: str,
        place: str | None,
        device: str,
        started: float,
        seconds: float,
        ops: int,
        nbytes: int,
        kernel: Any = None,
    ) -> None:
        now = self._now
        if now is None:
            return
        now.memory = max(now.memory, self._allocator.used)
        if not self._counts:
            return
        if kernel is not None and kernel.op in COLLECTIVES:
            mesh = mesh_of(device)
            axes = tuple(mesh.axes[r.arg[0]] for r in kernel.src[1:])
            kind = kernel.op.name
            now.sent[kind] = now.sent.get(kind, 0) + nbytes
            now.wire += self.cluster.collective_seconds(kind, nbytes, mesh.groups(axes)[0])
            return
        now.kernels += 1
        now.ops += ops
        now.compute += self.cluster.kernel_seconds(ops, nbytes, self._product(kernel))

    def _product(self, kernel: UOp | None) -> str | None:
        """The type of the factors where a kernel is a sum of products; None for others."""
        if kernel is None:
            return None
        if kernel not in self._factors:
            self._factors[kernel] = factors_of(kernel)
        return self._factors[kernel]

    @property
    def seconds(self) -> float:
        """Of everything that ran."""
        return sum(cost.seconds * cost.runs for cost in self.plans.values())

    def report(self, steps: int) -> str:
        """Tables for people: plans by their time, and the sum for one step."""
        rows = sorted(self.plans.values(), key=lambda cost: -cost.seconds * cost.runs)
        head = f"{'plan, by the last line of it':<30} {'runs':>5} {'kernels':>8} {'computes':>11}"
        lines = [f"{head} {'sends':>11} {'bytes sent':>11} {'memory':>10}"]
        lines += [cost.row() for cost in rows[:12]]
        if len(rows) > 12:
            lines.append(f"… and {len(rows) - 12} more")
        sent: dict[str, int] = {}
        for cost in rows:
            for kind, count in cost.sent.items():
                sent[kind] = sent.get(kind, 0) + count * cost.runs
        top = rows[0].memory if rows else 0
        fits = "fits" if top <= self.cluster.room else "DOES NOT FIT"
        room = show_bytes(self.cluster.room)
        lines.append(f"memory per device: {show_bytes(top)} of {room} in the longest plan, {fits}")
        shown = ", ".join(f"{kind} {show_bytes(count / steps)}" for kind, count in sorted(sent.items()))
        lines.append(f"bytes per step, sent by each device: {shown or 'none'}")
        ops = sum(cost.ops * cost.runs for cost in rows) / steps
        each = self.seconds / steps
        lines.append(
            f"time per step: {_time(each)} ({ops / each / 1e12 if each else 0:.0f} TFLOP/s for each device)"
        )
        return "\n".join(lines)


def factors_of(kernel: UOp) -> str | None:
    """The type of the factors of the products that a kernel sums up; None if it does nothing like that."""
    for node in toposort(kernel):
        if node.op is not Ops.REDUCE or Ops.ADD not in _ops(node.arg):
            continue
        for term in _terms(node.src[0]):
            if term.op is Ops.MUL:
                first, second = (_narrow(part) for part in term.src)
                if ranges(first) - ranges(second) and ranges(second) - ranges(first):  # rows and columns
                    return str(min((first.dtype, second.dtype), key=lambda dtype: dtype.bits))
    return None


def _ops(arg: Any) -> tuple[Any, ...]:
    return arg if isinstance(arg, tuple) else (arg,)


def _terms(node: UOp) -> list[UOp]:
    """The summands of a sum, before they are widened."""
    node = _narrow(node)
    if node.op is Ops.ADD:
        return [term for part in node.src for term in _terms(part)]
    return [node]


def _narrow(node: UOp) -> UOp:
    """A value before it is widened."""
    while node.op in _WIDENING and node.src and node.src[0].dtype.bits <= node.dtype.bits:
        node = node.src[0]
    return node


def _time(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.2f} ms"
