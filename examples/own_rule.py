"""A rewrite rule of one's own: write it down, see it fire, see what it saves, and have it proved.

A rule is a line of mathematics: before >> after. Its variables are the parameters of the function.
"""

import numpy as np

from morok import Tensor
from morok.ir.text import expr
from morok.rewrite.engine import rewrite
from morok.rewrite.rules import Rules, unproved
from morok.rewrite.ruleset import rules
from morok.rewrite.terms import HEADS, Float, Int, Max, Min
from morok.rewrite.trace import tracing


@rules("example.mine")
def my_rules(x: Float, y: Float, i: Int, j: Int) -> Rules:
    """Three rules that morok does not have."""
    # tanh is odd, so the signs of two of them cancel
    tanh = HEADS["Tanh"]
    yield "tanh-signs", tanh(-x) * tanh(-y) >> tanh(x) * tanh(y), unproved("tanh is not in Z3")
    # |x| · |x| = x · x, NaN and infinities included
    yield "abs-square", HEADS["Abs"](x) * HEADS["Abs"](x) >> x * x
    # the larger minus the smaller is the distance
    yield "max-min", Max(i, j) - Min(i, j) >> HEADS["Abs"](i - j), unproved("wraps around for far integers")


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
    try:
        from morok.proof.prove import prove_rule
    except Exception as error:
        print(f"not proved: {error}")
    else:
        report = prove_rule(my_rules.rules[1])
        print(f"Z3 says about abs-square: {report.verdict}, in {report.seconds:.2f} s")
    return [match.rule.name for match in trace.matches]


if __name__ == "__main__":
    main()
