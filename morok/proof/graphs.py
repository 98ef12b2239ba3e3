"""Graphs in Z3: are two of them equal within bounds, does an index stay inside its buffer?

A vector is a list of lanes. What is not arithmetic (a load, a buffer) is an unknown function of its
sources, so that two loads from equal places are equal and nothing else is known about them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, final

from morok.dtype import DType, bool_, identity, int8
from morok.errors import DTypeError, ProofError
from morok.ir.arithmetic.alu import evaluate
from morok.ir.bounds import bounds
from morok.ir.node import UOp, alu, const, make, toposort
from morok.ir.ops import Op, Ops
from morok.proof.quotients import questions
from morok.proof.smt import solver
from morok.proof.smt.formulas import same_value
from morok.proof.smt.solver import Expr, Problem, z3
from morok.proof.smt.translate import Translator, supported
from morok.proof.verdicts import PROVED, REFUTED, UNKNOWN, Verdict
from morok.rewrite.engine import substitute
from morok.rewrite.rules import EXACT, Numeric
from morok.symbolic.validity import conjuncts

Lanes = tuple[Expr, ...]
ENOUGH = 10_000_000  # steps for a question that somebody waits for
_FAR = 1 << 63  # further than any integer in memory
_EVALUATED = frozenset((
    Ops.CONST, Ops.VCONST, Ops.DEFINE_VAR, Ops.RANGE, Ops.SPECIAL, Ops.VECTORIZE, Ops.CAT, Ops.GEP, Ops.BIND,
))  # fmt: skip
_MOST_STEPS = 64  # of a reduction
_OF_LOOPS = frozenset((Ops.REDUCE, Ops.PICK))
BITWISE = frozenset((Ops.AND, Ops.OR, Ops.XOR, Ops.NOT))


@final
class Graphs:
    """Translates nodes, each once, and remembers what stands for which variable."""

    def __init__(self, reals: bool = False) -> None:
        self.t = Translator(reals=reals)
        self.bounds: list[Expr] = []
        self.leaves: dict[UOp, Lanes] = {}  # nodes whose value is not computed here
        self._lanes: dict[UOp, Lanes] = {}
        self._names: dict[str, UOp] = {}
        self._numbers: dict[UOp, int] = {}  # of what has no value: names must not depend on the run

    def lanes(self, root: UOp) -> Lanes:
        """The value of a node, lane by lane."""
        for node in toposort(root, stop=lambda n: n in self._lanes or n.dtype.is_ptr or n.op in _OF_LOOPS):
            if node not in self._lanes and not node.dtype.is_ptr and not node.dtype.is_void:
                self._lanes[node] = self._translate(node)
        return self._lanes[root]

    def value(self, root: UOp) -> Expr:
        """The value of a node with one lane."""
        (e,) = self.lanes(root)
        return e

    def hypotheses(self) -> list[Expr]:
        return [*self.t.assumed, *self.bounds]

    def _translate(self, n: UOp) -> Lanes:
        op, count = n.op, n.dtype.lanes
        scalar = n.dtype.scalar
        if op is Ops.CONST:
            return (self.t.constant(n.arg, scalar),) * count
        if op is Ops.VCONST:
            return tuple(self.t.constant(v, scalar) for v in n.arg)
        if op in (Ops.VECTORIZE, Ops.CAT):
            return tuple(e for s in n.src for e in self._lanes[s])
        if op is Ops.GEP and isinstance(n.arg, tuple):
            return tuple(self._lanes[n.src[0]][i] for i in n.arg)
        if op in (Ops.DEFINE_VAR, Ops.RANGE, Ops.SPECIAL):
            return self._leaf(n)
        if op is Ops.BIND:
            variable, value = (self._lanes[s] for s in n.src)
            self.bounds += [a == b for a, b in zip(variable, value, strict=True)]
            return variable
        if op is Ops.LOAD and n.src[0].op is Ops.INDEX:
            return self._load(n)
        if op is Ops.INDEX and len(n.src) in (2, 3) and count == 1:
            return self._read(n)
        if op in _OF_LOOPS:
            return self._reduced(n)
        if op is Ops.VREDUCE:
            return self._combined(n.arg, scalar, self._lanes[n.src[0]])
        if op.is_alu and all(s.dtype.lanes == count for s in n.src):
            of = n.src[-1].dtype.scalar
            parts = (self._lanes[s] for s in n.src)
            return tuple(self.t.apply(op, of, *x, to=scalar) for x in zip(*parts, strict=True))
        return self._unknown(n, n.src)

    def _leaf(self, n: UOp) -> Lanes:
        name = f"r{n.arg[0]}" if n.op is Ops.RANGE else str(n.arg[0] if n.op is Ops.DEFINE_VAR else n.arg)
        while self._names.setdefault(name, n) is not n:  # the same name with other bounds is another variable
            name += "'"
        x = self.t.variable(name, n.dtype.scalar)
        self.leaves[n] = (x,) * n.dtype.lanes
        if n.op is Ops.DEFINE_VAR:
            self.bounds += self.t.between(x, n.arg[1], n.arg[2], n.dtype.scalar)
            return self.leaves[n]
        end = self.value(n.src[0])
        self.bounds += self.t.between(x, 0, math.inf, n.dtype)
        self.bounds.append(self.t.apply(Ops.CMPLT, n.dtype, x, end))
        return self.leaves[n]

    def _load(self, n: UOp) -> Lanes:
        place = n.src[0]
        pointer, *indices = place.src
        gate = indices.pop() if indices and indices[-1].dtype.is_bool else None
        values = self._unknown(n, tuple(indices), name=self._memory(pointer))
        if gate is None or len(n.src) < 2:
            return values
        (open_,), other = self.lanes(gate), self.lanes(n.src[1])
        return tuple(z3.If(open_, a, b) for a, b in zip(values, other, strict=True))

    def _memory(self, pointer: UOp) -> str:
        """The function from places to what lies there."""
        return f"load_{self._numbers.setdefault(pointer, len(self._numbers))}"

    def _read(self, n: UOp) -> Lanes:
        """A read before loads are made explicit: 0 where its gate does not hold."""
        pointer, place, *gate = n.src
        (value,) = self._unknown(n, (place,), name=self._memory(pointer))
        if not gate or not gate[0].dtype.is_bool:
            return (value,)
        zero = False if n.dtype.is_bool else 0.0 if n.dtype.is_float else 0
        return (z3.If(self.value(gate[0]), value, self.t.constant(zero, n.dtype)),)

    def _combined(self, op: Op, dtype: DType, lanes: Lanes) -> Lanes:
        total = lanes[0]
        for lane in lanes[1:]:
            total = self.t.apply(op, dtype, total, lane)
        return (total,)

    def _reduced(self, n: UOp) -> Lanes:
        """A reduction, one step after the other: its loops are short."""
        if n.op is Ops.PICK:
            whole = n.src[0]
            if whole.op is not Ops.REDUCE:
                raise ProofError("a value is picked out of something that is no reduction")
            count = len(whole.arg)
            n = make(Ops.REDUCE, n.dtype, (whole.src[n.arg], *whole.src[count:]), (whole.arg[n.arg],))
        loops = [s for s in n.src[1:] if s.op is Ops.RANGE]
        ends = [bounds(r.src[0])[1] for r in loops]
        if len(n.arg) != 1 or math.prod(ends) > _MOST_STEPS:
            raise ProofError("a reduction with too many steps or values")
        op, scalar = n.arg[0], n.dtype.scalar
        total = [self.t.constant(identity(op.name, scalar), scalar)] * n.dtype.lanes
        for steps in itertools.product(*(range(int(end)) for end in ends)):
            places = {r: const(r.dtype, k) for r, k in zip(loops, steps, strict=True)}
            runs = [alu(Ops.CMPLT, k, r.src[0]) for r, k in places.items() if r.src[0].op is not Ops.CONST]
            value = self.lanes(substitute(n.src[0], places))
            more = [self.t.apply(op, scalar, a, b) for a, b in zip(total, value, strict=True)]
            if runs:
                taken = z3.And([self.value(run) for run in runs])
                more = [z3.If(taken, b, a) for a, b in zip(total, more, strict=True)]
            total = more
        return tuple(total)

    def _unknown(self, n: UOp, sources: tuple[UOp, ...], name: str = "") -> Lanes:
        scalar = n.dtype.scalar
        if not supported(scalar):
            raise ProofError(f"there is no theory for {n.op.name} of type {n.dtype}")
        known = [e for s in sources if not s.dtype.is_ptr and not s.dtype.is_void for e in self.lanes(s)]
        numbers = self._numbers
        others = [numbers.setdefault(s, len(numbers)) for s in sources if s.dtype.is_ptr or s.dtype.is_void]
        base = name or f"{n.op.name.lower()}_{n.arg!r}_{'_'.join(map(str, others))}"
        if not known:
            base += f"_{numbers.setdefault(n, len(numbers))}"
        lanes = []
        for i in range(n.dtype.lanes):
            function = f"{base}_{i}"
            lanes.append(
                self.t.function(function, scalar, *known) if known else self.t.variable(function, scalar)
            )
        self.leaves[n] = tuple(lanes)
        return self.leaves[n]


def prove_equal(before: UOp, after: UOp, steps: int = ENOUGH, numeric: Numeric = EXACT) -> Verdict:
    """Do two graphs have the same value for all values of their variables within bounds?

    The counterexample of a refutation is in the variables' names, and Python has computed that it is one.
    Indices and stores are equal if they address the same places under the same gates.
    """
    if before is after:
        return Verdict(PROVED, "the same node")
    if before.dtype is not after.dtype:
        return Verdict(REFUTED, f"the types differ: {before.dtype} and {after.dtype}")
    if before.dtype.is_index and before.op in BITWISE and _bit_by_bit(before, after, steps):
        return Verdict(PROVED, "bit by bit")
    graphs = Graphs(reals=numeric in (Numeric.REASSOCIATING, Numeric.UNSAFE))
    try:
        goal = _equal(graphs, before, after, numeric)
    except (ProofError, DTypeError) as error:
        return Verdict(UNKNOWN, error.message)
    hypotheses = [*graphs.hypotheses(), *graphs.t.defined]
    outcome = solver.decide(Problem(hypotheses, goal, graphs.t.divisions), steps)
    if outcome.status == solver.PROVED:
        return Verdict(PROVED)
    if outcome.status == solver.UNKNOWN:
        return Verdict(UNKNOWN, "out of steps")
    return _refutation(graphs, outcome.model, before, after, numeric)


def _bit_by_bit(before: UOp, after: UOp, steps: int) -> bool:
    """Whether indices are equal by laws of bits alone.

    What holds for 8 bits holds for any number of them, because no bit knows of another. All that is not a
    bitwise op can have any value.
    """
    done: dict[UOp, UOp] = {}
    for root in (before, after):
        for n in toposort(root, stop=lambda n: n.op not in BITWISE):
            dtype = int8.vec(n.dtype.lanes)
            if n.op in BITWISE:
                done[n] = make(n.op, dtype, tuple(done[s] for s in n.src))
            elif n.op is Ops.CONST and n.arg in (0, -1):
                done[n] = const(dtype, n.arg)
            elif n not in done:
                lanes = range(n.dtype.lanes)
                each = [make(Ops.DEFINE_VAR, int8, (), (f"n{len(done)}_{i}", -128, 127)) for i in lanes]
                done[n] = each[0] if len(each) == 1 else make(Ops.VECTORIZE, dtype, tuple(each))
    return prove_equal(done[before], done[after], steps).status == PROVED


def _equal(graphs: Graphs, a: UOp, b: UOp, numeric: Numeric) -> Expr:
    """The formula that says that two nodes have the same value or the same effect."""
    if a is b:
        return z3.BoolVal(True)
    if not (a.dtype.is_ptr or a.dtype.is_void):
        scalar, loose = a.dtype.scalar, numeric is not EXACT
        pairs = zip(graphs.lanes(a), graphs.lanes(b), strict=True)
        return z3.And([graphs.t.same(x, y, scalar, loose) for x, y in pairs])
    if a.op is not b.op or a.arg != b.arg or len(a.src) != len(b.src):
        raise ProofError(f"{a.op.name} and {b.op.name} cannot be compared")
    parts = [_equal(graphs, x, y, numeric) for x, y in zip(a.src, b.src, strict=True)]
    gate = _gate(a)
    if gate is None:
        return z3.And(parts)
    (is_open,) = graphs.lanes(gate)
    at = a.src.index(gate) if a.op is Ops.INDEX else 0
    rest = [z3.Implies(is_open, p) for i, p in enumerate(parts) if i != at]
    return z3.And(parts[at], *rest)


def _gate(n: UOp) -> UOp | None:
    """What guards an index, or a store at such an index."""
    place = n if n.op is Ops.INDEX else n.src[0] if n.op is Ops.STORE and n.src else None
    if place is None or place.op is not Ops.INDEX or not place.src[-1].dtype.is_bool:
        return None
    return place.src[-1]


def _refutation(graphs: Graphs, model: Any, before: UOp, after: UOp, numeric: Numeric) -> Verdict:
    values = {
        n: tuple(graphs.t.value(model, e, n.dtype.scalar) for e in lanes)
        for n, lanes in graphs.leaves.items()
    }
    named = {name: values[n][0] for name, n in graphs._names.items()}
    shown = ", ".join(f"{name} = {v}" for name, v in named.items())
    if graphs.t.reals or before.dtype.is_void or before.dtype.is_ptr:
        return Verdict(REFUTED, shown, named)
    if any(not n.op.is_alu and n.op not in _EVALUATED for n in toposort(before, after)):
        return Verdict(REFUTED, shown, named)  # memory and loops: nothing to compute it with
    x, y = (evaluate_graph(side, values) for side in (before, after))
    loose = numeric is not EXACT
    if all(same_value(a, b, loose) for a, b in zip(x, y, strict=True)):
        return Verdict(UNKNOWN, f"Z3 sees a difference that Python does not, for {shown}")
    return Verdict(REFUTED, f"{shown} gives {_plain(x)} before and {_plain(y)} after", named)


def _plain(lanes: tuple[Any, ...]) -> Any:
    return lanes[0] if len(lanes) == 1 else lanes


def evaluate_graph(root: UOp, given: dict[UOp, Any]) -> tuple[Any, ...]:
    """The value of a node in Python, lane by lane, from the values of its leaves."""
    values: dict[UOp, tuple[Any, ...]] = {n: v if isinstance(v, tuple) else (v,) for n, v in given.items()}
    for n in toposort(root, stop=lambda n: n in values or n.dtype.is_ptr):
        if n in values or n.dtype.is_ptr or n.dtype.is_void:
            continue
        if n.op is Ops.CONST:
            values[n] = (n.arg,) * n.dtype.lanes
        elif n.op is Ops.VCONST:
            values[n] = n.arg
        elif n.op in (Ops.VECTORIZE, Ops.CAT):
            values[n] = tuple(v for s in n.src for v in values[s])
        elif n.op is Ops.GEP:
            values[n] = tuple(values[n.src[0]][i] for i in n.arg)
        elif n.op is Ops.BIND:
            values[n] = values[n.src[0]]
        elif n.op.is_alu:
            of, to = n.src[-1].dtype.scalar, n.dtype.scalar
            operands = zip(*(values[s] for s in n.src), strict=True)
            values[n] = tuple(evaluate(n.op, of, *x, to=to) for x in operands)
        else:
            raise ProofError(f"{n.op.name} has no value on its own")
    return values[root]


def prove_in_bounds(index: UOp, size: int | UOp, gate: UOp | None = None, steps: int = ENOUGH) -> Verdict:
    """Is 0 ≤ index < size for all values of the variables within bounds, wherever the gate is open?"""
    if gate is not None and gate.dtype is not bool_:
        raise ProofError(f"a gate is a boolean, not {gate.dtype}")
    simple = _without_data(index, gate)
    if simple is not None and _in_bounds(simple[0], size, simple[1:], steps):
        return Verdict(PROVED, "whatever is read from memory")
    guards = [] if gate is None else list(conjuncts(gate))
    for place, given in questions(index, guards) if isinstance(size, int) else ():
        if _in_bounds(place, size, given, steps):
            return Verdict(PROVED, "whatever its quotients are")
    return _in_bounds(index, size, guards, steps)


def _without_data(index: UOp, gate: UOp | None) -> list[UOp] | None:
    """Both with free variables for the indices that come from memory; None if there are none.

    What holds for any numbers within their bounds holds for those, and how they are computed is most of the
    work of a proof about a gather: 64-bit arithmetic.
    """
    roots = (index,) if gate is None else (index, gate)
    mapping: dict[UOp, UOp] = {}
    for n in toposort(*roots, stop=lambda n: n.op is Ops.CAST and n.dtype.is_index):
        if n.op is Ops.CAST and n.dtype.is_index and n.dtype.lanes == 1 and not n.src[0].dtype.is_index:
            low, high = bounds(n)
            limits = (max(low, -_FAR), min(high, _FAR))
            mapping[n] = make(Ops.DEFINE_VAR, n.dtype, (), (f"data{len(mapping)}", *limits))
    if not mapping:
        return None
    return [substitute(root, mapping) for root in roots]


def _in_bounds(index: UOp, size: int | UOp, given: Sequence[UOp], steps: int) -> Verdict:
    graphs = Graphs()
    x = graphs.value(index)
    dtype: DType = index.dtype
    end = graphs.value(size) if isinstance(size, UOp) else graphs.t.constant(size, dtype)
    inside = [*graphs.t.between(x, 0, math.inf, dtype), graphs.t.apply(Ops.CMPLT, dtype, x, end)]
    graphs.bounds += [graphs.value(condition) for condition in given]
    outcome = solver.decide(Problem(graphs.hypotheses(), z3.And(inside), graphs.t.divisions), steps)
    if outcome.status == solver.PROVED:
        return Verdict(PROVED)
    if outcome.status == solver.UNKNOWN:
        return Verdict(UNKNOWN, "out of steps")
    named = {
        name: graphs.t.value(outcome.model, graphs.leaves[n][0], n.dtype) for name, n in graphs._names.items()
    }
    place = graphs.t.value(outcome.model, x, dtype)
    shown = ", ".join(f"{name} = {v}" for name, v in named.items())
    return Verdict(REFUTED, f"{shown} gives {place}", {**named, "index": place})
