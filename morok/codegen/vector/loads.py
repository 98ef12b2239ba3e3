"""Stage 13, explicit loads: a read was an INDEX with the element's type; now it is a LOAD from an address."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

from morok.codegen.vector.indices import Root, factor, join, lane_conditions, places, split
from morok.codegen.vector.vectors import concat, splat, swizzle, vector_constant
from morok.dtype import AddrSpace, PtrDType, void
from morok.ir.node import UOp, alu, const, make, toposort
from morok.ir.ops import Ops
from morok.machine.machine import Machine
from morok.rewrite.rules import Rules, unproved, why
from morok.rewrite.ruleset import rules
from morok.rewrite.terms import HEADS, Head, Many, Var

FARTHEST = 4  # elements from one to the next that are read with all that lies between


def add_load(node: UOp) -> UOp | None:
    """INDEX with an element's type → LOAD(INDEX with a pointer's type); 0 where the gate is false."""
    base = node.src[0].dtype
    if node.dtype.is_ptr or not isinstance(base, PtrDType):
        return None
    address = make(Ops.INDEX, base.vec(node.dtype.lanes), node.src, node.arg)
    gated = node.src[-1].dtype.is_bool  # a place is a number
    return make(Ops.LOAD, node.dtype, (address, const(node.dtype, 0)) if gated else (address,))


def with_gaps(node: UOp, ctx: Any) -> UOp | None:
    """A read of every second element, say → some lanes of a read of all of them: vectors instead of scalars.

    Between two places of one memory there is no other.
    """
    count = node.dtype.lanes
    if node.dtype.is_ptr or count == 1:
        return None
    machine: Machine = ctx.machine
    buffer, place, *gate = node.src
    width = machine.lanes(node.dtype)
    if machine.block_threads or machine.aligned_memory or width < 2 or count < width:
        return None
    pointer = buffer.dtype
    if not isinstance(pointer, PtrDType) or pointer.space is AddrSpace.REG:
        return None
    found = places(place, ctx.places)
    first, last = min(found.offsets), max(found.offsets)
    wanted = set(found.offsets)
    gaps = {b - a for a, b in pairwise(sorted(wanted))}
    if len(found.roots) != 1 or len(wanted) < width or len(gaps) != 1:
        return None
    (step,) = gaps
    if not 1 < step <= min(FARTHEST, width // 2):  # farther apart a vector has but one of them
        return None
    span = last - first + 1
    where = alu(
        Ops.ADD,
        splat(join(found.roots[0], first, place), span),
        vector_constant(place.dtype, range(span)),
    )
    src = [buffer, where]
    shared = False
    if gate:
        conditions = lane_conditions(gate[0])
        same = all(c is conditions[0] for c in conditions)
        if not same and not machine.masked_memory:
            return None
        # Windows share places, and perhaps only one of them is inside: what any of the lanes wants is read
        asking: dict[int, dict[UOp, int]] = {}  # offset → condition → the first lane with it
        for i, offset in enumerate(found.offsets):
            asking.setdefault(offset, {}).setdefault(conditions[i], i)
        layers = max(len(lanes) for lanes in asking.values())
        shared = layers > 1
        guard: UOp | None = None
        for layer in range(layers):
            lanes = [[*asking[first + i // step * step].values()] for i in range(span)]
            part = swizzle(gate[0], [those[min(layer, len(those) - 1)] for those in lanes])
            guard = part if guard is None else alu(Ops.OR, guard, part)
        assert guard is not None
        if not same:
            guard = alu(Ops.AND, guard, vector_constant(guard.dtype, [i % step == 0 for i in range(span)]))
        src.append(guard)
    read = make(node.op, node.dtype.scalar.vec(span), tuple(src), node.arg, node.origin)
    value = swizzle(read, [offset - first for offset in found.offsets])
    return alu(Ops.WHERE, gate[0], value, splat(const(node.dtype.scalar, 0), count)) if shared else value


def fragment_address(node: UOp) -> UOp | None:
    """LDMATRIX takes addresses, not what lies there; one for each matrix that a warp loads."""
    read = node.src[0]
    if read.op is not Ops.LOAD:
        return None
    address = read.src[0]
    buffer, place = address.src[:2]
    lanes = place.dtype.lanes
    found = places(place)
    dtype = node.dtype.scalar.vec(node.dtype.lanes // lanes)
    pointer = buffer.dtype
    return concat(
        [
            make(Ops.LDMATRIX, dtype, (make(Ops.INDEX, pointer, (buffer, found.scalar(i, place))),), node.arg)
            for i in range(lanes)
        ]
    )


_MEMORY = unproved("memory")


@rules("codegen.add_loads")
def load_rules(x: Var, y: Var, rest: Many) -> Rules:
    """Addresses and what lies there."""
    # a[0], a[2], a[4] are lanes of a[0 … 4]
    yield "gaps", Head(Ops.INDEX).any() >> with_gaps, why("the number of lanes is the device's"), _MEMORY
    # a[i] read is LOAD(&a[i])
    yield "read", Head(Ops.INDEX).any() >> add_load, why("the address has a type of its own")
    yield "fragment", Head(Ops.LDMATRIX).any() >> fragment_address, why("any number of addresses"), _MEMORY
    # a place to write to is an address, not what lies there
    yield "store", HEADS["Store"](HEADS["Load"](x, rest), y) >> HEADS["Store"](x, y, dtype=void), _MEMORY


# --- later: what has become certain


def certain(node: UOp) -> UOp | None:
    """An access under a condition that always holds is a plain one."""
    address = node.src[0]
    if address.op is not Ops.INDEX or len(address.src) < 3:
        return None
    gate = address.src[2]
    if gate.op is not Ops.CONST or not gate.dtype.is_bool or not gate.arg:
        return None
    plain = make(Ops.INDEX, address.dtype, address.src[:2], address.arg, address.origin)
    return node.replace((plain,) if node.op is Ops.LOAD else (plain, *node.src[1:]))


@rules("codegen.certain")
def certain_rules() -> Rules:
    """Gates that concrete sizes have settled."""
    # a[i] if true = a[i]
    yield "gate", Head(Ops.LOAD, Ops.STORE).any() >> certain, why("drops a source")


# --- later still: reads of one thread that lie side by side


class Run(NamedTuple):
    """So many elements of a buffer from `root + start` on."""

    buffer: UOp
    root: Root
    start: int
    length: int


def join_neighbours(root: UOp, ctx: Any) -> UOp:
    """Reads of a thread of a grid side by side in memory → lanes of one: a[4·i], …, a[4·i + 3] are a vector.

    Lanes of loops are joined before; these are reads that a program has written out one by one.
    """
    machine: Machine = ctx.machine
    if not machine.block_threads:
        return root
    order = toposort(root)
    runs = _neighbours(order, machine)
    if not runs:
        return root
    done: dict[UOp, UOp] = {}
    whole: dict[Run, UOp] = {}
    for node in order:
        if node not in runs:
            done[node] = node.replace(tuple([done[s] for s in node.src]))
            continue
        run, lane_of = runs[node]
        if run not in whole:
            pointer, place = run.buffer.dtype, node.src[0].src[1]
            assert isinstance(pointer, PtrDType)
            where = join(None if run.root is None else done[run.root], run.start, place)
            dtype = node.dtype.scalar.vec(run.length)
            address = make(Ops.INDEX, dtype.ptr(pointer.size, pointer.space), (run.buffer, where))
            whole[run] = make(Ops.LOAD, dtype, (address,), node.arg, node.origin)
        done[node] = swizzle(whole[run], range(lane_of, lane_of + node.dtype.lanes))
    return done[root]


def _neighbours(order: list[UOp], machine: Machine) -> dict[UOp, tuple[Run, int]]:
    """Reads as parts of runs that are as long as an access and begin where one may, with their lanes."""
    stores = [n.src[0] for n in order if n.op is Ops.STORE]
    written = {n for address in stores for n in toposort(address) if n.op is Ops.DEFINE_GLOBAL}
    groups: dict[tuple[UOp, Root, int], dict[int, UOp]] = {}
    for node in order:
        if node.op is not Ops.LOAD or len(node.src) != 1:
            continue
        address = node.src[0]
        if address.op is not Ops.INDEX or len(address.src) != 2:
            continue
        buffer = address.src[0]
        if buffer.op is Ops.DEFINE_GLOBAL and buffer not in written:
            base, offset = split(address.src[1])
            groups.setdefault((buffer, base, node.dtype.lanes), {})[offset] = node
    found: dict[UOp, tuple[Run, int]] = {}
    for (buffer, base, lanes), reads in groups.items():
        if len(reads) < 2:
            continue
        step = 0 if base is None else factor(base)
        longest = machine.longest_access(next(iter(reads.values())).dtype.scalar)
        for count in (longest >> i for i in range(longest.bit_length() - 1)):
            if count <= lanes:
                break
            for start in [o for o in reads if o % count == 0 and step % count == 0]:
                places = range(start, start + count, lanes)
                own = [r for at in places if (r := reads.get(at)) is not None and r not in found]
                if len(own) * lanes == count:
                    run = Run(buffer, base, start, count)
                    found |= {r: (run, i * lanes) for i, r in enumerate(own)}
    return found
