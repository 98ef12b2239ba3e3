"""Random programs agree with NumPy on the emulated GPU."""

import pytest
from hypothesis import given, settings

from tests.programs.generate import WIDE, Program, check, programs


@given(programs() | programs(sizes=WIDE))
@settings(max_examples=50)
def test_on_the_emulator(program: Program) -> None:
    check(program, "EMULATOR")


@pytest.mark.slow
@given(programs(most_steps=25) | programs(most_steps=25, sizes=WIDE))
@settings(max_examples=1000)
def test_many_on_the_emulator(program: Program) -> None:
    check(program, "EMULATOR")
