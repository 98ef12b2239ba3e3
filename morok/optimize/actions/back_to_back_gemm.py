"""TC on back-to-back GEMMs: the second multiplies what is made of the results of the first.

    S(i, k) = Σ over e of a(i, e) · b(k, e)          O(i, j) = Σ over k of f(S(i, k)) · v(k, j)

There may be several first products, over loops of their own, and several second ones over the same. A unit
leaves its results in the registers of the lanes in which it wants its left operand. So the rows of all
products are one loop, and the columns of the first are the steps of the second: its loops are cut as the left
operand has them, and nothing has to leave the registers in between.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from morok.ir.infer import closed_ranges, ranges
from morok.ir.matrix import (
    ALL_UNITS,
    ANY_WIDTH_UNITS,
    FUSED_AFTER,
    REGISTER_A_UNITS,
    MatrixUnit,
    runs,
)
from morok.ir.node import UOp, alu, make, toposort
from morok.ir.ops import AxisKind, Ops
from morok.machine.machine import Machine
from morok.optimize.actions import matrix
from morok.optimize.actions.matrix import (
    as_input,
    cut,
    factors,
    fits_block,
    in_panels,
    taken,
    uneven,
    unit_of,
    zero,
)
from morok.optimize.loops import Loops, loop, quotient, size, times
from morok.optimize.record import Opt
from morok.rewrite.engine import substitute
from morok.schedule.kernel.ranges import replace_loops


class Product(NamedTuple):
    """A REDUCE and its operands in the unit's type: the one along its rows, the other one."""

    sum: UOp
    rows: UOp
    others: UOp


class Pair(NamedTuple):
    """Products in a chain: the second ones multiply what is made of the first ones."""

    firsts: tuple[Product, ...]
    seconds: tuple[Product, ...]


def partner(unit: MatrixUnit, columns: int) -> MatrixUnit | None:
    """The unit that multiplies what another one has left in registers, for so many columns; None if none can.

    Units of one warp do so by themselves. Those of warp groups have partners with a left operand in
    registers, which lies as their results do.
    """
    after = FUSED_AFTER if unit.fused else REGISTER_A_UNITS + ANY_WIDTH_UNITS
    others = [unit] if not unit.shared else [u for u in after if u.inputs is unit.inputs]
    fitting = [u for u in others if columns % u.n == 0 and follows(unit, u)]
    return max(fitting, key=lambda u: u.n, default=None)


def follows(first: MatrixUnit, second: MatrixUnit) -> bool:
    """Whether the left operand of a unit lies as the results of another."""
    mine, wanted = first.c.columns, second.a.columns
    short = min(len(mine), len(wanted))
    more = (*mine[short:], *wanted[short:])
    return (
        first.shared in ("", "ab")
        and first.lanes == second.lanes
        and second.a.rows == first.c.rows == second.c.rows
        and mine[:short] == wanted[:short]
        and all(bit[0] == "r" for bit in more)
    )


def match(loops: Loops, unit: MatrixUnit, k: UOp, i: UOp, j: UOp, inner: Sequence[UOp]) -> Pair | str:
    """The products over these loops; or why there are none."""
    firsts: list[Product] = []
    for e in inner:
        found = _products(loops, unit, e, i, k)
        if isinstance(found, str):
            return found
        firsts += found
    seconds = _products(loops, unit, k, i, j)
    if isinstance(seconds, str):
        return seconds
    made = {first.sum for first in firsts}
    weights = [made.intersection(toposort(second.rows)) for second in seconds]
    values = toposort(*(second.others for second in seconds))
    if not all(weights) or made != set().union(*weights) or not made.isdisjoint(values):
        return "the second product does not multiply what is made of the first"
    return Pair(tuple(firsts), tuple(seconds))


def _products(loops: Loops, unit: MatrixUnit, step: UOp, outer: UOp, across: UOp) -> list[Product] | str:
    """The sums of products over a loop, as a unit takes them; or why it does not."""
    sums = [n for n in loops.closers[step] if n.arg == (Ops.ADD,) and factors(n.src[0]) is not None]
    if not sums or any(n.dtype is not unit.output for n in sums):
        return f"loop {step.arg[0]} is not that of one sum of products in {unit.output}"
    products = []
    for n in sums:
        found = factors(n.src[0])
        x, y = (None, None) if found is None else (as_input(f, unit) for f in found)
        if x is None or y is None:
            return f"the factors are not {unit.inputs}, which the unit {unit.name} multiplies"
        if outer not in ranges(x):
            x, y = y, x
        if outer not in ranges(x) or across in ranges(x) or across not in ranges(y) or outer in ranges(y):
            return (
                f"no factor moves with loop {outer.arg[0]} alone and another with loop {across.arg[0]} alone"
            )
        products.append(Product(n, x, y))
    return products


def can_use(loops: Loops, opt: Opt, machine: Machine) -> str | None:
    if len(opt.axes) < 3:
        return matrix.can_use(loops, opt, machine)
    unit = unit_of(machine, opt)
    if isinstance(unit, str):
        return unit
    if any(r.arg[1] is AxisKind.WARP for r in loops.closers):
        return "the lanes of the warp are taken already"
    return _can_chain(loops, opt, unit) or fits_block(loops, unit, machine)


def _can_chain(loops: Loops, opt: Opt, unit: MatrixUnit) -> str | None:
    reason = taken(loops, opt)
    if reason is not None:
        return reason
    k, i, j, *inner = (loops.by_number[n] for n in (opt.axis, *opt.axes))
    other = partner(unit, size(j) or 1)
    if other is None:
        return f"the results of the unit {unit.name} do not lie as any wants its left operand"
    sides = ((i, unit.m), (j, other.n), (k, max(unit.n, other.k)))
    reason = uneven((*sides, *((e, unit.k) for e in inner)))
    if reason is not None:
        return reason
    if any(loops.closed_by(r) is not Ops.END for r in (i, j)):
        return "rows and columns of the second product have to be loops over outputs"
    if loops.closed_by(k) is not Ops.REDUCE:
        return f"loop {k.arg[0]} is closed by different ops"
    found = match(loops, unit, k, i, j, inner)
    if isinstance(found, str):
        return found
    operands = [(second.others, j, k, "b" in other.shared) for second in found.seconds]
    for first in found.firsts:
        (e,) = (r for r in closed_ranges(first.sum) if r in inner)
        operands += [(first.rows, i, e, "a" in unit.shared), (first.others, k, e, "b" in unit.shared)]
    reasons = (in_panels(x, outer, step, unit) for x, outer, step, shared in operands if shared)
    return next((reason for reason in reasons if reason is not None), None)


def use(loops: Loops, opt: Opt) -> UOp:
    """The inner tile of a matrix product runs on a matrix unit; or those of two in a chain.

    TC(2, 1, (0, 1)):   Σ over r2 of a[r0, r2] * b[r2, r1]   →   Σ over tiles r2 of WMMA(tile of a, tile of b)
    TC(3, 1, (0, 1, 2)):   Σ over r3 of f(Σ over r2 of a[r0, r2] * b[r3, r2]) * v[r3, r1]   →   the same twice
    """
    return _chain(loops, opt) if len(opt.axes) > 2 else matrix.use(loops, opt)


def _chain(loops: Loops, opt: Opt) -> UOp:
    """Products whose loops are cut for a unit and its partner."""
    unit = ALL_UNITS[opt.amount - 1]
    k, i, j, *inner = (loops.by_number[n] for n in (opt.axis, *opt.axes))
    pair, other = match(loops, unit, k, i, j, inner), partner(unit, size(j) or 1)
    assert isinstance(pair, Pair) and other is not None
    number = loops.next_number()
    rows, row_parts = cut(i, unit.m, runs(unit.c.rows), number)
    number += len(row_parts)
    columns, column_parts = cut(j, other.n, runs(other.c.columns), number)
    number += len(column_parts)
    # one coordinate, as columns of the first and as steps of the second: no loop goes beyond either
    bits, inner_bits = sorted((unit.c.columns, other.a.columns), key=len, reverse=True)
    upper = runs(bits[len(inner_bits) :])
    parts = (*runs(inner_bits), *(run._replace(place=run.place + len(inner_bits)) for run in upper))
    steps, step_parts = cut(k, max(unit.n, other.k), parts, number, AxisKind.UNROLL)
    number += len(step_parts)
    of_first = [r for run, r in zip(parts, step_parts, strict=True) if 1 << run.place < unit.n]
    of_second = [r for run, r in zip(parts, step_parts, strict=True) if 1 << run.place < other.k]
    start = zero(unit.output)
    made: dict[UOp, UOp] = {}
    inside: dict[UOp, tuple[UOp, tuple[UOp, ...]]] = {}
    for e in inner:
        step = loop(unit.k, number, AxisKind.UNROLL, e)
        number += 1
        if size(e) == unit.k:
            inside[e] = (step, (step,))
        else:
            outer_loop = loop(quotient(e.src[0], unit.k), int(e.arg[0]), e.arg[1], e)
            inside[e] = (alu(Ops.ADD, times(outer_loop, unit.k), step), (outer_loop, step))
        for first in (p for p in pair.firsts if e in closed_ranges(p.sum)):
            sources = (first.rows, first.others, start, *row_parts, *of_first, step)
            point = make(Ops.WMMA, unit.output, sources, unit, first.sum.src[0].origin)
            made[first.sum] = first.sum.replace((point, *closed_ranges(first.sum)))
    results: dict[UOp, UOp] = {}
    for second in pair.seconds:
        sources = (substitute(second.rows, made), second.others, start, *row_parts, *column_parts, *of_second)
        point = make(Ops.WMMA, unit.output, sources, other, second.sum.src[0].origin)
        results[second.sum] = second.sum.replace((point, *closed_ranges(second.sum)))
    ast = substitute(substitute(loops.ast, results), made)
    return replace_loops(ast, {i: rows, j: columns, k: steps, **inside})
