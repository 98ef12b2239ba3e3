"""Long rows sorted on a grid: every element is put in its place by a thread. Against NumPy, with proofs."""

from __future__ import annotations

import numpy as np
import pytest

from morok import Tensor
from morok.codegen.pipeline import lower
from morok.errors import DeviceError
from morok.ir.memory import is_alone
from morok.ir.node import UOp, toposort
from morok.ir.ops import AxisKind, Ops
from morok.optimize.heuristics.apply import optimize
from morok.schedule.schedule import schedule
from morok.tensor.arrays.rows import put_alone
from tests.gpu.kernels import DEVICE, HOST, examine
from tests.optimize.plans import an_h200, empty, planned
from tests.tensor.arrays.test_written_order import numbers


@pytest.mark.parametrize(
    "dtype", ["bool", "int8", "uint16", "int32", "uint64", "float16", "float32", "float64"]
)
def test_order(dtype: str) -> None:
    """Any type and axis; equal elements stay in order, also from the largest down."""
    for shape, axis in (((700,), 0), ((2, 257, 3), 1)):
        a = numbers(dtype, *shape)
        values, order = Tensor(a, device=DEVICE).sort(axis)
        want = np.argsort(a, axis=axis, kind="stable")
        np.testing.assert_array_equal(order.numpy(), want)
        np.testing.assert_array_equal(values.numpy(), np.take_along_axis(a, want, axis))
    flipped = np.argsort(np.flip(a, axis), axis=axis, kind="stable")
    down = a.shape[axis] - 1 - np.flip(flipped, axis)  # NaN first
    np.testing.assert_array_equal(Tensor(a, device=DEVICE).argsort(axis, descending=True).numpy(), down)


def test_few_different_numbers() -> None:
    random = np.random.default_rng(1)
    for a in (np.full(400, 7), random.integers(0, 3, 1000) << 40, random.integers(0, 2, (2, 300)) * 255):
        found = Tensor(a, device=DEVICE).argsort().numpy()
        np.testing.assert_array_equal(found, np.argsort(a, kind="stable"))


def puts(kernel: UOp) -> bool:
    return any(n.op is Ops.STORE and is_alone(n) for n in toposort(kernel))


def test_who_puts_an_element_meets_nobody() -> None:
    """Places are computed where elements are put, are proved to be inside, and are each one element's."""
    result = Tensor.empty(2, 700, device=DEVICE).argsort()
    kernels = [optimize(item.ast, HOST) for item in schedule([result.uop]).items]
    putting = [k for k in kernels if puts(k)]
    assert len(putting) == 8
    assert not any(r.op is Ops.RANGE and r.arg[1] is AxisKind.ORDERED for k in putting for r in toposort(k))
    assert not examine(lower(putting[0], HOST), putting[0]).open


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dtype", ["float16", "float32", "int8", "uint16", "int32", "uint32", "bool"])
def test_elements_of_keys(dtype: str, descending: bool) -> None:
    """Values are made of the sorted keys, to the last bit: zeros keep their signs, NaN what is in it."""
    random = np.random.default_rng(4)
    if dtype.startswith("float"):
        a = random.normal(size=(2, 600)).astype(dtype)
        a[:, ::7], a[:, 3::11], a[:, 5::13] = 0.0, -0.0, np.inf
        bits = a.view(f"u{a.itemsize}")
        bits[:, 1::17] = bits.dtype.type(np.iinfo(bits.dtype).max - 5)  # a NaN below 0, not the usual one
    else:
        bound = 2 if dtype == "bool" else 1 << 40
        a = random.integers(-bound if dtype[0] == "i" else 0, bound, (2, 600)).astype(dtype)
    values, order = Tensor(a, device=DEVICE).sort(descending=descending)
    alone = Tensor(a, device=DEVICE).argsort(descending=descending)
    np.testing.assert_array_equal(order.numpy(), alone.numpy())
    want = np.take_along_axis(a, order.numpy(), -1)
    np.testing.assert_array_equal(values.numpy().view(f"u{a.itemsize}"), want.view(f"u{a.itemsize}"))


def test_elements_are_not_looked_for() -> None:
    """But for zeros and NaN no element is read again, at a place anywhere in memory."""
    with an_h200() as machine:
        asked = [empty(1 << 20, dtype=dtype).sort() for dtype in ("int32", "float32")]
        plans = [[k.ast for k in planned([x.values.uop, x.indices.uop], machine)] for x in asked]
    reads = []
    for plan in plans:
        behind = plan[1 + max(i for i, kernel in enumerate(plan) if puts(kernel)) :]
        reads.append([n for k in behind for n in toposort(k) if n.op is Ops.INDEX and not n.dtype.is_ptr])
    assert not any(s.op is Ops.INDEX for n in reads[0] for s in toposort(n.src[1]))
    looked_for = [n for n in reads[1] if any(s.op is Ops.INDEX for s in toposort(n.src[1]))]
    assert looked_for and all(len(n.src) == 3 for n in looked_for)  # under a condition


def test_gradient_of_values() -> None:
    """Goes back to where each value came from."""
    a = np.random.default_rng(2).permutation(600).astype(np.float32)
    x = Tensor(a, device=DEVICE, requires_grad=True)
    (x.sort().values * Tensor(np.arange(600, dtype=np.float32), device=DEVICE)).sum().backward()
    assert x.grad is not None
    np.testing.assert_array_equal(x.grad.numpy(), np.argsort(np.argsort(a)).astype(np.float32))


# --- places of one's own


def put(places: list[int]) -> Tensor:
    rows = Tensor(np.arange(len(places), dtype=np.int64) + 7, device=DEVICE)
    return rows._new(put_alone(Tensor(np.array(places), device=DEVICE).uop, rows.uop))


def test_rows_have_places_of_their_own() -> None:
    """One kernel, in no order, and nothing is filled in before."""
    found = put([2, 0, 3, 1])
    items = schedule([found.uop]).items
    assert len(items) == 1
    np.testing.assert_array_equal(found.numpy(), [8, 10, 7, 9])


@pytest.mark.skipif(not DEVICE.startswith("EMULATOR"), reason="a GPU does not look")
def test_a_place_that_is_not_ones_own() -> None:
    """Whoever promises it and is wrong hears of it."""
    with pytest.raises(DeviceError, match="as does thread"):
        put([2, 0, 2, 1]).numpy()
    with pytest.raises(DeviceError, match="nobody has written"):
        (put([2, 0, 9, 1]) + 1).numpy()


def test_kernels_of_a_pass() -> None:
    """Words of bits, how many there are of each digit, three of running sums, where each digit begins in each
    group, and one that puts elements."""
    with an_h200() as machine:
        found = planned([empty(1 << 20, dtype="float32").sort().values.uop], machine)
    assert len(found) <= 2 + 7 * 8
