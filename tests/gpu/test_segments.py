"""Rows that are added at places in sorted segments. Against NumPy, on the emulator, with proofs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from morok import Tensor, Variable
from morok.codegen.pipeline import lower
from morok.errors import OutOfRange
from morok.ir.node import UOp, toposort
from morok.ir.ops import AxisKind, Ops
from morok.machine.devices import machine_of
from morok.machine.machine import Machine
from morok.optimize.heuristics.apply import optimize
from morok.optimize.record import applied
from morok.schedule.graph.segments import LONG, RUN
from morok.schedule.schedule import clear_cache, schedule
from tests.gpu.kernels import DEVICE, HOST, examine
from tests.optimize.plans import an_h200, empty, planned

EPS = {"float16": 1e-3, "float32": 1e-6, "float64": 1e-14}


@pytest.fixture(autouse=True)
def sorted_rows(monkeypatch: pytest.MonkeyPatch) -> Any:
    """On the emulator rows are sorted however few there are: steps in order and updates are dear."""

    def priced(name: str) -> Machine:
        machine = machine_of(name)
        if name != DEVICE or machine.scatters is None:
            return machine
        return replace(machine, scatters=replace(machine.scatters, step=1e9, updates=1e-9))

    clear_cache()
    monkeypatch.setattr("morok.schedule.graph.scatters.machine_of", priced)
    yield
    clear_cache()


def on(x: Any) -> Tensor:
    return Tensor(x, device=DEVICE)


def sums(table: np.ndarray, places: np.ndarray, rows: np.ndarray) -> np.ndarray:
    want = table.astype(np.float64)
    np.add.at(want, places, rows.astype(np.float64))
    return want


def kernels(result: Tensor) -> list[UOp]:
    return [optimize(item.ast, HOST) for item in schedule([result.uop]).items]


def has_segments(result: Tensor) -> bool:
    """Whether a loop goes from where to where data say, and no steps are in order."""
    found = [n for k in kernels(result) for n in toposort(k) if n.op is Ops.RANGE]
    reads = any(n.op is Ops.INDEX for r in found for n in toposort(r.src[0]))
    return reads and not any(r.arg[1] is AxisKind.ORDERED for r in found)


PLACES: dict[str, tuple[int, int, int, Any]] = {
    # steps, places, width, and which
    "primes": (37, 53, 7, lambda r, n, m: r.integers(0, m, n)),
    "runs": (RUN * LONG + 3, 11, 5, lambda r, n, m: r.integers(0, m, n)),
    "many places": (2 * RUN * LONG, 1009, 4, lambda r, n, m: r.integers(0, m, n)),
    "all in one": (RUN * LONG + RUN // 2, 29, 3, lambda r, n, m: np.full(n, 17)),
    "the first": (RUN * LONG, 29, 3, lambda r, n, m: np.zeros(n, np.int64)),
    "the last": (RUN * LONG + 1, 29, 3, lambda r, n, m: np.full(n, -1)),
    "two": (3 * RUN * LONG + 1, 31, 8, lambda r, n, m: np.where(r.random(n) < 0.7, 30, 4)),
    "each once": (150, 150, 2, lambda r, n, m: r.permutation(n)),
    "single numbers": (300, 100, 1, lambda r, n, m: r.integers(-m, m, n)),
    "one step": (1, 40, 4, lambda r, n, m: r.integers(0, m, n)),
}


@pytest.mark.parametrize(
    ("name", "dtype"), [*((n, "float32") for n in PLACES), ("two", "float16"), ("runs", "float64")]
)
def test_sums(name: str, dtype: str) -> None:
    count, height, width, draw = PLACES[name]
    random = np.random.default_rng(count)
    places = draw(random, count, height)
    rows = random.normal(size=(count, width)).astype(dtype)
    table = random.normal(size=(height, width)).astype(dtype)
    for start in (table, np.zeros_like(table)):
        got = on(start).index_add(0, on(places), on(rows))
        assert count == 1 or has_segments(got)
        want = sums(start, places, rows)
        scale = max(1.0, float(np.abs(want).max()))
        np.testing.assert_allclose(got.numpy(), want, rtol=0, atol=4 * EPS[dtype] * scale)
        again = on(start).index_add(0, on(places), on(rows)).numpy()
        np.testing.assert_array_equal(got.numpy(), again)


def test_what_is_no_number_stays_where_it_comes_to() -> None:
    """Also in a run of rows that belongs to several places, or to one."""
    random = np.random.default_rng(3)
    count = 2 * RUN * LONG
    places = np.sort(random.integers(0, 9, count))
    places[: 2 * RUN] = 0
    rows = random.normal(size=(count, 2)).astype(np.float32)
    rows[places == 0, 0] = np.inf
    rows[np.nonzero(places == 4)[0][0]] = np.nan
    table = np.zeros((12, 2), np.float32)
    table[11] = -0.0  # nothing comes there
    got = on(table).index_add(0, on(places), on(rows)).numpy()
    np.testing.assert_allclose(got, sums(table, places, rows), rtol=1e-5, atol=1e-5)
    assert np.signbit(got[11]).all() and np.isnan(got[4]).all() and np.isinf(got[0, 0])


def test_nothing_and_nowhere() -> None:
    x = Tensor.zeros(40, 3, device=DEVICE)
    with pytest.raises(OutOfRange):
        x.index_add(0, on(np.arange(50)), on(np.ones((50, 3), np.float32))).numpy()
    none = x.index_add(0, on(np.zeros(0, np.int64)), on(np.zeros((0, 3), np.float32)))
    np.testing.assert_array_equal(none.numpy(), np.zeros((40, 3), np.float32))


def test_a_number_of_steps_that_is_known_later() -> None:
    random = np.random.default_rng(3)
    places, new = random.integers(0, 21, 64), random.normal(size=(64, 3)).astype(np.float32)
    for count in (5, 64, 1):
        n = Variable("n", 1, 64).bind(count)
        got = Tensor.zeros(21, 3, device=DEVICE).index_add(0, on(places)[:n], on(new)[:n])
        want = sums(np.zeros((21, 3)), places[:count], new[:count])
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-6, atol=1e-6)


def test_gradients() -> None:
    """Of an embedding, of several indices, and of a table that is a product's operand as well."""
    random = np.random.default_rng(1)
    tokens = random.integers(0, 90, (2, 80))
    slopes = random.normal(size=(2, 80, 6)).astype(np.float32)
    table = on(random.normal(size=(90, 6)).astype(np.float32))
    (got,) = table[on(tokens)].gradient(table, gradient=on(slopes))
    want = sums(np.zeros((90, 6)), tokens, slopes)
    np.testing.assert_allclose(got.numpy(), want, rtol=1e-5, atol=1e-5)
    hidden = random.normal(size=(5, 6)).astype(np.float32)
    loss = (table[on(tokens)] * on(slopes)).sum() + (on(hidden) @ table.T).sum()
    (got,) = loss.gradient(table)
    np.testing.assert_allclose(got.numpy(), want + hidden.sum(0), rtol=1e-5, atol=1e-5)
    cube = on(random.normal(size=(9, 10, 4)).astype(np.float32))
    i, j = random.integers(0, 9, 200), random.integers(0, 10, 200)
    slope = random.normal(size=(200, 4)).astype(np.float32)
    (got,) = cube[on(i), on(j)].gradient(cube, gradient=on(slope))
    expected = np.zeros((9, 10, 4))
    np.add.at(expected, (i, j), slope.astype(np.float64))
    np.testing.assert_allclose(got.numpy(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("count", [40, RUN * LONG + 5])
def test_every_access_is_proved(count: int) -> None:
    y = Tensor.zeros(50, 12, device=DEVICE).index_add(
        0, Tensor.empty(count, dtype="int64", device=DEVICE), Tensor.empty(count, 12, device=DEVICE)
    )
    found = kernels(y)
    assert any("SKIP" in [o.name for o in applied(k)] for k in found)
    for kernel in found:
        assert not examine(lower(kernel, HOST), kernel).open


# --- plans


def table_gradient(rows: int, tokens: int, width: int, dtype: str) -> Tensor:
    table = empty(rows, width, dtype=dtype)
    taken = table[empty(tokens, dtype="int64")]
    (found,) = taken.gradient(table, gradient=empty(tokens, width, dtype=dtype))
    return found


@pytest.mark.parametrize(
    ("rows", "tokens", "width", "dtype"),
    [
        (50257, 6144, 1536, "bfloat16"), (50257, 6144, 1536, "float32"), (32000, 4096, 2048, "bfloat16"),
        (50257, 8192, 768, "bfloat16"), (32003, 4999, 768, "float32"), (151936, 16384, 896, "bfloat16"),
    ],
)  # fmt: skip
def test_a_language_models_table(rows: int, tokens: int, width: int, dtype: str) -> None:
    """The table is written once, and read by nobody; rows are moved four times at most."""
    with an_h200() as machine:
        result = table_gradient(rows, tokens, width, dtype)
        items = schedule([result.uop]).items
        found = planned([result.uop], machine)
    assert any("SKIP" in k.names for k in found) and not any("PARTITION" in k.names for k in found)
    size = result.dtype.itemsize
    small = 16 * (rows + tokens) * 8
    assert sum(i.bytes for i in items) <= size * width * (rows + 5 * tokens) + small


def test_what_is_added_to_a_tables_gradient_is_added_on_the_way() -> None:
    """A table that is the output layer's weight too: its gradient is no further pass over memory."""
    with an_h200() as machine:
        table = empty(50257, 1536)
        other = empty(50257, 1536)
        taken = table[empty(6144, dtype="int64")]
        (slope,) = taken.gradient(table, gradient=empty(6144, 1536))
        alone = planned([slope.uop], machine)
        both = planned([(slope + other).uop], machine)
    assert len(alone) == len(both)
