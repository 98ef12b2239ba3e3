"""Boolean algebra: constants, complements, absorption, De Morgan. Bitwise ops on integers share what holds
for them."""

from __future__ import annotations

from morok.rewrite.rules import Rules, grows
from morok.rewrite.ruleset import rules
from morok.rewrite.terms import Add, And, Bits, Bool, Max, Min, Mul, Or, Xor, false, true


@rules("symbolic.boolean")
def boolean_rules(x: Bits, y: Bits, p: Bool, q: Bool) -> Rules:
    """The laws of ∧, ∨, ¬ and ⊕."""
    # ¬¬x = x
    yield "not-not", ~(~x) >> x
    # x ∧ x = x
    yield "and-self", And(x, x) >> x
    # x ∨ x = x
    yield "or-self", Or(x, x) >> x
    # p ∧ true = p
    yield "and-true", And[p, true] >> p
    # p ∧ false = false
    yield "and-false", And[p, false] >> false
    # p ∨ false = p
    yield "or-false", Or[p, false] >> p
    # p ∨ true = true
    yield "or-true", Or[p, true] >> true
    # p ⊕ false = p
    yield "xor-false", Xor[p, false] >> p
    # p ⊕ true = ¬p
    yield "xor-true", Xor[p, true] >> ~p
    # p ⊕ p = false
    yield "xor-self-bool", Xor(p, p) >> false
    # p ∧ ¬p = false
    yield "and-complement", And[p, ~p] >> false
    # p ∨ ¬p = true
    yield "or-complement", Or[p, ~p] >> true
    # ¬p ⊕ ¬q = p ⊕ q
    yield "xor-not-not", Xor(~x, ~y) >> x ^ y
    # x ∧ (x ∨ y) = x
    yield "and-absorbs", And[x, Or[x, y]] >> x
    # x ∨ (x ∧ y) = x
    yield "or-absorbs", Or[x, And[x, y]] >> x
    # x ∧ (¬x ∨ y) = x ∧ y
    yield "and-absorbs-complement", And[x, Or[~x, y]] >> x & y
    # x ∨ (¬x ∧ y) = x ∨ y
    yield "or-absorbs-complement", Or[x, And[~x, y]] >> x | y
    # (x ∧ y) ∨ (x ∧ ¬y) = x
    yield "or-split", Or(And[x, y], And[x, ~y]) >> x
    # (x ∨ y) ∧ (x ∨ ¬y) = x
    yield "and-split", And(Or[x, y], Or[x, ~y]) >> x
    # ¬x ∧ ¬y = ¬(x ∨ y)
    yield "de-morgan-and", And(~x, ~y) >> ~(x | y)
    # ¬x ∨ ¬y = ¬(x ∧ y)
    yield "de-morgan-or", Or(~x, ~y) >> ~(x & y)
    # arithmetic on booleans is boolean algebra
    yield "add-bool", Add(p, q) >> p | q, grows("another name for the same op; no rule leads back")
    yield "mul-bool", Mul(p, q) >> p & q
    yield "max-bool", Max(p, q) >> p | q
    yield "min-bool", Min(p, q) >> p & q
