"""What is remembered has a bound: the class for it, every table that uses it, and memory that stays flat."""

import gc
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from morok import Tensor, caches, jit
from morok.caches import CACHES, Cache
from morok.device.cpu import llvm
from morok.ir.node import live_nodes

ROOT = Path(__file__).parents[1]


@pytest.fixture
def cache() -> Iterator[Cache[int, str]]:
    yield Cache("test.cache", 8)
    del CACHES["test.cache"]


def test_never_more_than_the_bound(cache: Cache[int, str]) -> None:
    for n in range(100):
        cache[n] = str(n)
        assert len(cache) <= 8 and cache.get(n) == str(n)
    assert cache.get(0) is None and (cache.hits, cache.misses) == (100, 1)
    assert cache.evicted == 100 - len(cache)


def test_what_is_used_stays(cache: Cache[int, str]) -> None:
    for n in range(100):
        cache[n] = str(n)
        assert cache.get(0) == "0" or n == 0
    assert cache.get(1) is None


def test_an_old_entry_that_is_used_is_no_second_one(cache: Cache[int, str]) -> None:
    for n in range(5):
        cache[n] = str(n)
    assert cache.get(0) == "0" and len(cache) == len(cache.items()) == 5
    cache[0] = "new"
    assert cache.get(0) == "new" and len(cache) == 5


@pytest.mark.parametrize("bound", [1, 2, 3])
def test_small_bounds(cache: Cache[int, str], bound: int) -> None:
    cache.bound = bound
    for n in range(10):
        cache[n] = str(n)
        assert len(cache) <= bound and cache.get(n) == str(n)


def test_forgetting_everything(cache: Cache[int, str]) -> None:
    cache[1] = "one"
    cache.clear()
    assert len(cache) == 0 and 1 not in cache


# Tables that cannot grow with the shapes of a program, each with the reason.
FINITE = {
    "morok.caches.CACHES": "one entry per cache",
    "morok.caches.WATCHED": "one entry per table",
    "morok.dtype.types._INTERNED": "scalars and vectors; pointers are held weakly",
    "morok.ir.arithmetic.alu._functions": "ops and types",
    "morok.ir.args.REGISTERED": "filled when modules are loaded",
    "morok.ir.node._meaningful": "ops and types",
    "morok.ir.node._table": "weak: nodes that are alive",
    "morok.ir.ops._TABLE": "filled when modules are loaded",
    "morok.onnx.table._ON_HOST": "operators",
    "morok.onnx.table._TABLE": "operators",
    "morok.torch.streams._streams": "GPUs",
    "morok.torch.table._TABLE": "operators",
    "morok.torch.watch._watchers": "a stack of blocks that are open",
    "morok.nn.module._updated": "emptied by every step",
    "morok.machine.devices._finders": "one",
    "morok.proof.rulebook.SKIPPED": "modules",
    "morok.render.llvm.types._NAMES": "scalars and vectors",
    "morok.rewrite.checks._live": "rules",
    "morok.rewrite.checks._terminating": "rules",
    "morok.rewrite.keep._results": "stages and machines; what they have is bounded, and goes with the nodes",
    "morok.rewrite.ruleset.NAMED_SETS": "rules",
    "morok.rewrite.ruleset.REGISTRY": "rules",
    "morok.rewrite.spec.SPECS": "stages",
    "morok.rewrite.trace._asked": "values of an option",
    "morok.codegen.written.WRITERS": "functions of modules that write kernels",
    "morok.device.dump._active": "a stack of blocks that are open",
    "morok.device.cpu.llvm._linkers": "one per 128 kernels that are alive",
    "morok.device.prove._unreported": "a stack of blocks that are open",
    "morok.device.registry._devices": "devices",
    "morok.device.store._stores": "folders",
    "morok.device.mesh.watch._own": "one",
    "morok.device.mesh.world._engines": "kinds of engines, and numbers of devices",
    "morok.forks._held": "locks of modules",
    "morok.forks._owners": "weak: objects that are alive",
    "morok.runtime.profile.active_profiles": "a stack of blocks that are open",
    "morok.runtime.tuning._pools": "one",
    "morok.schedule.graph.states._NONE": "stays empty",
    "morok.tensor.memory.again._notes": "weak: nodes that are alive",
    "morok.tensor.memory.names.FIXED": "one",
}
# A table of a module that begins empty, so that somebody fills it.
GROWING = re.compile(
    r"^(\w+)(?:: [^\n=]+)? = (?:\{\}|\[\]|(?:dict|list|set|deque|OrderedDict|Counter)\(\))", re.M
)


def growing(path: Path) -> Iterator[str]:
    module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    return (f"{module}.{name}" for name in GROWING.findall(path.read_text()))


def test_every_table_of_a_module_is_a_cache_or_says_why_not() -> None:
    found = {name for path in sorted((ROOT / "morok").rglob("*.py")) for name in growing(path)}
    weak = {
        f"morok.tensor.memory.storage.{name}" for name in ("_done", "_living", "_memories")
    }  # what is alive
    assert found - FINITE.keys() - weak == set()


# --- memory


@pytest.fixture
def low_bounds() -> Iterator[int]:
    before = {name: cache.bound for name, cache in CACHES.items()}
    caches.clear_all()
    for cache in CACHES.values():
        cache.bound = 16
    yield 16
    for name, cache in CACHES.items():
        cache.bound = before.get(name, cache.bound)


def work(size: int) -> np.ndarray:
    return (Tensor(np.full(size, 2.0, np.float32)) * 3 + 1).numpy()


def test_every_cache_keeps_to_its_bound(low_bounds: int) -> None:
    nodes = linkers = 0
    for size in range(1000, 1060):
        assert work(size).tolist() == [7.0] * size
        if size == 1035:
            gc.collect()
            nodes, linkers = live_nodes(), len(llvm._linkers)
    for name, cache in CACHES.items():
        assert len(cache) <= low_bounds, name
    gc.collect()
    assert live_nodes() <= nodes + 100, "nodes of shapes that nobody uses any more are alive"
    assert len(llvm._linkers) <= linkers + 1


def test_a_forgotten_kernel_that_a_plan_holds_still_runs(low_bounds: int) -> None:
    compiled = jit(lambda x: x * 2 + 1)
    for start in (0, 1, 2):
        assert compiled(Tensor(np.arange(start, start + 777, dtype=np.float32))).numpy()[0] == 2 * start + 1
    caches.clear_all()
    for size in range(2000, 2020):
        work(size)
    gc.collect()
    assert compiled(Tensor(np.arange(9, 786, dtype=np.float32))).numpy()[0] == 19


def test_the_command_lists_them(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("from morok import Tensor\n(Tensor([1.0, 2.0]) + 1).numpy()\n")
    done = subprocess.run(
        [sys.executable, "-m", "morok", "caches", str(script)], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    rows = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines() if line.strip()}
    assert rows["name"] == ["entries", "bound", "hits", "misses", "evicted"]
    assert rows["schedule.templates"][:2] == ["1", "512"] and rows["ir.nodes"][1:] == ["in", "use"]


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="how large a process is, Linux says")
def test_twenty_thousand_shapes(tmp_path: Path) -> None:
    """After the first hundred, the process grows by less than 150 MB."""
    done = subprocess.run(
        [sys.executable, "benchmarks/shapes.py", "--shapes", "20000"],
        capture_output=True, text=True, cwd=ROOT, env={**os.environ, "MOROK_CACHE_DIR": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    last = done.stdout.splitlines()[-1].split()
    assert last[0] == "20000" and float(last[4]) < 150, done.stdout
