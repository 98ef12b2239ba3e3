"""A GPT on virtual devices: losses of one device, bytes by theory, memory by the number of devices."""

import numpy as np
import pytest

from morok import knobs
from tests.mesh import gpt


@pytest.fixture(scope="module")
def alone() -> dict:
    with knobs.override(DEVICE="PYTHON"):
        return gpt.train("one", 3, 1)


def _train(kind: str, steps: int, count: int) -> dict:
    with knobs.override(DEVICE="PYTHON"):
        return gpt.train(kind, steps, count)


ACTIVATIONS = gpt.BATCH * gpt.LENGTH * gpt.WIDTH * 4  # bytes between two blocks
MEAN = 4 + 8  # bytes of a loss's sum, and of the number of letters that it is divided by


def summed(sizes: list[int], count: int) -> int:
    """Bytes that a device sends for sums of so many numbers each: 2(n-1)/n, in whole numbers."""
    return sum(size - row + (count - 1) * row for size in sizes for row in (-(-size // count),)) * 4


def check_bytes(kind: str, count: int, found: dict) -> None:
    """What the engine was handed in one step is what theory asks for and the plan had said, to the byte."""
    sent, given, sizes = found["sent"], found["given"], found["sizes"]
    parameters = sum(sizes) * 4
    share = (count - 1) / count
    assert sum(sent.values()) == found["planned"]
    if kind in ("data", "accumulate"):  # all gradients, once
        means = 2 if kind == "accumulate" else 1
        assert given == {"all_reduce": parameters + 4 + means * 8}
        assert sent == {"all_reduce": summed([*sizes, 1], count) + means * (count - 1) * 8}
    elif kind == "tensor":  # two sums of activations forward, two backward, in each block
        assert given == {"all_reduce": 4 * gpt.LAYERS * ACTIVATIONS}
        assert sent["all_reduce"] == 2 * share * given["all_reduce"]
    elif kind == "sequence":  # each of those sums as a scatter and a gather: the same bytes
        assert sent["reduce_scatter"] == share * 4 * gpt.LAYERS * ACTIVATIONS
        # but for the first one's way back, which only gradients of embeddings read: those of places are cut
        embedded = ACTIVATIONS - gpt.LENGTH * gpt.WIDTH * 4
        assert sent["all_gather"] == share * (4 * gpt.LAYERS * ACTIVATIONS - embedded)
        norms = 2 * 2 * gpt.WIDTH * 4 * gpt.LAYERS + 2 * gpt.WIDTH * 4 * gpt.LAYERS
        assert given["all_reduce"] <= norms + (gpt.LETTERS + gpt.LENGTH) * gpt.WIDTH * 4
    elif kind == "full":  # gathered for the forward and for the backward pass, scattered once
        assert sent["reduce_scatter"] == share * parameters
        assert given["all_reduce"] == MEAN
        assert share * parameters < sent["all_gather"] <= 2 * share * parameters
    elif kind == "pipeline":  # a microbatch to the next stage in every tick but the last, and back
        ticks = gpt.MICRO + count - 1
        assert given["send_receive"] == 2 * (ticks - 1) * ACTIVATIONS // gpt.MICRO


def test_data_parallel(alone: dict) -> None:
    found = _train("data", 3, 2)
    np.testing.assert_allclose(found["losses"], alone["losses"], rtol=1e-5)
    check_bytes("data", 2, found)


@pytest.mark.slow
def test_pipeline(alone: dict) -> None:
    found = _train("pipeline", 3, 2)
    np.testing.assert_allclose(found["losses"], alone["losses"], rtol=1e-5)
    check_bytes("pipeline", 2, found)
    assert found["kept"] <= (1 / 2 + 0.15) * alone["kept"]


@pytest.mark.slow
def test_sequence_parallel(alone: dict) -> None:
    found = _train("sequence", 2, 2)
    np.testing.assert_allclose(found["losses"], alone["losses"][:2], rtol=1e-5)
    check_bytes("sequence", 2, found)


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("kind", ["data", "tensor", "sequence", "full", "pipeline", "accumulate"])
def test_twenty_steps(kind: str, count: int) -> None:
    one, found = _train("one", 20, 1), _train(kind, 20, count)
    np.testing.assert_allclose(found["losses"], one["losses"], rtol=1e-4)
    check_bytes(kind, count, found)
    if kind in ("full", "pipeline"):
        assert found["kept"] <= (1 / count + 0.15) * one["kept"]


def test_fully_sharded(alone: dict) -> None:
    found = _train("full", 3, 2)
    np.testing.assert_allclose(found["losses"], alone["losses"], rtol=1e-5)
    check_bytes("full", 2, found)
    assert found["kept"] <= (1 / 2 + 0.15) * alone["kept"]
    assert found["peak"] <= (1 / 2 + 0.15) * alone["peak"]
