"""Stage 12, hardware dimensions: parallel ranges become the indices that a device gives its threads.

GLOBAL and THREAD ranges → gidx, LOCAL, WARP and GROUP_REDUCE ranges → lidx, the innermost in dimension 0.
A grid has few dimensions of limited size: neighbouring ranges share a dimension where there are too many,
large ones are split over several, and the ranges are reconstructed by division and remainder:

    r0: 4, r1: 8, r2: 16, r3: 32 with at most three dimensions  →  gidx1 = r1*… ; r0 = gidx2 …

Ranges that are never alive together share the threads (`slots.py`). A device without a grid runs all of them
as loops; the outermost THREAD range stays, for its workers to share.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from morok.codegen.gpu import slots
from morok.codegen.vector.vectors import splat
from morok.dtype import AddrSpace, PtrDType, index
from morok.errors import CompileError
from morok.ir.bounds import vmax
from morok.ir.build import special
from morok.ir.infer import closed_ranges, ranges
from morok.ir.node import UOp, alu, const, make, toposort
from morok.ir.ops import AxisKind, Ops
from morok.machine.machine import Machine
from morok.rewrite.engine import rewrite, substitute
from morok.rewrite.observe import change
from morok.rewrite.rules import Rules, unproved, why
from morok.rewrite.ruleset import rules
from morok.rewrite.terms import Head
from morok.symbolic.quotients import split_sum
from morok.symbolic.sets import symbolic
from morok.symbolic.validity import conjuncts

GRID = (AxisKind.GLOBAL, AxisKind.THREAD, AxisKind.CLUSTER)
BLOCK = (AxisKind.LOCAL, AxisKind.WARP, AxisKind.GROUP_REDUCE)
_LANES = (Ops.VECTORIZE, Ops.GEP, Ops.CAT)  # they put values side by side, and compute nothing


def group_dims(sizes: Sequence[int], limits: Sequence[int]) -> list[list[int]] | None:
    """Neighbouring dimensions joined, smallest products first, until few enough; None if that fails."""
    groups = [[n] for n in sizes]
    while len(groups) > len(limits):
        best = None
        for i in range(len(groups) - 1):
            product = _product(groups[i]) * _product(groups[i + 1])
            if product <= max(limits) and (best is None or product < best[0]):
                best = product, i
        if best is None:
            return None
        i = best[1]
        groups[i : i + 2] = [groups[i] + groups[i + 1]]
    return groups


def split_dim(size: int, limits: Sequence[int]) -> list[int] | None:
    """A dimension as a product of several that fit, fastest first; None where its factors do not allow it."""
    parts: list[int] = []
    left = size
    for limit in limits:
        if left == 1:
            break
        part = next((d for d in range(min(limit, left), 0, -1) if left % d == 0), 1)
        parts.append(part)
        left //= part
    return parts if left == 1 else None


def _product(xs: Sequence[int]) -> int:
    out = 1
    for x in xs:
        out *= x
    return out


def place_ranges(found: Sequence[UOp], prefix: str, limits: Sequence[int]) -> dict[UOp, UOp]:
    """Each range as an expression of hardware indices. The last range is the fastest and gets dimension 0."""
    if not found:
        return {}
    ordered = list(reversed(found))
    sizes = [int(vmax(r)) + 1 for r in ordered]
    symbolic_size = any(r.src[0].op is not Ops.CONST for r in ordered)
    if len(ordered) <= len(limits) and all(n <= m for n, m in zip(sizes, limits, strict=False)):
        return {r: special(f"{prefix}{i}", r.src[0]) for i, r in enumerate(ordered)}
    if symbolic_size:
        if _product(sizes) > limits[0]:
            raise CompileError(
                f"{len(ordered)} parallel ranges of variable size do not fit a grid of {tuple(limits)}"
            )
        return _flat_ranges(ordered, prefix)
    groups = group_dims(sizes, limits)
    if groups is None or not all(_product(g) <= m for g, m in zip(groups, limits, strict=False)):
        parts = split_dim(_product(sizes), limits)
        if parts is None:
            raise CompileError(f"parallel ranges of sizes {sizes} do not fit a grid of {tuple(limits)}")
        flat: UOp = const(index, 0)
        for i in range(len(parts) - 1, -1, -1):
            flat = alu(Ops.ADD, alu(Ops.MUL, flat, const(index, parts[i])), special(f"{prefix}{i}", parts[i]))
        return dict(zip(ordered, _decode(flat, sizes), strict=True))
    values: list[UOp] = []
    for i, group in enumerate(groups):
        values += _decode(special(f"{prefix}{i}", _product(group)), group)
    return dict(zip(ordered, values, strict=True))


def _flat_ranges(ordered: Sequence[UOp], prefix: str) -> dict[UOp, UOp]:
    """Ranges of any sizes, the fastest first, as digits of one index."""
    total: UOp = const(index, 1)
    for r in ordered:
        total = alu(Ops.MUL, total, r.src[0])
    left: UOp = special(f"{prefix}0", rewrite(total, symbolic))
    values: dict[UOp, UOp] = {}
    for r in ordered[:-1]:
        values[r] = rewrite(alu(Ops.FLOORMOD, left, r.src[0]), symbolic)
        left = rewrite(alu(Ops.FLOORDIV, left, r.src[0]), symbolic)
    return {**values, ordered[-1]: left}


def _decode(flat: UOp, sizes: Sequence[int]) -> list[UOp]:
    """The digits of a flat index, fastest first."""
    values, stride = [], 1
    for number, n in enumerate(sizes):
        digit = alu(Ops.FLOORDIV, flat, const(index, stride)) if stride > 1 else flat
        last = number == len(sizes) - 1
        values.append(digit if last else alu(Ops.FLOORMOD, digit, const(index, n)))
        stride *= n
    return [rewrite(v, symbolic) for v in values]


def drop_closed(node: UOp) -> UOp | None:
    """END of something that is no loop any more."""
    loops = tuple(s for s in node.src[1:] if s.op is Ops.RANGE)
    if len(loops) == len(node.src) - 1:
        return None
    return make(Ops.END, node.dtype, (node.src[0], *loops)) if loops else node.src[0]


class Placement:
    """Where the ranges of a grid, or of a block, have gone: their values, and who writes what."""

    def __init__(self, values: dict[UOp, UOp]) -> None:
        self.values = values

    def first_only(self, used: frozenset[UOp]) -> list[UOp]:
        """Conditions that leave one thread for every point of the ranges that are used."""
        return [
            alu(Ops.CMPEQ, v, const(v.dtype, 0))
            for r, v in self.values.items()
            if r not in used and vmax(r) > 0
        ]


class SharedPlacement(Placement):
    """Ranges that share the digits of one flat index."""

    def __init__(self, digits: dict[UOp, slots.Digit], name: str, role: UOp | None = None) -> None:
        self.digits = digits
        self.total = slots.threads(digits)
        for top in (d.top for r, d in digits.items() if r.arg[1] is AxisKind.WARP):
            self.total = -(-self.total // top) * top  # lanes exchange values in whole groups
        self.flat = special(name, self.total)
        if role is not None:  # what is computed from it belongs to the role: others would leave the memory
            self.flat = make(Ops.SPECIAL, self.flat.dtype, (*self.flat.src, role), name)
        super().__init__({r: slots.value(self.flat, d, self.total) for r, d in digits.items()})

    def first_only(self, used: frozenset[UOp]) -> list[UOp]:
        mine = [d for r, d in self.digits.items() if r in used]
        return slots.first_only(self.flat, mine, self.total)


def place_all(
    found: Sequence[UOp], enemies: Mapping[UOp, set[UOp]], prefix: str, limits: Sequence[int]
) -> Placement:
    """The ranges, outer ones first, in hardware indices; those that never meet share them."""
    if not found:
        return Placement({})
    together = all(len(enemies.get(r, ())) == len(found) - 1 for r in found)
    if together or any(r.src[0].op is not Ops.CONST for r in found):
        return Placement(place_ranges(found, prefix, limits))
    digits = slots.assign(list(reversed(found)), enemies)
    if slots.threads(digits) > limits[0]:
        return Placement(place_ranges(found, prefix, limits))
    return SharedPlacement(digits, f"{prefix}0")


@change
def mask_stores(root: UOp, grid: Placement, block: Mapping[UOp | None, Placement]) -> UOp:
    """A store is made by one of the threads that have the value: the first, where its place names none.

    Registers are everybody's own; memory of a block is written once per block. `block` has the threads of
    each role, those of a kernel without roles under None.
    """
    done: dict[UOp, UOp] = {}
    order = toposort(root)
    written = {n.src[0].src[0] for n in order if n.op is Ops.STORE and n.src[0].op is Ops.INDEX}
    for node in order:
        new = node.replace(tuple([done[s] for s in node.src]))
        if node.op is Ops.STORE and node.src[0].op is Ops.INDEX:
            new = _update(_masked(node, new, grid, block[_role(ranges(node))]), written)
        elif node.op is Ops.MBARRIER and node.arg.what == "arrive" and node.arg.amount > 1:
            new = _one_of(new, node.arg.amount, block[_role(ranges(node))])
        done[node] = new
    return done[root]


def _one_of(node: UOp, threads: int, block: Placement) -> UOp:
    """An arrival of the first of every so many threads."""
    assert isinstance(block, SharedPlacement)
    number = alu(Ops.FLOORMOD, block.flat, const(block.flat.dtype, threads))
    gate = alu(Ops.CMPEQ, rewrite(number, symbolic), const(block.flat.dtype, 0))
    address = node.src[0]
    if len(address.src) > 2:
        gate = alu(Ops.AND, address.src[2], gate)
    return node.replace((make(Ops.INDEX, address.dtype, (*address.src[:2], gate)), *node.src[1:]))


def _of_all_lanes(x: UOp) -> UOp:
    """What is the same in every lane of a vector, as a scalar."""
    return x.src[0] if x.op is Ops.VECTORIZE and all(s is x.src[0] for s in x.src) else x


def _digits(x: UOp) -> list[UOp]:
    """The ranges that a number is made of, digit by digit: other points of them are other numbers."""
    terms, _ = split_sum(x)
    weight = 1
    for r, factor in sorted(terms, key=lambda term: term[1]):
        if r.op is not Ops.RANGE or factor != weight:
            return []
        weight *= int(vmax(r)) + 1
    return [r for r, _ in terms]


def _chosen(where: UOp) -> frozenset[UOp]:
    """Ranges that the gate of a place leaves one point of: x = r, or what r has been cut into."""
    found = [_of_all_lanes(c) for g in where.src[2:] for c in conjuncts(_of_all_lanes(g))]
    sides = [tuple(map(_of_all_lanes, c.src)) for c in found if c.op is Ops.CMPEQ]
    pairs = [(a, b) for pair in sides for a, b in (pair, reversed(pair))]
    return frozenset(r for a, b in pairs if ranges(a).isdisjoint(ranges(b)) for r in _digits(a))


def _masked(node: UOp, new: UOp, grid: Placement, block: Placement) -> UOp:
    where = node.src[0]
    dtype = where.dtype
    if not isinstance(dtype, PtrDType) or dtype.space is AddrSpace.REG:
        return new
    used = ranges(where.src[1]) | _chosen(where)
    conditions = block.first_only(used)
    if dtype.space is AddrSpace.GLOBAL:
        conditions += grid.first_only(used)
    if not conditions:
        return new
    lanes = where.src[1].dtype.lanes
    address = new.src[0]
    gate = address.src[2] if len(address.src) > 2 else None
    for c in conditions:
        wide = splat(c, lanes)
        gate = wide if gate is None else alu(Ops.AND, gate, wide)
    assert gate is not None
    return new.replace((make(Ops.INDEX, address.dtype, (*address.src[:2], gate)), new.src[1]))


def _update(store: UOp, written: set[UOp]) -> UOp:
    """A store under a condition reads what it updates under the same one.

    Who does not store has no use for the old value, and would read it while another thread writes there.
    """
    address, value = store.src
    if len(address.src) < 3 or not _is_global(address.src[0]):
        return store
    gate = address.src[2]
    done: dict[UOp, UOp] = {}
    for node in toposort(value, stop=_is_no_arithmetic):
        if not _is_no_arithmetic(node):
            done[node] = node.replace(tuple([done[s] for s in node.src]))
            continue
        done[node] = node
        if node.op is not Ops.INDEX or node.src[0] not in written or not _is_global(node.src[0]):
            continue
        lanes = node.src[1].dtype.lanes
        if gate.dtype.lanes in (1, lanes):
            own = splat(gate, lanes) if gate.dtype.lanes < lanes else gate
            both = own if len(node.src) < 3 else alu(Ops.AND, node.src[2], own)
            done[node] = make(Ops.INDEX, node.dtype, (*node.src[:2], both), node.arg, node.origin)
    return store.replace((address, done[value]))


def _is_no_arithmetic(node: UOp) -> bool:
    return not node.op.is_alu and node.op not in _LANES


def _is_global(memory: UOp) -> bool:
    return isinstance(memory.dtype, PtrDType) and memory.dtype.space is AddrSpace.GLOBAL


def shuffle_reduce(node: UOp) -> UOp | None:
    """A reduction over the lanes of a warp: each takes the value of another one, half as far each time.

    REDUCE(x, w) with 4 lanes  →  y = x + x of lane w ^ 2;  y + y of lane w ^ 1, the same in every lane
    """
    loops = closed_ranges(node)
    if not loops or loops[0].arg[1] is not AxisKind.WARP:
        return None
    (w,) = loops
    op, x = node.arg[0], node.src[0]
    width = int(w.src[0].arg)
    step = width // 2
    while step:
        other = make(Ops.SHUFFLE, x.dtype, (x, alu(Ops.XOR, w, const(w.dtype, step))), width)
        x = alu(op, x, other)
        step //= 2
    return x


@rules("codegen.close_parallel")
def close_rules() -> Rules:
    """Loops that hardware runs need no END."""
    yield (
        "end",
        Head(Ops.END).any() >> drop_closed,
        why("any number of ranges"),
        unproved("restructures loops"),
    )


@rules("codegen.shuffle_reduce")
def shuffle_rules() -> Rules:
    """Reductions within a warp."""
    yield (
        "butterfly",
        Head(Ops.REDUCE).any() >> shuffle_reduce,
        why("as many steps as the width has bits"),
        unproved("threads exchange values; tested against the interpreter"),
    )


def dims_stage(root: UOp, ctx: Any) -> UOp:
    """Stage 12 as a whole."""
    machine: Machine = ctx.machine
    order = toposort(root)
    found = sorted((n for n in order if n.op is Ops.RANGE), key=lambda r: r.arg)
    parallel = [r for r in found if r.arg[1] in GRID or r.arg[1] in BLOCK]
    if not parallel:
        return root
    if not machine.has_grid:
        return _as_loops(root, parallel, machine)
    # blocks start in the order of the grid, and the first of all coordinates changes last
    uneven = {r for n in found for r in ranges(n.src[0])}
    blocks = sorted(
        (r for r in parallel if r.arg[1] in GRID),
        key=lambda r: (r.arg[1] is AxisKind.CLUSTER, r not in uneven),
    )
    grid = place_all(blocks, slots.rivals(order, GRID), "gidx", machine.global_dims)
    # lanes of a warp are the fastest digit
    mine = sorted((r for r in parallel if r.arg[1] in BLOCK), key=lambda r: r.arg[1] is AxisKind.WARP)
    block = _threads(mine, order, machine)
    values = {r: v for placed in block.values() for r, v in placed.values.items()}
    _check_block(values, order, machine)
    root = mask_stores(root, grid, block)
    root = rewrite(root, shuffle_rules)
    return rewrite(on_hardware(root, {**grid.values, **values}), close_rules)


@change
def on_hardware(root: UOp, values: Mapping[UOp, UOp]) -> UOp:
    """Ranges → hardware indices, or what is computed from them."""
    return substitute(root, values)


def _role(alive: Iterable[UOp]) -> UOp | None:
    """The role among ranges that are alive together."""
    return next((r for r in alive if r.arg[1] is AxisKind.ROLE), None)


def _threads(found: Sequence[UOp], order: Sequence[UOp], machine: Machine) -> dict[UOp | None, Placement]:
    """Where the ranges of a block have gone, for each role; a role numbers its threads for itself."""
    enemies = slots.rivals(order, BLOCK)
    roles = [n for n in order if n.op is Ops.RANGE and n.arg[1] is AxisKind.ROLE]
    if not roles:
        return {None: place_all(found, enemies, "lidx", machine.local_dims)}
    owner: dict[UOp, UOp] = {}
    for node in order:
        alive = ranges(node)
        role = _role(alive)
        if role is not None:
            owner.update(dict.fromkeys((r for r in alive if r.arg[1] in BLOCK), role))
    placed: dict[UOp | None, Placement] = {}
    for role in roles:
        mine = [r for r in reversed(found) if owner.get(r) is role]
        digits = slots.assign(mine, enemies)
        name = f"ridx{role.arg[2].first}"
        placed[role] = SharedPlacement(digits, name, role) if mine else Placement({})
    return placed


def _check_block(values: Mapping[UOp, UOp], order: Sequence[UOp], machine: Machine) -> None:
    nodes = (*order, *(s for v in values.values() for s in toposort(v)))
    indices = {s for s in nodes if s.op is Ops.SPECIAL}
    threads = _product([int(vmax(s)) + 1 for s in indices if str(s.arg).startswith("lidx")])
    if machine.block_threads and threads > machine.block_threads:
        raise CompileError(f"a block of {threads} threads; the device allows {machine.block_threads}")


def _as_loops(root: UOp, parallel: Sequence[UOp], machine: Machine) -> UOp:
    """Without a grid: everything is a loop, except for one THREAD range that workers share."""
    threads = [r for r in parallel if r.arg[1] is AxisKind.THREAD and not ranges(r.src[0])]
    keep = threads[0] if machine.threads and threads else None
    mapping = {
        r: make(Ops.RANGE, r.dtype, r.src, (r.arg[0], AxisKind.LOOP)) for r in parallel if r is not keep
    }
    return substitute(root, mapping)
