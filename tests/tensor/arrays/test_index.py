"""Indexing against NumPy."""

from typing import Any

import numpy as np
import pytest

from morok import Tensor, Variable, jit
from morok.errors import AssignError, DTypeError, OutOfRange, ShapeError
from tests.tensor.common import same

X = np.arange(120, dtype=np.float32).reshape(4, 5, 6)
S = np.s_

BASIC: list[Any] = [
    S[0], S[-1], S[1, 2], S[1, 2, 3], S[...], S[()], S[:], S[1:3], S[:, 1:], S[..., 2], S[None],
    S[:, None, 2], S[..., None, 0:2], S[::2], S[::-1], S[3:0:-1], S[:, ::-2, 1::2], S[-3:-1, 4:1:-2], S[5:],
    S[2:2], S[:, 10:20],
    S[0, ..., 0], S[None, ..., None], S[1:10:3, ::4, ::5], S[::-1, ::-1, ::-1], S[-100:100],
    S[4::-3], S[np.int64(2)],
]  # fmt: skip


@pytest.mark.parametrize("key", BASIC)
def test_basic(key: Any) -> None:
    same(Tensor(X)[key], X[key])
    same((Tensor(X) + 1)[key] * 2, (X + 1)[key] * 2)


ADVANCED: list[Any] = [
    S[[3, 0, 0]], S[[[0, 1], [2, 3]]], S[:, [4, -1]], S[[0, 1], [2, 3]], S[[0, 1], :, [2, 3]], S[..., [5, 0]],
    S[[[0], [1]], [[2, 3]]], S[1:3, [0, 2]], S[[0, 2], 1:3], S[0, [1, 2]], S[[1, 2], 0], S[:, [1, 2], [3, 4]],
    S[None, [1, 2]], S[[]], S[np.array([True, False, True, False])],
    S[:, np.array([True, False, True, False, True])],
    S[np.arange(120).reshape(4, 5, 6) % 7 == 0], S[[True, False, False, True]], S[::-1, [0, 1], ::2],
]  # fmt: skip


def test_more_zeros_than_their_type_counts() -> None:
    """Looking a constant up is no sum of it: the number of rows is infinite as a half."""
    rows = np.arange(0, 70_001, 2)
    same(Tensor.zeros(70_001, dtype="float16")[Tensor(rows)], np.zeros(70_001, np.float16)[rows])


@pytest.mark.parametrize("key", ADVANCED)
def test_arrays_of_integers(key: Any) -> None:
    wanted = X[key]
    same(Tensor(X)[key], wanted)


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "uint8", "uint32"])
def test_tensors_as_indices(dtype: str) -> None:
    where = np.array([[3, 0], [1, 2]], dtype)
    same(Tensor(X)[Tensor(where)], X[where])
    same(Tensor(X)[:, Tensor(where)], X[:, where])
    signed = np.array([-1, -4, 0])
    same(Tensor(X)[Tensor(signed)], X[signed])
    same(Tensor(X)[Tensor(np.array([0, 1])), :, Tensor(np.array([2, 3]))], X[[0, 1], :, [2, 3]])


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "float16", "float64"])
def test_lookups_keep_every_type(dtype: str) -> None:
    x = (np.arange(5) % 3).astype(dtype)
    same(Tensor(x)[[4, 1, 0]], x[[4, 1, 0]])
    same(Tensor(np.array([np.nan, np.inf, 1.0]))[[1, 2, 0]], np.array([np.inf, 1.0, np.nan]))


def test_gather() -> None:
    x = X[0]
    for axis in (0, 1, -1):
        where = np.random.default_rng(1).integers(0, x.shape[axis], x.shape)
        same(Tensor(x).gather(axis, Tensor(where)), np.take_along_axis(x, where, axis))
    where = np.array([[0, 1], [2, 3]])
    same(Tensor(x).gather(1, Tensor(where)), np.take_along_axis(x[:2], where, 1))
    same(Tensor(x).index_select(1, Tensor([5, 0, 5])), x[:, [5, 0, 5]])
    same(Tensor(x).take(Tensor([[29, 0], [3, -1]])), x.reshape(-1)[[[29, 0], [3, -1]]])
    table = np.random.default_rng(0).standard_normal((50, 3)).astype(np.float32)
    same(Tensor(table).embedding(Tensor([[1, 2], [49, 0]])), table[[[1, 2], [49, 0]]])


def test_a_lookup_into_a_large_table_reads_only_what_it_needs() -> None:
    table = Tensor(np.zeros((50_000, 8), np.float32))
    plan = table[Tensor([5, 49_999])].prepare()
    assert len(plan.kernels) == 1
    assert plan.kernels[0].bytes < 10_000


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (S[4], r"index 4 is outside of axis 0 of shape \(4, 5, 6\); use -4 … 3"),
        (S[0, -6], "index -6 is outside of axis 1"),
        (S[0, 0, 0, 0], "has 3 axes, but the index has 4"),
        (S[..., ...], "only one"),
        (S["a"], "an index is a number"),
        (S[1.5], "an index is a number"),
        (S[[7]], "index 7 is outside of axis 0"),
        (S[::0], "slice step cannot be zero"),
        (S["a":], "bad slice"),
    ],
)
def test_errors(key: Any, message: str) -> None:
    with pytest.raises((ShapeError, OutOfRange), match=message):
        Tensor(X)[key]


def test_masks_whose_size_is_not_known() -> None:
    with pytest.raises(ShapeError, match="use masked_select with a size, where or masked_fill"):
        jit(lambda x: x[x > 3])(Tensor(X))
    same(Tensor(X)[Tensor(X) > 3], X[X > 3])
    with pytest.raises(DTypeError, match="made of integers"):
        Tensor(X)[Tensor([1.0])]
    with pytest.raises(DTypeError, match="made of integers"):
        Tensor(X)[np.array([1.5])]


def test_places_in_place() -> None:
    a = np.arange(24).reshape(2, 3, 4)
    t, b = Tensor(a.copy()), a.copy()
    t[:, Tensor([0, 2])] += 5
    b[:, [0, 2]] += 5
    same(t, b)
    t[t > 10] = 0
    b[b > 10] = 0
    same(t, b)
    t[Tensor([True, False])] = 7  # a mask over the first axis
    b[[True, False]] = 7
    same(t, b)


def test_views_see_later_writes_and_values_do_not() -> None:
    a = np.arange(12).reshape(3, 4)
    t = Tensor(a.copy()).realize()
    row, rows, value = t[0], t[[0, 1]], t[0] + 0
    t[Tensor([0])] = 0
    same(row, np.zeros(4, np.int64))
    same(rows, a[:2])
    same(value, a[0])


def test_what_is_no_place_cannot_be_written() -> None:
    t = Tensor(np.arange(4.0)).realize()
    refused = {
        "an index with arrays": [t[[0, 1]], t[Tensor([2])], t[[0, 1]][1:]],
        "expand repeats": [t.expand(2, 4), t.expand(2, 4)[0], t.reshape(1, 4).expand(3, 4).T],
        "pad gives": [t.pad([(1, 1)])],
    }
    for message, values in refused.items():
        for value in values:
            for write in (lambda v=value: v.assign(0), lambda v=value: v.__setitem__(0, 1)):
                with pytest.raises(AssignError, match=message) as info:
                    write()
                assert "test_index.py:" in str(info.value)
    with pytest.raises(AssignError, match="expand repeats"):
        t.expand(2, 4).__iadd__(1)
    same(t, np.arange(4.0))
    for copy in (t[[0, 1]].contiguous(), t.expand(2, 4) + 0, t.repeat(2), t.pad([(1, 1)]).clone()):
        copy[0] = 9
        assert copy.reshape(-1)[0].item() == 9


def test_narrow_indices_reach_long_axes() -> None:
    t = Tensor(np.arange(300))
    assert t[Tensor(np.array([-1, 5], np.int8))].tolist() == [299, 5]
    assert t.take(Tensor(np.array([255], np.uint8))).tolist() == [255]


def test_nothing_is_looked_up_in_nothing() -> None:
    empty, nowhere = Tensor(np.zeros((0, 3))), Tensor(np.zeros(0, np.int64))
    assert empty[nowhere].shape == (0, 3)
    assert empty.sort(0).values.shape == (0, 3)
    assert empty.index_add(0, nowhere, empty).numpy().shape == (0, 3)
    assert Tensor(np.zeros((3, 0))).argsort().numpy().shape == (3, 0)


def test_lookup_in_a_symbolic_size() -> None:
    n = Variable("n", 1, 8).bind(3)
    y = Tensor(np.arange(8.0))[:n]
    assert y[Tensor([0, 2])].tolist() == [0.0, 2.0]
