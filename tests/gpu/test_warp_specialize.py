"""Warp specialisation: tiles by TMA, mbarriers, persistent blocks. Against NumPy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from morok import Tensor, knobs
from morok.codegen.pipeline import lower
from morok.errors import DeviceError
from morok.ir.matrix import ALL_UNITS
from morok.ir.node import UOp, make, toposort
from morok.ir.ops import Ops
from morok.ir.warp_roles import Box
from morok.optimize.actions.table import apply_all, can
from morok.optimize.actions.warp_specialize import plain_read, tile_box
from morok.optimize.facts import store_of
from morok.optimize.heuristics.apply import optimize
from morok.optimize.heuristics.builder import Builder
from morok.optimize.heuristics.gpu.matmul import EPILOGUE, PRODUCER, UNIFORM, _plan
from morok.optimize.loops import loops_of
from morok.optimize.record import Opt, applied
from morok.optimize.search.space import Space
from morok.render.cuda.kernel import render
from morok.rewrite.engine import substitute
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
    product,
)

THREE = replace(HOST, cores=3)  # few multiprocessors: blocks stay


def built(ast: UOp, roles: int, shape: tuple[int, int] = (128, 128), host: Any = THREE) -> UOp:
    """The kernel as the heuristics would build it with these roles and a tile of this shape."""
    builder = Builder(ast, host)
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


def run(ast: UOp, kernel: UOp) -> tuple[Any, list[Any]]:
    arrays, types = memory_of(ast)
    return execute(lower(kernel, TARGET), arrays, types), arrays


def factors(ast: UOp, arrays: list[Any], left: tuple[int, ...], right: tuple[int, ...]) -> tuple[Any, Any]:
    first, second = (1, 2) if left_first(ast) else (2, 1)
    return arrays[first].reshape(left).astype(float), arrays[second].reshape(right).astype(float)


# --- results


@pytest.mark.parametrize("roles", [PRODUCER, EPILOGUE], ids=["producer", "epilogue"])
@pytest.mark.parametrize(
    "shape",
    [(512, 512, 256), (256, 128, 384), (200, 136, 264), (1000, 200, 136), (130, 320, 520)],
    ids=str,
)
def test_products_of_any_size(shape: tuple[int, int, int], roles: int) -> None:
    m, k, n = shape
    ast = kernel_of(product, (m, k), (k, n))
    kernel = built(ast, roles)
    assert "WARP_SPECIALIZE" in names(kernel)
    got, arrays = run(ast, kernel)
    a, b = factors(ast, arrays, (m, k), (k, n))
    close(got, a @ b, 1e-3)


@pytest.mark.parametrize("roles", [PRODUCER, EPILOGUE], ids=["producer", "epilogue"])
def test_all_rows_are_one_tile(roles: int) -> None:
    """The left operand is the same for all tiles of a block: these kernels were empty, and nobody said so."""
    m, k, n = 128, 128, 896
    ast = kernel_of(product, (m, k), (k, n))
    kernel = built(ast, roles)
    assert {"WARP_SPECIALIZE", "PERSISTENT"} <= set(names(kernel))
    got, arrays = run(ast, kernel)
    a, b = factors(ast, arrays, (m, k), (k, n))
    close(got, a @ b, 1e-3)


@pytest.mark.parametrize("roles", [PRODUCER, EPILOGUE], ids=["producer", "epilogue"])
@pytest.mark.parametrize("n", [261, 394])
def test_rows_that_end_within_a_vector_are_collected_too(n: int, roles: int) -> None:
    """A language model's words: rows of 50257 logits."""
    m, k = 200, 128
    ast = kernel_of(lambda a, b: a @ b.T, (m, k), (n, k), dtype="bfloat16")
    kernel = built(ast, roles)
    assert {"WARP_SPECIALIZE", "STAGE_RESULT"} <= set(names(kernel))
    got, arrays = run(ast, kernel)
    a, b = factors(ast, arrays, (m, k), (n, k))
    close(got, a @ b.T, 1e-2)


@pytest.mark.parametrize("transposed", ["a", "b", "ab"])
def test_transposed_operands(transposed: str) -> None:
    m, k, n = 256, 192, 384

    def multiply(a: Tensor, b: Tensor) -> Tensor:
        return (a.T if "a" in transposed else a) @ (b.T if "b" in transposed else b)

    left, right = ((k, m) if "a" in transposed else (m, k)), ((n, k) if "b" in transposed else (k, n))
    ast = kernel_of(multiply, left, right, dtype="bfloat16")
    kernel = built(ast, PRODUCER)
    got, arrays = run(ast, kernel)
    a, b = factors(ast, arrays, left, right)
    close(got, (a.T if "a" in transposed else a) @ (b.T if "b" in transposed else b), 1e-2)


@pytest.mark.parametrize("steps", [128, 72], ids=str)
def test_batches(steps: int) -> None:
    """A matrix ends where the next begins: steps that do not fill a tile need a dimension of their own."""
    ast = kernel_of(product, (3, 256, steps), (3, steps, 128))
    kernel = built(ast, PRODUCER)
    assert "PERSISTENT" in names(kernel)
    got, arrays = run(ast, kernel)
    a, b = arrays[1].reshape(3, 256, steps).astype(float), arrays[2].reshape(3, steps, 128).astype(float)
    close(got, a @ b, 1e-3)


@pytest.mark.parametrize("roles", [PRODUCER, EPILOGUE], ids=["producer", "epilogue"])
@pytest.mark.parametrize("heads", [4, 3])
def test_columns_that_are_heads(roles: int, heads: int) -> None:
    """The weight's gradient behind split heads: a tile's row is two panels, each of another head. Of three
    heads the last tile has only one: the other one lies beyond the end of the box."""

    def gradient(g: Tensor, x: Tensor) -> Tensor:
        rows = g.transpose(1, 2).reshape(2 * 128, heads * 64)
        return rows.transpose(0, 1) @ x.reshape(2 * 128, 128)

    ast = kernel_of(gradient, (2, heads, 128, 64), (2, 128, 128))
    kernel = built(ast, roles)
    assert "WARP_SPECIALIZE" in names(kernel)
    got, arrays = run(ast, kernel)
    size = 2 * heads * 128 * 64
    g, x = sorted(arrays[1:], key=lambda a: a.size != size)
    g = g.astype(float).reshape(2, heads, 128, 64).swapaxes(1, 2).reshape(256, heads * 64)
    close(got, g.T @ x.astype(float).reshape(256, 128), 1e-3)


@pytest.mark.parametrize("roles", [PRODUCER, EPILOGUE], ids=["producer", "epilogue"])
def test_whatever_follows_is_fused(roles: int) -> None:
    m, k, n = 256, 256, 384

    def layer(x: Tensor, w: Tensor, bias: Tensor, rest: Tensor) -> Tensor:
        return (x @ w.T + bias).relu() * 0.5 + rest

    ast = kernel_of(layer, (m, k), (n, k), (n,), (m, n))
    kernel = built(ast, roles)
    got, arrays = run(ast, kernel)
    x, w, bias, rest = (arrays[i].astype(float) for i in (1, 2, 3, 4))
    want = np.maximum(x.reshape(m, k) @ w.reshape(n, k).T + bias, 0) * 0.5 + rest.reshape(m, n)
    close(got, want, 1e-3)


@pytest.mark.parametrize(
    ("dtype", "unit"), [("float32", "tf32"), ("int8", "s8"), ("float8_e4m3", "e4m3"), ("bfloat16", "bf16")]
)
def test_types(dtype: str, unit: str) -> None:
    m, k, n = 256, 256, 256
    wide = {"int8": "int32", "float8_e4m3": "float32"}.get(dtype)

    def multiply(a: Tensor, b: Tensor) -> Tensor:
        return a @ b.T if wide is None else a.cast(wide) @ b.T.cast(wide)

    ast = kernel_of(multiply, (m, k), (n, k), dtype=dtype)
    with knobs.override(TF32=True, FAST_FP8=True):
        kernel = built(ast, PRODUCER)
        number = next(opt.amount for opt in applied(kernel) if opt.name == "TC")
        assert ALL_UNITS[number - 1].name.endswith(unit)
        got, arrays = run(ast, kernel)
    a, b = factors(ast, arrays, (m, k), (n, k))
    close(got, a @ b.T, 1e-2)


def test_an_operand_in_registers() -> None:
    """32-bit rows that do not run along the steps: an operand is gathered out of a tile that was brought."""
    m, k, n = 256, 128, 256
    ast = kernel_of(product, (m, k), (k, n), dtype="float32")
    with knobs.override(TF32=True):
        kernel = built(ast, PRODUCER, (128, 256))
        got, arrays = run(ast, kernel)
    a, b = factors(ast, arrays, (m, k), (k, n))
    close(got, a @ b, 4e-4)  # the engine rounds; cutting bits off would be twice as far off


@pytest.mark.parametrize("depth", [2, 3, 4])
@pytest.mark.parametrize("steps", [1, 2, 7, 8])
def test_rings_of_any_depth(depth: int, steps: int) -> None:
    """Slot and parity follow from a count through all tiles, also where they are the same for every tile."""
    k = 64 * steps
    ast = kernel_of(product, (512, k), (k, 128))
    first, second = (1, 2) if left_first(ast) else (2, 1)
    opts = [Opt("TILE", 0, 64), Opt("TILE", 1, 64)] + ([Opt("TILE", 2, 64)] if steps > 1 else [])
    inner = 5 if steps > 1 else 2
    opts += [Opt("STAGE", first, depth, (3, inner)), Opt("STAGE", second, depth, (inner, 4))]
    number = 1 + next(i for i, u in enumerate(ALL_UNITS) if u.name == "wgmma.f16" and u.n == 64)
    opts += [
        Opt("TC", inner, number, (3, 4)),
        Opt("UNROLL", inner),
        Opt("WARP_SPECIALIZE"),
        Opt("PERSISTENT", -1, 5),
    ]
    if steps == 1:
        assert "needs a loop of a reduction" in (can(apply_all(ast, opts[:2], HOST), opts[2], HOST) or "")
        return
    got, arrays = run(ast, apply_all(ast, opts, HOST))
    a, b = factors(ast, arrays, (512, k), (k, 128))
    close(got, a @ b, 1e-3)


# --- boxes


def boxes(ast: UOp, opts: list[Opt]) -> list[Box | None]:
    loops = loops_of(apply_all(ast, opts, HOST))
    return [tile_box(loops, n) for n in loops.order if n.op is Ops.BUFFERIZE]


def _staged(rows: int, columns: int, *pads: tuple[int, int]) -> list[Opt]:
    opts = [Opt("PADTO", axis, amount) for axis, amount in pads]
    opts += [Opt("TILE", 0, rows), Opt("TILE", 1, columns), Opt("TILE", 2, 64)]
    return [*opts, Opt("STAGE", 1, 2, (3, 5)), Opt("STAGE", 2, 2, (5, 4))]


def test_ends_of_a_matrix_are_ends_of_the_box() -> None:
    ast = kernel_of(product, (200, 136), (136, 264))
    opts = _staged(128, 64, (0, 128), (1, 64), (2, 64))
    if not left_first(ast):
        opts[-2:] = [Opt("STAGE", 2, 2, (3, 5)), Opt("STAGE", 1, 2, (5, 4))]
    found = boxes(ast, opts)
    assert [(b.sizes, b.strides) for b in found if b is not None] == [
        ((136, 200), (1, 136)),
        ((264, 136), (1, 264)),
    ]


def test_rows_that_are_not_aligned_are_no_boxes() -> None:
    ast = kernel_of(product, (256, 128), (128, 129))
    found = boxes(ast, _staged(128, 43)[:4])
    assert found and all(b is None or b.strides[1] % 8 == 0 for b in found)
    kernel = Builder(ast, THREE)
    plan = _plan(kernel)
    assert plan is not None
    ready = kernel.loops
    for _, unit, shape, roles in plan.choices():
        assert roles == UNIFORM or not plan.build(unit, shape, roles)
        kernel.loops = ready


def test_a_limit_is_an_edge_only_where_the_stores_have_it_too() -> None:
    """min(i, 199) that no condition on the stores says as well is a repeated row, not one to be left out."""
    ast = kernel_of(product, (200, 128), (128, 64))
    left = 1 if left_first(ast) else 2
    opts = [Opt("PADTO", 0, 128), Opt("TILE", 0, 128), Opt("TILE", 2, 64), Opt("STAGE", left, 2, (3, 4))]
    loops = loops_of(apply_all(ast, opts, HOST))
    address = store_of(loops.ast.src[0]).src[0]
    assert len(address.src) == 3
    everywhere = loops_of(substitute(loops.ast, {address: address.replace(address.src[:2])}))
    for found, edge in ((loops, True), (everywhere, False)):
        (tile,) = (n for n in found.order if n.op is Ops.BUFFERIZE)
        assert any(n.op is Ops.MIN for n in toposort(tile.src[0]))
        assert (plain_read(found, tile.src[0]) is not tile.src[0]) is edge
        assert (tile_box(found, tile) is not None) is edge


# --- what the emulator finds


def _linear(roles: int = EPILOGUE) -> tuple[UOp, list[Any], list[Any]]:
    ast = kernel_of(product, (512, 384), (384, 256))
    arrays, types = memory_of(ast)
    return lower(built(ast, roles), TARGET), arrays, types


def _without(linear: UOp, gone: Callable[[UOp], bool]) -> UOp:
    kept = tuple(n for n in linear.src if not gone(n))
    assert len(kept) < len(linear.src)
    return make(Ops.LINEAR, linear.dtype, kept)


def _does(node: UOp, what: str, barrier: str) -> bool:
    if node.op is not Ops.MBARRIER or node.arg.what != what:
        return False
    memory = node
    while memory.src:
        memory = memory.src[0]
    return bool(memory.arg == barrier)


@pytest.mark.parametrize(
    ("what", "barrier", "message"),
    [
        ("wait", "full", "which nobody has written"),
        ("wait", "empty", "before anybody has read it"),
        ("arrive", "empty", "deadlock"),
        ("expect", "full", "deadlock"),
        ("wait", "result.full", "without a barrier between them|nobody has written"),
        ("wait", "result.empty", "before anybody has read it|without a barrier between them"),
        ("arrive", "result.full", "deadlock"),
        ("init", "full", "nobody has set up"),
    ],
)
def test_a_missing_step_is_found(what: str, barrier: str, message: str) -> None:
    linear, arrays, types = _linear()
    emulate(linear, arrays, types)
    with pytest.raises(DeviceError, match=message):
        emulate(_without(linear, lambda n: _does(n, what, barrier)), arrays, types)


def test_a_deadlock_says_who_waits_for_what() -> None:
    linear, arrays, types = _linear(PRODUCER)
    with pytest.raises(DeviceError, match=r"consumer waits for barrier \d of the local memory full"):
        emulate(_without(linear, lambda n: n.op is Ops.ASYNC_COPY), arrays, types)


def test_registers_that_nobody_has_are_found() -> None:
    """A block begins with fewer registers than a multiprocessor has, where its threads do not divide them."""
    linear, arrays, types = _linear()
    roles = [n for n in linear.src if n.op is Ops.RANGE and len(n.arg) > 2]
    assert {n.arg[2].name for n in roles} == {"consumer", "epilogue", "producer"}
    n = roles[0]
    greedy = replace(n.arg[2], registers=n.arg[2].registers + 8)
    more = make(n.op, n.dtype, n.src, (*n.arg[:2], greedy))
    wanted = 65536 + 8 * greedy.threads
    with pytest.raises(DeviceError, match=f"roles want {wanted} registers of 65536"):
        emulate(substitute(linear, {n: more}), arrays, types)


# --- conditions of the actions, and the source


@pytest.mark.parametrize("roles", [UNIFORM, PRODUCER, EPILOGUE], ids=["uniform", "producer", "epilogue"])
def test_whatever_a_search_tries_gives_the_same(roles: int) -> None:
    """Steps beside the heuristics' are refused with a reason, or right."""
    ast = kernel_of(product, (256, 192), (192, 128))
    space = Space(ast, THREE)
    arrays, types = memory_of(ast)
    a, b = factors(ast, arrays, (256, 192), (192, 128))
    around = space.neighbours(applied(built(ast, roles)))
    assert len(around) > 4
    for opts, kernel in around[:: max(1, len(around) // 8)]:
        try:
            close(execute(lower(kernel, TARGET), arrays, types), a @ b, 1e-3)
        except Exception as error:
            raise AssertionError(f"after {[str(o) for o in opts]}") from error


def test_rings_of_different_depths_are_refused() -> None:
    ast = kernel_of(product, (256, 512), (512, 256))
    opts = list(applied(built(ast, PRODUCER)))
    stages = [i for i, opt in enumerate(opts) if opt.name == "STAGE"]
    opts[stages[0]] = replace(opts[stages[0]], amount=2)
    first = next(i for i, opt in enumerate(opts) if opt.name == "WARP_SPECIALIZE")
    before = apply_all(ast, opts[:first], THREE)
    assert "different depths" in (can(before, opts[first], THREE) or "")


def test_nothing_follows_warp_specialize_but_persistent() -> None:
    ast = kernel_of(product, (256, 512), (512, 256))
    kernel = built(ast, PRODUCER)
    assert "comes before" in (can(kernel, Opt("TILE", 0, 2), THREE) or "")


def test_warp_specialize_needs_boxes_and_wgmma() -> None:
    ast = kernel_of(product, (256, 256), (256, 256))
    assert "rings" in (can(ast, Opt("WARP_SPECIALIZE"), HOST) or "")
    assert "roles" in (can(ast, Opt("PERSISTENT", -1, 2), HOST) or "")
    plain = replace(HOST, tma=False)
    assert "no engine" in (can(ast, Opt("WARP_SPECIALIZE"), plain) or "")
    kernel = built(ast, UNIFORM)
    assert "WARP_SPECIALIZE" not in names(kernel)


@pytest.mark.parametrize(
    ("shapes", "function", "amount"),
    [
        (((8192, 4096), (4096, 16384)), product, PRODUCER),
        (((8192, 4096), (4096, 16384)), lambda a, b: (a @ b).gelu(), EPILOGUE),
        (((8192, 4096), (4096, 16384)), lambda a, b: (a @ b).relu(), PRODUCER),
        (((2048, 2048), (2048, 2048)), lambda a, b: (a @ b).gelu(), PRODUCER),
    ],
    ids=["nothing", "much", "little", "much, but one tile for each block"],
)
def test_others_write_where_much_is_computed_before(
    shapes: tuple[tuple[int, ...], ...], function: Callable[..., Tensor], amount: int
) -> None:
    chosen = optimize(kernel_of(function, *shapes), HOST)
    assert [opt.amount for opt in applied(chosen) if opt.name == "WARP_SPECIALIZE"] == [amount]


def test_the_source_compiles_without_spills() -> None:
    for roles in (PRODUCER, EPILOGUE):
        ast = kernel_of(product, (1024, 512), (512, 1024))
        program = render(lower(built(ast, roles, (128, 256)), TARGET), "k", 3)
        assert "setmaxnreg.inc" in program.text and "cp.async.bulk.tensor.2d" in program.text
        assert [m[0] for m in program.tensor_maps] == [1, 2] or [m[0] for m in program.tensor_maps] == [2, 1]
        assert cubin(program.text)
