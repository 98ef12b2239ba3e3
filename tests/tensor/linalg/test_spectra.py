"""Singular values and eigenvalues of matrices of every kind: factors are orthogonal and give the matrix back.

What an iteration leaves is largest where values lie far apart or close together, and where there are many of
them; small random matrices do not show it.
"""

import numpy as np
import pytest

from morok import Tensor, linalg
from morok.tensor.linalg.written import use


@pytest.fixture(autouse=True, params=["written", pytest.param("steps", marks=pytest.mark.slow)])
def _way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """By kernels that are written by hand, and step by step, as on other devices."""
    if request.param == "steps":
        monkeypatch.setattr(use, "is_written", lambda *x: False)


KINDS = {
    "random": lambda n, rng: rng.standard_normal(n),
    "graded": lambda n, rng: 10.0 ** -np.linspace(0, 6, n),
    "alike": lambda n, rng: 1 + 1e-5 * rng.standard_normal(n),
    "few": lambda n, rng: np.where(np.arange(n) < n // 3, 1.0, 0.0),
}


def _orthogonal(n, rng):
    return np.linalg.qr(rng.standard_normal((n, n)))[0]


def _matrix(kind, rows, columns, rng):
    n = min(rows, columns)
    return (_orthogonal(rows, rng)[:, :n] * KINDS[kind](n, rng)) @ _orthogonal(columns, rng)[:n]


SIZES = [(24, 24), (9, 31), *(pytest.param(*s, marks=pytest.mark.slow) for s in ((40, 12), (128, 128)))]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("rows", "columns"), SIZES)
def test_singular_values(kind, rows, columns, dtype):
    x = _matrix(kind, rows, columns, np.random.default_rng(rows)).astype(dtype)
    u, s, vh = (part.numpy() for part in Tensor(x, device="CPU").svd(full_matrices=False))
    bound = 40 * max(rows, columns) * np.finfo(dtype).eps  # some times what backward stable methods leave
    top = np.abs(x).max() * max(rows, columns) ** 0.5
    np.testing.assert_allclose(u.T @ u, np.eye(u.shape[1]), atol=bound)
    np.testing.assert_allclose(vh @ vh.T, np.eye(vh.shape[0]), atol=bound)
    np.testing.assert_allclose((u * s) @ vh, x, atol=bound * top)
    np.testing.assert_allclose(s, np.linalg.svd(x, compute_uv=False), atol=bound * top)
    assert (np.diff(s) <= 0).all() and (s >= 0).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [24, pytest.param(128, marks=pytest.mark.slow)])
def test_eigenvalues(kind, n, dtype):
    rng = np.random.default_rng(n)
    q = _orthogonal(n, rng)
    x = (q * (KINDS[kind](n, rng) * np.where(np.arange(n) % 2, 1, -1))) @ q.T
    x = ((x + x.T) / 2).astype(dtype)
    values, vectors = (part.numpy() for part in linalg.eigh(Tensor(x, device="CPU")))
    bound = 40 * n * np.finfo(dtype).eps
    top = np.abs(x).max() * n**0.5
    np.testing.assert_allclose(vectors.T @ vectors, np.eye(n), atol=bound)
    np.testing.assert_allclose((vectors * values) @ vectors.T, x, atol=bound * top)
    np.testing.assert_allclose(values, np.linalg.eigvalsh(x), atol=bound * top)
