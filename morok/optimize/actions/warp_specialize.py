"""The actions WARP_SPECIALIZE and PERSISTENT: warp specialisation, and persistent blocks.

With roles one warp group, the producer, does nothing but copy tiles into the rings, box by box, by TMA;
consumers multiply; and, where the result is staged in shared memory, a third group, the epilogue, walks it
while they are at the next tile. They meet at mbarriers, which codegen adds.

A persistent block walks several tiles of the output. Tiles for the next one are then under way while the
result of this one is written.
"""

from __future__ import annotations

import math
from dataclasses import replace

from morok.dtype import float32
from morok.errors import CompileError
from morok.ir.infer import closed_ranges, ranges
from morok.ir.matrix import MatrixUnit, Shared, shared_layout
from morok.ir.node import UOp, alu, const, make, toposort
from morok.ir.ops import AxisKind, Ops
from morok.ir.warp_roles import REGISTERS, WARP_GROUP, Box
from morok.machine.machine import Machine
from morok.optimize.actions.stage import staged_bytes
from morok.optimize.facts import store_of
from morok.optimize.loops import Loops, loop, simplify_places, size
from morok.optimize.record import Opt, applied
from morok.rewrite.engine import substitute
from morok.schedule.kernel.ranges import replace_loops
from morok.symbolic.im2col_boxes import im2col_box, walk_coordinates
from morok.symbolic.quotients import split_sum
from morok.symbolic.sets import simplify
from morok.symbolic.tma_boxes import box_of
from morok.symbolic.validity import conjuncts

BARRIERS = 1024  # bytes of shared memory for them
BESIDE = 26  # registers that an instruction needs beside its result
_THREADS = (AxisKind.LOCAL, AxisKind.WARP, AxisKind.GROUP_REDUCE)


def refuses(loops: Loops, opt: Opt) -> str | None:
    """Why nothing else can be done to a kernel: its tiles have been divided among threads."""
    if opt.name not in ("PERSISTENT", "CLUSTER", "SKIP") and any(
        o.name == "WARP_SPECIALIZE" for o in applied(loops.ast)
    ):
        return "threads have roles already; what is done to tiles comes before"
    return None


def _in_step(loops: Loops, rings: list[UOp], fixed: list[UOp]) -> str | None:
    """Why those who bring tiles and those who use them would not go through the same steps."""
    if len({n.arg[2].depth for n in rings}) > 1:
        return "rings of different depths would not go in step"
    around = frozenset.union(*map(ranges, rings))
    tiles = frozenset.union(*map(ranges, (*rings, *fixed)))
    for total in (n for n in loops.order if n.op is Ops.REDUCE):
        steps = {r for r in closed_ranges(total) if r.arg[1] is AxisKind.REDUCE}
        if steps and steps != {r for r in around if r.arg[1] is AxisKind.REDUCE}:
            return "steps of the sum lie inside of a tile, and have to be written out"
        if any(r.arg[1] is AxisKind.LOOP and r not in tiles for r in ranges(total)):
            return "the steps of a tile would be gone through more than once"
    return None


def _ends(condition: UOp) -> tuple[dict[UOp, int], int] | None:
    """x < end as the terms of x and the end; None for any other condition."""
    if condition.op is not Ops.CMPLT or not condition.src[0].dtype.is_index:
        return None
    terms, offset = split_sum(simplify(alu(Ops.SUB, *condition.src)))
    return dict(terms), -offset


def _is_stored(loops: Loops, x: UOp, end: int) -> bool:
    """Whether outputs are stored only where x < end, for an x that names a row of outputs.

    The row in a tile has a loop of its own in each tile; the loop over tiles is the same everywhere.
    """
    terms, offset = split_sum(simplify(x))
    inner = [t for t, k in terms if k == 1 and t.op is Ops.RANGE and size(t) is not None]
    outer = {t: k for t, k in terms if t not in inner}
    if offset or len(inner) != 1:
        return False
    if not outer:
        return _is_one_tile(loops, inner[0], end)
    return all(_is_guarded(store_of(effect).src[0], outer, size(inner[0]), end) for effect in loops.ast.src)


def _is_one_tile(loops: Loops, r: UOp, end: int) -> bool:
    """Whether the loop that a tile's dimension stands for was rounded up from so many rows to one tile.

    Then the stores have that condition, and nothing but their loops says which of theirs it is.
    """
    buffer = next(n for n in loops.order if n.op is Ops.BUFFERIZE and r in n.src[1:])
    reads = {n.src[0].arg for n in toposort(buffer.src[0]) if n.op is Ops.INDEX}
    dimension = buffer.src[1:].index(r)
    staged = [o.axes[dimension] for o in applied(loops.ast) if o.name == "STAGE" and o.axis in reads]
    if not any(o.name == "PADTO" and o.axis in staged for o in applied(loops.ast)):
        return False
    return all(_ends_of_tile(store_of(e).src[0], size(r)) == {end} for e in loops.ast.src)


def _ends_of_tile(address: UOp, rows: int | None) -> set[int]:
    """Where an address ends that counts through so many rows."""
    ends = set()
    for condition in (c for gate in address.src[2:] for c in conjuncts(gate)):
        found = _ends(condition)
        if found is None or not all(t.op is Ops.RANGE and size(t) and k > 0 for t, k in found[0].items()):
            continue
        if 1 + sum(k * ((size(t) or 1) - 1) for t, k in found[0].items()) == rows:
            ends.add(found[1])
    return ends


def _is_guarded(address: UOp, outer: dict[UOp, int], rows: int | None, end: int) -> bool:
    """Whether an address has a gate that leaves out what lies beyond the end, for all rows of a tile."""
    for condition in (c for gate in address.src[2:] for c in conjuncts(gate)):
        found = _ends(condition)
        if found is None or found[1] != end or not outer.items() <= found[0].items():
            continue
        within = {t: k for t, k in found[0].items() if t not in outer}
        if all(t.op is Ops.RANGE and size(t) is not None and k > 0 for t, k in within.items()):
            last = sum(k * ((size(t) or 1) - 1) for t, k in within.items())
            if last + 1 == rows:
                return True
    return False


def _is_chosen_away(loops: Loops, read: UOp, x: UOp, end: int) -> bool:
    """Whether whatever is made of a tile's rows with x >= end is replaced by a constant before it is used:
    scores of keys that are not there.

    A row of a tile has a place in it, and the choice has to be by the very place that is looked at.
    """
    terms, offset = split_sum(simplify(x))
    inner = [t for t, k in terms if k == 1 and t.op is Ops.RANGE and size(t) is not None]
    outer = {t: k for t, k in terms if t not in inner}
    if offset or len(inner) != 1:
        return False
    wanted: dict[UOp, int] = {}  # what a choice has to compare
    below: set[UOp] = set()
    for n in loops.order:
        if n.op is Ops.BUFFERIZE and n.src[0] is read and inner[0] in n.src[1:]:
            below.add(n)
        elif not below.isdisjoint(n.src):
            if n.op is Ops.INDEX and n.src[0].op is Ops.BUFFERIZE:
                found = _row_of(n, inner[0])
                if found is None or (wanted and wanted != {**found, **outer}):
                    return False
                wanted = {**found, **outer}
            elif n.op is Ops.WHERE and n.src[0] not in below and n.src[2].op is Ops.CONST:
                if (wanted, end) in map(_ends, conjuncts(n.src[0])):
                    continue
            elif n.op in (Ops.BUFFERIZE, Ops.STORE):
                return False
            below.add(n)
    return bool(wanted)


def _row_of(read: UOp, row: UOp) -> dict[UOp, int] | None:
    """The row of a tile that is read, as terms; None where it is not told apart from the place in it."""
    dims = read.src[0].src[1:]
    length = math.prod(size(d) or 1 for d in dims[dims.index(row) + 1 :])
    terms, offset = split_sum(simplify(read.src[1]))
    found = {t: k // length for t, k in terms if k % length == 0}
    rest = sum(k * ((size(t) or length) - 1) for t, k in terms if t not in found)
    return found if 0 <= offset and offset + rest < length else None


def plain_read(loops: Loops, read: UOp) -> UOp:
    """The read of a tile without limits on its place that a condition says as well.

    x[min(i, 199)] where i < 200, or where only outputs of such i are stored   →   x[i] where i < 200
    """
    if read.op is not Ops.INDEX:
        return read
    gates = [c for g in read.src[2:] for c in conjuncts(g)]
    mapping: dict[UOp, UOp] = {}
    for node in toposort(read.src[1]):
        if node.op is not Ops.MIN or (limit := simplify(node.src[1])).op is not Ops.CONST:
            continue
        inside = alu(Ops.CMPLT, node.src[0], const(node.dtype, limit.arg + 1))
        if any(_ends(g) == _ends(inside) for g in gates):
            mapping[node] = node.src[0]
        elif _is_stored(loops, node.src[0], end := limit.arg + 1) or _is_chosen_away(
            loops, read, node.src[0], end
        ):
            mapping[node] = node.src[0]
            gates.append(inside)
    if not mapping:
        return read
    gate = gates[0]
    for g in gates[1:]:
        gate = alu(Ops.AND, gate, g)
    gate = substitute(gate, mapping)  # what it says of limited places it says of all, as far as they go
    place = substitute(read.src[1], mapping)
    return make(Ops.INDEX, read.dtype, (read.src[0], place, gate), read.arg, read.origin)


def tile_box(loops: Loops, buffer: UOp) -> Box | None:
    """The box that a tile is, or the walk through images that its rows are."""
    read, dims = plain_read(loops, buffer.src[0]), buffer.src[1:]
    return box_of(read, dims) or im2col_box(read, dims)


def _threads(loops: Loops, node: UOp) -> int:
    """Threads that work at a node and at what it closes."""
    alive = ranges(node) | frozenset(closed_ranges(node))
    return math.prod(size(r) or 1 for r in alive if r.op is Ops.RANGE and r.arg[1] in _THREADS)


def _consumers(loops: Loops, points: list[UOp]) -> int:
    """Threads that multiply. In a chain lanes along its steps are those along its columns."""
    if len(points) == 1:
        return max(_threads(loops, n) for n in loops.order)
    groups = {r for n in points for r in (*ranges(n), *closed_ranges(n)) if r.arg[1] is AxisKind.LOCAL}
    return WARP_GROUP * math.prod(size(r) or 1 for r in groups)


def _is_outside(r: UOp) -> bool:
    """Whether a loop is one over tiles; threads and lanes some results have and others not."""
    return r.arg[1] not in (*_THREADS, AxisKind.UPCAST)


def can_warp_specialize(loops: Loops, opt: Opt, machine: Machine) -> str | None:
    if not machine.tma:
        return "the machine has no engine that copies boxes"
    if opt.amount not in (0, 1):
        return "the amount is 1 if others than those who multiply write the result, else 0"
    buffers = [n for n in loops.order if n.op is Ops.BUFFERIZE]
    rings = [n for n in buffers if (found := shared_layout(n)) is not None and found.depth > 1]
    results = [n for n in buffers if (found := shared_layout(n)) is not None and found.depth == 0]
    points = [n for n in loops.order if n.op is Ops.WMMA]
    fixed = fixed_tiles(loops) if len(points) > 1 else []
    if not rings or len(rings) + len(results) + len(fixed) != len(buffers):
        return "roles need tiles in rings, and no other tiles"
    around = {
        frozenset(r for r in closed_ranges(e) if len(points) == 1 or _is_outside(r)) for e in loops.ast.src
    }
    if len(around) != 1:
        return "roles need stores over the same loops"
    if any(n.arg[2].roles for n in rings):
        return "there are roles already"
    if not points or any(not isinstance(n.arg, MatrixUnit) or n.arg.lanes != WARP_GROUP for n in points):
        return "roles need a matrix unit of a warp group"
    if len(points) == 1 and sum(n.op is Ops.REDUCE for n in loops.order) != 1:
        return "roles need a kernel with one sum, or a chain of products"
    if len(points) > 1 and not any(n.op is Ops.ONLINE for n in loops.order):
        return "roles need a chain of products along with a maximum"
    reason = _in_step(loops, rings, fixed)
    if reason is not None:
        return reason
    known = all(size(r) is not None for n in rings for r in ranges(n) if r.arg[1] is AxisKind.REDUCE)
    if not known and len(points) == 1:
        return "how many tiles go through the rings is known only when the kernel runs"
    for n in (*rings, *fixed):
        if tile_box(loops, n) is None:
            return f"a tile of {n.arg[1]} is no box that TMA could copy"
    if opt.amount and len(results) != 1:
        return "there is no collected result that others could write"
    if any(r.arg[1] is AxisKind.GROUP_REDUCE for r in loops.closers):
        return "the threads of the block share a reduction"
    threads = _consumers(loops, points) + WARP_GROUP
    if opt.amount:
        threads += _threads(loops, loops.ast.src[0])
        if _threads(loops, loops.ast.src[0]) % WARP_GROUP:
            return "those who write the result are no whole warp group"
    if threads > machine.block_threads:
        return f"a block would have {threads} threads of at most {machine.block_threads}"
    if points[0].arg.c.registers + BESIDE > REGISTERS // threads:
        return f"a block of {threads} threads begins with too few registers for {points[0].arg.name}"
    nbytes = sum(map(staged_bytes, (*rings, *fixed))) + sum(map(_result_bytes, results)) + BARRIERS
    if nbytes > machine.local_bytes:
        return f"tiles and result would take {nbytes} bytes of at most {machine.local_bytes}"
    return None


def fixed_tiles(loops: Loops) -> list[UOp]:
    """Tiles that are the same in all steps: the rows' own, in a chain of products."""
    found = [n for n in loops.order if (how := shared_layout(n)) is not None and how.depth == 1]
    return [n for n in found if not any(r.arg[1] is AxisKind.REDUCE for r in ranges(n))]


def _result_bytes(buffer: UOp) -> int:
    return math.prod(size(r) or 1 for r in buffer.src[1:]) * buffer.src[0].dtype.itemsize


def warp_specialize(loops: Loops, opt: Opt) -> UOp:
    """Tiles are brought by a warp group of their own; with 1 another one writes the staged result.

    WARP_SPECIALIZE():    for k: fill s; y += a·b from s
        →   role 1: for k: fill s;   role 2: for k: y += a·b from s
    WARP_SPECIALIZE(1):   the same, and role 3: out = f(y)
    """
    done: dict[UOp, UOp] = {}
    for n in loops.order:
        src = tuple([done[s] for s in n.src])
        found = shared_layout(n)
        if found is None or (found.depth == 0 and not opt.amount):
            done[n] = n.replace(src)
            continue
        box = tile_box(loops, n) if found.depth else None
        if box is not None and n.dtype is float32:
            box = replace(box, tf32=True)
        if box is not None:
            src = (plain_read(loops, n.src[0]), *src[1:])
        how = Shared(found.depth, found.row, True, box)
        done[n] = make(n.op, n.dtype, src, (*n.arg[:2], how), n.origin)
    return done[loops.ast]


def all_walked(ast: UOp) -> bool:
    """Whether every walk through images is still seen as one when places have been simplified."""
    rings = [n for n in toposort(ast) if (how := shared_layout(n)) is not None and how.box is not None]
    for n in rings:
        box = n.arg[2].box
        if box.walk is None:
            continue
        try:
            walk_coordinates(simplify(n.src[0]), n.src[1:], 1, box)
        except CompileError:
            return False
    return True


# --- persistent blocks


def tile_loops(loops: Loops) -> list[UOp]:
    """The loops over tiles of the output, outer ones first."""
    found = [r for r in closed_ranges(loops.ast.src[0]) if r.arg[1] is AxisKind.LOOP]
    inside = {r for n in loops.order if n.op is Ops.BUFFERIZE for r in ranges(n)}
    return sorted((r for r in found if r in inside), key=lambda r: r.arg)


def can_be_persistent(loops: Loops, opt: Opt, machine: Machine) -> str | None:
    if not machine.block_threads:
        return "the machine has no blocks of threads"
    if not any((how := shared_layout(n)) is not None and how.roles for n in loops.order):
        return "blocks stay only where threads have roles"
    if sum(n.op is Ops.WMMA for n in loops.order) > 1:
        return "the rows of a chain of products are brought once"
    if any(r.arg[1] is AxisKind.GLOBAL for r in loops.closers):
        return "the blocks have been given work already"
    found = tile_loops(loops)
    if not found or any(size(r) is None or loops.bounds_another(r) for r in found):
        return "the tiles of the output have no fixed number"
    tiles = math.prod(size(r) or 1 for r in found)
    if not 0 < opt.amount < tiles:
        return f"there are {tiles} tiles, so {opt.amount} blocks have no more than one each"
    return None


def _inside(loops: Loops, tiles: list[UOp], number: int) -> dict[UOp, tuple[UOp, tuple[UOp, ...]]]:
    """New numbers, from this one on, for loops within a tile that would lie around those over tiles.

    Loops nest by their numbers. All rows of an output may be one tile: their loop has then been there before.
    """
    first = min(int(r.arg[0]) for r in tiles)
    closed = {r for effect in loops.ast.src for r in closed_ranges(effect)}
    early = [r for r in closed if r.arg[1] is AxisKind.LOOP and r not in tiles and int(r.arg[0]) < first]
    fresh = {r: loop(r.src[0], number + i, AxisKind.LOOP, r) for i, r in enumerate(sorted(early, key=_key))}
    return {r: (new, (new,)) for r, new in fresh.items()}


def _key(r: UOp) -> int:
    return int(r.arg[0])


def persistent(loops: Loops, opt: Opt) -> UOp:
    """A persistent kernel: so many blocks walk all tiles of the output, each every so-manieth.

    PERSISTENT(9):   for r0 < 16: for r1 < 32: …   →   for block < 9: for t: … with 32·r0 + r1 = 9·t + block
    """
    found = tile_loops(loops)
    sizes = [size(r) or 1 for r in found]
    total = math.prod(sizes)
    number = min(int(r.arg[0]) for r in found)
    like = found[0]
    block = loop(opt.amount, loops.next_number(), AxisKind.GLOBAL, like)
    left = alu(Ops.SUB, const(like.dtype, total + opt.amount - 1), block)
    turns = alu(Ops.FLOORDIV, left, const(like.dtype, opt.amount))
    turn = loop(turns, number, AxisKind.LOOP, like)
    tile = alu(Ops.ADD, alu(Ops.MUL, turn, const(like.dtype, opt.amount)), block)
    mapping = _inside(loops, found, loops.next_number() + 1)
    below = total
    for r, n in zip(found, sizes, strict=True):
        whole = below
        below //= n
        digit = tile if below == 1 else alu(Ops.FLOORDIV, tile, const(like.dtype, below))
        if whole < total:
            digit = alu(Ops.FLOORMOD, digit, const(like.dtype, n))
        mapping[r] = (digit, (turn, block))
    return simplify_places(replace_loops(loops.ast, mapping), turn)
