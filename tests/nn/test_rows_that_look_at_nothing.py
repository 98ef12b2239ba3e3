"""Attention in which a boolean mask hides all keys of a query: its row is 0, and so are its slopes."""

import math
from typing import Any

import numpy as np
import pytest

from morok import Tensor, nn

RNG = np.random.default_rng(5)
Q, K, V = (RNG.normal(size=s).astype(np.float32) for s in ((2, 2, 5, 4), (2, 2, 7, 4), (2, 2, 7, 4)))
MASK = RNG.random((2, 1, 5, 7)) > 0.3
MASK[0, :, 2] = False


def attention(q: Any, k: Any, v: Any, scale: float) -> Any:
    scores = np.where(MASK, np.einsum("bhid,bhjd->bhij", q, k) * scale, -np.inf)
    top = scores.max(-1, keepdims=True)
    weights = np.exp(scores - np.where(np.isinf(top), 0.0, top))
    weights /= np.maximum(weights.sum(-1, keepdims=True), 1e-30)
    return weights, np.einsum("bhij,bhjd->bhid", weights, v)


@pytest.mark.parametrize("scale", [None, 0.3])
def test_a_row_without_keys(scale: float | None) -> None:
    q, k, v = (Tensor(x, requires_grad=True) for x in (Q, K, V))
    out = nn.functional.scaled_dot_product_attention(q, k, v, Tensor(MASK), scale=scale)
    weights, wanted = attention(*(x.astype(np.float64) for x in (Q, K, V)), scale or 1 / math.sqrt(4))
    np.testing.assert_allclose(out.numpy(), wanted, rtol=1e-5, atol=1e-6)
    (out * out).sum().backward()
    assert v.grad is not None and q.grad is not None and k.grad is not None
    slopes = np.einsum("bhij,bhid->bhjd", weights, 2 * wanted)
    np.testing.assert_allclose(v.grad.numpy(), slopes, rtol=1e-4, atol=1e-5)
    assert np.isfinite(k.grad.numpy()).all() and not q.grad.numpy()[0, :, 2].any()


def test_with_dropout() -> None:
    q, k, v = (Tensor(x) for x in (Q, K, V))
    out = nn.functional.scaled_dot_product_attention(q, k, v, Tensor(MASK), dropout_p=0.5).numpy()
    assert np.isfinite(out).all() and not out[0, :, 2].any()
