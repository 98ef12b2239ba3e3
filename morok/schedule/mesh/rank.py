"""The graph of one rank as scheduling takes it, and its results as those of the whole mesh."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from morok.dtype import DType, void
from morok.errors import MeshError
from morok.ir.infer import show_shape
from morok.ir.layout import Mesh, is_mesh, layout_of, summed_bytes
from morok.ir.memory import own_device
from morok.ir.movement import reshape
from morok.ir.node import UOp, make, toposort
from morok.ir.ops import Ops
from morok.ir.provenance import place
from morok.rewrite.observe import observed
from morok.rewrite.observer import By
from morok.schedule.mesh.partition import mesh_in, partition, with_ranks
from morok.schedule.mesh.placement import dimensions
from morok.schedule.split import plain

PARTITIONED = By("stage", "partition", "1.0b")
_Made = tuple[tuple[DType, int, str], ...]


@final
@dataclass(frozen=True, eq=False)
class OfRank:
    """What one rank computes of a normalised graph."""

    mesh: Mesh
    whole: UOp
    sink: UOp
    layouts: tuple[str | None, ...]  # of outputs that are new memory on the mesh
    notes: tuple[str, ...]  # for people: how values lie, and what had to be moved

    def params(self, params: Sequence[UOp]) -> list[UOp]:
        """The caller's memory as a rank sees it."""
        found = []
        for param in params:
            layout = layout_of(own_device(param)) if is_mesh(own_device(param)) else None
            if layout is None:
                found.append(param)
            else:
                arg = (param.arg[0], layout.local_numel, self.mesh.name)
                found.append(make(Ops.PARAM, param.dtype, (), arg, param.origin))
        return found

    def of_the_whole(
        self, results: Sequence[UOp], made: _Made, inputs: int, numbers: Sequence[int]
    ) -> tuple[tuple[UOp, ...], _Made]:
        """Views of memory in its layout, and that memory, for what a rank has of both."""
        views, memory = list(results), list(made)
        for n, (node, name) in enumerate(zip(self.whole.src, self.layouts, strict=True)):
            if name is not None:
                count = math.prod(dimensions(node))
                memory[numbers[n] - inputs] = (node.dtype, count, name)
                param = make(Ops.PARAM, node.dtype, (), (numbers[n], count, name), node.origin)
                views[n] = reshape(param, dimensions(node))
            elif is_mesh(own_device(_bottom(results[n]))):
                views[n] = plain(node)
        return tuple(views), tuple(memory)


def _bottom(view: UOp) -> UOp:
    while view.src and view.op is not Ops.PARAM:
        view = view.src[0]
    return view


def observed_partition(sink: UOp) -> OfRank | None:
    """What one rank computes; None for a graph that is on no mesh."""
    order = toposort(sink)
    mesh = mesh_in(order)
    if mesh is None:
        return None
    for node in sink.src:
        if not all(isinstance(size, int) for size in dimensions(node)):
            raise MeshError(
                f"a tensor of shape {show_shape(dimensions(node))} has a size that is known later, and "
                "results on a mesh have none; unshard() it first",
                place=place(node),
            )
    found = partition(sink.src, mesh)
    local = make(Ops.SINK, void, tuple(found.outputs))
    local = observed(PARTITIONED, sink, lambda: with_ranks(mesh, local))
    return OfRank(mesh, sink, local, tuple(found.layouts), found.notes)


# --- what collectives cost


def devices_of(ast: UOp) -> int:
    """How many devices take part in a collective."""
    return math.prod(int(r.src[0].arg) for r in ast.src[1:])


def bytes_on_the_wire(ast: UOp) -> int:
    """What the busiest device sends: 2(n-1)/n of an ALLREDUCE's bytes, messages once, else (n-1)/n."""
    devices, elements = devices_of(ast), int(ast.src[0].arg[1])
    size = elements * ast.dtype.itemsize
    if ast.op is Ops.ALLREDUCE:
        return summed_bytes(elements, ast.dtype.itemsize, devices)
    if ast.op is Ops.ALLGATHER:
        return (devices - 1) * size
    if ast.op is Ops.SEND_RECEIVE:  # who has nobody behind it sends nothing
        return size if 0 < abs(ast.arg) < devices else 0
    if ast.op is Ops.BROADCAST:
        return size if devices > 1 else 0
    return (devices - 1) * size // devices


def collective_name(ast: UOp, mesh: Mesh) -> str:
    """What a collective is called in plans and profiles: `allreduce_add_data`."""
    axes = [mesh.axes[r.arg[0]] for r in ast.src[1:]]
    how = [] if ast.arg is None else [str(ast.arg) if isinstance(ast.arg, int) else ast.arg.name.lower()]
    return "_".join([ast.op.name.lower().replace("_", ""), *how, *axes])
