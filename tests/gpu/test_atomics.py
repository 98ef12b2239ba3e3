"""Rows that come to places in any order, and results that are those of one order. Against NumPy."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from morok import Tensor, Variable, jit
from morok.codegen.pipeline import lower
from morok.device.emulator.memory import Block, Fault, GlobalMemory
from morok.dtype import int32
from morok.errors import OutOfRange
from morok.ir.memory import joined_by
from morok.ir.node import UOp, make, toposort
from morok.ir.ops import AxisKind, Ops
from morok.machine.devices import machine_of
from morok.machine.machine import Machine
from morok.optimize.actions.table import apply, can
from morok.optimize.facts import trips
from morok.optimize.heuristics.apply import optimize
from morok.optimize.record import Opt, applied
from morok.render.cuda.kernel import render
from morok.rewrite.engine import substitute
from morok.schedule.schedule import schedule
from tests.gpu.kernels import DEVICE, HOST, examine
from tests.optimize.plans import an_h200, empty, planned

INTS = ("bool", "int8", "uint8", "int16", "int32", "uint32", "int64", "uint64")
FLOATS = ("float16", "float32", "float64")
TOLERANCE = {"float16": 2e-3, "float32": 3e-7, "float64": 1e-15}
F32 = np.finfo(np.float32)
JOINS: dict[str, Callable[[Any, Any], Any]] = {
    "sum": lambda a, b: a + b,
    "amax": np.maximum,
    "amin": np.minimum,
    "prod": lambda a, b: a * b,
    "last": lambda a, b: b,
}


def on(x: Any) -> Tensor:
    return Tensor(x, device=DEVICE)


def draw(random: np.random.Generator, dtype: str, *shape: int) -> np.ndarray:
    if dtype in FLOATS:
        return random.normal(size=shape).astype(dtype)
    low = 0 if dtype.startswith(("u", "b")) else -5
    return random.integers(low, 2 if dtype == "bool" else 6, shape).astype(dtype)


@pytest.mark.parametrize("dtype", [*INTS, *FLOATS])
def test_every_type_and_way_of_joining(dtype: str) -> None:
    """Into fewer places than steps, into more, into one; negative positions count from the end."""
    random = np.random.default_rng(len(dtype))
    ways = [how for how in JOINS if how != "prod" or dtype == "bool"]  # products: test_partition.py
    for how, (n, rows, width) in [(h, s) for h in ways for s in ((50, 7, 3), (20, 200, 1), (33, 1, 2))]:
        x, new = draw(random, dtype, rows, width), draw(random, dtype, n, width)
        places = random.integers(-rows, rows, (n, width))
        reduce = {} if how == "last" else {"reduce": how}
        got = on(x).scatter(0, on(places), on(new), **reduce).numpy()
        wide = dtype in FLOATS and how in ("sum", "prod")
        want = x.astype(np.longdouble) if wide else x.copy()
        for i in range(n):
            for k in range(width):
                with np.errstate(over="ignore"):
                    want[places[i, k], k] = JOINS[how](want[places[i, k], k], new[i, k])
        if wide:
            scale = np.abs(want).max()
            np.testing.assert_allclose(got, want, rtol=0, atol=TOLERANCE[dtype] * float(scale) * 4)
        else:
            np.testing.assert_array_equal(got, want, err_msg=f"{how} {n} {rows}")


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps are threads however few there are: a GPU does few of them one after the other."""

    def priced(name: str) -> Machine:
        machine = machine_of(name)
        prices = machine.scatters and replace(machine.scatters, step=4000)
        return replace(machine, scatters=prices)

    monkeypatch.setattr("morok.schedule.graph.scatters.machine_of", priced)


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_sums_are_exact_in_any_order(dtype: Any) -> None:
    """Sizes from 1e-12 to 1e12: what comes out is the sum, rounded once, however the steps are ordered."""
    random = np.random.default_rng(5)
    places = random.integers(0, 9, 300)
    new = (random.normal(size=300) * 10.0 ** random.integers(-12, 12, 300)).astype(dtype)
    want = np.array([math.fsum(new[places == k].tolist()) for k in range(9)]).astype(dtype)
    for order in (np.arange(300), random.permutation(300)):
        got = Tensor.zeros(9, dtype=np.dtype(dtype).name, device=DEVICE)
        got = got.index_add(0, on(places[order]), on(new[order]))
        np.testing.assert_array_equal(got.numpy(), want)


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_what_is_no_number_and_what_is_small_or_large(dtype: Any) -> None:
    inf, nan, most, least = np.inf, np.nan, np.finfo(dtype).max, np.finfo(dtype).smallest_subnormal
    x = np.array([1.0, 2.0, 3.0, -inf, 5.0, -0.0, nan, 1.0, 0.0, 0.0], dtype)
    places = np.array([0, 0, 1, 2, 2, 3, 4, 4, 1, 7, 7, 8, 8, 9, 9])
    new = np.array(
        [inf, 1, -inf, inf, -inf, inf, nan, 1, 4, most, most, least, 2 * least, most, -most], dtype
    )
    got = on(x).index_add(0, on(places), on(new)).numpy()
    want = np.array([inf, -inf, nan, nan, nan, -0.0, nan, inf, 3 * least, 0.0], dtype)
    np.testing.assert_array_equal(got, want)
    assert np.signbit(got[5])  # nothing came there
    for how, ufunc in (("amax", np.maximum), ("amin", np.minimum)):
        found = on(x).scatter_reduce(0, on(places), on(new), how).numpy()
        expected = x.copy()
        with np.errstate(invalid="ignore"):  # some releases of NumPy warn of a NaN
            ufunc.at(expected, places, new)
        np.testing.assert_array_equal(found, expected)


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("width", [1, 3])
def test_sums_by_size(width: int) -> None:
    """Into a table of zeros: every float goes to the sum of its size. Nothing of any falls off."""
    inf, nan = np.inf, np.nan
    most, least, normal = (float(x) for x in (F32.max, F32.smallest_subnormal, F32.tiny))
    coming = {
        0: [inf, 1], 1: [-inf, 4], 2: [inf, -inf], 3: [-0.0, 0.0], 4: [nan, 1], 5: [inf, nan],
        6: [most, most], 7: [least, 2 * least], 8: [most, -most], 9: [1e20, 1, -1e20],
        10: [normal, -least], 11: [-most, least], 12: [1.5, -1.5], 13: [2.0**-20, -(2.0**30), 2.0**30],
    }  # fmt: skip
    places = np.array([k for k, values in coming.items() for _ in values])
    new = np.array([v for values in coming.values() for v in values], np.float32)
    rows = np.repeat(new[:, None], width, 1) * np.float32(1 if width == 1 else 0.5)
    got = Tensor.zeros(15, width, device=DEVICE).index_add(0, on(places), on(rows)).numpy()
    beyond = {0: inf, 1: -inf, 2: nan, 4: nan, 5: nan}
    want = np.zeros((15, width), np.float32)
    with np.errstate(over="ignore"):
        for k in range(15):
            exact = beyond[k] if k in beyond else math.fsum(rows[places == k, 0].tolist())
            want[k] = np.float32(exact)
    np.testing.assert_array_equal(got, want)
    assert not np.signbit(got[[3, 8, 12, 14]]).any()


def test_the_gradient_of_an_embedding() -> None:
    """Of a table with fewer rows than tokens, and of a tall one; also in half precision."""
    random = np.random.default_rng(1)
    for count, rows, width, dtype in (
        (300, 40, 24, "float32"),
        (40, 700, 6, "float32"),
        (60, 90, 4, "float16"),
    ):
        tokens = random.integers(0, rows, (2, count // 2))
        slopes = random.normal(size=(2, count // 2, width)).astype(dtype)
        table = on(np.zeros((rows, width), dtype))
        (got,) = table[on(tokens)].gradient(table, gradient=on(slopes))
        want = np.zeros((rows, width))
        np.add.at(want, tokens, slopes.astype(np.float64))
        np.testing.assert_array_equal(got.numpy(), want.astype(dtype))


def test_places_that_are_not_there() -> None:
    x = Tensor.zeros(40, device=DEVICE)
    with pytest.raises(OutOfRange):
        x.index_add(0, on(np.arange(50)), on(np.ones(50, np.float32))).numpy()
    none = x.index_add(0, on(np.zeros(0, np.int64)), on(np.zeros(0, np.float32)))
    np.testing.assert_array_equal(none.numpy(), np.zeros(40, np.float32))


def test_in_place_and_compiled() -> None:
    """The memory that is assigned to holds the sums; rows may be made of what is overwritten."""
    random = np.random.default_rng(2)
    start = random.normal(size=(30, 4)).astype(np.float32)
    table = on(start).realize()

    @jit
    def step(places: Tensor, new: Tensor) -> Tensor:
        table[places] = table[places.flip(0)] + new  # the last of equal places stays
        return table.index_add(0, places, new).realize()

    want = start.copy()
    for _ in range(3):
        places, new = random.integers(0, 30, 64), random.normal(size=(64, 4)).astype(np.float32)
        got = step(on(places), on(new)).numpy()
        read = want[places[::-1]] + new
        for i, place in enumerate(places):
            want[place] = read[i]
        np.testing.assert_array_equal(table.numpy(), want)
        total = want.astype(np.float64)
        np.add.at(total, places, new.astype(np.float64))
        np.testing.assert_allclose(got, total, rtol=1e-6, atol=1e-6)


@pytest.mark.usefixtures("at_once")
def test_a_number_of_steps_that_is_known_later() -> None:
    random = np.random.default_rng(3)
    places, new = random.integers(0, 21, 64), random.normal(size=(64, 3)).astype(np.float32)
    for count in (5, 64, 1):
        n = Variable("n", 1, 64).bind(count)
        got = Tensor.zeros(21, 3, device=DEVICE).index_add(0, on(places)[:n], on(new)[:n])
        want = np.zeros((21, 3))
        np.add.at(want, places[:count], new[:count].astype(np.float64))
        np.testing.assert_array_equal(got.numpy(), want.astype(np.float32))


# --- plans


def embedding(rows: int, tokens: int, width: int, dtype: str) -> Tensor:
    table = empty(rows, width, dtype=dtype)
    taken = table[empty(tokens, dtype="int32")]
    (found,) = taken.gradient(table, gradient=empty(tokens, width, dtype=dtype))
    return found


def scattered(rows: int, count: int, dtype: str, how: str | None = "sum") -> Tensor:
    new = empty(count, dtype=dtype)
    return empty(rows, dtype=dtype).scatter(0, empty(count, dtype="int64"), new, how)


def into_zeros(rows: int, count: int) -> Tensor:
    places, new = empty(count, dtype="int64"), empty(count, dtype="float32")
    return Tensor.zeros(rows, device=new.device).scatter_add(0, places, new)


PROGRAMS: dict[str, tuple[Callable[[], Tensor], int, float]] = {
    # kernels, and bytes in units of what has to be read and written once
    "16 M into 1 M": (lambda: scattered(1 << 20, 1 << 24, "float32"), 6, 2.6),
    "16 M into 1 M zeros": (lambda: into_zeros(1 << 20, 1 << 24), 3, 3.8),
    # few lines of memory: in copies, which was measured on an H200 (1.5 ms without, for whole numbers)
    "16 M into 1,000": (lambda: scattered(1000, 1 << 24, "float32"), 8, 4.5),
    "16 M into 7": (lambda: scattered(7, 1 << 24, "float32"), 8, 4.5),
    "16 M into 1": (lambda: scattered(1, 1 << 24, "float32"), 3, 2.6),
    "whole numbers": (lambda: scattered(1000, 1 << 24, "int32"), 5, 4.5),
    "many whole numbers": (lambda: scattered(1 << 20, 1 << 24, "int32"), 3, 2.6),
    "64 bits": (lambda: scattered(1 << 20, 1 << 22, "float64"), 8, 4.5),
    "half precision": (lambda: scattered(1 << 20, 1 << 22, "float16"), 8, 4.0),
    "the last": (lambda: scattered(1 << 20, 1 << 22, "float32", None), 4, 2.6),
    "the largest": (lambda: scattered(1 << 20, 1 << 22, "float32", "amax"), 4, 2.6),
    "words": (lambda: embedding(50257, 8192, 768, "float32"), 9, 3.5),
    "words in bfloat16": (lambda: embedding(50257, 8192, 768, "bfloat16"), 9, 5.0),
    "features": (lambda: embedding(1_000_000, 2048 * 26, 64, "float32"), 9, 2.5),
    "a batch of columns": (
        lambda: empty(512, 1000, dtype="float32").scatter_add(
            1, empty(512, 1000, dtype="int64"), empty(512, 1000, dtype="float32")
        ), 6, 4.5,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_no_thread_walks_through_the_steps(name: str) -> None:
    """Nothing is done in order, no kernel has a long loop, and memory is touched a few times."""
    make, kernels, bytes_ = PROGRAMS[name]
    with an_h200() as machine:
        result = make()
        items = schedule([result.uop]).items
        found = planned([result.uop], machine)
    assert len(found) <= kernels
    for kernel in found:
        loops = [n for n in toposort(kernel.ast) if n.op is Ops.RANGE]
        assert not any(r.arg[1] is AxisKind.ORDERED for r in loops)
        known = [r for r in loops if not any(n.op is Ops.INDEX for n in toposort(r.src[0]))]
        assert math.prod(trips(r) for r in known if r.arg[1] is AxisKind.REDUCE) <= 64
    given = {b: b.arg * b.dtype.itemsize for i in items for b in i.buffers if b.src[0].arg >= 0}
    once = sum(given.values()) + result.numel() * result.dtype.itemsize
    assert sum(i.bytes for i in items) <= bytes_ * once


def test_few_steps_stay_one_kernel() -> None:
    """A cache of keys that gets one row more: a copy of it would cost more than the order."""
    with an_h200() as machine:
        cache = empty(4096, 1024)
        found = planned([cache.index_copy(0, empty(4, dtype="int64"), empty(4, 1024)).uop], machine)
    assert not any("ATOMIC" in k.names for k in found)


# --- kernels


def joining(machine: Machine = HOST) -> UOp:
    y = Tensor.empty(40, dtype="int32", device=DEVICE).scatter_add(
        0, Tensor.empty(64, dtype="int64", device=DEVICE), Tensor.empty(64, dtype="int32", device=DEVICE)
    )
    kernels = [optimize(item.ast, machine) for item in schedule([y.uop]).items]
    return next(k for k in kernels if any(o.name == "ATOMIC" for o in applied(k)))


def test_the_text() -> None:
    text = render(lower(joining(), HOST), "k").text
    assert "atomicAdd((unsigned*)(" in text


def test_what_is_refused() -> None:
    y = Tensor.empty(40, dtype="int32", device=DEVICE).scatter_add(
        0, Tensor.empty(64, dtype="int64", device=DEVICE), Tensor.empty(64, dtype="int32", device=DEVICE)
    )
    kernels = [item.ast for item in schedule([y.uop]).items]
    kernel = next(k for k in kernels if can(k, Opt("ATOMIC", 0), HOST) is None)
    assert "single values" in str(can(apply(kernel, Opt("ATOMIC", 0), HOST), Opt("UPCAST", 0, 4), HOST))
    assert "joins nothing" in str(can(kernel, Opt("ATOMIC", 0), replace(HOST, scatters=None)))
    y = Tensor.empty(40, device=DEVICE).scatter(
        0, Tensor.empty(64, dtype="int64", device=DEVICE), Tensor.empty(64, device=DEVICE), "prod"
    )
    asts = [item.ast for item in schedule([y.uop]).items]
    reasons = [str(can(k, Opt("ATOMIC", 0), HOST)) for k in asts]
    assert any("counts" in reason for reason in reasons)


def test_the_prover_sees_who_may_meet() -> None:
    """What memory joins is no race; a plain store in its place is one."""
    kernel = joining()
    assert not examine(lower(kernel, HOST), kernel).open
    (store,) = [n for n in toposort(kernel) if n.op is Ops.STORE and joined_by(n) is not None]
    wrong = substitute(kernel, {store: make(Ops.STORE, store.dtype, store.src)})
    found = examine(lower(wrong, HOST), wrong)
    assert any(o.kind == "race" for o in found.open)


def test_the_emulator_sees_who_meets() -> None:
    """Joined by one op from many threads; by two ops, or beside a plain store, is an error."""
    block = Block(16)
    memory = GlobalMemory("y", block, 0, 16, int32)
    threads, places = np.arange(4), np.array([0, 1, 0, 0])
    memory.write(np.arange(4), np.arange(4), np.zeros(4, np.int32))
    with pytest.raises(Fault, match="writes element"):
        memory.join(threads, places, np.ones(4, np.int32), Ops.ADD)
    memory = GlobalMemory("y", block, 0, 16, int32)  # another launch
    memory.join(threads, places, np.ones(4, np.int32), Ops.ADD)
    assert memory.data.tolist() == [3, 1, 0, 0]
    with pytest.raises(Fault, match="writes element"):
        memory.join(threads, places, np.ones(4, np.int32), Ops.MAX)
