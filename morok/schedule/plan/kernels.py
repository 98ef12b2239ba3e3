"""From writes to kernels: the normal form of a kernel, its lowering, and what is known about the result.

The normal form erases identities: `SINK(*ASSIGN(target, value))` over PARAMs numbered in the order of a walk.
Equal layers have the same normal form, which is the same node, so each kernel is lowered once however often
it runs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import final

from morok import knobs
from morok.caches import Cache
from morok.dtype import PtrDType, void
from morok.forks import cached_property
from morok.ir.bounds import bounds, vmax
from morok.ir.checks import Slot
from morok.ir.infer import closed_ranges, ranges
from morok.ir.node import UOp, extend_order, make, toposort
from morok.ir.ops import Ops
from morok.rewrite.observe import report
from morok.rewrite.observer import By
from morok.rewrite.stage import run_pipeline
from morok.schedule.kernel.numbering import number_buffers
from morok.schedule.kernel.stages import KERNEL_STAGES
from morok.schedule.plan.windows import from_its_beginnings
from morok.schedule.split import KernelWrite, plain

NUMBERED = By("stage", "number buffers", "6.2")


@final
@dataclass(frozen=True, eq=False)
class Kernel:
    """A lowered kernel and its facts. Buffers are counted as in the graph: DEFINE_GLOBAL numbers."""

    ast: UOp
    params: tuple[int, ...]  # for each buffer, the number of its PARAM in the normal form
    outputs: int
    variables: tuple[str, ...]
    name: str
    flops: int
    bytes: int
    checks: frozenset[int]  # those of the form that it makes; their notes lie in a buffer after all others
    shared: frozenset[tuple[int, int]]  # (output, input) that may be the same memory
    is_safe: bool  # no output is read anywhere but at the place that is being written

    @cached_property
    def from_its_beginnings(self) -> tuple[UOp, dict[int, int]]:
        """The kernel for memory that begins where it is first looked at, and where that is, by its number."""
        return from_its_beginnings(self.ast)


@final
@dataclass(frozen=True, eq=False)
class Form:
    """The normal form of a kernel, and the params of the schedule that its own stand for."""

    sink: UOp
    params: tuple[UOp, ...]
    checks: tuple[UOp, ...]  # the CHECKs of the writes; in the form they are numbers


def normal_form(writes: Sequence[KernelWrite]) -> Form:
    """The writes as one kernel. What one of them writes, the others take from the value instead of memory."""
    inside = {write.done: write for write in writes}
    numbers: dict[UOp, UOp] = {}
    checks: list[UOp] = []
    done: dict[UOp, UOp] = {}
    stack: list[UOp] = []
    for write in reversed(writes):
        stack += (write.value, *_places(write), write.target)
    while stack:
        node = stack[-1]
        if node in done:
            stack.pop()
            continue
        op = node.op
        sources = node.src if op is not Ops.AFTER else (_seen_through(node, inside),)
        pending = [s for s in sources if s not in done]
        if pending:
            stack += reversed(pending)
            continue
        stack.pop()
        if op is Ops.PARAM:
            local = make(Ops.PARAM, node.dtype, (), (len(numbers), node.arg[1], ""), node.origin)
            numbers[node] = done[node] = local
        elif op is Ops.AFTER:
            done[node] = done[sources[0]]
        elif op is Ops.CHECK:
            src = tuple([done[s] for s in sources])
            done[node] = make(op, node.dtype, src, len(checks), node.origin)
            checks.append(node)
        else:
            done[node] = node.replace(tuple([done[s] for s in sources]))
    effects = []
    for d in writes:
        sources = (done[d.target], done[d.value], *(done[p] for p in _places(d)))
        effects.append(make(Ops.ASSIGN, d.value.dtype, sources, d.joined, d.origin))
    return Form(make(Ops.SINK, void, tuple(effects)), tuple(numbers), tuple(checks))


def _places(write: KernelWrite) -> tuple[UOp, ...]:
    return () if write.places is None else (write.places,)


def _seen_through(node: UOp, inside: dict[UOp, KernelWrite]) -> UOp:
    """What an AFTER shows: the value itself if this very kernel makes it, else the memory."""
    for token in node.src[1:]:
        write = inside.get(token)
        if write is not None and plain(write.target) is plain(node.src[0]):
            return write.value
    return node.src[0]


_lowered: Cache[tuple[UOp, object], Kernel] = Cache("schedule.kernels", 1024)


def lower(sink: UOp) -> Kernel:
    """The kernel of a normal form; remembered."""
    key = (sink, knobs.cache_key())
    found = _lowered.get(key)
    if found is None:
        found = _lowered[key] = describe(run_pipeline(KERNEL_STAGES, sink))
    return found


def describe(graph: UOp) -> Kernel:
    """Numbers the buffers and counts what the kernel does."""
    ast, params = number_buffers(graph)
    ast, checks = _with_slots(ast, len(params))
    report(NUMBERED, graph, ast)
    order = toposort(ast)
    reads: dict[int, set[tuple[UOp, ...]]] = {}
    stores: dict[int, tuple[tuple[UOp, ...], frozenset[UOp]]] = {}
    for effect in ast.src:
        address = effect.src[0].src[0]
        stores[address.src[0].arg] = (address.src[1:], frozenset(effect.src[1:]))
    for node in order:
        if node.op is Ops.INDEX and not node.dtype.is_ptr:
            reads.setdefault(node.src[0].arg, set()).add(node.src[1:])
    shared = set()
    last, again = _last_readers(ast), _read_beside_scans(ast)
    for position, (out, (spot, _)) in enumerate(stores.items()):
        for number, spots in reads.items():
            # Effects run one after the other: an input must not be gone before its last reader.
            if spots == {spot} and number not in stores and last[number] <= position and number not in again:
                shared.add((out, number))
    safe = again.isdisjoint(stores) and all(
        spot == other or _apart(spot[0], other[0])
        for number, (spot, _) in stores.items()
        for other in reads.get(number, ())
    )
    return Kernel(
        ast,
        params,
        len(stores),
        tuple(sorted(str(n.arg[0]) for n in order if n.op is Ops.DEFINE_VAR)),
        kernel_name(ast, order),
        count_flops(order),
        count_bytes(ast, order, reads, stores),
        checks,
        frozenset(shared),
        safe and one_order(ast),
    )


def _with_slots(ast: UOp, buffer: int) -> tuple[UOp, frozenset[int]]:
    """The checks of a kernel with places for their notes."""
    found = [n for n in toposort(ast) if n.op is Ops.CHECK and isinstance(n.arg, int)]
    if not found:
        return ast, frozenset()
    size = 1 + max(int(n.arg) for n in found)
    done: dict[UOp, UOp] = {}
    for node in toposort(ast):
        src = tuple([done[s] for s in node.src])
        if node.op is Ops.CHECK and isinstance(node.arg, int):
            done[node] = make(node.op, node.dtype, src, Slot(buffer, node.arg, size), node.origin)
        else:
            done[node] = node.replace(src)
    return done[ast], frozenset(int(n.arg) for n in found)


def _apart(a: UOp, b: UOp) -> bool:
    """Whether two places are never the same, wherever the loops are: one lies below all of the other."""
    (alo, ahi), (blo, bhi) = bounds(a), bounds(b)
    return bool(ahi < blo or bhi < alo)


def _last_readers(ast: UOp) -> dict[int, int]:
    """For each buffer, the position of the last effect that reads it."""
    found: dict[int, int] = {}
    seen: dict[UOp, None] = {}
    for position in range(len(ast.src) - 1, -1, -1):
        before = len(seen)
        extend_order(seen, (ast.src[position],))
        for node in islice(seen, before, None):
            if node.op is Ops.INDEX and not node.dtype.is_ptr:
                found.setdefault(node.src[0].arg, position)
    return found


def _read_beside_scans(ast: UOp) -> set[int]:
    """Buffers that something runs along, and that are read for another reason as well.

    What is stored may then depend on earlier steps alone (a running sum without its last term), so it may be
    stored before the step has read its own term.
    """
    scans = [n for n in toposort(ast) if n.op is Ops.SCAN]
    outside = toposort(ast, stop=lambda n: n.op is Ops.SCAN) if scans else []
    inside = {n for n in toposort(*scans) if n.op is Ops.INDEX} if scans else set()
    return {n.src[0].arg for n in inside} & {
        n.src[0].arg for n in outside if n.op is Ops.INDEX and not n.dtype.is_ptr
    }


def one_order(ast: UOp) -> bool:
    """Whether effects run one after the other: none reads what an earlier one has written elsewhere."""
    last = _last_readers(ast)
    written = (effect.src[0].src[0].src[0].arg for effect in ast.src)
    return all(last.get(number, -1) <= position for position, number in enumerate(written))


def points(loops: Sequence[UOp] | frozenset[UOp]) -> int:
    """How often the body of these loops runs at most."""
    return math.prod(max(1, int(vmax(r.src[0]))) for r in loops)


def count_flops(order: list[UOp]) -> int:
    """Arithmetic on values; index arithmetic is not counted."""
    total = 0
    for node in order:
        if node.op is Ops.REDUCE:
            alive = frozenset(r for s in node.src for r in ranges(s))
            total += len(node.arg) * points(alive)
        elif node.op is Ops.SCAN:
            total += points(ranges(node))
        elif node.op.is_alu and node.op is not Ops.CAST and node.dtype.is_float:
            total += points(ranges(node)) * (2 if node.op is Ops.MULACC else 1)
    return total


def count_bytes(
    ast: UOp,
    order: list[UOp],
    reads: dict[int, set[tuple[UOp, ...]]],
    stores: dict[int, tuple[tuple[UOp, ...], frozenset[UOp]]],
) -> int:
    """Memory that must be read and written at least once."""
    total = 0
    for node in order:
        if node.op is not Ops.DEFINE_GLOBAL:
            continue
        assert isinstance(node.dtype, PtrDType)
        width = node.dtype.elem.itemsize
        if node.arg in stores:
            total += width * min(node.dtype.size, points(stores[node.arg][1]))
        spots = reads.get(node.arg)
        if spots:
            touched = sum(points(frozenset(r for s in spot for r in ranges(s))) for spot in spots)
            total += width * min(node.dtype.size, touched)
    return total


def kernel_name(ast: UOp, order: list[UOp]) -> str:
    """What the loops look like: e for element-wise, r with reductions, s along loops, then the sizes."""
    inner = [r for n in order if n.op is Ops.REDUCE for r in closed_ranges(n)]
    outer = ast.src[0].src[1:]
    parts = [_size(r) for r in outer] + [_size(r) for r in dict.fromkeys(inner)]
    many = f"x{len(ast.src)}" if len(ast.src) > 1 else ""
    kind = "s" if any(n.op is Ops.SCAN for n in order) else "r" if inner else "e"
    return "_".join([kind + many, *parts])


def _size(r: UOp) -> str:
    stop = r.src[0]
    if stop.op is Ops.CONST:
        return str(stop.arg)
    return str(stop.arg[0]) if stop.op is Ops.DEFINE_VAR else "n"
