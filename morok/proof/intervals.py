"""Interval arithmetic (`morok/ir/bounds.py`), proved op by op: no value lies outside of what is said.

Two ways. All intervals between a few dozen ends, on types so small that every value is tried; there most
ops must also be as narrow as an interval can be. And for all integers: the code itself is run on unknown
ends (`paths.py`), and along each of its paths Z3 shows that the value stays inside; integers of a width may
have wrapped around, so all that is known about theirs is that they fit the type.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import numpy as np

from morok.dtype import DType, bool_, float32, index, int8, int32, int64, uint8
from morok.errors import ProofError
from morok.ir import bounds
from morok.ir.arithmetic import intervals
from morok.ir.arithmetic.alu import defined, evaluate, evaluate_array
from morok.ir.ops import Op, Ops
from morok.proof.paths import Path, Unknown, greatest, least, paths
from morok.proof.smt import solver
from morok.proof.smt.meaning import INDICES
from morok.proof.smt.solver import Problem, z3
from morok.proof.smt.translate import Translator
from morok.proof.verdicts import PROVED, REFUTED, UNKNOWN, RuleReport, Verdict

PLACE = "morok/ir/bounds.py"
_WINDOW = 20  # indices are tried from minus this to this
_STEPS = 100_000  # of the solver, per path
_RAISED = (ArithmeticError, ValueError, TypeError, AttributeError, LookupError, AssertionError)
_TIGHT = frozenset((
    Ops.ADD, Ops.SUB, Ops.MUL, Ops.NEG, Ops.NOT, Ops.ABS, Ops.MAX, Ops.MIN, Ops.FLOORDIV, Ops.CDIV, Ops.SHL,
    Ops.SHR, Ops.TRUNC, Ops.FLOOR, Ops.CEIL, Ops.RINT, Ops.CMPLT, Ops.CMPEQ, Ops.CMPNE,
))  # fmt: skip
_DIVIDES = frozenset((Ops.FLOORDIV, Ops.FLOORMOD, Ops.CDIV, Ops.CMOD))
_DIVISORS = (1, 2, 7, -1, -3)  # by an unknown number it is too hard for Z3
# Python integers are asked for here, so these are only tried.
_BY_BITS = frozenset((
    Ops.AND, Ops.OR, Ops.XOR, Ops.SHL, Ops.SHR, Ops.MULHI, Ops.DOT4, Ops.POPCOUNT, Ops.POW, Ops.THREEFRY,
    Ops.CAST, Ops.BITCAST,
))  # fmt: skip


@final
@dataclass(frozen=True, slots=True)
class Part:
    """What a rule of interval arithmetic looks at in a node."""

    dtype: DType
    bounds_: Any = None
    op: Any = None
    arg: Any = None
    src: tuple[Any, ...] = ()


@final
@dataclass(frozen=True, slots=True)
class Law:
    """One op on one type."""

    name: str
    dtype: DType
    prove: Callable[..., Verdict]


def _table(dtype: DType) -> dict[Op, bounds.Rule]:
    return bounds.INTS if dtype.is_int else bounds.BOOLS if dtype.is_bool else bounds.OTHERS


def laws() -> list[Law]:
    """Every op that has a rule, on every kind of type on which it has one."""
    found = []
    for dtype in (int8, uint8, index, bool_, float32):
        for op in _table(dtype):
            name = f"ir.bounds.{op.name.lower()}"
            if op in _OTHER_NODES:
                found.append(Law(name, dtype, partial(_tried, op, dtype)))
            elif op.is_compare:
                types = [of for of in (int8, uint8, index, bool_, float32) if defined(op, of)]
                found += [Law(name, of, partial(_arithmetic, op, of, bool_)) for of in types]
            elif op is Ops.CAST or op is Ops.BITCAST:
                found.append(Law(name, dtype, partial(_conversion, op, dtype)))
            elif op.is_alu and defined(op, dtype):
                found.append(Law(name, dtype, partial(_arithmetic, op, dtype, dtype)))
    return found


def prove_intervals(chosen: Iterable[Law], quick: bool = False) -> Iterator[RuleReport]:
    """One line per op, over all the types that were asked for; `quick` is on small types only."""
    by_name: dict[str, list[Law]] = {}
    for law in chosen:
        by_name.setdefault(law.name, []).append(law)
    for name, same in by_name.items():
        start = time.perf_counter()
        solver.fresh()
        verdicts = [law.prove(quick=quick) for law in same]
        bad = next((v for v in verdicts if v.status != PROVED), None)
        status, note = (PROVED, "") if bad is None else (bad.status, bad.note)
        whole = ", ".join(str(law.dtype) for law, v in zip(same, verdicts, strict=True) if v.note)
        note = note or (f"for all values: {whole}" if whole else "on small types")
        theory = " ".join(dict.fromkeys(str(law.dtype) for law in same))
        seconds = round(time.perf_counter() - start, 3)
        cases = sum(v.cases for v in verdicts)
        yield RuleReport(name, PLACE, "exact", theory, status, seconds, note, cases)


# --- all intervals between some ends, all values


def _ends(dtype: DType) -> list[Any]:
    if dtype.is_bool:
        return [False, True]
    if dtype.is_float:
        return [-math.inf, math.inf]
    if dtype.is_index:
        return [-math.inf, -8, -4, -3, -1, 0, 1, 2, 3, 7, 8, math.inf]
    if dtype.is_unsigned:
        return [0, 1, 2, 3, 7, 8, 128, 254, 255]
    return [-128, -127, -8, -3, -1, 0, 1, 2, 7, 8, 127]


def _all_intervals(dtype: DType) -> list[tuple[Any, Any]]:
    ends = _ends(dtype)
    found = [(a, b) for a, b in itertools.product(ends, ends) if a <= b]
    bad = {(-math.inf, -math.inf), (math.inf, math.inf)}
    return [i for i in found if i not in bad] + ([(1.0, 1.0), (0.0, 0.0)] if dtype.is_float else [])


def _values(dtype: DType) -> Any:
    if dtype.is_bool:
        return np.array([False, True])
    if dtype.is_float:
        return np.array([-math.inf, -1.5, -0.0, 0.0, 1.0, 2.0, math.inf, math.nan], np.float32)
    if dtype.is_index:
        return np.arange(-_WINDOW, _WINDOW + 1)
    return np.arange(dtype.min, dtype.max + 1).astype(dtype.numpy)


def _slice(interval: tuple[Any, Any], dtype: DType) -> Any:
    """Which of the values lie in the interval; NaN lies in every one that is not a single number."""
    low, high = interval
    if dtype.is_float:
        with np.errstate(invalid="ignore"):
            inside = (_values(dtype) >= low) & (_values(dtype) <= high)
        return np.flatnonzero(inside | (np.isnan(_values(dtype)) & (low != high)))
    first = 0 if dtype.is_bool else -_WINDOW if dtype.is_index else dtype.min
    return slice(int(max(low, first)) - first, int(min(high, first + len(_values(dtype)) - 1)) - first + 1)


def _arithmetic(op: Op, of: DType, to: DType, quick: bool = False) -> Verdict:
    """An op on operands of one type."""
    tried = _all_values(op, of, to)
    if quick or tried.status != PROVED or of.is_float:
        return tried
    if of.is_bool:
        return Verdict(PROVED, "every value", cases=tried.cases)
    if op in _BY_BITS or op.arity == 3:  # a product and a sum, each of which has its own proof
        return tried
    shown = _all_integers(op, of, to)
    return tried if shown.status == UNKNOWN else Verdict(shown.status, shown.note, cases=tried.cases)


def _all_values(op: Op, of: DType, to: DType) -> Verdict:
    rule = _table(to)[op]
    grids = np.meshgrid(*[_values(of)] * op.arity, indexing="ij", sparse=True)
    with np.errstate(all="ignore"):
        values = np.asarray(evaluate_array(op, of, *grids))
    values = np.broadcast_to(values, (len(_values(of)),) * op.arity)
    choices = _all_intervals(of)
    if op.arity == 3:
        choices = choices[::5]
    slices = [(i, _slice(i, of)) for i in choices]
    count = 0
    for operands in itertools.product(slices, repeat=op.arity):
        src = tuple(Part(of, i) for i, _ in operands)
        found = _outside(rule, Part(to, op=op, src=src), values, [s for _, s in operands], op in _TIGHT)
        if found:
            return Verdict(REFUTED, f"{op.name} of {', '.join(str(i) for i, _ in operands)} ({of}): {found}")
        count += 1
    if op.is_compare and not of.is_float:  # a number with itself
        same = {Ops.CMPLT: (False, False), Ops.CMPEQ: (True, True), Ops.CMPNE: (False, False)}[op]
        for interval in choices:
            x = Part(of, interval)
            if bounds.inside(rule, Part(to, op=op, src=(x, x))) != same:  # type: ignore[arg-type]
                return Verdict(REFUTED, f"{op.name} of a number in {interval} with itself")
    return Verdict(PROVED, cases=count)


def _outside(rule: Any, node: Part, values: Any, where: list[Any], tight: bool) -> str:
    """What is wrong with an interval: a value that it leaves out, or room that nothing needs."""
    try:
        low, high = bounds.inside(rule, node)  # type: ignore[arg-type]
    except _RAISED as error:
        return f"{type(error).__name__}: {error}"
    part = values[np.ix_(*where)] if where and not isinstance(where[0], slice) else values[tuple(where)]
    if part.size == 0:
        return ""
    least_value, most = part.min().item(), part.max().item()
    if not (low <= least_value and most <= high):
        return f"[{low}, {high}] leaves out {least_value if least_value < low else most}"
    whole = bounds.range_of(node.dtype)
    if tight and (low, high) != whole and not _as_narrow(low, high, least_value, most):
        return f"[{low}, {high}] is wider than [{least_value}, {most}]"
    return ""


def _as_narrow(low: Any, high: Any, least_value: Any, most: Any) -> bool:
    return bool((math.isinf(low) or low == least_value) and (math.isinf(high) or high == most))


def _conversion(op: Op, to: DType, quick: bool = False) -> Verdict:
    """CAST and BITCAST to a type, from every other one."""
    rule, count = _table(to)[op], 0
    sources = (bool_, int8, uint8, index, float32)
    for of in sources:
        if (
            not defined(op, of)
            or (op is Ops.BITCAST and of.bits != to.bits)
            or (op is Ops.BITCAST and of is to)
        ):
            continue
        values = np.array([evaluate(op, of, v.item(), to=to) for v in _values(of)])
        tight = op is Ops.CAST and not of.is_float
        for interval in _all_intervals(of):
            node = Part(to, op=op, src=(Part(of, interval),))
            found = _outside(rule, node, values, [_slice(interval, of)], tight)
            if found:
                return Verdict(REFUTED, f"{op.name} of {interval} from {of} to {to}: {found}")
            count += 1
    return Verdict(PROVED, cases=count)


# --- nodes that are not arithmetic: a node and the values that it can have


def _tried(op: Op, dtype: DType, quick: bool = False) -> Verdict:
    rule, count = _table(dtype)[op], 0
    for node, values in _OTHER_NODES[op](op, dtype):
        try:
            low, high = bounds.inside(rule, node)
        except _RAISED as error:
            return Verdict(REFUTED, f"{op.name} of {[s.bounds_ for s in node.src]}: {error}")
        wrong = [v for v in values if v == v and not low <= v <= high]
        unknown = any(v != v for v in values) and low == high
        if wrong or unknown:
            what = wrong[0] if wrong else "NaN"
            return Verdict(
                REFUTED, f"{op.name} of {[s.bounds_ for s in node.src]}: {low}, {high}, not {what}"
            )
        ends = [v for v in values if v == v]
        if (
            ends
            and (low, high) != bounds.range_of(node.dtype)
            and not _as_narrow(low, high, min(ends), max(ends))
        ):
            return Verdict(
                REFUTED, f"{op.name} of {[s.bounds_ for s in node.src]}: {low}, {high} is too wide"
            )
        count += 1
    return Verdict(PROVED, cases=count)


def _some(dtype: DType) -> list[tuple[Any, Any]]:
    ends = (
        [False, True]
        if dtype.is_bool
        else [0, 1, 2, 7, 100]
        if dtype.is_unsigned
        else [-128, -3, -1, 0, 1, 2, 100]
    )
    if dtype.is_float:
        return [(1.0, 1.0), (-math.inf, math.inf)]
    return [(a, b) for a, b in itertools.product(ends, ends) if a <= b]


def _held(interval: tuple[Any, Any]) -> list[Any]:
    low, high = interval
    if isinstance(low, float):
        return [low, high]
    return list(range(low, high + 1)) if low is not False and low is not True else sorted({low, high})


def _passed_on(op: Op, dtype: DType, at: int = 0) -> Iterator[tuple[Any, list[Any]]]:
    for i in _some(dtype):
        other = Part(dtype, bounds.range_of(dtype))
        yield Part(dtype, op=op, src=(Part(dtype, i),) if at == 0 else (other, Part(dtype, i))), _held(i)


def _constants(op: Op, dtype: DType) -> Iterator[tuple[Any, list[Any]]]:
    values = (
        [True, False]
        if dtype.is_bool
        else [0.0, -1.5, math.inf, math.nan]
        if dtype.is_float
        else [0, 1, 5, 127]
    )
    for v in values:
        yield Part(dtype, op=op, arg=v if op is Ops.CONST else (v, v)), [v]
    if op is Ops.VCONST:
        for pair in itertools.permutations(values, 2):
            yield Part(dtype, op=op, arg=pair), list(pair)


def _variables(op: Op, dtype: DType) -> Iterator[tuple[Any, list[Any]]]:
    for i in _some(dtype):
        yield Part(dtype, op=op, arg=("v", *i)), _held(i)


def _bound(op: Op, dtype: DType) -> Iterator[tuple[Any, list[Any]]]:
    for a, b in itertools.product(_some(dtype), repeat=2):
        values = [v for v in _held(a) if b[0] <= v <= b[1]]
        yield Part(dtype, op=op, src=(Part(dtype, a), Part(dtype, b))), values or _held(a)


def _counted(op: Op, dtype: DType) -> Iterator[tuple[Any, list[Any]]]:
    if not dtype.is_int:
        return
    for low, high in [(a, b) for a, b in _some(int8) if a >= 0]:
        end = Part(dtype, (low, high))
        src, arg = ((Part(dtype, (9, 9)), end), 1) if op is Ops.IOTA else ((end,), (0,))
        yield Part(dtype, op=op, src=src, arg=arg), list(range(max(high, 1)))


def _chosen(op: Op, dtype: DType) -> Iterator[tuple[Any, list[Any]]]:
    for c in ((False, False), (False, True), (True, True)):
        for a, b in itertools.product(_some(dtype), repeat=2):
            values = [*(_held(a) if c[1] else []), *(_held(b) if not c[0] else [])]
            yield Part(dtype, op=op, src=(Part(bool_, c), Part(dtype, a), Part(dtype, b))), values


def _joined(op: Op, dtype: DType) -> Iterator[tuple[Any, list[Any]]]:
    for a, b in itertools.product(_some(dtype), repeat=2):
        yield Part(dtype.vec(2), op=op, src=(Part(dtype, a), Part(dtype, b))), [*_held(a), *_held(b)]


def _lanes(op: Op, dtype: DType) -> Iterator[tuple[Any, list[Any]]]:
    wide, some = dtype.vec(2), _some(dtype)
    for a, b in itertools.product(some, repeat=2):
        source = Part(
            wide, (min(a[0], b[0]), max(a[1], b[1])), Ops.VECTORIZE, None, (Part(dtype, a), Part(dtype, b))
        )
        yield Part(dtype, op=op, src=(source,), arg=(1,)), _held(b)
        yield Part(dtype, op=op, src=(source,), arg=(0,)), _held(a)
        yield Part(wide, op=op, src=(source,), arg=(1, 0)), [*_held(a), *_held(b)]
    for a in some:
        yield Part(dtype, op=op, src=(Part(wide, a, Ops.ADD),), arg=(0,)), _held(a)
        values = (a[1], a[0])
        yield Part(dtype, op=op, src=(Part(wide, a, Ops.VCONST, values),), arg=(0,)), [a[1]]


def _reduced(op: Op, dtype: DType) -> Iterator[tuple[Any, list[Any]]]:
    for lanes, by in itertools.product((2, 3), (Ops.ADD, Ops.MAX, Ops.MIN, Ops.MUL)):
        for low, high in _some(dtype):
            held = [*_held((low, high))[:: max(1, (int(high) - int(low)) // 3)], high]
            values = held
            for _ in range(lanes - 1):
                values = list({evaluate(by, dtype, x, y) for x in values for y in held})
            yield Part(dtype, op=op, arg=by, src=(Part(dtype.vec(lanes), (low, high)),)), values


def _words_of_bytes(op: Op, dtype: DType) -> Iterator[tuple[Any, list[Any]]]:
    words = (-1, 0x01020304, 0x7F7F7F7F, -0x7F7F7F80)  # among them the largest products and the smallest
    if dtype is int8:  # of words of 32 bits alone, so once
        values = [evaluate(op, int32, a, b) for a, b in itertools.product(words, repeat=2)]
        yield Part(int32, op=op, src=(Part(int32, (int32.min, int32.max)),) * 2), values


def _padded(op: Op, dtype: DType) -> Iterator[tuple[Any, list[Any]]]:
    for i in _some(dtype):
        yield Part(dtype, op=op, src=(Part(dtype, i),)), [*_held(i), False if dtype.is_bool else 0]


_OTHER_NODES: dict[Op, Callable[[Op, DType], Iterator[tuple[Any, list[Any]]]]] = {
    Ops.CONST: _constants,
    Ops.VCONST: _constants,
    Ops.DEFINE_VAR: _variables,
    Ops.BIND: _bound,
    **dict.fromkeys((Ops.RANGE, Ops.SPECIAL, Ops.IOTA), _counted),
    Ops.WHERE: _chosen,
    **dict.fromkeys((Ops.VECTORIZE, Ops.CAT), _joined),
    Ops.GEP: _lanes,
    Ops.VREDUCE: _reduced,
    Ops.PAD: _padded,
    Ops.DOT4: _words_of_bytes,
    Ops.ASSIGN: partial(_passed_on, at=1),
    **dict.fromkeys(
        (op for op, rule in bounds.INTS.items() if rule is bounds.INTS[Ops.RESHAPE] and not op.is_alu),
        _passed_on,
    ),
}

# --- all integers


@contextlib.contextmanager
def _choices_inside() -> Iterator[None]:
    """Minima and maxima of the code under proof, on unknown numbers."""
    modules: tuple[Any, ...] = (bounds, intervals)
    for module in modules:
        module.min, module.max = least, greatest
    try:
        yield
    finally:
        for module in modules:
            del module.min, module.max


def _all_integers(op: Op, of: DType, to: DType) -> Verdict:
    """Z3 along every path of the code; for integers of a width at their real ones, 64 bits too."""
    if op is Ops.MUL and of is int8:
        return Verdict(UNKNOWN)  # as for indices, and whatever leaves the type is not believed
    wide = int64 if of is int8 else of
    rule = _table(to)[op]
    endless = [(False,) * 2 * op.arity]
    if of.is_index:
        endless = list(itertools.product((False, True), repeat=2 * op.arity))
    if op in _DIVIDES:
        endless = [i for i in endless if not any(i[2:])]
    by = [d for d in _DIVISORS if d > 0 or not of.is_unsigned] if op in _DIVIDES else [None]
    try:
        for infinite, divisor in itertools.product(endless, by):
            verdict = _along_paths(op, rule, wide, wide if to is of else to, infinite, divisor)
            if verdict.status != PROVED:
                return verdict
    except (ProofError, *_RAISED) as error:
        return Verdict(UNKNOWN, str(error))
    return Verdict(PROVED, "all integers")


def _along_paths(
    op: Op, rule: Any, of: DType, to: DType, infinite: tuple[bool, ...], divisor: int | None
) -> Verdict:
    xs = [z3.Int(f"x{i}") for i in range(op.arity)]
    ends = [(z3.Int(f"low{i}"), z3.Int(f"high{i}")) for i in range(op.arity)]
    known = [] if divisor is None else [xs[1] == divisor]
    for i, (x, (low, high)) in enumerate(zip(xs, ends, strict=True)):
        known += [] if infinite[2 * i] else [low <= x]
        known += [] if infinite[2 * i + 1] else [x <= high]
        if not any(infinite[2 * i : 2 * i + 2]):
            known.append(low <= high)
        if of.is_bounded_int:
            known += [of.min <= low, high <= of.max]

    def run(path: Path) -> Any:
        src = []
        for i, (low, high) in enumerate(ends):
            a = -math.inf if infinite[2 * i] else Unknown(low, path)
            b = math.inf if infinite[2 * i + 1] else Unknown(high, path)
            src.append(Part(of, (a, b)))
        if divisor is not None:
            src[1] = Part(of, (divisor, divisor))
        with _choices_inside():
            return bounds.inside(rule, Part(to, op=op, src=tuple(src)))  # type: ignore[arg-type]

    for path, (low, high) in paths(run, known):
        operands = xs if divisor is None else [xs[0], z3.IntVal(divisor)]
        goal, facts, divisions = _goal(op, of, operands, low, high)
        problem = Problem([*known, *path.conditions, *facts], goal, [*path.divisions, *divisions])
        outcome = solver.decide(problem, _STEPS)
        if outcome.status == solver.REFUTED:
            named = ", ".join(
                f"{x} = {outcome.model.eval(x, model_completion=True)}" for x in (*xs, *sum(ends, ()))
            )
            return Verdict(REFUTED, f"{op.name} of {of}: {named}")
        if outcome.status == solver.UNKNOWN:
            return Verdict(UNKNOWN, "out of steps")
    return Verdict(PROVED)


def _goal(op: Op, of: DType, xs: list[Any], low: Any, high: Any) -> tuple[Any, list[Any], list[Any]]:
    """The value lies inside; what is known about it; the divisions that it needs."""
    if op.is_compare:
        value = {Ops.CMPLT: xs[0] < xs[-1], Ops.CMPEQ: xs[0] == xs[-1], Ops.CMPNE: xs[0] != xs[-1]}[op]
        return z3.And(z3.Implies(bool(low), value), z3.Implies(value, bool(high))), [], []
    t = Translator()
    exact = of.max - xs[0] if op is Ops.NOT and of.is_unsigned else INDICES[op](t, *xs)
    value, facts = exact, list(t.assumed)
    if of.is_bounded_int:
        value = z3.Int("value")
        fits = z3.And(of.min <= exact, exact <= of.max)
        facts += [of.min <= value, value <= of.max, z3.Implies(fits, value == exact)]
    ends = [] if _endless(low) else [_as_expr(low) <= value]
    ends += [] if _endless(high) else [value <= _as_expr(high)]
    return z3.And(ends), facts, t.divisions


def _endless(x: Any) -> bool:
    return isinstance(x, float) and math.isinf(x)


def _as_expr(x: Any) -> Any:
    return x.e if isinstance(x, Unknown) else z3.IntVal(int(x))
