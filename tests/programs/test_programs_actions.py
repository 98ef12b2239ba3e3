"""Random programs as machine code without the optimiser, and with random legal actions in its place."""

import random
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from morok import knobs
from morok.device import registry
from morok.device.cpu.device import CPU
from morok.ir.digest import hexdigest
from morok.ir.node import UOp
from morok.machine.machine import Machine
from morok.optimize.actions.table import apply, can
from morok.runtime import plan
from tests.optimize.test_actions import candidates
from tests.programs.generate import Program, check, programs

DEVICE = "CPU:77"  # a processor whose optimiser throws dice


class Dice:
    """Applies a few legal actions to every kernel; which ones follows from the seed and the kernel."""

    def __init__(self) -> None:
        self.seed = 0
        self.applied = 0

    def __call__(self, ast: UOp, host: Machine) -> UOp:
        draw = random.Random(f"{self.seed} {hexdigest(ast)}")
        for _ in range(draw.randint(1, 4)):
            options = candidates(ast)
            names = sorted({opt.name for opt in options})
            for _ in range(12):  # a kind of action first, so that rare ones get their turn
                name = draw.choice(names)
                opt = draw.choice([o for o in options if o.name == name])
                if can(ast, opt, host) is None:
                    ast = apply(ast, opt, host)
                    self.applied += 1
                    break
        return ast


@pytest.fixture(scope="module")
def dice() -> Iterator[Dice]:
    """The device is there for these tests alone, and keeps nothing on disk: the key knows no dice."""
    thrown = Dice()
    registry._devices[DEVICE] = CPU(DEVICE, thrown)
    with knobs.override(CACHE=False):
        yield thrown
    assert thrown.applied, "no action was legal, so nothing was tested"
    del registry._devices[DEVICE]


def check_with(dice: Dice, program: Program, seed: int) -> None:
    dice.seed = seed
    plan._programs.clear()  # kernels of the last throw
    check(program, DEVICE)


@given(programs(), st.integers(0, 1 << 30))
@settings(max_examples=40)
def test_programs_under_random_actions(dice: Dice, program: Program, seed: int) -> None:
    check_with(dice, program, seed)


@pytest.mark.slow
@given(programs(most_steps=25), st.integers(0, 1 << 30))
@settings(max_examples=1000)
def test_many_programs_under_random_actions(dice: Dice, program: Program, seed: int) -> None:
    check_with(dice, program, seed)


@given(programs())
@settings(max_examples=40)
def test_programs_without_the_optimiser(program: Program) -> None:
    with knobs.override(NOOPT=True):
        check(program, "CPU")


@pytest.mark.slow
@given(programs(most_steps=25))
@settings(max_examples=1000)
def test_many_programs_without_the_optimiser(program: Program) -> None:
    with knobs.override(NOOPT=True):
        check(program, "CPU")
