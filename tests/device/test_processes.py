"""Work on all cores: complete whatever becomes of the children, and nothing of them is left."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from morok import Tensor, knobs
from morok.device import processes
from morok.device.cpu import device as cpu
from morok.device.processes import _NUMBER, can_fork, shared_out
from morok.errors import CompileError
from morok.runtime.plan import _programs, requests

pytestmark = pytest.mark.skipif(not can_fork(), reason="children are forked on Linux only")

HERE = os.getpid()


def _children() -> set[int]:
    """Processes whose parent is this one, those that nobody has waited for among them."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            if int(stat.read_text().rpartition(")")[2].split()[1]) == os.getpid():
                found.add(int(stat.parent.name))
    return found


@pytest.fixture(autouse=True)
def _before() -> None:
    """Tests that ran earlier in this process may have children that still work."""
    global _known
    _known = _children()


def no_children() -> bool:
    return _children() <= _known


_known: set[int] = set()


def in_a_child() -> bool:
    return os.getpid() != HERE


def test_every_piece_is_done_once() -> None:
    def work(number: int) -> bytes:
        time.sleep(0.01)
        return b"%d %d" % (number, os.getpid())

    found = shared_out(20, work, 3)
    assert sorted(found) == list(range(20))
    assert all(int(text.split()[0]) == number for number, text in found.items())
    assert len({text.split()[1] for text in found.values()}) > 1
    assert no_children()


def test_who_waits_may_do_something_else() -> None:
    begun: list[float] = []

    def work(number: int) -> bytes:
        if in_a_child():
            time.sleep(0.5)
        return _NUMBER.pack(number)

    started = time.monotonic()
    found = shared_out(2, work, 2, lambda: begun.append(time.monotonic()))
    assert sorted(found) == [0, 1]
    assert len(begun) == 1 and started <= begun[0] <= time.monotonic()
    assert no_children()


def test_more_pieces_than_a_pipe_holds() -> None:
    found = shared_out(20_000, _NUMBER.pack, 2)
    assert found == {number: _NUMBER.pack(number) for number in range(20_000)}
    assert no_children()


def test_results_longer_than_a_pipe() -> None:
    found = shared_out(6, lambda number: bytes([number]) * 300_000, 3)
    assert found == {number: bytes([number]) * 300_000 for number in range(6)}


@pytest.mark.parametrize("fate", ["raises", "killed", "hangs", "exits"])
def test_what_a_child_does_not_do_is_missing(fate: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "PATIENCE", 0.3)

    def work(number: int) -> bytes:
        if in_a_child():
            if fate == "raises":
                raise CompileError("not here")
            if fate == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            if fate == "hangs":
                time.sleep(60)
            sys.exit(3)
        time.sleep(0.02)
        return b"here"

    started = time.monotonic()
    found = shared_out(8, work, 3)
    assert set(found.values()) == {b"here"} and 6 <= len(found) < 8  # each child took one with it
    assert time.monotonic() - started < 20 and no_children()


def test_what_fails_here_is_raised() -> None:
    def work(number: int) -> bytes:
        if in_a_child():
            time.sleep(60)
        raise CompileError("wrong")

    with pytest.raises(CompileError, match="wrong"):
        shared_out(5, work, 3)
    assert no_children()


def test_no_room_for_children(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> int:
        raise BlockingIOError("no more processes")

    monkeypatch.setattr(os, "fork", refuse)
    assert shared_out(3, lambda number: b"x", 4) == {0: b"x", 1: b"x", 2: b"x"}


# --- kernels


def program(factor: float) -> tuple[list[Tensor], list[np.ndarray]]:
    """Kernels of four kinds that nobody has compiled before: a number alone does not make others."""
    rows = round(factor * 16)
    a = np.arange(8 * rows, dtype=np.float32).reshape(rows, 8) / rows
    x = Tensor(a).realize()
    results = [x * factor, (x + factor).sum(0), (x - factor).max(1), (x.T @ x) * factor]
    return results, [a * np.float32(factor), (a + factor).sum(0), (a - factor).max(1), (a.T @ a) * factor]


def compiled_together(factor: float) -> int:
    results, expected = program(factor)
    before = requests.compiled, requests.remembered
    plan = results[0].prepare(*results[1:])
    plan.run()
    for result, value in zip(results, expected, strict=True):
        np.testing.assert_allclose(result.numpy(), value, rtol=1e-5)
    assert requests.remembered == before[1]
    return requests.compiled - before[0]


def test_kernels_are_compiled_side_by_side(tmp_path: Path) -> None:
    with knobs.override(CACHE_DIR=str(tmp_path / "kernels"), COMPILE_PROCESSES=3):
        assert compiled_together(2.125) == 4
        _programs.clear()
        on_disk = requests.from_disk
        assert compiled_together(2.125) == 0 and requests.from_disk == on_disk + 4
    assert no_children()


def test_kernels_that_are_alike_have_one_process() -> None:
    """With and without one addition at the end; others by themselves, and no more in a group than is fair."""
    x, w, v = Tensor.empty(20, 30), Tensor.empty(30, 40), Tensor.empty(20, 40)
    y, u = Tensor.empty(1, 4, 20, 20), Tensor.empty(4, 4, 3, 3)
    window = y.conv2d(u, padding=1).relu() * 1.5 - 0.5
    results = (window.relu(), (window + y).relu(), x @ w, v.sum(0))
    kernels = [(i.ast, i.name) for r in results for i in r.prepare().schedule.items]
    groups = cpu.alike(kernels, 2)
    assert sorted(map(len, groups)) == [1, 1, 2] and set(groups[0]) == set(kernels[:2])
    assert sorted(map(len, cpu.alike(kernels, 1))) == [1, 1, 1, 1]


def test_beside_other_threads() -> None:
    stop = threading.Event()
    busy = [threading.Thread(target=stop.wait) for _ in range(3)]
    for thread in busy:
        thread.start()
    try:
        with knobs.override(CACHE=0, COMPILE_PROCESSES=2):
            assert compiled_together(3.125) == 4
    finally:
        stop.set()
        for thread in busy:
            thread.join()


def test_a_kernel_that_a_child_failed_at_is_made_here(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = cpu.compile_kernel

    def unlucky(*given: object) -> object:
        if in_a_child():
            raise MemoryError
        return usual(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(cpu, "compile_kernel", unlucky)
    with knobs.override(CACHE=0, COMPILE_PROCESSES=4):
        assert compiled_together(4.125) == 4


def test_who_watches_sees_everything(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> dict[int, bytes]:
        raise AssertionError("in another process")

    monkeypatch.setattr(cpu, "shared_out", refuse)
    with knobs.override(CACHE=0, COMPILE_PROCESSES=4, EXPLAIN="opts"):
        compiled_together(5.125)
    assert capfd.readouterr().err.count("\n") >= 4
    with knobs.override(CACHE=0, COMPILE_PROCESSES=1):
        compiled_together(6.125)


def test_a_child_does_not_wait_for_its_parent(tmp_path: Path) -> None:
    """What it sends is more than a pipe usually holds; the parent is at one piece as long as it takes."""
    begun = tmp_path / "begun"
    begun.touch()

    def work(number: int) -> bytes:
        if os.getpid() == HERE:
            end = time.monotonic() + 20
            while begun.stat().st_size < 3 and time.monotonic() < end:
                time.sleep(0.01)
        else:
            with begun.open("ab") as file:
                file.write(b".")
        return bytes([number]) * 150_000

    found = shared_out(6, work, 2)
    assert begun.stat().st_size >= 3
    assert found == {n: bytes([n]) * 150_000 for n in range(6)}
    assert no_children()


_ORPHANS = """
import os, sys, time
from morok.device.processes import shared_out
def work(number):
    sys.stdout.write(f"{os.getpid()}\\n")
    sys.stdout.flush()
    time.sleep(60)
    return b""
shared_out(3, work, 3)
"""


def test_children_do_not_outlive_their_parent() -> None:
    """A process that is killed while it compiles leaves nobody behind."""
    parent = subprocess.Popen([sys.executable, "-c", _ORPHANS], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    found = {int(parent.stdout.readline()) for _ in range(3)}
    assert parent.pid in found
    parent.kill()
    parent.wait()
    parent.stdout.close()
    for _ in range(100):
        if not any(os.path.exists(f"/proc/{pid}") for pid in found - {parent.pid}):
            return
        time.sleep(0.1)
    raise AssertionError("children are left")
