"""Products of 8-bit integers in words of four: NumPy's sums in 32 bits say what is right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from morok import Tensor
from morok.ir.node import toposort
from morok.ir.ops import Ops
from morok.machine.devices import machine_of
from morok.machine.machine import Machine
from morok.schedule.graph import byte_words
from morok.schedule.schedule import schedule

INT32 = "int32"
KINDS = {"int8": np.int8, "uint8": np.uint8}


@pytest.fixture(autouse=True)
def words(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every device multiplies words; where it does not by itself, DOT4 is decomposed.

    In vectors of 16 bytes: wider ones multiply so much at once that products as small as these are not
    worth words. Without units for tiles, which take bytes as they are.
    """

    def with_words(name: str) -> Machine:
        machine = machine_of(name)
        return replace(machine, ops=machine.ops | {Ops.DOT4}, vector_bytes=16, tile_units=())

    monkeypatch.setattr(byte_words, "machine_of", with_words)


def numbers(kind: str, *shape: int) -> Any:
    """All values of a type, its ends more often than others."""
    dtype = KINDS[kind]
    random = np.random.default_rng(len(shape) + sum(shape))
    ends = np.array([np.iinfo(dtype).min, np.iinfo(dtype).max], dtype)
    any_of = random.integers(np.iinfo(dtype).min, np.iinfo(dtype).max + 1, shape).astype(dtype)
    return np.where(random.random(shape) < 0.3, ends[random.integers(0, 2, shape)], any_of)


def multiplies_words(result: Tensor) -> bool:
    return any(n.op is Ops.DOT4 for item in schedule([result.uop]).items for n in toposort(item.ast))


def wide(x: Tensor) -> Tensor:
    return x.cast(INT32)


@pytest.mark.parametrize("left", ["int8", "uint8"])
@pytest.mark.parametrize("right", ["int8", "uint8"])
@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
@pytest.mark.parametrize("steps", [8, 13, 64, 67])
def test_products(left: str, right: str, layout: str, steps: int) -> None:
    a = numbers(left, *((24, steps) if layout[0] == "N" else (steps, 24)))
    b = numbers(right, *((steps, 40) if layout[1] == "N" else (40, steps)))
    x, y = Tensor(a), Tensor(b)
    x, a = (x, a) if layout[0] == "N" else (x.T, a.T)
    y, b = (y, b) if layout[1] == "N" else (y.T, b.T)
    result = wide(x) @ wide(y)
    assert multiplies_words(result)
    np.testing.assert_array_equal(result.numpy(), a.astype(np.int32) @ b.astype(np.int32))


def test_batches_and_what_follows() -> None:
    a, b = numbers("int8", 3, 20, 16), numbers("uint8", 3, 16, 24)
    result = (wide(Tensor(a)) @ wide(Tensor(b))).cast("float32") * 0.5 + 1
    assert multiplies_words(result)
    right = a.astype(np.int32) @ b.astype(np.int32)
    np.testing.assert_array_equal(result.numpy(), right * np.float32(0.5) + 1)


@pytest.mark.parametrize("left", ["int8", "uint8"])
@pytest.mark.parametrize("right", ["int8", "uint8"])
def test_two_loops_of_steps_one_of_which_a_factor_does_not_know(left: str, right: str) -> None:
    a, b = numbers(left, 32, 3, 16), numbers(right, 16, 40)
    x = wide(Tensor(a)).reshape(32, 1, 3, 16)
    y = wide(Tensor(b)).permute(1, 0).reshape(1, 40, 1, 16)
    result = (x * y).sum((2, 3), dtype=INT32)
    assert multiplies_words(result)
    np.testing.assert_array_equal(
        result.numpy(), np.einsum("iak,kj->ij", a.astype(np.int32), b.astype(np.int32))
    )


def test_windows() -> None:
    x, w = numbers("uint8", 2, 16, 9, 9), numbers("int8", 32, 16, 3, 3)
    result = wide(Tensor(x)).conv2d(wide(Tensor(w)), padding=1)
    assert multiplies_words(result)
    padded = np.pad(x.astype(np.int32), ((0, 0), (0, 0), (1, 1), (1, 1)))
    seen = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
    np.testing.assert_array_equal(result.numpy(), np.einsum("ncyxhw,ochw->noyx", seen, w.astype(np.int32)))


def test_sums_beyond_32_bits_wrap() -> None:
    a = np.full((16, 3 << 17), -128, np.int8)  # 3 · 2³¹ is 2³¹ and one time around
    result = wide(Tensor(a)) @ wide(Tensor(a)).T
    assert multiplies_words(result)
    assert (result.numpy() == -(1 << 31)).all()


def half_of(x: Tensor) -> Tensor:
    return x.cast(INT32) * 2


@pytest.mark.parametrize(
    "make",
    [
        lambda a, b: wide(a[:1]) @ wide(b),  # one row: words are put together for one use
        lambda a, b: half_of(a) @ wide(b),  # no bytes any more
        lambda a, b: wide(a[:, :4]) @ wide(b[:4]),  # a single word
        lambda a, b: wide(a).cast("int64") @ wide(b).cast("int64"),
        lambda a, b: a.cast("float32") @ b.cast("float32"),
    ],
)
def test_what_stays_as_it_is(make: Callable[[Tensor, Tensor], Tensor]) -> None:
    a, b = numbers("int8", 24, 32), numbers("int8", 32, 24)
    result = make(Tensor(a), Tensor(b))
    assert not multiplies_words(result)
