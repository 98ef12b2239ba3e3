"""torch's own samples of its operators through the backend, beside eager torch: forward and gradients.

`python -m tests.torch.operators [--names a,b] [--samples 4] [--json out.json] [--from N --to M]` prints a
line for each operator that is not right, and counts. `opinfo.txt` names the operators.
"""

import argparse
import json
import sys
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db

from morok.torch import compiled as compiling
from morok.torch.backend import morok

NAMES = Path(__file__).with_name("opinfo.txt")
TOLERANCE = 1e-4
# What has no values to compare: random numbers, and memory that nobody has written.
RANDOM = ("rand", "normal", "uniform", "bernoulli", "dropout", "multinomial", "rrelu", "empty", "cauchy",
          "exponential", "geometric", "log_normal")  # fmt: skip


def named() -> list[str]:
    return [line for line in NAMES.read_text().split("\n") if line and not line.startswith("#")]


def infos() -> dict[str, Any]:
    return {f"{i.name}.{i.variant_test_name}" if i.variant_test_name else i.name: i for i in op_db}


def tensors(value: Any) -> list[Any]:
    flat, _ = torch.utils._pytree.tree_flatten(value)
    return [v for v in flat if isinstance(v, torch.Tensor)]


def differs(a: Any, b: Any, values: bool = True) -> str | None:
    """What is different about what was found (a) and what is right (b)."""
    found, right = torch.utils._pytree.tree_flatten(a)[0], torch.utils._pytree.tree_flatten(b)[0]
    if len(found) != len(right):
        return "other results"
    for x, y in zip(found, right, strict=True):
        if not isinstance(y, torch.Tensor):
            if x != y and not (x != x and y != y) and values:
                return f"value {x} {y}"
            continue
        if (x.dtype, x.shape) != (y.dtype, y.shape):
            return f"type {x.dtype} {tuple(x.shape)}, not {y.dtype} {tuple(y.shape)}"
        sized = [n for n, s in enumerate(y.shape) if s > 1]
        if y.numel() and [x.stride()[n] for n in sized] != [y.stride()[n] for n in sized]:
            return f"strides {x.stride()}, not {y.stride()} of {tuple(y.shape)}"
        if values and y.numel():
            try:
                torch.testing.assert_close(x, y, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True)
            except AssertionError as error:
                return "values: " + " ".join(str(error).split())[:160]
    return None


def copied(value: Any) -> Any:
    """Arguments as they are, with tensors of their own."""

    def one(v: Any) -> Any:
        if not isinstance(v, torch.Tensor):
            return v
        return v.detach().clone(memory_format=torch.preserve_format).requires_grad_(v.requires_grad)

    return torch.utils._pytree.tree_map(one, value)


def graded(results: Any, inputs: list[Any]) -> list[Any]:
    outs = [r for r in tensors(results) if r.requires_grad and r.dtype.is_floating_point]
    leaves = [i for i in inputs if i.requires_grad]
    if not outs or not leaves:
        return []
    torch.manual_seed(1)
    seeds = [torch.randn_like(o) for o in outs]
    found = torch.autograd.grad(outs, leaves, seeds, allow_unused=True)
    return [g for g in found if g is not None]


def sample_fails(info: Any, sample: Any, gradient: bool, random: bool) -> tuple[str, str] | None:
    function = info.op
    plain = copied((sample.input, sample.args, sample.kwargs))
    given = copied((sample.input, sample.args, sample.kwargs))
    try:
        right = function(plain[0], *plain[1], **plain[2])
        right_grads = graded(right, tensors(plain)) if gradient else []
    except Exception:
        return None  # eager torch cannot either
    torch._dynamo.reset()

    def called(x: Any, args: Any, kwargs: Any) -> Any:
        return function(x, *args, **kwargs)

    compiling._SAID.clear()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            run = torch.compile(called, backend=morok, fullgraph=True, dynamic=False)
            found = run(*given)
            grads = graded(found, tensors(given)) if gradient else []
        except Exception as error:
            text = " ".join(str(error).split())
            captured = "dynamo" in type(error).__module__ and "Backend" not in type(error).__name__
            kind = "graph" if captured else "error"
            return kind, f"{type(error).__name__}: {text[:300]}"
    wrong = differs(found, right, not random)
    if wrong:
        return "WRONG", wrong
    wrong = differs(grads, right_grads, not random) if gradient else None
    if wrong:
        return "WRONG gradient", wrong
    left = sorted(
        {str(w.message).partition("morok leaves ")[2][:150] for w in told if "morok leaves" in str(w.message)}
    )
    return ("fallback", "; ".join(left)) if left else None


def check(name: str, info: Any, samples: int, gradient: bool = True) -> tuple[str, str]:
    """The verdict about an operator, and what was found."""
    if torch.float32 not in info.dtypes:
        dtype = next((d for d in (torch.int64, torch.int32, torch.bool) if d in info.dtypes), None)
        if dtype is None:
            return "no type", ""
    else:
        dtype = torch.float32
    gradient = gradient and dtype is torch.float32 and info.supports_autograd
    random = any(word in name for word in RANDOM)
    worst = ("right", "")
    order = ("right", "graph", "fallback", "error", "WRONG gradient", "WRONG")
    torch.manual_seed(0)
    for count, sample in enumerate(info.sample_inputs("cpu", dtype, requires_grad=gradient), 1):
        found = sample_fails(info, sample, gradient, random)
        if found is not None and order.index(found[0]) > order.index(worst[0]):
            worst = found
        if count >= samples:
            break
    return worst


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--names", default="")
    parser.add_argument("--samples", type=int, default=3)
    parser.add_argument("--json", default="")
    parser.add_argument("--from", dest="first", type=int, default=0)
    parser.add_argument("--to", dest="last", type=int, default=10**6)
    parser.add_argument("--forward", action="store_true", help="no gradients")
    given = parser.parse_args()
    known = infos()
    names = given.names.split(",") if given.names else named()[given.first : given.last]
    counts: Counter[str] = Counter()
    verdicts = {}
    for name in names:
        if name not in known:
            counts["not in this torch"] += 1
            continue
        started = time.perf_counter()
        verdict, why = check(name, known[name], given.samples, not given.forward)
        counts[verdict] += 1
        verdicts[name] = (verdict, why)
        if verdict != "right":
            print(f"{name:<40} {verdict:<14} {why}  [{time.perf_counter() - started:.1f} s]", flush=True)
        elif time.perf_counter() - started > 20:
            print(f"{name:<40} right, in {time.perf_counter() - started:.1f} s", flush=True)
    print(dict(counts))
    if given.json:
        Path(given.json).write_text(json.dumps(verdicts, indent=0))
    sys.exit(0)


if __name__ == "__main__":
    main()
