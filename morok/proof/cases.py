"""Proves a rule with code by running it: on many graphs, each result must equal what it replaces.

The operands stay symbolic, so a case covers all values of its variables; the constants, bounds and shapes
of operands are generated. A rule that never fired has not been proved, whatever else happened.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, final

from morok.dtype import (
    DType,
    as_value,
    bool_,
    float16,
    float32,
    float64,
    index,
    int8,
    int32,
    int64,
    uint8,
    uint32,
    uint64,
)
from morok.errors import MorokError
from morok.ir.node import UOp, const, make
from morok.ir.ops import Ops
from morok.ir.text import expr
from morok.proof.expressions import Maker, constant_pool, edge_values
from morok.proof.graphs import prove_equal
from morok.proof.sorts import CONVERTED, NARROW, Typing, converts, ops_in, single_ops, typings
from morok.proof.translate import NO_THEORY
from morok.proof.verdicts import OUT_OF_SCOPE, PROVED, REFUTED, UNKNOWN, Effort, Verdict
from morok.rewrite.match import apply_rule
from morok.rewrite.rules import Rule, parameters
from morok.rewrite.terms import Apply, As, Lit, Term, Var, variables

_FOLDED: tuple[DType, ...] = (
    bool_,
    int8,
    uint8,
    int32,
    uint32,
    int64,
    uint64,
    index,
    float16,
    float32,
    float64,
)
_RAISED = (ArithmeticError, ValueError, TypeError, AttributeError, LookupError, MemoryError, RecursionError)
_MOST_PAIRS = 400
_MOST_SWEPT = 40
_CASE_TIME = 2000
_ATTEMPTS_PER_CASE = 80


@final
@dataclass(slots=True)
class _Tally:
    fired: int = 0
    open: int = 0  # fired, and the solver gave up


def prove_cases(rule: Rule, effort: Effort) -> tuple[Verdict, list[DType]]:
    """The verdict on a rule with code, and the types on which it fired."""
    if _asks_for_context(rule):
        return Verdict(UNKNOWN, "the code asks for a context, which the prover does not have"), []
    if ops_in(rule.before) & NO_THEORY:
        return Verdict(OUT_OF_SCOPE, "transcendental functions have no theory"), []
    tally = _Tally()
    types: dict[DType, None] = {}
    seen: set[UOp] = set()
    for typing, node in _candidates(rule, tally, effort):
        if node in seen:
            continue
        seen.add(node)
        try:
            result = apply_rule(rule, node)
        except MorokError as error:
            return Verdict(REFUTED, f"the code fails on {describe(node)}: {error.message}"), list(types)
        except _RAISED as error:
            what = f"{type(error).__name__}: {error}"
            return Verdict(REFUTED, f"the code raises on {describe(node)}: {what}"), list(types)
        if result is None:
            continue
        verdict = prove_equal(node, result, min(effort.needed, _CASE_TIME), rule.numeric)
        if verdict.status == REFUTED:
            example = dict(verdict.counterexample) or {"graph": describe(node)}
            note = f"{describe(node)} became {describe(result)}: {verdict.note}"
            return Verdict(REFUTED, note, example), list(types)
        tally.fired += 1
        tally.open += verdict.status == UNKNOWN
        types.update(dict.fromkeys(typing.free or (bool_,)))
    return _judge(tally), list(types)


def _asks_for_context(rule: Rule) -> bool:
    code = [f for f in (rule.after, *rule.conditions) if not isinstance(f, Term)]
    return any("ctx" in parameters(f) for f in code)


def _judge(tally: _Tally) -> Verdict:
    if not tally.fired:
        return Verdict(UNKNOWN, "the code never fired on the generated graphs")
    if tally.open * 10 > tally.fired:
        return Verdict(UNKNOWN, f"{tally.open} of {tally.fired} cases: timeout")
    note = f"{tally.fired} cases" + (f", {tally.open} of them open" if tally.open else "")
    return Verdict(PROVED, note)


def _constants_only(rule: Rule) -> bool:
    found = variables(rule.before).values()
    return bool(found) and all(v.CONSTANT for v in found)


def _candidates(rule: Rule, tally: _Tally, effort: Effort) -> Iterator[tuple[Typing, UOp]]:
    """Graphs that match the left side: all constants on plain variables, then ever larger operands."""
    patterns = list(single_ops(rule.before))
    if _constants_only(rule):
        for before in patterns:
            for typing in typings(before, _FOLDED):
                if not _beyond_theory(typing):
                    yield from _constant_graphs(rule, typing)
        return
    choices = [t for before in patterns for t in typings(before, CONVERTED if converts(rule) else NARROW)]
    swept = tally.fired + max(_MOST_SWEPT, effort.cases)
    for candidate in _in_turn([_plain_graphs(rule, typing) for typing in choices]):
        if tally.fired >= swept:
            break
        yield candidate
    wanted = tally.fired + effort.cases
    for attempt in range(effort.cases * _ATTEMPTS_PER_CASE // max(len(choices), 1)):
        for number, typing in enumerate(choices):
            if tally.fired >= wanted:
                return
            maker = Maker(f"{rule.name} {number} {attempt}")
            yield typing, _graph(typing, maker, attempt)


def _in_turn(streams: Sequence[Iterator[tuple[Typing, UOp]]]) -> Iterator[tuple[Typing, UOp]]:
    for together in itertools.zip_longest(*streams):
        yield from (item for item in together if item is not None)


def _beyond_theory(typing: Typing) -> bool:
    """Powers of floats and of indices are only known for a few exponents."""
    powers = [t for t in typing.types.values() if t.is_float or t.is_index]
    return Ops.POW in ops_in(typing.before) and bool(powers)


def _constant_graphs(rule: Rule, typing: Typing) -> Iterator[tuple[Typing, UOp]]:
    """The left side on constants alone."""
    names = list(variables(typing.before))
    pools = [edge_values(typing.variables[n]) for n in names]
    for values in _mixed(rule, pools):
        given = {n: const(typing.variables[n], v) for n, v in zip(names, values, strict=True)}
        yield typing, build(typing.before, typing, given)


def _plain_graphs(rule: Rule, typing: Typing) -> Iterator[tuple[Typing, UOp]]:
    """The left side on variables of every value, with one constant after the other."""
    found = variables(typing.before)
    names = [n for n, v in found.items() if v.CONSTANT]
    given = {n: _unbounded(n, typing.variables[n]) for n, v in found.items() if not v.CONSTANT}
    pools = [constant_pool(typing.variables[n]) for n in names]
    for values in _mixed(rule, pools):
        constants = {n: const(typing.variables[n], v) for n, v in zip(names, values, strict=True)}
        yield typing, build(typing.before, typing, {**given, **constants})


def _mixed(rule: Rule, pools: list[list[Any]]) -> list[tuple[Any, ...]]:
    combinations = list(itertools.islice(itertools.product(*pools), 100_000))
    Maker(rule.name).rng.shuffle(combinations)
    return combinations[:_MOST_PAIRS]


def _graph(typing: Typing, maker: Maker, attempt: int) -> UOp:
    """The left side on generated operands."""
    depth = (1, 0, 1, 2)[attempt % 4]
    given: dict[str, UOp] = {}
    for name, var in variables(typing.before).items():
        dtype = typing.variables[name]
        if var.CONSTANT or (name.startswith("any") and given and maker.rng.random() < 0.4):
            given[name] = maker.constant(dtype)
        elif given and maker.rng.random() < 0.1:
            others = [n for n in given.values() if n.dtype is dtype and n.op is not Ops.CONST]
            given[name] = maker.rng.choice(others) if others else maker.expression(dtype, depth)
        else:
            given[name] = maker.expression(dtype, depth)
    return build(typing.before, typing, given)


def _unbounded(name: str, dtype: DType) -> UOp:
    if dtype.is_bounded_int or dtype.is_bool:
        return make(Ops.DEFINE_VAR, dtype, (), (name, dtype.min, dtype.max))
    return make(Ops.DEFINE_VAR, dtype, (), (name, float("-inf"), float("inf")))


def build(term: Term, typing: Typing, given: dict[str, UOp]) -> UOp:
    """The graph that a pattern matches with these operands."""
    if isinstance(term, As):
        return build(term.term, typing, given)
    if isinstance(term, Var):
        return given[term.name]
    if isinstance(term, Lit):
        dtype = typing.of(term)
        return const(dtype, as_value(term.value, dtype))
    assert isinstance(term, Apply) and term.src is not None
    return make(term.op, typing.of(term), tuple(build(s, typing, given) for s in term.src))


def describe(node: UOp) -> str:
    """A graph as a short line."""
    return expr(node, limit=120)
