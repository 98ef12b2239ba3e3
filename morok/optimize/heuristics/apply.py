"""Stage 7, apply opts: the entry that a device calls before codegen."""

from __future__ import annotations

from morok import knobs
from morok.ir.node import UOp
from morok.machine.machine import Machine
from morok.optimize.heuristics.cpu import choose
from morok.optimize.heuristics.gpu.choose import choose_gpu
from morok.optimize.record import STAGE, applied
from morok.rewrite.observe import observed


def optimize(ast: UOp, machine: Machine) -> UOp:
    """The kernel as it should run on the machine.

    A kernel that says already how it was optimised is taken at its word, and NOOPT leaves plain loops.
    """
    if knobs.NOOPT.value or applied(ast):
        return ast
    chosen = choose_gpu if machine.block_threads else choose
    return observed(STAGE, ast, lambda: chosen(ast, machine))
