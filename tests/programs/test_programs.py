"""Random programs agree with NumPy on the interpreter."""

import pytest
from hypothesis import given, settings

from tests.programs.generate import Program, check, programs

DEVICE = "PYTHON"


@given(programs())
@settings(max_examples=200)
def test_programs(program: Program) -> None:
    check(program, DEVICE)


@pytest.mark.slow
@given(programs(most_steps=25))
@settings(max_examples=2000)
def test_many_programs(program: Program) -> None:
    check(program, DEVICE)
