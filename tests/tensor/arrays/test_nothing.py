"""Nothing, through every operation: results have NumPy's shape, and what is put around them is right."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from morok import Tensor
from tests.tensor.interface.table_elementwise import BINARY, UNARY, USUAL
from tests.tensor.interface.table_shapes import NEED_ELEMENTS, ORDER, REDUCTIONS, RUNNING

Array = Any


def test_running_over_nothing_and_then_padded() -> None:
    x = np.zeros((3, 0, 31))
    around = ((3, 2), (3, 1), (2, 2))
    found = Tensor(x).cummax(1).pad(around).numpy()
    np.testing.assert_array_equal(found, np.zeros((8, 4, 35)))


def _results(x: Array) -> Iterator[tuple[str, Tensor, Array]]:
    t, dtype = Tensor(x), str(x.dtype)
    for name, entry in {**UNARY, **USUAL, **BINARY}.items():
        if dtype in entry.types:
            operands = 2 if name in BINARY else 1
            yield name, entry.call(*(t,) * operands), np.asarray(entry.oracle(*(x,) * operands))
    for axis in range(x.ndim):
        for name, (mine, numpys) in REDUCTIONS.items():
            if name not in NEED_ELEMENTS:
                yield f"{name} {axis}", mine(t, axis, False), np.asarray(numpys(x, axis, False))
        for table in (RUNNING, ORDER):
            for name, (mine, numpys) in table.items():
                result = mine(t, axis)
                if isinstance(result, Tensor):
                    yield f"{name} {axis}", result, np.asarray(numpys(x, axis))


@pytest.mark.parametrize("shape", [(0,), (3, 0, 2)], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "int16"])
def test_nothing_and_something_around_it(shape: tuple[int, ...], dtype: str) -> None:
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = list(_results(np.zeros(shape, dtype)))
    padded = [(r.pad([(2, 1)] * r.ndim), np.pad(w, [(2, 1)] * w.ndim)) for _, r, w in found if w.ndim]
    Tensor.realize(*(r for _, r, _ in found), *(r for r, _ in padded))
    for label, result, want in found:
        assert result.shape == want.shape, label
        np.testing.assert_array_equal(result.numpy(), want, err_msg=label)
    for result, want in padded:
        np.testing.assert_array_equal(result.numpy(), want)
