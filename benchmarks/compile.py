"""How long one waits for machine code.

    python benchmarks/compile.py [NAME ...]

For each graph: seconds to schedule and compile it with an empty cache, the same in a second process that
finds schedule and kernels on disk, that process from its start to the first result (its interpreter, NumPy
and all), a new shape of a known model, the overhead of realising an equal graph again in the process, and
the number of kernels. All processes find Python's own compiled files, as those of an installed package do.
Below: state that is loaded, and long chains. With --peers, the first call of torch.compile, JAX and tinygrad,
as far as they are installed, with empty caches and in a second process.

With --planning, how long Python plans for a kernel: the programs of `corpus_models.py` for this processor,
and in their sizes for GPUs for one that need not be here, the prices of all that fusion asked about in it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, ROOT)
RESULT = "result"  # what a child says as soon as it has one


class Filled:
    """Tensors on memory that is written before the first run, as loading weights does.

    Memory that nobody has written is one page of zeros, mapped again and again: ResNet-18 takes 175 ms over
    that and 62 over numbers.
    """

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor
        self.arrays: list[Any] = []

    def empty(self, *sizes: int) -> Any:
        import numpy as np

        self.arrays.append(np.empty(sizes, np.float32))
        return self.tensor.from_numpy(self.arrays[-1])

    def fill(self) -> None:
        for array in self.arrays:
            array.fill(0.01)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tensor, name)


def elementwise(tensor: Any) -> Any:
    x, y, z = (tensor.empty(1 << 16) for _ in range(3))
    return (x * y + z).gelu()


def softmax(tensor: Any) -> Any:
    return tensor.empty(256, 256).softmax(-1)


def conv_block(tensor: Any) -> Any:
    x, w, b = tensor.empty(1, 16, 16, 16), tensor.empty(16, 16, 3, 3), tensor.empty(1, 16, 1, 1)
    return (x.conv2d(w, padding=1) + b).relu()


def resnet(tensor: Any) -> Any:
    from benchmarks.models import ResNet18

    return ResNet18(tensor)(tensor.empty(1, 3, 224, 224))


def gpt(tensor: Any) -> Any:
    from benchmarks.models import Gpt

    return Gpt(tensor).blocks(tensor.empty(1, 64, 768))


def wider_resnet(tensor: Any) -> Any:
    from benchmarks.models import ResNet18

    return ResNet18(tensor)(tensor.empty(1, 3, 192, 256))


def longer_gpt(tensor: Any) -> Any:
    from benchmarks.models import Gpt

    return Gpt(tensor).blocks(tensor.empty(1, 48, 768))


def chained_sines(tensor: Any) -> None:
    """300 sines of one another, and their gradient."""
    x = tensor.ones(1000).contiguous().realize()
    y = x
    for _ in range(300):
        y = y.sin()
    y.sum().gradient(x)[0].realize()


def loaded_state(tensor: Any, width: int = 768) -> None:
    """The parameters of a BERT are made, and overwritten by a load before anybody reads them."""
    import numpy as np

    from morok import nn

    class Layer:
        def __init__(self) -> None:
            self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)

    class Bert:
        def __init__(self) -> None:
            self.words, self.places = nn.Embedding(30522, width), nn.Embedding(512, width)
            self.layers = [Layer() for _ in range(12)]

    model = Bert()
    state = {name: np.ones(t.shape, np.float32) for name, t in nn.state.state_dict(model).items()}
    started = time.perf_counter()
    nn.state.load_state_dict(model, {name: tensor(array) for name, array in state.items()})
    model.layers[-1].down.weight.realize()
    print(json.dumps({"work": time.perf_counter() - started}))


GRAPHS: dict[str, Callable[[Any], Any]] = {
    "element-wise": elementwise,
    "softmax": softmax,
    "convolution block": conv_block,
    "ResNet-18": resnet,
    "GPT, 12 layers": gpt,
}
NEW_SHAPES: dict[str, Callable[[Any], Any]] = {"ResNet-18": wider_resnet, "GPT, 12 layers": longer_gpt}
WORK: dict[str, Callable[[Any], None]] = {
    "300 sines, gradient": chained_sines,
    "load_state_dict, BERT": loaded_state,
}
PEERS = ("torch.compile", "jax", "tinygrad")
SMALL = ("element-wise", "softmax", "convolution block")


def finish(plan: Any) -> None:
    """Compiles, and waits for the code of every kernel, which may be made in the background."""
    plan.compile()
    for program in plan._programs:
        getattr(program, "code", None)


def child(name: str, new_shape: bool = True) -> None:
    """One process: prints what it measured as JSON."""
    began = time.perf_counter()
    from morok import Tensor

    Tensor.empty(1)
    imported = time.perf_counter()
    filled = Filled(Tensor)
    plan = GRAPHS[name](Tensor if name in SMALL else filled).prepare()
    finish(plan)
    compiled = time.perf_counter()
    found = {"imports": imported - began, "compile": compiled - imported, "kernels": len(plan)}
    if name in SMALL:
        for _ in range(3):
            graph = GRAPHS[name](Tensor)
            started = time.perf_counter()
            graph.realize()
            whole = time.perf_counter() - started
            again = GRAPHS[name](Tensor).prepare()
            finish(again)
            started = time.perf_counter()
            again.run()
            found["repeat"] = min(found.get("repeat", 9.0), max(0.0, whole - (time.perf_counter() - started)))
        found["replay"] = replay(Tensor)
    else:
        filled.fill()
        plan.run()
    print(RESULT, flush=True)
    if name in NEW_SHAPES and new_shape:
        started = time.perf_counter()
        finish(NEW_SHAPES[name](filled).prepare())
        found["shape"] = time.perf_counter() - started
    print(json.dumps(found))


def work_child(name: str) -> None:
    """A piece of work in a process of its own."""
    from morok import Tensor

    Tensor.empty(1)
    started = time.perf_counter()
    WORK[name](Tensor)
    if name != "load_state_dict, BERT":  # which does not count the making of its data
        print(json.dumps({"work": time.perf_counter() - started}))


def peer_child(peer: str, name: str) -> None:
    """The first call of another library."""
    if peer == "tinygrad":
        tinygrad_child(name)
        return
    from morok.cli.bench.libraries import libraries, mapped
    from morok.cli.bench.rows import rows

    row = next(row for row in rows(False) if row.name.startswith(name.split(",")[0]))
    work, lib = row.make(), libraries((peer,), os.cpu_count() or 1)[-1]
    inputs = [mapped(lib.tensor, value) for value in work.inputs]
    started = time.perf_counter()
    lib.array(lib.compiled(work.function)(*inputs))
    print(json.dumps({"first": time.perf_counter() - started}))


def replay(tensor: Any) -> float:
    """Seconds per call of a jitted addition of 16 numbers."""
    from morok import jit

    f = jit(lambda x: x + x)
    x = tensor([float(i) for i in range(16)]).realize()
    f(x)
    best = 1.0
    for _ in range(20):
        started = time.perf_counter()
        for _ in range(500):
            f(x)
        best = min(best, (time.perf_counter() - started) / 500)
    return best


def tinygrad_child(name: str) -> None:
    from tinygrad import Tensor

    started = time.perf_counter()
    GRAPHS[name](Tensor).realize()
    print(json.dumps({"first": time.perf_counter() - started}))


def run(arguments: list[str], cache: str, more: dict[str, str] | None = None) -> dict[str, float]:
    """A fresh process with these caches; its figures, and the time from its start to its first result."""
    import subprocess

    path = os.pathsep.join((ROOT, os.environ.get("PYTHONPATH", "")))
    environment = {
        **os.environ,
        "MOROK_CACHE_DIR": cache,
        "PYTHONPATH": path,
        **(more or {}),
        "TORCHINDUCTOR_CACHE_DIR": cache,
    }
    environment |= {"JAX_COMPILATION_CACHE_DIR": cache, "PYTHONPYCACHEPREFIX": os.path.dirname(cache)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    started = time.perf_counter()
    pipe = subprocess.PIPE
    command = [sys.executable, __file__, *arguments]
    with subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, text=True) as done:
        assert done.stdout is not None and done.stderr is not None
        first = done.stdout.readline()
        until = time.perf_counter() - started
        output, errors = done.stdout.read(), done.stderr.read()
    if done.returncode:
        reasons = [line for line in errors.splitlines() if line.strip()] or ["it was killed"]
        print(f"{' '.join(arguments)}: {reasons[-1].strip()[:100]}", file=sys.stderr)
        return {}
    found: dict[str, float] = json.loads((first + output).splitlines()[-1])
    return {**found, "process": until}


def recorded_child(name: str) -> None:
    """The same compilation, recorded for a page, which is written too."""
    import tempfile
    from pathlib import Path

    from morok import Tensor, view

    Tensor.empty(1)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, view(Path(folder) / "run.html"):
        finish(GRAPHS[name](Tensor).prepare())
    print(json.dumps({"recorded": time.perf_counter() - began}))


def recordings(names: list[str], python_files: str) -> None:
    """Cold compilations with and without a recording in turns, the best of three each."""
    import tempfile

    print(f"\n{'recorded by morok view':<22} {'cold s':>10} {'recorded s':>10} {'ratio':>10}")
    for name in [name for name in names if name in GRAPHS]:
        times: dict[str, list[float]] = {"compile": [], "recorded": []}
        for _ in range(3):
            for what, command in (("compile", "--child"), ("recorded", "--record")):
                with tempfile.TemporaryDirectory(dir=python_files) as cache:
                    times[what].append(run([command, name], cache).get(what, float("inf")))
        cold, recorded = min(times["compile"]), min(times["recorded"])
        print(f"{name:<22} {cold:>10.2f} {recorded:>10.2f} {recorded / cold:>10.2f}", flush=True)


def twice(arguments: list[str], python_files: str) -> tuple[dict[str, float], dict[str, float]]:
    """With an empty cache, and again."""
    import tempfile

    with tempfile.TemporaryDirectory(dir=python_files) as cache:
        return run(arguments, cache), run([*arguments, "--again"], cache)


def planning_child(name: str, gpu: bool) -> None:
    """Plans a program of the corpus with nothing remembered, and once more as a process does that has planned
    others: processor time of this thread."""
    from benchmarks.corpus_models import models
    from morok import Tensor
    from morok.nn import functional
    from morok.schedule.plan.kernels import _lowered
    from morok.schedule.schedule import clear_cache

    model = next(model for model in models() if model.name == name)
    sizes = {key: size[0 if gpu else 1] for key, size in model.sizes.items()}
    found: dict[str, float] = {}
    for when in ("first", "again"):
        clear_cache()
        _lowered.clear()
        weights = {
            key: Tensor.empty(*shape, dtype=model.dtype) for key, shape in model.weights(sizes).items()
        }
        data = [
            Tensor.empty(*shape, dtype="int64" if kind else model.dtype) for shape, kind in model.data(sizes)
        ]
        results = model.run(functional, sizes, weights, *data)
        results = list(results) if isinstance(results, (tuple, list)) else [results]
        if model.trains:
            results += results[0].float().sum().gradient(*weights.values())
        started = time.thread_time()
        found["kernels"] = len(results[0].prepare(*results[1:]))
        found[when] = time.thread_time() - started
    print(json.dumps(found))


def planning(python_files: str) -> None:
    """Milliseconds of planning per kernel."""
    import tempfile

    from benchmarks.corpus_models import models

    heads = ("kernels", "first ms", "per kernel", "again ms", "per kernel")
    print(f"{'planning':<45} " + " ".join(f"{head:>10}" for head in heads))
    for where, device in (("processor", dict[str, str]()), ("GPU", {"MOROK_DEVICE": "PLAN"})):
        for name in [model.name for model in models()]:
            with tempfile.TemporaryDirectory(dir=python_files) as cache:
                found = run(["--plan", name, where], cache, {"MOROK_CACHE": "0", **device})
            each = {key: time / max(1, found["kernels"]) for key, time in found.items()}
            cells = [show(found, "first", 1e3), show(each, "first", 1e3)]
            cells += [show(found, "again", 1e3), show(each, "again", 1e3)]
            print(
                f"{name + ', ' + where:<45} {int(found.get('kernels', 0)):>10} {' '.join(cells)}", flush=True
            )


def show(found: dict[str, float], name: str, factor: float = 1.0) -> str:
    return f"{found[name] * factor:>10.2f}" if name in found else f"{'-':>10}"


def table(names: list[str], peers: bool, python_files: str) -> None:
    heads = ("kernels", "cold s", "warm s", "2nd proc s", "new shape", "repeat ms", "replay µs")
    print(f"{'graph':<22} " + " ".join(f"{head:>10}" for head in heads))
    for name in [name for name in names if name in GRAPHS]:
        cold, warm = twice(["--child", name], python_files)
        cells = [f"{int(cold.get('kernels', 0)):>10}", show(cold, "compile"), show(warm, "compile")]
        cells += [show(warm, "process"), show(cold, "shape"), show(warm, "repeat", 1e3)]
        print(f"{name:<22} {' '.join(cells)} {show(warm, 'replay', 1e6)}", flush=True)
    print(f"\n{'work':<22} {'cold s':>10} {'again s':>10}")
    for name in [name for name in names if name in WORK]:
        cold, warm = twice(["--work", name], python_files)
        print(f"{name:<22} {show(cold, 'work')} {show(warm, 'work')}", flush=True)
    if not peers:
        return
    import importlib.util

    print(f"\n{'first call':<38} {'cold s':>10} {'2nd proc s':>10}")
    for name in [name for name in names if name in NEW_SHAPES]:
        for peer in PEERS:
            if importlib.util.find_spec(peer.partition(".")[0]) is not None:
                cold, warm = twice(["--peer", peer, name], python_files)
                print(f"{name + ', ' + peer:<38} {show(cold, 'first')} {show(warm, 'first')}", flush=True)


def main() -> int:
    if sys.argv[1:2] == ["--child"]:  # which is timed from its start: it loads nothing that it does not need
        child(sys.argv[2], "--again" not in sys.argv)
        return 0
    import argparse
    import tempfile

    parser = argparse.ArgumentParser(description="compile times")
    parser.add_argument("names", nargs="*", help=f"of {', '.join((*GRAPHS, *WORK))}")
    parser.add_argument("--peers", action="store_true", help=f"also {', '.join(PEERS)}")
    parser.add_argument("--recorded", action="store_true", help="instead: what a recording costs")
    parser.add_argument("--planning", action="store_true", help="instead: how long a kernel is planned")
    parser.add_argument("--plan", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--again", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--record", help=argparse.SUPPRESS)
    parser.add_argument("--work", help=argparse.SUPPRESS)
    parser.add_argument("--peer", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.record:
        recorded_child(options.record)
    elif options.work:
        work_child(options.work)
    elif options.plan:
        planning_child(options.plan[0], options.plan[1] == "GPU")
    elif options.peer:
        peer_child(*options.peer)
    else:
        with tempfile.TemporaryDirectory() as python_files:
            with tempfile.TemporaryDirectory(dir=python_files) as cache:
                run(["--child", "element-wise"], cache)  # Python's own files are there from now on
            names = options.names or [*GRAPHS, *WORK]
            if options.planning:
                planning(python_files)
            elif options.recorded:
                recordings(names, python_files)
            else:
                table(names, options.peers, python_files)
    return 0


if __name__ == "__main__":
    sys.exit(main())
