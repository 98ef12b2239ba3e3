"""Range assignment: a kernel of tensor ops becomes loops over scalars.

A kernel comes in as `SINK(*ASSIGN(target, value))`, tensors over PARAMs. Every axis of a target becomes a
RANGE, and `value` is asked for its element at these ranges; movement ops only change the question. The answer
to (node, indices, gate) is computed once, so a row's maximum that is asked for by every column is one node,
which depends on the row and on nothing else. That is all that fusing a softmax takes.

A PAD adds its validity to the gate of what lies below it, so memory is read inside its bounds only, and
chooses zero outside.
"""

from __future__ import annotations

from functools import reduce

from morok.dtype import identity, void
from morok.dtype import index as index_dtype
from morok.errors import IRError
from morok.ir.bounds import vmax
from morok.ir.build import cast, define_global, rng, sink, store
from morok.ir.checks import guarded
from morok.ir.infer import Shape, Size, ranges, size_node, size_of, sorted_ranges
from morok.ir.memory import ALONE, is_alone
from morok.ir.node import UOp, alu, const, make, toposort
from morok.ir.ops import AxisKind, Ops
from morok.ir.provenance import Origin, here, place
from morok.ir.scan import scan
from morok.schedule.indexing import (
    ZERO,
    Indices,
    Running,
    both,
    in_stretches,
    known_shape,
    scanned_loop,
    simplified,
    source_indices,
)
from morok.schedule.kernel.ranges import Replacement, replace_loops
from morok.symbolic.validity import conjuncts

INTERNAL = Origin(None, 0, "schedule")
PASS_THROUGH = frozenset((Ops.CONTIGUOUS, Ops.DETACH, Ops.AFTER, Ops.RECOMPUTE, Ops.COPY))
_LEAVES = frozenset((Ops.CONST, Ops.DEFINE_VAR, Ops.BIND, Ops.VCONST))
_UNKNOWN = frozenset((Ops.DEFINE_VAR, Ops.BIND, Ops.INDEX))

_Key = tuple[UOp, Indices, UOp | None]


def new_loop(size: Size, number: int, kind: AxisKind = AxisKind.LOOP) -> UOp:
    """A loop over an axis. Its end is in normal form: simplifying an index must not make it another loop."""
    return rng(size if isinstance(size, int) else simplified(size), number, kind)


def output_ranges(sizes: Shape) -> Indices:
    """A loop for every axis that has more than one element."""
    return tuple(ZERO if size == 1 else new_loop(size, axis) for axis, size in enumerate(sizes))


def lower_kernel(kernel: UOp, ctx: object = None) -> UOp:
    """The kernel as loops over scalars. PARAM number n becomes DEFINE_GLOBAL n."""
    outer = here.origin
    try:
        lowering = Lowering(max((len(known_shape(assign.src[0])) for assign in kernel.src), default=0))
        effects = [lowering.effect(assign) for assign in kernel.src]
        return sink(*effects)
    finally:
        here.origin = outer


def saying(gate: UOp | None, indices: Indices) -> UOp | None:
    """Of a gate the parts that say something about indices.

    A row's sum that columns ask for, some of them under a condition, is one sum: whoever chooses does so
    above it. The others can hold, so somebody asks for the sum, and its memory may be read.
    """
    if gate is None:
        return None
    parts = list(conjuncts(gate))
    known = frozenset[UOp]().union(*map(ranges, indices))
    kept = {c for c in parts if not ranges(c) or vmax(c) == 0 or any(n.op in _UNKNOWN for n in toposort(c))}
    while near := [c for c in parts if c not in kept and ranges(c) & known]:
        kept.update(near)
        known = known.union(*map(ranges, near))
    return reduce(both, (c for c in parts if c in kept), None)


class Lowering:
    """Answers for one kernel. Reduction ranges are numbered after the ranges of the outputs."""

    def __init__(self, first_range: int = 0) -> None:
        self.answers: dict[_Key, UOp] = {}
        self.reduce_ranges: dict[_Key, tuple[UOp, ...]] = {}
        self.next_range = first_range
        self.running: Running | None = None  # the loop that something runs along

    def effect(self, assign: UOp) -> UOp:
        """One output: its loops, its place, its value."""
        target, value, *places = assign.src
        here.origin = assign.origin or INTERNAL
        if places:
            return self.scatter(assign)
        indices = output_ranges(known_shape(target))
        result = self.lower(value, indices)
        running = self.running
        if running is not None and running.length:
            # something runs along stretches of a loop: once more, with a loop over them and one inside
            outer = new_loop(size_of(running.loop.src[0]) // running.length, int(running.loop.arg[0]))
            inner = new_loop(running.length, self.next_range)
            self.next_range += 1
            cut = in_stretches(running, outer, inner)
            indices = tuple([cut if i is running.loop else i for i in indices])
            self.running = None
            result = self.lower(value, indices)
        here.origin = assign.origin or INTERNAL
        address = self.address(target, indices)
        loops = dict.fromkeys(r for i in indices for r in sorted_ranges(i))
        effect = make(Ops.END, void, (store(address, result), *loops))
        return effect if self.running is None else replace_loops(effect, dict([_in_order(self.running)]))

    def scatter(self, assign: UOp) -> UOp:
        """Rows that go to places known when it runs. Two may meet in one: those loops keep their order, but
        where each row is known to have a place of its own.

        Axes that target and places both begin with are apart: each of their steps has its own places.
        """
        target, value, places = assign.src
        own, count = known_shape(target), len(known_shape(places))
        apart = count + len(own) - 1 - len(known_shape(value))
        meeting = AxisKind.LOOP if is_alone(assign) else AxisKind.ORDERED
        indices = tuple(
            ZERO if size == 1 else new_loop(size, axis, kind)
            for axis, size in enumerate(known_shape(value))
            for kind in [meeting if apart <= axis < count else AxisKind.LOOP]
        )
        here.origin = assign.origin or INTERNAL
        row = cast(self.lower(places, indices[:count]), index_dtype)
        exists = alu(
            Ops.AND,
            alu(Ops.CMPLT, const(index_dtype, -1), row),
            alu(Ops.CMPLT, row, size_node(own[apart])),
        )
        address = self.address(target, (*indices[:apart], row, *indices[count:]), exists)
        result = self.lower(value, indices)
        here.origin = assign.origin or INTERNAL
        loops = [i for i in indices if i.op is Ops.RANGE]
        if is_alone(assign):
            return make(Ops.END, void, (make(Ops.STORE, void, (address, result), ALONE), *loops))
        if assign.arg is not None:
            result = alu(assign.arg, make(Ops.INDEX, value.dtype, address.src), result)
        return make(Ops.END, void, (store(address, result), *loops))

    def address(self, target: UOp, indices: Indices, gate: UOp | None = None) -> UOp:
        """Where an element of a target lies: through views down to the memory."""
        node = target
        while node.op is not Ops.PARAM:
            if node.op in PASS_THROUGH:
                node = node.src[0]
                continue
            if not node.op.is_movement or node.op in (Ops.PAD, Ops.EXPAND):
                raise IRError(
                    f"only a tensor or a part of one can be assigned to, not {node.op.name}",
                    place=place(node),
                )
            indices, _ = source_indices(node, indices)
            node = node.src[0]
        pointer = memory(node)
        return make(Ops.INDEX, pointer.dtype, (pointer, indices[0], *(() if gate is None else (gate,))))

    def lower(self, root: UOp, indices: Indices) -> UOp:
        """The element of `root` at the indices. Iterative: a graph may be 20,000 nodes deep."""
        answers = self.answers
        first: _Key = (root, indices, None)
        stack: list[tuple[_Key, list[_Key] | None]] = [(first, None)]
        while stack:
            key, questions = stack.pop()
            if key in answers:
                continue
            here.origin = key[0].origin or INTERNAL
            if questions is None:
                questions = self.questions(key)
                waiting = [(q, None) for q in questions if q not in answers]
                if waiting:
                    stack.append((key, questions))
                    stack += reversed(waiting)
                    continue
            answers[key] = self.answer(key, [answers[q] for q in questions])
        return answers[first]

    def questions(self, key: _Key) -> list[_Key]:
        """What has to be known before `key` can be answered."""
        asked = self._asked(key)
        if key[2] is None:
            return asked
        return [
            (s, at, saying(gate, at)) if s.op is Ops.REDUCE_AXIS else (s, at, gate) for s, at, gate in asked
        ]

    def _asked(self, key: _Key) -> list[_Key]:
        node, indices, gate = key
        op = node.op
        if op in _LEAVES or op is Ops.PARAM or op is Ops.IOTA or 0 in known_shape(node):
            return []
        if op.is_movement:
            below, valid = source_indices(node, indices)
            return [(node.src[0], below, both(gate, valid))]
        if op in PASS_THROUGH:
            return [(node.src[0], indices, gate)]
        if op is Ops.REDUCE_AXIS:
            inside = self.reduced(key)
            return [] if inside is None else [(node.src[0], inside, gate)]
        if op is Ops.SCAN_AXIS:
            return [(s, indices, gate) for s in node.src]
        if op.is_alu:
            return [(s, indices if known_shape(s) else (), gate) for s in node.src]
        raise IRError(f"{op.name} cannot be computed inside a kernel", place=place(node))

    def reduced(self, key: _Key) -> Indices | None:
        """The source's indices, with a loop for every reduced axis; None if a loop would never run."""
        node, indices, _ = key
        sizes = known_shape(node.src[0])
        below, loops = list(indices), []
        for axis in node.arg[1]:
            if sizes[axis] == 0:
                return None
            if sizes[axis] == 1:
                continue
            loop = new_loop(sizes[axis], self.next_range, AxisKind.REDUCE)
            self.next_range += 1
            below[axis] = loop
            loops.append(loop)
        self.reduce_ranges[key] = tuple(loops)
        return tuple(below)

    def scan(self, node: UOp, indices: Indices, found: list[UOp]) -> UOp:
        """A running reduction along one of the loops over outputs."""
        op, axis = node.arg
        if known_shape(node)[axis] == 1:
            return scan(found, op, ())
        running = scanned_loop(node, indices)
        self.running = self.running or running
        if running is None or self.running != running:
            raise IRError("a running reduction is not asked for in order", place=place(node))
        return scan(found, op, (running.loop,))

    def answer(self, key: _Key, found: list[UOp]) -> UOp:
        node, indices, gate = key
        op, dtype = node.op, node.dtype
        if op is Ops.CONST or op is Ops.DEFINE_VAR or op is Ops.VCONST:
            return node
        if op is Ops.BIND:
            return node.src[0]
        if 0 in known_shape(node):  # never evaluated
            return const(dtype, 0)
        if op is Ops.PARAM:
            guard = () if gate is None else (gate,)
            return make(Ops.INDEX, dtype, (memory(node), indices[0], *guard))
        if op is Ops.IOTA:
            return cast(indices[node.arg], dtype)
        if op is Ops.PAD:
            valid = source_indices(node, indices)[1]
            return found[0] if valid is None else make(Ops.WHERE, dtype, (valid, found[0], const(dtype, 0)))
        if op.is_movement or op in PASS_THROUGH:
            return found[0]
        if op is Ops.REDUCE_AXIS:
            if not found:
                return const(dtype, identity(node.arg[0].name, dtype))
            loops = self.reduce_ranges[key]
            return make(Ops.REDUCE, dtype, (found[0], *loops), (node.arg[0],)) if loops else found[0]
        if op is Ops.SCAN_AXIS:
            return self.scan(node, indices, found)
        made = make(op, dtype, tuple(found), node.arg)
        # a position that nobody asks for may be wrong
        return guarded(made, gate) if op is Ops.CHECK and gate is not None else made


def _in_order(running: Running) -> tuple[UOp, Replacement]:
    """A loop that something runs along: its steps follow each other, in the direction that is asked for."""
    r = running.loop
    loop = new_loop(size_of(r.src[0]), int(r.arg[0]), AxisKind.ORDERED)
    last = alu(Ops.SUB, r.src[0], const(r.dtype, 1))
    return r, (simplified(alu(Ops.SUB, last, loop)) if running.backwards else loop, (loop,))


def memory(param: UOp) -> UOp:
    """The pointer that a placeholder stands for."""
    number, size, _ = param.arg
    return define_global(param.dtype, size, number)
