"""A kernel before its stages, at one point of its loops, as terms: the definition of what it computes.

Everything is computed as it is written: a reduction step by step, a local buffer at the place that is read.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import final

from morok.dtype import DType, PtrDType, float32, identity, index, uint8
from morok.dtype.types import SIGNED, UNSIGNED
from morok.errors import ProofError
from morok.ir.infer import closed_ranges, dimensions, ranges, summed
from morok.ir.memory import joined_by
from morok.ir.node import UOp, toposort
from morok.ir.ops import Op, Ops
from morok.ir.scan import LAST, neutral, parts
from morok.proof.kernels.terms import Term, Terms

Expansion = tuple[UOp, tuple[UOp, ...]]  # a graph, and the nodes that stand for the operands
Expand = Callable[[Op, DType], "Expansion | None"]
Env = Mapping[UOp, int]


class Opaque(ProofError):
    """A kernel that is not followed; the message says why."""


@final
@dataclass(frozen=True)
class Effect:
    """A store of a kernel with the loops around it."""

    store: UOp
    loops: tuple[UOp, ...]

    @property
    def memory(self) -> UOp:
        return self.store.src[0].src[0]


def effects(kernel: UOp) -> list[Effect]:
    """What a kernel writes."""
    found: list[Effect] = []
    stack: list[tuple[UOp, tuple[UOp, ...]]] = [(kernel, ())]
    while stack:
        node, loops = stack.pop()
        if node.op in (Ops.SINK, Ops.GROUP):
            stack += [(s, loops) for s in reversed(node.src)]
        elif node.op is Ops.END:
            stack.append((node.src[0], (*loops, *node.src[1:])))
        elif node.op is Ops.STORE and joined_by(node) is not None:
            raise Opaque("memory that joins what threads bring")
        elif node.op is Ops.STORE:
            found.append(Effect(node, loops))
        else:
            raise Opaque(f"{node.op.name} as an effect")
    return found


@final
class Before:
    """Values of a kernel's nodes at points of its loops."""

    def __init__(
        self, terms: Terms, expand: Expand | None = None, sizes: Mapping[str, int] | None = None
    ) -> None:
        self.terms = terms
        self.sizes = sizes or {}
        self._expand = expand
        self._expansions: dict[tuple[Op, DType], Expansion | None] = {}
        self._known: dict[tuple[UOp, tuple[int, ...]], Term] = {}
        self._loops: dict[UOp, tuple[UOp, ...]] = {}
        self._tuples: dict[tuple[UOp, tuple[int, ...]], tuple[Term, ...]] = {}

    def _key(self, node: UOp, env: Env) -> tuple[UOp, tuple[int, ...]]:
        loops = self._loops.get(node)
        if loops is None:
            loops = self._loops[node] = tuple(sorted(ranges(node), key=lambda r: str(r.arg)))
        return node, tuple(env[r] for r in loops)

    def value(self, root: UOp, env: Env) -> Term:
        """The term of a node; it is followed without recursion except into loops."""
        stack = [root]
        while stack:
            node = stack[-1]
            key = self._key(node, env)
            if key in self._known:
                stack.pop()
                continue
            if node.op not in _OWN:
                pending = [s for s in self._sources(node) if self._key(s, env) not in self._known]
                if pending:
                    stack += pending
                    continue
            stack.pop()
            self._known[key] = self._compute(node, env)
        return self._known[self._key(root, env)]

    def number(self, node: UOp, env: Env) -> int:
        """An integer that does not depend on data."""
        found = self.terms.number(self.value(node, env))
        if found is None:
            raise Opaque("a place that depends on data")
        return int(found)

    @staticmethod
    def _sources(node: UOp) -> tuple[UOp, ...]:
        if node.op is Ops.INDEX:
            return node.src[1:]
        if node.op is Ops.WMMA:
            return node.src[:3]
        return node.src

    def _compute(self, node: UOp, env: Env) -> Term:
        op, terms = node.op, self.terms
        if node.dtype.lanes > 1:
            raise Opaque("vectors before the stages")
        if op is Ops.CONST:
            return terms.constant(node.dtype, node.arg)
        if op is Ops.RANGE:
            return terms.constant(node.dtype, env[node])
        if op is Ops.DEFINE_VAR:
            name, low, high = node.arg
            if name in self.sizes:
                return terms.constant(node.dtype, self.sizes[name])
            return terms.variable(name, node.dtype, low, high)
        if op is Ops.INDEX:
            return self._read(node, env)
        if op is Ops.REDUCE:
            return self._reduced(node, env)[0]
        if op is Ops.PICK:
            return self._reduced(node.src[0], env)[int(node.arg)]
        if op is Ops.SCAN:
            return self._scanned(node, env)
        if op is Ops.ONLINE:
            return self.value(node.src[0], env)
        if op is Ops.WMMA:
            a, b, c = (self._known[self._key(s, env)] for s in node.src[:3])
            x, y = (
                terms.apply(Ops.CAST, s.dtype, (v,), node.dtype)
                for s, v in zip(node.src, (a, b), strict=False)
            )
            product = terms.apply(node.arg.product, node.dtype, (x, y))
            return terms.apply(Ops.ADD, node.dtype, (product, c))
        if not op.is_alu:
            raise Opaque(op.name)
        src = tuple(self._known[self._key(s, env)] for s in node.src)
        return self.apply(node, src)

    def apply(self, node: UOp, src: tuple[Term, ...]) -> Term:
        """An op on terms: as the device will compute it, where it has to be put together."""
        of = node.src[-1].dtype.scalar
        if node.op is Ops.CHECK and of in _UNSIGNED and self.terms.number(src[1]) is not None:
            plain = _UNSIGNED[of]  # a negative number without its sign is a large one
            x, limit = (self.terms.apply(Ops.BITCAST, of, (s,), plain) for s in src[:2])
            return self.terms.apply(
                Ops.WHERE, of, (self.terms.apply(Ops.CMPLT, plain, (x, limit)), src[0], src[2])
            )
        narrow = of.is_float and of.bits < 32
        key = (node.op, float32 if narrow else of)
        if key not in self._expansions:
            self._expansions[key] = None if self._expand is None else self._expand(*key)
        expansion = self._expansions[key]
        if expansion is None:
            return self.terms.apply(
                node.op, of, src, node.dtype if node.op in (Ops.CAST, Ops.BITCAST) else None
            )
        if narrow:
            src = tuple(self.terms.apply(Ops.CAST, of, (s,), float32) for s in src)
        root, operands = expansion
        known = dict(zip(operands, src, strict=True))
        for n in toposort(root):
            if n.op is Ops.CONST:
                known[n] = self.terms.constant(n.dtype, n.arg)
            elif n not in known:
                to = n.dtype if n.op in (Ops.CAST, Ops.BITCAST) else None
                known[n] = self.terms.apply(n.op, n.src[-1].dtype, tuple(known[s] for s in n.src), to)
        found = known[root]
        return self.terms.apply(Ops.CAST, float32, (found,), node.dtype) if narrow else found

    # --- memory

    def _read(self, node: UOp, env: Env) -> Term:
        memory = node.src[0]
        gate = self._known[self._key(node.src[2], env)] if len(node.src) > 2 else None
        zero = self.terms.constant(
            node.dtype, False if node.dtype.is_bool else 0.0 if node.dtype.is_float else 0
        )
        open_ = True if gate is None else self.terms.number(gate)
        if open_ is False:
            return zero
        if memory.op is Ops.BUFFERIZE:
            found = self._local(memory, node, env)
        else:
            found = element(self.terms, memory, self._known[self._key(node.src[1], env)])
        if gate is None or open_ is not None:
            return found
        return self.terms.apply(Ops.WHERE, node.dtype, (gate, found, zero))

    def _local(self, memory: UOp, node: UOp, env: Env) -> Term:
        """What a local buffer holds at a place: its value there, computed where it is read."""
        place = self.number(node.src[1], env)
        inner = dict(env)
        for r in reversed(dimensions(memory)):
            size = self.number(r.src[0], env) if r.op is Ops.RANGE else 1
            if r.op is Ops.RANGE:
                inner[r] = place % size
            place //= size
        added = summed(memory)
        if not added:
            return self.value(memory.src[0], inner)
        values = (self.value(memory.src[0], {**inner, **point}) for point in self._points(added, env))
        return self._folded(Ops.ADD, memory.dtype, values)

    # --- loops

    def _points(self, loops: tuple[UOp, ...], env: Env) -> Iterator[dict[UOp, int]]:
        real = [r for r in loops if r.op is Ops.RANGE]
        sizes = [range(self.number(r.src[0], env)) for r in real]
        for point in itertools.product(*sizes):
            yield dict(zip(real, point, strict=True))

    def _folded(self, op: Op, dtype: DType, values: Iterator[Term]) -> Term:
        total: Term | None = None
        for value in values:
            total = value if total is None else self.terms.apply(op, dtype, (total, value))
        return self.terms.constant(dtype, identity(op.name, dtype)) if total is None else total

    def _reduced(self, node: UOp, env: Env) -> tuple[Term, ...]:
        key = self._key(node, env)
        if key not in self._tuples:
            found = []
            for value, op in zip(node.src, node.arg, strict=False):
                points = self._points(closed_ranges(node), env)
                if node.arg == LAST:
                    *_, last = points
                    found.append(self.value(value, {**env, **last}))
                else:
                    steps = (self.value(value, {**env, **point}) for point in points)
                    found.append(self._folded(op, value.dtype, steps))
            self._tuples[key] = tuple(found)
        return self._tuples[key]

    def _scanned(self, node: UOp, env: Env) -> Term:
        """Everything up to this step."""
        how, found = node.arg, parts(node)
        now = tuple(env[r] for r in found.loops if r.op is Ops.RANGE)
        total = None if found.start is None else self.value(found.start, env)
        if total is None and how.op is Ops.MULACC:
            total = self.terms.constant(node.dtype, neutral(how.op, node.dtype))
        for point in self._points(found.loops, env):
            if tuple(point.values()) > now:
                break
            values = [self.value(v, {**env, **point}) for v in found.values]
            if how.op is Ops.MULACC:
                assert total is not None
                total = self.terms.apply(Ops.MULACC, node.dtype, (values[0], total, values[1]))
            else:
                step = (total, values[0]) if total is not None else None
                total = values[0] if step is None else self.terms.apply(how.op, node.dtype, step)
        assert total is not None
        return total


_UNSIGNED = dict(zip(SIGNED, UNSIGNED, strict=True))
_OWN = frozenset((Ops.REDUCE, Ops.PICK, Ops.SCAN, Ops.RANGE, Ops.ONLINE))


def element(terms: Terms, memory: UOp, place: Term) -> Term:
    """What lies in memory; booleans lie there as bytes."""
    dtype = memory.dtype
    assert isinstance(dtype, PtrDType)
    if memory.op is not Ops.DEFINE_GLOBAL:
        raise Opaque(f"{memory.op.name} in a kernel")
    op, wide, arg, src = terms.nodes[place]
    while op is Ops.CAST and wide.is_int and _holds(wide, arg):  # the same number
        place = src[0]
        op, wide, arg, src = terms.nodes[place]
    at = terms.constant(index, int(arg)) if op is Ops.CONST else place
    if not dtype.elem.is_bool:
        return terms.element(memory.arg, dtype.elem, at)
    byte = terms.element(memory.arg, uint8, at)
    return terms.apply(Ops.CAST, uint8, (byte,), dtype.elem.scalar)


def _holds(wide: DType, narrow: DType) -> bool:
    """Whether every number of one integer type is one of another."""
    if not narrow.is_bounded_int or wide.is_index:
        return bool(narrow.is_int)
    return bool(wide.min <= narrow.min and narrow.max <= wide.max)
