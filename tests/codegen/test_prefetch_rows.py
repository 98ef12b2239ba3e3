"""Prefetches of rows at places that are read from memory: how many, how far ahead, and in bounds."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from morok.codegen.linear.prefetch import LARGE
from morok.codegen.pipeline import lower
from morok.device.cpu.llvm import host
from morok.dtype import float32, int32
from morok.ir.bounds import bounds
from morok.ir.build import cast, define_global, rng, sink, variable
from morok.ir.node import UOp, toposort
from morok.ir.ops import Ops
from morok.machine.choose import cpu_machine
from morok.machine.machine import Machine
from tests.codegen.kernels import UPCAST, check, noise, read, write, zeros

MACHINE = Machine("hints", vector_bytes=64, prefetch_bytes=2048)
TABLE = LARGE // 4  # numbers of an array that is in no near cache


def rows(count: Any, width: int, table: int = TABLE, most: int = 0) -> UOp:
    """out[r, c] = table[places[r], c]"""
    most = most or count
    out, x = define_global(float32, most * width, 0), define_global(float32, table, 1)
    places = define_global(int32, most, 2)
    r, c, lane = rng(count, 0), rng(width // 16, 1), rng(16, 2, UPCAST)
    column = c * 16 + lane
    row = cast(read(places, r), r.dtype)
    return sink(write(out, r * width + column, read(x, row * width + column), r, c, lane))


def hints(kernel: UOp, target: Machine = MACHINE) -> list[UOp]:
    return [n for n in lower(kernel, target).src if n.op is Ops.PREFETCH]


@pytest.mark.parametrize(("width", "ahead"), [(64, 8), (256, 2), (768, 1), (8192, 1)])
def test_the_same_line_of_a_row_further_on_is_asked_for(width: int, ahead: int) -> None:
    """As many rows ahead as the machine asks for bytes, at least one; and never beyond the last place."""
    (hint,) = hints(rows(100, width))
    address = hint.src[0]
    assert address.src[0].arg == 1
    (place,) = [n.src[0].src[1] for n in toposort(address.src[1]) if n.op is Ops.LOAD]
    assert place.op is Ops.MIN and bounds(place) == (ahead, 99)


def test_what_columns_share_is_computed_once_a_row() -> None:
    linear = lower(rows(100, 256), MACHINE)
    loops = [p for p, n in enumerate(linear.src) if n.op is Ops.RANGE]
    reads = [p for p, n in enumerate(linear.src) if n.op is Ops.LOAD and n.dtype.lanes == 1]
    assert len(loops) == len(reads) == 2 and loops[0] < min(reads) and max(reads) < loops[1]


def test_near_tables_long_rows_and_other_machines_get_none() -> None:
    assert not hints(rows(100, 256, TABLE // 2))
    assert not hints(rows(100, 256), Machine("plain", vector_bytes=64))
    far = hints(rows(100, 16384, TABLE * 4))  # walked as any array: what follows in the row is asked for
    assert [n.op for n in toposort(*far) if n.op is Ops.MIN] == []


@pytest.mark.parametrize(("count", "width"), [(1, 64), (5, 256), (100, 48), (3, 1024)])
def test_rows_are_those_of_their_places(count: int, width: int) -> None:
    places = np.random.default_rng(count).integers(0, TABLE // width, count).astype(np.int32)
    target = replace(cpu_machine(host()), prefetch_bytes=2048)
    assert bool(hints(rows(count, width), target)) is (count > 1)
    check(rows(count, width), [zeros(count * width), noise(TABLE), places], target=target, rtol=0, atol=0)


@pytest.mark.parametrize("count", [1, 2, 7, 16])
def test_of_as_many_places_as_are_known_later_the_last_is_the_last(count: int) -> None:
    kernel = rows(variable("n", 1, 16), 256, most=16)
    (hint,) = hints(kernel)
    assert not [n for n in toposort(hint) if n.op is Ops.CONST and n.arg == 15]
    places = np.random.default_rng(count).integers(0, TABLE // 256, 16).astype(np.int32)
    target = replace(cpu_machine(host()), prefetch_bytes=2048)
    check(kernel, [zeros(16 * 256), noise(TABLE), places], {"n": count}, target, rtol=0, atol=0)
