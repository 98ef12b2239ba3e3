"""Writing into tensors: `assign`, `t[...] = value`, `+=` and friends.

A tensor that has memory of its own keeps it: the write is a node of the graph and runs when the tensor, or
something made of it, is realised. Tensors that were derived before the assignment keep the old values, those
derived afterwards see the new ones, whatever is realised when. A tensor without memory of its own (lazy, or
a view of another's) simply becomes the new value.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from morok.dtype import bool_
from morok.errors import DTypeError, ShapeError
from morok.ir.bounds import vmax
from morok.ir.infer import Shape, Size, numel, show_shape, subtract_sizes
from morok.ir.movement import pad, reshape
from morok.ir.node import UOp, alu, const, make
from morok.ir.ops import Ops
from morok.tensor.core import Core, expand_to, require_shape
from morok.tensor.index import Steps, parse_key
from morok.tensor.realize import claim, is_overwritten, new_buffer
from morok.tensor.record import recorded
from morok.tensor.sizes import broadcast_shapes
from morok.tensor.sorting import Sorting
from morok.tensor.states import view_of


@recorded
class Assign(Sorting):
    """Memory that changes."""

    def assign(self, value: Any) -> Self:
        """Overwrite the tensor; the value is broadcast and converted to the tensor's type.

        >>> t = Tensor([1, 2, 3])
        >>> t.assign(t * 2).tolist()
        [2, 4, 6]
        """
        self._overwrite(self._fitting(value, self.shape))
        return self

    def _overwrite(self, new: UOp) -> None:
        memory = self._own_memory()
        self._uop = new if memory is None else _written(memory, memory, new)

    def __setitem__(self, key: Any, value: Any) -> None:
        if isinstance(key, Core) and key.dtype.is_bool:
            self._overwrite(self._where_true(key, value))
            return
        steps = parse_key(self.shape, key)
        if not steps.arrays:
            self._write(steps, self._fitting(value, self._basic(steps).shape))
            return
        part = self._basic(steps)
        new = part._with_rows(steps, value)
        if part.uop is self.uop:
            self._overwrite(new)
        else:
            self._write(steps, new)

    def _write(self, steps: Steps, new: UOp) -> None:
        """A part that slices and numbers name, overwritten."""
        part = self._basic(steps)
        if 0 in part.shape:
            return
        if not _is_view(part.uop):
            self._overwrite(self._with_part(steps, new))
            return
        memory = self._own_memory()
        if memory is None:  # lazy: give it memory, which is filled when it is first needed
            memory = write_to_new_memory(self)
        self._uop = _written(memory, self._new(memory)._basic(steps).uop, new)

    def _where_true(self, mask: Core, value: Any) -> UOp:
        """The tensor with a value wherever a mask over its first axes is true."""
        own, truths = self.shape, mask.shape
        if own[: len(truths)] != truths:
            raise ShapeError(f"a mask of shape {show_shape(truths)} does not fit {show_shape(own)}")
        rest = own[len(truths) :]
        flat = value if isinstance(value, Core) else self._from_data(value) if np.ndim(value) else None
        if flat is not None and len(flat.shape) > len(rest) and flat.shape != (1, *rest):
            raise ShapeError(
                f"a value of shape {show_shape(flat.shape)} under a mask whose truths are not known yet must "
                f"broadcast to {show_shape(rest)}; use masked_scatter for one value per truth"
            )
        new = self._fitting(value, rest)
        wide = expand_to(reshape(new, ((1,) * len(truths)) + rest), own)
        spread = expand_to(reshape(mask.uop, truths + (1,) * len(rest)), own)
        return alu(Ops.WHERE, spread, wide, expand_to(self.uop, own))

    def _own_memory(self) -> UOp | None:
        """The state of the memory that this tensor may write, or None."""
        node = self.uop
        root = node.src[0] if node.op is Ops.AFTER else node
        while root.op is Ops.RESHAPE:
            root = root.src[0]
        if root.op is not Ops.BUFFER or is_overwritten(root) or not claim(root, self):
            return None
        return node

    # --- parts that are no simple views

    def _chosen(self, condition: UOp, new: UOp) -> UOp:
        sizes = self.shape
        if broadcast_shapes(require_shape(condition), sizes) != sizes:
            raise ShapeError(
                f"a mask of shape {show_shape(require_shape(condition))} does not fit {show_shape(sizes)}"
            )
        return alu(Ops.WHERE, expand_to(condition, sizes), new, expand_to(self.uop, sizes))

    def _with_part(self, steps: Steps, value: UOp) -> UOp:
        """The whole tensor with a part replaced, by position."""
        inside = expand_to(const(bool_, True), require_shape(value))
        placed, hit = (self._new(x)._unindexed(steps) for x in (value, inside))
        return self._chosen(hit, placed)

    def _unindexed(self, steps: Steps) -> UOp:
        """The opposite of `_basic`: elements at their places in the whole, zeros elsewhere."""
        x = self.squeeze(tuple(steps.new)) if steps.new else self
        sizes = iter(x.shape)
        x = x.reshape([next(sizes) if kept else 1 for kept in steps.keep])
        for axis, stride in enumerate(steps.strides):
            if stride > 1:
                x = x._unstride(axis, stride, subtract_sizes(*steps.box[axis][::-1]))
        x = x.flip([axis for axis, f in enumerate(steps.flips) if f])
        amounts = [
            (low, subtract_sizes(size, high))
            for (low, high), size in zip(steps.box, steps.whole, strict=True)
        ]
        return pad(x.uop, amounts)

    def _unstride(self, axis: int, stride: int, size: Size) -> Self:
        """Zeros between the elements of an axis, `size` altogether."""
        own = self.shape
        gaps: list[Any] = [None] * (len(own) + 1)
        gaps[axis + 1] = (0, stride - 1)
        x = self.unsqueeze(axis + 1).pad(gaps).flatten(axis, axis + 1)
        return x.narrow(axis, 0, size)

    # --- operators

    def __iadd__(self, other: Any) -> Self:
        return self.assign(self.__add__(other))

    def __isub__(self, other: Any) -> Self:
        return self.assign(self.__sub__(other))

    def __imul__(self, other: Any) -> Self:
        return self.assign(self.__mul__(other))

    def __itruediv__(self, other: Any) -> Self:
        if not self.dtype.is_float:
            raise DTypeError(f"/= needs floats, because the quotient does not fit into {self.dtype}")
        return self.assign(self.__truediv__(other))


def write_to_new_memory(tensor: Core) -> UOp:
    """The first state of new memory: a tensor's value, written when it is first needed."""
    fresh = new_buffer(tensor.dtype, _capacity(tensor.shape), tensor.device)
    root = view_of(fresh, tensor.shape)
    claim(fresh, tensor)
    return _written(root, root, tensor.uop)


def _capacity(shape: Shape) -> int:
    count = numel(shape)
    return count if isinstance(count, int) else int(vmax(count))


def _is_view(node: UOp) -> bool:
    """Whether a part can be written where it is: no padding between it and the tensor."""
    while node.op.is_movement:
        if node.op is Ops.PAD:
            return False
        node = node.src[0]
    return True


def _written(memory: UOp, part: UOp, value: UOp) -> UOp:
    """The next state of memory: `part` of the state before overwritten."""
    root = memory.src[0] if memory.op is Ops.AFTER else memory
    write = make(Ops.ASSIGN, value.dtype, (part, value))
    return make(Ops.AFTER, root.dtype, (root, write))
