"""From tensors back to Python: realise, arrays, numbers, text."""

from __future__ import annotations

from typing import Any

import numpy as np

from morok.device.base import as_host
from morok.device.buffer import Array
from morok.device.registry import get_device
from morok.errors import ShapeError
from morok.ir.infer import show_shape, size_of
from morok.ir.layout import is_mesh
from morok.ir.memory import base_of
from morok.ir.node import UOp
from morok.ir.ops import Ops
from morok.optimize.strategy import Config
from morok.runtime.plan import ExecutionPlan, buffer_for
from morok.tensor import realize as computation
from morok.tensor.calls.trace_cache import refuse_trace_cache
from morok.tensor.calls.tracing import is_tracing, refuse_values
from morok.tensor.core import C, Core, bind_to_memory
from morok.tensor.memory.states import is_computed, resolve
from morok.tensor.memory.storage import Storage, claim
from morok.tensor.memory.strides import part_of
from morok.tensor.realize import become_copy, part_guests
from morok.tensor.sharding import unshard
from morok.tensor.sizes import as_axis, concrete


def realize(x: C, *others: Any) -> C:
    """Compute this tensor and the others, together; work that they share is done once.

    >>> x = Tensor([1, 2]) + 1
    >>> x.realize().is_realized
    True
    """
    if not is_tracing():  # what is traced is computed at the end, with everything else
        refuse_trace_cache("what is computed at once")
        computation.realize([x, *others])
    return x


def prepare(x: C, *others: Any) -> ExecutionPlan:
    """The plan that would compute these tensors: its kernels and its memory. `plan.run()` runs it.

    A `Config` among the arguments says how its kernels are to be optimised.

    >>> x = Tensor([1.0, 2.0]) * 2.0
    >>> plan = x.prepare()
    >>> plan.run()
    >>> x.tolist()
    [2.0, 4.0]
    """
    tensors = [t for t in (x, *others) if not isinstance(t, Config)]
    plan = computation.prepare([t for t in tensors if not t.is_realized], alone=True)
    for config in others:
        if isinstance(config, Config):
            plan.config = config
    return plan


def is_realized(x: Core) -> bool:
    """Whether the values are in memory, so that nothing is left to compute."""
    return is_computed(x._uop)


def numpy(x: C) -> Array:
    """The values as a NumPy array.

    It shares memory with the tensor where the host can reach it. Later assignments to the tensor do not
    change the array; changes to the array change the tensor, and what is computed from it afterwards: also a
    lazy result that was built on the memory before, so realize such a one first. The array of a part of
    something that is not computed as a whole is a copy.

    >>> int(Tensor([1, 2]).numpy().sum())
    3
    """
    if (array := _unseen(x)) is not None:
        return array
    _ = x.uop
    storage = x._storage
    whole = _computed(storage)
    if x._chain and whole is None:  # a part that is computed alone: nobody would see what is written there
        return _look(x).copy()
    if whole is None:
        computation.realize([x])
        whole = resolve([x._uop])[0]
    memory = buffer_for(base_of(whole))
    if is_mesh(memory.device):
        return numpy(unshard(x))
    if not x._chain:
        bind_to_memory(storage, whole)  # it may have been computed as a part of something else
    if not _lies_evenly(whole, x) or not claim(base_of(whole), storage):
        # The array of memory that another storage owns would be a way to write there.
        if x._frozen is not None or not become_copy(storage):
            return _look(x).copy()
        computation.realize_storages([storage])
        whole = resolve([storage.node])[0]
    if not get_device(memory.device).on_host:  # the array is a copy
        return _look(x)
    part_guests(base_of(whole))
    storage.exposed = True
    array = _part(whole, x)
    return _look(x).copy() if array is None else array


def _computed(storage: Storage) -> UOp | None:
    """The view of memory that a storage is; None if it is to be computed."""
    return resolve([storage.node])[0] if is_computed(storage.node) else None


def _part(whole: UOp, x: C) -> Array | None:
    """The array of a tensor whose storage is memory; None if its elements lie in no even steps."""
    array = show_memory(whole)
    return part_of(array, x._chain, as_host(buffer_for(base_of(whole)))) if x._chain else array


def _lies_evenly(whole: UOp, x: C) -> bool:
    """Whether the array of a tensor shares the memory of its storage: each element once, in even steps."""
    node = whole
    cut = bool(
        x._chain
    )  # whether axes are joined or split after they were moved: NumPy says if that is a view
    reshaped = False
    while node.op is not Ops.BUFFER:
        if node.op is Ops.EXPAND:
            return False
        cut |= reshaped and node.op is not Ops.RESHAPE
        reshaped |= node.op is Ops.RESHAPE
        node = node.src[0]
    memory = buffer_for(node)
    if not cut or not get_device(memory.device).on_host:
        return True
    array = _part(whole, x)
    return array is not None and (not array.size or np.may_share_memory(array, as_host(memory)))


def _unseen(x: C) -> Array | None:
    """The values of a tensor that nobody has looked at so far: its memory is its own."""
    refuse_values()
    later = x.__dict__.get("_made_by")
    array: Array | None = None if later is None else later[0].array(later[1])
    return array


def _look(x: C) -> Array:
    """The same for one who does not write, nor keep it."""
    if (array := _unseen(x)) is not None:
        return array
    computation.realize([x])
    view = resolve([x._uop])[0]
    return _look(unshard(x)) if is_mesh(buffer_for(base_of(view)).device) else show_memory(view)


def item(x: C) -> Any:
    """The only element, as a Python number.

    >>> Tensor([2.5]).item()
    2.5
    """
    count = x.numel()
    if count != 1 and isinstance(count, int):
        raise ShapeError(
            f"item() needs one element, but shape {show_shape(x.shape)} has {count}; use tolist()"
        )
    array = _look(x)
    if array.size != 1:
        raise ShapeError(f"item() needs one element, but there are {array.size}; use tolist()")
    return _python(array.reshape(()))


def tolist(x: C) -> Any:
    """The values as nested lists of Python numbers; of a scalar, the number.

    >>> Tensor([[1, 2]]).tolist()
    [[1, 2]]
    """
    return _python(_look(x))


def size(x: C, dim: int | None = None, *, axis: int | None = None) -> Any:
    """The shape, or the size of one axis.

    >>> Tensor.ones(2, 3).size(1)
    3
    """
    where = dim if axis is None else axis
    return x.shape if where is None else x.shape[as_axis(where, x.ndim, x.shape)]


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
