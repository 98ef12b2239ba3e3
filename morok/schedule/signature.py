"""The signature of a computation, as a key that costs one pass over the graph.

The nodes are numbered in the order of a walk, which follows from the graph's structure alone; ops, types,
arguments and the numbers of sources then say everything about the graph except which memory it reads. Graphs
with variables have no such key: their values are part of the graph, but not of its signature.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

from morok.ir.args import LOOSE, arg_key
from morok.ir.node import UOp
from morok.ir.ops import Ops

_VARIABLES = frozenset((Ops.BIND, Ops.DEFINE_VAR))


def graph_signature(outputs: Sequence[UOp], order: Sequence[UOp]) -> tuple[Any, ...] | None:
    """The signature of a graph given by all of its nodes, sources first; None if it holds variables."""
    ops = [node.op for node in order]
    if not _VARIABLES.isdisjoint(ops):
        return None
    number = dict(zip(order, range(len(order)), strict=True))
    sources = [node.src for node in order]
    return (
        tuple(ops),
        tuple([node.dtype for node in order]),
        tuple([None if node.arg is None else _argument(node) for node in order]),
        tuple(map(len, sources)),
        tuple(map(number.__getitem__, chain.from_iterable(sources))),
        tuple([number[node] for node in outputs]),
    )


def _argument(node: UOp) -> Any:
    if not node.src:  # all graphs share constants as they are; a number that tells buffers apart says nothing
        return None if node.op is Ops.UNIQUE else node
    arg = node.arg
    kind = arg.__class__
    if node.op is Ops.IDENTITY or node.op is Ops.CALL:
        return None  # a number that tells values apart says as little, and so does the name of a formula
    return kind, arg_key(arg) if kind in LOOSE else arg
