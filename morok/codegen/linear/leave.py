"""Threads with nothing left to write leave: what follows the last barrier is computed by those who write.

Threads that share a sum meet at a barrier, and few of them write it. The others would add up the parts as
well, or compute all that is made of a row, in the time of those that are needed.
"""

from __future__ import annotations

from functools import reduce

from morok.codegen.linear.ask_early import ask_early
from morok.dtype import AddrSpace, PtrDType, void
from morok.ir.node import UOp, alu, make, toposort
from morok.ir.ops import Ops
from morok.symbolic.validity import conjuncts

FEW = 32  # instructions that are not worth a branch, where there is no loop among them

_ALONE = frozenset((
    Ops.IF, Ops.ENDIF, Ops.RANGE, Ops.END, Ops.LOAD, Ops.STORE, Ops.INDEX, Ops.AFTER, Ops.SPECIAL,
    Ops.GEP, Ops.VECTORIZE, Ops.CAT, Ops.CONST, Ops.VCONST,
    Ops.DEFINE_GLOBAL, Ops.DEFINE_LOCAL, Ops.DEFINE_REG, Ops.DEFINE_VAR,
))  # fmt: skip
_KNOWN = frozenset((Ops.SPECIAL, Ops.CONST, Ops.DEFINE_VAR))


def leave_early(instructions: list[UOp]) -> list[UOp]:
    """The list with all that follows its last barrier under the condition that all its stores have."""
    at = max((i for i, n in enumerate(instructions) if n.op is Ops.BARRIER), default=None)
    if at is None or _depth(instructions[:at]):
        return instructions
    rest = instructions[at + 1 :]
    together = {n.op for n in rest if n.op not in _ALONE and not n.op.is_alu}
    if together - {Ops.SHUFFLE}:
        return instructions
    if together:  # threads tell one another: all of them stay
        ahead, inside = ask_early(instructions[:at], [], None, rest)
        return [*ahead, instructions[at], *inside]
    gates = _gates(rest)
    common = [c for c in conjuncts(gates[0]) if all(c in conjuncts(g) for g in gates)] if gates else []
    common = [c for c in common if all(n.op in _KNOWN or n.op.is_alu for n in toposort(c))]
    if not common or not _is_long(rest):
        return instructions
    gate = reduce(lambda a, b: alu(Ops.AND, a, b), common)
    before = set(instructions[: at + 1])
    first = [n for n in toposort(gate) if n not in before]
    needed = set(first)
    opened = make(Ops.IF, void, (gate,))
    closed = make(Ops.ENDIF, void, (opened,))
    inside = [n for n in rest if n not in needed and n is not opened and n is not closed]
    ahead, inside = ask_early(instructions[:at], first, gate, inside)
    return [*ahead, instructions[at], opened, *inside, closed]


def _depth(instructions: list[UOp]) -> int:
    opens = sum(n.op in (Ops.RANGE, Ops.IF) for n in instructions)
    return opens - sum(n.op in (Ops.END, Ops.ENDIF) for n in instructions)


def _gates(instructions: list[UOp]) -> list[UOp]:
    """The conditions of all stores to memory; none where one has no condition, or is in a loop."""
    found: list[UOp] = []
    gate: UOp | None = None
    loops = 0
    for n in instructions:
        if n.op is Ops.IF:
            gate = n.src[0] if not loops else gate
        elif n.op is Ops.ENDIF:
            gate = gate if loops else None
        elif n.op in (Ops.RANGE, Ops.END):
            loops += 1 if n.op is Ops.RANGE else -1
        elif n.op is Ops.STORE and _space(n) is not AddrSpace.REG:
            if gate is None or loops:
                return []
            found.append(gate)
    return found


def _is_long(instructions: list[UOp]) -> bool:
    """Whether others would do much for nothing: what is in no branch counts."""
    count = depth = 0
    for n in instructions:
        if n.op in (Ops.IF, Ops.ENDIF):
            depth += 1 if n.op is Ops.IF else -1
        elif not depth:
            count += FEW if n.op is Ops.RANGE else 1
    return count >= FEW


def _space(store: UOp) -> AddrSpace:
    dtype = store.src[0].dtype
    assert isinstance(dtype, PtrDType)
    return dtype.space
