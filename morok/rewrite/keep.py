"""Nodes that stay for a while, held by nobody else.

Kernels have much in common, from the numbers of lanes to whole inner loops. What is there still is not made
again, nor simplified; and stages that ask a node for nothing but itself remember what has become of it.
"""

from __future__ import annotations

from collections import deque
from sys import getrefcount
from typing import Any

from morok.ir import node as nodes
from morok.ir.args import LOOSE, arg_key
from morok.ir.node import UOp

_KEPT = 1 << 16  # nodes: 25 megabytes
_results: dict[Any, dict[UOp, UOp]] = {}  # by stage and machine


def keep_nodes() -> None:
    """From now on the nodes that were made last stay."""
    if nodes._kept is None:
        nodes._kept = deque(maxlen=_KEPT)


def kept_results(key: Any) -> dict[UOp, UOp] | None:
    """What became of nodes under this key in the kernels before; None where no nodes are kept."""
    if nodes._kept is None:
        return None
    found = _results.setdefault(key, {})
    if len(found) > _KEPT // 2:
        found.clear()
    return found


def drop_nodes() -> None:
    """From now on they do not. Those that nobody holds go all at once, which is half the work that their
    deaths would be one by one."""
    kept, nodes._kept = nodes._kept, None
    _results.clear()
    if kept is None:
        return
    table, alive = nodes._table, nodes._Ref.__call__
    with nodes._lock:
        while kept:
            node: Any = kept.pop()  # a user before its sources, which nobody else holds when their turn comes
            if getrefcount(node) > 2:
                continue
            arg = node.arg
            kind = arg.__class__
            key: Any = (node.op, node.dtype, node.src, arg_key(arg) if kind in LOOSE else arg, kind)
            ref: Any = table.pop(key, None)
            if ref is not None and alive(ref) is not node:
                table[key] = ref
            key = ref = None  # they hold the sources as well
