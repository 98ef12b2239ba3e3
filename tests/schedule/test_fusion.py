"""The kernel counts that users feel, each checked against NumPy as well, and the reasons for what is kept."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from morok import Tensor, knobs
from morok.dtype import DType, float32, int32
from morok.ir import movement
from morok.ir.build import cast
from morok.ir.infer import closed_ranges
from morok.ir.node import UOp, alu, toposort
from morok.ir.ops import Ops
from morok.schedule.schedule import Schedule, clear_cache, schedule
from morok.tensor.realize import prepare
from tests.schedule import graphs as g


def rows() -> UOp:
    return g.tensor(64, 128)


def weight(*sizes: int) -> UOp:
    return g.tensor(*sizes)


def attention() -> UOp:
    q, k, v = (g.tensor(2, 4, 32, 64) for _ in range(3))
    scores = g.mul(g.matmul(q, g.transpose(k, 0, 1, 3, 2)), 0.125)
    return g.matmul(g.softmax(scores), v)


def conv_block() -> UOp:
    x = g.conv(g.tensor(2, 3, 12, 12), weight(8, 3, 3, 3), 1, 1)
    x = g.add(x, g.channels(weight(8)))
    variance = g.mul(v := weight(8), v)
    return g.relu(g.batch_norm(x, weight(8), variance, weight(8), weight(8)))


ONE = {
    "chain": lambda: g.exp(g.mul(movement.permute(g.add(rows(), 1.0), (1, 0)), 0.5)),
    "pad and flip": lambda: movement.flip(movement.pad(g.relu(rows()), ((1, 2), (0, 3))), (True, False)),
    "sum": lambda: g.add(g.total(g.exp(rows()), 1), 1.0),
    "mean": lambda: g.mean(g.mul(rows(), 2.0), 1),
    "variance": lambda: g.variance(rows(), 1),
    "deviation": lambda: alu(Ops.SQRT, g.variance(g.exp(rows()), 0)),
    "softmax": lambda: g.softmax(rows()),
    "log softmax": lambda: g.log_softmax(rows()),
    "layer norm": lambda: g.layer_norm(rows(), weight(128), weight(128)),
    "rms norm": lambda: g.rms_norm(rows(), weight(128)),
    "cross entropy": lambda: g.cross_entropy(rows(), g.tensor(64, dtype=int32)),
    "linear": lambda: g.relu(g.add(g.matmul(rows(), weight(128, 48)), weight(48))),
    "linear, gelu": lambda: g.gelu(g.add(g.matmul(rows(), weight(128, 48)), weight(48))),
    "norm, linear": lambda: g.matmul(g.layer_norm(rows(), weight(128), weight(128)), weight(128, 48)),
    "conv block": conv_block,
    "conv, pool": lambda: g.max_pool(g.relu(g.conv(g.tensor(1, 3, 12, 12), weight(8, 3, 3, 3), 1, 1)), 2, 2),
    "gather": lambda: g.gather(g.tensor(100, 16), g.tensor(5, dtype=int32)),
}


@pytest.mark.parametrize("name", ONE)
def test_one_kernel(name: str) -> None:
    with knobs.override(THREADS=2):  # many threads may be worth a kernel more
        clear_cache()
        assert len(g.check(ONE[name](), tolerance=2e-4).items) == 1


@pytest.mark.parametrize(
    ("size", "pool"), [(12, lambda x: g.max_pool(x, 2, 2)), (2, lambda x: g.mean(x, 2, 3))]
)
def test_a_product_keeps_its_tile_under_a_pool(size: int, pool: Callable[[UOp], UOp]) -> None:
    """Unrolled into the window it would take twice as long or more; a cheap one is still computed there."""
    x = g.relu(g.conv(g.tensor(1, 32, size, size), weight(48, 32, 3, 3), 1, 1))
    plan = g.check(pool(x), tolerance=1e-3)
    product, pooled = [item for item in plan.items if any(n.op is Ops.REDUCE for n in toposort(item.ast))]
    assert product.buffers[0].arg == 48 * size * size and pooled is plan.items[-1]


def test_rows_of_a_loss_are_shared_by_many_threads() -> None:
    """With few of them one kernel is enough: see above."""
    with knobs.override(THREADS=16):
        clear_cache()
        plan = g.check(ONE["cross entropy"](), tolerance=2e-4)
    clear_cache()
    assert [item.buffers[0].arg for item in plan.items][-2:] == [64, 1]


def test_attention_takes_at_most_three() -> None:
    assert len(g.check(attention(), tolerance=1e-4).items) <= 3


def test_an_expensive_function_in_front_of_a_product_is_kept() -> None:
    norm = g.layer_norm(g.tensor(64, 256), weight(256), weight(256))
    plan = g.check(g.matmul(g.gelu(norm), weight(256, 128)), tolerance=1e-3)
    assert len(plan.items) == 2


def test_a_value_is_kept_without_the_edge_around_it() -> None:
    """Pooling windows that overlap read a convolution several times: it is kept as it is, not padded."""
    x = g.conv(g.tensor(1, 3, 12, 12), weight(8, 3, 3, 3), 1, 1)
    shifted = g.add(g.pad2d(g.relu(x), 1), 1.0)
    items = schedule([g.max_pool(shifted, 3, 2)]).items
    kept = [n.dtype.size for n in toposort(items[0].ast) if n.op is Ops.DEFINE_GLOBAL and n.arg == 0]  # type: ignore[attr-defined]
    assert len(items) == 2 and kept == [8 * 12 * 12]


def test_a_product_is_not_computed_while_rows_are_put_in_places() -> None:
    """They are put there in order, one after another: without tiles, without threads."""
    places = Tensor(np.arange(256 * 64).reshape(256, 64) % 16)
    left, right = (Tensor(np.ones(s, np.float32)) for s in ((256, 64), (64, 64)))
    found = Tensor.zeros(256, 16).scatter_add(1, places, left @ right)
    items = [i for i in schedule([found.uop]).items if any(n.op is Ops.REDUCE for n in toposort(i.ast))]
    assert [len(item.buffers) for item in items] == [3]  # the factors and the product, no places
    assert np.array_equal(found.numpy(), np.full((256, 16), 4 * 64.0))


def test_two_products_in_a_row_are_two_kernels() -> None:
    hidden = g.relu(g.matmul(rows(), weight(128, 64)))
    plan = g.check(g.matmul(hidden, weight(64, 64)), tolerance=1e-3)
    assert len(plan.items) == 2
    assert all(any(n.op is Ops.REDUCE for n in toposort(item.ast)) for item in plan.items)


def test_two_short_products_share_what_they_read() -> None:
    """All 16 steps of either are written out on a processor: there is no panel that another could spoil."""
    left = [g.tensor(64, 16) for _ in range(2)]
    shared = g.exp(weight(16, 48))
    plan = g.check(g.add(g.matmul(left[0], shared), g.matmul(left[1], shared)), tolerance=1e-3)
    assert len([item for item in plan.items if any(n.op is Ops.REDUCE for n in toposort(item.ast))]) == 1


def test_a_long_product_shares_no_kernel_with_a_short_one() -> None:
    x = g.matmul(g.tensor(128, 256), weight(256, 128))
    plan = g.check(g.add(x, g.matmul(g.tensor(128, 16), weight(16, 128))), tolerance=1e-2)
    assert len(plan.items) == 2


def test_a_long_row_is_not_waited_for() -> None:
    x = g.tensor(1, 2_000_000)
    assert len(schedule([g.div(x, g.total(x))]).items) == 2


def test_a_short_row_is() -> None:
    x = g.tensor(10, 10)
    assert len(g.check(g.div(x, g.total(x))).items) == 1


def test_a_row_value_is_computed_once_per_row() -> None:
    (item,) = schedule([g.softmax(rows())]).items
    (effect,) = item.ast.src
    outer = effect.src[1]
    for node in toposort(item.ast):
        if node.op is Ops.REDUCE:
            from morok.ir.infer import ranges

            assert ranges(node) == {outer}, "a row's value depends on the row and nothing else"
    assert closed_ranges(effect)[0].arg[0] == 0


def test_columns_come_first_where_columns_are_normalised() -> None:
    (item,) = g.check(g.sub(x := rows(), g.mean(x, 0))).items
    (effect,) = item.ast.src
    sizes = [r.src[0].arg for r in effect.src[1:]]
    assert sizes == [128, 64], "the loop that the mean depends on is the outer one"


def test_a_residual_norm_keeps_the_sum_it_normalises() -> None:
    x = g.add(rows(), g.matmul(g.tensor(64, 256), weight(256, 128)))
    out = g.add(x, g.matmul(g.layer_norm(x, weight(128), weight(128)), weight(128, 128)))
    assert len(g.check(out, tolerance=1e-3).items) == 2


def test_reasons_are_told(capfd: pytest.CaptureFixture[str]) -> None:
    clear_cache()
    hidden = g.relu(g.matmul(g.tensor(64, 512), weight(512, 64)))
    with knobs.override(EXPLAIN="fusion"):
        schedule([g.matmul(hidden, weight(64, 640))])
    said = capfd.readouterr().err
    assert "kept a buffer at graphs.py:" in said
    assert "it would be computed" in said and "16.4 KB" in said
    with knobs.override(EXPLAIN="fusion"):
        schedule([g.relu(g.tensor(8))])
    assert "all of it is fused" in capfd.readouterr().err


def test_what_is_computed_more_than_once_is_told(capfd: pytest.CaptureFixture[str]) -> None:
    """Powers of a short row that every row of outputs needs: less work than another kernel."""
    clear_cache()
    powers = alu(Ops.EXP, g.tensor(1, 16))
    with knobs.override(EXPLAIN="fusion"):
        schedule([g.matmul(g.add(g.tensor(8, 16), powers), weight(16, 4))])
    said = capfd.readouterr().err
    assert "computed" in said and "times at" in said and "exp(" in said


def test_many_inputs_are_summed_in_several_kernels() -> None:
    total = g.tensor(8)
    for _ in range(80):
        total = g.add(total, g.tensor(8))
    plan = g.check(total)
    assert 3 <= len(plan.items) <= 4
    assert all(len(item.buffers) <= 33 for item in plan.items)


def test_a_chain_of_twenty_thousand_nodes() -> None:
    x = g.tensor(4)
    y = x
    for i in range(20_000):
        y = alu(Ops.ADD, y, g.const(y.dtype, float(i % 3)))
    plan = schedule([y])
    assert 1 <= len(plan.items) <= 20
    data = g.DATA[g.base(x)]
    (got,) = g.run(y, plan=plan)
    g.np.testing.assert_allclose(got, data + sum(i % 3 for i in range(20_000)), rtol=1e-2)


def test_two_hundred_outputs_at_once() -> None:
    x = g.tensor(16)
    outputs = [g.mul(x, float(i)) for i in range(200)]
    plan = g.check(*outputs)
    assert len(plan.items) <= 4


def test_a_value_for_two_outputs_is_computed_once() -> None:
    hidden = g.matmul(g.tensor(32, 256), weight(256, 32))
    plan = g.check(g.relu(hidden), g.exp(g.mul(hidden, 0.01)), tolerance=1e-3)
    products = [i for i in plan.items if any(n.op is Ops.REDUCE for n in toposort(i.ast))]
    assert len(products) == 1


def hot_product(dtype: DType, table: UOp) -> UOp:
    """A one-hot row of numbers times a table."""
    hot = cast(g.one_hot(g.tensor(3, dtype=int32, data=[1, 4, 0]), 5), dtype)
    return g.matmul(hot, table)


def loops_of(plan: Schedule) -> int:
    return sum(n.op is Ops.REDUCE for item in plan.items for n in toposort(item.ast))


def test_a_product_with_a_one_hot_row_of_integers_is_a_gather() -> None:
    out = hot_product(int32, g.tensor(5, 4, dtype=int32))
    plan = schedule([out])
    assert loops_of(plan) == 0
    g.check(out)


def test_of_floats_only_if_infinities_may_be_lost() -> None:
    """Zero times infinity is NaN, so the loop stays unless the knob says otherwise; the two do not mix."""
    table = g.np.random.default_rng(0).normal(size=(5, 4))
    for unsafe in (0, 1, 0):
        with knobs.override(UNSAFE_MATH=unsafe):
            out = hot_product(float32, g.tensor(5, 4, data=table))
            assert loops_of(schedule([out])) == 1 - unsafe
            g.check(out)
    table[2, 3] = g.np.inf
    (got,) = g.run(hot_product(float32, g.tensor(5, 4, data=table)))
    assert g.np.isnan(got.reshape(3, 4)[:, 3]).all() and not g.np.isnan(got.reshape(3, 4)[:, :3]).any()


def test_products_with_parts_of_one_matrix_stay_apart() -> None:
    """A few rows beside each: a kernel of both would walk neither matrix as a product is walked."""
    whole, x, y = g.tensor(2, 64, 256), g.tensor(4, 64), g.tensor(4, 64)
    parts = [
        movement.reshape(movement.shrink(whole, ((d, d + 1), (0, 64), (0, 256))), (64, 256)) for d in (0, 1)
    ]
    found = schedule([g.matmul(x, parts[0]), g.matmul(y, parts[1])])
    assert len(found.items) == 2


def test_masks_of_positions_are_computed_where_they_are_used() -> None:
    """However many kernels read one: kept, it would be memory of the default device, and a plan of two."""
    parts = [Tensor(np.full(4, i, np.float32), device="EMULATOR") for i in range(70)]
    joined = [Tensor.cat(x, x * 2).contiguous() for x in parts]
    plan = prepare([(y + 1).contiguous() for y in joined])
    assert {str(node.src[1].arg) for item in plan.schedule.items for node in item.buffers} == {"EMULATOR"}
