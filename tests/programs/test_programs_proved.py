"""Kernels of random programs and of models are proved: safe, and the same before and after their stages."""

import numpy as np
import pytest
from hypothesis import given, settings

from morok import Tensor, knobs, nn
from morok.cli.bench.libraries import Morok
from morok.cli.bench.models import gpt, gpt_weights, resnet18, resnet_weights
from morok.device import prove
from tests.nn.test_gradients import LENGTH, Gpt, ResNet
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


def test_old_values_are_read_by_those_who_write() -> None:
    """Threads that share a sum, or lie beyond the end, store nothing: others write what they would read."""
    with knobs.override(DEVICE="EMULATOR", PROVE=1, CACHE=False):
        x = np.arange(60, dtype=np.float32).reshape(3, 20)
        mean = Tensor(np.ones(3, np.float32))
        mean.assign(mean * 0.5 + Tensor(x).sum(1))
        np.testing.assert_allclose(mean.numpy(), 0.5 + x.sum(1))
        whole = Tensor(np.ones((16, 39), np.int32)).realize()
        whole[0::2] = 3
        wanted = np.ones((16, 39), np.int32)
        wanted[0::2] = 3
        np.testing.assert_array_equal(whole.numpy(), wanted)


@pytest.mark.parametrize("name", ["gpt", pytest.param("resnet", marks=pytest.mark.slow)])
def test_a_step_of_training_on_a_grid(name: str) -> None:
    """Kernels with tiles, rings and blocks of threads, of sizes that fill none of them."""
    with knobs.override(DEVICE="EMULATOR", PROVE=1, CACHE=False), nn.training():
        model = Gpt() if name == "gpt" else ResNet()
        tokens = Tensor(np.zeros((4, LENGTH), np.int64))
        x = tokens if name == "gpt" else Tensor.zeros(4, 3, 12, 12)
        y = tokens if name == "gpt" else Tensor(np.zeros(4, np.int64))
        found = [t for t in nn.named_tensors(model).values() if t.is_leaf]
        got = model(x).cross_entropy(y).gradient(*found)
        before = prove.totals.kernels
        got[0].prepare(*got[1:]).compile()
        assert prove.totals.kernels - before > 20
