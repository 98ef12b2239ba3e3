"""Judges one mutant: the prover and the tests of the rooms that it lives in, the cheapest first.

What a judge looks at, and what it costs, is measured once on the rules as they are (`Baseline`); a judge that
fails there judges nobody. A mutant is killed by the prover (refuted, or not proved any more with the same
steps of the solver), by a test, at once (it raises when it is built), or by time: a judge takes many times
what it took. Who is still a law under a wider condition is neither killed nor has it survived.
"""

from __future__ import annotations

import importlib
import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from types import FunctionType, ModuleType
from typing import Any, final

from morok.errors import MorokError
from morok.ir.ops import Ops
from morok.proof.intervals import Law, laws
from morok.proof.prove import judge
from morok.proof.smt import solver
from morok.proof.smt.formulas import Formula
from morok.proof.smt.solver import Problem, z3
from morok.proof.smt.sorts import narrow_types, ops_in, single_ops, typings
from morok.proof.tight import loose
from morok.proof.verdicts import PROVED, UNKNOWN, Effort
from morok.rewrite import ruleset
from morok.rewrite.rules import Rule
from morok.rewrite.terms import Term
from tests.mutation.code import CodeMutant, TextMutant
from tests.mutation.pool import Late, at_most
from tests.mutation.suite import Calls, Key, Suite
from tests.mutation.terms import TermMutant

EFFORT = Effort(needed=4_000_000, extra=0, cases=40)
# Where code of rules and of interval arithmetic lives, and the tests that know it.
TESTED_BY: dict[str, tuple[str, ...]] = {
    "morok.ir.bounds": (
        "tests/ir/test_intervals.py",
        "tests/ir/test_bounds.py",
        "tests/symbolic/test_families.py",
    ),
    "morok.ir.arithmetic.intervals": ("tests/ir/test_intervals.py", "tests/ir/test_bounds.py"),
    "morok.symbolic.quotients": ("tests/symbolic",),
    "morok.symbolic.bits": ("tests/symbolic",),
    "morok.symbolic.casts": ("tests/symbolic",),
    "morok.symbolic.constants": ("tests/symbolic",),
    "morok.symbolic.order": ("tests/symbolic",),
    "morok.symbolic.sums": ("tests/symbolic",),
    "morok.symbolic.validity": ("tests/symbolic", "tests/schedule/test_passes.py"),
    "morok.codegen.decompose.integers": (
        "tests/codegen/test_integers.py",
        "tests/codegen/test_division.py",
        "tests/codegen/test_arithmetic.py",
    ),
    "morok.codegen.decompose.rounding": ("tests/codegen/test_table.py", "tests/codegen/test_arithmetic.py"),
    "morok.codegen.decompose.table": ("tests/codegen/test_table.py", "tests/codegen/test_arithmetic.py"),
    "morok.codegen.vector.vector_constants": ("tests/codegen/test_vector_constants.py",),
    "morok.codegen.gates": ("tests/codegen/test_gates.py", "tests/codegen/test_kernels.py"),
    "morok.schedule.graph.views": ("tests/schedule/test_passes.py",),
    "morok.schedule.kernel.gates": ("tests/schedule/test_passes.py",),
    "morok.schedule.kernel.reductions": ("tests/schedule/test_collapse.py", "tests/schedule/test_passes.py"),
    "morok.schedule.kernel.collapse": ("tests/schedule/test_collapse.py", "tests/schedule/test_passes.py"),
}
# In these rooms only what proved rules reach: the rest moves loops and memory.
REACHED_TESTED_BY: dict[str, tuple[str, ...]] = {
    "morok.codegen.vector.devectorize": (
        "tests/codegen/test_vectors.py",
        "tests/codegen/test_kernels.py",
        "tests/codegen/test_splits.py",
    ),
    "morok.codegen.vector.vectors": (
        "tests/codegen/test_vectors.py",
        "tests/codegen/test_vector_constants.py",
        "tests/codegen/test_kernels.py",
    ),
    "morok.codegen.reduce.reduce": ("tests/codegen/test_kernels.py",),
    "morok.codegen.vector.loads": (
        "tests/codegen/test_vectors.py",
        "tests/codegen/test_kernels.py",
        "tests/codegen/test_division.py",
    ),
    "morok.codegen.decompose.pieces": (
        "tests/codegen/test_table.py",
        "tests/codegen/test_integers.py",
        "tests/codegen/test_arithmetic.py",
    ),
}
# Approximations, which are judged by their errors.
APPROXIMATIONS_TESTED_BY: dict[str, tuple[str, ...]] = {
    "morok.codegen.decompose.exponential": (
        "tests/codegen/test_functions.py",
        "tests/codegen/test_fused.py",
    ),
    "morok.codegen.decompose.trigonometric": ("tests/codegen/test_functions.py",),
    "morok.codegen.decompose.fused": ("tests/codegen/test_fused.py",),
}
ALL_TESTED_BY = TESTED_BY | REACHED_TESTED_BY | APPROXIMATIONS_TESTED_BY
_DIVIDES = (Ops.FLOORDIV, Ops.FLOORMOD, Ops.CDIV, Ops.CMOD)
TERMS_TESTED_BY = ("tests/symbolic",)
KILLED, SURVIVED = "killed", "survived"
EQUIVALENT = "equivalent"  # the same function of all inputs
LAW = "still a law"  # fires more often, and is right where it does
REFUTES, NOT_PROVED = "prover", "prover: not proved any more"
BY_TESTS, BY_TIME, AT_ONCE = "tests", "time", "at once"
BUDGET = 25.0  # seconds of the processor for all judges of a mutant
TERM_LIMIT = 25.0
MANY_TIMES = 6.0  # a judge that takes so much longer than usual has noticed something


@final
@dataclass(frozen=True, slots=True)
class Found:
    """The verdict on a mutant: what, by whom, in words."""

    status: str
    by: str
    note: str
    seconds: float = 0.0


_ids = itertools.count(1_000_000)


def modules() -> list[ModuleType]:
    return [importlib.import_module(name) for name in ALL_TESTED_BY]


# --- rules that are data


def kill_term(mutant: TermMutant, baseline: Baseline) -> Found:
    """The verdict on a rule that is data."""
    solver.fresh()
    try:
        with at_most(TERM_LIMIT):
            verdict, _ = judge(mutant.changed, EFFORT)
    except MorokError as error:
        return Found(KILLED, AT_ONCE, f"cannot be built: {error.message}")
    except (ArithmeticError, TypeError, AttributeError, AssertionError) as error:
        return Found(KILLED, AT_ONCE, f"{type(error).__name__}")
    except Late:
        return Found(KILLED, BY_TIME, f"the prover took more than {TERM_LIMIT} s")
    if verdict.status != PROVED:
        by = NOT_PROVED if verdict.status == UNKNOWN else REFUTES
        return Found(KILLED, by, f"{verdict.status} {verdict.note}")
    if mutant.part == "after":
        return Found(EQUIVALENT, "", "both right sides are proved to be the left side")
    if mutant.old is not None and same_conditions(mutant):
        return Found(EQUIVALENT, "", "Z3: the conditions are the same")
    if mutant.old is not None and same_conditions(mutant, wider=True):
        return Found(LAW, "", "proved under the wider condition as well")
    known = loose(mutant.rule)
    stricter = [text for text in loose(mutant.changed) if text not in known]
    if stricter:
        return Found(KILLED, REFUTES, f"too strict: {stricter[0]}")
    install_rule(mutant.rule, mutant.changed)
    return asked(baseline.tests(TERMS_TESTED_BY, None), baseline)


def same_conditions(mutant: TermMutant, wider: bool = False) -> bool:
    """Whether both conditions hold for the same operands (`wider`: the second wherever the first does)."""
    rule, old, new = mutant.rule, mutant.old, mutant.new
    if new is None:
        return wider
    assert old is not None
    for before in single_ops(rule.before):
        for typing in typings(before, narrow_types(rule)):
            sides = [Formula(replace(rule, after=rule.before, conditions=(c,)), typing) for c in (old, new)]
            if any(op in _DIVIDES for c in (old, new) for op in ops_in(c)):
                return False  # both formulas have the same names for different quotients
            known = [e for side in sides for e in (*side.t.assumed, *side.bounds)]
            first, second = (z3.And(side.conditions) for side in sides)
            goal = z3.Implies(first, second) if wider else first == second
            if solver.decide(Problem(known, goal, []), EFFORT.needed).status != solver.PROVED:
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


# --- who can judge what, and what that costs


@final
@dataclass(frozen=True, slots=True)
class Judge:
    """A rule or a law with its proof, or a test."""

    name: str
    ask: Callable[[], str]  # what is wrong, nothing if all is well
    is_test: bool = False


@final
@dataclass(slots=True)
class Baseline:
    """All judges, with what they cost and which functions they run when nothing is changed."""

    judges: dict[str, Judge]
    seconds: dict[str, float] = field(default_factory=dict)
    functions: dict[str, set[Key]] = field(default_factory=dict)
    broken: dict[str, str] = field(default_factory=dict)

    def tests(self, paths: Iterable[str], function: Key | None) -> list[Judge]:
        """Tests below the paths that run the function, the cheapest first."""
        below = tuple(paths)
        found = [j for n, j in self.judges.items() if j.is_test and n.startswith(below)]
        return self._sorted(found, function)

    def proofs(self, function: Key) -> list[Judge]:
        """Rules and laws whose code runs the function, the cheapest first."""
        return self._sorted([j for j in self.judges.values() if not j.is_test], function)

    def _sorted(self, judges: Iterable[Judge], function: Key | None) -> list[Judge]:
        known = [j for j in judges if j.name in self.seconds]
        if function is not None:
            known = [j for j in known if function in self.functions[j.name]]
        return sorted(known, key=lambda j: self.seconds[j.name])


def all_judges(rules: list[Rule], suite: Suite, wanted: set[str]) -> dict[str, Judge]:
    """What the prover can say about code (rules with code, interval arithmetic) of the modules, and tests."""
    found: list[Judge] = []
    for rule in rules:
        code = [f for f in (rule.after, *rule.conditions) if not isinstance(f, Term)]
        if code and rule.unproved is None and {module for module, _ in reached(*code)} & wanted:
            found.append(Judge(rule.name, lambda rule=rule: _prove_rule(rule)))  # type: ignore[misc]
    if "morok.ir.bounds" in wanted or "morok.ir.arithmetic.intervals" in wanted:
        found += [Judge(f"{law.name} {law.dtype}", lambda law=law: _prove_law(law)) for law in laws()]  # type: ignore[misc]
    below = tuple(path for module in wanted for path in ALL_TESTED_BY.get(module, TERMS_TESTED_BY))
    names = [name for name in suite.items if name.startswith(below)]
    found += [Judge(name, lambda name=name: suite.run(name), True) for name in names]  # type: ignore[misc]
    return {j.name: j for j in found}


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


def _prove_rule(rule: Rule) -> str:
    solver.fresh()
    verdict, _ = judge(rule, EFFORT)
    return "" if verdict.status == PROVED else f"{verdict.status} {verdict.note}"


def _prove_law(law: Law) -> str:
    verdict = law.prove(quick=True)
    return "" if verdict.status == PROVED else f"{verdict.status} {verdict.note}"


def measure(judges: list[Judge]) -> list[tuple[str, float, set[Key], str]]:
    """For each judge what it costs, the functions that it runs and what is wrong, in this process."""
    found = []
    for judge_ in judges:
        forget()
        with Calls(modules()) as calls:
            wrong = judge_.ask()
        found.append((judge_.name, calls.seconds, calls.functions(), wrong))
    return found


# --- code


def kill_code(mutant: CodeMutant | TextMutant, baseline: Baseline) -> Found:
    """The verdict on a change of code."""
    try:
        mutant.install()
    except ValueError as error:
        return Found(SURVIVED, "", f"cannot be installed, so nobody has judged it: {error}")
    forget()
    function = (mutant.module, mutant.function)
    proofs = baseline.proofs(function)
    tests = baseline.tests(ALL_TESTED_BY[mutant.module], function)
    if not proofs and not tests:
        return Found(SURVIVED, "", "no judge runs this function")
    return asked(_in_turn(proofs, tests, baseline), baseline)


def _in_turn(proofs: list[Judge], tests: list[Judge], baseline: Baseline) -> list[Judge]:
    """Both, the cheapest first, but of tests a second for each second of proofs."""
    spent = 0.0
    keyed = []
    for some in (proofs, tests):
        spent = 0.0
        for j in some:
            spent += baseline.seconds[j.name]
            keyed.append((spent, j.name, j))
    return [j for _, _, j in sorted(keyed, key=lambda k: k[:2])]


def asked(judges: list[Judge], baseline: Baseline) -> Found:
    """The first judge that notices something, as far as the time goes."""
    start = time.process_time()
    for number, judge_ in enumerate(judges):
        if time.process_time() - start > BUDGET:
            return Found(
                SURVIVED, "", f"{len(judges) - number} of {len(judges)} judges were not asked any more"
            )
        limit = MANY_TIMES * baseline.seconds.get(judge_.name, 1.0) + 2.0
        try:
            with at_most(limit):
                wrong = judge_.ask()
        except Late:
            usual = baseline.seconds.get(judge_.name, 1.0)
            return Found(KILLED, BY_TIME, f"{judge_.name} took more than {limit:.1f} s, not {usual:.1f} s")
        except Exception as error:
            wrong = f"{type(error).__name__}: {error}"
        if wrong:
            by = BY_TESTS if judge_.is_test else NOT_PROVED if wrong.startswith(UNKNOWN) else REFUTES
            return Found(KILLED, by, f"{judge_.name}: {wrong}")
    return Found(SURVIVED, "", f"{len(judges)} judges see nothing")
