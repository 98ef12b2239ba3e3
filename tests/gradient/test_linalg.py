"""Gradients of factorisations and systems: batches, second derivatives, singular matrices, refusals."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from morok import Tensor
from morok.errors import MorokError
from tests.gradient.check import check

RNG = np.random.default_rng(5)
SQUARE, BATCH, TALL = (RNG.standard_normal(s) for s in ((3, 3), (2, 3, 3), (2, 4, 3)))
SIDE = RNG.standard_normal((3, 2))


def all_of(*parts: Any) -> Tensor:
    """Everything in one row."""
    first, *rest = (part.reshape(-1) for part in parts)
    joined: Tensor = first.cat(*rest)
    return joined


def signless(x: Tensor) -> Tensor:
    """Singular vectors as what does not depend on their signs."""
    u, s, vh = x.svd()
    return all_of(u * u, s, vh * vh, u[..., :1] @ vh[..., :1, :])


BATCHES: dict[str, tuple[Callable[..., Tensor], tuple[Any, ...]]] = {
    "inv": (lambda x: x.inv(), (BATCH,)),
    "det": (lambda x: x.det(), (BATCH,)),
    "cholesky": (lambda x: (x @ x.mT).cholesky(upper=True), (BATCH,)),
    "solve, one matrix for many": (lambda x, y: x.solve(y), (SQUARE, np.stack([SIDE, SIDE + 1]))),
    "solve, many matrices for one": (lambda x, y: x.solve(y), (BATCH, SIDE)),
    "solve, a vector": (lambda x, y: x.solve(y), (BATCH, SIDE[:, 0])),
    "upper triangle of ones": (
        lambda x, y: x.solve_triangular(y, upper=True, unitriangular=True), (BATCH, SIDE),
    ),
    "qr, tall": (lambda x: all_of(*x.qr()), (TALL,)),
    "qr, wide": (lambda x: all_of(*x.qr()), (np.swapaxes(TALL, -1, -2),)),
    "qr without Q": (lambda x: x.qr("r").R, (TALL,)),
    "svd, tall": (signless, (TALL,)),
    "svd, wide": (signless, (np.swapaxes(TALL, -1, -2),)),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", BATCHES)
def test_batches(name: str) -> None:
    function, arrays = BATCHES[name]
    check(function, *arrays)


SECOND = {
    "inv": lambda x: (x.inv() ** 2).sum(),
    "det": lambda x: x.det(),
    "cholesky": lambda x: ((x @ x.mT).cholesky() ** 3).sum(),
    "solve": lambda x: (x.solve(Tensor(SIDE)) ** 2).sum(),
    "solve_triangular": lambda x: (x.solve_triangular(Tensor(SIDE)) ** 2).sum(),
    "qr": lambda x: (all_of(*x.qr()) ** 3).sum(),
    "svd": lambda x: signless(x).sum(),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SECOND)
def test_second_derivatives(name: str) -> None:
    def slope(x: Tensor) -> Tensor:
        return SECOND[name](x).gradient(x)[0]

    check(slope, SQUARE, rtol=2e-5)


def cofactors(a: Any) -> Any:
    """One determinant of what is left for each place."""
    size = len(a)
    found = np.zeros_like(a)
    for i in range(size):
        for j in range(size):
            found[i, j] = (-1) ** (i + j) * np.linalg.det(np.delete(np.delete(a, i, 0), j, 1))
    return found


def test_determinants_of_singular_matrices() -> None:
    matrices = [
        np.arange(9.0).reshape(3, 3), np.zeros((3, 3)), np.diag([1.0, 2.0, 0.0]), np.diag([0.0, 2.0, 3.0]),
        np.diag([0.0, 2.0, 0.0]), np.diag([1.0, 1e-9, 1.0]), np.ones((3, 3)), np.eye(3)[::-1],
    ]  # fmt: skip
    x = Tensor(np.stack(matrices))
    (g,) = x.det().sum().gradient(x)
    np.testing.assert_allclose(g.numpy(), [cofactors(a) for a in matrices], atol=1e-13)


def test_equal_singular_values_have_gradients() -> None:
    x = Tensor(np.eye(3))
    (g,) = x.svd().S.sum().gradient(x)
    np.testing.assert_allclose(g.numpy(), np.eye(3), atol=1e-15)


def test_columns_of_free_choice_have_none() -> None:
    x = Tensor(TALL[0])
    for factor, what in ((x.qr("complete").Q, "qr"), (x.svd(full_matrices=True).U, "svd")):
        with pytest.raises(MorokError, match=f"{what} completes a basis"):
            factor.sum().gradient(x)


def test_free_columns_that_are_cut_off_do_not_matter() -> None:
    x = Tensor(TALL[0].T)
    vh, few = x.svd(full_matrices=True).Vh, min(x.shape)
    seen = vh[:few].cat(vh[few:].detach()).abs()  # joined by a choice between two parts
    (g,), (wanted,) = seen.sum().gradient(x), x.svd().Vh.abs().sum().gradient(x)
    np.testing.assert_allclose(g.numpy(), wanted.numpy(), atol=1e-10)
