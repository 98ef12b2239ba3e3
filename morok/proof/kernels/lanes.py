"""Lanes of values: what one is computed from, and a walk that computes it without recursion.

Both readers of a list take vectors apart this way: the one that asks where accesses go, and the one that
follows a value. They differ in what they make of a lane, and in where they stop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from morok.dtype import PtrDType
from morok.ir.node import UOp
from morok.ir.ops import Ops

Lane = tuple[UOp, int]
T = TypeVar("T")


def sources_of(node: UOp, lane: int) -> list[Lane] | None:
    """The lanes that a lane is computed from; None where that is no arithmetic on lanes."""
    op = node.op
    if op in (Ops.CONST, Ops.VCONST, Ops.DEFINE_VAR):
        return []
    if op in (Ops.RANGE, Ops.SPECIAL):
        return [(node.src[0], 0)]
    if op is Ops.GEP:
        return [(node.src[0], node.arg[lane])]
    if op in (Ops.VECTORIZE, Ops.CAT):
        for s in node.src:
            if lane < s.dtype.lanes:
                return [(s, lane)]
            lane -= s.dtype.lanes
    if op is Ops.VREDUCE:
        return [(node.src[0], i) for i in range(node.src[0].dtype.lanes)]
    if not op.is_alu or any(s.dtype.is_ptr for s in node.src):
        return None
    if op is Ops.BITCAST and node.src[0].dtype.lanes != node.dtype.lanes:
        return None
    return [(s, lane_of(s, lane)) for s in node.src]


def lane_of(node: UOp, lane: int) -> int:
    """The lane of an operand that belongs to a lane of the result: a scalar is the same for all of them."""
    return lane if node.dtype.lanes > 1 else 0


def compute(
    root: Lane,
    known: dict[Lane, T],
    sources: Callable[[UOp, int], list[Lane] | None],
    made: Callable[[UOp, int, tuple[T, ...] | None], T],
) -> T:
    """The value of a lane; `known` keeps those on the way. Without sources, `made` gets None."""
    stack = [root]
    while stack:
        key = stack[-1]
        if key in known:
            stack.pop()
            continue
        needs = sources(*key)
        if needs is None:
            known[key] = made(*key, None)
            continue
        pending = [s for s in needs if s not in known]
        if pending:
            stack += pending
            continue
        known[key] = made(*key, tuple([known[s] for s in needs]))
    return known[root]


def memory_of(address: UOp) -> UOp:
    """The memory that an address points into."""
    node = address
    while node.op in (Ops.INDEX, Ops.AFTER):
        node = node.src[0]
    assert isinstance(node.dtype, PtrDType)
    return node
