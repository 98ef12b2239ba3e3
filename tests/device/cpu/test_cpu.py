"""The CPU's workers: shared axes, forks, threads, clean ends."""

import ctypes
import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from morok import knobs
from morok.device.compiled import unpack
from morok.device.cpu import device as cpu_device
from morok.device.cpu.device import CPU, Shown, cpu_machine_key, program_of
from morok.device.cpu.kernel import Kernel, Steps
from morok.device.cpu.llvm import host
from morok.device.cpu.threads import available_cores, thread_pool
from morok.dtype import float32
from morok.errors import DeviceError, VariableError
from morok.ir.build import bufferize, rng, sink, variable
from morok.ir.node import UOp, make
from morok.ir.ops import AxisKind, Ops
from morok.machine import choose
from morok.machine.choose import cpu_machine
from morok.render.locations import read_locations, without_locations
from tests.codegen.kernels import UPCAST, add, buffers, read, softmax, split, write

N = 4096


@pytest.fixture(scope="module")
def device() -> CPU:
    return CPU()


def shared_add(n: int = N) -> UOp:
    return split(split(add(n), 0, 4, UPCAST), 0, 16, AxisKind.THREAD, outer=True)


def run(device: CPU, kernel: Kernel, n: int = N) -> np.ndarray:
    held = [device.buffer(n, float32) for _ in range(3)]
    for i, b in enumerate(held[1:], 1):
        b.copy_in(np.arange(n, dtype=np.float32) * i)
    kernel(held, {})
    return held[0].copy_out()


EXPECTED = np.arange(N, dtype=np.float32) * 3


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_workers_share_an_axis(device: CPU, threads: int) -> None:
    kernel = device.compile(shared_add(), "add")
    assert kernel.compiled.threaded
    with knobs.override(THREADS=threads):
        for _ in range(50):
            assert (run(device, kernel) == EXPECTED).all()


@pytest.mark.parametrize("extent", [1, 2, 3, 7, 31, 64, 100])
def test_every_place_is_visited_once(device: CPU, extent: int) -> None:
    """In place: what is visited twice is added twice."""
    n = 4 * extent
    kernel = device.compile(split(add(n), 0, extent, AxisKind.THREAD, outer=True), "add")
    for threads in (2, 5):
        total, one = (device.buffer(n, float32) for _ in range(2))
        total.copy_in(np.zeros(n, np.float32))
        one.copy_in(np.arange(n, dtype=np.float32))
        with knobs.override(THREADS=threads):
            for _ in range(40):
                kernel([total, total, one], {})
        assert (total.copy_out() == 40 * np.arange(n)).all()


# a process of its own, for its workers are known by their number and its main thread is moved
KEPT_OFF = """
import ctypes, json, os, sys, time
import numpy as np
from morok import Tensor, jit
from morok.device.cpu.pool_ir import LINE, STATE_BYTES
from morok.device.cpu.threads import thread_pool

processors = sorted(os.sched_getaffinity(0))[:2]
os.sched_setaffinity(0, processors)
x = Tensor(np.ones((512, 512), np.float32)).realize()
f = jit(lambda x: x @ x)
for _ in range(3):
    f(x).numpy()
lines = range(1, int(os.environ["MOROK_THREADS"]))
place = thread_pool().ready() + STATE_BYTES + 8
workers = [ctypes.c_int32.from_address(place + LINE * i).value for i in lines]
seen = set()
for turn in range(40):
    for _ in range(400):  # until all of them sleep
        stats = [open(f"/proc/self/task/{t}/stat").read().rsplit(")", 1)[1].split() for t in workers]
        if all(stat[0] == "S" for stat in stats):
            break
        time.sleep(0.005)
    time.sleep(0.002 * (turn % 3))
    f(x).numpy()
    seen |= {tuple(sorted(os.sched_getaffinity(t))) for t in workers}
json.dump([processors, sorted(seen)], sys.stdout)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="threads are placed on Linux alone")
@pytest.mark.skipif(available_cores() < 2, reason="one processor")
@pytest.mark.parametrize("workers", (1, 3))
def test_workers_that_sleep_are_kept_off_the_callers_processor(workers: int) -> None:
    """Not where threads are more than processors: then all of them use all."""
    environment = {**os.environ, "MOROK_THREADS": str(workers + 1), "DEVICE": "CPU"}
    command = [sys.executable, "-c", KEPT_OFF]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert not found.returncode, found.stderr
    processors, seen = json.loads(found.stdout)
    if workers == 1:
        assert seen and all(len(mask) == 1 and mask[0] in processors for mask in seen)
    else:
        assert seen == [processors]


def test_a_thread_has_the_same_part_of_every_kernel() -> None:
    """Both wait in their first piece until the other one has begun."""
    count, seen = 64, dict[int, list[tuple[int, int]]]()
    begun = {True: threading.Event(), False: threading.Event()}  # the caller, the worker

    @ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)
    def work(arguments: Any, low: int, high: int, scratch: Any) -> None:
        who = threading.get_ident()
        seen.setdefault(who, []).append((low, high))
        begun[who == caller].set()
        begun[who != caller].wait(30)

    @ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)
    def extent(arguments: Any) -> int:
        return count

    caller, pool = threading.get_ident(), thread_pool()
    addresses = [ctypes.cast(f, ctypes.c_void_p).value for f in (work, extent)]
    table = (ctypes.c_int64 * 3)(*addresses, 0)
    with knobs.override(THREADS=2):
        state = pool.ready()
    for _ in range(5):
        seen.clear()
        for event in begun.values():
            event.clear()
        pool.run(state, ctypes.addressof(table), 1, None, 0)
        (own,), (others,) = ([r for w, r in seen.items() if (w == caller) is mine] for mine in (True, False))
        assert own[0][0] == 0 and others[0][0] == count // 2
        assert sorted(i for low, high in own + others for i in range(low, high)) == list(range(count))


def test_several_callers(device: CPU) -> None:
    kernel = device.compile(shared_add(), "add")
    wrong: list[int] = []

    def work() -> None:
        wrong.extend(i for i in range(30) if not (run(device, kernel) == EXPECTED).all())

    callers = [threading.Thread(target=work) for _ in range(4)]
    for c in callers:
        c.start()
    for c in callers:
        c.join()
    assert not wrong


def test_stopping_while_others_work(device: CPU) -> None:
    kernel = device.compile(shared_add(), "add")
    wrong: list[int] = []

    def work(threads: int) -> None:
        with knobs.override(THREADS=threads):
            wrong.extend(i for i in range(200) if not (run(device, kernel) == EXPECTED).all())

    callers = [threading.Thread(target=work, args=(n,)) for n in (1, 2, 3, 4)]
    for c in callers:
        c.start()
    while any(c.is_alive() for c in callers):
        thread_pool().stop()
        time.sleep(0.002)
    assert not wrong


def test_fork_after_use(device: CPU) -> None:
    kernel = device.compile(shared_add(), "add")
    run(device, kernel)
    child = os.fork()
    if child == 0:
        os._exit(0 if all((run(device, kernel) == EXPECTED).all() for _ in range(5)) else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert (run(device, kernel) == EXPECTED).all()


def test_idle_workers_sleep(device: CPU) -> None:
    kernel = device.compile(shared_add(), "add")
    with knobs.override(THREADS=3):
        run(device, kernel)
        time.sleep(0.05)
        before = time.process_time()
        time.sleep(0.3)
        assert time.process_time() - before < 0.1


def test_stopping_twice_and_starting_again(device: CPU) -> None:
    kernel = device.compile(shared_add(), "add")
    run(device, kernel)
    thread_pool().stop()
    thread_pool().stop()
    assert (run(device, kernel) == EXPECTED).all()


def test_a_process_ends_cleanly() -> None:
    code = "from tests.device.cpu.test_cpu import *\nd = CPU()\nrun(d, d.compile(shared_add(), 'add'))\n"
    code += "print('done')"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0 and done.stdout == "done\n", done.stderr


def test_a_list_of_kernels_is_one_call(device: CPU) -> None:
    kernel = device.compile(add(8), "add")
    a, b, c = (device.buffer(8, float32) for _ in range(3))
    b.copy_in(np.ones(8, np.float32))
    c.copy_in(np.full(8, 2, np.float32))
    steps = Steps([(kernel, kernel.arguments(x, {})) for x in ([a, b, c], [b, a, c], [c, a, b])])
    steps()
    assert c.copy_out()[0] == 3.0 + 5.0
    steps()
    assert a.copy_out()[0] == 5.0 + 8.0


def test_large_local_memory_is_private_to_each_worker(device: CPU) -> None:
    o, x = buffers(8 * 8192, 8 * 8192)
    t, c, d = rng(8, 0, AxisKind.THREAD), rng(8192, 1), rng(8192, 2)
    row = bufferize(read(x, t * 8192 + c) + 1.0, c, arg=("local", "row"))
    kernel = device.compile(
        sink(write(o, t * 8192 + d, make(Ops.INDEX, float32, (row, d * -1 + 8191)), t, d)), "reverse"
    )
    assert kernel.compiled.scratch >= 8192 * 4
    out, source = device.buffer(8 * 8192, float32), device.buffer(8 * 8192, float32)
    values = np.arange(8 * 8192, dtype=np.float32)
    source.copy_in(values)
    for _ in range(10):
        kernel([out, source], {})
        assert (out.copy_out().reshape(8, -1) == values.reshape(8, -1)[:, ::-1] + 1).all()


def test_wrong_calls(device: CPU) -> None:
    kernel = device.compile(add(8), "add")
    with pytest.raises(DeviceError, match="takes 3 buffers, got 1"):
        kernel([device.buffer(8, float32)], {})
    n = variable("n", 1, 8)
    o, x = buffers(8, 8)
    r = rng(n, 0)
    copy = device.compile(sink(write(o, r, read(x, r), r)), "copy")
    with pytest.raises(VariableError, match="needs a value for the variable n"):
        copy([device.buffer(8, float32), device.buffer(8, float32)], {})


def test_code_is_freed(device: CPU) -> None:
    from morok.device.cpu.llvm import Code, compile_object

    code = compile_object("define void @k() { ret void }")
    held = [Code(code, ("k",)) for _ in range(50)]
    assert len({c.addresses["k"] for c in held}) == 50
    first = resident()
    for _ in range(400):
        Code(code, ("k",))
    assert resident() - first < 30_000_000


def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_many_threads_meet_a_new_kernel(device: CPU) -> None:
    for attempt in range(5):
        kernel = device.compile(shared_add(N * (attempt + 2)), "add")
        wrong: list[int] = []
        n = N * (attempt + 2)

        def work(kernel: Kernel = kernel, n: int = n, wrong: list[int] = wrong) -> None:
            expected = np.arange(n, dtype=np.float32) * 3
            wrong.extend(i for i in range(5) if not (run(device, kernel, n) == expected).all())

        callers = [threading.Thread(target=work) for _ in range(6)]
        for c in callers:
            c.start()
        for c in callers:
            c.join()
        assert not wrong


def test_assembly_that_is_shown_is_what_runs(device: CPU) -> None:
    """Made of its own assembly, a kernel with constants in memory, calls and comments computes the same."""
    kernel = softmax(8, 24)
    text = program_of(kernel, device.machine).text
    shown = Shown(text, host())
    assert b".debug" not in shown.code() and ".loc" not in without_locations(shown.assembly())
    assert {row for _, row in read_locations(shown.assembly())} > {-1}
    facts = unpack(device.build(kernel, "softmax"))
    out, x = device.buffer(8 * 24, float32), device.buffer(8 * 24, float32)
    rows = np.linspace(-3, 3, 8 * 24, dtype=np.float32).reshape(8, 24)
    x.copy_in(rows)
    Kernel(replace(facts, code=shown.code()), "shown")([out, x], {})
    expected = np.exp(rows.astype(np.float64)) / np.exp(rows.astype(np.float64)).sum(1, keepdims=True)
    np.testing.assert_allclose(out.copy_out().reshape(8, 24), expected, rtol=2e-6)


def test_the_key_of_a_machine_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who knows the files has no need to read them; another file, or another processor, is another key."""
    cpu_machine_key.cache_clear()
    with knobs.override(CACHE_DIR=str(tmp_path)):
        wanted = cpu_machine(host(), 3).key
        assert cpu_machine_key(host(), 3) == wanted != cpu_machine_key(host(), 5)
        made: list[int] = []
        monkeypatch.setattr(cpu_device, "cpu_machine", lambda *given: made.append(1) or cpu_machine(*given))
        cpu_machine_key.cache_clear()
        assert cpu_machine_key(host(), 3) == wanted and not made
        monkeypatch.setattr(choose, "cache_bytes", lambda level, otherwise: 12345)
        cpu_machine_key.cache_clear()
        cpu_machine_key(host(), 3)
        assert made
        monkeypatch.undo()
        fitted = choose.fitted_path(host().cpu)
        fitted.parent.mkdir()
        fitted.write_text(f"base = '{choose.shipped_source(host()).name}'\n[rates]\nlaunch = 12345\n")
        cpu_machine_key.cache_clear()
        cpu_machine.cache_clear()
        assert cpu_machine_key(host(), 3) == cpu_machine(host(), 3).key != wanted
    cpu_machine_key.cache_clear()
    cpu_machine.cache_clear()


def test_a_second_process_reads_no_machine(tmp_path: Path) -> None:
    """Nor does it load what only people who compile, or name files, need."""
    script = (
        "import sys; from morok import Tensor; print((Tensor([1.0, 2.0]) + 1).tolist(),"
        " *(name in sys.modules for name in ('tomllib', 'pathlib', '_hashlib')))"
    )
    around = {**os.environ, "MOROK_CACHE_DIR": str(tmp_path), "DEVICE": "CPU", "MOROK_CACHE_PLANS": "1"}
    found = []
    for _ in range(2):
        command = [sys.executable, "-S", "-c", f"import sys; sys.path[:] = {sys.path!r}; {script}"]
        done = subprocess.run(command, env=around, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        found.append(done.stdout.split("] ")[1].split())
    assert found == [["True", "True", "False"], ["False"] * 3]
