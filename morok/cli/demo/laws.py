"""The last part of the demo: rules at work, proved, and a mistake that is explained."""

from __future__ import annotations

from collections.abc import Iterator


def index() -> Iterator[str]:
    """An index is simplified, rule by rule."""
    from morok.ir.build import rng
    from morok.ir.text import expr
    from morok.rewrite.observe import tracing
    from morok.symbolic.sets import simplify

    row, column = rng(64, 0), rng(48, 1)
    flat = row * 48 + column
    source = (flat // 48) * 48 + (flat % 48) // 4 * 4 + (flat % 48) % 4
    with tracing() as trace:
        short = simplify(source)
    yield f"a reshape there and back:  {expr(source)}"
    yield f"becomes:                   {expr(short)}"
    for match in trace.matches[:3]:
        yield f"    {match.rule.name:34} {match.rule.formula()}"
    yield f"    … {len(trace)} rules fired, of them {len(trace.hits())} different ones"


def proofs() -> Iterator[str]:
    """Some rules are proved; `morok prove` does it for all."""
    from morok.errors import ProofError
    from morok.symbolic.divmod import divmod_rules

    try:
        from morok.proof.prove import prove_rule
    except ProofError as error:
        yield f"not shown: {error}"
        return
    for rule in divmod_rules.rules[3:6]:
        report = prove_rule(rule)
        yield f"{report.verdict:8} {report.seconds:5.2f} s  {rule.formula()}"


def mistake() -> Iterator[str]:
    """An error is one sentence with the user's line."""
    from morok import Tensor
    from morok.errors import MorokError

    try:
        Tensor.ones(2, 3) @ Tensor.ones(4, 5)
    except MorokError as error:
        yield "Tensor.ones(2, 3) @ Tensor.ones(4, 5)"
        yield f"{type(error).__name__}: {error}"
