"""Graphs on which a rule with code is tried: its left side on operands that are made up.

First plain variables of every value with one constant after the other, then ever larger operands. A second
round has the widths that programs use, a third has vectors: the same graphs with four lanes, whose
variables differ.
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
from morok.ir.node import UOp, const, make, toposort
from morok.ir.ops import Ops
from morok.proof.expressions import Maker, constant_pool, edge_values
from morok.proof.smt.sorts import Typing, converts, narrow_types, ops_in, single_ops, typings
from morok.proof.verdicts import Effort
from morok.rewrite.rules import Rule
from morok.rewrite.terms import Apply, As, Lit, Term, Var, variables

_FOLDED: tuple[DType, ...] = (
    bool_, int8, uint8, int32, uint32, int64, uint64, index, float16, float32, float64,
)  # fmt: skip
_PROGRAMS: tuple[DType, ...] = (int32, int64, uint64, float32)
_PROGRAMS_CONVERTED: tuple[DType, ...] = (int8, int32, uint32, int64, uint64, index, float32)
_MOST_PAIRS = 400
_CONSTANTS_PER_CASE = 4
_MOST_FOLDED_IN_LANES = 16
_MOST_SWEPT = 40
_ATTEMPTS_PER_CASE = 80
_THRESHOLD_CASES = (
    15  # so many times the cases that are asked for, where numbers lie at the code's thresholds
)
_MOST_EXTRA = 72  # cases of one of the later rounds
_LANES = 4


@final
@dataclass(slots=True)
class Tally:
    """What has been counted so far."""

    fired: int = 0
    open: int = 0  # fired, and the solver gave up
    why: str = ""  # of the last one
    tried: int = 0  # fired, and compared on many values where the solver gave up


@final
@dataclass(frozen=True, slots=True)
class Case:
    """A graph for the rule; a `bonus` may be compared on values where the solver gives up."""

    typing: Typing
    node: UOp
    bonus: bool = False


def candidates(rule: Rule, tally: Tally, effort: Effort) -> Iterator[Case]:
    """Graphs that match the left side, until the rule has fired often enough."""
    patterns = list(single_ops(rule.before))
    if _constants_only(rule):
        for before in patterns:
            for typing in typings(before, _FOLDED):
                if not _beyond_theory(typing):
                    graphs = list(_constant_graphs(rule, typing))[: effort.cases * _CONSTANTS_PER_CASE]
                    yield from (Case(typing, node) for _, node in graphs)
                    some = graphs[:: max(1, len(graphs) // _MOST_FOLDED_IN_LANES)]
                    yield from (Case(typing, in_lanes(node), bonus=True) for _, node in some)
        return
    narrow = [t for before in patterns for t in typings(before, narrow_types(rule))]
    wanted = effort.cases * _THRESHOLD_CASES if rule.is_code or _has_code_condition(rule) else effort.cases
    yield from _round(rule, narrow, tally, max(_MOST_SWEPT, effort.cases), wanted)
    programs = _PROGRAMS_CONVERTED if converts(rule) else _PROGRAMS
    wide = [t for before in patterns for t in typings(before, programs) if _is_wide(t)]
    rng = Maker(rule.name).rng
    rng.shuffle(wide)  # there may be more choices than cases
    few = min(_MOST_EXTRA, max(effort.cases // 4, 2 * len(wide)))
    yield from (Case(c.typing, c.node, bonus=True) for c in _round(rule, wide, tally, few, few))
    rng.shuffle(narrow)
    few = min(_MOST_EXTRA, max(effort.cases // 4, len(narrow)))
    vectors = (Case(c.typing, in_lanes(c.node), bonus=True) for c in _round(rule, narrow, tally, few, few))
    yield from vectors


def _has_code_condition(rule: Rule) -> bool:
    """Whether a condition is code, which has thresholds as a right side has."""
    return any(not isinstance(c, Term) for c in rule.conditions)


def _is_wide(typing: Typing) -> bool:
    return any(t.bits > 16 for t in typing.types.values())


def _round(rule: Rule, choices: Sequence[Typing], tally: Tally, swept: int, wanted: int) -> Iterator[Case]:
    """Plain graphs until the rule has fired so often, then generated ones until it has again."""
    enough = tally.fired + swept
    for typing, node in _in_turn([_plain_graphs(rule, typing) for typing in choices]):
        if tally.fired >= enough:
            break
        yield Case(typing, node)
    enough = tally.fired + wanted
    for attempt in range(wanted * _ATTEMPTS_PER_CASE // max(len(choices), 1)):
        for number, typing in enumerate(choices):
            if tally.fired >= enough:
                return
            maker = Maker(f"{rule.name} {number} {attempt}")
            yield Case(typing, _graph(typing, maker, attempt))


def in_lanes(root: UOp, lanes: int = _LANES) -> UOp:
    """The same graph on vectors, whose variables have a value of their own in every lane."""
    done: dict[UOp, UOp] = {}
    for node in toposort(root):
        dtype = node.dtype.vec(lanes)
        if node.op is Ops.CONST:
            done[node] = const(dtype, node.arg)
        elif node.op is Ops.DEFINE_VAR:
            name, low, high = node.arg
            each = (make(Ops.DEFINE_VAR, node.dtype, (), (f"{name}{i}", low, high)) for i in range(lanes))
            done[node] = make(Ops.VECTORIZE, dtype, tuple(each))
        else:
            done[node] = make(node.op, dtype, tuple(done[s] for s in node.src), node.arg)
    return done[root]


def _constants_only(rule: Rule) -> bool:
    found = variables(rule.before).values()
    return bool(found) and all(v.CONSTANT for v in found)


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
    found = variables(typing.before)
    ends = [v for t in typing.variables.values() if t.is_bounded_int for v in (t.min, t.max, t.bits)]
    maker.ends = ends if len(set(typing.variables.values())) > 1 else []
    maker.focus += ends if maker.rng.random() < 0.5 else []
    for name in sorted(found, key=lambda n: not (found[n].CONSTANT or n.startswith("any"))):
        dtype, var = typing.variables[name], found[name]
        later = name != next(iter(found)) and dtype.is_int  # a divisor, an amount, an exponent
        if var.CONSTANT or (later and maker.rng.random() < (0.6 if depth == 0 else 0.2)):
            given[name] = maker.constant(dtype)
            maker.focus += [given[name].arg]  # what is chosen next lies near to it
            continue
        if given and maker.rng.random() < 0.1:
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
