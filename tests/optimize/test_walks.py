"""Sequences that a search on a processor walks through: sampled ones, and some that were wrong once.

Machine code runs here as it does nowhere else: results and working memory begin as bytes that are no numbers,
buffers lie between such bytes and as askew as they may, and what threads share is done piece by piece, in any
order. Code for other processors is compiled for this one: what their vectors and masks do can be seen here.
"""

from __future__ import annotations

import ctypes
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from morok import Tensor
from morok.codegen.pipeline import lower
from morok.device.buffer import Buffer, HostAllocator
from morok.device.cpu.device import compile_kernel
from morok.device.cpu.kernel import Kernel
from morok.device.cpu.llvm import host as machine
from morok.device.interpreter import run_kernel
from morok.device.tuning.worker import written_buffers
from morok.dtype import PtrDType
from morok.ir.node import UOp, toposort
from morok.ir.ops import Op, Ops
from morok.machine.choose import cpu_machine
from morok.machine.machine import Machine
from morok.machine.processor import Processor
from morok.optimize.actions.table import apply_all, can
from morok.optimize.heuristics.cpu import choose
from morok.optimize.record import Opt
from morok.optimize.search.space import Opts, Space
from tests.gpu.kernels import emulate
from tests.optimize.kernels import MAKERS, NEON, VALUES, buffers_of, kernel_of, running, same
from tests.schedule import graphs as g

NOTHING = 0xFF  # in every byte: not a number, or -1
ZONE = 256  # bytes before and after a buffer
TARGETS: dict[str, Machine] = {
    "own": cpu_machine(machine(), 2),
    "avx512": cpu_machine(
        Processor("x86_64-unknown-linux-gnu", "skylake-avx512", "+avx512f,+avx512vl,+avx2,+fma,+f16c")
    ),
    "sse2": cpu_machine(Processor("x86_64-unknown-linux-gnu", "x86-64", "")),
}
_allocator = HostAllocator("test")


def running_in_place() -> UOp:
    x = Tensor(np.zeros((19, 70), np.float32)).realize()
    return kernel_of(x.assign(x.cumsum(0)).uop)


def depthwise() -> UOp:
    return kernel_of(Tensor.empty(1, 12, 8, 9).conv2d(Tensor.empty(12, 1, 3, 3), padding=1, groups=12).uop)


def half_product() -> UOp:
    return kernel_of((Tensor.empty(9, 16, dtype="float16") @ Tensor.empty(16, 12, dtype="float16")).uop)


# Where caches are small, the heuristics take these apart in all the ways they know.
LONG: dict[str, Callable[[], UOp]] = {
    "few rows": lambda: kernel_of(g.matmul(g.tensor(2, 40), g.tensor(40, 100))),
    "sum of long rows": lambda: kernel_of(g.total(g.tensor(20, 150), 0)),
    "running sum of long rows": lambda: running(Ops.ADD, 0, 20, 150),
    "running sum in place": running_in_place,
    "softmax of columns": lambda: kernel_of(Tensor.empty(20, 70).softmax(0).uop),
    "depthwise convolution": depthwise,
    "half product": half_product,
    "argmax": lambda: kernel_of(Tensor.empty(7, 19).argmax(1).uop),
}
ALL = {**MAKERS, **LONG}


@cache
def plain(name: str) -> UOp:
    return ALL[name]()


def data_of(ast: UOp) -> list[Any]:
    """Random memory; what is only written holds nothing yet."""
    arrays = buffers_of(ast)
    read = {n.src[0].arg for n in toposort(ast) if n.op is Ops.INDEX and not n.dtype.is_ptr}
    for number in written_buffers(ast):
        if number not in read:
            arrays[number].view(np.uint8)[...] = NOTHING
    return arrays


def wanted(ast: UOp, values: Mapping[str, int]) -> list[Any]:
    """What the interpreter says of a kernel."""
    arrays = data_of(ast)
    run_kernel(ast, arrays, values)
    return arrays


def execute(ast: UOp, target: Machine, arrays: Sequence[Any], values: Mapping[str, int]) -> list[Any]:
    """The buffers after a run as machine code, in pieces; nothing beside them has changed."""
    program = Kernel(compile_kernel(ast, machine(), target), "test")
    dtypes = {n.arg: n.dtype.elem for n in toposort(ast) if isinstance(n.dtype, PtrDType)}
    zones, held = [], []
    for i, a in enumerate(arrays):
        zone = np.full(a.nbytes + 2 * ZONE, NOTHING, np.uint8)
        start = ZONE + a.itemsize * (i % 3)
        zone[start : start + a.nbytes] = a.view(np.uint8)
        zones.append((zone, start))
        held.append(Buffer("CPU", a.size, dtypes[i], _allocator, memory=zone[start : start + a.nbytes]))
    _in_pieces(program, held, values)
    found = []
    for a, (zone, start) in zip(arrays, zones, strict=True):
        beside = np.concatenate((zone[:start], zone[start + a.nbytes :]))
        assert (beside == NOTHING).all(), "something was written beside a buffer"
        found.append(zone[start : start + a.nbytes].copy().view(a.dtype))
    return found


def _in_pieces(program: Kernel, held: Sequence[Buffer], values: Mapping[str, int]) -> None:
    """Every piece of the shared loop by itself, in any order, with working memory that holds nothing."""
    arguments = program.arguments(held, values)
    where = ctypes.addressof(arguments)
    call = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)
    count = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)
    extent = count(program.extent)(where) if program.extent else 1
    pieces = list(range(extent))
    random.Random(extent).shuffle(pieces)
    for piece in pieces:
        room = np.full(program.compiled.scratch + 64, NOTHING, np.uint8)
        call(program.function)(where, piece, piece + 1, room.ctypes.data + -room.ctypes.data % 64)


def check(ast: UOp, *opts: Opt, target: str = "own") -> None:
    """The sequence is allowed, and the machine code does what the interpreter says of the plain kernel."""
    cut = apply_all(ast, opts, TARGETS[target])
    same(execute(cut, TARGETS[target], data_of(ast), VALUES), wanted(ast, VALUES))


# --- sampled walks


@cache
def space_of(name: str, host: Machine) -> Space:
    return Space(plain(name), host)


@cache
def seeds_of(name: str, host: Machine) -> list[Opts]:
    return space_of(name, host).seeds(choose)


@st.composite
def walks(draw: st.DrawFn) -> tuple[str, str, Opts]:
    """A kernel, a processor, and a point that a search may come to."""
    name = draw(st.sampled_from(sorted(ALL)))
    target = draw(st.sampled_from(sorted(TARGETS)))
    host = TARGETS[target]
    if draw(st.booleans()):
        host = replace(host, l1_bytes=512, l2_bytes=2048)
    space = space_of(name, host)
    opts = draw(st.sampled_from(seeds_of(name, host)))
    for _ in range(draw(st.integers(0, 4))):
        opts = _step(draw, space, opts)
    return name, target, opts


def _step(draw: st.DrawFn, space: Space, opts: Opts) -> Opts:
    """A neighbour: a kind of action first, so that rare ones get their turn."""
    here = space.at(opts)
    assert here is not None
    around = space.variations(opts) if draw(st.booleans()) else [(*opts, *more) for more in space.steps(here)]
    kinds: dict[str, list[Opts]] = {}
    for other in around:
        kinds.setdefault(other[-1].name if other else "", []).append(other)
    for _ in range(6 if kinds else 0):
        other = draw(st.sampled_from(kinds[draw(st.sampled_from(sorted(kinds)))]))
        if space.at(other) is not None:
            return other
    return opts


@given(walks())
@settings(max_examples=40)
def test_points_of_a_search_keep_the_answer(walk: tuple[str, str, Opts]) -> None:
    name, target, opts = walk
    check(plain(name), *opts, target=target)


@pytest.mark.slow
@given(walks())
@settings(max_examples=2000)
def test_many_points_of_a_search(walk: tuple[str, str, Opts]) -> None:
    name, target, opts = walk
    check(plain(name), *opts, target=target)


def test_the_samples_reach_what_only_heuristics_do() -> None:
    """Actions that are no step of a search come in by where it begins."""
    small = replace(NEON, l1_bytes=512, l2_bytes=2048)
    found = {
        opt.name for name in LONG for host in (small, NEON) for opts in seeds_of(name, host) for opt in opts
    }
    assert {"SPLIT_K", "ACCUMULATE_IN_CACHE", "HALO"} <= found


# --- what was wrong once


@pytest.mark.parametrize("op", [Ops.ADD, Ops.MAX])
def test_a_row_that_is_carried_belongs_to_one_point_of_a_tile(op: Op) -> None:
    """Lanes of the loop around it would all be carried in the same place."""
    ast = running(op, 0, 3, 4)
    tiles = Opt("TILE", 0, 2), Opt("ACCUMULATE_IN_CACHE", 1, 0)
    check(ast, *tiles)
    check(ast, *tiles, Opt("UPCAST", 3))
    assert "carried in a row" in (can(apply_all(ast, tiles, NEON), Opt("UPCAST", 2), NEON) or "")


@pytest.mark.parametrize("target", sorted(TARGETS))
def test_a_loop_that_may_be_empty_reads_nothing_outside(target: str) -> None:
    """The last element again, of none: what no step of the loop changes is read before it."""
    ast = MAKERS["symbolic sum"]()
    cut = apply_all(ast, (Opt("PEEL", 1, 12), Opt("UNROLL", 1, 12), Opt("PADTO", 1, 2)), NEON)
    for n in (1, 11, 12, 20):
        arrays = data_of(ast)
        got = emulate(lower(cut, TARGETS[target]), *arrays, fresh=[0], values={"n": n})
        same(got, wanted(ast, {"n": n}))
