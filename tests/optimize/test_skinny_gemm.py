"""Skinny GEMM: the matrix on the right is read in order, or both operands along the steps."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from morok.codegen.reduce import reduce
from morok.device.cpu.device import program_of
from morok.ir.infer import closed_ranges, ranges, summed
from morok.ir.node import UOp, toposort
from morok.ir.ops import AxisKind, Ops
from morok.machine.files import load
from morok.machine.machine import Machine
from morok.optimize.heuristics.apply import optimize
from morok.optimize.loops import loops_of, size
from morok.optimize.record import applied
from tests.optimize.kernels import AVX512, NEON, interpret, kernel_of, native, same
from tests.schedule import graphs as g

TINY = Machine(cores=2, l1_bytes=1 << 10, l2_bytes=1 << 12, local_bytes=1 << 15, lane_operands=True)


def names(ast: UOp) -> list[str]:
    return [opt.name for opt in applied(ast)]


def kinds(ast: UOp) -> dict[AxisKind, list[int | None]]:
    found: dict[AxisKind, list[int | None]] = {}
    for r in loops_of(ast).by_number.values():
        found.setdefault(r.arg[1], []).append(size(r))
    return {kind: sorted(sizes, key=str) for kind, sizes in found.items()}


@given(
    st.integers(1, 3),
    st.integers(1, 35),
    st.integers(17, 300),
    st.integers(100, 300),
    st.booleans(),
    st.booleans(),
)
@settings(max_examples=30)
def test_skinny_gemms_keep_the_answer(
    batches: int, rows: int, steps: int, columns: int, transposed: bool, more: bool
) -> None:
    """Streams of rows, blocks with totals in memory, tiles of dot products; also with something around."""
    right = g.tensor(batches, steps, columns)
    if transposed:
        right = g.transpose(g.tensor(batches, columns, steps), 0, 2, 1)
    product = g.matmul(g.tensor(batches, rows, steps), right)
    around = g.tensor(batches, rows, columns)
    ast = kernel_of(g.add(g.relu(g.add(product, g.tensor(columns))), around) if more else product)
    cut = optimize(ast, TINY)
    want = interpret(ast)
    same(interpret(cut), want)
    same(native(cut), want)


@pytest.mark.parametrize(("rows", "packs"), [(1, 0), (3, 0), (8, 1), (20, 2)])
def test_skinny_gemms_walk_the_matrix_in_the_order_of_memory(rows: int, packs: int) -> None:
    ast = optimize(kernel_of(g.matmul(g.tensor(rows, 1024), g.tensor(1024, 768))), NEON)
    assert "SPLIT_K" in names(ast) and names(ast).count("PACK") == packs
    (totals,) = (n for n in toposort(ast) if n.op is Ops.BUFFERIZE and summed(n))
    (thread,) = (r for r in loops_of(ast).by_number.values() if r.arg[1] is AxisKind.THREAD)
    assert thread in ranges(totals) and math.prod(size(r) or 1 for r in totals.src[2:]) >= rows * 384


@pytest.mark.parametrize(
    ("batches", "rows", "steps", "columns"),
    [(6, 1, 1496, 128), (12, 4, 512, 64), (8, 9, 700, 80), (5, 2, 2000, 64)],
)
def test_threads_take_matrices_rather_than_columns(batches: int, rows: int, steps: int, columns: int) -> None:
    """One query over many keys: rows of half a head each were read at half the speed of whole ones."""
    product = g.matmul(g.tensor(batches, rows, steps), g.tensor(batches, steps, columns))
    ast = optimize(kernel_of(product), NEON)
    assert "SPLIT_K" in names(ast) and "TILE" not in names(ast)
    assert kinds(ast)[AxisKind.THREAD] == [batches]


@pytest.mark.parametrize("streams", [4, 8])
def test_a_single_row_reads_as_many_rows_side_by_side_as_the_machine_says(streams: int) -> None:
    ast = kernel_of(g.matmul(g.tensor(1, 1032), g.tensor(1032, 1024)))
    cut = optimize(ast, replace(NEON, streams=streams))
    assert ("SPLIT_K", streams) in [(opt.name, opt.amount) for opt in applied(cut)]
    same(native(cut), interpret(ast))


def test_columns_are_cut_where_matrices_leave_threads_idle() -> None:
    """Three wide matrices for two threads: six halves."""
    ast = optimize(kernel_of(g.matmul(g.tensor(3, 1, 1024), g.tensor(3, 1024, 1024))), NEON)
    assert ("TILE", 512) in [(opt.name, opt.amount) for opt in applied(ast)]


@pytest.mark.parametrize(("rows", "steps", "cut"), [(197, 3072, True), (512, 4096, True), (512, 768, False)])
def test_sums_of_many_steps_are_cut_into_blocks(rows: int, steps: int, cut: bool) -> None:
    """A panel of 4096 steps and the rows that pass by it fill a cache of 2 MiB: 130 GFLOP/s beside 190."""
    ast = optimize(kernel_of(g.matmul(g.tensor(rows, steps), g.tensor(steps, 768))), AVX512)
    assert ("SPLIT_K" in names(ast)) is cut


@pytest.mark.parametrize("machine", ["neoverse-n1", "avx2", "avx512", "avx512-amx"])
@pytest.mark.parametrize("rows", [2, 5, 8, 12, 16, 17, 24, 31, 40, 64, 100, 128])
@pytest.mark.parametrize("transposed", [False, True])
def test_the_sums_of_a_tile_fit_the_registers(machine: str, rows: int, transposed: bool) -> None:
    """On every processor: a tile of vectors, which no row of AVX-512's had from 17 rows on."""
    known = replace(load(machine), cores=2)
    right = g.transpose(g.tensor(3072, 768), 1, 0) if transposed else g.tensor(768, 3072)
    ast = optimize(kernel_of(g.matmul(g.tensor(rows, 768), right)), known)
    reduction = next(n for n in toposort(ast) if n.op is Ops.REDUCE)
    lanes = known.vector_bytes // 4
    across = [size(r) or 0 for r in ranges(reduction) if r.arg[1] is AxisKind.UPCAST]
    steps = [size(r) or 0 for r in closed_ranges(reduction) if r.arg[1] is AxisKind.UNROLL]
    assert any(n % lanes == 0 for n in [*across, *steps]), f"no vectors: {across}, {steps}"
    along = transposed and rows < 32  # vectors along the steps: one of them for each sum
    sums = math.prod(across) // (1 if along else lanes)
    assert rows < 4 or known.registers // 4 <= sums <= known.registers, f"{across}, {steps}"


def test_gemv_is_a_tile_of_dot_products() -> None:
    """Vectors along the steps, several rows of both at a time, and vector accumulators until the end."""
    transposed = g.transpose(g.tensor(768, 1024), 1, 0)
    ast = optimize(kernel_of(g.matmul(g.tensor(4, 1024), transposed)), NEON)
    assert kinds(ast) == {
        AxisKind.THREAD: [192], AxisKind.UPCAST: [4, 4], AxisKind.UNROLL: [4], AxisKind.REDUCE: [256],
    }  # fmt: skip


@pytest.mark.parametrize(("steps", "columns"), [(128, 512), (50, 193), (192, 64)])
def test_a_single_row_is_multiplied_with_a_few_others_at_a_time(steps: int, columns: int) -> None:
    """What is read of the row serves them all; what is left over at both ends comes out right."""
    ast = kernel_of(g.matmul(g.tensor(1, steps), g.transpose(g.tensor(columns, steps), 1, 0)))
    cut = optimize(ast, NEON)
    assert 4 in kinds(cut)[AxisKind.UPCAST] and "UNROLL" in names(cut)
    same(native(cut), interpret(ast))


@pytest.mark.parametrize("rows", [16, 9, 13])
@pytest.mark.parametrize("machine", [NEON, AVX512])
def test_the_sums_of_a_tile_stay_in_the_lanes_that_are_loaded(
    rows: int, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight rows times three: 24 sums of a vector each, added across lanes after the last step only.

    Where the last row of a tile is repeated, its address is one of its own."""
    found: list[bool] = []
    whole = reduce.runs_along_parts

    def watched(x: UOp, parts: int, machine: Machine) -> bool:
        found.append(whole(x, parts, machine))
        return found[-1]

    monkeypatch.setattr(reduce, "runs_along_parts", watched)
    product = g.matmul(g.tensor(rows, 256), g.transpose(g.tensor(256, 256), 1, 0))
    program_of(kernel_of(product), machine, optimize, "product")
    assert found and all(found)
