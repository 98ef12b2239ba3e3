"""Checks on a rule set as a whole, made when it is built: termination, and rules that can never fire.

Termination: every rule whose right side is a term must make its match smaller in a fixed order on terms
(weights of ops, then the order of ops, as Knuth and Bendix did it), or say with `grows(…)` why it does not
and what keeps it from looping. Dead rules: a rule whose every match is also a match of an earlier,
unconditional one would never be reached.
"""

from __future__ import annotations

from collections import Counter

from morok.errors import RuleError
from morok.ir.ops import Op, Ops
from morok.rewrite.rules import Rule
from morok.rewrite.terms import ANY, DOMAINS, Apply, As, Fact, Lit, Term, Var, show

# Weight of an op in the order. Division is dear and bit operations are cheap, so rules lead from the one to
# the other.
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
    """Equal weights: the op with the smaller number wins, then the sources from left to right, constants
    last."""
    if isinstance(before, Apply) and not isinstance(after, Apply):
        return True
    if not (isinstance(before, Apply) and isinstance(after, Apply)):
        return False
    if before.op is not after.op:
        return after.op.number < before.op.number
    for b, a in zip(before.src or (), after.src or (), strict=False):
        b, a = _strip(b), _strip(a)
        if _is_constant(b) and _is_constant(a):
            continue
        if _is_constant(b) != _is_constant(a):
            return _is_constant(b)
        counts_b, counts_a = Counter[str](), Counter[str]()
        weight_b, weight_a = weigh(b, counts_b), weigh(a, counts_a)
        if weight_b != weight_a or counts_b != counts_a:
            return weight_a > weight_b  # sums and products lean to the right
        if isinstance(b, Apply):
            return _smaller_by_precedence(b, a)
    return False


def covers(general: Term, special: Term, bound: dict[str, Term]) -> bool:
    """Whether everything that matches `special` also matches `general`."""
    if isinstance(general, As):
        return covers(general.var, special, bound) and covers(general.term, special, bound)
    inner = _strip(special)
    if isinstance(general, Var):
        if not _covers_type(general, special):
            return False
        old = bound.setdefault(general.name, special)
        return _same(old, special)
    if isinstance(general, Lit):
        return isinstance(inner, Lit) and repr(inner.value) == repr(general.value)
    if not (isinstance(general, Apply) and isinstance(inner, Apply)):
        return False
    if not set(inner.ops) <= set(general.ops) or general.dtype is not None:
        return False
    if general.arg is not ANY and not isinstance(general.arg, Var) and general.arg != inner.arg:
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
    for order in orders:
        trial = dict(bound)
        if all(covers(g, s, trial) for g, s in zip(general.src, order, strict=True)):
            bound.update(trial)
            return True
    return False


def _covers_type(var: Var, special: Term) -> bool:
    if var.MANY:
        return isinstance(special, Var) and special.MANY
    if isinstance(special, As):
        return _covers_type(var, special.var) or _covers_type(var, special.term)
    if isinstance(special, Var):
        if var.CONSTANT and not special.CONSTANT:
            return False
        return _domain_within(special.DOMAIN, var.DOMAIN)
    if isinstance(special, Lit):
        if isinstance(special.value, bool):
            return var.DOMAIN in ("any", "bool", "bits")
        return var.DOMAIN in ("any", "number")
    return not var.CONSTANT and var.DOMAIN == "any"


_WITHIN = {("int", "number"), ("int", "bits"), ("bounded", "int"), ("bounded", "number"), ("bounded", "bits"),
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


def _always_first(earlier: Rule, later: Rule) -> bool:
    if earlier.numeric is not later.numeric:
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
