"""The action TILE_UNIT: a tile of outputs of a matrix product is computed by a unit that reads memory itself.

The tile's sums are kept in a buffer of their own, and whatever follows reads them from there. Operands lie as
the unit wants them, or are copied: left ones in rows along the steps, right ones with a few steps of a column
side by side. A copy may be anything that is computed of memory; it is filled once per point of the loops that
it depends on and that are not among its own.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from morok.ir.build import bufferize
from morok.ir.infer import closed_ranges, ranges
from morok.ir.matrix import TILE_UNITS, TileUnit
from morok.ir.node import UOp, alu, make, toposort
from morok.ir.ops import AxisKind, Ops
from morok.machine.machine import Machine
from morok.optimize.actions.cache_result import RESULT
from morok.optimize.actions.matrix import Found, match, zero
from morok.optimize.actions.pack import written
from morok.optimize.loops import Loops, flat_place, loop, size, stride, times
from morok.optimize.record import Opt
from morok.rewrite.engine import substitute

LEFT, RIGHT = "left", "right"  # how names of the copies begin


class Tile(NamedTuple):
    """The loops of a tile as the unit has them: outputs, steps (outer ones first), and steps side by side."""

    row: UOp
    column: UOp
    steps: tuple[UOp, ...]
    beside: tuple[UOp, ...]  # no loop where the unit takes one after the other


def steps_of(reduce: UOp) -> list[UOp]:
    """The loops of a sum, outer ones first."""
    return sorted(closed_ranges(reduce), key=lambda r: int(r.arg[0]))


def unit_of(machine: Machine, opt: Opt) -> TileUnit | str:
    """The unit that an action names by its number in the table, from 1; or why it may not be used."""
    if not machine.tile_units:
        return "the machine has no unit for tiles in memory"
    if not 1 <= opt.amount <= len(TILE_UNITS):
        return f"there are {len(TILE_UNITS)} units for tiles, and no number {opt.amount}"
    unit = TILE_UNITS[opt.amount - 1]
    return unit if unit in machine.tile_units else f"the machine has no unit {unit.name}"


def product_of(loops: Loops, unit: TileUnit, k: UOp, i: UOp, j: UOp) -> Found | str:
    """The one product over these loops, as the unit wants it; or why there is none."""
    found = match(loops, unit, k, i, j)
    if isinstance(found, str):
        return found
    products = [one for several in found.values() for one in several]
    return products[0] if len(products) == 1 else "there are several sums of products in these loops"


def can_use_tiles(loops: Loops, opt: Opt, machine: Machine) -> str | None:
    unit = unit_of(machine, opt)
    if isinstance(unit, str):
        return unit
    if len(opt.axes) < 2 or len({opt.axis, *opt.axes}) != len(opt.axes) + 1:
        return "it takes the last loop of the sum, rows, columns, and loops that copies have as well"
    for number in (opt.axis, *opt.axes):
        r = loops.by_number.get(number)
        if r is None:
            return f"there is no loop {number}"
        if size(r) is None:
            return f"the size of loop {number} is not known"
        wanted = AxisKind.REDUCE if number == opt.axis else AxisKind.LOOP
        if r.arg[1] is not wanted or (number != opt.axis and loops.closed_by(r) is not Ops.END):
            return f"loop {number} is {r.arg[1].value}, or is not over outputs"
    k, i, j = (loops.by_number[n] for n in (opt.axis, *opt.axes[:2]))
    found = product_of(loops, unit, k, i, j)
    if isinstance(found, str):
        return found
    steps = steps_of(found.reduce)
    if any(size(r) is None or r.arg[1] is not AxisKind.REDUCE for r in steps) or steps[-1] is not k:
        return "the steps are not plain loops of which the last is given"
    whole = math.prod(size(r) or 1 for r in steps)
    sizes = ((size(i) or 1, unit.m), (size(j) or 1, unit.n), (whole, unit.k), (size(k) or 1, unit.steps))
    if any(count % part for count, part in sizes):
        return f"the unit {unit.name} has tiles of {unit.m} × {unit.n} outputs and {unit.k} steps"
    changing = written(loops)
    if any(n.op is Ops.DEFINE_GLOBAL and n.arg in changing for n in toposort(found.a, found.b)):
        return "an operand is written as well"
    most = max(
        math.prod(size(r) or 1 for r in ranges(x) if r in steps or r.arg[0] in opt.axes) * x.dtype.itemsize
        for x in (found.a, found.b)
    )
    if most > machine.local_bytes:
        return f"a copy would have {most} bytes of at most {machine.local_bytes}"
    return None


def lies_in_rows(x: UOp, tile: Tile, unit: TileUnit) -> bool:
    """Whether a left operand is memory in rows along the steps, as the unit reads it."""
    if x.op is not Ops.INDEX or len(x.src) != 2 or x.src[0].op is not Ops.DEFINE_GLOBAL:
        return False
    far = 1
    for r in (*tile.beside, *reversed(tile.steps)):
        if stride(x.src[1], r) != far:
            return False
        far *= size(r) or 1
    along = stride(x.src[1], tile.row) or 0
    return along > 0 and along % unit.k == 0  # else rows begin in the middle of a cache line


def use_tiles(loops: Loops, opt: Opt) -> UOp:
    """A tile of a matrix product runs on a unit that reads memory; what its operands are not yet is copied.

    TILE_UNIT(2, 1, (0, 1)):   y[r0, r1] = f(Σ over r2 of a[r0, r2] * b[r2, r1])
        →   s = tiles(a, copy of b[r2 // 2, r1, r2 % 2]);  y[r0, r1] = f(s[r0, r1])
    """
    unit = TILE_UNITS[opt.amount - 1]
    k, i, j = (loops.by_number[n] for n in (opt.axis, *opt.axes[:2]))
    found = product_of(loops, unit, k, i, j)
    assert not isinstance(found, str)
    number = loops.next_number()
    row, column = (loop(size(r) or 1, number + n, AxisKind.LOOP, r) for n, r in enumerate((i, j)))
    outer, step = loop((size(k) or 1) // unit.steps, opt.axis, AxisKind.REDUCE, k), k
    beside: tuple[UOp, ...] = ()
    if unit.steps > 1:
        beside = (loop(unit.steps, number + 2, AxisKind.REDUCE, k),)
        step = alu(Ops.ADD, times(outer, unit.steps), *beside)
    tile = Tile(row, column, (*steps_of(found.reduce)[:-1], outer), beside)
    here = {i: row, j: column, k: step}
    left, right = (substitute(x, here) for x in (found.a, found.b))
    around = [loops.by_number[n] for n in opt.axes[2:]]
    number += 3
    if not lies_in_rows(left, tile, unit):
        left, number = _copied(left, around, (row, *tile.steps, *beside), LEFT, number)
    right, number = _copied(right, around, (*tile.steps, column, *beside), RIGHT, number)
    origin = found.reduce.src[0].origin
    point = make(Ops.WMMA, unit.output, (left, right, zero(unit.output), row, column, *beside), unit, origin)
    total = found.reduce.replace((point, *tile.steps, *beside))
    kept = bufferize(total, row, column, arg=(RESULT, f"tiles{number}", unit))
    place = flat_place([i, j], [size(i) or 1, size(j) or 1])
    read = make(Ops.INDEX, total.dtype, (kept, place), None, origin)
    return substitute(loops.ast, {found.reduce: read})


def _copied(x: UOp, around: list[UOp], inner: tuple[UOp, ...], name: str, number: int) -> tuple[UOp, int]:
    """A read of a copy over the loops of a tile and those of the others that the value depends on; and the
    number of the next loop."""
    own = [*(r for r in around if r in ranges(x)), *inner]
    fill = [loop(r.src[0], number + n, AxisKind.LOOP, r) for n, r in enumerate(own)]
    value = substitute(x, dict(zip(own, fill, strict=True)))
    copy = bufferize(value, *fill, arg=("local", f"{name}{number}"))
    place = flat_place(own, [size(r) or 1 for r in own])
    return make(Ops.INDEX, x.dtype, (copy, place), None, x.origin), number + len(own)
