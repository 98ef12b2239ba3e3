"""Rows put to places that are known when the program runs, on the interpreter and as machine code."""

from typing import Any

import numpy as np
import pytest

from morok import Tensor, knobs
from morok.errors import DTypeError, OutOfRange, ShapeError
from morok.machine.devices import machine_of
from morok.tensor.calls.trace_cache import clear_trace_cache
from tests.devices import devices
from tests.tensor.common import same

RNG = np.random.default_rng(3)
DEVICES = devices("PYTHON", "CPU", "EMULATOR")
JOINS = {
    "sum": np.add, "prod": np.multiply, "amax": np.maximum, "amin": np.minimum,
}  # fmt: skip


def by_hand(x: Any, axis: int, index: Any, src: Any, join: Any) -> Any:
    """What scatter means, one element after the other."""
    result = x.copy()
    for place in np.ndindex(*index.shape):
        target = list(place)
        target[axis] = index[place]
        spot = tuple(target)
        result[spot] = src[place] if join is None else join(result[spot], src[place])
    return result


@pytest.mark.parametrize("where", DEVICES)
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("how", [None, *JOINS])
def test_scatter(where: str, axis: int, how: str | None) -> None:
    x = RNG.integers(-9, 9, (4, 5, 3))
    index = RNG.integers(0, x.shape[axis], (3, 2, 3) if axis != 1 else (4, 7, 2))
    src = RNG.integers(-9, 9, tuple(n + 1 for n in index.shape))
    with knobs.override(DEVICE=where):
        t, i, s = Tensor(x), Tensor(index), Tensor(src)
        got = t.scatter(axis, i, s) if how is None else t.scatter_reduce(axis, i, s, how)
        same(got, by_hand(x, axis, index, src, JOINS.get(how or "")))


@pytest.mark.parametrize("where", DEVICES)
@pytest.mark.parametrize("how", [None, *JOINS])
def test_an_index_that_is_repeated_names_rows(where: str, how: str | None) -> None:
    """Along the last axes, along a part of one, and along axes before others; the values may be more."""
    x = RNG.integers(-9, 9, (4, 5, 3))
    for axis, own, full in (
        (0, (7, 1, 1), (7, 5, 3)), (1, (4, 6, 1), (4, 6, 3)), (1, (1, 6, 1), (4, 6, 3)),
        (1, (3, 6, 1), (3, 6, 3)), (0, (7, 5, 1), (7, 5, 2)), (2, (1, 1, 6), (4, 5, 6)),
        (0, (0, 1, 1), (0, 5, 3)),
    ):  # fmt: skip
        index = RNG.integers(-x.shape[axis], x.shape[axis], own)
        wide = np.broadcast_to(index % x.shape[axis], full)
        src = RNG.integers(-9, 9, tuple(n + 1 for n in full))
        with knobs.override(DEVICE=where):
            got = Tensor(x).scatter(axis, Tensor(index).expand(*full), Tensor(src), how)
            same(got, by_hand(x, axis, wide, src, JOINS.get(how or "")))


def test_a_repeated_index_outside() -> None:
    with pytest.raises(OutOfRange):
        Tensor.zeros(4, 3).scatter_add(0, Tensor([[1], [4]]).expand(2, 3), Tensor.ones(2, 3)).numpy()


@pytest.mark.parametrize("where", DEVICES)
def test_without_checks_rows_at_places_that_do_not_exist_are_left_out(where: str) -> None:
    with knobs.override(DEVICE=where, CHECK_INDICES=False):
        x = np.arange(12.0).reshape(4, 3)
        t = Tensor(x)
        t[Tensor([1, 7, -9, -1])] = Tensor(np.full((4, 3), 5.0))
        x[[1, -1]] = 5.0
        same(t, x)
        assert Tensor(x)[Tensor([9])].tolist() == [[0.0, 0.0, 0.0]]


@pytest.mark.parametrize("where", DEVICES)
def test_the_last_of_equal_places_wins_and_sums_keep_their_order(where: str) -> None:
    with knobs.override(DEVICE=where):
        places = RNG.integers(0, 3, 200)
        values = RNG.standard_normal((200, 17)).astype(np.float32)
        wanted, exact = np.zeros((3, 17), np.float32), np.zeros((3, 17))
        np.add.at(wanted, places, values)  # one after the other, so the rounding is the same
        np.add.at(exact, places, values.astype(np.float64))
        got = Tensor.zeros(3, 17).index_add(0, Tensor(places), Tensor(values))
        if machine_of(where).scatters is not None and not np.array_equal(got.numpy(), wanted):
            wanted[:] = exact  # in any order: as if the sum had no rounding but the last
        same(got, wanted)
        wanted[places] = values
        same(Tensor.zeros(3, 17).index_copy(0, Tensor(places), Tensor(values)), wanted)


def test_the_gradient_of_a_long_table_is_not_quadratic() -> None:
    """50,000 rows and 64 tokens: work in the order of what is read and written."""
    with knobs.override(DEVICE="CPU"):
        table = Tensor.zeros(50_000, 16).realize()
        tokens = Tensor(RNG.integers(0, 50_000, 64))
        (g,) = (table[tokens] * 2.0).sum().gradient(table)
        plan = g.plan()
        assert sum(item.flops for item in plan.schedule.items) < 100_000
        found = g.numpy()
    wanted = np.zeros((50_000, 16), np.float32)
    np.add.at(wanted, tokens.numpy(), np.full((64, 16), 2.0, np.float32))
    np.testing.assert_array_equal(found, wanted)


def test_a_write_to_memory_copies_nothing() -> None:
    t = Tensor(np.zeros((1000, 4), np.float32)).realize()
    places, rows = Tensor(np.array([3, 5])).realize(), Tensor(np.ones((2, 4), np.float32)).realize()
    t[places] = rows
    names = [item.name for item in t.plan().schedule.items]
    assert names[-1] == "e_2_4" and "e_4000" not in names
    assert t.numpy().sum() == 8


def test_rows_made_of_the_memory_they_go_to() -> None:
    x = np.arange(12.0).reshape(4, 3)
    t = Tensor(x.copy()).realize()
    t[Tensor([0, 1])] = t[Tensor([1, 2])] + t[Tensor([0, 3])]
    x[[0, 1]] = x[[1, 2]] + x[[0, 3]]
    same(t, x)


def test_counts() -> None:
    x = RNG.integers(0, 9, 100)
    same(Tensor(x).bincount(9), np.bincount(x, minlength=9))
    w = RNG.standard_normal(100)
    same(Tensor(x).bincount(9, Tensor(w)), np.bincount(x, w, 9), rtol=1e-14, atol=1e-14)
    assert Tensor([-1, 12, 2]).bincount(3).tolist() == [0, 0, 1]


def test_means_without_self() -> None:
    t = Tensor([1.0, 2.0, 3.0])
    got = t.scatter_reduce(0, Tensor([0, 0]), Tensor([5.0, 7.0]), "mean", include_self=False)
    assert got.tolist() == [6.0, 2.0, 3.0]


@pytest.mark.parametrize("dtype", ["uint8", "int16", "int32", "int64"])
def test_means_of_integers_keep_their_type(dtype: str) -> None:
    src = np.zeros(300, dtype)
    src[:2] = 120, 11  # the mean counts to 300, which a byte does not hold
    got = Tensor(np.array([100, 7], dtype)).scatter_reduce(0, np.zeros(300, np.int64), src, "mean", False)
    same(got, np.array([131 // 300, 7], dtype))
    got = Tensor(np.array([100, 7], dtype)).scatter_reduce(0, np.zeros(3, np.int64), src[:3], "mean")
    same(got, np.array([231 // 4, 7], dtype))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda t: t.scatter(0, Tensor([0]), t), ShapeError, r"needs an index of 2 axes.*not \(1,\)"),
        (lambda t: t.scatter(0, Tensor([[0, 1]]), Tensor([[1]])), ShapeError, "as many values or more"),
        (lambda t: t.scatter(0, Tensor([[0]]), Tensor([[1.0]])), DTypeError, "needs values of that type"),
        (lambda t: t.scatter(2, Tensor([[0]]), t), ShapeError, "axis 2 does not exist"),
        (lambda t: t.scatter_reduce(0, Tensor([[0]]), t, "max!"), ValueError, "a reduction is one of"),
        (lambda t: t.gather(0, Tensor([[0, 0, 0]])), ShapeError, "none longer than x's except for axis 0"),
        (lambda t: t.index_add(0, Tensor([0]), Tensor([[1, 2, 3]])), ShapeError, "does not fit"),
        (lambda t: t.bincount(-1), ShapeError, "negative"),
        (lambda t: t.__setitem__(Tensor([0.5]), 1), DTypeError, "made of integers"),
        (lambda t: t.__setitem__([5], 1), OutOfRange, "index 5 is outside of axis 0"),
    ],
)
def test_errors(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call(Tensor([[1, 2], [3, 4]])).numpy()


def test_what_was_scattered_is_contiguous_already() -> None:
    """No copy of it; two states of it, both asked for, are two values."""
    at, rows = np.arange(12) % 5, np.ones((12, 4), np.float32)
    i, r = Tensor(at).realize(), Tensor(rows).realize()
    plain = Tensor.zeros(40, 4).index_add(0, i, r)
    kept = plain.reshape(-1).contiguous()
    assert len(kept.plan()) == len(plain.plan())
    again = plain.index_add(0, i, r * 2).contiguous()
    twice = (plain * 2).contiguous()
    Tensor.realize(again, kept, twice)
    expected = np.zeros((40, 4), np.float32)
    np.add.at(expected, at, rows)
    assert np.array_equal(kept.numpy(), expected.reshape(-1))
    assert np.array_equal(again.numpy(), expected * 3) and np.array_equal(twice.numpy(), expected * 2)


@pytest.mark.parametrize("reduce", ["sum", "prod", "amax", "amin"])
@pytest.mark.parametrize(
    ("steps", "height", "rest", "dtype"),
    [
        (70_001, 100, (), "float32"),
        (70_003, 7, (3,), "float32"),
        (90_001, 64, (2,), "int64"),
        (131_074, 30_000, (), "float64"),
    ],
)
def test_runs_of_steps(reduce: str, steps: int, height: int, rest: tuple[int, ...], dtype: str) -> None:
    """Cores of a processor have tables of their own."""
    rng = np.random.default_rng(steps)
    places = rng.integers(-height, height, steps)
    table = (rng.standard_normal((height, *rest)) * 4).astype(dtype)
    rows = (rng.standard_normal((steps, *rest)) * 4).astype(dtype)
    if reduce == "prod":
        rows = np.where(rng.random(rows.shape) < 0.001, 2, 1).astype(dtype)
    index = np.broadcast_to(places.reshape(-1, *(1 for _ in rest)), rows.shape).copy()
    x, i, r = (Tensor(a, device="CPU") for a in (table, index, rows))
    want = table.astype("float64" if "float" in dtype else dtype)
    join: Any = {"sum": np.add, "prod": np.multiply, "amax": np.maximum, "amin": np.minimum}[reduce]
    join.at(want, places, rows.astype(want.dtype))
    most = np.abs(rows).sum() / height  # of what comes to a place, and 24 bits of it are kept
    np.testing.assert_allclose(x.scatter_reduce(0, i, r, reduce=reduce).numpy(), want, 1e-6, 2.0**-22 * most)


def test_runs_of_steps_keep_zeros() -> None:
    """What nothing comes to is as it was, to the sign of a zero; who is outside is told."""
    table = np.full(100, -0.0, np.float32)
    places = np.random.default_rng(0).integers(0, 50, 70_001)
    x, i = Tensor(table, device="CPU"), Tensor(places, device="CPU")
    assert np.signbit(
        x.scatter_add(0, i, Tensor(np.full(70_001, -0.0, np.float32), device="CPU")).numpy()
    ).all()
    places[-1] = 100
    with pytest.raises(IndexError, match="index 100 is outside"):
        x.scatter_add(
            0, Tensor(places, device="CPU"), Tensor(np.ones(70_001, np.float32), device="CPU")
        ).numpy()


@pytest.mark.parametrize("reduce", ["sum", "prod"])
@pytest.mark.parametrize(
    ("steps", "height", "wide"),
    [
        (70_001, 100, 1),
        (262_144, 1000, 1),
        (100_003, 7, 1),
        (131_073, 20_000, 1),
        (30_001, 9, 5),
        (30_000, 5, 20),
    ],
)
def test_runs_of_steps_whatever_the_threads(reduce: str, steps: int, height: int, wide: int) -> None:
    """Floats are added in an order that is a matter of the program."""
    rng = np.random.default_rng(steps)
    places = rng.integers(-height, height, steps)
    rows = (1 + rng.standard_normal((steps, wide)) * 0.01).astype(np.float32)
    found = []
    for threads in (1, 2, 4):
        with knobs.override(THREADS=threads):
            x = Tensor(np.ones((height, wide), np.float32), device="CPU")
            i, r = Tensor(places, device="CPU"), Tensor(rows, device="CPU")
            wider = i.reshape(steps, 1).expand(steps, wide)
            found.append(x.scatter_reduce(0, wider, r, reduce=reduce).numpy())
    assert np.array_equal(found[0], found[1]) and np.array_equal(found[0], found[2])
    want = np.ones((height, wide))
    (np.add if reduce == "sum" else np.multiply).at(want, places, rows.astype(np.float64))
    np.testing.assert_allclose(found[0], want, 1e-4)


@pytest.mark.parametrize("kind", ["int64", "int32", "int8", "uint8"])
@pytest.mark.parametrize("at", [0, 1, 6, 7, 69_999, 70_000])
def test_each_lane_is_told_that_it_is_outside(kind: str, at: int) -> None:
    """And what is outside comes to no place: others beside it are as they should be."""
    height, own = 100, np.dtype(kind)
    places = np.random.default_rng(1).integers(0, height, 70_001).astype(own)
    outside = [height, 127, *([] if own.kind == "u" else [-height - 1, np.iinfo(own).min])]
    for bad in [*outside, *([np.iinfo(own).max] if own.itemsize > 1 else [])]:
        wrong = places.copy()
        wrong[at] = bad
        with pytest.raises(IndexError, match=f"index {bad} is outside"):
            Tensor(np.zeros(height, np.float32), device="CPU").scatter_add(
                0, Tensor(wrong, device="CPU"), Tensor(np.ones(70_001, np.float32), device="CPU")
            ).numpy()
        counted = wrong[(wrong >= 0) & (wrong < height)]
        got = Tensor(wrong, device="CPU").bincount(height).numpy()
        assert got.dtype == np.int64 and np.array_equal(got, np.bincount(counted, minlength=height))


def test_an_index_that_is_repeated_names_rows_every_time() -> None:
    """A call that comes again adds in the order of the first one."""
    rng = np.random.default_rng(0)
    places = Tensor(rng.integers(0, 9, 30_001), device="CPU")
    rows = Tensor(rng.standard_normal((30_001, 5)).astype(np.float32), device="CPU")
    zeros = Tensor(np.zeros((9, 5), np.float32), device="CPU")
    found = [zeros.scatter_add(0, places.reshape(-1, 1).expand(30_001, 5), rows).numpy() for _ in range(4)]
    assert all(np.array_equal(found[0], other) for other in found)


def test_an_index_that_is_repeated_is_none_that_is_not() -> None:
    """Calls of both kinds in turn: each adds in the order of its own first one."""
    rng = np.random.default_rng(0)
    column = rng.integers(0, 9, (30_001, 1))
    rows = rng.standard_normal((30_001, 5)).astype(np.float32)
    expanded = Tensor(column, device="CPU").expand(30_001, 5)
    stored = Tensor(np.repeat(column, 5, 1), device="CPU").realize()
    found: list[list[Any]] = [[], []]
    for k in range(10):
        zeros, given = Tensor(np.zeros((9, 5), np.float32), device="CPU"), Tensor(rows, device="CPU")
        index = expanded if k % 2 else stored
        assert index.shape == (30_001, 5)
        found[k % 2].append(zeros.scatter_add(0, index, given).numpy())
    clear_trace_cache()
    for index, mine in zip((stored, expanded), found, strict=True):
        zeros, given = Tensor(np.zeros((9, 5), np.float32), device="CPU"), Tensor(rows, device="CPU")
        alone = zeros.scatter_add(0, index, given).numpy()
        assert all(np.array_equal(alone, other) for other in mine)
