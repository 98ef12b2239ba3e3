"""A failing program made small: fewer outputs, fewer statements, smaller sizes, plainer numbers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from tests.programs.api.draw import Line
from tests.programs.api.formats import NUMPY
from tests.programs.api.program import _NAME, Program
from tests.programs.api.reference import Reject


def shrink(program: Program, fails: Callable[[Program], bool], budget: int = 60) -> Program:
    """The smallest variant found, within so many tries, that fails as the program does."""
    tries = 0
    progress = True
    while progress and tries < budget:
        progress = False
        for candidate in _variants(program):
            if tries >= budget:
                break
            trimmed = _trim(candidate)
            if str(trimmed) == str(program):
                continue
            try:
                trimmed.values()
            except (Reject, ValueError, IndexError, TypeError, KeyError, AttributeError, ZeroDivisionError):
                continue
            tries += 1
            if fails(trimmed):
                program, progress = trimmed, True
                break
    return program


def _variants(program: Program) -> Iterator[Program]:
    yield program  # without what is not needed
    if len(program.outputs) > 1:
        for name in program.outputs:
            yield _with(program, outputs=[name])
    yield from _without_a_line(program)
    yield from _smaller(program)
    yield from _plainer(program)


def _with(program: Program, **changes: Any) -> Program:
    return replace(program, **changes)


def _trim(program: Program) -> Program:
    """Without what no output needs."""
    needed, kept = set(program.outputs), []
    for line in reversed(program.lines):
        if needed & set(line.names):
            needed |= set(_NAME.findall(line.text))
            kept.append(line)
    used = " ".join(line.text for line in kept)
    data = {name: array for name, array in program.data.items() if re.search(rf"\b{name}\b", used)}
    return _with(program, lines=kept[::-1], data=data)


def _without_a_line(program: Program) -> Iterator[Program]:
    """A statement's result given as an input instead; the end of a chain left out."""
    values = program.values()
    for place in reversed(range(len(program.lines))):
        line = program.lines[place]
        if line.text.endswith((".realize()", ".contiguous()")):
            source = _NAME.findall(line.text)[0]
            yield _with(
                program, lines=[*program.lines[:place], Line(line.names, source), *program.lines[place + 1 :]]
            )
        if line.text.startswith("Tensor(") or _NAME.fullmatch(line.text):
            continue
        for output in _NAME.findall(line.text):
            if set(line.names) & set(program.outputs):
                yield _with(program, outputs=[output])
        made, data = [], dict(program.data)
        for name in line.names:
            value = values[name]
            with np.errstate(all="ignore"):
                data[f"b{name}"] = value.x.astype(NUMPY[value.type])
            made.append(Line((name,), f"Tensor(b{name})"))
        yield _with(program, data=data, lines=[*program.lines[:place], *made, *program.lines[place + 1 :]])


def _smaller(program: Program) -> Iterator[Program]:
    """One size everywhere replaced by a smaller one, in shapes and in the text."""
    sizes = sorted(
        {size for array in program.data.values() for size in array.shape if size > 1}, reverse=True
    )
    for size in sizes:
        for less in (1, 2, 3, size // 2, size - 1):
            if 0 < less < size:
                data = {
                    name: array[tuple(slice(less if n == size else n) for n in array.shape)]
                    for name, array in program.data.items()
                }
                lines = [
                    Line(x.names, re.sub(rf"(?<![\w.]){size}(?![\w.])", str(less), x.text))
                    for x in program.lines
                ]
                yield _with(program, data=data, lines=lines)
                yield _with(program, data=data)


def _plainer(program: Program) -> Iterator[Program]:
    """All elements of an input the same small number."""
    for name, array in program.data.items():
        for number in (0, 1, 2):
            plain = np.full(array.shape, number).astype(array.dtype)
            if array.size and not np.array_equal(plain, array, equal_nan=False):
                yield _with(program, data={**program.data, name: plain})
                break
