"""What must hold of a kernel for it to be safe, as data: the prover takes it from here.

- every access lies inside its buffer wherever its gate is open;
- no index expression leaves the integer type that stage 15 chose for it;
- two iterations of a parallel axis never write the same place.

Each obligation is a condition on the ranges and variables of the kernel. Codegen states them; whoever has a
solver (`morok.proof`, under the PROVE knob) decides them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

from morok.codegen.index_dtype import concrete
from morok.codegen.target import Target
from morok.dtype import PtrDType, index
from morok.errors import CompileError
from morok.ir.bounds import bounds
from morok.ir.infer import ranges
from morok.ir.node import UOp, alu, const, make, toposort
from morok.ir.ops import AxisKind, Ops
from morok.ir.provenance import place
from morok.rewrite.engine import substitute

PARALLEL = (AxisKind.GLOBAL, AxisKind.THREAD, AxisKind.LOCAL, AxisKind.WARP)


@final
@dataclass(frozen=True)
class Obligation:
    """`claim` holds for all values of ranges and variables for which `given` does."""

    kind: str  # bounds, overflow or race
    about: UOp  # the access or expression that it is about
    claim: UOp
    given: UOp | None
    trivial: bool  # interval arithmetic shows it already

    @property
    def where(self) -> str:
        return place(self.about) or "an unknown line"


Prover = Callable[[UOp, "UOp | None"], "tuple[str, str]"]  # claim, given → (proved | refuted | unknown, why)


def obligations(kernel: UOp, target: Target) -> list[Obligation]:
    """Everything that has to be shown about a kernel before it is lowered."""
    found = [o for node in toposort(kernel) if node.op is Ops.INDEX for o in _accesses(node)]
    found += _widths(kernel, target)
    for node in toposort(kernel):
        if node.op is Ops.STORE:
            found += _races(node)
    return found


def _inside(x: UOp, size: int) -> UOp:
    return alu(Ops.AND, alu(Ops.CMPLT, const(x.dtype, -1), x), alu(Ops.CMPLT, x, const(x.dtype, size)))


def _accesses(node: UOp) -> list[Obligation]:
    base = node.src[0].dtype
    if not isinstance(base, PtrDType) or base.size < 0:
        return []
    where = node.src[1]
    gate = node.src[2] if len(node.src) > 2 else None
    low, high = bounds(where)
    trivial = bool(0 <= low and high < base.size)
    return [Obligation("bounds", node, _inside(where, base.size), gate, trivial)]


def _widths(kernel: UOp, target: Target) -> list[Obligation]:
    """The chosen width holds every value by interval arithmetic, or the whole claim goes to the solver.

    A place may be anything where its gate is shut: what wraps there is never used.
    """
    found = []
    guarded: set[UOp] = set()
    for access in toposort(kernel):
        if access.op is not Ops.INDEX:
            continue
        gate = access.src[2] if len(access.src) > 2 else None
        for node in toposort(access.src[1], stop=_is_access):
            if not _is_access(node) and (wide := _width(node, target)) is not None:
                guarded.add(node)
                found.append(Obligation("overflow", access, wide, gate, False))
    others = ((node, _width(node, target)) for node in toposort(kernel) if node not in guarded)
    return found + [Obligation("overflow", n, wide, None, False) for n, wide in others if wide is not None]


def _is_access(node: UOp) -> bool:
    return node.op is Ops.INDEX


def _width(node: UOp, target: Target) -> UOp | None:
    """The claim that an index stays inside its integer type; None where intervals show it."""
    if not node.dtype.is_index or not node.op.is_alu or node.op is Ops.CAST or node.dtype.lanes > 1:
        return None
    dtype = concrete((node, *(s for s in node.src if s.dtype.is_index)), target)
    low, high = bounds(node)
    if dtype.min <= low and high <= dtype.max:
        return None  # decided when the type was chosen
    above = alu(Ops.CMPLT, const(index, dtype.min - 1), node)
    return alu(Ops.AND, above, alu(Ops.CMPLT, node, const(index, dtype.max + 1)))


def _races(node: UOp) -> list[Obligation]:
    """Two iterations that differ in a parallel axis write different places."""
    address = node.src[0]
    where = address.src[1]
    gate = address.src[2] if len(address.src) > 2 else None
    own = ranges(node)
    parallel = [r for r in own if r.arg[1] in PARALLEL]
    if not parallel:
        return []
    # the other iteration has ranges of its own: the same ends, other numbers
    free = 1 + max(r.arg[0] for r in own)
    other = {
        r: make(Ops.RANGE, r.dtype, r.src, (r.arg[0] + free, r.arg[1]))
        for r in sorted(own, key=lambda r: r.arg)
    }
    there = substitute(where, other)
    apart: UOp | None = None
    for r in parallel:
        differs = alu(Ops.CMPNE, r, other[r])
        apart = differs if apart is None else alu(Ops.OR, apart, differs)
    assert apart is not None
    given = apart
    if gate is not None:
        given = alu(Ops.AND, given, alu(Ops.AND, gate, substitute(gate, other)))
    return [Obligation("race", node, alu(Ops.CMPNE, where, there), given, False)]


@final
@dataclass(frozen=True)
class ProofReport:
    """What was shown about a kernel."""

    total: int
    trivial: int
    proved: int
    unknown: tuple[str, ...]

    def __str__(self) -> str:
        text = f"{self.total} obligations: {self.trivial} by intervals, {self.proved} by the solver"
        return text + (f", {len(self.unknown)} undecided: {'; '.join(self.unknown)}" if self.unknown else "")


def discharge(kernel: UOp, target: Target, prover: Prover) -> ProofReport:
    """Shows all obligations; a CompileError with a counterexample if one is refuted."""
    todo = list(dict.fromkeys(obligations(kernel, target)))
    trivial = proved = 0
    unknown = []
    for o in todo:
        if o.trivial:
            trivial += 1
            continue
        status, detail = prover(o.claim, o.given)
        if status == "refuted":
            raise CompileError(f"{_WRONG[o.kind]}: {detail}", place=place(o.about))
        if status == "proved":
            proved += 1
        else:
            unknown.append(f"{o.kind} at {o.where} ({detail})")
    return ProofReport(len(todo), trivial, proved, tuple(unknown))


_WRONG = {
    "bounds": "an access leaves its buffer",
    "overflow": "an index leaves its integer type",
    "race": "two iterations of a parallel axis write the same place",
}
