"""Tensors without elements: what is computed from them has NumPy's shape and values."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from morok import Tensor, knobs
from morok.errors import ShapeError
from tests.devices import devices
from tests.tensor.common import same

SHAPES: list[tuple[int, ...]] = [(0,), (3, 0), (0, 5), (3, 0, 31)]
RUNNING: dict[str, Callable[..., Any]] = {
    "cumsum": np.cumsum,
    "cumprod": np.cumprod,
    "cummax": np.maximum.accumulate,
    "cummin": np.minimum.accumulate,
}


@pytest.fixture(params=devices("CPU"), autouse=True)
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    """Where programs are scheduled: the interpreter asks nobody which loop runs over nothing."""
    with knobs.override(DEVICE=request.param):
        yield request.param


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", RUNNING)
def test_running_values_of_nothing_in_something(name: str, shape: tuple[int, ...]) -> None:
    array, padding = np.zeros(shape), tuple((3, 2) for _ in shape)
    for axis in range(len(shape)):
        wanted = RUNNING[name](array, axis=axis)

        def running(axis: int = axis) -> Tensor:  # anew: what has been computed is no running value any more
            return getattr(Tensor(array), name)(axis)

        same(running(), wanted)
        same(running().pad(padding), np.pad(wanted, padding))
        same(running().pad(padding, value=7), np.pad(wanted, padding, constant_values=7))
        same(running().pad(padding).flip(axis).cumsum(axis), np.zeros(np.pad(wanted, padding).shape))


@pytest.mark.filterwarnings("ignore:Mean of empty slice", "ignore:invalid value")
def test_middles_of_nothing() -> None:
    array = np.zeros((3, 0), np.float32)
    same(Tensor(array).median(1), np.median(array, 1))
    same(Tensor(array).median(0, keepdim=True), np.median(array, 0, keepdims=True))
    same(Tensor(array).median(), np.median(array))
    same(Tensor(np.zeros((0, 2), np.int8)).median(0), np.full(2, np.nan, np.float32))


def test_a_number_has_no_diagonal() -> None:
    with pytest.raises(ShapeError, match="last axis"):
        Tensor(3).diag_embed()
