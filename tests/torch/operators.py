"""torch's own samples of its operators through the backend, beside eager torch: forward and gradients.

`python -m tests.torch.operators [--names a,b] [--samples 4] [--results out.jsonl] [--part 0/4]` prints a line
for each operator that is not right, and counts. A file of results is continued where it ended. `opinfo.txt`
names the operators. Samples are spread over all that torch has of an operator.
"""

import argparse
import json
import signal
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

with warnings.catch_warnings():  # of packages that torch's samples import
    warnings.simplefilter("ignore")
    from torch.testing._internal import common_methods_invocations as samples
    from torch.testing._internal.common_methods_invocations import op_db

from morok.torch import compiled as compiling
from morok.torch.backend import morok

NAMES = Path(__file__).with_name("opinfo.txt")
TOLERANCE = 1e-4
LONGEST = 60  # seconds of processor time that a sample may take
# What has no values to compare: random numbers, and memory that nobody has written.
RANDOM = ("rand", "normal", "uniform", "bernoulli", "dropout", "multinomial", "rrelu", "empty", "cauchy",
          "exponential", "geometric", "log_normal")  # fmt: skip


# Random operators come wrapped in a function that sets the seed, which dynamo does not trace.
samples.wrapper_set_seed = lambda function, *args, **kwargs: function(*args, **kwargs)


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


def graded(results: Any, inputs: list[Any], seeded: Any = None) -> list[Any]:
    outs = [r for r in tensors(results) if r.requires_grad and r.dtype.is_floating_point]
    leaves = [i for i in inputs if i.requires_grad]
    if not outs or not leaves:
        return []
    torch.manual_seed(1)
    seeds = [torch.randn_like(o, dtype=seeded).to(o.dtype) for o in outs]
    found = torch.autograd.grad(outs, leaves, seeds, allow_unused=True)
    return [g for g in found if g is not None]


def memory(inputs: list[Any], results: list[Any]) -> list[int]:
    """Of each result the first of inputs and results that it shares memory with."""
    seen: dict[int, int] = {}
    for n, value in enumerate([*inputs, *results]):
        if value.numel():
            seen.setdefault(value.untyped_storage().data_ptr(), n)
    return [seen[r.untyped_storage().data_ptr()] if r.numel() else -1 for r in results]


class TooLong(Exception):
    """A sample takes longer than it may."""


@contextmanager
def within(seconds: int) -> Iterator[None]:
    """An exception in what takes more of the processor's time; a busy machine changes nothing."""

    def late(number: int, frame: Any) -> None:
        raise TooLong(f"more than {seconds} s")

    old = signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, old)


def doubled(value: Any) -> Any:
    """Arguments in double precision."""

    def one(v: Any) -> Any:
        return v.double() if isinstance(v, torch.Tensor) and v.dtype is torch.float32 else v

    return torch.utils._pytree.tree_map(one, value)


def nearer(found: list[Any], right: list[Any], function: Any, sample: Any) -> bool:
    """Whether gradients are no further from those in double precision than eager torch's are, twice over."""
    try:
        given = copied(doubled((sample.input, sample.args, sample.kwargs)))
        exact = graded(function(given[0], *given[1], **given[2]), tensors(given), torch.float32)
    except Exception:
        return False
    for x, y, e in zip(found, right, exact, strict=True):
        if y.numel() and (x - e).abs().max() > 2 * (y - e).abs().max() + TOLERANCE * e.abs().max():
            return False
    return True


def sample_fails(info: Any, sample: Any, gradient: bool, random: bool) -> tuple[str, str] | None:
    """What is not right about a sample; "torch" if torch's own graph, run by torch, is as wrong."""
    found = backend_fails(morok, info, sample, gradient, random)
    if found is None or found[0] in ("graph", "fallback"):
        return found
    own = backend_fails("aot_eager", info, sample, gradient, random)
    return ("torch", found[1]) if own == found else found


def backend_fails(
    backend: Any, info: Any, sample: Any, gradient: bool, random: bool
) -> tuple[str, str] | None:
    function = info.op
    plain = copied((sample.input, sample.args, sample.kwargs))
    given = copied((sample.input, sample.args, sample.kwargs))
    try:
        right = function(plain[0], *plain[1], **plain[2])
        right_grads = graded(right, tensors(plain)) if gradient else []
        twice = copied((sample.input, sample.args, sample.kwargs))
        torch.manual_seed(2)
        random = random or differs(function(twice[0], *twice[1], **twice[2]), right) is not None
    except Exception:
        return None  # eager torch cannot either
    torch._dynamo.reset()

    def called(x: Any, args: Any, kwargs: Any) -> Any:
        return function(x, *args, **kwargs)

    compiling._SAID.clear()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            run = torch.compile(called, backend=backend, fullgraph=True, dynamic=False)
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
    wrong = differs(tensors(given), tensors(plain), not random)
    if wrong:
        return "WRONG", "argument: " + wrong
    if memory(tensors(given), tensors(found)) != memory(tensors(plain), tensors(right)):
        return "WRONG", "memory that others share, or do not"
    wrong = differs(grads, right_grads, not random) if gradient else None
    if wrong and not (wrong.startswith("values") and nearer(grads, right_grads, function, sample)):
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
    order = ("right", "torch", "graph", "fallback", "slow", "error", "WRONG gradient", "WRONG")
    torch.manual_seed(0)
    given = list(info.sample_inputs("cpu", dtype, requires_grad=gradient))
    for sample in given[:: max(1, len(given) // samples)][:samples]:
        found: tuple[str, str] | None
        try:
            with within(LONGEST):
                found = sample_fails(info, sample, gradient, random)
        except TooLong as late:
            found = ("slow", str(late))
        if found is not None and order.index(found[0]) > order.index(worst[0]):
            worst = found
    return worst


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--names", default="")
    parser.add_argument("--samples", type=int, default=3)
    parser.add_argument("--results", default="", help="a file, which is continued")
    parser.add_argument("--part", default="0/1", help="one of several processes")
    parser.add_argument("--forward", action="store_true", help="no gradients")
    given = parser.parse_args()
    known = infos()
    part, parts = map(int, given.part.split("/"))
    names = given.names.split(",") if given.names else named()[part::parts]
    verdicts: dict[str, str] = {}
    file = Path(given.results) if given.results else None
    if file is not None and file.exists():
        for line in file.read_text().splitlines():
            name, verdict, *_ = json.loads(line)
            verdicts[name] = verdict
    for name in names:
        if name in verdicts:
            continue
        started = time.perf_counter()
        verdict, why = "not in this torch", ""
        if name in known:
            verdict, why = check(name, known[name], given.samples, not given.forward)
        verdicts[name] = verdict
        seconds = time.perf_counter() - started
        if file is not None:
            with file.open("a") as out:
                out.write(json.dumps([name, verdict, why, round(seconds, 1)]) + "\n")
        if verdict != "right" or seconds > 30:
            print(f"{name:<40} {verdict:<14} {why}  [{seconds:.1f} s]", flush=True)
    print(dict(Counter(verdicts.values())))


if __name__ == "__main__":
    main()
