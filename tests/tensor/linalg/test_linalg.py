"""Matrix products, convolutions, pools and attention against NumPy."""

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from morok import Tensor
from morok.errors import ShapeError
from morok.tensor.linalg.convolution import conv_channels_last
from tests.tensor.common import same, sample

RNG = np.random.default_rng(0)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((3,), (3,)), ((2, 3), (3,)), ((3,), (3, 4)), ((2, 3), (3, 4)), ((5, 2, 3), (3, 4)),
        ((2, 3), (5, 3, 4)), ((5, 2, 3), (5, 3, 4)), ((6, 1, 2, 3), (5, 3, 4)), ((5, 2, 3), (3,)),
        ((3,), (5, 3, 4)), ((1, 1), (1, 1)), ((2, 0), (0, 3)), ((0, 3), (3, 2)), ((1, 3), (3, 1)),
    ],
)  # fmt: skip
def test_matmul_shapes(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    x, y = sample(a, "float32", 1), sample(b, "float32", 2)
    same(Tensor(x) @ Tensor(y), x @ y)


@pytest.mark.parametrize("dtype", ["bool", "int8", "int32", "uint8", "int64", "float64", "float32"])
def test_matmul_types(dtype: str) -> None:
    x, y = sample((3, 4), dtype, 1), sample((4, 2), dtype, 2)
    same(Tensor(x) @ Tensor(y), x @ y)


def test_matmul_of_narrow_floats_is_carried_in_float32() -> None:
    for dtype in (np.float16, ml_dtypes.bfloat16):
        x = RNG.standard_normal((4, 300)).astype(dtype)
        y = RNG.standard_normal((300, 3)).astype(dtype)
        got = (Tensor(x) @ Tensor(y)).numpy()
        assert got.dtype == dtype
        wanted = (x.astype(np.float32) @ y.astype(np.float32)).astype(dtype)
        np.testing.assert_allclose(got.astype(float), wanted.astype(float), rtol=1e-2, atol=1e-2)


def test_matmul_with_arrays_and_mixed_types() -> None:
    x, y = sample((2, 3), "int32", 1), sample((3, 2), "float32", 2)
    same(Tensor(x) @ y, x @ y)
    same(y @ Tensor(x), y @ x)
    same(Tensor(y).dot(Tensor(x)), y @ x)
    same(Tensor([1, 2]).outer(Tensor([3, 4, 5])), np.outer([1, 2], [3, 4, 5]))
    w, b = sample((4, 3), "float32", 3), sample((4,), "float32", 4)
    same(Tensor(sample((2, 3), "float32")).linear(Tensor(w), Tensor(b)), sample((2, 3), "float32") @ w.T + b)
    same(Tensor(y).T @ Tensor(y), y.T @ y)


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        ((2, 3), (4, 5), r"shapes \(2, 3\) and \(4, 5\) do not multiply: 3 columns on the left need 3 rows"),
        ((2, 3), (4,), "need 3 elements on the right"),
        ((), (3,), "use \\* for scalars"),
        ((2, 2, 3), (3, 3, 2), "do not broadcast"),
    ],
)
def test_matmul_errors(a: tuple[int, ...], b: tuple[int, ...], message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        Tensor.ones(*a) @ Tensor.ones(*b)


def convolve(x: Any, w: Any, stride: Any, padding: Any, dilation: Any, groups: int) -> Any:
    """By the definition, one offset at a time."""
    count = w.ndim - 2
    x = np.pad(x, [(0, 0), (0, 0), *((p, p) for p in padding)]).astype(np.float64)
    sizes = [
        (n - d * (k - 1) - 1) // s + 1
        for n, k, s, d in zip(x.shape[2:], w.shape[2:], stride, dilation, strict=True)
    ]
    out = np.zeros((x.shape[0], w.shape[0], *sizes))
    per = w.shape[0] // groups
    for o in range(w.shape[0]):
        for i in range(w.shape[1]):
            for offset in itertools.product(*(range(k) for k in w.shape[2:])):
                window = tuple(
                    slice(f * d, f * d + (n - 1) * s + 1, s)
                    for f, d, n, s in zip(offset, dilation, sizes, stride, strict=True)
                )
                out[:, o] += w[(o, i, *offset)] * x[(slice(None), o // per * w.shape[1] + i, *window)]
    assert count == len(sizes)
    return out.astype(np.float32)


@pytest.mark.parametrize(
    ("stride", "padding", "dilation", "groups"),
    [
        ((1, 1), (0, 0), (1, 1), 1), ((1, 1), (1, 1), (1, 1), 1), ((2, 2), (1, 0), (1, 1), 1),
        ((1, 2), (0, 2), (2, 1), 2), ((3, 4), (1, 1), (1, 1), 1), ((2, 3), (2, 2), (2, 3), 4),
        ((5, 5), (0, 0), (1, 1), 2),
    ],
)  # fmt: skip
def test_convolution(stride: Any, padding: Any, dilation: Any, groups: int) -> None:
    x, w = sample((2, 4, 9, 8), "float32", 1), sample((4, 4 // groups, 3, 2), "float32", 2)
    how = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    wanted = convolve(x, w, stride, padding, dilation, groups)
    same(Tensor(x).conv2d(Tensor(w), **how), wanted, rtol=1e-5, atol=1e-5)
    # with the channels behind the places: the same numbers, and the same gradients
    images, weights = Tensor(x), Tensor(w)
    last = conv_channels_last(images, weights, Tensor([1.0, 2.0, 3.0, 4.0]), **how)
    bias = np.arange(1, 5, dtype=np.float32)[:, None, None]
    same(last, wanted + bias, rtol=1e-5, atol=1e-5)
    above = Tensor(sample(wanted.shape, "float32", 3))
    found = last.gradient(images, weights, gradient=above)
    plain = Tensor(x).conv2d(weights, **how)
    (other,) = plain.gradient(weights, gradient=above)
    same(found[1], other.numpy(), rtol=1e-5, atol=1e-5)
    (other,) = images.conv2d(weights, **how).gradient(images, gradient=above)
    same(found[0], other.numpy(), rtol=1e-5, atol=1e-5)


def test_convolution_in_one_and_three_dimensions() -> None:
    x, w = sample((2, 3, 10), "float32", 1), sample((4, 3, 3), "float32", 2)
    same(Tensor(x).conv2d(Tensor(w), padding=1), convolve(x, w, (1,), (1,), (1,), 1), rtol=1e-5, atol=1e-5)
    x, w = sample((1, 2, 4, 5, 4), "float32", 1), sample((2, 2, 2, 3, 2), "float32", 2)
    wanted = convolve(x, w, (1, 2, 1), (0, 0, 0), (1, 1, 1), 1)
    same(Tensor(x).conv2d(Tensor(w), stride=(1, 2, 1)), wanted, rtol=1e-5, atol=1e-5)
    bias = np.array([1.0, 2.0], np.float32)
    x, w = sample((1, 1, 5, 5), "float32", 1), sample((2, 1, 3, 3), "float32", 2)
    wanted = convolve(x, w, (1, 1), (1, 1), (1, 1), 1) + bias[:, None, None]
    same(Tensor(x).conv2d(Tensor(w), Tensor(bias), padding="same"), wanted, rtol=1e-5, atol=1e-5)


def windows(x: Any, k: tuple[int, int], s: tuple[int, int], p: int, fill: float) -> Any:
    x = np.pad(x, [(0, 0), (0, 0), (p, p), (p, p)], constant_values=fill)
    view = np.lib.stride_tricks.sliding_window_view(x, k, (2, 3))
    return view[:, :, :: s[0], :: s[1]]


@pytest.mark.parametrize(
    ("k", "s", "p"), [((2, 2), (2, 2), 0), ((3, 3), (2, 2), 1), ((2, 3), (1, 2), 0), ((2, 2), (3, 3), 0)]
)
def test_pools(k: tuple[int, int], s: tuple[int, int], p: int) -> None:
    x = sample((2, 3, 7, 8), "float32") - 3
    same(Tensor(x).max_pool2d(k, s, p), windows(x, k, s, p, -np.inf).max((-1, -2)))
    same(Tensor(x).avg_pool2d(k, s, p), windows(x, k, s, p, 0).mean((-1, -2)), rtol=1e-6, atol=1e-7)
    ones = windows(np.ones_like(x), k, s, p, 0).sum((-1, -2))
    got = Tensor(x).avg_pool2d(k, s, p, count_include_pad=False)
    same(got, windows(x, k, s, p, 0).sum((-1, -2)) / ones, rtol=1e-6, atol=1e-7)
    y = sample((1, 1, 4, 4), "int32")
    same(Tensor(y).max_pool2d(2), windows(y, (2, 2), (2, 2), 0, 0).max((-1, -2)))


def test_attention() -> None:
    q, k, v = (RNG.standard_normal((2, 3, n, 4)).astype(np.float32) for n in (5, 6, 6))

    def attend(scores: Any) -> Any:
        e = np.exp(scores - scores.max(-1, keepdims=True))
        return (e / e.sum(-1, keepdims=True)) @ v

    scores = q @ k.swapaxes(-1, -2) / 2
    same(Tensor(q).scaled_dot_product_attention(Tensor(k), Tensor(v)), attend(scores), rtol=1e-4, atol=1e-5)
    causal = np.where(np.tril(np.ones((5, 6), bool)), scores, -np.inf)
    got = Tensor(q).scaled_dot_product_attention(Tensor(k), Tensor(v), is_causal=True)
    same(got, attend(causal), rtol=1e-4, atol=1e-5)
    mask = RNG.random((5, 6)) > 0.4
    mask[:, 0] = True
    got = Tensor(q).scaled_dot_product_attention(Tensor(k), Tensor(v), mask=Tensor(mask))
    same(got, attend(np.where(mask, scores, -np.inf)), rtol=1e-4, atol=1e-5)
    bias = RNG.standard_normal((5, 6)).astype(np.float32)
    got = Tensor(q).scaled_dot_product_attention(Tensor(k), Tensor(v), mask=Tensor(bias), scale=0.5)
    same(got, attend(scores + bias), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Tensor.ones(1, 3, 5, 5).conv2d(Tensor.ones(2, 4, 3, 3)), "as many input channels"),
        (lambda: Tensor.ones(3, 5).conv2d(Tensor.ones(2, 3, 3, 3)), "equally many axes"),
        (lambda: Tensor.ones(1, 3, 2, 2).conv2d(Tensor.ones(2, 3, 3, 3)), "does not fit in an axis of 2"),
        (lambda: Tensor.ones(1, 3, 5, 5).conv2d(Tensor.ones(2, 3, 3, 3), stride=0), "stride needs 2 whole"),
        (lambda: Tensor.ones(1, 3, 5, 5).conv2d(Tensor.ones(2, 3, 3, 3), padding=(1, 2, 3)), "padding needs"),
        (lambda: Tensor.ones(1, 1, 2, 2).max_pool2d(3), "does not fit"),
    ],
)
def test_window_errors(call: Any, message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        call()
