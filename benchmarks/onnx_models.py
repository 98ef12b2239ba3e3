"""Models in ONNX files beside ONNX Runtime: the same results, and how long calls take.

    python benchmarks/onnx_models.py FILE… [--dim [FILE/]NAME=SIZE] [--rounds 30] [--cold]
    python benchmarks/onnx_models.py --folder models [--only bert] [--twins]

Each file is run on random inputs; `--dim batch=2`, or `--dim x.0=2` by input and axis, says open sizes.
Printed: the largest difference over the largest number, whether the largest elements are at the same
places, milliseconds of a call (least of rounds in turns with pauses, both with as many threads as
MOROK_THREADS says) and the ratio, above 1 where morok is faster. `--cold` measures loading and the first
call in processes of their own, one with an empty cache and one after it. `--twins` makes three int8 twins
of each file with ONNX Runtime's quantiser and measures these beside their float32 original.
"""

from __future__ import annotations

import argparse
import gc
import os
import subprocess
import sys
import tempfile
import time
from math import exp, log
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
TWINS = ("qdq", "qoperator", "dynamic")
TURN = 5  # calls
PAUSE = 0.05  # seconds

FIRST = """
import sys, time, pickle
import numpy as np
import onnx
start = time.perf_counter()
from morok.onnx import load
begun = time.perf_counter()
feeds = pickle.load(open(sys.argv[2], "rb"))
load(sys.argv[1])(feeds)
print(time.perf_counter() - begun, begun - start)
"""


def feeds_of(model: Any, dims: dict[str, int]) -> dict[str, Any]:
    """Random inputs; whole numbers are small, masks are ones, a rate of samples is one that there is."""
    from morok.onnx.types import numpy_type

    rng = np.random.default_rng(0)
    made = {}
    for port in model.inputs:
        shape = [
            n if isinstance(n, int) else dims.get(f"{port.name}.{axis}", dims.get(n or "", 1))
            for axis, n in enumerate(port.shape)
        ]
        kind = numpy_type(port.elem)
        if port.name == "sr":
            made[port.name] = np.array(16000, kind)
        elif "mask" in port.name:
            made[port.name] = np.ones(shape, kind)
        elif kind.kind in "iu":
            made[port.name] = rng.integers(0, 1000, shape).astype(kind)
        else:
            made[port.name] = rng.standard_normal(shape).astype(kind)
    return made


def session(path: str) -> Any:
    import onnxruntime

    from morok import knobs

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = knobs.THREADS.value
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def compared(found: list[Any], wanted: list[Any]) -> tuple[float, bool]:
    """The largest difference, relative, and whether the largest elements are at the same places."""
    worst, same = 0.0, True
    for a, b in zip(found, wanted, strict=True):
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        if b.size:
            worst = max(worst, float(np.abs(a - b).max() / max(np.abs(b).max(), 1e-9)))
            if b.ndim:
                at = np.take_along_axis(b, a.argmax(-1)[..., None], -1)[..., 0]  # equal but for ties
                same = same and bool((b.max(-1) - at <= 1e-4 * np.abs(b).max()).all())
    return worst, same


def in_turns(functions: list[Any], rounds: int, seconds: float) -> list[float]:
    """The least time of each, in turns of a few calls, for so many rounds of calls or seconds.

    A turn begins with a pause and a call that does not count: the other one's threads go on waiting for work
    for some 20 ms after its last call, on a core that this one needs, and its data fill the caches.
    """
    best = [float("inf")] * len(functions)
    spent, done = 0.0, 0
    while done < rounds and (done < 2 * TURN or spent < seconds):
        for i, function in enumerate(functions):
            time.sleep(PAUSE)
            function()
            for _ in range(TURN):
                start = time.perf_counter()
                function()
                took = time.perf_counter() - start
                spent += took
                best[i] = min(best[i], took)
        done += TURN
    return best


def first_calls(path: str, feeds: dict[str, Any]) -> list[tuple[float, float]]:
    """Seconds of loading and the first call, and of the import before: with an empty cache, and once more."""
    import pickle

    with tempfile.TemporaryDirectory() as folder:
        given = os.path.join(folder, "feeds")
        with open(given, "wb") as file:
            pickle.dump(feeds, file)
        env = {**os.environ, "XDG_CACHE_HOME": folder, "PYTHONPATH": str(ROOT)}
        env.pop("PYTHONDONTWRITEBYTECODE", None)
        made = []
        for _ in range(2):
            text = subprocess.run(
                [sys.executable, "-c", FIRST, path, given],
                env=env,
                capture_output=True,
                text=True,
                check=True,
            ).stdout
            first, imported = map(float, text.split())
            made.append((first, imported))
    return made


class _Samples:
    """Inputs for the quantiser to look at."""

    def __init__(self, feeds: dict[str, Any]) -> None:
        self.left = [feeds]

    def get_next(self) -> Any:
        return self.left.pop() if self.left else None


def twin(path: str, kind: str, feeds: dict[str, Any], folder: str) -> str:
    """The int8 twin of a model, made by ONNX Runtime's quantiser."""
    from onnxruntime import quantization as q

    target = os.path.join(folder, f"{Path(path).stem}.{kind}.onnx")
    if not os.path.exists(target):
        if kind == "dynamic":
            q.quantize_dynamic(path, target)
        else:
            form = q.QuantFormat.QDQ if kind == "qdq" else q.QuantFormat.QOperator
            q.quantize_static(path, target, _Samples(feeds), quant_format=form, per_channel=kind == "qdq")
    return target


def row(path: str, args: argparse.Namespace, dims: dict[str, int], base: float | None = None) -> Any:
    from morok.onnx import load

    model = load(path)
    feeds = feeds_of(model, dims)
    peer = session(path)
    names = [port.name for port in model.outputs]
    worst, same = compared(model.run(names, feeds), peer.run(names, feeds))
    best = in_turns(
        [lambda: model.run(names, feeds), lambda: peer.run(names, feeds)], args.rounds, args.seconds
    )
    text = f"{Path(path).stem[:34]:34} {len(model.nodes):4} nodes {worst:9.1e} {'same' if same else 'OTHER'}"
    text += f" {best[0] * 1e3:9.3f} {best[1] * 1e3:9.3f} ms {best[1] / best[0]:6.2f}"
    if base is not None:
        text += f"  of the float32 twin {base / best[0]:5.2f}"
    if args.cold:
        (cold, imported), (again, _) = first_calls(path, feeds)
        text += f"  cold {cold:5.2f} s, again {again:5.2f} s, import {imported:4.2f} s"
    print(text, flush=True)
    return best[1] / best[0], best[0], feeds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*")
    parser.add_argument("--folder")
    parser.add_argument("--only", default="")
    parser.add_argument("--dim", action="append", default=[])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=3.0, help="at most, for each file")
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--twins", action="store_true")
    args = parser.parse_args()
    files = list(args.files)
    if args.folder:
        files += [str(p) for p in sorted(Path(args.folder).rglob("*.onnx")) if ".qdq" not in p.name]
    files = [f for f in files if any(word in f for word in args.only.split(","))]
    dims = {name: int(size) for name, size in (text.rsplit("=", 1) for text in args.dim)}
    ratios, failed = [], []
    for path in files:
        gc.collect()
        own = {
            name.partition("/")[2]: n
            for name, n in dims.items()
            if "/" in name and name.split("/")[0] in path
        }
        sizes = {**{name: n for name, n in dims.items() if "/" not in name}, **own}
        try:
            ratio, mine, feeds = row(path, args, sizes)
        except Exception as error:  # the other files are still worth their rows
            failed.append(path)
            print(
                f"{Path(path).stem[:34]:34} {type(error).__name__}: {str(error).splitlines()[0]}", flush=True
            )
            continue
        ratios.append(ratio)
        if args.twins:
            folder = tempfile.mkdtemp()
            for kind in TWINS:
                row(twin(path, kind, feeds, folder), args, sizes, mine)
    if ratios:
        print(f"geometric mean {exp(sum(map(log, ratios)) / len(ratios)):.2f}, least {min(ratios):.2f}")
    if failed:
        sys.exit(f"{len(failed)} of {len(files)} files failed (open sizes are 1 unless --dim says more)")


if __name__ == "__main__":
    main()
