"""Symbolic execution: runs Python code on unknown integers, along every path that it can take.

A number is a Z3 integer in the clothes of a Python one. Where code asks for the truth of something, the run
takes one answer and notes the other one for a later run, so in the end every path has been taken, each with
the conditions under which it is. Minima and maxima are choices inside of an expression instead, because
they would double the paths.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, final

from morok.errors import ProofError
from morok.proof.smt import solver
from morok.proof.smt.solver import Division, Expr, z3

_MOST_PATHS = 400
_FEASIBLE = 100_000  # steps to see that a path cannot be taken; one that stays open is taken


@final
class Path:
    """One run: the answers that were given, and the divisions that were made."""

    def __init__(self, answers: list[bool], hypotheses: list[Expr]) -> None:
        self.answers = answers
        self.hypotheses = hypotheses
        self.conditions: list[Expr] = []
        self.divisions: list[Division] = []
        self.others: list[list[bool]] = []  # paths that branch off from this one

    def ask(self, condition: Expr) -> bool:
        """The answer of this run."""
        condition = z3.simplify(condition)
        if z3.is_true(condition) or z3.is_false(condition):
            return bool(z3.is_true(condition))
        number = len(self.conditions)
        if number < len(self.answers):
            answer = self.answers[number]
        else:
            possible = [self._possible(condition), self._possible(z3.Not(condition))]
            answer = possible[0]
            if all(possible):
                self.others.append([*self.answers, False])
            self.answers.append(answer)
        self.conditions.append(condition if answer else z3.Not(condition))
        return answer

    def _possible(self, condition: Expr) -> bool:
        known = [*self.hypotheses, *self.conditions, condition, *solver.native(self.divisions)]
        return solver.check(known, _FEASIBLE).status != solver.PROVED

    def divide(self, a: Expr, b: Expr) -> tuple[Expr, Expr]:
        for d in self.divisions:
            if d.dividend.eq(a) and d.divisor.eq(b):
                return d.quotient, d.remainder
        number = len(self.divisions)
        q, r = z3.Int(f"q{number}"), z3.Int(f"r{number}")
        self.divisions.append(Division(a, b, q, r))
        return q, r


@final
class Unknown:
    """An integer that code computes with."""

    __slots__ = ("e", "path")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, e: Expr, path: Path) -> None:
        self.e = e
        self.path = path

    def _make(self, e: Expr) -> Unknown:
        return Unknown(e, self.path)

    def _sign(self) -> int:
        return 1 if self.path.ask(self.e > 0) else -1 if self.path.ask(self.e < 0) else 0

    # --- arithmetic; with an infinity only the sign matters

    def __add__(self, other: Any) -> Any:
        return other if _infinite(other) else self._make(self.e + _expr(other))

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        return -other if _infinite(other) else self._make(self.e - _expr(other))

    def __rsub__(self, other: Any) -> Any:
        return other if _infinite(other) else self._make(_expr(other) - self.e)

    def __mul__(self, other: Any) -> Any:
        if _infinite(other):
            return other * self._sign()
        return self._make(self.e * _expr(other))

    __rmul__ = __mul__

    def __neg__(self) -> Unknown:
        return self._make(-self.e)

    def __invert__(self) -> Unknown:
        return self._make(-1 - self.e)

    def __abs__(self) -> Unknown:
        return self._make(z3.If(self.e < 0, -self.e, self.e))

    def __floordiv__(self, other: Any) -> Unknown:
        return self._make(self._divided(self.e, _expr(other))[0])

    def __rfloordiv__(self, other: Any) -> Unknown:
        return self._make(self._divided(_expr(other), self.e)[0])

    def __mod__(self, other: Any) -> Unknown:
        return self._make(self._divided(self.e, _expr(other))[1])

    def __int__(self) -> int:
        raise ProofError("the value of an unknown number is asked for")

    def _divided(self, a: Expr, b: Expr) -> tuple[Expr, Expr]:
        if self.path.ask(b == 0):
            raise ProofError("code divides by zero")
        return self.path.divide(a, b)

    # --- comparisons

    def __lt__(self, other: Any) -> bool:
        return other > 0 if _infinite(other) else self.path.ask(self.e < _expr(other))

    def __gt__(self, other: Any) -> bool:
        return other < 0 if _infinite(other) else self.path.ask(self.e > _expr(other))

    def __le__(self, other: Any) -> bool:
        return other > 0 if _infinite(other) else self.path.ask(self.e <= _expr(other))

    def __ge__(self, other: Any) -> bool:
        return other < 0 if _infinite(other) else self.path.ask(self.e >= _expr(other))

    def __eq__(self, other: object) -> bool:
        return not _infinite(other) and self.path.ask(self.e == _expr(other))

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __bool__(self) -> bool:
        return self.path.ask(self.e != 0)


def _infinite(x: Any) -> bool:
    return isinstance(x, float) and math.isinf(x)


def _expr(x: Any) -> Expr:
    return x.e if isinstance(x, Unknown) else z3.IntVal(int(x))


def least(*values: Any) -> Any:
    """`min` for code that runs on unknown numbers."""
    return _extreme(values if len(values) > 1 else tuple(values[0]), min, lambda a, b: z3.If(b < a, b, a))


def greatest(*values: Any) -> Any:
    """`max` likewise."""
    return _extreme(values if len(values) > 1 else tuple(values[0]), max, lambda a, b: z3.If(a < b, b, a))


def _extreme(values: tuple[Any, ...], plain: Callable[..., Any], choose: Callable[..., Expr]) -> Any:
    known = [v for v in values if not isinstance(v, Unknown)]
    unknown = [v for v in values if isinstance(v, Unknown)]
    if not unknown:
        return plain(known)
    if known:
        best = plain(known)
        if _infinite(best):
            beaten = plain(best, 0) != best  # an infinity at the far end never wins
            if not beaten:
                return best
        else:
            unknown.append(unknown[0]._make(_expr(best)))
    total = unknown[0].e
    for v in unknown[1:]:
        total = choose(total, v.e)
    return unknown[0]._make(total)


def paths(code: Callable[[Path], Any], hypotheses: list[Expr]) -> Iterator[tuple[Path, Any]]:
    """What code gives along each of its paths."""
    waiting: list[list[bool]] = [[]]
    count = 0
    while waiting:
        path = Path(waiting.pop(), hypotheses)
        count += 1
        if count > _MOST_PATHS:
            raise ProofError(f"the code has more than {_MOST_PATHS} paths")
        result = code(path)
        waiting += path.others
        yield path, result
