"""What the tests of tensors share."""

from typing import Any

import numpy as np

from morok import Tensor

ALL = (
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "float32",
    "float64",
)
INTS = ALL[1:9]
FLOATS = ALL[9:]
SHAPES: tuple[tuple[int, ...], ...] = ((), (1,), (3,), (0,), (2, 3), (1, 1), (2, 0, 3), (2, 1, 3))


def sample(shape: tuple[int, ...], dtype: str, seed: int = 0) -> Any:
    """An array of small numbers that every type holds."""
    rng = np.random.default_rng(seed)
    low = 0 if dtype.startswith(("u", "b")) else -7
    data = rng.integers(low, 8, shape)
    if dtype.startswith("float"):
        return np.asarray(data / 4).astype(dtype)
    return np.asarray(data > 3) if dtype == "bool" else np.asarray(data).astype(dtype)


def same(tensor: Tensor, array: Any, rtol: float = 0.0, atol: float = 0.0) -> None:
    """The tensor has the array's shape, type and values; NaN equals NaN."""
    wanted = np.asarray(array)
    got = tensor.numpy()
    assert got.shape == wanted.shape, (got.shape, wanted.shape)
    assert got.dtype == wanted.dtype, (got.dtype, wanted.dtype)
    assert tensor.shape == wanted.shape
    if rtol or atol:
        np.testing.assert_allclose(got.astype("float64"), wanted.astype("float64"), rtol=rtol, atol=atol)
    else:
        np.testing.assert_array_equal(got, wanted)
