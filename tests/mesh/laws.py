"""The laws of sharding: what ranks compute on their shards is the shard of what one device computes.

Each law is tried on the graphs that the compiler itself makes (`partition`), for small shapes, every way to
cut them, two and three devices, uneven cuts included. Elements are unknowns: an op on them is a term, and a
sum is the multiset of its summands, so two results are equal only if they are so for all values. Positions,
gates and ranks are numbers. What lies behind the end of an uneven cut is an unknown of its own, which must
not show. Extremes are proved of integers: those of floats travel as such, see `prove_ordered_bits`.
"""

from __future__ import annotations

import itertools
import operator
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from morok.dtype import DType, float16, float32, identity, int64, void
from morok.ir import movement as move
from morok.ir.arithmetic.alu import evaluate_array
from morok.ir.arithmetic.arrays import storage
from morok.ir.infer import shape, size_of
from morok.ir.layout import Group, Layout, Mesh, Spec
from morok.ir.node import UOp, alu, const, make, toposort
from morok.ir.ops import COLLECTIVES, Ops
from morok.proof.verdicts import PROVED, REFUTED, Verdict
from morok.schedule.mesh.partition import partition

_NUMBERS = (int, float, bool, np.generic)


@final
@dataclass(frozen=True)
class ShardingLaw:
    """An op, as a function of sources of some shapes."""

    name: str
    shapes: tuple[tuple[int, ...], ...]
    build: Callable[..., UOp]
    dtype: DType = float32


def _reduced(op: Any, *axes: int) -> Callable[[UOp], UOp]:
    return lambda x: move.reduce_axis(x, op, axes)


def _scattered(x: UOp, rows: UOp) -> UOp:
    zeros = move.expand(move.reshape(const(float32, 0.0), (1, 1)), (4, 3))
    places = move.iota((5,), 0, int64)
    at = make(Ops.CONTIGUOUS, int64, (alu(Ops.FLOORDIV, places, const(int64, 2)),))
    return make(Ops.SCATTER, float32, (zeros, at, rows), Ops.ADD)


def _add(x: UOp, y: UOp) -> UOp:
    return alu(Ops.ADD, x, y)


def _shift(x: UOp, by: int) -> UOp:
    """The rows of x so many further on, with zeros where none come from."""
    rows, columns = _sizes(x)
    low, high = max(by, 0), max(-by, 0)
    return move.pad(move.shrink(x, ((high, rows - low), (0, columns))), ((low, high), (0, 0)))


def laws() -> tuple[ShardingLaw, ...]:
    """All laws, each on shapes that divide and shapes that do not."""
    return (
        ShardingLaw("unary", ((4, 3),), lambda x: alu(Ops.EXP, x)),
        ShardingLaw("binary", ((4, 3), (4, 3)), _add),
        ShardingLaw("uneven binary", ((5, 2), (5, 2)), lambda x, y: alu(Ops.MUL, x, y)),
        ShardingLaw("repeat", ((4, 1), (4, 3)), lambda x, y: _add(move.expand(x, (4, 3)), y)),
        ShardingLaw("permute", ((4, 3, 2),), lambda x: move.permute(x, (2, 0, 1))),
        ShardingLaw("split an axis", ((6, 2),), lambda x: move.reshape(x, (2, 3, 2))),
        ShardingLaw("join axes", ((4, 3),), lambda x: move.reshape(x, (12,))),
        ShardingLaw("join uneven axes", ((5, 3),), lambda x: move.reshape(x, (15,))),
        ShardingLaw("pad", ((4, 3),), lambda x: move.pad(x, ((1, 0), (0, 2)))),
        ShardingLaw("shrink", ((5, 4),), lambda x: move.shrink(x, ((1, 4), (0, 4)))),
        ShardingLaw("shrink to one part", ((5,),), lambda x: move.shrink(x, ((3, 4),))),
        ShardingLaw("shrink to a row", ((6, 5),), lambda x: move.shrink(x, ((4, 5), (0, 5)))),
        ShardingLaw("shift", ((6, 2),), lambda x: _shift(x, 3)),
        ShardingLaw("shift back by two", ((6, 3),), lambda x: _shift(x, -4)),
        ShardingLaw("shift by a part of a part", ((6, 2),), lambda x: _shift(x, 1)),
        ShardingLaw("flip", ((4, 3),), lambda x: move.flip(x, (True, False))),
        *(
            ShardingLaw(
                f"reduce {op.name.lower()} {sizes}",
                (sizes,),
                _reduced(op, 0),
                int64 if op in (Ops.MAX, Ops.MIN) else float32,
            )
            for op in (Ops.ADD, Ops.MUL, Ops.MAX, Ops.MIN)
            for sizes in ((4, 3), (5, 2))
        ),
        ShardingLaw("reduce all", ((5, 4),), _reduced(Ops.ADD, 0, 1)),
        ShardingLaw("scaled sum", ((4, 3),), lambda x: alu(Ops.NEG, move.reduce_axis(x, Ops.ADD, (0,)))),
        ShardingLaw("scan", ((4, 3),), lambda x: move.scan_axis(x, Ops.ADD, 0)),
        ShardingLaw("rows", ((4, 3), (5, 3)), _scattered),
        ShardingLaw("positions", ((5, 4),), lambda x: _add(x, _counted())),
    )


def _counted() -> UOp:
    from morok.ir.build import cast

    return cast(move.expand(move.iota((5, 1), 0, int64), (5, 4)), float32)


def placements(mesh: Mesh, sizes: tuple[int, ...]) -> Iterator[Spec]:
    """Every way to cut a tensor along the one axis of a mesh, and not to cut it."""
    none: list[Group] = [()] * len(sizes)
    yield tuple(none)
    for axis, size in enumerate(sizes):
        if size > 1:
            yield tuple((mesh.axes[0],) if n == axis else () for n in range(len(sizes)))


def prove_law(law: ShardingLaw) -> Verdict:
    """Tries all cuts of all sources, and of the result, on two and three devices."""
    for devices in (2, 3):
        mesh = Mesh((devices,), ("data",), "CPU")
        for specs in itertools.product(*(placements(mesh, sizes) for sizes in law.shapes)):
            wrong = _refuted(law, mesh, specs)
            if wrong is not None:
                return Verdict(REFUTED, wrong)
    return Verdict(PROVED)


def _refuted(law: ShardingLaw, mesh: Mesh, specs: tuple[Spec, ...]) -> str | None:
    sources, values = [], {}
    for number, (sizes, spec) in enumerate(zip(law.shapes, specs, strict=True)):
        layout = Layout(mesh, sizes, spec)
        param = make(Ops.PARAM, law.dtype, (), (number, layout.numel, layout.name))
        sources.append(move.reshape(param, sizes))
        values[number] = (_unknowns(f"x{number}", sizes), layout)
    node = law.build(*sources)
    whole = _Terms(mesh, {n: [v] for n, (v, _) in values.items()}, ranks=1)[node][0]
    for wanted in placements(mesh, _sizes(node)):
        layout = Layout(mesh, _sizes(node), wanted)
        device = make(Ops.DEVICE, void, (), layout.name)
        asked = make(Ops.COPY, node.dtype, (node, device))
        local = partition([asked], mesh).outputs[0]
        shards = {n: [_shard(v, own, r) for r in range(mesh.count)] for n, (v, own) in values.items()}
        found = _Terms(mesh, shards, ranks=mesh.count)[local]
        for rank in range(mesh.count):
            box = layout.box(rank)
            mine = found[rank].reshape(layout.local_shape)
            mine = mine[tuple(slice(0, b.stop - b.start) for b in box)]
            if not _same(mine, whole[box]):
                return f"{specs} to {wanted} on {mesh.count} devices: rank {rank} has {mine.tolist()}"
    return None


def _sizes(node: UOp) -> tuple[int, ...]:
    found = shape(node)
    assert found is not None
    return tuple(size_of(n) if isinstance(n, UOp) else n for n in found)  # type: ignore[misc]


def _unknowns(name: str, sizes: tuple[int, ...]) -> Any:
    found = np.empty(sizes, object)
    for place in np.ndindex(*sizes):
        found[place] = (name, *place)
    return found


def _shard(value: Any, layout: Layout, rank: int) -> Any:
    """What a rank has, and unknowns of its own behind the end."""
    room = _unknowns(f"behind rank {rank}", layout.local_shape)
    mine = value[layout.box(rank)]
    room[tuple(slice(0, n) for n in mine.shape)] = mine
    return room.reshape(-1)


def _same(x: Any, y: Any) -> bool:
    if x.shape != y.shape:
        return False
    return all(_plain(a) == _plain(b) for a, b in zip(x.reshape(-1), y.reshape(-1), strict=True))


def _plain(term: Any) -> Any:
    return float(term) if isinstance(term, _NUMBERS) else term


def _apply(op: Any, *terms: Any) -> Any:
    if op is Ops.WHERE and isinstance(terms[0], _NUMBERS):
        return terms[1] if terms[0] else terms[2]
    if op in (Ops.CAST, Ops.BITCAST):
        return terms[0]
    if all(isinstance(t, _NUMBERS) for t in terms):
        a = [float(t) for t in terms]
        numbers: dict[Any, Any] = {
            Ops.ADD: operator.add, Ops.MUL: operator.mul, Ops.SUB: operator.sub, Ops.CMPLT: operator.lt,
            Ops.FLOORDIV: operator.floordiv, Ops.NEG: operator.neg, Ops.AND: _both,
        }  # fmt: skip
        if op in numbers:
            return numbers[op](*a)
    if op is Ops.NEG and isinstance(terms[0], tuple) and terms[0][0] == "ADD of":
        return _sum(Ops.ADD, [("NEG", t) for t in _summands(Ops.ADD, terms[0])])
    return (op.name, *map(_plain, terms))


def _both(a: float, b: float) -> bool:
    return bool(a) and bool(b)


def _summands(op: Any, term: Any) -> list[Any]:
    if isinstance(term, tuple) and term and term[0] == f"{op.name} of":
        return [t for t, count in term[1] for _ in range(count)]
    neutral = {float(identity(op.name, dtype)) for dtype in (float32, int64)}
    if isinstance(term, _NUMBERS) and float(term) in neutral:
        return []
    return [_plain(term)]


def _sum(op: Any, terms: Any) -> Any:
    """What a reduction makes of terms: the multiset of its summands."""
    found = Counter(t for term in terms for t in _summands(op, term))
    if not found:
        return float(identity(op.name, float32))
    if len(found) == 1 and sum(found.values()) == 1:
        return next(iter(found))
    return (f"{op.name} of", frozenset(found.items()))


def prove_ordered_bits() -> Verdict:
    """Extremes of floats by way of integers are those of floats, NaN above all: every pair of float16.

    The larger types have the same form, a sign and bits in order, so the argument is the same.
    """
    from morok.ir.build import cast
    from morok.schedule.mesh.convert import from_ordered_bits, ordered_bits

    values = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    for how in (Ops.MAX, Ops.MIN):
        x = make(Ops.PARAM, float16, (), (0, 1 << 16, "CPU"))
        key = _numbers(ordered_bits(x, how), x, values)
        kind = ordered_bits(x, how)
        back = make(Ops.PARAM, kind.dtype, (), (1, 1 << 16, "CPU"))
        again = _numbers(cast(from_ordered_bits(back, float16, how), float16), back, key)
        nan = np.isnan(values)
        if not (np.isnan(again) == nan).all() or (again[~nan] != values[~nan]).any():
            return Verdict(REFUTED, f"{how.name}: a float does not come back from its integer")
        # the order of floats is that of the integers: it is enough to compare neighbours in order
        order = np.argsort(key, kind="stable")
        inner = values[order][~nan[order]].astype(np.float64)
        if (inner[1:] < inner[:-1]).any():
            return Verdict(REFUTED, f"{how.name}: floats and their integers are ordered differently")
        last = key[nan]
        if not ((last > key[~nan].max()).all() if how is Ops.MAX else (last < key[~nan].min()).all()):
            return Verdict(REFUTED, f"{how.name}: NaN is not chosen over everything")
    return Verdict(PROVED)


def _numbers(root: UOp, memory: UOp, values: Any) -> Any:
    """A graph over one memory, in NumPy."""
    done: dict[UOp, Any] = {memory: values}
    for node in toposort(root):
        if node in done:
            continue
        if node.op is Ops.CONST:
            done[node] = np.asarray(node.arg).astype(storage(node.dtype))
        elif node.op is Ops.CAST:
            with np.errstate(all="ignore"):
                done[node] = done[node.src[0]].astype(storage(node.dtype))
        elif node.op is Ops.BITCAST:
            done[node] = done[node.src[0]].view(storage(node.dtype))
        else:
            with np.errstate(all="ignore"):
                done[node] = evaluate_array(node.op, node.src[-1].dtype, *[done[s] for s in node.src])
    return done[root]


@final
class _Terms:
    """Graphs on unknowns, for all ranks at once."""

    def __init__(self, mesh: Mesh, memory: dict[int, list[Any]], ranks: int) -> None:
        self.mesh, self.memory, self.ranks = mesh, memory, ranks
        self.done: dict[UOp, list[Any]] = {}

    def __getitem__(self, root: UOp) -> list[Any]:
        for node in toposort(root):
            if node.op in (Ops.DEVICE, Ops.UNIQUE):
                continue
            self.done[node] = self._meeting(node) if node.op in COLLECTIVES else self._local(node)
        return self.done[root]

    def _local(self, node: UOp) -> list[Any]:
        return [self._value(node, rank) for rank in range(self.ranks)]

    def _value(self, n: UOp, rank: int) -> Any:
        parts = [self.done[s][rank] for s in n.src if s in self.done]
        if n.op is Ops.PARAM:
            return np.asarray(self.memory[n.arg[0]][rank], object).reshape(-1)
        if n.op is Ops.CONST:
            return np.array(n.arg, object)
        if n.op is Ops.RANGE:
            return np.array(rank if self.ranks > 1 else 0, object)
        if n.op is Ops.IOTA:
            sizes = [_number(p) for p in parts]
            index = np.arange(sizes[n.arg]).reshape([-1 if i == n.arg else 1 for i in range(len(sizes))])
            return np.broadcast_to(index, sizes).astype(object)
        if n.op.is_movement:
            return _moved(n, parts[0], [_number(p) for p in parts[1:]])
        if n.op is Ops.REDUCE_AXIS:
            op, axes = n.arg
            return _along(parts[0], axes, lambda terms: _sum(op, terms))
        if n.op is Ops.SCAN_AXIS:
            op, axis = n.arg
            rows = [np.take(parts[0], range(i + 1), axis) for i in range(parts[0].shape[axis])]
            return np.concatenate([_along(r, (axis,), lambda t: _sum(op, t)) for r in rows], axis)
        if n.op is Ops.SCATTER:
            result = parts[0].copy()
            for place, row in zip(parts[1], parts[2], strict=True):
                at = int(place)
                result[at] = [_sum(n.arg, pair) for pair in zip(result[at], row, strict=True)]
            return result
        if n.op.is_alu:
            apply = np.frompyfunc(lambda *terms: _apply(n.op, *terms), len(parts), 1)
            return np.asarray(apply(*parts), object)
        return parts[0]

    def _meeting(self, n: UOp) -> list[Any]:
        given = self.done[n.src[0]]
        if n.op is Ops.ALLGATHER:
            rows = np.stack(given)
            return [rows] * self.ranks
        if n.op is Ops.ALL_TO_ALL:
            return [np.stack([rows[rank] for rows in given]) for rank in range(self.ranks)]
        if n.op is Ops.BROADCAST:
            return [given[n.arg]] * self.ranks
        if n.op is Ops.SEND_RECEIVE:
            zeros = np.zeros_like(given[0])
            places = [rank - n.arg for rank in range(self.ranks)]
            return [given[p] if 0 <= p < self.ranks else zeros for p in places]
        join = np.frompyfunc(lambda *terms: _sum(n.arg, terms), len(given), 1)
        total = np.asarray(join(*given), object)
        return [total if n.op is Ops.ALLREDUCE else total[rank] for rank in range(self.ranks)]


def _number(part: Any) -> int:
    return int(np.asarray(part).reshape(-1)[0])


def _along(x: Any, axes: tuple[int, ...], join: Callable[[Any], Any]) -> Any:
    sizes = [1 if n in axes else size for n, size in enumerate(x.shape)]
    found = np.empty(sizes, object)
    for place in np.ndindex(*sizes):
        box = tuple(slice(None) if n in axes else slice(i, i + 1) for n, i in enumerate(place))
        found[place] = join(x[box].reshape(-1))
    return found


def _moved(n: UOp, x: Any, sizes: list[int]) -> Any:
    pairs = list(zip(sizes[::2], sizes[1::2], strict=False))
    match n.op:
        case Ops.RESHAPE:
            return x.reshape(sizes)
        case Ops.EXPAND:
            return np.broadcast_to(x, sizes)
        case Ops.PERMUTE:
            return x.transpose(n.arg)
        case Ops.SHRINK:
            return x[tuple(slice(start, stop) for start, stop in pairs)]
        case Ops.PAD:
            return np.pad(x, pairs, constant_values=0) if pairs else x
    return x[tuple(slice(None, None, -1 if reverse else None) for reverse in n.arg)]
