"""Products that are more than one store of one sum: several stores, biases, producers. Against NumPy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from morok import Tensor
from morok.codegen.pipeline import lower
from morok.device.buffer import Buffer
from morok.device.emulator.device import EmulatedKernel, EmulatorAllocator
from morok.ir.node import UOp, toposort
from morok.ir.ops import Ops
from morok.optimize.contraction import find_contraction
from morok.optimize.heuristics.apply import optimize
from morok.optimize.heuristics.builder import Builder
from morok.optimize.heuristics.gpu.matmul import EPILOGUE, PRODUCER, UNIFORM, _plan
from morok.optimize.record import applied
from morok.render.cuda.kernel import render
from morok.schedule.schedule import schedule
from tests.gpu.kernels import DEVICE, cubin
from tests.gpu.products import HOST, TARGET, close, memory_of

THREE = replace(HOST, cores=3)  # few multiprocessors: blocks stay


def kernel_of(*results: Tensor) -> UOp:
    """The one kernel that computes these results."""
    (item,) = schedule([t.uop for t in results]).items
    return item.ast


def built(ast: UOp, roles: int, shape: tuple[int, int]) -> UOp:
    """The kernel as the heuristics would build it with these roles and a tile of this shape."""
    builder = Builder(ast, THREE)
    plan = _plan(builder)
    assert plan is not None
    ready = builder.loops
    for _, unit, found, how in plan.choices():
        if how == roles and (found.rows, found.columns) == shape and plan.build(unit, found, how):
            return builder.ast
        builder.loops = ready
    raise AssertionError("no such choice")


def names(ast: UOp) -> list[str]:
    return [opt.name for opt in applied(ast)]


def run(ast: UOp, kernel: UOp, outputs: int) -> tuple[list[Any], list[Any]]:
    """All results, which come first in memory, and the memory of everything."""
    arrays, types = memory_of(ast)
    allocator = EmulatorAllocator("test")
    held = []
    for i, (array, dtype) in enumerate(zip(arrays, types, strict=True)):
        block = allocator.allocate(array.nbytes)
        if i >= outputs:
            allocator.copy_in(block, 0, array)
        held.append(Buffer("test", array.size, dtype, allocator, memory=block))
    EmulatedKernel(lower(kernel, TARGET), "test")(held, {})
    for i in range(outputs):
        allocator.copy_out(held[i].memory, 0, arrays[i])
    return arrays[:outputs], arrays


def tensors(*shapes: tuple[int, ...], dtype: str = "float16") -> list[Tensor]:
    return [Tensor.empty(*s, dtype=dtype, device=DEVICE) for s in shapes]


def by_size(arrays: list[Any], shape: tuple[int, ...]) -> Any:
    """The one array of so many elements."""
    (found,) = (a for a in arrays if a.size == np.prod(shape))
    return found.reshape(shape).astype(np.float64)


def layer(m: int, k: int, n: int) -> tuple[UOp, tuple[Tensor, ...]]:
    """A linear layer with a bias, and its square: both are wanted."""
    x, w, b = tensors((m, k), (n, k), (n,))
    y = x.linear(w, b)
    return kernel_of(y, y.relu() * y), (x, w, b)


@pytest.mark.parametrize("roles", [UNIFORM, PRODUCER, EPILOGUE], ids=["uniform", "producer", "epilogue"])
@pytest.mark.parametrize(
    "shape", [(256, 192, 384), pytest.param((200, 136, 264), marks=pytest.mark.slow)], ids=str
)
def test_two_stores_of_one_product(shape: tuple[int, int, int], roles: int) -> None:
    """A product and a function of it: one pass over the steps, on a unit, and both are written."""
    m, k, n = shape
    ast, _ = layer(m, k, n)
    assert len(ast.src) == 2
    kernel = built(ast, roles, (128, 128))
    assert "TC" in names(kernel)
    assert ("WARP_SPECIALIZE" in names(kernel)) == (roles != UNIFORM)
    assert sum(node.op is Ops.WMMA for node in toposort(kernel)) == 1
    results, arrays = run(ast, kernel, 2)
    x, w, b = by_size(arrays, (m, k)), by_size(arrays, (n, k)), by_size(arrays, (n,))
    y = x @ w.T + b
    found = sorted(results, key=lambda a: float(np.abs(a.astype(float)).sum()))
    close(found[0], y, 2e-3)
    close(found[1], np.maximum(y, 0) * y, 4e-3)


@pytest.mark.parametrize("steps", [1280, 576])
def test_few_rows_are_multiplied_with_a_deep_ring(steps: int) -> None:
    """Memory limits them: as much as fits is under way. More rows have the ring of their tile."""
    shapes = ((48, steps), (384, steps), (8192, steps))  # a schedule for a whole GPU would split the sum
    x, w, many = (Tensor.empty(*s, dtype="float16", device="EMULATOR") for s in shapes)
    ast = kernel_of(x.linear(w))
    kernel = optimize(ast, HOST)
    assert {opt.amount for opt in applied(kernel) if opt.name == "STAGE"} == {min(8, steps // 64)}
    (found,), arrays = run(ast, kernel, 1)
    close(found, by_size(arrays, (48, steps)) @ by_size(arrays, (384, steps)).T, 2e-3)
    usual = optimize(kernel_of(many.linear(many)), HOST)
    assert all(opt.amount < 8 for opt in applied(usual) if opt.name == "STAGE")


def test_units_without_groups_of_warps_and_threads_store_several_too() -> None:
    """The same with the units of a warp, and in float32 with threads alone."""
    for dtype, tile in (("float16", (64, 64)), ("float32", (64, 64))):
        x, w, b = tensors((128, 64), (192, 64), (192,), dtype=dtype)
        y = x.linear(w, b)
        ast = kernel_of(y, y.relu() * y)
        kernel = built(ast, UNIFORM, tile)
        results, arrays = run(ast, kernel, 2)
        a, c, d = by_size(arrays, (128, 64)), by_size(arrays, (192, 64)), by_size(arrays, (192,))
        want = a @ c.T + d
        found = sorted(results, key=lambda a: float(np.abs(a.astype(float)).sum()))
        close(found[0], want, 2e-3)
        close(found[1], np.maximum(want, 0) * want, 4e-3)


def test_what_belongs_to_a_column_is_added_before_a_result_is_staged() -> None:
    """A bias is added in registers, so that shared memory holds the rounded sum: half as much."""
    x, w, b, r = tensors((256, 128), (256, 128), (256,), (256, 256))
    for result in (x.linear(w, b), x.linear(w, b) + r, x.linear(w, b).relu()):
        kernel = built(kernel_of(result), PRODUCER, (128, 128))
        tiles = [n for n in toposort(kernel) if n.op is Ops.BUFFERIZE]
        (kept,) = (n for n in tiles if n.arg[2].depth == 0)
        assert kept.src[0].dtype.itemsize == 2


def test_roles_of_a_contraction() -> None:
    """Batch, rows, columns and steps are read off the accesses, through a reshape into heads."""
    g, x = tensors((2, 4, 32, 16), (2, 32, 96))
    rows = g.transpose(1, 2).reshape(64, 64)
    found = find_contraction(kernel_of(rows.transpose(0, 1) @ x.reshape(64, 96)))
    assert found is not None
    sizes = [sorted(int(r.src[0].arg) for r in part) for part in (found.rows, found.columns, found.steps)]
    assert sizes == [[4, 16], [96], [2, 32]] and not found.batch
    a, b = tensors((5, 32, 16), (5, 16, 64))
    found = find_contraction(kernel_of(a @ b))
    assert found is not None and [int(r.src[0].arg) for r in found.batch] == [5]


def test_no_contraction() -> None:
    """Sums without reuse, and stores over other loops."""
    a, b = tensors((64, 64), (64, 64))
    for result in (a.sum(0), (a * b).sum(1), a + b):
        assert find_contraction(kernel_of(result)) is None


def test_the_source_with_two_stores_compiles() -> None:
    ast, _ = layer(512, 256, 512)
    for roles in (UNIFORM, PRODUCER, EPILOGUE):
        program = render(lower(built(ast, roles, (128, 128)), TARGET), "two", 5)
        assert cubin(program.text, "sm_90a")


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("plus", [True, False])
@pytest.mark.parametrize("gathered", ["rows", "steps"])
def test_operands_that_are_gathered(dtype: str, plus: bool, gathered: str) -> None:
    """A tile of fewer chunks than threads, and a ring beyond its last step: no position is read there.

    As in the first layer of a language model, where the positions are all there are in their memory.
    """
    random = np.random.default_rng(0)
    at = random.integers(0, 40, (4, 16) if gathered == "rows" else (32,))
    table = random.standard_normal((40, 32) if gathered == "rows" else (64, 40)).astype(dtype)
    w = random.standard_normal((32, 96)).astype(dtype)
    added = random.standard_normal(32).astype(dtype)
    x = Tensor(table, device=DEVICE)[
        (Tensor(at, device=DEVICE),) if gathered == "rows" else (slice(None), Tensor(at, device=DEVICE))
    ]
    rows = table[at] if gathered == "rows" else table[:, at]
    if plus:
        x, rows = x + Tensor(added, device=DEVICE), rows + added
    got = (x @ Tensor(w, device=DEVICE)).numpy()
    want = rows.astype(np.float64) @ w.astype(np.float64)
    np.testing.assert_allclose(
        got, want, rtol=2e-2 if dtype == "float16" else 1e-4, atol=0.1 if dtype == "float16" else 1e-4
    )


@pytest.mark.parametrize("masked", ["left", "right", "both"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_operands_under_masks(dtype: str, masked: str) -> None:
    """A mask is in the tile of what it chooses: with a tile of its own, all threads filled all of it."""
    random = np.random.default_rng(0)
    a, b = (random.integers(-3, 4, shape).astype(np.float32) for shape in ((96, 136), (136, 80)))
    masks = [random.random(x.shape) < 0.5 for x in (a, b)]
    chosen = [n for n, side in enumerate(("left", "right")) if masked in (side, "both")]
    x, y = (Tensor(v, device=DEVICE).cast(dtype).realize() for v in (a, b))
    p, q = (Tensor(v, device=DEVICE).realize() for v in masks)
    product = (p.where(x, 0) if 0 in chosen else x) @ (q.where(y, 0) if 1 in chosen else y)
    kernel = optimize(kernel_of(product), HOST)
    tiles = [n for n in toposort(kernel) if n.op is Ops.BUFFERIZE and n.arg[0] == "local"]
    inside = {n for tile in tiles for n in toposort(tile.src[0])}
    assert len(tiles) >= 2 and inside.isdisjoint(tiles) and not any(t.src[0].dtype.is_bool for t in tiles)
    left, right = ((np.where(masks[n], v, 0) if n in chosen else v) for n, v in enumerate((a, b)))
    got = product.cast("float32").numpy()
    # sums of small whole numbers: exact before they are rounded to the type
    np.testing.assert_allclose(got, left @ right, rtol=2**-8 if dtype == "bfloat16" else 0, atol=0)
