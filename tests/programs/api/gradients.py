"""Programs whose last value is differentiated: the gradient along a direction, against differences.

The reference says what the loss is a little further along the direction and a little back. Differences of two
widths must agree, or the program has a kink there and says nothing about gradients.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from tests.programs.api.draw import Draw
from tests.programs.api.formats import Array
from tests.programs.api.program import Program, Verdict, grow, run_lines
from tests.programs.api.reference import Poles, Reject
from tests.programs.api.steps import (
    binary,
    choose,
    clip,
    end,
    float_pair,
    join,
    order,
    pad,
    part,
    parts,
    permute,
    power,
    reductions,
    reshape,
    running,
    shares,
    shrink,
    simple,
    smooth,
    spread,
    turn,
    with_itself,
    with_number,
)
from tests.programs.api.steps_more import contract, gather, less_common, matmul, networks, scatter, windows

WEIGHTS: dict[Any, int] = {
    smooth: 12, simple: 2, binary: 12, with_number: 6, with_itself: 5, power: 3, choose: 4, clip: 2,
    float_pair: 4, reshape: 4, permute: 4, part: 6, shrink: 3, pad: 4, spread: 4, turn: 5, join: 4,
    parts: 2, end: 3, reductions: 12, running: 5, shares: 6, order: 2, gather: 5, scatter: 5,
    matmul: 8, contract: 5, windows: 6, less_common: 2, networks: 3,
}  # fmt: skip
WIDTH = 1e-4


def draw_gradient(seed: int, most: int) -> Program:
    """A program of doubles that ends in a loss, with an input that the loss depends on."""
    chance = random.Random(f"gradient {seed}")
    while True:
        d = Draw(chance, sizes=chance.choice(((1, 2, 3), (1, 2, 3, 5, 7), (2, 3, 4, 8))), types=("float64",))
        d.smooth = True
        d.leaf(d.shape(0, 3))
        grow(d, min(chance.randrange(1, most + 1), chance.randrange(1, most + 1)), WEIGHTS)
        program = _with_loss(d)
        if program is not None:
            return program


def _with_loss(d: Draw) -> Program | None:
    try:
        out = d.pick(lambda v: v.type == "float64" and v.x.size > 0 and bool(np.isfinite(v.x + v.e).all()))
        weights = d.leaf(d.values[out].shape, "float64")
        (loss,) = d.add(f"({out} * {weights}).sum()")
    except Reject:
        return None
    inputs = [line for line in d.lines if line.text.startswith("Tensor(")]
    d.random.shuffle(inputs)
    for line in inputs[:3]:
        name = line.text[7:].split(".")[0].rstrip(")")
        if line.names[0] == weights or d.data[name].dtype != np.float64 or not d.data[name].size:
            continue
        program = Program(d.data, d.lines, [loss], True, (line.names[0], name, line.text))
        # What has been computed remembers how only if a gradient is wanted.
        if d.chance(0.5) or any(other.text.endswith(".realize()") for other in d.lines):
            line.text = f"{line.text[:-1]}, requires_grad=True)"
        if slope(program) is not None:
            return program
    return None


def slope(program: Program, inside: Array = True) -> tuple[Array, float, float] | None:
    """A direction, the loss's slope along it, and what that is uncertain by; None where there is no slope.

    `inside`: the elements of the input that move.
    """
    _, name, _ = program.target or ("", "", "")
    direction = np.random.default_rng(program.data[name].size).normal(size=program.data[name].shape)
    direction = np.where(inside, direction, 0.0)

    def at(step: float) -> float:
        moved = {**program.data, name: program.data[name] + step * direction}
        value = Program(moved, program.lines, program.outputs).values()[program.outputs[0]]
        return float(value.x)

    found = []
    try:
        for width in (WIDTH, WIDTH / 2, WIDTH / 5):
            near, far = at(width) - at(-width), at(2 * width) - at(-2 * width)
            found.append((8 * near - far) / (12 * width))
    except Reject:
        return None
    apart = max(found) - min(found)
    size = abs(at(0.0)) + max(map(abs, found))
    if not np.isfinite(apart + size) or apart > 1e-5 * size or not any(found):
        return None
    return direction, found[1], 10 * apart + 1e-7 * size


def check_gradient(program: Program) -> Verdict:
    """The gradient that morok gives, along the direction."""
    if program.target is None or program.target[1] not in program.data:
        return Verdict("right", "no target")
    if program.values()[program.outputs[0]].shape != ():
        return Verdict("right", "no loss")
    expected = slope(program)
    if expected is None:
        return Verdict("right", "no slope")
    direction, wanted, slack = expected
    name, data, text = program.target

    def look(names: dict[str, Any]) -> Array:
        return names[program.outputs[0]].gradient(names[name])[0].numpy()

    got = run_lines(program, look)
    if isinstance(got, Verdict):
        return got

    # What the program makes of the input's memory before it is a tensor, it makes of the direction too.
    def shown(memory: Array) -> Array:
        return eval(text[7:-1], {data: memory})

    along = shown(direction)
    if got.shape != along.shape or got.dtype != np.float64:
        return Verdict("wrong", f"a gradient of {got.dtype} {got.shape} for {along.shape}")
    known = np.isfinite(got)
    if not known.all():
        with Poles():
            program.values()
        if not Poles.met:
            return Verdict("wrong", f"{(~known).sum()} elements are not finite, and no function has a pole")
        # inf · 0, for PyTorch too: along the other elements the slope is right all the same
        inside = np.zeros(direction.size, bool)
        inside[shown(np.arange(direction.size).reshape(direction.shape))[known]] = True
        expected = slope(program, inside.reshape(direction.shape))
        if expected is None:
            return Verdict("right", "no slope")
        direction, wanted, slack = expected
        got, along = np.where(known, got, 0.0), shown(direction)
    found = float(np.sum(got * along))
    reach = slack + 1e-9 * float(np.sum(np.abs(got * along)))
    if not abs(found - wanted) <= reach:
        return Verdict("wrong", f"a slope of {found!r} instead of {wanted!r} ± {reach:.2g}")
    return Verdict("right")
