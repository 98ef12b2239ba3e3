"""A GPT on virtual devices: losses of one device, bytes by theory, memory by the number of devices."""

import numpy as np
import pytest

from morok import knobs
from tests.mesh import gpt


@pytest.fixture(scope="module")
def alone() -> dict:
    with knobs.override(DEVICE="PYTHON"):
        return gpt.train("one", 3, 1)


def test_data_parallel(alone: dict) -> None:
    with knobs.override(DEVICE="PYTHON"):
        found = gpt.train("data", 3, 2)
    np.testing.assert_allclose(found["losses"], alone["losses"], rtol=1e-5)
    assert set(found["sent"]) == {"ALLREDUCE"}
    scalars = found["sent"]["ALLREDUCE"] - found["parameters"]  # 2(n-1)/n of them, for n = 2
    assert 0 <= scalars <= 16  # the loss, and how many letters there are


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("kind", ["data", "tensor", "full"])
def test_twenty_steps(kind: str, count: int) -> None:
    with knobs.override(DEVICE="PYTHON"):
        one = gpt.train("one", 20, 1)
        found = gpt.train(kind, 20, count)
    np.testing.assert_allclose(found["losses"], one["losses"], rtol=1e-4)
    if kind == "data":
        assert abs(found["sent"]["ALLREDUCE"] - 2 * (count - 1) * found["parameters"] // count) <= 32
    if kind == "full":
        assert found["kept"] <= (1 / count + 0.15) * one["kept"]


def test_fully_sharded(alone: dict) -> None:
    with knobs.override(DEVICE="PYTHON"):
        found = gpt.train("full", 3, 2)
    np.testing.assert_allclose(found["losses"], alone["losses"], rtol=1e-5)
    assert found["kept"] <= (1 / 2 + 0.15) * alone["kept"]
    assert found["peak"] <= (1 / 2 + 0.15) * alone["peak"]
    # gathered for the forward and for the backward pass, scattered once
    assert found["sent"]["ALLGATHER"] <= 2 * found["parameters"] // 2
    assert found["sent"]["REDUCE_SCATTER"] + found["sent"]["ALLREDUCE"] // 2 <= found["parameters"] // 2 + 16
