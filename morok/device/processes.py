"""Pieces of work on all cores: children of this process take them in turns with it.

Lowering a kernel is Python, which runs on one core of a process, and LLVM takes one caller at a time. A
forked child has everything that this process has loaded, so it begins at once. It is given nothing but
numbers of pieces, and sends bytes; what a child does not do, for whatever reason, is left to the caller, so
children change when something is there and never what. Only Linux forks safely enough for this.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import struct
import sys
import time
import warnings
from collections.abc import Callable
from typing import Final, cast, final

PATIENCE: Final = 20.0  # seconds without any result, at least, after which children are given up
LONGER: Final = 10.0  # times as long as the longest piece took here
_NUMBER = struct.Struct("<i")
_AT_ONCE = 1024  # numbers that a pipe holds before anybody reads: the least that systems promise is 4 KiB
_HEAD = struct.Struct("<iq")  # number of the piece, bytes that follow
_PR_SET_PDEATHSIG = 1
_ROOM = 1 << 20  # bytes of a pipe: the most that Linux gives to everybody


def can_fork() -> bool:
    """Whether children are worth a try here."""
    return sys.platform == "linux" and hasattr(os, "fork")


def _nothing() -> None:
    pass


def shared_out(
    count: int, work: Callable[[int], bytes], processes: int, meanwhile: Callable[[], None] = _nothing
) -> dict[int, bytes]:
    """What `work` gives for 0 … count-1, done by so many processes, this one among them.

    A number is missing if the child that took it failed; what fails here is raised. `meanwhile` is called
    when this process has nothing left to do but wait for the others.
    """
    found: dict[int, bytes] = {}
    for first in range(0, count, _AT_ONCE):
        done = _shared_out(range(first, min(first + _AT_ONCE, count)), work, processes, meanwhile)
        found.update(done)
    return found


def _shared_out(
    pieces: range, work: Callable[[int], bytes], processes: int, meanwhile: Callable[[], None]
) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    taken, given = os.pipe()
    children: list[_Child] = []
    try:
        try:
            os.write(given, b"".join(map(_NUMBER.pack, pieces)))
        finally:
            os.close(given)
        for _ in range(min(processes, len(pieces)) - 1):
            child = _fork(taken, work)
            if child is None:
                break
            children.append(child)
        longest = 0.0
        while (number := _take(taken)) is not None:
            started = time.monotonic()
            found[number] = work(number)
            longest = max(longest, time.monotonic() - started)
            while _collect(children, found, 0.0):
                pass
        meanwhile()
        while any(child.is_open for child in children):
            if not _collect(children, found, max(PATIENCE, LONGER * longest)):
                break
        return found
    finally:
        os.close(taken)
        for child in children:
            child.end()


def _take(pipe: int) -> int | None:
    """The next piece that nobody has begun."""
    number = os.read(pipe, _NUMBER.size)
    return _NUMBER.unpack(number)[0] if len(number) == _NUMBER.size else None


@final
class _Child:
    """A child as its parent sees it: what it has sent so far."""

    def __init__(self, process: int, pipe: int) -> None:
        self.process = process
        self.pipe = pipe
        self.is_open = True
        self.received = bytearray()

    def read(self, found: dict[int, bytes]) -> None:
        part = os.read(self.pipe, 1 << 16)
        self.is_open = bool(part)
        self.received += part
        while len(self.received) >= _HEAD.size:
            number, size = _HEAD.unpack_from(self.received)
            if len(self.received) < _HEAD.size + size:
                return
            found[number] = bytes(self.received[_HEAD.size : _HEAD.size + size])
            del self.received[: _HEAD.size + size]

    def end(self) -> None:
        """However it stands: a child that has not ended is ended."""
        os.close(self.pipe)
        with contextlib.suppress(OSError):  # somebody else may have waited for it
            if self.is_open:
                os.kill(self.process, signal.SIGKILL)
            os.waitpid(self.process, 0)


def _collect(children: list[_Child], found: dict[int, bytes], seconds: float) -> bool:
    """Takes in what children have sent, waiting so long for the first of it; False if nothing came."""
    pipes = {child.pipe: child for child in children if child.is_open}
    if not pipes:
        return False
    ready, _, _ = select.select(list(pipes), [], [], seconds)
    for pipe in ready:
        pipes[pipe].read(found)
    return bool(ready)


def _fork(pieces: int, work: Callable[[int], bytes]) -> _Child | None:
    """A child at work; None if the system has no room for another process."""
    reading, writing = os.pipe()
    _widen(writing)
    parent, follow = os.getpid(), _end_of_parent()
    try:
        with warnings.catch_warnings():
            # Newer Pythons warn of forks beside threads. Locks are seen to (`forks.py`), and a child that
            # hangs all the same is given up.
            warnings.simplefilter("ignore", DeprecationWarning)
            process = os.fork()
    except OSError:
        os.close(reading)
        os.close(writing)
        return None
    if process:
        os.close(writing)
        return _Child(process, reading)
    try:
        follow(_PR_SET_PDEATHSIG, signal.SIGKILL)  # nobody reads what an orphan sends: it would wait for ever
        if os.getppid() != parent:
            os._exit(0)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        while (piece := _take(pieces)) is not None:
            made = work(piece)
            _send(writing, _HEAD.pack(piece, len(made)) + made)
    except BaseException:  # the parent finds the piece missing, and does it where errors are seen
        pass
    finally:
        os._exit(0)


def _end_of_parent() -> Callable[..., object]:
    """Linux's way to be told of a parent's end; looked up before the fork, where imports are safe."""
    import ctypes

    return cast("Callable[..., object]", ctypes.CDLL(None).prctl)


def _widen(pipe: int) -> None:
    """Gives a pipe more room: a child goes on with its next piece while this process is at one of its own."""
    import fcntl  # which not every system has

    with contextlib.suppress(OSError, AttributeError):
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _ROOM)


def _send(pipe: int, message: bytes) -> None:
    rest = memoryview(message)
    while rest:
        rest = rest[os.write(pipe, rest) :]
