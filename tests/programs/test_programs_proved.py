"""Kernels of random programs and of models are proved: safe, and the same before and after their stages."""

import numpy as np
import pytest
from hypothesis import given, settings

from morok import Tensor, knobs
from morok.cli.bench.libraries import Morok
from morok.cli.bench.models import gpt, gpt_weights, resnet18, resnet_weights
from morok.device import prove
from tests.programs.generate import Program, check, programs

pytest.importorskip("z3")


@given(programs(most_steps=6))
@settings(max_examples=6)
def test_programs(program: Program) -> None:
    with knobs.override(PROVE=2, CACHE=False):
        check(program, "CPU")


@pytest.mark.slow
@given(programs())
@settings(max_examples=200)
def test_many_programs(program: Program) -> None:
    with knobs.override(PROVE=2, CACHE=False):
        check(program, "CPU")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet", "gpt"])
def test_models(name: str) -> None:
    if name == "resnet":
        weights = {n: Tensor(a) for n, a in resnet_weights(8, 10).items()}
        result = resnet18(Morok(), Tensor(np.zeros((1, 3, 32, 32), np.float32)), weights)
    else:
        weights = {n: Tensor(a) for n, a in gpt_weights(1, 48, 100, 16).items()}
        mask, tokens = np.tril(np.ones((16, 16), bool)), np.zeros((1, 16), np.int32)
        result = gpt(Morok(), Tensor(tokens), Tensor(mask), weights, heads=4)
    before = sum(prove.totals.compared.values()), prove.totals.compared["compared"]
    with knobs.override(PROVE=2, CACHE=False):
        result.plan().compile()
    after = sum(prove.totals.compared.values()), prove.totals.compared["compared"]
    assert after[0] - before[0] == after[1] - before[1] > 0  # all of them, in full
