"""What every tensor is: a storage, and a chain of movement ops that says what is shown of it.

A tensor's node may have been realised through another tensor that contains it. Who asks for the node gets the
memory that it became; graphs that still hold the old node are brought up to date when they are scheduled.
Both ways go through one table, so nobody has to rewrite graphs at the moment something is realised.
"""

from __future__ import annotations

import weakref
from threading import RLock
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeAlias, TypeVar, final

from morok.dtype import DType
from morok.errors import ShapeError
from morok.forks import renewed
from morok.ir import movement
from morok.ir.build import cast
from morok.ir.infer import Shape, numel, shape, show_shape
from morok.ir.layout import is_mesh, layout_of, mesh_of
from morok.ir.memory import base_of
from morok.ir.node import UOp, const
from morok.ir.ops import Ops
from morok.tensor.gradient_track import cut, is_tracked
from morok.tensor.memory.names import renew
from morok.tensor.memory.storage import Storage, claim, graph_device, is_done, realized_as
from morok.tensor.memory.strides import Chain, Step, is_strided, moved, step_of
from morok.tensor.sizes import Variable

_ref = weakref.ref
Scalar: TypeAlias = "bool | int | float"


class Maker(Protocol):
    """Whoever gives out tensors before they have a storage."""

    def storage(self, number: int) -> Storage: ...

    def node(self, number: int) -> UOp: ...

    def array(self, number: int) -> Any:
        """The values, if they lie in order, as an array that the memory is lent to; else None."""


@final
class _Later:
    """The storage of a tensor that was given out in a hurry: it is made when somebody looks at it.

    Most results of compiled functions are read, or dropped, before. A tensor's own dictionary goes first.
    """

    def __init__(self) -> None:
        self._lock = renewed(self, "_lock", RLock)

    def __get__(self, tensor: Core | None, owner: Any = None) -> Storage:
        space = tensor.__dict__ if tensor is not None else {}
        with self._lock:  # two threads may look at the same time
            found: Storage | None = space.get("_storage")
            if found is None:
                if "_made_by" not in space:
                    raise AttributeError("this tensor has no storage")
                maker, number = space["_made_by"]
                found = space["_storage"] = maker.storage(number)
                del space["_made_by"]
        return found


class Core:
    """The part of a tensor that all families of methods build on: a storage, and what is shown of it."""

    __hash__ = object.__hash__
    if TYPE_CHECKING:
        _storage: Storage
        _made_by: tuple[Maker, int]  # until there is a storage
    else:
        _storage = _Later()
    _chain: Chain = ()  # what is shown of the storage
    # A state of the storage, and what the chain made of it; weakly, because a view outlives states.
    _seen: tuple[weakref.ref[UOp], weakref.ref[UOp]] | None = None
    _frozen: str | None = None  # why this tensor is no place to write to
    _leaf = False  # whether gradients were asked for
    _grad: Any = None  # what `backward` has left here

    @classmethod
    def _new(cls, uop: UOp) -> Self:
        """The tensor of a node, which is a value: nobody else's memory."""
        tensor = object.__new__(cls)
        tensor._storage = Storage(cut(uop))
        return tensor

    @property
    def _result(self) -> UOp:
        """What a tensor shows that is about to be dropped: one without a storage needs none for that."""
        made_by = self.__dict__.get("_made_by")
        return self.uop if made_by is None else made_by[0].node(made_by[1])

    def _view(self, node: UOp) -> Self:
        """The tensor of a node that moves the elements of this one: what is written to one is seen by both.

        Where the elements of a reshaped tensor do not lie in even steps, it is a value, as in NumPy.
        """
        steps: list[Step] = []
        own, below = self._uop, node
        while below is not own:
            if not below.src:
                return self._new(node)
            steps.append(step_of(below))
            below = below.src[0]
        chain = tuple(reversed(steps))
        if not self._chain and not is_strided(chain, 0, self.shape):
            return self._new(node)
        return self._moved(node, chain)

    def _moved(self, node: UOp, chain: Chain) -> Self:
        """The view of a node that comes of this tensor by a chain, which is strided on what lies in order."""
        storage = self._storage
        if self._chain:
            whole = (*self._chain, *chain)
            if not is_strided(whole, len(self._chain), require_shape(storage.node)):
                return self._new(node)
            chain = whole
        final = cut(node)
        tensor = object.__new__(self.__class__)
        tensor._storage = storage
        tensor._chain = chain if final is node else (*chain, step_of(final))
        tensor._seen = (_ref(storage.node), _ref(final))
        storage.keep_view(final)
        if self._frozen is not None:
            tensor._frozen = self._frozen
        return tensor

    @property
    def _uop(self) -> UOp:
        """The tensor's node: its storage as it is now, under its view."""
        state = self._storage.node
        if not self._chain:
            return state
        seen = self._seen
        if seen is not None and seen[0]() is state:
            node = seen[1]()
            if node is not None:
                return node
        node = moved(state, self._chain)
        self._seen = (_ref(state), _ref(node))
        self._storage.keep_view(node)
        return node

    @property
    def uop(self) -> UOp:
        """The tensor's node; once it has been computed, a view of the memory that holds it.

        >>> (Tensor([1.0]) + 1.0).uop.op.name
        'ADD'
        """
        storage = self._storage
        node = storage.node
        if is_done(id(node)):
            view = realized_as(node)
            # in memory that is another's it is found by its node, until that is shown to somebody who writes
            if view is not None and claim(base_of(view), storage):
                bind_to_memory(storage, view)
        if storage.exposed:
            renew(storage)
        return self._uop if self._chain else storage.node

    @property
    def shape(self) -> Shape:
        """The sizes of the axes, ints or symbolic.

        >>> Tensor([[1, 2, 3]]).shape
        (1, 3)
        """
        found = shape(self._uop)
        assert found is not None
        return found

    @property
    def dtype(self) -> DType:
        """The type of the elements.

        >>> Tensor([1.0]).dtype
        float32
        """
        return self._uop.dtype

    @property
    def ndim(self) -> int:
        """The number of axes.

        >>> Tensor([[1, 2]]).ndim
        2
        """
        return len(self.shape)

    def numel(self) -> Any:
        """The number of elements.

        >>> Tensor.ones(2, 3).numel()
        6
        """
        return numel(self.shape)

    @property
    def nbytes(self) -> Any:
        """How many bytes the elements take.

        >>> Tensor([1.0, 2.0]).nbytes
        8
        """
        return self.numel() * self.dtype.itemsize

    @property
    def device(self) -> str:
        """Where the tensor lives; of constants, where tensors live by default.

        >>> Tensor([1.0], device="CPU").device
        'CPU'
        """
        name = graph_device(self._uop)
        return placement_name(self._uop, name) if is_mesh(name) else name

    @property
    def is_leaf(self) -> bool:
        """Whether `backward` leaves a gradient here: asked for, not computed from others that were.

        >>> x = Tensor([1.0], requires_grad=True)
        >>> x.is_leaf, (x * 2.0).is_leaf
        (True, False)
        """
        return self._leaf

    @property
    def grad(self) -> Self | None:
        """The gradient that `backward` has left here; None before, and after `zero_grad`.

        >>> x = Tensor([3.0], requires_grad=True)
        >>> (x * x).sum().backward()
        >>> x.grad.tolist()
        [6.0]
        """
        return self._grad  # type: ignore[no-any-return]

    @grad.setter
    def grad(self, value: Self | None) -> None:
        if value is not None and value.shape != self.shape:
            raise ShapeError(
                f"the gradient of a tensor of shape {show_shape(self.shape)} has that shape, "
                f"not {show_shape(value.shape)}"
            )
        self._grad = value


C = TypeVar("C", bound=Core)


# --- nodes


def placement_name(node: UOp, name: str) -> str:
    """Where a tensor on a mesh is: its layout if it is memory in one, else the mesh."""
    layout = layout_of(name)
    if layout is not None and layout.shape == shape(node) and node.op in (Ops.BUFFER, Ops.RESHAPE, Ops.AFTER):
        return name
    return mesh_of(name).name


def bind_to_memory(storage: Storage, view: UOp) -> None:
    """The storage is memory from now on, unless a gradient may want to know how it was computed."""
    if storage.leaf or not is_tracked(storage.node):
        storage.become(view)


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
