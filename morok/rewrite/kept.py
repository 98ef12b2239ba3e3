"""Nodes that stay for a while, whether somebody holds them or not.

The kernels of a program have much in common, from the numbers of lanes to whole inner loops. A node that is
there still is not made again, and what the engine remembers on it holds for the next kernel, too. Its origin
is the line of the kernel that made it first; so nothing is kept where somebody looks at kernels.
"""

from __future__ import annotations

from collections import deque
from threading import get_ident
from typing import final

from morok import knobs
from morok.forks import at_fork
from morok.ir import node
from morok.rewrite.observe import current

_MOST = 1 << 16  # nodes: 25 megabytes


@final
class KeptNodes:
    """A `with` block in which the nodes that were made last stay. Nests; several threads may be in one."""

    __slots__ = ("_inside",)

    def __init__(self) -> None:
        self._inside: list[int] = []  # threads, once for each block that they are in
        at_fork(child=self._forked)

    def __enter__(self) -> None:
        self._inside.append(get_ident())
        if node._kept is None and current() is None and not knobs.DEBUG.value:
            node._kept = deque(maxlen=_MOST)

    def __exit__(self, *_: object) -> None:
        self._inside.remove(get_ident())
        if not self._inside:
            node._kept = None

    def _forked(self) -> None:
        # The other threads have not come along, and will not leave their blocks.
        self._inside[:] = [thread for thread in self._inside if thread == get_ident()]
        if not self._inside:
            node._kept = None


kept_nodes = KeptNodes()
