"""Tensors among other things: copies, pickles, iteration, NumPy, DLPack, PyTorch, text."""

import array
import copy
import pickle
from typing import Any

import numpy as np
import pytest

from morok import Tensor
from morok.errors import DTypeError, ShapeError
from tests.devices import needs_host_memory
from tests.tensor.common import same

X = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda t: pickle.loads(pickle.dumps(t))])
@pytest.mark.parametrize("lazy", [False, True])
def test_copies(again: Any, lazy: bool) -> None:
    t = Tensor(X.copy()) + 1 if lazy else Tensor(X.copy() + 1).realize()
    u = again(t)
    same(u, X + 1)
    u[0] = 9.0
    same(t, X + 1)
    t[1] = 7.0
    assert u.tolist()[1] == (X + 1).tolist()[1]


def test_copies_of_parameters_are_parameters() -> None:
    w = Tensor([1.0, 2.0], requires_grad=True)
    for again in (copy.deepcopy(w), pickle.loads(pickle.dumps(w))):
        assert again.is_leaf
        (again * again).sum().backward()
        assert again.grad.tolist() == [2.0, 4.0]
    assert w.grad is None
    (w.clone() * 3).sum().backward()
    assert w.grad.tolist() == [3.0, 3.0]


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint64", "float16", "bfloat16", "float8_e4m3", "float64"])
def test_pickles_keep_the_type(dtype: str) -> None:
    t = Tensor([0.0, 1.0]).cast(dtype)
    u = pickle.loads(pickle.dumps(t))
    assert u.dtype is t.dtype and u.tolist() == t.tolist()


def test_numbers_and_lengths() -> None:
    t = Tensor(X)
    assert len(t) == 2 and [row.tolist() for row in t] == X.tolist()
    assert float(t[1, 2]) == 5.0 and int(t[1, 2]) == 5 and bool(t[0, 1])
    assert hash(t) == hash(t) and t in {t: 1} and [1, 2, 3][Tensor(1)] == 2
    for call in (len, iter):
        with pytest.raises(TypeError, match="without axes"):
            call(Tensor(1.0))
    with pytest.raises(ShapeError, match="is not one truth"):
        bool(t)
    with pytest.raises(ShapeError, match="needs one element"):
        float(t)


def test_text(device: str) -> None:
    assert repr(Tensor([1.0, 2.0]) + 1) == f"<Tensor (2,) float32 on {device}, lazy>"
    assert repr((Tensor([1.0, 2.0]) + 1).realize()) == f"<Tensor (2,) float32 on {device}: [2., 3.]>"
    assert repr(Tensor(X)) == f"<Tensor (2, 3) float32 on {device}:\n [[0., 1., 2.],\n  [3., 4., 5.]]>"
    assert repr(Tensor.zeros(2000).contiguous().realize()) == f"<Tensor (2000,) float32 on {device}>"


def test_numpy_leaves_mixed_operands_to_the_tensor() -> None:
    t = Tensor(X)
    for got in (X + t, X * t, X @ t.T, np.float32(2) * t, X < t):
        assert isinstance(got, Tensor)
    assert np.asarray(t).shape == (2, 3) and np.array(t, dtype=np.float64).dtype == np.float64
    assert np.sum(np.asarray(t)) == 15


def test_buffers() -> None:
    same(Tensor(array.array("d", [1.0, 2.0])), np.array([1.0, 2.0]))
    same(Tensor(memoryview(X)), X)
    same(Tensor.from_buffer(X, "float32", (3, 2)), X.reshape(3, 2))
    with pytest.raises(ShapeError, match="holds no whole number of float32"):
        Tensor.from_buffer(b"abcde", "float32")
    with pytest.raises(ShapeError, match=r"shape \(9,\) of int16 needs 18 bytes, but there are 4"):
        Tensor.from_buffer(b"abcd", "int16", 9)
    with pytest.raises(DTypeError, match="has no plain buffer"):
        Tensor.from_buffer("text")
    with pytest.raises(DTypeError, match="not of a object"):
        Tensor(object())


@needs_host_memory
def test_dlpack_shares_memory() -> None:
    a = np.arange(4.0)
    t = Tensor.from_dlpack(a)
    a[0] = 9.0
    assert t.tolist() == [9.0, 1.0, 2.0, 3.0]
    b = np.from_dlpack(t)
    assert np.shares_memory(a, b)
    same(Tensor(t.numpy()[::-1]), a[::-1])


@needs_host_memory
def test_torch() -> None:
    torch = pytest.importorskip("torch")
    x = torch.arange(6.0).reshape(2, 3)
    t, copy = Tensor.from_dlpack(x), Tensor(x)
    x[0, 0] = 7.0
    assert t.tolist()[0][0] == 7.0 and copy.tolist()[0][0] == 0.0
    t[0, 1] = 8.0
    assert x[0, 1] == 8.0
    same(Tensor(x.T), x.T.numpy())
    same(Tensor(x.clone().requires_grad_()), x.numpy())
    half = Tensor(x.to(torch.bfloat16))
    assert half.dtype.name == "bfloat16" and half.tolist() == x.tolist()
    back = torch.from_dlpack(t)
    assert back.data_ptr() == x.data_ptr()
