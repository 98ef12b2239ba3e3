"""A list of instructions, followed to one element of its results, as terms.

Which passes of the loops write the element follows from its place. Of the list only what that value needs is
run: the loops around the store at that pass (from their start, if they carry something from pass to pass),
the others in full, and of vectors only the lanes that matter.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, final

from morok.dtype import AddrSpace, PtrDType, index
from morok.ir.node import UOp
from morok.ir.ops import AxisKind, Ops
from morok.proof.kernels.before import Opaque, element
from morok.proof.kernels.lanes import Lane, compute, lane_of, memory_of, sources_of
from morok.proof.kernels.passes import Env, Passes
from morok.proof.kernels.points import LEAVES
from morok.proof.kernels.slices import Slice, Slicer
from morok.proof.kernels.terms import Term, Terms
from morok.proof.kernels.walk import Access, read_list

Slot = tuple[UOp, int]


class Carried(Exception):
    """A value that an earlier pass of a loop has left."""


@final
@dataclass(frozen=True, eq=False)
class Writer:
    """A pass of the loops in which an instruction writes an element, with one of its lanes."""

    access: Access
    lane: int
    env: Mapping[UOp, int]


@final
class After:
    """A list, ready to be followed."""

    def __init__(self, linear: UOp, terms: Terms, sizes: Mapping[str, int] | None = None) -> None:
        self.list = linear.src
        self.terms = terms
        self.sizes = sizes or {}
        self.listing = read_list(linear)
        for node in self.list:
            if node.op in _FOREIGN:
                raise Opaque(f"threads that work together ({node.op.name})")
        self.stores: dict[int, list[Access]] = defaultdict(list)
        for access in self.listing.accesses:
            if access.writes and access.space is AddrSpace.GLOBAL:
                self.stores[access.memory.arg].append(access)
        self.slicer = Slicer(self.list, self.listing)
        self._slices: dict[tuple[Access, int], Slice] = {}
        self._readers = {a.node: a for a in self.listing.accesses if not a.writes}
        self._held: dict[tuple[Access, int, tuple[int, ...]], Term] = {}
        self._entered: dict[tuple[Access, int, tuple[int, ...]], _Run] = {}
        written = [a for a in self.listing.accesses if a.writes and a.space is not AddrSpace.REG]
        self._passes = Passes(written, self.listing.specials, self.sizes)

    # --- who writes an element

    def writers(self, buffer: int, place: int) -> list[Writer]:
        """All passes that write it, in no order."""
        found = []
        for access in self.stores[buffer]:
            for lane in range(access.lanes):
                passes = self._touching(access, place - lane, {})
                found += [Writer(access, lane, env) for env in passes if self._open(access, lane, env)]
        return found

    def _touching(self, access: Access, place: int, given: Env, near: Env | None = None) -> Iterator[Env]:
        """The passes that touch a place, of those that are made at all."""
        leaves = [leaf for leaf in self._passes.leaves(access) if leaf.src[0].op is not Ops.CONST]
        for env in self._passes.of(access, place, given, near):
            if all(env[leaf] < self._concrete(leaf.src[0], env) for leaf in leaves):
                yield env

    def _open(self, access: Access, lane: int, env: Mapping[UOp, int]) -> bool:
        conditions = [(c, 0) for c in access.conditions]
        if len(access.address.src) > 2:
            gate = access.address.src[2]
            conditions.append((gate, lane_of(gate, lane)))
        run = _Run(self, dict(env))
        for condition, at in conditions:
            found = self.terms.number(run.lane(condition, at))
            if found is None:
                raise Opaque("a store that depends on data")
            if not found:
                return False
        return True

    def _concrete(self, node: UOp, env: Mapping[UOp, int]) -> int:
        found = self.terms.number(_Run(self, dict(env)).lane(node, 0))
        if found is None:
            raise Opaque("a loop whose end depends on data")
        return int(found)

    # --- what it writes

    def last(self, writers: list[Writer]) -> Writer:
        """The one that comes last in the order of the list."""
        return max(writers, key=lambda w: self._order(w))

    def _order(self, w: Writer) -> tuple[int, ...]:
        key: list[int] = []
        for loop in w.access.loops:
            key += [self.listing.bodies[loop][0], w.env[loop]]
        return (*key, w.access.position)

    def value(self, writer: Writer) -> Term:
        """The term that a writer writes."""
        slice_ = self._slice(writer)
        carried = set(slice_.carried)
        while True:
            run = _Run(self, dict(writer.env))
            try:
                return run.follow(writer, slice_, carried)
            except Carried:
                # the innermost loop that is not run from its start yet
                for loop in reversed(writer.access.loops):
                    if loop not in carried and loop.arg[1] is not AxisKind.THREAD:
                        carried.add(loop)
                        break
                else:
                    raise Opaque("memory that is read before it is written") from None

    def _slice(self, writer: Writer) -> Slice:
        key = (writer.access, writer.lane)
        if key not in self._slices:
            self._slices[key] = self.slicer.slice(*key)
        return self._slices[key]

    # --- local memory that is filled before it is read

    def filled(self, slot: Slot, reader: UOp, env: Env) -> Term:
        """What a place of local memory holds when it is read in the pass of the loops that is open."""
        memory, place = slot
        access = self._readers[reader]
        now = self._order(Writer(access, 0, env))
        same = {loop: env[loop] for loop in access.loops if loop.arg[1] is AxisKind.THREAD}
        same |= {leaf: env[leaf] for leaf in self.listing.specials}
        near = {loop: env[loop] for loop in access.loops}
        found: list[Writer] = []
        for write in self.slicer.writes[memory]:
            for lane in range(write.lanes):
                passes = (Writer(write, lane, one) for one in self._touching(write, place - lane, same, near))
                found += [writer for writer in passes if self._order(writer) < now]
        if not found:  # anything: a value that depends on it is no value of the kernel
            number = _UNWRITTEN + self.slicer.numbers[memory]
            return self.terms.element(number, access.elem, self.terms.constant(index, place))
        writer = self.last(found)
        key = (writer.access, writer.lane, self._pass_of(writer))
        if key not in self._held:
            self._held[key] = self._filling(writer)
        return self._held[key]

    def _pass_of(self, writer: Writer, but: UOp | None = None) -> tuple[int, ...]:
        return tuple(writer.env[leaf] for leaf in self._passes.leaves(writer.access) if leaf is not but)

    def _filling(self, writer: Writer) -> Term:
        """Like `value`; what comes before the innermost loop is run once for all passes of that loop."""
        slice_, loops = self._slice(writer), writer.access.loops
        if not loops or slice_.carried:
            return self.value(writer)
        key = (writer.access, writer.lane, self._pass_of(writer, loops[-1]))
        try:
            if key not in self._entered:
                run = _Run(self, dict(writer.env))
                run.enter(writer, slice_)
                self._entered[key] = run
            return self._entered[key].inside(writer)
        except Carried:
            return self.value(writer)


_UNFOLLOWED = {Ops.LOAD: "a value that is read outside of its loop", Ops.BITCAST: "bits of vectors"}
_UNWRITTEN = 1 << 20  # buffers of a kernel are fewer
_FOREIGN = frozenset((
    Ops.SHUFFLE, Ops.WMMA, Ops.LDMATRIX, Ops.ASYNC_COPY, Ops.MBARRIER, Ops.BARRIER, Ops.TILE_PRODUCT,
))  # fmt: skip


@final
class _Run:
    """The list at work."""

    def __init__(self, after: After, env: Env) -> None:
        self.after = after
        self.terms = after.terms
        self.env = env
        self.values: dict[Lane, Term] = {}
        self.memory: dict[Slot, Term] = {}

    def follow(self, writer: Writer, slice_: Slice, carried: set[UOp]) -> Term:
        self.target, self.slice, self.carried = writer, slice_, carried
        self._run(slice_.steps)
        return self.lane(writer.access.node.src[1], writer.lane)

    def enter(self, writer: Writer, slice_: Slice) -> None:
        """Everything before the innermost loop around the store, whose passes are then run one by one."""
        self.target, self.slice, self.carried = writer, slice_, set()
        steps = slice_.steps
        for loop in writer.access.loops[:-1]:
            *before, (node, inner, anew, _) = steps
            assert node is loop
            self._run(before)
            self._start(node, writer.env[node], anew)
            steps = inner
        *before, self._innermost = steps
        self._run(before)
        self._before = dict(self.memory)

    def inside(self, writer: Writer) -> Term:
        """A pass of that loop; passes leave each other nothing."""
        node, steps, anew, _ = self._innermost
        self.memory = dict(self._before)
        self._pass(node, writer.env[node], anew, steps)
        return self.lane(writer.access.node.src[1], writer.lane)

    def _run(self, steps: list[Any]) -> None:
        for step in steps:
            node = step[0]
            if node.op is Ops.STORE:
                for lane in step[1]:
                    self._store(node, lane)
            elif node.op is Ops.LOAD:
                for lane in step[1]:
                    self.values[node, lane] = self._load(node, lane)
            elif node.op is Ops.IF:
                self._branch(self.lane(node.src[0], 0), step[1])
            else:
                self._loop(*step)

    def _branch(self, condition: Term, steps: list[Any]) -> None:
        """Taken, not taken, or both: then what memory holds afterwards depends on the condition."""
        found = self.terms.number(condition)
        if found is not None:
            if found:
                self._run(steps)
            return
        before = dict(self.memory)
        self._run(steps)
        for (memory, place), value in list(self.memory.items()):
            old = before.get((memory, place))
            if old is None:
                raise Opaque("memory that a branch writes first, which depends on data")
            if old != value:
                assert isinstance(memory.dtype, PtrDType)
                chosen = self.terms.apply(Ops.WHERE, memory.dtype.elem.scalar, (condition, value, old))
                self.memory[memory, place] = chosen

    def _loop(self, node: UOp, steps: list[Any], anew: list[Lane], around: bool) -> None:
        """All passes; of a loop around the store those up to its own, which ends there."""
        if around:
            last = self.target.env[node]
            for value in range(0 if node in self.carried else last, last):
                self._pass(node, value, anew, self.slice.bodies[node])
            self._pass(node, last, anew, steps)
            return
        count = self.terms.number(self.lane(node.src[0], 0))
        if count is None:
            raise Opaque("a loop whose end depends on data")
        for value in range(count):
            self._pass(node, value, anew, steps)
        self.env.pop(node, None)  # only loops that are open say which pass has filled local memory

    def _pass(self, node: UOp, value: int, anew: list[Lane], steps: list[Any]) -> None:
        self._start(node, value, anew)
        self._run(steps)

    def _start(self, node: UOp, value: int, anew: list[Lane]) -> None:
        self.env[node] = value
        for key in anew:
            self.values.pop(key, None)

    def _gate(self, address: UOp, lane: int) -> Term | None:
        if len(address.src) < 3:
            return None
        return self.lane(address.src[2], lane_of(address.src[2], lane))

    def _place(self, address: UOp, lane: int) -> Slot:
        place = self.terms.number(self.lane(address.src[1], 0))
        if place is None:
            raise Opaque("a place in local memory that depends on data")
        return memory_of(address), int(place) + lane

    def _store(self, node: UOp, lane: int) -> None:
        gate = self._gate(node.src[0], lane)
        open_ = True if gate is None else self.terms.number(gate)
        if open_ is False:
            return
        slot = self._place(node.src[0], lane)
        value = self.lane(node.src[1], lane)
        if open_ is None:
            if slot not in self.memory:
                raise Carried
            assert gate is not None
            value = self.terms.apply(Ops.WHERE, node.src[1].dtype, (gate, value, self.memory[slot]))
        self.memory[slot] = value

    def _load(self, node: UOp, lane: int) -> Term:
        address = node.src[0]
        gate = self._gate(address, lane)
        open_ = True if gate is None else self.terms.number(gate)
        if open_ is False:
            return self.lane(node.src[1], lane)
        memory = memory_of(address)
        if memory.op is Ops.DEFINE_GLOBAL:
            place = self.lane(address.src[1], 0)
            if lane:
                dtype = address.src[1].dtype
                place = self.terms.apply(Ops.ADD, dtype, (place, self.terms.constant(dtype, lane)))
            found = element(self.terms, memory, place)
        elif memory in self.after.slicer.filled:
            found = self.after.filled(self._place(address, lane), node, self.env)
        else:
            slot = self._place(address, lane)
            if slot not in self.memory:
                raise Carried
            found = self.memory[slot]
        if gate is None or open_ is not None:
            return found
        return self.terms.apply(Ops.WHERE, node.dtype, (gate, found, self.lane(node.src[1], lane)))

    # --- lanes of values

    def lane(self, root: UOp, lane: int) -> Term:
        """A lane, computed now if nobody has; loads are made where they stand in the list."""
        return compute((root, lane), self.values, self._sources, self._lane)

    @staticmethod
    def _sources(node: UOp, lane: int) -> list[Lane] | None:
        if node.op in LEAVES:  # their values are known
            return []
        return sources_of(node, lane)

    def _lane(self, node: UOp, lane: int, src: tuple[Term, ...] | None) -> Term:
        if src is None:
            raise Opaque(_UNFOLLOWED.get(node.op, node.op.name))
        op, terms = node.op, self.terms
        if op is Ops.CONST:
            return terms.constant(node.dtype, node.arg)
        if op is Ops.VCONST:
            return terms.constant(node.dtype, node.arg[lane])
        if op in LEAVES:
            if node in self.env:
                return terms.constant(node.dtype, self.env[node])
            if op is Ops.DEFINE_VAR:
                name, low, high = node.arg
                if name in self.after.sizes:
                    return terms.constant(node.dtype, self.after.sizes[name])
                return terms.variable(name, index, low, high)
            raise Opaque(f"{node.arg} outside of its loop")
        if op in (Ops.GEP, Ops.VECTORIZE, Ops.CAT):
            return src[0]
        if op is Ops.VREDUCE:
            total = src[0]
            for x in src[1:]:
                total = terms.apply(node.arg, node.dtype, (total, x))
            return total
        to = node.dtype if op in (Ops.CAST, Ops.BITCAST) else None
        return terms.apply(op, node.src[-1].dtype, src, to)
