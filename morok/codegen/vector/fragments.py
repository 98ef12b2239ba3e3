"""Fragments: what the lanes of a warp hold of a matrix unit's operands. Part of stage 9, before vectors.

Up to here WMMA is a point: WMMA(a, b, 0, g, h, t, e, s) with the loops of its tile, summed over the steps
s. Now it becomes what the warp does together:

    REDUCE(WMMA(a, b, 0, g, h, t, e, s), k, s)   →   REDUCE(lanes (h, e) of WMMA(A, B, 0), k)

A and B are vectors with the elements that a lane has to hold. They are gathered by reading each element at
its place: the unit's description gives the coordinates of register q in lane (g, t), and these replace the
loops in the operand. Where the operand lies in a shared tile and eight rows of 16 bytes make a matrix,
LDMATRIX loads it at once: each lane gives the address of one row.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from morok.codegen.scopes import next_number
from morok.codegen.vector.vectors import concat, swizzle
from morok.dtype import DType, uint64
from morok.errors import CompileError
from morok.ir.build import rng
from morok.ir.infer import closed_ranges
from morok.ir.matrix import PANEL, Fragment, MatrixUnit, Panels, Rows, Run, Shared, runs, runs_of
from morok.ir.node import UOp, alu, const, make, toposort
from morok.ir.ops import AxisKind, Ops
from morok.ir.provenance import place
from morok.rewrite.engine import substitute
from morok.rewrite.observe import change
from morok.symbolic.sets import simplify

POINT = 3  # sources of a WMMA before the loops of its tile
RUN_BYTES = 16  # of one row that LDMATRIX loads


class Loops(NamedTuple):
    """The loops of a tile: one per run of bits of the result's rows and columns, and the steps."""

    rows: tuple[UOp, ...]
    columns: tuple[UOp, ...]
    steps: tuple[UOp, ...]  # one loop; where the left operand is a result, one per run of its columns' bits
    lane: UOp  # the lane's number in the warp, or in the warp group


def loops_of(point: UOp) -> Loops:
    """The loops beside a point of a unit."""
    unit: MatrixUnit = point.arg
    found = point.src[POINT:]
    high = outer = len(runs(unit.c.rows))
    wide = 1
    while wide < unit.n:
        wide *= int(found[outer].src[0].arg)
        outer += 1
    rows, columns = found[:high], found[high:outer]
    total = const(found[-1].dtype, 0)
    for run, r in (*_pairs(unit.c.rows, rows), *_pairs(unit.c.columns, columns)):
        if run.kind == "l":
            total = alu(Ops.ADD, total, alu(Ops.MUL, r, const(r.dtype, 1 << run.source)))
    return Loops(rows, columns, found[outer:], simplify(total))


def _pairs(bits: tuple[str, ...], loops: tuple[UOp, ...]) -> list[tuple[Run, UOp]]:
    """Loops with the bits of a coordinate that they are."""
    return list(zip(runs_of(bits, (int(r.src[0].arg) for r in loops)), loops, strict=True))


def _bit(x: UOp, place: int) -> UOp:
    shifted = alu(Ops.FLOORDIV, x, const(x.dtype, 1 << place)) if place else x
    return alu(Ops.FLOORMOD, shifted, const(x.dtype, 2))


def _sum(parts: list[UOp], dtype: DType) -> UOp:
    total = const(dtype, 0)
    for p in parts:
        total = alu(Ops.ADD, total, p)
    return simplify(total)


def _weighed(bits: list[tuple[int, UOp]], dtype: DType) -> UOp:
    """Σ of bits at their places."""
    return _sum([alu(Ops.MUL, b, const(dtype, 1 << place)) for place, b in bits], dtype)


def coordinate(bits: tuple[str, ...], lane: UOp, register: UOp) -> UOp:
    """A row or column of a fragment, for a lane and a register."""
    sources = {"l": lane, "r": register}
    found = [(i, _bit(sources[b[0]], int(b[1:]))) for i, b in enumerate(bits)]
    return _weighed(found, lane.dtype)


def _at(x: UOp, unit: MatrixUnit, loops: Loops, left: bool, outer: UOp, step: UOp) -> UOp:
    """The operand at a row (or column) and a step."""
    bits, parts = (unit.c.rows, loops.rows) if left else (unit.c.columns, loops.columns)
    mapping = _digits(bits, parts, outer)
    mapping |= {loops.steps[0]: step} if not is_chained(loops) else _digits(unit.a.columns, loops.steps, step)
    return substitute(x, mapping)


def _digits(bits: tuple[str, ...], loops: tuple[UOp, ...], place: UOp) -> dict[UOp, UOp]:
    """The loops of runs of bits, by the number that they are parts of."""
    mapping = {}
    for run, r in _pairs(bits, loops):
        shifted = alu(Ops.FLOORDIV, place, const(place.dtype, 1 << run.place)) if run.place else place
        mapping[r] = simplify(alu(Ops.FLOORMOD, shifted, const(place.dtype, 1 << run.width)))
    return mapping


def is_chained(loops: Loops) -> bool:
    """Whether the left operand is made of another unit's result, in the registers where that lies."""
    return len(loops.steps) > 1 or loops.steps[0].arg[1] is AxisKind.WARP


def gathered(x: UOp, unit: MatrixUnit, loops: Loops, left: bool, number: int) -> UOp:
    """A fragment whose elements are read one by one."""
    fragment = unit.a if left else unit.b
    register = rng(fragment.registers, number, AxisKind.UNROLL)
    outer, step = _ordered(fragment, left)
    at = _at(
        x, unit, loops, left, coordinate(outer, loops.lane, register), coordinate(step, loops.lane, register)
    )
    axes = ((number, fragment.registers),)
    return make(Ops.CONTRACT, x.dtype.vec(fragment.registers), (at,), axes, x.origin)


def _ordered(fragment: Fragment, left: bool) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Bits of the outer coordinate (row of a, column of b) and of the step."""
    return (fragment.rows, fragment.columns) if left else (fragment.columns, fragment.rows)


def rows_of(x: UOp, unit: MatrixUnit, loops: Loops, left: bool) -> UOp | None:
    """The fragment by LDMATRIX; None where rows of 16 bytes do not lie side by side in a shared tile."""
    if x.op is not Ops.INDEX or len(x.src) > 2 or not is_shared(x.src[0]):
        return None
    fragment = unit.a if left else unit.b
    run = RUN_BYTES // x.dtype.itemsize
    outer, step = _ordered(fragment, left)
    packed = sum(b[0] == "r" for b in step[: run.bit_length() - 1])
    if outer[:3] != ("l2", "l3", "l4") or tuple(step[packed : packed + 2]) != ("l0", "l1"):
        return None
    words = [i for i in range(fragment.registers.bit_length() - 1) if i >= packed]
    lane = loops.lane
    line = simplify(alu(Ops.FLOORMOD, lane, const(lane.dtype, 8)))
    matrix = simplify(alu(Ops.FLOORDIV, lane, const(lane.dtype, 8)))
    upper = {f"r{bit}": _bit(matrix, n) for n, bit in enumerate(words)}
    upper |= {f"l{n}": _bit(lane, n) for n in range(5, unit.lanes.bit_length() - 1)}  # warps of a group
    for transposed in (False, True):
        if transposed and x.dtype.itemsize != 2:
            continue
        coordinates = []
        for bits, low in ((outer, line if not transposed else None), (step, line if transposed else None)):
            parts = [] if low is None else [low]
            parts += [
                alu(Ops.MUL, upper[b], const(lane.dtype, 1 << i)) for i, b in enumerate(bits) if b in upper
            ]
            coordinates.append(_sum(parts, lane.dtype))
        if not _runs(x, unit, loops, left, run, transposed):
            continue
        at = _at(x, unit, loops, left, coordinates[0], coordinates[1])
        read = make(Ops.INDEX, x.dtype, (at.src[0], simplify(at.src[1])), x.arg, x.origin)
        rows = Rows(1 << len(words), transposed)
        return make(Ops.LDMATRIX, x.dtype.vec(fragment.registers), (read,), rows, x.origin)
    return None


def is_shared(buffer: UOp) -> bool:
    """A local buffer that the threads of a block fill together."""
    if buffer.op is not Ops.BUFFERIZE or len(buffer.arg) < 3:
        return False
    return isinstance(buffer.arg[2], Shared) and buffer.arg[2].depth > 0


def _runs(x: UOp, unit: MatrixUnit, loops: Loops, left: bool, run: int, transposed: bool) -> bool:
    """Whether `run` elements along the steps (or, turned, along rows) lie side by side and aligned."""
    zero = const(loops.lane.dtype, 0)
    buffer = x.src[0]
    if int(buffer.src[-1].src[0].arg) % run:
        return False
    first: UOp | None = None
    for i in range(run):
        here = const(zero.dtype, i)
        at = _at(x, unit, loops, left, here if transposed else zero, zero if transposed else here)
        place = simplify(at.src[1])
        if first is None:
            first = place
            rest = simplify(alu(Ops.FLOORMOD, place, const(place.dtype, run)))
            if rest.op is not Ops.CONST or rest.arg != 0:
                return False
        elif simplify(alu(Ops.SUB, place, first)) is not here:
            return False
    return True


def panels_of(x: UOp, unit: MatrixUnit, loops: Loops, left: bool) -> UOp:
    """The description of an operand's tile, for a unit that reads shared memory by itself."""
    zero = const(loops.lane.dtype, 0)
    at = _at(x, unit, loops, left, zero, zero)
    if x.op is not Ops.INDEX or len(x.src) > 2 or not is_shared(x.src[0]):
        raise CompileError(f"the unit {unit.name} reads shared tiles, and an operand is none", place=place(x))
    transposed = not _runs(x, unit, loops, left, RUN_BYTES // x.dtype.itemsize, False)
    rows = int(x.src[0].src[1].src[0].arg)
    read = make(Ops.INDEX, x.dtype, (at.src[0], simplify(at.src[1])), x.arg, x.origin)
    layout = Panels(rows * PANEL, 8 * PANEL, transposed, unit.fused)
    return make(Ops.LDMATRIX, uint64, (read,), layout, x.origin)


@change
def make_fragments(root: UOp) -> UOp:
    """All points of matrix units in a kernel → what warps do."""
    lanes: dict[UOp, UOp] = {}
    while True:
        node = next((n for n in toposort(root) if _is_point(n)), None)
        if node is None:
            return _added_in_units(substitute(root, lanes) if lanes else root)
        lanes |= same_lanes(node.src[0])
        root = substitute(root, {node: _fragments(node, next_number(root))})


def _added_in_units(root: UOp) -> UOp:
    """Products of words that are added up: each unit adds to what the one before has found."""
    found: dict[UOp, UOp] = {}
    for node in toposort(root):
        if node.op is not Ops.ADD:
            continue
        both = [found.get(s, s) for s in node.src]
        for total, product in (both, both[::-1]):
            if _is_of_words(total) and _is_of_words(product) and total.arg == product.arg:
                a, b, c = product.src[0].src
                if c.op is Ops.CONST:  # zeros, where nothing is added yet
                    found[node] = product.replace((product.src[0].replace((a, b, total.src[0])),))
                    break
    return substitute(root, found) if found else root


def _is_of_words(x: UOp) -> bool:
    unit = x.src[0].arg if x.op is Ops.UNROLL and x.src[0].op is Ops.WMMA else None
    return isinstance(unit, MatrixUnit) and unit.words


def _is_point(node: UOp) -> bool:
    if node.op is not Ops.REDUCE or node.src[0].op is not Ops.WMMA:
        return False
    return isinstance(node.src[0].arg, MatrixUnit) and len(node.src[0].src) > POINT


def same_lanes(point: UOp) -> dict[UOp, UOp]:
    """Lanes along the steps of a product whose left operand lies in registers: those along its columns."""
    unit: MatrixUnit = point.arg
    loops = loops_of(point)
    if not is_chained(loops):
        return {}
    mine = {run.source: r for run, r in _pairs(unit.c.columns, loops.columns) if run.kind == "l"}
    steps = _pairs(unit.a.columns, loops.steps)
    return {r: mine[run.source] for run, r in steps if run.kind == "l"}


def a_from_registers(x: UOp, unit: MatrixUnit, loops: Loops) -> UOp:
    """A left operand that is made of a result: each lane has its elements already."""
    pairs = (*_pairs(unit.a.rows, loops.rows), *_pairs(unit.a.columns, loops.steps))
    mine = sorted(((run.source, r) for run, r in pairs if run.kind == "r"), key=lambda pair: -pair[0])
    axes = tuple((int(r.arg[0]), int(r.src[0].arg)) for _, r in mine)
    return make(Ops.CONTRACT, x.dtype.vec(unit.a.registers), (x,), axes, x.origin)


def _fragments(node: UOp, number: int) -> UOp:
    point = node.src[0]
    unit: MatrixUnit = point.arg
    loops = loops_of(point)
    operands = []
    for i, left in enumerate((True, False)):
        x = point.src[i]
        if left and is_chained(loops):
            operands.append(a_from_registers(x, unit, loops))
            continue
        by_itself = ("a" if left else "b") in unit.shared
        fragment = panels_of(x, unit, loops, left) if by_itself else rows_of(x, unit, loops, left)
        operands.append(gathered(x, unit, loops, left, number + i) if fragment is None else fragment)
    count = unit.c.registers
    zero = const(unit.output.vec(count), 0.0 if unit.output.is_float else 0)
    wide = make(Ops.WMMA, unit.output.vec(count), (*operands, zero), unit, point.origin)
    pairs = (*_pairs(unit.c.rows, loops.rows), *_pairs(unit.c.columns, loops.columns))
    registers = [(run.source, r) for run, r in pairs if run.kind == "r"]
    registers.sort(key=lambda pair: -pair[0])
    axes = tuple((int(r.arg[0]), int(r.src[0].arg)) for _, r in registers)
    value = make(Ops.UNROLL, unit.output, (wide,), axes, point.origin)
    rest = tuple(r for r in closed_ranges(node) if r not in loops.steps)
    # a unit that works while the threads go on is waited for where its sum is, also if that is one step
    return node.replace((value, *rest)) if rest or unit.in_flight else value


def cut_units(node: UOp, ctx: Any = None) -> UOp | None:
    """WMMA on several tiles at once → one WMMA per tile, side by side."""
    unit = node.arg
    if not isinstance(unit, MatrixUnit) or node.dtype.lanes <= unit.c.registers:
        return None
    count = node.dtype.lanes // unit.c.registers
    if unit.fused:
        return None if len(node.src) > POINT else _cut_fused(node, count)
    return concat([tile_of(node, t) for t in range(count)])


def _cut_fused(node: UOp, count: int) -> UOp:
    """Fused products on several tiles → those of one left operand together, which is read once.

    The right operands after the first one are the last sources.
    """
    tiles = [tile_of(node, t) for t in range(count)]
    rows: dict[UOp, list[int]] = {}
    for n, tile in enumerate(tiles):
        rows.setdefault(tile.src[0], []).append(n)
    parts: list[UOp] = [node] * count
    width = node.arg.c.registers
    for a, mine in rows.items():
        c = concat([tiles[n].src[2] for n in mine])
        b, *others = (tiles[n].src[1] for n in mine)
        dtype = node.dtype.scalar.vec(width * len(mine))
        wide = make(Ops.WMMA, dtype, (a, b, c, *others), node.arg, node.origin)
        for at, n in enumerate(mine):
            parts[n] = swizzle(wide, range(at * width, (at + 1) * width))
    return concat(parts)


def tile_of(node: UOp, number: int) -> UOp:
    """One tile of a WMMA on several."""
    return tiles_of(node, [number])


def tiles_of(node: UOp, numbers: list[int]) -> UOp:
    """Some tiles of a WMMA on several, as one WMMA."""
    unit: MatrixUnit = node.arg
    sources = tuple(
        swizzle(s, [t * w + i for t in numbers for i in range(w)])
        for s, w in zip(node.src, unit.widths, strict=True)
    )
    return make(Ops.WMMA, node.dtype.scalar.vec(len(numbers) * unit.c.registers), sources, unit, node.origin)


def pick_tiles(x: UOp, lanes: list[int]) -> UOp | None:
    """Lanes of a WMMA on several tiles, where they are whole tiles; None otherwise."""
    if x.op is Ops.GEP and x.src[0].op is Ops.WMMA:
        x, lanes = x.src[0], [x.arg[i] for i in lanes]
    if x.op is not Ops.WMMA or not isinstance(x.arg, MatrixUnit):
        return None
    width = x.arg.c.registers
    starts = lanes[::width]
    whole = all(s % width == 0 for s in starts) and lanes == [s + i for s in starts for i in range(width)]
    return tiles_of(x, [s // width for s in starts]) if whole else None
