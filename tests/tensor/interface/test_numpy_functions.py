"""NumPy's functions called with tensors: ufuncs, reductions, and whatever else NumPy has."""

from typing import Any

import numpy as np
import pytest

from morok import Tensor, jit
from morok.errors import DTypeError, MorokError
from morok.tensor.protocols.numpy_functions import FUNCTIONS, UFUNCS
from tests.tensor.common import same

X = np.array([0.3, 0.7, 0.2], np.float32)
WHOLE = np.array([3, 1, 2])
ALL_UFUNCS = {n: f for n, f in vars(np).items() if isinstance(f, np.ufunc) and f.__name__ == n}


def test_every_ufunc() -> None:
    """The values are NumPy's; integers give float32 where NumPy has float64."""
    found: list[tuple[str, Any, Any]] = []
    for name, ufunc in ALL_UFUNCS.items():
        for x in (X, WHOLE):
            try:
                with np.errstate(all="ignore"):
                    wanted = ufunc(*[x] * ufunc.nin)
            except (TypeError, ValueError):
                continue  # not of this type, or not of vectors
            got = ufunc(*[Tensor(x)] * ufunc.nin)
            parts = zip(got, wanted, strict=True) if isinstance(got, tuple) else [(got, wanted)]
            found += [(name, g, w) for g, w in parts]
    assert len(found) > 150
    assert all(isinstance(g, Tensor) for _, g, _ in found)
    Tensor.realize(*(g for _, g, _ in found))
    for name, g, w in found:
        np.testing.assert_allclose(g.numpy().astype(float), np.asarray(w, float), rtol=2e-6, err_msg=name)


def test_the_table_names_ufuncs_and_methods() -> None:
    assert all(name in ALL_UFUNCS and hasattr(Tensor, name) for name in UFUNCS)
    assert all(hasattr(np, name) for name in FUNCTIONS)


def test_ufuncs_that_are_methods_stay_lazy_and_have_gradients() -> None:
    x = Tensor(X, requires_grad=True)
    y = np.exp(x)
    assert isinstance(y, Tensor) and not y.is_realized
    np.add(np.float32(1), np.multiply(2.0, y)).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), 2 * np.exp(X), rtol=1e-6)
    with pytest.raises(MorokError, match=r"np.cbrt is computed by NumPy.*detach"):
        np.cbrt(x)


def test_mixed_operands() -> None:
    t = Tensor(X)
    for got, wanted in (
        (X + t, X + X), (np.float32(2) * t, 2 * X), (X < t * 2, X < X * 2), (np.subtract(1, t), 1 - X),
        (np.arctan2(X, t), np.arctan2(X, X)), (np.power(t, 2), X**2),
        (np.maximum(WHOLE, t), np.maximum(WHOLE, X)),
    ):  # fmt: skip
        assert isinstance(got, Tensor)
        np.testing.assert_allclose(got.numpy(), wanted, rtol=1e-6)
    array = X.copy()
    array += t
    assert isinstance(array, np.ndarray)
    np.testing.assert_array_equal(array, X + X)
    quotient, rest = np.divmod(Tensor(WHOLE), 2)
    same(quotient, WHOLE // 2)
    same(rest, WHOLE % 2)


CALLS: dict[str, Any] = {
    "mean": np.mean, "mean of an axis": lambda x: np.mean(x, axis=0, keepdims=True), "sum": np.sum,
    "mean where": lambda x: np.mean(x, where=np.array([True, False, True])), "std": np.std, "max": np.max,
    "var": lambda x: np.var(x, ddof=1), "argmax": np.argmax, "cumsum": np.cumsum, "median": np.median,
    "percentile": lambda x: np.percentile(x, 30), "sort": np.sort, "norm": np.linalg.norm,
    "dot": lambda x: np.dot(x, x),
    "einsum": lambda x: np.einsum("i,j->ij", x, x), "stack": lambda x: np.stack([x, x], axis=1),
    "concatenate": lambda x: np.concatenate([x, x]), "where": lambda x: np.where(x > 0.4, x, np.float32(0)),
    "clip": lambda x: np.clip(x, 0.25, 0.5), "reduce": np.add.reduce,
    "outer": lambda x: np.multiply.outer(x, x),
    "reshape": lambda x: np.reshape(x, (3, 1)), "round": lambda x: np.round(x, 1), "flip": np.flip,
    "histogram": lambda x: np.histogram(x)[0], "zeros_like": np.zeros_like,
    "tril": lambda x: np.tril(np.outer(x, x)),
    "expand_dims": lambda x: np.expand_dims(x, 0), "diff": np.diff, "transpose": np.transpose,
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_functions(name: str) -> None:
    got, wanted = CALLS[name](Tensor(X)), CALLS[name](X)
    assert isinstance(got, Tensor)
    same(got, wanted, rtol=1e-6, atol=1e-7)


def test_what_is_no_array_stays_as_it_is() -> None:
    t = Tensor(X)
    assert np.shape(t) == (3,) and np.ndim(t) == 1 and np.size(t) == 3
    assert np.allclose(t, X) is True and np.array_equal(t, X) is True
    assert np.fft.fft(t).dtype.kind == "c"
    np.testing.assert_allclose(t, X)


def test_nothing_is_written_into_tensors() -> None:
    t = Tensor(X.copy())
    for call in (lambda: np.copyto(t, X), lambda: np.fill_diagonal(t, 0), lambda: np.exp(X, out=t)):
        with pytest.raises(DTypeError, match="cannot write into a tensor"):
            call()
    same(t, X)


def test_under_jit_only_what_is_a_method() -> None:
    same(jit(lambda x: np.exp(x) + np.mean(x))(Tensor(X)), np.exp(X) + np.mean(X), rtol=1e-6)
    with pytest.raises(MorokError, match="cannot look at values"):
        jit(lambda x: np.cbrt(x))(Tensor(X))
