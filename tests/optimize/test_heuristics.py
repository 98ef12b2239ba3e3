"""Heuristics: right answers on every machine's description, and the choices one expects of them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from morok import Tensor, knobs
from morok.device.registry import get_device
from morok.dtype import PtrDType, float32, float64, int32
from morok.ir import movement
from morok.ir.build import define_global
from morok.ir.infer import closed_ranges, ranges
from morok.ir.node import UOp, alu, const, toposort
from morok.ir.ops import AxisKind, Op, Ops
from morok.machine.machine import Machine
from morok.optimize.facts import access
from morok.optimize.heuristics.apply import optimize
from morok.optimize.heuristics.tiles import SUMS_OF_REST, tile_shape
from morok.optimize.loops import loops_of, size
from morok.optimize.record import applied
from tests.optimize.kernels import (
    AVX512,
    GPU,
    MAKERS,
    NEON,
    VALUES,
    interpret,
    kernel,
    kernel_of,
    native,
    same,
    wanted,
)
from tests.schedule import graphs as g

AVX2 = Machine(vector_bytes=32, registers=16, masked_memory=True, cores=4)
SCALAR = Machine(vector_bytes=0, registers=8)
HOSTS = (NEON, AVX2, AVX512, SCALAR, GPU)


@pytest.mark.parametrize("name", sorted(MAKERS))
def test_the_answer_stays(name: str) -> None:
    for host in HOSTS:
        same(interpret(optimize(kernel(name), host), VALUES), wanted(name))
    same(native(optimize(kernel(name), NEON), VALUES), wanted(name))


def two_results(value: UOp) -> UOp:
    """One kernel that stores a value and what is made of it: writes of one shape are joined."""
    (effect,) = (ast := kernel_of(value)).src
    store = effect.src[0]
    pointer = store.src[0].src[0].dtype
    assert isinstance(pointer, PtrDType)
    count = sum(n.op is Ops.DEFINE_GLOBAL for n in toposort(ast))
    place = store.src[0].replace((define_global(pointer.elem, pointer.size, count), *store.src[0].src[1:]))
    second = store.replace((place, alu(Ops.MUL, store.src[1], const(store.src[1].dtype, 2.0))))
    return ast.replace((effect, effect.replace((second, *effect.src[1:]))))


def _kernels(draw: st.DrawFn) -> UOp:
    sizes = st.integers(2, 70)
    kind = draw(
        st.sampled_from([
            "chain", "sum", "softmax", "norm", "matmul", "transposed", "conv", "pool", "turn", "rows",
            "scaled", "two results",
        ])
    )  # fmt: skip
    a, b, c = draw(sizes), draw(sizes), draw(sizes)
    dtype = draw(st.sampled_from([float32, float64]))
    if kind == "chain":
        return kernel_of(g.relu(g.add(g.mul(g.tensor(a, b, dtype=dtype), 2.0), g.tensor(b, dtype=dtype))))
    if kind == "sum":
        axes = draw(st.sampled_from([(0,), (1,), (2,), (0, 2), (1, 2), ()]))
        return kernel_of(g.total(g.tensor(a, 3, b, dtype=dtype), *axes))
    if kind == "softmax":
        return kernel_of(g.softmax(g.tensor(a, b)))
    if kind == "norm":
        return kernel_of(g.layer_norm(g.tensor(a, b), g.tensor(b), g.tensor(b)))
    if kind == "matmul":
        return kernel_of(g.matmul(g.tensor(a, c, dtype=dtype), g.tensor(c, b, dtype=dtype)))
    if kind == "transposed":
        return kernel_of(g.matmul(g.tensor(a, c), g.transpose(g.tensor(b, c), 1, 0)))
    if kind == "rows":
        return kernel_of(g.matmul(g.transpose(g.tensor(c, a), 1, 0), g.tensor(c, b)))
    if kind == "scaled":
        return kernel_of(g.matmul(g.add(g.mul(g.tensor(a, c), 3.0), g.tensor(c)), g.tensor(c, b)))
    if kind == "two results":
        product = g.matmul(g.tensor(a, c), g.tensor(c, b))
        return two_results(product)
    if kind == "conv":
        h, w = 3 + a % 7, 3 + b % 11
        return kernel_of(g.conv(g.tensor(2, 3, h, w), g.tensor(1 + c % 13, 3, 3, 3), padding=1))
    if kind == "pool":
        return kernel_of(g.max_pool(g.tensor(1, 3, 2 + a, 2 + b), 2, 2))
    return kernel_of(g.contiguous(g.transpose(g.tensor(a, b, dtype=int32), 1, 0)))


@st.composite
def kernels(draw: st.DrawFn) -> UOp:
    return _kernels(draw)


@given(kernels(), st.sampled_from(HOSTS))
@settings(max_examples=40)
def test_awkward_sizes_keep_the_answer(ast: UOp, host: Machine) -> None:
    same(interpret(optimize(ast, host)), interpret(ast))


@given(kernels())
@settings(max_examples=30)
def test_awkward_sizes_keep_the_answer_as_machine_code(ast: UOp) -> None:
    same(native(optimize(ast, NEON)), interpret(ast))


@pytest.mark.slow
@given(kernels())
def test_many_awkward_sizes_as_machine_code(ast: UOp) -> None:
    same(native(optimize(ast, NEON)), interpret(ast))


TINY = Machine(cores=2, l1_bytes=1 << 10, l2_bytes=1 << 12, local_bytes=1 << 15, lane_operands=True)


@given(st.integers(2, 60), st.integers(4, 40), st.integers(256, 300), st.booleans())
@settings(max_examples=15)
def test_split_k_and_strips_keep_the_answer(rows: int, steps: int, columns: int, transposed: bool) -> None:
    """Caches so small that a small product is cut like a large one, by columns or by rows."""
    right = g.transpose(g.tensor(columns, steps), 1, 0) if transposed else g.tensor(steps, columns)
    other = g.matmul(g.tensor(3 * columns, steps), g.transpose(g.tensor(columns, steps), 1, 0))
    for ast in (kernel_of(g.matmul(g.tensor(rows, steps), right)), kernel_of(other)):
        cut = optimize(ast, TINY)
        want = interpret(ast)
        same(interpret(cut), want)
        same(native(cut), want)


@given(st.integers(17, 70), st.integers(65, 400), st.sampled_from([Ops.ADD, Ops.MAX]), st.booleans())
@settings(max_examples=25)
def test_rows_accumulated_in_cache_keep_the_answer(rows: int, columns: int, op: Op, blocks: bool) -> None:
    """Sums of more columns than there are registers, also in stretches that a tiny cache holds."""
    sizes = (3, rows, columns) if blocks else (rows, columns)
    value = g.reduce(op, g.mul(g.tensor(*sizes), 0.5), len(sizes) - 2)
    ast = kernel_of(g.add(value, g.tensor(*(3, 1, columns) if blocks else (1, columns))))
    want = interpret(ast)
    for host in (NEON, TINY):
        cut = optimize(ast, host)
        assert "ACCUMULATE_IN_CACHE" in names(cut)
        same(interpret(cut), want)
        same(native(cut), want)


@given(st.integers(1, 6), st.integers(1, 90), st.integers(1, 40), st.integers(0, 2), st.booleans())
@settings(max_examples=25)
def test_running_sums_keep_the_answer(a: int, b: int, c: int, axis: int, backwards: bool) -> None:
    """Along each axis of awkward sizes, forwards and backwards, with arithmetic around it."""
    turn = [backwards and i == axis for i in range(3)]
    x = movement.scan_axis(movement.flip(g.mul(g.tensor(a, b, c), 0.5), turn), Ops.ADD, axis)
    ast = kernel_of(g.add(movement.flip(x, turn), g.tensor(a, b, c)))
    want = interpret(ast)
    for host in HOSTS:
        same(interpret(optimize(ast, host)), want)
    same(native(optimize(ast, NEON)), want)


# --- choices


def kinds(ast: UOp) -> dict[AxisKind, list[int | None]]:
    found: dict[AxisKind, list[int | None]] = {}
    for r in loops_of(ast).by_number.values():
        found.setdefault(r.arg[1], []).append(size(r))
    return {kind: sorted(sizes, key=str) for kind, sizes in found.items()}


def names(ast: UOp) -> list[str]:
    return [opt.name for opt in applied(ast)]


def test_element_wise_kernels_become_vectors_and_threads() -> None:
    ast = optimize(kernel_of(g.add(g.tensor(1 << 20), g.tensor(1 << 20))), NEON)
    assert kinds(ast) == {AxisKind.UPCAST: [32], AxisKind.THREAD: [1 << 15]}


def test_small_kernels_are_not_shared() -> None:
    ast = optimize(kernel_of(g.add(g.tensor(64), g.tensor(64))), NEON)
    assert "THREAD" not in names(ast)
    assert Machine().rates.shared_work > 64 * 16


def test_the_rest_of_a_long_loop_is_peeled_off() -> None:
    ast = optimize(kernel_of(g.add(g.tensor(100_003), g.tensor(100_003))), NEON)
    assert names(ast)[:2] == ["PEEL", "UPCAST"] and "THREAD" in names(ast)


def test_sums_get_several_vector_accumulators() -> None:
    ast = optimize(kernel_of(g.total(g.tensor(512, 1024), -1)), NEON)
    assert kinds(ast) == {AxisKind.THREAD: [512], AxisKind.REDUCE: [32], AxisKind.UNROLL: [32]}


def test_sums_across_long_rows_accumulate_in_the_cache() -> None:
    """A sum per column is kept in the cache, in vectors, and threads have columns of their own."""
    ast = optimize(kernel_of(g.total(g.tensor(128, 4096), 0)), NEON)
    assert names(ast) == ["UNROLL", "TILE", "ACCUMULATE_IN_CACHE", "UPCAST", "UPCAST", "THREAD"]
    (sums,) = [n for n in toposort(ast) if n.op is Ops.BUFFERIZE]
    assert [size(r) for r in closed_ranges(sums)] == [2048 // 16, 16]


def test_no_accumulators_in_cache_where_sums_would_be_repeated() -> None:
    """A short sum for each column is computed once per column, not in every row."""
    few = movement.expand(movement.reduce_axis(g.tensor(16, 1024), Ops.ADD, (0,)), (128, 1024))
    value = movement.reduce_axis(g.mul(g.tensor(128, 1024), few), Ops.MAX, (0,))
    assert "ACCUMULATE_IN_CACHE" not in names(optimize(kernel_of(value), NEON))


def test_what_runs_along_memory_runs_in_vectors() -> None:
    ast = optimize(kernel_of(movement.scan_axis(g.tensor(256, 1023), Ops.ADD, 1)), NEON)
    assert kinds(ast) == {
        AxisKind.THREAD: [256],
        AxisKind.ORDERED: [15, 63],
        AxisKind.UPCAST: [16],
    }
    narrow = optimize(kernel_of(movement.scan_axis(g.tensor(1024, 32), Ops.ADD, 0)), NEON)
    assert kinds(narrow) == {AxisKind.ORDERED: [1024], AxisKind.UPCAST: [32]}, "registers hold the row"


def test_what_runs_across_long_rows_is_carried_in_a_row() -> None:
    """Threads have columns of their own, and walk their part of each row from front to end."""
    ast = optimize(kernel_of(movement.scan_axis(g.tensor(1024, 256), Ops.ADD, 0)), NEON)
    assert names(ast) == ["TILE", "ACCUMULATE_IN_CACHE", "UPCAST", "THREAD"]
    (run,) = [n for n in toposort(ast) if n.op is Ops.SCAN]
    assert run.arg.row and kinds(ast)[AxisKind.THREAD] == [2] and kinds(ast)[AxisKind.UPCAST] == [16]


def test_sums_across_memory_are_vectors_of_outputs() -> None:
    ast = optimize(kernel_of(g.total(g.tensor(64, 48), 0)), NEON)
    assert kinds(ast) == {
        AxisKind.LOOP: [3],
        AxisKind.UPCAST: [16],
        AxisKind.UNROLL: [4],
        AxisKind.REDUCE: [16],
    }


def test_windows_narrower_than_a_vector_are_summed_for_a_vector_of_outputs() -> None:
    """A convolution with a single output channel is no product; three steps along memory are no vector."""
    ast = optimize(kernel_of(g.conv(g.tensor(1, 32, 20, 24), g.tensor(1, 32, 3, 3))), NEON)
    assert kinds(ast).get(AxisKind.UPCAST)


def test_every_column_loop_of_a_softmax_is_a_vector() -> None:
    ast = optimize(kernel_of(g.softmax(g.tensor(256, 512))), NEON)
    assert [opt.name for opt in applied(ast)] == [
        "CACHE_ROW", "UNROLL", "UNROLL", "UPCAST", "UPCAST", "THREAD",
    ]  # fmt: skip


@pytest.mark.parametrize("host", [NEON, AVX2, AVX512], ids=["neon", "avx2", "avx512"])
def test_accumulators_of_a_tile_fit_the_registers(host: Machine) -> None:
    lanes = host.lanes(float32)
    for rows in (1, 5, 64, 1000, 1023, 1024):
        for columns in (1, 10, 64, 1000, 1023, 1024):
            height, width = tile_shape(rows, columns, lanes, host)
            vectors = width // lanes
            assert width % lanes == 0 and height * vectors <= host.registers * 3 // 4


def test_a_matrix_product_is_a_register_tile_over_a_packed_panel() -> None:
    ast = optimize(kernel_of(g.matmul(g.tensor(256, 128), g.tensor(128, 192))), NEON)
    height, width = tile_shape(256, 192, 4, NEON)
    lanes = [s for s in kinds(ast)[AxisKind.UPCAST] if s is not None]
    assert height in lanes and width in lanes
    (panel,) = [n for n in toposort(ast) if n.op is Ops.BUFFERIZE]
    assert [size(r) for r in panel.src[1:]] == [128, width]
    assert "THREAD" in names(ast)


def test_a_product_with_a_rest_is_shared_by_threads() -> None:
    ast = optimize(kernel_of(g.matmul(g.tensor(256, 128), g.tensor(128, 200))), NEON)
    assert len(ast.src) == 2 and names(ast)[-1] == "THREAD"


def test_columns_that_are_left_over_get_a_small_tile() -> None:
    """Its code is as long as that of the whole tiles otherwise, and hardly any column runs through it."""
    ast = optimize(kernel_of(g.matmul(g.tensor(256, 128), g.tensor(128, 196))), NEON)
    whole, rest = (
        math.prod(size(r) or 1 for r in closed_ranges(effect) if r.arg[1] is AxisKind.UPCAST)
        for effect in ast.src
    )
    assert whole == 24 * 4 and rest == SUMS_OF_REST * 4


def test_whole_vectors_of_a_panel_are_read_where_memory_is_walked() -> None:
    """Also where its loops were put in another order first: channels outside of what padding depends on."""
    picture, weight = g.tensor(1, 16, 32, 32), g.tensor(32, 16, 4, 4)
    ast = optimize(kernel_of(g.conv(picture, weight, stride=2, padding=1)), NEON)
    assert copies(ast) and "SWAP" in names(ast)
    for panel in (n for n in toposort(ast) if n.op is Ops.BUFFERIZE):
        (read,) = (n for n in toposort(panel.src[0]) if n.op is Ops.INDEX)
        lanes = [r for r in closed_ranges(panel) if r.arg[1] is AxisKind.UPCAST and size(r) == 4]
        assert 1 in [access(read).step(r) for r in lanes]


def copies(ast: UOp) -> list[list[int | None]]:
    return [[size(r) for r in n.src[1:]] for n in toposort(ast) if n.op is Ops.BUFFERIZE]


@pytest.mark.parametrize(
    "rows",
    [
        lambda: g.transpose(g.tensor(128, 256), 1, 0),
        lambda: g.add(g.mul(g.tensor(256, 128), 3.0), g.tensor(128)),
    ],
    ids=["turned", "computed"],
)
def test_rows_that_jump_or_are_computed_are_packed_too(rows: Callable[[], UOp]) -> None:
    """Computed once per row and not once per panel: both copies, and threads over the rows."""
    ast = optimize(kernel_of(g.matmul(rows(), g.tensor(128, 96))), NEON)
    assert names(ast).count("PACK") == 2
    (thread,) = (r for r in loops_of(ast).by_number.values() if r.arg[1] is AxisKind.THREAD)
    assert [thread in ranges(n) for n in toposort(ast) if n.op is Ops.BUFFERIZE].count(True) == 1


@pytest.mark.parametrize(("rows", "steps", "columns"), [(500, 1200, 1000), (1100, 600, 300)])
def test_many_rows_are_packed_in_blocks_that_stay_in_the_second_cache(
    rows: int, steps: int, columns: int
) -> None:
    """Each thread packs its share of the longer side once; the blocks of rows come and go."""
    ast = optimize(kernel_of(g.matmul(g.tensor(rows, steps), g.tensor(steps, columns))), NEON)
    packed = [n for n in toposort(ast) if n.op is Ops.BUFFERIZE]
    (block,) = (n for n in packed if n.src[0].src[0].arg == 1)
    (stretch,) = (n for n in packed if n.src[0].src[0].arg == 2)
    assert math.prod(size(r) or 1 for r in block.src[1:]) * 4 <= NEON.l2_bytes // 2
    share = columns if rows > 2 * columns else -(-columns // NEON.cores)
    assert share * steps <= math.prod(size(r) or 1 for r in stretch.src[1:]) <= (share + 12) * steps
    (thread,) = (r for r in loops_of(ast).by_number.values() if r.arg[1] is AxisKind.THREAD)
    assert (thread in ranges(block)) == (rows > 2 * columns)


def test_panels_without_end_are_packed_in_parts() -> None:
    ast = optimize(kernel_of(g.matmul(g.tensor(64, 8192), g.tensor(8192, 1024))), NEON)
    assert "TILE" in names(ast)
    for copy in copies(ast):
        assert math.prod(n or 1 for n in copy) * 4 <= NEON.local_bytes // 2


def test_a_product_with_two_results_is_one_tile() -> None:
    product = g.matmul(g.tensor(64, 32), g.tensor(32, 48))
    ast = optimize(two_results(product), NEON)
    assert len(ast.src) == 2 and names(ast).count("UPCAST") >= 2 and "PACK" in names(ast)


def test_threads_do_not_fill_the_same_panel_again_and_again() -> None:
    """96 columns are eight panels: each thread takes four, instead of all of them for some rows."""
    ast = optimize(kernel_of(g.matmul(g.tensor(1024, 256), g.tensor(256, 96))), NEON)
    (thread,) = (r for r in loops_of(ast).by_number.values() if r.arg[1] is AxisKind.THREAD)
    (panel,) = (n for n in toposort(ast) if n.op is Ops.BUFFERIZE)
    assert thread in ranges(panel)


def test_threads_share_rows_where_there_are_few_panels() -> None:
    """One panel serves all rows; each thread packs it once for its half of them."""
    ast = optimize(kernel_of(g.matmul(g.tensor(1024, 256), g.tensor(256, 12))), NEON)
    (thread,) = (r for r in loops_of(ast).by_number.values() if r.arg[1] is AxisKind.THREAD)
    assert size(thread) == NEON.cores
    (panel,) = (n for n in toposort(ast) if n.op is Ops.BUFFERIZE)
    assert not ranges(panel)


def test_small_pictures_are_one_row_of_outputs() -> None:
    """A convolution's 7 × 7 outputs are cut together; its steps are one plain loop once packed."""
    ast = optimize(kernel_of(g.conv(g.tensor(1, 16, 7, 7), g.tensor(64, 16, 3, 3), padding=1)), NEON)
    assert names(ast).count("JOIN") >= 3
    reduces = [n for n in toposort(ast) if n.op is Ops.REDUCE]
    assert all(sum(r.arg[1] is AxisKind.REDUCE for r in closed_ranges(n)) == 1 for n in reduces)


@pytest.mark.parametrize(
    ("channels", "picture", "out", "kernel", "stride"),
    [(3, 7, 33, 3, 1), (5, 9, 24, 3, 2), (16, 6, 40, 1, 1), (2, 14, 48, 5, 2), (4, 30, 20, 3, 1)],
)
def test_convolutions_of_awkward_sizes(
    channels: int, picture: int, out: int, kernel: int, stride: int
) -> None:
    x, w = g.tensor(2, channels, picture, picture), g.tensor(out, channels, kernel, kernel)
    plain = kernel_of(g.conv(x, w, stride=stride, padding=kernel // 2))
    for host in (NEON, AVX512):
        same(interpret(optimize(plain, host)), interpret(plain))


def test_windows_of_small_images_are_copied_once_per_image() -> None:
    ast = optimize(kernel_of(g.conv(g.tensor(32, 16, 8, 8), g.tensor(16, 16, 3, 3), padding=1)), NEON)
    assert "HALO" in names(ast) and copies(ast) == [[16, 10, 10]]
    reads = [n for n in toposort(ast) if n.op is Ops.INDEX and not n.dtype.is_ptr]
    (copy,) = (n for n in toposort(ast) if n.op is Ops.BUFFERIZE)
    assert all(len(n.src) == 2 for n in reads if n not in toposort(copy)), "guards are in the copy alone"


def each_channel_alone(n: int, c: int, size: int, k: int) -> UOp:
    """A convolution of every channel with weights of its own."""
    view = g.windows(g.pad2d(g.tensor(n, c, size, size), k // 2), k, 1)
    weights = movement.reshape(g.tensor(c, k, k), (1, c, 1, 1, k, k))
    return kernel_of(g.total(g.mul(view, weights), 4, 5))


def test_windows_that_overlap_are_copied_even_for_one_output() -> None:
    plain = each_channel_alone(2, 8, 12, 3)
    ast = optimize(plain, NEON)
    assert "HALO" in names(ast)
    same(interpret(ast), interpret(plain))
    same(native(ast), interpret(plain))


@pytest.mark.parametrize("columns", [1023, 205, 131, 36, 9])
def test_rows_of_any_length_are_kept(columns: int) -> None:
    """Whole steps are kept; the few columns after them are computed twice."""
    plain = kernel_of(g.softmax(g.tensor(5, columns)))
    ast = optimize(plain, NEON)
    if columns > 130:
        assert "CACHE_ROW" in names(ast)
    same(interpret(ast), interpret(plain))
    same(native(ast), interpret(plain))


def test_a_row_times_a_matrix_runs_along_the_rows_of_the_matrix() -> None:
    """Its own elements lie side by side along the sum, but the matrix jumps there."""
    plain = kernel_of(g.matmul(g.tensor(1, 40), g.tensor(40, 64)))
    ast = optimize(plain, NEON)
    (out,) = (n for n in loops_of(plain).by_number.values() if n.arg[1] is AxisKind.LOOP)
    assert any(opt.name == "UPCAST" and opt.axis == out.arg[0] for opt in applied(ast))
    same(interpret(ast), interpret(plain))


def test_threads_repeat_the_cheaper_of_two_copies() -> None:
    """A norm in front of a wide product: its few rows are packed by every thread, the matrix only once."""
    x, w = g.tensor(64, 256), g.tensor(256, 2048)
    ast = optimize(kernel_of(g.matmul(g.layer_norm(x, g.tensor(256), g.tensor(256)), w)), NEON)
    (thread,) = (r for r in loops_of(ast).by_number.values() if r.arg[1] is AxisKind.THREAD)
    copies = [n for n in toposort(ast) if n.op is Ops.BUFFERIZE]
    largest = max(copies, key=lambda n: math.prod(size(r) or 1 for r in (*closed_ranges(n), *ranges(n))))
    assert len(copies) == 2 and thread in ranges(largest)


def test_panels_are_packed_many_at_a_time_for_any_number_of_columns() -> None:
    """A prime number of panels: rows that are computed first are not computed again for each of them."""
    x, w = g.tensor(64, 128), g.tensor(128, 12 * 127)
    plain = kernel_of(g.matmul(g.layer_norm(x, g.tensor(128), g.tensor(128)), w))
    ast = optimize(plain, NEON)
    copies = [
        math.prod(size(r) or 1 for r in closed_ranges(n)) for n in toposort(ast) if n.op is Ops.BUFFERIZE
    ]
    assert max(copies) >= 8 * 12 * 128


def test_noopt_leaves_plain_loops() -> None:
    ast = kernel("matmul")
    with knobs.override(NOOPT=True):
        assert optimize(ast, NEON) is ast


def test_a_kernel_with_a_record_is_taken_at_its_word() -> None:
    ast = optimize(kernel("matmul"), NEON)
    assert optimize(ast, AVX512) is ast


def test_choosing_takes_milliseconds() -> None:
    ast = kernel_of(g.matmul(g.tensor(512, 256), g.tensor(256, 384)))
    optimize(ast, NEON)
    times = []
    for _ in range(5):
        started = time.process_time()
        optimize(ast, NEON)
        times.append(time.process_time() - started)
    assert min(times) < 0.03


def test_a_product_of_values_that_have_loops_of_their_own() -> None:
    """The reads of a pooled operand are no longer those that the product was found with."""
    rng = np.random.default_rng(0)
    x, w = rng.integers(-9, 9, (64, 1, 31)), rng.integers(-9, 9, (1, 31, 32))
    with knobs.override(DEVICE="CPU", CACHE=False):
        got = (Tensor(x).max_pool1d(3, 1, 1) @ Tensor(w)).numpy()
    wide = np.pad(x, ((0, 0), (0, 0), (1, 1)), constant_values=np.iinfo(np.int64).min)
    pooled = np.max([wide[..., i : i + 31] for i in range(3)], axis=0)
    np.testing.assert_array_equal(got, pooled @ w)


def test_reductions_over_one_loop_cut_it_once() -> None:
    """Three sums over the same rows: lanes are chosen for the loop, not again for each of them."""
    x = Tensor.empty(4, 3000, dtype="int32").realize()
    y = sum(((x >= t).cast("int32").sum(-1, dtype="int32") for t in (1, 2)), (x >= 3).cast("int32").sum(-1))
    done = applied(optimize(y.prepare().kernels[-1].ast, get_device("CPU").machine))
    cuts = [opt.axis for opt in done if opt.name == "UNROLL"]
    assert len(cuts) == len(set(cuts)), done
