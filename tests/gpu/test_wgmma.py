"""Matrix units of warp groups, and results that are staged. Against NumPy."""

from __future__ import annotations

from dataclasses import replace
from math import gcd
from typing import Any

import numpy as np
import pytest

from morok import Tensor, knobs
from morok.codegen.pipeline import lower
from morok.dtype import AddrSpace, PtrDType, int32, void
from morok.errors import DeviceError
from morok.ir.matrix import ALL_UNITS, WGMMA_UNITS, Products
from morok.ir.node import UOp, const, make, toposort
from morok.ir.ops import Ops
from morok.optimize.actions.table import apply_all, can
from morok.optimize.heuristics.builder import Builder
from morok.optimize.heuristics.gpu.matmul import AHEAD, matrix_product, tile_choices
from morok.optimize.record import Opt, applied
from morok.render.cuda.shared import lifetimes, places
from tests.gpu.products import (
    HOST,
    TARGET,
    UNLIMITED,
    close,
    emulate,
    execute,
    kernel_of,
    left_first,
    memory_of,
    place_of,
    product,
    sequence,
)

# --- units of warp groups


def _group(name: str, n: int) -> int:
    return 1 + next(i for i, u in enumerate(ALL_UNITS) if u.name == name and u.n == n)


@pytest.mark.parametrize("unit", WGMMA_UNITS, ids=lambda u: f"{u.name}-{u.n}")
def test_results_of_groups_hold_every_element_once(unit: Any) -> None:
    places = [(row, column) for _, _, row, column in unit.c.places(unit.lanes)]
    assert sorted(places) == [(i, j) for i in range(unit.m) for j in range(unit.n)]


@pytest.mark.parametrize(
    ("dtype", "wide", "unit", "n", "transposed", "depth", "step"),
    [
        ("float16", None, "f16", 64, "", 4, 64),
        ("float16", None, "f16", 128, "b", 3, 64),
        ("float16", None, "f16", 64, "a", 1, 64),
        ("bfloat16", None, "bf16", 64, "ab", 2, 128),
        ("float32", None, "tf32", 64, "b", 3, 32),
        ("int8", "int32", "s8", 64, "b", 3, 128),
        ("float8_e4m3", "float32", "e4m3", 64, "b", 4, 128),
    ],
)
def test_units_of_groups_read_shared_tiles(
    dtype: str, wide: str | None, unit: str, n: int, transposed: str, depth: int, step: int
) -> None:
    m, columns, k = 256, 2 * n, 384

    def multiply(a: Tensor, b: Tensor) -> Tensor:
        a, b = (
            (a.transpose(0, 1) if "a" in transposed else a),
            (b.transpose(0, 1) if "b" in transposed else b),
        )
        return a @ b if wide is None else a.cast(wide) @ b.cast(wide)

    left, right = (
        ((k, m) if "a" in transposed else (m, k)),
        ((columns, k) if "b" in transposed else (k, columns)),
    )
    ast = kernel_of(multiply, left, right, dtype=dtype)
    arrays, types = memory_of(ast)
    first, second = (1, 2) if left_first(ast) else (2, 1)
    opts = sequence(128, n, step, (2, 1), depth, _group(f"wgmma.{unit}", n), transposed, (first, second))
    with knobs.override(TF32=True, FAST_FP8=True):
        linear = lower(apply_all(ast, opts, HOST), TARGET)
    a, b = arrays[first].reshape(left).astype(float), arrays[second].reshape(right).astype(float)
    want = (a.T if "a" in transposed else a) @ (b.T if "b" in transposed else b)
    close(execute(linear, arrays, types), want, 1e-2)


def test_a_sum_of_one_step_is_waited_for() -> None:
    """Gradients of weights for 16 samples: registers are handed over and given back without a loop, too."""
    ast = kernel_of(lambda a, b: a.T @ b, (16, 256), (16, 128))
    arrays, types = memory_of(ast)
    first, second = (1, 2) if arrays[1].size == 16 * 256 else (2, 1)
    opts = [Opt("TILE", 0, 64), Opt("TILE", 1, 64), Opt("STAGE", first, 1, (2, 3))]
    opts += [Opt("STAGE", second, 1, (2, 4)), Opt("TC", 2, _group("wgmma.f16", 64), (3, 4))]
    linear = lower(apply_all(ast, opts, HOST), TARGET)
    watched = (Ops.WMMA, Ops.ASYNC_COMMIT, Ops.ASYNC_WAIT, Ops.FENCE)
    found = [n.op for n in linear.src if n.op in watched and (n.op is Ops.WMMA or n.arg != 0)]
    assert found[found.index(Ops.WMMA) - 1 :] == [Ops.FENCE, Ops.WMMA, Ops.ASYNC_COMMIT, Ops.ASYNC_WAIT]
    left, right = (arrays[n].reshape(16, -1).astype(float) for n in (first, second))
    close(execute(linear, arrays, types), left.T @ right, 1e-3)


def test_a_tile_is_not_overwritten_while_a_unit_reads_it() -> None:
    ast = kernel_of(product, (256, 512), (512, 128))
    arrays, types = memory_of(ast)
    opts = sequence(128, 64, 64, (2, 1), 3, _group("wgmma.f16", 64))
    linear = lower(apply_all(ast, opts, HOST), TARGET)
    emulate(linear, arrays, types)
    waits = [n for n in linear.src if n.op is Ops.ASYNC_WAIT and isinstance(n.arg, Products)]
    assert [n.arg.pending for n in waits] == [1, 0]
    late = make(Ops.LINEAR, linear.dtype, tuple(n for n in linear.src if n not in waits))
    with pytest.raises(DeviceError, match="while a unit still reads it"):
        emulate(late, arrays, types)


def test_nor_by_a_plain_store() -> None:
    ast = kernel_of(product, (256, 512), (512, 128))
    arrays, types = memory_of(ast)
    opts = sequence(128, 64, 64, (2, 1), 1, _group("wgmma.f16", 64))
    linear = lower(apply_all(ast, opts, HOST), TARGET)
    start = next(i for i, n in enumerate(linear.src) if n.op is Ops.ASYNC_COMMIT and n.arg == Products())
    end = next(i for i, n in enumerate(linear.src) if n.op is Ops.ASYNC_WAIT and isinstance(n.arg, Products))
    assert start < end
    tile = next(n for n in linear.src if n.op is Ops.DEFINE_LOCAL)
    assert isinstance(tile.dtype, PtrDType)
    place = const(int32, 0)
    for index in sorted((n for n in linear.src if n.op is Ops.SPECIAL and n.arg[0] == "l"), key=str):
        place = place * int(index.src[0].arg) + index
    where = make(Ops.INDEX, tile.dtype, (tile, place))
    around = [make(Ops.BARRIER, void, (where,), i) for i in (1, 2)]
    sums = [n for n in toposort(where) if n not in linear.src]
    more = (*sums, around[0], make(Ops.STORE, void, (where, const(tile.dtype.elem, 0.0))), around[1])
    early, late = ((*linear.src[:i], *more, *linear.src[i:]) for i in (start + 1, end + 1))
    with pytest.raises(DeviceError, match=r"STORE, .* overwrites the local memory .* a unit still reads it"):
        emulate(make(Ops.LINEAR, linear.dtype, early), arrays, types)
    emulate(make(Ops.LINEAR, linear.dtype, late), arrays, types)


def test_a_unit_of_a_group_is_refused_without_a_shared_tile() -> None:
    ast = kernel_of(product, (256, 256), (256, 256))
    number = _group("wgmma.f16", 64)
    assert "reads shared tiles" in (can(ast, Opt("TC", 2, number, (0, 1)), HOST) or "")
    narrow = apply_all(ast, sequence(128, 64, 32, (1, 1), 2)[:5], HOST)
    assert "whole panels" in (can(narrow, Opt("TC", 5, number, (3, 4)), HOST) or "")


# --- collected results


FEW = replace(HOST, cores=1, tma=False)  # one multiprocessor: large tiles pay; all threads copy


def chosen(ast: UOp, host: Any = FEW) -> UOp:
    builder = Builder(ast, host)
    assert matrix_product(builder)
    return builder.ast


@pytest.mark.parametrize("shape", [(256, 128, 256), (200, 136, 264), (130, 72, 300), (130, 72, 261)], ids=str)
def test_large_tiles_of_any_size(shape: tuple[int, int, int]) -> None:
    """Narrow results go through shared memory also where rows end within a vector: then in smaller ones."""
    m, k, n = shape
    ast = kernel_of(product, (m, k), (k, n))
    kernel = chosen(ast)
    assert any(o.name == "STAGE_RESULT" for o in applied(kernel))
    linear = lower(kernel, TARGET)
    assert {x.src[1].dtype.lanes for x in linear.src if x.op is Ops.STORE and _is_output(x)} == {gcd(n, 8)}
    arrays, types = memory_of(ast)
    a, b = arrays[1].reshape(m, k).astype(float), arrays[2].reshape(k, n).astype(float)
    close(execute(linear, arrays, types), a @ b, 1e-3)


def test_edges_that_whole_vectors_respect_are_stored_as_such() -> None:
    ast = kernel_of(product, (200, 64), (64, 264))
    linear = lower(chosen(ast), TARGET)
    widths = {n.src[1].dtype.lanes for n in linear.src if n.op is Ops.STORE and _is_output(n)}
    assert widths == {8}
    odd = lower(chosen(kernel_of(product, (200, 64), (64, 263))), TARGET)
    assert 1 in {n.src[1].dtype.lanes for n in odd.src if n.op is Ops.STORE and _is_output(n)}


def _is_output(store: UOp) -> bool:
    dtype = store.src[0].dtype
    return isinstance(dtype, PtrDType) and dtype.space is AddrSpace.GLOBAL


def test_gathered_fragments_are_staged_too() -> None:
    ast = kernel_of(product, (128, 96), (96, 256), dtype="float32")
    with knobs.override(TF32=True):
        kernel = chosen(ast)
    assert {"TC", "STAGE_RESULT"} <= {o.name for o in applied(kernel)}
    linear = lower(kernel, TARGET)
    sizes = [n.dtype.size for n in linear.src if n.op is Ops.DEFINE_LOCAL]  # type: ignore[attr-defined]
    assert max(sizes) <= 3 * 256 * 128
    arrays, types = memory_of(ast)
    a, b = arrays[1].reshape(128, 96).astype(float), arrays[2].reshape(96, 256).astype(float)
    close(execute(linear, arrays, types), a @ b, 2e-3)


def test_epilogues_of_a_staged_sum() -> None:
    def layer(x: Tensor, w: Tensor, b: Tensor, r: Tensor) -> Tensor:
        return (x @ w + b).tanh() + r

    ast = kernel_of(layer, (128, 64), (64, 128), (128,), (128, 128))
    kernel = chosen(ast)
    arrays, types = memory_of(ast)
    linear = lower(kernel, TARGET)
    stores = [n for n in linear.src if n.op is Ops.STORE and n.src[1].dtype.lanes == 8]
    assert len(stores) == AHEAD  # vectors of some rows, in a loop: what else they need is asked for at once
    x, w, b, r = (
        arrays[i].astype(float).reshape(s)
        for i, s in _in_order(ast, [(128, 64), (64, 128), (128,), (128, 128)])
    )
    close(execute(linear, arrays, types), np.tanh(x @ w + b) + r, 2e-3)


def _in_order(ast: UOp, shapes: list[tuple[int, ...]]) -> list[tuple[int, tuple[int, ...]]]:
    """Buffer numbers of x, w, b and r: by size, and of the factors the one that moves with the rows first."""
    sizes = {n.arg: n.dtype.size for n in toposort(ast) if n.op is Ops.DEFINE_GLOBAL}  # type: ignore[attr-defined]
    factors = [i for i, size in sizes.items() if i and size == 128 * 64]
    rows = [i for i in factors if can(ast, Opt("STAGE", i, 0, (0, 2)), UNLIMITED) is None]
    others = [i for i in factors if i not in rows]
    bias = next(i for i, size in sizes.items() if size == 128)
    rest = next(i for i, size in sizes.items() if i and size == 128 * 128)
    return list(zip((*rows, *others, bias, rest), shapes, strict=True))


def test_a_result_is_staged_only_from_one_sum() -> None:
    ast = kernel_of(product, (64, 64), (64, 64))
    assert can(ast, Opt("STAGE_RESULT", axes=(0, 1)), HOST) is None
    assert "no plain loop" in (can(ast, Opt("STAGE_RESULT", axes=(0, 2)), HOST) or "")
    assert "each once" in (can(ast, Opt("STAGE_RESULT", axes=(0, 0)), HOST) or "")
    plain = kernel_of(lambda a: a * 2, (64, 64))
    assert "not exactly one sum" in (can(plain, Opt("STAGE_RESULT", axes=(0,)), HOST) or "")
    busy = apply_all(ast, [Opt("LOCAL", 0, 8)], HOST)
    assert "given work already" in (can(busy, Opt("STAGE_RESULT", axes=(0, 1)), HOST) or "")


def test_staged_results_lie_where_operands_were() -> None:
    linear = lower(chosen(kernel_of(product, (256, 256), (256, 256))), TARGET)
    buffers = [n for n in linear.src if n.op is Ops.DEFINE_LOCAL]
    offsets, total = places(linear.src)
    sizes = [n.dtype.size * n.dtype.elem.itemsize for n in buffers]  # type: ignore[attr-defined]
    assert len(buffers) == 3 and total < sum(sizes)
    alive = lifetimes(linear.src)
    spans = list(zip(offsets, sizes, (alive[b] for b in buffers), strict=True))
    for i, (start, size, (first, last)) in enumerate(spans):
        for other, other_size, (begin, stop) in spans[:i]:
            if start < other + other_size and other < start + size:
                assert last < begin or stop < first
    without = tuple(n for n in linear.src if n.op is not Ops.BARRIER)
    assert places(without)[1] == sum(sizes)


# --- any legal sequence


@pytest.mark.parametrize(
    "seed", [*range(3), *(pytest.param(s, marks=pytest.mark.slow) for s in range(3, 16))]
)
def test_random_tiles_give_the_same_answer(seed: int) -> None:
    random = np.random.default_rng(seed)
    transposed = str(random.choice(["", "a", "b", "ab"]))
    group = bool(random.integers(2))
    unit = _group("wgmma.f16", int(random.choice([64, 128]))) if group else 1
    size = ALL_UNITS[unit - 1]
    warps = (int(random.choice([1, 2])), 1 if group else int(random.choice([1, 2])))
    rows = size.m * warps[0] * int(random.choice([1, 2]))
    columns = size.n * warps[1] * (1 if group else int(random.choice([2, 4])))
    columns = max(columns, 32)
    step = 64 if group else int(random.choice([16, 32, 64]))
    depth = int(random.integers(1, 5))
    k = step * int(random.integers(2, 6))
    m, n = 2 * rows, 2 * columns

    def multiply(a: Tensor, b: Tensor) -> Tensor:
        a, b = (
            (a.transpose(0, 1) if "a" in transposed else a),
            (b.transpose(0, 1) if "b" in transposed else b),
        )
        return (a @ b).relu() + 1

    left, right = ((k, m) if "a" in transposed else (m, k)), ((n, k) if "b" in transposed else (k, n))
    ast = kernel_of(multiply, left, right)
    opts = sequence(rows, columns, step, warps, depth, unit, transposed)
    if "a" not in transposed and random.integers(2):
        at = next(i for i, o in enumerate(opts) if o.name == "TC")
        inner = [replace(o, axis={3: 10, 4: 11}.get(o.axis, o.axis)) for o in opts[at + 1 :]]
        opts = [*opts[:at], Opt("STAGE_RESULT", axes=(3, 4)), Opt("TC", 5, unit, (10, 11)), *inner]
        opts += [Opt("UPCAST", 4, 4), Opt("LOCAL", 4, 8)]
    if random.integers(2):
        opts.append(Opt("SWAP", 0, 1))
    arrays, types = memory_of(ast, seed)
    a, b = arrays[1].reshape(left).astype(float), arrays[2].reshape(right).astype(float)
    want = np.maximum((a.T if "a" in transposed else a) @ (b.T if "b" in transposed else b), 0) + 1
    close(execute(lower(apply_all(ast, opts, HOST), TARGET), arrays, types), want, 2e-3)


def test_a_search_begins_with_several_tiles() -> None:
    ast = kernel_of(product, (1024, 1024), (1024, 1024))
    found = tile_choices(ast, HOST)
    assert len(found) >= 4 and len(set(found)) == len(found)
    for opts in found:
        assert applied(apply_all(ast, opts, HOST)) == opts


def test_tiles_are_transposed_while_they_are_filled() -> None:
    # the unit wants rows along the steps, memory has them along the columns
    ast = kernel_of(product, (128, 128), (128, 128), dtype="float32")
    with knobs.override(TF32=True):
        kernel = apply_all(ast, sequence(64, 64, 32, (1, 1), 3, _group("wgmma.tf32", 64), "b"), HOST)
    linear = lower(kernel, TARGET)
    arrays, types = memory_of(ast)
    a, b = arrays[1].reshape(128, 128).astype(float), arrays[2].reshape(128, 128).astype(float)
    close(execute(linear, arrays, types), a @ b, 2e-3)
    single = [n for n in linear.src if n.op is Ops.ASYNC_COPY and n.arg == 4]
    assert single
    for copy in single:  # neighbouring threads read whole sectors, and write to different banks
        target, source = ([place_of(x.src[1], i) for i in range(32)] for x in copy.src)
        assert all(source[i] - source[i - i % 8] == i % 8 for i in range(32))
        assert sorted(place % 32 for place in target) == list(range(32))


def test_no_copy_is_under_way_when_its_memory_is_given_to_the_result() -> None:
    # three steps and a ring of four: nothing is copied for the steps that do not exist
    ast = kernel_of(product, (256, 192), (192, 512))
    linear = lower(chosen(ast), TARGET)
    copies = [n for n in linear.src if n.op is Ops.ASYNC_COPY]
    inside = [n for n in copies if len(n.src[0].src) > 2]
    assert inside and not any(len(n.src[1].src) > 2 for n in copies)
    arrays, types = memory_of(ast)
    emulate(linear, arrays, types)
    always = {n: n.replace((n.src[0].replace(n.src[0].src[:2]), n.src[1])) for n in inside}
    eager = []
    for node in linear.src:
        if node in always:
            eager.append(always[node].src[0])
        eager.append(always.get(node, node))
    with pytest.raises(DeviceError):
        emulate(make(Ops.LINEAR, linear.dtype, tuple(eager)), arrays, types)
