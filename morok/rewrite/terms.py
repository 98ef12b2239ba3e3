"""The language of rules: terms with variables, used on both sides of a rule and in its conditions.

A term is data. The same object is matched against nodes, built into nodes, evaluated as a condition,
translated to Z3 and printed. `x + y` matches in either order because addition commutes; a head spells it
out: `Add[x, y]` in any order, `Add(x, y)` in the order written.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, final

from morok.dtype import DType
from morok.errors import RuleError
from morok.ir.operators import Operators
from morok.ir.ops import ALL_OPS, BINARY, TERNARY, UNARY, Op, Ops


class Term(Operators["Term"]):
    """Base of everything that a rule is made of."""

    __slots__ = ()

    def _combine(self, op: Op, *operands: Any) -> Term:
        return Apply((op,), tuple(lift(x) for x in operands), commutative=op.commutative)

    def __rshift__(self, after: Any) -> Arrow:
        """before >> after"""
        return Arrow(self, after if callable(after) and not isinstance(after, Term) else lift(after))

    def __eq__(self, other: object) -> Term:  # type: ignore[override]
        return self._combine(Ops.CMPEQ, self, other)

    def __ne__(self, other: object) -> Term:  # type: ignore[override]
        return self._combine(Ops.CMPNE, self, other)

    __hash__ = object.__hash__

    def __ge__(self, other: Any) -> Term:
        return self._combine(Ops.NOT, self._combine(Ops.CMPLT, self, other))

    def __le__(self, other: Any) -> Term:
        return self._combine(Ops.NOT, self._combine(Ops.CMPLT, other, self))

    def __bool__(self) -> bool:
        raise RuleError("a term has no truth value; combine conditions with & and |, or list them in when(…)")


@final
class Arrow:
    """`before >> after`, not yet a rule: the name, the place and the conditions come with the yield.

    Python's `>>` binds tighter than `&`, `|` and `^`; the operators below make `a >> x & y` mean `a >> (x &
    y)`.
    """

    __slots__ = ("after", "before")

    def __init__(self, before: Term, after: Any) -> None:
        self.before = before
        self.after = after

    def __and__(self, y: Any) -> Arrow:
        return Arrow(self.before, self.after & y)

    def __or__(self, y: Any) -> Arrow:
        return Arrow(self.before, self.after | y)

    def __xor__(self, y: Any) -> Arrow:
        return Arrow(self.before, self.after ^ y)


class Var(Term):
    """A variable that matches any node. The subclasses below, as annotations, restrict the type."""

    __slots__ = ("name",)
    DOMAIN: ClassVar[str] = "any"  # which dtypes, see DOMAINS
    CONSTANT: ClassVar[bool] = False
    MANY: ClassVar[bool] = False

    def __init__(self, name: str) -> None:
        self.name = name

    def __matmul__(self, term: Any) -> Term:
        """`n @ (x + y)`: matches x + y and calls the whole n."""
        return As(self, lift(term))

    def __repr__(self) -> str:
        return self.name


# What a domain asks of a node's dtype: an attribute that must hold, and one that must not.
DOMAINS: dict[str, tuple[str | None, str | None]] = {
    "any": (None, None),
    "int": ("is_int", None),
    "bounded": ("is_bounded_int", None),
    "index": ("is_index", None),
    "bool": ("is_bool", None),
    "float": ("is_float", None),
    "signed": ("is_int", "is_unsigned"),
    "number": (None, "is_bool"),
    "bits": (None, "is_float"),
}


class Int(Var):
    """Any integer type, `index` included."""

    __slots__ = ()
    DOMAIN = "int"


class Bounded(Var):
    """Integers of a fixed width, which wrap."""

    __slots__ = ()
    DOMAIN = "bounded"


class Index(Var):
    """The unbounded integers of index arithmetic."""

    __slots__ = ()
    DOMAIN = "index"


class Signed(Var):
    """Integers with a sign, `index` included."""

    __slots__ = ()
    DOMAIN = "signed"


class Bool(Var):
    __slots__ = ()
    DOMAIN = "bool"


class Float(Var):
    __slots__ = ()
    DOMAIN = "float"


class Number(Var):
    """Anything but booleans."""

    __slots__ = ()
    DOMAIN = "number"


class Bits(Var):
    """Integers and booleans."""

    __slots__ = ()
    DOMAIN = "bits"


class Const(Var):
    """A constant; in conditions and templates it stands for its value."""

    __slots__ = ()
    CONSTANT = True


class IntConst(Int):
    __slots__ = ()
    CONSTANT = True


class BoundedConst(Bounded):
    __slots__ = ()
    CONSTANT = True


class IndexConst(Index):
    __slots__ = ()
    CONSTANT = True


class BoolConst(Bool):
    __slots__ = ()
    CONSTANT = True


class FloatConst(Float):
    __slots__ = ()
    CONSTANT = True


class NumberConst(Number):
    __slots__ = ()
    CONSTANT = True


class Many(Var):
    """The sources from here on, any number of them, as a tuple. Only as the last source of a pattern."""

    __slots__ = ()
    MANY = True


class Arg(Var):
    """Binds a node's argument: `Gep(x, arg=lanes)`."""

    __slots__ = ()


@final
class Lit(Term):
    """A number. Matches the constant of that value, bit for bit; its type comes from where it stands."""

    __slots__ = ("value",)

    def __init__(self, value: bool | int | float) -> None:
        self.value = value

    def __repr__(self) -> str:
        return repr(self.value).lower() if isinstance(self.value, bool) else repr(self.value)


@final
class As(Term):
    """`n @ term`: the node that matches the term is also called n."""

    __slots__ = ("term", "var")

    def __init__(self, var: Var, term: Term) -> None:
        self.var = var
        self.term = term

    def __repr__(self) -> str:
        return f"{self.var}@({self.term})"


@final
class DTypeOf(Term):
    """The dtype of what a variable matched; for `dtype=` of a head."""

    __slots__ = ("scalar", "var")

    def __init__(self, var: Var, scalar: bool = False) -> None:
        self.var = var
        self.scalar = scalar

    def __repr__(self) -> str:
        return f"dtype({self.var})"


@final
class Fact(Term):
    """A derived fact in a condition: the least or the greatest value that a node can have."""

    __slots__ = ("kind", "var")

    def __init__(self, kind: str, var: Var) -> None:
        self.kind = kind
        self.var = var

    def __repr__(self) -> str:
        return f"{self.kind}({self.var})"


def vmin(x: Any) -> Fact:
    """In a condition: the least value that x can have."""
    return Fact("vmin", _variable(x, "vmin"))


def vmax(x: Any) -> Fact:
    """In a condition: the greatest value that x can have."""
    return Fact("vmax", _variable(x, "vmax"))


def dtype(x: Any) -> Any:
    """The dtype of what x matched."""
    return DTypeOf(_variable(x, "dtype"))


def _variable(x: Any, what: str) -> Var:
    if not isinstance(x, Var):
        raise RuleError(f"{what}(…) takes a variable of the rule, got {x!r}")
    return x


ANY: Any = object()


@final
class Apply(Term):
    """An op (or one of several) on terms. `arg` and `dtype` constrain a match and are given to a built
    node."""

    __slots__ = ("arg", "commutative", "dtype", "ops", "src")

    def __init__(
        self,
        ops: tuple[Op, ...],
        src: tuple[Term, ...] | None,
        commutative: bool = False,
        arg: Any = ANY,
        dtype: DType | DTypeOf | None = None,
    ) -> None:
        self.ops = ops
        self.src = src  # None: any sources
        self.commutative = commutative
        self.arg = arg
        self.dtype = dtype
        for i, s in enumerate(src or ()):
            if isinstance(s, Var) and s.MANY and i + 1 != len(src or ()):
                raise RuleError(f"{s.name} stands for all remaining sources, so it must come last")

    @property
    def op(self) -> Op:
        return self.ops[0]

    @property
    def variadic(self) -> bool:
        last = self.src[-1] if self.src else None
        return isinstance(last, Var) and last.MANY

    def __repr__(self) -> str:
        return show(self)


@final
class Head:
    """An op as a word of the language: `Add[x, y]` matches in any order, `Add(x, y)` in this one."""

    __slots__ = ("ops",)

    def __init__(self, *ops: Op) -> None:
        self.ops = ops

    def __call__(self, *src: Any, arg: Any = ANY, dtype: Any = None) -> Apply:
        return Apply(self.ops, tuple(lift(s) for s in src), False, arg, dtype)

    def __getitem__(self, src: Any) -> Apply:
        terms = tuple(lift(s) for s in (src if isinstance(src, tuple) else (src,)))
        if len(terms) != 2:
            raise RuleError(f"[…] means any order of two sources, {self!r} got {len(terms)}")
        if not all(op.commutative for op in self.ops):
            raise RuleError(
                f"{self!r} does not commute, so its sources have one order: write (…) instead of […]"
            )
        return Apply(self.ops, terms, commutative=True)

    def any(self, arg: Any = ANY, dtype: Any = None) -> Apply:
        """The op with whatever sources."""
        return Apply(self.ops, None, False, arg, dtype)

    def __or__(self, other: Head) -> Head:
        return Head(*self.ops, *other.ops)

    def __repr__(self) -> str:
        return "|".join(op.name.title() for op in self.ops)


def lift(x: Any) -> Term:
    """A Python number as a literal; terms stay."""
    if isinstance(x, Term):
        return x
    if isinstance(x, (bool, int, float)):
        return Lit(x)
    if isinstance(x, Arrow):
        raise RuleError(
            f"put the left side in parentheses before >>, which binds tighter than its operator: {x.before!r}"
        )
    raise RuleError(f"{x!r} cannot stand in a rule; use variables, numbers and heads such as Add")


zero, one, true, false, minus_zero = Lit(0), Lit(1), Lit(True), Lit(False), Lit(-0.0)

# One head per op, named in title case without underscores: Ops.CMPLT is Cmplt, Ops.DEFINE_VAR is DefineVar.
_heads = {"".join(part.title() for part in op.name.split("_")): Head(op) for op in ALL_OPS}
HEADS: dict[str, Head] = _heads
Add, Sub, Mul, Neg, Max, Min = (_heads[n] for n in ("Add", "Sub", "Mul", "Neg", "Max", "Min"))
Floordiv, Floormod, Cdiv, Cmod, Fdiv = (_heads[n] for n in ("Floordiv", "Floormod", "Cdiv", "Cmod", "Fdiv"))
And, Or, Xor, Not, Shl, Shr = (_heads[n] for n in ("And", "Or", "Xor", "Not", "Shl", "Shr"))
Cmplt, Cmpne, Cmpeq, Where, Mulacc, Pow, Check = (
    _heads[n] for n in ("Cmplt", "Cmpne", "Cmpeq", "Where", "Mulacc", "Pow", "Check")
)
Cast, Bitcast, Recip, Sqrt, Abs = (_heads[n] for n in ("Cast", "Bitcast", "Recip", "Sqrt", "Abs"))
Trunc, Floor, Ceil, Rint = (_heads[n] for n in ("Trunc", "Floor", "Ceil", "Rint"))
Exp, Exp2, Log, Log2, Sin, Cos = (_heads[n] for n in ("Exp", "Exp2", "Log", "Log2", "Sin", "Cos"))
AnyUnary, AnyBinary, AnyTernary = (Head(*sorted(group)) for group in (UNARY, BINARY, TERNARY))


def head(op: Op) -> Head:
    """The head of an op, for templates over op lists."""
    return Head(op)


def children(term: Term) -> tuple[Term, ...]:
    """The terms directly below."""
    if isinstance(term, Apply):
        return term.src or ()
    if isinstance(term, As):
        return (term.var, term.term)
    if isinstance(term, (Fact, DTypeOf)):
        return (term.var,)
    return ()


def subterms(term: Term) -> Iterator[Term]:
    """The term and everything below it, including variables bound through arg and dtype."""
    stack = [term]
    while stack:
        t = stack.pop()
        yield t
        stack.extend(reversed(children(t)))
        if isinstance(t, Apply):
            if isinstance(t.arg, Term):
                stack.append(t.arg)
            if isinstance(t.dtype, DTypeOf):
                stack.append(t.dtype)


def variables(term: Term) -> dict[str, Var]:
    """The variables of a term by name, in order of appearance."""
    return {t.name: t for t in subterms(term) if isinstance(t, Var)}


_INFIX = {
    Ops.ADD: ("+", 5), Ops.SUB: ("-", 5), Ops.MUL: ("*", 6), Ops.FDIV: ("/", 6), Ops.FLOORDIV: ("//", 6),
    Ops.FLOORMOD: ("%", 6), Ops.CMPLT: ("<", 2), Ops.CMPEQ: ("==", 2), Ops.CMPNE: ("!=", 2),
    Ops.AND: ("&", 4), Ops.OR: ("|", 3), Ops.XOR: ("^", 4),
}  # fmt: skip


def show(term: Any, outer: int = 0) -> str:
    """A term as mathematics."""
    if not isinstance(term, Apply):
        return str(term)
    if len(term.ops) == 1 and term.src is not None and term.arg is ANY and term.dtype is None:
        op, src = term.op, term.src
        if op in _INFIX and len(src) == 2:
            sign, level = _INFIX[op]
            text = f"{show(src[0], level)} {sign} {show(src[1], level + 1)}"
            return f"({text})" if level < outer else text
        if op is Ops.NOT and isinstance(src[0], Apply) and src[0].op is Ops.CMPLT and src[0].src:
            text = f"{show(src[0].src[0], 3)} >= {show(src[0].src[1], 3)}"
            return f"({text})" if outer > 2 else text
        if op is Ops.NOT:
            return f"~{show(src[0], 9)}"
        if op is Ops.NEG:
            return f"-{show(src[0], 9)}"
    name = (
        "|".join(op.name.lower() for op in term.ops) if len(term.ops) <= 3 else f"one of {len(term.ops)} ops"
    )
    parts = ["…"] if term.src is None else [show(s) for s in term.src]
    if term.arg is not ANY:
        parts.append(f"arg={term.arg!r}")
    if term.dtype is not None:
        parts.append(f"dtype={term.dtype!r}")
    return f"{name}({', '.join(parts)})"
