"""Pointers that loops move, instead of places that are computed at every step.

LLVM would find them (loop strength reduction), in a third of all the time that it takes. The list of
instructions says them plainly: a place is a sum of what stays the same in a loop, of its counter times a
constant, and of a constant. Places that differ in the last one alone share a pointer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, final

from morok.dtype import AddrSpace, PtrDType
from morok.ir.node import UOp
from morok.ir.ops import Ops

AS_FAST: Final = frozenset(("aarch64", "x86_64"))  # where it was measured that LLVM need not look too
INDEXED: Final = frozenset(("x86_64",))  # an address is base + index × element + constant there
MOST: Final = 8  # pointers that one loop moves; beyond that counter and bases are fewer registers


@final
@dataclass(frozen=True, eq=False)
class Pointer:
    """base + the sum of the terms + counter × step + offset, in elements."""

    base: UOp
    terms: tuple[UOp, ...]
    step: int = 0
    offset: int = 0
    indexed: bool = False  # it stays where it is, and an index moves that others with its step share


_Walk = tuple[UOp, tuple[UOp, ...], int]


@final
@dataclass(frozen=True, eq=False)
class Pointers:
    """What a list of instructions needs besides the places that it computes."""

    moved: dict[UOp, list[Pointer]]  # by the loop that moves them
    places: dict[UOp, tuple[Pointer, int]]  # an INDEX is this pointer and so many elements more
    unneeded: frozenset[UOp]  # arithmetic that nobody asks for then


def pointers_of(instructions: tuple[UOp, ...], indexes: bool = False) -> Pointers:
    """The pointers of the innermost loops, and those that several places elsewhere share.

    Where a processor adds an index to each address, pointers with one step share it: one addition per step
    instead of one for each of them.
    """
    position = {node: i for i, node in enumerate(instructions)}
    moved: dict[UOp, list[Pointer]] = {}
    places: dict[UOp, tuple[Pointer, int]] = {}
    for start, end in _innermost(instructions):
        found: dict[_Walk, list[tuple[UOp, int]]] = {}
        for node in instructions[start + 1 : end]:
            walk = _walked(node, instructions[start], start, position) if _is_plain(node) else None
            if walk is not None:
                found.setdefault(walk[0], []).append((node, walk[1]))
        steps = Counter(step for _, _, step in found)
        shared_steps = {step for step, count in steps.items() if indexes and count > 1}
        if 0 < sum(1 if step in shared_steps else count for step, count in steps.items()) <= MOST:
            for (base, terms, step), nodes in found.items():
                least = min(offset for _, offset in nodes)
                pointer = Pointer(base, terms, step, least, step in shared_steps)
                moved.setdefault(instructions[start], []).append(pointer)
                places.update((node, (pointer, offset - least)) for node, offset in nodes)
    shared: dict[tuple[UOp, UOp], list[tuple[UOp, int]]] = {}
    for node in instructions:
        if node.op is Ops.INDEX and node not in places and _is_plain(node):
            place, offset = _without_constant(node.src[1])
            shared.setdefault((base_of(node), place), []).append((node, offset))
    for (base, place), nodes in shared.items():
        if len(nodes) > 1:
            pointer = Pointer(base, (place,))
            places.update((node, (pointer, offset)) for node, offset in nodes)
    return Pointers(moved, places, _unneeded(instructions, places))


def base_of(node: UOp) -> UOp:
    """The memory that an INDEX is in, whatever happened to it before."""
    base = node.src[0]
    while base.op is Ops.AFTER:
        base = base.src[0]
    return base


def _is_plain(node: UOp) -> bool:
    """Whether a node is one place in memory."""
    if node.op is not Ops.INDEX or not isinstance(node.dtype, PtrDType) or node.dtype.space is AddrSpace.REG:
        return False
    return node.src[1].op is not Ops.CONST and node.src[1].dtype.lanes == 1


def _innermost(instructions: tuple[UOp, ...]) -> list[tuple[int, int]]:
    """Where loops without loops inside begin and end."""
    found = []
    begun = -1
    for i, node in enumerate(instructions):
        if node.op is Ops.RANGE:
            begun = i
        elif node.op is Ops.END and begun >= 0:
            found.append((begun, i))
            begun = -1
    return found


def _without_constant(place: UOp) -> tuple[UOp, int]:
    if place.op is Ops.ADD:
        for x, c in (place.src, place.src[::-1]):
            if c.op is Ops.CONST:
                return x, int(c.arg)
    return place, 0


def _walked(node: UOp, counter: UOp, start: int, position: Mapping[UOp, int]) -> tuple[_Walk, int] | None:
    """A place as a pointer that the loop moves; None if it is another function of the counter."""
    terms: list[UOp] = []
    step = offset = 0
    left = [node.src[1]]
    while left:
        x = left.pop()
        if x.op is Ops.CONST:
            offset += int(x.arg)
        elif x is counter:
            step += 1
        elif position[x] < start:
            terms.append(x)
        elif x.op is Ops.ADD:
            left += x.src
        elif x.op is Ops.CAST and _is_widened(x):
            left.append(x.src[0])
        elif x.op in (Ops.MUL, Ops.SHL) and x.src[0] is counter and x.src[1].op is Ops.CONST:
            step += int(x.src[1].arg) if x.op is Ops.MUL else 1 << int(x.src[1].arg)
        else:
            return None
    base = base_of(node)
    if step == 0 or position[base] > start:
        return None
    return (base, tuple(sorted(terms, key=position.__getitem__)), step), offset


def _unneeded(instructions: tuple[UOp, ...], places: dict[UOp, tuple[Pointer, int]]) -> frozenset[UOp]:
    """Scalar integers that were only computed for places."""
    needed: set[UOp] = set()
    found: set[UOp] = set()
    for node in reversed(instructions):
        if node.op.is_alu and node not in needed and node.dtype.is_int and node.dtype.lanes == 1:
            found.add(node)
        elif node in places:
            needed.update((node.src[0], *node.src[2:], *places[node][0].terms))
        else:
            needed.update(node.src)
    return frozenset(found - needed)  # branches may have the same node


def _is_widened(x: UOp) -> bool:
    """Whether a cast leaves a signed integer what it was."""
    before = x.src[0].dtype
    return before.is_int and not before.is_unsigned and before.itemsize <= x.dtype.itemsize
