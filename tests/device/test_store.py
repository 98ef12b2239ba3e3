"""Kernels on disk: found again by other processes, and harmless when something is wrong with the file."""

import os
import sqlite3
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from morok import knobs
from morok.device.compiled import Compiled
from morok.device.cpu import device as cpu_module
from morok.device.cpu.device import CPU, kernel_key
from morok.device.store import DiskStore
from morok.device.version import compiler_version
from tests.codegen.kernels import add, row_sum

ENTRY = Compiled("k", b"\x00machine code\xff", 2, ("n",), 64, True)


@pytest.fixture
def store(tmp_path: Path) -> DiskStore:
    return DiskStore(str(tmp_path / "cache"))


def test_round_trip(store: DiskStore) -> None:
    assert store.get("a") is None
    store.put("a", ENTRY)
    assert store.get("a") == ENTRY and store.get("b") is None
    store.close()
    assert DiskStore(str(store.directory)).get("a") == ENTRY


def test_only_the_owner_may_look(store: DiskStore) -> None:
    store.put("a", ENTRY)
    assert stat.S_IMODE(store.directory.stat().st_mode) == 0o700
    assert stat.S_IMODE(store.path.stat().st_mode) == 0o600


@pytest.mark.parametrize("column", ["code", "facts"])
def test_a_tampered_entry_is_dropped(store: DiskStore, column: str) -> None:
    store.put("a", ENTRY)
    store.close()
    with sqlite3.connect(store.path) as file:
        file.execute(f"update kernels set {column} = 'x'")
    file.close()
    assert store.get("a") is None
    store.put("a", ENTRY)
    assert store.get("a") == ENTRY


@pytest.mark.parametrize("damage", [b"", b"not a database at all, but long enough to be one" * 50])
def test_a_damaged_file_is_replaced(store: DiskStore, damage: bytes) -> None:
    store.put("a", ENTRY)
    store.close()
    store.path.write_bytes(damage or store.path.read_bytes()[:100])
    assert store.get("a") is None
    store.put("a", ENTRY)
    assert store.get("a") == ENTRY


def test_a_directory_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("")
    store = DiskStore(str(blocker / "cache"))
    assert store.get("a") is None
    store.put("a", ENTRY)  # nothing happens
    assert store.get("a") is None
    full = DiskStore(str(tmp_path / "full"))

    def no_room(*_: object, **__: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(sqlite3, "connect", no_room)
    full.put("a", ENTRY)
    assert full.get("a") is None


def test_many_threads(store: DiskStore) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda i: store.put(f"k{i % 5}", ENTRY), range(60)))
        assert all(pool.map(lambda i: store.get(f"k{i % 5}") == ENTRY, range(60)))


def test_a_kernel_is_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    original = cpu_module.lower_kernel
    monkeypatch.setattr(cpu_module, "lower_kernel", lambda *a: calls.append(a) or original(*a))
    with knobs.override(CACHE_DIR=str(tmp_path)):
        for _ in range(2):
            device = CPU()
            out, x = device.buffer(3, np_float()), device.buffer(12, np_float())
            x.copy_in(np.arange(12, dtype=np.float32))
            device.compile(row_sum(3, 4), "rows")([out, x], {})
            assert out.copy_out().tolist() == [6.0, 22.0, 38.0]
    assert len(calls) == 1


def np_float():  # type: ignore[no-untyped-def]
    from morok.dtype import float32

    return float32


def test_options_and_compiler_are_part_of_the_key() -> None:
    device = CPU()
    one = kernel_key(add(4), device.machine_key)
    assert one == kernel_key(add(4), device.machine_key) and one != kernel_key(add(5), device.machine)
    with knobs.override(NOOPT=True):
        assert kernel_key(add(4), device.machine_key) != one
    assert compiler_version() in one


SCRIPT = """
import sys
from tests.codegen.kernels import row_sum
from morok.device.cpu.device import CPU
from morok.dtype import float32
import numpy as np
device = CPU()
out, x = device.buffer(3, float32), device.buffer(12, float32)
x.copy_in(np.arange(12, dtype=np.float32))
device.compile(row_sum(3, 4), "rows")([out, x], {})
assert out.copy_out().tolist() == [6.0, 22.0, 38.0]
"""


def test_two_processes_at_once(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    environment = {**os.environ, "MOROK_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(root)}
    running = [
        subprocess.Popen([sys.executable, "-c", SCRIPT], env=environment, cwd=root, stderr=subprocess.PIPE)
        for _ in range(2)
    ]
    for process in running:
        _, error = process.communicate(timeout=60)
        assert process.returncode == 0, error.decode()


# --- whose file it is


def said(store: DiskStore, capsys: pytest.CaptureFixture[str]) -> str:
    """What the user is told: one line, however often the store is asked."""
    for _ in range(3):
        assert store.get("a") is None
        store.put("b", ENTRY)
    (line,) = capsys.readouterr().err.splitlines()
    return line


def filled(store: DiskStore) -> DiskStore:
    store.put("a", ENTRY)
    store.close()
    return DiskStore(str(store.directory))


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_file_that_others_can_write_is_not_read(
    store: DiskStore, mode: int, capsys: pytest.CaptureFixture[str]
) -> None:
    again = filled(store)
    again.path.chmod(mode)
    before = again.path.read_bytes()
    assert "can be written by others" in said(again, capsys)
    assert again.path.read_bytes() == before, "somebody else's file is not touched"


def test_a_file_that_others_can_read_is_closed_to_them(store: DiskStore) -> None:
    again = filled(store)
    again.path.chmod(0o644)
    assert again.get("a") == ENTRY and stat.S_IMODE(again.path.stat().st_mode) == 0o600


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")
def test_a_file_of_somebody_else_is_not_read(store: DiskStore, capsys: pytest.CaptureFixture[str]) -> None:
    again = filled(store)
    os.chown(again.path, 12345, -1)
    assert "belongs to somebody else" in said(again, capsys)


def test_a_link_is_not_followed(store: DiskStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    again = filled(store)
    again.path.rename(tmp_path / "elsewhere")
    again.path.symlink_to(tmp_path / "elsewhere")
    assert "not a plain file" in said(again, capsys)


def test_a_journal_of_somebody_else_repairs_nothing(
    store: DiskStore, capsys: pytest.CaptureFixture[str]
) -> None:
    again = filled(store)
    journal = again.path.with_name("kernels.sqlite-journal")
    journal.write_bytes(b"anything")
    journal.chmod(0o666)
    assert "can be written by others" in said(again, capsys)


def test_connections_are_closed_whoever_forgets_it(tmp_path: Path) -> None:
    """A connection that nobody closes is a warning from Python 3.13 on."""
    script = (
        "import sys, gc; from morok.device.store import DiskStore\n"
        "from morok.device.compiled import Compiled\n"
        "stores = [DiskStore(f'{sys.argv[1]}/{n}') for n in range(2)]\n"
        "for s in stores: s.put('a', Compiled('k', b'code'))\n"
        "opened = [s._connection for s in stores]\n"
        "del stores[0], s; gc.collect()\n"
        "import sqlite3\n"
        "try: opened[0].execute('select 1')\n"
        "except sqlite3.ProgrammingError: print('closed')\n"
    )
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", script, str(tmp_path)],
        capture_output=True, text=True,
    )  # fmt: skip
    assert (done.stdout.strip(), done.stderr) == ("closed", "")
