"""Whole programs: drawn from a seed, run by morok, compared with the reference, printed as Python."""

from __future__ import annotations

import base64
import random
import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from morok import Tensor
from morok.errors import MorokError
from tests.programs.api.draw import Draw, Line, evaluate
from tests.programs.api.formats import NAMES, NUMPY, TYPE_TEXT, Array, is_float
from tests.programs.api.reference import Reject
from tests.programs.api.steps_more import WEIGHTS
from tests.programs.api.whole import Reference

_NAME = re.compile(r"\bv\d+\b")


@dataclass
class Program:
    """Inputs, statements, and the names whose values are looked at."""

    data: dict[str, Array]
    lines: list[Line]
    outputs: list[str]
    together: bool = True  # are the outputs computed in one plan?
    target: tuple[str, str, str] | None = None  # of a gradient: a tensor's name, its data's, its text

    def values(self) -> dict[str, Reference]:
        """Every value as the reference has it."""
        names: dict[str, Any] = dict(self.data)
        for line in self.lines:
            made = evaluate(line.text, names, Reference)
            results = made if isinstance(made, tuple) else (made,)
            if len(results) != len(line.names):
                raise Reject("another number of results")
            names.update(zip(line.names, results, strict=True))
        return {name: value for name, value in names.items() if isinstance(value, Reference)}

    def __str__(self) -> str:
        text = [
            "import base64, zlib",
            "import ml_dtypes",
            "import numpy as np",
            "from morok import Tensor",
            "",
        ]
        used = " ".join(line.text for line in self.lines)
        for name, array in self.data.items():
            if re.search(rf"\b{name}\b", used):
                text.append(f"{name} = {_literal(array)}")
        text += [str(line) for line in self.lines]
        if self.together and len(self.outputs) > 1:
            text.append(f"{self.outputs[0]}.realize({', '.join(self.outputs[1:])})")
        text += [f"print({name}.numpy())" for name in self.outputs]
        if self.target:
            text.append(f"print({self.outputs[0]}.gradient({self.target[0]})[0].numpy())")
        return "\n".join(text)


def _literal(array: Array) -> str:
    kind = TYPE_TEXT[NAMES[array.dtype]]
    if array.size > 64:
        packed = base64.b64encode(zlib.compress(np.ascontiguousarray(array).tobytes(), 9)).decode()
        return f"np.frombuffer(zlib.decompress(base64.b64decode({packed!r})), {kind}).reshape({array.shape})"
    values = array.astype(np.float64) if is_float(NAMES[array.dtype]) else array
    text = repr(values.tolist()).replace("nan", "np.nan").replace("inf", "np.inf")
    made = f"np.array({text}, {kind})"
    return made if array.size else f"np.zeros({array.shape}, {kind})"


@dataclass
class Verdict:
    """What became of a program: right, wrong, refused (by a MorokError), or raised (anything else)."""

    kind: str
    message: str = ""


def draw(seed: int, most: int = 10) -> Program:
    """The program of a seed."""
    chance = random.Random(seed)
    d = Draw(chance)
    d.sizes = chance.choice(
        ((1, 2, 3), (1, 2, 3, 5, 7, 13, 31), (2, 3, 4, 8, 16), (3, 5, 7), (0, 1, 2, 3), (16, 32, 64))
    )
    if chance.random() < 0.5:  # a program about few types
        d.types = tuple(chance.sample(d.types, 2))
    count = min(chance.randrange(1, most + 1), chance.randrange(1, most + 1))
    d.leaf(d.shape())
    grow(d, count, WEIGHTS)
    return Program(d.data, d.lines, _outputs(d), chance.random() < 0.8)


def grow(d: Draw, count: int, table: dict[Any, int]) -> None:
    """So many more steps, if they can be found."""
    ways, weights = list(table), list(table.values())
    steps = attempts = 0
    while steps < count and attempts < 40 + 10 * count:
        attempts += 1
        before = len(d.lines), len(d.data)
        try:
            d.random.choices(ways, weights)[0](d)
        except (Reject, ValueError, IndexError, OverflowError, ZeroDivisionError, TypeError):
            _undo(d, *before)
        else:
            steps += len(d.lines) > before[0]


def _undo(d: Draw, lines: int, data: int) -> None:
    for line in d.lines[lines:]:
        for name in line.names:
            d.values.pop(name, None)
    del d.lines[lines:]
    for name in list(d.data)[data:]:
        del d.data[name]


def _outputs(d: Draw) -> list[str]:
    """What nothing reads, and now and then something that is read as well."""
    read = {name for line in d.lines for name in _NAME.findall(line.text)}
    made = [name for line in d.lines for name in line.names]
    inputs = {n for line in d.lines if line.text.startswith("Tensor(") for n in line.names}
    chosen = [n for n in made if n not in read or (n not in inputs and d.chance(0.15))]
    return chosen[-6:]


def run_lines(program: Program, look: Callable[[dict[str, Any]], Any]) -> Any:
    """What is to be seen after morok has run a program; a verdict if it raised something."""
    try:
        names: dict[str, Any] = dict(program.data)
        for line in program.lines:
            made = evaluate(line.text, names, Tensor)
            results = tuple(made) if isinstance(made, tuple | list) else (made,)
            names.update(zip(line.names, results, strict=True))
        return look(names)
    except MorokError as error:
        return Verdict("refused", f"{type(error).__name__}: {error}")
    except Exception as error:
        return Verdict("raised", f"{type(error).__name__}: {error}")


def difference(got: Array, wanted: Reference) -> str | None:
    """What is wrong with a result; None if nothing is."""
    if got.shape != wanted.shape or got.dtype != NUMPY[wanted.type]:
        return f"{got.dtype} {got.shape} instead of {NUMPY[wanted.type]} {wanted.shape}"
    if not is_float(wanted.type):
        bad = (got != wanted.x) & (wanted.e == 0)
    else:
        with np.errstate(all="ignore"):
            values = got.astype(np.float64)
            same = (values == wanted.x) | (np.isnan(values) & np.isnan(wanted.x))
            bad = ~same & ~(np.abs(values - wanted.x) <= wanted.e) & ~np.isinf(wanted.e)
    if not bad.any():
        return None
    where = tuple(int(i) for i in np.argwhere(bad)[0])
    return (
        f"{int(bad.sum())} of {got.size} differ, at {where}: {got[where]!r} instead of {wanted.x[where]!r}"
        f" ± {float(wanted.e[where]):.3g}"
    )


def check(program: Program) -> Verdict:
    """Run a program and compare all outputs."""
    wanted = program.values()

    def look(names: dict[str, Any]) -> dict[str, Array]:
        outputs = [names[name] for name in program.outputs]
        if program.together and len(outputs) > 1:
            outputs[0].realize(*outputs[1:])
        return {name: names[name].numpy() for name in program.outputs}

    got = run_lines(program, look)
    if isinstance(got, Verdict):
        return got
    for name in program.outputs:
        problem = difference(got[name], wanted[name])
        if problem:
            return Verdict("wrong", f"{name}: {problem}")
    return Verdict("right")
