"""ONNX's test suite once more, with every size unknown: run by `make test-onnx-symbolic`.

Each case is loaded without the sizes of its inputs, run on its own data, then again with axes of all inputs
that share a size cut or repeated to other sizes, and compared with the reference evaluator.
"""

import sys
import time
import warnings
from collections import Counter
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper
from onnx.backend.test.loader import load_model_tests
from onnx.reference import ReferenceEvaluator

from morok.errors import MorokError
from morok.onnx import load
from tests.onnx.refusals import DIFFERENT


def open_sizes(model: Any) -> Any:
    """The model, without the sizes of inputs and outputs."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    for n, info in enumerate((*made.graph.input, *made.graph.output)):
        kind = info.type.tensor_type
        if info.type.HasField("tensor_type") and kind.HasField("shape"):
            for axis, dim in enumerate(kind.shape.dim):
                dim.Clear()
                dim.dim_param = f"s{n}_{axis}"
    return made


def arrays(values: Any) -> list[Any]:
    return [numpy_helper.to_array(v) if isinstance(v, TensorProto) else v for v in values]


def resized(inputs: list[Any], old: int, new: int) -> list[Any]:
    """Inputs with every axis of one size in another size."""
    made = []
    for x in inputs:
        if isinstance(x, np.ndarray) and x.dtype.kind != "O":
            for axis, n in enumerate(x.shape):
                if n == old:
                    x = np.take(x, np.arange(new) % old, axis=axis)
        made.append(x)
    return made


def same(a: Any, b: Any) -> bool:
    if isinstance(b, list | tuple):
        return isinstance(a, list) and len(a) == len(b) and all(map(same, a, b))
    if b is None or a is None:
        return a is b
    a, b = np.asarray(a), np.asarray(b)
    if a.shape == b.shape and b.dtype.kind in "OUST":  # NumPy has several types of strings
        return a.dtype.kind in "OUST" and bool((a.astype(object) == b.astype(object)).all())
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    digits = 1e-2 if b.dtype.name == "bfloat16" else 2e-3
    near = np.allclose(a.astype(np.float64), b.astype(np.float64), rtol=digits, atol=1e-5, equal_nan=True)
    return bool(near)


def check(case: Any) -> tuple[str, int]:
    """What became of a case, and how many sets of other sizes were compared."""
    model = open_sizes(case.model)
    ours = load(model)
    inputs, expected = case.data_sets[0]
    inputs = arrays(inputs)
    names = [port.name for port in ours.inputs]
    if not same(ours.run(None, dict(zip(names, inputs, strict=False))), arrays(expected)):
        return "wrong", 0
    judge = ReferenceEvaluator(model)
    sizes = [
        n
        for n, _ in Counter(
            n for x in inputs if isinstance(x, np.ndarray) for n in x.shape if n > 1
        ).most_common()
    ]
    done = 0
    for old in sizes[:2]:
        for new in (old + 1, old + 2):
            given = resized(inputs, old, new)
            feeds = dict(zip(names, given, strict=False))
            try:
                wanted = judge.run(None, feeds)
            except Exception:  # a size that the operator does not take
                continue
            try:
                found = ours.run(None, feeds)
            except MorokError as error:  # the evaluator takes what the specification does not say
                return f"refused at other sizes: {error.message[:120]}", done
            if not same(found, wanted):
                return f"wrong at {[getattr(x, 'shape', None) for x in given]}", done
            done += 1
    return "ok", done


def main() -> None:
    warnings.simplefilter("ignore")
    pattern = sys.argv[1] if len(sys.argv) > 1 else ""
    part, parts = (int(n) for n in (sys.argv[2] if len(sys.argv) > 2 else "0/1").split("/"))
    counts: Counter[str] = Counter()
    others = 0
    start = time.perf_counter()
    cases = [c for c in load_model_tests(kind="node") if pattern in c.name and c.name not in DIFFERENT]
    for case in cases[part::parts]:
        try:
            result, done = check(case)
        except Exception as error:
            result, done = f"{type(error).__name__}: {str(error)[:160]}", 0
        counts[result.partition(" ")[0].rstrip(":")] += 1
        others += done
        if result != "ok":
            print(case.name, result, flush=True)
    print(dict(counts), f"{others} runs at other sizes, {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
