"""Nodes that are made in a block stay until its end, and no longer."""

import gc
import os
import threading

import pytest

from morok import Tensor, knobs
from morok.dtype import int32
from morok.ir import node
from morok.ir.node import const, live_nodes
from morok.rewrite import kept
from morok.rewrite.kept import kept_nodes


def chain(first: int, length: int = 100) -> None:
    """Makes nodes that nobody holds."""
    made = const(int32, first)
    for i in range(length):
        made = made * const(int32, first + i)


def test_they_stay_until_the_outer_block_ends() -> None:
    gc.collect()
    before = live_nodes()
    with kept_nodes:
        with kept_nodes:
            chain(10_000)
        inside = live_nodes()
        assert inside >= before + 200
        chain(10_000)
        assert live_nodes() == inside  # all were there
    assert live_nodes() <= before
    chain(10_000)
    assert live_nodes() <= before


def test_an_error_ends_the_block() -> None:
    before = live_nodes()
    with pytest.raises(ValueError), kept_nodes:
        chain(10_000)
        raise ValueError
    assert node._kept is None and live_nodes() <= before


def test_there_are_only_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "_MOST", 50)
    before = live_nodes()
    with kept_nodes:
        for k in range(20):
            chain(10_000 * k + 10_000)
        assert live_nodes() < before + 300  # what is kept holds its sources


def test_nothing_is_kept_where_somebody_looks_at_lines() -> None:
    with knobs.override(DEBUG=4), kept_nodes:
        assert node._kept is None


def test_they_stay_while_another_thread_is_in_a_block() -> None:
    entered, leave = threading.Event(), threading.Event()

    def other() -> None:
        with kept_nodes:
            entered.set()
            leave.wait()

    thread = threading.Thread(target=other)
    thread.start()
    entered.wait()
    before = live_nodes()
    with kept_nodes:
        chain(10_000)
    assert live_nodes() >= before + 200
    leave.set()
    thread.join()
    assert live_nodes() <= before


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a system without fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_child_is_in_no_block_of_a_thread_that_did_not_come_along() -> None:
    def code(child: int) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    entered, leave = threading.Event(), threading.Event()

    def other() -> None:
        with kept_nodes:
            entered.set()
            leave.wait()

    thread = threading.Thread(target=other)
    thread.start()
    entered.wait()
    try:
        if (child := os.fork()) == 0:
            os._exit(0 if node._kept is None else 3)
        assert code(child) == 0
        with kept_nodes:
            if (child := os.fork()) == 0:
                os._exit(3 if node._kept is None else 0)
            assert code(child) == 0
    finally:
        leave.set()
        thread.join()


def test_a_program_that_is_compiled_leaves_nothing_behind() -> None:
    x, y = Tensor.ones(6, 40).contiguous().realize(), Tensor.ones(40, 7).contiguous().realize()
    plan = Tensor.prepare((x @ y).softmax(-1), (x + 1).sum(0))
    plan.compile()
    gc.collect()
    assert node._kept is None
    with_plan = live_nodes()
    again = Tensor.prepare((x @ y).softmax(-1), (x + 1).sum(0))
    again.compile()
    del again
    gc.collect()
    assert live_nodes() <= with_plan
