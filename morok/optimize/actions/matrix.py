"""The action TC: the inner tile of a matrix product runs on a matrix unit.

The action keeps the meaning of the kernel point by point. It cuts the loops of a tile into the lanes and
registers of the unit's result and puts WMMA in the place of the product, with the loops of the tile beside
it:

    REDUCE(a(i, k) * b(k, j), k)   →   REDUCE(WMMA(a, b, 0, g, h, t, e, s), k', s)

with i = i'·m + h·8 + g, j = j'·n + t·2 + e, k = k'·K + s. Here g and t are lanes of a warp (WARP), h and e
are registers (UPCAST), s are the steps inside of the unit (UNROLL). At a point, WMMA means a·b + 0; what
the warp does together is made of it by codegen (`codegen/vector/fragments.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from morok.dtype import DType
from morok.dtype.promote import lossless
from morok.ir.build import cast
from morok.ir.infer import closed_ranges, ranges
from morok.ir.matrix import (
    ALL_UNITS,
    PANEL,
    MatrixUnit,
    Run,
    Shared,
    TileUnit,
    runs,
    shared_layout,
    shared_tiles,
)
from morok.ir.node import UOp, alu, const, make
from morok.ir.ops import AxisKind, Op, Ops
from morok.machine.machine import Machine
from morok.optimize.actions.stage_result import is_result
from morok.optimize.loops import LOOP_KINDS, Loops, divides, loop, quotient, size, stride, times
from morok.optimize.record import Opt
from morok.rewrite.engine import substitute
from morok.schedule.kernel.ranges import replace_loops
from morok.symbolic.validity import conjuncts


class Found(NamedTuple):
    """A product that a unit can take: the REDUCE, its operands along i and along j, in the unit's type."""

    reduce: UOp
    a: UOp
    b: UOp


Sums = dict[UOp, list[Found]]  # what a REDUCE adds up: its products, of which words have several


def zero(dtype: DType) -> UOp:
    """What a sum begins with."""
    return const(dtype, 0.0 if dtype.is_float else 0)


def is_zero(x: UOp) -> bool:
    """A constant 0 that is no -0."""
    return x.op is Ops.CONST and str(x.arg) in ("0", "0.0")


def factors(value: UOp, product: Op = Ops.MUL) -> tuple[UOp, UOp] | None:
    """The factors of a product, with the condition under which it counts on both of them."""
    if value.op is Ops.WHERE and is_zero(value.src[2]):
        found = factors(value.src[1], product)
        if found is None:
            return None
        x, y = (_under(value.src[0], f) for f in found)
        return x, y
    return (_gated(value.src[0]), _gated(value.src[1])) if value.op is product else None


def _gated(x: UOp) -> UOp:
    """A factor that is 0 where a condition fails, the condition as far inside as it goes."""
    return _under(x.src[0], _gated(x.src[1])) if x.op is Ops.WHERE and is_zero(x.src[2]) else x


def _under(condition: UOp, x: UOp) -> UOp:
    """x where the condition holds, else 0; inside of a conversion, which maps 0 to 0."""
    if x.op is Ops.CAST and not x.src[0].dtype.is_bool:
        return x.replace((_under(condition, x.src[0]),))
    if x.op is Ops.INDEX and not x.dtype.is_ptr:
        known = () if len(x.src) == 2 else tuple(conjuncts(x.src[2]))
        if condition in known:
            return x
        gate = condition if not known else alu(Ops.AND, x.src[2], condition)
        return make(Ops.INDEX, x.dtype, (*x.src[:2], gate), x.arg, x.origin)
    return alu(Ops.WHERE, condition, x, zero(x.dtype))


def as_input(x: UOp, unit: MatrixUnit | TileUnit) -> UOp | None:
    """A factor in the type that a unit multiplies; None where the conversion would lose something."""
    if x.dtype is unit.inputs:
        return x
    if x.op is not Ops.CAST or x.src[0].dtype.is_bool:
        return None
    inner = x.src[0]
    if inner.dtype is unit.inputs:
        return inner
    exact = lossless(inner.dtype, unit.inputs) and lossless(inner.dtype, x.dtype)
    return cast(inner, unit.inputs) if exact else None


def match(loops: Loops, unit: MatrixUnit | TileUnit, k: UOp, i: UOp, j: UOp) -> Sums | str:
    """The products over these loops, as the unit wants them; or why there are none. Words have a sum for each
    byte of a number, all of them in one loop."""
    closers = loops.closers[k]
    alone = len(closers) == 1 or unit.words
    if not alone or any(c.op is not Ops.REDUCE or c.arg != (Ops.ADD,) for c in closers):
        return f"loop {k.arg[0]} is not that of one sum"
    found: Sums = {}
    for reduce in closers:
        if reduce.dtype is not unit.output:
            return f"the sum is {reduce.dtype}, the unit {unit.name} adds in {unit.output}"
        for term in _terms(reduce.src[0]) if unit.words else (reduce.src[0],):
            one = _product(reduce, term, unit, i, j)
            if isinstance(one, str):
                return one
            found.setdefault(reduce, []).append(one)
    return found


def _terms(value: UOp) -> tuple[UOp, ...]:
    """What is added up at one point."""
    return (*_terms(value.src[0]), *_terms(value.src[1])) if value.op is Ops.ADD else (value,)


def _product(reduce: UOp, term: UOp, unit: MatrixUnit | TileUnit, i: UOp, j: UOp) -> Found | str:
    if unit.words and isinstance(unit, MatrixUnit):
        found = (term.src[0], term.src[1]) if term.op is unit.product else None
    else:
        found = factors(term, unit.product)
    if found is None:
        return "the sum is not one of products"
    x, y = (as_input(f, unit) for f in found)
    if x is None or y is None:
        return f"the factors are not {unit.inputs}, which the unit {unit.name} multiplies"
    if j in ranges(x) and i in ranges(y):
        x, y = y, x
    if i not in ranges(x) or j in ranges(x) or j not in ranges(y) or i in ranges(y):
        return f"no factor moves with loop {i.arg[0]} alone and another with loop {j.arg[0]} alone"
    return Found(reduce, x, y)


def unit_of(machine: Machine, opt: Opt) -> MatrixUnit | str:
    """The unit that an action names by its number in the table, from 1; or why it may not be used."""
    units = (*machine.matrix_units, *machine.word_units, *machine.fused_units)
    if not units:
        return "the machine has no matrix unit"
    if not 1 <= opt.amount <= len(ALL_UNITS):
        return f"there are {len(ALL_UNITS)} matrix units, and no number {opt.amount}"
    unit = ALL_UNITS[opt.amount - 1]
    if unit not in units:
        return f"the machine has no unit {unit.name}"
    if not unit.allowed:
        return f"the unit {unit.name} is less exact than its types; {unit.permission}=1 allows it"
    return unit


def in_panels(x: UOp, outer: UOp, step: UOp, unit: MatrixUnit) -> str | None:
    """Why a unit cannot read an operand by itself; None if it can."""
    if x.op is not Ops.INDEX or len(x.src) > 2 or x.src[0].op is not Ops.BUFFERIZE or len(x.src[0].arg) < 3:
        return f"the unit {unit.name} reads shared tiles, and an operand is none"
    buffer = x.src[0]
    assert isinstance(buffer.arg[2], Shared)
    if len(buffer.src) != 3 or (size(buffer.src[-1]) or 1) * x.dtype.itemsize % PANEL:
        return (
            f"the unit {unit.name} reads tiles of two dimensions with rows of whole panels of {PANEL} bytes"
        )
    turns = x.dtype.itemsize == 2 or unit.fused
    if stride(x.src[1], step) != 1 and not (turns and stride(x.src[1], outer) == 1):
        return f"the rows of a tile do not run along the steps, as the unit {unit.name} wants it"
    return None


def taken(loops: Loops, opt: Opt) -> str | None:
    """Why the loops of an action cannot be cut for a unit; None if they can."""
    tiles = shared_tiles(loops.order)
    for number in (opt.axis, *opt.axes):
        r = loops.by_number.get(number)
        if r is None:
            return f"there is no loop {number}"
        if r.arg[1] not in LOOP_KINDS:
            return f"loop {number} is {r.arg[1].value} already"
        if loops.bounds_another(r):
            return f"the end of another loop depends on loop {number}"
        if any(r in ranges(n) for n in tiles):
            return f"a tile that all threads share depends on loop {number}"
    return None


def uneven(wanted: Iterable[tuple[UOp, int]]) -> str | None:
    """Why loops cannot be cut into parts of these sizes; None if they can."""
    for r, amount in wanted:
        if not divides(amount, r.src[0]):
            return f"{amount} does not divide the {size(r) or 'unknown'} iterations of loop {r.arg[0]}"
    return None


def can_use(loops: Loops, opt: Opt, machine: Machine) -> str | None:
    unit = unit_of(machine, opt)
    if isinstance(unit, str):
        return unit
    if any(r.arg[1] is AxisKind.WARP for r in loops.closers):
        return "the lanes of the warp are taken already"
    if len(opt.axes) != 2:
        return "it takes the loop of the sum, and two loops over outputs"
    reason = taken(loops, opt)
    if reason is not None:
        return reason
    k, i, j = (loops.by_number[n] for n in (opt.axis, *opt.axes))
    reason = uneven(((i, unit.m), (j, unit.n), (k, unit.k)))
    if reason is not None:
        return reason
    if any(loops.closed_by(r) is not Ops.END and not is_result(loops, r) for r in (i,)):
        return "rows of the tile have to be a loop over outputs"
    if loops.closed_by(j) not in (Ops.END, Ops.REDUCE) and not is_result(loops, j):
        return "columns of the tile have to be a loop over outputs, or of a reduction of them"
    found = match(loops, unit, k, i, j)
    if isinstance(found, str):
        return found
    for one in (one for products in found.values() for one in products):
        for name, x, outer in (("a", one.a, i), ("b", one.b, j)):
            reason = in_panels(x, outer, k, unit) if name in unit.shared else None
            if reason is not None:
                return reason
    return fits_block(loops, unit, machine)


def fits_block(loops: Loops, unit: MatrixUnit, machine: Machine) -> str | None:
    """Why a block cannot have the lanes of a unit as well; None if it can."""
    if any(n.op is Ops.BUFFERIZE and shared_layout(n) is None for n in loops.order):
        return "a value is kept in a buffer that lanes do not share"
    lanes = unit.lanes
    for r in loops.closers:
        if r.arg[1] in (AxisKind.LOCAL, AxisKind.GROUP_REDUCE):
            lanes *= size(r) or 1
    if lanes > machine.block_threads:
        return f"a block would have {lanes} threads of at most {machine.block_threads}"
    return None


def use(loops: Loops, opt: Opt) -> UOp:
    """The inner tile of a matrix product runs on a matrix unit.

    TC(2, 1, (0, 1)):   Σ over r2 of a[r0, r2] * b[r2, r1]   →   Σ over tiles r2 of WMMA(tile of a, tile of b)
    """
    unit = ALL_UNITS[opt.amount - 1]
    k, i, j = (loops.by_number[n] for n in (opt.axis, *opt.axes))
    found = match(loops, unit, k, i, j)
    assert not isinstance(found, str)
    number = loops.next_number()
    rows, row_parts = cut(i, unit.m, runs(unit.c.rows), number)
    number += len(row_parts)
    registers = AxisKind.UNROLL if loops.closed_by(j) is Ops.REDUCE else AxisKind.UPCAST
    columns, column_parts = cut(j, unit.n, runs(unit.c.columns), number, registers)
    step = loop(unit.k, number + len(column_parts), AxisKind.UNROLL, k)
    if size(k) == unit.k:
        steps: tuple[UOp, tuple[UOp, ...]] = (step, (step,))
    else:
        outer_loop = loop(quotient(k.src[0], unit.k), opt.axis, k.arg[1], k)
        steps = (alu(Ops.ADD, times(outer_loop, unit.k), step), (outer_loop, step))
    tile = (*row_parts, *column_parts, step)
    sums = {}
    for reduce, products in found.items():
        total: UOp | None = None
        for one in products:
            sources = (one.a, one.b, zero(unit.output), *tile)
            point = make(Ops.WMMA, unit.output, sources, unit, reduce.src[0].origin)
            part = reduce.replace((point, *closed_ranges(reduce)))
            total = part if total is None else alu(Ops.ADD, total, part)
        assert total is not None
        sums[reduce] = total
    ast = substitute(loops.ast, sums)
    return replace_loops(ast, {i: rows, j: columns, k: steps})


def cut(
    r: UOp, amount: int, found: tuple[Run, ...], number: int, registers: AxisKind = AxisKind.UPCAST
) -> tuple[tuple[UOp, tuple[UOp, ...]], tuple[UOp, ...]]:
    """A loop as the rest and one loop per run of bits: lanes (upper ones outside), or registers."""
    order = sorted(found, key=lambda run: (run.kind, -run.source))
    parts = tuple(
        loop(
            min(1 << run.width, amount >> run.place),
            number + order.index(run),
            AxisKind.WARP if run.kind == "l" else registers,
            r,
        )
        for run in found
    )
    inner = times(parts[0], 1 << found[0].place)
    for run, part in zip(found[1:], parts[1:], strict=True):
        inner = alu(Ops.ADD, inner, times(part, 1 << run.place))
    # what closes them has them in the order of their places, so that a row-major place is the same as before
    closed = tuple(part for _, part in sorted(zip(found, parts, strict=True), key=lambda p: -p[0].place))
    if size(r) == amount:
        return (inner, closed), parts
    outer_loop = loop(quotient(r.src[0], amount), int(r.arg[0]), r.arg[1], r)
    return (alu(Ops.ADD, times(outer_loop, amount), inner), (outer_loop, *closed)), parts
