"""One row times a matrix as it lies: who shares what of it."""

from __future__ import annotations

import importlib
from dataclasses import replace

import pytest

from morok.ir.infer import shape
from morok.ir.node import toposort
from morok.ir.ops import Ops
from morok.machine.files import load
from morok.schedule.graph.split_reductions import split_reductions
from tests.schedule import graphs as g

MODULE = importlib.import_module("morok.schedule.graph.split_reductions")


@pytest.mark.parametrize(
    ("cores", "steps", "columns", "pieces"), [(8, 1248, 2320, 8), (2, 1248, 2320, 0), (8, 512, 512, 0)]
)
def test_short_parts_of_a_matrix_row_are_not_shared(
    cores: int, steps: int, columns: int, pieces: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight threads with 290 columns each would fetch each other's. Two have a page of each row, and a small
    matrix is not worth a second kernel."""
    known = replace(load("avx512-amx"), cores=cores)
    monkeypatch.setattr(MODULE, "machine_of", lambda device: known)
    product = g.matmul(g.tensor(1, steps), g.tensor(steps, columns))
    kept = [n for n in toposort(split_reductions(product)) if n.op is Ops.CONTIGUOUS]
    assert [shape(n)[0] for n in kept if n.src[0].op is Ops.REDUCE_AXIS] == [pieces] * bool(pieces)
