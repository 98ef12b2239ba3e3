"""Stage 14, devectorise: vectors of any width become what the device has (legalisation of vectors).

Four phases:
1. A vector of addresses is grouped into runs that lie side by side: `INDEX(p, lanes)` → lanes of
   `PTRCAT(run, run, …)`. Wide arithmetic is cut into registers: `ADD(x96, y96)` → `CAT(ADD(x4, y4), …)`.
2. Lanes move through memory ops: `LOAD(lanes of P)` → lanes of `LOAD(P)`, and the other way round for STORE.
3. `LOAD(PTRCAT(…))` → `CAT(LOAD, …)`; `STORE(PTRCAT(…), v)` → one STORE per run.
4. Runs are split into the lengths that the device can access at once.

Vector reductions become trees, and vectors of booleans follow the width of what they guard.
"""

from __future__ import annotations

from itertools import accumulate
from types import SimpleNamespace
from typing import Any

from morok.codegen.vector.conversions import cast_in_steps
from morok.codegen.vector.fragments import cut_units
from morok.codegen.vector.indices import Conditions, Places, factor, join, places, push_lanes
from morok.codegen.vector.vector_constants import CONSTANT, fold_lanes
from morok.codegen.vector.vectors import (
    by_lanes,
    concat,
    gather,
    lane,
    parts_of,
    pieces,
    swizzle,
    turned,
    turned_rows,
)
from morok.codegen.vector.whole import in_registers, is_whole, opened, stored_whole
from morok.dtype import DType, PtrDType, index, void
from morok.ir.node import UOp, alu, make
from morok.ir.ops import ALU, Op, Ops
from morok.machine.machine import Machine
from morok.rewrite.rules import Rules, unproved, why
from morok.rewrite.ruleset import join as join_rules
from morok.rewrite.ruleset import rules
from morok.rewrite.terms import Head

# --- phase 1: runs of addresses


def _run_pointer(buffer: UOp, place: UOp, lanes: int, gate: UOp | None) -> UOp:
    """The address of `lanes` elements that lie side by side."""
    dtype = buffer.dtype
    assert isinstance(dtype, PtrDType)
    pointer = dtype.elem.scalar.vec(lanes).ptr(dtype.size, dtype.space) if lanes > 1 else dtype
    return make(Ops.INDEX, pointer, (buffer, place) if gate is None else (buffer, place, gate))


def group_addresses(node: UOp, ctx: Any) -> UOp | None:
    """INDEX(p, vector) → lanes of PTRCAT(runs)."""
    place = node.src[1]
    count = place.dtype.lanes
    if count == 1 or not node.dtype.is_ptr:
        return None
    machine: Machine = ctx.machine
    buffer = node.src[0]
    found = places(place, ctx.places)
    gate = node.src[2] if len(node.src) > 2 else None
    gates = None if gate is None else Conditions(gate)
    by_lane = gates is not None and not gates.alike(range(count))
    masked = by_lane and machine.masked_memory
    if not by_lane or masked:
        windows = _windows(node, found, gates, machine)
        if windows is not None:
            return windows
    # (gate, or the layer of a mask, and root) → offset → lanes that want it
    groups: dict[tuple[Any, Any], dict[int, list[int]]] = {}
    simple = gate is None and len(found.roots) == 1
    least = found.offsets[0]
    if simple and found.offsets == tuple(range(least, least + count)):  # a tile of registers, most often
        return _run_pointer(buffer, join(found.roots[0], least, place), count, None)
    if simple:
        only = groups[None, found.roots[0]] = {}
        for i, offset in enumerate(found.offsets):
            only.setdefault(offset, []).append(i)
    conditions = gates.of(range(count)) if gates is not None and not masked else [None] * count
    for i in () if simple else range(count):
        if not masked:
            groups.setdefault((conditions[i], found.root(i)), {}).setdefault(found.offsets[i], []).append(i)
            continue
        # Lanes at one place that disagree about the condition cannot share a mask: the end of a row that is
        # rounded up lies where the next row begins.
        assert gates is not None
        layer = 0
        while True:
            there = groups.setdefault((layer, found.root(i)), {}).setdefault(found.offsets[i], [])
            if not there or gates[there[0]] is gates[i]:
                there.append(i)
                break
            layer += 1
    runs: list[UOp] = []
    position = [0] * count
    filled = 0
    for (scalar_gate, root), offsets in groups.items():
        for start, length in _runs(sorted(offsets)):
            first = [offsets[o][0] for o in range(start, start + length)]
            guard = scalar_gate
            if masked:
                assert gate is not None and gates is not None
                guard = _mask(gate, gates, first)
            runs.append(_run_pointer(buffer, join(root, start, place), length, guard))
            for k, o in enumerate(range(start, start + length)):
                for i in offsets[o]:
                    position[i] = filled + k
            filled += length
    return _lanes_of_runs(node, runs, filled, position)


def _windows(node: UOp, found: Places, gates: Conditions | None, machine: Machine) -> UOp | None:
    """Vectors that overlap, as those that a convolution's windows read: one access for each of them.

    As one run they would be fewer accesses, but each vector that does not begin where an access does would
    have to be put together out of two.
    """
    buffer, place = node.src[:2]
    count, width = place.dtype.lanes, machine.longest_access(_loaded(node))
    if machine.block_threads or machine.aligned_memory or width < 2 or count <= width or count % width:
        return None
    if in_registers(node):
        return None
    starts = range(0, count, width)
    for start in starts:
        first, root = found.offsets[start], found.root(start)
        if any(
            found.offsets[start + i] != first + i or found.root(start + i) is not root for i in range(width)
        ):
            return None
    known: dict[tuple[Any, int], list[int]] = {}  # where vectors begin, to their numbers
    firsts: list[int] = []  # their first lanes, by number
    position: list[int] = []
    for start in starts:
        there = known.setdefault((found.root(start), found.offsets[start]), [])
        number = next((n for n in there if _agree(gates, firsts[n], start, width)), len(firsts))
        if number == len(firsts):
            there.append(number)
            firsts.append(start)
        position += range(number * width, number * width + width)
    if len({(found.root(i), found.offsets[i]) for i in range(count)}) == len(firsts) * width:
        return None  # they do not overlap
    runs = []
    for start in firsts:
        guard = None if gates is None else _mask(node.src[2], gates, list(range(start, start + width)))
        runs.append(_run_pointer(buffer, join(found.root(start), found.offsets[start], place), width, guard))
    return _lanes_of_runs(node, runs, len(firsts) * width, position)


def _agree(gates: Conditions | None, one: int, other: int, width: int) -> bool:
    """Whether so many lanes from two of them on have the same conditions, lane by lane."""
    return gates is None or all(gates[one + i] is gates[other + i] for i in range(width))


def _mask(gate: UOp, gates: Conditions, lanes: list[int]) -> UOp:
    return gates[lanes[0]] if gates.alike(lanes) else push_lanes(gate, lanes)


def _runs(offsets: list[int]) -> list[tuple[int, int]]:
    """(start, length) of neighbouring numbers."""
    out: list[tuple[int, int]] = []
    for o in offsets:
        if out and out[-1][0] + out[-1][1] == o:
            out[-1] = (out[-1][0], out[-1][1] + 1)
        else:
            out.append((o, 1))
    return out


def _lanes_of_runs(node: UOp, runs: list[UOp], filled: int, position: list[int]) -> UOp:
    dtype = node.dtype
    assert isinstance(dtype, PtrDType)
    elem = dtype.elem.scalar
    everything = (
        elem.vec(filled).ptr(dtype.size, dtype.space) if filled > 1 else elem.ptr(dtype.size, dtype.space)
    )
    whole = runs[0] if len(runs) == 1 else make(Ops.PTRCAT, everything, tuple(runs))
    if position == list(range(filled)):
        return whole
    return make(Ops.GEP, dtype, (whole,), tuple(position))


# --- phase 1: arithmetic in registers


def cut_arithmetic(node: UOp, ctx: Any) -> UOp | None:
    """An op on more lanes than a register holds → the op on parts."""
    count = node.dtype.lanes
    if count == 1 or node.dtype.is_void:
        return None
    machine: Machine = ctx.machine
    src = node.src
    if src[0].op in CONSTANT and (folded := fold_lanes(node, src)) is not None:
        return folded
    if node.dtype.is_index:  # places are taken apart lane by lane, so vectors of them stay whole until then
        places_of = tuple([opened(s, machine) for s in src])
        return None if places_of == src else node.replace(places_of)
    widest = node.dtype
    for s in src:
        if s.dtype.scalar.itemsize > widest.scalar.itemsize:
            widest = s.dtype
    width = machine.lanes(widest)
    if widest.is_bool:  # truths lie in registers as wide as what was compared
        cats = [max(part.dtype.lanes for part in s.src) for s in src if s.op is Ops.CAT]  # a rest is shorter
        width = min([width, *cats])
        if any(s.op is Ops.VCONST for s in src):  # a comparison of places that are known already
            width = min(width, machine.lanes(index))
    if count <= width:
        return None
    tiles = [is_whole(s, machine) for s in src]
    if any(tiles):
        if node.op is Ops.ADD and all(tiles):
            return None
        src = tuple([opened(s, machine) for s in src])
    if any(s.dtype.lanes != count for s in src):
        return node.replace(src) if any(tiles) else None
    parts = parts_of(count, width)
    columns = [pieces(s, parts) for s in src]
    op, scalar, arg = node.op, node.dtype.scalar, node.arg
    dtypes = [scalar.vec(len(part)) for part in parts]
    return concat([make(op, t, s, arg) for t, s in zip(dtypes, zip(*columns, strict=True), strict=True)])


def tree_reduce(node: UOp) -> UOp | None:
    """All lanes combined: halves with halves until one is left."""
    op: Op = node.arg
    x = node.src[0]
    count = x.dtype.lanes
    if count == 1:
        return x
    half = 1 << (count - 1).bit_length() - 1
    low, high = swizzle(x, range(half)), swizzle(x, range(half, count))
    if count - half == half:
        joined = alu(op, low, high)
    else:
        rest = count - half
        joined = concat([alu(op, swizzle(low, range(rest)), high), swizzle(low, range(rest, half))])
    return joined if half == 1 else make(Ops.VREDUCE, node.dtype, (joined,), op)


def lanes_of(node: UOp, ctx: Any) -> UOp | None:
    """Lanes of something simpler."""
    if node.dtype.is_ptr:
        return None
    if turned_rows(node) is not None:
        return by_lanes(node) if ctx.machine.has_grid else None
    return swizzle(opened(node.src[0], ctx.machine), node.arg)


def flat_cat(node: UOp, ctx: Any) -> UOp | None:
    """CAT of CATs, of constants, of neighbouring lanes."""
    return concat([opened(s, ctx.machine) for s in node.src])


def flat_vectorize(node: UOp, ctx: Any) -> UOp | None:
    """Scalars that are lanes of one vector, or the same lane of each of some rows."""
    found = gather(node.src)
    return found if ctx.machine.has_grid else turned(found)


# --- phase 2: lanes through memory


def lanes_out_of_load(node: UOp) -> UOp | None:
    """LOAD(lanes of P) → lanes of LOAD(P)."""
    address = node.src[0]
    if address.op is not Ops.GEP:
        return None
    whole = address.src[0]
    dtype = _loaded(whole)
    others = tuple(_spread(s, address.arg, dtype.lanes) for s in node.src[1:])
    return swizzle(make(Ops.LOAD, dtype, (whole, *others)), address.arg)


def _loaded(address: UOp) -> Any:
    dtype = address.dtype
    assert isinstance(dtype, PtrDType)
    return dtype.elem


def _spread(x: UOp, position: tuple[int, ...], count: int) -> UOp:
    """The value for each place of a run, given the values of the lanes that read it."""
    if x.op is Ops.CONST:
        return make(Ops.CONST, x.dtype.scalar.vec(count), (), x.arg)
    return gather([lane(x, position.index(k)) for k in range(count)])


def lanes_into_store(node: UOp) -> UOp | None:
    """STORE(lanes of P, v) → STORE(P, v in P's order)."""
    address, value = node.src
    if address.op is not Ops.GEP:
        return None
    whole = address.src[0]
    count = _loaded(whole).lanes
    last = {k: i for i, k in enumerate(address.arg)}
    return make(Ops.STORE, void, (whole, swizzle(value, [last[k] for k in range(count)])), node.arg)


# --- phases 3 and 4: one access per run, of a length the device has


def split_load(node: UOp, ctx: Any) -> UOp | None:
    """LOAD of several runs, or of a run too long."""
    address = node.src[0]
    if is_whole(node, ctx.machine):
        return None
    overlapping = _overlapping(node, ctx.machine)
    if overlapping is not None:
        return overlapping
    parts = _accesses(address, ctx.machine)
    if parts is None:
        return None
    dtypes = [_loaded(part) for part in parts]
    others = [pieces(s, _side_by_side(dtypes)) for s in node.src[1:]]
    loads = []
    for i, (part, dtype) in enumerate(zip(parts, dtypes, strict=True)):
        guarded = len(part.src) > 2
        loads.append(make(Ops.LOAD, dtype, (part, *(column[i] for column in others)) if guarded else (part,)))
    return concat(loads)


def _overlapping(node: UOp, machine: Machine) -> UOp | None:
    """A run whose rest would be several accesses: whole vectors, of which the last begins before the one
    before it ends."""
    address = node.src[0]
    if address.op is not Ops.INDEX or machine.block_threads or machine.aligned_memory:
        return None
    count, width = node.dtype.lanes, machine.longest_access(_loaded(address))
    if in_registers(address) or count < width or (count % width).bit_count() < 2:
        return None
    buffer, place = address.src[:2]
    found = places(place)
    starts = [*range(0, count - width, width), count - width]
    loads = []
    for start in starts:
        part = list(range(start, start + width))
        guard = address.src[2] if len(address.src) > 2 else None
        if guard is not None and guard.dtype.lanes > 1:
            guard = push_lanes(guard, part)
        where = _run_pointer(buffer, join(found.root(0), found.offsets[0] + start, place), width, guard)
        others = tuple([swizzle(s, part) for s in node.src[1:]])
        loads.append(make(Ops.LOAD, node.dtype.scalar.vec(width), (where, *others)))
    whole = (len(starts) - 1) * width
    return swizzle(concat(loads), [i if i < whole else len(starts) * width - count + i for i in range(count)])


def split_store(node: UOp, ctx: Any) -> UOp | None:
    """STORE to several runs, or to a run too long."""
    address, value = node.src
    if _stays_whole(address, value, ctx.machine):
        return None
    parts = _accesses(address, ctx.machine)
    if parts is None:
        return None
    values = pieces(value, _side_by_side([_loaded(part) for part in parts]))
    stores = [make(Ops.STORE, void, pair, node.arg) for pair in zip(parts, values, strict=True)]
    return make(Ops.GROUP, void, tuple(stores))


def _stays_whole(address: UOp, value: UOp, machine: Machine) -> bool:
    """Whether registers are written by one STORE, many as they are: a constant, or what is in parts already.

    Every stage that follows would go through all of them, and they are no instructions in the end. On a GPU
    they are elements of an array, each with a name of its own in the text.
    """
    if stored_whole(address, value, machine):
        return True
    if machine.has_grid or address.op is not Ops.INDEX or not in_registers(address):
        return False
    dtype = value.dtype
    if dtype.is_bool or dtype.scalar.itemsize < 4:  # what other types are turned into is computed in parts
        return False
    if value.op is not Ops.CAT:
        return value.op is Ops.CONST
    parts = parts_of(dtype.lanes, machine.longest_access(_loaded(address)))
    return [s.dtype.lanes for s in value.src] == [len(part) for part in parts]


def _side_by_side(dtypes: list[DType]) -> list[range]:
    """The lanes of vectors that are parts of one, in order."""
    ends = list(accumulate(dtype.lanes for dtype in dtypes))
    return [range(end - dtype.lanes, end) for end, dtype in zip(ends, dtypes, strict=True)]


def _accesses(address: UOp, machine: Machine) -> list[UOp] | None:
    """The addresses to access one by one; None if this one is fine as it is."""
    if address.op is Ops.PTRCAT:
        return list(address.src)
    if address.op is not Ops.INDEX:
        return None
    dtype = _loaded(address)
    if dtype.lanes == 1:
        return None
    longest = machine.longest_access(dtype)
    must_align = machine.aligned_memory and not in_registers(address)
    if dtype.lanes == longest and not must_align:
        return None
    buffer, place = address.src[:2]
    gate = address.src[2] if len(address.src) > 2 else None
    parts = parts_of(dtype.lanes, longest)
    if len(parts) == 1 and not must_align:
        return None
    found = places(place)
    root, first = found.root(0), found.offsets[0]
    if must_align:
        parts = _aligned_parts(dtype.lanes, longest, root, first)
    if len(parts) == 1:
        return None
    out = []
    for part in parts:
        guard = gate if gate is None or gate.dtype.lanes == 1 else push_lanes(gate, list(part))
        out.append(_run_pointer(buffer, join(root, first + part[0], place), len(part), guard))
    return out


def _aligned_parts(count: int, longest: int, root: UOp | None, first: int) -> list[range]:
    """0 … count-1 in parts that are powers of two and begin at a multiple of their length."""
    step = factor(root) if root is not None else 0
    out, start = [], 0
    while start < count:
        size = longest
        while size > 1 and (size > count - start or (first + start) % size or step % size):
            size //= 2
        out.append(range(start, start + size))
        start += size
    return out


def flat_group(node: UOp) -> UOp | None:
    """GROUP in GROUP."""
    if not any(s.op is Ops.GROUP for s in node.src):
        return None
    flat = [t for s in node.src for t in (s.src if s.op is Ops.GROUP else (s,))]
    return make(node.op, node.dtype, tuple(dict.fromkeys(flat)), node.arg)


def flat_end(node: UOp) -> UOp | None:
    """END of a GROUP of one."""
    body = node.src[0]
    if body.op is Ops.GROUP and len(body.src) == 1:
        return node.replace((body.src[0], *node.src[1:]))
    return None


_LANES = why("the number of lanes is the device's")
_MEMORY = unproved("splits vectors and memory accesses; tested against the interpreter")


def proof_contexts() -> tuple[Any, ...]:
    """What the prover runs these rules with: registers of 16 bytes, for numbers alone and for vectors."""
    machines = (Machine("usual", scalar_alu=True), Machine("vectors", wide_conversions=True))
    return tuple([SimpleNamespace(machine=machine, places={}) for machine in machines])


@rules("codegen.devectorize")
def vector_rules() -> Rules:
    """Phases 1 and 2: runs of addresses, arithmetic in registers, lanes through memory."""
    yield "addresses", Head(Ops.INDEX).any() >> group_addresses, _LANES, _MEMORY
    yield "steps", Head(Ops.CAST).any() >> cast_in_steps, _LANES
    yield "arithmetic", Head(*sorted(ALU)).any() >> cut_arithmetic, _LANES
    yield "matrix", Head(Ops.WMMA).any() >> cut_units, _LANES, _MEMORY
    yield "tree", Head(Ops.VREDUCE).any() >> tree_reduce, _LANES
    yield "lanes", Head(Ops.GEP).any() >> lanes_of, _LANES
    yield "cat", Head(Ops.CAT).any() >> flat_cat, _LANES
    yield "vectorize", Head(Ops.VECTORIZE).any() >> flat_vectorize, _LANES
    yield "load-lanes", Head(Ops.LOAD).any() >> lanes_out_of_load, _LANES, _MEMORY
    yield "store-lanes", Head(Ops.STORE).any() >> lanes_into_store, _LANES, _MEMORY


@rules("codegen.split_memory")
def memory_rules() -> Rules:
    """Phases 3 and 4: one access per run, of a length that the device has."""
    yield "load", Head(Ops.LOAD).any() >> split_load, _LANES, _MEMORY
    yield "store", Head(Ops.STORE).any() >> split_store, _LANES, _MEMORY
    yield "group", Head(Ops.GROUP).any() >> flat_group, _LANES, _MEMORY
    yield "end", Head(Ops.END).any() >> flat_end, _LANES, _MEMORY


devectorize_rules = join_rules("codegen.devectorize_all", vector_rules, memory_rules)


__all__ = ["Places", "devectorize_rules"]
