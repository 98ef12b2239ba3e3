"""What every tensor is: a node of the graph, and a place in the list of living tensors.

A tensor's node may have been realised through another tensor that contains it. Who asks for the node gets the
memory that it became; graphs that still hold the old node are brought up to date when they are scheduled.
Both ways go through one table, so nobody has to rewrite graphs at the moment something is realised.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from typing import Any, Self, TypeAlias

from morok.device.registry import default_device
from morok.dtype import DType
from morok.errors import IRError, ShapeError
from morok.ir import movement
from morok.ir.build import cast
from morok.ir.infer import Shape, numel, shape
from morok.ir.node import UOp, const, toposort
from morok.ir.ops import Ops
from morok.ir.recipe import is_stand_in
from morok.tensor.gradient_track import cut, is_tracked
from morok.tensor.sizes import Variable

Scalar: TypeAlias = "bool | int | float"


class _Done(weakref.ref[UOp]):
    """What became of a node: the view of a buffer that holds its value. It goes when no graph holds the node.

    Caches of schedules hold graphs that read no memory as they are, so for those the view is held weakly and
    lives only as long as some tensor shows it.
    """

    __slots__ = ("key", "view")
    key: int
    view: UOp | weakref.ref[UOp]


_done: dict[int, _Done] = {}  # by identity of the node: asked for every node of every graph


def _undo(done: _Done) -> None:
    if _done.get(done.key) is done:
        del _done[done.key]


def realized_as(node: UOp) -> UOp | None:
    """The view of memory that holds a node's value; None if it was not computed yet."""
    done = _done.get(id(node))
    if done is None or done() is not node:
        return None
    view = done.view
    if isinstance(view, UOp):
        return view
    found = view()  # without memory of its own the node belongs wherever tensors live by default now
    return found if found is None or device_of(found) == default_device() else None


def any_realized(nodes: Iterable[UOp]) -> bool:
    """Whether some of the nodes have been computed."""
    return not _done.keys().isdisjoint(map(id, nodes))


def set_realized(node: UOp, view: UOp, reads_memory: bool = True) -> None:
    """From now on whoever has the node in a graph reads the memory instead."""
    done = _Done(node, _undo)
    done.key = id(node)
    done.view = view if reads_memory else weakref.ref(view)
    _done[done.key] = done


class _Ref(weakref.ref["Core"]):
    __slots__ = ("key",)
    key: int


# Keyed by identity: `==` of tensors is element-wise, so they cannot be keys themselves.
_living: dict[int, _Ref] = {}


def _forget(ref: _Ref) -> None:
    if _living.get(ref.key) is ref:
        del _living[ref.key]


def living_tensors() -> Iterator[Core]:
    """All tensors that somebody holds."""
    for ref in list(_living.values()):
        tensor = ref()
        if tensor is not None:
            yield tensor


class Core:
    """The part of a tensor that all families of methods build on."""

    __hash__ = object.__hash__
    _uop: UOp
    _leaf = False  # whether gradients were asked for

    @classmethod
    def _new(cls, uop: UOp) -> Self:
        """The tensor of a node."""
        tensor = object.__new__(cls)
        tensor._enter(cut(uop))
        return tensor

    def _from_data(self, data: Any) -> Self:
        """The tensor of an array or of lists, on this tensor's device; creation knows how."""
        raise NotImplementedError

    def _enter(self, uop: UOp) -> None:
        self._uop = uop
        ref = _Ref(self, _forget)
        ref.key = id(self)
        _living[ref.key] = ref

    @property
    def uop(self) -> UOp:
        """The tensor's node; once it has been computed, a view of the memory that holds it."""
        view = realized_as(self._uop)
        if view is not None:
            self._settle(view)
        return self._uop

    def _settle(self, view: UOp) -> None:
        """The tensor is memory from now on, unless a gradient may want to know how it was computed."""
        if self._leaf or not is_tracked(self._uop):
            self._uop = view

    @property
    def shape(self) -> Shape:
        """The sizes of the axes, ints or symbolic."""
        found = shape(self._uop)
        assert found is not None
        return found

    @property
    def dtype(self) -> DType:
        """The type of the elements."""
        return self._uop.dtype

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    def numel(self) -> Any:
        """The number of elements.

        >>> Tensor.ones(2, 3).numel()
        6
        """
        return numel(self.shape)

    @property
    def device(self) -> str:
        """Where the tensor lives; of constants, where tensors live by default."""
        return device_of(self._uop)


# --- nodes


def device_of(root: UOp) -> str:
    """The device of the first memory that a graph reads, or the default one."""
    for node in toposort(root, stop=_has_device):
        if _has_device(node):
            return str(node.src[1].arg)
        if is_stand_in(node):
            raise IRError("a stand-in may be on any device")
    return default_device()


def _has_device(node: UOp) -> bool:
    return node.op is Ops.BUFFER or node.op is Ops.COPY


def require_shape(uop: UOp) -> Shape:
    found = shape(uop)
    if found is None:
        raise ShapeError(f"{uop.op.name} has no shape")
    return found


def expand_to(uop: UOp, sizes: Shape) -> UOp:
    """A node repeated to a shape that it broadcasts to."""
    own = require_shape(uop)
    if own == sizes:
        return uop
    padded = (1,) * (len(sizes) - len(own)) + own
    return movement.expand(movement.reshape(uop, padded), sizes)


def operand(uop: UOp, sizes: Shape) -> UOp:
    """A source of an element-wise node of that shape. Constants need no shape of their own."""
    if uop.op in (Ops.CONST, Ops.DEFINE_VAR, Ops.BIND):
        return uop
    return expand_to(uop, sizes)


def full(value: Scalar | UOp, dtype: DType, sizes: Shape) -> UOp:
    """The same value everywhere."""
    node = value if isinstance(value, UOp) else const(dtype, value)
    return expand_to(node, sizes)


def iota(sizes: Shape, axis: int, dtype: DType) -> UOp:
    """The position along one axis, for a tensor of the given shape; it depends on no other axis."""
    slim = tuple(size if i == axis else 1 for i, size in enumerate(sizes))
    return movement.iota(slim, axis, dtype)


def as_scalar_node(value: Any, dtype: DType) -> UOp | None:
    """A symbolic size as a number in arithmetic; None for what is none."""
    node = value.uop if isinstance(value, Variable) else value
    if not isinstance(node, UOp) or not node.dtype.is_index:
        return None
    return cast(node, dtype)
