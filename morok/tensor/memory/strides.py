"""Chains of movement ops over memory: what they make of a node, and whether they walk it in even steps.

A view is a chain on a storage. Every op of it but RESHAPE keeps what is called strided: along each axis the
elements lie at equal distances. A RESHAPE keeps it where NumPy's would be a view, that is where the axes that
it joins lie within each other without gaps; anything else is a copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from morok.caches import Cache
from morok.dtype import bool_
from morok.ir import movement as move
from morok.ir.infer import Shape, Size, add_sizes, numel, shape, size_of, subtract_sizes
from morok.ir.node import UOp, alu, const, make, set_shape
from morok.ir.ops import Op, Ops
from morok.tensor.sizes import concrete

Array = npt.NDArray[Any]

_PLAIN = frozenset((Ops.RESHAPE, Ops.DETACH))  # leave all elements in order


class Step(NamedTuple):
    """A movement op without what it moves, and the shape that it leads to."""

    op: Op
    sizes: tuple[UOp, ...]
    arg: Any
    shape: Shape


Chain = tuple[Step, ...]


def step_of(node: UOp) -> Step:
    """A movement op as a step of a chain."""
    found = shape(node)
    assert found is not None
    return Step(node.op, node.src[1:], node.arg, found)


def moved(node: UOp, chain: Chain) -> UOp:
    """A chain on a node."""
    for op, sizes, arg, result in chain:
        node = make(op, node.dtype, (node, *sizes), arg)
        if node.shape_ is None:
            set_shape(node, result)
    return node


def is_whole(chain: Sequence[Step]) -> bool:
    """Whether a chain shows every element of what it is applied to."""
    return not any(step.op is Ops.SHRINK for step in chain)


def unmoved(value: UOp, chain: Chain, whole: Shape) -> UOp:
    """Elements of a view back at their places in the whole, zeros everywhere else."""
    for i in range(len(chain) - 1, -1, -1):
        value = _back(chain[i], value, chain[i - 1].shape if i else whole)
    return value


def replaced(whole: UOp, chain: Chain, value: UOp) -> UOp:
    """A whole with the part that a chain shows replaced, by position."""
    sizes = shape(whole)
    assert sizes is not None
    if is_whole(chain):
        return unmoved(value, chain, sizes)
    own = shape(value)
    assert own is not None
    everywhere = move.expand(move.reshape(const(bool_, True), (1,) * len(own)), own)
    return alu(Ops.WHERE, unmoved(everywhere, chain, sizes), unmoved(value, chain, sizes), whole)


def _back(step: Step, value: UOp, before: Shape) -> UOp:
    """One movement op undone."""
    if step.op is Ops.RESHAPE:
        return move.reshape(value, before)
    if step.op is Ops.PERMUTE:
        order: list[int] = list(step.arg)
        return move.permute(value, sorted(range(len(order)), key=order.__getitem__))
    if step.op is Ops.FLIP:
        return move.flip(value, step.arg)
    limits = [size_of(s) for s in step.sizes]
    pairs = list(zip(limits[::2], limits[1::2], strict=True))
    if step.op is Ops.SHRINK:
        amounts = [(low, subtract_sizes(size, high)) for (low, high), size in zip(pairs, before, strict=True)]
        return move.reshape(move.pad(value, amounts), before)
    if step.op is Ops.PAD:
        return move.shrink(
            value, [(low, add_sizes(low, n)) for (low, _), n in zip(pairs, before, strict=True)]
        )
    assert step.op is Ops.DETACH, step.op
    return value


_even: Cache[tuple[Chain, Shape], bool] = Cache("tensor.strides", 4096)


def is_strided(chain: Chain, known: int, whole: Shape) -> bool:
    """Whether a chain shows elements in even steps; that its first `known` steps do has been asked before."""
    if not any(step.op is Ops.RESHAPE for step in chain[known:]):
        return True
    if all(step.op in _PLAIN for step in chain):
        return True
    key = (chain, whole)
    found = _even.get(key)
    if found is None:
        found = _even[key] = _is_even(chain, whole)
    return found


def _is_even(chain: Chain, whole: Shape) -> bool:
    sizes = whole
    strides = _row_major(sizes)
    for step in chain:
        if step.op is Ops.RESHAPE:
            cut = _reshaped(sizes, strides, step.shape)
            if cut is None:
                return False
            strides = cut
        elif step.op is Ops.PERMUTE:
            strides = tuple(strides[axis] for axis in step.arg)
        elif step.op is Ops.FLIP:
            strides = tuple(_negated(s) if f else s for s, f in zip(strides, step.arg, strict=True))
        sizes = step.shape
    return True


def part_of(whole: Array, chain: Chain, memory: Array) -> Array | None:
    """What a chain shows of an array that lies in some memory, as a view; None if it has no even steps.

    Slices with steps pad what they cut into rows: what was added lies nowhere, and is not shown.
    """
    if whole.size and not np.may_share_memory(whole, memory):
        return None  # the whole itself could not be shown without a copy
    sizes, strides = whole.shape, whole.strides
    start = 0
    for step in chain:
        before, sizes = sizes, tuple([concrete(n) for n in step.shape])
        if step.op is Ops.RESHAPE:
            cut = _reshaped(before, strides, sizes)
            if cut is None:
                return None
            strides = tuple([concrete(stride) for stride in cut])
        elif step.op is Ops.PERMUTE:
            strides = tuple([strides[axis] for axis in step.arg])
        elif step.op is Ops.FLIP:
            ends = zip(before, strides, step.arg, strict=True)
            start += sum([(n - 1) * stride for n, stride, flipped in ends if flipped])
            strides = tuple([-s if f else s for s, f in zip(strides, step.arg, strict=True)])
        elif step.op is not Ops.DETACH:
            lows = [concrete(size_of(low)) for low in step.sizes[::2]]
            skipped = sum([low * stride for low, stride in zip(lows, strides, strict=True)])
            start += skipped if step.op is Ops.SHRINK else -skipped
    if 0 in sizes:
        return np.empty(sizes, whole.dtype)
    first = whole.ctypes.data - memory.ctypes.data + start
    return np.ndarray(sizes, whole.dtype, memory.view(np.uint8), first, strides)


def _negated(stride: Size) -> Size:
    return -stride if isinstance(stride, int) else stride  # symbolic ones are only compared with themselves


def _row_major(sizes: Shape) -> Shape:
    return tuple(numel(sizes[axis + 1 :]) for axis in range(len(sizes)))


def _reshaped(sizes: Shape, strides: Shape, wanted: Shape) -> Shape | None:
    """The strides of a reshaped view; None if it has none.

    Axes are taken in groups of equal size on both sides. Those of a group lie within each other, as one axis
    that is cut anew. Axes of size 1 have no place of their own.
    """
    if 0 in sizes:
        return _row_major(wanted)
    old = [(n, s) for n, s in zip(sizes, strides, strict=True) if n != 1]
    result: list[Size] = []
    at = 0
    i = 0
    while i < len(wanted):
        if wanted[i] == 1:
            result.append(1)
            i += 1
            continue
        if at == len(old):
            return None
        have, need = old[at][0], wanted[i]
        first, last, start = at, at, i
        while have != need:
            if not isinstance(have, int) or not isinstance(need, int):
                return None  # sizes that are not known are kept as they are
            if have < need:
                last += 1
                if last == len(old) or not isinstance(old[last][0], int):
                    return None
                have *= old[last][0]
            else:
                i += 1
                if i == len(wanted) or not isinstance(wanted[i], int):
                    return None
                need *= wanted[i]
        for axis in range(first, last):
            (_, outer), (n, inner) = old[axis], old[axis + 1]
            if not isinstance(outer, int) or not isinstance(inner, int) or outer != inner * n:
                return None
        step = old[last][1]
        group: list[Size] = []
        for n in reversed(wanted[start : i + 1]):
            group.append(step)
            if start != i:
                if not isinstance(step, int) or not isinstance(n, int):
                    return None
                step = step * n
        result += reversed(group)
        at, i = last + 1, i + 1
    return tuple(result) if at == len(old) else None
