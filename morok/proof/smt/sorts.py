"""Which types a rule can fire on: the types of its variables, found by unification over the left side.

Operands of an op share a type, a comparison gives a boolean, a cast joins two types freely. What remains
open is a class of subterms with one common type; a rule is proved for every choice of types that its
variables' domains and its ops allow.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import final

from morok.dtype import (
    DType,
    as_value,
    bfloat16,
    bool_,
    float8_e4m3,
    float8_e5m2,
    float16,
    float32,
    float64,
    index,
    int8,
    int16,
    int32,
    int64,
    uint8,
    uint16,
    uint32,
    uint64,
)
from morok.errors import DTypeError, ProofError
from morok.ir.arithmetic.alu import defined
from morok.ir.ops import Op, Ops
from morok.rewrite.match import exact, in_domain
from morok.rewrite.rules import Rule
from morok.rewrite.terms import Apply, As, DTypeOf, Lit, Term, Var, children, subterms

# Every kind of number in its narrowest form: what must be proved.
NARROW: tuple[DType, ...] = (bool_, int8, uint8, index, float16)
# The same at a width that programs use: proved if it is quick enough.
WIDE: tuple[DType, ...] = (int32, uint32)
# The rest, in the slow tier.
SLOW: tuple[DType, ...] = (int64, uint64, bfloat16, float32)
# Casts need several widths at once to be wrong.
CONVERTED: tuple[DType, ...] = (bool_, int8, uint8, int16, uint16, index, float16, bfloat16)
# Where the width itself matters, the widest is needed as well: a shift by 40 is zero for 8 bits only.
WIDEST: tuple[DType, ...] = (int64, uint64)
WIDEST_CONVERTED: tuple[DType, ...] = (int8, int32, int64, uint64)
# One is not an IEEE format, the other too narrow for Z3's arithmetic, so both are tried value by value.
SMALL_FLOATS: tuple[DType, ...] = (float8_e4m3, float8_e5m2)

_COUNTING: frozenset[Op] = frozenset((Ops.SHL, Ops.SHR, Ops.MULHI, Ops.DOT4, Ops.POPCOUNT))
_LARGE = 32  # literals from here on do not fit comfortably in 8 bits

Predicate = Callable[[DType], bool]


class NoTheory(ProofError):
    """A rule about something that is not arithmetic."""


@final
@dataclass(frozen=True, slots=True)
class Typing:
    """One choice of types: by subterm of the left side and by variable."""

    before: Term
    types: dict[int, DType]  # by id of the subterm
    variables: dict[str, DType]
    free: tuple[DType, ...]  # what was chosen, class by class

    def of(self, term: Term) -> DType:
        return self.variables[term.name] if isinstance(term, Var) else self.types[id(term)]

    def with_type(self, old: DType, new: DType) -> Typing:
        """The same with one type in the place of another."""

        def swap(t: DType) -> DType:
            return new if t is old else t

        types = {key: swap(t) for key, t in self.types.items()}
        variables = {name: swap(t) for name, t in self.variables.items()}
        return Typing(self.before, types, variables, tuple(map(swap, self.free)))

    def __str__(self) -> str:
        return "→".join(str(t) for t in self.free) or "bool"


@final
class _Classes:
    """Union-find over subterms and variables, with what each class must satisfy."""

    def __init__(self) -> None:
        self.parent: dict[object, object] = {}
        self.demands: dict[object, list[Predicate]] = {}

    def find(self, key: object) -> object:
        self.parent.setdefault(key, key)
        while self.parent[key] is not key:
            key = self.parent[key]
        return key

    def union(self, a: object, b: object) -> None:
        ra, rb = self.find(a), self.find(b)
        if ra is not rb:
            self.parent[rb] = ra
            self.demands.setdefault(ra, []).extend(self.demands.pop(rb, []))

    def demand(self, key: object, predicate: Predicate) -> None:
        self.demands.setdefault(self.find(key), []).append(predicate)


def literal_matches(value: bool | int | float, dtype: DType) -> bool:
    """Whether a constant of the type can be the one that a literal of the left side asks for."""
    try:
        held = as_value(value, dtype)
    except DTypeError:
        return False
    return bool(held == value) and exact(held, value)


def single_ops(term: Term) -> Iterator[Term]:
    """The patterns that a pattern with several ops stands for, made of new terms.

    New, because a literal such as `zero` may stand at several places, and each place has a type of its own.
    """
    if isinstance(term, As):
        for inner in single_ops(term.term):
            yield As(term.var, inner)
    elif isinstance(term, Lit):
        yield Lit(term.value)
    elif isinstance(term, Apply):
        for op in term.ops:
            open_sources = [Var(f"any{i}") for i in range(op.arity)]  # "whatever sources"
            sources = [list(single_ops(s)) for s in (open_sources if term.src is None else term.src)]
            for src in itertools.product(*sources):
                yield Apply((op,), src, term.commutative, term.arg, term.dtype)
    else:
        yield term


def _key(term: Term) -> object:
    return term.name if isinstance(term, Var) else id(term)


def _visit(term: Term, classes: _Classes) -> None:
    if isinstance(term, As):
        _visit(term.term, classes)
        _visit(term.var, classes)
        classes.union(_key(term), _key(term.term))
        classes.union(_key(term), _key(term.var))
    elif isinstance(term, Var):
        if term.MANY:
            raise NoTheory(f"{term.name} stands for any number of sources")
        classes.demand(_key(term), lambda t: in_domain(term, t))
    elif isinstance(term, Lit):
        classes.demand(_key(term), lambda t: literal_matches(term.value, t))
    elif isinstance(term, Apply):
        _visit_op(term, classes)
    else:
        raise NoTheory(f"{term!r} has no value")


def _visit_op(term: Apply, classes: _Classes) -> None:
    op, src = term.op, term.src
    if not op.is_alu or src is None or len(src) != op.arity:
        raise NoTheory(f"{op.name} is not arithmetic")
    for s in src:
        _visit(s, classes)
    operands = src[1:] if op is Ops.WHERE else src
    for s in operands[1:]:
        classes.union(_key(operands[0]), _key(s))
    if op is Ops.WHERE:
        classes.demand(_key(src[0]), lambda t: t.is_bool)
    classes.demand(_key(operands[0]), lambda t: defined(op, t))
    if op.is_compare:
        classes.demand(_key(term), lambda t: t.is_bool)
    elif op in (Ops.CAST, Ops.BITCAST):
        classes.demand(_key(term), lambda t: defined(op, t))
    else:
        classes.union(_key(term), _key(operands[0]))
    if isinstance(term.dtype, DTypeOf):
        classes.union(_key(term), term.dtype.var.name)
    elif term.dtype is not None:
        fixed = term.dtype
        classes.demand(_key(term), lambda t: t is fixed)


def _subterms(term: Term) -> Iterator[Term]:
    yield term
    if isinstance(term, As):
        yield from _subterms(term.var)
        yield from _subterms(term.term)
    elif isinstance(term, Apply):
        for s in term.src or ():
            yield from _subterms(s)


def typings(before: Term, offered: Sequence[DType]) -> list[Typing]:
    """Every assignment of the offered types under which the left side can match.

    The pattern has one op at each place.
    """
    classes = _Classes()
    _visit(before, classes)
    terms = list(_subterms(before))
    roots = list(dict.fromkeys(classes.find(_key(t)) for t in terms))
    fixed = [t.dtype for t in terms if isinstance(t, Apply) and isinstance(t.dtype, DType)]
    pool = tuple(dict.fromkeys((*offered, bool_, *fixed)))
    # booleans that come from comparisons are always allowed; a free class takes only what is offered
    choices = []
    for root in roots:
        demands = classes.demands.get(root, [])
        fitting = [t for t in pool if all(p(t) for p in demands)]
        free = [t for t in fitting if t in offered]
        forced = len([t for t in NARROW if all(p(t) for p in demands)]) <= 1 or bool(fixed)
        choices.append(fitting if forced else free)
    found = []
    open_roots = [i for i, options in enumerate(choices) if options != [bool_]]
    for combination in itertools.product(*choices):
        chosen = dict(zip(roots, combination, strict=True))
        by_term = {id(t): chosen[classes.find(_key(t))] for t in terms}
        if not _bitcasts_fit(terms, by_term):
            continue
        by_name = {t.name: chosen[classes.find(_key(t))] for t in terms if isinstance(t, Var)}
        found.append(Typing(before, by_term, by_name, tuple(combination[i] for i in open_roots)))
    return found


def _bitcasts_fit(terms: Sequence[Term], types: dict[int, DType]) -> bool:
    casts = (t for t in terms if isinstance(t, Apply) and t.op is Ops.BITCAST and t.src)
    return all(types[id(t)].bits == types[id(children(t)[0])].bits for t in casts)


def ops_in(term: Term) -> set[Op]:
    """The ops of a term."""
    return {op for t in _subterms(term) if isinstance(t, Apply) for op in t.ops}


def narrow_types(rule: Rule) -> tuple[DType, ...]:
    """The types that must be proved: the narrowest of each kind.

    A number of the left side may be too large for float16; then the narrowest float that has it.
    """
    offered = CONVERTED if converts(rule) else NARROW
    numbers = [t.value for t in subterms(rule.before) if isinstance(t, Lit) and type(t.value) is not bool]
    if all(literal_matches(v, float16) for v in numbers):
        return offered
    floats = (bfloat16, float32, float64)
    fitting = [f for f in floats if all(literal_matches(v, f) for v in numbers)]
    return tuple(dict.fromkeys((*offered, *fitting[:1])))


def width_matters(rule: Rule) -> bool:
    """Whether a rule may hold for narrow integers only: it counts bits, has large numbers, or has code."""
    parts = (rule.before, rule.after, *rule.conditions)
    terms = [t for part in parts if isinstance(part, Term) for t in subterms(part)]
    counts = any(t.ops and _COUNTING & set(t.ops) for t in terms if isinstance(t, Apply))
    large = any(type(t.value) is int and abs(t.value) >= _LARGE for t in terms if isinstance(t, Lit))
    return counts or large or any(not isinstance(part, Term) for part in parts)


def converts(rule: Rule) -> bool:
    """Whether the rule is about casts, so that several widths are needed at once."""
    parts = [rule.before, *([rule.after] if isinstance(rule.after, Term) else [])]
    return any(ops_in(part) & {Ops.CAST, Ops.BITCAST} for part in parts)
