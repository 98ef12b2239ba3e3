"""Walks through the space of a search, away from the heuristics: refused, or right and without races."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from morok import Tensor
from morok.codegen.pipeline import lower
from morok.device.interpreter import run_kernel
from morok.errors import CompileError
from morok.ir.node import UOp
from morok.optimize.actions.table import apply_all, can
from morok.optimize.heuristics.apply import optimize
from morok.optimize.record import Opt
from morok.optimize.search.space import Space
from tests.gpu.products import HOST, TARGET, close, execute, kernel_of, memory_of, product

# name → the function, the shapes, the type, what rounding and another order of additions may do to the norm
KERNELS: dict[str, tuple[Callable[..., Tensor], tuple[tuple[int, ...], ...], str, float]] = {
    "product": (product, ((64, 64), (64, 64)), "float32", 1e-5),
    "odd": (product, ((67, 50), (50, 65)), "float32", 1e-5),
    "half": (product, ((128, 64), (64, 64)), "float16", 2e-3),
    "layer": (lambda x, w, b: (x @ w.T + b).gelu(), ((64, 128), (64, 128), (64,)), "float16", 3e-3),
    "batched": (product, ((2, 64, 64), (2, 64, 64)), "bfloat16", 1e-2),
    "window": (lambda x, w: x.conv2d(w, padding=1), ((2, 8, 8, 8), (16, 8, 3, 3)), "float32", 1e-5),
    "small window": (lambda x, w: x.conv2d(w, padding=1), ((2, 2, 4, 4), (2, 2, 3, 3)), "float32", 1e-5),
    "attention": (
        lambda q, k, v: q.scaled_dot_product_attention(k, v),
        ((32, 16), (48, 16), (48, 8)),  # small: away from the heuristics each output computes its scores
        "float16",
        2e-3,
    ),
    "softmax": (lambda x: x.softmax(-1), ((6, 160),), "float32", 1e-5),
    "norm": (lambda x: x.layer_norm(-1), ((6, 96),), "float32", 1e-4),
    "columns": (lambda x: x.sum(0), ((96, 40),), "float32", 1e-5),
    "turned": (lambda x: (x.T * 2).contiguous(), ((48, 72),), "float32", 0.0),
    "running": (lambda x: x.cumsum(1), ((6, 40),), "float32", 1e-5),
}


@cache
def prepared(name: str) -> tuple[UOp, Space, list[Any], list[Any], Any]:
    """A kernel, its space, its memory, and what it should compute."""
    function, shapes, dtype, _ = KERNELS[name]
    ast = kernel_of(function, *shapes, dtype=dtype)
    arrays, types = memory_of(ast)
    copies = [array.copy() for array in arrays]
    run_kernel(ast, copies)
    return ast, Space(ast, HOST), arrays, types, copies[0]


def check(name: str, kernel: UOp) -> None:
    _, _, arrays, types, wanted = prepared(name)
    close(execute(lower(kernel, TARGET), arrays, types), wanted, KERNELS[name][3])


def walk(name: str, steps: list[int]) -> None:
    """From one of the seeds, always to a neighbour."""
    ast, space, *_ = prepared(name)
    seeds = space.seeds(optimize)
    opts = tuple(seeds[steps[0] % len(seeds)])
    kernel = apply_all(ast, opts, HOST)
    for step in steps[1:]:
        around = space.neighbours(opts)
        if around:
            opts, kernel = around[step % len(around)]
    note(" ".join(map(str, opts)))
    try:
        check(name, kernel)
    except CompileError as error:  # what fits no block is found late, but it is found
        assert "threads" in str(error) or "grid" in str(error)


walks = st.lists(st.integers(0, 999), min_size=2, max_size=5)


@given(st.sampled_from(sorted(KERNELS)), walks)
@settings(max_examples=25)
@pytest.mark.slow
def test_a_walk_away_from_the_heuristics(name: str, steps: list[int]) -> None:
    walk(name, steps)


@pytest.mark.slow
@given(st.sampled_from(sorted(KERNELS)), walks)
@settings(max_examples=1500)
def test_many_walks(name: str, steps: list[int]) -> None:
    walk(name, steps)


# --- what walks have found


def staged(depth: int, *more: Opt) -> list[Opt]:
    """Two tiles of a product of 64 × 64, and a block of 64 threads."""
    return [
        Opt("TILE", 0, 32), Opt("TILE", 1, 32), Opt("TILE", 2, 16),
        Opt("STAGE", 1, depth, (3, 5)), Opt("STAGE", 2, depth, (5, 4)),
        Opt("LOCAL", 3, 8), Opt("UPCAST", 3), Opt("UPCAST", 4, 4), Opt("LOCAL", 4, 8), *more,
    ]  # fmt: skip


@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("amount", [4, 16])
def test_threads_that_share_a_sum_share_the_filling(depth: int, amount: int) -> None:
    """The lanes of a warp that add up together are threads of the block like others."""
    ast, *_ = prepared("product")
    check("product", apply_all(ast, staged(depth, Opt("GROUP", 5, amount)), HOST))


@pytest.mark.parametrize("name", ["PACK", "STAGE"])
def test_what_fills_a_shared_tile_is_not_copied_once_more(name: str) -> None:
    ast, *_ = prepared("product")
    kernel = apply_all(ast, staged(1), HOST)
    assert "no read of buffer 1" in (can(kernel, Opt(name, 1, 0, (2,)), HOST) or "")


def test_a_unit_needs_its_steps_inside_of_a_shared_tile() -> None:
    ast = kernel_of(product, (64, 64), (64, 64))
    kernel = apply_all(ast, [Opt("TILE", 0, 16), Opt("TILE", 1, 32), Opt("STAGE", 1, 1, (3,))], HOST)
    assert "depends on loop 2" in (can(kernel, Opt("TC", 2, 1, (3, 4)), HOST) or "")


def test_outputs_are_not_peeled_off_a_shared_tile() -> None:
    ast, *_ = prepared("product")
    kernel = apply_all(ast, [Opt("TILE", 2, 16), Opt("STAGE", 1, 1, (0, 3)), Opt("LOCAL", 0, 16)], HOST)
    assert "not all threads would fill" in (can(kernel, Opt("PEEL", 0, 3), HOST) or "")


def test_a_ring_begins_anew_where_its_loop_is_repeated() -> None:
    """A copy of all weights of a channel leaves the loop over places inside of it, and the ring in that."""
    ast, *_ = prepared("small window")
    opts = [Opt("JOIN", 2, 3), Opt("JOIN", 0, 3), Opt("TILE", 3, 8), Opt("STAGE", 1, 3, (4, 7))]
    check("small window", apply_all(ast, [*opts, Opt("PACK", 2, 0, (5, 6, 4))], HOST))
