"""Writes into memory that exists: order, states, in-place kernels, temporaries, and cycles."""

from __future__ import annotations

import numpy as np
import pytest

from morok.errors import IRError
from morok.ir import movement
from morok.ir.node import UOp, make
from morok.ir.ops import Ops
from morok.schedule.schedule import schedule
from tests.schedule import graphs as g


def state(memory: UOp, part: UOp, value: UOp) -> UOp:
    """Memory after a part of it was overwritten."""
    return make(Ops.AFTER, memory.dtype, (memory, g.assign(part, value)))


def data(x: UOp) -> np.ndarray:
    return g.DATA[g.base(x)]


def test_in_place() -> None:
    t = g.tensor(8)
    before = data(t).copy()
    plan = schedule([out := g.assign(t, g.mul(t, 2.0))])
    (item,) = plan.items
    assert item.buffers == (g.base(t),), "one kernel, one buffer, no temporary"
    (got,) = g.run(out, plan=plan)
    np.testing.assert_allclose(got, before * 2)
    np.testing.assert_allclose(data(t), before * 2)


def test_a_shifted_read_needs_a_temporary() -> None:
    t = g.tensor(8)
    before = data(t).copy()
    plan = schedule([out := g.assign(t, movement.flip(t, (True,)))])
    assert len(plan.items) == 2 and len(plan.memory.placements) == 1
    g.run(out, plan=plan)
    np.testing.assert_allclose(data(t), before[::-1])


def test_a_read_apart_from_the_write_needs_none() -> None:
    t = g.tensor(10)
    before = data(t).copy()
    front, back = (movement.shrink(t, (box,)) for box in ((0, 5), (5, 10)))
    out = state(t, back, g.add(movement.flip(front, (True,)), 1.0))
    plan = schedule([out])
    assert len(plan.items) == 1, "what is read is not written"
    (got,) = g.run(out, plan=plan)
    np.testing.assert_allclose(got, [*before[:5], *(before[4::-1] + 1)], rtol=1e-6)


def test_a_row_value_needs_a_temporary() -> None:
    t = g.tensor(4, 8)
    before = data(t).copy().reshape(4, 8)
    g.run(g.assign(t, g.sub(t, g.reduce(Ops.MAX, t, 1))))
    np.testing.assert_allclose(data(t).reshape(4, 8), before - before.max(1, keepdims=True))


def test_slices_and_the_rest() -> None:
    t = g.tensor(6, 4)
    before = data(t).copy().reshape(6, 4)
    part = movement.shrink(t, ((1, 3), (0, 4)))
    whole = state(t, part, g.mul(part, 10.0))
    (got,) = g.run(g.add(whole, 1.0))
    before[1:3] *= 10
    np.testing.assert_allclose(got, before + 1)
    np.testing.assert_allclose(data(t).reshape(6, 4), before)


def test_writes_to_one_memory_keep_their_order() -> None:
    t = g.tensor(8)
    first = state(t, t, g.spread(g.const(t.dtype, 1.0), (8,)))
    front = movement.shrink(first, ((0, 4),))
    second = state(t, front, g.spread(g.const(t.dtype, 2.0), (4,)))
    (got,) = g.run(second)
    np.testing.assert_allclose(got, [2, 2, 2, 2, 1, 1, 1, 1])


def test_readers_of_the_old_value_run_before_the_write() -> None:
    t = g.tensor(8)
    before = data(t).copy()
    write = g.assign(t, g.add(t, 1.0))
    old, new = g.mul(t, 5.0), g.mul(write, 2.0)
    got = g.run(write, old, new)
    np.testing.assert_allclose(got[1], before * 5)
    np.testing.assert_allclose(got[2], (before + 1) * 2)


def test_old_and_new_in_one_expression() -> None:
    t = g.tensor(8)
    before = data(t).copy()
    top = g.reduce(Ops.MAX, t, 0)
    write = g.assign(t, g.mul(t, 0.0))
    (got,) = g.run(g.add(write, top))
    np.testing.assert_allclose(got, np.full(8, before.max()))


def test_a_copy_breaks_a_cycle_that_is_an_error_otherwise() -> None:
    t, u = g.tensor(8), g.tensor(8)
    flipped = [movement.flip(x, (True,)) for x in (t, u)]
    with pytest.raises(IRError, match=r"assignments at .*need each other's old values; copy one") as error:
        schedule([g.assign(t, flipped[1]), g.assign(u, flipped[0])])
    assert error.value.place is not None
    old = data(t).copy(), data(u).copy()
    g.run(g.assign(t, u), g.assign(u, g.contiguous(t)))
    np.testing.assert_allclose(data(t), old[1])
    np.testing.assert_allclose(data(u), old[0])


def test_what_is_no_memory_cannot_be_assigned_to() -> None:
    t = g.tensor(8)
    with pytest.raises(IRError, match="only a tensor or a part of one can be assigned to, not ADD"):
        schedule([g.assign(g.add(t, 1.0), t)])


def test_a_thousand_assignments() -> None:
    t = g.tensor(8)
    before = data(t).copy()
    x = t
    for _ in range(1000):
        x = state(t, x, g.add(x, 1.0))
    plan = schedule([x])
    assert len(plan.items) == 1000 and len({item.ast for item in plan.items}) == 1
    assert [item.group for item in plan.items] == list(range(1000))
    (got,) = g.run(x, plan=plan)
    np.testing.assert_allclose(got, before + 1000, rtol=1e-4)


def adam(*shapes: tuple[int, ...]) -> list[UOp]:
    outputs = []
    for sizes in shapes:
        p, m, v, grad = (g.tensor(*sizes) for _ in range(4))
        m2 = g.assign(m, g.add(g.mul(m, 0.9), g.mul(grad, 0.1)))
        v2 = g.assign(v, g.add(g.mul(v, 0.99), g.mul(g.mul(grad, grad), 0.01)))
        root = g.add(g.alu(Ops.SQRT, g.alu(Ops.ABS, v2)), 1e-8)
        outputs += [m2, v2, g.assign(p, g.sub(p, g.div(g.mul(m2, 0.01), root)))]
    return outputs


def test_adam_takes_one_kernel_per_shape() -> None:
    outputs = adam(*[(16, 8), (8,), (4, 4, 2)] * 4)
    want = g.expected(*outputs)
    plan = schedule(outputs)
    assert len(plan.items) == 3
    for a, b in zip(g.run(*outputs, plan=plan), want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_groups_do_not_depend_on_each_other() -> None:
    x = g.tensor(64, 64)
    a, b = g.matmul(x, g.tensor(64, 32)), g.matmul(x, g.tensor(64, 48))
    plan = schedule([a, b, g.exp(g.total(g.relu(a), 0))])
    written: dict[UOp, int] = {}
    for item in plan.items:
        for memory in item.buffers[1:]:
            assert written.get(memory, -1) < item.group
        written[item.buffers[0]] = item.group
