"""Accumulators that are added up or copied register by register, as one value until the list is written.

A tile of registers is added to another, or handed on to memory, in as many equal steps as it has registers.
Every stage would go through all of them, a third of what a convolution is made of, and would say the same
of each. So a LOAD of a whole tile, sums of such LOADs and the STORE of one stay whole from stage 14 to the
list, where `write_out` puts their registers one after the other. Whoever else asks for some of the lanes
gets registers (`opened`), as if there had never been a whole.
"""

from __future__ import annotations

from typing import Any

from morok.codegen.vector.vectors import concat, parts_of, pieces
from morok.dtype import AddrSpace, PtrDType, void
from morok.ir.node import UOp, const, make
from morok.ir.ops import Ops
from morok.machine.machine import Machine


def in_registers(address: UOp) -> bool:
    """Whether an address is a place among a thread's registers."""
    dtype = address.dtype
    return isinstance(dtype, PtrDType) and dtype.space is AddrSpace.REG


def is_whole(x: UOp, machine: Machine) -> bool:
    """Whether a value is a tile of registers: more than one register of these, by a LOAD or as their sum.

    On a GPU registers are elements of an array, each with a name of its own; and what numbers of fewer bytes
    are turned into is computed in parts.
    """
    while x.op is Ops.ADD and x.dtype.lanes > 1:  # which was cut, were one of its sources no tile
        x = x.src[0]
    if x.op is not Ops.LOAD or machine.has_grid:
        return False
    address, dtype = x.src[0], x.dtype
    width = machine.longest_access(dtype)
    if dtype.lanes <= width or dtype.is_bool or dtype.scalar.itemsize < 4 or machine.lanes(dtype) != width:
        return False
    return address.op is Ops.INDEX and in_registers(address) and _at_constant(address)


def _at_constant(address: UOp) -> bool:
    return len(address.src) == 2 and address.src[1].op is Ops.CONST


def stored_whole(address: UOp, value: UOp, machine: Machine) -> bool:
    """Whether a tile goes to registers, or to memory of the thread's own, by one STORE."""
    if address.op is not Ops.INDEX or not _at_constant(address) or machine.aligned_memory:
        return False
    dtype = address.dtype
    assert isinstance(dtype, PtrDType)
    return dtype.space in (AddrSpace.REG, AddrSpace.LOCAL) and is_whole(value, machine)


def _place(address: UOp, start: int, lanes: int) -> UOp:
    """Some of the places that an address of many means."""
    dtype, place = address.dtype, address.src[1]
    assert isinstance(dtype, PtrDType)
    pointer = dtype.elem.scalar.vec(lanes).ptr(dtype.size, dtype.space)
    return make(Ops.INDEX, pointer, (address.src[0], const(place.dtype, place.arg + start)))


def _parts(x: UOp, machine: Machine) -> list[range]:
    return parts_of(x.dtype.lanes, machine.longest_access(x.dtype))


def _registers(load: UOp, machine: Machine) -> list[UOp]:
    """A LOAD of a tile as LOADs of registers."""
    dtype, address = load.dtype.scalar, load.src[0]
    return [
        make(Ops.LOAD, dtype.vec(len(part)), (_place(address, part[0], len(part)),))
        for part in _parts(load, machine)
    ]


def opened(x: UOp, machine: Machine) -> UOp:
    """A tile as its registers; anything else as it is."""
    if not is_whole(x, machine):
        return x
    chain = [x]
    while chain[-1].op is Ops.ADD:
        chain.append(chain[-1].src[0])
    found = _registers(chain.pop(), machine)
    for node in reversed(chain):
        others = pieces(opened(node.src[1], machine), _parts(node, machine))
        pairs = zip(found, others, strict=True)
        found = [make(Ops.ADD, pair[0].dtype, pair) for pair in pairs]
    return concat(found)


def _tiles(instructions: tuple[UOp, ...], machine: Machine) -> frozenset[UOp]:
    """Tiles, and what is computed of them; none where anybody asks for something else of one."""
    found: set[UOp] = set()
    for node in instructions:
        if node.op is Ops.LOAD:
            if is_whole(node, machine):
                found.add(node)
        elif found and not found.isdisjoint(node.src):
            if node.op.is_alu and found.issuperset(node.src):
                found.add(node)
            elif node.op is not Ops.STORE:
                return frozenset()
    return frozenset(found)


def write_out(root: UOp, ctx: Any) -> UOp:
    """LINEAR with tiles → LINEAR with registers."""
    machine: Machine = ctx.machine
    tiles = frozenset() if machine.has_grid else _tiles(root.src, machine)
    if not tiles:
        return root
    out: list[UOp] = []
    known: dict[UOp, list[UOp]] = {}  # tiles, and their registers
    listed = {node for node in root.src if node.op is Ops.CONST}

    def put(place: UOp) -> None:
        """A place, after the constant that it is."""
        if place.src[1] not in listed:
            listed.add(place.src[1])
            out.append(place.src[1])
        out.append(place)

    for node in root.src:
        if node in tiles:
            if node.op is Ops.LOAD:
                known[node] = _registers(node, machine)
                for load in known[node]:
                    put(load.src[0])
                    out.append(load)
                continue
            parts, scalar = _parts(node, machine), node.dtype.scalar
            columns = [known[s] for s in node.src]
            known[node] = [
                make(node.op, scalar.vec(len(part)), s, node.arg, node.origin)
                for part, s in zip(parts, zip(*columns, strict=True), strict=True)
            ]
            out += known[node]
        elif node.op is Ops.STORE and node.src[1] in known:
            address, registers = node.src[0], known[node.src[1]]
            if in_registers(address):
                whole = make(Ops.CAT, node.src[1].dtype, tuple(registers))
                out += (whole, node.replace((address, whole)))
                continue
            start = 0
            for register in registers:
                place = _place(address, start, register.dtype.lanes)
                put(place)
                out.append(make(Ops.STORE, void, (place, register), node.arg, node.origin))
                start += register.dtype.lanes
        else:
            out.append(node)
    return make(Ops.LINEAR, void, tuple(out))
