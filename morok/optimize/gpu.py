"""The default choice of actions for a machine with a grid of blocks.

Whatever stays a loop over outputs goes to the grid in stage 8a, unless a reduction lies outside of it. What
is decided here is which of those loops are threads of a block, who shares a reduction, how much each does.
"""

from __future__ import annotations

import math

from morok.ir.node import UOp
from morok.optimize.builder import Builder
from morok.optimize.facts import access, output_loops, store_of
from morok.optimize.grid import grid_loops
from morok.optimize.host import Host
from morok.optimize.loops import size

THREADS = 256  # of a block


def choose_gpu(ast: UOp, host: Host) -> UOp:
    """The kernel with the actions that the heuristics choose."""
    builder = Builder(ast, host)
    for effect in ast.src:
        free = [r for r in output_loops(effect) if r in grid_loops(ast)]
        place = access(store_of(effect).src[0])
        room = min(THREADS, host.block_threads)
        for r in sorted(free, key=lambda r: (place.step(r) != 1, -int(r.arg[0]))):
            count = size(r)
            amount = math.gcd(count or 1, room)
            if amount > 1 and builder.do("LOCAL", int(r.arg[0]), amount):
                room //= amount
    return builder.ast
