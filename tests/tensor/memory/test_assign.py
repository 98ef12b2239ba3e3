"""Assignment: in place, in program order, and never a wrong value for whoever was there before."""

import gc
from typing import Any

import numpy as np
import pytest

from morok import Tensor
from morok.device.buffer import find_buffer
from morok.errors import DTypeError, IRError, OutOfRange, ShapeError
from morok.ir.memory import base_of
from morok.ir.node import toposort
from morok.ir.ops import Ops
from tests.devices import needs_host_memory
from tests.tensor.common import same

X = np.arange(12, dtype=np.float32).reshape(3, 4)
S = np.s_


def owned(array: Any) -> Tensor:
    """A tensor with memory of its own."""
    return (Tensor(array) + np.zeros((), array.dtype)).realize()


def address(t: Tensor) -> int:
    buffer = find_buffer(base_of(t.realize().uop))
    assert buffer is not None
    return int(buffer.array().ctypes.data)


@needs_host_memory
def test_assign_writes_into_the_same_memory() -> None:
    t = owned(X)
    before = address(t)
    t.assign(t * 2)
    assert not t.is_realized
    same(t, X * 2)
    assert address(t) == before
    t.assign(5)
    same(t, np.full_like(X, 5))
    gc.collect()  # the arrays that numpy() gave out are gone
    assert address(t) == before
    t.assign(Tensor([1, 2, 3, 4]))
    same(t, np.broadcast_to(np.array([1, 2, 3, 4], np.float32), (3, 4)))
    t += 1
    t *= 2
    t -= Tensor([[1.0]])
    t /= 2
    same(t, np.broadcast_to((np.array([2, 3, 4, 5], np.float32) * 2 - 1) / 2, (3, 4)))


KEYS: list[Any] = [
    S[0], S[-1, 2], S[1:], S[:, 1:3], S[:, ::2], S[::2, ::3], S[::-1], S[2:0:-1, ::-2], S[...], S[None, 1],
    S[0:0],    S[:, -1:], S[..., 0], S[1, None, 1:3], S[:, 1::2], S[::2, 1],
]  # fmt: skip


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("make", [owned, lambda x: Tensor(x) + 0.0], ids=["memory", "lazy"])
def test_parts(key: Any, make: Any) -> None:
    wanted = X.copy()
    t = make(X)
    wanted[key] = 7
    t[key] = 7
    same(t, wanted)
    value = np.arange(wanted[key].size, dtype=np.float32).reshape(wanted[key].shape)
    wanted[key] = value
    t[key] = Tensor(value)
    t[key] = t[key] + 1
    wanted[key] = wanted[key] + 1
    same(t, wanted)


def test_values_broadcast_and_convert() -> None:
    t = owned(X)
    t[:, 1] = Tensor([9])
    t[2] = np.array([1, 2, 3, 4])
    t[0] = [True, False, True, False]
    wanted = X.copy()
    wanted[:, 1] = 9
    wanted[2] = [1, 2, 3, 4]
    wanted[0] = [1, 0, 1, 0]
    same(t, wanted)
    t[1] = Tensor([[5.0, 6.0, 7.0, 8.0]])
    wanted[1] = [5, 6, 7, 8]
    same(t, wanted)
    t[Tensor(wanted > 4)] = -1
    wanted[wanted > 4] = -1
    same(t, wanted)


def test_overlapping_reads_and_writes() -> None:
    t = owned(X)
    t[1:] = t[:-1]
    wanted = X.copy()
    wanted[1:] = X[:-1]
    same(t, wanted)
    t = owned(X)
    t.assign(t.flip(1))
    same(t, X[:, ::-1])
    t = owned(X[:, :3])
    t.assign(t.T)
    same(t, X[:, :3].T)


def test_derived_before_sees_the_old_values() -> None:
    for order in ("old first", "new first", "together", "new, then old after more changes"):
        t = owned(X)
        old = t + 1
        t.assign(t * 10)
        if order == "old first":
            old.realize()
        elif order == "together":
            Tensor.realize(t, old)
        elif order.startswith("new,"):
            t.realize()
            t.assign(0).realize()
        t.realize()
        same(old, X + 1)
        same(t, X * 0 if order.startswith("new,") else X * 10)


def test_states_in_between() -> None:
    t = owned(X)
    seen = []
    for i in range(5):
        seen.append(t * 2)
        t[i % 3] = -i
    last = t + 0
    wanted, states = X.copy(), []
    for i in range(5):
        states.append(wanted * 2)
        wanted[i % 3] = -i
    same(last, wanted)
    for got, state in zip(reversed(seen), reversed(states), strict=True):
        same(got, state)
    same(t, wanted)


def test_views_go_along_and_values_stay() -> None:
    t = owned(X)
    row, turned, whole, value = t[1], t.T, t.reshape(12), t[1] * 1
    assert row.is_realized
    t[1] = 100
    t.realize()
    wanted = X.copy()
    wanted[1] = 100
    same(row, wanted[1])
    same(turned, wanted.T)
    same(whole, wanted.reshape(12))
    same(value, X[1])
    whole[0] = 55
    assert t[0, 0].item() == 55
    assert turned[0, 0].item() == 55


def test_two_names_of_one_memory() -> None:
    t = owned(X)
    twin = t.reshape(12)
    t.assign(t + 1)
    twin.assign(twin * 2)
    Tensor.realize(t, twin)
    same(t, (X + 1) * 2)
    same(twin, ((X + 1) * 2).reshape(12))


def test_a_value_of_a_passing_state() -> None:
    t = owned(X)
    t[0] = 1
    middle = t.T + 0
    t[1] = 2
    Tensor.realize(middle, t)
    wanted = X.copy()
    wanted[0] = 1
    same(middle, wanted.T)
    wanted[1] = 2
    same(t, wanted)


def test_old_values_that_nobody_names() -> None:
    t, u = owned(X), owned(X)
    u.assign(t * 2)  # u's new value reads t as it is now
    t.assign(0)
    t.realize()
    same(u, X * 2)


def test_history_that_was_overwritten_is_refused() -> None:
    """A gradient may walk through a value that was computed before its inputs changed."""
    p, q = Tensor(X, requires_grad=True), Tensor(X, requires_grad=True)
    loss = (p * q).sum()
    loss.realize()
    p.assign(p.detach() - 1)
    p.realize()
    loss.backward()  # the gradient of q is p as it was
    assert q.grad is not None
    with pytest.raises(IRError, match=r"the assignment at test_assign.py:\d+ has overwritten"):
        q.grad.numpy()


def test_swap() -> None:
    a, b = owned(X), owned(X + 100)
    kept = a * 1
    a.assign(b)
    b.assign(kept)
    Tensor.realize(a, b)
    same(a, X + 100)
    same(b, X)


def test_an_array_that_was_given_out_does_not_change() -> None:
    t = owned(X)
    array = t.numpy()
    t.assign(t + 1)
    t.realize()
    np.testing.assert_array_equal(array, X)
    same(t, X + 1)
    part = t.numpy()[1:]
    t[1] = 0
    t.realize()
    np.testing.assert_array_equal(part, X[1:] + 1)


def test_the_same_expression_after_an_assignment_is_a_new_value() -> None:
    t = owned(X)
    first = (t + 1).realize()
    again = t + 1
    t.assign(t * 0)
    t.realize()
    second = t + 1
    same(second, np.ones_like(X))
    same(first, X + 1)
    same(again, X + 1)


def test_a_thousand_assignments() -> None:
    t = owned(np.zeros(4, np.float32))
    for i in range(1000):
        t[i % 4] = t[(i + 1) % 4] + 1
    wanted = np.zeros(4, np.float32)
    for i in range(1000):
        wanted[i % 4] = wanted[(i + 1) % 4] + 1
    same(t, wanted)


def test_a_loop_of_whole_assignments() -> None:
    t = owned(np.zeros(3, np.float32))
    for _ in range(50):
        t.assign(t + 1)
    same(t, np.full(3, 50, np.float32))


def test_moments_and_parameter() -> None:
    """An optimiser's step: several memories, each read by the next."""
    p, m = owned(X), owned(np.zeros_like(X))
    wp, wm = X.copy(), np.zeros_like(X)
    for _ in range(3):
        grad = p * 2
        m.assign(m * 0.5 + grad)
        p.assign(p - m * 0.25)
        Tensor.realize(p, m)
        wm = wm * np.float32(0.5) + wp * 2
        wp = wp - wm * np.float32(0.25)
    same(p, wp, rtol=1e-6)
    same(m, wm, rtol=1e-6)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda t: t.assign(Tensor.ones(5)), r"a value of shape \(5,\) does not fit into \(3, 4\)"),
        (lambda t: t.assign(Tensor.ones(2, 3, 4)), r"\(2, 3, 4\) does not fit into \(3, 4\)"),
        (lambda t: t.__setitem__(0, Tensor.ones(3)), r"\(3,\) does not fit into \(4,\)"),
        (lambda t: t.__setitem__(7, 0), "index 7 is outside"),
        (lambda t: t.__setitem__(Tensor([True, False]), 0), "do not broadcast|does not fit"),
    ],
)
def test_errors(call: Any, message: str) -> None:
    t = owned(X)
    with pytest.raises((ShapeError, OutOfRange), match=message) as info:
        call(t)
    assert "test_assign.py:" in str(info.value)
    same(t, X)


def test_type_errors() -> None:
    n = owned(np.array([1, 2], np.int8))
    with pytest.raises(DTypeError, match="/= needs floats"):
        n /= 2
    with pytest.raises(DTypeError, match="out of range for int8"):
        n[0] = 1000
    n[0] = 1.9
    same(n, np.array([1, 2], np.int8))


def test_a_reader_that_cannot_be_computed_does_not_stand_in_the_way() -> None:
    t = owned(X)
    broken = t + Tensor(X, device="PYTHON:1")  # two devices: an error when it is realised
    t.assign(0)
    same(t, np.zeros_like(X))
    with pytest.raises(IRError, match="operands on"):
        broken.realize()


def test_a_plan_that_comes_too_late_is_refused() -> None:
    t = owned(X)
    y = t * 2
    plan = y.prepare()
    t.assign(0)
    t.realize()
    same(y, X * 2)
    with pytest.raises(IRError, match="has overwritten"):
        plan.run()
    same(y, X * 2)


def test_a_run_that_stops_half_way() -> None:
    """Memory that may hold anything is not read again; other tensors are unharmed."""
    t, u = owned(X), owned(X)
    view = u * 1
    t.assign(t * 2)
    plan = t.prepare(view)

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    plan.compile()
    plan._programs = (stop,) * len(plan.kernels)
    with pytest.raises(KeyboardInterrupt):
        plan.run()
    with pytest.raises(IRError, match="has overwritten"):
        t.numpy()
    same(u, X)
    same(view, X)
    t.assign(7)  # a new value does not need the old one
    same(t, np.full_like(X, 7))


def test_a_state_that_was_brought_up_to_date_is_reached_once() -> None:
    """v is written twice; the first write runs early, so the second is scheduled on new memory. Readers that
    hold the second state as it was written down find it afterwards."""
    x = np.arange(8, dtype=np.float32).reshape(4, 2)
    v = -Tensor(x)
    v[1:] = 7.0
    early = v + 0.5
    v[0] = 3.0
    early.realize()
    late = v * 2
    (late + 1).realize()
    want = np.array([[3, 3], [7, 7], [7, 7], [7, 7]], np.float32)
    np.testing.assert_array_equal(late.numpy(), want * 2)
    np.testing.assert_array_equal((v - 1).numpy(), want - 1)
    np.testing.assert_array_equal(early.numpy(), np.vstack((-x[:1], want[1:])) + 0.5)


def test_what_is_written_backwards_is_read_afterwards() -> None:
    """The reader takes one value of the kernel on the spot, and another from the memory that it writes."""
    a = owned(np.array([3, 6, 9], np.float32))
    b = a * a
    b.flip(0)[[2]] = 1
    b[...] = b + 2
    back = a.flip(0)
    back[...] = b + 1
    same(back + b, np.array([7, 77, 167], np.float32))


# --- what is overwritten before anybody reads it


def ops_of(*tensors: Tensor) -> set[Any]:
    plan = tensors[0].prepare(*tensors[1:])
    return {node.op for kernel in plan.kernels for node in toposort(kernel.ast)}


def test_what_nobody_reads_is_not_computed() -> None:
    """As in loading a model: its first values are random, and all are overwritten."""
    w = Tensor.uniform(8, 8).requires_grad_()
    new = np.arange(64, dtype=np.float32).reshape(8, 8)
    w.assign(Tensor(new))
    assert Ops.THREEFRY not in ops_of(w)
    np.testing.assert_array_equal(w.numpy(), new)
    c = Tensor(new).realize()
    c[2:4] = Tensor.rand(2, 8)
    c.assign(1.0)
    assert Ops.THREEFRY not in ops_of(c)
    np.testing.assert_array_equal(c.numpy(), np.ones((8, 8)))


def test_what_somebody_reads_is_computed() -> None:
    c = Tensor(np.zeros(4, np.float32)).realize()
    c[1:3] = 5.0
    old, view = c * 2.0, c[1:]
    c.assign(Tensor([1.0, 2.0, 3.0, 4.0]))
    np.testing.assert_array_equal(c.numpy(), [1.0, 2.0, 3.0, 4.0])
    np.testing.assert_array_equal(old.numpy(), [0.0, 10.0, 10.0, 0.0])
    np.testing.assert_array_equal(view.numpy(), [2.0, 3.0, 4.0])
    c[0] = 9.0
    c.assign(c + 1.0)
    np.testing.assert_array_equal(c.numpy(), [10.0, 3.0, 4.0, 5.0])


def test_a_write_of_which_a_part_has_run_is_overwritten() -> None:
    c = Tensor(np.zeros(4, np.float32)).realize()
    c[0] = 1.0
    c.realize()
    c[1] = 2.0
    old = c + 0.5
    c[2] = 3.0
    c.assign(7.0)
    np.testing.assert_array_equal(old.numpy(), [1.5, 2.5, 0.5, 0.5])
    np.testing.assert_array_equal(c.numpy(), np.full(4, 7.0))


def test_a_write_between_others_is_read() -> None:
    """The last write before an assignment to all is dropped, one before it is read: both are in order."""
    c = Tensor(np.arange(4, dtype=np.float32)).realize()
    c[:2] = -9.0
    old = c.max() + 1.0
    c[c > 0] = 5.0
    c.assign(-1.0)
    c[2] = old
    np.testing.assert_array_equal(c.numpy(), [-1.0, -1.0, 4.0, -1.0])

    c = Tensor(np.arange(4, dtype=np.float32)).realize()
    c.assign(c * 2.0)
    old = c - 1.0
    c.assign(c * 2.0)
    c.assign(-9.0)
    c.realize(old)
    np.testing.assert_array_equal(c.numpy(), np.full(4, -9.0))
    np.testing.assert_array_equal(old.numpy(), [-1.0, 1.0, 3.0, 5.0])
