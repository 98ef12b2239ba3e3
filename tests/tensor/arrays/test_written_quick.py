"""Sorting by pivots, in registers and in parts, whatever processor would choose it. Against NumPy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from morok import Tensor, knobs
from morok import dtype as dt
from morok.codegen.written import WRITERS, Code, writes
from morok.machine.machine import Machine
from morok.tensor.arrays.written_keys import Form, What, values_of
from morok.tensor.arrays.written_order import count_type
from morok.tensor.arrays.written_quick import PARTS, Sorter, count_parts, put_parts, quick_rows, sort_parts
from morok.tensor.arrays.written_ways import way_to_sort
from morok.tensor.creation.written import made_by
from tests.tensor.arrays.test_written_order import in_order, same_bits

RNG = np.random.default_rng(0)


def rows_of(dtype: str, count: int) -> np.ndarray:
    """Rows of every kind that a quicksort may find hard, and of those bits that keys lose."""
    own = np.dtype(dtype)
    if own.kind == "f":
        plain = RNG.normal(size=count).astype(own)
        most, special = own.type(np.inf), plain.copy()
        for i, number in enumerate((np.nan, -np.float64(np.nan), 0.0, -0.0, np.inf, -np.inf)):
            special[i :: 7 + i] = number
        zeros = np.zeros(count, own)
        zeros[::2] = -0.0
        lost = [special, zeros, np.where(zeros == 0, np.nan, zeros).astype(own)]
        lost[-1][1::2] = -np.float64(np.nan)
        lost.append(np.exp2(RNG.integers(-100, 100, count)).astype(own))
    else:
        info = np.iinfo(own)
        plain = RNG.integers(info.min, info.max, count, own, endpoint=True)
        most, lost = own.type(info.max), [np.full(count, info.min, own)]
    up = np.sort(plain)
    organ = np.concatenate([up[::2], up[1::2][::-1]])
    third = plain.copy()
    third[::3] = most
    half = np.where(np.arange(count) % 2, plain, 0).astype(own)
    few = RNG.integers(0, 5, count).astype(own)
    equal = [np.full(count, 7, own), np.full(count, most, own)]
    return np.stack([plain, up, up[::-1], organ, third, half, few, *equal, *lost])


LENGTHS = {
    "int32": (1, 16, 17, 127, 257, 1009),
    "uint32": (300,),
    "float32": (2, 33, 128, 256, 300, 4099),
    "int64": (15, 64, 129, 1009),
    "uint64": (129,),
    "float64": (31, 65, 300, 2003),
}


@pytest.mark.parametrize("dtype", LENGTHS)
def test_rows(dtype: str) -> None:
    """Bit by bit what a stable sort makes of them, in both directions."""
    own = getattr(dt, dtype)
    for number, count in enumerate(LENGTHS[dtype]):
        a, descending = rows_of(dtype, count), number % 2 == 1
        with knobs.override(DEVICE="CPU"):
            key = (values_of(own, descending), *a.shape)
            found = made_by(quick_rows, key, a.shape, own, Tensor(a)).numpy()
        same_bits(found, in_order(a, 1, descending))


@pytest.mark.parametrize("dtype", ["float32", "int64", "float64"])
@pytest.mark.parametrize("blocks", [1, 3])
def test_parts(dtype: str, blocks: int) -> None:
    """Long rows, of which some parts are empty and some are all."""
    own, descending = getattr(dt, dtype), blocks == 3
    a = rows_of(dtype, 5003)
    what = values_of(own, descending)
    key = (what, *a.shape, blocks)
    with knobs.override(DEVICE="CPU"):
        x = Tensor(a)
        held = made_by(count_parts, key, (len(a), blocks, PARTS), count_type(a.shape[1]), x)
        assert (held.numpy().sum((1, 2)) == a.shape[1]).all()
        keys = made_by(put_parts, key, a.shape, own, x, held)
        found = made_by(sort_parts, key, a.shape, own, keys, x, held).numpy()
    same_bits(found, in_order(a, 1, descending))


def test_pivots_that_are_never_chosen_well() -> None:
    """After some turns a pivot is the middle of what keys may be: a row is sorted by these alone."""

    @writes
    def by_middles(code: Code, machine: Machine, what: What, rows: int, count: int) -> None:
        form = Form(what)
        out, given = (code.memory(form.memory, rows * count) for _ in range(2))
        with code.loop(rows) as row:
            sorter = Sorter(code, machine, form, out, count)
            sorter.fair = 0
            start, size = row * count, code.value(count, dt.int64)
            sorter.fetch(given, start, start, size, False)
            sorter.sort(start, size)

    try:
        for dtype in ("int32", "int64"):
            a, own = rows_of(dtype, 3001), getattr(dt, dtype)
            with knobs.override(DEVICE="CPU"):
                key = (values_of(own, False), *a.shape)
                found = made_by(by_middles, key, a.shape, own, Tensor(a)).numpy()
            np.testing.assert_array_equal(found, np.sort(a, 1))
    finally:
        del WRITERS["by_middles"]


@writes
def triangle(code: Code, machine: Machine, what: What, rows: int) -> None:
    """Rows of 0, 1, 2, … elements in order."""
    form = Form(what)
    out, given = (code.memory(form.memory, rows * (rows - 1) // 2) for _ in range(2))
    with code.loop(rows) as row:
        sorter = Sorter(code, machine, form, out, rows)
        start = (row * (row - 1)) >> 1
        sorter.fetch(given, start, start, row, False)
        sorter.sort(start, row)
        sorter.mend(given, (start, row), start, row)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
def test_lengths(dtype: str) -> None:
    """Every length up to some hundred, on both sides of what the registers hold."""
    rows, own = 601, getattr(dt, dtype)
    a = np.concatenate([rows_of(dtype, 20_000)[k] for k in (0, 6, 7, -2)] * 3)[: rows * (rows - 1) // 2]
    a = RNG.permutation(a)
    with knobs.override(DEVICE="CPU"):
        found = made_by(triangle, (values_of(own, False), rows), a.shape, own, Tensor(a)).numpy()
    for row in range(rows):
        part = slice(row * (row - 1) // 2, row * (row + 1) // 2)
        same_bits(found[part], in_order(a[part], 0, False))


def test_it_is_chosen_by_price() -> None:
    """By processors that put lanes side by side, for elements of 32 and 64 bits; short rows are lanes."""
    plain = replace(
        Machine(), cores=2, threads=True, vector_bytes=64, registers=32, l1_bytes=32 << 10, l2_bytes=1 << 20
    )
    machine = replace(plain, packed_stores=True)
    floats, words = values_of(dt.float32, False), values_of(dt.int64, True)
    for what, bits in ((floats, 32), (words, 64)):
        assert way_to_sort(machine, 1, 1 << 20, what, bits).splits
        assert way_to_sort(machine, 1, 1 << 20, what, bits).blocks > 1
        assert way_to_sort(machine, 64, 50257, what, bits).splits
        assert not way_to_sort(machine, 20_000, 10, what, bits).splits
        assert not way_to_sort(plain, 1, 1 << 20, what, bits).splits
    assert not way_to_sort(machine, 1, 1 << 20, values_of(dt.float16, False), 16).splits
    assert not way_to_sort(machine, 1, 1 << 20, 1, 32).splits  # words with positions
