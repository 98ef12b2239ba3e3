"""The space that a search walks through: what may be done next to a kernel, and what may be done otherwise.

A point is a sequence of actions on the plain kernel. Its neighbours are that sequence with a step added, with
a step left out, and with a step changed. Numbers of loops depend on what was done before, so whoever changes
a step in the middle renames what follows; a sequence that is not allowed is no point at all.

Everything here is deterministic: the same kernel gives the same neighbours in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import final

from morok.ir.infer import ranges
from morok.ir.matrix import ALL_UNITS
from morok.ir.node import UOp
from morok.ir.ops import AxisKind, Ops
from morok.machine.machine import Machine
from morok.optimize.actions.pack import written
from morok.optimize.actions.table import outcome
from morok.optimize.heuristics.gpu.attention import row_choices
from morok.optimize.heuristics.gpu.matmul import tile_choices
from morok.optimize.loops import LANE_KINDS, LOOP_KINDS, Loops, loops_of, size
from morok.optimize.record import Opt, applied

Opts = tuple[Opt, ...]
Chooser = Callable[[UOp, Machine], UOp]

_CUTS = {"UPCAST", "UNROLL", "TILE", "LOCAL", "GROUP", "GROUPTOP"}
_LANES = {"UPCAST", "UNROLL"}
_PAIRS = {"SWAP", "CACHE_ROW", "JOIN", "ACCUMULATE_IN_CACHE"}  # both numbers are loops
_BUFFERS = {"PACK", "STAGE"}  # the first number is a buffer
_ROUNDING = {"PADTO", "PEEL"}
_TILES = (8, 16, 32, 64, 128, 256)
_BLOCKS = (8, 16, 32, 64, 128, 256)
_SHORT = 16  # a loop that may be written out
_SHARES = (1, 2, 4)  # pieces per core


@final
class Space:
    """The points around one kernel on one machine. What an action made of a kernel is remembered."""

    def __init__(self, ast: UOp, machine: Machine) -> None:
        self.ast = ast
        self.machine = machine
        self._loops: dict[UOp, Loops] = {}
        self._done: dict[tuple[UOp, Opt], UOp | None] = {}

    def loops(self, ast: UOp) -> Loops:
        found = self._loops.get(ast)
        if found is None:
            found = self._loops[ast] = loops_of(ast)
        return found

    def after(self, ast: UOp, *opts: Opt) -> UOp | None:
        """The kernel after some actions; None if one is not allowed."""
        for opt in opts:
            key = (ast, opt)
            if key not in self._done:
                made = outcome(self.loops(ast), opt, self.machine)
                self._done[key] = None if isinstance(made, str) else made
            known = self._done[key]
            if known is None:
                return None
            ast = known
        return ast

    def at(self, opts: Opts) -> UOp | None:
        """The kernel of a point."""
        return self.after(self.ast, *opts)

    def seeds(self, choose: Chooser) -> list[Opts]:
        """Where to begin: what the heuristics do here, what they would do on other machines, nothing."""
        machine = self.machine
        others = (
            machine,
            replace(machine, registers=max(4, machine.registers // 2)),
            replace(machine, registers=machine.registers * 3 // 2),
            replace(machine, l1_bytes=machine.l1_bytes // 2, l2_bytes=machine.l2_bytes // 4),
            replace(machine, l1_bytes=machine.l1_bytes * 4, l2_bytes=machine.l2_bytes * 4),
            replace(machine, vector_bytes=machine.vector_bytes * 2),
            replace(machine, masked_memory=not machine.masked_memory),
            replace(machine, cores=1),
        )
        found = dict.fromkeys(applied(choose(self.ast, machine)) for machine in others)
        if machine.block_threads:
            found.update(dict.fromkeys((*row_choices(self.ast, machine), *tile_choices(self.ast, machine))))
        found[()] = None
        return [opts for opts in found if self.at(opts) is not None]

    def neighbours(self, opts: Opts) -> list[tuple[Opts, UOp]]:
        """All points around one, each with its kernel."""
        here = self.at(opts)
        if here is None:
            return []
        longer: list[Opts] = [(*opts, *more) for more in self.steps(here)]
        if opts and opts[-1].name == "THREAD":
            # what is shared cannot be cut any more, so that has to come before
            shared, unshared = opts[-1], self.at(opts[:-1])
            inner = () if unshared is None else self.steps(unshared)
            longer += [(*opts[:-1], *more, shared) for more in inner if more[0].axis == shared.axis]
        found: list[tuple[Opts, UOp]] = []
        for other in dict.fromkeys((*longer, *self.variations(opts))):
            laid = self.at(other)
            if laid is not None:
                found.append((other, laid))
        return found

    # --- one step more

    def steps(self, ast: UOp) -> list[Opts]:
        """What is worth trying next: an action, or two where a size has a rest that one has to look after."""
        loops = self.loops(ast)
        plain = {n: r for n, r in sorted(loops.by_number.items()) if r.arg[1] in LOOP_KINDS}
        found: list[Opts] = []
        for number, r in plain.items():
            found += _cuts(loops, number, r, self.machine)
        found += [(Opt("SWAP", a, b),) for a in plain for b in plain if a < b]
        reduced = [n for n, r in plain.items() if r.arg[1] is AxisKind.REDUCE]
        found += [(Opt("CACHE_ROW", a, b),) for a in reduced for b in plain if a != b]
        found += _packs(loops)
        if self.machine.tma:
            found += [
                (Opt("WARP_SPECIALIZE"),),
                (Opt("WARP_SPECIALIZE", -1, 1),),
                (Opt("PERSISTENT", -1, self.machine.cores),),
            ]
        return found + _units(loops, self.machine)

    # --- another sequence

    def variations(self, opts: Opts) -> list[Opts]:
        """Sequences that differ from one in a single step."""
        found: dict[Opts, None] = {}
        for i in range(len(opts)):
            for instead in self._instead(opts, i):
                other = self.edit(opts, i, instead)
                if other is not None and other != opts:
                    found[other] = None
        if any(opt.name == "WARP_SPECIALIZE" for opt in opts):  # all rings go in step
            for more in (-1, 1):
                deeper = (replace(o, amount=o.amount + more) if o.name == "STAGE" else o for o in opts)
                found[tuple(deeper)] = None
        return list(found)

    def _instead(self, opts: Opts, i: int) -> Iterator[Opts]:
        """What could stand in the place of a step, in the names that hold there."""
        yield ()
        opt = opts[i]
        if opt.name == "THREAD":
            here = self.at(opts[:i])
            for number in sorted(self.loops(here).by_number) if here is not None else ():
                yield (Opt("THREAD", number),)
                for factor in _SHARES:
                    yield (Opt("THREAD", number, self.machine.cores * factor),)
        if opt.name == "STAGE":
            for depth in (opt.amount - 1, opt.amount + 1):
                if depth > 0:
                    yield (replace(opt, amount=depth),)
        if opt.name not in _CUTS:
            return
        rounded = i > 0 and opts[i - 1].name in _ROUNDING and opts[i - 1].axis == opt.axis
        for amount in other_amounts(opt.amount or self._size(opts[:i], opt.axis), self.machine):
            cut = Opt(opt.name, opt.axis, amount)
            yield (cut,)
            if not rounded and opt.name in _LANES:
                yield (Opt("PADTO", opt.axis, amount), cut)
                yield (Opt("PEEL", opt.axis, amount), cut)

    def _size(self, opts: Opts, axis: int) -> int:
        here = self.at(opts)
        r = None if here is None else self.loops(here).by_number.get(axis)
        return 0 if r is None else size(r) or 0

    def edit(self, opts: Opts, i: int, instead: Opts) -> Opts | None:
        """The sequence with step `i` replaced, later steps renamed; None if that is not allowed.

        A cut that had been rounded to its size takes the rounding along. Steps about loops that are not there
        any more are dropped.
        """
        names: dict[int, int | None] = {}  # old number of a loop → the new one, or None if it is gone
        before = now = self.ast
        done: list[Opt] = []
        for j, opt in enumerate(opts):
            wanted: Opts = instead if j == i else (opt,)
            if j + 1 == i and instead and opt.name in _ROUNDING and opt.axis == opts[i].axis:
                wanted = (replace(opt, amount=instead[-1].amount),) if instead[-1].amount else ()
            after = self.after(before, opt)
            if after is None:
                return None
            old, new = self._made(before, after), []
            before = after
            for step in wanted:
                named = _renamed(step, names)
                laid = None if named is None else self.after(now, named)
                if named is None or (laid is None and named.name in _ROUNDING):
                    continue  # its loop is gone, or is a multiple already
                if laid is None:
                    return None
                new += self._made(now, laid)
                now = laid
                done.append(named)
            names.update(dict.fromkeys(old))
            names.update(zip(reversed(old), reversed(new), strict=False))  # the lanes are made last
        return tuple(done)

    def _made(self, before: UOp, after: UOp) -> list[int]:
        """The loops that an action has made."""
        return sorted(set(self.loops(after).by_number) - set(self.loops(before).by_number))


def _renamed(opt: Opt, names: dict[int, int | None]) -> Opt | None:
    """The action about the loops as they are called now; None if one of them is gone."""
    axis = opt.axis if opt.name in _BUFFERS else names.get(opt.axis, opt.axis)
    amount = names.get(opt.amount, opt.amount) if opt.name in _PAIRS else opt.amount
    axes = tuple(a for a in (names.get(n, n) for n in opt.axes) if a is not None)
    if axis is None or amount is None or (opt.axes and not axes):
        return None
    return Opt(opt.name, axis, amount, axes)


def _cuts(loops: Loops, number: int, r: UOp, machine: Machine) -> Iterator[Opts]:
    """All ways to cut one loop."""
    count = size(r)
    name = "UNROLL" if loops.closed_by(r) is Ops.REDUCE else "UPCAST"
    if count is not None and 1 < count <= _SHORT:
        yield (Opt(name, number),)
    for amount in lane_amounts(machine):
        if count is not None and amount >= count:
            continue
        cut = Opt(name, number, amount)
        if count is not None and count % amount == 0:
            yield (cut,)
        else:
            yield (Opt("PADTO", number, amount), cut)
            yield (Opt("PEEL", number, amount), cut)
    for amount in _TILES:
        if count is not None and count % amount == 0 and count > amount:
            yield (Opt("TILE", number, amount),)
    if machine.block_threads:
        for amount in _BLOCKS:
            for kind in ("GROUP", "GROUPTOP") if name == "UNROLL" else ("LOCAL",):
                yield (Opt(kind, number, amount),)
    elif machine.cores > 1 and name == "UPCAST":
        yield (Opt("THREAD", number),)
        for factor in _SHARES:
            yield (Opt("THREAD", number, machine.cores * factor),)


def lane_amounts(machine: Machine) -> list[int]:
    """Sizes of vectors and register tiles: small ones, and whole registers of four bytes."""
    lanes = max(1, machine.vector_bytes // 4)
    return sorted({2, 3, 4, 6, 8, 12} | {lanes * k for k in (1, 2, 3, 4, 6, 8)} - {1})


def other_amounts(amount: int, machine: Machine) -> list[int]:
    """Neighbouring sizes of a cut."""
    lanes = max(1, machine.vector_bytes // 4)
    found = {amount // 2, amount * 2}
    if amount <= _SHORT:
        found |= {amount - 2, amount - 1, amount + 1, amount + 2}
    if amount % lanes == 0:
        found |= {amount - lanes, amount + lanes}
    return sorted(a for a in found if a >= 2 and a != amount)


def _units(loops: Loops, machine: Machine) -> list[Opts]:
    """Matrix units for sums of products, on any two loops over outputs."""
    steps = [n for n, r in loops.by_number.items() if r.arg[1] is AxisKind.REDUCE]
    outputs = [n for n, r in loops.by_number.items() if r.arg[1] is AxisKind.LOOP]
    numbers = [1 + ALL_UNITS.index(unit) for unit in machine.matrix_units]
    return [
        (Opt("TC", k, number, (i, j)),)
        for number in numbers
        for k in steps
        for i in outputs
        for j in outputs
        if i != j
    ]


def _packs(loops: Loops) -> list[Opts]:
    """Copies of what is read in the loops of a reduction, filled by vectors and without."""
    changing = written(loops)
    found: dict[Opts, None] = {}
    for node in loops.order:
        if node.op is not Ops.INDEX or node.dtype.is_ptr or node.src[0].op is not Ops.DEFINE_GLOBAL:
            continue
        if node.src[0].arg in changing:
            continue
        alive = sorted((r for r in ranges(node) if r in loops.closers), key=lambda r: int(r.arg[0]))
        inner = [int(r.arg[0]) for r in alive if r.arg[1] is AxisKind.REDUCE]
        lanes = [int(r.arg[0]) for r in alive if r.arg[1] in LANE_KINDS]
        for axes in (inner + lanes, inner[-1:] + lanes) if inner else ():
            opt = Opt("PACK", node.src[0].arg, 0, tuple(axes))
            if lanes:
                found[(opt, Opt("UPCAST", loops.next_number() + len(axes) - 1))] = None
            found[(opt,)] = None
    return list(found)
