"""Random programs agree with NumPy: on the interpreter, which is the judge, and on the CPU."""

import pytest
from hypothesis import given, settings

from tests.devices import devices
from tests.programs.generate import WIDE, Program, check, programs

(COMPILED,) = devices("CPU")


@given(programs())
@settings(max_examples=200)
def test_on_the_interpreter(program: Program) -> None:
    check(program, "PYTHON")


@pytest.mark.slow
@given(programs(most_steps=25))
@settings(max_examples=2000)
def test_many_on_the_interpreter(program: Program) -> None:
    check(program, "PYTHON")


@given(programs() | programs(sizes=WIDE))
@settings(max_examples=60)
def test_on_the_cpu(program: Program) -> None:
    check(program, COMPILED)


@pytest.mark.slow
@given(programs(most_steps=25) | programs(most_steps=25, sizes=WIDE))
@settings(max_examples=1000)
def test_many_on_the_cpu(program: Program) -> None:
    check(program, COMPILED)
