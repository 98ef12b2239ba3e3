"""Attention in one kernel: back-to-back GEMMs, the maximum and the sums in one pass. Against NumPy."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from morok import Tensor
from morok.codegen.pipeline import lower
from morok.device.cuda.compile import compile_cubin
from morok.device.cuda.device import program_of
from morok.device.interpreter import run_kernel
from morok.ir.node import UOp, toposort
from morok.ir.ops import AxisKind, Ops
from morok.optimize.actions.table import apply, apply_all, can
from morok.optimize.heuristics.apply import optimize
from morok.optimize.heuristics.gpu.attention import row_choices
from morok.optimize.record import Opt, applied
from morok.schedule.schedule import schedule
from tests.gpu.kernels import DEVICE
from tests.gpu.products import HOST, TARGET, close, execute, memory_of

ERROR = {"float16": 1e-3, "bfloat16": 8e-3}
Array = Any


def reference(q: Array, k: Array, v: Array, mask: Array = None, bias: Array = 0.0) -> Array:
    """In float64, from what half precision has left of the inputs."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    with np.errstate(invalid="ignore"):
        scores = q @ k.swapaxes(-1, -2) * q.shape[-1] ** -0.5 + bias
        if mask is not None:
            scores = np.where(mask, scores, -np.inf)
        powers = np.exp(scores - scores.max(-1, keepdims=True))
        return powers / powers.sum(-1, keepdims=True) @ v


def inputs(
    *shapes: tuple[int, ...], dtype: str = "float16", seed: int = 0
) -> tuple[list[Tensor], list[Array]]:
    """Tensors on the device, and what is in them.

    That is computed on the host: a conversion that has been computed on the device, and that anybody still
    holds, is read by whatever needs it, and then products are none of narrow numbers.
    """
    random = np.random.default_rng(seed)
    narrow = np.float16 if dtype == "float16" else ml_dtypes.bfloat16
    arrays = [random.normal(size=s).astype(np.float32).astype(narrow).astype(np.float32) for s in shapes]
    return [Tensor(a, device=DEVICE).cast(dtype).realize() for a in arrays], arrays


def kernels_of(result: Tensor) -> list[UOp]:
    return [item.ast for item in schedule([result.uop]).items]


def values(result: Tensor) -> Array:
    return result.cast("float32").numpy()


def heads(rows: int, keys: int, width: int, out: int, *batch: int) -> tuple[tuple[int, ...], ...]:
    return (*batch, rows, width), (*batch, keys, width), (*batch, keys, out)


# --- values


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(
    ("rows", "keys", "width", "out"),
    [
        (128, 128, 64, 64),
        (64, 192, 32, 48),  # three steps of a ring
        (100, 96, 16, 8),  # rows that fill no tile
        (40, 77, 32, 32),  # keys that fill none either
        (33, 16, 80, 96),  # one step
        (64, 64, 128, 128),  # 16 rows for each warp
        (64, 32, 192, 192),  # 16 rows of a warp need most of its registers
        (64, 64, 256, 256),  # as many as there may be
    ],
)
def test_one_kernel(rows: int, keys: int, width: int, out: int, dtype: str) -> None:
    (q, k, v), arrays = inputs(*heads(rows, keys, width, out, 2), dtype=dtype)
    result = q.scaled_dot_product_attention(k, v)
    (ast,) = kernels_of(result)
    names = [opt.name for opt in applied(optimize(ast, HOST))]
    assert "ONLINE" in names and "TC" in names
    close(values(result), reference(*arrays), ERROR[dtype])


@pytest.mark.parametrize(
    "kind", ["causal", "mask", "bias", "scaled by hand", "turned keys", "packed", "joined heads"]
)
def test_epilogues_of_products(kind: str) -> None:
    (q, k, v), arrays = inputs(*heads(64, 64, 32, 32, 2, 2))
    k64 = arrays[1]
    random = np.random.default_rng(1)
    if kind == "causal":
        result = q.scaled_dot_product_attention(k, v, is_causal=True)
        want = reference(*arrays, mask=np.tril(np.ones((64, 64), bool)))
    elif kind == "mask":
        mask = random.random((64, 64)) < 0.4
        result = q.scaled_dot_product_attention(k, v, Tensor(mask, device=DEVICE))
        want = reference(*arrays, mask=mask)
    elif kind == "bias":
        bias = random.normal(size=(2, 1, 64, 64)).astype(np.float16)
        result = q.scaled_dot_product_attention(k, v, Tensor(bias, device=DEVICE))
        want = reference(*arrays, bias=bias.astype(np.float64))
    elif kind == "scaled by hand":
        result = ((q @ k.transpose(-2, -1)) * 32**-0.5).softmax(-1) @ v
        want = reference(*arrays)
    elif kind == "turned keys":
        transposed = Tensor(k64.swapaxes(-1, -2).astype(np.float16).copy(), device=DEVICE)
        result = ((q @ transposed) * 32**-0.5).softmax(-1) @ v
        want = reference(*arrays)
    elif kind == "packed":
        packed, (all_,) = inputs((2, 64, 3, 2, 32))
        q, k, v = (packed[0][:, :, i].transpose(1, 2) for i in range(3))
        result = q.scaled_dot_product_attention(k, v)
        want = reference(*(all_[:, :, i].swapaxes(1, 2) for i in range(3)))
    else:
        result = q.scaled_dot_product_attention(k, v).transpose(1, 2).reshape(2, 64, 64)
        want = reference(*arrays).swapaxes(1, 2).reshape(2, 64, 64)
    assert len(kernels_of(result)) == 1
    close(values(result), want, 1e-3)


@given(st.integers(32, 90), st.integers(16, 150), st.integers(1, 4), st.integers(1, 6), st.integers(0, 99))
@settings(max_examples=15)
def test_any_size(rows: int, keys: int, width: int, out: int, seed: int) -> None:
    (q, k, v), arrays = inputs(*heads(rows, keys, 16 * width, 8 * out), seed=seed)
    result = q.scaled_dot_product_attention(k, v)
    assert len(kernels_of(result)) == 1
    close(values(result), reference(*arrays), ERROR["float16"])


# --- the maximum


def test_a_maximum_that_rises_from_tile_to_tile() -> None:
    """What has been added up falls by powers of e each time; in the end the last tile counts."""
    (_, _, v), (_, _, v64) = inputs(*heads(64, 256, 16, 16))
    q = np.ones((64, 16), np.float16)
    k = np.repeat(np.linspace(-60, 60, 256, dtype=np.float16)[:, None], 16, 1)
    for keys in (k, k[::-1].copy()):
        result = Tensor(q, device=DEVICE).scaled_dot_product_attention(Tensor(keys, device=DEVICE), v)
        close(values(result), reference(q, keys, v64), 1e-3)


def test_scores_beyond_half_precision() -> None:
    """Scores are not rounded on their way: these would be infinite in float16."""
    (_, _, v), (_, _, v64) = inputs(*heads(64, 64, 16, 16))
    random = np.random.default_rng(3)
    q = (random.integers(-2, 3, (64, 16)) * 100).astype(np.float16)
    k = (random.integers(-2, 3, (64, 16)) * 100).astype(np.float16)
    result = (Tensor(q, device=DEVICE) @ Tensor(k, device=DEVICE).T).softmax(-1) @ v
    assert len(kernels_of(result)) == 1
    scores = q.astype(np.float64) @ k.astype(np.float64).T
    assert np.abs(scores).max() > 65504
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    close(values(result), powers / powers.sum(-1, keepdims=True) @ v64, 1e-3)


def test_tiles_and_rows_that_are_masked_as_a_whole() -> None:
    """A first tile of nothing but -inf adds nothing; a row of nothing else is 0 / 0, as in three passes."""
    (q, k, v), arrays = inputs(*heads(64, 256, 16, 16))
    mask = np.ones((64, 256), bool)
    mask[:, :128] = False
    mask[5] = False
    result = values(q.scaled_dot_product_attention(k, v, Tensor(mask, device=DEVICE)))
    assert np.isnan(result[5]).all()
    alive = np.arange(64) != 5
    close(result[alive], reference(*arrays, mask=mask)[alive], 1e-3)


def documents(starts: Array, gathered: bool) -> tuple[Tensor, Array]:
    """A mask of positions in the same document: its number is a running sum, by position or looked up."""
    numbers = Tensor(starts, device=DEVICE).cumsum(0)
    size = len(starts)
    places = Tensor.arange(size, device=DEVICE)
    rows, columns = numbers.reshape(size, 1), numbers.reshape(1, size)
    if gathered:
        rows, columns = numbers[places.reshape(size, 1)], numbers[places.reshape(1, size)]
    mask = rows.eq(columns) & (places.reshape(size, 1) >= places.reshape(1, size))
    known = np.cumsum(starts)
    return mask, (known[:, None] == known) & np.tri(size, dtype=bool)


@pytest.mark.parametrize("gathered", [False, True])
def test_a_mask_made_of_sums_is_computed_beside_the_scores(gathered: bool) -> None:
    """What is summed is memory, a number for each position; the mask, as large as the scores, is not."""
    (q, k, v), arrays = inputs(*heads(64, 64, 32, 32, 2))
    mask, known = documents((np.arange(64) % 23 == 0).astype(np.int32), gathered)
    result = q.scaled_dot_product_attention(k, v, mask.where(0.0, float("-inf")).cast("float16"))
    kernels = kernels_of(result)
    assert "ONLINE" in [opt.name for opt in applied(optimize(kernels[-1], HOST))]
    sizes = [n.dtype.size for n in toposort(*kernels) if n.op is Ops.DEFINE_GLOBAL]  # type: ignore[attr-defined]
    assert max(sizes) == 2 * 64 * 32
    close(values(result), reference(*arrays, mask=known), 1e-3)


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("where", [0, 200])
def test_no_infinity_and_no_nan_is_lost(value: float, where: int) -> None:
    (q, _, v), (q64, _, v64) = inputs(*heads(64, 256, 16, 16))
    k64 = np.random.default_rng(2).normal(size=(256, 16)).astype(np.float16)
    k64[where, 3] = value
    result = values(q.scaled_dot_product_attention(Tensor(k64, device=DEVICE), v))
    want = reference(q64, k64, v64)
    np.testing.assert_array_equal(np.isnan(result), np.isnan(want))
    finite = ~np.isnan(want)
    if finite.any():
        close(result[finite], want[finite], 1e-3)


# --- when it is done, and when not


def test_scores_that_are_rounded_twice_on_their_way() -> None:
    """A sum in float32 between two of half precision, as of products with places that are added by turns."""
    (q, k, v, bias), arrays = inputs(*heads(128, 128, 64, 64, 2), (2, 128, 128), dtype="bfloat16")
    products = (q @ k.transpose(-1, -2)).cast("bfloat16")
    scores = (products.cast("float32") * 0.125 + bias.cast("float32")).cast("bfloat16") + bias
    found = (scores.cast("float32").softmax(-1).cast("bfloat16") @ v).cast("bfloat16")
    close(values(found), reference(*arrays[:3], bias=2 * arrays[3].astype(np.float64)), 4 * ERROR["bfloat16"])


def test_others_who_want_the_weights_get_them() -> None:
    (q, k, v), arrays = inputs(*heads(64, 64, 16, 16))
    weights = ((q @ k.T) * 0.25).softmax(-1)
    first, second = weights @ v, weights.sum(0)
    assert len(schedule([first.uop, second.uop]).items) > 1
    close(values(first), reference(*arrays), 1e-3)
    close(values(second), np.sum(reference(arrays[0], arrays[1], np.eye(64)), 0), 2e-3)


@pytest.mark.parametrize(("rows", "keys"), [(1, 64), (64, 15)])
def test_what_units_cannot_do_takes_several_kernels(rows: int, keys: int) -> None:
    """But for one short row, which is less work than another launch."""
    (q, k, v), arrays = inputs(*heads(rows, keys, 16, 16))
    result = q.scaled_dot_product_attention(k, v)
    assert (len(kernels_of(result)) == 1) == (rows == 1)
    close(values(result), reference(*arrays), 2e-3)


def test_gradients() -> None:
    """They need the weights, so these are kept; the result is the same."""
    (q, k, v), (q64, k64, _) = inputs(*heads(32, 32, 16, 16))
    (slope,) = q.scaled_dot_product_attention(k, v).cast("float32").sum().gradient(v)
    weights = reference(q64, k64, np.eye(32))
    close(values(slope), np.repeat(weights.sum(0)[:, None], 16, 1), 2e-3)


def shared_heads(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """All heads of q look at the first of k and v; heads come last but one."""
    k, v = (x[:, :1].expand(2, 2, 64, 32) for x in (k, v))
    return q.scaled_dot_product_attention(k, v).transpose(1, 2).contiguous()


AROUND: dict[str, Callable[[Tensor, Tensor, Tensor], list[Tensor]]] = {
    "shared heads": lambda q, k, v: [shared_heads(q, k, v)],
    "computed after it was spread": lambda q, k, v: [
        q.scaled_dot_product_attention(k[:, :1].expand(2, 2, 64, 32).relu(), v)
    ],
    "two types": lambda q, k, v: [
        (q.cast("bfloat16") @ k.cast("bfloat16").transpose(-2, -1))
        .cast("float32")
        .softmax(-1)
        .cast("float16")
        @ v
    ],
    "one row": lambda q, k, v: [q.scaled_dot_product_attention(k, v)[:, :, 0]],
    "some columns": lambda q, k, v: [q.scaled_dot_product_attention(k, v)[..., :4]],
    "an edge around it": lambda q, k, v: [
        q.scaled_dot_product_attention(k, v).pad(((0, 0), (0, 0), (1, 2), (3, 4)))
    ],
    "rows in another order": lambda q, k, v: [
        q.scaled_dot_product_attention(k, v).reshape(2, 2, 8, 8, 32).permute(0, 1, 3, 2, 4).contiguous()
    ],
    "half by half": lambda q, k, v: [
        (lambda x: x[..., :16] * x[..., 16:])(q.scaled_dot_product_attention(k, v))
    ],
    "two results": lambda q, k, v: (lambda x: [x + 1, x * 2])(q.scaled_dot_product_attention(k, v)),
    "largest of neighbours": lambda q, k, v: [
        q.scaled_dot_product_attention(k, v).cast("float32").max_pool2d((2, 2))
    ],
    "a constant": lambda q, k, v: [
        Tensor.ones(2, 2, 64, 32, dtype="float16", device=q.device).scaled_dot_product_attention(k, v)
    ],
    "a diagonal": lambda q, k, v: [
        q.scaled_dot_product_attention(k, Tensor.eye(64, dtype="float16", device=q.device))
    ],
}


APART = ("two types", "a constant", "a diagonal")


@pytest.mark.parametrize("name", AROUND)
def test_two_products_in_a_kernel_are_for_units(name: str) -> None:
    """Whatever surrounds them: without units each output would compute its row of scores again."""
    (q, k, v), _ = inputs(*heads(64, 64, 32, 32, 2, 2))
    results = AROUND[name](q, k, v)
    chained = 0
    for item in schedule([r.uop for r in results]).items:
        tops = [n for n in toposort(item.ast) if n.op is Ops.REDUCE and n.arg == (Ops.MAX,)]
        if any(n.op is Ops.REDUCE for top in tops for n in toposort(top.src[0])):
            chained += 1
            assert "TC" in [opt.name for opt in applied(optimize(item.ast, HOST))]
    assert chained == (name not in APART)
    there = AROUND[name](*(x.to("CPU") for x in (q, k, v)))
    for result, other in zip(results, there, strict=True):
        close(values(result), values(other), 8e-3 if name == "two types" else 2e-3)


def test_scores_that_are_huge() -> None:
    """Terms below different maxima have to agree, and none may overflow, however large the maxima are."""
    (_, _, v), (_, _, v64) = inputs(*heads(64, 256, 16, 32))
    for left, right, rising in ((4096, 2048, True), (1024, 1000, True), (32768, 4099, False)):
        q, k = np.zeros((64, 16), np.float16), np.zeros((256, 16), np.float16)
        q[:, 0], q[:, 1], k[:, 0] = left, 1, right
        k[:, 1] = np.arange(256) // 64 if rising else 0
        result = (Tensor(q, device=DEVICE) @ Tensor(k, device=DEVICE).T).softmax(-1) @ v
        assert len(kernels_of(result)) == 1
        scores = q.astype(np.float64) @ k.astype(np.float64).T
        powers = np.exp(scores - scores.max(-1, keepdims=True))
        close(values(result), powers / powers.sum(-1, keepdims=True) @ v64, 1e-3)


# --- the pieces


@cache
def fused(rows: int = 64, keys: int = 96, width: int = 32, out: int = 16) -> UOp:
    q, k, v = (Tensor.empty(*s, dtype="float16", device=DEVICE) for s in heads(rows, keys, width, out))
    (ast,) = kernels_of(q.scaled_dot_product_attention(k, v))
    return ast


def keys_loop(ast: UOp) -> int:
    """The loop of the last sum."""
    sums = [n for n in toposort(ast) if n.op is Ops.REDUCE]
    return int(sums[-1].src[1].arg[0])


def test_one_pass_means_the_same_point_by_point() -> None:
    ast = fused()
    once = apply(ast, Opt("ONLINE", keys_loop(ast)), HOST)
    assert sum(n.op is Ops.ONLINE for n in toposort(once)) == 2
    loops = {n for n in toposort(once) if n.op is Ops.RANGE and n.arg[1] is AxisKind.REDUCE}
    assert len(loops) == 2  # along a row of q, and along the keys: three passes had six
    results = []
    for kernel in (ast, once):
        arrays, _ = memory_of(ast)
        run_kernel(kernel, arrays)
        results.append(arrays[0].astype(np.float64))
    close(results[1], results[0], 1e-3)


def test_one_pass_without_units() -> None:
    """Plain loops find the maximum and the sums together, too."""
    ast = fused()
    once = apply(ast, Opt("ONLINE", keys_loop(ast)), HOST)
    arrays, types = memory_of(ast)
    wanted = [a.copy() for a in arrays]
    run_kernel(ast, wanted)
    linear = lower(once, TARGET)
    close(execute(linear, arrays, types), wanted[0].astype(np.float64), 1e-3)
    assert sum(n.op is Ops.RANGE and n.src[0].arg == 96 for n in linear.src) == 1


def test_threads_fill_no_tile_that_their_reduction_does_not_read() -> None:
    """Both ways round; such sequences were races once."""
    ast = fused()
    loops = {int(n.arg[0]): n for n in toposort(ast) if n.op is Ops.RANGE}
    k = keys_loop(ast)
    others = [n for n, r in loops.items() if n != k and r.arg[1] is AxisKind.REDUCE and r.src[0].arg == 96]
    staged = apply(ast, Opt("STAGE", 3, 1, (k, 1)), HOST)
    shared = apply(ast, Opt("GROUP", others[0], 8), HOST)
    assert "does not read" in str(can(staged, Opt("GROUP", others[0], 8), HOST))
    assert "does not read" in str(can(shared, Opt("STAGE", 3, 1, (k, 1)), HOST))


def test_lanes_share_their_tiles() -> None:
    """A tile of one key's row would be another one for every lane."""
    ast = fused()
    k = keys_loop(ast)
    once = apply(ast, Opt("ONLINE", k), HOST)
    (e,) = (int(n.arg[0]) for n in toposort(once) if n.op is Ops.RANGE and n.src[0].arg == 32)
    staged = apply(once, Opt("STAGE", 2, 1, (e,)), HOST)
    reason = can(staged, Opt("TC", k, 1, (0, 1, e)), HOST)
    assert reason == f"a tile that all threads share depends on loop {k}"


def test_what_is_refused() -> None:
    ast = fused()
    k = keys_loop(ast)
    assert can(ast, Opt("ONLINE", 0), HOST) == "loop 0 is not that of a sum of powers below their maximum"
    assert can(ast, Opt("ONLINE", 99), HOST) == "there is no loop 99"
    once = apply(ast, Opt("ONLINE", k), HOST)
    assert can(once, Opt("ONLINE", k), HOST) is not None
    e = next(int(n.arg[0]) for n in toposort(once) if n.op is Ops.RANGE and n.arg[1] is AxisKind.REDUCE)
    e = next(i for i in (e, e + 1) if i != k)
    assert can(once, Opt("TC", k, 1, (0, 1, e)), HOST) is None
    assert can(once, Opt("TC", k, 4, (0, 1, e)), HOST) is not None  # whose results lie otherwise
    assert can(once, Opt("TC", e, 1, (0, 1, k)), HOST) is not None


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_source(arch: str) -> None:
    program = program_of(optimize(fused(), HOST), HOST, "attention")
    assert "ldmatrix" in program.text and "mma.sync" in program.text
    assert "f16x2_f32(" in program.text  # weights are rounded in pairs
    assert compile_cubin(program.text, arch)


def test_source_for_groups_of_warps() -> None:
    program = program_of(optimize(fused(64, 256, 128, 64), HOST), HOST, "attention")
    assert "ldmatrix" not in program.text  # units read q, k and v by themselves
    # scores of 128 keys, before the loop and in it; what they weigh in the loop and behind it
    assert program.text.count("wgmma.mma_async") == 2 * (128 // 16) + 2 * (128 // 16)
    assert program.text.count("wgmma.wait_group") == 4
    assert compile_cubin(program.text, "sm_90a")


@pytest.mark.parametrize(("width", "out", "least"), [(32, 16, 5), (64, 128, 8)])
def test_other_sequences(width: int, out: int, least: int) -> None:
    """Tiles that a search would try are right as well."""
    ast = fused(128, 256, width, out)
    arrays, types = memory_of(ast)
    wanted = [a.copy() for a in arrays]
    run_kernel(ast, wanted)
    found = row_choices(ast, HOST, 20)
    assert len(found) >= least
    for opts in found[:least]:
        close(execute(lower(apply_all(ast, opts, HOST), TARGET), arrays, types), wanted[0], 1e-3)
