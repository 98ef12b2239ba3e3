"""Software prefetch of blocks: what loops read again and again is asked for one block ahead.

    for b:  for r: for k: … w[b·n + k] …   →   for b:  for r: for k: … w[b·n + k] …; hint w[(b + 1)·n + part]

The first of the loops that read a block waits for memory; all others find it in a cache, while memory has
nothing to do. So the next block is asked for meanwhile, evenly over all of their steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from morok.dtype import AddrSpace, PtrDType, void
from morok.ir.bounds import vmax
from morok.ir.infer import ranges
from morok.ir.node import UOp, alu, const, make
from morok.ir.ops import Op, Ops
from morok.machine.machine import Machine

LARGE = 1 << 20  # bytes of an array that is not in a near cache
FEWEST = 64  # lines of a block
MOST = 16  # lines that a step asks for


class _Block(NamedTuple):
    """A block that loops read several times: an address in it, the loops outside with their steps, the one
    from block to block last, those inside in whose steps the next block is asked for, and its elements."""

    address: UOp
    outside: tuple[tuple[UOp, int], ...]
    inside: tuple[UOp, ...]
    elements: int


def prefetch_blocks(root: UOp, machine: Machine) -> UOp:
    """LINEAR with hints for the next blocks of large arrays."""
    hints: dict[UOp, list[UOp]] = {}  # by the loop in whose steps they are given
    loops: list[UOp] = []
    start = -1  # of the body of an innermost loop
    for n, node in enumerate(root.src):
        if node.op is Ops.RANGE:
            loops.append(node)
            start = n + 1
        elif node.op is Ops.END:
            for block in _blocks(loops, root.src[start:n], machine) if start >= 0 else ():
                hints.setdefault(block.inside[-1], []).extend(_hints(block, machine))
            loops.remove(node.src[1])
            start = -1
    return _with_hints(root, hints) if hints else root


def _with_hints(root: UOp, hints: dict[UOp, list[UOp]]) -> UOp:
    """Hints go to the ends of their loops; what is computed there already is not computed again."""
    everything = set(root.src)
    out: list[UOp] = []
    scopes: list[set[UOp]] = [set()]
    for node in root.src:
        if node.op is Ops.END:
            here = frozenset().union(*scopes)
            wanted = [n for n in dict.fromkeys(hints.get(node.src[1], ())) if n not in here]
            if everything.isdisjoint(wanted):
                out += wanted
            scopes.pop()
        scopes[-1].add(node)
        if node.op is Ops.RANGE:
            scopes.append({node})
        out.append(node)
    return make(Ops.LINEAR, void, tuple(out))


def _blocks(loops: list[UOp], body: Sequence[UOp], machine: Machine) -> list[_Block]:
    """The blocks that an innermost loop reads parts of, and other loops read again."""
    reads: dict[UOp, list[UOp]] = {}
    for n in body:
        if n.op is Ops.LOAD and n.dtype.lanes > 1 and is_far(n.src[0]):
            reads.setdefault(n.src[0].src[0], []).append(n)
    found = (_block(loops, loads, machine) for loads in reads.values())
    return [block for block in found if block is not None]


def _block(loops: list[UOp], loads: list[UOp], machine: Machine) -> _Block | None:
    address = loads[0].src[0]
    steps = [step(address.src[1], loop) for loop in loops]
    elements, repeats = sum(n.dtype.lanes for n in loads), 1
    for n in range(len(loops) - 1, -1, -1):
        if steps[n] == 0:
            repeats *= _trips(loops[n])
        elif steps[n] != elements:
            return None
        elif repeats == 1:
            elements *= _trips(loops[n])
        else:
            break
    else:
        return None
    lines = elements * loads[0].dtype.scalar.itemsize // machine.line_bytes
    inside = loops[n + 1 :]
    while inside and math.prod(map(_trips, inside)) > 2 * lines:  # hints would be for lines beyond the block
        inside.pop()
    outside = tuple((loop, amount) for loop, amount in zip(loops[: n + 1], steps, strict=False) if amount)
    kinds = {r.dtype for r in (*loops, address.src[1])}
    if not inside or None in steps[: n + 1] or len(kinds) > 1 or lines < FEWEST:
        return None
    if lines > MOST * math.prod(map(_trips, inside)):
        return None
    return _Block(address, outside, tuple(inside), elements)


def _trips(loop: UOp) -> int:
    return int(vmax(loop)) + 1


def _hints(block: _Block, machine: Machine) -> list[UOp]:
    """A part of the next block: all steps of the loops inside ask for all of it."""
    first, *others = block.inside
    kind, dtype = first.dtype, block.address.dtype
    assert isinstance(dtype, PtrDType)
    line = machine.line_bytes // dtype.elem.scalar.itemsize
    found: list[UOp] = []

    def put(op: Op, a: UOp, b: UOp | int) -> UOp:
        found.append(alu(op, a, b if isinstance(b, UOp) else const(kind, b)))
        return found[-1]

    place = first
    for loop in others:
        place = put(Ops.ADD, put(Ops.MUL, place, _trips(loop)), loop)
    lines = -(-block.elements // line // math.prod(map(_trips, block.inside)))
    place = put(Ops.MUL, place, lines * line)
    for loop, amount in block.outside:
        place = put(Ops.ADD, place, put(Ops.MUL, loop, amount))
    for n in range(lines):
        ahead = put(Ops.ADD, place, block.elements + n * line)
        address = make(Ops.INDEX, dtype, (block.address.src[0], ahead))
        found += [address, make(Ops.PREFETCH, void, (address,))]
    return found


def is_far(address: UOp) -> bool:
    if address.op is not Ops.INDEX or len(address.src) != 2:
        return False
    dtype = address.src[0].dtype
    if not isinstance(dtype, PtrDType) or dtype.space is not AddrSpace.GLOBAL:
        return False
    return address.src[0].op is Ops.DEFINE_GLOBAL and dtype.size * dtype.elem.itemsize >= LARGE


def step(place: UOp, loop: UOp) -> int | None:
    """How far a place moves per iteration; None where that is not constant."""
    if place is loop:
        return 1
    if loop not in ranges(place):
        return 0
    if place.op is Ops.ADD:
        a, b = step(place.src[0], loop), step(place.src[1], loop)
        return None if a is None or b is None else a + b
    if place.op in (Ops.MUL, Ops.SHL) and place.src[1].op is Ops.CONST:
        inner, amount = step(place.src[0], loop), int(place.src[1].arg)
        if inner is None:
            return None
        return inner << amount if place.op is Ops.SHL else inner * amount
    return None
