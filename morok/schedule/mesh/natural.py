"""Which placement every node of a graph has of itself, by the laws, from the memory up.

Sources that disagree are brought together where the most elements stay. What a law does not allow (a box out
of a cut axis, a reshape across the cuts, a running sum along one) is done after the cut has been moved to
another axis, or given up; `said` tells where, and why.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

from morok.dtype import DType
from morok.errors import MeshError
from morok.ir.infer import show_shape, size_of
from morok.ir.layout import Group, Mesh, Spec, chunk, is_mesh, layout_of
from morok.ir.memory import MEMORY, own_device
from morok.ir.node import UOp
from morok.ir.ops import Ops
from morok.ir.provenance import place
from morok.schedule.mesh.placement import Placement, axis_map, dimensions, whole

_MARKS = frozenset((Ops.DETACH, Ops.CONTIGUOUS, Ops.RECOMPUTE, Ops.PLACE, Ops.AFTER, Ops.ASSIGN))
_PLAIN_LEAVES = frozenset((Ops.PARAM, Ops.AFTER, Ops.COPY, Ops.SCATTER))
_NO_SOURCES = frozenset((Ops.CONST, Ops.DEFINE_VAR, Ops.DEVICE, Ops.IOTA, Ops.PARAM, Ops.VCONST))
_PASSED = frozenset((Ops.RESHAPE, Ops.PERMUTE, Ops.FLIP, Ops.SHRINK))
_MOST_LINES = 40  # that are told of a plan
_Sources = list[tuple[UOp, Placement]]


@final
class Naturals:
    """The placements of all nodes of a graph, each with those of its sources that it follows from."""

    def __init__(self, mesh: Mesh, order: Sequence[UOp]) -> None:
        self.mesh = mesh
        self.said: dict[str, UOp] = {}  # what had to be moved, with its line
        self.shifts: dict[UOp, tuple[Group, int]] = {}  # who gets its neighbour's part: how many places on
        # boxes that lie in one device's part: by axis along what it is cut, and the device's number
        self.owners: dict[UOp, dict[int, tuple[Group, int]]] = {}
        self._places: dict[UOp, Placement] = {}
        self._sources: dict[UOp, _Sources] = {}
        self._kinds: dict[UOp, str] = {}
        self._readers: dict[UOp, int] = {}
        for node in order:
            for s in dict.fromkeys(node.src):
                self._readers[s] = self._readers.get(s, 0) + 1
        for node in order:
            self._kinds[node] = self._kind(node)
            self._places[node], self._sources[node] = self._natural(node)

    def __getitem__(self, node: UOp) -> Placement:
        return self._places[node]

    # --- where

    def _kind(self, node: UOp) -> str:
        if node.op in MEMORY or node.op is Ops.COPY:
            return "mesh" if is_mesh(own_device(node)) else "plain"
        below = {self._kinds[s] for s in node.src}
        return "mesh" if "mesh" in below else "plain" if "plain" in below else "free"

    def is_on_mesh(self, node: UOp) -> bool:
        return self._kinds[node] == "mesh"

    def is_plain(self, node: UOp) -> bool:
        return self._kinds[node] == "plain"

    def memory(self, node: UOp) -> UOp | None:
        """The memory that a node is, in the shape that it is cut in."""
        below = node.src[0] if node.op is Ops.RESHAPE else node
        if below.op not in MEMORY or not is_mesh(own_device(below)):
            return None
        layout = layout_of(own_device(below))
        return below if layout is not None and layout.shape == dimensions(node) else None

    def is_leaf(self, node: UOp) -> bool:
        """Whether a value is made of no others."""
        if node.op in _NO_SOURCES or self.memory(node) is not None:
            return True
        return self.is_plain(node) and node.op in _PLAIN_LEAVES

    # --- what a value in a placement is made of

    def can_be(self, node: UOp, wanted: Placement) -> bool:
        """Whether an op can give a placement by asking its sources for another one."""
        if wanted.axes or self.memory(node) is not None:
            return False
        if self.is_on_mesh(node):
            passes = node.op is Ops.COPY and layout_of(own_device(node)) is None
            if not (passes or node.op.is_movement or node.op is Ops.DETACH):
                return False
        elif self.is_leaf(node):
            return True
        for i in range(len(_values(node))):
            for axis, group in enumerate(wanted.spec):
                if group and axis_map(node, i, self.mesh.size(group))[axis] == -2:
                    return False
        return True

    def sources(self, node: UOp, wanted: Placement) -> _Sources:
        """The sources of a node in the placements that give it another one."""
        if self.is_leaf(node):
            return []
        if wanted == self._places[node]:
            return self._sources[node]
        return [(s, self._asked(node, i, wanted)) for i, s in enumerate(_values(node))]

    def _asked(self, node: UOp, i: int, wanted: Placement) -> Placement:
        spec: list[Group] = [()] * len(dimensions(node.src[i]))
        for axis, group in enumerate(wanted.spec):
            if group:
                below = axis_map(node, i, self.mesh.size(group))[axis]
                if below >= 0:
                    spec[below] = group
        return Placement(tuple(spec), wanted.axes, wanted.op)

    # --- by op

    def _natural(self, node: UOp) -> tuple[Placement, _Sources]:
        count = len(dimensions(node))
        if not self.is_on_mesh(node):
            return whole(count), [(s, whole(len(dimensions(s)))) for s in _values(node)]
        if node.op is Ops.PARAM or node.op is Ops.BUFFER or self.memory(node) is not None:
            return self._in_memory(node), []
        if node.op is Ops.COPY:
            if layout_of(own_device(node)) is None:  # on the mesh, as it comes
                wanted = self._places[node.src[0]].resolved
            else:
                wanted = self._laid_out(own_device(node), node)
            return wanted, [(node.src[0], wanted)]
        if node.op.is_alu:
            return self._elementwise(node)
        if node.op is Ops.REDUCE_AXIS:
            return self._reduced(node)
        if node.op is Ops.SCATTER:
            return self._scattered(node)
        if node.op in _MARKS:
            return self._mark(node)
        if node.op is Ops.SINK:
            return whole(0), []
        if node.op is Ops.PAD and (found := self._shifted(node)) is not None:
            return found
        return self._moved(node)

    def _in_memory(self, node: UOp) -> Placement:
        memory = self.memory(node)
        if memory is None:
            return whole(1)  # never asked for: its views are
        return self._laid_out(own_device(memory), node)

    def _laid_out(self, name: str, node: UOp) -> Placement:
        layout = layout_of(name)
        if layout is None or layout.shape != dimensions(node):
            raise MeshError(
                f"a tensor of shape {show_shape(dimensions(node))} cannot lie as {name}", place=place(node)
            )
        return Placement(tuple(self._needed(group) for group in layout.spec))

    def _needed(self, group: Group) -> Group:
        return tuple(axis for axis in group if self.mesh.size((axis,)) > 1)

    def _mark(self, node: UOp) -> tuple[Placement, _Sources]:
        values = _values(node)
        if node.op is Ops.ASSIGN:
            own = self._places[node.src[0]]
            rest = [(s, self._places[s].resolved) for s in node.src[2:]]
            return own, [(node.src[0], own), (node.src[1], own), *rest]
        own = self._places[values[0]]
        if node.op is not Ops.DETACH:
            own = own.resolved
        return own, [(values[0], own), *((s, self._places[s].resolved) for s in values[1:])]

    # --- elementwise

    def _elementwise(self, node: UOp) -> tuple[Placement, _Sources]:
        places = [self._places[s] for s in node.src]
        found = self._partial(node, places)
        if found is None:
            places = [p.resolved for p in places]
            found = Placement(self._chosen(node, places))
        sources = []
        for s, own in zip(node.src, places, strict=True):
            spec: Spec = found.spec if dimensions(s) else ()
            sources.append((s, Placement(spec, own.axes, own.op) if own.axes else Placement(spec)))
        return found, sources

    def _chosen(self, node: UOp, places: Sequence[Placement]) -> Spec:
        """The cuts of all operands, those of the largest first."""
        spec: list[Group] = [()] * len(dimensions(node))
        used: set[str] = set()
        weights = [-_carried(s) for s in node.src]
        for n in sorted(range(len(places)), key=weights.__getitem__):
            for axis, group in enumerate(places[n].spec):
                if group and not spec[axis] and used.isdisjoint(group):
                    spec[axis] = group
                    used.update(group)
        return tuple(spec)

    def _partial(self, node: UOp, places: Sequence[Placement]) -> Placement | None:
        """The result of a linear op on summands; None if they have to be joined first.

        A sum that several others read is joined once, and not once by each of them.
        """
        open_ones = [n for n, p in enumerate(places) if p.axes]
        if not open_ones:
            return None
        first = places[open_ones[0]]
        for n in open_ones:
            alone = self._readers.get(node.src[n], 0) == 1
            if places[n] != first or first.op is not Ops.ADD or not alone:
                return None
        op = node.op
        if op in (Ops.ADD, Ops.SUB):
            return first if len(open_ones) == 2 else None
        if op is Ops.NEG:
            return first
        if op is Ops.CAST:
            return first if _widens(node.src[0].dtype, node.dtype) else None
        fits = (op is Ops.MUL and len(open_ones) == 1) or (op is Ops.FDIV and open_ones == [0])
        if not fits:
            return None
        other = places[1 - open_ones[0]]
        same = not other.used & set(first.axes) and all(
            not g or g == first.spec[n] for n, g in enumerate(other.spec)
        )
        return first if same and len(dimensions(node.src[open_ones[0]])) == len(dimensions(node)) else None

    # --- reductions and rows

    def _reduced(self, node: UOp) -> tuple[Placement, _Sources]:
        source = node.src[0]
        own = self._places[source]
        op, axes = node.arg
        summed = own.op is Ops.ADD and op is Ops.ADD and self._readers.get(source, 0) == 1
        if own.axes and not summed:
            own = own.resolved
        joined = [axis for n in axes for axis in own.spec[n]]
        spec = tuple(() if n in axes else g for n, g in enumerate(own.spec))
        over = self._in_order((*own.axes, *joined))
        return Placement(spec, over, op if over else None), [(source, own)]

    def _in_order(self, axes: Group) -> Group:
        return tuple(axis for axis in self.mesh.axes if axis in axes)

    def _scattered(self, node: UOp) -> tuple[Placement, _Sources]:
        x, places, rows = node.src
        own, at, put = (self._places[s].resolved for s in node.src)
        skipped = len(dimensions(rows)) - len(dimensions(x))
        spec: list[Group] = [()] * len(dimensions(x))
        used: set[str] = set()
        for cuts in (put.spec[skipped + 1 :], own.spec[1:]):
            for n, group in enumerate(cuts, 1):
                if group and not spec[n] and used.isdisjoint(group):
                    spec[n] = group
                    used.update(group)
        over: Spec = ((),) * len(dimensions(places))
        if node.arg is Ops.ADD and _is_zero(x):
            over = tuple(g if used.isdisjoint(g) else () for g in put.spec[: len(over)])
        elif any(put.spec[: len(over)]) or any(at.spec):
            self._say(node, "rows are put in their order, so all devices get all of them")
        axes = self._in_order(tuple(axis for g in over for axis in g))
        sources = [
            (x, Placement(tuple(spec))),
            (places, Placement(over)),
            (rows, Placement((*over, *spec[1:]))),
        ]
        return Placement(tuple(spec), axes, Ops.ADD if axes else None), sources

    # --- movement, running sums

    def _moved(self, node: UOp) -> tuple[Placement, _Sources]:
        values = _values(node)
        own = self._places[values[0]]
        keeps = node.op in _PASSED or (node.op is Ops.PAD and own.op is Ops.ADD)
        if own.axes and not (keeps and self._readers.get(values[0], 0) == 1):
            own = own.resolved
        sizes = dimensions(values[0])
        source = own
        result: list[Group] = [()] * len(dimensions(node))
        for axis, group in enumerate(own.spec):
            if not group:
                continue
            to = _carried_to(node, axis, self.mesh.size(group))
            if to is not None:
                result[to] = group
                continue
            other = self._another(node, source.cut(axis, ()), sizes, group)
            owner = _owner(node, axis, self.mesh.size(group)) if other is None else None
            if owner is not None:
                self.owners.setdefault(node, {})[axis] = group, owner
                self._say(node, _why(node, axis, group, other, sizes, owner))
                continue
            source = source.cut(axis, ())
            if other is not None:
                source = source.cut(other[0], group)
                result[other[1]] = group
            self._say(node, _why(node, axis, group, other, sizes))
        found = Placement(tuple(result), source.axes, source.op)
        return found, [(values[0], source), *((s, source.resolved) for s in values[1:])]

    def _shifted(self, node: UOp) -> tuple[Placement, _Sources] | None:
        """PAD(SHRINK(x)) that moves whole parts along a cut axis: every device has its neighbour's."""
        below = node.src[0]
        if below.op is not Ops.SHRINK or not self.is_on_mesh(below):
            return None
        x = below.src[0]
        sizes, pads, box = dimensions(x), _pairs(node), _pairs(below)
        moved = [n for n, size in enumerate(sizes) if pads[n] != (0, 0) or box[n] != (0, size)]
        if len(moved) != 1 or dimensions(node) != sizes:
            return None
        (axis,) = moved
        own = self._places[x].resolved
        group, size = own.spec[axis], sizes[axis]
        devices = self.mesh.size(group)
        if devices < 2 or not isinstance(size, int) or size % devices:
            return None
        by = pads[axis][0] - box[axis][0]  # elements: to the end if it is positive
        each = size // devices
        fits = (max(by, 0), max(-by, 0)) == pads[axis] and (max(-by, 0), size - max(by, 0)) == box[axis]
        if not fits or by % each:
            return None
        self.shifts[node] = group, by // each
        return own, [(x, own)]

    def _another(
        self, node: UOp, source: Placement, sizes: tuple[Any, ...], group: Group
    ) -> tuple[int, int] | None:
        """Another axis that may be cut instead, and where it is in the result."""
        devices = self.mesh.size(group)
        found = []
        for axis, size in enumerate(sizes):
            if source.spec[axis] or not isinstance(size, int) or size % devices or size == 0:
                continue
            to = _carried_to(node, axis, devices)
            if to is not None:
                found.append((size, axis, to))
        return max(found)[1:] if found else None

    def told(self, order: Sequence[UOp]) -> list[str]:
        """How the values of each line lie, the last of every shape; then what had to be moved."""
        lines: dict[tuple[str, str], str] = {}
        for node in order:
            where = place(node)
            computed = node.op.is_alu or node.op in (Ops.REDUCE_AXIS, Ops.COPY, Ops.SCATTER)
            if where and computed and self.is_on_mesh(node) and dimensions(node):
                lines[where, show_shape(dimensions(node))] = self._places[node].show()
        found = [f"  {where:<24} {sizes:<16} {shown}" for (where, sizes), shown in lines.items()]
        read = {s for node in order if node not in self.shifts for s in node.src}  # boxes of shifts are not
        return [
            *found[-_MOST_LINES:],
            *(f"  moved: {text}" for text, node in self.said.items() if node in read),
        ]

    def _say(self, node: UOp, text: str) -> None:
        where = place(node)
        self.said[f"{where}: {text}" if where else text] = node


def _values(node: UOp) -> tuple[UOp, ...]:
    """The sources that are values, and not sizes or devices."""
    return node.src[:1] if node.op.is_movement or node.op is Ops.COPY else node.src


def _carried(node: UOp) -> int:
    """How many elements a value has before it is repeated: what moving it costs."""
    least = _elements(node)
    while node.op.is_movement or node.op in (Ops.DETACH, Ops.CAST):
        node = node.src[0]
        least = min(least, _elements(node))
    return least


def _elements(node: UOp) -> int:
    count = 1
    for size in dimensions(node):
        count *= size if isinstance(size, int) else 1
    return count


def _carried_to(node: UOp, axis: int, devices: int) -> int | None:
    found = axis_map(node, 0, devices)
    return found.index(axis) if axis in found else None


def _widens(old: DType, new: DType) -> bool:
    return old.is_float and new.is_float and new.bits >= old.bits


def _is_zero(node: UOp) -> bool:
    while node.op.is_movement and node.op is not Ops.PAD:
        node = node.src[0]
    return node.op is Ops.CONST and node.arg == 0


def _pairs(node: UOp) -> list[tuple[Any, Any]]:
    """What a PAD or a SHRINK says about each axis."""
    ends = [size_of(s) for s in node.src[1:]]
    return list(zip(ends[::2], ends[1::2], strict=True))


def _owner(node: UOp, axis: int, devices: int) -> int | None:
    """The number of the device whose part of an axis a box lies in; None if there is none."""
    if node.op is not Ops.SHRINK:
        return None
    low, high = _pairs(node)[axis]
    size = dimensions(node.src[0])[axis]
    if not (isinstance(low, int) and isinstance(high, int) and isinstance(size, int)) or low >= high:
        return None
    each = chunk(size, devices)
    return low // each if low // each == (high - 1) // each else None


def _why(
    node: UOp,
    axis: int,
    group: Group,
    other: tuple[int, int] | None,
    sizes: tuple[Any, ...],
    owner: int | None = None,
) -> str:
    cut = f"axis {axis} of {show_shape(sizes)} is cut along {'+'.join(group)}"
    what = f"{node.op.name.lower()} does not fit it"
    then = "gathered first" if other is None else f"the cut moves to axis {other[0]}"
    then = then if owner is None else f"device {owner} has it, and sends it to the others"
    return f"{cut}, {what}: {then}"
