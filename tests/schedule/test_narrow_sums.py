"""Sums that are kept are kept in the type that their readers want, not in the wider one they are added in."""

from __future__ import annotations

import numpy as np
import pytest

from morok import Tensor
from morok.dtype import PtrDType
from morok.ir.node import toposort
from morok.ir.ops import Ops
from tests.optimize.plans import an_h200, empty, planned


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_two_products_of_one_kernel(dtype: str) -> None:
    """A gate and what it gates: one product is memory, 154 MB in float32 and half of that as it is."""
    with an_h200() as machine:
        x, w, v = empty(3410, 4096, dtype=dtype), *(empty(11272, 4096, dtype=dtype) for _ in range(2))
        found = planned([((x @ w.T).silu() * (x @ v.T)).uop], machine)
    assert len(found) == 2
    for kernel in found:
        types = [n.dtype for n in toposort(kernel.before) if n.op is Ops.DEFINE_GLOBAL]
        assert {t.elem.name for t in types if isinstance(t, PtrDType)} == {dtype}


def test_the_sum_itself_is_read_too() -> None:
    """Then the wider one is what is kept: results are as before."""
    random = np.random.default_rng(1)
    a, b, c = (random.normal(size=s).astype(np.float16) for s in ((40, 64), (64, 48), (64, 48)))
    x, y, z = (Tensor(v) for v in (a, b, c))
    wide = x.cast("float32") @ y.cast("float32")
    got = (wide.cast("float16") * (x @ z)).cast("float32") + wide
    first = a.astype(np.float64) @ b.astype(np.float64)
    want = (first.astype(np.float16) * (a.astype(np.float64) @ c).astype(np.float16)).astype(
        np.float64
    ) + first
    np.testing.assert_allclose(got.numpy(), want, rtol=5e-3, atol=0.2)
