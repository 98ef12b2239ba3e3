"""Jobs in processes of their own, so many at a time; a job is a function whose result is a value."""

from __future__ import annotations

import contextlib
import os
import pickle
import resource
import select
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

T = TypeVar("T")
LOST = "the process died"


class Late(BaseException):
    """A time limit has passed; tests and rules that catch exceptions do not catch this one."""


@contextlib.contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Raises `Late` after so many seconds of the processor."""

    def stop(number: int, frame: Any) -> None:
        raise Late

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        signal.signal(signal.SIGPROF, before)


def run(work: Iterable[tuple[T, Callable[[], Any]]], jobs: int, most: float) -> Iterator[tuple[T, Any]]:
    """Each with its result; `LOST` if it died or took more than `most` seconds of the processor."""
    waiting = iter(work)
    running: dict[int, tuple[T, int]] = {}  # by the pipe's number
    more = True
    while more or running:
        while more and len(running) < jobs:
            found = next(waiting, None)
            if found is None:
                more = False
                break
            pipe, process = _start(found[1], most)
            running[pipe] = found[0], process
        ready, _, _ = select.select(list(running), [], [], 1.0)
        for pipe in ready:
            name, process = running.pop(pipe)
            with os.fdopen(pipe, "rb") as file:
                data = file.read()
            os.waitpid(process, 0)
            yield name, pickle.loads(data) if data else LOST


def _start(job: Callable[[], Any], most: float) -> tuple[int, int]:
    sys.stdout.flush()
    reader, writer = os.pipe()
    process = os.fork()
    if process:
        os.close(writer)
        return reader, process
    try:
        os.close(reader)
        resource.setrlimit(resource.RLIMIT_CPU, (int(most), int(most) + 5))
        with open(os.devnull, "w") as nothing:
            os.dup2(nothing.fileno(), 1)
            os.dup2(nothing.fileno(), 2)
        try:
            result = job()
        except BaseException as error:
            result = error if isinstance(error, Late) else f"{type(error).__name__}: {error}"
        with os.fdopen(writer, "wb") as file:
            pickle.dump(result, file)
    finally:
        os._exit(0)
