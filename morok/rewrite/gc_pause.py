"""Python's collector of cycles, put off while the compiler works.

Graphs have no cycles, so a node goes when nobody holds it. The collector would walk over all living nodes
again and again while many are made, and find nothing: a tenth of the time of a compilation.
"""

from __future__ import annotations

import gc
import threading
from types import TracebackType
from typing import final

from morok.forks import at_fork

_MANY = 20_000  # objects of one block: it has compiled something, and what is left of that stays
_lock = threading.Lock()
_depth = 0
_was_on = False
_mine = threading.local()  # how deep this thread is in


def _forked() -> None:
    # The other threads have not come along, and will not leave their blocks.
    global _lock, _depth
    _lock = threading.Lock()
    others = _depth - getattr(_mine, "depth", 0)
    _depth -= others
    if others and _depth == 0 and _was_on:
        gc.enable()


at_fork(child=_forked)


@final
class GCPaused:
    """A `with` block without the collector. Nests, and several threads may be in one at once."""

    __slots__ = ()

    def __enter__(self) -> None:
        global _depth, _was_on
        with _lock:
            if _depth == 0:
                _was_on = gc.isenabled()
                gc.disable()
            _depth += 1
        _mine.depth = getattr(_mine, "depth", 0) + 1

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        global _depth
        _mine.depth -= 1
        with _lock:
            _depth -= 1
            if _depth == 0 and _was_on:
                if gc.get_count()[0] > _MANY:
                    _settle()
                gc.enable()


gc_paused = GCPaused()


def settle() -> None:
    """What is alive now counts as old: the collector need not walk over everything to find that out.

    Modules and plans stay. Beside a library of half a million objects a walk takes a quarter of a second, and
    it would come in the middle of a first call. Cycles that are garbage already go with the next full walk.
    """
    if gc.isenabled():
        _settle()


def _settle() -> None:
    if not gc.get_freeze_count():  # who has frozen objects wants them to remain so
        gc.freeze()
        gc.unfreeze()
