"""Random legal actions on kernels, run by the emulator (or a GPU): the answer is the interpreter's."""

import os
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from morok import Tensor, knobs
from morok.ir.node import UOp
from morok.machine.machine import Machine
from morok.optimize.actions.table import apply, apply_all
from morok.optimize.record import Opt
from tests.gpu.kernels import run
from tests.optimize.kernels import GPU, MAKERS, VALUES, buffers_of, interpret, kernel, same, wanted
from tests.optimize.test_actions import legal, sequences


def answer(ast: UOp) -> list[Any]:
    return run(ast, buffers_of(ast), VALUES)


@given(sequences((GPU,)))
@settings(max_examples=40)
def test_legal_sequences_keep_the_answer(case: tuple[str, Machine, UOp]) -> None:
    name, _, ast = case
    same(answer(ast), wanted(name))


@pytest.mark.slow
@given(sequences((GPU,)))
@settings(max_examples=3000)
def test_many_legal_sequences(case: tuple[str, Machine, UOp]) -> None:
    name, _, ast = case
    same(answer(ast), wanted(name))


@pytest.mark.parametrize("name", sorted(MAKERS))
def test_every_kernel_as_it_comes(name: str) -> None:
    """First what the heuristics make of it, then plain loops."""
    same(answer(kernel(name)), wanted(name))
    with knobs.override(NOOPT=True):
        same(answer(kernel(name)), wanted(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(MAKERS))
def test_every_single_action(name: str) -> None:
    for opt in legal(kernel(name), GPU):
        same(answer(apply(kernel(name), opt, GPU)), wanted(name))


SHARED = [
    ("row sum", (Opt("GROUP", 1, 8),)),
    ("row sum", (Opt("GROUPTOP", 1, 8), Opt("LOCAL", 0, 7))),
    ("row sum", (Opt("GROUP", 1, 3), Opt("UNROLL", 1, 4))),
    ("column sum", (Opt("GROUP", 1, 8), Opt("UPCAST", 0, 3))),
    ("column sum", (Opt("LOCAL", 0, 9), Opt("GROUPTOP", 1, 4))),
    ("whole sum", (Opt("GROUP", 0, 30),)),
    ("whole sum", (Opt("PACK", 1, 0, (0,)), Opt("PADTO", 0, 4))),
    ("row max", (Opt("GROUP", 1, 13),)),
    ("softmax", (Opt("GROUP", 2, 4), Opt("GROUP", 3, 4), Opt("LOCAL", 1, 4))),
    ("layer norm", (Opt("GROUP", 2, 8), Opt("GROUP", 3, 16), Opt("LOCAL", 1, 4))),
    ("matmul", (Opt("LOCAL", 0, 4), Opt("GROUP", 2, 5), Opt("LOCAL", 1, 4))),
    ("integers", (Opt("GROUP", 1, 2), Opt("LOCAL", 0, 3))),
    ("joint reduction", (Opt("GROUP", 1, 4),)),
]


@pytest.mark.parametrize(
    ("name", "opts"), SHARED, ids=lambda x: x if isinstance(x, str) else " ".join(map(str, x))
)
def test_shared_reductions(name: str, opts: tuple[Opt, ...]) -> None:
    same(answer(apply_all(kernel(name), opts, GPU)), wanted(name))


@pytest.mark.parametrize("rows", [17, 33, 257])
def test_a_condition_that_reduces_over_the_loop_it_guards(rows: int) -> None:
    """A choice by a row's sum goes to the reads of the same sum; the loop was limited in both by mistake."""
    x = np.random.default_rng(rows).normal(size=(rows, 2)).astype(np.float32)
    with knobs.override(DEVICE=os.environ.get("DEVICE", "EMULATOR")):
        least = Tensor(x).var(0, correction=0).xlogy(Tensor(np.float32(0.3))).topk(1, 0, largest=False)[0]
        got = least.numpy()
    np.testing.assert_allclose(got, [np.min(x.astype(float).var(0) * np.log(0.3))], rtol=1e-5)


SYMBOLIC = [
    (Opt("PEEL", 0, 8), Opt("TILE", 0, 2)),
    (Opt("PEEL", 1, 4), Opt("LOCAL", 2), Opt("TILE", 1, 2), Opt("PEEL", 0, 3), Opt("PEEL", 5, 2)),
    (Opt("PADTO", 0, 4), Opt("PEEL", 1, 5), Opt("LOCAL", 1), Opt("PEEL", 0, 8), Opt("UPCAST", 3, 4)),
    (Opt("PADTO", 0, 4), Opt("TILE", 0, 2), Opt("TILE", 1, 2), Opt("TILE", 0, 2)),
]


@pytest.mark.parametrize("opts", SYMBOLIC, ids=lambda x: " ".join(map(str, x)))
def test_parts_of_a_size_that_is_known_later(opts: tuple[Opt, ...]) -> None:
    """A part may be empty; the others run all the same. Many parts share one dimension of the grid."""
    ast = apply_all(kernel("symbolic rows"), opts, GPU)
    for n in (1, 8, 13, 20):
        same(run(ast, buffers_of(ast), {"n": n}), interpret(kernel("symbolic rows"), {"n": n}))
