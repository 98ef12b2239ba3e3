"""A process that lowers kernels and ends keeps the nodes that it made last."""

import os

import pytest

from morok.dtype import int32
from morok.ir import node
from morok.ir.node import const, keep_nodes, live_nodes


def chain(first: int) -> None:
    """Makes nodes that nobody holds."""
    made = const(int32, first)
    for i in range(1, 100):
        made = made * const(int32, first + i)


def kept_in_a_child() -> bool:
    before = live_nodes()
    chain(10_000)
    if live_nodes() > before:
        return False
    node._KEPT = 400
    keep_nodes()
    chain(10_000)
    inside = live_nodes()
    keep_nodes()  # once is enough
    chain(10_000)
    if not before + 199 <= live_nodes() == inside:  # all were there
        return False
    for k in range(2, 20):
        chain(10_000 * k)
    return live_nodes() < before + 800  # those that were made last, and their sources


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a system without fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_was_made_last_stays() -> None:
    if (child := os.fork()) == 0:
        os._exit(0 if kept_in_a_child() else 3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert node._kept is None
