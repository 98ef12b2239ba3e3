"""Tensors on a mesh of devices: `morok.mesh`, `morok.P`, `shard`, `unshard`, `placement`.

A tensor on a mesh is a tensor like any other: it has its whole shape, and everything that is done to it is
done to the whole. Where its parts lie is a matter of its memory, and what ranks send each other follows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar, final

from morok import knobs
from morok.dtype import void
from morok.errors import MeshError
from morok.ir.infer import show_shape
from morok.ir.layout import Layout, Mesh, checked_spec, is_mesh, layout_of, mesh_of
from morok.ir.memory import base_of, own_device
from morok.ir.node import UOp, make, toposort
from morok.ir.ops import Ops
from morok.schedule.mesh.natural import Naturals
from morok.schedule.mesh.partition import mesh_in
from morok.schedule.mesh.writes import laid_out
from morok.schedule.normalise import normalise
from morok.tensor.core import Core
from morok.tensor.memory.states import is_memory, resolve
from morok.tensor.memory.storage import graph_device, mesh_device

C = TypeVar("C", bound=Core)


@final
class P(tuple[Any, ...]):
    """For each axis of a tensor the axis of a mesh that it is cut along, None, or several.

    >>> morok.P("data", None)
    P('data', None)
    """

    __slots__ = ()

    def __new__(cls, *axes: str | tuple[str, ...] | None) -> P:
        return super().__new__(cls, axes)

    def __repr__(self) -> str:
        return f"P({', '.join(map(repr, self))})"


def mesh(
    sizes: int | Sequence[int], axes: str | Sequence[str] = ("data",), device: str | None = None
) -> Mesh:
    """Devices in a grid with named axes: processes that were started together, or virtual ones.

    >>> morok.mesh((2, 2), ("data", "model")).count
    4
    """
    found: tuple[Any, ...] = tuple(sizes) if isinstance(sizes, tuple | list) else (sizes,)
    names: tuple[Any, ...] = (axes,) if isinstance(axes, str) else tuple(axes)
    if len(found) != len(names) or len(set(names)) != len(names):
        raise MeshError(f"a mesh of sizes {found} needs a name of its own for each axis, not {names}")
    for name, size in zip(names, found, strict=True):
        if not isinstance(size, int) or not isinstance(name, str) or not name.isidentifier() or size < 1:
            raise MeshError(
                f"an axis of a mesh is a name and how many devices it has, not {name!r}: {size!r}"
            )
    planned = knobs.planned_mesh()
    if planned and len(planned) != len(found):
        raise MeshError(f"the script's mesh has axes {names}, and it is planned for {knobs.PLAN_MESH.value}")
    found = planned or found
    base = knobs.default_device() if device is None else knobs.canonical_device(device)
    return Mesh(found, names, base.partition(":")[0])


def shard(x: C, mesh: Mesh, spec: Sequence[Any] = ()) -> C:
    """The tensor on a mesh, its axes cut as a spec says; every device has the axes that it leaves out.

    On a tensor that is there already this is a change of its placement.

    >>> import morok
    >>> mesh = morok.mesh(2, "data")
    >>> x = Tensor([[1, 2], [3, 4]]).shard(mesh, morok.P("data"))
    >>> (x * 2).sum(1).tolist()
    [6, 14]
    """
    if not isinstance(mesh, Mesh):
        raise MeshError(f"shard takes a mesh, which morok.mesh makes, not {mesh!r}")
    if not isinstance(spec, str | tuple | list):
        raise MeshError(f'a placement is a P, as morok.P("{mesh.axes[0]}"), not {spec!r}')
    parts = (spec,) if isinstance(spec, str) else tuple(spec)
    sizes = tuple(size for size in x.shape if isinstance(size, int))
    if len(sizes) < x.ndim:
        raise MeshError(f"a tensor of shape {show_shape(x.shape)} has sizes that are known later")
    layout = Layout(mesh, sizes, checked_spec(mesh, sizes, parts))
    return _copied(x, layout.name)


def unshard(x: C) -> C:
    """The whole tensor, as every process has plain ones.

    >>> import morok
    >>> mesh = morok.mesh(2, "data")
    >>> Tensor([1, 2, 3]).shard(mesh, morok.P("data")).unshard().tolist()
    [1, 2, 3]
    """
    device = mesh_device(x.uop)  # beside plain operands too
    return x if device is None else _copied(x, mesh_of(device).base)


def _copied(x: C, name: str) -> C:
    node = x.uop
    if is_memory(node) and own_device(base_of(node)) == name and node.op in (Ops.BUFFER, Ops.RESHAPE):
        layout = layout_of(name) if is_mesh(name) else None
        if layout is None or layout.shape == x.shape:
            return x
    return x._new(make(Ops.COPY, x.dtype, (node, make(Ops.DEVICE, void, (), name))))


def placement(x: Core) -> Layout | None:
    """How a tensor lies on its mesh, as far as is known before it is computed; None for a plain tensor."""
    node = resolve([x._uop])[0]
    if not is_mesh(graph_device(node)) and mesh_in(toposort(node)) is None:
        return None
    found = natural_placement(node)
    return found


def natural_placement(node: UOp) -> Layout | None:
    """The layout that a graph's result has of itself."""
    if is_memory(node) and node.op in (Ops.BUFFER, Ops.RESHAPE) and is_mesh(own_device(base_of(node))):
        layout = layout_of(own_device(base_of(node)))
        if layout is not None and layout.shape == _sizes(node):
            return layout
    sink = laid_out(normalise([node]).sink)
    order = toposort(sink)
    mesh = mesh_in(order)
    if mesh is None:
        return None
    naturals = Naturals(mesh, order)
    root = sink.src[0]
    if not naturals.is_on_mesh(root):
        return None
    return Layout(mesh, _sizes(root), naturals[root].resolved.spec)


def _sizes(node: UOp) -> Any:
    from morok.ir.infer import shape

    return shape(node)
