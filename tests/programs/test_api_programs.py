"""Random programs of the API agree with NumPy; `python -m tests.programs.api` runs as many as you like.

A failure names its seed and prints a small program: `python -m tests.programs.api --seed N --count 1` again.
"""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.programs.api import gradients
from tests.programs.api.draw import Line
from tests.programs.api.judge import draw_any, judge
from tests.programs.api.program import Program, Verdict

ROOT = Path(__file__).parents[2]


def assert_right(first: int, count: int, steps: int) -> None:
    for seed in range(first, first + count):
        found = judge(seed, steps)
        assert found["kind"] == "right", (
            f"seed {seed}, {found['kind']}: {found['message']}\n{found['program']}"
        )


@pytest.mark.parametrize("first", range(0, 300, 30))
def test_programs(first: int) -> None:
    assert_right(first, 30, steps=5)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(10_000, 13_000, 100))
def test_many_programs(first: int) -> None:
    assert_right(first, 100, steps=12)


def test_a_seed_is_one_program() -> None:
    """In every process: nothing hangs on hashes or on what was drawn before."""
    command = [sys.executable, "-m", "tests.programs.api", "--show", "--seed", "7", "--count", "3"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    assert shown == "".join(f"# seed {seed}\n{draw_any(seed, 10)}\n\n" for seed in (7, 8, 9))


# --- the judge of gradients excuses what has a pole, and nothing else


def _judged(*texts: str, told: Any = None) -> Verdict:
    """The verdict on a loss of x, whose elements are 0, 1 and 2; `told` in place of morok's gradient."""
    lines = [Line(("x",), "Tensor(a)"), *(Line((f"v{n}",), text) for n, text in enumerate(texts))]
    program = Program({"a": np.arange(3.0)}, lines, [f"v{len(texts) - 1}"], True, ("x", "a", "Tensor(a)"))
    with pytest.MonkeyPatch.context() as patch:
        if told is not None:
            patch.setattr(gradients, "run_lines", lambda *_: np.array(told))
        return gradients.check_gradient(program)


_MASKED_ROOT = ("x.relu().sqrt()", "(x > 0.5).where(v0, 0.0)", "v1.sum()")
_ZEROS = ("x.relu() * 0.0", "(x * x + v0).sum()")


def test_a_pole_excuses_its_own_element_only() -> None:
    assert _judged(*_MASKED_ROOT).kind == "right"
    assert _judged(*_MASKED_ROOT, told=[np.nan, 0.5, 0.5 / np.sqrt(2)]).kind == "right"
    assert _judged(*_MASKED_ROOT, told=[np.nan, 0.5, 0.6]).kind == "wrong"


def test_a_zero_excuses_nothing() -> None:
    assert _judged(*_ZEROS).kind == "right"
    assert _judged(*_ZEROS, told=[np.nan, 2.0, 4.0]).kind == "wrong"
    assert _judged(*_ZEROS, told=[np.inf, 2.0, 4.0]).kind == "wrong"


@pytest.mark.parametrize("seed", [704_057, 712_162, 2_211_430])
def test_programs_that_were_wrong_once(seed: int) -> None:
    """Zeros of a type that does not hold their number, looked up; products of the smallest numbers;
    what rounds to one, to the power NaN."""
    assert_right(seed, 1, steps=10)
