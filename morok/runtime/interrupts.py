"""Ctrl-C is not lost.

Nodes, tensors and buffers clean up after themselves while they die, and Python drops any exception that is
raised in such a place, an interrupt too. It is handed on to whatever runs next.
"""

from __future__ import annotations

import _thread
import signal
import sys
import threading
import time
from typing import Any

_other = sys.unraisablehook
_DELAY = 1e-3  # seconds


def _later() -> None:
    time.sleep(_DELAY)
    main = threading.main_thread().ident
    if main is not None and hasattr(signal, "pthread_kill"):
        signal.pthread_kill(main, signal.SIGINT)  # wakes it if it sleeps
    else:
        _thread.interrupt_main()


def _hand_on(unraisable: Any) -> None:
    if unraisable.exc_type is KeyboardInterrupt:
        # From here it would be dropped again, so another thread rings once this function is over.
        _thread.start_new_thread(_later, ())
    elif _other is not None:  # at the very end of a process modules have been taken apart
        _other(unraisable)


def keep_interrupts() -> None:
    """From now on an interrupt that Python would drop arrives a moment later."""
    global _other
    if sys.unraisablehook is not _hand_on:
        _other = sys.unraisablehook
        sys.unraisablehook = _hand_on
