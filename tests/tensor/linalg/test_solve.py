"""Systems of equations and factorisations against numpy.linalg: batches, empty and singular ones."""

from typing import Any

import numpy as np
import pytest

from morok import Tensor
from morok.errors import MorokError, ShapeError
from tests.tensor.common import same

RNG = np.random.default_rng(3)


def matrices(*shape: int) -> Any:
    """Well-conditioned."""
    return RNG.standard_normal(shape) + 3 * np.eye(*shape[-2:])


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((1, 2, 2), (2, 2)), ((2, 2), (2,)), ((2, 2), (2, 1)), ((3, 2, 2), (2,)), ((3, 2, 2), (2, 3)),
        ((2, 2, 2), (2, 2)), ((2, 2), (3, 2, 1)), ((3, 2, 2), (3, 2, 2)), ((4, 1, 2, 2), (3, 2, 1)),
        ((0, 0), (0,)), ((0, 0), (0, 3)), ((2, 2), (2, 0)), ((0, 2, 2), (2, 1)), ((1, 1), (1,)),
    ],
)  # fmt: skip
def test_solve_takes_b_for_a_vector_only_if_it_has_one_axis(a: Any, b: Any) -> None:
    x, y = matrices(*a), RNG.standard_normal(b)
    same(Tensor(x).solve(Tensor(y)), np.linalg.solve(x, y), rtol=1e-12, atol=1e-13)


def test_a_matrix_is_not_taken_for_vectors() -> None:
    got = Tensor([[[2.0, 1.0], [1.0, 3.0]]]).solve(Tensor([[3.0, 5.0], [1.0, 1.0]]))
    wanted = np.linalg.solve([[[2.0, 1.0], [1.0, 3.0]]], [[3.0, 5.0], [1.0, 1.0]])
    same(got, wanted.astype(np.float32), rtol=1e-5)


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        ((2, 2), (3,), r"shape \(2,\) or \(…, 2, k\), not \(3,\)"),
        ((3, 2, 2), (3, 3), "needs a right side"),
        ((2, 2), (), "needs a right side"),
        ((3, 2, 2), (2, 2, 1), "do not broadcast"),
        ((2, 3), (2,), "square matrices"),
    ],
)
def test_solve_errors(a: Any, b: Any, message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        Tensor.ones(*a).solve(Tensor.ones(*b))


@pytest.mark.parametrize("shape", [(3, 3), (4, 2), (2, 3), (2, 3, 3), (0, 2), (2, 0), (1, 1)])
@pytest.mark.parametrize("mode", ["reduced", "complete"])
def test_qr_is_lapacks(shape: tuple[int, ...], mode: str) -> None:
    for x in (RNG.standard_normal(shape), np.zeros(shape) + np.eye(*shape[-2:]) * -2.0):
        for got, wanted in zip(Tensor(x).qr(mode), np.linalg.qr(x, mode), strict=True):  # type: ignore[call-overload]
            same(got, wanted, rtol=1e-12, atol=1e-13)


def test_qr_without_q() -> None:
    x = RNG.standard_normal((4, 2))
    q, r = Tensor(x).qr("r")
    assert q.shape == (0,)
    same(r, np.linalg.qr(x, "r"), rtol=1e-12)
    with pytest.raises(MorokError, match='"reduced", "complete" or "r", not \'raw\''):
        Tensor(x).qr("raw")


RANKS = {
    "full": RNG.standard_normal((4, 3)), "wide": RNG.standard_normal((2, 4)), "rank one": np.ones((4, 3)),
    "zero": np.zeros((3, 2)), "empty": np.zeros((0, 3)),
    "none": np.zeros((0, 5, 2)), "no columns": np.zeros((2, 5, 0)),
    "batch": np.stack([np.eye(3), np.ones((3, 3))]),
}  # fmt: skip


@pytest.mark.parametrize("name", RANKS)
def test_singular_vectors_are_orthonormal(name: str) -> None:
    x = RANKS[name]
    u, s, vh = (part.numpy() for part in Tensor(x).svd(full_matrices=True))
    for got, wanted in zip((u, s, vh), np.linalg.svd(x, full_matrices=True), strict=True):
        assert got.shape == wanted.shape
    np.testing.assert_allclose(s, np.linalg.svd(x, compute_uv=False), atol=1e-13)
    for turned in (np.swapaxes(u, -1, -2) @ u, vh @ np.swapaxes(vh, -1, -2)):
        np.testing.assert_allclose(
            turned, np.broadcast_to(np.eye(turned.shape[-1]), turned.shape), atol=1e-13
        )
    few = s.shape[-1]
    np.testing.assert_allclose((u[..., :few] * s[..., None, :]) @ vh[..., :few, :], x, atol=1e-13)
    for got, shape in zip(Tensor(x).svd(), np.linalg.svd(x, full_matrices=False), strict=True):
        assert got.shape == shape.shape


def test_narrow_floats_are_solved_in_float32() -> None:
    a, b = matrices(3, 3).astype(np.float16), RNG.standard_normal(3).astype(np.float16)
    wide = np.linalg.solve(a.astype(np.float64), b.astype(np.float64))
    same(Tensor(a).solve(Tensor(b)), wide.astype(np.float16), rtol=1e-3)
    same(Tensor(a).det(), np.linalg.det(a.astype(np.float64)).astype(np.float16), rtol=1e-3)
    same(Tensor([[2, 0], [0, 4]]).inv(), np.array([[0.5, 0], [0, 0.25]], np.float32))
