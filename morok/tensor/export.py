"""From tensors back to Python: realise, arrays, numbers, text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Self

import numpy as np

from morok.device.base import as_host
from morok.device.buffer import Array
from morok.errors import OperandError, ShapeError
from morok.ir.infer import show_shape, size_of
from morok.ir.memory import base_of
from morok.ir.node import UOp
from morok.ir.ops import Ops
from morok.optimize.strategy import Config
from morok.runtime.plan import ExecutionPlan, buffer_for
from morok.tensor.assign import Assign
from morok.tensor.creation.sources import node_of
from morok.tensor.memory.states import is_computed, resolve
from morok.tensor.memory.storage import claim, identified
from morok.tensor.numpy_protocol import call_function, call_ufunc
from morok.tensor.realize import prepare, realize
from morok.tensor.record import recorded
from morok.tensor.sizes import as_axis, concrete
from morok.tensor.tracing import is_tracing, refuse_values

_SMALL = 1000  # elements up to which repr shows values


@recorded
class Export(Assign):
    """Everything that makes a tensor's values appear."""

    __array_priority__ = 1000.0  # older NumPy functions leave mixed operands to the tensor

    def realize(self, *others: Any) -> Self:
        """Compute this tensor and the others, together; work that they share is done once.

        >>> x = Tensor([1, 2]) + 1
        >>> x.realize().is_realized
        True
        """
        if not is_tracing():  # what is traced is computed at the end, with everything else
            realize([self, *others])
        return self

    def prepare(self, *others: Any) -> ExecutionPlan:
        """The plan that would compute these tensors: its kernels and its memory. `plan.run()` runs it.

        A `Config` among the arguments says how its kernels are to be optimised.
        """
        tensors = [t for t in (self, *others) if not isinstance(t, Config)]
        plan = prepare([t for t in tensors if not t.is_realized])
        for config in others:
            if isinstance(config, Config):
                plan.config = config
        return plan

    plan = prepare

    @property
    def is_realized(self) -> bool:
        """Whether the values are in memory, so that nothing is left to compute."""
        return is_computed(self._uop)

    def numpy(self) -> Array:
        """The values as a NumPy array.

        It shares memory with the tensor where the host can reach it. Later assignments to the tensor do not
        change the array; changes to the array change the tensor.

        >>> int(Tensor([1, 2]).numpy().sum())
        3
        """
        refuse_values()
        later = self.__dict__.get("_made_by")
        if later is not None:  # nobody has looked at the tensor so far: its memory is its own
            array: Array | None = later[0].array(later[1])
            if array is not None:
                return array
        realize([self])
        view = resolve([self._uop])[0]
        memory = buffer_for(base_of(view))
        # The array of memory that another storage owns would be a way to write there.
        lent = claim(base_of(view), self._storage, memory.is_shared)
        return show_memory(view) if lent else show_memory(view).copy()

    def item(self) -> Any:
        """The only element, as a Python number.

        >>> Tensor([2.5]).item()
        2.5
        """
        count = self.numel()
        if count != 1 and isinstance(count, int):
            raise ShapeError(
                f"item() needs one element, but shape {show_shape(self.shape)} has {count}; use tolist()"
            )
        array = self.numpy()
        if array.size != 1:
            raise ShapeError(f"item() needs one element, but there are {array.size}; use tolist()")
        return _python(array.reshape(()))

    def tolist(self) -> Any:
        """The values as nested lists of Python numbers; of a scalar, the number.

        >>> Tensor([[1, 2]]).tolist()
        [[1, 2]]
        """
        return _python(self.numpy())

    def size(self, dim: int | None = None, *, axis: int | None = None) -> Any:
        """The shape, or the size of one axis.

        >>> Tensor.ones(2, 3).size(1)
        3
        """
        where = dim if axis is None else axis
        return self.shape if where is None else self.shape[as_axis(where, self.ndim, self.shape)]

    @property
    def nbytes(self) -> Any:
        """How many bytes the elements take."""
        return self.numel() * self.dtype.itemsize

    # --- protocols

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        array = self.numpy()
        if dtype is not None and np.dtype(dtype) != array.dtype:
            return array.astype(dtype)
        return array.copy() if copy else array

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        return call_ufunc(self, ufunc, method, inputs, kwargs)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return call_function(self, function, args, kwargs)

    def __dlpack__(self, **options: Any) -> Any:
        return self.numpy().__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[Any, Any]:
        kind, number = self.numpy().__dlpack_device__()
        return kind, number

    def __len__(self) -> int:
        if not self.ndim:
            raise OperandError("a tensor without axes has no length")
        return concrete(self.shape[0])

    def __iter__(self) -> Iterator[Self]:
        if not self.ndim:
            raise OperandError("a tensor without axes cannot be iterated over")
        return iter(self.unbind(0))

    def __bool__(self) -> bool:
        if self.numel() != 1:
            raise ShapeError(
                f"the truth of a tensor of shape {show_shape(self.shape)} is not one truth; "
                "use any() or all()"
            )
        return bool(self.item())

    def __contains__(self, value: Any) -> bool:
        return bool(self.eq(value).any())

    def __format__(self, spec: str) -> str:
        """`f"{loss:.3f}"` of one element is its number's; without a format, the tensor's own text."""
        return format(self.item(), spec) if spec else str(self)

    def __int__(self) -> int:
        return int(self.item())

    def __float__(self) -> float:
        return float(self.item())

    def __index__(self) -> int:
        value = self.item()
        if not isinstance(value, int) or isinstance(value, bool):
            raise OperandError(f"a tensor of {self.dtype} is no index")
        return value

    def __reduce__(self) -> Any:
        return _restore, (type(self), self.numpy().copy(), self.device, self._leaf)

    def __copy__(self) -> Self:
        return self._new(identified(self.uop))

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        copied: Self = _restore(type(self), self.numpy().copy(), self.device, self._leaf)  # type: ignore[assignment]
        memo[id(self)] = copied
        return copied

    def clone(self) -> Self:
        """A copy with memory of its own; gradients flow through it.

        >>> Tensor([1, 2]).clone().tolist()
        [1, 2]
        """
        return self.contiguous()

    def __repr__(self) -> str:
        head = f"Tensor {show_shape(self.shape)} {self.dtype} on {self.device}"
        if not self.is_realized:
            return f"<{head}, lazy>"
        count = self.numel()
        if not isinstance(count, int) or count > _SMALL:
            return f"<{head}>"
        text = np.array2string(np.asarray(self.numpy()), separator=", ", threshold=64, prefix=" ")
        return f"<{head}:\n {text}>" if "\n" in text else f"<{head}: {text}>"


def _restore(cls: type[Export], array: Array, device: str, leaf: bool = False) -> Export:
    tensor = cls._new(node_of(array, None, device))
    if leaf:
        tensor.requires_grad_()  # type: ignore[attr-defined]
    return tensor


def _python(array: Array) -> Any:
    """Python numbers; of types that NumPy does not know itself, through float."""
    plain = array if array.dtype.kind in "biuf" else array.astype(np.float32)
    return plain.tolist()


def show_memory(view: UOp) -> Array:
    """The array that a view of memory stands for: movement on the host, without copying."""
    chain = []
    while view.op is not Ops.BUFFER:
        chain.append(view)
        view = view.src[0]
    array: Array = as_host(buffer_for(view))
    for node in reversed(chain):
        array = _moved(array, node)
    return array


def _moved(array: Array, node: UOp) -> Array:
    if not node.op.is_movement:  # another name for the same values
        return array
    sizes = [concrete(size_of(s)) for s in node.src[1:]]
    if node.op is Ops.RESHAPE:
        return array.reshape(sizes)
    if node.op is Ops.EXPAND:
        return np.broadcast_to(array, sizes)
    if node.op is Ops.PERMUTE:
        return array.transpose(node.arg)
    if node.op is Ops.FLIP:
        return array[tuple(slice(None, None, -1 if f else 1) for f in node.arg)]
    assert node.op is Ops.SHRINK, node.op
    return array[tuple(slice(a, b) for a, b in zip(sizes[::2], sizes[1::2], strict=True))]
