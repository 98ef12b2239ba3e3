"""Children of a process whose other threads are at work: none of them hangs, and all compute."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from morok import forks

ROOT = Path(__file__).parents[1]
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="a system without fork")

# Threads compile kernels and run them on the pool of workers, with the store open, while the main one forks.
# A child that does not end in time says where it stands, and is killed.
SCRIPT = """
import faulthandler, os, sys, threading, time, warnings
import numpy as np
from morok import Tensor

warnings.simplefilter("ignore")  # newer Pythons warn of forks with threads
children, stop = int(sys.argv[1]), False

def compile_many(k):
    n = 0
    while not stop:
        n += 1
        (Tensor(np.ones((300 + k, n + 3), np.float32)) * 2 + n).sum(0).numpy()

threads = [threading.Thread(target=compile_many, args=(k,), daemon=True) for k in range(3)]
for thread in threads:
    thread.start()  # the first children are forked while modules are loaded
for i in range(children):
    time.sleep(0.01 * (i % 5))
    if (child := os.fork()) == 0:
        faulthandler.dump_traceback_later(120, exit=True)
        found = ((Tensor(np.ones((300, 1000 + i), np.float32)) + 1) * 3).sum(0).numpy()
        os._exit(0 if found.shape == (1000 + i,) and (found == 1800).all() else 3)
    _, status = os.waitpid(child, 0)
    assert status == 0, f"child {i}: {status}"
stop = True
for thread in threads:
    thread.join()
print("all well")
"""


def run(script: str, *arguments: str, cache: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), *arguments],
        capture_output=True, text=True, cwd=ROOT, env={**os.environ, "MOROK_CACHE_DIR": str(cache)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@needs_fork
def test_a_fork_while_threads_compile(tmp_path: Path) -> None:
    assert run(SCRIPT, "4", cache=tmp_path).strip() == "all well"


@needs_fork
@pytest.mark.slow
def test_fifty_forks_while_threads_compile(tmp_path: Path) -> None:
    assert run(SCRIPT, "50", cache=tmp_path).strip() == "all well"


@needs_fork
def test_no_connection_crosses_a_fork(tmp_path: Path) -> None:
    script = """
    import os, sys, warnings
    from pathlib import Path
    from morok.device.compiled import Compiled
    from morok.device.store import DiskStore
    warnings.simplefilter("error")
    store = DiskStore(sys.argv[1])
    store.put("a", Compiled("k", b"code"))
    if (child := os.fork()) == 0:
        assert store._connection is None
        store.put("b", Compiled("k", b"child"))
        os._exit(0 if store.get("a").code == b"code" else 3)
    assert os.waitpid(child, 0)[1] == 0
    assert store.get("b").code == b"child" and store._connection is not None
    """
    run(script, str(tmp_path / "store"), cache=tmp_path)


@needs_fork
def test_a_child_drops_the_nodes_of_a_thread_while_another_one_held_their_lock(tmp_path: Path) -> None:
    script = """
    import os, signal, threading, time, warnings
    from morok.dtype import int32
    from morok.ir import node
    from morok.ir.node import const, large_graph, toposort

    warnings.simplefilter("ignore")
    inside, held, go_on = (threading.Event() for _ in range(3))

    def keep():  # the only one who holds this graph
        with large_graph:
            graph = const(int32, 1)
            for i in range(1000):
                graph = graph + const(int32, i)
            toposort(graph)
            del graph
            inside.set()
            go_on.wait()

    def hold():
        with node._lock:
            held.set()
            go_on.wait()

    threads = [threading.Thread(target=keep), threading.Thread(target=hold)]
    for thread, ready in zip(threads, (inside, held), strict=True):
        thread.start()
        ready.wait()
    if (child := os.fork()) == 0:
        os._exit(0 if node.live_nodes() < 1000 else 3)
    until = time.monotonic() + 30
    while os.waitpid(child, os.WNOHANG)[0] == 0:
        if time.monotonic() > until:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            go_on.set()
            raise SystemExit("the child hangs")
        time.sleep(0.01)
    go_on.set()
    """
    run(script, cache=tmp_path)


@needs_fork
def test_a_child_gets_locks_that_nobody_holds() -> None:
    class Owner:
        def __init__(self) -> None:
            self.lock = forks.renewed(self, "lock", threading.Lock)

    owner, held = Owner(), threading.Event()
    go_on = threading.Event()

    def hold() -> None:
        with owner.lock:
            held.set()
            go_on.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    mine = owner.lock
    forks._in_child()  # what a child would do
    assert owner.lock is not mine and owner.lock.acquire(blocking=False)
    go_on.set()
    thread.join()


@needs_fork
def test_a_child_computes_a_property_that_another_thread_was_computing() -> None:
    inside, go_on, main = threading.Event(), threading.Event(), threading.get_ident()

    class Owner:
        @forks.cached_property
        def answer(self) -> int:
            if threading.get_ident() != main:
                inside.set()
                go_on.wait()
            return 42

    thread = threading.Thread(target=lambda: Owner().answer)
    thread.start()
    inside.wait()
    if (child := os.fork()) == 0:
        signal.alarm(20)  # that ends a child that hangs
        os._exit(0 if Owner().answer == 42 else 3)
    status = os.waitpid(child, 0)[1]
    go_on.set()
    thread.join()
    assert status == 0


def test_all_properties_that_are_computed_once_are_of_that_kind() -> None:
    texts = {file: file.read_text() for file in (ROOT / "morok").rglob("*.py")}
    users = [file for file, text in texts.items() if "@cached_property" in text]
    assert len(users) > 5
    assert not [file for file in users if "from morok.forks import cached_property" not in texts[file]]


def test_a_lock_holds_nobody_alive() -> None:
    class Owner:
        pass

    forks.renewed(Owner(), "lock", threading.Lock)
    forks.renewed(last := Owner(), "lock", threading.Lock)
    alive = [entry for entry in forks._owners if isinstance(entry[0](), Owner)]
    assert len(alive) == 1 and alive[0][0]() is last


@needs_fork
def test_the_collector_runs_again_in_a_child() -> None:
    """Threads that have put it off do not come along, so nobody would switch it on."""
    script = """
    import gc, os, threading, warnings
    from morok.rewrite.gc_pause import gc_paused
    warnings.simplefilter("ignore")
    inside, leave = threading.Event(), threading.Event()
    def work():
        with gc_paused:
            inside.set(); leave.wait()
    thread = threading.Thread(target=work); thread.start(); inside.wait()
    assert not gc.isenabled()
    if (child := os.fork()) == 0:
        os._exit(0 if gc.isenabled() else 3)
    assert os.waitpid(child, 0)[1] == 0
    with gc_paused:
        if (child := os.fork()) == 0:
            os._exit(3 if gc.isenabled() else 0)
        assert os.waitpid(child, 0)[1] == 0
    leave.set(); thread.join()
    assert gc.isenabled()
    """
    run(script, cache=Path("/nowhere"))
