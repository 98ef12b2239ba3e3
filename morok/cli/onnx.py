"""`morok onnx`: what a model file asks for, a run of it on random numbers, and how fast it is."""

from __future__ import annotations

import importlib.util
import time
from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from morok.errors import ArgumentError, MorokError

if TYPE_CHECKING:
    from morok.onnx.model import Model, Port

NAME = "onnx"
HELP = "check, run or measure a model in an ONNX file"


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("action", choices=("check", "run", "bench"))
    parser.add_argument("file", metavar="FILE", help="the model")
    parser.add_argument("--random", action="store_true", help="feed random numbers (run)")
    parser.add_argument(
        "--dim",
        action="append",
        default=[],
        metavar="NAME=SIZE",
        help="an open size, by its name (default: 1)",
    )
    parser.add_argument("--rounds", type=int, default=20, help="how often to measure (bench)")


def run(args: Namespace) -> int:
    if importlib.util.find_spec("onnx") is None:
        raise MorokError(
            "models are read by the package onnx, which is not installed: pip install 'morok[onnx]'"
        )
    from morok.onnx.model import load

    model = load(args.file)
    if args.action == "check":
        return _check(model)
    if model.missing:
        raise MorokError(f"there is no {'; '.join(model.missing)}")
    dims = dict(_dim(text) for text in args.dim)
    if args.action == "run":
        if not args.random:
            raise ArgumentError("say --random: from the command line a model is fed with random numbers")
        return _run(model, dims)
    return _bench(model, args.file, dims, args.rounds)


def _dim(text: str) -> tuple[str, int]:
    name, _, size = text.rpartition("=")
    if not name or not size.isdecimal():
        raise ArgumentError(f"--dim takes NAME=SIZE, not {text!r}")
    return name, int(size)


def _check(model: Model) -> int:
    for kind, ports in (("takes", model.inputs), ("gives", model.outputs)):
        for port in ports:
            print(f"{kind}  {port}")
    used = Counter(node.domain + "." + node.op if node.domain else node.op for node in model.nodes)
    print(f"{sum(used.values())} nodes:", ", ".join(f"{count} {name}" for name, count in used.most_common()))
    for missing in model.missing:
        print("missing", missing)
    print("cannot be run" if model.missing else "can be run")
    return 1 if model.missing else 0


def _random(port: Port, dims: dict[str, int], rng: Any) -> Any:
    import numpy as np

    from morok.onnx.types import numpy_type

    if port.shape is None:
        raise ArgumentError(f"input {port} is no tensor of known rank; feed it from Python")
    shape = [n if isinstance(n, int) else dims.get(n or "", 1) for n in port.shape]
    kind = numpy_type(port.elem)
    if kind.kind in "iu":
        return rng.integers(0, 2, shape).astype(kind)
    if kind == np.bool_:
        return rng.integers(0, 2, shape).astype(bool)
    if kind.kind == "O":
        return np.full(shape, "word", object)
    return rng.standard_normal(shape).astype(kind)


def _feeds(model: Model, dims: dict[str, int]) -> dict[str, Any]:
    import numpy as np

    rng = np.random.default_rng(0)
    return {port.name: _random(port, dims, rng) for port in model.inputs}


def _run(model: Model, dims: dict[str, int]) -> int:
    import numpy as np

    for name, value in model(_feeds(model, dims)).items():
        array = np.asarray(value)
        numbers = array.dtype.kind == "f" and array.size
        mean = f", mean {array.mean():.4g}, from {array.min():.4g} to {array.max():.4g}" if numbers else ""
        print(f"{name}: {array.dtype}{list(array.shape)}{mean}")
    return 0


def _timed(functions: list[Callable[[], Any]], rounds: int) -> list[float]:
    """The shortest time of each, measured in turns."""
    best = [float("inf")] * len(functions)
    for _ in range(rounds):
        for n, function in enumerate(functions):
            start = time.perf_counter()
            function()
            best[n] = min(best[n], time.perf_counter() - start)
    return best


def _bench(model: Model, path: str, dims: dict[str, int], rounds: int) -> int:
    feeds = _feeds(model, dims)
    start = time.perf_counter()
    model(feeds)
    print(f"first run  {time.perf_counter() - start:.2f} s")
    functions: list[Callable[[], Any]] = [lambda: model(feeds)]
    peer = _peer(path)
    if peer is not None:
        functions.append(lambda: peer.run(None, feeds))
    best = _timed(functions, rounds)
    print(f"morok      {best[0] * 1e3:.3f} ms")
    if peer is not None:
        print(f"ONNX Runtime {best[1] * 1e3:.3f} ms, ratio {best[1] / best[0]:.2f}")
    return 0


def _peer(path: str) -> Any:
    """A session of ONNX Runtime, if it is installed and reads the file."""
    if importlib.util.find_spec("onnxruntime") is None:
        return None
    import onnxruntime

    from morok import knobs

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = knobs.THREADS.value
    try:
        return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # whatever the peer objects to
        print(f"ONNX Runtime cannot run it: {str(error)[:100]}")
        return None
