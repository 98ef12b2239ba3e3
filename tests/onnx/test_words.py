"""Products of 8-bit integers as words of four, beside NumPy in 64 bits: every type, zero point and layout."""

from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="the package onnx is not installed: pip install 'morok[onnx]'")

from morok.onnx.ops import integers  # noqa: E402
from morok.onnx.ops.quantized import integer_convolution, integer_matmul  # noqa: E402
from morok.onnx.values import Host  # noqa: E402
from morok.tensor.tensor import Tensor  # noqa: E402


@pytest.fixture(autouse=True)
def _everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the machine has no such instruction."""
    monkeypatch.setattr(integers, "has_words", lambda: True)


def _drawn(rng: Any, dtype: str, *shape: int) -> Any:
    limits = np.iinfo(dtype)
    found = rng.integers(limits.min, limits.max + 1, shape).astype(dtype)
    found.reshape(-1)[:2] = limits.min, limits.max
    return found


def _given(x: Any, constant: bool) -> Any:
    return Host(np.asarray(x), lasting=True) if constant else Tensor(x)


def _i64(x: Any) -> Any:
    return np.asarray(x).astype(np.int64)


@pytest.mark.parametrize(("left", "right"), [("uint8", "int8"), ("int8", "uint8"), ("uint8", "uint8")])
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("count", [8, 23])
def test_products(left: str, right: str, known: bool, count: int) -> None:
    rng = np.random.default_rng(count)
    x, w = _drawn(rng, left, 3, count), _drawn(rng, right, count, 5)
    zx, zw = _drawn(rng, left, 2)[1], _drawn(rng, right, 5)  # a zero point for each column
    found = integer_matmul(_given(x, False), _given(zx, known), _given(w, known), _given(zw, known))
    wanted = (_i64(x) - _i64(zx)) @ (_i64(w) - _i64(zw))
    assert found.dtype.name == "int32"
    np.testing.assert_array_equal(found.numpy(), wanted)


@pytest.mark.parametrize("rows", [1, 2, 7, 8, 33])
@pytest.mark.parametrize("columns", [32, 144])
def test_few_rows_and_weights_in_panels(rows: int, columns: int) -> None:
    rng = np.random.default_rng(rows)
    x, w = _drawn(rng, "uint8", rows, 24), _drawn(rng, "int8", 24, columns)
    zx, zw = np.uint8(131), _drawn(rng, "int8", columns)
    found = integer_matmul(_given(x, False), _given(zx, True), _given(w, True), _given(zw, True))
    np.testing.assert_array_equal(found.numpy(), (_i64(x) - _i64(zx)) @ (_i64(w) - _i64(zw)))


def test_batches_and_rows_with_zero_points_of_their_own() -> None:
    rng = np.random.default_rng(0)
    x, w = _drawn(rng, "int8", 2, 1, 4, 12), _drawn(rng, "uint8", 3, 12, 6)
    found = integer_matmul(Tensor(x), None, Tensor(w), None)
    np.testing.assert_array_equal(found.numpy(), _i64(x) @ _i64(w))
    rows, zero = _drawn(rng, "uint8", 4, 12), _drawn(rng, "uint8", 4)
    found = integer_matmul(Tensor(rows), Tensor(zero), _given(w[0], True), None)
    np.testing.assert_array_equal(found.numpy(), (_i64(rows) - _i64(zero)[:, None]) @ _i64(w[0]))


@pytest.mark.parametrize(("channels", "group"), [(3, 1), (7, 1), (8, 2)])
@pytest.mark.parametrize("known", [True, False])
def test_convolutions(channels: int, group: int, known: bool) -> None:
    """Around the image there is what stands for 0, which is no 0."""
    rng = np.random.default_rng(channels)
    x, w = _drawn(rng, "uint8", 2, channels, 6, 5), _drawn(rng, "int8", 4, channels // group, 3, 2)
    zx = np.uint8(200)
    found = integer_convolution(
        _given(x, False),
        _given(zx, known),
        _given(w, True),
        None,
        "NOTSET",
        None,
        group,
        [1, 0, 2, 1],
        [2, 1],
    )
    padded = np.pad(_i64(x) - 200, ((0, 0), (0, 0), (1, 2), (0, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 2), (2, 3))[:, :, ::2]
    parts = [
        np.einsum("nchwij,ocij->nohw", a, b)
        for a, b in zip(np.split(windows, group, 1), np.split(_i64(w), group, 0), strict=True)
    ]
    np.testing.assert_array_equal(found.numpy(), np.concatenate(parts, 1))


def test_few_terms_and_vectors_are_left_to_others() -> None:
    x = Tensor(np.ones((2, 4), np.uint8))
    vector = np.ones(16, np.int8)

    def whole(zero: Any) -> Any:
        return zero

    assert integers.word_matmul(x, None, whole, _given(np.ones((4, 3), np.int8), True), None, whole) is None
    assert integers.word_matmul(Tensor(vector), None, whole, _given(vector, True), None, whole) is None
    assert integer_matmul(Tensor(vector), None, _given(vector, True), None).numpy() == 16
