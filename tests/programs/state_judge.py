"""Random programs about memory, judged: both libraries execute them, and end with equal arrays or not."""

from __future__ import annotations

import numpy as np

from tests.programs.state_library import NUMPY, library, start
from tests.programs.state_programs import Program, make_program


def difference(program: Program) -> str | None:
    """None, or what the two libraries do not agree on."""
    theirs, ours = start(NUMPY), start(library())
    for number, line in enumerate(program.lines):
        exec(line, theirs)
        try:
            exec(line, ours)
        except Exception as error:
            return f"line {number + 1}, `{line}`: {type(error).__name__}: {error}"
    for name in [n for n in theirs if n == "counter" or (n[0] in "to" and n[1:].isdigit())]:
        want = theirs[name]
        try:
            got = ours["seen"](ours[name], want)
        except Exception as error:
            return f"{name}: {type(error).__name__}: {error}"
        if got.shape != want.shape or got.dtype != want.dtype or not np.array_equal(got, want):
            return f"{name} is {got.tolist()} ({got.dtype}), not {want.tolist()} ({want.dtype})"
    return None


def _is_valid(lines: list[str]) -> bool:
    space = start(NUMPY)
    try:
        for line in lines:
            exec(line, space)
    except Exception:
        return False
    return True


def minimised(program: Program) -> Program:
    """A shorter program that is still wrong."""
    lines = list(program.lines)
    size = max(len(lines) // 2, 1)
    while True:
        at = 0
        while at < len(lines):
            less = lines[:at] + lines[at + size :]
            if _is_valid(less) and difference(Program(program.seed, less)) is not None:
                lines = less
            else:
                at += size
        if size == 1:
            return Program(program.seed, lines)
        size = max(size // 2, 1)


def judged(seed: int) -> tuple[set[str], str | None]:
    """The features of a program, and what is wrong with it, with the shortest program that shows it."""
    program = make_program(seed)
    wrong = difference(program)
    if wrong is None:
        return program.features, None
    short = minimised(program)
    return program.features, f"seed {seed}: {difference(short) or wrong}\n{short}"
