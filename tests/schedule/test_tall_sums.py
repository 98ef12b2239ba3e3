"""Sums across many rows: when threads share the rows, by what it saves."""

from __future__ import annotations

import importlib
from dataclasses import replace

import pytest

from morok.ir.infer import shape
from morok.ir.movement import reduce_axis
from morok.ir.node import toposort
from morok.ir.ops import Ops
from morok.machine.files import load
from morok.schedule.graph.split_reductions import split_reductions
from tests.schedule import graphs as g

MODULE = importlib.import_module("morok.schedule.graph.split_reductions")


@pytest.mark.parametrize(
    ("cores", "rows", "columns", "shares"),
    [
        (8, 1128, 440, True),  # 2 MB in one thread: 90 us on a Cascade Lake
        (2, 1128, 440, True),
        (8, 600, 440, True),
        (2, 2712, 584, True),
        (8, 200, 440, False),  # 10 us: threads would hardly be awake
        (2, 300, 440, False),
        (8, 64, 4096, False),  # the pieces' sums are as much as what is summed
        (8, 300, 4096, False),
        (1, 4096, 512, False),
    ],
)
def test_rows_are_shared_where_it_saves_time(
    cores: int, rows: int, columns: int, shares: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = replace(load("avx512-amx"), cores=cores)
    monkeypatch.setattr(MODULE, "machine_of", lambda device: known)
    total = reduce_axis(g.tensor(rows, columns), Ops.ADD, [0])
    kept = [n for n in toposort(split_reductions(total)) if n.op is Ops.CONTIGUOUS]
    pieces = [shape(n)[0] for n in kept if n.src[0].op is Ops.REDUCE_AXIS]
    assert len(pieces) == shares and all(8 <= n <= 16 for n in pieces)
