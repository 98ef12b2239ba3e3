"""Stage 10, accumulators in the cache: the loop over rows lies around the loop over the sums.

    INDEX(BUFFERIZE(REDUCE(x(k, c), k), c), i)
    →  for c: b[c] ← nothing;   for k: for c: b[c] ← b[c] ∘ x(k, c);   b[i]

Rows that are lanes (UNROLL) are combined before they are added to the sums.
"""

from __future__ import annotations

from morok.codegen.scopes import next_number
from morok.codegen.vector.accumulators import accumulate, fold_parts, pick_lanes
from morok.codegen.vector.vectors import splat
from morok.dtype import identity, void
from morok.ir.bounds import vmax
from morok.ir.build import after, define_local
from morok.ir.infer import closed_ranges, ranges
from morok.ir.node import UOp, alu, const, make, toposort
from morok.ir.ops import Op, Ops
from morok.machine.machine import Machine
from morok.optimize.actions.accumulate_in_cache import STREAMED
from morok.rewrite.loops import substitute_open
from morok.rewrite.observe import change


def accumulates_in_cache(node: UOp) -> bool:
    """A buffer of sums that are carried row by row. What is no bare reduction any more is filled plainly."""
    if node.op is not Ops.BUFFERIZE or node.arg is None or node.arg[0] != STREAMED:
        return False
    return node.src[0].op is Ops.REDUCE and len(node.src[0].arg) == 1


@change
def lower_cache_accumulators(root: UOp, machine: Machine) -> UOp:
    """All such buffers of a kernel, as memory and its loops."""
    order = toposort(root)
    if not any(map(accumulates_in_cache, order)):
        return root
    number = next_number(root)  # loops with larger numbers lie inside of the others
    done: dict[UOp, UOp] = {}
    filled: dict[UOp, UOp] = {}
    for node in order:
        new = node.replace(tuple([done[s] for s in node.src]))
        if node.op is Ops.INDEX and accumulates_in_cache(node.src[0]):
            buffer = new.src[0]
            if buffer not in filled:
                filled[buffer] = _filled(buffer, number, machine)
                number += sum(len(ranges(d)) for d in buffer.src[1:])
            new = make(Ops.INDEX, node.dtype, (filled[buffer], *new.src[1:]), node.arg, node.origin)
        done[node] = new
    return done[root]


def _filled(buffer: UOp, number: int, machine: Machine) -> UOp:
    """The memory once it holds its sums."""
    value, *dims = buffer.src
    op, lanes, rows = value.arg[0], value.dtype.lanes, closed_ranges(value)
    where = const(dims[0].dtype.scalar.vec(lanes), 0)
    size = 1
    for d in dims:
        count = int(vmax(d)) + 1
        size *= count
        wide = d if d.dtype.lanes == lanes else splat(d, lanes)
        where = alu(Ops.ADD, alu(Ops.MUL, where, const(wide.dtype, count)), wide)
    memory = define_local(value.dtype.scalar, size, buffer.arg[1])
    pointer = memory.dtype.vec(lanes) if lanes > 1 else memory.dtype
    columns = sorted(ranges(where), key=lambda r: r.arg)
    own = after(memory, *sorted(ranges(buffer), key=lambda r: r.arg))  # filled anew in every step around it
    nothing = const(value.dtype, identity(op.name, value.dtype.scalar))
    begin = make(Ops.STORE, void, (make(Ops.INDEX, pointer, (own, where)), nothing))
    begun = after(own, make(Ops.END, void, (begin, *columns)) if columns else begin, *rows)
    again = {r: make(Ops.RANGE, r.dtype, r.src, (number + i, r.arg[1])) for i, r in enumerate(columns)}
    here = substitute_open(where, again)
    old = make(Ops.INDEX, value.dtype, (begun, here))
    total = _joined(op, old, substitute_open(value.src[0], again), machine)
    step = make(Ops.STORE, void, (make(Ops.INDEX, pointer, (begun, here)), total))
    loops = (*rows, *again.values())
    return after(memory, make(Ops.END, void, (step, *loops)) if loops else step)


def _joined(op: Op, old: UOp, value: UOp, machine: Machine) -> UOp:
    """A sum with more rows; lanes (column, row). Products are added one by one, with one rounding each."""
    lanes = old.dtype.lanes
    rows = value.dtype.lanes // lanes
    fused = machine.fma and value.dtype.scalar in machine.floats and value.op is Ops.MUL
    if not fused:
        return alu(op, old, fold_parts(op, value, lanes))
    for row in range(rows):
        old = accumulate(op, old, pick_lanes(value, [c * rows + row for c in range(lanes)]), fused)
    return old
