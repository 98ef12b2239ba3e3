"""Equal computations are scheduled once; what differs is filled in."""

from __future__ import annotations

import pytest

from morok import Tensor, knobs
from morok.dtype import float32
from morok.errors import IRError, VariableError
from morok.ir import build, movement
from morok.ir.node import UOp, live_nodes
from morok.ir.ops import Ops
from morok.rewrite.engine import statistics
from morok.schedule import schedule as module
from morok.schedule.schedule import clear_cache, schedule
from tests.schedule import graphs as g


def work(x: UOp, w: UOp) -> UOp:
    return g.softmax(g.matmul(x, w))


def test_new_buffers_cost_no_rewriting() -> None:
    first = schedule([work(g.tensor(8, 16), g.tensor(16, 8))])
    before = statistics.nodes, len(module._templates)
    out = work(x := g.tensor(8, 16), w := g.tensor(16, 8))
    second = schedule([out])
    assert (statistics.nodes, len(module._templates)) == before
    assert [i.ast for i in first.items] == [i.ast for i in second.items]
    used = {b for item in second.items for b in item.buffers}
    assert {g.base(x), g.base(w)} <= used
    assert used.isdisjoint({b for item in first.items for b in item.buffers})
    g.check(out, tolerance=1e-4)


def test_the_same_buffer_twice_is_another_form() -> None:
    a, b = g.tensor(8), g.tensor(8)
    g.check(g.sub(a, b))
    g.check(g.sub(a, a))


def test_lines_are_those_of_the_graph_that_asks() -> None:
    """Although the template, and every node of the normalised graph, has come about for other lines."""
    text = "h = x @ w{}y = h.softmax(-1)"
    clear_cache()
    plans = []
    for name, between in (("one.py", "; "), ("two.py", "\n\n\n")):
        with knobs.override(DEVICE="CPU"):
            scope = {"x": Tensor.empty(24, 48), "w": Tensor.empty(48, 24)}
            exec(compile(text.format(between), name, "exec"), scope)
            plans.append(schedule([scope["y"].uop]))
        module._known.clear()  # as if the graphs were alike only without their memory
    assert plans[0].items[0].ast is plans[1].items[0].ast
    places = [{item.place for item in plan.items} for plan in plans]
    assert places == [{"one.py:1"}, {"two.py:1", "two.py:4"}]


def test_sizes_and_knobs_are_part_of_the_key() -> None:
    clear_cache()
    schedule([g.exp(g.tensor(8))])
    schedule([g.exp(g.tensor(9))])
    with knobs.override(UNSAFE_MATH=1):
        schedule([g.exp(g.tensor(8))])
    assert len(module._templates) == 3


def test_variables_have_values_beside_the_kernels() -> None:
    n = build.variable("n", 1, 16)
    x = g.tensor(16)
    plans = []
    for value in (5, 11):
        front = movement.shrink(x, ((0, build.bind(n, value)),))
        out = g.add(g.total(g.alu(Ops.MUL, front, g.const(float32, 2.0))), 1.0)
        plans.append(plan := schedule([out]))
        assert plan.values == {"n": value}
        (got,) = g.run(out, plan=plan)
        g.np.testing.assert_allclose(got, [2 * g.DATA[g.base(x)][:value].sum() + 1], rtol=1e-5)
    assert plans[0].items[0].ast is plans[1].items[0].ast
    assert plans[0].items[0].variables == ("n",)


def test_a_tensor_of_variable_size_has_room_for_the_largest() -> None:
    n = build.bind(build.variable("n", 1, 16), 5)
    x = g.tensor(16, 3)
    out = g.exp(movement.shrink(x, ((0, n), (0, 3))))
    plan = schedule([out])
    (memory,) = plan.memory.outputs
    assert memory.arg == 48
    (got,) = g.run(out, plan=plan)
    g.np.testing.assert_allclose(got, g.np.exp(g.DATA[g.base(x)].reshape(16, 3)[:5]), rtol=1e-5)


def test_variables_must_be_bound_once() -> None:
    n = build.variable("n", 1, 16)
    x = g.tensor(16)
    with pytest.raises(VariableError, match="variable n has no value"):
        schedule([g.exp(movement.shrink(x, ((0, n),)))])
    parts = [g.total(movement.shrink(x, ((0, build.bind(n, v)),))) for v in (3, 4)]
    with pytest.raises(VariableError, match="bound to 3 and to 4"):
        schedule([g.add(*parts)])


def test_operands_on_two_devices() -> None:
    there = build.buffer(float32, 8, "GPU", 10**6)
    with pytest.raises(IRError, match="operands on CPU and on GPU; copy one of them first"):
        schedule([g.add(g.tensor(8), there)])


def test_transfers() -> None:
    x = g.tensor(4, 4)
    device = g.make(Ops.DEVICE, build.void, (), "GPU")
    moved = g.make(Ops.COPY, x.dtype, (g.exp(x), device))
    plan = schedule([g.mul(moved, 2.0)])
    kernel, copy, after = plan.items
    assert copy.ast.op is Ops.COPY and copy.buffers[1] is kernel.buffers[0]
    assert copy.buffers[0].src[1].arg == "GPU" and after.buffers[0].src[1].arg == "GPU"
    (got,) = g.run(g.mul(moved, 2.0))
    g.np.testing.assert_allclose(got, g.np.exp(g.DATA[g.base(x)].reshape(4, 4)) * 2, rtol=1e-5)


def test_views_of_memory_need_no_kernel() -> None:
    x = g.tensor(4, 6)
    view = movement.permute(movement.shrink(x, ((1, 3), (0, 6))), (1, 0))
    plan = schedule([view])
    assert plan.items == () and plan.results[view] is view


def test_empty_tensors_need_no_kernel() -> None:
    x = g.tensor(0, 4)
    (got,) = g.run(g.exp(x))
    assert got.shape == (0, 4)
    assert schedule([g.exp(x)]).items == ()
    g.check(g.add(g.total(x, 0), 1.0))


def test_constants_alone_are_computed_somewhere() -> None:
    plan = g.check(g.spread(g.const(float32, 3.0), (4, 5)), g.positions((4, 5), 1))
    assert {b.src[1].arg for item in plan.items for b in item.buffers} == {"CPU"}


def test_items_tell_where_they_come_from() -> None:
    (item,) = schedule([g.softmax(g.tensor(8, 16))]).items
    assert item.place is not None and item.place.startswith("graphs.py:")
    assert item.name.startswith("r_8_16") and item.flops > 0 and item.bytes == 2 * 8 * 16 * 4


def test_which_buffers_are_the_same_is_part_of_the_form() -> None:
    """Four graphs that differ in nothing but which memory stands where."""
    clear_cache()
    for _ in range(2):
        x, y = g.tensor(8), g.tensor(8)
        for a, b in ((x, y), (y, x), (x, x)):
            g.check(g.add(g.sub(g.exp(x), y), g.mul(g.sub(g.exp(a), b), 3.0)))
    assert len(module._known) == 3


def test_numbers_that_are_equal_and_not_the_same_are_other_signatures() -> None:
    clear_cache()
    data = g.np.array([-0.0, 1.0])
    for _ in range(2):
        for zero in (0.0, -0.0):
            (got,) = g.run(g.add(g.tensor(2, data=data), zero))
            assert g.np.signbit(got[0]) == g.np.signbit(g.np.float32(-0.0) + g.np.float32(zero))


def test_axes_and_sizes_are_part_of_the_form() -> None:
    clear_cache()
    for _ in range(2):
        x = g.tensor(4, 4, 4)
        for order in ((0, 2, 1), (2, 1, 0), (1, 2, 0)):
            g.check(g.exp(movement.permute(x, order)))
        for flips in ((True, False, True), (True, True, True)):
            g.check(g.exp(movement.flip(x, flips)))
        for axis in range(3):
            g.check(g.total(g.exp(x), axis))


def test_a_known_signature_makes_no_nodes_but_its_buffers() -> None:
    def made() -> int:
        out = [work(g.tensor(8, 16), g.tensor(16, 8))]
        before = live_nodes()
        plan = schedule(out)
        new = live_nodes() - before
        return new - 2 * len(plan.items)  # of each kernel the memory that it writes, and its number

    made()
    assert made() == 1  # the view of the result
