"""Uses of values by kernels in the making, for fusion: in which kernel, at which indices, how often."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, final

from morok.ir.bounds import vmax
from morok.ir.infer import ranges
from morok.ir.memory import is_alone
from morok.ir.node import UOp, const
from morok.ir.ops import Ops
from morok.schedule.contraction import GraphContraction
from morok.schedule.graph.compared import NOWHERE, Sides
from morok.schedule.indexing import Indices, Running, known_shape, scanned_loop, source_indices


@final
class Level(NamedTuple):
    """One reduction around a use: its loops, and how often all of it is evaluated."""

    loops: frozenset[UOp]
    times: float
    product: GraphContraction | None = None  # what it contracts


@final
class Use(NamedTuple):
    """A value asked for by a kernel, at these indices, inside these reductions (outer ones first).

    `averaged`: the innermost reduction adds the value up as it is, with other terms at most. `sides`: of
    comparisons that it decides. `partial`: outputs beyond an edge do not want it, or want it at a
    place that data say. `looked_up`: the same indices with a loop where some index stands for such a place.
    """

    kernel: Root
    indices: Indices
    nest: tuple[Level, ...]
    averaged: bool = False
    sides: Sides = NOWHERE
    partial: bool = False
    looked_up: Indices | None = None


@final
@dataclass(eq=False)
class Root:
    """A kernel in the making: the node it stores."""

    node: UOp
    loops: frozenset[UOp]
    points: float
    next_range: int
    code: int = 0  # operations so far, see `code_of`
    order: list[frozenset[UOp]] | None = None  # sets of loops that have to be the outer ones, growing
    product: UOp | None = None  # a matrix product that its outputs are made of, one by one
    heavy: UOp | None = None  # the matrix product or convolution in it
    running: Running | None = None  # the loop that something runs along
    scatters: UOp | None = None  # by which rows are put in places

    @property
    def in_order(self) -> bool:
        """Whether rows are put in places in the order of its loops: two may meet in one."""
        return self.scatters is not None and not is_alone(self.scatters)

    def is_along(self, alive: frozenset[UOp]) -> bool:
        """Whether a value moves with the loop that results lie along."""
        return max(self.loops, key=lambda r: int(r.arg[0]), default=None) in alive


def is_averaged(uses: list[Use]) -> bool:
    """Whether a value is added up in one place and read in another, as by a norm.

    If it were computed in both, the two would be off by a rounding, always in the same direction, and what is
    left of a value without its average would not add up to zero.
    """
    return any(u.averaged and u.nest and u.nest[-1].loops & live_in(u.indices) for u in uses)


def way_of(node: UOp, use: Use) -> Any:
    """The loop that a running reduction is computed along for a reader, and from which end."""
    return scanned_loop(node, use.indices), use.indices[node.arg[1]]


def reason_to_run_apart(node: UOp, use: Use) -> str | None:
    """Why a running reduction cannot be part of a kernel: it is computed along a loop over outputs, once."""
    kernel = use.kernel
    found = scanned_loop(node, use.indices)
    if known_shape(node)[node.arg[1]] == 1:
        return None
    if found is None or use.nest or kernel.scatters is not None:
        return "a running reduction is read out of order"
    if kernel.loops != live_in(use.looked_up or use.indices):
        return "a running reduction would be computed more than once"
    if kernel.running is not None and kernel.running != found:
        return "one kernel would run along two loops"
    return None


def counted(count: float, what: str) -> str:
    return f"{count:.0f} {what}{'' if count == 1 else 's'}"


def points(loops: Collection[UOp]) -> float:
    count = 1.0
    for r in loops:
        stop = r.src[0]
        count *= stop.arg if stop.op is Ops.CONST else float(vmax(stop))
    return count


def live_in(indices: Indices) -> frozenset[UOp]:
    found: frozenset[UOp] = frozenset()
    for i in indices:
        alive = ranges(i)
        if not alive <= found:
            found |= alive
    return found


def place_in(alive: frozenset[UOp], loop: UOp) -> UOp:
    """A place along an axis, in lieu of the loop of a gather, which there will not be: some number for each
    point that the gather is computed for, and another one for each gather."""
    size, number = loop.src[0], int(loop.arg[0])
    total: UOp | int = number
    for r in sorted(alive, key=lambda r: int(r.arg[0])):
        total = r + total
    return const(loop.dtype, total) % size if isinstance(total, int) else total % size


def outermost(kernel: Root, alive: frozenset[UOp]) -> frozenset[UOp]:
    """The loops over outputs that run around a value: its own, if they can be the outer ones."""
    for outer in kernel.order or ():
        if alive <= outer:
            return alive if fits(kernel, alive) else outer
    return alive if fits(kernel, alive) else kernel.loops


def around(kernel: Root, alive: frozenset[UOp]) -> frozenset[UOp]:
    """The loops that a processor computes a value in: outputs are stored in order, so that it is computed
    again for those further out that it does not depend on."""
    own = outermost(kernel, alive)
    inner = max((int(r.arg[0]) for r in own), default=-1)
    return own | frozenset(r for r in kernel.loops if int(r.arg[0]) < inner)


def fits(kernel: Root, alive: frozenset[UOp]) -> bool:
    return all(alive <= outer or outer <= alive for outer in kernel.order or ())


def fix_order(kernel: Root, alive: frozenset[UOp]) -> None:
    """A reduction over the rest of the kernel: the loops it depends on become outer ones."""
    if alive < kernel.loops and fits(kernel, alive):
        kernel.order = sorted({*(kernel.order or ()), alive}, key=len)


def is_cut(node: UOp) -> bool:
    """Whether an integer is kept between bounds here. Whoever reads it from memory would not know them."""
    return node.op in (Ops.MIN, Ops.MAX) and node.dtype.is_int and any(_is_const(s) for s in node.src)


def _is_const(node: UOp) -> bool:
    while node.op.is_movement:
        node = node.src[0]
    return node.op is Ops.CONST


def comparing(gather: UOp) -> set[UOp]:
    """The nodes between a gather and what it reads: one element for every place that it might read."""
    sizes = known_shape(gather.src[0])
    inside: set[UOp] = set()
    waiting = [gather.src[0]]
    while waiting:
        node = waiting.pop()
        if node.op.is_alu and node not in inside and known_shape(node) == sizes:
            inside.add(node)
            waiting += node.src
    return inside


def wider_sum(node: UOp, uses: list[Use], users: Mapping[UOp, int]) -> tuple[UOp, list[Use]] | None:
    """The sum that a CAST makes narrower and that nobody else reads, and where it is read: whoever keeps it
    had better keep the narrower side."""
    if node.op is not Ops.CAST:
        return None
    below = node.src[0]
    while below.op is Ops.RESHAPE and users[below] == 1:
        uses = [use._replace(indices=source_indices(below, use.indices)[0]) for use in uses]
        below = below.src[0]
    if below.op is not Ops.REDUCE_AXIS or below.dtype.itemsize <= node.dtype.itemsize or users[below] > 1:
        return None
    return below, uses
