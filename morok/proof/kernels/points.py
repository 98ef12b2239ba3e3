"""Closed conditions, computed at every point of their loops: exact, and quick where the points are few."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from morok.ir.arithmetic.alu import evaluate_array
from morok.ir.arithmetic.arrays import storage
from morok.ir.node import UOp, toposort
from morok.ir.ops import Ops

LEAVES = (Ops.RANGE, Ops.SPECIAL, Ops.DEFINE_VAR)


def leaves_of(*roots: UOp) -> list[UOp]:
    """The variables of closed nodes, ends of loops included."""
    return [n for n in toposort(*roots) if n.op in LEAVES]


def interval_of(leaf: UOp) -> tuple[int, int] | None:
    """The first and last value of a variable; None where there is no last one."""
    if leaf.op is Ops.DEFINE_VAR:
        low, high = leaf.arg[1:]
        return None if math.isinf(low) or math.isinf(high) else (int(low), int(high))
    from morok.ir.bounds import vmax

    end = vmax(leaf.src[0])
    return None if math.isinf(end) else (0, int(end) - 1)


def count(*roots: UOp) -> float:
    """How many points there are."""
    sizes = []
    for leaf in leaves_of(*roots):
        ends = interval_of(leaf)
        sizes.append(math.inf if ends is None else max(0, ends[1] - ends[0] + 1))
    return 0.0 if 0 in sizes else math.prod(map(float, sizes))  # infinite beyond the largest float


def counterexample(claim: UOp, given: Sequence[UOp]) -> dict[str, Any] | None:
    """A point where all of `given` hold and the claim does not; None if there is none."""
    if not count(claim, *given):  # a loop that never runs; others may be endless
        return None
    leaves = leaves_of(claim, *given)
    values: dict[UOp, Any] = {}
    shape = []
    for axis, leaf in enumerate(leaves):
        ends = interval_of(leaf)
        assert ends is not None
        points = np.arange(ends[0], ends[1] + 1, dtype=storage(leaf.dtype))
        own = [1] * len(leaves)
        own[axis] = points.size
        shape.append(points.size)
        values[leaf] = points.reshape(own)
    for node in toposort(claim, *given):
        if node in values:
            continue
        if node.op is Ops.CONST:
            values[node] = np.asarray(node.arg, dtype=storage(node.dtype))
        else:
            operands = [values[s] for s in node.src]
            values[node] = evaluate_array(node.op, node.src[-1].dtype, *operands, to=node.dtype)
    bad = ~values[claim]
    for condition in given:
        bad = bad & values[condition]
    for leaf in leaves:  # a loop whose end is not a constant
        if leaf.op is not Ops.DEFINE_VAR and leaf.src[0].op is not Ops.CONST:
            bad = bad & (values[leaf] < values[leaf.src[0]])
    bad = np.broadcast_to(bad, shape)
    if not bad.any():
        return None
    point = np.unravel_index(int(np.argmax(bad)), shape)
    return {name_of(leaf): int(values[leaf].reshape(-1)[i]) for leaf, i in zip(leaves, point, strict=True)}


def name_of(leaf: UOp) -> str:
    """A variable as people call it."""
    if leaf.op is Ops.RANGE:
        return f"r{leaf.arg[0]}"
    return str(leaf.arg[0] if leaf.op is Ops.DEFINE_VAR else leaf.arg)
