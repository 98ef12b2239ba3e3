"""Proves a rule with code by running it: on many graphs, each result must equal what it replaces.

The operands stay symbolic, so a case covers all values of its variables; the constants, bounds and shapes
of operands are generated (`candidates.py`). A rule that never fired has not been proved, whatever else
happened. Code that asks for a context gets the ones that its module offers in `proof_contexts()`.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from morok.dtype import DType, bool_, from_bits
from morok.errors import MorokError
from morok.ir.bounds import bounds
from morok.ir.node import UOp, make, toposort
from morok.ir.ops import Ops
from morok.ir.text import expr
from morok.proof.candidates import Case, Tally, candidates
from morok.proof.exhaust import exhaust
from morok.proof.graphs import evaluate_graph, prove_equal
from morok.proof.movements import same_elements
from morok.proof.shapes import MOVEMENTS, graphs_for, is_shaped
from morok.proof.smt.formulas import same_value
from morok.proof.smt.sorts import Typing, ops_in
from morok.proof.smt.translate import NO_THEORY
from morok.proof.verdicts import OUT_OF_SCOPE, PROVED, REFUTED, UNKNOWN, Effort, Verdict
from morok.rewrite.engine import substitute
from morok.rewrite.match import apply_rule
from morok.rewrite.rules import EXACT, Numeric, Rule, parameters
from morok.rewrite.terms import Lit, Term

_RAISED = (ArithmeticError, ValueError, TypeError, AttributeError, LookupError, MemoryError, RecursionError)
_CASE_STEPS = 4_000_000
_BONUS_STEPS = 600_000
_MOST_TRIED = 5  # where the solver has given up so often, it gets few steps for the rest
_TRIED_VALUES = 60
_MOST_OPEN = 10  # a tenth of the cases; the report says which rules have some
_VALUES_ONLY = (Ops.POW, Ops.THREEFRY)  # at the widths of programs too large for a solver
_SHAPED = 3  # so many times the cases of arithmetic
_COMPUTED = (Ops.CONST, Ops.VCONST, Ops.DEFINE_VAR, Ops.VECTORIZE, Ops.CAT, Ops.GEP)
_FAR, _SMALL = 70, 8  # bits of values without bounds; small where an op makes them as long as they are large


def prove_cases(rule: Rule, effort: Effort) -> tuple[Verdict, list[DType]]:
    """The verdict on a rule with code, and the types on which it fired."""
    contexts = contexts_for(rule)
    if not contexts:
        return Verdict(UNKNOWN, "the code asks for a context, and its module has no proof_contexts()"), []
    unknown = () if is_shaped(rule) else ops_in(rule.before) & NO_THEORY
    if unknown:
        names = ", ".join(sorted(op.name for op in unknown))
        return Verdict(OUT_OF_SCOPE, f"the solver has no theory of {names}"), []
    tally = Tally()
    types: dict[DType, None] = {}
    seen: set[UOp] = set()
    shaped = graphs_for(rule)
    found = candidates(rule, tally, effort) if shaped is None else _shaped(shaped, tally, effort)
    for case in found:
        if case.node in seen:
            continue
        seen.add(case.node)
        results: dict[UOp, None] = {}
        for ctx in contexts:
            try:
                result = apply_rule(rule, case.node, ctx)
            except MorokError as error:
                note = f"the code fails on {describe(case.node)}: {error.message}"
                return Verdict(REFUTED, note), list(types)
            except _RAISED as error:
                what = f"{type(error).__name__}: {error}"
                return Verdict(REFUTED, f"the code raises on {describe(case.node)}: {what}"), list(types)
            if result is not None:
                results[result] = None
        for result in results:
            refuted = _compare(rule, case, result, tally, effort)
            if refuted is not None:
                return refuted, list(types)
            types.update(dict.fromkeys(case.typing.free or (bool_,)))
    return _judge(tally), list(types)


def _shaped(nodes: Iterator[UOp], tally: Tally, effort: Effort) -> Iterator[Case]:
    """Graphs that are made for a rule, until it has fired often enough."""
    for node in nodes:
        if tally.fired >= _SHAPED * effort.cases:
            return
        yield Case(_NO_TYPES, node)


_NO_TYPES = Typing(Lit(0), {}, {}, ())


def contexts_for(rule: Rule) -> Sequence[Any]:
    """What to call the rule's code with: one nothing, unless it asks for a context."""
    if not _asks_for_context(rule):
        return (None,)
    path = rule.place.rpartition(":")[0]
    names = [path.removesuffix(".py").replace("/", ".")]
    names += [str(getattr(f, "__module__", "")) for f in (rule.after, *rule.conditions)]
    for name in names:
        offered = getattr(sys.modules.get(name), "proof_contexts", None)
        if offered is not None:
            return tuple(offered())
    return ()


def _asks_for_context(rule: Rule) -> bool:
    code = [f for f in (rule.after, *rule.conditions) if not isinstance(f, Term)]
    return any("ctx" in parameters(f) for f in code)


def _compare(rule: Rule, case: Case, result: UOp, tally: Tally, effort: Effort) -> Verdict | None:
    """A refutation, or None after counting the case."""
    verdict = None
    if rule.name.startswith(MOVEMENTS):
        verdict = same_elements(case.node, result)
    elif _is_exact(rule):
        verdict = exhaust(case.node, result, rule.numeric is not EXACT)
    if verdict is None:
        verdict = _on_values(rule, case.node, result)
    if verdict is None and case.bonus and any(n.op in _VALUES_ONLY for n in toposort(case.node)):
        verdict = Verdict(UNKNOWN, "compared on values")
    if verdict is None:
        patience = _BONUS_STEPS if tally.tried < _MOST_TRIED else _BONUS_STEPS // 6
        steps = min(effort.needed, patience if case.bonus else _CASE_STEPS)
        verdict = prove_equal(case.node, result, steps, _meant(rule, case.node))
        if verdict.status == UNKNOWN and _is_exact(rule):
            verdict = _for_all_operands(rule, case.node, result) or verdict
        if verdict.status == UNKNOWN and not case.bonus and effort.needed > steps:
            verdict = prove_equal(case.node, result, effort.needed, _meant(rule, case.node))
    if verdict.status == REFUTED:
        example = dict(verdict.counterexample) or {"graph": describe(case.node)}
        note = f"{describe(case.node)} became {describe(result)}: {verdict.note}"
        return Verdict(REFUTED, note, example)
    tally.fired += 1
    if verdict.status == UNKNOWN and case.bonus and _is_exact(rule):
        tally.tried += 1
    elif verdict.status == UNKNOWN:
        tally.open += 1
        tally.why = f"{verdict.note}, as for {describe(case.node)}"
    return None


def _for_all_operands(rule: Rule, before: UOp, after: UOp) -> Verdict | None:
    """A proof for all operands within the bounds of these ones, whatever they are computed from."""
    unknown: dict[UOp, UOp] = {}
    for number, s in enumerate(before.src):
        if s.op.is_alu and s.dtype.is_int and s.dtype.lanes == 1:
            unknown[s] = make(Ops.DEFINE_VAR, s.dtype, (), (f"operand {number}", *bounds(s)))
    found = exhaust(substitute(before, unknown), substitute(after, unknown), rule.numeric is not EXACT)
    return found if found is not None and found.status == PROVED else None


def _meant(rule: Rule, node: UOp) -> Numeric:
    """How to compare: a sum of floats over loops has no order, so rounding is no part of what it means."""
    if rule.numeric is EXACT and node.op is Ops.REDUCE and node.dtype.is_float and node.arg == (Ops.ADD,):
        return Numeric.REASSOCIATING
    return rule.numeric


def _is_exact(rule: Rule) -> bool:
    """Whether Python computes the same value for both sides, not just the same number of the reals."""
    return rule.numeric not in (Numeric.REASSOCIATING, Numeric.UNSAFE)


def _on_values(rule: Rule, before: UOp, after: UOp) -> Verdict | None:
    """A refutation, if Python computes different values for some of many operands."""
    if not _is_exact(rule) or before.dtype is not after.dtype:
        return None
    if not all(n.op.is_alu or n.op in _COMPUTED for n in toposort(before, after)):
        return None  # memory and loops
    leaves = [n for n in dict.fromkeys((*toposort(before), *toposort(after))) if n.op is Ops.DEFINE_VAR]
    rng = random.Random(describe(before))
    reach = _SMALL if any(n.op in (Ops.SHL, Ops.POW) for n in toposort(before)) else _FAR
    for _ in range(_TRIED_VALUES if leaves else 1):
        values = {n: _value_within(n, rng, reach) for n in leaves}
        x, y = evaluate_graph(before, values), evaluate_graph(after, values)
        if not all(same_value(a, b, rule.numeric is not EXACT) for a, b in zip(x, y, strict=True)):
            named = {str(n.arg[0]): v for n, v in values.items()}
            shown = ", ".join(f"{name} = {v}" for name, v in named.items())
            return Verdict(REFUTED, f"{shown} gives {_plain(x)} before and {_plain(y)} after", named)
    return None


def _plain(lanes: tuple[Any, ...]) -> Any:
    return lanes[0] if len(lanes) == 1 else lanes


def _value_within(n: UOp, rng: random.Random, reach: int) -> Any:
    """A value within the bounds of a variable, up to 2^reach if those are infinite."""
    dtype = n.dtype.scalar
    if dtype.is_bool:
        return rng.random() < 0.5
    if dtype.is_float:
        return from_bits(rng.getrandbits(dtype.bits), dtype) if rng.random() < 0.5 else rng.randint(-8, 8) / 2
    reach = _FAR if dtype.is_bounded_int else reach
    low, high = max(n.arg[1], -(1 << reach)), min(n.arg[2], 1 << reach)
    kind = rng.random()
    if kind < 0.3:
        return rng.choice((low, high))
    near = 12 if kind < 0.7 else 1 << rng.randrange(4, reach + 1)
    return min(high, max(low, rng.randint(-near, near)))


def _judge(tally: Tally) -> Verdict:
    if not tally.fired:
        return Verdict(UNKNOWN, "the code never fired on the generated graphs")
    left = f"{tally.open} of {tally.fired} cases open: {tally.why}"
    if tally.open * _MOST_OPEN > tally.fired:
        return Verdict(UNKNOWN, left)
    parts = [f"{tally.tried} of them on values only"] if tally.tried else []
    return Verdict(PROVED, "; ".join([*parts, left] if tally.open else parts), cases=tally.fired)


def describe(node: UOp) -> str:
    """A graph as a short line."""
    return expr(node, limit=120)
