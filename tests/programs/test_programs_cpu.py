"""Random programs agree with NumPy as machine code."""

import pytest
from hypothesis import given, settings

from tests.devices import devices
from tests.programs.generate import Program, check, programs

(COMPILED,) = devices("CPU")


@given(programs())
@settings(max_examples=100)
def test_programs(program: Program) -> None:
    check(program, COMPILED)


@pytest.mark.slow
@given(programs(most_steps=25))
@settings(max_examples=2000)
def test_many_programs(program: Program) -> None:
    check(program, COMPILED)
