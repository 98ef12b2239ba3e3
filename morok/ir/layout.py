"""Meshes of devices, and how a tensor lies on one: which axes of the tensor are cut along which of the mesh.

A mesh is named axes of devices of one kind. A *layout* says for each axis of a tensor along which axes of the
mesh it is cut; along all others every device has the same. Where a size is no multiple of the number of
devices, all have room for as many and the last ones use less of it: one kernel serves every rank.

Both have names, which stand in graphs where the name of a device does:

    MESH:CPU:data=4,model=2                     memory that each device has for itself
    MESH:CPU:data=4,model=2:64x32:data,-        a tensor of 64×32, rows cut along data
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import final

from morok.dtype.records import record
from morok.errors import MeshError
from morok.forks import cached_property

Group = tuple[str, ...]  # axes of a mesh that cut one axis of a tensor, the first one coarsest; () is none
Spec = tuple[Group, ...]
_KIND = "MESH:"


@final
@record(frozen=True)
class Mesh:
    """Devices of one kind in a grid with named axes."""

    sizes: tuple[int, ...]
    axes: tuple[str, ...]
    base: str  # the kind of device: CPU, CUDA, EMULATOR

    @cached_property
    def count(self) -> int:
        """How many devices there are."""
        return math.prod(self.sizes)

    @cached_property
    def name(self) -> str:
        axes = ",".join(f"{axis}={size}" for axis, size in zip(self.axes, self.sizes, strict=True))
        return f"{_KIND}{self.base}:{axes}"

    def size(self, group: Group) -> int:
        """How many devices some axes have."""
        return math.prod(self.sizes[self.axes.index(axis)] for axis in group)

    def coordinates(self, rank: int) -> dict[str, int]:
        """Where a device stands: the last axis counts fastest."""
        found = {}
        for axis, size in zip(reversed(self.axes), reversed(self.sizes), strict=True):
            rank, found[axis] = divmod(rank, size)
        return found

    def rank(self, coordinates: dict[str, int]) -> int:
        """The device at a place."""
        number = 0
        for axis, size in zip(self.axes, self.sizes, strict=True):
            number = number * size + coordinates[axis]
        return number

    def number(self, rank: int, group: Group) -> int:
        """The position of a device among those that differ from it along some axes only."""
        at, number = self.coordinates(rank), 0
        for axis in group:
            number = number * self.size((axis,)) + at[axis]
        return number

    def groups(self, group: Group) -> tuple[tuple[int, ...], ...]:
        """The devices by sets that differ along some axes only, each in the order of their numbers there."""
        found: dict[tuple[int, ...], list[int]] = {}
        for rank in range(self.count):
            at = self.coordinates(rank)
            found.setdefault(tuple(at[a] for a in self.axes if a not in group), []).append(rank)
        return tuple(tuple(sorted(ranks, key=lambda r: self.number(r, group))) for ranks in found.values())

    def __str__(self) -> str:
        return " × ".join(f"{axis} {size}" for axis, size in zip(self.axes, self.sizes, strict=True))


@final
@record(frozen=True)
class Layout:
    """A tensor of some shape on a mesh. Symbolic sizes are never cut."""

    mesh: Mesh
    shape: tuple[int, ...]
    spec: Spec

    @cached_property
    def name(self) -> str:
        sizes = "x".join(map(str, self.shape))
        return f"{self.mesh.name}:{sizes}:{show_spec(self.spec)}"

    @cached_property
    def local_shape(self) -> tuple[int, ...]:
        """What each device has room for."""
        return tuple(
            chunk(size, self.mesh.size(group)) for size, group in zip(self.shape, self.spec, strict=True)
        )

    @cached_property
    def numel(self) -> int:
        return math.prod(self.shape)

    @cached_property
    def local_numel(self) -> int:
        return math.prod(self.local_shape)

    def box(self, rank: int) -> tuple[slice, ...]:
        """What a device has of the whole; perhaps nothing."""
        found = []
        for size, group in zip(self.shape, self.spec, strict=True):
            each = chunk(size, self.mesh.size(group))
            start = min(self.mesh.number(rank, group) * each, size)
            found.append(slice(start, min(start + each, size)))
        return tuple(found)

    @property
    def is_whole(self) -> bool:
        """Whether every device has all of it."""
        return not any(self.mesh.size(group) > 1 for group in self.spec)

    def __str__(self) -> str:
        return f"P({', '.join(_show_group(group) for group in self.spec)}) on {self.mesh}"


def chunk(size: int, devices: int) -> int:
    """How much of an axis each of some devices has room for."""
    return -(-size // devices)


def summed_bytes(elements: int, itemsize: int, devices: int) -> int:
    """What the busiest of some devices sends until all have the sum of so many elements of each.

    Every device adds up a row of the elements: it gets that row of everybody, and hands them the sum. That is
    2(n-1)/n of all bytes, and a little more where the elements are no whole number of rows.
    """
    return (elements + (devices - 2) * chunk(elements, devices)) * itemsize if devices > 1 else 0


def show_spec(spec: Spec) -> str:
    return ",".join("+".join(group) or "-" for group in spec)


def _show_group(group: Group) -> str:
    if not group:
        return "None"
    return repr(group[0]) if len(group) == 1 else repr(group)


def is_mesh(device: str) -> bool:
    """Whether the name of a device is that of a mesh, or of a layout on one."""
    return device.startswith(_KIND)


@lru_cache(4096)
def mesh_of(device: str) -> Mesh:
    """The mesh that a name is of."""
    base, axes, *_ = device.removeprefix(_KIND).split(":")
    pairs = [axis.split("=") for axis in axes.split(",")]
    return Mesh(tuple(int(size) for _, size in pairs), tuple(name for name, _ in pairs), base)


@lru_cache(4096)
def layout_of(device: str) -> Layout | None:
    """The layout that a name is of; None for memory that each device has for itself."""
    parts = device.removeprefix(_KIND).split(":")
    if len(parts) < 4:
        return None
    shape = tuple(int(size) for size in parts[2].split("x")) if parts[2] else ()
    groups = parts[3].split(",") if parts[3] else []
    return Layout(
        mesh_of(device), shape, tuple(() if group == "-" else tuple(group.split("+")) for group in groups)
    )


def placed(device: str, shape: tuple[object, ...]) -> str:
    """The name of where a tensor of some shape lies that is made on a device.

    On a mesh: in the layout that is named, if it is of that shape, else whole on every device.
    """
    if not is_mesh(device):
        return device
    layout = layout_of(device)
    if layout is not None and layout.shape == shape:
        return device
    mesh = mesh_of(device)
    return Layout(mesh, shape, ((),) * len(shape)).name  # type: ignore[arg-type]


def checked_spec(mesh: Mesh, shape: tuple[int, ...], parts: tuple[object, ...]) -> Spec:
    """What a user wrote as a spec of a tensor of some shape; what is missing at its end is not cut."""
    if len(parts) > len(shape):
        raise MeshError(f"P{parts} names {len(parts)} axes, but the tensor has {len(shape)}")
    spec: list[Group] = []
    used: set[str] = set()
    for part in (*parts, *(None,) * (len(shape) - len(parts))):
        group = () if part is None else (part,) if isinstance(part, str) else part
        if not isinstance(group, tuple | list):
            raise MeshError(f"an axis is cut along one of the mesh, several or none (None), not {part!r}")
        for axis in group:
            if axis not in mesh.axes:
                raise MeshError(f"the mesh has no axis {axis!r}; it has {', '.join(mesh.axes)}")
            if axis in used:
                raise MeshError(f"P{parts} cuts two axes along {axis!r}; each of the mesh cuts one")
            used.add(axis)
        spec.append(tuple(group))
    return tuple(spec)
