"""The memory plan: nobody's bytes are overwritten while they are needed, and little is wasted."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from morok.dtype import float32, void
from morok.ir import movement
from morok.ir.node import alu, make
from morok.ir.ops import Ops
from morok.schedule.plan.kernels import lower
from morok.schedule.plan.memory import LiveRange, place_live_ranges
from morok.schedule.schedule import schedule
from tests.schedule import graphs as g


@st.composite
def live_ranges(draw: st.DrawFn) -> list[LiveRange]:
    count = draw(st.integers(1, 40))
    result = []
    for key in range(count):
        start = draw(st.integers(0, 30))
        stop = start + draw(st.integers(0, 8))
        result.append(
            LiveRange(key, draw(st.sampled_from(("CPU", "GPU"))), draw(st.integers(1, 5000)), start, stop)
        )
    return result


@given(live_ranges(), st.sampled_from((1, 64, 256)))
def test_what_is_alive_at_once_does_not_overlap(found: list[LiveRange], alignment: int) -> None:
    arenas, bound = place_live_ranges(found, (), alignment)
    for i, a in enumerate(found):
        assert a.offset % alignment == 0 and a.offset + a.nbytes <= arenas[a.device]
        for b in found[:i]:
            together = a.device == b.device and a.start <= b.stop and b.start <= a.stop
            assert not together or a.offset + a.nbytes <= b.offset or b.offset + b.nbytes <= a.offset
    assert bound <= sum(arenas.values())


def test_an_input_gives_its_place_to_the_output() -> None:
    found = [
        LiveRange(0, "CPU", 1000, 0, 1),
        LiveRange(1, "CPU", 1000, 1, 2),
        LiveRange(2, "CPU", 1000, 2, 3),
    ]
    arenas, bound = place_live_ranges(found, [(1, 0), (2, 1)])
    assert arenas == {"CPU": 1024} and bound == 1024
    assert len({life.offset for life in found}) == 1


def test_an_input_that_lives_on_does_not() -> None:
    found = [LiveRange(0, "CPU", 1000, 0, 2), LiveRange(1, "CPU", 1000, 1, 2)]
    arenas, _ = place_live_ranges(found, [(1, 0)])
    assert arenas == {"CPU": 2048}


def test_an_input_that_a_later_effect_reads_keeps_its_place() -> None:
    x = movement.reshape(make(Ops.PARAM, float32, (), (2, 8, "")), (8,))
    targets = [make(Ops.PARAM, float32, (), (n, 8, "")) for n in range(2)]
    values = [alu(Ops.EXP, x), alu(Ops.NEG, x)]
    writes = [make(Ops.ASSIGN, float32, pair) for pair in zip(targets, values, strict=True)]
    kernel = lower(make(Ops.SINK, void, tuple(writes)))
    assert kernel.shared == {(1, 2)}, "only the last reader may overwrite its input"


def test_a_chain_of_layers_needs_two_buffers() -> None:
    x = g.tensor(32, 256)
    for _ in range(6):
        # halved four times, so that the numbers stay near 1 and few of them cancel
        x = g.relu(g.mul(g.matmul(x, g.tensor(256, 256)), 0.0625))
    plan = g.check(x, tolerance=1e-4)
    assert len(plan.items) == 6 and len(plan.memory.placements) == 5
    assert plan.memory.arena_bytes == 2 * 32 * 256 * 4
    assert plan.memory.output_bytes == 32 * 256 * 4


def test_outputs_have_memory_of_their_own() -> None:
    x = g.tensor(16, 256)
    first = g.relu(g.matmul(x, g.tensor(256, 256)))
    plan = schedule([first, g.matmul(first, g.tensor(256, 256))])
    assert len(plan.memory.outputs) == 2 and not plan.memory.placements
    assert all(node.op is Ops.BUFFER for node in plan.memory.outputs)
