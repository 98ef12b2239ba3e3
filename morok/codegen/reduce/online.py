"""Online softmax, part of stage 11: sums that are taken along with a maximum, and rescaled as it rises.

    M = REDUCE(max, s(k), k);  ONLINE(REDUCE(add, f(s(k) - M), k), M)
    →  m = -inf; t = 0;  for each k:  new = max(m, s(k));  t ← t · exp(m - new) + f(s(k) - new);  m ← new

All sums of one maximum share its loop. Where nothing but -inf has been seen, terms are taken relative to 0:
they are 0 then, and a row of nothing else divides 0 by 0 in the end, as it does in three passes.
"""

from __future__ import annotations

import math

from morok.codegen.reduce.behind import Behind, Sum, can_be_behind, second_products
from morok.codegen.reduce.wgmma import add_chained_products, released, ring_waits
from morok.codegen.vector.accumulators import (
    Accumulators,
    Register,
    accumulate,
    fold_lanes,
    pick_lanes,
    rescale,
)
from morok.dtype import void
from morok.errors import CompileError
from morok.ir.infer import ranges
from morok.ir.matrix import MatrixUnit
from morok.ir.node import UOp, alu, const, make, toposort
from morok.ir.ops import AxisKind, Ops
from morok.ir.provenance import place
from morok.rewrite.engine import substitute
from morok.rewrite.observe import change


def _own_part(node: UOp) -> tuple[UOp, tuple[UOp, ...]]:
    """A reduction without the lanes of the warp that it goes over at last, and these."""
    lanes = node.src[1:]
    if all(r.op is Ops.RANGE and r.arg[1] is AxisKind.WARP for r in lanes) and node.src[0].op is Ops.REDUCE:
        return node.src[0], lanes
    return node, ()


@change
def lower_online(root: UOp, state: Accumulators) -> UOp:
    """All sums that are taken along with a maximum, in one loop for each maximum."""
    while True:
        order = toposort(root)
        sums = [n for n in order if n.op is Ops.ONLINE]
        if not sums:
            return root
        top = _maximum(sums[0])
        mine = [n for n in sums if _maximum(n) is top]
        root = substitute(root, _one_pass(top, mine, state))


def _maximum(node: UOp) -> UOp:
    return next(n for n in reversed(toposort(node.src[1])) if n.op is Ops.REDUCE)


def _one_pass(top: UOp, sums: list[UOp], state: Accumulators) -> dict[UOp, UOp]:
    own, warp = _own_part(top)
    loops = own.src[1:]
    parts = [_own_part(n.src[0]) for n in sums]
    if all(r.op is Ops.RANGE and r.arg[1] is AxisKind.WARP for r in loops):
        # one step: the maximum is known before anything is added
        return {n: n.src[0] for n in sums}
    if any(p.src[1:] != loops or p.arg != (Ops.ADD,) for p, _ in parts):
        raise CompileError("sums along with a maximum go over other loops than it", place=place(top))
    # all of them begin anew wherever one of them does
    around = frozenset().union(ranges(top), *(ranges(part) for part, _ in parts))
    kept = state.register(top.dtype, Ops.MAX, around)
    old = kept.inside(loops)
    step = fold_lanes(Ops.MAX, own.src[0], own.dtype.lanes)
    if warp:
        step = make(Ops.REDUCE, top.dtype, (step, *warp), top.arg)
    new = alu(Ops.MAX, old, step)
    none = alu(Ops.CMPEQ, new, const(new.dtype, -math.inf))
    level = alu(Ops.WHERE, none, const(new.dtype, 0.0), new)
    factor = rescale(sums[0], old, level)
    late = _products_behind(top, new, factor, level, sums, state, loops, around, kept)
    if late is not None:
        return late
    effects = [kept.write(loops, new)]
    carried: list[Register] = []
    totals: list[UOp] = []
    for node, (part, _) in zip(sums, parts, strict=True):
        register = state.register(part.dtype, Ops.ADD, around)
        carried.append(register)
        total = register.inside(loops)
        scale = substitute(node.src[1], {top: factor})
        value = substitute(part.src[0], {top: level})
        totals.append(_added(total, scale, value))
        effects.append(register.write(loops, totals[-1]))
    waits = ring_waits(make(Ops.GROUP, void, tuple(effects)))
    effects += [released(wait, loops[0], make(Ops.GROUP, void, tuple(totals)), False) for wait in waits]
    end = make(Ops.END, void, (make(Ops.GROUP, void, tuple(effects)), *loops))
    found = {top: kept.after(end)}
    for node, (part, lanes), register in zip(sums, parts, carried, strict=True):
        result = register.after(end)
        found[node] = make(Ops.REDUCE, part.dtype, (result, *lanes), part.arg) if lanes else result
    return found


def _products_behind(
    top: UOp,
    new: UOp,
    factor: UOp,
    level: UOp,
    sums: list[UOp],
    state: Accumulators,
    loops: tuple[UOp, ...],
    around: frozenset[UOp],
    kept: Register,
) -> dict[UOp, UOp] | None:
    """The same loop with the second products a step behind (`behind.py`); None where that cannot be."""
    parts = [_own_part(n.src[0]) for n in sums]
    values = [substitute(part.src[0], {top: level}) for part, _ in parts]
    steps = [second_products(v, p.dtype.lanes) for v, (p, _) in zip(values, parts, strict=True)]
    (number, *others) = [n for n, found in enumerate(steps) if found] or [-1]
    if number < 0 or others or not can_be_behind(steps[number], loops):
        return None
    registers = [state.register(part.dtype, Ops.ADD, around) for part, _ in parts]
    scales = [substitute(node.src[1], {top: factor}) for node in sums]
    behind = Behind(state, loops[0], steps[number], Sum(registers[number], scales[number], values[number]))
    beside = [n for n in range(len(sums)) if n != number]
    mine = [(kept, new)]
    mine += [(registers[n], _added(registers[n].inside(loops), scales[n], values[n])) for n in beside]
    end, begun, result = behind.lowered(mine)
    found = {top: begun[0].after(end), sums[number]: result}
    for n, register in zip(beside, begun[1:], strict=True):
        part, lanes = parts[n]
        value = register.after(end)
        found[sums[n]] = make(Ops.REDUCE, part.dtype, (value, *lanes), part.arg) if lanes else value
    return found


def _added(total: UOp, scale: UOp, value: UOp) -> UOp:
    """What there is falls, and the values of a step are added."""
    outputs = total.dtype.lanes
    parts = value.dtype.lanes // outputs
    unit = value.src[0] if value.op is Ops.GEP else value
    if unit.op is Ops.WMMA and isinstance(unit.arg, MatrixUnit):
        total = alu(Ops.MUL, total, scale)
        steps = [pick_lanes(value, [o * parts + p for o in range(outputs)]) for p in range(parts)]
        if unit.arg.in_flight:
            return add_chained_products(total, steps)
        for step in steps:
            total = accumulate(Ops.ADD, total, step, True)
        return total
    return alu(Ops.MULACC, total, scale, fold_lanes(Ops.ADD, value, outputs))
