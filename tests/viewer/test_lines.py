"""Lines are those of the program that is recorded, whoever has computed the same and still holds it."""

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from morok import Tensor, caches, knobs
from morok.schedule import schedule as schedules
from tests.viewer.recorded import data_of, record

SCRIPT = """import numpy as np
from morok import Tensor
x = Tensor(np.ones((33, 65), np.float32))
z = x * 3

y = z.softmax(-1)
y.realize()
"""


def _equal_elsewhere() -> Any:
    """What the script computes, compiled for these lines, and a plan that keeps its kernels."""
    x = Tensor(np.ones((33, 65), np.float32))
    plan = (x * 3).softmax(-1).prepare()
    plan.run()
    return plan


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(schedules, "_WORTH_KEEPING", -1.0)
    with knobs.override(DEVICE="CPU", CACHE=True, CACHE_PLANS=1, CACHE_DIR=str(tmp_path / "cache")):
        caches.clear_all()
        yield


def _check(page: Path) -> None:
    index, chunks = data_of(page)
    (number,) = [n for n, file in enumerate(index["files"]) if file["name"] == "script.py"]
    assert {tuple(row["at"]) for row in index["rows"]} == {(number, 6)}
    (kernel,) = index["kernels"]
    assert kernel["at"] == [number, 6]
    lines = {(file, line) for file, line, _ in kernel["lines"]}
    assert {file for file, _ in lines} == {number} and (number, 6) in lines
    for chunk in chunks:
        assert {file for file, _ in chunk["graphs"]["places"]} == {number}


def test_of_another_programs_kernels(tmp_path: Path, own_cache: None) -> None:
    plan = _equal_elsewhere()
    _check(record(tmp_path, SCRIPT))
    plan.run()


def test_of_kernels_that_came_from_the_disk_without_lines(tmp_path: Path, own_cache: None) -> None:
    plan = _equal_elsewhere()
    del plan
    caches.clear_all()
    gc.collect()
    plan = _equal_elsewhere()
    assert plan.schedule.items[0].ast.origin.code is None
    _check(record(tmp_path, SCRIPT))
    plan.run()
