"""Which loops threads share: plans for processors of many cores, whatever this one is."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from morok import Tensor, knobs
from morok.device.registry import get_device
from morok.ir.infer import ranges
from morok.ir.node import UOp, toposort
from morok.ir.ops import AxisKind, Ops
from morok.machine.machine import Machine
from morok.optimize.heuristics.apply import optimize
from morok.optimize.loops import loops_of, size
from morok.optimize.record import applied
from morok.schedule.schedule import schedule
from tests.optimize.kernels import interpret, kernel_of, native, same
from tests.schedule import graphs as g

TINY = Machine(
    cores=5, masked_memory=True, l1_bytes=1 << 10, l2_bytes=1 << 12, local_bytes=1 << 15, threads=True
)


def empty(*sizes: int) -> Tensor:
    return Tensor.empty(*sizes, device="CPU")


def planned(make: Callable[[], Tensor], machine: str, cores: int) -> list[UOp]:
    """The kernels of a program on a processor that need not be here."""
    with knobs.override(DEVICE="CPU", MACHINE=machine, THREADS=cores):
        chip = get_device("CPU").machine
        return [optimize(item.ast, chip) for item in schedule([make().uop]).items]


def threads(ast: UOp) -> int:
    """Iterations that threads share; 0 where one thread does everything."""
    found = [size(r) or 0 for r in loops_of(ast).by_number.values() if r.arg[1] is AxisKind.THREAD]
    return found[0] if found else 0


def fills(ast: UOp) -> list[int]:
    """How often each copy is filled."""
    (shared,) = (r for r in loops_of(ast).by_number.values() if r.arg[1] is AxisKind.THREAD)
    copies = [n for n in toposort(ast) if n.op is Ops.BUFFERIZE]
    loops = [{shared} | {r for r in ranges(n) if r.arg[1] is AxisKind.LOOP} for n in copies]
    return [math.prod(size(r) or 1 for r in found) for found in loops]


def attention(heads: int, queries: int, keys: int, width: int) -> Tensor:
    return scores(heads, queries, keys, width).softmax(-1) @ empty(heads, keys, width)


def scores(heads: int, queries: int, keys: int, width: int) -> Tensor:
    return empty(heads, queries, width) @ empty(heads, keys, width).transpose(1, 2)


PROGRAMS: dict[str, tuple[Callable[[], Tensor], int, list[int]]] = {
    # heads and panels of columns are shared as one
    "products of heads": (lambda: scores(2, 256, 256, 128), 8, [8]),
    # heads and blocks of rows, with both products in each
    "attention": (lambda: attention(2, 256, 256, 128), 8, [8]),
    "three heads": (lambda: attention(3, 192, 192, 128), 8, [15]),
    # threads have whole heads, whose keys they pack once
    "many heads": (lambda: attention(32, 192, 192, 128), 8, [32]),
    # fewer rows than cores are still more than one
    "one query": (lambda: attention(5, 1, 720, 128), 8, [180, 5, 5]),
    "few panels": (lambda: empty(64, 128) @ empty(128, 320), 8, [15]),
    "a panel for each": (lambda: empty(64, 128) @ empty(128, 512), 8, [8]),
    # what a single core sums up is as long as what others do
    "few outputs": (lambda: empty(32, 16984) @ empty(16984, 80), 8, [8, 20]),
    "few outputs, two cores": (lambda: empty(32, 16984) @ empty(16984, 80), 2, [4, 20]),
    "few outputs, one panel": (lambda: empty(8, 16411) @ empty(16411, 40), 2, [4, 0]),
    # a short one is not worth calling anybody
    "short columns": (lambda: empty(64, 128).sum(0), 8, [0]),
    # nor is one after a sum that every thread would compute for itself
    "all by their sum": (lambda: (lambda x: x / x.sum())(empty(4096)), 8, [0]),
    "many by their sum": (lambda: (lambda x: x / x.sum())(empty(1 << 16)), 8, [1024]),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_threads_share_what_there_is(name: str) -> None:
    make, cores, want = PROGRAMS[name]
    assert [threads(ast) for ast in planned(make, "avx512-amx", cores)] == want


def test_a_panel_comes_once_for_many_rows() -> None:
    """Where the rows of a block have too many steps for the second cache, the steps are cut, not the rows."""
    for m, k, n in ((2048, 4096, 512), (2048, 2048, 2048), (3000, 3000, 3000)):
        (ast,) = planned(lambda m=m, k=k, n=n: empty(m, k) @ empty(k, n), "avx512-amx", 2)
        cut = [opt.amount for opt in applied(ast) if opt.name == "TILE"]
        assert min(cut) >= 64, (m, k, n, cut)


def test_columns_in_one_piece_are_not_summed_by_every_thread() -> None:
    """Threads could share what writes the sums, and each would sum up all of them."""
    (ast,) = planned(lambda: empty(2000, 100).sum(0), "neoverse-n1", 2)
    assert "ACCUMULATE_IN_CACHE" in [opt.name for opt in applied(ast)] and not threads(ast)


def test_a_panel_is_packed_once_where_loops_are_shared_together() -> None:
    """Eight panels for eight cores; shared by tiles of rows, each would have been packed 43 times."""
    (product,) = planned(lambda: scores(2, 256, 256, 128), "avx512-amx", 8)
    assert fills(product) == [8] and "JOIN" in [opt.name for opt in applied(product)]


def test_a_row_is_computed_once_where_its_columns_could_be_shared() -> None:
    """Four rows of a softmax: shared by columns, each thread would compute all of them."""
    _, softmax, _ = planned(lambda: attention(4, 1, 1024, 128), "avx512-amx", 8)
    assert threads(softmax) == 4 and set(fills(softmax)) == {4}


@pytest.mark.parametrize("columns", [2992, 1040, 3001])
def test_no_thread_has_a_rest_of_the_columns_to_itself(columns: int) -> None:
    """Where memory takes masks, all columns of a single row are shared evenly (processors with AMX share the
    steps of short ones)."""
    (ast,) = planned(lambda: empty(1, 824) @ empty(824, columns), "avx512", 8)
    assert threads(ast) == 8 and len(ast.src) == 1


@pytest.mark.parametrize("rows", [1, 9])
def test_steps_behind_the_last_vector_are_a_vector(rows: int) -> None:
    """1176 = 36 · 32 + 24 steps: no loop takes one at a time."""
    (ast,) = planned(lambda: empty(rows, 1176) @ empty(1968, 1176).transpose(0, 1), "avx512-amx", 8)
    sums = [n for n in toposort(ast) if n.op is Ops.REDUCE]
    lanes = [[size(r) for r in n.src[1:] if r.arg[1] is AxisKind.UNROLL] for n in sums]
    assert len(sums) == 2 and all(found and (found[0] or 0) >= 16 for found in lanes)


@given(
    st.integers(1, 4),
    st.integers(1, 40),
    st.integers(17, 200),
    st.integers(1, 90),
    st.booleans(),
    st.booleans(),
)
@settings(max_examples=25)
def test_what_is_shared_together_keeps_the_answer(
    heads: int, rows: int, steps: int, columns: int, transposed: bool, more: bool
) -> None:
    """Batches, pieces of rows and panels as one loop; also with something around."""
    left = g.tensor(heads, rows, steps)
    right = (
        g.transpose(g.tensor(heads, columns, steps), 0, 2, 1)
        if transposed
        else g.tensor(heads, steps, columns)
    )
    product = g.matmul(left, right)
    ast = kernel_of(g.add(g.relu(product), g.tensor(heads, rows, columns)) if more else product)
    cut = optimize(ast, replace(TINY, rates=replace(TINY.rates, shared_work=100, wake=0)))
    want = interpret(ast)
    same(interpret(cut), want)
    same(native(cut), want)


def test_products_of_few_outputs_are_cut_for_the_cores() -> None:
    """Two panels for eight cores, and each too long for a cache. With one core, or more panels, they stay."""
    many = planned(lambda: empty(32, 16984) @ empty(16984, 80), "avx512-amx", 8)
    alone = planned(lambda: empty(32, 16984) @ empty(16984, 80), "avx512-amx", 1)
    wide = planned(lambda: empty(32, 16984) @ empty(16984, 800), "avx512-amx", 8)
    short = planned(lambda: empty(32, 512) @ empty(512, 80), "avx512-amx", 8)
    assert [len(found) for found in (many, alone, wide, short)] == [2, 1, 1, 1]


def test_cut_products_are_right() -> None:
    with knobs.override(DEVICE="CPU", MACHINE="avx512-amx", THREADS=8, CACHE=0):
        a, b = Tensor.rand(7, 16411), Tensor.rand(16411, 11)
        got = (a @ b).numpy()
        assert abs(got / (a.numpy().astype("float64") @ b.numpy().astype("float64")) - 1).max() < 1e-5


@pytest.mark.parametrize("cores", [2, 8, 16])
def test_rows_that_go_anywhere_are_walked_in_wide_pieces(cores: int) -> None:
    """A thread walks all of them for each piece of their columns, so that it has one alone."""

    def put() -> Tensor:
        places = Tensor.empty(8192, dtype="int64", device="CPU")
        return empty(50257, 768).index_add(0, places, empty(8192, 768))

    kernels = planned(put, "neoverse-n1", cores)
    (walk,) = [
        k for k in kernels if any(r.arg[1] is AxisKind.ORDERED for r in loops_of(k).by_number.values())
    ]
    assert threads(walk) == cores


@pytest.mark.parametrize("shape", [(472, 600, 576), (368, 744, 296), (360, 504, 296), (512, 472, 312)])
def test_panels_that_do_not_go_round_are_not_computed_for_nothing(shape: tuple[int, int, int]) -> None:
    """Nine panels for two threads would be ten: then they share rows, and columns are as wide as panels."""
    _, steps, columns = shape
    (ast,) = planned(lambda: empty(shape[0], steps) @ empty(steps, columns), "avx512", 2)
    multiples = {opt.axis: opt.amount for opt in applied(ast) if opt.name == "PADTO"}
    wide, multiple = max(opt.amount for opt in applied(ast) if opt.name == "UPCAST"), multiples.get(0, 1)
    assert applied(ast)[0].name == "SWAP"  # columns are outside, and the first loop
    assert threads(ast) == 2 and -(-columns // multiple) * multiple < columns + wide
