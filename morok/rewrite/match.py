"""The reference matcher: interprets patterns as they are written. Slow and obvious; the compiled matchers
are tested against it.

A commutative pattern may match in two ways. All combinations of orders are tried, outer patterns first, in
the order of `choices`; the first under which pattern, conditions and right side succeed wins.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

from morok.dtype import DType, bool_
from morok.errors import RuleError
from morok.ir.arithmetic.alu import evaluate
from morok.ir.bounds import vmax, vmin
from morok.ir.node import UOp, const, make
from morok.ir.ops import Ops
from morok.ir.provenance import derive, scope
from morok.rewrite.rules import OF_FIRST_SOURCE, Rule, parameters
from morok.rewrite.terms import ANY, DOMAINS, Apply, As, DTypeOf, Fact, Lit, Term, Var, children

Bindings = dict[str, Any]
Choice = dict[int, bool]  # id of a commutative pattern → sources swapped


def exact(value: Any, literal: Any) -> bool:
    """Whether two equal numbers are the same constant: a boolean is no number, and -0.0 is not 0.0."""
    if (value.__class__ is bool) != (literal.__class__ is bool):
        return False
    if value == 0 and value.__class__ is float:
        return math.copysign(1.0, value) == math.copysign(1.0, literal)
    return True


def commutative_parts(term: Term) -> list[Apply]:
    """The patterns below `term` whose two sources may come in either order, outer ones first."""
    found, stack = [], [term]
    while stack:
        t = stack.pop()
        if isinstance(t, Apply) and t.commutative and t.src is not None and len(t.src) == 2:
            found.append(t)
        stack.extend(reversed(children(t)))
    return found


def choices(term: Term) -> Iterator[Choice]:
    """All combinations of orders."""
    parts = commutative_parts(term)
    for swapped in itertools.product((False, True), repeat=len(parts)):
        yield {id(p): s for p, s in zip(parts, swapped, strict=True)}


def in_domain(var: Var, dtype: DType) -> bool:
    needs, excludes = DOMAINS[var.DOMAIN]
    return (needs is None or getattr(dtype, needs)) and (excludes is None or not getattr(dtype, excludes))


def _bind(var: Var, value: Any, found: Bindings) -> bool:
    if var.name in found:
        old = found[var.name]
        return old is value if isinstance(value, UOp) else bool(old == value)
    found[var.name] = value
    return True


def match_term(term: Term, node: UOp, choice: Choice, found: Bindings) -> bool:
    """Whether the node matches the term under a choice of orders; adds to `found`."""
    if isinstance(term, As):
        return match_term(term.var, node, choice, found) and match_term(term.term, node, choice, found)
    if isinstance(term, Var):
        if not in_domain(term, node.dtype) or (term.CONSTANT and node.op is not Ops.CONST):
            return False
        return _bind(term, node, found)
    if isinstance(term, Lit):
        return node.op is Ops.CONST and node.arg == term.value and exact(node.arg, term.value)
    if not isinstance(term, Apply):
        raise RuleError(f"{term!r} cannot be matched")
    if node.op not in term.ops or not _match_extras(term, node, found):
        return False
    if term.src is None:
        return True
    want = term.src
    if term.variadic:
        want = term.src[:-1]
        if len(node.src) < len(want):
            return False
    elif len(node.src) != len(want):
        return False
    got = node.src
    if choice.get(id(term)):
        got = (got[1], got[0])
    if not all(match_term(t, s, choice, found) for t, s in zip(want, got, strict=False)):
        return False
    if term.variadic:
        rest = term.src[-1]
        assert isinstance(rest, Var)
        return _bind(rest, node.src[len(want) :], found)
    return True


def _match_extras(term: Apply, node: UOp, found: Bindings) -> bool:
    if isinstance(term.arg, Var):
        if not _bind(term.arg, node.arg, found):
            return False
    elif term.arg is not ANY and node.arg != term.arg:
        return False
    if isinstance(term.dtype, DTypeOf):
        other = found.get(term.dtype.var.name)
        if other is None:
            raise RuleError(f"dtype({term.dtype.var}) stands before {term.dtype.var} is bound")
        return node.dtype is other.dtype
    return term.dtype is None or node.dtype is term.dtype


def holds(condition: Any, found: Bindings, node: UOp, ctx: Any) -> bool:
    """A condition's truth for the matched nodes. Numbers in terms are mathematical: nothing wraps."""
    if not isinstance(condition, Term):
        return bool(_call(condition, found, node, ctx))
    return bool(_value(condition, found))


def _value(term: Term, found: Bindings) -> Any:
    if isinstance(term, Lit):
        return term.value
    if isinstance(term, Fact):
        return (vmin if term.kind == "vmin" else vmax)(found[term.var.name])
    if isinstance(term, Var):
        bound = found[term.name]
        return bound.arg if isinstance(bound, UOp) else bound
    assert isinstance(term, Apply) and term.src is not None
    first, *others = term.src
    if term.op is Ops.NOT and isinstance(first, Apply) and first.op is Ops.CMPLT:
        low, high = first.src or ()
        return _value(low, found) >= _value(high, found)  # not the same with the NaN of an infinite bound
    x = _value(first, found)
    if term.op is Ops.AND:
        return x and _value(others[0], found)
    if term.op is Ops.OR:
        return x or _value(others[0], found)
    return CONDITION_OPS[term.op](x, *(_value(t, found) for t in others))


CONDITION_OPS: dict[Any, Any] = {
    Ops.ADD: lambda x, y: x + y, Ops.SUB: lambda x, y: x - y, Ops.MUL: lambda x, y: x * y,
    Ops.FLOORDIV: lambda x, y: x // y, Ops.FLOORMOD: lambda x, y: x % y, Ops.NEG: lambda x: -x,
    Ops.CMPLT: lambda x, y: x < y, Ops.CMPEQ: lambda x, y: x == y, Ops.CMPNE: lambda x, y: x != y,
    Ops.NOT: lambda x: not x, Ops.ABS: abs, Ops.MAX: max, Ops.MIN: min,
}  # fmt: skip


def _call(function: Any, found: Bindings, node: UOp, ctx: Any) -> Any:
    special = {"node": node, "ctx": ctx}
    return function(*(special[p] if p in special else found[p] for p in parameters(function)))


def dtype_source(term: Term) -> Term | None:
    """The subterm whose dtype a built term takes over; None if it holds numbers only. Comparisons are the
    caller's business."""
    if isinstance(term, (Lit, Fact)):
        return None
    if not isinstance(term, Apply):
        return term
    if term.dtype is not None or term.op.is_compare:
        return term
    if not term.op.is_alu and term.op not in OF_FIRST_SOURCE:
        return None  # the op of the match again, with its type
    operands = (term.src or ())[1:] if term.op is Ops.WHERE else term.src or ()
    for s in operands:
        found = dtype_source(s)
        if found is not None:
            return found
    return None


def term_dtype(term: Term, found: Bindings, expected: DType) -> DType:
    """The dtype of what `build` makes of a term where `expected` is wanted."""
    source = dtype_source(term)
    if source is None:
        return expected
    if isinstance(source, As):
        source = source.var
    if isinstance(source, Var):
        return found[source.name].dtype  # type: ignore[no-any-return]
    assert isinstance(source, Apply)
    if isinstance(source.dtype, DTypeOf):
        return found[source.dtype.var.name].dtype  # type: ignore[no-any-return]
    if source.dtype is not None:  # a scalar type stands for as many lanes as are wanted
        return source.dtype.vec(expected.lanes) if source.dtype.lanes == 1 else source.dtype
    lanes = _operand_dtype(source, found, expected).lanes
    return bool_.vec(lanes)


def _operand_dtype(term: Apply, found: Bindings, expected: DType) -> DType:
    """The dtype that the sources of a comparison share."""
    for s in term.src or ():
        if dtype_source(s) is not None:
            return term_dtype(s, found, expected)
    return expected


def is_constant_term(term: Term) -> bool:
    """Built from constants and numbers only, so its value is known when the rule fires."""
    if isinstance(term, Var):
        return term.CONSTANT
    if isinstance(term, Apply):
        foldable = term.op.is_alu and term.op is not Ops.CAST and term.op is not Ops.BITCAST
        return foldable and term.src is not None and all(map(is_constant_term, term.src))
    return isinstance(term, (Lit, Fact))


def build(term: Term, found: Bindings, expected: DType) -> UOp:
    """The node a template stands for. Parts that consist of constants are folded at once."""
    if isinstance(term, As):
        term = term.var
    if isinstance(term, Var):
        return found[term.name]  # type: ignore[no-any-return]
    if isinstance(term, Lit):
        return const(expected, term.value)
    if isinstance(term, Fact):
        return const(expected, _value(term, found))
    assert isinstance(term, Apply)
    dtype = term_dtype(term, found, expected)
    if term.op is Ops.WHERE:
        assert term.src is not None
        wanted = [bool_.vec(dtype.lanes), dtype, dtype]
    elif term.op.is_compare:
        wanted = [_operand_dtype(term, found, expected)] * 2
    else:
        wanted = [dtype] * len(term.src or ())
    src: list[UOp] = []
    for s, w in zip(term.src or (), wanted, strict=True):
        if isinstance(s, Var) and s.MANY:
            src.extend(found[s.name])
        else:
            src.append(build(s, found, w))
    if is_constant_term(term):
        return const(dtype, evaluate(term.op, src[-1].dtype.scalar, *(s.arg for s in src)))
    arg = found[term.arg.name] if isinstance(term.arg, Var) else None if term.arg is ANY else term.arg
    return make(term.op, dtype, tuple(src), arg)


def apply_rule(rule: Rule, node: UOp, ctx: Any = None) -> UOp | None:
    """What the rule makes of the node, or None if it does not apply."""
    for choice in choices(rule.before):
        found: Bindings = {}
        if not match_term(rule.before, node, choice, found):
            continue
        if not all(holds(c, found, node, ctx) for c in rule.conditions):
            continue
        with scope(derive(node, rule)):
            if isinstance(rule.after, Term):
                result: UOp | None = build(rule.after, found, node.dtype)
            else:
                result = _call(rule.after, found, node, ctx)
                if result is not None and not isinstance(result, UOp):
                    raise RuleError(f"{rule.name} gave {result!r}, which is not a node", place=rule.place)
        if result is not None and result is not node:
            return result
    return None
