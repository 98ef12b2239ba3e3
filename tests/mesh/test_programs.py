"""Random programs on a mesh of virtual devices give what they give on one device."""

import pytest

from morok import knobs
from tests.mesh.programs import check


@pytest.mark.parametrize("first", range(0, 100, 10))
def test_random_programs(first: int) -> None:
    """On the interpreter, which compiles nothing: placements and collectives are the same everywhere."""
    with knobs.override(DEVICE="PYTHON"):
        for seed in range(first, first + 10):
            check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 3000, 100))
def test_many_random_programs(first: int) -> None:
    with knobs.override(DEVICE="PYTHON"):
        for seed in range(first, first + 100):
            check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(3000, 3400, 50))
def test_random_programs_compiled(first: int) -> None:
    for seed in range(first, first + 50):
        check(seed)
