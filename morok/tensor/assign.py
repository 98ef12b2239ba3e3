"""Writing into tensors: `assign`, `t[...] = value`, `+=` and friends.

A write goes to a place: the storage behind a tensor, under the tensor's view of it. All tensors that show the
place see it from then on; what was computed before keeps the values of its line, whatever is realised when.
A storage that has memory of its own keeps it: the write is a node of the graph and runs when something that
shows the storage is realised.
"""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np

from morok.device.buffer import find_buffer
from morok.device.registry import default_device
from morok.errors import AssignError, DTypeError, ShapeError
from morok.ir import movement as move
from morok.ir.bounds import vmax
from morok.ir.infer import Shape, numel, show_shape
from morok.ir.layout import is_mesh
from morok.ir.memory import base_of
from morok.ir.node import UOp, alu, make
from morok.ir.ops import Ops
from morok.tensor.arrays.index import INDEXED, basic_index, parse_key
from morok.tensor.arrays.scatter import fitted, with_rows
from morok.tensor.calls.tracing import is_tracing
from morok.tensor.core import Core, expand_to, require_shape
from morok.tensor.creation.constructors import as_operand
from morok.tensor.creation.sources import on_device
from morok.tensor.elementwise import arithmetic, comparison
from morok.tensor.elementwise.operators import T
from morok.tensor.gradient_track import is_tracked
from morok.tensor.memory.names import new_buffer
from morok.tensor.memory.states import view_of
from morok.tensor.memory.storage import (
    Storage,
    claim,
    first_device,
    graph_device,
    has_device,
    identified,
    realized_as,
)
from morok.tensor.memory.strides import Chain, is_whole, moved, replaced, unmoved
from morok.tensor.realize import is_overwritten, realize_storages
from morok.tensor.sharding import natural_placement


def assign(x: T, value: Any) -> T:
    """Overwrite the tensor; the value is broadcast and converted to the tensor's type.

    >>> t = Tensor([1, 2, 3])
    >>> t.assign(t * 2).tolist()
    [2, 4, 6]
    """
    _overwrite(x, fitted(x, value, x.shape))
    return x


def _overwrite(x: T, new: UOp) -> None:
    refuse_frozen(x)
    write(x._storage, x._chain, new)


def setitem(x: T, key: Any, value: Any) -> None:
    if isinstance(key, Core) and key.dtype.is_bool and (is_tracing() or not _one_each(x, key, value)):
        _overwrite(x, _where_true(x, key, value))
        return
    steps = parse_key(x.shape, key)
    part = basic_index(x, steps)
    new = with_rows(part, steps, value) if steps.arrays else fitted(x, value, part.shape)
    if 0 not in part.shape:
        _overwrite(part, new)


def _one_each(x: T, mask: Core, value: Any) -> bool:
    """Whether a value has an axis for the truths of a mask: how many there are must be known then."""
    sizes = value.shape if isinstance(value, Core) else np.shape(value)
    return len(sizes) > x.ndim - mask.ndim >= 0 and sizes[0] != 1


def _where_true(x: T, mask: Core, value: Any) -> UOp:
    """The tensor with a value wherever a mask over its first axes is true."""
    own, truths = x.shape, mask.shape
    if own[: len(truths)] != truths:
        raise ShapeError(f"a mask of shape {show_shape(truths)} does not fit {show_shape(own)}")
    rest = own[len(truths) :]
    flat = as_operand(x, value) if np.ndim(value) else None
    if flat is not None and len(flat.shape) > len(rest) and flat.shape != (1, *rest):
        raise ShapeError(
            f"a value of shape {show_shape(flat.shape)} under a mask whose truths are not known yet must "
            f"broadcast to {show_shape(rest)}; use masked_scatter for one value per truth"
        )
    new = fitted(x, value, rest)
    wide = expand_to(move.reshape(new, ((1,) * len(truths)) + rest), own)
    spread = expand_to(move.reshape(mask.uop, truths + (1,) * len(rest)), own)
    return alu(Ops.WHERE, spread, wide, expand_to(x.uop, own))


# --- operators


def in_place(x: T, sign: str, result: Any) -> T:
    """The result of an operator where its operand was; as in NumPy, not of another kind."""
    if result.dtype.is_float and not x.dtype.is_float:
        raise DTypeError(f"{sign}= gives {result.dtype} here, which does not fit into {x.dtype}")
    if x._frozen is INDEXED:  # x[places] += y goes on to assign what comes of it
        return x._new(fitted(x, result, x.shape))
    return assign(x, result)


def iadd(x: T, other: Any) -> T:
    return in_place(x, "+", arithmetic.add(x, other))


def isub(x: T, other: Any) -> T:
    return in_place(x, "-", arithmetic.sub(x, other))


def imul(x: T, other: Any) -> T:
    return in_place(x, "*", arithmetic.mul(x, other))


def itruediv(x: T, other: Any) -> T:
    if not x.dtype.is_float:
        raise DTypeError(f"/= needs floats, because the quotient does not fit into {x.dtype}")
    return in_place(x, "/", arithmetic.div(x, other))


def ifloordiv(x: T, other: Any) -> T:
    return in_place(x, "//", arithmetic.floor_divide(x, other))


def imod(x: T, other: Any) -> T:
    return in_place(x, "%", arithmetic.remainder(x, other))


def ipow(x: T, other: Any) -> T:
    return in_place(x, "**", arithmetic.pow(x, other))


def iand(x: T, other: Any) -> T:
    return in_place(x, "&", comparison.bitwise_and(x, other))


def ior(x: T, other: Any) -> T:
    return in_place(x, "|", comparison.bitwise_or(x, other))


def ixor(x: T, other: Any) -> T:
    return in_place(x, "^", comparison.bitwise_xor(x, other))


def ilshift(x: T, other: Any) -> T:
    return in_place(x, "<<", comparison.bitwise_left_shift(x, other))


def irshift(x: T, other: Any) -> T:
    return in_place(x, ">>", comparison.bitwise_right_shift(x, other))


def refuse_frozen(tensor: Core) -> None:
    """An error if a tensor is no place to write to."""
    reason = tensor._frozen or tensor._storage.frozen
    if reason is not None:
        raise AssignError(reason)


def write(storage: Storage, chain: Chain, value: UOp) -> None:
    """The part of a storage that a chain shows is overwritten."""
    chain = tuple([step for step in chain if step.op is not Ops.DETACH])
    if chain and value is moved(storage.node, chain):
        return  # y[i] += v has written when Python goes on to y[i] = y[i]
    state = own_state(storage)
    if any(step.op is Ops.PAD for step in chain):  # steps through an axis that they do not divide
        value, chain = replaced(storage.node, chain, value), ()
    if state is None:
        if is_whole(chain):  # simply becomes the new value
            new = unmoved(value, chain, require_shape(storage.node))
            home = first_device(storage.node)
            if home not in (None, default_device()) and not has_device(new):  # a tensor stays where it is
                new = on_device(new, home)
            storage.become(identified(new))
            return
        state = write_to_new_memory(storage)
    memory = find_buffer(base_of(state))
    states = _pending(state) if is_whole(chain) else [state]
    storage.become(_next_state(states[-1], chain, value))
    if len(states) > 1:  # what has been assigned is overwritten: what nobody reads of it is not computed
        known = [weakref.ref(node) for node in states[:-1]]
        del state, states
        if (read := next((node for ref in known if (node := ref()) is not None), None)) is not None:
            storage.become(_next_state(read, chain, value))
    if memory is not None and memory.is_shared and not is_tracing():
        realize_storages([storage])  # who shares the memory sees it at once


def _next_state(state: UOp, chain: Chain, value: UOp) -> UOp:
    """A state in which the part that a chain shows is overwritten."""
    return _written(state, moved(make(Ops.PLACE, state.dtype, (state,)), chain), value)


def _pending(state: UOp) -> list[UOp]:
    """States by assignments that have not run yet, the newest first, and the memory as it is before them."""
    states = [state]
    while state.op is Ops.AFTER and len(state.src) == 2 and state.src[1].op is Ops.ASSIGN:
        part = state.src[1].src[0]
        while part.op is not Ops.PLACE:
            part = part.src[0]
        done = realized_as(part.src[0])
        state = part.src[0] if done is None else done
        states.append(state)
    return states[:1] if is_overwritten(base_of(state)) else states


def own_state(storage: Storage) -> UOp | None:
    """The state of the memory that a storage may write; None if it has none."""
    node = realized_as(storage.node) if not is_tracked(storage.node) or storage.leaf else None
    node = storage.node if node is None else node
    root = node.src[0] if node.op is Ops.AFTER else node
    while root.op is Ops.RESHAPE:
        root = root.src[0]
    if root.op is not Ops.BUFFER or is_overwritten(root):
        return None
    return node if claim(root, storage) else None


def write_to_new_memory(storage: Storage) -> UOp:
    """The first state of new memory: what a storage holds, written when it is first needed."""
    node = storage.node
    sizes = require_shape(node)
    fresh = new_buffer(node.dtype, _capacity(sizes), home_of(node))
    claim(fresh, storage)
    root = view_of(fresh, sizes)
    return _written(root, make(Ops.PLACE, root.dtype, (root,)), node)


def home_of(node: UOp) -> str:
    """Where memory for a value is made: on a mesh, as the value lies."""
    name = graph_device(node)
    found = natural_placement(node) if is_mesh(name) else None
    return name if found is None else found.name


def _capacity(shape: Shape) -> int:
    count = numel(shape)
    return count if isinstance(count, int) else int(vmax(count))


def _written(state: UOp, part: UOp, value: UOp) -> UOp:
    """The next state of memory: `part`, a view of its place, overwritten."""
    root = state.src[0] if state.op is Ops.AFTER else state
    return make(Ops.AFTER, root.dtype, (root, make(Ops.ASSIGN, value.dtype, (part, value))))
