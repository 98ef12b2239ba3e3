"""Judges one mutant: the prover first, then the tests of the rooms that it lives in."""

from __future__ import annotations

import contextlib
import importlib
import io
import itertools
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import FunctionType, ModuleType
from typing import Any

import pytest

from morok.errors import MorokError
from morok.ir import bounds
from morok.proof import solver
from morok.proof.formulas import Formula
from morok.proof.intervals import Law, laws
from morok.proof.prove import judge
from morok.proof.solver import Problem, z3
from morok.proof.sorts import narrow_types, single_ops, typings
from morok.proof.tight import loose
from morok.proof.verdicts import PROVED, Effort
from morok.rewrite import ruleset
from morok.rewrite.rules import Rule
from morok.rewrite.terms import Term
from tests.mutation.code import CodeMutant, TextMutant
from tests.mutation.terms import TermMutant

EFFORT = Effort(needed=2_000_000, extra=0, cases=40)
# Where code of rules and of interval arithmetic lives, and the tests that know it.
TESTED_BY: dict[str, tuple[str, ...]] = {
    "morok.ir.bounds": ("tests/ir/test_bounds.py", "tests/symbolic/test_families.py"),
    "morok.ir.intervals": ("tests/ir/test_bounds.py",),
    "morok.symbolic.quotients": ("tests/symbolic",),
    "morok.symbolic.bits": ("tests/symbolic",),
    "morok.symbolic.casts": ("tests/symbolic",),
    "morok.symbolic.constants": ("tests/symbolic",),
    "morok.symbolic.order": ("tests/symbolic",),
    "morok.symbolic.sums": ("tests/symbolic",),
    "morok.symbolic.validity": ("tests/symbolic", "tests/schedule/test_passes.py"),
    "morok.codegen.decompose.integers": (
        "tests/codegen/test_division.py",
        "tests/codegen/test_arithmetic.py",
    ),
    "morok.codegen.decompose.rounding": ("tests/codegen/test_arithmetic.py",),
    "morok.codegen.decompose.table": ("tests/codegen/test_arithmetic.py",),
    "morok.codegen.lanes": ("tests/codegen/test_lanes.py",),
    "morok.codegen.gates": ("tests/codegen/test_kernels.py",),
    "morok.schedule.gates": ("tests/schedule/test_passes.py",),
    "morok.schedule.reductions": ("tests/schedule/test_passes.py",),
    "morok.schedule.collapse": ("tests/schedule/test_passes.py",),
}
_ids = itertools.count(1_000_000)


def modules() -> list[ModuleType]:
    return [importlib.import_module(name) for name in TESTED_BY]


# --- rules that are data


def kill_term(mutant: TermMutant) -> tuple[str, str]:
    """("killed" or "equivalent" or "survived", by what)."""
    solver.fresh()
    try:
        verdict, _ = judge(mutant.changed, EFFORT)
    except MorokError as error:
        return "killed", f"cannot be built: {error.message}"
    except (ArithmeticError, TypeError, AttributeError, AssertionError) as error:
        return "killed", f"{type(error).__name__}"
    if verdict.status != PROVED:
        return "killed", f"prover: {verdict.status} {verdict.note}"
    if mutant.part == "after":
        return "equivalent", "both right sides are proved to be the left side"
    if mutant.part == "condition" and same_conditions(mutant.rule, mutant.changed):
        return "equivalent", "Z3: the conditions are the same"
    if mutant.part == "condition" and same_conditions(mutant.rule, mutant.changed, wider=True):
        return "equivalent", "proved to be a law under the wider condition as well"
    known = loose(mutant.rule)
    stricter = [text for text in loose(mutant.changed) if text not in known]
    if stricter:
        return "killed", f"prover: {stricter[0]}"
    install_rule(mutant.rule, mutant.changed)
    return by_tests(("tests/symbolic",) if mutant.rule.name.startswith("symbolic") else ("tests/codegen",))


def same_conditions(rule: Rule, changed: Rule, wider: bool = False) -> bool:
    """Whether both conditions hold for the same operands (`wider`: the second wherever the first does)."""
    for before in single_ops(rule.before):
        for typing in typings(before, narrow_types(rule)):
            old, new = Formula(rule, typing), Formula(replace(changed, before=rule.before), typing)
            known = [*old.t.assumed, *old.bounds, *new.t.assumed, *new.bounds]
            first, second = z3.And(old.conditions), z3.And(new.conditions)
            goal = z3.Implies(first, second) if wider else first == second
            divisions = [*old.t.divisions, *new.t.divisions]
            if old.t.divisions and new.t.divisions:  # they have the same names for different quotients
                return False
            if solver.decide(Problem(known, goal, divisions), EFFORT.needed).status != solver.PROVED:
                return False
    return True


def install_rule(rule: Rule, changed: Rule) -> None:
    """Puts one rule in the place of another, in every set that has it."""
    sets = {id(s): s for s in (*ruleset.REGISTRY.values(), *ruleset.NAMED_SETS.values())}
    for found in sets.values():
        if any(r is rule for r in found.rules):
            found.rules = tuple(changed if r is rule else r for r in found.rules)
            found.matchers.clear()
    forget()


def forget() -> None:
    """No rule set knows what it has made of a node before."""
    for found in (*ruleset.REGISTRY.values(), *ruleset.NAMED_SETS.values()):
        found.id = next(_ids)


# --- code


def reached(*functions: Any) -> set[tuple[str, str]]:
    """(module, name) of all functions of morok that code can call, as far as names tell."""
    found: set[tuple[str, str]] = set()
    stack = list(functions)
    while stack:
        f = stack.pop()
        if not isinstance(f, FunctionType):
            continue
        key = (f.__module__, f.__qualname__)
        if key in found or not f.__module__.startswith("morok."):
            continue
        found.add(key)
        names = [n for code in _with_inner(f.__code__) for n in code.co_names]
        for name in names:
            value = f.__globals__.get(name)
            stack.append(value)
            if isinstance(value, dict):
                stack += value.values()
            if isinstance(value, ModuleType) and value.__name__.startswith("morok"):
                stack += [getattr(value, n, None) for n in names]
        stack += [cell.cell_contents for cell in f.__closure__ or () if _filled(cell)]
        stack += f.__defaults__ or ()
    return found


def _with_inner(code: Any) -> Iterator[Any]:
    yield code
    for const in code.co_consts:
        if hasattr(const, "co_code"):
            yield from _with_inner(const)


def _filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


Check = tuple[str, set[tuple[str, str]], Callable[[], str]]


def checks(rules: list[Rule]) -> list[Check]:
    """What the prover can say about code: the rules with code, and interval arithmetic."""
    found: list[Check] = []
    for rule in rules:
        code = [f for f in (rule.after, *rule.conditions) if not isinstance(f, Term)]
        if code and rule.unproved is None:
            found.append((rule.name, reached(*code), lambda rule=rule: _prove_rule(rule)))  # type: ignore[misc]
    for law in laws():
        op = next(op for op in bounds.INTS | bounds.BOOLS if law.name == f"ir.bounds.{op.name.lower()}")
        code = [t[op] for t in (bounds.INTS, bounds.BOOLS, bounds.OTHERS) if op in t]
        functions = reached(*code, bounds.inside)
        found.append((f"{law.name} {law.dtype}", functions, lambda law=law: _prove_law(law)))  # type: ignore[misc]
    return found


def _prove_rule(rule: Rule) -> str:
    solver.fresh()
    verdict, _ = judge(rule, EFFORT)
    return "" if verdict.status == PROVED else f"{verdict.status} {verdict.note}"


def _prove_law(law: Law) -> str:
    verdict = law.prove(quick=True)
    return "" if verdict.status == PROVED else f"{verdict.status} {verdict.note}"


def kill_code(mutant: CodeMutant | TextMutant, every: list[Check]) -> tuple[str, str]:
    """The same for code."""
    try:
        mutant.install()
    except ValueError:
        return "survived", "cannot be installed: it closes over other variables, so nobody has judged it"
    forget()
    top = mutant.function.split(".<locals>.")[0]
    wanted = {(mutant.module, mutant.function), (mutant.module, top)}
    for name, functions, prove in every:
        if functions & wanted:
            try:
                found = prove()
            except Exception as error:
                found = f"{type(error).__name__}: {error}"
            if found:
                return "killed", f"prover, {name}: {found}"
    return by_tests(TESTED_BY[mutant.module])


def by_tests(paths: tuple[str, ...]) -> tuple[str, str]:
    """Runs tests in this process, which is the mutant's own."""
    there = [p for p in paths if os.path.exists(p)]
    out = io.StringIO()
    plugins = ["-p", "no:cacheprovider", "-p", "no:randomly", "-p", "no:xdist"]
    deselect = ["-k", "not golden"]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        status = pytest.main(["-x", "-q", "--no-header", *plugins, *deselect, *there])
    if status == pytest.ExitCode.TESTS_FAILED:
        failed = [line for line in out.getvalue().splitlines() if line.startswith(("FAILED", "ERROR"))]
        return "killed", f"tests: {failed[0] if failed else ''}"
    return "survived", "" if status == pytest.ExitCode.OK else f"pytest says {status}"
