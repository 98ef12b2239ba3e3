"""Stage 11, remove reduce: from "the sum of these" to "start at zero, add each".

    REDUCE(add, x(r, k), k)
    →  a = DEFINE_REG;  init = STORE(a, 0);  END(STORE(a, a + x(r, k)), k);  the value of a after that

The accumulator lives in the ranges that the reduction is open in. Lanes that belong to the reduction are kept
as lanes of the accumulator as long as registers last (added vertically in the loop, combined once after it);
where the outputs fill the registers already, the lanes are added one after the other. A product is added with
one rounding where the device can.
"""

from __future__ import annotations

from typing import Any

from morok.codegen.fragments import pick_tiles
from morok.codegen.scopes import own_ranges, share_loops
from morok.codegen.target import Target
from morok.codegen.vectors import swizzle, vector_constant
from morok.dtype import DType, index, void
from morok.ir.build import after, define_reg
from morok.ir.infer import ranges
from morok.ir.matrix import MatrixUnit, Products
from morok.ir.node import UOp, alu, const, make, toposort
from morok.ir.ops import AxisKind, Op, Ops
from morok.rewrite.engine import rewrite
from morok.rewrite.rules import REASSOCIATING, Rules, grows, unproved, why
from morok.rewrite.ruleset import rules
from morok.rewrite.terms import HEADS, Add, Arg, Head, Var, dtype


def identity(op: Op, dtype: DType) -> UOp:
    """The value that changes nothing when combined with another."""
    scalar = dtype.scalar
    if op in (Ops.ADD, Ops.OR, Ops.XOR):
        value: Any = False if scalar.is_bool else 0
    elif op is Ops.MUL:
        value = True if scalar.is_bool else 1
    elif op is Ops.AND:
        value = True if scalar.is_bool else scalar.max if scalar.is_unsigned else -1
    else:
        value = scalar.min if op is Ops.MAX else scalar.max
    return const(dtype, value)


def accumulate(op: Op, total: UOp, value: UOp, fused: bool) -> UOp:
    """total ∘ value; a product is added with one rounding, and a matrix product adds to it by itself."""
    if op is Ops.ADD and value.op is Ops.WMMA:
        a, b, c = value.src
        zero = c.op is Ops.CONST and str(c.arg) in ("0", "0.0")
        return value.replace((a, b, total if zero else alu(Ops.ADD, c, total)))
    if fused and op is Ops.ADD and value.op is Ops.MUL and value.dtype.is_float:
        return alu(Ops.MULACC, *value.src, total)
    return alu(op, total, value)


def pick_lanes(x: UOp, lanes: list[int]) -> UOp:
    """Lanes of a value; of a product, the product of lanes, which can still be added with one rounding."""
    tiles = pick_tiles(x, lanes)
    if tiles is not None:
        return tiles
    if x.op is Ops.MUL:
        return alu(Ops.MUL, *(swizzle(s, lanes) for s in x.src))
    return swizzle(x, lanes)


def fold_lanes(op: Op, x: UOp, outputs: int) -> UOp:
    """Lanes (output, part) with the parts combined: halves first, as a tree, then what is left in order."""
    parts = x.dtype.lanes // outputs
    if outputs == 1 and parts & (parts - 1) == 0:
        return make(Ops.VREDUCE, x.dtype.scalar, (x,), op) if parts > 1 else x
    while parts > 1 and parts % 2 == 0:
        half = parts // 2
        low = [o * parts + p for o in range(outputs) for p in range(half)]
        x = alu(op, swizzle(x, low), swizzle(x, [i + half for i in low]))
        parts = half
    total = swizzle(x, [o * parts for o in range(outputs)])
    for p in range(1, parts):
        total = alu(op, total, swizzle(x, [o * parts + p for o in range(outputs)]))
    return total


def shrink_parts(op: Op, x: UOp, outputs: int, room: int) -> UOp:
    """Combines halves until the lanes fit into `room`."""
    parts = x.dtype.lanes // outputs
    while parts > 1 and outputs * parts > room and parts % 2 == 0:
        half = parts // 2
        low = [o * parts + p for o in range(outputs) for p in range(half)]
        x = alu(op, swizzle(x, low), swizzle(x, [i + half for i in low]))
        parts = half
    return x


class Accumulators:
    """What stage 11 has to remember: the device, and how many accumulators there are."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.count = 0

    def next(self) -> int:
        self.count += 1
        return self.count - 1


def lower_reduce(node: UOp, ctx: Any) -> UOp | None:
    """A reduction → an accumulator, its loop, and the value afterwards. Lanes of a warp wait for stage 12."""
    state: Accumulators = ctx
    target = state.target
    if any(r.op is Ops.RANGE and r.arg[1] is AxisKind.WARP for r in node.src[1:]):
        return None
    op: Op = node.arg[0]
    value, loops = node.src[0], node.src[1:]
    outputs = node.dtype.lanes
    fused = target.fma and value.dtype.scalar in target.floats
    parts = value.dtype.lanes // outputs
    unit = unit_of(value) if op is Ops.ADD else None
    if not loops:
        return fold_lanes(op, value, outputs) if unit is None else one_step(value, outputs, unit)
    in_order = parts > 1 and (outputs >= target.lanes(node.dtype) or target.vector_bytes == 0)
    if not in_order and parts > 1:
        room = target.lanes(node.dtype) * max(1, target.registers // 4)
        value = shrink_parts(op, value, outputs, room)
    width = outputs if in_order else value.dtype.lanes
    dtype = node.dtype.scalar.vec(width)

    register = define_reg(dtype.scalar, width, state.next())
    outer = sorted(ranges(node), key=lambda r: r.arg)
    here = after(register, *outer)
    lanes = vector_constant(index, range(width)) if width > 1 else const(index, 0)
    pointer = register.dtype.vec(width) if width > 1 else register.dtype
    start = make(Ops.STORE, void, (make(Ops.INDEX, pointer, (here, lanes)), identity(op, dtype)))
    inside = after(here, start, *loops)
    total = make(Ops.INDEX, dtype, (inside, lanes))
    pending = pending_products(value) if unit is not None and unit.shared else None
    if pending is not None:
        total = begin_products(total, value)
    if in_order:
        for p in range(parts):
            total = accumulate(op, total, pick_lanes(value, [o * parts + p for o in range(outputs)]), fused)
    else:
        total = accumulate(op, total, value, fused)
    if pending is not None:
        total = end_products(total, pending)
    update = make(Ops.STORE, void, (make(Ops.INDEX, pointer, (inside, lanes)), total))
    end = make(Ops.END, void, (update, *loops))
    if pending:
        end = make(Ops.ASYNC_WAIT, void, (end,), Products(0))
    finished = after(here, end)
    result = make(Ops.INDEX, dtype, (finished, lanes))
    return fold_lanes(op, result, outputs)


# --- matrix units


def unit_of(value: UOp) -> MatrixUnit | None:
    """The unit that computes a value, if one does."""
    node = value.src[0] if value.op is Ops.GEP else value
    return node.arg if node.op is Ops.WMMA and isinstance(node.arg, MatrixUnit) else None


def one_step(value: UOp, outputs: int, unit: MatrixUnit) -> UOp:
    """A sum of products without a loop: each is added to the one before by the unit itself."""
    parts = value.dtype.lanes // outputs
    total = identity(Ops.ADD, value.dtype.scalar.vec(outputs))
    for p in range(parts):
        total = accumulate(Ops.ADD, total, pick_lanes(value, [o * parts + p for o in range(outputs)]), False)
    return end_products(total, 0) if unit.shared else total


def pending_products(value: UOp) -> int:
    """How many groups of products may be under way: as many as the tiles that they read allow.

    None, where they take registers: the next step fills the same ones.
    """
    if held_operands(value):
        return 0
    fences = [n.arg.pending for n in toposort(value) if n.op is Ops.FENCE and isinstance(n.arg, Products)]
    return min(fences, default=0)


def held_operands(value: UOp) -> list[UOp]:
    """What units that run on by themselves take out of registers."""
    node = value.src[0] if value.op is Ops.GEP else value
    return [] if "a" in node.arg.shared else [node.src[0]]


def begin_products(total: UOp, value: UOp) -> UOp:
    """The accumulator as units may take it over, once their tiles and registers are there."""
    tiles = [n for n in toposort(value) if n.op is Ops.AFTER and n.src[0].op is Ops.DEFINE_LOCAL]
    ready = dict.fromkeys(done for n in tiles for done in n.src[1:])
    return after(total, make(Ops.FENCE, void, (total, *held_operands(value), *ready)))


def end_products(total: UOp, pending: int) -> UOp:
    """The accumulator after its products are under way, and earlier ones have finished."""
    commit = make(Ops.ASYNC_COMMIT, void, (total,), Products(0))
    return after(total, make(Ops.ASYNC_WAIT, void, (commit,), Products(pending)))


_CODE = why("makes an accumulator with a number of its own")
_LOOPS = unproved("turns a value into memory and a loop; tested against the interpreter")


@rules("codegen.remove_reduce")
def reduce_rules() -> Rules:
    """Accumulators."""
    # Σ x = (a ← 0; for each x: a ← a + x; a)
    yield "accumulate", Head(Ops.REDUCE).any() >> lower_reduce, _CODE, _LOOPS


def simplify_gep(node: UOp) -> UOp | None:
    """Lanes of constants, of lanes, of vectors made of scalars."""
    return swizzle(node.src[0], node.arg)


@rules("codegen.gep")
def gep_rules(x: Var, a: Var, b: Var, c: Var, y: Var, u: Arg) -> Rules:
    """Lanes, as far down as they go; and sums that a matrix unit takes over."""
    # lanes of lanes
    yield "simplify", Head(Ops.GEP).any() >> simplify_gep, why("looks through several ops"), unproved("lanes")
    # WMMA(a, b, c) + y = WMMA(a, b, c + y)
    yield (
        "wmma-add",
        Add[HEADS["Wmma"](a, b, c, arg=u), y] >> HEADS["Wmma"](a, b, c + y, arg=u, dtype=dtype(c)),
        REASSOCIATING,
        grows("the sum moves inside, once per matrix op"),
        unproved("a matrix unit"),
    )


def reduce_stage(root: UOp, ctx: Any) -> UOp:
    """Stage 11 as a whole."""
    if not any(n.op is Ops.REDUCE for n in toposort(root)):
        return root
    root = own_ranges(share_loops(root))
    return rewrite(root, reduce_rules, Accumulators(ctx.target))
