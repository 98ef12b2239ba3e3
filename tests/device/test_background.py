"""Work in the background: in order, once, with its errors, and across forks."""

import os
import threading
import time
from typing import Any

import pytest

from morok.device import background
from morok.device.background import Future


def test_values_and_errors() -> None:
    found = [Future(lambda i=i: i * i) for i in range(20)]
    assert [f.get() for f in found] == [i * i for i in range(20)]
    bad: Future[int] = Future(lambda: 1 // 0)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            bad.get()


def test_whoever_asks_first_computes() -> None:
    gate = threading.Event()
    calls: list[int] = []
    slow = Future(lambda: gate.wait(10))
    wanted = Future(lambda: calls.append(1) or 5)
    assert wanted.get() == 5  # the thread is still busy with the first
    gate.set()
    assert slow.get() and calls == [1]


def test_a_forked_child_computes_by_itself() -> None:
    gate = threading.Event()
    first = Future(lambda: gate.wait(10) or True)
    second = Future(lambda: 7)
    child = os.fork()
    if child == 0:
        gate.set()
        os._exit(0 if second.get() == 7 and first.get() and Future(lambda: 3).get() == 3 else 1)
    gate.set()
    assert os.waitpid(child, 0)[1] == 0
    assert second.get() == 7


def test_one_thread_serves_a_queue_whoever_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two, one would take the word that it ends, and whoever waits for the other would wait for ever."""
    worker = background._Worker()
    done = [Future(lambda: 1) for _ in range(4)]
    before = threads_at_work()
    together, made = threading.Barrier(4), threading.Thread.__init__

    def slowly(thread: threading.Thread, *given: Any, **named: Any) -> None:
        if named.get("name") == "morok-llvm":
            time.sleep(0.05)
        made(thread, *given, **named)

    def begin(later: Future[int]) -> None:
        together.wait()
        worker.add(later)

    monkeypatch.setattr(threading.Thread, "__init__", slowly)
    others = [threading.Thread(target=begin, args=(later,)) for later in done]
    for other in others:
        other.start()
    for other in others:
        other.join()
    assert threads_at_work() - before == 1
    stopped = threading.Thread(target=worker._stop, daemon=True)
    stopped.start()
    stopped.join(10)
    assert not stopped.is_alive() and threads_at_work() == before


def threads_at_work() -> int:
    return sum(thread.name == "morok-llvm" for thread in threading.enumerate())
