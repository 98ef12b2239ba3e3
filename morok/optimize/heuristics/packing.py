"""Parts of plans that pack tiles: which steps are one loop, how a copy is filled, how many fit a cache."""

from __future__ import annotations

from morok.ir.infer import closed_ranges, ranges
from morok.ir.node import UOp
from morok.ir.ops import Ops
from morok.optimize.facts import Access, access, trips
from morok.optimize.heuristics.builder import Builder
from morok.optimize.loops import gate_of, size


def fitting(count: int, most: int, each: float = 0.01) -> int:
    """How many of so many are taken at a time, where `most` fit: such that few are left for nothing, and what
    is done once each time, in units of one of them, is not done too often."""
    choices = range(1, max(1, min(count, most)) + 1)
    return min(choices, key=lambda n: (-(-count // n) * (n + each), -n))


def follows(a: Access, outer: UOp, inner: UOp, count: int) -> bool:
    """Whether one step of the outer loop moves an access as far as all steps of the inner one."""
    steps = a.step(outer), a.step(inner)
    return None not in steps and steps[0] == count * (steps[1] or 0)


def steps_of(reduce: UOp) -> list[UOp]:
    """The loops of a reduction, outer ones first."""
    return sorted(closed_ranges(reduce), key=lambda k: int(k.arg[0]))


def join_steps(builder: Builder, steps: list[int]) -> None:
    """Makes one plain loop of the steps where all reads allow it."""
    while len(steps) > 1:
        a, b = steps[-2:]
        outer, inner = builder.loops.by_number.get(a), builder.loops.by_number.get(b)
        if outer is None or inner is None or size(inner) is None:
            break
        reads = [n for n in builder.loops.order if n.op is Ops.INDEX and not n.dtype.is_ptr]
        moving = (access(n) for n in reads if outer in ranges(n) or inner in ranges(n))
        if not all(follows(r, outer, inner, trips(inner)) for r in moving) or not builder.do("JOIN", a, b):
            break
        steps.pop(-2)


def pack(builder: Builder, read: Access, steps: list[int], lane_axis: int) -> None:
    """Copies the panel, whole vectors at a time.

    Steps that no condition depends on are the innermost ones of the copy: what is known of the padding around
    a picture is worked out once for all of its channels.
    """
    loops = builder.loops
    columns = loops.by_number[lane_axis]
    node = next(n for n in loops.order if _is_read(n, read.buffer) and columns in ranges(n))
    axes = [k for k in steps if k in loops.by_number and loops.by_number[k] in ranges(node)]
    first = loops.next_number()
    if not builder.do("PACK", read.buffer, 0, (*axes, lane_axis)):
        return
    gate = gate_of(node)
    guarded = frozenset() if gate is None else ranges(gate)
    free = [first + n for n, k in enumerate(axes) if loops.by_number[k] not in guarded]
    bound = [first + n for n, k in enumerate(axes) if loops.by_number[k] in guarded]
    now = {n: n for n in (*free, *bound)}  # what the loops of the copy are called
    if free and bound and len(free) == 1 and free[0] < bound[-1]:
        if builder.do("SWAP", free[0], bound[-1]):
            now[free[0]], now[bound[-1]] = bound[-1], free[0]
    where = access(node)
    lanes = builder.machine.lanes(node.dtype)
    if builder.machine.packs_in_order and where.step(columns) == 1:
        _walk_rows(
            builder, [(first + n, where.step(loops.by_number[k])) for n, k in enumerate(axes)], trips(columns)
        )
    builder.do("UPCAST", first + len(axes))
    along = [first + n for n, k in enumerate(axes) if where.step(loops.by_number[k]) == 1]
    if along and lanes > 1 and where.step(columns) != 1:
        turned = lanes  # whole vectors are read and turned, or shorter ones where rows end before
        while turned > 1 and not builder.do("UPCAST", now[along[0]], turned):
            turned //= 2


def _walk_rows(builder: Builder, copied: list[tuple[int, int | None]], width: int) -> None:
    """Fills panels that lie side by side in memory together, so that it is walked along their rows."""
    panel = next((number for number, step in copied if step == width), None)
    if panel is not None and panel != copied[-1][0]:
        builder.do("SWAP", panel, copied[-1][0])


def _is_read(node: UOp, buffer: int) -> bool:
    is_read = node.op is Ops.INDEX and not node.dtype.is_ptr
    return is_read and node.src[0].op is Ops.DEFINE_GLOBAL and node.src[0].arg == buffer
