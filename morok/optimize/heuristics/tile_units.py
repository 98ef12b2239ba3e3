"""Products on a unit that a core feeds from memory: blocks of tiles, and what is copied for them.

The right operand is copied panel by panel, with a few steps of a column side by side, and each panel serves
all rows, which therefore are the innermost loop. The left operand is read as it lies where its rows are whole
tiles along the steps in memory; else it is copied as well, all rows at once or as many as the second cache
holds. Sums come back through the first cache, and what is done to them is done in vectors.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from morok.ir.matrix import TILE_UNITS, TileUnit
from morok.ir.node import UOp, toposort
from morok.ir.ops import Ops
from morok.optimize.actions.tile_unit import LEFT, RIGHT, product_of
from morok.optimize.contraction import Contraction
from morok.optimize.facts import access, trips
from morok.optimize.heuristics.builder import Builder
from morok.optimize.heuristics.packing import fitting, steps_of
from morok.optimize.loops import size

WIDE = 2  # tiles of a block, along rows and along columns
FOR_ALL_ROWS = 1 / 2  # of the second cache, if they stay there while the panels pass
PART = 1 / 4  # of it for a block of rows, and for the stretch of panels that passes
COPIED = 0.25  # cycles of an element of the right operand: it is turned, and put beside others
VECTORS = 2  # products of vectors in a cycle


def tile_units(builder: Builder, product: Contraction) -> bool:
    """Has a unit compute the product where it is the fastest; False, and nothing done, where it is not."""
    unit = _unit(builder, product)
    if unit is None:
        return False
    before = builder.loops
    rows, columns = trips(product.i), trips(product.j)
    block = [part * min(WIDE, -(-count // part)) for part, count in ((unit.m, rows), (unit.n, columns))]
    plan = _plan(builder, product, unit, block)
    i, j, k = (int(r.arg[0]) for r in (product.i, product.j, steps_of(product.reduce)[-1]))
    step = _step(unit, [trips(r) for r in steps_of(product.reduce)])
    whole = (block[0] * plan.tiles * plan.row_shares, block[1] * plan.panels, step)
    for axis, part in zip((i, j, k), whole, strict=True):
        if trips(builder.loops.by_number[axis]) % part and not builder.do("PADTO", axis, part):
            builder.loops = before
            return False
    i, j = _innermost(builder, product, i, j)
    if plan.row_shares > 1:
        i = _inner(builder, "THREAD", i, plan.row_shares)
    outer_i, outer_j = i, j
    j = _inner(builder, "TILE", j, plan.panels * block[1])
    i = _inner(builder, "TILE", i, plan.tiles * block[0])
    if i != outer_i and j == outer_j < outer_i and builder.do("SWAP", j, outer_i):
        j = outer_j = outer_i  # one stretch passes over each block
    column = _inner(builder, "TILE", j, block[1])
    row = _inner(builder, "TILE", i, block[0])
    around = [i] * (row != i) + [j] * (column != j and plan.panels > 1)
    if not builder.do("TILE_UNIT", k, TILE_UNITS.index(unit) + 1, (row, column, *around)):
        builder.loops = before
        return False
    _fill_in_vectors(builder, unit)
    builder.do("UPCAST", column)
    if plan.column_shares > 1 and outer_j != j:
        builder.do("THREAD", outer_j)
    return True


class Plan(NamedTuple):
    """How many tiles and panels are one block, and how many threads share rows or columns."""

    tiles: int
    panels: int  # more than one: all of them are copied before they are used
    row_shares: int = 1
    column_shares: int = 1


def _plan(builder: Builder, product: Contraction, unit: TileUnit, block: list[int]) -> Plan:
    """All rows pass by each panel, if they stay in the second cache; else a part of them passes by a stretch
    of panels, both of which stay there. Threads share the columns, or rows that are many more, since what is
    not shared each of them copies or reads."""
    machine = builder.machine
    tiles, panels = (-(-trips(r) // part) for r, part in zip((product.i, product.j), block, strict=True))
    step_bytes = math.prod(map(trips, steps_of(product.reduce))) * unit.inputs.itemsize
    shares = machine.cores if builder.shares and math.prod(map(trips, product.batch)) < machine.cores else 1
    by_rows = shares > 1 and tiles >= 2 * shares and panels < shares
    own = -(-tiles // shares) if by_rows else tiles
    row, panel = (part * step_bytes for part in block)
    if own * row <= machine.l2_bytes * FOR_ALL_ROWS:
        return Plan(own, 1, shares if by_rows else 1)
    some = fitting(own, int(machine.l2_bytes * PART) // row)
    mine = panels if by_rows else -(-panels // shares)
    stretch = fitting(mine, int(machine.l2_bytes * PART) // panel)
    return Plan(some, stretch, shares if by_rows else 1, 1 if by_rows else shares)


def _inner(builder: Builder, name: str, axis: int, amount: int) -> int:
    """The number of the inner loop after a cut; the loop's own where there is nothing to cut."""
    number = builder.loops.next_number()
    return number if builder.do(name, axis, amount) else axis


def _unit(builder: Builder, product: Contraction) -> TileUnit | None:
    """The unit that computes this product in less time than vectors would."""
    sizes = [size(r) for r in (product.i, product.j, *steps_of(product.reduce))]
    if any(count is None for count in sizes) or not builder.machine.tile_units:
        return None
    machine, last = builder.machine, steps_of(product.reduce)[-1]
    rows, columns, *steps = (count or 1 for count in sizes)
    for unit in machine.tile_units:
        if isinstance(product_of(builder.loops, unit, last, product.i, product.j), str):
            continue
        whole = [-(-n // part) * part for n, part in zip((rows, columns), (unit.m, unit.n), strict=True)]
        inner = math.prod(steps[:-1]) * (-(-steps[-1] // _step(unit, steps)) * _step(unit, steps))
        on_unit = whole[0] * whole[1] * inner / (unit.m * unit.n * unit.k) * unit.cycles
        on_unit += COPIED * whole[1] * inner
        lanes = machine.lanes(product.reduce.dtype)
        in_vectors = rows * -(-columns // lanes) * math.prod(steps) / VECTORS
        if on_unit < in_vectors:
            return unit
    return None


def _step(unit: TileUnit, steps: list[int]) -> int:
    """What the last loop of the steps has to be a multiple of for all of them to be whole tiles."""
    return math.lcm(unit.steps, unit.k // math.gcd(unit.k, math.prod(steps[:-1])))


def _innermost(builder: Builder, product: Contraction, i: int, j: int) -> tuple[int, int]:
    """Moves rows inside all other loops over outputs, and columns next to them."""
    others = sorted(int(r.arg[0]) for r in product.outputs)
    for other in others:
        if other > j and builder.do("SWAP", j, other):
            i, j = (j if i == other else i), other
    for other in others:
        if other > i and builder.do("SWAP", i, other):
            i, j = other, (i if j == other else j)
    return i, j


def _fill_in_vectors(builder: Builder, unit: TileUnit) -> None:
    """Whole vectors are copied, along the steps or along the columns, or turned in registers."""
    lanes = builder.machine.lanes(unit.inputs)
    for node in [n for n in builder.loops.order if _is_copy(n)]:
        if node.arg[1].startswith(RIGHT):
            _fill_panel(builder, node, unit, lanes)
        else:
            _fill_rows(builder, node, unit, lanes)


def _fill_rows(builder: Builder, node: UOp, unit: TileUnit, lanes: int) -> None:
    """Rows along the steps; what lies in memory along the rows instead is turned, half vectors at a time."""
    last, *beside = node.src[-1 - (unit.steps > 1) :]
    along, wide = _along(node), lanes // unit.steps
    if along is not None and along not in (last, *beside):
        wide = max(1, unit.m // unit.steps)
        _cut(builder, along, unit.m)
    _cut(builder, last, wide)
    for r in beside:
        builder.do("UPCAST", int(r.arg[0]))


def _fill_panel(builder: Builder, node: UOp, unit: TileUnit, lanes: int) -> None:
    """Columns side by side; what lies in memory along the steps is turned."""
    outer, column, *beside = node.src[-2 - (unit.steps > 1) :]
    along = _along(node)
    if along is not None and along in (outer, *beside):
        _cut(builder, outer, lanes // unit.steps)
        _cut(builder, column, unit.n)
    else:
        _cut(builder, column, lanes)
    for r in beside:
        builder.do("UPCAST", int(r.arg[0]))


def _along(node: UOp) -> UOp | None:
    """The loop of a copy along which most of its reads lie in memory; None if there is none."""
    reads = [access(n) for n in toposort(node.src[0]) if n.op is Ops.INDEX and not n.dtype.is_ptr]
    found = {r: sum(a.step(r) == 1 for a in reads) for r in node.src[1:]}
    best = max(found, key=lambda r: found[r])
    return best if found[best] else None


def _cut(builder: Builder, r: UOp, most: int) -> None:
    """As many lanes as divide a loop, at most so many."""
    while most > 1 and not builder.do("UPCAST", int(r.arg[0]), most):
        most //= 2


def _is_copy(node: UOp) -> bool:
    return node.op is Ops.BUFFERIZE and node.arg[0] == "local" and node.arg[1].startswith((LEFT, RIGHT))
