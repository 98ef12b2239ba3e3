"""Stage 9, the expander: UPCAST and UNROLL ranges become lanes.

A range of four points turns into `UNROLL((0, 1, 2, 3))`: lanes that stand for the points of an axis. Whatever
uses such lanes is widened: each source is brought to the same axes (repeating lanes where it lacks one), the
op works on the vector, and the axes are handed on. They end at a STORE, which writes a vector, or in a
reduction, which gathers them with CONTRACT and combines them.

    END(STORE(INDEX(p, r*4 + u), x(u)), r, u)   →   END(STORE(INDEX(p, r*4 + (0,1,2,3)), x(0,1,2,3)), r)

Lanes are ordered by axis number, the last axis fastest.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from morok.codegen.vector.accumulators import rescale
from morok.codegen.vector.fragments import make_fragments
from morok.codegen.vector.vectors import repeat, swizzle, vector_constant
from morok.dtype import PtrDType
from morok.errors import CompileError
from morok.ir.build import bufferize, rng
from morok.ir.infer import ranges
from morok.ir.node import UOp, alu, const, make, toposort
from morok.ir.ops import ALU, AxisKind, Ops
from morok.ir.provenance import place
from morok.ir.scan import parts
from morok.rewrite.engine import rewrite, substitute
from morok.rewrite.observe import change
from morok.rewrite.rules import Rules, unproved, why
from morok.rewrite.ruleset import rules
from morok.rewrite.terms import Head

Axes = tuple[tuple[int, int], ...]  # (axis, size), ordered

LANE_KINDS = (AxisKind.UPCAST, AxisKind.UNROLL)


def axes_size(axes: Axes) -> int:
    """The number of points."""
    size = 1
    for _, n in axes:
        size *= n
    return size


def _lanes_for(wanted: Axes, given: Axes, width: int) -> list[int]:
    """For each point of `wanted`, the lanes of a vector over `given` whose points hold `width` lanes each."""
    strides: dict[int, int] = {}
    stride = width
    for axis, n in reversed(given):
        strides[axis] = stride
        stride *= n
    starts = [0]
    for axis, n in wanted:
        stride = strides.pop(axis, 0)
        starts = [start + stride * i for start in starts for i in range(n)]
    if strides:
        raise KeyError(next(iter(strides)))  # a point of `wanted` says nothing about it
    return starts if width == 1 else [start + i for start in starts for i in range(width)]


def range_to_lanes(node: UOp) -> UOp | None:
    """A range that is to be a vector → the numbers of its points."""
    number, kind = node.arg
    if kind not in LANE_KINDS:
        return None
    if node.src[0].op is not Ops.CONST:
        raise CompileError(f"a {kind.value} axis needs a constant size", place=place(node))
    size = node.src[0].arg
    points = vector_constant(node.dtype, range(size)) if size > 1 else const(node.dtype, 0)
    return points if size == 1 else make(Ops.UNROLL, node.dtype, (points,), ((number, size),))


def expand(node: UOp) -> UOp | None:
    """An op on lanes → the op on vectors, with the axes outside."""
    if not any(s.op is Ops.UNROLL for s in node.src):
        return None
    orders = {s.arg for s in node.src if s.op is Ops.UNROLL}
    # one order of lanes is kept: a matrix unit has its own
    axes: Axes = orders.pop() if len(orders) == 1 else tuple(sorted({a for order in orders for a in order}))
    if node.op is Ops.ONLINE and node.src[0].op is Ops.UNROLL:
        axes = node.src[0].arg
    size = axes_size(axes)
    sources = []
    for s in node.src:
        if s.op is Ops.UNROLL:
            inner = s.src[0]
            if inner.dtype.is_void:
                sources.append(inner)
                continue
            width = inner.dtype.lanes // axes_size(s.arg)
            sources.append(inner if s.arg == axes else swizzle(inner, _lanes_for(axes, s.arg, width)))
        elif s.dtype.is_ptr or s.dtype.is_void or s.op is Ops.BUFFERIZE:
            sources.append(s)  # memory is one, however many lanes read it
        elif s.op is Ops.RANGE and node.op in _CLOSE:
            sources.append(s)
        else:
            sources.append(repeat(s, size))
    dtype = node.dtype
    if isinstance(dtype, PtrDType):
        wide = make(node.op, dtype.vec(size), tuple(sources), node.arg)
    elif dtype.is_void:
        wide = make(node.op, dtype, tuple(sources), node.arg)
    else:
        wide = make(node.op, dtype.scalar.vec(dtype.lanes * size), tuple(sources), _wide_arg(node, size))
    return make(Ops.UNROLL, node.dtype, (wide,), axes)


_CLOSE = (Ops.REDUCE, Ops.BUFFERIZE, Ops.END, Ops.SCAN)


def _wide_arg(node: UOp, size: int) -> Any:
    if node.op is not Ops.GEP:
        return node.arg
    width = node.src[0].dtype.lanes
    return tuple(point * width + i for point in range(size) for i in node.arg)


def contract(node: UOp) -> UOp:
    """Points of some axes, gathered into lanes: the contracted axes become the fastest ones."""
    x = node.src[0]
    wanted: Axes = node.arg
    if x.op is not Ops.UNROLL:
        return repeat(x, axes_size(wanted))
    inner = x.src[0]
    present: Axes = x.arg
    others = tuple(a for a in present if a not in wanted)
    width = inner.dtype.lanes // axes_size(present)
    result = swizzle(inner, _lanes_for(others + wanted, present, width))
    if not others:
        return result
    return make(Ops.UNROLL, node.dtype, (result,), others)


def close_reduction(node: UOp) -> UOp | None:
    """REDUCE over lanes: the values bring the points of these axes along as lanes."""
    count = len(node.arg)
    axes: Axes = tuple(sorted(a for s in node.src[count:] if s.op is Ops.UNROLL for a in s.arg))
    loops = tuple(s for s in node.src[count:] if s.op is Ops.RANGE)
    if len(loops) == len(node.src) - count:
        return expand(node)
    values = tuple(
        make(Ops.CONTRACT, v.dtype.scalar.vec(v.dtype.lanes * axes_size(axes)), (v,), axes) if axes else v
        for v in node.src[:count]
    )
    if not loops and count == 1 and not axes:
        return values[0]
    return make(Ops.REDUCE, node.dtype, (*values, *loops), node.arg)


def run_along_lanes(node: UOp) -> UOp | None:
    """SCAN over lanes: the steps become the fastest lanes, in the order of the loops."""
    found = parts(node)
    steps: Axes = tuple(a for s in found.loops if s.op is Ops.UNROLL for a in s.arg)
    if not steps:
        return expand(node)
    loops = tuple(s for s in found.loops if s.op is Ops.RANGE)
    given = (*found.values, *(() if found.start is None else (found.start,)))
    others: Axes = tuple(sorted({a for s in given if s.op is Ops.UNROLL for a in s.arg if a not in steps}))
    values = [_with_axes(v, others + steps) for v in found.values]
    start = () if found.start is None else (_with_axes(found.start, others),)
    how = replace(node.arg, lanes=axes_size(steps))
    dtype = node.dtype.scalar.vec(axes_size(others + steps))
    wide = make(Ops.SCAN, dtype, (*values, *start, *loops), how)
    return make(Ops.UNROLL, node.dtype, (wide,), others + steps)


def _with_axes(x: UOp, axes: Axes) -> UOp:
    """A value as lanes over these axes, repeated along those that it does not depend on."""
    if x.op is not Ops.UNROLL:
        return repeat(x, axes_size(axes))
    return swizzle(x.src[0], _lanes_for(axes, x.arg, 1))


def close_loop(node: UOp) -> UOp | None:
    """END over lanes: there is no loop to close."""
    body = node.src[0]
    if body.op is Ops.UNROLL and body.dtype.is_void:
        body = body.src[0]
    loops = tuple(s for s in node.src[1:] if s.op is Ops.RANGE)
    if body is node.src[0] and len(loops) == len(node.src) - 1:
        return None
    return make(Ops.END, node.dtype, (body, *loops)) if loops else body


def drop_lanes_of_effect(node: UOp) -> UOp | None:
    """Lanes end where a vector has been written; lanes of lanes are lanes."""
    if node.src[0].op is Ops.UNROLL:
        inner = node.src[0]
        return make(Ops.UNROLL, node.dtype, inner.src, (*inner.arg, *node.arg))
    return node.src[0] if node.src[0].op in (Ops.STORE, Ops.END, Ops.GROUP, Ops.BARRIER) else None


def strip_effects(node: UOp) -> UOp | None:
    """SINK, GROUP and AFTER look at effects, which have no lanes."""
    if not any(s.op is Ops.UNROLL and s.dtype.is_void for s in node.src):
        return None
    return node.replace(tuple(s.src[0] if s.op is Ops.UNROLL and s.dtype.is_void else s for s in node.src))


def expand_buffer(node: UOp) -> UOp | None:
    """A local buffer that is filled by vectors: its places are vectors too."""
    wide = expand(node)
    return None if wide is None else wide.src[0]


_LANES = why("the number of lanes depends on the ranges")
_SHAPE = unproved("restructures loops into vectors; tested against the interpreter")

EXPANDABLE = Head(
    *sorted(ALU),
    *(Ops.INDEX, Ops.LOAD, Ops.STORE, Ops.GEP, Ops.VECTORIZE, Ops.CAT, Ops.PICK, Ops.WMMA, Ops.VREDUCE),
    *(Ops.LDMATRIX, Ops.ONLINE),
)  # fmt: skip


@rules("codegen.expand")
def expand_rules() -> Rules:
    """Ranges to lanes, lanes through ops, lanes out of reductions."""
    # a range of n points is the numbers 0 … n-1
    yield "range", Head(Ops.RANGE).any() >> range_to_lanes, _LANES, _SHAPE
    # f(lanes) = lanes of f
    yield "op", EXPANDABLE.any() >> expand, _LANES, _SHAPE
    # Σ over lanes: the lanes travel with the value
    yield "reduce", Head(Ops.REDUCE).any() >> close_reduction, _LANES, _SHAPE
    # a running sum over lanes: the lanes are its last steps
    yield "scan", Head(Ops.SCAN).any() >> run_along_lanes, _LANES, _SHAPE
    yield "bufferize", Head(Ops.BUFFERIZE).any() >> expand_buffer, _LANES, _SHAPE
    yield "contract", Head(Ops.CONTRACT).any() >> contract, _LANES, _SHAPE
    # a written vector has no axes any more
    yield "end", Head(Ops.END).any() >> close_loop, _LANES, _SHAPE
    yield "effect", Head(Ops.UNROLL).any() >> drop_lanes_of_effect, _LANES, _SHAPE
    yield (
        "effects",
        (Head(Ops.SINK, Ops.GROUP, Ops.AFTER, Ops.BARRIER)).any() >> strip_effects,
        _LANES,
        _SHAPE,
    )


# --- before lanes are made


def group_for_reduce(node: UOp, ctx: Any) -> UOp | None:
    """A reduction shared by the threads of a block: each reduces its part, then one loop joins the parts.

    REDUCE(x, k, g) → REDUCE(INDEX(BUFFERIZE(REDUCE(x, k), g), g'), g')

    Where threads can hand values to one another, the lanes of a warp join their parts first, without memory:
    g = h*32 + w gives REDUCE(INDEX(BUFFERIZE(REDUCE(REDUCE(x, k), w), h), h'), h'); one warp needs no buffer.
    """
    if len(node.arg) != 1:
        return None
    loops = [r for r in node.src[1:] if not _is_group(r)]
    groups = [r for r in node.src[1:] if _is_group(r)]
    if not groups:
        return None
    state: _Numbers = ctx
    value = node.src[0]
    warp = _warp_part(groups, ranges(value), state)
    if warp is not None:
        value, groups = substitute(value, {groups[-1]: warp.whole}), [*groups[:-1], *warp.outer]
    inner = make(Ops.REDUCE, node.dtype, (value, *loops), node.arg) if loops else value
    if warp is not None:
        inner = make(Ops.REDUCE, node.dtype, (inner, warp.lane), node.arg)
        if not groups:
            return inner
    # threads of the block that do not take part in the reduction have their own parts
    beside = sorted(
        (r for r in ranges(node) if r.arg[1] in (AxisKind.LOCAL, AxisKind.WARP)), key=lambda r: r.arg[0]
    )
    again = {r: rng(r.src[0], state.next(), AxisKind.REDUCE) for r in groups}
    # neighbouring threads have neighbouring places, so they do not wait for one another's memory banks; the
    # lanes of a unit are neighbours whenever it was chosen
    own = sorted([*beside, *groups], key=lambda r: (r.arg[1] is AxisKind.WARP, r.arg[0]))
    buffer = bufferize(inner, *own, arg=("local", f"group{groups[0].arg[0]}"))
    where = flat_place([again.get(r, r) for r in own], own)
    return make(
        Ops.REDUCE, node.dtype, (make(Ops.INDEX, node.dtype, (buffer, where)), *again.values()), node.arg
    )


class _Numbers:
    """New numbers of ranges, and how many threads a warp has."""

    def __init__(self, root: UOp, warp: int) -> None:
        self.last = max((n.arg[0] for n in toposort(root) if n.op is Ops.RANGE), default=0)
        self.warp = warp
        self.warps: dict[UOp, _Warp] = {}  # how shared ranges have been cut

    def next(self) -> int:
        self.last += 1
        return self.last


class _Warp(NamedTuple):
    """A range as rest * width + lane; no rest where a warp has room for all of it."""

    whole: UOp
    lane: UOp
    outer: tuple[UOp, ...]


def _warp_part(groups: list[UOp], alive: frozenset[UOp], numbers: _Numbers) -> _Warp | None:
    """The lanes of a warp out of the last of the shared ranges."""
    last = groups[-1]
    if not numbers.warp or last.src[0].op is not Ops.CONST:
        return None
    # a reduction around this one that threads share as well would need the same lanes
    if any(r.arg[1] in (AxisKind.GROUP_REDUCE, AxisKind.WARP) and r not in groups for r in alive):
        return None
    # threads along outputs that were made later are neighbours: their memory lies side by side
    if any(r.arg[1] is AxisKind.LOCAL and r.arg[0] > last.arg[0] for r in alive):
        return None
    size = int(last.src[0].arg)
    width = min(size & -size, numbers.warp)
    if width < 2:
        return None
    if last in numbers.warps:  # reductions over the same threads have the same lanes
        return numbers.warps[last]
    lane = rng(width, numbers.next(), AxisKind.WARP)
    if size == width:
        return numbers.warps.setdefault(last, _Warp(lane, lane, ()))
    others = make(Ops.RANGE, last.dtype, (const(last.dtype, size // width),), last.arg)
    whole = alu(Ops.ADD, alu(Ops.MUL, others, const(last.dtype, width)), lane)
    return numbers.warps.setdefault(last, _Warp(whole, lane, (others,)))


def _is_group(r: UOp) -> bool:
    return r.op is Ops.RANGE and r.arg[1] is AxisKind.GROUP_REDUCE


def flat_place(indices: list[UOp], sizes: list[UOp]) -> UOp:
    """Row-major place of a point; `sizes` are the ranges of the buffer."""
    total = const(indices[0].dtype, 0)
    for i, r in zip(indices, sizes, strict=True):
        total = alu(Ops.ADD, alu(Ops.MUL, total, r.src[0]), i)
    return total


@change
def open_lanes(root: UOp) -> UOp:
    """Local buffers that live in a lane axis from outside get that axis as a dimension of their own."""
    order = toposort(root)
    if not any(n.op is Ops.BUFFERIZE for n in order):
        return root
    done: dict[UOp, UOp] = {}
    for node in order:
        new = node.replace(tuple([done[s] for s in node.src]))
        done[node] = new
        if new.op is not Ops.INDEX or new.src[0].op is not Ops.BUFFERIZE:
            continue
        buffer = new.src[0]
        open_ = sorted((r for r in ranges(buffer) if r.arg[1] in LANE_KINDS), key=lambda r: r.arg[0])
        if not open_:
            continue
        wider = bufferize(buffer.src[0], *buffer.src[1:], *open_, arg=buffer.arg)
        where = new.src[1]
        for r in open_:
            where = alu(Ops.ADD, alu(Ops.MUL, where, r.src[0]), r)
        done[node] = make(Ops.INDEX, new.dtype, (wider, where, *new.src[2:]))
    return done[root]


@change
def maxima_apart(root: UOp) -> UOp:
    """Sums along with a maximum that threads share: each thread has a maximum and sums of its own.

    ONLINE(REDUCE(add, f(s - M), k, g), M)  →  REDUCE(add, l · f(m - M), g)
    with m = REDUCE(max, s, k), l = ONLINE(REDUCE(add, f(s - m), k), m) and M = REDUCE(max, m, g)
    """
    while True:
        found = [n for n in toposort(root) if n.op is Ops.ONLINE and any(map(_is_group, n.src[0].src[1:]))]
        if not found:
            return root
        top = found[0].src[1]
        groups = tuple(r for r in top.src[1:] if _is_group(r))
        others = tuple(r for r in top.src[1:] if r not in groups)
        own = top.replace((top.src[0], *others)) if others else top.src[0]
        level = top.replace((own, *groups))
        mapping = {top: level}
        for node in found:
            if node.src[1] is not top:
                continue
            value = substitute(node.src[0].src[0], {top: own})
            mine = node.src[0].replace((value, *others)) if others else value
            if others:
                mine = node.replace((mine, own))
            mapping[node] = node.src[0].replace((alu(Ops.MUL, mine, rescale(node, own, level)), *groups))
        root = substitute(root, mapping)


def warp_apart(node: UOp) -> UOp | None:
    """A reduction over loops and over the lanes of a warp: each lane its own part first."""
    count = len(node.arg)
    lanes = tuple(r for r in node.src[count:] if r.op is Ops.RANGE and r.arg[1] is AxisKind.WARP)
    others = tuple(r for r in node.src[count:] if r not in lanes)
    if count != 1 or not lanes or not others or node.src[0].op is Ops.WMMA:  # a unit adds over its own lanes
        return None
    return node.replace((node.replace((node.src[0], *others)), *lanes))


@rules("codegen.warp_apart")
def warp_rules() -> Rules:
    """Reductions that lanes of a warp take part in."""
    # Σ over loops and lanes = Σ over lanes of (Σ over loops)
    yield "apart", Head(Ops.REDUCE).any() >> warp_apart, _LANES, _SHAPE


@rules("codegen.group_for_reduce")
def group_rules() -> Rules:
    """Reductions shared by a block."""
    # Σ over threads = Σ over their partial sums
    yield "split", Head(Ops.REDUCE).any() >> group_for_reduce, _LANES, _SHAPE


def expand_stage(root: UOp, ctx: Any) -> UOp:
    """Stage 9 as a whole."""
    kinds = {n.arg[1] for n in toposort(root) if n.op is Ops.RANGE}
    if AxisKind.WARP in kinds:
        root = rewrite(root, warp_rules)
    if AxisKind.GROUP_REDUCE in kinds:
        root = maxima_apart(root)
        root = rewrite(root, group_rules, _Numbers(root, ctx.machine.warp))
    if not kinds.isdisjoint(LANE_KINDS):
        # the lanes of a fragment are gathered inside of it: no buffer around it lives in them
        root = rewrite(make_fragments(open_lanes(root)), expand_rules)
    return root
