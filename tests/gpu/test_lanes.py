"""What the threads of a block share is the same for all of them: loops around it are no lanes or threads."""

from __future__ import annotations

import math

import pytest

from morok import knobs
from morok.device.cuda.device import program_of
from morok.device.cuda.interface import Facts
from morok.ir.node import UOp
from morok.optimize.actions.table import apply_all, can
from morok.optimize.heuristics.apply import optimize
from morok.optimize.record import Opt, applied
from morok.optimize.search.space import Space
from tests.optimize.kernels import GPU, kernel_of
from tests.schedule import graphs as g

H200 = Facts("GPU", (9, 0), 1 << 34, 132, 1024, 227 << 10, 50 << 20, 13000).machine()


def staged() -> UOp:
    """A product of matrices, with a tile of the left one for every step of the loops 0 and 2."""
    ast = kernel_of(g.matmul(g.tensor(16, 16), g.tensor(16, 16)))
    return apply_all(ast, (Opt("TILE", 0, 4), Opt("TILE", 2, 4), Opt("STAGE", 1, 2, (3, 4))), GPU)


@pytest.mark.parametrize(
    "opt", [Opt("UPCAST", 0, 2), Opt("LOCAL", 0, 2), Opt("UNROLL", 2, 2), Opt("GROUP", 2, 2)], ids=str
)
def test_loops_around_a_tile_stay_loops(opt: Opt) -> None:
    assert can(staged(), opt, GPU) == f"a tile that all threads share depends on loop {opt.axis}"
    # before the tile is made they may be anything, and then it is the tile that is refused
    ast = kernel_of(g.matmul(g.tensor(16, 16), g.tensor(16, 16)))
    first = apply_all(ast, (Opt("TILE", 0, 4), Opt("TILE", 2, 4), opt), GPU)
    assert can(first, Opt("STAGE", 1, 2, (3, 4)), GPU) is not None


def test_the_threads_fill_a_tile_by_themselves() -> None:
    assert can(staged(), Opt("UPCAST", 5, 2), GPU) == "loop 5 fills a tile, which is the work of all threads"


def test_loops_that_only_read_the_tile_are_free() -> None:
    for opt in (Opt("UPCAST", 3), Opt("LOCAL", 3), Opt("UPCAST", 1, 4), Opt("LOCAL", 1, 8), Opt("UNROLL", 4)):
        assert can(staged(), opt, GPU) is None


def test_everything_around_a_convolution_can_be_compiled() -> None:
    """A search tries these; what is allowed has to be lowered."""
    ast = kernel_of(g.conv(g.tensor(8, 32, 28, 28), g.tensor(64, 32, 3, 3), padding=1))
    space = Space(ast, H200)
    opts = applied(optimize(ast, H200))
    assert any(opt.name == "STAGE" for opt in opts)
    found = space.neighbours(opts)
    assert len(found) > 30
    with knobs.override(NOOPT=True):
        for _, other in found[:: max(1, len(found) // 16)]:
            assert "__global__" in program_of(other, H200).text


@pytest.mark.parametrize(("rows", "columns"), [(64, 256), (4096, 2048), (8192, 8192)])
def test_a_row_is_read_once_and_its_powers_are_computed_once(rows: int, columns: int) -> None:
    """Who has a part of a row in one of its loops has it in all: it stays in registers from the first."""
    ast = optimize(kernel_of(g.softmax(g.tensor(rows, columns))), H200)
    program = program_of(ast, H200)
    blocks = math.prod(int(extent[0]) for extent in program.grid)
    each = rows * columns // (blocks * math.prod(program.block))  # elements of a thread
    assert program.text.count("*(const float4*)(g1") * 4 == each
    assert program.text.count("0x1.7154760000000p+0f") == each  # log2(e), once for every power
