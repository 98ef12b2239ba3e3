"""Checks on a rule set as a whole, made when it is built: termination, and rules that can never fire.

Termination: every rule whose right side is a term must make its match smaller in a fixed order on terms
(weights of ops, then the order of ops, as Knuth and Bendix did it), or say with `grows(…)` why it does not
and what keeps it from looping. Dead rules: a rule whose every match is also a match of an earlier,
unconditional one would never be reached.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from morok.errors import RuleError
from morok.ir.ops import Op, Ops
from morok.rewrite.rules import Rule
from morok.rewrite.terms import ANY, DOMAINS, Apply, As, Fact, Lit, Term, Var, show

# Weight of an op in the order. Division is expensive and bit operations are cheap, so rules lead from the one
# to the other.
WEIGHTS: dict[Op, int] = {
    Ops.MUL: 4, Ops.FLOORDIV: 12, Ops.FLOORMOD: 13, Ops.CDIV: 10, Ops.CMOD: 11, Ops.FDIV: 10, Ops.POW: 40,
    Ops.SUB: 8, Ops.NEG: 3, Ops.RECIP: 9, Ops.WHERE: 3, Ops.MAX: 3, Ops.MIN: 3, Ops.ABS: 3, Ops.CAST: 2,
    Ops.EXP: 30, Ops.EXP2: 30, Ops.LOG: 30, Ops.LOG2: 30, Ops.SIN: 30, Ops.COS: 30, Ops.TAN: 30, Ops.TANH: 30,
    Ops.ERF: 30, Ops.CMPNE: 3, Ops.CMPEQ: 3, Ops.CMPLT: 3, Ops.NOT: 1,
}  # fmt: skip
_DEFAULT_WEIGHT = 2
_LEAF_WEIGHT = 1


def op_weight(op: Op) -> int:
    """What an op weighs in the order."""
    return WEIGHTS.get(op, _DEFAULT_WEIGHT)


def _strip(term: Term) -> Term:
    return term.term if isinstance(term, As) else term


def _is_constant(term: Term) -> bool:
    if isinstance(term, Var):
        return term.CONSTANT
    if isinstance(term, Apply):
        return bool(term.src) and term.op.is_alu and all(_is_constant(s) for s in term.src or ())
    return isinstance(term, (Lit, Fact))


def weigh(term: Term, counts: Counter[str]) -> int:
    """The weight of a term's fixed part; variables are counted in `counts`."""
    term = _strip(term)
    if _is_constant(term):
        return _LEAF_WEIGHT  # a constant expression is folded when it is built
    if isinstance(term, Var):
        counts[term.name] += 1
        return _LEAF_WEIGHT
    assert isinstance(term, Apply)
    own = min(map(op_weight, term.ops))
    return own + sum(weigh(s, counts) for s in term.src or ())


def decreases(before: Term, after: Term) -> bool:
    """Whether `after` is smaller than `before` for whatever the variables stand for."""
    left, right = Counter[str](), Counter[str]()
    weight_before, weight_after = weigh(before, left), weigh(after, right)
    if any(right[name] > left[name] for name in right):
        return False
    if weight_before != weight_after:
        return weight_before > weight_after
    return _smaller_by_precedence(_strip(before), _strip(after))


def _smaller_by_precedence(before: Term, after: Term) -> bool:
    """Equal weights: the op with the smaller number wins, then the first source that differs decides.

    That is stable: whatever the variables stand for, the order stays. Mere rearrangements have no order.
    """
    if isinstance(before, Apply) and not isinstance(after, Apply):
        return True
    if not (isinstance(before, Apply) and isinstance(after, Apply)):
        return False
    if before.op is not after.op:
        return after.op.number < before.op.number
    for b, a in zip(before.src or (), after.src or (), strict=False):
        if not _same(b, a):
            return decreases(b, a)
    return False


def covers(general: Term, special: Term, bound: dict[str, Term], context: str = "any") -> bool:
    """Whether everything that matches `special` also matches `general`. `context`: the domain of the
    place."""
    if isinstance(general, As):
        return covers(general.var, special, bound, context) and covers(general.term, special, bound, context)
    inner = _strip(special)
    if isinstance(general, Var):
        if not _covers_type(general, special, context):
            return False
        old = bound.setdefault(general.name, special)
        return _same(old, special)
    if isinstance(general, Lit):
        return isinstance(inner, Lit) and repr(inner.value) == repr(general.value)
    if not (isinstance(general, Apply) and isinstance(inner, Apply)):
        return False
    if not set(inner.ops) <= set(general.ops) or general.dtype is not None:
        return False
    if not _covers_argument(general.arg, inner.arg, bound):
        return False
    if general.src is None:
        return True
    if (
        inner.src is None
        or len(inner.src) != len(general.src)
        or (inner.commutative and not general.commutative)
    ):
        return False
    orders = [inner.src]
    if general.commutative and len(inner.src) == 2:
        orders.append((inner.src[1], inner.src[0]))
    operands = _operand_domain(inner)
    for order in orders:
        trial = dict(bound)
        if all(covers(g, s, trial, operands) for g, s in zip(general.src, order, strict=True)):
            bound.update(trial)
            return True
    return False


def _covers_argument(general: Any, special: Any, bound: dict[str, Term]) -> bool:
    if general is ANY:
        return True
    if isinstance(general, Var):
        term = special if isinstance(special, Term) else Lit(special) if special is not ANY else Var("?")
        return _same(bound.setdefault(general.name, term), term)
    return special is not ANY and not isinstance(special, Term) and bool(general == special)


def _operand_domain(term: Apply) -> str:
    """What is known about the common type of an op's operands: the narrowest domain among them."""
    if not term.op.is_alu or term.op in (Ops.CAST, Ops.BITCAST):
        return "any"
    known = [_domain(s) for s in (term.src or ())[1 if term.op is Ops.WHERE else 0 :]]
    best = "any"
    for domain in known:
        if _domain_within(domain, best):
            best = domain
    return best


def _domain(term: Term) -> str:
    """The domain of what a term matches."""
    inner = _strip(term)
    if isinstance(inner, Var):
        return inner.DOMAIN
    if isinstance(inner, Lit):
        return "bool" if isinstance(inner.value, bool) else "number"
    if isinstance(inner, Apply) and all(op.is_compare for op in inner.ops):
        return "bool"
    return _operand_domain(inner) if isinstance(inner, Apply) else "any"


def _covers_type(var: Var, special: Term, context: str) -> bool:
    if var.MANY:
        return isinstance(special, Var) and special.MANY
    inner = _strip(special)
    if var.CONSTANT and not (isinstance(inner, Lit) or (isinstance(inner, Var) and inner.CONSTANT)):
        return False
    return _domain_within(_domain(special), var.DOMAIN) or _domain_within(context, var.DOMAIN)


_WITHIN = {("int", "number"), ("int", "bits"), ("bounded", "int"), ("bounded", "number"), ("bounded", "bits"),
           ("signed", "int"), ("signed", "number"), ("signed", "bits"), ("index", "signed"),
           ("index", "int"), ("index", "number"), ("index", "bits"), ("bool", "bits"),
           ("float", "number")}  # fmt: skip


def _domain_within(inner: str, outer: str) -> bool:
    assert inner in DOMAINS and outer in DOMAINS
    return outer in ("any", inner) or (inner, outer) in _WITHIN


def _same(a: Term, b: Term) -> bool:
    return a is b or show(a) == show(b)


# Pairs and rules that have passed are not looked at again when sets are joined. Keyed by identity; rules
# live as long as the process, because their sets are module-level objects.
_terminating: set[Rule] = set()
_live: set[tuple[Rule, Rule]] = set()


def check(found: tuple[Rule, ...]) -> None:
    """Raises a RuleError for the first rule that is dead or breaks the termination order without saying
    so."""
    by_op: dict[Op, list[Rule]] = {}
    for rule in found:
        if rule not in _terminating:
            if isinstance(rule.after, Term) and rule.grows is None and not decreases(rule.before, rule.after):
                raise RuleError(
                    f"{rule.name}: {rule.formula()} does not make terms smaller; "
                    "turn it round, or say grows(…)",
                    place=rule.place,
                )
            _terminating.add(rule)
        root = rule.root
        for earlier in by_op.get(root.op, ()):
            if earlier.is_code or (earlier, rule) in _live:
                continue
            if _always_first(earlier, rule):
                raise RuleError(
                    f"{rule.name} can never fire: {earlier.name} ({earlier.place}) always comes first",
                    place=rule.place,
                )
            _live.add((earlier, rule))
        for op in root.ops:
            by_op.setdefault(op, []).append(rule)


def _rearranges(rule: Rule) -> bool:
    """Whether a rule may give back the very node it matched, which counts as no match."""
    after = _strip(rule.after) if isinstance(rule.after, Term) else None
    return isinstance(after, Apply) and after.ops == rule.root.ops


def _always_first(earlier: Rule, later: Rule) -> bool:
    if earlier.numeric is not later.numeric or _rearranges(earlier):
        return False
    names: dict[str, Term] = {}
    if not covers(earlier.before, later.before, names):
        return False
    if not earlier.conditions:
        return True
    # the same conditions on variables of the same names
    if any(str(term) != name for name, term in names.items()):
        return False
    mine = {show(c) for c in earlier.conditions if isinstance(c, Term)}
    theirs = {show(c) for c in later.conditions if isinstance(c, Term)}
    return len(mine) == len(earlier.conditions) and mine <= theirs
