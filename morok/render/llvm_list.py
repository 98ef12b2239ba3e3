"""What the LLVM writer has to know of a whole list before it writes: registers, and who does what."""

from __future__ import annotations

from morok.dtype import AddrSpace, PtrDType
from morok.ir.checks import NOTE
from morok.ir.node import UOp
from morok.ir.ops import AxisKind, Ops

Slot = tuple[UOp, int]  # a register array and a place in it


def register_of(address: UOp) -> UOp:
    """The register array that an address belongs to."""
    node = address
    while node.op is not Ops.DEFINE_REG:
        node = node.src[0]
    return node


def memory_of(address: UOp) -> UOp:
    """What an address points into."""
    node = address
    while node.src:
        node = node.src[0]
    return node


def register_accesses(instructions: tuple[UOp, ...]) -> list[tuple[int, UOp]]:
    found = []
    for position, node in enumerate(instructions):
        if node.op in (Ops.LOAD, Ops.STORE):
            dtype = node.src[0].dtype
            if isinstance(dtype, PtrDType) and dtype.space is AddrSpace.REG:
                found.append((position, node))
    return found


def unpromotable(instructions: tuple[UOp, ...]) -> set[UOp]:
    """Register arrays that are accessed at places which are not constant, or in pieces that do not match."""
    pieces: dict[UOp, dict[int, int]] = {}
    bad: set[UOp] = set()
    for _, node in register_accesses(instructions):
        address = node.src[0]
        register = register_of(address)
        lanes = (node.src[1] if node.op is Ops.STORE else node).dtype.lanes
        where = address.src[1]
        if where.op is not Ops.CONST or len(address.src) > 2:
            bad.add(register)
            continue
        known = pieces.setdefault(register, {})
        if known.setdefault(where.arg, lanes) != lanes:
            bad.add(register)
    for register, known in pieces.items():
        end = 0
        for start in sorted(known):
            if start < end:
                bad.add(register)
            end = start + known[start]
    return bad


def outside_of_thread(instructions: tuple[UOp, ...]) -> frozenset[int]:
    """Loops and stores beside the axis that workers share: whoever has its first piece does them, once.

    Notes of positions that do not exist are no reason: their loop may fill memory that each worker has.
    """
    if not any(n.op is Ops.RANGE and n.arg[1] is AxisKind.THREAD for n in instructions):
        return frozenset()
    found: set[int] = set()
    open_: list[int] = []
    for position, node in enumerate(instructions):
        if node.op is Ops.RANGE:
            open_.append(position)
        elif node.op is Ops.END:
            open_.pop()
        elif node.op is Ops.STORE and node.arg != NOTE and is_global(node.src[0]):
            outermost = open_[0] if open_ else position
            if not open_ or instructions[outermost].arg[1] is not AxisKind.THREAD:
                found.add(outermost)
    return frozenset(found)


def is_global(address: UOp) -> bool:
    dtype = address.dtype
    return isinstance(dtype, PtrDType) and dtype.space is AddrSpace.GLOBAL


def written_slots(instructions: tuple[UOp, ...]) -> dict[int, tuple[Slot, ...]]:
    """For each loop, by the position of its RANGE, the registers that are written inside."""
    writes: dict[int, dict[Slot, None]] = {}
    open_: list[int] = []
    stores = {p: n for p, n in register_accesses(instructions) if n.op is Ops.STORE}
    for position, node in enumerate(instructions):
        if node.op is Ops.RANGE:
            open_.append(position)
            writes[position] = {}
        elif node.op is Ops.END:
            open_.pop()
        elif position in stores and node.src[0].src[1].op is Ops.CONST:
            for p in open_:
                writes[p][register_of(node.src[0]), node.src[0].src[1].arg] = None
    return {p: tuple(slots) for p, slots in writes.items()}


def is_splat(node: UOp) -> bool:
    """One scalar in every lane."""
    return node.op is Ops.VECTORIZE and all(s is node.src[0] for s in node.src)


def only_spread(instructions: tuple[UOp, ...]) -> frozenset[UOp]:
    """Lanes of vectors that nobody wants but to have them in every lane of another: one shuffle does that."""
    found = {n for n in instructions if n.op is Ops.GEP and len(n.arg) == 1 and n.src[0].dtype.lanes > 1}
    for node in instructions:
        if not found.isdisjoint(node.src) and not is_splat(node):
            found.difference_update(node.src)
    return frozenset(found)
