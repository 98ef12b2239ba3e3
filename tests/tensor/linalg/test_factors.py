"""LU, eigenvalues, pseudo-inverses, norms and powers against NumPy; gradients against differences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from morok import Tensor, jit, linalg
from morok.errors import MorokError, ShapeError
from morok.tensor.linalg.loops import _loops
from morok.tensor.linalg.written import use

RNG = np.random.default_rng(9)
A = RNG.standard_normal((5, 5))
BATCH = RNG.standard_normal((2, 3, 3)) + 3 * np.eye(3)
TALL, WIDE = RNG.standard_normal((5, 3)), RNG.standard_normal((3, 5))
SYMMETRIC = A + A.T
LOW_RANK = TALL @ WIDE

# name → pairs of what morok and NumPy compute
SAME: dict[str, list[tuple[Callable[[], Any], Any]]] = {
    "slogdet": [(lambda k=k: linalg.slogdet(Tensor(A))[k], np.linalg.slogdet(A)[k]) for k in (0, 1)],
    "logdet": [(lambda: linalg.logdet(Tensor(A @ A.T)), np.log(np.linalg.det(A @ A.T)))],
    "eigvalsh": [(lambda: linalg.eigvalsh(Tensor(SYMMETRIC)), np.linalg.eigvalsh(SYMMETRIC))],
    "svdvals": [(lambda: linalg.svdvals(Tensor(WIDE)), np.linalg.svd(WIDE, compute_uv=False))],
    "pinv": [
        (lambda: linalg.pinv(Tensor(TALL)), np.linalg.pinv(TALL)),
        (lambda: linalg.pinv(Tensor(LOW_RANK)), np.linalg.pinv(LOW_RANK)),
        (lambda: linalg.pinv(Tensor(SYMMETRIC), hermitian=True), np.linalg.pinv(SYMMETRIC)),
    ],
    "lstsq": [(lambda: linalg.lstsq(Tensor(TALL), Tensor(A)).solution, np.linalg.lstsq(TALL, A)[0])],
    "matrix_rank": [
        (lambda: linalg.matrix_rank(Tensor(LOW_RANK)), 3),
        (lambda: linalg.matrix_rank(Tensor(A)), 5),
    ],
    "cond": [
        (lambda p=p: linalg.cond(Tensor(A), p), np.linalg.cond(A, p)) for p in (None, 1, -2, "fro", np.inf)
    ],
    "norm": [
        *(
            (lambda p=p: linalg.norm(Tensor(A), p), np.linalg.norm(A, p))
            for p in (None, 1, 2, -2, "nuc", "fro", -np.inf)
        ),
        (lambda: linalg.norm(Tensor(BATCH), 1, (0, 2)), np.linalg.norm(BATCH, 1, (0, 2))),
        (lambda: linalg.vector_norm(Tensor(A), 3, 0), np.linalg.norm(A, 3, 0)),
        (lambda: linalg.matrix_norm(Tensor(BATCH), 2, keepdim=True), np.linalg.norm(BATCH, 2, (1, 2), True)),
    ],
    "matrix_power": [
        (lambda n=n: linalg.matrix_power(Tensor(A), n), np.linalg.matrix_power(A, n)) for n in (0, 1, 5, -2)
    ],
    "multi_dot": [(lambda: linalg.multi_dot([Tensor(A[0]), Tensor(TALL), Tensor(WIDE)]), A[0] @ TALL @ WIDE)],
    "vecdot": [(lambda: linalg.vecdot(Tensor(A), Tensor(A[0])), A @ A[0])],
    "tensorinv": [
        (lambda: linalg.tensorinv(Tensor(A.reshape(5, 1, 5)), 1), np.linalg.tensorinv(A.reshape(5, 1, 5), 1))
    ],
    "tensorsolve": [(lambda: linalg.tensorsolve(Tensor(A), Tensor(A[0])), np.linalg.solve(A, A[0]))],
    "cholesky_solve": [
        (
            lambda: linalg.cholesky_solve(Tensor(TALL), Tensor(np.linalg.cholesky(A @ A.T))),
            np.linalg.solve(A @ A.T, TALL),
        )
    ],
    "cholesky_inverse": [
        (
            lambda: linalg.cholesky_inverse(Tensor(np.linalg.cholesky(BATCH @ BATCH.mT))),
            np.linalg.inv(BATCH @ BATCH.mT),
        )
    ],
    "empty": [
        (lambda: linalg.pinv(Tensor(np.zeros((0, 3)))), np.zeros((3, 0))),
        (lambda: Tensor(np.zeros((2, 0, 0))).inv(), np.zeros((2, 0, 0))),
    ],
}


LONG = ("pinv", "norm", "cond", "lstsq", "matrix_rank")  # rounds of rotations, on the interpreter


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in LONG else n for n in SAME])
def test_as_numpy(name: str) -> None:
    for number, (mine, wanted) in enumerate(SAME[name]):
        np.testing.assert_allclose(mine().numpy(), wanted, rtol=1e-8, atol=1e-9, err_msg=f"{name} {number}")


def test_exponential() -> None:
    w, v = np.linalg.eig(A)
    wanted = (v * np.exp(w)) @ np.linalg.inv(v)
    np.testing.assert_allclose(linalg.matrix_exp(Tensor(A)).numpy(), wanted.real, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(linalg.matrix_exp(Tensor(np.zeros((2, 2)))).numpy(), np.eye(2))


@pytest.mark.parametrize("x", [A, BATCH, TALL, WIDE], ids=["square", "batch", "tall", "wide"])
def test_lu(x: Any) -> None:
    p, lower, upper = (v.numpy() for v in linalg.lu(Tensor(x)))
    np.testing.assert_allclose(p @ lower @ upper, x, atol=1e-12)
    assert np.abs(lower).max() <= 1.0 + 1e-12
    np.testing.assert_array_equal(np.triu(lower, 1), 0.0)
    if x.shape[-1] == x.shape[-2]:
        packed, pivots = linalg.lu_factor(Tensor(x))
        for adjoint in (False, True):
            found = linalg.lu_solve(packed, pivots, Tensor(x), adjoint=adjoint).numpy()
            np.testing.assert_allclose(found, np.linalg.solve(x.mT if adjoint else x, x), atol=1e-9)


@pytest.mark.parametrize(
    "x", [SYMMETRIC, BATCH + BATCH.mT, np.diag([3.0, 1.0, 1.0, 2.0])], ids=["odd", "batch", "equal"]
)
def test_eigenvectors(x: Any) -> None:
    values, vectors = (v.numpy() for v in linalg.eigh(Tensor(x)))
    np.testing.assert_allclose(values, np.linalg.eigvalsh(x), atol=1e-10)
    np.testing.assert_allclose((vectors * values[..., None, :]) @ vectors.mT, x, atol=1e-10)
    np.testing.assert_allclose(
        vectors.mT @ vectors, np.broadcast_to(np.eye(x.shape[-1]), x.shape), atol=1e-10
    )


SLOPES: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "lu": (lambda x: linalg.lu(x).L.sum() + (linalg.lu(x).U ** 2).sum(), A),
    "lu tall": (lambda x: (linalg.lu(x).L ** 2).sum() + linalg.lu(x).U.sum(), TALL),
    "lu wide": (lambda x: (linalg.lu(x).L ** 2).sum() + linalg.lu(x).U.sum(), WIDE),
    "logdet": (lambda x: linalg.slogdet(x).logabsdet.sum(), A),
    "pinv": (lambda x: (linalg.pinv(x) * Tensor(TALL)).sum(), WIDE),
    "eigh": (
        lambda x: (
            (linalg.eigh(x + x.mT).eigenvalues ** 2).sum()
            + (linalg.eigh(x + x.mT).eigenvectors[0] ** 4).sum()
        ),
        A,
    ),
    "exp": (lambda x: linalg.matrix_exp(x).sum(), BATCH * 0.3),
}


@pytest.mark.parametrize(
    "name", [n if n == "lu" else pytest.param(n, marks=pytest.mark.slow) for n in SLOPES]
)
def test_gradients(name: str) -> None:
    function, x = SLOPES[name]
    t = Tensor(x)
    slope = function(t).gradient(t)[0].numpy()
    step = 1e-6
    for place in list(np.ndindex(x.shape))[::4]:
        high, low = (function(Tensor(x + d * _unit(x.shape, place))).item() for d in (step, -step))
        np.testing.assert_allclose(slope[place], (high - low) / (2 * step), rtol=1e-4, atol=1e-5)


def _unit(shape: tuple[int, ...], place: tuple[int, ...]) -> Any:
    found = np.zeros(shape)
    found[place] = 1.0
    return found


def test_a_step_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no kernels are written by hand."""
    monkeypatch.setattr(use, "is_written", lambda *x: False)
    before = len(_loops)
    for seed in range(3):
        Tensor(np.random.default_rng(seed).standard_normal((7, 7))).inv().numpy()
    assert len(_loops) == before + 1


def test_inside_of_jit() -> None:
    found = jit(lambda x: x.inv() + x.cholesky())(Tensor(np.diag([4.0, 9.0])))
    np.testing.assert_allclose(found.numpy(), np.diag([2.25, 3 + 1 / 9]), atol=1e-12)


def test_what_is_refused() -> None:
    with pytest.raises(ShapeError, match="square matrices"):
        linalg.eigh(Tensor(TALL))
    with pytest.raises(MorokError, match="norms"):
        linalg.matrix_norm(Tensor(A), 3)
