"""`morok demo`: what works today, shown by doing it."""

from __future__ import annotations

import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable

NAME = "demo"
HELP = "show what works today"


def add_arguments(parser: ArgumentParser) -> None:
    """It takes none."""


def run(args: Namespace) -> int:
    for title, part in _PARTS:
        print(f"\n{title}\n{'-' * len(title)}")
        part()
    return 0


def _index() -> None:
    from morok.ir.build import rng
    from morok.ir.text import expr
    from morok.rewrite.trace import tracing
    from morok.symbolic.sets import simplify

    row, column = rng(64, 0), rng(48, 1)
    flat = row * 48 + column
    source = (flat // 48) * 48 + (flat % 48) // 4 * 4 + (flat % 48) % 4
    with tracing() as trace:
        short = simplify(source)
    print(f"a reshape there and back:  {expr(source)}")
    print(f"becomes:                   {expr(short)}\n")
    for match in trace.matches[:6]:
        print(f"  {match.rule.name:34} {match.rule.formula()}")
    print(f"  … {len(trace)} rules fired, of them {len(trace.hits())} different ones")


def _proofs() -> None:
    from morok.errors import ProofError
    from morok.symbolic.divmod import divmod_rules, recombine_rules

    try:
        from morok.proof.prove import prove_rule
    except ProofError as error:
        print(f"not shown: {error}")
        return
    for rule in (*divmod_rules.rules[3:6], *recombine_rules.rules[:2]):
        report = prove_rule(rule)
        print(f"  {report.verdict:8} {report.seconds:5.2f} s  {rule.formula()}")
    print("  `morok prove` does this for every rule that ships.")


def _program() -> None:
    import numpy as np

    from morok import Tensor

    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((64, 128), np.float32), rng.standard_normal((128, 32), np.float32)
    x, w = Tensor(a), Tensor(b)
    hidden = (x @ w).gelu()
    answer = hidden.softmax(-1)
    print(answer.plan())
    started = time.perf_counter()
    got = answer.numpy()
    print(f"\nfirst run, compiling included: {1000 * (time.perf_counter() - started):.0f} ms")
    from math import erf

    product = a @ b
    want = product * 0.5 * (1 + np.vectorize(erf)(product / np.sqrt(2.0)))
    want = np.exp(want - want.max(-1, keepdims=True))
    want /= want.sum(-1, keepdims=True)
    print(f"largest difference from NumPy in float64: {np.abs(got - want).max():.1e}")


def _error() -> None:
    from morok import Tensor
    from morok.errors import MorokError

    try:
        Tensor.ones(2, 3) @ Tensor.ones(4, 5)
    except MorokError as error:
        print(f"Tensor.ones(2, 3) @ Tensor.ones(4, 5)\n  {type(error).__name__}: {error}")


_PARTS: tuple[tuple[str, Callable[[], None]], ...] = (
    ("An index is simplified by rules", _index),
    ("The rules are proved", _proofs),
    ("A program becomes kernels, and runs", _program),
    ("A mistake is one sentence", _error),
)
