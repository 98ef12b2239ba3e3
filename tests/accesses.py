"""Every access of every kernel that a test schedules is inside of its memory wherever its gate is open.

`Watch` looks at each kernel as soon as it is scheduled: most accesses are inside by interval arithmetic, the
rest goes to Z3, each different one once. A test whose kernel can leave its memory fails with the access and
with values of its loops that lead outside. What Z3 leaves open is counted, and named at the end of the run.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, final

from morok.dtype import PtrDType
from morok.errors import ProofError
from morok.ir.bounds import bounds
from morok.ir.digest import digest
from morok.ir.node import UOp, toposort
from morok.ir.ops import Ops
from morok.ir.text import tree
from morok.schedule.plan import kernels

STEPS = 10_000_000  # of the solver, per access


class OutOfBounds(AssertionError):
    """A kernel that reads or writes outside of its memory."""


@final
@dataclass
class Watch:
    """What has been looked at so far, by how it was decided."""

    decided: dict[bytes, str] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    open: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def summary(self) -> dict[str, Any]:
        """What a worker tells the process that started it."""
        return {"counts": dict(self.counts), "open": self.open, "seconds": self.seconds}

    def add(self, found: dict[str, Any]) -> None:
        """What a worker has told."""
        self.counts.update(found["counts"])
        self.open += found["open"]
        self.seconds += found["seconds"]

    def report(self) -> str:
        """One line for the end of a run."""
        n = self.counts
        return (
            f"{n['kernels']} kernels scheduled: {n['intervals']} accesses in bounds by intervals, "
            f"{n['proved']} by Z3, {n['open']} open ({self.seconds:.1f} s)"
        )

    def kernel(self, ast: UOp) -> None:
        """Looks at all accesses of a kernel."""
        self.counts["kernels"] += 1
        for node in toposort(ast):
            if node.op is Ops.INDEX:
                self.access(node, ast)

    def access(self, node: UOp, ast: UOp) -> None:
        memory, where, *gate = node.src
        assert isinstance(memory.dtype, PtrDType), node
        low, high = bounds(where)
        if 0 <= low and high < memory.dtype.size:
            self.counts["intervals"] += 1
            return
        key = b"".join((memory.dtype.size.to_bytes(8, "little"), digest(where), *map(digest, gate)))
        if key not in self.decided:
            started = time.perf_counter()
            self.decided[key] = self.prove(where, memory.dtype.size, gate[0] if gate else None, ast)
            self.seconds += time.perf_counter() - started
        self.counts[self.decided[key]] += 1

    def prove(self, where: UOp, size: int, gate: UOp | None, ast: UOp) -> str:
        from morok.proof.graphs import prove_in_bounds

        try:
            verdict = prove_in_bounds(where, size, gate, STEPS)
        except ProofError as error:
            self.open.append(f"{error.message}: {where!r}")
            return "open"
        shown = f"of {size} elements at\n{tree(where)}\ngate\n{'always' if gate is None else tree(gate)}"
        if verdict.status == "refuted":
            raise OutOfBounds(
                f"an access {shown}\nleaves its memory: {verdict.note or verdict}\nin\n{tree(ast)}"
            )
        if verdict.status != "proved":
            self.open.append(f"an access {shown}")
            return "open"
        return "proved"


def install(watch: Watch) -> Callable[[], None]:
    """From now on every kernel that is scheduled is looked at; the result stops it."""
    before = kernels.describe

    def describe(graph: UOp) -> Any:
        kernel = before(graph)
        watch.kernel(kernel.ast)
        return kernel

    kernels.describe = describe

    def stop() -> None:
        kernels.describe = before

    return stop
