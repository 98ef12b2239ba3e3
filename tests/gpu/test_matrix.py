"""Matrix products on a grid: shared tiles, rings, a warp's matrix units. Against NumPy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from morok import Tensor, knobs
from morok.codegen.pipeline import lower
from morok.device.interpreter import run_kernel
from morok.errors import DeviceError
from morok.ir.matrix import ALL_UNITS, DOT4_32, MMA_F16, MMA_INT8, WARP_UNITS, WORD_UNITS
from morok.ir.node import UOp, make, toposort
from morok.ir.ops import AxisKind, Ops
from morok.machine.files import load
from morok.optimize.actions.table import apply_all, can
from morok.optimize.heuristics.builder import Builder
from morok.optimize.heuristics.gpu.matmul import matrix_product
from morok.optimize.record import Opt, applied
from morok.render.cuda.kernel import render
from tests.gpu.products import (
    HOST,
    TARGET,
    Maker,
    close,
    emulate,
    execute,
    kernel_of,
    left_first,
    memory_of,
    product,
    sequence,
)

# --- the description of units


@pytest.mark.parametrize("unit", WARP_UNITS + WORD_UNITS, ids=lambda u: u.name)
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
        for i in range(4):  # the same registers; steps in an order that is the same for both operands, and
            # rows in one that is the same for an operand and the result
            assert DOT4_32.a.place(lane, i) == (2 * group + i % 2, 2 * thread + i // 2)
            assert DOT4_32.b.place(lane, i // 2) == (2 * thread + i // 2, group)
            assert DOT4_32.c.place(lane, i) == (2 * group + i // 2, thread * 2 + (i & 1))


def test_architectures_have_units() -> None:
    assert {u.name for u in load("sm_80").matrix_units} == {
        "mma.f16",
        "mma.bf16",
        "mma.tf32",
        "mma.s8",
        "mma.u8",
    }
    assert set(WARP_UNITS) == set(load("sm_89").matrix_units) < set(load("sm_90").matrix_units)


# --- actions


def test_a_matrix_unit_is_refused_with_a_reason() -> None:
    ast = kernel_of(product, (64, 64), (64, 64))
    assert can(ast, Opt("TC", 2, 1, (0, 1)), HOST) is None
    assert can(ast, Opt("TC", 2, 2, (0, 1)), HOST) == (
        "the factors are not bfloat16, which the unit mma.bf16 multiplies"
    )
    assert "less exact" in (can(ast, Opt("TC", 2, 3, (0, 1)), HOST) or "")
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


@pytest.mark.parametrize("transposed", ["", "a", "b", "ab"])
@pytest.mark.parametrize("shape", _SHAPES, ids=str)
def test_tiles_on_a_unit(shape: Any, transposed: str) -> None:
    m, n, k = 128, 128, 192

    def turn(a: Tensor, b: Tensor) -> Tensor:
        return (a.transpose(0, 1) if "a" in transposed else a) @ (
            b.transpose(0, 1) if "b" in transposed else b
        )

    left, right = ((k, m) if "a" in transposed else (m, k)), ((n, k) if "b" in transposed else (k, n))
    ast = kernel_of(turn, left, right)
    arrays, types = memory_of(ast)
    rows, columns, step, warps, depth = shape
    opts = sequence(rows, columns, step, warps, depth, 1, transposed)
    linear = lower(apply_all(ast, opts, HOST), TARGET)
    ops = {node.op for node in linear.src}
    assert {Ops.WMMA, Ops.LDMATRIX, Ops.ASYNC_COPY, Ops.ASYNC_WAIT} <= ops
    assert not any(n.op is Ops.LOAD and n.src[0].src[0].op is Ops.DEFINE_GLOBAL for n in linear.src)
    a, b = arrays[1].reshape(left).astype(float), arrays[2].reshape(right).astype(float)
    want = (a.T if "a" in transposed else a) @ (b.T if "b" in transposed else b)
    close(execute(linear, arrays, types), want, 1e-3)


@pytest.mark.parametrize(
    ("dtype", "wide", "unit", "transposed"),
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
def test_types_of_units(dtype: str, wide: str | None, unit: int, transposed: str) -> None:
    def multiply(a: Tensor, b: Tensor) -> Tensor:
        b = b.transpose(0, 1) if transposed else b
        return a @ b if wide is None else a.cast(wide) @ b.cast(wide)

    right = (64, 128) if transposed else (128, 64)
    ast = kernel_of(multiply, (64, 128), right, dtype=dtype)
    arrays, types = memory_of(ast)
    with knobs.override(TF32=True):
        first, second = (1, 2) if left_first(ast) else (2, 1)
        opts = sequence(32, 32, 64, (2, 1), 2, unit, "b" if transposed else "", (first, second))
        kernel = apply_all(ast, opts, HOST)
    a, b = arrays[first].reshape(64, 128).astype(float), arrays[second].reshape(right).astype(float)
    close(execute(lower(kernel, TARGET), arrays, types), a @ (b.T if transposed else b), 1e-2)


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


def test_many_tiny_products_take_no_unit() -> None:
    builder = Builder(kernel_of(product, (5000, 8, 8), (5000, 8, 8)), HOST)
    assert not matrix_product(builder) and not applied(builder.ast)


def test_float32_takes_no_unit_unless_it_is_allowed() -> None:
    for allowed in (False, True):
        with knobs.override(TF32=allowed):
            builder = Builder(kernel_of(product, (512, 512), (512, 512), dtype="float32"), HOST)
            assert matrix_product(builder)
            assert any(o.name == "TC" for o in applied(builder.ast)) is allowed


def test_sums_of_8_bit_floats_are_those_of_float32_unless_less_is_allowed() -> None:
    def transposed(a: Tensor, b: Tensor) -> Tensor:
        return a.cast("float32") @ b.cast("float32").transpose(0, 1)

    for allowed in (False, True):
        with knobs.override(FAST_FP8=allowed):
            builder = Builder(kernel_of(transposed, (4096, 4096), (4096, 4096), dtype="float8_e4m3"), HOST)
            assert matrix_product(builder)
            (unit,) = [ALL_UNITS[o.amount - 1] for o in applied(builder.ast) if o.name == "TC"]
            assert unit.name.startswith("wgmma" if allowed else "mma")


# --- the text


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_the_source_compiles(dtype: str) -> None:
    pytest.importorskip("cuda.core")
    from morok.device.cuda.compile import compile_cubin

    host = replace(HOST, tma=False)
    builder = Builder(kernel_of(product, (1024, 1024), (1024, 1024), dtype=dtype), host)
    assert matrix_product(builder)
    program = render(lower(builder.ast, TARGET), "product")
    assert "cp.async.cg.shared.global" in program.text
    assert ("wgmma.mma_async" in program.text) is (dtype == "float16")
    assert compile_cubin(program.text, "sm_90a").startswith(b"\x7fELF")
