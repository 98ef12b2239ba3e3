"""Several reductions over the same columns: what one of them has cut, the next one leaves; and columns of
tensors that were joined."""

import numpy as np
import pytest

from morok import Tensor, Variable, jit, knobs
from morok.ir.node import toposort
from morok.ir.ops import Ops
from morok.optimize.facts import store_of, value_bytes
from morok.optimize.record import applied
from tests.optimize.kernels import kernel_of
from tests.optimize.plans import an_h200, empty, planned
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
    ast = kernel_of(Tensor.empty(8, 96).matmul(joined).uop)
    (reduce,) = (n for n in toposort(ast) if n.op is Ops.REDUCE)
    assert value_bytes(reduce) == 4
    numbers = kernel_of(g.mul(Tensor.arange(64).cast("int64").uop, 3))
    assert value_bytes(store_of(numbers.src[0])) == 8


def test_rows_of_unknown_number_are_read_several_at_a_time() -> None:
    """A text's values, weighed: one read of a thread does not wait for another, and a turn takes 64 rows."""
    with an_h200() as machine:
        n = Variable("n", 1, 4096).bind(300)
        weights, values = empty(512, 4096, dtype="float32"), empty(16, 4096, 8, 128, dtype="float16")
        left = weights[:, :n].contiguous().reshape(16, 8, 4, n)
        found = planned([(left @ values[:, :n].permute(0, 2, 1, 3).cast("float32")).uop], machine)[-1]
        assert [a.amount for a in applied(found.ast) if a.name == "UNROLL"] == [8]


@pytest.mark.parametrize("count", [1, 31, 32, 33, 300])
def test_sums_over_rows_of_unknown_number(count: int) -> None:
    random = np.random.default_rng(count)
    weights, values = random.standard_normal((4, 512)), random.standard_normal((512, 64))
    with knobs.override(DEVICE="EMULATOR"):
        w, v = (Tensor(x.astype(np.float32)).realize() for x in (weights, values))
        n = Variable("n", 1, 512).bind(count)
        found = jit(lambda w, v, n: w[:, :n].contiguous() @ v[:n])(w, v, n).numpy()
    wanted = weights[:, :count].astype(np.float32).astype(np.float64) @ values[:count].astype(np.float32)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)
