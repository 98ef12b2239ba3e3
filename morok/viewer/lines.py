"""Which of the user's lines a kernel computes, and to which of them each of its instructions belongs.

Equal nodes are one object with one origin. What describes memory is equal in many kernels: a parameter is
known by its number and size, a loop by its length. So such nodes may say where a weight was made or last
written, or name a line of another kernel. A kernel's own lines are therefore those of the values that it
computes, and an instruction that names another one belongs to the line of who uses it.
"""

from __future__ import annotations

from morok.ir.node import UOp, toposort
from morok.ir.ops import Ops
from morok.viewer.sources import Sources

Place = tuple[int, int]


def own_lines(kernel: UOp, sources: Sources) -> set[Place]:
    """Lines of the values that a graph computes: not of its parameters, nor of their bare shapes."""
    bare: set[UOp] = set()
    found: set[Place] = set()
    for node in toposort(kernel):
        if node.op is Ops.PARAM or (node.op is Ops.RESHAPE and node.src[0] in bare):
            bare.add(node)
        elif node.op is not Ops.SINK and (place := sources.of(node)) is not None:
            found.add(place)
    return found


def places_of(linear: UOp, own: set[Place], main: Place | None, sources: Sources) -> list[Place | None]:
    """The line of each instruction of a list; constants have none. `main` is the kernel's own line."""
    found: dict[UOp, Place | None] = {}
    wanted: dict[UOp, Place | None] = {}  # of who uses a node first in the list
    for node in reversed(linear.src):
        place = sources.of(node)
        if node.op is Ops.CONST:
            found[node] = None
            continue
        if place not in own:
            place = wanted.get(node, main)
        found[node] = place
        for source in node.src:
            wanted[source] = place
    return [found[node] for node in linear.src]
