"""Python's collector of cycles, put off while the compiler works.

Graphs have no cycles, so a node goes when nobody holds it. The collector would walk over all living nodes
again and again while many are made, and find nothing: a tenth of the time of a compilation.
"""

from __future__ import annotations

import gc
import threading
from types import TracebackType
from typing import final

_lock = threading.Lock()
_depth = 0
_was_on = False


@final
class NoCollection:
    """A `with` block without the collector. Nests, and several threads may be in one at once."""

    __slots__ = ()

    def __enter__(self) -> None:
        global _depth, _was_on
        with _lock:
            if _depth == 0:
                _was_on = gc.isenabled()
                gc.disable()
            _depth += 1

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        global _depth
        with _lock:
            _depth -= 1
            if _depth == 0 and _was_on:
                gc.enable()


no_collection = NoCollection()
