"""The thread pool of the CPU: native threads that share the outermost axis of a kernel.

The pool is written in LLVM IR and runs without Python: dispatching is a store, a broadcast and the caller's
own share of the work. A worker looks for new work for some microseconds and then sleeps on a condition
variable, so an idle process uses no processor time. Each thread has the same part of every kernel's axis, so
that what it reads again and again stays in its core's cache; it takes the part in pieces, through an atomic
counter, and then those that others have not come to.
A second caller, or a process that has forked, never waits for anybody: it runs the kernel alone (and a forked
child starts workers of its own when it needs them).
"""

from __future__ import annotations

import atexit
import ctypes
import os
import threading
from functools import cache
from typing import Any, final

from morok import knobs
from morok.device.compiled import Compiled
from morok.device.cpu.llvm import Code, compile_object, host
from morok.device.cpu.pool_ir import LINE, NOWHERE, STATE_BYTES, thread_pool_text
from morok.device.store import disk_store
from morok.device.version import compiler_version
from morok.forks import at_fork


def thread_pool_code() -> bytes:
    """The pool as object code, kept on disk like a kernel."""
    text = thread_pool_text(host().arch)
    store = disk_store()
    if store is None:
        return compile_object(text)
    key = f"pool|{compiler_version()}|{host()}"
    found = store.get(key)
    if found is None:
        found = Compiled("morok.run", compile_object(text))
        store.put(key, found)
    return found.code


@final
class _Team:
    """Some workers and the memory through which they are told what to do."""

    __slots__ = ("_libc", "_raw", "_threads", "address")

    def __init__(self, libc: Any, count: int) -> None:
        self._libc = libc
        self._raw = ctypes.create_string_buffer(STATE_BYTES + LINE * (count + 2))
        self.address = (ctypes.addressof(self._raw) + LINE - 1) // LINE * LINE
        self._threads: list[ctypes.c_void_p] = []
        ctypes.c_int32.from_address(self.address + 84).value = NOWHERE
        libc.pthread_mutex_init(ctypes.c_void_p(self.address + 128), None)
        libc.pthread_cond_init(ctypes.c_void_p(self.address + 256), None)

    def start(self, count: int, worker: int) -> None:
        """Starts workers. Where the system has no room for so many threads, fewer do the same work."""
        for _ in range(count):
            thread = ctypes.c_void_p()
            where = ctypes.c_void_p(self.address)
            if self._libc.pthread_create(ctypes.byref(thread), None, ctypes.c_void_p(worker), where) != 0:
                break
            self._threads.append(thread)
        ctypes.c_int32.from_address(self.address + 16).value = len(self._threads)

    def stop(self) -> None:
        """Ends the workers and waits for them. A caller that is at work finishes it alone."""
        base = self.address
        ctypes.c_int32.from_address(base + 16).value = 0
        ctypes.c_int32.from_address(base + 12).value = 1
        self._libc.pthread_mutex_lock(ctypes.c_void_p(base + 128))
        ctypes.c_int32.from_address(base).value += 1
        self._libc.pthread_cond_broadcast(ctypes.c_void_p(base + 256))
        self._libc.pthread_mutex_unlock(ctypes.c_void_p(base + 128))
        for thread in self._threads:
            self._libc.pthread_join(thread, None)
        self._threads = []


@final
class ThreadPool:
    """The workers of this process, and the native function that runs kernels with them.

    There is a team per number of workers that was ever asked for, since threads of a program may ask for
    different numbers at the same time. A team's memory is never given back: somebody may still look at it.
    """

    def __init__(self) -> None:
        self._code = Code(thread_pool_code(), ("morok.worker", "morok.run", "morok.replay"))
        kind = ctypes.CFUNCTYPE(
            None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64
        )
        self.run = kind(self._code.addresses["morok.run"])
        # the same with its arguments in a record: converting five of them costs more than a small kernel
        self.replay = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self._code.addresses["morok.replay"])
        self._libc: Any = ctypes.CDLL(None)
        self._lock = threading.Lock()
        self._teams: dict[int, _Team] = {}
        self._former: list[_Team] = []
        self.address = self._team(0)  # nobody: for kernels that share nothing
        at_fork(child=self._forked)
        atexit.register(self.stop)

    def _team(self, count: int) -> int:
        with self._lock:
            found = self._teams.get(count)
            if found is None:
                found = _Team(self._libc, count)
                found.start(count, self._code.addresses["morok.worker"])
                self._teams[count] = found
            return found.address

    def ready(self) -> int:
        """The address of the team that the options ask for, started if need be."""
        count = thread_count() - 1
        found = self._teams.get(count)
        return found.address if found is not None else self._team(count)

    def _forked(self) -> None:
        # Threads do not survive a fork; neither does what the lock protected.
        self._lock = threading.Lock()
        self._former += self._teams.values()
        self._teams = {}
        self.address = self._team(0)

    def stop(self) -> None:
        """Ends all workers and waits for them; the next kernel that wants some starts new ones."""
        with self._lock:
            stopped = list(self._teams.values())
            self._former += stopped
            self._teams = {}
        for team in stopped:
            team.stop()


def thread_count() -> int:
    """Threads that a kernel may use."""
    asked: int = knobs.THREADS.value
    return asked or available_cores()


@cache
def available_cores() -> int:
    """Cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on this system
        return os.cpu_count() or 1


@cache
def thread_pool() -> ThreadPool:
    """The pool of this process, made when it is first needed."""
    return ThreadPool()


class _Scratch(threading.local):
    """Working memory of the calling thread; grows, and is kept."""

    def __init__(self) -> None:
        self.size = 0
        self.memory: Any = None
        self.address = 0

    def get(self, size: int) -> int:
        if size > self.size:
            self.memory = ctypes.create_string_buffer(size + LINE)
            self.address = (ctypes.addressof(self.memory) + LINE - 1) // LINE * LINE
            self.size = size
        return self.address


scratch = _Scratch()
