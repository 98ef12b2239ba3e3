"""Products a step behind, part of stage 11: a step's scores are started, then what the step before weighs.

    for k: S = q·k; wait; O ← O·f + P(S)·v; wait
    →   S = q·k(0); P = weigh(S)
        for k = 1 …: S = q·k(k); O ← O + P·v(k-1); wait for S; P' = weigh(S); wait for O; O ← O·f; P ← P'
        O ← O + P·v(n-1)

So powers are computed under products of the same warp group. It takes tiles that others bring, who may be a
step ahead of each ring: the tiles of both products come and go by themselves.
"""

from __future__ import annotations

from typing import NamedTuple

from morok.codegen.reduce.wgmma import released, ring_waits, under_way, unit_of
from morok.codegen.vector.accumulators import Accumulators, Register, accumulate, pick_lanes
from morok.dtype import void
from morok.ir.bounds import vmin
from morok.ir.build import after
from morok.ir.infer import ranges
from morok.ir.node import UOp, alu, const, make, toposort
from morok.ir.ops import Ops
from morok.rewrite.engine import substitute
from morok.symbolic.sets import simplify


class Sum(NamedTuple):
    """What is taken along with a maximum: where it is kept, what it falls by, what a step adds."""

    register: Register
    factor: UOp
    value: UOp


def second_products(value: UOp, outputs: int) -> list[UOp]:
    """The products of a sum, if units work at them while the threads go on; else none."""
    unit = unit_of(value)
    if unit is None or not unit.in_flight:
        return []
    parts = value.dtype.lanes // outputs
    return [pick_lanes(value, [o * parts + p for o in range(outputs)]) for p in range(parts)]


def can_be_behind(steps: list[UOp], loops: tuple[UOp, ...]) -> bool:
    """Whether there is a first step, and the tiles of both products have barriers of their own."""
    if not steps or len(loops) != 1 or not vmin(loops[0].src[0]) >= 1:
        return False
    first, second = (set(_waits([step.src[n] for step in steps])) for n in (0, 1))
    return bool(first and second) and first.isdisjoint(second)


def _waits(values: list[UOp]) -> list[UOp]:
    return ring_waits(make(Ops.GROUP, void, tuple(values)))


def _tiles(values: list[UOp]) -> list[UOp]:
    """What the tiles that units read wait for."""
    order = toposort(*values, stop=lambda n: n.op is Ops.MBARRIER)
    tiles = [n for n in order if n.op is Ops.AFTER and n.src[0].op is Ops.DEFINE_LOCAL]
    return list(dict.fromkeys(done for n in tiles for done in n.src[1:]))


def at_step(
    x: UOp, loop: UOp, step: UOp, inside: tuple[UOp, ...], known: dict[UOp, UOp] | None = None
) -> UOp:
    """A value in a certain step, inside of another loop or after something, or in none."""
    done: dict[UOp, UOp] = {loop: step, **(known or {})}
    for node in toposort(x, stop=done.__contains__):
        if node in done:
            continue
        src = tuple([done.get(s, s) for s in node.src])
        if node.op is Ops.AFTER and loop in node.src[1:]:
            others = [done.get(s, s) for s in node.src[1:] if s is not loop]
            done[node] = after(src[0], *others, *inside)
        elif src != node.src:
            done[node] = node.replace(src)
    return done.get(x, x)


class Behind:
    """One loop over steps on its way: its registers, what a step makes of them, and the two products."""

    def __init__(self, state: Accumulators, loop: UOp, steps: list[UOp], total: Sum) -> None:
        self.state, self.loop, self.steps, self.total = state, loop, steps, total
        end = loop.src[0]
        self.last = simplify(alu(Ops.SUB, end, const(end.dtype, 1)))
        self.later = make(Ops.RANGE, loop.dtype, (self.last,), loop.arg, loop.origin)
        self.known: dict[UOp, UOp] = {}  # what registers hold, in the loop that begins with the second step

    def first(self, x: UOp) -> UOp:
        """A value in the first step."""
        return at_step(x, self.loop, const(self.loop.dtype, 0), ())

    def next(self, x: UOp) -> UOp:
        """A value in a step of the loop over all others."""
        step = alu(Ops.ADD, self.later, const(self.later.dtype, 1))
        return at_step(x, self.loop, step, (self.later,), self.known)

    def carried(self, register: Register, value: UOp) -> Register:
        """A register that the first step fills."""
        begun = register._replace(start=register.write((), self.first(value)))
        self.known[register.inside((self.loop,))] = begun.inside((self.later,))
        return begun

    def lowered(self, kept: list[tuple[Register, UOp]]) -> tuple[UOp, list[Register], UOp]:
        """The loop; the registers of what is not multiplied, and the products' sum in the end."""
        weights = list(dict.fromkeys(step.src[0] for step in self.steps))  # as units take them
        around = ranges(self.total.register.here)
        kinds = {x: self.state.register(x.dtype, Ops.ADD, around) for x in weights}
        begun = [self.carried(register, value) for register, value in kept]
        scores = [n for n in toposort(*weights) if n.op is Ops.REDUCE and unit_of(n.src[0]) is not None][-1]
        firsts = _waits(weights)
        read = [released(self.first(w), self.loop, self.first(scores), False) for w in firsts]
        filled = {
            x: register._replace(here=after(register.here, *read), start=register.write((), self.first(x)))
            for x, register in kinds.items()
        }
        old = {x: register.inside((self.later,)) for x, register in filled.items()}
        now = {x: self.next(x) for x in weights}
        own = self.total.register
        beside = [self.next(value) for _, value in kept]
        sums, done = self.products(
            own.inside((self.later,)), old, self.later, (self.later,), tuple(beside[1:] or beside)
        )
        factor = self.next(self.total.factor)
        # tiles are free as soon as units have read them, before anything is weighed
        effects = [released(self.next(w), self.later, self.next(scores), False) for w in firsts]
        effects += [r.write((self.later,), value) for r, value in zip(begun, beside, strict=True)]
        effects.append(own.write((self.later,), alu(Ops.MUL, sums, factor)))
        for x, register in filled.items():
            free = register._replace(here=after(register.here, done))
            effects.append(free.write((self.later,), now[x]))
        effects += [
            released(at_step(w, self.loop, self.later, (self.later,)), self.later, sums, False)
            for w in _waits([step.src[1] for step in self.steps])
        ]
        end = make(Ops.END, void, (make(Ops.GROUP, void, tuple(effects)), self.later))
        found = {x: register.after(end) for x, register in filled.items()}
        result, _ = self.products(own.after(end), found, self.last, (end,), ())
        return end, begun, result

    def products(
        self, total: UOp, weights: dict[UOp, UOp], step: UOp, inside: tuple[UOp, ...], before: tuple[UOp, ...]
    ) -> tuple[UOp, UOp]:
        """The sum with what a step before has weighed; and what waits for that, once others are there."""
        left = [substitute(product.src[0], weights) for product in self.steps]
        right = [at_step(product.src[1], self.loop, step, inside) for product in self.steps]
        total = after(total, make(Ops.FENCE, void, (total, *left, *_tiles(right))))
        for product, a, b in zip(self.steps, left, right, strict=True):
            total = accumulate(Ops.ADD, total, product.replace((a, b, product.src[2])), False)
        wait = under_way(total, 0)
        wait = wait.replace((*wait.src, *before))
        return after(total, wait), wait
