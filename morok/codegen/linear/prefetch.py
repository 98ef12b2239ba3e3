"""Stage 22a, software prefetch: what a loop will read from far memory is asked for a little ahead.

A processor notices by itself that memory is read in order, but with several arrays at a time it asks for too
little too late. One hint per cache line and array, some lines ahead, fills the gaps. A hint may point beyond
the end of an array: nothing is read there, and nothing can go wrong.

A panel that was packed into local memory and is longer than the first cache comes from the second one for
every tile of rows. Where the machine says that this takes longer than it hides, its lines are asked for, too.
So are those of columns of a matrix that a tile goes down again for other rows: each step is a piece of a row.
"""

from __future__ import annotations

from typing import Any

from morok.codegen.linear.prefetch_blocks import LARGE, is_far, prefetch_blocks, step
from morok.codegen.linear.prefetch_rows import prefetch_rows
from morok.dtype import AddrSpace, PtrDType, void
from morok.ir.bounds import vmax
from morok.ir.node import UOp, alu, const, make, toposort
from morok.ir.ops import Ops
from morok.machine.machine import Machine

UNDER_WAY = 16  # lines: a loop that reads more at once, in several places, keeps the memory busy by itself
STAYS = 3 / 8  # of the first cache: a panel that is no longer than that is still there for the next tile


def prefetch(root: UOp, ctx: Any) -> UOp:
    """LINEAR with a PREFETCH for each line that an innermost loop will read soon."""
    machine: Machine = ctx.machine
    if machine.prefetch_blocks:
        root = prefetch_blocks(root, machine)
    if not machine.prefetch_bytes and not machine.panel_ahead:
        return root
    if machine.prefetch_bytes:
        root = prefetch_rows(root, machine)
    out: list[UOp] = []
    loops: list[UOp] = []  # around what comes next
    start = -1
    for node in root.src:
        out.append(node)
        if node.op is Ops.RANGE:
            loops.append(node)
            start = len(out)
        elif node.op is Ops.END:
            if start >= 0:
                hints = [
                    hint
                    for place, nbytes, ahead in _streams(loops, out[start:-1], machine)
                    for hint in _hints(place, nbytes, ahead, machine.line_bytes)
                ]
                out[len(out) - 1 : len(out) - 1] = dict.fromkeys(hints)
            loops.remove(node.src[1])
            start = -1
    return root if len(out) == len(root.src) else make(Ops.LINEAR, void, tuple(out))


def _streams(loops: list[UOp], body: list[UOp], machine: Machine) -> list[tuple[UOp, int, int]]:
    """Reads of large arrays that the innermost loop walks through, bytes per iteration, and how far ahead
    they are asked for. Those of an array are one stream without gaps, of which the first is named, or each is
    one of several that leave none."""
    loop, line_bytes = loops[-1], machine.line_bytes
    reads: dict[UOp, list[UOp]] = {}
    for n in body:
        if n.op is Ops.LOAD and n.dtype.lanes > 1 and (_ahead(n.src[0], machine) or machine.panel_ahead):
            reads.setdefault(n.src[0].src[0], []).append(n)
    found = []
    for loads in reads.values():
        steps = {step(n.src[0].src[1], loop) for n in loads}
        runs = [loads] if steps == {sum(n.dtype.lanes for n in loads)} else _runs(loads)
        lines = sum(n.dtype.itemsize for n in loads) // line_bytes
        if len(runs) > 1 and (lines > UNDER_WAY or not _leave_no_gaps(runs, loops)):
            continue
        for run in runs:
            place, nbytes = run[0].src[0], sum(n.dtype.itemsize for n in run)
            amount = step(place.src[1], loop)
            if amount != sum(n.dtype.lanes for n in run):
                each = (amount or 0) * run[0].dtype.scalar.itemsize
                if each > nbytes and _comes_again(place, loops, each, machine):
                    found.append((place, nbytes, machine.panel_ahead // nbytes * each))
                continue
            walk = nbytes * (vmax(loop) + 1)
            if nbytes % line_bytes or not _ahead(place, machine) or _is_row(place.src[1], walk, machine):
                continue
            if _space(place) is AddrSpace.GLOBAL or walk > machine.l1_bytes * STAYS:
                found.append((place, nbytes, _ahead(place, machine)))
    return found


def _comes_again(place: UOp, loops: list[UOp], each: int, machine: Machine) -> bool:
    """Whether a walk that takes so many bytes at a step is walked again, and leaves the first cache before.

    Whoever walks it again finds it in the second cache, as long as that holds it.
    """
    *around, loop = loops
    if not machine.panel_ahead or len(place.src) != 2 or _space(place) is not AddrSpace.GLOBAL:
        return False
    walk = each * (vmax(loop) + 1)
    repeats = any(step(place.src[1], r) == 0 for r in around)
    return repeats and machine.l1_bytes * STAYS < walk <= machine.l2_bytes


def _runs(loads: list[UOp]) -> list[list[UOp]]:
    """Reads of an array that lie side by side, in their order."""
    begun: dict[UOp, list[tuple[int, UOp]]] = {}
    for n in loads:
        place = n.src[0].src[1]
        has_offset = place.op is Ops.ADD and place.src[1].op is Ops.CONST
        base, offset = (place.src[0], int(place.src[1].arg)) if has_offset else (place, 0)
        begun.setdefault(base, []).append((offset, n))
    runs: list[list[UOp]] = []
    for found in begun.values():
        end = None
        for offset, n in sorted(found, key=lambda pair: pair[0]):
            if offset != end:
                runs.append([])
            runs[-1].append(n)
            end = offset + n.dtype.lanes
    return runs


def _leave_no_gaps(runs: list[list[UOp]], loops: list[UOp]) -> bool:
    """Whether runs of an array are, together, all of it that lies between two steps of a loop around them:
    after a run comes another one, as the words of a block do that some codes share."""
    *around, inner = loops
    lanes = [sum(n.dtype.lanes for n in run) for run in runs]
    places = [run[0].src[0].src[1] for run in runs]
    if [step(place, inner) for place in places] != lanes:
        return False
    read = [count * (vmax(inner) + 1) for count in lanes]
    for loop in reversed(around):
        steps = [step(place, loop) for place in places]
        if set(steps) == {sum(read)}:
            return True
        read = [count * (vmax(loop) + 1) if by else count for count, by in zip(read, steps, strict=True)]
    return False


def _is_row(place: UOp, nbytes: float, machine: Machine) -> bool:
    """A few lines at a place that only memory knows: what follows them is not read next."""
    return nbytes <= machine.l1_bytes and any(n.op is Ops.LOAD for n in toposort(place))


def _ahead(address: UOp, machine: Machine) -> int:
    """How far ahead what lies there is asked for; 0: not at all."""
    if address.op is not Ops.INDEX or len(address.src) != 2:
        return 0
    dtype = address.src[0].dtype
    if isinstance(dtype, PtrDType) and dtype.space is AddrSpace.LOCAL:
        return machine.panel_ahead
    return machine.prefetch_bytes if is_far(address) else 0


def _space(address: UOp) -> AddrSpace | None:
    dtype = address.src[0].dtype
    return dtype.space if isinstance(dtype, PtrDType) else None


def _hints(first: UOp, nbytes: int, ahead: int, line_bytes: int) -> list[UOp]:
    """The places, their addresses and the hints for all lines that an iteration reads."""
    where = first.src[1]
    dtype = first.dtype
    assert isinstance(dtype, PtrDType)
    each = dtype.elem.scalar.itemsize
    found = []
    for line in range(0, nbytes, line_bytes):
        soon = alu(Ops.ADD, where, const(where.dtype, (ahead + line) // each))
        address = make(Ops.INDEX, dtype, (first.src[0], soon))
        found += [soon, address, make(Ops.PREFETCH, void, (address,))]
    return found


__all__ = ["LARGE", "prefetch", "step"]
