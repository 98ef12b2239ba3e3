"""The same numbers give the same bits, whichever way they are computed: alone, in vectors, in the tail of a
loop, in a fused kernel, or as a constant of the program."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from morok import Tensor, knobs
from tests.devices import devices
from tests.tensor.interface.table_elementwise import BINARY, UNARY, Entry
from tests.tensor.interface.table_values import ALL, edges, is_float

Array = Any
(COMPILED,) = devices("CPU")
SIZES = (1, 3, 4, 17, 1000)
_SOME = (
    "exp",
    "log",
    "sin",
    "tanh",
    "atanh",
    "sigmoid",
    "sqrt",
    "neg",
    "abs",
    "pow",
    "__mod__",
    "add",
    "mul",
)


@pytest.fixture(autouse=True)
def device() -> Iterator[None]:
    with knobs.override(DEVICE=COMPILED):
        yield


def _given(dtype: str, size: int, step: int) -> Array:
    """The edge values over and over, so that each meets others, in any lane."""
    values = edges(dtype)
    return values[np.arange(size) * step % len(values)]


def _same_bits(got: Array, want: Array) -> Array:
    """Everywhere equal to the bit, but for what kind of NaN it is."""
    equal = got.view(f"u{got.dtype.itemsize}") == want.view(f"u{want.dtype.itemsize}")
    if got.dtype.kind in "biu":
        return equal
    return equal | (np.isnan(got.astype(np.float64)) & np.isnan(want.astype(np.float64)))


def _computed(entries: dict[str, Entry], arrays: tuple[Array, ...]) -> dict[str, Array]:
    tensors = [Tensor(x) for x in arrays]
    found = {name: entry.call(*tensors) for name, entry in entries.items()}
    Tensor.realize(*found.values())
    return {name: result.numpy() for name, result in found.items()}


def _check_sizes(entries: dict[str, Entry], dtype: str, operands: int, sizes: tuple[int, ...]) -> None:
    whole = tuple(_given(dtype, SIZES[-1], step) for step in (1, 7)[:operands])
    want = _computed(entries, whole)
    wrong = []
    for size in sizes:
        for name, got in _computed(entries, tuple(x[:size].copy() for x in whole)).items():
            bad = np.flatnonzero(~_same_bits(got, want[name][:size]))
            wrong += [f"{name} of {size}, at {i}: {got[i]!r}, {want[name][i]!r}" for i in bad[:1]]
    assert not wrong, "\n".join(wrong)


def _of(table: dict[str, Entry], dtype: str, names: tuple[str, ...] | None = None) -> dict[str, Entry]:
    return {n: e for n, e in table.items() if dtype in e.types and (names is None or n in names)}


def test_lanes_and_tails() -> None:
    _check_sizes(_of(UNARY, "float32", _SOME), "float32", 1, (3, 17))
    _check_sizes(_of(BINARY, "float32", _SOME), "float32", 2, (3,))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ALL)
def test_lanes_and_tails_of_all(dtype: str) -> None:
    _check_sizes(_of(UNARY, dtype), dtype, 1, SIZES[:-1])
    _check_sizes(_of(BINARY, dtype), dtype, 2, SIZES[:-1])


def _check_constants(entries: dict[str, Entry], dtype: str, values: Array) -> None:
    want = _computed(entries, (values,))
    found = {
        (name, i): entry.call(Tensor.full((), v.item() if v.dtype.kind in "biuf" else float(v), dtype=dtype))
        for name, entry in entries.items()
        for i, v in enumerate(values)
    }
    Tensor.realize(*found.values())
    wrong = []
    for (name, i), result in found.items():
        got = np.asarray(result.numpy()).reshape(1)
        if not _same_bits(got, want[name][i : i + 1]).all():
            wrong.append(f"{name} of {values[i]!r}: {got[0]!r} as a constant, {want[name][i]!r} computed")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_constants_are_what_would_be_computed(dtype: str) -> None:
    values = np.array([0.3, -2.5, 88.0], dtype)
    _check_constants(_of(UNARY, dtype, ("exp", "sin", "log1p", "tanh", "neg")), dtype, values)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ALL)
def test_all_constants(dtype: str) -> None:
    values = edges(dtype)
    values = values[:: max(1, len(values) // 8)] if is_float(dtype) else values[:: max(1, len(values) // 5)]
    _check_constants(_of(UNARY, dtype), dtype, values)
