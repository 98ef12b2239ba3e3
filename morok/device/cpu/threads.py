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
from morok.device.store import disk_store
from morok.device.version import compiler_version
from morok.forks import at_fork

_PAUSE = {
    "x86_64": ("declare void @llvm.x86.sse2.pause()", "call void @llvm.x86.sse2.pause()"),
    "aarch64": ("declare void @llvm.aarch64.hint(i32)", "call void @llvm.aarch64.hint(i32 1)"),
    "arm64": ("declare void @llvm.aarch64.hint(i32)", "call void @llvm.aarch64.hint(i32 1)"),
}
_SPINS = 4000  # looks at the generation before a worker goes to sleep: some tens of microseconds
_SPINS_IN_PLAN = (
    64  # times as many while a plan of several kernels runs: waking up costs more than most of them
)
_ALIGN = 64

# The state, by byte: 0 generation, 8 busy flag, 12 stop flag, 16 workers, 20 workers that have started,
# 24 the door, 32 function, 40 arguments, 48 extent, 56 threads, 72 scratch bytes, 80 plans under way,
# 128 mutex, 256 condition variable, 512 the next point of each thread's part, each on a line of its own.
# The door of a job is one word: its generation in the upper half (the top bit set once it is closed) and
# the number of workers inside in the lower half. A worker enters only while the door is open, and the caller
# waits for those inside, so nobody ever waits for a worker that has not woken up.
_STATE = 512
_PIECES = 8  # that a part is taken in: whoever has done his own takes what others have left
_TEXT = """
{declare}
declare i32 @pthread_mutex_lock(ptr)
declare i32 @pthread_mutex_unlock(ptr)
declare i32 @pthread_cond_wait(ptr, ptr)
declare i32 @pthread_cond_broadcast(ptr)
declare i32 @sched_yield()
declare i32 @posix_memalign(ptr, i64, i64)
declare void @free(ptr)

define internal void @share(ptr %s, ptr %scratch, i64 %first) nounwind {{
entry:
  %pf = getelementptr i8, ptr %s, i64 32
  %f = load ptr, ptr %pf, align 8
  %pa = getelementptr i8, ptr %s, i64 40
  %a = load ptr, ptr %pa, align 8
  %pe = getelementptr i8, ptr %s, i64 48
  %e = load i64, ptr %pe, align 8
  %pt = getelementptr i8, ptr %s, i64 56
  %threads = load i64, ptr %pt, align 8
  br label %part
part:
  %k = phi i64 [ 0, %entry ], [ %k1, %over ]
  %turn = add i64 %first, %k
  %wraps = icmp sge i64 %turn, %threads
  %less = sub i64 %turn, %threads
  %p = select i1 %wraps, i64 %less, i64 %turn
  %p1 = add i64 %p, 1
  %m0 = mul i64 %e, %p
  %m1 = mul i64 %e, %p1
  %lo = udiv i64 %m0, %threads
  %hi = udiv i64 %m1, %threads
  %size = sub i64 %hi, %lo
  %up = add i64 %size, {pieces_less_one}
  %c = udiv i64 %up, {pieces}
  %line = mul i64 %p, {align}
  %counters = getelementptr i8, ptr %s, i64 {state}
  %pn = getelementptr i8, ptr %counters, i64 %line
  br label %next
next:
  %old = atomicrmw add ptr %pn, i64 %c seq_cst
  %i = add i64 %lo, %old
  %more = icmp slt i64 %i, %hi
  br i1 %more, label %work, label %over
work:
  %end = add i64 %i, %c
  %beyond = icmp sgt i64 %end, %hi
  %to = select i1 %beyond, i64 %hi, i64 %end
  call void %f(ptr %a, i64 %i, i64 %to, ptr %scratch)
  br label %next
over:
  %k1 = add i64 %k, 1
  %others = icmp slt i64 %k1, %threads
  br i1 %others, label %part, label %done
done:
  ret void
}}

define ptr @morok.worker(ptr %s) nounwind {{
entry:
  %memory = alloca ptr, align 8
  store ptr null, ptr %memory, align 8
  %pid = getelementptr i8, ptr %s, i64 20
  %before = atomicrmw add ptr %pid, i32 1 seq_cst
  %number = add i32 %before, 1
  %id = zext i32 %number to i64
  %door = getelementptr i8, ptr %s, i64 24
  %pstop = getelementptr i8, ptr %s, i64 12
  %pb = getelementptr i8, ptr %s, i64 72
  %pp = getelementptr i8, ptr %s, i64 80
  %m = getelementptr i8, ptr %s, i64 128
  %cv = getelementptr i8, ptr %s, i64 256
  br label %idle
idle:
  %seen = phi i32 [ 0, %entry ], [ %new, %finished ], [ %new, %missed ]
  %size = phi i64 [ 0, %entry ], [ %size2, %finished ], [ %size, %missed ]
  br label %spin
spin:
  %k = phi i32 [ 0, %idle ], [ %k1, %again ]
  %g = load atomic i32, ptr %s seq_cst, align 4
  %fresh = icmp ne i32 %g, %seen
  br i1 %fresh, label %wake, label %again
again:
  {pause}
  %k1 = add i32 %k, 1
  %plans = load atomic i32, ptr %pp monotonic, align 4
  %busy = icmp sgt i32 %plans, 0
  %most = select i1 %busy, i32 {spins_in_plan}, i32 {spins}
  %on = icmp slt i32 %k1, %most
  br i1 %on, label %spin, label %sleep
sleep:
  %l = call i32 @pthread_mutex_lock(ptr %m)
  br label %check
check:
  %g2 = load atomic i32, ptr %s seq_cst, align 4
  %same = icmp eq i32 %g2, %seen
  br i1 %same, label %wait, label %awake
wait:
  %w = call i32 @pthread_cond_wait(ptr %cv, ptr %m)
  br label %check
awake:
  %u = call i32 @pthread_mutex_unlock(ptr %m)
  br label %wake
wake:
  %new = load atomic i32, ptr %s seq_cst, align 4
  %stop = load atomic i32, ptr %pstop seq_cst, align 4
  %halt = icmp ne i32 %stop, 0
  br i1 %halt, label %leave, label %knock
knock:
  %d = load atomic i64, ptr %door seq_cst, align 8
  %dg64 = lshr i64 %d, 32
  %dg = trunc i64 %dg64 to i32
  %open = icmp eq i32 %dg, %new
  br i1 %open, label %enter, label %missed
enter:
  %d1 = add i64 %d, 1
  %pair = cmpxchg ptr %door, i64 %d, i64 %d1 seq_cst seq_cst
  %in = extractvalue {{ i64, i1 }} %pair, 1
  br i1 %in, label %room, label %knock
missed:
  br label %idle
room:
  %want = load i64, ptr %pb, align 8
  %small = icmp slt i64 %size, %want
  br i1 %small, label %grow, label %run
grow:
  %old = load ptr, ptr %memory, align 8
  call void @free(ptr %old)
  %r = call i32 @posix_memalign(ptr %memory, i64 {align}, i64 %want)
  br label %run
run:
  %size2 = phi i64 [ %size, %room ], [ %want, %grow ]
  %scratch = load ptr, ptr %memory, align 8
  call void @share(ptr %s, ptr %scratch, i64 %id)
  br label %finished
finished:
  %left = atomicrmw sub ptr %door, i64 1 seq_cst
  br label %idle
leave:
  %mine = load ptr, ptr %memory, align 8
  call void @free(ptr %mine)
  ret ptr null
}}

define internal void @dispatch(ptr %s, ptr %f, ptr %args, i64 %extent, ptr %scratch, i64 %bytes) nounwind {{
entry:
  %pw = getelementptr i8, ptr %s, i64 16
  %workers = load i32, ptr %pw, align 4
  %none = icmp eq i32 %workers, 0
  %tiny = icmp slt i64 %extent, 2
  %alone = or i1 %none, %tiny
  br i1 %alone, label %serial, label %try
try:
  %pbusy = getelementptr i8, ptr %s, i64 8
  %was = atomicrmw xchg ptr %pbusy, i32 1 seq_cst
  %taken = icmp ne i32 %was, 0
  br i1 %taken, label %serial, label %parallel
serial:
  call void %f(ptr %args, i64 0, i64 %extent, ptr %scratch)
  ret void
parallel:
  %pf = getelementptr i8, ptr %s, i64 32
  store ptr %f, ptr %pf, align 8
  %pa = getelementptr i8, ptr %s, i64 40
  store ptr %args, ptr %pa, align 8
  %pe = getelementptr i8, ptr %s, i64 48
  store i64 %extent, ptr %pe, align 8
  %w64 = zext i32 %workers to i64
  %threads = add i64 %w64, 1
  %pt = getelementptr i8, ptr %s, i64 56
  store i64 %threads, ptr %pt, align 8
  br label %reset
reset:
  %part = phi i64 [ 0, %parallel ], [ %part1, %reset ]
  %line = mul i64 %part, {align}
  %counters = getelementptr i8, ptr %s, i64 {state}
  %pn = getelementptr i8, ptr %counters, i64 %line
  store atomic i64 0, ptr %pn monotonic, align 8
  %part1 = add i64 %part, 1
  %unset = icmp slt i64 %part1, %threads
  br i1 %unset, label %reset, label %open
open:
  %pb = getelementptr i8, ptr %s, i64 72
  store i64 %bytes, ptr %pb, align 8
  %m = getelementptr i8, ptr %s, i64 128
  %cv = getelementptr i8, ptr %s, i64 256
  %door = getelementptr i8, ptr %s, i64 24
  %g = load atomic i32, ptr %s seq_cst, align 4
  %g1 = add i32 %g, 1
  %g2 = and i32 %g1, 2147483647
  %g64 = zext i32 %g2 to i64
  %opened = shl i64 %g64, 32
  store atomic i64 %opened, ptr %door seq_cst, align 8
  %l = call i32 @pthread_mutex_lock(ptr %m)
  store atomic i32 %g2, ptr %s seq_cst, align 4
  %b = call i32 @pthread_cond_broadcast(ptr %cv)
  %u = call i32 @pthread_mutex_unlock(ptr %m)
  call void @share(ptr %s, ptr %scratch, i64 0)
  %closed = atomicrmw or ptr %door, i64 -9223372036854775808 seq_cst
  br label %spin
spin:
  %k = phi i32 [ 0, %open ], [ %k1, %again ], [ %k1, %yield ]
  %d = load atomic i64, ptr %door seq_cst, align 8
  %inside = trunc i64 %d to i32
  %all = icmp eq i32 %inside, 0
  br i1 %all, label %done, label %again
again:
  {pause}
  %k1 = add i32 %k, 1
  %tired = and i32 %k1, 255
  %rest = icmp eq i32 %tired, 0
  br i1 %rest, label %yield, label %spin
yield:
  %y = call i32 @sched_yield()
  br label %spin
done:
  store atomic i32 0, ptr %pbusy seq_cst, align 4
  ret void
}}

define void @morok.run(ptr %s, ptr %steps, i64 %count, ptr %scratch, i64 %bytes) nounwind {{
entry:
  %any = icmp sgt i64 %count, 0
  %plan = icmp sgt i64 %count, 1
  %one = zext i1 %plan to i32
  %pp = getelementptr i8, ptr %s, i64 80
  br i1 %plan, label %begin, label %first
begin:
  %p = atomicrmw add ptr %pp, i32 %one monotonic
  br label %first
first:
  br i1 %any, label %step, label %done
step:
  %i = phi i64 [ 0, %first ], [ %i1, %next ]
  %at = mul i64 %i, 3
  %p0 = getelementptr ptr, ptr %steps, i64 %at
  %f = load ptr, ptr %p0, align 8
  %p1 = getelementptr ptr, ptr %p0, i64 1
  %extent = load ptr, ptr %p1, align 8
  %p2 = getelementptr ptr, ptr %p0, i64 2
  %args = load ptr, ptr %p2, align 8
  %plain = icmp eq ptr %extent, null
  br i1 %plain, label %single, label %shared
single:
  call void %f(ptr %args, i64 0, i64 1, ptr %scratch)
  br label %next
shared:
  %n = call i64 %extent(ptr %args)
  call void @dispatch(ptr %s, ptr %f, ptr %args, i64 %n, ptr %scratch, i64 %bytes)
  br label %next
next:
  %i1 = add i64 %i, 1
  %more = icmp slt i64 %i1, %count
  br i1 %more, label %step, label %done
done:
  br i1 %plan, label %end, label %out
end:
  %q = atomicrmw sub ptr %pp, i32 %one monotonic
  br label %out
out:
  ret void
}}

define void @morok.replay(ptr %r) nounwind {{
entry:
  %s = load ptr, ptr %r, align 8
  %p1 = getelementptr i64, ptr %r, i64 1
  %steps = load ptr, ptr %p1, align 8
  %p2 = getelementptr i64, ptr %r, i64 2
  %count = load i64, ptr %p2, align 8
  call void @morok.run(ptr %s, ptr %steps, i64 %count, ptr null, i64 0)
  ret void
}}
"""


def thread_pool_text(arch: str) -> str:
    """The pool as LLVM IR."""
    declare, pause = _PAUSE.get(arch, ("", ""))
    return _TEXT.format(
        declare=declare, pause=pause, spins=_SPINS, spins_in_plan=_SPINS * _SPINS_IN_PLAN, align=_ALIGN,
        state=_STATE, pieces=_PIECES, pieces_less_one=_PIECES - 1,
    )  # fmt: skip


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
        self._raw = ctypes.create_string_buffer(_STATE + _ALIGN * (count + 2))
        self.address = (ctypes.addressof(self._raw) + _ALIGN - 1) // _ALIGN * _ALIGN
        self._threads: list[ctypes.c_void_p] = []
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
            self.memory = ctypes.create_string_buffer(size + _ALIGN)
            self.address = (ctypes.addressof(self.memory) + _ALIGN - 1) // _ALIGN * _ALIGN
            self.size = size
        return self.address


scratch = _Scratch()
