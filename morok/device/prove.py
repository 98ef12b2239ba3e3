"""The hook of the PROVE knob: what is shown about a kernel before it is handed to a compiler.

1: the final list of instructions is safe: accesses in bounds, indices wide enough, operands that instructions
have a result for, no races. 2: it also computes what the kernel before stage 8 says.

A kernel that cannot be proved is an error, so what has been stored under a key that says PROVE=1 has been
proved; the key holds the prover's own version too. The only module outside of the command line that may load
the prover, and only when it is asked to.
"""

from __future__ import annotations

import atexit
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import field
from functools import cache
from math import inf
from typing import Any, final

import morok
from morok import knobs
from morok.dtype import DType
from morok.dtype.records import record
from morok.errors import CompileError
from morok.ir.digest import blake2b
from morok.ir.node import UOp, alu, make
from morok.ir.ops import Op, Ops
from morok.ir.provenance import place
from morok.machine.machine import Machine
from morok.rewrite.engine import rewrite


@final
@record
class Totals:
    """What this process has shown so far."""

    kernels: int = 0  # looked at, proved or not
    stored: int = 0  # proved by an earlier process
    seconds: float = 0.0
    lowering: float = 0.0  # what the stages took meanwhile
    how: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    compared: Counter[str] = field(default_factory=Counter)
    elements: Counter[str] = field(default_factory=Counter)
    opaque: Counter[str] = field(default_factory=Counter)
    unproved: Counter[str] = field(default_factory=Counter)  # kernels, with what is not shown about them
    unfollowed: Counter[str] = field(
        default_factory=Counter
    )  # kernels that are not compared in full, and why

    def clear(self) -> None:
        """Begins anew."""
        vars(self).update(vars(Totals()))

    def summary(self) -> dict[str, Any]:
        """Plain values, for another process."""
        return {k: dict(v) if isinstance(v, Counter) else v for k, v in vars(self).items()}

    def add(self, found: dict[str, Any]) -> None:
        for name, value in found.items():
            mine = getattr(self, name)
            if isinstance(mine, Counter):
                mine.update(value)
            else:
                setattr(self, name, mine + value)

    def report(self) -> str:
        """What was shown, how, and what it cost."""
        stored = f" ({self.stored} by stored verdicts)" if self.stored else ""
        shown = [(name, n) for name, n in self.how.most_common() if name not in ("refuted", "open")]
        how = ", ".join(f"{n} {name}" for name, n in shown)
        kinds = ", ".join(f"{n} {name}" for name, n in self.kinds.most_common())
        asked = f"{sum(self.kinds.values())} obligations ({kinds}), by {how or 'nothing'}"
        verdicts = f"{self.how['refuted']} refuted, {self.how['open']} unknown"
        cost = f"{self.seconds:.1f} s beside {self.lowering:.1f} s of lowering"
        proved = self.kernels - sum(self.unproved.values()) + self.stored
        lines = [f"PROVE: {proved} kernels proved{stored}: {asked}; {verdicts}; {cost}"]
        lines += [f"PROVE: not proved: {text}" for text in self.unproved]
        if self.compared:
            compared = ", ".join(f"{n} {name}" for name, n in self.compared.most_common())
            opaque = ", ".join(f"{name} {n}" for name, n in self.opaque.most_common())
            counts = ", ".join(f"{n} {name}" for name, n in self.elements.items())
            lines.append(
                f"PROVE: before and after the stages: {compared}; {counts}; opaque ops: {opaque or 'none'}"
            )
        lines += [f"PROVE: not followed: {text}" for text in self.unfollowed]
        return "\n".join(lines)


totals = Totals()


@cache
def _announce() -> None:
    """The totals are printed when the process ends."""

    def tell() -> None:
        if totals.kernels and not _unreported:
            print(f"morok: {totals.report()}", file=sys.stderr)

    atexit.register(tell)


_unreported: list[bool] = []  # somebody else prints them


def without_report() -> None:
    _unreported.append(True)


@cache
def _version() -> str:
    from pathlib import Path

    root = Path(morok.__file__).parent / "proof"
    state = blake2b(digest_size=8)
    for path in sorted(root.rglob("*.py")):
        state.update(path.read_bytes())
    return state.hexdigest()


def proof_key() -> str:
    """What a key of a proved kernel says besides the level; nothing where nothing is proved."""
    return f"|{_version()}" if knobs.PROVE.value else ""


def stored_verdict() -> None:
    """A kernel was found that an earlier process has proved."""
    if knobs.PROVE.value:
        _announce()
        totals.stored += 1


def expansions(machine: Machine) -> Callable[[Op, DType], tuple[UOp, tuple[UOp, ...]] | None]:
    """How the device puts functions of floats together that it has no instruction for."""
    from morok.codegen.decompose.table import decompositions
    from morok.codegen.pipeline import Context

    @cache
    def expand(op: Op, dtype: DType) -> tuple[UOp, tuple[UOp, ...]] | None:
        if not dtype.is_float or op.is_compare or op in machine.ops or op is Ops.WHERE:
            return None
        operands = tuple(make(Ops.DEFINE_VAR, dtype, (), (f"x{i}", -inf, inf)) for i in range(op.arity))
        whole = alu(op, *operands)
        found = rewrite(whole, decompositions, Context(machine))
        return None if found is whole else (found, operands)

    return expand


def prove_kernel(kernel: UOp, linear: UOp, machine: Machine, title: str, lowering: float = 0.0) -> None:
    """Proves a list of instructions safe, or raises a CompileError that says what is wrong."""
    from morok.proof.kernels.safety import examine

    _announce()
    started = time.perf_counter()
    found = examine(linear, kernel)
    seconds = time.perf_counter() - started
    totals.kernels += 1
    totals.how.update(found.counts)
    totals.kinds.update(found.kinds)
    totals.seconds += seconds
    totals.lowering += lowering
    if found.open:
        first = next((o for o in found.open if o.refuted), found.open[0])
        more = f" (and {len(found.open) - 1} more)" if len(found.open) > 1 else ""
        verdict = "is wrong" if first.refuted else "is not proved"
        totals.unproved[f"{title} {verdict}: {first}"] += 1
        raise CompileError(f"kernel {title} {verdict}: {first}{more}", place=place(first.about))
    if knobs.PROVE.value >= 2:
        _compare(kernel, linear, machine, title)
    if knobs.DEBUG.value >= 1:
        how = ", ".join(f"{n} {name}" for name, n in found.counts.items())
        print(f"morok: {title}: proved in {seconds * 1e3:.0f} ms: {how}", file=sys.stderr)


def _compare(kernel: UOp, linear: UOp, machine: Machine, title: str) -> None:
    """What the list computes, beside what the kernel says."""
    from morok.proof.kernels.compare import compare

    started = time.perf_counter()
    found = compare(kernel, linear, expansions(machine))
    seconds = time.perf_counter() - started
    totals.seconds += seconds
    totals.compared[found.verdict] += 1
    totals.opaque.update(found.opaque)
    totals.elements["elements"] += found.elements
    totals.elements["equal as terms"] += found.same
    totals.elements["agree at random points"] += found.agreeing
    if found.skipped:
        totals.unfollowed[f"{title}: {found.skipped} ({found.elements} elements compared)"] += 1
    if found.differs:
        totals.unproved[f"{title} does not compute what it says: {found.differs}"] += 1
        raise CompileError(
            f"kernel {title} does not compute what it says: {found.differs}", place=place(kernel)
        )
    if knobs.DEBUG.value >= 1:
        print(
            f"morok: {title}: {found.verdict} in {seconds * 1e3:.0f} ms: {found.elements} elements, "
            f"{found.same} equal as terms, {found.agreeing} at random points",
            file=sys.stderr,
        )
