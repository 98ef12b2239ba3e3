"""Chunks are made by several processes: the same as by one, whatever becomes of the children."""

import os
from pathlib import Path
from typing import Any

import pytest

from morok import knobs
from morok.device.processes import can_fork
from morok.viewer import pieces
from morok.viewer.sources import Sources
from tests.viewer.recorded import data_of, record

pytestmark = pytest.mark.skipif(not can_fork(), reason="children are forked on Linux only")

SCRIPT = """import numpy as np
from morok import Tensor
a = Tensor(np.linspace(-1, 1, 32 * 32, dtype=np.float32).reshape(32, 32))
b = (a @ a).realize()
c = (b * 2).softmax(-1).realize()
d = (c + b).sum(0).realize()
e = (d.exp() @ a).realize()
"""
MEASURED = ("seconds", "compile", "predicted", "proof", "chunk", "graph")  # and the order of chunks by it


def plain(value: Any) -> Any:
    """Data without what is measured."""
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items() if key not in MEASURED}
    return [plain(inner) for inner in value] if isinstance(value, list | tuple) else value


def by_kernel(page: tuple[dict[str, Any], list[dict[str, Any]]]) -> list[Any]:
    """Each kernel with its chunk and that of its graph."""
    index, chunks = page
    return [[plain(k), plain(chunks[k["chunk"]]), plain(chunks[k["graph"]])] for k in index["kernels"]]


def test_several_processes_write_what_one_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    makers = set()
    original = pieces.shared_out

    def counted(count: int, work: Any, processes: int) -> dict[int, bytes]:
        def signed(number: int) -> bytes:
            return os.getpid().to_bytes(8, "little") + work(number)

        found = original(count, signed, processes)
        makers.update(made[:8] for made in found.values())
        return {number: made[8:] for number, made in found.items()}

    monkeypatch.setattr(pieces, "shared_out", counted)
    with knobs.override(COMPILE_PROCESSES=1):
        alone = data_of(record(tmp_path, SCRIPT))
    assert not makers
    with knobs.override(COMPILE_PROCESSES=3):
        together = data_of(record(tmp_path, SCRIPT))
    assert len(makers) >= 1 and len(together[0]["kernels"]) >= 4
    assert by_kernel(together) == by_kernel(alone)
    for key in ("rules", "files", "notes"):
        assert together[0][key] == alone[0][key]


def test_what_a_child_cannot_say_is_made_here() -> None:
    """One fails, and one has met a file that the others do not know."""
    here, sources = os.getpid(), Sources()
    sources.file("known.py")

    def fails() -> tuple[dict[str, Any], dict[str, Any]]:
        if os.getpid() != here:
            raise ValueError
        return {"at": 1}, {}

    def another() -> tuple[dict[str, Any], dict[str, Any]]:
        return {"at": sources.file("another.py")}, {}

    made = pieces.all_pieces([another, fails, another, fails, another], sources, 3)
    assert [entry["at"] for entry, _ in made] == [1, 1, 1, 1, 1]
    assert sources.files == ["known.py", "another.py"]
