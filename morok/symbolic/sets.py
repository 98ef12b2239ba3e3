"""The named sets: simple ⊂ symbolic ⊂ full.

- `simple`: folding and identities; cheap, for graphs that only need tidying;
- `symbolic`: everything on scalars and indices that has a normal form;
- `full`: also what simplifies under guards, and the rules that are off unless the numeric classes are
  switched on.
"""

from __future__ import annotations

from morok.ir.node import UOp
from morok.rewrite.engine import rewrite
from morok.rewrite.ruleset import RuleSet, join
from morok.symbolic.bits import bit_rules
from morok.symbolic.boolean import boolean_rules
from morok.symbolic.casts import cast_rules
from morok.symbolic.choice import lift_rules, where_rules
from morok.symbolic.compare import compare_rules, equality_rules, index_rules
from morok.symbolic.constants import constant_rules
from morok.symbolic.divmod import divmod_rules, recombine_rules, simple_rules, unknown_rules
from morok.symbolic.identities import identity_rules, sign_rules, unsafe_rules
from morok.symbolic.minmax import minmax_rules
from morok.symbolic.sums import commute_rules, distribute_rules, reassociating_rules, sum_rules
from morok.symbolic.validity import make_validity_rules

simple: RuleSet = join(
    "simple",
    constant_rules,
    identity_rules,
    boolean_rules,
    where_rules,
    simple_rules,
    compare_rules,
    minmax_rules,
    bit_rules,
)

symbolic: RuleSet = join(
    "symbolic", simple, sign_rules, recombine_rules, sum_rules, commute_rules, distribute_rules, divmod_rules,
    unknown_rules,
    equality_rules, index_rules, lift_rules, cast_rules,
)  # fmt: skip

validity_rules: RuleSet = make_validity_rules(lambda: symbolic)

full: RuleSet = join("full", symbolic, validity_rules, reassociating_rules, unsafe_rules)


def simplify(x: UOp, ruleset: RuleSet = symbolic) -> UOp:
    """x in normal form."""
    return rewrite(x, ruleset)
