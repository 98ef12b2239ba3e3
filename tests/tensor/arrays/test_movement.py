"""Movement against NumPy."""

from typing import Any

import numpy as np
import pytest

from morok import Tensor
from morok.errors import ShapeError
from tests.tensor.common import same

X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)


def test_shapes() -> None:
    t = Tensor(X)
    same(t.reshape(4, 6), X.reshape(4, 6))
    same(t.reshape((4, -1)), X.reshape(4, -1))
    same(t.view(-1), X.reshape(-1))
    same(t.flatten(), X.reshape(-1))
    same(t.flatten(1), X.reshape(2, 12))
    same(t.flatten(0, 1), X.reshape(6, 4))
    same(t.unflatten(2, (2, -1)), X.reshape(2, 3, 2, 2))
    same(t.unsqueeze(0), X[None])
    same(t.unsqueeze(-1), X[..., None])
    same(Tensor(X[:1, :, :1]).squeeze(), X[:1, :, :1].squeeze())
    same(Tensor(X[:1, :, :1]).squeeze(0), X[:1, :, :1].squeeze(0))
    same(Tensor(X[:1, :, :1]).squeeze((0, -1)), X[:1, :, :1].squeeze())
    same(t.squeeze(0), X)
    same(Tensor(3.0).flatten(), np.array([3.0], np.float32))
    same(Tensor(np.zeros((0, 3), np.float32)).reshape(3, 0), np.zeros((3, 0), np.float32))
    same(Tensor(np.float32(1)).reshape(1, 1), np.ones((1, 1), np.float32))


def test_order() -> None:
    t = Tensor(X)
    same(t.permute(2, 0, 1), X.transpose(2, 0, 1))
    same(t.permute((-1, 0, 1)), X.transpose(2, 0, 1))
    same(t.transpose(), X.transpose(1, 0, 2))
    same(t.transpose(0, -1), X.swapaxes(0, 2))
    same(t.T, X.T)
    same(t.flip(0), X[::-1])
    same(t.flip((0, 2)), X[::-1, :, ::-1])
    same(t.flip(0, 2), X[::-1, :, ::-1])
    same(t.flip(), np.flip(X))
    same((t.T + 1).permute(1, 0, 2).flip(1), (X.T + 1).transpose(1, 0, 2)[:, ::-1])


def test_repetition() -> None:
    t = Tensor(X[:, :1])
    same(t.expand(2, 5, 4), np.broadcast_to(X[:, :1], (2, 5, 4)))
    same(t.expand(-1, 5, -1), np.broadcast_to(X[:, :1], (2, 5, 4)))
    same(t.expand(3, -1, 5, -1), np.broadcast_to(X[:, :1], (3, 2, 5, 4)))
    same(t.broadcast_to((2, 3, 4)), np.broadcast_to(X[:, :1], (2, 3, 4)))
    same(t.expand(2, 0, 4), np.broadcast_to(X[:, :1], (2, 0, 4)))
    same(Tensor(X).repeat(2, 1, 3), np.tile(X, (2, 1, 3)))
    same(Tensor(X).tile(2), np.tile(X, 2))
    same(Tensor(X).repeat(2, 1, 1, 2), np.tile(X, (2, 1, 1, 2)))
    same(Tensor(X).repeat_interleave(2), np.repeat(X, 2))
    same(Tensor(X).repeat_interleave(3, 1), np.repeat(X, 3, 1))


def test_boxes() -> None:
    t = Tensor(X)
    same(t.shrink([(0, 1), None, (1, 3)]), X[0:1, :, 1:3])
    same(t.narrow(2, 1, 2), X[:, :, 1:3])
    same(t.pad([(1, 0), None, (2, 3)]), np.pad(X, [(1, 0), (0, 0), (2, 3)]))
    same(t.pad([(1, 0), (0, 2), (2, 3)], 5), np.pad(X, [(1, 0), (0, 2), (2, 3)], constant_values=5))
    same(t.pad((2, 3)), np.pad(X, [(0, 0), (0, 0), (2, 3)]))
    same(t.pad((2, 3, 1, 0), value=-1.5), np.pad(X, [(0, 0), (1, 0), (2, 3)], constant_values=-1.5))
    same(t.pad((-1, 2)), np.pad(X[:, :, 1:], [(0, 0), (0, 0), (0, 2)]))
    same(t.pad((0, 0)), X)
    empty = Tensor(np.zeros((0, 2), np.float32))
    same(empty.pad([(1, 1), None], 3), np.full((2, 2), 3, np.float32))
    nan = Tensor([float("nan"), 1.0]).pad([(1, 1)])
    assert np.isnan(nan.numpy()).tolist() == [False, True, False, False]
    same((Tensor(X) + 1).pad([(1, 1), (0, 0), (0, 0)]).sum(0), np.pad(X + 1, [(1, 1), (0, 0), (0, 0)]).sum(0))


def test_joining() -> None:
    t = Tensor(X)
    same(t.cat(t + 1), np.concatenate([X, X + 1]))
    same(t.cat(t[:, :1], t * 2, dim=1), np.concatenate([X, X[:, :1], X * 2], 1))
    same(Tensor.cat([t, t], dim=-1), np.concatenate([X, X], -1))
    same(Tensor.cat(t, axis=2), X)
    same(t.concat(Tensor(X[:0])), X)
    same(t.cat(Tensor(np.ones((1, 3, 4), np.int32))), np.concatenate([X, np.ones((1, 3, 4), np.int32)]))
    same(Tensor.stack([t, t + 1]), np.stack([X, X + 1]))
    same(t.stack(t, dim=-1), np.stack([X, X], -1))
    same(Tensor([True]).cat(Tensor([False])), np.array([True, False]))
    signed = Tensor([-0.0]).cat(Tensor([-0.0])).numpy()
    assert np.signbit(signed).all()


def test_splitting() -> None:
    t = Tensor(X)
    for got, wanted in zip(t.split(2, 1), (X[:, :2], X[:, 2:]), strict=True):
        same(got, wanted)
    for got, wanted in zip(t.split([1, 3], dim=2), (X[:, :, :1], X[:, :, 1:]), strict=True):
        same(got, wanted)
    assert [c.shape for c in Tensor.arange(7).chunk(3)] == [(3,), (3,), (1,)]
    for got, wanted in zip(t.unbind(1), X.transpose(1, 0, 2), strict=True):
        same(got, wanted)
    assert [row.tolist() for row in Tensor([[1, 2], [3, 4]])] == [[1, 2], [3, 4]]
    assert len(t) == 2
    for shift in (-5, -1, 0, 1, 2, 7):
        same(t.roll(shift, 2), np.roll(X, shift, 2))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda t: t.reshape(5, 5), r"with 24 elements does not reshape to \(5, 5\), which has 25"),
        (lambda t: t.reshape(5, -1), "24 is no multiple of 5"),
        (lambda t: t.reshape(-1, -1), "more than one -1"),
        (lambda t: t.reshape(-2, 3), "negative size"),
        (lambda t: t.reshape(2.0, 12), "whole number"),
        (lambda t: t.permute(0, 1), "each of its 3 axes once"),
        (lambda t: t.permute(0, 1, 1), "name an axis twice"),
        (lambda t: t.transpose(0, 3), r"axis 3 does not exist in shape \(2, 3, 4\); use -3 … 2"),
        (lambda t: t.expand(2, 3, 5), r"\(2, 3, 4\) does not expand to \(2, 3, 5\)"),
        (lambda t: t.expand(2, 3), "needs 3 sizes or more"),
        (lambda t: t.shrink([(0, 9), None, None]), "leaves the tensor"),
        (lambda t: t.shrink([None]), "needs 3 pairs"),
        (lambda t: t.pad([(1, 1)]), "needs 3 pairs"),
        (lambda t: t.pad((1, 2, 3)), "two per axis"),
        (lambda t: t.cat(Tensor.ones(2, 2, 5), dim=1), "do not join along axis 1"),
        (lambda t: t.stack(Tensor.ones(2)), "do not stack"),
        (lambda t: t.split([1, 1], 1), "add up to 2"),
        (lambda t: t.unsqueeze(5), "axis 5 does not exist"),
        (lambda t: t.flatten(2, 0), "goes from axis 2 back to 0"),
        (lambda t: t.squeeze("a"), "axis must be a whole number"),
        (lambda t: t.pad((1, 1), mode="odd"), "odd"),
        (lambda t: Tensor.cat(), "at least one tensor|missing"),
    ],
)  # fmt: skip
def test_errors(call: Any, message: str) -> None:
    t = Tensor(X)
    with pytest.raises((ShapeError, TypeError, ValueError), match=message) as info:
        call(t)
    if isinstance(info.value, ShapeError):
        assert info.value.place is not None
        assert "test_movement.py:" in info.value.place
    same(t + 1, X + 1)  # nothing is broken
