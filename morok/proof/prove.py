"""`prove_rule`: the verdict on one rule, as a line of the table."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterable

from morok.dtype import DType, bool_
from morok.errors import ProofError
from morok.ir.ops import Ops
from morok.proof.cases import prove_cases
from morok.proof.rules import exhausted, prove_terms
from morok.proof.shapes import is_shaped
from morok.proof.smt import solver
from morok.proof.smt.sorts import ops_in, single_ops
from morok.proof.smt.translate import NO_THEORY
from morok.proof.verdicts import (
    APPROXIMATION,
    DEFAULT,
    LOWERING,
    OUT_OF_SCOPE,
    PROVED,
    REFUTED,
    UNKNOWN,
    VACUOUS,
    Effort,
    RuleReport,
    Verdict,
)
from morok.rewrite.rules import Rule
from morok.rewrite.terms import Apply, Term, subterms

_LISTED = 4


def prove_rule(rule: Rule, effort: Effort = DEFAULT) -> RuleReport:
    """Proves one rule alone, over the types it claims."""
    start = time.perf_counter()
    solver.fresh()
    collecting = gc.isenabled()
    gc.disable()  # when it runs depends on the past, and what it frees gives its numbers to new expressions
    try:
        verdict, theory = judge(rule, effort)
    finally:
        if collecting:
            gc.enable()
    seconds = time.perf_counter() - start
    return RuleReport(
        rule.name,
        rule.place,
        rule.numeric.value,
        theory,
        verdict.status,
        round(seconds, 3),
        verdict.note,
        verdict.cases,
    )


def judge(rule: Rule, effort: Effort = DEFAULT) -> tuple[Verdict, str]:
    """The verdict with its counterexample, and the kinds of numbers that it was reached over."""
    if rule.unproved is not None:
        return Verdict(kind_of_unproved(rule), rule.unproved), ""
    try:
        if not rule.is_code and not is_shaped(rule):
            verdict, types = _by_terms(rule, effort)
            if verdict.status == PROVED or not _has_code_condition(rule):
                return verdict, _theory(types)
        verdict, types = prove_cases(rule, effort)
        return verdict, _theory(types)
    except ProofError as error:
        return Verdict(UNKNOWN, error.message), ""


def kind_of_unproved(rule: Rule) -> str:
    """Why a rule is not proved: it is no equation, or one of functions without a theory."""
    if not _is_law(rule):
        return LOWERING
    return APPROXIMATION if ops_in(rule.before) <= NO_THEORY | {Ops.POW} else OUT_OF_SCOPE


def _is_law(rule: Rule) -> bool:
    """Whether the left side is arithmetic throughout, so that there are values to compare."""
    return all(op.is_alu for t in subterms(rule.before) if isinstance(t, Apply) for op in t.ops)


def _has_code_condition(rule: Rule) -> bool:
    return any(not isinstance(c, Term) for c in rule.conditions)


def _by_terms(rule: Rule, effort: Effort) -> tuple[Verdict, list[DType]]:
    """Ends with the first needed type that fails."""
    types: dict[DType, None] = {}
    notes: dict[str, list[str]] = {}
    needed, cases = False, 0
    for result in prove_terms(rule, effort):
        verdict = result.verdict
        if verdict.status == REFUTED or (verdict.status == UNKNOWN and result.needed):
            return _named(verdict, str(result.typing)), list(types)
        needed = needed or result.needed
        if verdict.status == PROVED:
            types.update(dict.fromkeys(result.typing.free or (bool_,)))
            cases += verdict.cases
        if verdict.note:
            notes.setdefault(verdict.note, []).append(str(result.typing))
    if not needed:
        return Verdict(
            VACUOUS, "the rule cannot fire: no types fit, or its conditions contradict each other"
        ), []
    for before in single_ops(rule.before):
        for typing, verdict in exhausted(rule, before):
            if verdict.status == REFUTED:
                return verdict, list(types)
            types.update(dict.fromkeys(typing.free))
    note = "; ".join(f"{_some(where)}: {what}" for what, where in notes.items())
    return Verdict(PROVED, note, cases=cases), list(types)


def _named(verdict: Verdict, typing: str) -> Verdict:
    if verdict.status == REFUTED:
        return verdict
    return Verdict(verdict.status, f"{typing}: {verdict.note}", verdict.counterexample)


def _some(names: list[str]) -> str:
    if len(names) <= _LISTED:
        return ", ".join(names)
    return f"{', '.join(names[:2])} and {len(names) - 2} more"


def _theory(types: Iterable[DType]) -> str:
    """The kinds of numbers a rule was proved over, with the widths."""
    by_kind: dict[str, list[str]] = {}
    for t in sorted(types, key=lambda t: (t.bits, str(t))):
        by_kind.setdefault("bool" if t.is_bool else t.kind, []).append(_width(t))
    return " ".join(kind + "/".join(widths) for kind, widths in sorted(by_kind.items()))


def _width(t: DType) -> str:
    if t.is_bool or t.is_index:
        return ""
    return str(t.bits) if not t.is_float else str(t).replace("float", "")
