"""Several reductions over the same columns: what one of them has cut, the next one leaves."""

import numpy as np

from morok import Tensor


def test_a_statistic_of_what_a_sum_goes_into() -> None:
    truths = np.zeros((32, 64), bool)
    truths[0, 0] = truths[5, 7] = True
    x = Tensor(truths, device="CPU")
    got = x.maximum(x.sum(-2, keepdim=True)).std(0, keepdim=True).numpy()
    wanted = (
        np.maximum(truths, truths.sum(-2, keepdims=True)).astype(np.float64).std(0, ddof=1, keepdims=True)
    )
    np.testing.assert_allclose(got, wanted, rtol=1e-6, atol=1e-7)
