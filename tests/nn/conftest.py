"""Tests of layers run on the interpreter; those that ask for `device` also as machine code."""

from collections.abc import Iterator

import pytest

from morok import knobs
from tests.devices import devices


@pytest.fixture(autouse=True)
def interpreter() -> Iterator[None]:
    with knobs.override(DEVICE=devices("PYTHON")[0]):
        yield


@pytest.fixture(params=devices("PYTHON", "CPU"))
def device(request: pytest.FixtureRequest, interpreter: None) -> Iterator[str]:
    with knobs.override(DEVICE=request.param):
        yield request.param
