"""Results whose size depends on values, against NumPy; eagerly, and with a size under jit."""

from typing import Any

import numpy as np
import pytest

from morok import Tensor, jit, knobs, profile
from morok.errors import DTypeError, ShapeError
from tests.tensor.common import same

RNG = np.random.default_rng(0)
ARRAYS = {
    "some": np.array([[0, 3, 0], [5, 0, -1]]),
    "none": np.zeros((2, 2), np.int32),
    "all": np.ones((3,), np.float32),
    "empty": np.zeros((2, 0)),
    "scalar": np.array(4.0),
    "truths": RNG.random((3, 4)) > 0.5,
    "nan": np.array([0.0, np.nan, -0.0, 2.0]),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_nonzero(name: str) -> None:
    x = ARRAYS[name]
    same(Tensor(x).nonzero(), np.argwhere(x))
    same((Tensor(x) * 1).argwhere(), np.argwhere(x))
    for got, wanted in zip(Tensor(x).nonzero(as_tuple=True), np.nonzero(np.atleast_1d(x)), strict=True):
        same(got, wanted)


@pytest.mark.parametrize("name", ARRAYS)
def test_masks(name: str) -> None:
    x = ARRAYS[name]
    mask = np.asarray(RNG.random(x.shape) > 0.4)
    same(Tensor(x).masked_select(Tensor(mask)), x[mask])
    same(Tensor(x).masked_select(mask), x[mask])
    if x.ndim:
        same(Tensor(x)[Tensor(mask)], x[mask])


def test_masks_broadcast() -> None:
    x, rows = RNG.standard_normal((3, 4)), np.array([[True], [False], [True]])
    same(Tensor(x).masked_select(Tensor(rows)), x[np.broadcast_to(rows, x.shape)])
    t = Tensor(x)
    (g,) = (t[t > 0] ** 2).sum().gradient(t)
    np.testing.assert_allclose(g.numpy(), np.where(x > 0, 2 * x, 0))
    (g,) = (t.masked_select(t > 0) ** 2).sum().gradient(t)
    np.testing.assert_allclose(g.numpy(), np.where(x > 0, 2 * x, 0))


UNIQUE = [
    np.array([3, 1, 3, 2, 1]), np.array([[2.0, np.nan], [np.nan, -1.0]]), np.zeros((0,), np.int16),
    np.array([True, False, True]), np.array(7), np.full((5,), 2, np.uint8), np.array([np.inf, -np.inf, 0.0]),
]  # fmt: skip


@pytest.mark.parametrize("x", UNIQUE, ids=lambda x: f"{x.dtype}{x.shape}")
def test_unique(x: Any) -> None:
    values, inverse, counts = np.unique(x, return_inverse=True, return_counts=True)
    same(Tensor(x).unique(), values)
    found = Tensor(x).unique(return_inverse=True, return_counts=True)
    same(found.values, values)
    same(found.inverse, inverse.reshape(x.shape))
    same(found.counts, counts)
    assert Tensor(x).unique(return_counts=True).inverse is None
    wide = Tensor(x).unique(size=len(values) + 2, fill_value=1, return_counts=True)
    same(wide.values, np.concatenate((values, np.ones(2, x.dtype))))
    same(wide.counts, np.concatenate((counts, [0, 0])))


def test_bincount_of_numbers_that_are_no_places() -> None:
    """As signed numbers these are negative, and would be below any size."""
    huge = np.array([1, 2**63, 2**64 - 1, 1, 0], np.uint64)
    same(Tensor(huge).bincount(3), np.array([1, 2, 0]))


def test_bincount() -> None:
    x = np.array([1, 1, 3, 0, 7])
    for dtype in ("int64", "int8", "uint8", "uint64"):
        same(Tensor(x.astype(dtype)).bincount(), np.bincount(x))
    same(Tensor(x).bincount(minlength=10), np.bincount(x, minlength=10))
    weights = RNG.standard_normal(5)
    same(Tensor(x).bincount(weights=weights), np.bincount(x, weights), atol=1e-15)
    same(Tensor(np.zeros(0, np.int64)).bincount(), np.bincount(np.zeros(0, np.int64)))
    same(Tensor(x).bincount(3), np.bincount(x)[:3])
    with pytest.raises(ShapeError, match="0 and more, not -2"):
        Tensor([1, -2]).bincount()
    with pytest.raises(ShapeError, match="needs as many weights"):
        Tensor(x).bincount(weights=[1.0])
    with pytest.raises(DTypeError, match="whole numbers"):
        Tensor([1.0]).bincount()


def test_bincount_looks_for_its_size_once() -> None:
    """One reduction finds both the largest number and whether there is a negative one."""
    with knobs.override(DEVICE="CPU"):
        x = Tensor(np.arange(1 << 18) % 1000).realize()
        with profile() as seen:
            x.bincount().realize()
    names = [e.name for e in seen.events if e.name.startswith("r_")]
    assert len(names) == len(set(names)), names


def test_inside_of_jit_a_size_is_needed() -> None:
    x = Tensor([0, 3, 0, 3])
    calls = {
        "nonzero": lambda t, **size: t.nonzero(**size),
        "masked_select": lambda t, **size: t.masked_select(t > 0, **size),
        "unique": lambda t, **size: t.unique(**size),
        "bincount": lambda t, **size: t.bincount(**size),
    }
    for name, call in calls.items():
        with pytest.raises(ShapeError, match=f"{name} inside of jit needs size="):
            jit(lambda t, call=call: call(t))(x)
    wanted = {"nonzero": [[1], [3]], "masked_select": [3, 3], "unique": [0, 3], "bincount": [2, 0]}
    for name, call in calls.items():
        compiled = jit(lambda t, call=call: call(t, size=2))
        for _ in range(3):
            assert compiled(x).tolist() == wanted[name]
    with pytest.raises(ShapeError, match="inside of jit"):
        jit(lambda t: t[t > 0])(x)


def test_the_size_follows_the_values() -> None:
    """The same call on other values of one form: nothing is remembered of the first."""
    for limit in (0, 1, 3, 5, 2):
        x = np.arange(5)
        same(Tensor(x)[Tensor(x >= limit)], x[x >= limit])
        same((Tensor(x) >= limit).nonzero(), np.argwhere(x >= limit))


def test_unique_slices_of_nothing() -> None:
    x = Tensor(np.zeros((3, 0, 2), np.float32))
    for found in (x.unique(dim=1, return_inverse=True, return_counts=True),
                  x.unique_consecutive(dim=1, return_inverse=True, return_counts=True)):  # fmt: skip
        same(found.values, np.zeros((3, 0, 2), np.float32))
        same(found.inverse, np.zeros(0, np.int64))
        same(found.counts, np.zeros(0, np.int64))
    same(x.unique(dim=0), np.unique(np.zeros((3, 0, 2), np.float32), axis=0))
