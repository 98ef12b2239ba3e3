"""Random programs of the API agree with NumPy; `python -m tests.programs.api` runs as many as you like.

A failure names its seed and prints a small program: `python -m tests.programs.api --seed N --count 1` again.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.programs.api.judge import draw_any, judge

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
