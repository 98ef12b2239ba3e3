"""Several reductions over the same columns: what one of them has cut, the next one leaves; and columns of
tensors that were joined."""

import numpy as np

from morok import Tensor
from morok.ir.node import toposort
from morok.ir.ops import Ops
from morok.optimize.facts import store_of, value_bytes
from tests.optimize.kernels import kernel_of
from tests.schedule import graphs as g


def test_a_statistic_of_what_a_sum_goes_into() -> None:
    truths = np.zeros((32, 64), bool)
    truths[0, 0] = truths[5, 7] = True
    x = Tensor(truths, device="CPU")
    got = x.maximum(x.sum(-2, keepdim=True)).std(0, keepdim=True).numpy()
    wanted = (
        np.maximum(truths, truths.sum(-2, keepdims=True)).astype(np.float64).std(0, ddof=1, keepdims=True)
    )
    np.testing.assert_allclose(got, wanted, rtol=1e-6, atol=1e-7)


def test_joined_tensors_fill_their_vectors() -> None:
    """Places are compared as 64-bit numbers, of which a register holds half as many."""
    joined = Tensor.empty(64, 128).cat(Tensor.empty(32, 128), dim=0)
    ast = kernel_of(Tensor.empty(48, 96).matmul(joined).uop)
    (reduce,) = (n for n in toposort(ast) if n.op is Ops.REDUCE)
    assert value_bytes(reduce) == 4
    numbers = kernel_of(g.mul(Tensor.arange(64).cast("int64").uop, 3))
    assert value_bytes(store_of(numbers.src[0])) == 8
