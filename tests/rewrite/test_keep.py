"""A process that lowers kernels keeps the nodes that it made last, until that is done."""

import gc
import subprocess
import sys
from pathlib import Path
from typing import Any

from morok.dtype import int32
from morok.ir import node
from morok.ir.node import const, live_nodes
from morok.rewrite import keep
from morok.rewrite.keep import drop_nodes, keep_nodes

ROOT = Path(__file__).parents[2]


def chain(first: int) -> None:
    """Makes nodes that nobody holds."""
    made = const(int32, first)
    for i in range(1, 100):
        made = made * const(int32, first + i)


def kept_in_a_child() -> bool:
    gc.collect()
    before = live_nodes()
    chain(10_000)
    if live_nodes() > before:
        return False
    keep._KEPT = 400
    keep_nodes()
    chain(10_000)
    inside = live_nodes()
    keep_nodes()  # once is enough
    chain(10_000)
    if not before + 199 <= live_nodes() == inside:  # all were there
        return False
    for k in range(2, 20):
        chain(10_000 * k)
    if not live_nodes() < before + 800:  # those that were made last, and their sources
        return False
    held = const(int32, 500_000) * const(int32, 500_001)
    forgotten = node._forget
    deaths: list[object] = []

    def counted(ref: Any) -> None:
        deaths.append(ref)
        forgotten(ref)

    node._forget = counted
    chain(600_000)
    drop_nodes()
    drop_nodes()
    # all but those that somebody holds, and without calls for each of them
    return live_nodes() == before + 3 and len(deaths) < 10 and held is const(int32, 500_000) * 500_001


def test_what_was_made_last_stays() -> None:
    """In a process of its own, where nothing of other tests is let go meanwhile."""
    code = "import sys; from tests.rewrite.test_keep import kept_in_a_child as ok; sys.exit(0 if ok() else 3)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
    assert node._kept is None
