"""Work that goes on while Python lowers the next kernel: LLVM runs outside of Python's lock.

One thread takes the work in order. Who needs a result that nobody has begun yet computes it on the spot, so
there is nothing to wait for in a queue, and a forked child, which has no such thread, does all by itself.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar, final

from morok.forks import at_fork

T = TypeVar("T")
_SWITCH = 5e-4  # seconds that Python may go on after LLVM has finished a step


@final
class Future(Generic[T]):
    """A value that is being computed in the background."""

    __slots__ = ("_begun", "_done", "_error", "_finished", "_lock", "_process", "_value", "_work")

    def __init__(self, work: Callable[[], T]) -> None:
        self._work: Callable[[], T] | None = work
        self._lock = threading.Lock()
        self._begun = self._finished = False
        self._done = threading.Event()
        self._process = os.getpid()
        self._value: T | None = None
        self._error: BaseException | None = None
        _worker.add(self)

    def run(self) -> None:
        """Computes the value, unless somebody else has begun."""
        with self._lock:
            if self._begun:
                return
            self._begun = True
        work = self._work
        assert work is not None
        try:
            self._value = work()
        except Exception as error:  # the one who asks shall see it
            self._error = error
        self._finished = True  # before the work goes: a child that is forked in between has one or the other
        self._work = None
        self._done.set()

    def get(self) -> T:
        """The value; waits if another thread is at it."""
        if not self._finished:
            if self._process != os.getpid():
                # the thread that was at it has not survived the fork, and may have held the locks
                self._lock, self._done = threading.Lock(), threading.Event()
                self._begun, self._process = False, os.getpid()
            self.run()
            self._done.wait()
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]


@final
class _Worker:
    """The thread, started with the first piece of work."""

    def __init__(self) -> None:
        self._reset()
        self._usual: float | None = None  # Python's interval, while it is another one
        at_fork(child=self._forked)
        atexit.register(self._stop)

    def _reset(self) -> None:
        self._lock = threading.Lock()  # two threads of one queue would not both hear that it ends
        self._queue: SimpleQueue[Future[object] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def _forked(self) -> None:
        self._reset()
        if self._usual is not None:
            sys.setswitchinterval(self._usual)

    def add(self, later: Future[T]) -> None:
        with self._lock:
            if self._thread is None and not self._started():
                return
        self._queue.put(later)  # type: ignore[arg-type]

    def _started(self) -> bool:
        """Starts the thread; False where there is no room for it: whoever needs a result computes it."""
        thread = threading.Thread(target=self._loop, args=(self._queue,), name="morok-llvm", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            return False
        self._thread = thread
        return True

    def _loop(self, queue: SimpleQueue[Future[object] | None]) -> None:
        # A thread that comes back from LLVM waits for Python's lock as long as the interval says, many times
        # per kernel; the usual 5 ms would leave LLVM idle for a fifth of the time.
        while (later := queue.get()) is not None:
            self._usual = usual = sys.getswitchinterval()
            sys.setswitchinterval(min(usual, _SWITCH))
            try:
                later.run()
            finally:
                sys.setswitchinterval(usual)
                self._usual = None

    def _stop(self) -> None:
        # LLVM must not be at work while the process takes itself apart.
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is None:
            return
        with suppress(Empty):
            while True:
                self._queue.get_nowait()
        self._queue.put(None)
        thread.join()


_worker = _Worker()
