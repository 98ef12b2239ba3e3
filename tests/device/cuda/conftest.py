"""A GPU that is none, for the tests of its runtime."""

import gc
from collections.abc import Iterator

import pytest

from morok.device.cuda.device import Cuda
from tests.device.cuda.fake_gpu import FakeDriver, fake_gpus


@pytest.fixture
def gpu() -> Iterator[Cuda]:
    with fake_gpus(FakeDriver()) as (device,):
        yield device
        gc.collect()
