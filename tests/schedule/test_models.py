"""Whole models: kernel counts, equal layers, memory, and the numbers of small ones."""

from __future__ import annotations

import pytest

from morok.schedule.schedule import Schedule, schedule
from tests.schedule import graphs as g
from tests.schedule.models import Gpt, ResNet18, placeholder, tokens


@pytest.fixture(scope="module")
def gpt() -> Schedule:
    return schedule([Gpt()(tokens(1, 64))])


@pytest.fixture(scope="module")
def resnet() -> Schedule:
    return schedule([ResNet18()(placeholder(1, 3, 224, 224))])


def test_seven_kernels_per_transformer_layer() -> None:
    assert len(schedule([Gpt().blocks(placeholder(1, 64, 768))]).items) <= 7 * 12


def test_equal_layers_are_equal_kernels(gpt: Schedule) -> None:
    assert len({item.ast for item in gpt.items}) <= 7 + 3


def test_resnet_kernels(resnet: Schedule) -> None:
    assert len(resnet.items) <= 24


def test_arenas_are_close_to_what_is_alive(gpt: Schedule, resnet: Schedule) -> None:
    for plan in (gpt, resnet):
        assert plan.memory.arena_bytes <= 1.1 * plan.memory.live_bytes
        assert plan.memory.peak == plan.memory.arena_bytes + plan.memory.output_bytes


def test_no_intermediate_is_stored_for_the_embedding(gpt: Schedule) -> None:
    assert plan_bytes(gpt) < 2e9
    assert gpt.items[0].bytes < 2e6, "rows are gathered, not multiplied by a one-hot matrix"


def plan_bytes(plan: Schedule) -> int:
    return sum(item.bytes for item in plan.items)


def test_a_small_transformer_computes_what_numpy_does() -> None:
    model = Gpt(layers=2, width=32, heads=4, vocabulary=50, length=16)
    g.check(model(tokens(2, 8, 50)), tolerance=2e-3)


def test_a_small_resnet_computes_what_numpy_does() -> None:
    model = ResNet18(width=4, classes=10, real=True)
    (want,) = g.expected(out := model(g.tensor(1, 3, 32, 32)))
    (got,) = g.run(out)
    g.np.testing.assert_allclose(got, want, rtol=2e-3, atol=2e-3 * abs(want).max())
