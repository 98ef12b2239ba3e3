"""Running sums, products and extremes against NumPy's, which go from one element to the next."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from morok import Tensor, Variable, jit, knobs
from morok.dtype import float32, int32
from morok.ir import movement
from morok.ir.node import UOp, toposort
from morok.ir.ops import AxisKind, Op, Ops
from morok.schedule.graph.scans import in_runs, split_scans
from morok.schedule.indexing import known_shape
from tests.devices import devices
from tests.tensor.common import same

Array = Any
DEVICES = devices("CPU", "PYTHON", "EMULATOR")
OPS: dict[str, tuple[Op, Callable[..., Array]]] = {
    "cumsum": (Ops.ADD, np.cumsum),
    "cumprod": (Ops.MUL, np.cumprod),
    "cummax": (Ops.MAX, np.maximum.accumulate),
    "cummin": (Ops.MIN, np.minimum.accumulate),
}
SPECIAL = np.array([np.inf, -np.inf, np.nan, 0.0, 1.0, -1.0, 2.0], np.float32)
RNG = np.random.default_rng(5)


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    with knobs.override(DEVICE=request.param):
        yield request.param


def kernels(t: Tensor) -> int:
    return len(t.plan().kernels)


@st.composite
def arrays(draw: st.DrawFn) -> tuple[Array, int]:
    """An array whose running sums and products are exact in any order, and an axis."""
    sizes = tuple(draw(st.lists(st.integers(1, 40), min_size=1, max_size=3)))
    kind = draw(st.sampled_from(["float32", "float64", "int8", "int32", "int64", "uint8"]))
    values = np.random.default_rng(draw(st.integers(0, 99))).integers(-1 if kind[0] != "u" else 0, 3, sizes)
    return values.astype(kind), draw(st.integers(-len(sizes), len(sizes) - 1))


@given(arrays(), st.sampled_from(sorted(OPS)), st.sampled_from(DEVICES))
@settings(max_examples=80)
def test_shapes_axes_and_types(case: tuple[Array, int], name: str, where: str) -> None:
    x, axis = case
    with knobs.override(DEVICE=where):
        same(getattr(Tensor(x), name)(axis), OPS[name][1](x, axis=axis))


@given(st.lists(st.sampled_from(range(len(SPECIAL))), min_size=1, max_size=70), st.sampled_from(sorted(OPS)))
def test_infinities_and_nan_go_on_as_they_would_one_by_one(chosen: list[int], name: str) -> None:
    x = SPECIAL[chosen]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wanted = OPS[name][1](np.stack((x, x[::-1])), axis=1)
    with knobs.override(DEVICE=DEVICES[0]):
        np.testing.assert_array_equal(getattr(Tensor(np.stack((x, x[::-1]))), name)(1).numpy(), wanted)


def test_the_sign_of_zeros_stays(device: str) -> None:
    x = np.array([-0.0] * 19 + [0.0, -0.0], np.float32)
    np.testing.assert_array_equal(np.signbit(Tensor(x).cumsum(0).numpy()), np.signbit(x.cumsum()))


def test_integers_wrap(device: str) -> None:
    x = RNG.integers(1 << 30, 1 << 31, (3, 45)).astype(np.int32)
    same(Tensor(x).cumsum(1, dtype="int32"), x.cumsum(1, dtype=np.int32))
    same(Tensor(x).cumprod(1, dtype="int32"), x.cumprod(1, dtype=np.int32))


def test_narrow_floats_are_carried_in_float32(device: str) -> None:
    x = np.full((2, 3000), 0.1, np.float16)
    got = Tensor(x).cumsum(1).numpy()
    assert got.dtype == np.float16
    np.testing.assert_allclose(got, x.astype(np.float64).cumsum(1), rtol=2e-3)


def test_nothing_and_one(device: str) -> None:
    for shape, axis in (((2, 0), 1), ((0, 3), 1), ((4, 1), 1), ((1,), 0)):
        x = np.ones(shape, np.float32)
        for name, (_, oracle) in OPS.items():
            same(getattr(Tensor(x), name)(axis), oracle(x, axis=axis) if x.size else x)
    same(Tensor(3.0).cumsum(), np.array([3.0], np.float32))


X = RNG.integers(-4, 5, (6, 37)).astype(np.float32)
# what is written, what NumPy says, and how many kernels it takes
FUSED: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Array], Array], int]] = {
    "before and after": (lambda t: (t * 2).cumsum(1) + t, lambda x: (x * 2).cumsum(1) + x, 1),
    "backwards": (lambda t: t.flip(1).cumsum(1).flip(1), lambda x: x[:, ::-1].cumsum(1)[:, ::-1], 1),
    "backwards alone": (lambda t: t.flip(1).cumsum(1), lambda x: x[:, ::-1].cumsum(1), 1),
    "twice along": (lambda t: t.cumsum(1).cummax(1), lambda x: np.maximum.accumulate(x.cumsum(1), 1), 1),
    "two ways along": (lambda t: t.cumsum(1) + t.flip(1).cumsum(1).flip(1),
                       lambda x: x.cumsum(1) + x[:, ::-1].cumsum(1)[:, ::-1], 2),
    "along both": (lambda t: t.cumsum(0).cumsum(1), lambda x: x.cumsum(0).cumsum(1), 2),
    "of sums": (lambda t: t.sum(1).cumsum(0), lambda x: x.sum(1).cumsum(0), 2),
    "summed": (lambda t: t.cumsum(1).sum(1), lambda x: x.cumsum(1).sum(1), 2),
    "a row's own maximum": (lambda t: (t - t.max(1, keepdim=True)).cumsum(1),
                            lambda x: (x - x.max(1, keepdims=True)).cumsum(1), 1),
    "the front": (lambda t: t.cumsum(1)[:, :9], lambda x: x.cumsum(1)[:, :9], 1),
    "the middle": (lambda t: t.cumsum(1)[:, 3:9] * 1, lambda x: x.cumsum(1)[:, 3:9], 2),
    "turned": (lambda t: t.cumsum(1).T.contiguous(), lambda x: x.cumsum(1).T, 1),
    "padded": (lambda t: t.cumsum(1).pad([(0, 1), (0, 2)]),
               lambda x: np.pad(x.cumsum(1), [(0, 1), (0, 2)]), 1),
    "of pieces": (lambda t: t[:, :36].reshape(6, 9, 4).cumsum(2).reshape(6, 36),
                  lambda x: x[:, :36].reshape(6, 9, 4).cumsum(2).reshape(6, 36), 1),
    "spread": (lambda t: t[0].cumsum(0).expand(6, 37) * t, lambda x: x[0].cumsum() * x, 2),
    "chosen": (lambda t: (t > 0).where(t.cumsum(1), 0.0), lambda x: np.where(x > 0, x.cumsum(1), 0), 1),
    "an index": (lambda t: t.flatten()[(t > 0).cumsum(1)],
                 lambda x: x.reshape(-1)[(x > 0).cumsum(1)], 1),
    "ones": (lambda t: Tensor.ones(6, 37).cumsum(1) + t, lambda x: np.ones((6, 37)).cumsum(1) + x, 1),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(FUSED))
def test_what_is_one_kernel(name: str, device: str) -> None:
    function, oracle, count = FUSED[name]
    assert kernels(function(Tensor(X))) == count
    np.testing.assert_array_equal(function(Tensor(X)).numpy(), oracle(X))


def test_in_place() -> None:
    t = Tensor(X.copy()).contiguous().realize()
    t.assign(t.cumsum(1))
    np.testing.assert_array_equal(t.numpy(), X.cumsum(1))


def test_a_row_whose_length_is_known_later() -> None:
    n = Variable("n", 1, 40)

    @jit
    def sums(t: Tensor) -> Tensor:
        return t.cumsum(1)

    for length in (7, 33, 40):
        t = Tensor(RNG.integers(0, 9, (3, 40)))[:, : n.bind(length)]
        got = sums(t)
        x = t.numpy()
        np.testing.assert_array_equal(got.numpy(), x.cumsum(1))


def test_few_long_rows_are_cut_into_pieces() -> None:
    with knobs.override(DEVICE="CPU"):
        long = (((1 << 16, 2), 0, 3), ((1 << 16,), 0, 1), ((2, 3 << 15), 1, 1), ((64, 1 << 15), 1, 1))
        for shape, axis, count in long:  # along contiguous memory by one kernel
            x = RNG.integers(-9, 10, shape).astype(np.float32)
            for name, (_, oracle) in OPS.items():
                y = np.sign(x) if name == "cumprod" else x
                assert kernels(getattr(Tensor(y), name)(axis)) == count, (shape, name)
                same(getattr(Tensor(y), name)(axis), oracle(y, axis=axis))
    prime = RNG.integers(-9, 10, 65537).astype(np.float32)
    same(Tensor(prime).cumsum(0), prime.cumsum())


@pytest.mark.parametrize("threads", [1, 2, 3, 5])
def test_long_rows_by_all_threads(threads: int) -> None:
    """Pieces of all sizes, stretches that are full or hardly begun, types and signs of what is summed."""
    with knobs.override(DEVICE="CPU", THREADS=threads):
        many = ((32_771, "int64"), (65_537, "float64"), (524_288 + 3, "float32"), (1_300_021, "uint32"))
        for count, dtype in (*many, (32_768, "int32"), ((1 << 20) + threads, "float32")):
            y = RNG.integers(-9, 10, count).astype(dtype)
            same(Tensor(y).cumsum(0, dtype=dtype), y.cumsum(dtype=dtype))
        rows = RNG.normal(size=(3, 40_001)).astype(np.float32)
        same(Tensor(rows).cummax(1), np.maximum.accumulate(rows, 1))
        zeros = np.full(50_000, -0.0, np.float32)
        assert np.signbit(Tensor(zeros).cumsum(0).numpy()).all()
        wild = RNG.normal(size=50_000).astype(np.float32)
        wild[[30_000, 40_000]] = np.inf, -np.inf
        with np.errstate(invalid="ignore"):
            found, want = Tensor(wild).cumsum(0).numpy(), wild.cumsum()
        np.testing.assert_array_equal(np.isnan(found), np.isnan(want))
        np.testing.assert_array_equal(np.isinf(found), np.isinf(want))


def test_a_long_row_is_one_kernel() -> None:
    """That reads memory as it lies and fills the result; what is summed and what comes of it are others."""
    x = RNG.integers(-9, 10, 1 << 16).astype(np.float32)
    with knobs.override(DEVICE="CPU"):
        held = Tensor(x).realize()
        assert kernels(held.cumsum(0)) == 1
        assert kernels((held * 2).cumsum(0)) == 2
        assert kernels(held.cumsum(0) - held) == 2
        y = held.cumsum(0)
        held.assign(held * 0)
        same(y, x.cumsum())
        z = Tensor(x)
        (slope,) = z.cumsum(0).sum().gradient(z)
        same(slope, np.arange(1 << 16, 0, -1).astype(np.float32))


def as_uop(t: Tensor) -> UOp:
    return t.realize().uop


@pytest.mark.parametrize(
    ("sizes", "axis"), [((5,), 0), ((3, 70), 1), ((41, 2), 0), ((2, 300, 2), 1), ((300, 40), 0)]
)
def test_short_runs_side_by_side(sizes: tuple[int, ...], axis: int) -> None:
    """The form for GPUs, on any device: no loop whose steps follow each other is left but short ones."""
    x = RNG.integers(-1, 3, sizes).astype(np.float32)
    for op, oracle in OPS.values():
        node = in_runs(movement.scan_axis(as_uop(Tensor(x)), op, axis))
        steps = [n for n in toposort(node) if n.op is Ops.SCAN_AXIS]
        assert all(known_shape(n)[n.arg[1]] <= 64 for n in steps)
        assert not steps or sizes[-1] >= 32
        same(Tensor(x)._new(node), oracle(x, axis=axis))
    y = RNG.integers(-1, 2, sizes).astype(np.float32)
    node = in_runs(movement.scan_axis(as_uop(Tensor(y)), Ops.MULACC, axis, as_uop(Tensor(x))))
    np.testing.assert_allclose(Tensor(x)._new(node).numpy(), recurrence(y, x, axis), rtol=1e-5)
    assert all(known_shape(n)[n.arg[1]] <= 64 for n in toposort(node) if n.op is Ops.SCAN_AXIS)


@pytest.mark.parametrize(
    ("sizes", "axis", "in_one"),
    [((6, 37), 1, True), ((1 << 16, 37), 1, False), ((37, 1 << 16), 0, True), ((6, 65), 1, False)],
)
def test_gpus_get_runs(sizes: tuple[int, ...], axis: int, in_one: bool) -> None:
    """One thread walks along a short row only where that is soon done, or where its neighbours read along."""
    memory = UOp(Ops.PARAM, float32, (), (0, math.prod(sizes), "CUDA"))
    rows = movement.scan_axis(movement.reshape(memory, sizes), Ops.ADD, axis)
    root = UOp(Ops.SINK, float32, (rows,))
    assert any(n.op is Ops.SCAN_AXIS for n in toposort(split_scans(root))) is in_one


@pytest.mark.parametrize(("size", "kernels"), [(1000, 1), (1 << 16, 3), (1 << 17, 3), (1 << 20, 5)])
def test_few_whole_numbers_take_few_kernels(size: int, kernels: int) -> None:
    """Sums of runs, all of which each of them is written out of, and the runs after them."""
    memory = UOp(Ops.PARAM, int32, (), (0, size, "CUDA"))
    node = in_runs(movement.scan_axis(memory, Ops.ADD, 0))
    kept = [n for n in toposort(node) if n.op is Ops.CONTIGUOUS]
    assert len(kept) + 1 == kernels
    x = RNG.integers(-9, 10, min(size, 70_000)).astype(np.int32)
    same(Tensor(x)._new(in_runs(movement.scan_axis(as_uop(Tensor(x)), Ops.ADD, 0))), x.cumsum(dtype=np.int32))


def test_runs_keep_the_sign_of_zeros() -> None:
    x = np.array([-0.0] * 19 + [0.0, -0.0], np.float32)
    node = in_runs(movement.scan_axis(as_uop(Tensor(x)), Ops.ADD, 0))
    np.testing.assert_array_equal(np.signbit(Tensor(x)._new(node).numpy()), np.signbit(x.cumsum()))


def recurrence(a: Array, b: Array, axis: int) -> Array:
    a, b = np.moveaxis(a, axis, 0), np.moveaxis(b, axis, 0)
    h, found = np.zeros_like(b[0]), []
    for factor, added in zip(a, b, strict=True):
        h = factor * h + added
        found.append(h)
    return np.moveaxis(np.stack(found), 0, axis)


def test_recurrences(device: str) -> None:
    for axis in (0, 1):
        a, b = RNG.standard_normal((2, 9, 21), dtype=np.float32)
        node = movement.scan_axis(Tensor(a).uop, Ops.MULACC, axis, Tensor(b).uop)
        np.testing.assert_allclose(Tensor(a)._new(node).numpy(), recurrence(a, b, axis), rtol=1e-4, atol=1e-5)


def test_recurrences_with_infinities(device: str) -> None:
    a = np.array([[np.inf, 2, 0, 3], [1, np.inf, 0, np.nan], [0, -np.inf, 1, 1]], np.float32)
    b = np.array([[1, 1, 5, 1], [np.inf, 1, 2, 1], [-np.inf, 1, np.nan, 1]], np.float32)
    node = movement.scan_axis(Tensor(a).uop, Ops.MULACC, 1, Tensor(b).uop)
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(Tensor(a)._new(node).numpy(), recurrence(a, b, 1))


def test_logarithms_of_running_sums(device: str) -> None:
    x = (RNG.standard_normal((3, 50)) * 40).astype(np.float32)
    for axis in (0, 1):
        wanted = np.logaddexp.accumulate(x.astype(np.float64), axis=axis)
        np.testing.assert_allclose(Tensor(x).logcumsumexp(axis).numpy(), wanted, rtol=1e-5, atol=1e-5)
    for row in ([-np.inf, -np.inf, -1000, 3, -np.inf], [1, np.inf, 2, -np.inf], [1, np.nan, 2], [-1000, 900]):
        y = np.array(row, np.float32)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            wanted = np.logaddexp.accumulate(y.astype(np.float64))
        np.testing.assert_allclose(Tensor(y).logcumsumexp(0).numpy(), wanted, rtol=1e-5)


def test_threads_and_lanes_do_not_share_the_loop(device: str) -> None:
    (kernel,) = Tensor(X).cumsum(0).plan().kernels
    (loop,) = [n for n in toposort(kernel.ast) if n.op is Ops.RANGE and n.arg[1] is AxisKind.ORDERED]
    assert loop.src[0].arg == 6 and loop.arg[0] == 1, "the innermost one"


# --- gradients


def slopes(function: Callable[[Tensor], Tensor], x: Array, g: Array) -> Array:
    t = Tensor(x, requires_grad=True)
    (function(t) * Tensor(g)).sum().backward()
    assert t.grad is not None
    return t.grad.numpy()


def test_gradients_of_long_rows() -> None:
    x, g = RNG.standard_normal((2, 2, 90)).astype(np.float64)
    np.testing.assert_allclose(slopes(lambda t: t.cumsum(1), x, g), g[:, ::-1].cumsum(1)[:, ::-1])
    x[0, 11] = x[1, 5] = x[1, 60] = 0.0
    others = np.zeros_like(x)
    for i in range(x.shape[1]):
        y = x.copy()
        y[:, i] = 1.0
        others[:, i] = (g * y.cumprod(1))[:, i:].sum(1)
    np.testing.assert_allclose(slopes(lambda t: t.cumprod(1), x, g), others, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["cummax", "cummin"])
def test_the_gradient_of_an_extreme_goes_to_the_last_of_equals(name: str) -> None:
    x = RNG.integers(-5, 6, (4, 60)).astype(np.float64)
    g = RNG.integers(-3, 4, (4, 60)).astype(np.float64)
    y = OPS[name][1](x, axis=1)
    wanted = np.zeros_like(x)
    for row, (values, best) in enumerate(zip(x, y, strict=True)):
        place = 0
        for i in range(x.shape[1]):
            place = i if values[i] == best[i] else place
            wanted[row, place] += g[row, i]
    np.testing.assert_array_equal(slopes(lambda t: getattr(t, name)(1), x, g), wanted)


@pytest.mark.parametrize("op", ["cumsum", "cummax"])
def test_read_forwards_and_backwards(op: str) -> None:
    """Both ways in one kernel would be two loops in one."""
    x = np.arange(6, dtype=np.float32).reshape(2, 3) - 2
    running = np.cumsum(x, 1) if op == "cumsum" else np.maximum.accumulate(x, 1)
    y = getattr(Tensor(x), op)(1)
    np.testing.assert_array_equal((y * y.flip(1)).numpy(), running * running[:, ::-1])


@pytest.mark.parametrize("columns", [2, 3, 4])
def test_looked_up(columns: int) -> None:
    """At places that data say: running sums are memory first. The gradient of a scatter looks up another."""
    x = np.arange(3.0 * columns).reshape(3, columns) + 1
    places = np.array([[2, 0, 1, 0][:columns]], np.uint8)
    wanted = np.take_along_axis(x[:, ::-1].cumsum(1)[:, ::-1], places.astype(int), 0)
    running = Tensor(x).flip(1).cumsum(1).flip(1)
    np.testing.assert_array_equal(running.gather(0, Tensor(places)).numpy(), wanted)
    added = Tensor(np.ones((1, columns)), requires_grad=True)
    sums = Tensor(np.ones_like(x)).scatter_add(0, Tensor(places), added).cumsum(1)
    np.testing.assert_array_equal((sums * Tensor(x)).sum().gradient(added)[0].numpy(), wanted)
