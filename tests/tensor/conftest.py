"""Tests of tensors run on the interpreter, which is the judge of all other devices."""

from collections.abc import Iterator

import pytest

from morok import knobs
from tests.devices import devices

DEVICES = devices("PYTHON")


@pytest.fixture(params=DEVICES, autouse=True)
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    """Tensors of the test live here."""
    with knobs.override(DEVICE=request.param):
        yield request.param
