"""Sequences that a search on a processor walks through: sampled ones, and some that were wrong once."""

from __future__ import annotations

import pytest

from morok.ir.node import UOp
from morok.ir.ops import Op, Ops
from morok.optimize.actions import apply_all, can
from morok.optimize.record import Opt
from tests.optimize.kernels import NEON, interpret, native, running, same


def check(ast: UOp, *opts: Opt) -> None:
    """The sequence is allowed, and the machine code does what the interpreter says of the plain kernel."""
    same(native(apply_all(ast, opts, NEON)), interpret(ast))


@pytest.mark.parametrize("op", [Ops.ADD, Ops.MAX])
def test_a_row_that_is_carried_belongs_to_one_point_of_a_tile(op: Op) -> None:
    """Lanes of the loop around it would all be carried in the same place."""
    ast = running(op, 0, 3, 4)
    tiles = Opt("TILE", 0, 2), Opt("STREAM", 1, 0)
    check(ast, *tiles)
    check(ast, *tiles, Opt("UPCAST", 3))
    assert "carried in a row" in (can(apply_all(ast, tiles, NEON), Opt("UPCAST", 2), NEON) or "")
