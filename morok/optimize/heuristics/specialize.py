"""Products whose rows are counted when they run get code of their own for few rows.

A tile for any number of rows packs its panel and computes whole tiles, which pays for many rows. Fewer than a
tile has would be computed mostly for nothing: for those the kernel is planned as if their number were known,
two of them at a time, and which code runs is decided by the number. A few tiles of rows times rows of a
matrix that lie along the steps do not pay for packing either: they share one more.
"""

from __future__ import annotations

from morok.ir.bounds import bounds
from morok.ir.build import variable as variable_of
from morok.ir.infer import closed_ranges
from morok.ir.node import UOp, const, toposort
from morok.ir.ops import AxisKind, Ops
from morok.machine.machine import Machine
from morok.optimize.contraction import Contraction, contraction_of
from morok.optimize.facts import trips
from morok.optimize.heuristics.builder import Builder
from morok.optimize.heuristics.skinny_gemm import FEW_GEMV_ROWS
from morok.optimize.heuristics.tiles import ANY_ROWS
from morok.optimize.loops import size
from morok.optimize.record import applied
from morok.rewrite.engine import substitute
from morok.schedule.kernel.ranges import replace_loops
from morok.schedule.kernel.stages import KERNEL_STAGES
from morok.symbolic.sets import simplify

Values = tuple[int, int]  # the first and the last one
STAGES = tuple(stage for stage in KERNEL_STAGES if stage.number != "2.1")


def special_values(ast: UOp, machine: Machine) -> tuple[UOp | None, list[Values]]:
    """A variable of the kernel, and those of its values for which the kernel should have code of its own."""
    if machine.block_threads or not machine.vector_bytes or applied(ast):
        return None, []
    products = _unknown_rows(ast)
    rows = next((product.i.src[0] for product in products), None)
    variables = [] if rows is None else [n for n in toposort(rows) if n.op is Ops.DEFINE_VAR]
    if rows is None or len(variables) != 1 or any(n.op is Ops.RANGE for n in toposort(rows)):
        return None, []
    in_order = all(_along_steps(product) for product in products)
    return variables[0], _values(rows, variables[0], FEW_GEMV_ROWS if in_order else ANY_ROWS)


def _unknown_rows(ast: UOp) -> list[Contraction]:
    """Products with loops over rows that run as often as a variable says."""
    found = []
    for effect in ast.src:
        for node in toposort(effect):
            product = contraction_of((effect,), node) if node.op is Ops.REDUCE else None
            if product is not None and size(product.i) is None:
                found.append(product)
    return found


def _along_steps(product: Contraction) -> bool:
    """Whether the rows of both operands lie along the steps."""
    steps = closed_ranges(product.reduce)
    return len(steps) == 1 and all(a.step(steps[0]) == 1 for a in (product.along_i[0], *product.along_j))


def _values(rows: UOp, variable: UOp, few: int) -> list[Values]:
    """Values that make few rows. Of less than a tile, those of 2 and 3 rows share their code, and so on: a
    row that is computed for nothing among so many costs less than a code of its own. All others share one."""
    low, high = map(int, bounds(variable))
    found: dict[int, Values] = {}
    for value in range(max(1, low), min(high, max(1, low) + few) + 1):
        count = simplify(substitute(rows, {variable: const(variable.dtype, value)}))
        if count.op is not Ops.CONST or not 0 < int(count.arg) < few:
            break
        which = min(int(count.arg), ANY_ROWS) // 2
        found[which] = found.get(which, (value, value))[0], value
    return list(found.values())


def with_values(ast: UOp, variable: UOp, values: Values) -> UOp:
    """The kernel for a few values of a variable: loops of one step go, and those that can be are joined."""
    first, last = values
    name, kind = variable.arg[0], variable.dtype
    narrow = const(kind, first) if first == last else variable_of(name, first, last, kind)
    done = simplify(substitute(ast, {variable: narrow}))
    once = {
        r: (const(r.dtype, 0), ())
        for n in toposort(done)
        for r in closed_ranges(n)
        if r.op is Ops.RANGE and size(r) == 1 and r.arg[1] in (AxisKind.LOOP, AxisKind.REDUCE)
    }
    done = _without_empty_closers(replace_loops(done, once))
    for stage in STAGES:
        done = stage.apply(done, None)
    return done


def _without_empty_closers(ast: UOp) -> UOp:
    """Reductions and ENDs all of whose loops were of one step are what they were of."""
    done: dict[UOp, UOp] = {}
    for node in toposort(ast):
        new = node.replace(tuple([done[s] for s in node.src]))
        whole = node.src[0] if node.op is Ops.PICK else node
        if not closed_ranges(whole):
            if node.op is Ops.END or (node.op is Ops.REDUCE and len(node.arg) == 1):
                new = done[node.src[0]]
            elif node.op is Ops.PICK and whole.op is Ops.REDUCE:
                new = done[whole.src[node.arg]]
        done[node] = new
    return done[ast]


def pad_rows(builder: Builder) -> None:
    """Rows of which there may be one less than the most are as many as there may be: a known number."""
    for product in _unknown_rows(builder.ast):
        r = product.i
        low, high = map(int, bounds(r.src[0]))
        if 1 < high < ANY_ROWS and high - low == 1:
            builder.do("PADTO", int(r.arg[0]), trips(r))


__all__ = ["special_values", "pad_rows", "with_values"]
