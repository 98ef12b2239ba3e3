"""A kernel on its way through the heuristics: actions that are tried one after the other."""

from __future__ import annotations

from morok.ir.node import UOp
from morok.machine.machine import Machine
from morok.optimize.actions.table import outcome, tell
from morok.optimize.loops import Loops, divides, loops_of, size
from morok.optimize.record import Opt

FEWEST_OF_VECTOR = 4  # a quarter of a vector under a mask is faster than one element after the other


class Builder:
    """Holds the kernel; `do` applies what is allowed and says whether it was."""

    def __init__(self, ast: UOp, machine: Machine) -> None:
        self.machine = machine
        self.loops: Loops = loops_of(ast)
        self.shares = False  # there is work for several threads

    @property
    def ast(self) -> UOp:
        return self.loops.ast

    def do(self, name: str, axis: int = -1, amount: int = 0, axes: tuple[int, ...] = ()) -> bool:
        opt = Opt(name, axis, amount, axes)
        new = outcome(self.loops, opt, self.machine)
        if isinstance(new, str):
            return False
        tell(opt, self.ast, new)
        self.loops = loops_of(new)
        return True

    def vectorise(self, name: str, axis: int, full: int, lanes: int) -> bool:
        """Cuts `full` iterations off as lanes, or fewer where that divides; the rest is peeled off.

        What is left over after the last full step runs in single vectors, then one by one; or in vectors of
        which the last has a mask, where memory takes masks.
        """
        r = self.loops.by_number.get(axis)
        if r is None:
            return False
        count = size(r)
        if count is not None and count <= 1:
            return False
        best = _divisor(r, full, lanes)
        if best is not None and (best * 2 >= full or (count is not None and count < 4 * full)):
            return self.do(name, axis, best)
        amount = full
        while count is not None and amount > count and amount > lanes:
            amount //= 2
        if count is not None and count < amount:
            return count * FEWEST_OF_VECTOR >= lanes and full > lanes and self.masked(name, axis, lanes)
        remainder = self.loops.next_number()
        if not self.do("PEEL", axis, amount):
            return best is not None and self.do(name, axis, best)
        self.do(name, axis, amount)
        if remainder in self.loops.by_number and full > lanes > 1:
            if not self.masked(name, remainder, lanes) and amount > lanes:
                self._vectorise_remainder(name, remainder, lanes)
        return True

    def masked(self, name: str, axis: int, lanes: int) -> bool:
        """The loop as vectors of which the last is not full, where memory takes masks."""
        if not self.machine.masked_memory:
            return False
        before = self.loops
        self.do("PADTO", axis, lanes)
        if self.do(name, axis, lanes):
            return True
        self.loops = before
        return False

    def _vectorise_remainder(self, name: str, axis: int, lanes: int) -> None:
        if not self.do(name, axis, lanes) and self.do("PEEL", axis, lanes):
            self.do(name, axis, lanes)


def _divisor(r: UOp, full: int, lanes: int) -> int | None:
    """The largest number of whole vectors, up to `full` lanes, that divides a loop."""
    amount = full
    while amount >= max(2, lanes):
        if divides(amount, r.src[0]):
            return amount
        amount //= 2
    return None
