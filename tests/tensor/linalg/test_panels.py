"""Factorisations by panels, of matrices that are large enough for them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from morok import Tensor, linalg
from morok.tensor.linalg import panels
from morok.tensor.linalg.written import use


@pytest.fixture(autouse=True)
def _step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on devices for which no kernels are written by hand."""
    monkeypatch.setattr(use, "is_written", lambda *x: False)


RNG = np.random.default_rng(5)
SHAPES: dict[str, Any] = {
    "square": (96, 96),
    "odd": (101, 101),
    "tall": (128, 96),
    "wide": (96, 130),
    "batch": (2, 96, 96),
}


FEW = ("tall",)
NAMES = [name if name in FEW else pytest.param(name, marks=pytest.mark.slow) for name in SHAPES]


@pytest.mark.parametrize("name", NAMES)
def test_lu(name: str) -> None:
    x = RNG.standard_normal(SHAPES[name])
    p, lower, upper = (v.numpy() for v in linalg.lu(Tensor(x, device="CPU")))
    np.testing.assert_allclose(p @ lower @ upper, x, atol=1e-12)
    assert np.abs(lower).max() == 1.0  # rows are swapped so that pivots are the largest
    np.testing.assert_array_equal(upper, np.triu(upper))
    np.testing.assert_array_equal(p.sum(-1), 1.0)


def test_determinants() -> None:
    x = RNG.standard_normal((3, 96, 96))
    x[1, :, 7] = 0.0
    x[2] = np.eye(96)[RNG.permutation(96)]
    sign, size = (v.numpy() for v in Tensor(x, device="CPU").slogdet())
    wanted = np.linalg.slogdet(x)
    np.testing.assert_array_equal(sign, wanted.sign)
    np.testing.assert_allclose(size, wanted.logabsdet, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("size", [pytest.param(96, marks=pytest.mark.slow), 110])
def test_cholesky(size: int) -> None:
    x = RNG.standard_normal((size, size))
    x = x @ x.T + np.eye(size)
    upper = x + np.triu(RNG.standard_normal((size, size)), 1)  # only the lower triangle is looked at
    np.testing.assert_allclose(
        Tensor(upper, device="CPU").cholesky().numpy(), np.linalg.cholesky(x), atol=1e-12
    )
    x[50, 50] = -1.0  # not positive definite
    assert np.isnan(Tensor(x, device="CPU").cholesky().numpy()[60, 50])


@pytest.mark.parametrize("name", NAMES)
def test_qr(name: str) -> None:
    x = RNG.standard_normal(SHAPES[name])
    x[..., :, 3] = 2.0 * x[..., :, 1]  # a column that depends on another
    q, r = (v.numpy() for v in Tensor(x, device="CPU").qr())
    wanted = np.linalg.qr(x)
    assert q.shape == wanted.Q.shape and r.shape == wanted.R.shape
    np.testing.assert_allclose(q @ r, x, atol=1e-12)
    turned = np.swapaxes(q, -1, -2) @ q
    np.testing.assert_allclose(turned, np.broadcast_to(np.eye(q.shape[-1]), turned.shape), atol=1e-12)
    np.testing.assert_array_equal(r, np.triu(r))
    np.testing.assert_allclose(np.abs(r[..., :3, :]), np.abs(wanted.R[..., :3, :]), atol=1e-11)


@pytest.mark.slow
def test_whole_basis() -> None:
    x = RNG.standard_normal((130, 96))
    q, r = (v.numpy() for v in Tensor(x, device="CPU").qr("complete"))
    assert q.shape == (130, 130) and r.shape == (130, 96)
    np.testing.assert_allclose(q @ r, x, atol=1e-12)
    np.testing.assert_allclose(q.T @ q, np.eye(130), atol=1e-12)


def test_inverse_of_unit_triangles() -> None:
    x = np.tril(RNG.uniform(-1.0, 1.0, (3, 32, 32)), -1)
    found = panels.unit_inverse(Tensor(x, device="CPU")).numpy()
    np.testing.assert_allclose(found @ (x + np.eye(32)), np.broadcast_to(np.eye(32), x.shape), atol=1e-9)


def test_gradient() -> None:
    x = RNG.standard_normal((96, 96))
    t = Tensor(x, device="CPU")
    (g,) = t.slogdet().logabsdet.gradient(t)
    np.testing.assert_allclose(g.numpy(), np.linalg.inv(x).T, rtol=1e-8, atol=1e-9)
