"""Prefetches of memory that a loop will read: where there are some, and where not."""

from dataclasses import replace

import pytest

from morok.codegen.linear.prefetch import LARGE, UNDER_WAY, step
from morok.codegen.pipeline import lower
from morok.device.cpu.llvm import host
from morok.dtype import AddrSpace
from morok.ir.build import reduce as reduce_
from morok.ir.build import rng, sink
from morok.ir.node import UOp
from morok.ir.ops import AxisKind, Ops
from morok.machine.choose import cpu_machine
from morok.machine.files import load
from morok.machine.machine import Machine
from morok.optimize.heuristics.apply import optimize
from tests.codegen.kernels import REDUCE, UPCAST, add, buffers, check, noise, read, split, write, zeros
from tests.optimize.kernels import kernel_of
from tests.schedule import graphs as g

FAR = LARGE // 4  # numbers of an array that is in no near cache
HINTS = Machine("hints", vector_bytes=16, prefetch_bytes=256)


def hints(kernel: UOp, target: Machine = HINTS) -> list[UOp]:
    return [n for n in lower(kernel, target).src if n.op is Ops.PREFETCH]


def test_one_hint_per_line_and_array() -> None:
    found = hints(split(add(FAR), 0, 32, UPCAST))
    assert len(found) == 2 * (32 * 4 // 64)
    assert {n.src[0].src[0].arg for n in found} == {1, 2}


def test_prefetches_point_ahead_by_as_much_as_the_device_wants() -> None:
    first, *_ = hints(split(add(FAR), 0, 16, UPCAST))
    place = first.src[0].src[1]
    assert place.op is Ops.ADD and place.src[1].arg == 256 // 4


def test_near_arrays_and_other_devices_get_none() -> None:
    assert not hints(split(add(FAR // 2), 0, 32, UPCAST))
    assert not hints(split(add(FAR), 0, 32, UPCAST), Machine("plain", vector_bytes=16))


def test_less_than_a_line_per_step_gets_none() -> None:
    assert not hints(split(add(FAR), 0, 8, UPCAST))


def test_gaps_get_none() -> None:
    out, x = buffers(FAR, 2 * FAR)
    r, u = rng(FAR // 16, 0), rng(16, 1, AxisKind.UPCAST)
    place = r * 16 + u
    assert not hints(sink(write(out, place, read(x, r * 32 + u), r, u)))
    assert hints(sink(write(out, place, read(x, r * 16 + u + 4), r, u)))


def several_runs(width: int, repeated: bool = False, count: int = 2) -> UOp:
    """Blocks of so many numbers, of which some runs of 8 · 16 are read at once, in two pieces; and perhaps
    one run of 4 · 16 before them for both pieces."""
    first = 64 if repeated else 0
    out, x = buffers(FAR, FAR * width // 128)
    blocks, pieces, k = rng(FAR // 128, 0), rng(2, 1), rng(4, 2)
    u = rng(16, 3, AxisKind.UPCAST)
    begin = blocks * width + k * 16 + u
    value = read(x, begin + pieces * 64 + first)
    for n in range(1, count):
        value = value + read(x, begin + pieces * 64 + first + 128 * n)
    value = value + read(x, begin) if repeated else value
    place = blocks * 128 + pieces * 64 + k * 16 + u
    return sink(write(out, place, value, blocks, pieces, k, u))


def test_runs_that_leave_no_gaps_get_one_each() -> None:
    """As blocks of weights have them, of which a word has codes of two groups."""
    assert len(hints(several_runs(256))) == 2
    assert not hints(several_runs(256 + 64))
    assert len(hints(several_runs(256 + 64, repeated=True))) == 3  # one of them for both pieces
    assert not hints(several_runs(256, repeated=True))
    assert len(hints(several_runs(UNDER_WAY * 128, count=UNDER_WAY))) == UNDER_WAY
    assert not hints(several_runs(2 * UNDER_WAY * 128, count=2 * UNDER_WAY))  # so many keep the memory busy


def test_reductions_get_some_too() -> None:
    out, x = buffers(1, FAR)
    k = rng(FAR, 0, REDUCE)
    total = sink(write(out, 0, reduce_(read(x, k), Ops.ADD, [k])))
    assert len(hints(split(total, 0, 32, AxisKind.UNROLL))) == 2


def test_steps() -> None:
    r, other = rng(8, 0), rng(8, 1)
    assert step(r, r) == 1 and step(other, r) == 0
    assert step(r * 4 + other * 2 + 3, r) == 4
    assert step(r * other, r) is None


def test_hints_beyond_the_end_do_no_harm() -> None:
    target = replace(cpu_machine(host()), prefetch_bytes=1 << 30)
    check(split(add(FAR), 0, 32, UPCAST), [zeros(FAR), noise(FAR, 1), noise(FAR, 2)], target=target)


@pytest.mark.parametrize(("steps", "hinted"), [(1024, True), (64, False)])
def test_panels_that_leave_the_first_cache_are_asked_for(steps: int, hinted: bool) -> None:
    """A tile reads a line of its panel and 2 KB further on; of a panel that stays in the cache nothing."""
    known = replace(load("avx512-amx"), cores=1, prefetch_bytes=0)
    kernel = kernel_of(g.matmul(g.tensor(192, steps), g.tensor(steps, 192)))
    found = [n for n in lower(optimize(kernel, known), known).src if n.op is Ops.PREFETCH]
    assert bool(found) is hinted
    assert all(n.src[0].src[0].dtype.space is AddrSpace.LOCAL for n in found)  # type: ignore[attr-defined]
    plain = replace(known, panel_ahead=0)
    assert not [n for n in lower(optimize(kernel, plain), plain).src if n.op is Ops.PREFETCH]
