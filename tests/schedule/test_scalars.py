"""Arithmetic on a single number does not hide what the number is made of."""

import numpy as np
import pytest

from morok import Tensor, knobs


@pytest.mark.parametrize("finish", [lambda t: t, lambda t: t / 7.0, lambda t: (t * 2.0).exp() + 1.0])
def test_a_loss_is_cut_into_as_many_kernels_as_its_sum(finish) -> None:  # type: ignore[no-untyped-def]
    rng = np.random.default_rng(0)
    with knobs.override(DEVICE="PYTHON"):
        x, v, w = (Tensor(rng.standard_normal((64, 64)).astype(np.float32)) for _ in range(3))
        total = ((x @ v).gelu() @ w).log_softmax(-1).sum()
        assert len(finish(total).prepare().kernels) == len(total.prepare().kernels) == 3
