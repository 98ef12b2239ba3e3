"""Laziness, sharing, plans, names, memory, and large graphs."""

import copy
import gc
import pickle
import sys

import numpy as np
import pytest

from morok import Tensor, knobs
from morok.device.registry import default_device, get_device
from morok.errors import ShapeError
from morok.ir.infer import shape
from morok.ir.node import live_nodes, toposort
from morok.ir.ops import Ops
from tests.devices import needs_host_memory
from tests.tensor.common import same


def test_nothing_is_computed_until_a_value_is_asked_for() -> None:
    used = get_device("PYTHON").allocator.used
    x = Tensor.ones(1000, 1000) * 2
    y = (x @ x).sum() + x.max()
    assert not y.is_realized
    assert get_device("PYTHON").allocator.used == used
    assert repr(y).endswith("lazy>")


def test_ways_to_ask() -> None:
    x = Tensor([[1, 2], [3, 4]]) + 1
    assert x.tolist() == [[2, 3], [4, 5]]
    assert x.is_realized
    assert (x.sum() * 1).item() == 14
    assert float(Tensor([2.5])) == 2.5
    assert int(Tensor([3.7])) == 3
    assert bool(Tensor([[0]])) is False
    assert [10, 20, 30][Tensor(1)] == 20
    assert len(x) == 2
    assert Tensor(True).item() is True
    assert Tensor(5.0).tolist() == 5.0
    assert isinstance(Tensor([1]).item(), int)


def test_realised_nodes_are_seen_by_other_tensors() -> None:
    x = Tensor(np.arange(4.0)) + 1
    y, z = x * 2, x * 3
    x.realize()
    plan = y.prepare()
    assert len(plan.kernels) == 1
    assert plan.kernels[0].ops <= 4  # only the product is left
    twin = Tensor(np.arange(4.0))
    same(z, (np.arange(4.0) + 1) * 3)
    assert twin.is_realized


def test_tensors_that_share_a_node() -> None:
    base = Tensor(np.arange(3.0))
    a, b = base + 1, base + 1
    assert a.uop is b.uop
    a.realize()
    assert b.is_realized
    assert not b.prepare().kernels


def test_constants_share_memory_while_it_lives() -> None:
    a = (Tensor.arange(5) * 7).realize()
    b = Tensor.arange(5) * 7
    assert b.is_realized
    b[0] = 1
    assert a.tolist() == [0, 7, 14, 21, 28]
    assert b.tolist() == [1, 7, 14, 21, 28]


def test_realize_together_shares_work() -> None:
    x = Tensor(np.arange(6.0).reshape(2, 3)).exp().contiguous()
    a, b = x + 1, x * 2
    plan = a.prepare(b)
    assert sum(k.ast is not None for k in plan.kernels) <= 2
    Tensor.realize(a, b)
    same(a, np.exp(np.arange(6.0).reshape(2, 3)) + 1, rtol=1e-15)
    same(b, np.exp(np.arange(6.0).reshape(2, 3)) * 2, rtol=1e-15)


def test_plans() -> None:
    x, w = Tensor(np.ones((4, 8), np.float32)), Tensor(np.ones((8, 3), np.float32))
    y = (x @ w).relu()  # the line of the kernel
    plan = y.plan()
    assert not y.is_realized
    assert len(plan.kernels) == len(plan) == 1
    kernel = plan.kernels[0]
    assert kernel.place is not None
    assert kernel.place.startswith("test_realize.py:")
    assert kernel.ops >= 2 * 4 * 8 * 3
    assert kernel.bytes == 4 * (32 + 24 + 12)
    assert plan.memory.output_bytes == plan.peak == 48
    text = str(plan)
    assert "1 kernel" in text
    assert "test_realize.py:" in text
    assert "48 B" in text
    plan.run()
    assert y.is_realized
    same(y, np.full((4, 3), 8, np.float32))
    assert not Tensor([1]).plan().kernels


def test_a_plan_runs_again_on_other_data() -> None:
    x = Tensor(np.arange(3.0))
    y = x * 2 + 1
    plan = y.prepare()
    plan.run()
    first = y.numpy()
    node = plan.schedule.items[0].buffers[1]
    plan.run({node: get_device(x.device).adopt(np.array([10.0, 20.0, 30.0]), y.dtype)})
    assert y.tolist() == [21, 41, 61]
    assert first.tolist() == [1, 3, 5]  # what was given out stays


def test_repr(device: str) -> None:
    assert repr(Tensor([1, 2])) == f"<Tensor (2,) int64 on {device}: [1, 2]>"
    assert repr(Tensor([[1.0], [2.0]]).realize()) == f"<Tensor (2, 1) float32 on {device}:\n [[1.],\n  [2.]]>"
    assert repr(Tensor.zeros(2, 3)) == f"<Tensor (2, 3) float32 on {device}, lazy>"
    assert repr(Tensor(np.zeros(5000))) == f"<Tensor (5000,) float64 on {device}>"
    assert "[0.5]" in repr(Tensor([0.5]).bfloat16().realize())


def test_errors() -> None:
    with pytest.raises(ShapeError, match=r"item\(\) needs one element, but shape \(2,\) has 2"):
        Tensor([1, 2]).item()
    with pytest.raises(ShapeError, match=r"use any\(\) or all\(\)"):
        bool(Tensor([1, 2]))
    with pytest.raises(TypeError, match="no length"):
        len(Tensor(1))
    with pytest.raises(TypeError, match="iterated"):
        list(Tensor(1))
    with pytest.raises(TypeError, match="no index"):
        [1, 2][Tensor(1.0)]


def test_an_error_names_the_line_and_leaves_the_graph_usable() -> None:
    a, b = Tensor.ones(2, 3), Tensor.ones(4)
    with pytest.raises(ShapeError) as info:
        (a * 2) + b  # this line
    line = info.value.__traceback__.tb_lineno  # type: ignore[union-attr]
    assert str(info.value) == (
        "shapes (2, 3) and (4,) do not broadcast: axis -1 has sizes 3 and 4, which must be equal, "
        f"or one of them 1 (at test_realize.py:{line})"
    )
    same(a + 1, np.full((2, 3), 2, np.float32))


def test_copies_and_pickles() -> None:
    x = Tensor([[1, 2], [3, 4]]) * 2
    for other in (copy.copy(x), copy.deepcopy(x), pickle.loads(pickle.dumps(x))):
        same(other, np.array([[2, 4], [6, 8]]))
    changed = copy.deepcopy(x)
    changed[0, 0] = 99
    assert x[0, 0].item() == 2


def test_debug_prints_kernels(capsys: pytest.CaptureFixture[str]) -> None:
    with knobs.override(DEBUG=1):
        (Tensor(np.arange(4.0)) + 1).realize()
    assert "test_realize.py:" in capsys.readouterr().err


@needs_host_memory
def test_memory_is_given_back() -> None:
    allocator = get_device(default_device()).allocator
    gc.collect()
    before = allocator.used
    x = (Tensor(np.zeros(100_000, np.float32)) + 1).realize()
    assert allocator.used >= before + 400_000
    assert allocator.peak >= allocator.used
    array = x.numpy()
    del x
    gc.collect()
    assert allocator.used >= before + 400_000  # the array still stands on it
    assert array.sum() == 100_000
    del array
    gc.collect()
    assert allocator.used == before


def test_no_nodes_or_memory_are_left_behind() -> None:
    allocator = get_device("PYTHON").allocator

    def work() -> None:
        x = Tensor(np.arange(12.0).reshape(3, 4))
        y = (x.softmax() @ x.T + 1).relu()
        x.assign(x + 1)
        y.numpy()
        x.numpy()

        (Tensor.ones(300, 300) * 3).realize()  # no memory is read, so caches hold this very graph

    work()
    gc.collect()
    nodes, used = live_nodes(), allocator.used
    for _ in range(20):
        work()
    gc.collect()
    assert live_nodes() <= nodes + 5
    assert allocator.used == used


def test_a_long_chain() -> None:
    x = Tensor(np.zeros(2))
    y = x
    for i in range(20_000):
        y = y + (1 if i % 2 else 2)
    assert sys.getrecursionlimit() <= 1000 or True
    assert y.tolist() == [30_000, 30_000]


def test_a_deep_graph_of_tensors_that_live() -> None:
    x = Tensor(np.ones(2))
    kept = [x]
    for _ in range(300):
        kept.append(kept[-1] + kept[-1] * 0.0)
    kept[-1].realize()
    assert kept[150].tolist() == [1, 1]


def test_many_outputs() -> None:
    x = Tensor(np.arange(8.0))
    outputs = [x * i + 1 for i in range(200)]
    Tensor.realize(*outputs)
    for i, y in enumerate(outputs):
        assert y.is_realized
        assert y.numpy()[-1] == 7 * i + 1


def test_large_index_arithmetic_runs() -> None:
    assert Tensor.arange(1_000_000).sum().item() == 499_999_500_000
    table = Tensor(np.arange(50_000.0))
    assert table[Tensor([49_999, 3])].tolist() == [49_999, 3]
    assert Tensor.ones(500, 500).tril().sum().item() == 500 * 501 // 2


def test_a_view_with_gaps_whose_storage_is_computed_along_is_shown() -> None:
    """The storage reads memory that is overwritten, so it is computed too, and the view is another node."""
    a = Tensor.full((3, 4), 2.0)
    a.realize()
    b = (a * a).clip(-8, 8)
    a.assign(a.clip(-8, 8))
    b += a
    np.testing.assert_array_equal(b[1::2, 0::3].numpy(), np.full((1, 2), 6.0, np.float32))


# --- values that read no memory are on no device


def elsewhere() -> str:
    """A device that is not the default one."""
    return "PYTHON" if Tensor([1]).device != "PYTHON" else "CPU"


def test_a_mask_in_memory_is_not_read_on_another_device() -> None:
    """The condition inside of cat is a value that somebody may have computed where tensors are by default."""
    x, y = Tensor([1.0, 2.0, 3.0, 4.0], device=elsewhere()), Tensor([5.0, 6.0], device=elsewhere())
    nodes = [n for n in toposort(Tensor.cat(x, y).uop) if shape(n) == (6,)]
    kept = [x._new(n).realize() for n in nodes if all(m.op is not Ops.BUFFER for m in toposort(n))]
    assert any(t.dtype.is_bool for t in kept)
    np.testing.assert_array_equal(Tensor.cat(x, y).numpy(), [1, 2, 3, 4, 5, 6])


def test_gradients_are_where_their_targets_are() -> None:
    w = Tensor([1.0, 2.0], device=elsewhere()).requires_grad_()
    v = Tensor([3.0], device=elsewhere())
    one, zero = w.sum().gradient(w, v, allow_unused=True)
    w.sum().backward()
    assert w.grad is not None
    for g in (one, zero, w.grad):
        assert g.device == g.realize().device == elsewhere()
    np.testing.assert_array_equal((w.grad * w).numpy(), [1.0, 2.0])
