"""PEEL_FIRST, and the borders of padded arrays that the heuristics cut off with it."""

from __future__ import annotations

import math

import pytest

from morok.ir import movement
from morok.ir.bounds import vmin
from morok.ir.infer import closed_ranges, ranges
from morok.ir.node import toposort
from morok.ir.ops import AxisKind, Ops
from morok.optimize.actions.table import apply_all
from morok.optimize.heuristics.apply import optimize
from morok.optimize.record import Opt, applied
from tests.optimize.kernels import NEON, interpret, kernel, kernel_of, native, same, wanted
from tests.schedule import graphs as g


@pytest.mark.parametrize("name", ["row sum", "row max", "matmul", "joint reduction", "softmax"])
def test_the_first_steps_of_a_reduction_are_peeled_off(name: str) -> None:
    numbers = {
        int(r.arg[0]) for r in toposort(kernel(name)) if r.op is Ops.RANGE and r.arg[1] is AxisKind.REDUCE
    }
    for number in numbers:
        (count,) = {
            int(r.src[0].arg) for r in toposort(kernel(name)) if r.op is Ops.RANGE and r.arg[0] == number
        }
        for first in (1, 3, count - 1):
            ast = apply_all(kernel(name), (Opt("PEEL_FIRST", number, first),), NEON)
            same(interpret(ast), wanted(name))
            same(native(ast), wanted(name))


def test_the_first_steps_are_peeled_off() -> None:
    for first in (1, 3):
        ast = apply_all(kernel("pad"), (Opt("PEEL_FIRST", 1, first), Opt("PEEL", 1, 7)), NEON)
        assert len(ast.src) == 3
        same(interpret(ast), wanted("pad"))
        same(native(ast), wanted("pad"))


@pytest.mark.parametrize(("before", "behind", "size_"), [(1, 1, 56), (1, 1, 28), (3, 0, 64), (0, 2, 40)])
def test_a_border_is_cut_off_from_what_needs_no_guard(before: int, behind: int, size_: int) -> None:
    ast = kernel_of(movement.pad(g.tensor(8, size_), ((1, 1), (before, behind))))
    done = optimize(ast, NEON)
    cuts = ["PEEL_FIRST"] * ((before > 0) + (behind > 0))
    assert [opt.name for opt in applied(done)][: len(cuts)] == cuts
    main = max(done.src, key=lambda e: math.prod(int(r.src[0].arg) for r in closed_ranges(e)))
    (inside,) = [r for r in closed_ranges(main) if r.arg[1] is AxisKind.UPCAST]
    guards = [n for n in toposort(main) if n.op is Ops.CMPLT]
    assert guards and all(inside not in ranges(n) or vmin(n) for n in guards)  # rows have theirs
