"""Rows that a processor sorts by kernels that are written by hand, at once or in a graph. Against NumPy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from morok import Tensor, jit, knobs, profile
from morok import dtype as dt
from morok.ir.node import toposort
from morok.ir.ops import Ops
from morok.machine.machine import Machine
from morok.tensor.arrays.written_keys import Form, values_of
from morok.tensor.arrays.written_network import effort, sort_lanes
from morok.tensor.arrays.written_order import count_digits, put_digits, shifts_of
from morok.tensor.arrays.written_ways import way_to_sort
from morok.tensor.creation.written import made_by

RNG = np.random.default_rng(0)


def numbers(dtype: str, *shape: int) -> np.ndarray:
    """With what is easily put in the wrong order."""
    if not dtype.startswith("float"):
        if dtype == "bool":
            return RNG.integers(0, 2, shape).astype(bool)
        info = np.iinfo(dtype)
        return RNG.integers(info.min, info.max, shape, dtype=dtype, endpoint=True)
    found = RNG.normal(size=shape).astype(dtype)
    for i, special in enumerate((np.nan, np.inf, -np.inf, -0.0, 0.0)):
        found.reshape(-1)[i :: 11 + i] = special
    return found


@pytest.mark.parametrize(
    "dtype",
    ["bool", "int8", "uint8", "int16", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64"],
)
def test_order(dtype: str) -> None:
    """Any type and axis; equal elements stay in order, also from the largest down."""
    with knobs.override(DEVICE="CPU"):
        for shape, axis in (((700,), 0), ((3, 300), 1), ((2, 257, 3), 1)):
            a = numbers(dtype, *shape)
            values, order = Tensor(a).sort(axis)
            want = np.argsort(a, axis=axis, kind="stable")
            np.testing.assert_array_equal(order.numpy(), want)
            np.testing.assert_array_equal(values.numpy(), np.take_along_axis(a, want, axis))
            flipped = np.argsort(np.flip(a, axis), axis=axis, kind="stable")
            down = a.shape[axis] - 1 - np.flip(flipped, axis)  # NaN first
            np.testing.assert_array_equal(Tensor(a).argsort(axis, descending=True).numpy(), down)


def test_few_different_numbers() -> None:
    """Digits that all share are passed over: one, two, or all of them."""
    with knobs.override(DEVICE="CPU"):
        for a in (np.full(400, 7), RNG.integers(0, 3, 400) << 40, RNG.integers(0, 2, (2, 300)) * 255):
            np.testing.assert_array_equal(Tensor(a).argsort().numpy(), np.argsort(a, kind="stable"))


def test_it_runs_now_and_gradients_go_on() -> None:
    """A row of memory, or little made of it, is sorted at once; what it is made of keeps its gradient."""
    with knobs.override(DEVICE="CPU"):
        a = RNG.normal(size=500).astype(np.float32)
        x = Tensor(a)
        y = x * 2.0
        values, order = y.sort()
        assert not is_sorted_later(order) and not y.is_realized
        (slope,) = (values * Tensor.arange(500)).sum().gradient(x)
        np.testing.assert_array_equal(slope.numpy(), 2.0 * np.argsort(np.argsort(a)))
        much = Tensor(RNG.normal(size=(300, 300)).astype(np.float32))
        assert is_sorted_later((much @ much).argsort())


def is_sorted_later(order: Tensor) -> bool:
    return any(node.op is Ops.WRITTEN for node in toposort(order.uop))


@pytest.mark.parametrize("dtype", ["bool", "int8", "int32", "uint64", "float16", "float32", "float64"])
def test_inside_of_a_graph(dtype: str) -> None:
    """The same kernels, whatever the rows are like: nothing else is sorted by."""
    for shape, axis in (((20_000,), 0), ((3, 3000), 1), ((40, 33), 1), ((2, 257, 3), 1)):
        a = numbers(dtype, *shape)
        with knobs.override(DEVICE="CPU"):
            function = jit(lambda x, axis=axis: tuple(x.sort(axis)))
            x = Tensor(a).realize()
            function(x)
            with profile() as seen:
                values, order = function(x)
            want = np.argsort(a, axis=axis, kind="stable")
            np.testing.assert_array_equal(order.numpy(), want)
            same_bits(values.numpy(), np.take_along_axis(a, want, axis))
        kernels = [e.name for e in seen.events]
        assert any(name.startswith(("sort_lanes", "sort_rows", "put_digits")) for name in kernels), kernels
        assert not any(name.startswith(("s_", "r_")) for name in kernels), kernels  # no sums, no pairs


def same_bits(got: np.ndarray, want: np.ndarray) -> None:
    np.testing.assert_array_equal(np.ascontiguousarray(got).view(np.uint8), want.view(np.uint8))


def test_a_part_of_a_larger_graph() -> None:
    """What is sorted is computed there, what comes of it is used there, and memory may change after it."""
    a = numbers("float32", 50, 400)

    def function(x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        values, order = (x @ x.T).sum(0, keepdim=True).add(state).sort()
        old = state.sort()[0]
        state.assign(state * 0.0)
        return values[:, :3] * 2.0, old + order

    with knobs.override(DEVICE="CPU"):
        x, state = np.nan_to_num(a[:, :50], posinf=1.0, neginf=2.0), a[:, 50:100].copy()
        state = np.nan_to_num(state, posinf=3.0, neginf=-3.0)
        held = Tensor(state).realize()
        first, second = jit(function)(Tensor(x), held)
        whole = (x @ x.T).sum(0, keepdims=True) + state
        order = np.argsort(whole, -1, kind="stable")
        np.testing.assert_allclose(first.numpy(), np.sort(whole, -1)[:, :3] * 2.0, rtol=1e-4)
        np.testing.assert_array_equal(second.numpy() - np.sort(state, -1), order.astype(np.float32))
        np.testing.assert_array_equal(held.numpy(), 0.0 * state)


TYPES = [
    "bool",
    "int8",
    "uint8",
    "int16",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "float16",
    "float32",
    "float64",
]


def in_order(a: np.ndarray, axis: int, descending: bool) -> np.ndarray:
    """Equal elements as they were: zeros of both signs, and every NaN."""
    order = np.argsort(a, axis=axis, kind="stable")
    if descending:
        order = np.argsort(np.flip(a, axis), axis=axis, kind="stable")
        order = a.shape[axis] - 1 - np.flip(order, axis)
    return np.take_along_axis(a, order, axis)


FEW = ("bool", "uint8", "int32", "float32", "float64")  # the others are as wide as one of them
MANY = [pytest.param(t, marks=[] if t in FEW else [pytest.mark.slow]) for t in TYPES]


@pytest.mark.parametrize("dtype", MANY)
def test_values_alone(dtype: str) -> None:
    """Whatever the way, bit by bit what they are with their positions; no position is computed."""
    shapes = (((1,), 0), ((701,), 0), ((30_011,), 0), ((3, 300), 1), ((2, 257, 3), 1), ((37, 50), 1))
    with knobs.override(DEVICE="CPU"):
        for shape, axis in (*shapes, ((100, 5), 1), ((50, 64), 0), ((2, 0), 1)):
            a = numbers(dtype, *shape)
            if dtype.startswith("float"):
                a.reshape(-1)[6::13] = -np.float64(np.nan)
            for descending in (False, True):
                want = in_order(a, axis, descending)
                found = Tensor(a).sort(axis, descending)
                same_bits(found.values.numpy(), want)
                same_bits(found[0].numpy(), want)
                traced = jit(lambda x, axis=axis, d=descending: x.sort(axis, d).values)
                x = Tensor(a).realize()
                with profile() as seen:
                    same_bits(traced(x).numpy(), want)
                assert not any(e.name.startswith("mend") for e in seen.events)


def test_values_then_positions() -> None:
    """Who looks at values first and at positions later gets the same as who takes both."""
    a = numbers("float32", 5, 400)
    with knobs.override(DEVICE="CPU"):
        found = Tensor(a).sort()
        values = found.values
        order = found.indices
        np.testing.assert_array_equal(order.numpy(), np.argsort(a, kind="stable"))
        same_bits(values.numpy(), in_order(a, 1, False))
        assert found.values is values and found[1] is order and len(found) == 2
        first, second = found
        assert first is values and second is order
        assert not is_sorted_later(tuple(Tensor(a).sort())[1])


def test_gradients_of_values_alone() -> None:
    """They go to where the values were, which is found for them."""
    with knobs.override(DEVICE="CPU"):
        a = np.stack([RNG.permutation(90) for _ in range(4)]).astype(np.float32)
        weights = np.arange(90, dtype=np.float32)
        for descending in (False, True):
            x = Tensor(a)
            (slope,) = (x.sort(descending=descending).values * Tensor(weights)).sum().gradient(x)
            rank = np.argsort(np.argsort(a, -1), -1)
            np.testing.assert_array_equal(slope.numpy(), 89 - rank if descending else rank)
        leaf = Tensor(a, requires_grad=True)
        (leaf.sort(0).values * Tensor(np.arange(4.0, dtype=np.float32)).reshape(4, 1)).sum().backward()
        np.testing.assert_array_equal(leaf.grad.numpy(), np.argsort(np.argsort(a, 0, "stable"), 0))


@pytest.mark.parametrize("dtype", ["uint8", "int32", "float32", "float64"])
def test_networks_of_values(dtype: str) -> None:
    """Lengths beside powers of two, up to some registers full; more and fewer rows than lanes."""
    own = getattr(dt, dtype)
    for count in (1, 2, 3, 5, 8, 13, 16, 17, 31, 33, 50, 64, 65, 100, 129):
        a = numbers(dtype, 1 + count % 19, count)
        for descending in (False, True):
            key = (values_of(own, descending), *a.shape)
            with knobs.override(DEVICE="CPU"):
                found = made_by(sort_lanes, key, a.shape, own, Tensor(a)).numpy()
            same_bits(found, in_order(a, 1, descending))


@pytest.mark.parametrize("dtype", ["uint8", "float32", "float64"])
@pytest.mark.parametrize("blocks", [1, 3, 8])
def test_blocks_of_values(blocks: int, dtype: str) -> None:
    """The same in blocks, digit by digit."""
    own = getattr(dt, dtype)
    for rows, count in ((1, 1), (1, 9), (3, 501)):
        a = numbers(dtype, rows, count)
        what = values_of(own, True)
        with knobs.override(DEVICE="CPU"):
            x = Tensor(a)
            for shift, bits in shifts_of(Form(what).first, 8 * a.itemsize, 6):
                key = (what, rows, count, blocks, shift, bits)
                held = made_by(count_digits, key, (rows, blocks, 1 << bits), dt.int32, x)
                x = made_by(put_digits, key, a.shape, own, x, held)
            same_bits(x.numpy(), in_order(a, 1, True))


@pytest.mark.parametrize("width", [1, 2])
@pytest.mark.parametrize("blocks", [1, 3, 8])
def test_blocks(blocks: int, width: int) -> None:
    """Rows in blocks, of which the last is shorter or empty; a digit that all share is copied."""
    for rows, count in ((1, 1), (1, 9), (2, 21), (3, 500)):
        keys = RNG.integers(0, 1 << 9, (rows, count)) << 7
        place = np.broadcast_to(np.arange(count), keys.shape)
        words = (keys << 32) | place if width == 1 else np.stack([keys << 32, place], -1)
        with knobs.override(DEVICE="CPU"):
            x = Tensor(words)
            for shift, bits in shifts_of(32 + 3, 16, 6):
                key = (width, rows, count, blocks, shift, bits)
                held = made_by(count_digits, key, (rows, blocks, 1 << bits), dt.int32, x)
                x = made_by(put_digits, key, words.shape, dt.int64, x, held)
            found = x.numpy() & 0xFFFFFFFF if width == 1 else x.numpy()[..., 1]
        np.testing.assert_array_equal(found, np.argsort(keys, -1, kind="stable"))


@pytest.mark.parametrize("width", [1, 2])
def test_networks(width: int) -> None:
    """Lengths beside powers of two; more and fewer rows than lanes."""
    for count in (1, 2, 3, 5, 8, 13, 16, 17, 31, 33, 64, 65, 100):
        rows = 1 + count % 11
        keys = RNG.integers(0, 1 << 5, (rows, count))
        place = np.broadcast_to(np.arange(count), keys.shape)
        words = (keys << 32) | place if width == 1 else np.stack([keys << 58, place], -1)
        with knobs.override(DEVICE="CPU"):
            found = made_by(sort_lanes, (width, rows, count), words.shape, dt.int64, Tensor(words)).numpy()
        found = found & 0xFFFFFFFF if width == 1 else found[..., 1]
        np.testing.assert_array_equal(found, np.argsort(keys, -1, kind="stable"))


def test_effort() -> None:
    """As many comparisons as Batcher's network where the registers hold all, some more where they do not."""
    assert effort(16, 16) == (63, 16)
    assert effort(2, 16) == (1, 2)
    compared, moved = effort(64, 16)
    assert compared == 4 * 63 + 2 * 16 + 4 * 32 + 32 + 32 + 4 * 32 and moved == 64 + 64 + 64 + 128 + 64


def test_the_way_is_a_matter_of_price() -> None:
    """Many short rows side by side, one short row by itself, long ones in blocks for all threads."""
    machine = replace(Machine(), cores=4, threads=True, l1_bytes=64 << 10, l2_bytes=1 << 20)
    assert way_to_sort(machine, 20_000, 50, 1, 32).digit == 0
    assert way_to_sort(machine, 1, 2000, 1, 32).blocks == 0 < way_to_sort(machine, 1, 2000, 1, 32).digit
    assert way_to_sort(machine, 1, 1 << 20, 1, 32).blocks >= 4
    assert way_to_sort(machine, 64, 50_000, 1, 32).blocks in (0, 1)
    values = values_of(dt.float32, False)
    assert way_to_sort(machine, 1000, 200, values, 32).digit == 0
    assert way_to_sort(machine, 1, 1 << 20, values, 32).blocks >= 4
    assert way_to_sort(machine, 1, 1 << 24, 1, 32).digit > way_to_sort(machine, 1000, 500, 1, 32).digit


@pytest.mark.parametrize("dtype", ["int8", "uint32", "int64", "float16", "float32", "float64"])
def test_the_largest(dtype: str) -> None:
    """Of rows that are looked at as a whole, or of which few are; of equal ones the first, however many."""
    for shape, k in (((3, 300), 30), ((4, 5000), 9), ((2, 4000), 3), ((20_001,), 50), ((2, 3000), 200)):
        for a in (numbers(dtype, *shape), np.ones(shape, dtype), np.sort(numbers(dtype, *shape))):
            flipped = np.argsort(np.flip(a, -1), axis=-1, kind="stable")
            down = a.shape[-1] - 1 - np.flip(flipped, -1)
            up = np.argsort(a, axis=-1, kind="stable")
            with knobs.override(DEVICE="CPU"):
                x = Tensor(a)
                values, order = jit(lambda x, k=k: tuple(x.topk(k)))(x)
                np.testing.assert_array_equal(order.numpy(), down[..., :k])
                same_bits(values.numpy(), np.take_along_axis(a, down[..., :k], -1))
                np.testing.assert_array_equal(x.topk(k, largest=False).indices.numpy(), up[..., :k])


@pytest.mark.parametrize("dtype", ["int8", "int64", "float32"])
def test_places(dtype: str) -> None:
    """In rows of all kinds of lengths, of more and fewer numbers than are looked for side by side."""
    for count, many in ((65, 1), (127, 9), (128, 300), (129, 8), (1000, 4001)):
        row, values = np.sort(numbers(dtype, count)), numbers(dtype, many)
        values[::2] = row[RNG.integers(0, count, len(values[::2]))]
        with knobs.override(DEVICE="CPU"):
            for side in ("left", "right"):
                function = jit(lambda x, y, side=side: x.searchsorted(y, side=side))
                found = function(Tensor(row), Tensor(values))
                np.testing.assert_array_equal(found.numpy(), np.searchsorted(row, values, side=side))
    rows, values = np.sort(numbers(dtype, 3, 100), -1), numbers(dtype, 3, 17)
    with knobs.override(DEVICE="CPU"):
        y = Tensor(rows).searchsorted(Tensor(values))
        assert any(node.op is Ops.WRITTEN for node in toposort(y.uop))
        want = [np.searchsorted(a, b) for a, b in zip(rows, values, strict=True)]
        np.testing.assert_array_equal(y.numpy(), np.stack(want))
