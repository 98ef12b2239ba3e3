"""Stage 11, scans (running reductions): a register that is carried along a loop over outputs.

    END(STORE(y[r], SCAN(x(r), r)), r)
    →  a = DEFINE_REG;  a ← nothing;  for r:  a ← a ∘ x(r);  y[r] ← a

Steps that are lanes of one vector are combined inside of it first: each with its neighbour, then with the one
two further back, and so on, within a register of the device. Only what a register adds up to is carried on,
in all of its lanes, so that one operation per register lies between one step and the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from morok.codegen.scopes import next_number
from morok.codegen.vector.vectors import concat, swizzle, vector_constant
from morok.dtype import DType, PtrDType, index, void
from morok.errors import CompileError
from morok.ir.bounds import vmax
from morok.ir.build import after, define_local, define_reg
from morok.ir.infer import closed_ranges, ranges
from morok.ir.node import UOp, alu, const, make, toposort
from morok.ir.ops import AxisKind, Op, Ops
from morok.ir.provenance import place
from morok.ir.scan import LAST, Parts, Scan, neutral, parts, scan_loops, step
from morok.machine.machine import Machine
from morok.rewrite.engine import substitute
from morok.rewrite.loops import substitute_open
from morok.rewrite.observe import change


@change
def lower_scans(root: UOp, machine: Machine) -> UOp:
    """All running reductions of a kernel, as registers."""
    order = toposort(root)
    if not any(n.op is Ops.SCAN for n in order):
        return root
    root = _innermost(root, order)
    return _Lowering(machine, root).kernel(root)


def _innermost(root: UOp, order: list[UOp]) -> UOp:
    """Loops that something runs along lie inside of all others, because a register is carried in them.

    In a row, those over its places lie inside of them.
    """
    number = next_number(root)
    loops = [*scan_loops(order), *columns(order)]
    inner = {
        r: make(Ops.RANGE, r.dtype, r.src, (number + i, r.arg[1]), r.origin) for i, r in enumerate(loops)
    }
    return substitute(root, inner)


def columns(order: list[UOp]) -> list[UOp]:
    """The loops over the places of rows: inside of those that something runs along."""
    places = [parts(n).place for n in order if n.op is Ops.SCAN]
    found = {r for p in places if p is not None for r in ranges(p) if r.arg[1] is AxisKind.LOOP}
    return sorted(found, key=lambda r: r.arg)


@final
class _Carry:
    """A register that is carried along: `outputs` values, each in `width` neighbouring lanes."""

    def __init__(self, register: UOp, outputs: int, width: int) -> None:
        self.register = register
        self.outputs = outputs
        self.width = width

    def read(self, *done: UOp) -> UOp:
        """What it holds once something has happened."""
        return make(Ops.INDEX, self.dtype, (after(self.register, *done), self.lanes))

    def write(self, value: UOp, *done: UOp) -> UOp:
        memory = after(self.register, *done)
        count = self.outputs * self.width
        pointer = memory.dtype.vec(count) if count > 1 else memory.dtype
        return make(Ops.STORE, void, (make(Ops.INDEX, pointer, (memory, self.lanes)), value))

    @property
    def dtype(self) -> DType:
        assert isinstance(self.register.dtype, PtrDType)
        return self.register.dtype.elem.vec(self.outputs * self.width)

    @property
    def lanes(self) -> UOp:
        count = self.outputs * self.width
        return vector_constant(index, range(count)) if count > 1 else const(index, 0)


@final
class _Lowering:
    """Effects one after the other: the rest of a loop goes on with the register of its main part."""

    def __init__(self, machine: Machine, root: UOp) -> None:
        self.machine = machine
        self.columns = columns(toposort(root))
        self.number = next_number(root)
        self.done: dict[UOp, UOp] = {}
        self.carries: dict[UOp, _Carry] = {}
        self.updates: list[UOp] = []  # of the effect at hand
        self.closed: dict[tuple[UOp, ...], tuple[UOp, UOp]] = {}  # loops → the effect, and its inner loops
        self.main = root  # the effect that the one at hand goes on from, or itself
        self.around: tuple[UOp, ...] = ()  # the loops around those that something runs along
        self.count = 0

    def kernel(self, root: UOp) -> UOp:
        families: dict[UOp, list[UOp]] = {}  # effects without the loops around them, by the first of them
        for effect in root.src:
            self.updates, self.main = [], effect
            running = set(scan_loops(toposort(effect)))
            mine = tuple(r for r in closed_ranges(effect) if r in running or r in self.columns)
            # a register begins anew at every step around its loops, also where its value is always the same
            self.around = tuple(r for r in closed_ranges(effect) if r not in mine)
            store = effect.src[0] if effect.op is Ops.END else effect
            for node in toposort(store):
                if node not in self.done:
                    self.done[node] = self.lowered(node)
            body = self.done[store]
            if self.updates:
                body = make(Ops.GROUP, void, (body, *self.updates))
            inner = make(Ops.END, void, (body, *mine), None, effect.origin) if mine else body
            self.closed[mine] = effect, inner
            families.setdefault(self.main, []).append(inner)
        effects = []
        for first, members in families.items():
            around = [r for r in closed_ranges(first) if r not in ranges_closed(members[0])]
            body = members[0] if len(members) == 1 else make(Ops.GROUP, void, tuple(members))
            effects.append(make(Ops.END, void, (body, *around), None, first.origin) if around else body)
        return root.replace(tuple(effects))

    def lowered(self, node: UOp) -> UOp:
        new = node.replace(tuple([self.done[s] for s in node.src]))
        if node.op is Ops.SCAN:
            return self.scan(node, new)
        if node.op is Ops.REDUCE and node.arg == LAST:
            return self.last(node, new)
        return new

    def scan(self, node: UOp, new: UOp) -> UOp:
        how: Scan = node.arg
        found = parts(new)
        op, dtype = how.op, node.dtype
        if found.place is not None:
            return self.in_a_row(node, found, found.place)
        outputs = dtype.lanes // how.lanes
        width = self.width(op, dtype, how.lanes)
        first = const(dtype.scalar.vec(outputs), neutral(op, dtype)) if found.start is None else found.start
        first = swizzle(first, [o for o in range(outputs) for _ in range(width)])
        if not found.loops:
            return self.steps(op, found.values, first, how.lanes, width)[0]
        register = define_reg(dtype.scalar, outputs * width, f"scan{self.count}")
        self.count += 1
        outer = sorted(ranges(node).union(self.around).difference(found.loops), key=lambda r: r.arg)
        carry = self.carries[node] = _Carry(after(register, *outer), outputs, width)
        begun = (carry.write(first), *found.loops)
        result, total = self.steps(op, found.values, carry.read(*begun), how.lanes, width)
        self.updates.append(carry.write(total, *begun))
        return result

    def in_a_row(self, node: UOp, found: Parts, place: UOp) -> UOp:
        """What is carried lies in a buffer, at its place; the loops over the places lie inside."""
        op, dtype = node.arg.op, node.dtype
        memory = define_local(dtype.scalar, int(vmax(place)) + 1, f"run{self.count}")
        self.count += 1
        pointer = memory.dtype.vec(dtype.lanes) if dtype.lanes > 1 else memory.dtype
        inside = [c for c in self.columns if c in ranges(place)]
        outer = ranges(node).union(self.around).difference(found.loops, self.columns)
        own = after(memory, *sorted(outer, key=lambda r: r.arg))
        again = {
            c: make(Ops.RANGE, c.dtype, c.src, (self.number + i, c.arg[1])) for i, c in enumerate(inside)
        }
        self.number += len(again)
        where = make(Ops.INDEX, pointer, (own, substitute_open(place, again)))
        begin = make(Ops.STORE, void, (where, const(dtype, neutral(op, dtype))))
        begun = after(own, make(Ops.END, void, (begin, *again.values())) if again else begin, *found.loops)
        total = step(op, found.values, make(Ops.INDEX, dtype, (begun, place)))
        self.updates.append(make(Ops.STORE, void, (make(Ops.INDEX, pointer, (begun, place)), total)))
        return total

    def width(self, op: Op, dtype: DType, lanes: int) -> int:
        """Neighbouring steps that are combined inside of a register; a recurrence takes one after another."""
        if op is Ops.MULACC:
            return 1
        return min(lanes & -lanes, max(1, self.machine.lanes(dtype)))

    def steps(self, op: Op, values: Sequence[UOp], carry: UOp, lanes: int, width: int) -> tuple[UOp, UOp]:
        """The values after each step, lanes (output, step), and what is carried on."""
        outputs = values[0].dtype.lanes // lanes
        found = []
        for start in range(0, lanes, width):
            here = [o * lanes + start + i for o in range(outputs) for i in range(width)]
            part = [swizzle(v, here) for v in values]
            if width == 1:
                carry = step(op, part, carry)
                found.append(carry)
                continue
            inside = running(op, part[0], width)
            found.append(alu(op, carry, inside))
            last = [o * width + width - 1 for o in range(outputs) for _ in range(width)]
            carry = alu(op, carry, swizzle(inside, last))
        whole = concat(found)
        groups = lanes // width
        order = [
            (g * outputs + o) * width + i for o in range(outputs) for g in range(groups) for i in range(width)
        ]
        return swizzle(whole, order), carry

    def last(self, node: UOp, new: UOp) -> UOp:
        """What the last step of another effect's loop has left in its register."""
        loops = closed_ranges(node)
        outputs = node.dtype.lanes
        value = new.src[0]
        if not loops:
            steps = value.dtype.lanes // outputs
            return swizzle(value, [o * steps + steps - 1 for o in range(outputs)])
        source = node.src[0]
        while source.op is Ops.GEP:
            source = source.src[0]
        known = next((found for key, found in self.closed.items() if set(key) == set(loops)), None)
        if known is None or source not in self.carries:
            raise CompileError("the rest of a running reduction has lost its beginning", place=place(node))
        self.main, inner = known
        carry = self.carries[source]
        return swizzle(carry.read(inner), [o * carry.width for o in range(outputs)])


def ranges_closed(inner: UOp) -> tuple[UOp, ...]:
    """The loops that an effect closes inside of those around it."""
    return closed_ranges(inner) if inner.op is Ops.END else ()


def running(op: Op, x: UOp, width: int) -> UOp:
    """Lanes (output, step): each with its neighbour, then with the one two further back, and so on."""
    outputs = x.dtype.lanes // width
    reach = 1
    while reach < width:
        nothing = const(x.dtype.scalar.vec(reach), neutral(op, x.dtype))
        pieces = []
        for o in range(outputs):
            pieces += [nothing, swizzle(x, range(o * width, (o + 1) * width - reach))]
        x = alu(op, concat(pieces), x)
        reach *= 2
    return x
