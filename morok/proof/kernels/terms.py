"""Values of a kernel as terms over what is in memory, and when two of them are the same.

A term is a number in a table: an op on other terms, a constant, or an element of a buffer as it was before
the kernel. Ops on constants are computed, so what is left of a kernel at one point is arithmetic on data.

Two terms are the same if they are equal in the arithmetic that stages may change: sums and products of floats
in any order, as of real numbers, a fused product like a product and a sum, and without the roundings between
types; integers exactly, modulo their width. What has no equal form is computed, with all roundings of the IR,
at some random points of the data.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any, final

import numpy as np

from morok.dtype import DType, bool_, float64, identity, int64
from morok.ir.arithmetic.alu import evaluate, evaluate_array
from morok.ir.arithmetic.arrays import storage
from morok.ir.ops import Op, Ops

POINTS = 6
Term = int
_LINEAR = frozenset((Ops.ADD, Ops.SUB, Ops.NEG, Ops.MULACC))
_SETS = frozenset((Ops.MAX, Ops.MIN, Ops.AND, Ops.OR))
_EITHER_WAY = frozenset((Ops.XOR, Ops.MULHI, Ops.DOT4, Ops.DOT2))


def kind(dtype: DType) -> DType:
    """The type as forms tell types apart: floats are real numbers, and indices have got a width."""
    return float64 if dtype.is_float else int64 if dtype.is_index else dtype


class TooLarge(Exception):
    """More terms than anybody wants to wait for."""


@final
class Terms:
    """The table, with normal forms and values of its terms."""

    def __init__(self, most: int = 1 << 18, seed: int = 0) -> None:
        self.most = most
        self.seed = seed
        self.nodes: list[tuple[Any, DType, Any, tuple[Term, ...]]] = []  # op, dtype, argument, sources
        self._known: dict[Any, Term] = {}
        self._forms: dict[Term, int] = {}
        self._form_table: dict[Any, int] = {}
        self._form_keys: list[Any] = []
        self._values: dict[Term, Any] = {}
        self._shaken = False

    # --- making

    def _new(self, op: Any, dtype: DType, arg: Any, src: tuple[Term, ...] = ()) -> Term:
        key = (op, dtype, repr(arg) if arg.__class__ is float else arg, src)
        found = self._known.get(key)
        if found is None:
            if len(self.nodes) >= self.most:
                raise TooLarge
            found = self._known[key] = len(self.nodes)
            self.nodes.append((op, dtype, arg, src))
        return found

    def constant(self, dtype: DType, value: Any) -> Term:
        return self._new(Ops.CONST, dtype.scalar, value)

    def number(self, term: Term) -> Any:
        """The value of a constant; None for other terms."""
        op, _, arg, _ = self.nodes[term]
        return arg if op is Ops.CONST else None

    def element(self, buffer: int, dtype: DType, place: Term) -> Term:
        """What a buffer holds at a place before the kernel runs."""
        return self._new(Ops.LOAD, dtype.scalar, buffer, (place,))

    def variable(self, name: str, dtype: DType, low: int, high: int) -> Term:
        return self._new(Ops.DEFINE_VAR, dtype.scalar, (name, low, high))

    def apply(self, op: Op, dtype: DType, src: tuple[Term, ...], to: DType | None = None) -> Term:
        """An op on terms of a scalar type (of a choice, the type of its branches)."""
        if op is Ops.WHERE:
            chosen = self.number(src[0])
            if chosen is not None:
                return src[1] if chosen else src[2]
            if src[1] == src[2]:
                return src[1]
            # a ∨ … ? (a ? x : y) : y = a ? x : y
            inner, _, _, parts = self.nodes[src[1]]
            if inner is Ops.WHERE and parts[2] == src[2] and self._is_one_of(parts[0], src[0]):
                return src[1]
        nodes = self.nodes
        result = to.scalar if to is not None else bool_ if op.is_compare else dtype.scalar
        if all(nodes[s][0] is Ops.CONST for s in src):
            with np.errstate(all="ignore"):
                value = evaluate(op, dtype.scalar, *(nodes[s][2] for s in src), to=to and to.scalar)
            return self.constant(result, value)
        if op in (Ops.AND, Ops.OR) and dtype.is_bool:
            for a, b in (src, src[::-1]):
                known = self.number(a)
                if known is not None:
                    return b if known is (op is Ops.AND) else a
        return self._new(op, result, dtype.scalar, src)

    def _is_one_of(self, wanted: Term, condition: Term) -> bool:
        """Whether a condition is another one, or that and others joined by OR."""
        stack = [condition]
        while stack:
            term = stack.pop()
            if term == wanted:
                return True
            op, dtype, _, src = self.nodes[term]
            if op is Ops.OR and dtype.is_bool:
                stack += src
        return False

    # --- normal forms

    def form(self, term: Term) -> int:
        """A number that is the same for terms that are the same."""
        stack = [term]
        while stack:
            t = stack[-1]
            if t in self._forms:
                stack.pop()
                continue
            pending = [s for s in self._atoms(t) if s not in self._forms]
            if pending:
                stack += pending
                continue
            stack.pop()
            self._forms[t] = self._made(t)
        return self._forms[term]

    def _intern(self, key: Any) -> int:
        found = self._form_table.get(key)
        if found is None:
            found = self._form_table[key] = len(self._form_keys)
            self._form_keys.append(key)
        return found

    def _is_linear(self, t: Term) -> bool:
        op, dtype, arg, _ = self.nodes[t]
        if op in _LINEAR:
            return not dtype.is_bool
        if op is Ops.CAST:
            return bool(dtype.is_float and arg.is_float)
        return op is Ops.SHL and self._amount(t) is not None

    def _amount(self, t: Term) -> int | None:
        found = self.number(self.nodes[t][3][1])
        return found if found is not None and 0 <= found < self.nodes[t][1].bits else None

    def _atoms(self, t: Term) -> list[Term]:
        """The terms whose forms the form of this one is made of."""
        op, _, _, src = self.nodes[t]
        if op in (Ops.CONST, Ops.DEFINE_VAR):
            return []
        if self._is_linear(t):
            return list(self._spread(t)[0])
        if op in _SETS:
            return self._members(t)
        return list(src)

    def _spread(self, root: Term) -> tuple[dict[Term, Fraction | int], list[tuple[Term, Term, Any]]]:
        """A sum as multiples of terms that are no sums, and products that fused ones have added."""
        nodes = self.nodes
        order: list[Term] = []
        seen: set[Term] = set()
        stack: list[tuple[Term, bool]] = [(root, False)]
        while stack:
            t, done = stack.pop()
            if done:
                order.append(t)
                continue
            if t in seen:
                continue
            seen.add(t)
            stack.append((t, True))
            if self._is_linear(t):
                src = nodes[t][3]
                inner = src[2:] if nodes[t][0] is Ops.MULACC else src[:1] if nodes[t][0] is Ops.SHL else src
                stack += [(s, False) for s in inner]
        factors: dict[Term, Any] = {root: 1}
        products: list[tuple[Term, Term, Any]] = []
        atoms: dict[Term, Any] = {}
        for t in reversed(order):
            f = factors.get(t)
            if f is None:
                continue
            op, _, _, src = nodes[t]
            if not self._is_linear(t):
                atoms[t] = atoms.get(t, 0) + f
                continue
            if op is Ops.MULACC:
                products.append((src[0], src[1], f))
                atoms.setdefault(src[0], 0)
                atoms.setdefault(src[1], 0)
                factors[src[2]] = factors.get(src[2], 0) + f
                continue
            sign = {Ops.NEG: (-1,), Ops.SUB: (1, -1), Ops.CAST: (1,), Ops.ADD: (1, 1)}.get(op)
            if sign is None:  # SHL
                sign = (1 << (self._amount(t) or 0),)
            for s, c in zip(src, sign, strict=False):
                factors[s] = factors.get(s, 0) + f * c
        return atoms, products

    def _made(self, t: Term) -> int:
        op, dtype, arg, src = self.nodes[t]
        if op is Ops.CONST:
            return self._constant(dtype, arg)
        if op is Ops.DEFINE_VAR:
            return self._intern(("var", arg))
        if op is Ops.LOAD:
            return self._intern(("element", arg, kind(dtype), self._forms[src[0]]))
        if self._is_linear(t):
            return self._sum(t)
        if op is Ops.MUL and not dtype.is_bool:
            return self._scaled(dtype, *self._product(dtype, [(self._forms[s], 1) for s in src]))
        if op in (Ops.FDIV, Ops.RECIP):
            parts = [(self._forms[s], 1) for s in src]
            parts[-1] = (parts[-1][0], -1)
            return self._scaled(dtype, *self._product(dtype, parts))
        if op in _SETS:
            members = sorted({self._forms[m] for m in self._members(t)})
            return members[0] if len(members) == 1 else self._intern((op, kind(dtype), tuple(members)))
        return self._other(op, dtype, arg, [self._forms[s] for s in src])

    def _other(self, op: Any, dtype: DType, of: Any, forms: list[int]) -> int:
        if op is Ops.CAST and dtype.is_bool:
            zero = self._constant(of, 0.0 if of.is_float else 0)
            return self._negation(self._intern((Ops.CMPEQ, kind(of), tuple(sorted((forms[0], zero))))))
        if op is Ops.NOT and dtype.is_bool:
            return self._negation(forms[0])
        if op is Ops.CMPNE:
            return self._negation(self._intern((Ops.CMPEQ, kind(of), tuple(sorted(forms)))))
        if op is Ops.RSQRT:
            root = self._intern((Ops.SQRT, kind(dtype), kind(dtype), (forms[0],)))
            return self._scaled(dtype, *self._product(dtype, [(root, -1)]))
        if op is Ops.WHERE:
            key = self._form_keys[forms[0]]
            if key[0] == "not":
                forms = [key[1], forms[2], forms[1]]
        if op is Ops.CMPEQ:
            return self._intern((Ops.CMPEQ, kind(of), tuple(sorted(forms))))
        if op in _EITHER_WAY:
            forms = sorted(forms)
        return self._intern((op, kind(dtype), kind(of), tuple(forms)))

    def _negation(self, form: int) -> int:
        key = self._form_keys[form]
        return int(key[1]) if key[0] == "not" else self._intern(("not", form))

    def _members(self, root: Term) -> list[Term]:
        """The operands of nested maxima, minima, ands or ors."""
        op, dtype, _, _ = self.nodes[root]
        found: dict[Term, None] = {}
        stack, seen = [root], {root}
        while stack:
            t = stack.pop()
            for s in self.nodes[t][3]:
                if self.nodes[s][0] is op and self.nodes[s][1] is dtype:
                    if s not in seen:
                        seen.add(s)
                        stack.append(s)
                elif not (op in (Ops.MAX, Ops.MIN) and self._starts(s, op, dtype)):
                    found[s] = None
        return list(found) or [self.nodes[root][3][0]]

    def _starts(self, t: Term, op: Op, dtype: DType) -> bool:
        """Whether a term is what a maximum or minimum begins with."""
        value = self.number(t)
        return value is not None and value == identity(op.name, dtype)

    # --- sums and products of forms

    def _constant(self, dtype: DType, value: Any) -> int:
        if dtype.is_float and value == value and abs(value) != float("inf"):
            return self._intern(("sum", float64, (), Fraction(value)))
        if dtype.is_int:
            return self._intern(("sum", kind(dtype), (), value))
        return self._intern(("constant", kind(dtype), repr(value)))

    def _reduced(self, dtype: DType, value: Any) -> Any:
        """A factor as numbers of its type: exact, or modulo the width."""
        if dtype.is_float:
            return value if value.__class__ is Fraction else Fraction(value)
        dtype = kind(dtype)
        return ((value - dtype.min) & ((1 << dtype.bits) - 1)) + dtype.min

    def _sum(self, t: Term) -> int:
        dtype = self.nodes[t][1]
        atoms, products = self._spread(t)
        total: dict[int, Any] = {}
        constant: Any = 0
        parts = [(self._forms[a], f) for a, f in atoms.items() if f]
        for x, y, f in products:
            factor, form = self._product(dtype, [(self._forms[x], 1), (self._forms[y], 1)])
            parts.append((self._scaled(dtype, factor, form), f))
        for form, f in parts:
            key = self._form_keys[form]
            if key[0] == "sum":
                constant += f * key[3]
                inner = key[2]
                if f != 1:  # products of fractions are slow
                    inner = [(a, -c) for a, c in inner] if f == -1 else [(a, f * c) for a, c in inner]
                for atom, c in inner:
                    total[atom] = total[atom] + c if atom in total else c
            else:
                total[form] = total.get(form, 0) + f
        return self._as_sum(dtype, total, constant)

    def _as_sum(self, dtype: DType, total: dict[int, Any], constant: Any) -> int:
        terms = ((a, self._reduced(dtype, c)) for a, c in total.items())
        kept = tuple(sorted((a, c) for a, c in terms if c))
        constant = self._reduced(dtype, constant)
        if len(kept) == 1 and kept[0][1] == 1 and not constant:
            return kept[0][0]
        return self._intern(("sum", kind(dtype), kept, constant))

    def _product(self, dtype: DType, parts: list[tuple[int, int]]) -> tuple[Any, int | None]:
        """(factor, form of the rest) of a product of powers of forms."""
        factor: Any = self._reduced(dtype, 1)
        powers: dict[int, int] = {}
        for form, power in parts:
            key = self._form_keys[form]
            if key[0] == "sum" and not key[2] and (power > 0 or key[3]):
                factor = self._reduced(dtype, factor * key[3] ** power)
                continue
            if key[0] == "sum" and len(key[2]) == 1 and not key[3] and (power > 0 or dtype.is_float):
                ((form, c),) = key[2]
                factor = self._reduced(dtype, factor * c**power)
                key = self._form_keys[form]
            inner = key[2] if key[0] == "product" else ((form, 1),)
            for f, p in inner:
                powers[f] = powers.get(f, 0) + p * power
        kept = tuple(sorted((f, p) for f, p in powers.items() if p))
        if not kept:
            return factor, None
        if len(kept) == 1 and kept[0][1] == 1:
            return factor, kept[0][0]
        return factor, self._intern(("product", kind(dtype), kept))

    def _scaled(self, dtype: DType, factor: Any, form: int | None) -> int:
        if form is None:
            return self._as_sum(dtype, {}, factor)
        key = self._form_keys[form]
        if key[0] == "sum":
            return self._as_sum(dtype, {a: c * factor for a, c in key[2]}, key[3] * factor)
        return self._as_sum(dtype, {form: factor}, 0)

    # --- values at points

    def values(self, term: Term, shaken: bool = False) -> Any:
        """The value of a term at every point, with all its roundings; or beside the points, a little off."""
        if shaken is not self._shaken:
            self._values, self._shaken = {}, shaken
        stack = [term]
        with np.errstate(all="ignore"):
            while stack:
                t = stack[-1]
                if t in self._values:
                    stack.pop()
                    continue
                pending = [s for s in self.nodes[t][3] if s not in self._values]
                if pending:
                    stack += pending
                    continue
                stack.pop()
                self._values[t] = self._value(t)
        return self._values[term]

    def _value(self, t: Term) -> Any:
        op, dtype, arg, src = self.nodes[t]
        if op is Ops.CONST:
            return np.full(POINTS, arg, dtype=storage(dtype))
        if op is Ops.LOAD:
            return self._data(arg, dtype, self._values[src[0]])
        if op is Ops.DEFINE_VAR:
            _, low, high = arg
            return np.full(POINTS, (int(low) + int(high)) // 2, dtype=storage(dtype))
        return evaluate_array(op, arg, *(self._values[s] for s in src), to=dtype)

    def scale(self, term: Term) -> Any:
        """How large the summands of a term are: what roundings in another order are measured by."""
        total: Any = np.zeros(POINTS)
        if self._is_linear(term):
            atoms, products = self._spread(term)
            for t, f in atoms.items():
                if f:
                    total = total + abs(float(f)) * np.abs(self.values(t).astype(np.float64))
            for x, y, f in products:
                both = np.abs(self.values(x).astype(np.float64) * self.values(y).astype(np.float64))
                total = total + abs(float(f)) * both
        return total

    def ops_apart(self, a: Term, b: Term) -> set[str]:
        """Names of ops that one of two terms has and the other has not."""
        names = []
        for root in (a, b):
            seen, stack = {root}, [root]
            while stack:
                for s in self.nodes[stack.pop()][3]:
                    if s not in seen:
                        seen.add(s)
                        stack.append(s)
            names.append({self.nodes[t][0].name for t in seen})
        return names[0] ^ names[1]

    def _data(self, buffer: int, dtype: DType, places: Any) -> Any:
        """Random contents: every element of every point from a generator of its own."""
        found = np.zeros(POINTS, dtype=storage(dtype))
        for i, place in enumerate(places):
            rnd = np.random.default_rng((self.seed, buffer, int(place) & (1 << 62) - 1, i))
            found[i] = _random(rnd, dtype, i)
            if self._shaken and dtype.is_float:
                found[i] += found[i] * float(dtype.eps) * rnd.choice((-2.0, 2.0))
        return found


def _random(rnd: Any, dtype: DType, point: int) -> Any:
    if dtype.is_bool:
        return bool(rnd.integers(2))
    if dtype.is_int:
        if point % 2:  # small ones, which may be places
            return int(rnd.integers(0, 8))
        return rnd.integers(dtype.min, dtype.max, endpoint=True, dtype=storage(dtype))
    return rnd.uniform(0.25, 1.5) * (1 if point % 2 else rnd.choice((-1.0, 1.0)))
