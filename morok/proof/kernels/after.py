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
from morok.ir.bounds import bounds
from morok.ir.node import UOp, toposort
from morok.ir.ops import AxisKind, Ops
from morok.proof.kernels.before import Opaque, element
from morok.proof.kernels.linear import Sum, Sums
from morok.proof.kernels.points import LEAVES
from morok.proof.kernels.terms import Term, Terms
from morok.proof.kernels.walk import Access, Closer, read_list

_MOST = 20_000  # steps of the search for passes
Env = dict[UOp, int]
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
        closer = Closer()
        for access in self.listing.accesses:
            if access.writes and access.space is AddrSpace.GLOBAL:
                self.stores[access.memory.arg].append(access)
        self.slicer = Slicer(self)
        self._slices: dict[tuple[Access, int], Slice] = {}
        self._copies: dict[tuple[Access, int, tuple[int, ...]], Term] = {}
        written = [a for a in self.listing.accesses if a.writes and a.space is not AddrSpace.REG]
        self._wheres = {a: closer.lane(a.address.src[1]) for a in written}
        self._data = closer.data
        self._sums = Sums(self._wheres.values())

    # --- who writes an element

    def writers(self, buffer: int, place: int) -> list[Writer]:
        """All passes that write it, in no order."""
        found = []
        for access in self.stores[buffer]:
            total = self._sums.of(self._wheres[access])
            for lane in range(access.lanes):
                passes = self._passes(access, total, place - lane)
                found += [Writer(access, lane, env) for env in passes if self._open(access, lane, env)]
        return found

    def _passes(
        self, access: Access, total: Sum, place: int, given: Mapping[UOp, int] | None = None
    ) -> Iterator[Env]:
        """Values of the loops and hardware indices around an access for which its place is this one."""
        owner = {digit: leaf for leaf, digits in self._sums.digits.items() for digit in digits}
        for atom, _ in total.terms:
            if owner.get(atom, atom).op not in LEAVES or atom in self._data:
                raise Opaque("a place that is no sum of loops")
        inside = {a for a, _ in total.terms}
        leaves = [*access.loops, *self.listing.specials]
        for leaf in leaves:
            if leaf not in inside and not any(owner.get(a) is leaf for a in inside):
                total = Sum(total.constant, (*total.terms, (leaf, 0)))
        for values in self._solutions(total, place, given or {}):
            env: Env = {}
            for atom, value in values.items():
                whole = owner.get(atom)
                if whole is None:
                    env[atom] = value
                else:
                    step = dict(self._sums.known[whole].terms)[atom]
                    env[whole] = env.get(whole, 0) + step * value
            if all(env[leaf] < self._end(leaf, env) for leaf in leaves if leaf in env):
                yield env

    def _end(self, leaf: UOp, env: Env) -> int:
        end = self._concrete(leaf.src[0], env)
        return end

    def _solutions(self, total: Sum, place: int, given: Mapping[UOp, int]) -> Iterator[dict[UOp, int]]:
        """All values of the atoms; of those that do not move the place only the last, which writes last."""
        order = sorted(total.terms, key=lambda t: -abs(t[1]))
        spans = [(0, 0)] * (len(order) + 1)
        ends = []
        for atom, _ in order:
            ends.append((given[atom], given[atom]) if atom in given else self._ends(atom))
        for i in range(len(order) - 1, -1, -1):
            f, (low, high) = order[i][1], ends[i]
            a, b = sorted((f * low, f * high))
            spans[i] = (spans[i + 1][0] + a, spans[i + 1][1] + b)
        stack: list[tuple[int, int, tuple[int, ...]]] = [(0, place - total.constant, ())]
        looked = 0
        while stack:
            i, left, chosen = stack.pop()
            looked += 1
            if looked > _MOST:
                raise Opaque("too many passes that could write a place")
            if not spans[i][0] <= left <= spans[i][1]:
                continue
            if i == len(order):
                yield dict(zip((a for a, _ in order), chosen, strict=True))
                continue
            f, (low, high) = order[i][1], ends[i]
            if f == 0:
                choices = range(low, high + 1) if high - low < 64 else range(high, high + 1)
            else:
                near, far = left - spans[i + 1][1], left - spans[i + 1][0]
                near, far = (near, far) if f > 0 else (far, near)
                choices = range(max(low, -(-near // f)), min(high, far // f) + 1)
            stack += [(i + 1, left - f * x, (*chosen, x)) for x in choices]

    def _ends(self, atom: UOp) -> tuple[int, int]:
        if atom.op is Ops.DEFINE_VAR and atom.arg[0] in self.sizes:
            value = self.sizes[atom.arg[0]]
            return value, value
        low, high = bounds(atom)
        return int(low), int(high)

    def _open(self, access: Access, lane: int, env: Mapping[UOp, int]) -> bool:
        conditions = [(c, 0) for c in access.conditions]
        if len(access.address.src) > 2:
            gate = access.address.src[2]
            conditions.append((gate, lane if gate.dtype.lanes > 1 else 0))
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
        key = (writer.access, writer.lane)
        if key not in self._slices:
            self._slices[key] = self.slicer.slice(writer)
        slice_ = self._slices[key]
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
                    raise Opaque("memory that nobody has written") from None

    def filled(self, slot: Slot, env: Env) -> Term:
        """What has been copied to a place of local memory, under the loops that are open."""
        memory, place = slot
        own = {leaf: env[leaf] for leaf in env}
        found: list[Writer] = []
        for access in self.slicer.writes[memory]:
            total = self._sums.of(self._wheres[access])
            for lane in range(access.lanes):
                passes = self._passes(access, total, place - lane, own)
                found += [Writer(access, lane, one) for one in passes]
        if not found:
            raise Opaque("local memory that nobody has written")
        writer = self.last(found)
        key = (writer.access, writer.lane, tuple(writer.env[r] for r in writer.access.loops))
        if key not in self._copies:
            run = _Run(self, {**own, **writer.env})
            run.pure = True
            self._copies[key] = run.lane(writer.access.node.src[1], writer.lane)
        return self._copies[key]


_FOREIGN = frozenset(
    (Ops.SHUFFLE, Ops.WMMA, Ops.LDMATRIX, Ops.ASYNC_COPY, Ops.PHASE_BARRIER, Ops.BARRIER, Ops.CUSTOM)
)


@final
@dataclass
class Slice:
    """What a lane of a store needs: loads and stores in the order of the list, in their loops and IFs."""

    steps: list[Any]  # (LOAD or STORE, lanes), (IF, steps), (RANGE, steps, what a pass makes anew, is around)
    carried: set[UOp]  # loops around the store that change what was written before them
    bodies: dict[UOp, list[Any]]  # of the loops around the store, for passes before its own


@final
class Slicer:
    """Finds out what a value needs."""

    def __init__(self, after: After) -> None:
        self.after = after
        self.writes: dict[UOp, list[Access]] = defaultdict(list)
        for access in after.listing.accesses:
            if access.writes and access.space is not AddrSpace.GLOBAL:
                self.writes[access.memory].append(access)
        self.filled = {m for m, group in self.writes.items() if self._is_filled(m, group)}

    def _is_filled(self, memory: UOp, group: list[Access]) -> bool:
        """Local memory that holds copies of other memory: what it holds follows from the place."""
        if memory.op is not Ops.DEFINE_LOCAL or any(a.conditions or len(a.address.src) > 2 for a in group):
            return False
        for access in group:
            for n in toposort(access.node.src[1]):
                if n.op is Ops.LOAD and _memory(n.src[0]).op is not Ops.DEFINE_GLOBAL:
                    return False
        last = max(a.position for a in group)
        reads = [a for a in self.after.listing.accesses if a.memory is memory and not a.writes]
        return all(a.position > last for a in reads)

    def slice(self, writer: Writer) -> Slice:
        wanted: set[tuple[UOp, int]] = set()
        stores: dict[UOp, set[int]] = defaultdict(set)
        stack: list[tuple[UOp, int]] = []
        asked: set[tuple[UOp, int | None]] = set()

        def ask(node: UOp, lane: int) -> None:
            if (node, lane) not in wanted:
                wanted.add((node, lane))
                stack.append((node, lane))

        def address(node: UOp, lane: int) -> None:
            ask(node.src[1], 0)
            if len(node.src) > 2:
                ask(node.src[2], lane if node.src[2].dtype.lanes > 1 else 0)

        ask(writer.access.node.src[1], writer.lane)
        while stack:
            node, lane = stack.pop()
            if node.op is not Ops.LOAD:
                for s, i in sources(node, lane):
                    ask(s, i)
                continue
            address(node.src[0], lane)
            if len(node.src) > 1:
                ask(node.src[1], lane)
            memory = _memory(node.src[0])
            if memory.op is Ops.DEFINE_GLOBAL or memory in self.filled:
                continue
            where = node.src[0].src[1]
            place = where.arg + lane if where.op is Ops.CONST else None
            if (memory, place) in asked:
                continue
            asked.add((memory, place))
            for access in self.writes[memory]:
                store, at = access.node, access.address.src[1]
                for i in range(store.src[1].dtype.lanes):
                    if place is None or at.op is not Ops.CONST or at.arg + i == place:
                        if i not in stores[store]:
                            stores[store].add(i)
                            address(store.src[0], i)
                            ask(store.src[1], i)
                            for condition in access.conditions:
                                ask(condition, 0)
        return self._made(writer, wanted, stores)

    def _made(self, writer: Writer, wanted: set[tuple[UOp, int]], stores: dict[UOp, set[int]]) -> Slice:
        lanes: dict[UOp, list[int]] = defaultdict(list)
        for node, lane in wanted:
            lanes[node].append(lane)
        open_: list[list[Any]] = [[]]
        anew: list[list[tuple[UOp, int]]] = []
        whole: dict[UOp, tuple[list[Any], list[tuple[UOp, int]]]] = {}
        so_far: list[list[Any]] = []
        for position, node in enumerate(self.after.list):
            if position == writer.access.position:
                so_far = [list(part) for part in open_]
            if node.op is Ops.RANGE:
                open_.append([])
                anew.append([(node, 0)])
            elif node.op is Ops.END:
                body, made = whole[node.src[1]] = (open_.pop(), anew.pop())
                if body:
                    open_[-1].append((node.src[1], body, made, False))
                if anew:
                    anew[-1] += made
                continue
            elif node.op is Ops.IF:
                open_.append([])
            elif node.op is Ops.ENDIF:
                body = open_.pop()
                if body:
                    open_[-1].append((node.src[0], body))
            elif node.op is Ops.STORE and stores.get(node):
                open_[-1].append((node, sorted(stores[node])))
            elif node.op is Ops.LOAD and node in lanes:
                open_[-1].append((node, lanes[node]))
            if anew and node in lanes:
                anew[-1] += [(node, lane) for lane in lanes[node]]
        # what is still open at the store, one inside of the other; IFs around it hold
        loops = writer.access.loops
        for extra in so_far[len(loops) + 1 :]:
            so_far[len(loops)] += extra
        steps = so_far[len(loops)]
        for i in range(len(loops) - 1, -1, -1):
            steps = [*so_far[i], (loops[i], steps, whole[loops[i]][1], True)]
        return Slice(steps, self._carries(writer, stores), {r: whole[r][0] for r in loops})

    def _carries(self, writer: Writer, stores: Mapping[UOp, set[int]]) -> set[UOp]:
        bodies = self.after.listing.bodies
        carried = set()
        by_memory: dict[UOp, list[Access]] = defaultdict(list)
        for access in self.after.listing.accesses:
            if stores.get(access.node):
                by_memory[access.memory].append(access)
        for loop in writer.access.loops:
            start, stop = bodies[loop]
            for group in by_memory.values():
                inside = [start < a.position < stop for a in group]
                if any(inside) and not all(inside) and loop.arg[1] is not AxisKind.THREAD:
                    carried.add(loop)
        return carried


@final
class _Run:
    """The list at work."""

    def __init__(self, after: After, env: Env) -> None:
        self.after = after
        self.terms = after.terms
        self.env = env
        self.pure = False  # loads are made where they are asked for: memory of the device does not change
        self.values: dict[tuple[UOp, int], Term] = {}
        self.memory: dict[tuple[UOp, int], Term] = {}

    def follow(self, writer: Writer, slice_: Slice, carried: set[UOp]) -> Term:
        self.target, self.slice, self.carried = writer, slice_, carried
        self._run(slice_.steps)
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
                found = self.terms.number(self.lane(node.src[0], 0))
                if found is None:
                    raise Opaque("a branch that depends on data")
                if found:
                    self._run(step[1])
            else:
                self._loop(*step)

    def _loop(self, node: UOp, steps: list[Any], anew: list[tuple[UOp, int]], around: bool) -> None:
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

    def _pass(self, node: UOp, value: int, anew: list[tuple[UOp, int]], steps: list[Any]) -> None:
        self.env[node] = value
        for key in anew:
            self.values.pop(key, None)
        self._run(steps)

    def _gate(self, address: UOp, lane: int) -> Term | None:
        if len(address.src) < 3:
            return None
        return self.lane(address.src[2], lane if address.src[2].dtype.lanes > 1 else 0)

    def _place(self, address: UOp, lane: int) -> Slot:
        place = self.terms.number(self.lane(address.src[1], 0))
        if place is None:
            raise Opaque("a place in local memory that depends on data")
        return _memory(address), int(place) + lane

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
        memory = _memory(address)
        if memory.op is Ops.DEFINE_GLOBAL:
            place = self.lane(address.src[1], 0)
            if lane:
                dtype = address.src[1].dtype
                place = self.terms.apply(Ops.ADD, dtype, (place, self.terms.constant(dtype, lane)))
            found = element(self.terms, memory, place)
        elif memory in self.after.slicer.filled:
            found = self.after.filled(self._place(address, lane), self.env)
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
        stack = [(root, lane)]
        values = self.values
        while stack:
            key = stack[-1]
            if key in values:
                stack.pop()
                continue
            node, i = key
            if node.op is Ops.LOAD:
                if not self.pure:
                    raise Opaque("a value that is read outside of its loop")
                values[key] = self._load(node, i)
                continue
            needs = sources(node, i)
            pending = [s for s in needs if s not in values]
            if pending and node.op is not Ops.RANGE:
                stack += pending
                continue
            stack.pop()
            values[key] = self._lane(node, i, tuple(values[s] for s in needs if s in values))
        return values[root, lane]

    def _lane(self, node: UOp, lane: int, src: tuple[Term, ...]) -> Term:
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
        if not op.is_alu:
            raise Opaque(op.name)
        to = node.dtype if op in (Ops.CAST, Ops.BITCAST) else None
        return terms.apply(op, node.src[-1].dtype, src, to)


def sources(node: UOp, lane: int) -> list[tuple[UOp, int]]:
    """The lanes that a lane is computed from."""
    op = node.op
    if op in (Ops.RANGE, Ops.SPECIAL):
        return [(node.src[0], 0)]
    if op is Ops.GEP:
        return [(node.src[0], node.arg[lane])]
    if op in (Ops.VECTORIZE, Ops.CAT):
        for s in node.src:
            if lane < s.dtype.lanes:
                return [(s, lane)]
            lane -= s.dtype.lanes
    if op is Ops.VREDUCE:
        return [(node.src[0], i) for i in range(node.src[0].dtype.lanes)]
    if op.is_alu:
        if op is Ops.BITCAST and node.src[0].dtype.lanes != node.dtype.lanes:
            raise Opaque("bits of vectors")
        return [(s, lane if s.dtype.lanes > 1 else 0) for s in node.src]
    return []


def _memory(address: UOp) -> UOp:
    node = address
    while node.op in (Ops.INDEX, Ops.AFTER):
        node = node.src[0]
    assert isinstance(node.dtype, PtrDType)
    return node
