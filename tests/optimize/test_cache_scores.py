"""Attention on a processor is one kernel, whose threads keep scores in their caches. Against NumPy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from morok import Tensor
from morok.codegen.pipeline import lower
from morok.ir.infer import ranges
from morok.ir.node import UOp, const, toposort
from morok.ir.ops import AxisKind, Ops
from morok.machine.machine import Machine
from morok.optimize.actions.table import apply, can
from morok.optimize.heuristics.apply import optimize
from morok.optimize.loops import loops_of
from morok.optimize.record import Opt, applied
from morok.rewrite.engine import substitute
from morok.schedule.graph.attention.cached_scores import cached_scores
from morok.schedule.schedule import schedule
from morok.symbolic.sets import simplify
from tests.codegen.kernels import native
from tests.optimize.kernels import AVX512, GPU, NEON

MACHINES = [replace(m, scores_in_cache=True) for m in (NEON, AVX512)]
Mask = Callable[[Any, Any], Any]
MASKS: dict[str, Mask] = {
    "all": lambda i, j: (i + j) >= 0,
    "causal": lambda i, j: j <= i,
    "causal from the end": lambda i, j: j <= i + 9,
    "reversed": lambda i, j: j >= i,
    "window": lambda i, j: (j <= i) & (j > i - 50),
    "prefix": lambda i, j: (j <= i) | (j < 40),
    "every third": lambda i, j: (j - i) % 3 == 0,
}


def tensors(
    heads: int, rows: int, keys: int, width: int, columns: int
) -> tuple[tuple[Tensor, Tensor, Tensor], tuple[Any, Any, Any]]:
    rng = np.random.default_rng(rows * keys)
    shapes = ((heads, rows, width), (heads, keys, width), (heads, keys, columns))
    q, k, v = (rng.standard_normal(s).astype(np.float32) for s in shapes)
    return (Tensor(q).realize(), Tensor(k).realize(), Tensor(v).realize()), (q, k, v)


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Mask | None = None) -> Tensor:
    i, j = Tensor.arange(q.shape[-2]).reshape(-1, 1), Tensor.arange(k.shape[-2]).reshape(1, -1)
    return q.scaled_dot_product_attention(k, v, mask=None if mask is None else mask(i, j))


def positions(rows: int, keys: int, mask: Mask) -> Any:
    return np.asarray(mask(np.arange(rows)[:, None], np.arange(keys)[None]))


def reference(q: Any, k: Any, v: Any, mask: Any = None, bias: Any = 0.0) -> Any:
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    scores = q @ np.swapaxes(k, -1, -2) * q.shape[-1] ** -0.5 + bias
    if mask is not None:
        scores = np.where(mask, scores, -np.inf)
    with np.errstate(invalid="ignore"):
        e = np.exp(scores - scores.max(-1, keepdims=True))
        return (e / e.sum(-1, keepdims=True)) @ v


def close(got: Tensor, want: Any, error: float = 5e-6) -> None:
    np.testing.assert_allclose(got.numpy(), want, atol=error * max(1.0, np.nanmax(abs(want))))


def kernel_of(result: Tensor, machine: Machine) -> UOp:
    (item,) = schedule([result.uop]).items
    return optimize(item.ast, machine)


def names(kernel: UOp) -> list[str]:
    return [opt.name for opt in applied(kernel)]


# --- results


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("shape", [(3, 96, 96, 64, 64), (1, 77, 130, 40, 24), (4, 50, 33, 72, 72)], ids=str)
def test_results(shape: tuple[int, int, int, int, int], mask: str) -> None:
    inputs, arrays = tensors(*shape)
    result = attention(*inputs, MASKS[mask])
    assert len(schedule([result.uop]).items) == 1
    close(result, reference(*arrays, mask=positions(*shape[1:3], MASKS[mask])))


def test_rows_that_see_no_key_are_no_numbers() -> None:
    inputs, arrays = tensors(2, 40, 64, 32, 32)
    want = reference(*arrays, mask=positions(40, 64, lambda i, j: j < i - 16))
    got = attention(*inputs, lambda i, j: j < i - 16).numpy()
    assert np.array_equal(np.isnan(got), np.isnan(want)) and np.isnan(want).any()
    np.testing.assert_allclose(got[~np.isnan(got)], want[~np.isnan(want)], atol=1e-5)


def test_huge_scores() -> None:
    inputs, arrays = tensors(2, 32, 48, 16, 16)
    close(attention(inputs[0] * 3e4, *inputs[1:]), reference(arrays[0] * np.float32(3e4), *arrays[1:]), 1e-3)


def test_a_bias_and_views_of_one_product() -> None:
    rng = np.random.default_rng(3)
    x = rng.standard_normal((2, 48, 3, 4, 32)).astype(np.float32)
    bias = rng.standard_normal((48, 48)).astype(np.float32)
    a, b, c = (x[:, :, n].transpose(0, 2, 1, 3) for n in range(3))
    own = Tensor(x).realize()
    q, k, v = (own[:, :, n].transpose(1, 2) for n in range(3))
    close(q.scaled_dot_product_attention(k, v, mask=Tensor(bias).realize()), reference(a, b, c, bias=bias))


def test_heads_that_share_keys_and_what_comes_before_and_after() -> None:
    inputs, (q, k, v) = tensors(4, 40, 60, 32, 32)
    few = [x[:2].reshape(2, 1, 60, 32).expand(2, 2, 60, 32).reshape(4, 60, 32) for x in inputs[1:]]
    got = (inputs[0].relu() + 1).scaled_dot_product_attention(few[0] * 2, few[1]) * 3 + 1
    twice = (np.repeat(x[:2], 2, 0) for x in (k, v))
    key, value = twice
    close(got, reference(np.maximum(q, 0) + 1, key * 2, value) * 3 + 1, 2e-5)


# --- the kernel


@pytest.mark.parametrize("machine", MACHINES, ids=["neon", "avx512"])
@pytest.mark.parametrize("rows", [64, 100, 257])
@pytest.mark.parametrize("heads", [1, 3, 8])
def test_both_products_have_tiles_and_keys_a_panel(machine: Machine, rows: int, heads: int) -> None:
    inputs, _ = tensors(heads, rows, rows, 64, 64)
    kernel = kernel_of(attention(*inputs, MASKS["causal"]), machine)
    found = names(kernel)
    assert found.count("CACHE_SCORES") == 1 and "PACK" in found and "THREAD" in found
    assert [opt.amount for opt in applied(kernel) if opt.name == "UPCAST"].count(0) >= 2


@pytest.mark.parametrize("mask", ["causal", "causal from the end", "reversed", "window"])
def test_tiles_that_a_mask_hides_from_a_block_are_in_no_loop(mask: str) -> None:
    inputs, _ = tensors(1, 256, 256, 64, 64)
    kernel = kernel_of(attention(*inputs, MASKS[mask]), MACHINES[1])
    own = {opt.name: opt for opt in applied(kernel)}
    keys = own["CACHE_SCORES"].amount
    rows = next(opt.amount for opt in applied(kernel) if opt.name == "TILE")
    loops = {r for r in toposort(kernel) if r.op is Ops.RANGE and r.src[0].op is not Ops.CONST}
    counts = [r.src[0] for r in loops if r.arg[1] is AxisKind.LOOP]  # those that keep scores and weights
    assert len(counts) == 2
    padded = -(-256 // rows) * rows
    shown = np.zeros((padded, -(-256 // keys) * keys), bool)
    shown[:256, :256] = positions(256, 256, MASKS[mask])
    shown[256:, :256] = positions(padded, 256, MASKS[mask])[256:]  # rows that fill up the last block
    want = shown.reshape(padded // rows, rows, -1, keys).any((1, 3)).sum(1)
    for end in counts:
        (block,) = (r for r in ranges(end) if r.op is Ops.RANGE)
        found = [simplify(substitute(end, {block: const(block.dtype, n)})).arg for n in range(len(want))]
        assert found == want.tolist() and sum(found) < len(found) * max(found)


def test_a_panel_is_filled_once_for_all_rows_of_a_block() -> None:
    """Also where the number of tiles depends on the block: then that loop is the outer one all the same."""
    inputs, _ = tensors(3, 192, 192, 64, 64)
    kernel = kernel_of(attention(*inputs, MASKS["causal"]), MACHINES[1])
    code = lower(kernel, MACHINES[1]).src
    around: list[UOp] = []
    depths: dict[str, int] = {}
    for n in code:
        if n.op is Ops.RANGE:
            around.append(n)
        elif n.op is Ops.END:
            around.pop()
        elif n.op is Ops.STORE:
            memory = next((m for m in toposort(n.src[0]) if m.op is Ops.DEFINE_LOCAL), None)
            name = "" if memory is None else str(memory.arg).strip("('\"")
            for kind in ("pack", "scores"):
                if kind in name:
                    depths[kind] = len(around)
    assert depths["pack"] <= depths["scores"]  # the loop that fills, or the one over tiles of rows


def test_where_keys_serve_all_blocks_they_are_packed_once() -> None:
    inputs, _ = tensors(8, 256, 256, 64, 64)
    kernel = kernel_of(attention(*inputs, MASKS["causal"]), MACHINES[1])
    (pack,) = (opt for opt in applied(kernel) if opt.name == "PACK")
    assert len(pack.axes) == 3  # tiles of keys, their elements, the keys of a tile
    copies = [n for n in toposort(kernel) if n.op is Ops.BUFFERIZE and "pack" in n.arg[1]]
    assert [len(ranges(n)) for n in copies] == [1]  # the head's loop


def test_refusals() -> None:
    inputs, _ = tensors(2, 64, 64, 32, 32)
    (item,) = schedule([attention(*inputs).uop]).items
    found = cached_scores(item.ast)
    assert found is not None
    keys, rows, columns = (int(r.arg[0]) for r in (found.steps, found.rows, found.columns))
    machine = MACHINES[0]
    assert can(item.ast, Opt("CACHE_SCORES", keys, 16, (rows,)), machine) is None
    assert "no cache" in str(can(item.ast, Opt("CACHE_SCORES", keys, 16, (rows,)), GPU))
    assert "of the keys" in str(can(item.ast, Opt("CACHE_SCORES", rows, 16, (rows,)), machine))
    assert "over rows" in str(can(item.ast, Opt("CACHE_SCORES", keys, 16, (columns,)), machine))
    assert "plain loop" in str(can(item.ast, Opt("CACHE_SCORES", keys, 16, (keys,)), machine))
    assert "would take" in str(
        can(item.ast, Opt("CACHE_SCORES", keys, 16, (rows,)), replace(machine, local_bytes=1000))
    )


def test_too_many_keys_for_the_cache_are_several_kernels() -> None:
    q, k = Tensor.ones(1, 64, 64).contiguous().realize(), Tensor.ones(1, 1 << 16, 64).contiguous().realize()
    assert len(schedule([attention(q, k, k).uop]).items) > 1


def test_gradients_still_share_what_has_been_computed() -> None:
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((2, 48, 32)).astype(np.float32) for _ in range(3)]
    q, k, v = (Tensor(a).realize() for a in arrays)
    got = q.scaled_dot_product_attention(k, v, is_causal=True).sum().gradient(q, k, v)
    mask = positions(48, 48, MASKS["causal"])
    step = 1e-5
    wide = [a.astype(np.float64) for a in arrays]
    for n, found in enumerate(got):
        for at in ((0, 3, 4), (1, 40, 7)):
            moved = []
            for sign in (1, -1):
                x = [a.copy() for a in wide]
                x[n][at] += sign * step
                moved.append(reference(x[0], x[1], x[2], mask=mask).sum())
            assert abs(found.numpy()[at] - (moved[0] - moved[1]) / (2 * step)) < 1e-4


# --- values that are more than the second cache holds

SMALL = replace(MACHINES[1], l2_bytes=128 << 10)  # of AVX-512: 700 rows of 96 values are twice that


def compiled(kernel: UOp, arrays: tuple[Any, ...], shape: tuple[int, ...]) -> Any:
    """What a kernel computes as machine code of this host, for float32 inputs in their order."""
    buffers = {n.arg: n.dtype for n in toposort(kernel) if n.op is Ops.DEFINE_GLOBAL}
    result = np.zeros(int(np.prod(shape)), np.float32)
    native(kernel, [result, *(np.ascontiguousarray(a).reshape(-1) for a in arrays)])
    assert len(buffers) == len(arrays) + 1
    return result.reshape(shape)


@pytest.mark.parametrize("mask", ["none", "causal", "window", "sees nothing"])
@pytest.mark.parametrize("keys", [768, 701])
def test_weights_of_a_block_pass_some_values_at_a_time(mask: str, keys: int) -> None:
    """Also where the last of them are fewer, and where a block sees no key at all."""
    shape = (2, 64, keys, 16, 96)
    inputs, arrays = tensors(*shape)
    masks: dict[str, Mask | None] = {
        "none": None,
        "causal": lambda i, j: j <= i + keys - 64,
        "window": lambda i, j: (j <= i + 600) & (j > i),
        "sees nothing": lambda i, j: j < (i - 40) * 20,
    }
    shown = masks[mask]
    (item,) = schedule([attention(*inputs, shown).uop]).items
    found = cached_scores(item.ast)
    assert found is not None
    k, i, d = (int(r.arg[0]) for r in (found.steps, found.rows, found.columns))
    ast = apply(item.ast, Opt("TILE", i, 16), SMALL)
    inner = max(loops_of(ast).by_number)
    ast = apply(ast, Opt("CACHE_SCORES", k, 64, (inner,)), SMALL)
    ast = apply(ast, Opt("SPLIT_K", k, 128, (d, inner)), SMALL)
    got = compiled(ast, arrays, (2, 64, 96))
    want = reference(*arrays, mask=None if shown is None else positions(64, keys, shown))
    assert np.array_equal(np.isnan(got), np.isnan(want))
    np.testing.assert_allclose(got, want, atol=5e-6)


def test_many_values_go_by_for_a_block_of_rows_and_few_for_a_tile() -> None:
    def cuts(keys: int, machine: Machine) -> bool:
        inputs, _ = tensors(2, 256, keys, 64, 96)
        found = names(kernel_of(attention(*inputs), machine))
        assert found.count("CACHE_SCORES") == 1
        return "SPLIT_K" in found

    assert cuts(1000, SMALL) and not cuts(100, SMALL) and not cuts(1000, replace(SMALL, l2_bytes=4 << 20))
