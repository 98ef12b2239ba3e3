"""Matrix units whose left operand is in registers, for operands that a unit cannot read by itself.

Against NumPy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from morok import Tensor, knobs
from morok.codegen.pipeline import lower
from morok.dtype import AddrSpace, PtrDType
from morok.errors import DeviceError
from morok.ir.matrix import (
    ALL_UNITS,
    BYTE_UNITS,
    DOT2_16,
    FUSED_AFTER,
    FUSED_UNITS,
    REGISTER_A_UNITS,
    WGMMA_UNITS,
    MatrixUnit,
    Products,
)
from morok.ir.node import UOp, make
from morok.ir.ops import AxisKind, Ops
from morok.optimize.actions.table import apply_all, can
from morok.optimize.heuristics.builder import Builder
from morok.optimize.heuristics.gpu.matmul import matrix_product
from morok.optimize.record import Opt, applied
from morok.render.cuda.kernel import render
from morok.schedule.schedule import schedule
from tests.gpu.kernels import cubin
from tests.gpu.products import (
    HOST,
    TARGET,
    close,
    emulate,
    execute,
    kernel_of,
    left_first,
    memory_of,
    place_of,
    product,
)

FEW = replace(HOST, cores=1, tma=False)  # one multiprocessor: large tiles pay; all threads copy
ALLOWED = {"TF32": True, "FAST_FP8": True}


def _number(name: str, n: int) -> int:
    return 1 + next(i for i, u in enumerate(ALL_UNITS) if u.name == f"wgmma.{name}.register_a" and u.n == n)


# --- the description


@pytest.mark.parametrize("unit", REGISTER_A_UNITS, ids=lambda u: f"{u.name}-{u.n}")
def test_fragments_hold_every_element_once(unit: MatrixUnit) -> None:
    for fragment, shape in ((unit.a, (unit.m, unit.k)), (unit.c, (unit.m, unit.n))):
        places = [(row, column) for _, _, row, column in fragment.places(unit.lanes)]
        assert sorted(places) == [(i, j) for i in range(shape[0]) for j in range(shape[1])]


@pytest.mark.parametrize("unit", REGISTER_A_UNITS, ids=lambda u: f"{u.name}-{u.n}")
def test_rows_may_be_named_anew_but_the_same_in_operand_and_result(unit: MatrixUnit) -> None:
    # PTX ISA, wgmma: warp w has rows 16w + lane/4 (+8); a register holds 4 bytes of neighbouring steps
    per_word = 4 // unit.inputs.itemsize
    names: dict[int, set[int]] = {}
    for lane, register, row, column in unit.a.places(unit.lanes):
        word = register // per_word
        names.setdefault(_hardware_row(lane, word % 2), set()).add(row)
        assert column == lane % 4 * per_word + register % per_word + unit.k // 2 * (word // 2)
    for lane, register, row, column in unit.c.places(unit.lanes):
        names[_hardware_row(lane, register // 2 % 2)].add(row)
        assert column == register // 4 * 8 + lane % 4 * 2 + register % 2
    assert sorted(row for found in names.values() for row in found) == list(range(64))


def _hardware_row(lane: int, upper: int) -> int:
    return lane // 32 * 16 + lane % 32 // 4 + 8 * upper


def test_units_keep_their_numbers() -> None:
    assert ALL_UNITS[7:28] == WGMMA_UNITS and ALL_UNITS[28:49] == REGISTER_A_UNITS
    assert ALL_UNITS[49:51] == BYTE_UNITS and ALL_UNITS[51:57] == FUSED_UNITS + FUSED_AFTER
    assert ALL_UNITS[57:] == (DOT2_16,)


# --- actions


def _sequence(
    n: int, step: int, depth: int, unit: int, transposed: str, swapped: bool, right: int
) -> list[Opt]:
    """A tile for two warp groups; `swapped`: the unit's rows are columns of the outputs."""
    rows, columns = (n, 128) if swapped else (128, n)
    opts = [Opt("TILE", 0, rows), Opt("TILE", 1, columns), Opt("TILE", 2, step)]
    opts.append(Opt("STAGE", 3 - right, depth, (5, 3) if "a" in transposed else (3, 5)))
    opts.append(Opt("STAGE", right, depth, (4, 5) if "b" in transposed else (5, 4)))
    axes = (4, 3) if swapped else (3, 4)
    opts += [Opt("TC", 5, unit, axes), Opt("LOCAL", axes[0], 2)]
    return [*opts, Opt("UNROLL", 5)] if step > ALL_UNITS[unit - 1].k else opts


def _lowered(
    dtype: str,
    wide: str | None,
    unit: str,
    transposed: str,
    swapped: bool,
    depth: int,
    step: int,
    more: Sequence[Opt] = (),
    tiles: int = 3,
) -> tuple[UOp, UOp, Callable[[list[Any]], Any]]:
    """The kernel of a product, its list, and what is right."""
    n = 64
    high, long = 2 * (n if swapped else 128), 2 * (128 if swapped else n)
    k = tiles * step

    def multiply(a: Tensor, b: Tensor) -> Tensor:
        a, b = (
            (a.transpose(0, 1) if "a" in transposed else a),
            (b.transpose(0, 1) if "b" in transposed else b),
        )
        return a @ b if wide is None else a.cast(wide) @ b.cast(wide)

    left, right = (
        ((k, high) if "a" in transposed else (high, k)),
        ((long, k) if "b" in transposed else (k, long)),
    )
    ast = kernel_of(multiply, left, right, dtype=dtype)
    second = 2 if left_first(ast) else 1
    with knobs.override(**ALLOWED):
        opts = _sequence(n, step, depth, _number(unit, n), transposed, swapped, second)
        linear = lower(apply_all(ast, [*opts, *more], HOST), TARGET)

    def want(arrays: list[Any]) -> Any:
        a, b = arrays[3 - second].reshape(left).astype(float), arrays[second].reshape(right).astype(float)
        return (a.T if "a" in transposed else a) @ (b.T if "b" in transposed else b)

    return ast, linear, want


@pytest.mark.parametrize(
    ("dtype", "wide", "unit", "transposed", "swapped", "depth", "step"),
    [
        ("float32", None, "tf32", "", True, 4, 32),
        ("float32", None, "tf32", "ab", False, 3, 32),
        ("float32", None, "tf32", "b", False, 2, 64),
        ("float16", None, "f16", "", True, 3, 64),
        ("float16", None, "f16", "", False, 1, 64),
        ("bfloat16", None, "bf16", "ab", False, 4, 64),
        ("int8", "int32", "s8", "", True, 3, 128),
        ("uint8", "int32", "u8", "b", True, 3, 128),
        ("float8_e4m3", "float32", "e4m3", "ab", False, 4, 128),
    ],
)
def test_left_operands_in_registers(
    dtype: str, wide: str | None, unit: str, transposed: str, swapped: bool, depth: int, step: int
) -> None:
    ast, linear, want = _lowered(dtype, wide, unit, transposed, swapped, depth, step)
    arrays, types = memory_of(ast)
    close(execute(linear, arrays, types), want(arrays), 3e-3)


def test_a_unit_wants_a_tile_for_its_right_operand_only() -> None:
    ast = kernel_of(product, (256, 256), (256, 256), dtype="float32")
    number = _number("tf32", 64)
    with knobs.override(TF32=True):
        assert "reads shared tiles" in (can(ast, Opt("TC", 2, number, (0, 1)), HOST) or "")
        tiled = [Opt("TILE", 0, 128), Opt("TILE", 1, 64), Opt("TILE", 2, 32)]
        along = apply_all(ast, [*tiled, Opt("STAGE", 2, 2, (4, 5))], HOST)
        assert can(along, Opt("TC", 5, number, (3, 4)), HOST) is None
        across = apply_all(ast, [*tiled, Opt("STAGE", 2, 2, (5, 4))], HOST)
        assert "do not run along the steps" in (can(across, Opt("TC", 5, number, (3, 4)), HOST) or "")


def test_registers_are_filled_while_other_products_run() -> None:
    """Four steps per tile: a step's registers are filled anew when at most three groups are under way."""
    for depth, last in ((4, 3), (2, 0)):
        _, linear, _ = _lowered("float32", None, "tf32", "", True, depth, 32)
        waits = [n.arg.pending for n in linear.src if n.op is Ops.ASYNC_WAIT and isinstance(n.arg, Products)]
        assert waits == [3, 3, 3, last] + ([0] if last else [])
    kinds = (Ops.LOAD, Ops.FENCE, Ops.WMMA)
    order = [n.op for n in linear.src if n.op in kinds and _concerns_units(n)]
    assert order == [Ops.LOAD, Ops.LOAD, Ops.FENCE, Ops.WMMA] * 4


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_registers_are_fenced_where_one_tile_is_all(dtype: str) -> None:
    m, k, n = 256, 128 // np.dtype(dtype).itemsize, 512
    ast = kernel_of(product, (m, k), (k, n), dtype=dtype)
    linear = lower(_chosen(ast, TF32=True), TARGET)
    kinds = (Ops.LOAD, Ops.FENCE, Ops.WMMA)
    order = [n.op for n in linear.src if n.op in kinds and _concerns_units(n)]
    first = order.index(Ops.WMMA)
    assert order[first - 1] is Ops.FENCE and order.count(Ops.FENCE) == 1
    assert set(order[first:]) <= {Ops.WMMA, Ops.LOAD}
    assert order[: first - 1] == ([Ops.LOAD] * 8 if dtype == "float32" else [])
    arrays, types = memory_of(ast)
    f = 1 if left_first(ast) else 2
    a, b = arrays[f].reshape(m, k).astype(float), arrays[3 - f].reshape(k, n).astype(float)
    close(execute(linear, arrays, types), a @ b, 2e-3)


def _concerns_units(node: UOp) -> bool:
    if node.op is Ops.LOAD:
        return _is_shared(node)
    return node.op is not Ops.FENCE or not isinstance(node.arg, Products)


def _is_shared(load: UOp) -> bool:
    dtype = load.src[0].dtype
    return isinstance(dtype, PtrDType) and dtype.space is AddrSpace.LOCAL


def test_neighbours_are_gathered_at_once_from_different_banks() -> None:
    _, linear, _ = _lowered("float32", None, "tf32", "", True, 4, 32)
    loads = [n for n in linear.src if n.op is Ops.LOAD and _is_shared(n)]
    assert len(loads) == 8 and {n.dtype.lanes for n in loads} == {2}
    for load in loads:
        for half in (0, 16):
            banks = [place_of(load.src[0].src[1], thread) % 32 for thread in range(half, half + 16)]
            assert sorted(banks) == list(range(0, 32, 2))


def test_nvrtc_takes_them() -> None:
    for dtype, wide, unit, swapped, step in (
        ("float32", None, "tf32", True, 32),
        ("float16", None, "f16", True, 64),
        ("int8", "int32", "s8", True, 128),
    ):
        _, linear, _ = _lowered(dtype, wide, unit, "", swapped, 3, step)
        text = render(linear, "test").text
        assert text.count("wgmma.mma_async") == 4
        assert cubin(text)


# --- the choice


def _chosen(ast: UOp, **allowed: bool) -> UOp:
    builder = Builder(ast, FEW)
    with knobs.override(**allowed):
        assert matrix_product(builder)
    return builder.ast


def _unit(kernel: UOp) -> tuple[str, bool]:
    """The unit, and whether its rows are columns of the outputs."""
    (opt,) = (o for o in applied(kernel) if o.name == "TC")
    return ALL_UNITS[opt.amount - 1].name, opt.axes[0] > opt.axes[1]


@pytest.mark.parametrize(
    ("transposed", "unit", "swapped"),
    [
        ("", "wgmma.tf32.register_a", True),
        ("b", "wgmma.tf32", False),
        ("ab", "wgmma.tf32.register_a", False),
        ("a", "wgmma.tf32.register_a", False),
    ],
)
def test_the_unit_follows_from_how_operands_lie(transposed: str, unit: str, swapped: bool) -> None:
    def multiply(a: Tensor, b: Tensor) -> Tensor:
        return (a.transpose(0, 1) if "a" in transposed else a) @ (
            b.transpose(0, 1) if "b" in transposed else b
        )

    k = 1024
    left, right = ((k, 256) if "a" in transposed else (256, k)), ((512, k) if "b" in transposed else (k, 512))
    kernel = _chosen(kernel_of(multiply, left, right, dtype="float32"), TF32=True)
    assert _unit(kernel) == (unit, swapped)
    half = _chosen(kernel_of(multiply, left, right))
    assert _unit(half) == ("wgmma.f16", False)


@pytest.mark.parametrize(
    ("seed", "shape"),
    [
        (0, (256, 128, 512)),
        (1, (300, 96, 200)),
        (2, (129, 72, 333)),
        pytest.param(3, (65, 1000, 64), marks=pytest.mark.slow),
        pytest.param(4, (512, 33, 520), marks=pytest.mark.slow),
        pytest.param(5, (250, 132, 1028), marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("transposed", ["", "ab"])
def test_any_size_and_its_epilogue(seed: int, shape: tuple[int, int, int], transposed: str) -> None:
    m, k, n = shape

    def layer(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        a, b = (a.transpose(0, 1) if transposed else a), (b.transpose(0, 1) if transposed else b)
        return (a @ b + c).tanh() * 2

    left, right = ((k, m) if transposed else (m, k)), ((n, k) if transposed else (k, n))
    ast = kernel_of(layer, left, right, (n,), dtype="float32")
    kernel = _chosen(ast, TF32=True)
    assert _unit(kernel) == ("wgmma.tf32.register_a", not transposed)
    random = np.random.default_rng(seed)
    values = {
        m * n: np.zeros(m * n),
        m * k: random.normal(size=m * k) / 8,
        n * k: random.normal(size=n * k) / 8,
        n: random.normal(size=n),
    }
    assert len(values) == 4
    arrays, types = memory_of(ast, seed)
    arrays = [values[a.size].astype(np.float32) for a in arrays]
    a, b = values[m * k].reshape(left), values[n * k].reshape(right)
    want = np.tanh((a.T if transposed else a) @ (b.T if transposed else b) + values[n]) * 2
    close(execute(lower(kernel, TARGET), arrays, types), want, 3e-3)


def test_where_neither_runs_along_the_steps_one_is_transposed_while_it_is_copied() -> None:
    m, k, n = 120, 520, 252
    ast = kernel_of(lambda a, b: a.transpose(0, 1) @ b, (k, m), (k, n), dtype="float32")
    kernel = _chosen(ast, TF32=True)
    assert _unit(kernel) == ("wgmma.tf32.register_a", False)
    linear = lower(kernel, TARGET)
    assert {n.arg for n in linear.src if n.op is Ops.ASYNC_COPY} == {4, 16}
    arrays, types = memory_of(ast)
    a, b = (next(x for x in arrays[1:] if x.size == k * size).reshape(k, size) for size in (m, n))
    close(execute(linear, arrays, types), a.T.astype(float) @ b.astype(float), 2e-3)


def test_a_conversion_to_a_wider_type_stays_in_registers() -> None:
    """Weights of 8 bits: the tile holds them as they are, and threads convert what they gather."""

    def layer(x: Tensor, w: Tensor) -> Tensor:
        return x.cast("float16") @ w.cast("float16")

    def mixed(x: Tensor, w: Tensor) -> Tensor:
        return x @ w.cast("float16")

    x, w = Tensor.empty(256, 128, dtype="float16"), Tensor.empty(128, 512, dtype="int8")
    (item,) = schedule([mixed(x, w).uop]).items
    kernel = _chosen(item.ast)
    assert _unit(kernel) == ("wgmma.f16.register_a", True)
    arrays, types = memory_of(item.ast)
    a = next(x for x in arrays[1:] if x.dtype == np.float16).reshape(256, 128)
    b = next(x for x in arrays[1:] if x.dtype == np.int8).reshape(128, 512)
    close(execute(lower(kernel, TARGET), arrays, types), a.astype(float) @ b.astype(float), 2e-3)
    both = kernel_of(layer, (256, 128), (128, 512), dtype="int8")
    assert _unit(_chosen(both))[0] == "mma.f16"


# --- roles


@pytest.mark.parametrize(
    ("dtype", "wide", "unit", "transposed", "swapped", "step"),
    [
        ("float32", None, "tf32", "", True, 32),
        ("float16", None, "f16", "", True, 64),
        ("int8", "int32", "s8", "ab", False, 128),
    ],
)
def test_tiles_that_producers_copy_are_gathered(
    dtype: str, wide: str | None, unit: str, transposed: str, swapped: bool, step: int
) -> None:
    roles = [Opt("WARP_SPECIALIZE"), Opt("PERSISTENT", amount=3)]
    ast, linear, want = _lowered(dtype, wide, unit, transposed, swapped, 3, step, more=roles)
    assert sum(n.op is Ops.RANGE and n.arg[1] is AxisKind.ROLE for n in linear.src) == 2
    arrays, types = memory_of(ast)
    close(execute(linear, arrays, types), want(arrays), 3e-3)


def test_a_tile_is_not_replaced_before_its_elements_are_in_registers() -> None:
    ast, linear, _ = _lowered(
        "float32", None, "tf32", "", True, 3, 32, more=[Opt("WARP_SPECIALIZE")], tiles=8
    )
    arrays, types = memory_of(ast)
    emulate(linear, arrays, types)
    waits = [n for n in linear.src if n.op is Ops.ASYNC_WAIT and isinstance(n.arg, Products)]
    late = make(Ops.LINEAR, linear.dtype, tuple(n for n in linear.src if n not in waits))
    with pytest.raises(DeviceError, match=r"overwrites|a unit still reads"):
        emulate(late, arrays, types)
