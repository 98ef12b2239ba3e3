"""Specs: what is legal at a boundary, in the pattern language. A node is legal if some pattern of the spec
admits it.

@spec("kernel")
def kernel_spec(x: Var, r: Index) -> Rules:
    yield "neg", Neg(x) >> legal
    yield "range", HEADS["Range"](r) >> legal, when(some_predicate)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import final

from morok.errors import SpecError
from morok.ir.node import UOp, toposort
from morok.ir.ops import ALU, Ops
from morok.ir.provenance import place
from morok.ir.text import expr
from morok.rewrite.compile import Matcher, key_of
from morok.rewrite.rules import Rule, Rules, collect, when, why
from morok.rewrite.terms import Head


def legal(node: UOp) -> UOp:
    """The right side of a line of a spec: such a node is allowed."""
    return node


_REASON = why("a spec admits nodes and does not change them")


@final
class Spec:
    """A named list of patterns of legal nodes. `a + b` admits what either admits."""

    __slots__ = ("_matcher", "name", "rules")

    def __init__(self, name: str, rules: tuple[Rule, ...]) -> None:
        self.name = name
        self.rules = rules
        self._matcher: Matcher | None = None

    def __add__(self, other: Spec) -> Spec:
        return Spec(f"{self.name} + {other.name}", self.rules + other.rules)

    def named(self, name: str) -> Spec:
        return Spec(name, self.rules)

    def when(self, *conditions: Callable[[UOp], bool]) -> Spec:
        """The same nodes, if they also meet some conditions."""
        rules = tuple(replace(rule, conditions=(*rule.conditions, *conditions)) for rule in self.rules)
        return Spec(self.name, rules)

    def admits(self, node: UOp) -> bool:
        """Whether some line of the spec matches the node."""
        if self._matcher is None:
            self._matcher = Matcher(self.name, self.rules, keep_same=True)
        table = self._matcher.table
        key = key_of(node)
        functions = table.get(key)
        if functions is None:
            functions = self._matcher.candidates(key)
        return any(f(node, None) is not None for f in functions)

    def verify(self, root: UOp, after: str = "") -> None:
        """Raises a SpecError that names the first node which is not legal."""
        for node in toposort(root):
            if not self.admits(node):
                who = f"{after} made" if after else "the graph has"
                what = f"{who} a node that is not legal in a {self.name}"
                raise SpecError(f"{what}: {node!r}, {expr(node, 100)}", place=place(node))


SPECS: dict[str, Spec] = {}


def spec(name: str) -> Callable[[Callable[..., Rules]], Spec]:
    """Makes a spec out of a generator of `name, pattern >> legal, when(…)` lines."""

    def decorate(function: Callable[..., Rules]) -> Spec:
        SPECS[name] = result = Spec(name, tuple(collect(name, function, (_REASON,))))
        return result

    return decorate


# --- the arithmetic part, common to all boundaries


def _same_types(node: UOp) -> bool:
    """Operands of one type; comparisons give booleans; a choice is made by booleans."""
    operands = node.src[1:] if node.op is Ops.WHERE else node.src
    first = operands[0].dtype
    if any(s.dtype is not first for s in operands):
        return False
    if node.op.is_compare:
        return node.dtype.is_bool and node.dtype.lanes == first.lanes
    if node.op is Ops.WHERE and not (node.src[0].dtype.is_bool and node.src[0].dtype.lanes == first.lanes):
        return False
    return node.dtype is first


def _conversion(node: UOp) -> bool:
    return node.dtype.lanes == node.src[0].dtype.lanes


def _bit_conversion(node: UOp) -> bool:
    return node.dtype.itemsize == node.src[0].dtype.itemsize


def _fitting_constant(node: UOp) -> bool:
    if node.dtype.is_bool:
        return node.arg.__class__ is bool
    if node.dtype.is_float:
        return node.arg.__class__ is float
    return node.arg.__class__ is int and (
        node.dtype.min is None or node.dtype.scalar.min <= node.arg <= node.dtype.scalar.max
    )


@spec("arithmetic")
def arithmetic_spec() -> Rules:
    """Constants, conversions and ALU ops: common to all boundaries."""
    yield "constant", Head(Ops.CONST).any() >> legal, when(_fitting_constant)
    yield "cast", Head(Ops.CAST).any() >> legal, when(_conversion)
    yield "bitcast", Head(Ops.BITCAST).any() >> legal, when(_bit_conversion)
    yield "alu", Head(*sorted(ALU - {Ops.CAST, Ops.BITCAST})).any() >> legal, when(_same_types)
