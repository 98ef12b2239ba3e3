"""How long one waits for machine code.

    python benchmarks/compile.py [NAME ...]

For each graph: seconds to schedule and compile it with an empty cache, the same in a second process that
finds the kernels on disk (with imports, and without), the overhead of realising an equal graph again in the
process, and the number of kernels. Nothing is run except for the small graphs, so these are times of the
compiler. Where tinygrad is installed, the time of its first call is printed beside.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))


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


GRAPHS: dict[str, Callable[[Any], Any]] = {
    "element-wise": elementwise,
    "softmax": softmax,
    "convolution block": conv_block,
    "ResNet-18": resnet,
    "GPT, 12 layers": gpt,
}
SMALL = ("element-wise", "softmax", "convolution block")


def finish(plan: Any) -> None:
    """Compiles, and waits for the code of every kernel, which may be made in the background."""
    plan.compile()
    for program in plan._programs:
        getattr(program, "code", None)


def child(name: str) -> None:
    """One process: prints what it measured as JSON."""
    began = time.perf_counter()
    from morok import Tensor

    Tensor.empty(1)
    imported = time.perf_counter()
    plan = GRAPHS[name](Tensor).prepare()
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
    print(json.dumps(found))


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


def run(arguments: list[str], cache: str) -> dict[str, float]:
    """A fresh process with this cache; its figures and its whole time."""
    path = os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", "")))
    environment = {**os.environ, "MOROK_CACHE_DIR": cache, "PYTHONPATH": path}
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, __file__, *arguments], env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        reasons = [line for line in done.stderr.splitlines() if line.strip()] or ["it was killed"]
        print(f"{' '.join(arguments)}: {reasons[-1].strip()[:100]}", file=sys.stderr)
        return {}
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return {**found, "process": time.perf_counter() - started}


def main() -> int:
    parser = argparse.ArgumentParser(description="compile times")
    parser.add_argument("names", nargs="*", help=f"of {', '.join(GRAPHS)}")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--tinygrad", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.child)
        return 0
    if options.tinygrad:
        tinygrad_child(options.tinygrad)
        return 0
    peer = importlib.util.find_spec("tinygrad") is not None
    print(
        f"{'graph':<20} {'kernels':>7} {'cold s':>8} {'warm s':>8} {'warm process s':>15} {'repeat ms':>10}"
        f" {'replay µs':>10}" + (f" {'tinygrad s':>11}" if peer else "")
    )
    for name in options.names or GRAPHS:
        with tempfile.TemporaryDirectory() as cache:
            cold, warm = run(["--child", name], cache), run(["--child", name], cache)
            if not cold or not warm:
                print(f"{name:<20} failed")
                continue
            repeat = f"{warm['repeat'] * 1e3:>10.2f}" if "repeat" in warm else f"{'':>10}"
            again = f"{warm['replay'] * 1e6:>10.2f}" if "replay" in warm else f"{'':>10}"
            other = ""
            if peer:
                found = run(["--tinygrad", name], cache)
                other = f" {found['first']:>11.2f}" if found else f" {'-':>11}"
            print(
                f"{name:<20} {cold['kernels']:>7} {cold['compile']:>8.2f} {warm['compile']:>8.2f}"
                f" {warm['process']:>15.2f} {repeat} {again}{other}",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
