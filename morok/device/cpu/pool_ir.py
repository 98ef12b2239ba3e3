"""The thread pool of the CPU as LLVM IR: what its workers do, and how a caller tells them what."""

from __future__ import annotations

import sys

from morok.render.llvm.shared import PHASES

_PAUSE = {
    "x86_64": ("declare void @llvm.x86.sse2.pause()", "call void @llvm.x86.sse2.pause()"),
    "aarch64": ("declare void @llvm.aarch64.hint(i32)", "call void @llvm.aarch64.hint(i32 1)"),
    "arm64": ("declare void @llvm.aarch64.hint(i32)", "call void @llvm.aarch64.hint(i32 1)"),
}
_SPINS = 4000  # looks at the generation before a worker goes to sleep: some tens of microseconds
_SPINS_IN_PLAN = (
    64  # times as many while a plan of several kernels runs: waking up costs more than most of them
)
LINE = 64

# The state, by byte: 0 generation, 8 busy flag, 12 stop flag, 16 workers, 20 workers that have started,
# 24 the door, 32 function, 40 arguments, 48 extent, 56 threads, 64 the first point of all, 72 scratch bytes,
# 80 plans under way,
# 84 the processor that workers keep off, 88 workers that sleep, 128 mutex, 256 condition variable,
# 512 the next point of each thread's part and the system's number of the thread, each on a line of its own.
# The door of a job is one word: its generation in the upper half (the top bit set once it is closed) and
# the number of workers inside in the lower half. A worker enters only while the door is open, and the caller
# waits for those inside, so nobody ever waits for a worker that has not woken up.
STATE_BYTES = 512
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
  %pz = getelementptr i8, ptr %s, i64 64
  %base = load i64, ptr %pz, align 8
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
  %from.b = add i64 %i, %base
  %to.b = add i64 %to, %base
  call void %f(ptr %a, i64 %from.b, i64 %to.b, ptr %scratch)
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
  {enrol}
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
  %pq = getelementptr i8, ptr %s, i64 88
  %q0 = load i32, ptr %pq, align 4
  %q1 = add i32 %q0, 1
  store i32 %q1, ptr %pq, align 4
  %w = call i32 @pthread_cond_wait(ptr %cv, ptr %m)
  %q2 = load i32, ptr %pq, align 4
  %q3 = sub i32 %q2, 1
  store i32 %q3, ptr %pq, align 4
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

define internal void @dispatch(
    ptr %s, ptr %f, ptr %args, i64 %extent, ptr %scratch, i64 %bytes, i64 %base
) nounwind {{
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
  %stop = add i64 %base, %extent
  call void %f(ptr %args, i64 %base, i64 %stop, ptr %scratch)
  ret void
parallel:
  %pf = getelementptr i8, ptr %s, i64 32
  store ptr %f, ptr %pf, align 8
  %pa = getelementptr i8, ptr %s, i64 40
  store ptr %args, ptr %pa, align 8
  %pe = getelementptr i8, ptr %s, i64 48
  store i64 %extent, ptr %pe, align 8
  %pz = getelementptr i8, ptr %s, i64 64
  store i64 %base, ptr %pz, align 8
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
  %pq = getelementptr i8, ptr %s, i64 88
  %asleep = load i32, ptr %pq, align 4
  %sleeps = icmp sgt i32 %asleep, 0
  br i1 %sleeps, label %rouse, label %ready
rouse:
  {keep_off}
  %b = call i32 @pthread_cond_broadcast(ptr %cv)
  br label %ready
ready:
  %u = call i32 @pthread_mutex_unlock(ptr %m)
  call void @share(ptr %s, ptr %scratch, i64 0)
  %closed = atomicrmw or ptr %door, i64 -9223372036854775808 seq_cst
  br label %spin
spin:
  %k = phi i32 [ 0, %ready ], [ %k1, %again ], [ %k1, %yield ]
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
  %e = call i64 %extent(ptr %args)
  %n = and i64 %e, {extent}
  %phases = lshr i64 %e, {phase}
  %several = icmp ugt i64 %phases, 1
  %also = zext i1 %several to i32
  %r = atomicrmw add ptr %pp, i32 %also monotonic
  br label %phase
phase:
  %base = phi i64 [ 0, %shared ], [ %base1, %phase ]
  %left = phi i64 [ %phases, %shared ], [ %left1, %phase ]
  call void @dispatch(ptr %s, ptr %f, ptr %args, i64 %n, ptr %scratch, i64 %bytes, i64 %base)
  %base1 = add i64 %base, %n
  %left1 = sub i64 %left, 1
  %again = icmp sgt i64 %left1, 0
  br i1 %again, label %phase, label %over
over:
  %r1 = atomicrmw sub ptr %pp, i32 %also monotonic
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

# A worker that is woken may be put on the processor of the caller, which then works alone until the system
# moves one of them, some milliseconds later, while others idle. So workers that sleep are kept off it before
# they are woken: the masks of what they may use change when the caller has moved since the last time. Where
# there are not as many processors as threads, nothing is changed.
_KEEP_OFF = """
declare i32 @sched_getcpu()
declare i32 @sched_getaffinity(i32, i64, ptr)
declare i32 @sched_setaffinity(i32, i64, ptr)
declare i64 @syscall(i64, ...)
declare <{words} x i64> @llvm.ctpop.v{words}i64(<{words} x i64>)
declare i64 @llvm.vector.reduce.add.v{words}i64(<{words} x i64>)

define internal void @keep_off(ptr %s, i32 %workers) nounwind {{
entry:
  %own = alloca [{words} x i64], align 8
  %mask = alloca [{words} x i64], align 8
  %pl = getelementptr i8, ptr %s, i64 84
  %last = load i32, ptr %pl, align 4
  %here = call i32 @sched_getcpu()
  %moved = icmp ne i32 %here, %last
  %known = icmp ult i32 %here, {processors}
  %look = and i1 %moved, %known
  br i1 %look, label %ask, label %out
ask:
  %no = call i32 @sched_getaffinity(i32 0, i64 {bytes}, ptr %own)
  %fine = icmp sge i32 %no, 0
  br i1 %fine, label %room, label %out
room:
  %v = load <{words} x i64>, ptr %own, align 8
  %ones = call <{words} x i64> @llvm.ctpop.v{words}i64(<{words} x i64> %v)
  %may = call i64 @llvm.vector.reduce.add.v{words}i64(<{words} x i64> %ones)
  %count = zext i32 %workers to i64
  %enough = icmp ugt i64 %may, %count
  br i1 %enough, label %begin, label %out
begin:
  store i32 %here, ptr %pl, align 4
  %h = zext i32 %here to i64
  %hw = lshr i64 %h, 6
  %hb = and i64 %h, 63
  %h1 = shl i64 1, %hb
  %hn = xor i64 %h1, -1
  %had = icmp ult i32 %last, {processors}
  %l0 = zext i32 %last to i64
  %l = select i1 %had, i64 %l0, i64 %h
  %lw = lshr i64 %l, 6
  %lb = and i64 %l, 63
  %l1 = shl i64 1, %lb
  %po = getelementptr i64, ptr %own, i64 %lw
  %o = load i64, ptr %po, align 8
  %back = and i64 %o, %l1
  br label %each
each:
  %i = phi i64 [ 1, %begin ], [ %i1, %next ]
  %line = mul i64 %i, {align}
  %at = add i64 %line, {thread}
  %pt = getelementptr i8, ptr %s, i64 %at
  %t = load atomic i32, ptr %pt monotonic, align 4
  %there = icmp sgt i32 %t, 0
  br i1 %there, label %read, label %next
read:
  %bad = call i32 @sched_getaffinity(i32 %t, i64 {bytes}, ptr %mask)
  %good = icmp sge i32 %bad, 0
  br i1 %good, label %change, label %next
change:
  %pa = getelementptr i64, ptr %mask, i64 %lw
  %a = load i64, ptr %pa, align 8
  %a1 = or i64 %a, %back
  store i64 %a1, ptr %pa, align 8
  %pb = getelementptr i64, ptr %mask, i64 %hw
  %b = load i64, ptr %pb, align 8
  %b1 = and i64 %b, %hn
  store i64 %b1, ptr %pb, align 8
  %set = call i32 @sched_setaffinity(i32 %t, i64 {bytes}, ptr %mask)
  br label %next
next:
  %i1 = add i64 %i, 1
  %more = icmp sle i64 %i1, %count
  br i1 %more, label %each, label %out
out:
  ret void
}}
"""
_ENROL = """%tid = call i64 (i64, ...) @syscall(i64 {gettid})
  %tid32 = trunc i64 %tid to i32
  %own = mul i64 %id, {align}
  %place = add i64 %own, {thread}
  %pid2 = getelementptr i8, ptr %s, i64 %place
  store atomic i32 %tid32, ptr %pid2 monotonic, align 4"""
_GETTID = {"x86_64": 186, "aarch64": 178}  # Linux's number of the call, which old libraries have no name for
_PROCESSORS = 1024  # that a mask has room for
NOWHERE = -1  # a processor


def thread_pool_text(arch: str) -> str:
    """The pool as LLVM IR."""
    declare, pause = _PAUSE.get(arch, ("", ""))
    enrol = keep_off = ""
    if sys.platform == "linux" and arch in _GETTID:
        thread = STATE_BYTES + 8
        declare += _KEEP_OFF.format(
            words=_PROCESSORS // 64,
            bytes=_PROCESSORS // 8,
            processors=_PROCESSORS,
            align=LINE,
            thread=thread,
        )
        enrol = _ENROL.format(gettid=_GETTID[arch], align=LINE, thread=thread)
        keep_off = "call void @keep_off(ptr %s, i32 %workers)"
    return _TEXT.format(
        declare=declare,
        pause=pause,
        enrol=enrol,
        keep_off=keep_off,
        spins=_SPINS,
        spins_in_plan=_SPINS * _SPINS_IN_PLAN,
        align=LINE,
        state=STATE_BYTES,
        pieces=_PIECES,
        pieces_less_one=_PIECES - 1,
        phase=PHASES,
        extent=(1 << PHASES) - 1,
    )
