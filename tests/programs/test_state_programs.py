"""Random programs about the identity of memory, against NumPy (see `state_programs.py`)."""

import os

import pytest

from morok import knobs
from tests.programs.state_judge import difference, judged
from tests.programs.state_mutants import MUTANTS, found_alone
from tests.programs.state_programs import Program, make_program

# The interpreter runs what the scheduler made, without compiling: enough for who sees which values.
PARTS = [("PYTHON", 0, 200), ("CPU", 440, 500), pytest.param("PYTHON", 200, 440, marks=pytest.mark.slow)]


@pytest.mark.parametrize(("device", "first", "last"), PARTS)
def test_programs(device: str, first: int, last: int) -> None:
    with knobs.override(DEVICE=os.environ.get("DEVICE", device)):
        wrong = [message for seed in range(first, last) if (message := judged(seed)[1])]
    assert not wrong, "\n\n".join(wrong)


def test_programs_have_what_matters() -> None:
    count = 200
    features = [f for seed in range(count) for f in make_program(seed).features]
    for name, least in {
        "jit": 100,
        "jit of views": 30,
        "jit with shared arguments": 30,
        "views of views": 60,
        "overlapping assignments": 60,
        "writes through views": 60,
        "equal constants": 30,
        "gradients": 20,
        "symbolic positions": 5,
        "memory shared with the outside": 30,
        "writes to arrays of tensors": 40,
        "values computed again": 40,
    }.items():
        assert features.count(name) >= least, f"{features.count(name)} of {count} programs have {name}"


@pytest.mark.slow
@pytest.mark.parametrize("block", range(20))
def test_many_programs(block: int) -> None:
    with knobs.override(DEVICE=os.environ.get("DEVICE", "PYTHON" if block % 4 else "CPU")):
        seeds = range(1000 + block * 1000, 2000 + block * 1000)
        wrong = [message for seed in seeds if (message := judged(seed)[1])]
    assert not wrong, "\n\n".join(wrong[:5])


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mistake_can_be_made(name: str) -> None:
    """What a mutant takes out is still where it looks for it."""
    with MUTANTS[name]():
        pass


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_mistakes_are_found(name: str) -> None:
    """The programs find each mistake about identity that was mended."""
    assert found_alone(name) is not None


def test_two_tensors_of_one_value_part_before_an_array_is_shown() -> None:
    """They are computed together, beside a state of memory that the value was made of."""
    lines = """
t1 = new([[-5, -4, 1], [-9, -4, 0]], 'float32')
t2 = clip(t1 - t1)
t3 = take(t1, [-2, 1])
put_mask(t1, 8)
t4 = clip(t2 - t1)
t5 = joined(t4)
t6 = clip(t5 + 0)
poke(t5, 8, t1, t2, t3, t4, t5, t6)
"""
    with knobs.override(DEVICE="CPU"):
        assert difference(Program(0, lines.strip().split("\n"))) is None
