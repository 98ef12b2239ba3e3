"""Compiles rule sets to Python: one short function per rule, found through the ops of a node and of its
sources.

Each alternative order of a commutative pattern becomes a chain of tests, cheapest first. The result is
source that one can read (`morok rules --source NAME`); `match.py` says what it must mean.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Callable, Collection
from typing import Any, final

from morok.dtype import bool_
from morok.errors import RuleError
from morok.ir.arithmetic.alu import evaluate
from morok.ir.bounds import vmax, vmin
from morok.ir.node import UOp, const, make
from morok.ir.ops import Op, Ops
from morok.ir.provenance import here_origin, set_origin
from morok.rewrite.match import Choice, choices, dtype_source, exact, is_constant_term
from morok.rewrite.rules import Rule, parameters
from morok.rewrite.terms import ANY, DOMAINS, Apply, As, DTypeOf, Fact, Lit, Term, Var

RuleFunction = Callable[[UOp, Any], "tuple[UOp, Rule] | None"]
_PYTHON = {
    Ops.ADD: "({} + {})", Ops.SUB: "({} - {})", Ops.MUL: "({} * {})", Ops.FLOORDIV: "({} // {})",
    Ops.FLOORMOD: "({} % {})", Ops.NEG: "(-{})", Ops.CMPLT: "({} < {})", Ops.CMPEQ: "({} == {})",
    Ops.CMPNE: "({} != {})", Ops.NOT: "(not {})", Ops.AND: "({} and {})", Ops.OR: "({} or {})",
    Ops.ABS: "abs({})", Ops.MAX: "max({}, {})", Ops.MIN: "min({}, {})",
}  # fmt: skip


def checked(result: Any, rule: Rule) -> UOp:
    """What code on a right side gave, if it is a node."""
    if result.__class__ is not UOp:
        raise RuleError(f"{rule.name} gave {result!r}, which is not a node", place=rule.place)
    return result


def boolean(dtype: Any) -> Any:
    """The type of a comparison of `dtype`s."""
    return bool_ if dtype.lanes == 1 else bool_.vec(dtype.lanes)


@final
class _Names:
    """What the generated source refers to, by name. Grows as rules are compiled."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {
            "make": make, "const": const, "evaluate": evaluate, "vmin": vmin, "vmax": vmax, "exact": exact,
            "set_origin": set_origin, "boolean": boolean, "CONST": Ops.CONST, "checked": checked,
            "inf": math.inf, "nan": math.nan,
        }  # fmt: skip
        self._counter = itertools.count()

    def op(self, op: Op) -> str:
        self.values[op.name] = op
        return op.name

    def add(self, value: Any, prefix: str) -> str:
        """A fresh name for a value; functions keep theirs, with a prefix that no local variable has."""
        name = "code_" + getattr(value, "__name__", "") if prefix == "f" else ""
        if not name.isidentifier() or (name in self.values and self.values[name] is not value):
            name = f"{prefix}{next(self._counter)}"
        self.values[name] = value
        return name


@final
class _Writer:
    """Source for one alternative of one rule: tests and assignments, then the result."""

    def __init__(self, rule: Rule, names: _Names, choice: Choice, keep_same: bool) -> None:
        self.rule = rule
        self.keep_same = keep_same
        self.names = names
        self.choice = choice
        self.bound: dict[str, str] = {}  # variable → expression
        self.steps: list[tuple[str, str]] = []  # ("test" | "set", source)
        self.late: list[str] = []  # tests that wait until everything is bound

    def test(self, source: str) -> None:
        self.steps.append(("test", source))

    def pattern(self) -> None:
        """Breadth first, so that the ops of the direct sources are looked at before anything deeper."""
        queue: deque[tuple[Term, str]] = deque([(self.rule.before, "n")])
        while queue:
            term, expr = queue.popleft()
            if isinstance(term, As):
                self.variable(term.var, expr)
                queue.appendleft((term.term, expr))
            elif isinstance(term, Var):
                self.variable(term, expr)
            elif isinstance(term, Lit):
                self.test(f"{expr}.op is CONST")
                self.test(f"{expr}.arg == {term.value!r}")
                self.test(f"exact({expr}.arg, {term.value!r})")
            elif isinstance(term, Apply):
                queue.extend(self.apply(term, expr))
            else:
                raise RuleError(f"{term!r} cannot be matched", place=self.rule.place)

    def variable(self, var: Var, expr: str) -> None:
        if var.name in self.bound:
            self.test(f"{expr} is {self.bound[var.name]}")
            return
        self.bound[var.name] = expr
        if var.CONSTANT:
            self.test(f"{expr}.op is CONST")
        needs, excludes = DOMAINS[var.DOMAIN]
        if needs:
            self.test(f"{expr}.dtype.{needs}")
        if excludes:
            self.test(f"not {expr}.dtype.{excludes}")

    def apply(self, term: Apply, expr: str) -> list[tuple[Term, str]]:
        root = expr == "n"
        if not root:
            if len(term.ops) == 1:
                self.test(f"{expr}.op is {self.names.op(term.op)}")
            else:
                self.test(f"{expr}.op in {self.names.add(frozenset(term.ops), 'ops')}")
        if isinstance(term.arg, Var):
            if term.arg.name in self.bound:
                self.test(f"{expr}.arg == {self.bound[term.arg.name]}")
            self.bound.setdefault(term.arg.name, f"{expr}.arg")
        elif term.arg is not ANY:
            self.test(f"{expr}.arg == {self.names.add(term.arg, 'arg')}")
        if isinstance(term.dtype, DTypeOf):
            self.late.append(f"{expr}.dtype is {{{term.dtype.var.name}}}.dtype")
        elif term.dtype is not None:
            self.test(f"{expr}.dtype is {self.names.add(term.dtype, 'dtype')}")
        if term.src is None:
            return []
        return self.sources(term, expr)

    def sources(self, term: Apply, expr: str) -> list[tuple[Term, str]]:
        want = term.src or ()
        fixed = want[:-1] if term.variadic else want
        prefix = "s" if expr == "n" else expr
        parts = [f"{prefix}{i}" for i in range(len(fixed))]
        known = all(op.arity == len(want) for op in term.ops)
        if term.variadic:
            if fixed:
                self.test(f"len({expr}.src) >= {len(fixed)}")
            rest = want[-1]
            assert isinstance(rest, Var)
            taken = f"{expr}.src[{len(fixed)}:]" if fixed else f"{expr}.src"
            if rest.name in self.bound:
                self.test(f"{taken} == {self.bound[rest.name]}")
            self.bound.setdefault(rest.name, taken)
            for i, part in enumerate(parts):
                self.steps.append(("set", f"{part} = {expr}.src[{i}]"))
        else:
            if not known:
                self.test(f"len({expr}.src) == {len(fixed)}")
            if len(parts) == 1:
                self.steps.append(("set", f"{parts[0]} = {expr}.src[0]"))
            elif parts:
                self.steps.append(("set", f"{', '.join(parts)} = {expr}.src"))
        if self.choice.get(id(term)):
            parts = [parts[1], parts[0]]
        return list(zip(fixed, parts, strict=True))

    def conditions(self) -> None:
        for test in self.late:
            self.test(test.format(**self.bound))
        for condition in self.rule.conditions:
            if isinstance(condition, Term):
                self.test(self.value(condition))
            else:
                self.test(self.call(condition))

    def value(self, term: Term) -> str:
        if isinstance(term, Lit):
            return repr(term.value)
        if isinstance(term, Fact):
            return f"{term.kind}({self.bound[term.var.name]})"
        if isinstance(term, Var):
            expr = self.bound[term.name]
            return f"{expr}.arg" if term.CONSTANT else expr
        assert isinstance(term, Apply) and term.src is not None
        if term.op is Ops.NOT and isinstance(term.src[0], Apply) and term.src[0].op is Ops.CMPLT:
            less = term.src[0].src or ()
            return f"({self.value(less[0])} >= {self.value(less[1])})"
        if term.op not in _PYTHON:
            raise RuleError(f"{term.op.name} cannot stand in a condition", place=self.rule.place)
        return _PYTHON[term.op].format(*map(self.value, term.src))

    def call(self, function: Any) -> str:
        special = {"node": "n", "ctx": "ctx"}
        given = (special[p] if p in special else self.bound[p] for p in parameters(function))
        return f"{self.names.add(function, 'f')}({', '.join(given)})"

    def result(self) -> str:
        after = self.rule.after
        return self.build(after, "n.dtype") if isinstance(after, Term) else self.call(after)

    def dtype(self, term: Term, expected: str) -> str:
        source = dtype_source(term)
        if source is None:
            return expected
        if isinstance(source, As):
            source = source.var
        if isinstance(source, Var):
            return f"{self.bound[source.name]}.dtype"
        assert isinstance(source, Apply)
        if isinstance(source.dtype, DTypeOf):
            return f"{self.bound[source.dtype.var.name]}.dtype"
        if source.dtype is not None:
            name = self.names.add(source.dtype, "dtype")
            return f"{name}.vec({expected}.lanes)" if source.dtype.lanes == 1 else name
        return f"boolean({self.operand_dtype(source, expected)})"

    def operand_dtype(self, term: Apply, expected: str) -> str:
        for s in term.src or ():
            if dtype_source(s) is not None:
                return self.dtype(s, expected)
        return expected

    def build(self, term: Term, expected: str) -> str:
        if isinstance(term, As):
            term = term.var
        if isinstance(term, Var):
            return self.bound[term.name]
        if isinstance(term, Lit):
            return f"const({expected}, {term.value!r})"
        if isinstance(term, Fact):
            return f"const({expected}, {self.value(term)})"
        assert isinstance(term, Apply)
        dtype = self.dtype(term, expected)
        src = term.src or ()
        if term.op is Ops.WHERE:
            wanted = [f"boolean({dtype})", dtype, dtype]
        elif term.op.is_compare:
            wanted = [self.operand_dtype(term, expected)] * 2
        else:
            wanted = [dtype] * len(src)
        op = self.names.op(term.op)
        if is_constant_term(term):
            values = ", ".join(self.build(s, w) + ".arg" for s, w in zip(src, wanted, strict=True))
            return f"const({dtype}, evaluate({op}, {wanted[-1]}.scalar, {values}))"
        parts = []
        for s, w in zip(src, wanted, strict=True):
            many = isinstance(s, Var) and s.MANY
            parts.append(("*" if many else "") + self.build(s, w))
        listed = f"({', '.join(parts)},)" if len(parts) == 1 else f"({', '.join(parts)})"
        arg = ""
        if isinstance(term.arg, Var):
            arg = f", {self.bound[term.arg.name]}"
        elif term.arg is not ANY and term.arg is not None:
            arg = f", {self.names.add(term.arg, 'arg')}"
        return f"make({op}, {dtype}, {listed}{arg})"

    def lines(self, label: str) -> list[str]:
        """The alternative as nested ifs."""
        self.pattern()
        self.conditions()
        out: list[str] = []
        depth, tests = 1, list[str]()

        def flush() -> None:
            nonlocal depth
            if tests:
                out.append("    " * depth + f"if {' and '.join(dict.fromkeys(tests))}:")
                tests.clear()
                depth += 1

        for kind, source in self.steps:
            if kind == "test":
                tests.append(source)
            else:
                flush()
                out.append("    " * depth + source)
        flush()
        pad = "    " * depth
        if not self.keep_same:  # a spec makes no nodes
            out.append(f"{pad}set_origin((n, {label}))")
        out.append(f"{pad}out = {self.result()}")
        tests = ["out is not None"] if self.rule.is_code else []
        if not self.keep_same:
            tests.append("out is not n")
        out.append(f"{pad}if {' and '.join(tests) or 'True'}:")
        out.append(f"{pad}    return {f'checked(out, {label})' if self.rule.is_code else 'out'}, {label}")
        return out


def rule_source(rule: Rule, number: int, names: _Names, keep_same: bool) -> str:
    """The function for one rule."""
    label = f"R{number}"
    names.values[label] = rule
    alternatives: dict[str, None] = {}
    for choice in choices(rule.before):
        alternatives["\n".join(_Writer(rule, names, choice, keep_same).lines(label))] = None
    body = "\n".join(alternatives)
    header = f"def rule_{number}(n, ctx):  # {rule.name}, {rule.place}\n    # {rule.formula()}"
    return f"{header}\n{body}\n    return None\n"


def required_ops(rule: Rule) -> list[tuple[tuple[Op, ...] | None, ...] | None]:
    """Per alternative: the ops each source must have (None: any), or None if the number of sources is
    open."""
    root = rule.root
    if root.src is None or root.variadic:
        return [None]

    def ops(term: Term) -> tuple[Op, ...] | None:
        while isinstance(term, As):
            term = term.term
        if isinstance(term, Apply):
            return term.ops
        return (Ops.CONST,) if isinstance(term, Lit) or (isinstance(term, Var) and term.CONSTANT) else None

    orders = [root.src]
    if root.commutative and len(root.src) == 2:
        orders.append((root.src[1], root.src[0]))
    return [tuple(ops(s) for s in order) for order in orders]


# What selects the candidates for a node: its op and the ops of its sources, or their number where there are
# many.
Key = tuple[Op | int, ...]
_LISTED = 3


def key_of(n: UOp) -> Key:
    """The key of a node."""
    src = n.src
    return (n.op, *[s.op for s in src]) if len(src) <= _LISTED else (n.op, len(src))


@final
class Matcher:
    """A compiled list of rules. Called with a node, gives (result, rule) or None.

    What it makes comes from the matched node and the rule.

    A result that is the node itself counts as no match, unless `keep_same` says otherwise.
    """

    __slots__ = ("_by_op", "_keep_same", "name", "rules", "table")

    def __init__(self, name: str, active: tuple[Rule, ...], keep_same: bool = False) -> None:
        self.name = name
        self.rules = active
        self.table: dict[Key, tuple[RuleFunction, ...]] = {}
        self._keep_same = keep_same
        self._by_op: dict[Op, list[tuple[Any, int]]] = {}
        for number, rule in enumerate(active):
            required = required_ops(rule)
            for op in rule.root.ops:
                self._by_op.setdefault(op, []).append((required, number))

    @property
    def ops(self) -> Collection[Op]:
        """The ops of nodes that some rule may match."""
        return self._by_op

    @property
    def source(self) -> str:
        """All of the matcher as Python."""
        names = _Names()
        parts = [rule_source(rule, i, names, self._keep_same) for i, rule in enumerate(self.rules)]
        return "\n\n".join([f'"""Generated from the rule set {self.name}."""', *parts])

    def function(self, number: int) -> RuleFunction:
        """The function of one rule. Most programs need few of the rules, so each is compiled when first
        asked for."""
        rule = self.rules[number]
        found: RuleFunction | None = rule.compiled.get(self._keep_same)
        if found is None:  # once for all sets that it is in
            names = _Names()
            source = rule_source(rule, number, names, self._keep_same)
            exec(compile(source, f"<morok rule {rule.name}>", "exec"), names.values)
            found = rule.compiled[self._keep_same] = names.values[f"rule_{number}"]
        return found

    def candidates(self, key: Key) -> tuple[RuleFunction, ...]:
        """The functions of the rules that can match a node whose op and sources' ops are `key`."""
        op, sources = key[0], key[1:]
        assert isinstance(op, Op)
        found = [
            self.function(number)
            for required, number in self._by_op.get(op, ())
            if self._fits(required, sources)
        ]
        result = self.table[key] = tuple(found)
        return result

    @staticmethod
    def _fits(required: Any, sources: tuple[Op | int, ...]) -> bool:
        """Whether one of a rule's alternatives may match. Asked for every rule and every combination of ops
        that comes up: a tenth of the time of a small program's first compilation, if it is not kept short."""
        for alternative in required:
            if alternative is None:
                return True
            if sources and sources[0].__class__ is int:
                if len(alternative) == sources[0]:
                    return True
            elif len(alternative) == len(sources):
                for want, got in zip(alternative, sources, strict=True):
                    if want is not None and got not in want:
                        break
                else:
                    return True
        return False

    def __call__(self, n: UOp, ctx: Any = None) -> tuple[UOp, Rule] | None:
        outer = here_origin()
        try:
            return self.match(n, ctx)
        finally:
            set_origin(outer)

    def match(self, n: UOp, ctx: Any = None) -> tuple[UOp, Rule] | None:
        """What the engine calls; it puts the origin of new nodes back once, after many matches."""
        src = n.src
        count = len(src)
        key: Key  # `key_of`, written out
        if count == 2:
            key = (n.op, src[0].op, src[1].op)
        elif count == 1:
            key = (n.op, src[0].op)
        elif count > _LISTED:
            key = (n.op, count)
        else:
            key = (n.op, *[s.op for s in src])
        functions = self.table.get(key)
        if functions is None:
            functions = self.candidates(key)
        for function in functions:
            out = function(n, ctx)
            if out is not None:
                return out
        return None
