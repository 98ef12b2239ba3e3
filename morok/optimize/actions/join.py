"""The action JOIN: two loops over outputs become one, so that a tile can be cut out of both together.

A convolution's outputs lie in rows of an image; a tile of a matrix product wants them one after the other.
The indices are taken apart again by division, once per tile and not in its inner loop.
"""

from __future__ import annotations

from morok.ir.infer import ranges
from morok.ir.node import UOp, alu, const
from morok.ir.ops import Ops
from morok.machine.machine import Machine
from morok.optimize.loops import LOOP_KINDS, Loops, loop, simplify_places, size
from morok.optimize.record import Opt
from morok.schedule.kernel.ranges import replace_loops


def can_join(loops: Loops, opt: Opt, machine: Machine) -> str | None:
    for number in (opt.axis, opt.amount):
        r = loops.by_number.get(number)
        if r is None:
            return f"there is no loop {number}"
        if r.arg[1] not in LOOP_KINDS:
            return f"loop {number} is {r.arg[1].value} already"
        if size(r) is None or loops.bounds_another(r) or ranges(r.src[0]):
            return f"loop {number} has no fixed size"
    if opt.axis == opt.amount:
        return "a loop cannot be joined with itself"
    a, b = loops.by_number[opt.axis], loops.by_number[opt.amount]
    if loops.closers[a] != loops.closers[b]:
        return f"loops {opt.axis} and {opt.amount} are not closed together"
    if loops.closed_by(a) is Ops.BUFFERIZE:
        return f"loop {opt.axis} is a dimension of a copy"  # whose layout would be another one
    return None


def join(loops: Loops, opt: Opt) -> UOp:
    """Two loops become one, which has the number of the second; the first is the outer one.

    JOIN(0, 1):   for r0 < 8: for r1 < 5: f(r0, r1)   →   for r1 < 40: f(r1 // 5, r1 % 5)
    """
    a, b = loops.by_number[opt.axis], loops.by_number[opt.amount]
    inner = size(b) or 1
    joint = loop((size(a) or 1) * inner, opt.amount, b.arg[1], b)
    width = const(joint.dtype, inner)
    mapping = {
        a: (alu(Ops.FLOORDIV, joint, width), (joint,)),
        b: (alu(Ops.FLOORMOD, joint, width), (joint,)),
    }
    return simplify_places(replace_loops(loops.ast, mapping), joint)
