"""Finished kernels on disk, shared by all processes of a user.

One SQLite file in a directory that only its owner can enter; what is in it is run, so a file that somebody
else could have written is not read. An entry is found by everything that decides about the machine code (the
kernel's content, the device, the options, the compiler itself) and carries a hash of all it holds, so one
that was truncated or changed is dropped and built again. Whatever goes wrong with the file (no room, no
permission, damage) costs speed and never a result: the store then stays out of the way.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import sqlite3
import stat
import sys
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, final

from morok import knobs
from morok.device.compiled import Compiled, with_facts
from morok.device.version import compiler_version, kept_by
from morok.forks import Held
from morok.ir.digest import blake2b

if TYPE_CHECKING:
    from pathlib import Path

_LIMIT = 1 << 29  # bytes of the file; the older half goes when it is larger
_BUSY = 5.0  # seconds to wait for another process that writes

_TABLES = {
    "kernels": "key text primary key, facts text not null, code blob not null, hash blob not null",
    "plans": "key text primary key, plan blob not null, hash blob not null",
    "searches": "key text primary key, found text not null, hash blob not null",
    "versions": "key text primary key, version text not null, hash blob not null",
}


def _hash(key: str, facts: str, code: bytes) -> bytes:
    state = blake2b(digest_size=16)
    for part in (key.encode(), facts.encode(), code):
        state.update(len(part).to_bytes(8, "little"))
        state.update(part)
    return state.digest()


def _checked_size(path: str) -> int:
    """The size of a file, 0 if there is none; raises if somebody else could have written it."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return 0
    mode = stat.S_IMODE(found.st_mode)
    if not stat.S_ISREG(found.st_mode):
        raise Untrusted(f"{path} is not a plain file; remove it")
    if found.st_uid != os.getuid():
        raise Untrusted(f"{path} belongs to somebody else; remove it")
    if mode & 0o022:
        raise Untrusted(f"{path} can be written by others; remove it")
    if mode & 0o077:
        os.chmod(path, 0o600)
    return found.st_size


class Untrusted(OSError):
    """The file, or its directory, is one that others can write. It is left alone, which the user is told."""


@final
class DiskStore:
    """Compiled kernels by key. Opened when it is first used, by each process and in each thread's turn."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._file = os.path.join(directory, "kernels.sqlite")
        self._connection: sqlite3.Connection | None = None
        self._closer: weakref.finalize[..., Any] | None = None  # nobody forgets to close it
        self._broken = False
        _all.add(self)

    def get(self, key: str) -> Compiled | None:
        """The kernel, or None if it is not there or not intact."""
        with _turns.lock:
            row = self._guarded(
                lambda c: c.execute("select facts, code, hash from kernels where key = ?", (key,)).fetchone()
            )
            if row is None:
                return None
            facts, code, check = row
            sound = isinstance(facts, str) and isinstance(code, bytes)
            if not sound or _hash(key, facts, code) != check:
                self._say(f"an entry of {self._file} was damaged; it is built again")
                self._guarded(lambda c: c.execute("delete from kernels where key = ?", (key,)))
                return None
            return with_facts(facts, code)

    def has(self, key: str) -> bool:
        """Whether there is an entry for a kernel, intact or not."""
        with _turns.lock:
            row = self._guarded(lambda c: c.execute("select 1 from kernels where key = ?", (key,)).fetchone())
            return row is not None

    def put(self, key: str, compiled: Compiled) -> None:
        """Keeps a kernel. Another process may have been faster; the entries are the same."""
        facts = compiled.facts
        row = (key, facts, compiled.code, _hash(key, facts, compiled.code))
        with _turns.lock:
            self._guarded(lambda c: c.execute("insert or replace into kernels values (?, ?, ?, ?)", row))

    def get_plan(self, key: str) -> bytes | None:
        """A schedule as it was given; None if it is not there or not intact."""
        key = f"{compiler_version()}|{key}"
        with _turns.lock:
            row = self._guarded(
                lambda c: c.execute("select plan, hash from plans where key = ?", (key,)).fetchone()
            )
            if row is None:
                return None
            plan, check = row
            if isinstance(plan, bytes) and _hash(key, "", plan) == check:
                return plan
            self._say(f"an entry of {self._file} was damaged; it is made again")
            self._guarded(lambda c: c.execute("delete from plans where key = ?", (key,)))
            return None

    def put_plan(self, key: str, plan: bytes) -> None:
        """Keeps a schedule."""
        key = f"{compiler_version()}|{key}"
        row = (key, plan, _hash(key, "", plan))
        with _turns.lock:
            self._guarded(lambda c: c.execute("insert or replace into plans values (?, ?, ?)", row))

    def get_search(self, key: str) -> str | None:
        """What a search has found, as text; None if there was none, or if its entry is not intact."""
        with _turns.lock:
            row = self._guarded(
                lambda c: c.execute("select found, hash from searches where key = ?", (key,)).fetchone()
            )
            if row is None:
                return None
            found, check = row
            if isinstance(found, str) and _hash(key, found, b"") == check:
                return found
            self._say(f"an entry of {self._file} was damaged; it is searched for again")
            self._guarded(lambda c: c.execute("delete from searches where key = ?", (key,)))
            return None

    def put_search(self, key: str, found: str) -> None:
        """Keeps what a search has found."""
        row = (key, found, _hash(key, found, b""))
        with _turns.lock:
            self._guarded(lambda c: c.execute("insert or replace into searches values (?, ?, ?)", row))

    def get_version(self, key: str) -> str | None:
        """The hash of the source whose files have these sizes and times."""
        with _turns.lock:
            row = self._guarded(
                lambda c: c.execute("select version, hash from versions where key = ?", (key,)).fetchone()
            )
        sound = row is not None and isinstance(row[0], str) and _hash(key, row[0], b"") == row[1]
        return row[0] if sound else None

    def put_version(self, key: str, version: str) -> None:
        """Keeps the hash of the source."""
        row = (key, version, _hash(key, version, b""))
        with _turns.lock:
            self._guarded(lambda c: c.execute("insert or replace into versions values (?, ?, ?)", row))

    def close(self) -> None:
        with _turns.lock:
            self._close()

    def _close(self) -> None:
        self._connection = None
        if self._closer is not None:
            with contextlib.suppress(sqlite3.Error):
                self._closer()

    def _abandon(self) -> None:
        """Leaves the parent's connection alone: in a child it is neither to be used nor to be closed."""
        if self._closer is not None:
            self._closer.detach()
        if self._connection is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._connection))
        self._connection = None

    def _guarded(self, action: Callable[[sqlite3.Connection], Any]) -> Any:
        """Runs an action on the file. A damaged file is removed once; other faults switch the store off."""
        for attempt in (0, 1):
            if self._broken or _turns.ended:
                return None
            try:
                return action(self._open())
            except sqlite3.DatabaseError as error:
                self._close()
                damaged = not isinstance(error, sqlite3.OperationalError)
                if damaged and attempt == 0 and self._remove():
                    self._say(f"{self._file} was damaged and has been removed")
                    continue
                if "locked" in str(error):
                    return None  # somebody writes for long: this time without the store
                self._give_up(error)
            except OSError as error:
                self._give_up(error)
        return None

    @property
    def directory(self) -> Path:
        """Where it is."""
        from pathlib import Path  # few processes need it, and it takes as long to load as a kernel

        return Path(self._directory)

    @property
    def path(self) -> Path:
        """The file."""
        return self.directory / os.path.basename(self._file)

    def _open(self) -> sqlite3.Connection:
        if self._connection is not None:
            return self._connection
        os.makedirs(self._directory, 0o700, exist_ok=True)
        found = os.stat(self._directory)
        if found.st_uid != os.getuid():
            raise Untrusted(f"{self._directory} belongs to somebody else")
        if stat.S_IMODE(found.st_mode) & 0o077:
            os.chmod(self._directory, 0o700)
        if max(map(_checked_size, self._files)) > _LIMIT:
            self._remove()
        if not os.path.exists(self._file):  # so that it never has another mode
            os.close(os.open(self._file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600))
        connection = sqlite3.connect(self._file, timeout=_BUSY, isolation_level=None, check_same_thread=False)
        # The entries verify themselves, so a crash of the machine may cost some of them.
        try:
            connection.execute("pragma synchronous = off")
            for table, columns in _TABLES.items():
                connection.execute(f"create table if not exists {table} ({columns}) without rowid")
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        self._closer = weakref.finalize(self, connection.close)
        return connection

    @property
    def _files(self) -> list[str]:
        """The file, and those from which SQLite would repair it."""
        return [self._file, *(self._file + end for end in ("-journal", "-wal", "-shm"))]

    def _remove(self) -> bool:
        try:
            for path in self._files:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)
        except OSError:
            return False
        return True

    def _give_up(self, error: Exception) -> None:
        self._broken = True
        self._say(f"kernels are not kept on disk: {error}", isinstance(error, Untrusted))

    @staticmethod
    def _say(text: str, always: bool = False) -> None:
        if always or knobs.DEBUG.value >= 1:
            print(f"morok: {text}", file=sys.stderr)


_all: weakref.WeakSet[DiskStore] = weakref.WeakSet()


@final
class _Turns:
    """One thread at a time works on files, and nobody while the process forks or when it ends.

    No connection crosses a fork: SQLite's own locks would be copied with it, perhaps held.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.ended = False
        Held(lambda: self.lock, self._forked, self._rest)
        atexit.register(self._end)

    def _rest(self) -> None:
        for store in _all:
            store._close()

    def _forked(self) -> None:
        self.lock = threading.RLock()
        for store in _all:
            store._abandon()

    def _end(self) -> None:
        with self.lock:
            self.ended = True
            self._rest()


_turns = _Turns()
_stores: dict[str, DiskStore] = {}


def disk_store() -> DiskStore | None:
    """The store that the options name; None if they switch it off."""
    if not knobs.CACHE.value:
        return None
    directory = knobs.CACHE_DIR.value
    found = _stores.get(directory)
    if found is None:
        found = _stores.setdefault(directory, DiskStore(directory))
    return found


kept_by(disk_store)


def plan_store() -> DiskStore | None:
    """The store for schedules; None also while somebody wants to see how they are made."""
    asks = knobs.explains("fusion") or not knobs.CACHE_PLANS.value
    return None if asks else kernel_store()


def kernel_store() -> DiskStore | None:
    """The store for kernels; None also while somebody wants to see how they are made."""
    looks = knobs.DUMP.value or knobs.STOP_AFTER.value or knobs.DEBUG.value >= 2
    asks = knobs.explains("opts") or knobs.explained_rules()
    return None if looks or asks else disk_store()
