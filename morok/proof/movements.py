"""Laws about tensors that are only moved: which element of the source stands at each place of the result.

Every element of the source gets a number of its own and the padding gets 0, so two graphs with the same
numbers at all places are equal for every content of the memory. Shapes, boxes and amounts are generated;
sizes that are known later are variables, and all their values are tried.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from morok.dtype import float32, index
from morok.errors import MorokError
from morok.ir import movement
from morok.ir.infer import shape, size_node
from morok.ir.node import UOp, make, toposort
from morok.ir.ops import Op, Ops
from morok.proof.expressions import Maker
from morok.proof.graphs import evaluate_graph
from morok.proof.verdicts import PROVED, REFUTED, UNKNOWN, Verdict

_MOVED = (Ops.RESHAPE, Ops.EXPAND, Ops.PERMUTE, Ops.SHRINK, Ops.PAD, Ops.FLIP)
_KEPT = (Ops.DETACH, Ops.CONTIGUOUS)
_SHAPES = ((4,), (3, 2), (1, 3), (2, 1, 3), (1, 1), (2, 2, 2), (5, 1), (0, 2), ())


def chains(maker: Maker) -> Iterator[UOp]:
    """One, two and three movements in a row, on a tensor whose first size is perhaps known later."""
    rng = maker.rng
    sizes = rng.choice(_SHAPES)
    x = movement.reshape(make(Ops.PARAM, float32, (), (0, math.prod(sizes), "CPU")), sizes)
    if sizes and sizes[0] > 1 and rng.random() < 0.3:
        known_later = make(Ops.DEFINE_VAR, index, (), ("n", rng.choice((0, 1)), sizes[0]))
        x = movement.shrink(x, [(0, known_later), *((0, s) for s in sizes[1:])])
    again = rng.random() < 0.6
    op: Op = rng.choice((*_MOVED, *_KEPT))
    for _ in range(3):
        x = _moved(maker, x, op if again else rng.choice((*_MOVED, *_KEPT)))
        yield x


def _moved(maker: Maker, x: UOp, op: Op) -> UOp:
    """The op on x with some arguments, often with those that change nothing."""
    rng = maker.rng
    own: Any = shape(x)
    if op in _KEPT:
        return make(op, x.dtype, (x,))
    same = rng.random() < 0.3
    if op is Ops.PERMUTE:
        axes = list(range(len(own)))
        return make(op, x.dtype, (x,), tuple(axes if same else rng.sample(axes, len(axes))))
    if op is Ops.FLIP:
        return make(op, x.dtype, (x,), tuple(rng.random() < 0.5 for _ in own))
    if op is Ops.RESHAPE:
        return make(op, x.dtype, (x, *map(size_node, own if same else _reshaped(maker, own))))
    if op is Ops.EXPAND:
        wanted = [rng.choice((1, 2, 3)) if s == 1 and not same else s for s in own]
        return make(op, x.dtype, (x, *map(size_node, wanted)))
    ends: list[Any] = []
    for size in own:
        if op is Ops.PAD:
            ends += (0, 0) if same else (rng.randrange(3), rng.randrange(3))
        elif same or not isinstance(size, int):
            ends += (0, size)
        else:
            start = rng.randint(0, size)
            ends += (start, rng.randint(start, size))
    return make(op, x.dtype, (x, *map(size_node, ends)))


def _reshaped(maker: Maker, own: tuple[Any, ...]) -> list[Any]:
    if not all(isinstance(s, int) for s in own):
        return [*own, 1] if maker.rng.random() < 0.5 else [1, *own]
    count = math.prod(own)
    known = [s for s in _SHAPES if math.prod(s) == count]
    return list(maker.rng.choice([*known, (count,), (1, count), (count, 1), tuple(reversed(own))]))


def same_elements(before: UOp, after: UOp) -> Verdict:
    """Whether the same elements stand at the same places, for all sizes that are known later."""
    if before.dtype is not after.dtype:
        return Verdict(REFUTED, f"the types differ: {before.dtype} and {after.dtype}")
    free = [n for n in toposort(before, after) if n.op is Ops.DEFINE_VAR]
    choices = [range(int(n.arg[1]), int(n.arg[2]) + 1) for n in free]
    for values in itertools.product(*choices):
        given = dict(zip(free, values, strict=True))
        try:
            x, y = _elements(before, given), _elements(after, given)
        except (MorokError, KeyError) as error:
            return Verdict(UNKNOWN, str(error))
        except ValueError as error:  # NumPy has no such shape
            return Verdict(REFUTED, str(error))
        if x.shape != y.shape or (x != y).any():
            named = {str(n.arg[0]): v for n, v in given.items()}
            return Verdict(REFUTED, f"{x.tolist()} before and {y.tolist()} after", named)
    return Verdict(PROVED)


def _elements(root: UOp, given: dict[UOp, Any]) -> Any:
    """For each place of a tensor the number of the element that stands there."""
    done: dict[UOp, Any] = {}
    for n in toposort(root, stop=lambda n: n.dtype.is_index):
        if not n.dtype.is_index:
            sizes = [evaluate_graph(s, given)[0] for s in n.src if s.dtype.is_index]
            done[n] = _element(n, done[n.src[0]] if n.src else None, sizes)
    return done[root]


def _element(n: UOp, x: Any, sizes: list[int]) -> Any:
    pairs = list(zip(sizes[::2], sizes[1::2], strict=False))
    match n.op:
        case Ops.PARAM:
            return np.arange(1, n.arg[1] + 1)
        case Ops.RESHAPE:
            return x.reshape(sizes)
        case Ops.EXPAND:
            return np.broadcast_to(x, sizes)
        case Ops.PERMUTE:
            return x.transpose(n.arg)
        case Ops.SHRINK:
            return x[tuple(slice(start, stop) for start, stop in pairs)]
        case Ops.PAD:
            return np.pad(x, pairs) if pairs else x
        case Ops.FLIP:
            return x[tuple(slice(None, None, -1 if reverse else None) for reverse in n.arg)]
    if n.op in _KEPT:
        return x
    raise KeyError(f"{n.op.name} is no movement")
