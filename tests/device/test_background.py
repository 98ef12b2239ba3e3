"""Work in the background: in order, once, with its errors, and across forks."""

import os
import threading

import pytest

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
