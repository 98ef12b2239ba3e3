"""One seed to one verdict, with a small program if it is a bad one."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import numpy as np

from tests.programs.api.gradients import check_gradient, draw_gradient
from tests.programs.api.program import Program, Verdict, check, draw
from tests.programs.api.shrink import shrink

_METHOD = re.compile(r"\.([a-z_0-9]+)\(")
_OPERATOR = re.compile(r" (\*\*|//|<<|>>|<=|>=|[-+*/%&|^<>@]) ")


def draw_any(seed: int, steps: int) -> Program:
    """The program of a seed: one in ten is about gradients."""
    return draw_gradient(seed, steps) if seed % 10 == 9 else draw(seed, steps)


def check_any(program: Program) -> Verdict:
    return check_gradient(program) if program.target else check(program)


def judge(seed: int, steps: int, smaller: bool = True) -> dict[str, Any]:
    """What became of a seed's program, as plain data."""
    program = draw_any(seed, steps)
    verdict = check_any(program)
    found: dict[str, Any] = {"seed": seed, "kind": verdict.kind, "message": verdict.message}
    found["ops"], found["types"], found["elements"] = census(program)
    if verdict.kind != "right":
        if smaller:
            program = shrink(program, lambda candidate: _alike(check_any(candidate), verdict))
            found["message"] = check_any(program).message or verdict.message
        found["program"] = str(program)
    return found


def _alike(a: Any, b: Any) -> bool:
    return a.kind == b.kind and (a.kind == "wrong" or a.message.split(":")[0] == b.message.split(":")[0])


def census(program: Program) -> tuple[Counter[str], Counter[str], Counter[str]]:
    """How often each op was used, and each type; and how well the elements looked at are known."""
    ops: Counter[str] = Counter()
    for line in program.lines:
        ops.update(_METHOD.findall(line.text))
        ops.update(_OPERATOR.findall(line.text))
        if "[" in line.text and not line.text.startswith("Tensor("):
            ops["[]"] += 1
    if program.target:
        ops["gradient"] += 1
    values, elements = program.values(), Counter[str]()
    for bounds in (values[name].e for name in program.outputs):
        elements["exact"] += int((bounds == 0).sum())
        elements["unknown"] += int(np.isinf(bounds).sum())
        elements["within a bound"] += int(((bounds > 0) & ~np.isinf(bounds)).sum())
    return ops, Counter(value.type for value in values.values()), elements
