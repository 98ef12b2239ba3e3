"""From one placement to another: the collectives, with the movements around them that put elements in order.

    joined     ALLREDUCE(x): every device gets what the op makes of all x
    joined and cut     REDUCE_SCATTER(rows): of that, each its row
    cut → whole        ALLGATHER(x): all x along a new first axis
    cut along another axis     ALL_TO_ALL(rows): row i goes to device i
    whole → cut        each takes its part; nothing is sent
    moved by whole parts      SEND_RECEIVE(x): each has its neighbour's
    a box of one part         BROADCAST(x): its owner's, for all

All of them work on whole rows along axis 0, as MPI's and NCCL's do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from morok.dtype import DType, bool_, float64, identity, int32, int64
from morok.dtype import index as index_dtype
from morok.ir import movement as move
from morok.ir.build import bitcast, cast, rng
from morok.ir.layout import Group, Mesh, chunk
from morok.ir.node import UOp, alu, const, make
from morok.ir.ops import AxisKind, Op, Ops
from morok.schedule.mesh.placement import Placement, dimensions, is_uneven

_SENT = "it goes to other devices"


# --- ranks


def rank_range(mesh: Mesh, axis: str) -> UOp:
    """The loop over the devices of one axis of a mesh: inside of it its index is the rank along the axis."""
    number = mesh.axes.index(axis)
    return rng(mesh.sizes[number], number, AxisKind.DEVICE)


def rank_of(mesh: Mesh, group: Group) -> UOp:
    """The number of a device among those of some axes."""
    found: UOp | None = None
    for axis in group:
        own = rank_range(mesh, axis)
        found = own if found is None else found * mesh.size((axis,)) + own
    assert found is not None
    return found


def variable_of(mesh: Mesh, node: UOp) -> UOp:
    """What stands for a DEVICE range in kernels: a variable, which is bound to the rank when they run."""
    number = node.arg[0]
    return make(Ops.DEFINE_VAR, index_dtype, (), (f"rank_{mesh.axes[number]}", 0, mesh.sizes[number] - 1))


# --- parts of an axis


def in_rows(x: UOp, axis: int, devices: int) -> UOp:
    """An axis cut into a row for each device: (…, n, …) → (…, devices, chunk, …), with zeros at its end."""
    sizes = dimensions(x)
    each = chunk(sizes[axis], devices)
    rest = devices * each - sizes[axis]
    if rest:
        x = move.pad(x, [(0, rest if n == axis else 0) for n in range(len(sizes))])
    return move.reshape(x, (*sizes[:axis], devices, each, *sizes[axis + 1 :]))


def own_part(mesh: Mesh, x: UOp, axis: int, group: Group) -> UOp:
    """What a device takes of an axis that it has all of."""
    rows, rank = in_rows(x, axis, mesh.size(group)), rank_of(mesh, group)
    sizes = dimensions(rows)
    box: list[tuple[Any, Any]] = [(0, size) for size in sizes]
    box[axis] = (rank, rank + 1)
    return move.reshape(move.shrink(rows, box), (*sizes[:axis], *sizes[axis + 1 :]))


def first(x: UOp, axis: int) -> UOp:
    """An axis moved to the front."""
    count = len(dimensions(x))
    return move.permute(x, [axis, *(n for n in range(count) if n != axis)])


def joined(x: UOp, axis: int, size: Any) -> UOp:
    """Rows along axis 0 one after the other along another axis, of which the first so many elements count."""
    count = len(dimensions(x))
    back = move.permute(x, [*range(1, axis + 1), 0, *range(axis + 1, count)])
    sizes = dimensions(back)
    flat = move.reshape(back, (*sizes[:axis], sizes[axis] * sizes[axis + 1], *sizes[axis + 2 :]))
    own = dimensions(flat)
    return move.shrink(flat, [(0, size if n == axis else s) for n, s in enumerate(own)])


def valid(mesh: Mesh, sizes: Sequence[Any], axis: int, size: int, group: Group) -> UOp:
    """Where a local value of these sizes holds elements: at the end of an uneven cut there are none."""
    slim = tuple(n if i == axis else 1 for i, n in enumerate(sizes))
    start = cast(rank_of(mesh, group) * sizes[axis], int64)
    place = alu(Ops.ADD, move.iota(slim, axis, int64), start)
    inside = alu(Ops.CMPLT, place, const(int64, size))
    return move.expand(inside, sizes)


def gated(mesh: Mesh, x: UOp, sizes: Sequence[Any], place: Placement, axes: Sequence[int], value: Any) -> UOp:
    """A local value with something harmless where uneven cuts of some axes leave no elements."""
    own = dimensions(x)
    for axis in axes:
        if is_uneven(mesh, sizes[axis], place.spec[axis]):
            inside = valid(mesh, own, axis, sizes[axis], place.spec[axis])
            x = alu(Ops.WHERE, inside, x, const(x.dtype, value))
    return x


# --- collectives


def _stored(x: UOp) -> UOp:
    """A value as memory of its own: what is sent is whole and in order."""
    below = x
    while below.op is Ops.RESHAPE:
        below = below.src[0]
    if below.op is Ops.PARAM or below.op is Ops.CONTIGUOUS:
        return x
    return make(Ops.CONTIGUOUS, x.dtype, (x,), _SENT, x.origin)


def collective(op: Op, mesh: Mesh, x: UOp, group: Group, arg: Any = None) -> UOp:
    """A collective of values as they lie in memory."""
    ranges = tuple(rank_range(mesh, axis) for axis in group)
    return make(op, x.dtype, (_stored(x), *ranges), arg, x.origin)


def joined_over(op: Op, mesh: Mesh, x: UOp, group: Group, how: Op) -> UOp:
    """ALLREDUCE or REDUCE_SCATTER by an op, in a type and by an op that every engine has.

    Extremes of floats go as integers in the same order, NaN above all: engines disagree about NaN. Narrow
    types go as wider ones, whose sums, cut back, are the same; and bits one by one are extremes.
    """
    dtype = x.dtype
    if how in (Ops.AND, Ops.OR, Ops.XOR) and not dtype.is_bool:
        return _bitwise(op, mesh, x, group, how)
    if dtype.is_bool:
        how = {Ops.AND: Ops.MIN, Ops.MUL: Ops.MIN, Ops.OR: Ops.MAX, Ops.ADD: Ops.MAX}.get(how, how)
        if how is Ops.XOR:
            count = collective(op, mesh, cast(x, int32), group, Ops.ADD)
            return cast(alu(Ops.AND, count, const(int32, 1)), bool_)
        return cast(collective(op, mesh, cast(x, int32), group, how), bool_)
    if how in (Ops.MAX, Ops.MIN) and dtype.is_float:
        key = ordered_bits(x, how)
        return from_ordered_bits(collective(op, mesh, key, group, how), dtype, how)
    wide = _on_the_wire(dtype)
    if wide is dtype:
        return collective(op, mesh, x, group, how)
    return cast(collective(op, mesh, cast(x, wide), group, how), dtype)


def _on_the_wire(dtype: DType) -> DType:
    if dtype.is_float:
        from morok.dtype import float32

        return dtype if dtype.bits >= 32 else float32
    return dtype if dtype.bits >= 32 else int32


def _bitwise(op: Op, mesh: Mesh, x: UOp, group: Group, how: Op) -> UOp:
    """Bits of integers: all devices' values side by side, joined by each device for itself."""
    rows = x
    if op is Ops.REDUCE_SCATTER:
        rows = collective(Ops.ALL_TO_ALL, mesh, x, group)
    else:
        rows = collective(Ops.ALLGATHER, mesh, x, group)
    sizes = dimensions(rows)
    return move.reshape(move.reduce_axis(rows, how, (0,)), sizes[1:])


def ordered_bits(x: UOp, how: Op) -> UOp:
    """Floats as integers in the same order; NaN is the last one to be chosen over."""
    wide = x if x.dtype.bits >= 32 else cast(x, _on_the_wire(x.dtype))
    kind = int64 if wide.dtype is float64 else int32
    bits = bitcast(wide, kind)
    # negative floats are ordered backwards: turn all of their bits but the sign
    key = alu(
        Ops.WHERE, alu(Ops.CMPLT, bits, const(kind, 0)), alu(Ops.XOR, bits, const(kind, kind.max)), bits
    )
    top = kind.max if how is Ops.MAX else kind.min
    return alu(Ops.WHERE, alu(Ops.CMPNE, wide, wide), const(kind, top), key)


def from_ordered_bits(key: UOp, dtype: DType, how: Op) -> UOp:
    """The float that an integer of `ordered_bits` stands for."""
    kind = key.dtype
    wide = float64 if kind is int64 else _on_the_wire(dtype)
    bits = alu(Ops.WHERE, alu(Ops.CMPLT, key, const(kind, 0)), alu(Ops.XOR, key, const(kind, kind.max)), key)
    top = kind.max if how is Ops.MAX else kind.min
    value = bitcast(bits, wide)
    nan = const(wide, float("nan"))
    return cast(alu(Ops.WHERE, alu(Ops.CMPEQ, key, const(kind, top)), nan, value), dtype)


def convert(mesh: Mesh, x: UOp, sizes: tuple[Any, ...], now: Placement, wanted: Placement) -> UOp:
    """A local value in another placement; `sizes` are those of the whole."""
    assert not wanted.axes
    x, now = _join(mesh, x, sizes, now, wanted)
    for axis, group in enumerate(now.spec):
        if not group or group == wanted.spec[axis]:
            continue
        target = _moves_to(mesh, now, wanted, axis)
        if target is None:
            rows = collective(Ops.ALLGATHER, mesh, x, group)
            x, now = joined(rows, axis, sizes[axis]), now.cut(axis, ())
        else:
            rows = first(in_rows(x, target, mesh.size(group)), target)
            sent = collective(Ops.ALL_TO_ALL, mesh, rows, group)
            x, now = joined(sent, axis, sizes[axis]), now.cut(axis, ()).cut(target, group)
    for axis, group in enumerate(wanted.spec):
        if group != now.spec[axis]:
            x, now = own_part(mesh, x, axis, group), now.cut(axis, group)
    return x


def _moves_to(mesh: Mesh, now: Placement, wanted: Placement, axis: int) -> int | None:
    """The axis that is to be cut along what cuts this one now."""
    if wanted.spec[axis]:
        return None
    group = now.spec[axis]
    found = [n for n, g in enumerate(wanted.spec) if g == group and not now.spec[n]]
    return found[0] if found else None


def _join(
    mesh: Mesh, x: UOp, sizes: tuple[Any, ...], now: Placement, wanted: Placement
) -> tuple[UOp, Placement]:
    """What is partial is joined, straight into cuts where some are wanted."""
    if not now.axes:
        return x, now
    assert now.op is not None
    left = list(now.axes)
    spec = Placement(now.spec)
    for axis, group in enumerate(wanted.spec):
        if group and not spec.spec[axis] and all(a in left for a in group):
            rows = first(in_rows(x, axis, mesh.size(group)), axis)
            x = joined_over(Ops.REDUCE_SCATTER, mesh, rows, group, now.op)
            spec = spec.cut(axis, group)
            left = [a for a in left if a not in group]
    if left:
        x = joined_over(Ops.ALLREDUCE, mesh, x, tuple(left), now.op)
    return x, spec


def neutral(op: Op, dtype: DType) -> Any:
    return identity(op.name, dtype)
