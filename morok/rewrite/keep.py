"""Nodes that stay for a while, held by nobody else.

Kernels have much in common, from the numbers of lanes to whole inner loops. What is there still is not made
again, nor simplified.
"""

from __future__ import annotations

from collections import deque
from sys import getrefcount
from typing import Any

from morok.ir import node as nodes
from morok.ir.args import LOOSE, arg_key

_KEPT = 1 << 16  # nodes: 25 megabytes


def keep_nodes() -> None:
    """From now on the nodes that were made last stay."""
    if nodes._kept is None:
        nodes._kept = deque(maxlen=_KEPT)


def drop_nodes() -> None:
    """From now on they do not. Those that nobody holds go all at once, which is half the work that their
    deaths would be one by one."""
    kept, nodes._kept = nodes._kept, None
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
