"""Stage 12, hardware dimensions: parallel ranges become the indices that a device gives its threads.

GLOBAL and THREAD ranges → gidx, LOCAL, WARP and GROUP_REDUCE ranges → lidx, the innermost in dimension 0.
A grid has few dimensions of limited size: neighbouring ranges share a dimension where there are too many,
large ones are split over several, and the ranges are reconstructed by division and remainder:

    r0: 4, r1: 8, r2: 16, r3: 32 with at most three dimensions  →  gidx1 = r1*… ; r0 = gidx2 …

A device without a grid runs them as loops; the outermost THREAD range stays, for its workers to share.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from morok.codegen.target import Target
from morok.dtype import AddrSpace, PtrDType, index
from morok.errors import CompileError
from morok.ir.bounds import vmax
from morok.ir.build import special
from morok.ir.infer import ranges
from morok.ir.node import UOp, alu, const, make, toposort
from morok.ir.ops import AxisKind, Ops
from morok.rewrite.engine import rewrite, substitute
from morok.rewrite.rules import Rules, unproved, why
from morok.rewrite.ruleset import rules
from morok.rewrite.terms import Head
from morok.symbolic.sets import symbolic

GRID = (AxisKind.GLOBAL, AxisKind.THREAD)
BLOCK = (AxisKind.LOCAL, AxisKind.WARP, AxisKind.GROUP_REDUCE)


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
    rest = size
    for limit in limits:
        if rest == 1:
            break
        part = next((d for d in range(min(limit, rest), 0, -1) if rest % d == 0), 1)
        parts.append(part)
        rest //= part
    return parts if rest == 1 else None


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
        raise CompileError(
            f"{len(ordered)} parallel ranges of variable size do not fit a grid of {tuple(limits)}"
        )
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


def mask_store(node: UOp, ctx: Any) -> UOp | None:
    """A store to global memory that does not depend on a thread index is made by thread 0 alone."""
    where = node.src[0]
    dtype = where.dtype
    if not (isinstance(dtype, PtrDType) and dtype.space is AddrSpace.GLOBAL):
        return None
    used = {n for n in toposort(where) if n.op is Ops.SPECIAL}
    missing = [s for s in ctx if s not in used]
    if not missing or where.op is not Ops.INDEX:
        return None
    gate = where.src[2] if len(where.src) > 2 else None
    for s in missing:
        first = alu(Ops.CMPEQ, s, const(s.dtype, 0))
        gate = first if gate is None else alu(Ops.AND, gate, first)
    assert gate is not None
    return node.replace((make(Ops.INDEX, dtype, (*where.src[:2], gate)), node.src[1]))


@rules("codegen.close_parallel")
def close_rules() -> Rules:
    """Loops that hardware runs need no END."""
    yield (
        "end",
        Head(Ops.END).any() >> drop_closed,
        why("any number of ranges"),
        unproved("restructures loops"),
    )


@rules("codegen.mask_stores")
def mask_rules() -> Rules:
    """One thread writes what all have computed."""
    yield (
        "store",
        Head(Ops.STORE).any() >> mask_store,
        why("looks for the thread indices that the place does not use"),
        unproved("who writes is a matter of the device"),
    )


def dims_stage(root: UOp, ctx: Any) -> UOp:
    """Stage 12 as a whole."""
    target: Target = ctx.target
    found = sorted((n for n in toposort(root) if n.op is Ops.RANGE), key=lambda r: r.arg)
    parallel = [r for r in found if r.arg[1] in GRID or r.arg[1] in BLOCK]
    if not parallel:
        return root
    if not target.has_grid:
        return _as_loops(root, parallel, target)
    grid = place_ranges([r for r in parallel if r.arg[1] in GRID], "gidx", target.global_dims)
    warps = [r for r in parallel if r.arg[1] is AxisKind.WARP]
    others = [r for r in parallel if r.arg[1] in BLOCK and r.arg[1] is not AxisKind.WARP]
    block = place_ranges([*others, *warps], "lidx", target.local_dims)
    threads = _product([int(vmax(r)) + 1 for r in (*others, *warps)])
    if target.block_limit and threads > target.block_limit:
        raise CompileError(f"a block of {threads} threads; the device allows {target.block_limit}")
    root = rewrite(substitute(root, {**grid, **block}), close_rules)
    lanes = {s for value in block.values() for s in toposort(value) if s.op is Ops.SPECIAL}
    ordered = sorted(lanes, key=lambda s: str(s.arg))
    return rewrite(root, mask_rules, ordered, "walk") if ordered else root


def _as_loops(root: UOp, parallel: Sequence[UOp], target: Target) -> UOp:
    """Without a grid: everything is a loop, except for one THREAD range that workers share."""
    threads = [r for r in parallel if r.arg[1] is AxisKind.THREAD and not ranges(r.src[0])]
    keep = threads[0] if target.threads and threads else None
    mapping = {
        r: make(Ops.RANGE, r.dtype, r.src, (r.arg[0], AxisKind.LOOP)) for r in parallel if r is not keep
    }
    return substitute(root, mapping)
