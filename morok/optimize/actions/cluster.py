"""The action CLUSTER: neighbouring blocks share the tiles that are the same in all of them.

A cluster's blocks run at the same time, and each can write into the shared memory of the others. So a tile
that all of them need is brought once: each block's producer copies a part of it, to all (multicast). That
halves what is asked of the second cache, which matters where rows do not begin with its lines: a row of a
tile is then two requests.
"""

from __future__ import annotations

from dataclasses import replace

from morok.ir.infer import ranges
from morok.ir.matrix import Shared, shared_layout
from morok.ir.node import UOp, make, toposort
from morok.ir.ops import AxisKind
from morok.machine.machine import Machine
from morok.optimize.actions.warp_specialize import tile_loops
from morok.optimize.loops import Loops, loop, size
from morok.optimize.record import Opt
from morok.schedule.kernel.ranges import replace_loops

SWIZZLED = 8  # rows of a panel after which its chunks are exchanged as before


def _rings(nodes: list[UOp]) -> list[tuple[UOp, Shared]]:
    return [(n, how) for n in nodes if (how := shared_layout(n)) is not None and how.box is not None]


def _parts(buffer: UOp, how: Shared, blocks: int) -> bool:
    """Whether a tile can be copied in so many equal parts."""
    box = how.box
    assert box is not None
    points = 1
    for d in buffer.src[1:]:
        points *= size(d) or 1
    if points // (box.part[0] * box.part[1]) % blocks == 0:
        return True
    return box.walk is None and box.part[1] % (SWIZZLED * blocks) == 0


def can_cluster(loops: Loops, opt: Opt, machine: Machine) -> str | None:
    r = loops.by_number.get(opt.axis)
    if machine.cluster < 2:
        return "blocks of the machine do not write into each other's shared memory"
    rings = _rings(loops.order)
    if not rings:
        return "blocks share tiles only where threads have roles"
    if any(how.blocks > 1 for _, how in rings):
        return "blocks share tiles already"
    if any(c.arg[1] is AxisKind.GLOBAL for c in loops.closers):
        return "the blocks have been given work already"
    if r is None or r not in tile_loops(loops):
        return f"{opt.axis} is no loop over tiles of the output"
    if not 1 < (size(r) or 0) <= machine.cluster:
        return f"a cluster has at most {machine.cluster} blocks, and the loop {size(r)} steps"
    shared = [(n, how) for n, how in rings if r not in ranges(n)]
    if not shared:
        return "every tile is another one in each block"
    for n, how in shared:
        if not _parts(n, how, size(r) or 1):
            return f"a tile of {n.arg[1]} cannot be copied in {size(r)} parts"
    return None


def cluster(loops: Loops, opt: Opt) -> UOp:
    """The tiles of a loop are those of a cluster's blocks; what does not move with it they share.

    CLUSTER(7):   for i < 2: …   →   the block of rank i: …
    """
    r = loops.by_number[opt.axis]
    blocks = size(r) or 1
    mine = {n for n, _ in _rings(loops.order) if r not in ranges(n)}
    done: dict[UOp, UOp] = {}
    for n in loops.order:
        new = n.replace(tuple([done[s] for s in n.src]))
        if n in mine:
            new = make(n.op, n.dtype, new.src, (*n.arg[:2], replace(n.arg[2], blocks=blocks)), n.origin)
        done[n] = new
    rank = loop(r.src[0], opt.axis, AxisKind.CLUSTER, r)
    return replace_loops(done[loops.ast], {r: (rank, (rank,))})


def is_cluster(ast: UOp) -> bool:
    """Whether blocks of the kernel share tiles."""
    return any(how.blocks > 1 for _, how in _rings(toposort(ast)))
