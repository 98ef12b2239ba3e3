"""What the LLVM writer has to know of a whole list before it writes: registers, and who does what."""

from __future__ import annotations

from itertools import accumulate

from morok.dtype import AddrSpace, PtrDType
from morok.ir.checks import NOTE
from morok.ir.node import UOp, const
from morok.ir.ops import AxisKind, Ops

Slot = tuple[UOp, int]  # a register array and a place in it
Access = tuple[int, UOp]  # where it stands in the list
_REGISTERS = AddrSpace.REG


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


def register_accesses(instructions: tuple[UOp, ...]) -> list[Access]:
    """Loads and stores of registers."""
    found = []
    for position, node in enumerate(instructions):
        if node.op is Ops.LOAD or node.op is Ops.STORE:
            dtype = node.src[0].dtype
            if isinstance(dtype, PtrDType) and dtype.space is _REGISTERS:
                found.append((position, node))
    return found


class Registers:
    """Register arrays, as the places at which they are accessed say: each piece is a value of the text.

    Many may be written at once: the parts of a CAT, or a constant, which says nothing about pieces.
    """

    def __init__(self, accesses: list[Access]) -> None:
        self.pieces: dict[UOp, dict[int, int]] = {}  # places and their lanes
        self.in_memory: set[UOp] = set()  # accessed at places which are not constant, or that do not match
        self.in_parts: set[UOp] = set()  # STOREs of parts
        constants: list[UOp] = []
        joined: list[UOp] = []
        for _, node in accesses:
            address = node.src[0]
            if address.src[1].op is not Ops.CONST or len(address.src) > 2:
                self.in_memory.add(register_of(address))
            elif node.op is Ops.LOAD:
                self._add(address, (node,))
            elif node.src[1].op is Ops.CONST:
                constants.append(node)
            elif node.src[1].op is Ops.CAT:
                joined.append(node)
            else:
                self._add(address, (node.src[1],))
        for store in joined:
            address, value = store.src
            if self.pieces.get(register_of(address), {}).get(address.src[1].arg) == value.dtype.lanes:
                continue  # others take it as a whole
            self.in_parts.add(store)
            self._add(address, value.src)
        for register, known in self.pieces.items():
            end = 0
            for start in sorted(known):
                if start < end:
                    self.in_memory.add(register)
                end = start + known[start]
            self.pieces[register] = {start: known[start] for start in sorted(known)}
        for store in constants:
            register, first = register_of(store.src[0]), store.src[0].src[1].arg
            end = first + store.src[1].dtype.lanes
            for start, lanes in self.pieces.get(register, {}).items():
                stop = start + lanes
                if (first < stop and start < end) != (first <= start and stop <= end):
                    self.in_memory.add(register)

    def _add(self, address: UOp, parts: tuple[UOp, ...]) -> None:
        register, start = register_of(address), address.src[1].arg
        known = self.pieces.setdefault(register, {})
        for part in parts:
            if known.setdefault(start, part.dtype.lanes) != part.dtype.lanes:
                self.in_memory.add(register)
            start += part.dtype.lanes

    def written(self, store: UOp) -> list[tuple[Slot, UOp]]:
        """The registers that a STORE writes, and what to each of them."""
        address, value = store.src
        register, first = register_of(address), int(address.src[1].arg)
        if value.op is not Ops.CONST:
            parts = value.src if store in self.in_parts else (value,)
            starts = accumulate([part.dtype.lanes for part in parts], initial=first)
            return [((register, start), part) for start, part in zip(starts, parts, strict=False)]
        end = first + value.dtype.lanes
        known = self.pieces.get(register, {})
        scalar = value.dtype.scalar
        return [
            ((register, start), const(scalar.vec(known[start]), value.arg))
            for start in known
            if first <= start < end
        ]

    def only_stored(self, instructions: tuple[UOp, ...]) -> frozenset[UOp]:
        """Vectors that nobody wants but registers, which take their parts."""
        found = {store.src[1] for store in self.in_parts}
        for node in instructions if found else ():
            if not found.isdisjoint(node.src) and node not in self.in_parts:
                found.difference_update(node.src)
        return frozenset(found)


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


def written_slots(
    instructions: tuple[UOp, ...], accesses: list[Access], registers: Registers
) -> dict[int, tuple[Slot, ...]]:
    """For each loop, by the position of its RANGE, the registers that are written inside."""
    writes: dict[int, dict[Slot, None]] = {}
    open_: list[int] = []
    stores = {p: n for p, n in accesses if n.op is Ops.STORE}
    for position, node in enumerate(instructions):
        if node.op is Ops.RANGE:
            open_.append(position)
            writes[position] = {}
        elif node.op is Ops.END:
            open_.pop()
        elif position in stores and node.src[0].src[1].op is Ops.CONST:
            written = registers.written(node)
            for p in open_:
                for slot, _ in written:
                    writes[p][slot] = None
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


def only_broadcast(instructions: tuple[UOp, ...], spread: frozenset[UOp]) -> frozenset[UOp]:
    """Loads of several elements, each of which is wanted in every lane of a vector and nowhere else."""
    found = {n for n in instructions if n.op is Ops.LOAD and n.dtype.lanes > 1 and len(n.src) == 1}
    found = {n for n in found if len(n.src[0].src) == 2 and not _in_register(n.src[0])}
    for node in instructions:
        if node not in spread and not found.isdisjoint(node.src):
            found.difference_update(node.src)
    return frozenset(found)


def _in_register(address: UOp) -> bool:
    dtype = address.dtype
    return not isinstance(dtype, PtrDType) or dtype.space is AddrSpace.REG
