"""Factorisations by kernels that are written by hand: batches as lanes, large matrices row by row.

Every kind of matrix is in every batch, because lanes of one vector must not disturb each other.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from morok import Tensor, linalg
from morok import dtype as dt
from morok.codegen.written import Code
from morok.device.cpu.written import here
from morok.tensor.linalg.written import lanes, lanes_orthogonal, rows, use

TYPES = [np.float32, np.float64]


def batch(count: int, rows: int, columns: int, dtype: Any, symmetric: bool = False) -> np.ndarray:
    rng = np.random.default_rng(rows * 100 + columns)
    x = rng.standard_normal((count, rows, columns))
    far = 10.0 ** -np.linspace(0, 20, columns)
    x[1] = 0.0
    x[2] = np.eye(rows, columns)
    x[3] = 1.0  # of rank 1
    x[4] = x[4] * far
    x[5] = x[5] * 1e25
    x[6] = x[6] * 1e-25
    x[7, 0] = 0.0
    if symmetric:
        x[4] /= far
        x = x + x.swapaxes(-1, -2)
        x[4] *= far * far[:, None]
    return x.astype(dtype)


def scales(x: np.ndarray) -> np.ndarray:
    """The size of each matrix."""
    top = np.abs(x.astype(np.float64)).max((-2, -1), keepdims=True)
    return np.where(top > 0, top, 1.0)


def is_orthogonal(q: np.ndarray, dtype: Any) -> None:
    q = q.astype(np.float64)
    unit = np.broadcast_to(np.eye(q.shape[-1]), (*q.shape[:-2], q.shape[-1], q.shape[-1]))
    np.testing.assert_allclose(q.swapaxes(-1, -2) @ q, unit, atol=30 * q.shape[-2] * np.finfo(dtype).eps)


def is_close(found: np.ndarray, wanted: np.ndarray, scale: np.ndarray, dtype: Any) -> None:
    bound = 30 * found.shape[-2] * np.finfo(dtype).eps
    np.testing.assert_allclose(found / scale, wanted / scale, atol=bound)


# 11 matrices are a whole group of lanes and a part of one; 25 rows are none of them
slow = pytest.mark.slow
SQUARE = [(11, 5), *(pytest.param(*s, marks=slow) for s in ((11, 8), (9, 25)))]
SHAPES = [(11, 6, 4), *(pytest.param(s, marks=slow) for s in ((11, 4, 6), (10, 1, 1), (9, 26, 23)))]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("count", "size"), SQUARE)
def test_eigenvalues(count: int, size: int, dtype: Any) -> None:
    x = batch(count, size, size, dtype, symmetric=True)
    values, vectors = (v.numpy() for v in linalg.eigh(Tensor(x, device="CPU")))
    assert (np.diff(values, axis=-1) >= 0).all()
    is_orthogonal(vectors, dtype)
    back = (vectors.astype(np.float64) * values[:, None]) @ vectors.swapaxes(-1, -2)
    is_close(back, x, scales(x), dtype)
    wanted = np.linalg.eigvalsh(x.astype(np.float64))
    is_close(values[..., None], wanted[..., None], scales(x) * size, dtype)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_singular_values(shape: tuple[int, int, int], dtype: Any) -> None:
    x = batch(*shape, dtype)
    u, s, vh = (v.numpy() for v in Tensor(x, device="CPU").svd(full_matrices=True))
    is_orthogonal(u, dtype)
    is_orthogonal(vh, dtype)
    assert (np.diff(s, axis=-1) <= 0).all() and (s >= 0).all()
    count = s.shape[-1]
    is_close((u[..., :count].astype(np.float64) * s[:, None]) @ vh[:, :count], x, scales(x), dtype)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_qr(shape: tuple[int, int, int], dtype: Any) -> None:
    x = batch(*shape, dtype)
    q, r = (v.numpy() for v in Tensor(x, device="CPU").qr(mode="complete"))
    is_orthogonal(q, dtype)
    np.testing.assert_array_equal(r, np.triu(r))
    is_close(q.astype(np.float64) @ r, x, scales(x), dtype)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", [(11, 6, 4), (9, 48, 48)])
def test_qr_by_steps(monkeypatch: pytest.MonkeyPatch, shape: tuple[int, int, int], dtype: Any) -> None:
    """As other devices and traced functions compute it: one column after the other, and in panels."""
    monkeypatch.setattr(use, "is_written", lambda x: False)
    x = batch(*shape, dtype)
    x[8] = np.triu(x[8])
    x[8, 2:4, 2] = 1e-20  # below a column of size 1, and its square is none, or not quite
    q, r = (v.numpy() for v in Tensor(x, device="CPU").qr(mode="complete"))
    is_orthogonal(q, dtype)
    np.testing.assert_array_equal(r, np.triu(r))
    is_close(q.astype(np.float64) @ r, x, scales(x), dtype)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_lu(shape: tuple[int, int, int], dtype: Any) -> None:
    x = batch(*shape, dtype)
    p, lower, upper = (v.numpy() for v in linalg.lu(Tensor(x, device="CPU")))
    is_close(p @ lower.astype(np.float64) @ upper, x, scales(x), dtype)
    assert np.abs(lower).max() == 1.0
    packed, pivots = (v.numpy() for v in linalg.lu_factor(Tensor(x, device="CPU")))
    for i, order in enumerate(pivots):  # swaps one after the other, as LAPACK counts them
        rows = np.arange(shape[1])
        for k, other in enumerate(order - 1):
            rows[[k, other]] = rows[[other, k]]
        np.testing.assert_array_equal(p[i].T, np.eye(shape[1])[rows])
    np.testing.assert_array_equal(np.triu(packed)[:, : upper.shape[-2]], upper)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("count", "size"), SQUARE)
def test_systems(count: int, size: int, dtype: Any) -> None:
    rng = np.random.default_rng(size)
    x = rng.standard_normal((count, size, size)) + 3 * np.eye(size)
    x = x.astype(dtype)
    for wide in (1, 19):
        b = rng.standard_normal((count, size, wide)).astype(dtype)
        found = Tensor(x, device="CPU").solve(Tensor(b, device="CPU")).numpy()
        wanted = np.linalg.solve(x.astype(np.float64), b)
        np.testing.assert_allclose(found, wanted, atol=2000 * np.finfo(dtype).eps * np.abs(wanted).max())
    inverse = Tensor(x, device="CPU").inv().numpy()
    unit = np.broadcast_to(np.eye(size), x.shape)
    np.testing.assert_allclose(inverse @ x, unit, atol=2000 * np.finfo(dtype).eps)
    s = x @ x.swapaxes(-1, -2)
    lower = Tensor(s, device="CPU").cholesky().numpy()
    np.testing.assert_array_equal(lower, np.tril(lower))
    is_close(lower.astype(np.float64) @ lower.swapaxes(-1, -2), s, scales(s), dtype)
    exact = np.linalg.slogdet(x.astype(np.float64))
    sign, size_of = (v.numpy() for v in Tensor(x, device="CPU").slogdet())
    np.testing.assert_array_equal(sign, exact.sign)
    np.testing.assert_allclose(size_of, exact.logabsdet, rtol=1e-4 if dtype is np.float32 else 1e-11)
    np.testing.assert_allclose(Tensor(x, device="CPU").det().numpy(), np.linalg.det(x), rtol=2e-4)


def test_one_matrix_of_a_batch_that_is_not_finite() -> None:
    x = batch(9, 4, 4, np.float64, symmetric=True)
    plain = linalg.eigh(Tensor(x, device="CPU")).eigenvalues.numpy()
    x[3, 1, 1] = np.nan
    found = linalg.eigh(Tensor(x, device="CPU")).eigenvalues.numpy()
    others = [i for i in range(9) if i != 3]
    np.testing.assert_allclose(found[others], plain[others], rtol=1e-12, atol=1e-12)
    assert np.isnan(found[3]).any()
    assert np.isnan(Tensor(x, device="CPU").det().numpy()[3])


@pytest.mark.parametrize("written", [True, False])
def test_large_eigenvectors(monkeypatch: pytest.MonkeyPatch, written: bool) -> None:
    """Of 100 rows, where what QL does to its rotations would add up, and Jacobi's take many sweeps."""
    if not written:
        monkeypatch.setattr(use, "is_written", lambda x: False)
    rng = np.random.default_rng(3)
    q = np.linalg.qr(rng.standard_normal((100, 100)))[0]
    for values in (np.repeat([1.0, 2.0, -3.0, 0.0], 25), 10.0 ** -np.linspace(0, 12, 100), np.arange(100.0)):
        x = (q * values) @ q.T
        x = (x + x.T) / 2
        found, vectors = (v.numpy() for v in linalg.eigh(Tensor(x, device="CPU")))
        np.testing.assert_allclose(found, np.sort(values), atol=2e-14 * np.abs(values).max() * 10)
        is_orthogonal(vectors, np.float64)
        is_close((vectors * found) @ vectors.T, x, scales(x), np.float64)


def test_a_batch_of_systems_with_one_matrix() -> None:
    x = np.array([[2.0, 1.0], [1.0, 3.0]])
    b = np.arange(24.0).reshape(12, 2, 1)
    found = Tensor(x, device="CPU").solve(Tensor(b, device="CPU")).numpy()
    np.testing.assert_allclose(found, np.linalg.solve(x, b), rtol=1e-14)
    many = np.stack([x + i * np.eye(2) for i in range(12)])
    found = Tensor(many, device="CPU").solve(Tensor(b[0], device="CPU")).numpy()
    np.testing.assert_allclose(found, np.linalg.solve(many, b[0]), rtol=1e-13)


def test_other_devices_and_traced_functions_take_steps() -> None:
    assert use.is_written(Tensor([[1.0]], device="CPU"))
    assert not use.is_written(Tensor([[1.0]], device="EMULATOR"))
    assert not use.is_written(Tensor([[1]], device="CPU"))


@pytest.mark.parametrize(
    ("write", "key"),
    [
        (rows.cholesky, (dt.float32, 3, 20)),
        (lanes.cholesky, (dt.float32, 20, 4)),
        (lanes.lu, (dt.float32, 20, 4, 4)),
        (lanes_orthogonal.qr, (dt.float32, 20, 4, 4, 4)),
    ],
    ids=lambda x: x.__name__ if callable(x) else "",
)
def test_accesses_are_proved(write: Any, key: tuple[Any, ...]) -> None:
    """Of kernels whose places data do not choose."""
    pytest.importorskip("z3")
    from morok.proof.kernels.safety import examine

    machine = here()
    code = Code(machine.fma)
    write(code, machine, *key)
    found = examine(code.linear())
    assert found.open == [] and found.kinds["bounds"]
