"""Provenance attached anew: what is made from now on comes from the line that makes it now.

Equal nodes are one object, and an object has one origin: that of the line which made it first. A program that
asks for what another one has computed finds the other one's nodes, as long as somebody holds them, and with
them its lines; those of a schedule from the disk have none. Whoever looks at a program while it is compiled
(`morok view`, `morok trace`) wants the lines of that program. Inside of `renewed_origins` every node that was
there before gets a new origin when it is made again for the first time, and what rewriting has remembered on
it is forgotten, so that it is made again. Nodes stay the same objects; outside of it nothing costs anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from morok.ir import node as nodes
from morok.ir.node import Dormant, _Ref, _table, refer, set_memo


@contextmanager
def renewed_origins() -> Iterator[None]:
    """Nodes that exist already have the origin of who makes them inside."""
    for old in list(_table.values()):
        node = old()
        if node is not None:
            set_memo(node, None)
            _replace(old, refer(node, old.key, Dormant))
    try:
        yield
    finally:
        for old in list(_table.values()):
            if old.__class__ is Dormant and (node := _Ref.__call__(old)) is not None:
                _replace(old, refer(node, old.key))


def _replace(old: _Ref, new: _Ref) -> None:
    with nodes._lock:  # a child has another one
        if _table.get(old.key) is old:
            _table[old.key] = new
