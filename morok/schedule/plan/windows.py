"""Kernels that look at a part of some memory count from where the part begins.

    x[1] @ w,  x[2] @ w,  …        one kernel, and x begins somewhere else at each

A loop that a program writes out reads another row at each turn. As a constant in the kernel the place of the
row would make each turn a kernel of its own, to be optimised and compiled. So what all places of one memory
have in common, a constant that is added to each, is taken out of the kernel and told apart: it goes to the
address that the kernel is given. The kernel then knows no more elements than it can touch.

Only for devices that ask nothing of where memory begins: those of a grid read it in wide pieces.
"""

from __future__ import annotations

from morok.dtype import PtrDType
from morok.ir.bounds import bounds
from morok.ir.build import define_global
from morok.ir.node import UOp, const, make, toposort
from morok.ir.ops import Ops
from morok.schedule.indexing import simplified


def from_its_beginnings(ast: UOp) -> tuple[UOp, dict[int, int]]:
    """The kernel, and for buffers by number how many elements there are before the first one it looks at."""
    moved: dict[UOp, tuple[UOp, int]] = {}
    starts: dict[int, int] = {}
    for memory, places in _accesses(ast).items():
        start = min(_constant(place.src[1]) for place in places)
        seen = [bounds(place.src[1]) for place in places]
        # Below the constant there must be nothing, or it is half of a condition on what is added to it.
        if start <= 0 or any(low < start for low, _ in seen):
            continue
        assert isinstance(memory.dtype, PtrDType)
        count = int(max(high for _, high in seen)) - start + 1
        if count + start > memory.dtype.size:
            continue
        whole = define_global(memory.dtype.elem, count, memory.arg)
        starts[memory.arg] = start
        moved.update((place, (whole, start)) for place in places)
    return (_replaced(ast, moved) if moved else ast), starts


def _accesses(ast: UOp) -> dict[UOp, list[UOp]]:
    """The places of each memory of which only places are asked for, each without a condition."""
    found: dict[UOp, list[UOp]] = {}
    others: set[UOp] = set()
    for node in toposort(ast):
        for n, source in enumerate(node.src):
            if source.op is Ops.DEFINE_GLOBAL:
                if node.op is Ops.INDEX and n == 0 and len(node.src) == 2:
                    found.setdefault(source, []).append(node)
                else:
                    others.add(source)
    return {memory: places for memory, places in found.items() if memory not in others}


def _constant(place: UOp) -> int:
    """What is added to a place."""
    if place.op is Ops.CONST:
        return int(place.arg)
    if place.op is Ops.ADD:
        return sum(_constant(s) for s in place.src)
    return 0


def _replaced(ast: UOp, moved: dict[UOp, tuple[UOp, int]]) -> UOp:
    done: dict[UOp, UOp] = {}
    for node in toposort(ast):
        src = tuple([done.get(s, s) for s in node.src])
        found = moved.get(node)
        if found is not None:
            memory, start = found
            place = simplified(make(Ops.ADD, src[1].dtype, (src[1], const(src[1].dtype, -start))))
            src = (memory, place)
        done[node] = node if src == node.src else make(node.op, node.dtype, src, node.arg, node.origin)
    return done[ast]
