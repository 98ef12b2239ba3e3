"""A rewrite rule of one's own: write it down, see it fire, have it proved, and have a wrong one refuted.

A rule is a line of mathematics: before >> after. Its variables are the parameters of the function.
"""

import numpy as np

from morok import MorokError, Tensor
from morok.ir.text import expr
from morok.rewrite.engine import rewrite
from morok.rewrite.observe import tracing
from morok.rewrite.rules import Rules, unproved
from morok.rewrite.ruleset import rules
from morok.rewrite.terms import HEADS, Float, Int, Max, Min


@rules("example.mine")
def my_rules(x: Float, y: Float, i: Int, j: Int) -> Rules:
    """Three rules that morok does not have."""
    # tanh is odd, so the signs of two of them cancel
    tanh = HEADS["Tanh"]
    yield "tanh-signs", tanh(-x) * tanh(-y) >> tanh(x) * tanh(y), unproved("tanh is not in Z3")
    # |x| · |x| = x · x, NaN and infinities included
    yield "abs-square", HEADS["Abs"](x) * HEADS["Abs"](x) >> x * x
    # the larger plus the smaller
    yield "max-min", Max(i, j) + Min(i, j) >> i + j


@rules("example.wrong")
def wrong_rules(i: Int, j: Int) -> Rules:
    """The larger minus the smaller looks like the distance; integers that are far apart wrap around."""
    yield "distance", Max(i, j) - Min(i, j) >> HEADS["Abs"](i - j)


def main() -> list[str]:
    """Prints what happens; returns the names of the rules that fired."""
    data = np.linspace(-2.0, 2.0, 5, dtype=np.float32)
    x = Tensor(data)
    program = x.abs() * x.abs() + (-x).tanh() * (-x).tanh()
    with tracing() as trace:
        shorter = Tensor._new(rewrite(program.uop, my_rules))
    print(f"before  {expr(program.uop)}")
    print(f"after   {expr(shorter.uop)}\n")
    print(trace)
    np.testing.assert_array_equal(program.numpy(), shorter.numpy())
    print(f"\nthe values are the same: {shorter.tolist()}")
    ask_the_prover()
    return [match.rule.name for match in trace.matches]


def ask_the_prover() -> None:
    """What `morok prove` would say about these rules, if they shipped."""
    try:
        from morok.proof.prove import prove_rule
    except MorokError as error:  # the solver is an extra
        print(f"\n{error}")
        return
    print()
    for rule in (*my_rules.rules, *wrong_rules.rules):
        report = prove_rule(rule)
        print(f"{rule.name:<24} {report.verdict:<12}  {report.note}")


if __name__ == "__main__":
    main()
