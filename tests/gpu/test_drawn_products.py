"""Products that are drawn: any type, size and layout, operands that are made of others, on several machines.

Operands are small whole numbers, so sums are exact before they are rounded: NumPy and the kernel agree in
every bit. Machines with few multiprocessors have large tiles, and blocks that stay, for small products.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from morok import Tensor, knobs
from tests.gpu.kernels import DEVICE

SIZES = [1, 7, 16, 33, 64, 65, 72, 80, 97, 127, 128, 129, 136, 192, 200, 257]
MACHINES = [("sm_80", 108), ("sm_80", 2), ("sm_90", 132), ("sm_90", 1), ("sm_90", 3)]
TYPES: dict[str, Any] = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float32": np.float32}
Array = Any
Random = np.random.Generator


def _whole(random: Random, *shape: int) -> Array:
    return random.integers(-3, 4, shape).astype(np.float32)


def _on(x: Array, dtype: str) -> Tensor:
    return Tensor(x, device=DEVICE).cast(dtype).realize()


# --- operands: what memory holds, and what is multiplied


def _plain(random: Random, x: Array, dtype: str) -> tuple[Tensor, Array]:
    return _on(x, dtype), x


def _later(random: Random, x: Array, dtype: str) -> tuple[Tensor, Array]:
    """Rows that begin anywhere."""
    before = int(random.integers(1, 9))
    return _on(np.concatenate([x[:, :1].repeat(before, 1), x], 1), dtype)[:, before:], x


def _masked(random: Random, x: Array, dtype: str) -> tuple[Tensor, Array]:
    mask = random.random(x.shape) < 0.5
    return Tensor(mask, device=DEVICE).realize().where(_on(x, dtype), 0), np.where(mask, x, 0)


def _bytes(random: Random, x: Array, dtype: str) -> tuple[Tensor, Array]:
    return _on(x, "int8").cast(dtype), x


def _scaled(random: Random, x: Array, dtype: str) -> tuple[Tensor, Array]:
    scale = 2.0 ** random.integers(-1, 2, x.shape[1]).astype(np.float32)
    return _on(x, dtype) * _on(scale, dtype), x * scale


def _chosen(random: Random, x: Array, dtype: str) -> tuple[Tensor, Array]:
    rows = random.integers(0, len(x), len(x)).astype(np.int32)
    return _on(x, dtype)[Tensor(rows, device=DEVICE).realize()], x[rows]


OPERANDS: list[Callable[[Random, Array, str], tuple[Tensor, Array]]] = [
    _plain, _plain, _later, _masked, _bytes, _scaled, _chosen
]  # fmt: skip


def _machine(folder: Path, base: str, cores: int) -> str:
    path = folder / "machine.toml"
    path.write_text(f'base = "{base}"\ncores = {cores}\n')
    return str(path)


@pytest.mark.parametrize(
    "seed", [*range(8), *(pytest.param(s, marks=pytest.mark.slow) for s in range(8, 200))]
)
def test_products(seed: int, tmp_path: Path) -> None:
    random = np.random.default_rng(seed)
    m, n, k = (int(random.choice(SIZES)) for _ in range(3))
    dtype = str(random.choice(list(TYPES)))
    turned = [bool(random.integers(2)) for _ in range(2)]
    shapes = [(m, k), (k, n)]
    machine = _machine(tmp_path, *MACHINES[int(random.integers(len(MACHINES)))])
    factors, arrays = [], []
    with knobs.override(MACHINE=machine, TF32=True):
        for shape, other in zip(shapes, turned, strict=True):
            make = OPERANDS[int(random.integers(len(OPERANDS)))]
            x, values = make(random, _whole(random, *(shape[::-1] if other else shape)), dtype)
            factors.append(x.T if other else x)
            arrays.append(values.T if other else values)
        found = factors[0] @ factors[1]
        want = (arrays[0].astype(np.float64) @ arrays[1]).astype(TYPES[dtype])
        results = [(found, want)]
        if random.integers(2):  # something follows, and both are wanted
            results.append((found.relu(), np.maximum(want, 0)))
        Tensor.realize(*(x for x, _ in results))
        for x, wanted in results:
            np.testing.assert_array_equal(x.cast("float32").numpy(), wanted.astype(np.float32))
