"""The graph of a mesh becomes the graph of one rank: `partition`.

Forward, every node gets a placement from those of its sources (`placement.py` has the laws); where sources
disagree, the larger one stays where it is. Then each rank's graph is built from the outputs down, by asking
for values in placements: an op is done to local values, and what lies otherwise is converted, at the
smallest value on the way (a matrix before it is repeated, not after).

What has no memory (constants, positions, random bits) is made wherever it is wanted, only the part that is.
Memory of the plain device is the same for all ranks: a process has its own, virtual devices share it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Any, final

from morok.dtype import void
from morok.dtype.records import record
from morok.errors import MeshError
from morok.ir import movement as move
from morok.ir.build import cast
from morok.ir.checks import guarded
from morok.ir.infer import size_node, size_of
from morok.ir.layout import Mesh, is_mesh, layout_of, mesh_of
from morok.ir.memory import MEMORY, base_of, own_device
from morok.ir.node import UOp, alu, make, toposort
from morok.ir.ops import COLLECTIVES, Ops
from morok.ir.provenance import here, place
from morok.schedule.graph.views import SHARD
from morok.schedule.mesh.convert import (
    collective,
    convert,
    gated,
    neutral,
    own_part,
    rank_of,
    valid,
    variable_of,
)
from morok.schedule.mesh.natural import Naturals
from morok.schedule.mesh.placement import Placement, dimensions, is_uneven, local_sizes, whole
from morok.schedule.mesh.writes import laid_out


@final
@record
class Partition:
    """A graph for one rank, and what its outputs are in the whole."""

    mesh: Mesh
    notes: tuple[str, ...]
    outputs: list[UOp] = field(default_factory=list)  # local ones
    layouts: list[str | None] = field(default_factory=list)  # names of those that are new memory on the mesh


def mesh_in(nodes: Sequence[UOp]) -> Mesh | None:
    """The mesh that a graph is on; None if it is on plain devices only."""
    found: dict[str, Mesh] = {}
    for node in nodes:
        name = own_device(node) if node.op in MEMORY or node.op is Ops.COPY else ""
        if is_mesh(name):
            mesh = mesh_of(name)
            found[mesh.name] = mesh
    if len(found) > 1:
        first, second, *_ = found.values()
        raise MeshError(
            f"operands are on two meshes, {first} and {second}: unshard() and realize() one of them first"
        )
    return next(iter(found.values())) if found else None


def partition(outputs: Sequence[UOp], mesh: Mesh) -> Partition:
    """What one rank computes for some outputs on a mesh."""
    whole_sink = laid_out(make(Ops.SINK, void, tuple(outputs)))
    order = toposort(whole_sink)
    naturals = Naturals(mesh, order)
    made = _Local(mesh, naturals, order)
    result = Partition(mesh, (f"mesh: {mesh}", *naturals.told(order)))
    outer = here.origin
    try:
        for node in whole_sink.src:
            here.origin = node.origin or outer
            local, layout = made.output(node)
            result.outputs.append(local)
            result.layouts.append(layout)
    finally:
        here.origin = outer
    return result


@final
class _Local:
    """Values of one rank, by node and placement."""

    def __init__(self, mesh: Mesh, naturals: Naturals, order: Sequence[UOp]) -> None:
        self.mesh = mesh
        self.naturals = naturals
        self.done: dict[tuple[UOp, Placement], UOp] = {}
        self.plain_done: dict[UOp, UOp] = {}
        self.given_out: set[UOp] = set()
        self.written = {base_of(n.src[0]) for n in order if n.op is Ops.ASSIGN}

    # --- outputs

    def output(self, node: UOp) -> tuple[UOp, str | None]:
        if not self.naturals.is_on_mesh(node):
            return self.plain(node), None
        if _is_state(node):
            return self.get(node, self.naturals[node]), None
        wanted = self.naturals[node].resolved
        sizes = dimensions(node)
        spec = wanted.spec
        name = f"{self.mesh.name}:{'x'.join(map(str, sizes))}:{','.join('+'.join(g) or '-' for g in spec)}"
        value = self.get(node, wanted)
        while value.op is Ops.CONTIGUOUS and value.arg is None:
            value = value.src[0]
        below = value
        while below.op is Ops.RESHAPE:
            below = below.src[0]
        if below.op in COLLECTIVES and below not in self.given_out:
            self.given_out.add(below)  # memory of its own, that nobody else gets
            return value, name
        return make(Ops.CONTIGUOUS, value.dtype, (value,), SHARD + name, node.origin), name

    # --- plain memory

    def plain(self, root: UOp) -> UOp:
        """A node of the plain device, as it is; what it has from the mesh is copied."""
        stack = [root]
        while stack:
            node = stack[-1]
            if node in self.plain_done:
                stack.pop()
                continue
            if node.op is Ops.COPY and self.naturals.is_on_mesh(node.src[0]):
                source = self.get(node.src[0], whole(len(dimensions(node))))
                self.plain_done[node] = node.replace((source, node.src[1]))
                stack.pop()
                continue
            pending = [s for s in node.src if s not in self.plain_done]
            if pending:
                stack += pending
                continue
            stack.pop()
            self.plain_done[node] = node.replace(tuple([self.plain_done[s] for s in node.src]))
        return self.plain_done[root]

    def _from_plain(self, node: UOp) -> UOp | None:
        """Memory of the plain device as every rank has it; None for what is computed from it."""
        if node.op is Ops.PARAM and node not in self.written:
            number, size, device = node.arg
            if device != self.mesh.base:
                raise MeshError(
                    f"a tensor on {device} meets a mesh of {self.mesh.base}; shard it first",
                    place=place(node),
                )
            return make(Ops.PARAM, node.dtype, (), (number, size, self.mesh.name), node.origin)
        if node.op in (Ops.PARAM, Ops.AFTER, Ops.COPY, Ops.SCATTER):
            device = make(Ops.DEVICE, void, (), self.mesh.name)
            return make(Ops.COPY, node.dtype, (self.plain(node), device), None, node.origin)
        return None

    # --- values of a rank

    def get(self, root: UOp, wanted: Placement) -> UOp:
        """A value in a placement. Iterative: graphs are deep."""
        stack = [(root, wanted)]
        while stack:
            key = stack[-1]
            if key in self.done:
                stack.pop()
                continue
            needs = self.needs(*key)
            pending = [need for need in needs if need not in self.done]
            if pending:
                stack += pending
                continue
            stack.pop()
            node, want = key
            outer = here.origin
            here.origin = node.origin or outer
            try:
                self.done[key] = self.make(node, want, [self.done[need] for need in needs])
            finally:
                here.origin = outer
        return self.done[root, wanted]

    def needs(self, node: UOp, wanted: Placement) -> list[tuple[UOp, Placement]]:
        """What a value in a placement is made of: itself in another one, or its sources."""
        if not dimensions(node) and not self.naturals.is_on_mesh(node) and not node.src:
            return []
        natural = self.naturals[node]
        if wanted != natural and not self.naturals.can_be(node, wanted):
            return [(node, natural)]
        return self.naturals.sources(node, wanted)

    def make(self, node: UOp, wanted: Placement, parts: list[UOp]) -> UOp:
        natural = self.naturals[node]
        if wanted != natural and not self.naturals.can_be(node, wanted):
            return convert(self.mesh, parts[0], dimensions(node), natural, wanted)
        leaf = self._leaf(node, wanted)
        if leaf is not None:
            return leaf
        return self._op(node, wanted, parts)

    def _leaf(self, node: UOp, wanted: Placement) -> UOp | None:
        op = node.op
        if op in (Ops.CONST, Ops.DEFINE_VAR, Ops.DEVICE):
            return node
        if op is Ops.IOTA:
            return self._iota(node, wanted)
        memory = self.naturals.memory(node)
        if memory is not None:
            layout = layout_of(own_device(memory))
            assert layout is not None
            number = memory.arg[0]
            param = make(
                Ops.PARAM, memory.dtype, (), (number, layout.local_numel, self.mesh.name), memory.origin
            )
            return move.reshape(param, layout.local_shape)
        if self.naturals.is_plain(node):
            found = self._from_plain(node)
            if found is not None:
                for axis, group in enumerate(wanted.spec):
                    found = own_part(self.mesh, found, axis, group) if group else found
                return found
        return None

    def _iota(self, node: UOp, wanted: Placement) -> UOp:
        sizes = local_sizes(self.mesh, dimensions(node), wanted.spec)
        local = move.iota(sizes, node.arg, node.dtype)
        group = wanted.spec[node.arg]
        if not group:
            return local
        start = cast(rank_of(self.mesh, group) * sizes[node.arg], node.dtype)
        return alu(Ops.ADD, local, start)

    def _op(self, node: UOp, wanted: Placement, parts: list[UOp]) -> UOp:
        """The op on local values."""
        op = node.op
        sizes = local_sizes(self.mesh, dimensions(node), wanted.spec)
        if op in (Ops.RESHAPE, Ops.EXPAND):
            return (
                make(op, node.dtype, (parts[0], *map(size_node, sizes)), None, node.origin)
                if (dimensions(parts[0]) != sizes)
                else parts[0]
            )
        if wanted == self.naturals[node] and node in self.naturals.shifts:
            group, places = self.naturals.shifts[node]
            return collective(Ops.SEND_RECEIVE, self.mesh, parts[0], group, places)
        if wanted == self.naturals[node] and node in self.naturals.owners:
            return self._sent_box(node, wanted, parts[0])
        if op is Ops.SHRINK or op is Ops.PAD:
            return self._box(node, wanted, parts[0])
        if op is Ops.REDUCE_AXIS:
            return self._reduce(node, parts[0])
        if op is Ops.COPY:
            return parts[0]
        if op is Ops.CHECK:
            return self._check(node, wanted, tuple(parts))
        if op is Ops.SCATTER:
            return self._scatter(node, wanted, parts)
        if op.is_alu and wanted.axes and op is Ops.CAST:
            return cast(parts[0], node.dtype)
        return make(op, node.dtype, tuple(parts), node.arg, node.origin)

    def _box(self, node: UOp, wanted: Placement, x: UOp) -> UOp:
        """SHRINK and PAD: axes that are cut stay as they are."""
        ends = [size_of(s) for s in node.src[1:]]
        own = dimensions(x)
        pairs: list[tuple[Any, Any]] = []
        for axis, pair in enumerate(zip(ends[::2], ends[1::2], strict=True)):
            kept = (0, own[axis]) if node.op is Ops.SHRINK else (0, 0)
            pairs.append(kept if wanted.spec[axis] else pair)
        return move.shrink(x, pairs) if node.op is Ops.SHRINK else move.pad(x, pairs)

    def _sent_box(self, node: UOp, wanted: Placement, x: UOp) -> UOp:
        """A SHRINK to what one device has: all take that box of their own parts, and get that device's."""
        ends = [size_of(s) for s in node.src[1:]]
        own, owners = dimensions(x), self.naturals.owners[node]
        pairs: list[tuple[Any, Any]] = []
        for axis, (low, high) in enumerate(zip(ends[::2], ends[1::2], strict=True)):
            if axis in owners:
                start = owners[axis][1] * own[axis]
                pairs.append((low - start, high - start))
            else:
                pairs.append((0, own[axis]) if wanted.spec[axis] else (low, high))
        x = move.shrink(x, pairs)
        for group, owner in owners.values():
            x = collective(Ops.BROADCAST, self.mesh, x, group, owner)
        return x

    def _reduce(self, node: UOp, x: UOp) -> UOp:
        op, axes = node.arg
        source = self.naturals.sources(node, self.naturals[node])[0][1]
        x = gated(self.mesh, x, dimensions(node.src[0]), source, axes, neutral(op, x.dtype))
        return move.reduce_axis(x, op, axes)

    def _check(self, node: UOp, wanted: Placement, parts: tuple[UOp, ...]) -> UOp:
        """Positions beyond the end of an uneven cut are nobody's fault."""
        local = make(node.op, node.dtype, parts, node.arg, node.origin)
        sizes, own = dimensions(node), dimensions(local)
        for axis, group in enumerate(wanted.spec):
            if is_uneven(self.mesh, sizes[axis], group):
                inside = valid(self.mesh, own, axis, sizes[axis], group)
                local = guarded(local, inside)
        return local

    def _scatter(self, node: UOp, wanted: Placement, parts: list[UOp]) -> UOp:
        x, places, rows = parts
        if wanted.axes:  # each rank puts its own rows: beyond the end of an uneven cut there are none
            cuts = self.naturals.sources(node, wanted)[2][1]
            axes = range(len(dimensions(node.src[1])))
            rows = gated(self.mesh, rows, dimensions(node.src[2]), cuts, axes, 0)
            cuts = self.naturals.sources(node, wanted)[1][1]
            places = gated(self.mesh, places, dimensions(node.src[1]), cuts, axes, 0)
            places = make(Ops.CONTIGUOUS, places.dtype, (places,))
        return make(Ops.SCATTER, node.dtype, (x, places, rows), node.arg, node.origin)


def _is_state(node: UOp) -> bool:
    """Whether an output shows memory that assignments have written."""
    while node.op.is_movement and node.op is not Ops.PAD:
        node = node.src[0]
    return node.op in (Ops.AFTER, Ops.PARAM, Ops.BUFFER)


def with_ranks(mesh: Mesh, sink: UOp) -> UOp:
    """DEVICE ranges of values as variables; those of collectives stay: they say which devices take part."""
    done: dict[UOp, UOp] = {}
    for node in toposort(sink):
        if node.op is Ops.RANGE:
            done[node] = variable_of(mesh, node)
        elif node.op in COLLECTIVES:
            done[node] = node.replace((done[node.src[0]], *node.src[1:]))
        else:
            done[node] = node.replace(tuple([done[s] for s in node.src]))
    return done[sink]
