"""Operands of products in an order that units read in whole vectors: channels last, for convolutions.

A tile of an operand is copied 16 bytes at a time, by instructions that need no registers and do not wait.
That takes memory that lies in order along the steps of the sum, or along the outputs of this operand alone. A
window does not: along a row of an image both its place and the offset in the window move, so a tile begins
anywhere. Nor do weights whose last axis is the offset in a window, three elements long. Such an operand is
copied once, with the axis of the longest sum, or of its own outputs, as the last one, if that takes little
beside the product. What computes the operand then writes it so; there is no other copy.

Rows of an odd length, such as a language model's 50257 words, begin anywhere, too. They are copied to rows
that are as long as whole vectors.

The gradient of a convolution's weights sums over places, which no window lies along: there an operand has its
own outputs last, the other one as well, and so has the result: a row of a tile is then one of memory, for
both operands and for what is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations
from typing import NamedTuple

from morok import knobs
from morok.dtype import DType, float32
from morok.ir.build import cast
from morok.ir.memory import device_of
from morok.ir.movement import pad, permute, shrink
from morok.ir.node import UOp, make, toposort
from morok.ir.ops import AxisKind, Ops
from morok.machine.devices import machine_of
from morok.machine.grid_time import memory_clocks, register_clocks, units_for
from morok.machine.machine import Machine
from morok.schedule.contraction import GraphContraction, contraction_at
from morok.schedule.costs import elements
from morok.schedule.graph.operand_reads import (
    Read,
    axes_of,
    base_of,
    is_memory,
    lies_along,
    meet,
    number_of,
    overlap,
    own_loop,
    reads_of_operands,
    single_loops,
    slides,
    trips,
)
from morok.schedule.indexing import known_shape

LEAST_WORK = 1 << 24  # multiplications
# times of a product that the copies may take: one that reads element by element took 7 on an H200
WORTH = 2.0
REASON = "a unit reads it in whole vectors with its longest sum as the last axis"
LONGER = "a unit reads it in whole vectors where each row begins with one"
DENSE = "a unit reads it in whole vectors without what its stride leaves out"
ROWS = "a product reads it turned, and rows are written as rows"
LONGER_WORTH = 1.0  # the same for rows that begin anywhere: such products took 2.5 and 5 times as long

Axes = tuple[int, ...]


class Packed(NamedTuple):
    """Only what is read, without the places between that a stride leaves out."""


class Copied(NamedTuple):
    """An order of axes that a copy has. What is computed is kept first: who computes rows writes rows."""

    axes: Axes


class Turn(NamedTuple):
    """An order of axes, and the loop that moves along the last one."""

    axes: Axes | Packed
    last: UOp


class Longer(NamedTuple):
    """An axis that is made longer."""

    axis: int
    size: int


class Line(NamedTuple):
    """Steps side by side, and as many as whole steps of a unit."""

    steps: int
    whole: int


Form = Axes | Packed | Longer | Copied


class Layout(NamedTuple):
    """Orders of axes of both operands, or lengths of their rows, and the axis of the result that should be
    its last one."""

    operands: Sequence[Form | None]
    last: int | None = None


AS_IT_IS = Layout([])


def lay_operands(sink: UOp, ctx: object = None) -> UOp:
    """Operands that no vector fits are copied in another order of axes."""
    order = toposort(sink)
    products = [n for n in order if n.op is Ops.REDUCE_AXIS]
    if not products or knobs.NOOPT.value:
        return sink
    devices: dict[UOp, str] = {}
    turned: dict[UOp, Layout] = {}
    for node in order:
        devices[node] = device_of(node, devices)
        if node.op is Ops.REDUCE_AXIS and devices[node]:
            found = _axes_of_operands(node, machine_of(devices[node]))
            if any(form is not None for form in found.operands):
                turned[node] = found
    if not turned:
        return sink
    done: dict[UOp, UOp] = {}
    for node in order:
        new = node.replace(tuple([done[s] for s in node.src]))
        if node in turned:
            pairs = zip(new.src[0].src, turned[node].operands, strict=True)
            factors = tuple([s if form is None else _formed(s, form) for s, form in pairs])
            new = new.replace((new.src[0].replace(factors), *new.src[1:]))
            last = turned[node].last
            new = new if last is None else _with_last(new, last)
        done[node] = new
    return done[sink]


def _with_last(node: UOp, last: int) -> UOp:
    """A sum of products that is computed and kept with another axis as the last one."""
    axes = [a for a in range(len(known_shape(node))) if a != last] + [last]
    products = node.src[0]
    moved = products.replace(tuple([permute(s, axes) for s in products.src]))
    op, summed = node.arg
    total = make(
        node.op, node.dtype, (moved, *node.src[1:]), (op, tuple(sorted(map(axes.index, summed)))), node.origin
    )
    kept = make(Ops.CONTIGUOUS, node.dtype, (total,), REASON, node.origin)
    return permute(kept, [axes.index(a) for a in range(len(axes))])


def _formed(x: UOp, form: Form) -> UOp:
    if isinstance(form, Packed):
        return _packed(x)
    if isinstance(form, Copied):
        return _copied(x, form.axes)
    return _lengthened(x, form) if isinstance(form, Longer) else _turned(x, form)


def _packed(x: UOp) -> UOp:
    """A factor of which the view that has the fewest elements is memory of its own, in memory's type."""
    base = base_of(x)
    views = [x]
    while views[-1] is not base:
        views.append(views[-1].src[0])
    views.reverse()
    counts = [elements(known_shape(v)) for v in views]
    dense = counts.index(min(counts))
    new = base
    for n, view in enumerate(views):
        if n and view.op is not Ops.CAST:
            new = make(view.op, new.dtype, (new, *view.src[1:]), view.arg, view.origin)
        if n == dense:
            new = cast(make(Ops.CONTIGUOUS, new.dtype, (new,), DENSE, x.origin), x.dtype)
    return new


def _lengthened(x: UOp, form: Longer) -> UOp:
    """A factor whose memory has longer rows."""
    base = base_of(x)
    if x is not base:
        return x.replace((_lengthened(x.src[0], form), *x.src[1:]))
    sizes = known_shape(x)
    more = [(0, form.size - n if a == form.axis else 0) for a, n in enumerate(sizes) if isinstance(n, int)]
    kept = make(Ops.CONTIGUOUS, x.dtype, (pad(x, more),), LONGER, x.origin)
    return shrink(kept, [(0, n) for n in sizes])


def _turned(x: UOp, axes: Axes) -> UOp:
    """A factor whose memory has its axes in another order."""
    base = base_of(x)
    if x is not base:
        return x.replace((_turned(x.src[0], axes), *x.src[1:]))
    kept = make(Ops.CONTIGUOUS, x.dtype, (permute(x, list(axes)),), REASON, x.origin)
    return permute(kept, [axes.index(a) for a in range(len(axes))])


def _copied(x: UOp, axes: Axes) -> UOp:
    """A factor that is read from a copy of its memory with the axes in another order."""
    base = base_of(x)
    if x is not base:
        return x.replace((_copied(x.src[0], axes), *x.src[1:]))
    kept = x if is_memory(x) else make(Ops.CONTIGUOUS, x.dtype, (x,), ROWS, x.origin)
    return _turned(kept, axes)


def _axes_of_operands(node: UOp, machine: Machine) -> Layout:
    """For both factors of a product the order of axes that they should have; None where it is as it is."""
    product = contraction_at(node) if machine.grid is not None and machine.products is not None else None
    if product is None or min(product.rows, product.columns) < 2 or product.work < LEAST_WORK:
        return AS_IT_IS
    bases = [base_of(s) for s in node.src[0].src]
    types = {b.dtype for b in bases}
    if len(types) > 1 or bases[0] is bases[1] or not _vector_steps(bases[0].dtype, node.dtype, machine):
        return AS_IT_IS
    reads = reads_of_operands(node, bases)
    if reads is None:
        return AS_IT_IS
    found = [_order(bases[n], reads[n], reads[1 - n], machine) for n in range(2)]
    lies = [lies_along(read) if turn is None else turn.last for turn, read in zip(found, reads, strict=True)]
    if lies[0] is not lies[1] and all(r is not None and r.arg[1] is AxisKind.REDUCE for r in lies):
        for n, turn in enumerate(found):  # one step is a unit's: the other operand would be read by elements
            if turn is not None and not isinstance(turn.axes, Packed):
                own = own_loop(bases[n], reads[n], reads[1 - n], machine)
                found[n] = _turn(bases[n], reads[n], own) or turn
    last = None
    by_units = bool(units_for(bases[0].dtype, node.dtype, machine))
    for n in range(2) if by_units else ():
        chosen, other = found[n], found[1 - n]
        if chosen is None or chosen.last.arg[1] is not AxisKind.LOOP or isinstance(chosen.axes, Packed):
            continue
        if other is not None and other.last.arg[1] is AxisKind.LOOP:
            continue  # along a step it would be of no use: the other one is not
        beside = _turn(bases[1 - n], reads[1 - n], own_loop(bases[1 - n], reads[1 - n], reads[n], machine))
        axis = _axis_of(node, chosen.last, reads)
        if beside is not None and axis is not None:
            found[1 - n], last = beside, axis
            break
    if last is None:
        found = [f if _is_of_use(f, reads[n], reads[1 - n]) else None for n, f in enumerate(found)]
    for n in range(2):
        found[1 - n] = found[1 - n] or _along_the_same(bases[1 - n], reads[1 - n], found[n], machine)
    axes = [None if f is None else f.axes for f in found]
    if not by_units and not _are_steps(found, reads):
        return _crosswise(product, bases, reads, machine)
    if any(f is not None for f in found):
        is_worth = _is_worth(product, bases, axes, machine, WORTH)
        if is_worth and any(map(slides, reads)):
            line = _line(product, found, node, machine)
            clocks = _copies(bases, axes, machine) + _laid_clocks(product, line, machine)
            is_worth = clocks < _by_threads(product, bases, reads, machine)
        return Layout(axes, last) if is_worth else AS_IT_IS
    longer = [_longer(bases[n], reads[n], machine) for n in range(2)]
    if any(longer) and _is_worth(product, bases, longer, machine, LONGER_WORTH):
        return Layout(longer)
    return AS_IT_IS


def _crosswise(product: GraphContraction, bases: list[UOp], reads: list[Read], machine: Machine) -> Layout:
    """Of two operands that lie along the steps, threads have that of the columns turned, if it saves more.

    Numbers that a thread reads four steps at a time lie in one bank of registers. With the rows turned in its
    place nothing is won. Products side by side are left alone: they may be an attention's scores, which a
    later stage makes a part of one kernel.
    """
    steps = [r for r in map(lies_along, reads) if r is not None and r.arg[1] is AxisKind.REDUCE]
    alone = product.batch == 1 and not any(map(slides, reads))
    if machine.products is None or len(steps) < 2 or not alone:
        return AS_IT_IS
    turn = _turn(bases[1], reads[1], own_loop(bases[1], reads[1], reads[0], machine))
    if turn is None or isinstance(turn.axes, Packed):
        return AS_IT_IS
    forms = [None, Copied(turn.axes)]
    passes = 1 if is_memory(bases[1]) else 2
    saved = (1 - machine.products.crosswise) * product.clocks(machine)
    return Layout(forms) if passes * _copies(bases, forms, machine) < saved else AS_IT_IS


def _are_steps(found: Sequence[Turn | None], reads: Sequence[Read]) -> bool:
    """Whether a window is read, and every one of them in vectors of steps.

    That is worth it for threads: a window's elements are copied one by one, each with a guard of its own,
    and a convolution of 3×3 in float32 takes 1.5 times as long on an H200. Where outputs come to lie side by
    side instead, the result has to be turned as well, and what has few channels is slower.
    """
    windows = [turn for turn, read in zip(found, reads, strict=True) if slides(read)]
    lines = [t.last for t in windows if t is not None and not isinstance(t.axes, Packed)]
    return 0 < len(windows) == sum(r.arg[1] is AxisKind.REDUCE for r in lines)


def _is_of_use(turn: Turn | None, mine: Read, other: Read) -> bool:
    """Whether tiles have rows along the last axis: not images, where rows are places of windows."""
    if turn is None or turn.last.arg[1] is not AxisKind.LOOP:
        return True
    own = [r for r in mine.steps if r.arg[1] is AxisKind.LOOP and r not in other.steps]
    innermost = max(own, key=number_of)
    return turn.last is innermost or not any(
        k.arg[1] is AxisKind.REDUCE and trips(k) < trips(innermost) and meet(innermost, k, mine)
        for k in mine.steps
    )


def _along_the_same(base: UOp, mine: Read, other: Turn | None, machine: Machine) -> Turn | None:
    """The order of axes of an operand that lies along another loop of the sum than the other one will."""
    if other is None or other.last.arg[1] is not AxisKind.REDUCE:
        return None
    along = [r for r, step in mine.steps.items() if step == 1]
    if other.last in along or not along or any(r.arg[1] is not AxisKind.REDUCE for r in along):
        return None
    return _turn(base, mine, other.last if other.last in single_loops(base, mine, machine) else None)


def _axis_of(node: UOp, r: UOp, reads: list[Read]) -> int | None:
    """The axis of a product's result that a loop over outputs is; None if they cannot be told apart."""
    loops = sorted({k for read in reads for k in read.steps if k.arg[1] is AxisKind.LOOP}, key=number_of)
    sizes = known_shape(node)
    axes = [a for a, n in enumerate(sizes) if n != 1]
    if [sizes[a] for a in axes] != [trips(k) for k in loops]:
        return None
    return axes[loops.index(r)]


def _is_worth(
    product: GraphContraction,
    bases: list[UOp],
    found: Sequence[Form | None],
    machine: Machine,
    worth: float,
) -> bool:
    return _copies(bases, found, machine) <= worth * product.clocks(machine)


def _copies(bases: list[UOp], found: Sequence[Form | None], machine: Machine) -> float:
    """The time of the copies of operands."""
    assert machine.grid is not None
    formed = [b for b, form in zip(bases, found, strict=True) if form is not None]
    copied = [elements(known_shape(b)) * b.dtype.itemsize for b in formed]
    return sum(memory_clocks(2 * n, machine.cores, machine) + machine.grid.launch for n in copied)


def _laid_clocks(product: GraphContraction, line: Line, machine: Machine) -> float:
    """The time of a product with copies; a tile's rows are those of either operand."""
    laid = replace(product, steps=product.steps // line.steps * line.whole)
    turned = replace(laid, rows=product.columns, columns=product.rows)
    return min(form.clocks(machine, line=line.whole) for form in (laid, turned))


def _by_threads(product: GraphContraction, bases: list[UOp], reads: list[Read], machine: Machine) -> float:
    """The time of a product without copies, whose windows threads keep in registers."""
    nbytes = sum(elements(known_shape(b)) * b.dtype.itemsize for b in bases)
    nbytes += product.rows * product.columns * product.batch * product.inputs.itemsize
    offsets = any(
        r.arg[1] is AxisKind.LOOP and k.arg[1] is AxisKind.REDUCE and trips(r) < trips(k) and meet(r, k, read)
        for read in reads
        for r, k in permutations(read.steps, 2)
    )
    return register_clocks(product.work, nbytes, machine, offsets)


def _line(product: GraphContraction, found: Sequence[Turn | None], node: UOp, machine: Machine) -> Line:
    """The loop of the sum that operands will lie along; all steps where it is none."""
    along = [trips(f.last) for f in found if f is not None and f.last.arg[1] is AxisKind.REDUCE]
    count = min(along, default=product.steps)
    unit = _vector_steps(product.inputs, node.dtype, machine)
    return Line(count, -(-count // unit) * unit)


def _vector_steps(inputs: DType, output: DType, machine: Machine) -> int:
    """Steps that a unit takes at once, or of which threads read vectors; 0 where neither multiplies tiles."""
    units = [u.k for u in units_for(inputs, output, machine)]
    if units:
        return min(units)
    return machine.access_lanes(inputs) if inputs is output is float32 else 0


def _order(base: UOp, mine: Read, other: Read, machine: Machine) -> Turn | None:
    """The order of axes in which a read has whole vectors; None where it has them, or none would have."""
    sizes, moving = axes_of(base, mine)
    lanes = machine.access_lanes(base.dtype)
    last = max((a for a, n in enumerate(sizes) if n > 1), default=0)
    along = sorted(moving.get(last, []), key=lambda r: abs(mine.steps[r]))
    if not along:
        return None
    windows = any(overlap(sorted(rs, key=lambda r: abs(mine.steps[r])), mine) for rs in moving.values())
    if trips(along[0]) >= lanes and not overlap(along, mine):
        if mine.steps[along[0]] == 1:
            return None
        if abs(mine.steps[along[0]]) > 1 and not windows and _is_aligned(_dense(base, mine), lanes):
            return Turn(Packed(), along[0])
    steps = [r for r in {**mine.steps, **other.steps} if r.arg[1] is AxisKind.REDUCE]
    longest = max(steps, key=trips, default=None)
    single, own = single_loops(base, mine, machine), own_loop(base, mine, other, machine)
    chosen = longest if longest in single else own
    if chosen is not None and chosen is not own and own is not None and single[own] and not single[chosen]:
        chosen = own if windows else chosen  # not the images: a tile's rows are places of all of them
    return _turn(base, mine, chosen if chosen is not None and trips(chosen) >= lanes else None)


def _dense(base: UOp, mine: Read) -> Read:
    """How far loops would move a read of memory that holds nothing else, in the same order of axes."""
    sizes, moving = axes_of(base, mine)
    step, found = 1, {}
    for axis in reversed(range(len(sizes))):
        for r in sorted(moving.get(axis, []), key=lambda r: abs(mine.steps[r])):
            found[r] = step
            step *= trips(r)
    return Read(found)


def _is_aligned(read: Read, lanes: int) -> bool:
    """Whether every row of a read begins with a whole vector; outputs that go on where others end, or steps
    where steps do, are one row."""
    rest, row = dict(read.steps), 1
    kind = next(r.arg[1] for r, k in rest.items() if k == 1)
    while along := [r for r, k in rest.items() if k == row and r.arg[1] is kind]:
        row *= trips(along[0])
        del rest[along[0]]
    return all(k % lanes == 0 for k in rest.values())


def _longer(base: UOp, mine: Read, machine: Machine) -> Longer | None:
    """The length of rows that begin with whole vectors; None where they do, or where there is one row.

    Lines of an image are no rows: both axes together are one loop.
    """
    sizes, moving = axes_of(base, mine)
    lanes = machine.access_lanes(base.dtype)
    *before, last = [a for a, n in enumerate(sizes) if n > 1] or [0]
    along, rows = moving.get(last, []), moving.get(before[-1], []) if before else []
    if len(along) != 1 or mine.steps[along[0]] != 1 or not rows or sizes[last] % lanes == 0:
        return None
    if any(r.arg[1] is along[0].arg[1] for r in rows) or trips(along[0]) < lanes:
        return None
    return Longer(last, -(-sizes[last] // lanes) * lanes)


def _turn(base: UOp, mine: Read, chosen: UOp | None) -> Turn | None:
    """The order of axes with a loop's axis as the last one."""
    if chosen is None:
        return None
    sizes, moving = axes_of(base, mine)
    axis = next(a for a, loops in moving.items() if chosen in loops)
    return Turn((*(a for a in range(len(sizes)) if a != axis), axis), chosen)
