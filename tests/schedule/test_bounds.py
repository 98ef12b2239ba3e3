"""Every access of every kernel is inside of its memory, wherever its gate is open: proved, not sampled."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from morok.dtype import PtrDType, int32
from morok.ir import build, movement
from morok.ir.node import UOp, toposort
from morok.ir.ops import Ops
from morok.schedule.schedule import Schedule, schedule
from tests.schedule import graphs as g
from tests.schedule.models import Gpt, ResNet18, placeholder, tokens
from tests.schedule.test_fusion import ONE, attention

pytest.importorskip("z3")

from morok.proof.graphs import prove_in_bounds


def accesses(plan: Schedule) -> set[UOp]:
    return {
        n for item in plan.items if item.ast.op is Ops.SINK for n in toposort(item.ast) if n.op is Ops.INDEX
    }


def prove(plan: Schedule) -> None:
    for node in accesses(plan):
        memory, place, *gate = node.src
        assert isinstance(memory.dtype, PtrDType)
        verdict = prove_in_bounds(place, memory.dtype.size, gate[0] if gate else None)
        assert verdict.status == "proved", f"{verdict}: {node}"


def several_pads() -> UOp:
    x = movement.pad(movement.flip(g.exp(g.tensor(5, 7)), (True, False)), ((1, 2), (3, 0)))
    x = movement.reshape(x, (80,))
    return movement.pad(movement.shrink(movement.reshape(x, (10, 8)), ((2, 9), (1, 8))), ((0, 4), (2, 2)))


def variable_rows() -> UOp:
    n = build.bind(build.variable("n", 1, 16), 5)
    x = movement.shrink(g.tensor(16, 8), ((0, n), (0, 8)))
    return g.alu(Ops.EXP, movement.pad(x, ((1, 0), (0, 3))))


MORE: dict[str, Callable[[], UOp]] = {
    "attention": attention,
    "overlapping pool": lambda: g.max_pool(
        g.conv(g.tensor(2, 3, 31, 29), g.tensor(4, 3, 5, 5), 2, 2), 3, 2, 1
    ),
    "pads": several_pads,
    "variable rows": variable_rows,
    "gather of a padded table": lambda: g.gather(
        movement.pad(g.tensor(30, 4), ((1, 1), (0, 0))), g.tensor(3, 2, dtype=int32)
    ),
}


@pytest.mark.parametrize("name", [*ONE, *MORE])
def test_accesses_of_small_kernels(name: str) -> None:
    prove(schedule([{**ONE, **MORE}[name]()]))


@pytest.mark.parametrize("model", ["gpt", "resnet"])
def test_accesses_of_models(model: str) -> None:
    if model == "gpt":
        prove(schedule([Gpt(layers=1)(tokens(2, 64))]))
    else:
        prove(schedule([ResNet18()(placeholder(1, 3, 224, 224))]))
