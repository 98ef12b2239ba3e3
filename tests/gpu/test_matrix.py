"""Matrix products on a grid: shared tiles, rings, matrix units. All on the emulator, against NumPy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from morok import Tensor, knobs
from morok.codegen.gpu import cuda_target
from morok.codegen.pipeline import lower
from morok.device.buffer import Buffer
from morok.device.emulator import EmulatedKernel, EmulatorAllocator, emulated_host
from morok.device.interpreter import run_kernel
from morok.dtype import AddrSpace, DType, PtrDType
from morok.errors import DeviceError
from morok.ir.alu_array import storage
from morok.ir.matrix import ALL_UNITS, GROUP_UNITS, MMA_F16, MMA_INT8, WARP_UNITS, Products, warp_units
from morok.ir.node import UOp, make, toposort
from morok.ir.ops import AxisKind, Ops
from morok.optimize.actions import apply_all, can
from morok.optimize.builder import Builder
from morok.optimize.gpu_matmul import matrix_product, tile_choices
from morok.optimize.record import Opt, applied
from morok.render.cuda import render
from morok.render.cuda_shared import lifetimes, places
from morok.schedule.schedule import schedule

TARGET = cuda_target()
HOST = emulated_host(TARGET)
UNLIMITED = replace(HOST, local_bytes=1 << 40)
Maker = Callable[..., Tensor]


def product(a: Tensor, b: Tensor) -> Tensor:
    return a @ b


def kernel_of(make_it: Maker, *shapes: tuple[int, ...], dtype: str = "float16") -> UOp:
    """The one kernel of a function of tensors without values."""
    (item,) = schedule([make_it(*(Tensor.empty(*s, dtype=dtype) for s in shapes)).uop]).items
    return item.ast


def memory_of(ast: UOp, seed: int = 0) -> tuple[list[Any], list[DType]]:
    """Random memory for all buffers, and their types; the first is the result."""
    random = np.random.default_rng(seed)
    found = {n.arg: n.dtype for n in toposort(ast) if n.op is Ops.DEFINE_GLOBAL}
    arrays: list[Any] = []
    types = []
    for number in sorted(found):
        dtype = found[number]
        assert isinstance(dtype, PtrDType)
        elem, count = dtype.elem, dtype.size
        data = random.normal(size=count) if elem.is_float else random.integers(-8, 8, count)
        arrays.append(data.astype(storage(elem)))
        types.append(elem)
    return arrays, types


def emulate(linear: UOp, arrays: list[Any], types: list[DType]) -> Any:
    """The first array after a run on the emulator, which starts with nothing in it."""
    allocator = EmulatorAllocator("test")
    held = []
    for i, (array, dtype) in enumerate(zip(arrays, types, strict=True)):
        block = allocator.allocate(array.nbytes)
        if i:
            allocator.copy_in(block, 0, array)
        held.append(Buffer("test", array.size, dtype, allocator, memory=block))
    EmulatedKernel(linear, "test")(held, {})
    out = np.zeros_like(arrays[0])
    allocator.copy_out(held[0].memory, 0, out)
    return out


def left_first(ast: UOp) -> bool:
    """Whether buffer 1 is the left factor: the order of the factors of a product is free."""
    return can(ast, Opt("STAGE", 1, 0, (0, 2)), UNLIMITED) is None


def sequence(
    rows: int,
    columns: int,
    step: int,
    warps: tuple[int, int],
    depth: int,
    unit: int = 1,
    turned: str = "",
    buffers: tuple[int, int] = (1, 2),
) -> list[Opt]:
    """The actions of a tile on a matrix unit, for a product whose loops are 0, 1 and 2."""
    opts = [Opt("TILE", 0, rows), Opt("TILE", 1, columns), Opt("TILE", 2, step)]
    opts.append(Opt("STAGE", buffers[0], depth, (5, 3) if "a" in turned else (3, 5)))
    opts.append(Opt("STAGE", buffers[1], depth, (4, 5) if "b" in turned else (5, 4)))
    opts.append(Opt("TC", 5, unit, (3, 4)))
    opts += [Opt("LOCAL", n, w) for n, w in zip((3, 4), warps, strict=True) if w > 1]
    size = ALL_UNITS[unit - 1]
    left = ((3, rows // size.m // warps[0]), (4, columns // size.n // warps[1]))
    opts += [Opt("UPCAST", n) for n, count in left if count > 1]
    if step > size.k:
        opts.append(Opt("UNROLL", 5))
    return opts


def close(got: Any, want: Any, tolerance: float) -> None:
    """The error in norm."""
    want = np.asarray(want, dtype=np.float64)
    error = np.linalg.norm(np.asarray(got, dtype=np.float64).reshape(want.shape) - want)
    assert error <= tolerance * np.linalg.norm(want)


# --- the description of units


@pytest.mark.parametrize("unit", WARP_UNITS, ids=lambda u: u.name)
def test_fragments_hold_every_element_once(unit: Any) -> None:
    for fragment, shape in (
        (unit.a, (unit.m, unit.k)),
        (unit.b, (unit.k, unit.n)),
        (unit.c, (unit.m, unit.n)),
    ):
        places = [(row, column) for _, _, row, column in fragment.places(unit.lanes)]
        assert sorted(places) == [(i, j) for i in range(shape[0]) for j in range(shape[1])]


def test_fragments_are_those_of_the_manual() -> None:
    # PTX ISA, mma.m16n8k16 and m16n8k32: row = lane/4 (+8), column = lane%4 * 2 (+8) …
    for lane in range(32):
        group, thread = lane // 4, lane % 4
        for i in range(8):
            row = group if i % 4 < 2 else group + 8
            column = thread * 2 + (i & 1) + (8 if i >= 4 else 0)
            assert MMA_F16.a.place(lane, i) == (row, column)
        for i in range(4):
            assert MMA_F16.b.place(lane, i) == (thread * 2 + (i & 1) + (8 if i >= 2 else 0), group)
            assert MMA_F16.c.place(lane, i) == (group + 8 * (i // 2), thread * 2 + (i & 1))
        for i in range(16):
            row = group + 8 * (i // 4 % 2)
            assert MMA_INT8.a.place(lane, i) == (row, thread * 4 + i % 4 + 16 * (i // 8))


def test_architectures_have_units() -> None:
    assert warp_units("sm_75") == ()
    assert {u.name for u in warp_units("sm_80")} == {"mma.f16", "mma.bf16", "mma.tf32", "mma.s8", "mma.u8"}
    assert set(WARP_UNITS) == set(warp_units("cuda-sm_90a"))


# --- actions


def test_a_matrix_unit_is_refused_with_a_reason() -> None:
    ast = kernel_of(product, (64, 64), (64, 64))
    assert can(ast, Opt("TC", 2, 1, (0, 1)), HOST) is None
    assert can(ast, Opt("TC", 2, 2, (0, 1)), HOST) == (
        "the factors are not bfloat16, which the unit mma.bf16 multiplies"
    )
    assert "rounds its inputs" in (can(ast, Opt("TC", 2, 3, (0, 1)), HOST) or "")
    assert "adds in int32" in (can(ast, Opt("TC", 2, 4, (0, 1)), HOST) or "")
    assert "no number 99" in (can(ast, Opt("TC", 2, 99, (0, 1)), HOST) or "")
    assert can(ast, Opt("TC", 7, 1, (0, 1)), HOST) == "there is no loop 7"
    assert can(ast, Opt("TC", 0, 1, (2, 1)), HOST) is not None
    odd = kernel_of(product, (60, 64), (64, 64))
    assert can(odd, Opt("TC", 2, 1, (0, 1)), HOST) == "16 does not divide the 60 iterations of loop 0"
    rows = kernel_of(lambda a, b: (a * b).sum(1), (64, 64), (64, 64))
    assert can(rows, Opt("TC", 1, 1, (0, 0)), HOST) is not None


def test_a_shared_tile_is_refused_with_a_reason() -> None:
    ast = kernel_of(product, (64, 64), (64, 64))
    assert can(ast, Opt("STAGE", 1, 1, (0, 2)), HOST) is None
    assert "no read of buffer 1" in (can(ast, Opt("STAGE", 1, 1, (1, 2)), HOST) or "")
    assert "is written" in (can(ast, Opt("STAGE", 0, 1, (0, 1)), HOST) or "")
    assert "a ring needs a loop" in (can(ast, Opt("STAGE", 1, 2, (0, 2)), HOST) or "")
    assert "at most 8" in (can(ast, Opt("STAGE", 1, 9, (0, 2)), HOST) or "")
    big = kernel_of(product, (1024, 1024), (1024, 1024))
    assert "bytes of at most" in (can(big, Opt("STAGE", 1, 1, (0, 2)), HOST) or "")
    after = apply_all(ast, [Opt("TC", 2, 1, (0, 1))], HOST)
    assert "differs between the threads" in (can(after, Opt("STAGE", 1, 1, (2,)), HOST) or "")


def test_joined_loops_compute_the_same() -> None:
    ast = kernel_of(lambda x, w: x.conv2d(w), (2, 3, 6, 7), (4, 3, 2, 2), dtype="float32")
    joined = apply_all(ast, [Opt("JOIN", 2, 3), Opt("JOIN", 0, 3)], HOST)
    results = []
    for kernel in (ast, joined):
        arrays, _ = memory_of(kernel)
        run_kernel(kernel, arrays)
        results.append(arrays[0])
    np.testing.assert_array_equal(*results)
    assert "not closed together" in (can(ast, Opt("JOIN", 0, 4), HOST) or "")


def test_a_point_of_a_unit_means_the_product() -> None:
    ast = kernel_of(product, (64, 64), (64, 64))
    kernel = apply_all(ast, sequence(32, 32, 32, (2, 1), 2), HOST)
    arrays, _ = memory_of(ast)
    run_kernel(kernel, arrays)
    close(arrays[0], arrays[1].reshape(64, 64).astype(float) @ arrays[2].reshape(64, 64).astype(float), 1e-3)


# --- tiles, rings, layouts

_SHAPES = [
    (32, 32, 16, (1, 1), 1),
    (64, 32, 32, (2, 1), 2),
    (32, 64, 32, (1, 2), 3),
    (64, 64, 64, (2, 2), 4),
]


@pytest.mark.parametrize("turned", ["", "a", "b", "ab"])
@pytest.mark.parametrize("shape", _SHAPES, ids=str)
def test_tiles_on_a_unit(shape: Any, turned: str) -> None:
    m, n, k = 128, 128, 192

    def turn(a: Tensor, b: Tensor) -> Tensor:
        return (a.transpose(0, 1) if "a" in turned else a) @ (b.transpose(0, 1) if "b" in turned else b)

    left, right = ((k, m) if "a" in turned else (m, k)), ((n, k) if "b" in turned else (k, n))
    ast = kernel_of(turn, left, right)
    arrays, types = memory_of(ast)
    rows, columns, step, warps, depth = shape
    opts = sequence(rows, columns, step, warps, depth, 1, turned)
    linear = lower(apply_all(ast, opts, HOST), TARGET)
    ops = {node.op for node in linear.src}
    assert {Ops.WMMA, Ops.LDMATRIX, Ops.ASYNC_COPY, Ops.ASYNC_WAIT} <= ops
    assert not any(n.op is Ops.LOAD and n.src[0].src[0].op is Ops.DEFINE_GLOBAL for n in linear.src)
    a, b = arrays[1].reshape(left).astype(float), arrays[2].reshape(right).astype(float)
    want = (a.T if "a" in turned else a) @ (b.T if "b" in turned else b)
    close(emulate(linear, arrays, types), want, 1e-3)


@pytest.mark.parametrize(
    ("dtype", "wide", "unit", "turned"),
    [
        ("bfloat16", None, 2, ""),
        ("float32", None, 3, ""),
        ("float32", None, 3, "b"),
        ("int8", "int32", 4, ""),
        ("int8", "int32", 4, "b"),
        ("uint8", "int32", 5, "b"),
        ("float8_e4m3", "float32", 6, "b"),
        ("float8_e5m2", "float32", 7, ""),
    ],
)
def test_types_of_units(dtype: str, wide: str | None, unit: int, turned: str) -> None:
    def multiply(a: Tensor, b: Tensor) -> Tensor:
        b = b.transpose(0, 1) if turned else b
        return a @ b if wide is None else a.cast(wide) @ b.cast(wide)

    right = (64, 128) if turned else (128, 64)
    ast = kernel_of(multiply, (64, 128), right, dtype=dtype)
    arrays, types = memory_of(ast)
    with knobs.override(TF32=True):
        first, second = (1, 2) if left_first(ast) else (2, 1)
        opts = sequence(32, 32, 64, (2, 1), 2, unit, "b" if turned else "", (first, second))
        kernel = apply_all(ast, opts, HOST)
    a, b = arrays[first].reshape(64, 128).astype(float), arrays[second].reshape(right).astype(float)
    close(emulate(lower(kernel, TARGET), arrays, types), a @ (b.T if turned else b), 1e-2)


# --- what the emulator says of broken rings


def _without(linear: UOp, *ops: Any) -> UOp:
    return make(Ops.LINEAR, linear.dtype, tuple(n for n in linear.src if n.op not in ops))


def test_a_missing_barrier_or_wait_is_found() -> None:
    ast = kernel_of(product, (128, 128), (128, 128))
    arrays, types = memory_of(ast)
    linear = lower(apply_all(ast, sequence(64, 64, 32, (2, 2), 3), HOST), TARGET)
    emulate(linear, arrays, types)
    with pytest.raises(DeviceError, match="without a barrier"):
        emulate(_without(linear, Ops.BARRIER), arrays, types)
    with pytest.raises(DeviceError, match="nobody has written"):
        emulate(_without(linear, Ops.ASYNC_WAIT), arrays, types)
    late = make(
        Ops.LINEAR,
        linear.dtype,
        tuple(make(n.op, n.dtype, n.src, 2) if n.op is Ops.ASYNC_WAIT else n for n in linear.src),
    )
    with pytest.raises(DeviceError, match="nobody has written"):
        emulate(late, arrays, types)


# --- the heuristics


def run(make_it: Maker, *values: Any, dtype: str = "float32") -> Any:
    """A function of tensors on the emulator."""
    with knobs.override(DEVICE="EMULATOR"):
        tensors = [Tensor(v).cast(dtype).realize() for v in values]
        return make_it(*tensors).cast("float64").numpy()


def rounded(values: list[Any], dtype: str) -> list[Any]:
    return [Tensor(v).cast(dtype).cast("float64").numpy() for v in values]


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize(
    "shape", [(64, 64, 64), (33, 130, 77), (100, 50, 70), (16, 256, 40), (129, 40, 8)], ids=str
)
def test_products_of_any_size(shape: tuple[int, int, int], dtype: str) -> None:
    m, k, n = shape
    random = np.random.default_rng(1)
    values = [random.normal(size=s).astype(np.float32) for s in ((m, k), (k, n))]
    a, b = rounded(values, dtype)
    close(run(product, *values, dtype=dtype), a @ b, 1e-3 if dtype == "float16" else 1e-6)


def test_batches_views_and_epilogues() -> None:
    random = np.random.default_rng(2)
    values = [
        random.normal(size=s).astype(np.float32) for s in ((3, 40, 64), (3, 72, 64), (72,), (3, 40, 72))
    ]
    a, b, c, d = rounded(values, "float16")
    got = run(lambda a, b, c, d: (a @ b.transpose(1, 2) + c).relu() * 0.5 + d, *values, dtype="float16")
    close(got, np.maximum(a @ b.swapaxes(1, 2) + c, 0) * 0.5 + d, 2e-3)
    got = run(
        lambda a, b: a[:, ::2, :48].relu() @ b[:, 8:, :48].transpose(1, 2), *values[:2], dtype="float16"
    )
    close(got, np.maximum(a[:, ::2, :48], 0) @ b[:, 8:, :48].swapaxes(1, 2), 2e-3)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_convolutions_are_products(dtype: str) -> None:
    random = np.random.default_rng(3)
    values = [random.normal(size=s).astype(np.float32) for s in ((2, 5, 13, 11), (20, 5, 3, 3))]
    x, w = rounded(values, dtype)
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    want = np.zeros((2, 20, 13, 11))
    for i in range(3):
        for j in range(3):
            want += np.einsum("nchw,oc->nohw", padded[:, :, i : i + 13, j : j + 11], w[:, :, i, j])
    got = run(lambda x, w: x.conv2d(w, padding=1), *values, dtype=dtype)
    close(got, want, 1e-3 if dtype == "float16" else 1e-6)


def test_large_products_take_a_unit_a_ring_and_a_grouped_order() -> None:
    builder = Builder(kernel_of(product, (4096, 4096), (4096, 4096)), HOST)
    assert matrix_product(builder)
    opts = applied(builder.ast)
    assert [o.name for o in opts][:5] == ["TILE", "TILE", "TILE", "STAGE", "STAGE"]
    assert next(o for o in opts if o.name == "STAGE").amount >= 2
    assert any(o.name == "TC" for o in opts)
    kinds = [r.arg[1] for r in toposort(builder.ast) if r.op is Ops.RANGE]
    assert kinds.count(AxisKind.WARP) >= 2
    plain = Builder(kernel_of(lambda a: a.sum(1), (4096, 4096)), HOST)
    assert not matrix_product(plain) and not applied(plain.ast)


def test_float32_takes_no_unit_unless_it_is_allowed() -> None:
    for allowed in (False, True):
        with knobs.override(TF32=allowed):
            builder = Builder(kernel_of(product, (512, 512), (512, 512), dtype="float32"), HOST)
            assert matrix_product(builder)
            assert any(o.name == "TC" for o in applied(builder.ast)) is allowed


# --- the text


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_the_source_compiles(dtype: str) -> None:
    pytest.importorskip("cuda.core")
    from morok.device.cuda_compile import compile_cubin

    builder = Builder(kernel_of(product, (1024, 1024), (1024, 1024), dtype=dtype), HOST)
    assert matrix_product(builder)
    program = render(lower(builder.ast, TARGET), "product")
    assert "cp.async.cg.shared.global" in program.text
    assert ("wgmma.mma_async" in program.text) is (dtype == "float16")
    assert compile_cubin(program.text, "sm_90a").startswith(b"\x7fELF")


# --- units of groups of warps


def _group(name: str, n: int) -> int:
    return 1 + next(i for i, u in enumerate(ALL_UNITS) if u.name == name and u.n == n)


@pytest.mark.parametrize("unit", GROUP_UNITS, ids=lambda u: f"{u.name}-{u.n}")
def test_results_of_groups_hold_every_element_once(unit: Any) -> None:
    places = [(row, column) for _, _, row, column in unit.c.places(unit.lanes)]
    assert sorted(places) == [(i, j) for i in range(unit.m) for j in range(unit.n)]


@pytest.mark.parametrize(
    ("dtype", "wide", "unit", "n", "turned", "depth", "step"),
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
    dtype: str, wide: str | None, unit: str, n: int, turned: str, depth: int, step: int
) -> None:
    m, columns, k = 256, 2 * n, 384

    def multiply(a: Tensor, b: Tensor) -> Tensor:
        a, b = (a.transpose(0, 1) if "a" in turned else a), (b.transpose(0, 1) if "b" in turned else b)
        return a @ b if wide is None else a.cast(wide) @ b.cast(wide)

    left, right = ((k, m) if "a" in turned else (m, k)), ((columns, k) if "b" in turned else (k, columns))
    ast = kernel_of(multiply, left, right, dtype=dtype)
    arrays, types = memory_of(ast)
    first, second = (1, 2) if left_first(ast) else (2, 1)
    opts = sequence(128, n, step, (2, 1), depth, _group(f"wgmma.{unit}", n), turned, (first, second))
    with knobs.override(TF32=True):
        linear = lower(apply_all(ast, opts, HOST), TARGET)
    a, b = arrays[first].reshape(left).astype(float), arrays[second].reshape(right).astype(float)
    want = (a.T if "a" in turned else a) @ (b.T if "b" in turned else b)
    close(emulate(linear, arrays, types), want, 1e-2)


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


def test_a_unit_of_a_group_is_refused_without_a_shared_tile() -> None:
    ast = kernel_of(product, (256, 256), (256, 256))
    number = _group("wgmma.f16", 64)
    assert "reads shared tiles" in (can(ast, Opt("TC", 2, number, (0, 1)), HOST) or "")
    narrow = apply_all(ast, sequence(128, 64, 32, (1, 1), 2)[:5], HOST)
    assert "whole panels" in (can(narrow, Opt("TC", 5, number, (3, 4)), HOST) or "")


# --- collected results


FEW = replace(HOST, cores=1)  # one multiprocessor: large tiles pay


def chosen(ast: UOp, host: Any = FEW) -> UOp:
    builder = Builder(ast, host)
    assert matrix_product(builder)
    return builder.ast


@pytest.mark.parametrize("shape", [(256, 128, 256), (200, 136, 264), (130, 72, 300)], ids=str)
def test_large_tiles_of_any_size(shape: tuple[int, int, int]) -> None:
    m, k, n = shape
    ast = kernel_of(product, (m, k), (k, n))
    kernel = chosen(ast)
    assert any(o.name == "COLLECT" for o in applied(kernel)) is (n % 8 == 0)
    arrays, types = memory_of(ast)
    a, b = arrays[1].reshape(m, k).astype(float), arrays[2].reshape(k, n).astype(float)
    close(emulate(lower(kernel, TARGET), arrays, types), a @ b, 1e-3)


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


def test_gathered_fragments_are_collected_too() -> None:
    ast = kernel_of(product, (128, 96), (96, 256), dtype="float32")
    with knobs.override(TF32=True):
        kernel = chosen(ast)
    assert {"TC", "COLLECT"} <= {o.name for o in applied(kernel)}
    linear = lower(kernel, TARGET)
    sizes = [n.dtype.size for n in linear.src if n.op is Ops.DEFINE_LOCAL]  # type: ignore[attr-defined]
    assert max(sizes) <= 3 * 256 * 128
    arrays, types = memory_of(ast)
    a, b = arrays[1].reshape(128, 96).astype(float), arrays[2].reshape(96, 256).astype(float)
    close(emulate(linear, arrays, types), a @ b, 2e-3)


def test_what_surrounds_a_collected_sum() -> None:
    def layer(x: Tensor, w: Tensor, b: Tensor, r: Tensor) -> Tensor:
        return (x @ w + b).tanh() + r

    ast = kernel_of(layer, (128, 64), (64, 128), (128,), (128, 128))
    kernel = chosen(ast)
    arrays, types = memory_of(ast)
    linear = lower(kernel, TARGET)
    stores = [n for n in linear.src if n.op is Ops.STORE and n.src[1].dtype.lanes == 8]
    assert len(stores) == 1  # one vector, in a loop
    x, w, b, r = (
        arrays[i].astype(float).reshape(s)
        for i, s in _in_order(ast, [(128, 64), (64, 128), (128,), (128, 128)])
    )
    close(emulate(linear, arrays, types), np.tanh(x @ w + b) + r, 2e-3)


def _in_order(ast: UOp, shapes: list[tuple[int, ...]]) -> list[tuple[int, tuple[int, ...]]]:
    """Buffer numbers of x, w, b and r: by size, and of the factors the one that moves with the rows first."""
    sizes = {n.arg: n.dtype.size for n in toposort(ast) if n.op is Ops.DEFINE_GLOBAL}  # type: ignore[attr-defined]
    factors = [i for i, size in sizes.items() if i and size == 128 * 64]
    rows = [i for i in factors if can(ast, Opt("STAGE", i, 0, (0, 2)), UNLIMITED) is None]
    others = [i for i in factors if i not in rows]
    bias = next(i for i, size in sizes.items() if size == 128)
    rest = next(i for i, size in sizes.items() if i and size == 128 * 128)
    return list(zip((*rows, *others, bias, rest), shapes, strict=True))


def test_a_result_is_collected_only_from_one_sum() -> None:
    ast = kernel_of(product, (64, 64), (64, 64))
    assert can(ast, Opt("COLLECT", axes=(0, 1)), HOST) is None
    assert "no plain loop" in (can(ast, Opt("COLLECT", axes=(0, 2)), HOST) or "")
    assert "each once" in (can(ast, Opt("COLLECT", axes=(0, 0)), HOST) or "")
    plain = kernel_of(lambda a: a * 2, (64, 64))
    assert "not exactly one sum" in (can(plain, Opt("COLLECT", axes=(0,)), HOST) or "")
    busy = apply_all(ast, [Opt("LOCAL", 0, 8)], HOST)
    assert "given work already" in (can(busy, Opt("COLLECT", axes=(0, 1)), HOST) or "")


def test_collected_results_lie_where_operands_were() -> None:
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


@pytest.mark.parametrize("seed", range(8))
def test_random_tiles_give_the_same_answer(seed: int) -> None:
    random = np.random.default_rng(seed)
    turned = str(random.choice(["", "a", "b", "ab"]))
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
        a, b = (a.transpose(0, 1) if "a" in turned else a), (b.transpose(0, 1) if "b" in turned else b)
        return (a @ b).relu() + 1

    left, right = ((k, m) if "a" in turned else (m, k)), ((n, k) if "b" in turned else (k, n))
    ast = kernel_of(multiply, left, right)
    opts = sequence(rows, columns, step, warps, depth, unit, turned)
    if "a" not in turned and random.integers(2):
        at = next(i for i, o in enumerate(opts) if o.name == "TC")
        inner = [replace(o, axis={3: 10, 4: 11}.get(o.axis, o.axis)) for o in opts[at + 1 :]]
        opts = [*opts[:at], Opt("COLLECT", axes=(3, 4)), Opt("TC", 5, unit, (10, 11)), *inner]
        opts += [Opt("UPCAST", 4, 4), Opt("LOCAL", 4, 8)]
    if random.integers(2):
        opts.append(Opt("SWAP", 0, 1))
    arrays, types = memory_of(ast, seed)
    a, b = arrays[1].reshape(left).astype(float), arrays[2].reshape(right).astype(float)
    want = np.maximum((a.T if "a" in turned else a) @ (b.T if "b" in turned else b), 0) + 1
    close(emulate(lower(apply_all(ast, opts, HOST), TARGET), arrays, types), want, 2e-3)


def test_a_search_begins_with_several_tiles() -> None:
    ast = kernel_of(product, (1024, 1024), (1024, 1024))
    found = tile_choices(ast, HOST)
    assert len(found) >= 4 and len(set(found)) == len(found)
    for opts in found:
        assert applied(apply_all(ast, opts, HOST)) == opts


def test_tiles_are_turned_while_they_are_filled() -> None:
    ast = kernel_of(product, (256, 256), (256, 256), dtype="float32")
    with knobs.override(TF32=True):
        kernel = chosen(ast)
    (unit,) = (n.arg for n in toposort(kernel) if n.op is Ops.WMMA)
    assert unit.name == "wgmma.tf32"
    linear = lower(kernel, TARGET)
    arrays, types = memory_of(ast)
    a, b = arrays[1].reshape(256, 256).astype(float), arrays[2].reshape(256, 256).astype(float)
    close(emulate(linear, arrays, types), a @ b, 2e-3)


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
