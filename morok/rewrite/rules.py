"""Rules and rule sets: `before`, `after`, `when`, with a name, a place and a numeric class.

    @rules("example")
    def example(x: Int, c: IntConst) -> Rules:
        # taking the remainder twice changes nothing
        yield "mod-mod", (x % c) % c >> x % c
        yield "div-one", x // 1 >> x

The parameters are the rule's variables; their annotations say what they match. What follows the arrow in a
yield adds to the rule: `when(…)` conditions, a numeric class, `why(…)` for a right side that is code,
`grows(…)` for a rule that goes against the termination order on purpose, `unproved(…)` for one that the
prover cannot treat.
"""

from __future__ import annotations

import inspect
import os
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from types import CodeType
from typing import Any, final

from morok import knobs
from morok.errors import RuleError
from morok.ir.ops import MOVEMENT, Op, Ops
from morok.rewrite.terms import (
    Apply,
    Arg,
    Arrow,
    As,
    DTypeOf,
    Fact,
    Term,
    Var,
    children,
    show,
    subterms,
    variables,
)

Rules = Iterator[Any]


class Numeric(Enum):
    """What a rule may change. Only the first two are on by default."""

    EXACT = "exact"  # equal for every input, NaN, infinities and wrap-around included
    ZERO_SIGN = "zero-sign"  # equal except for the sign of a zero
    REASSOCIATING = "reassociating"  # changes rounding only
    UNSAFE = "unsafe"  # anything else


EXACT, ZERO_SIGN, REASSOCIATING, UNSAFE = Numeric
DEFAULT_CLASSES: frozenset[Numeric] = frozenset({EXACT, ZERO_SIGN})


@final
class when:  # noqa: N801 - reads as a word of the rule language
    """Conditions, all of which must hold: terms, or named functions of the rule's variables."""

    __slots__ = ("conditions",)

    def __init__(self, *conditions: Any) -> None:
        self.conditions = conditions


class _Remark:
    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text


@final
class why(_Remark):  # noqa: N801
    """Why the right side is code and not a term."""


@final
class grows(_Remark):  # noqa: N801
    """Why the rule may go against the termination order, and what keeps it from looping."""


@final
class unproved(_Remark):  # noqa: N801
    """Why the prover cannot treat the rule."""


@final
@dataclass(frozen=True, eq=False, slots=True)
class Rule:
    """One rule, as data. `after` is a term, or a function of the variables that may decline by returning
    None."""

    name: str
    before: Term
    after: Term | Callable[..., Any]
    conditions: tuple[Any, ...]
    numeric: Numeric
    place: str
    why: str | None = None
    grows: str | None = None
    unproved: str | None = None
    compiled: dict[bool, Any] = field(default_factory=dict, init=False, repr=False)  # its functions, if any

    @property
    def is_code(self) -> bool:
        return not isinstance(self.after, Term)

    @property
    def root(self) -> Apply:
        term = self.before.term if isinstance(self.before, As) else self.before
        assert isinstance(term, Apply)
        return term

    @property
    def variables(self) -> dict[str, Var]:
        return variables(self.before)

    def __str__(self) -> str:
        return self.name

    def formula(self) -> str:
        """The rule as a line of mathematics."""
        after = show(self.after) if isinstance(self.after, Term) else f"{self.after.__name__}(…)"
        conditions = ", ".join(show(c) if isinstance(c, Term) else c.__name__ for c in self.conditions)
        return f"{show(self.before)} → {after}" + (f"   if {conditions}" if conditions else "")


def parameters(function: Callable[..., Any]) -> tuple[str, ...]:
    """The names a condition or right side written in code asks for."""
    code = getattr(function, "__code__", None)
    if code.__class__ is not CodeType or hasattr(function, "__wrapped__") or code.co_flags & _OPEN:
        return tuple(inspect.signature(function).parameters)
    names: tuple[str, ...] = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return names[1:] if inspect.ismethod(function) else names


_OPEN = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS  # there `signature` knows better


def is_shipped(function: Callable[..., Any]) -> bool:
    """Whether a function is morok's own: the tests check its rules (with the knob SPEC), and a user's process
    does not pay for that again."""
    return not knobs.SPEC.value and function.__code__.co_filename.startswith(_PACKAGE)


def collect(prefix: str, function: Callable[..., Rules], extras: tuple[Any, ...] = ()) -> list[Rule]:
    """Runs a generator of rules with its parameters as variables; checks and completes every yield."""
    hints = typing.get_type_hints(function)
    shipped = is_shipped(function)
    given = {}
    for parameter in parameters(function):
        kind = hints.get(parameter, Var)
        if not (isinstance(kind, type) and issubclass(kind, Var)):
            raise RuleError(
                f"parameter {parameter} of {function.__name__} is not annotated with a kind of variable"
            )
        given[parameter] = kind(parameter)
    generator = function(**given)
    file = os.path.relpath(function.__code__.co_filename, _ROOT)
    if file.startswith(".."):
        file = os.path.basename(file)
    found: list[Rule] = []
    names: set[str] = set()
    for item in generator:
        frame = generator.gi_frame  # type: ignore[attr-defined]
        rule = _complete(
            prefix, (*item, *extras) if isinstance(item, tuple) else item, f"{file}:{frame.f_lineno}", shipped
        )
        if rule.name in names:
            raise RuleError(f"two rules are called {rule.name}", place=rule.place)
        names.add(rule.name)
        found.append(rule)
    return found


_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_ROOT = os.path.dirname(os.path.dirname(_PACKAGE))


def _complete(prefix: str, item: Any, place: str, checked: bool = False) -> Rule:
    parts = item if isinstance(item, tuple) else (item,)
    if len(parts) < 2 or not isinstance(parts[0], str) or not isinstance(parts[1], Arrow):
        raise RuleError(
            'a rule is written  yield "name", before >> after, …  (mind that >> binds tighter than < & | ^)',
            place=place,
        )
    name, arrow = parts[0], parts[1]
    conditions: list[Any] = []
    numeric = EXACT
    remarks: dict[str, str] = {}
    for extra in parts[2:]:
        if isinstance(extra, when):
            conditions.extend(extra.conditions)
        elif isinstance(extra, Numeric):
            numeric = extra
        elif isinstance(extra, _Remark):
            remarks[type(extra).__name__] = extra.text
        else:
            raise RuleError(f"{extra!r} cannot follow a rule", place=place)
    rule = Rule(f"{prefix}.{name}", arrow.before, arrow.after, tuple(conditions), numeric, place, **remarks)
    if checked:
        return rule
    _check_bound(rule)
    if rule.is_code and rule.why is None:
        raise RuleError(f"{rule.name} has code on its right side and does not say why(…)", place=place)
    return rule


def _check_bound(rule: Rule) -> None:
    """Everything about a rule that can be known before it meets a node."""
    root = rule.before.term if isinstance(rule.before, As) else rule.before
    if not isinstance(root, Apply):
        raise RuleError(f"{rule.name} must start with an op, not with {rule.before!r}", place=rule.place)
    bound = _pattern_variables(rule)
    for part in (rule.after, *rule.conditions):
        if isinstance(part, Term):
            used = set(variables(part))
        elif callable(part):
            used = set(parameters(part)) - {"node", "ctx"}
        else:
            raise RuleError(f"{rule.name}: {part!r} is neither a term nor a function", place=rule.place)
        if unknown := sorted(used - bound):
            verb = "is" if len(unknown) == 1 else "are"
            raise RuleError(
                f"{rule.name}: {', '.join(unknown)} {verb} not bound by the left side {show(rule.before)}",
                place=rule.place,
            )
    for condition in rule.conditions:
        if isinstance(condition, Term):
            _check_condition(rule, condition)
    if isinstance(rule.after, Term):
        _check_template(rule, rule.after)


def _pattern_variables(rule: Rule) -> set[str]:
    """The variables that matching the left side binds, in the order of reading; checks the pattern too."""
    bound: set[str] = set()
    stack: list[Term] = [rule.before]
    while stack:
        term = stack.pop()
        if isinstance(term, Var):
            bound.add(term.name)
        elif isinstance(term, (Fact, DTypeOf)):
            raise RuleError(f"{rule.name}: {term!r} cannot be matched; put it into when(…)", place=rule.place)
        elif isinstance(term, Apply):
            _check_arity(rule, term)
            if isinstance(term.dtype, DTypeOf) and term.dtype.var.name not in bound:
                raise RuleError(
                    f"{rule.name}: {term.dtype!r} stands before {term.dtype.var} is bound", place=rule.place
                )
            if isinstance(term.arg, Var):
                bound.add(term.arg.name)
        stack.extend(reversed(children(term)))
    return bound


def _check_arity(rule: Rule, term: Apply) -> None:
    if term.src is None:
        return
    for op in term.ops:
        fits = op.arity < 0 or (len(term.src) - 1 <= op.arity if term.variadic else len(term.src) == op.arity)
        if not fits:
            raise RuleError(
                f"{rule.name}: {op.name} takes {op.arity} sources, {show(term)} has {len(term.src)}",
                place=rule.place,
            )


# Built with the type of what they pass on.
OF_FIRST_SOURCE: frozenset[Op] = frozenset((
    *MOVEMENT, Ops.AFTER, Ops.CONTIGUOUS, Ops.DETACH, Ops.COPY, Ops.BIND,
))  # fmt: skip

# What may stand in a condition, where numbers are mathematical.
CONDITION_OPS: frozenset[Op] = frozenset((
    Ops.ADD, Ops.SUB, Ops.MUL, Ops.FLOORDIV, Ops.FLOORMOD, Ops.NEG, Ops.ABS, Ops.MAX, Ops.MIN,
    Ops.CMPLT, Ops.CMPEQ, Ops.CMPNE, Ops.NOT, Ops.AND, Ops.OR,
))  # fmt: skip


def _check_condition(rule: Rule, condition: Term) -> None:
    stack = [condition]
    while stack:
        term = stack.pop()
        if isinstance(term, Fact):
            continue
        if isinstance(term, Var) and not term.CONSTANT and not isinstance(term, Arg):
            raise RuleError(
                f"{rule.name}: {term} is no constant; a condition can ask for vmin({term}) and vmax({term})",
                place=rule.place,
            )
        if isinstance(term, Apply) and not set(term.ops) <= CONDITION_OPS:
            raise RuleError(f"{rule.name}: {term.op.name} cannot stand in a condition", place=rule.place)
        stack.extend(children(term))


def _check_template(rule: Rule, after: Term) -> None:
    if isinstance(after, Var) and after.MANY:
        raise RuleError(
            f"{rule.name}: {after} stands for several nodes, so it is no result", place=rule.place
        )
    for term in subterms(after):
        if not isinstance(term, Apply):
            continue
        if len(term.ops) > 1 or term.src is None:
            raise RuleError(f"{rule.name}: {show(term)} does not say what to build", place=rule.place)
        _check_arity(rule, term)
        typed = term.op.is_alu or term.dtype is not None or term.op in OF_FIRST_SOURCE
        if not typed and not (term is after and term.op in rule.root.ops):
            raise RuleError(f"{rule.name}: {show(term)} needs dtype= to be built", place=rule.place)


def ops_of(rule: Rule) -> tuple[Op, ...]:
    """The ops at whose nodes a rule can fire."""
    return rule.root.ops
