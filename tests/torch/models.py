"""Runs families of models through the backend, beside eager torch in float64.

`python -m tests.torch.models [names] [--train] [--autocast] [--backend morok]`
"""

import argparse
import copy
import time
import warnings
from typing import Any

import torch

from morok.torch import compiled as compiling
from morok.torch.backend import morok
from morok.torch.private import counters
from tests.torch.families import FAMILIES


def first(output: Any) -> Any:
    """The tensor of a model's output that a loss would look at."""
    for name in ("logits", "last_hidden_state", "pooler_output"):
        value = getattr(output, name, None)
        if value is not None:
            return value
    return output[0]


def doubled(value: Any) -> Any:
    return value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def run(model: Any, inputs: dict[str, Any], train: bool, autocast: bool) -> list[Any]:
    """The output, and, in training, the gradients of a loss."""
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast), torch.set_grad_enabled(train):
        out = first(model(**inputs))
    if not train:
        return [out]
    model.zero_grad()
    # a fixed direction: of what ends in a norm the mean square is a constant, and its gradient noise
    seed = torch.Generator().manual_seed(5)
    (out.double() * torch.randn(out.shape, generator=seed, dtype=torch.float64)).mean().backward()
    return [out, *[p.grad for p in model.parameters()]]


def error(a: list[Any], b: list[Any]) -> float:
    """The distance from what is right, over all tensors, relative to the largest of each kind."""
    worst = 0.0
    pairs = [
        (x.detach().double(), y.detach().double())
        for x, y in zip(a, b, strict=True)
        if x is not None and y is not None
    ]
    whole = max(float(y.abs().max()) for _, y in pairs[1:]) if len(pairs) > 1 else 1.0
    for n, (x, y) in enumerate(pairs):
        scale = float(y.abs().max()) if n == 0 else max(float(y.abs().max()), 1e-3 * whole)
        worst = max(worst, float((x - y).abs().max()) / max(scale, 1e-30))
    return worst


def check(name: str, train: bool, autocast: bool) -> tuple[float, float, list[str], float]:
    """Errors of the compiled model and of eager torch, what was left to torch, and seconds."""
    torch._dynamo.reset()
    compiling._SAID.clear()
    torch.manual_seed(0)
    model, inputs = FAMILIES[name]()
    model = model.train(train)
    for part in model.modules():  # random numbers differ, so nothing is dropped
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
        for field in ("attention_dropout", "dropout", "drop_path_rate", "activation_dropout", "layerdrop"):
            if isinstance(getattr(part, field, None), float):
                setattr(part, field, 0.0)
    exact = copy.deepcopy(model).double()
    if name == "mixtral":  # torch has no grouped products in float64
        exact.set_experts_implementation("batched_mm")
    right = run(exact, {k: doubled(v) for k, v in inputs.items()}, train, False)
    other = copy.deepcopy(model)
    eager = run(other, inputs, train, autocast)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        started = time.perf_counter()
        counters.clear()
        compiled = torch.compile(model, backend=morok)
        found = run(compiled, inputs, train, autocast)
        seconds = time.perf_counter() - started
    assert found[0].dtype == eager[0].dtype and found[0].stride() == eager[0].stride(), "type or strides"
    left = sorted(
        {str(w.message).partition("morok leaves ")[2] for w in told if "morok leaves" in str(w.message)}
    )
    if breaks := sum(counters["graph_break"].values()):
        torch._dynamo.reset()
        counters.clear()
        run(torch.compile(other, backend="eager"), inputs, train, autocast)
        if breaks != sum(counters["graph_break"].values()):
            left.append(f"{breaks} breaks of the graph, and others without morok")
    return error(found, right), error(eager, right), left, seconds


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--train", action="store_true")
    parser.add_argument("--autocast", action="store_true")
    given = parser.parse_args()
    for name in given.names or FAMILIES:
        try:
            ours, eager, left, seconds = check(name, given.train, given.autocast)
        except Exception as problem:
            print(
                f"{name:<18} FAILS {type(problem).__name__}: {' '.join(str(problem).split())[:400]}",
                flush=True,
            )
            continue
        verdict = "right" if ours <= 2 * eager + 1e-12 else "WORSE"
        print(f"{name:<18} {verdict} {ours:.2e}, eager {eager:.2e}, {seconds:.1f} s {left or ''}", flush=True)


if __name__ == "__main__":
    main()
