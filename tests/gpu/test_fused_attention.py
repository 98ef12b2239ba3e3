"""Attention in float32 in one kernel: products by the lanes of warps themselves. Against NumPy in float64."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from morok import Tensor, knobs
from morok.codegen.pipeline import lower
from morok.dtype import float32
from morok.ir.matrix import ALL_UNITS, FUSED_UNITS
from morok.ir.node import UOp
from morok.optimize.actions.table import apply_all
from morok.optimize.heuristics.apply import optimize
from morok.optimize.heuristics.gpu.attention import row_choices, rows_of
from morok.optimize.record import Opt, applied
from morok.render.cuda.kernel import render
from morok.schedule.graph.attention.chain import chain_of
from morok.schedule.graph.attention.fused_chain import seen_of
from tests.gpu.host_block import run_on_host
from tests.gpu.kernels import DEVICE
from tests.gpu.products import HOST, TARGET, close, execute
from tests.gpu.test_attention import heads, kernels_of, reference, values
from tests.optimize.plans import an_h200, empty

ERROR = 1e-6
Array = Any
Mask = Callable[[Any, Any], Any]


def inputs(*shapes: tuple[int, ...], seed: int = 0) -> tuple[list[Tensor], list[Array]]:
    random = np.random.default_rng(seed)
    arrays = [random.normal(size=s).astype(np.float32) for s in shapes]
    return [Tensor(a, device=DEVICE).realize() for a in arrays], arrays


def is_fused(ast: UOp) -> bool:
    opts = applied(optimize(ast, HOST))
    return any(o.name == "TC" and ALL_UNITS[o.amount - 1].fused for o in opts)


@pytest.mark.parametrize(
    ("rows", "keys", "width", "out"),
    [
        (128, 128, 64, 64),
        (64, 192, 32, 48),
        (100, 96, 16, 8),
        (40, 77, 32, 32),
        (33, 17, 80, 96),
        (37, 53, 72, 72),
        (61, 67, 5, 3),
        (64, 64, 128, 128),
        (64, 32, 192, 192),
        (64, 64, 256, 256),
        (64, 64, 250, 255),
    ],
)
def test_one_kernel(rows: int, keys: int, width: int, out: int) -> None:
    (q, k, v), arrays = inputs(*heads(rows, keys, width, out, 2))
    result = q.scaled_dot_product_attention(k, v)
    (ast,) = kernels_of(result)
    assert is_fused(ast) and "ONLINE" in [opt.name for opt in applied(optimize(ast, HOST))]
    close(values(result), reference(*arrays), ERROR)


@pytest.mark.parametrize(
    "kind", ["mask", "bias", "scaled", "turned keys", "packed", "joined heads", "shared"]
)
def test_what_is_around_the_products(kind: str) -> None:
    (q, k, v), arrays = inputs(*heads(64, 64, 32, 32, 2, 2))
    random = np.random.default_rng(1)
    want = reference(*arrays)
    if kind == "mask":
        mask = random.random((64, 64)) < 0.4
        result = q.scaled_dot_product_attention(k, v, Tensor(mask, device=DEVICE))
        want = reference(*arrays, mask=mask)
    elif kind == "bias":
        bias = random.normal(size=(2, 1, 64, 64)).astype(np.float32)
        result = q.scaled_dot_product_attention(k, v, Tensor(bias, device=DEVICE))
        want = reference(*arrays, bias=bias.astype(np.float64))
    elif kind == "scaled":
        result = ((q @ k.transpose(-2, -1)) * 32**-0.5).softmax(-1) @ v
    elif kind == "turned keys":
        turned = Tensor(arrays[1].swapaxes(-1, -2).copy(), device=DEVICE)
        result = ((q @ turned) * 32**-0.5).softmax(-1) @ v
    elif kind == "packed":
        (packed,), (all_,) = inputs((2, 64, 3, 2, 32))
        q, k, v = (packed[:, :, i].transpose(1, 2) for i in range(3))
        result = q.scaled_dot_product_attention(k, v)
        want = reference(*(all_[:, :, i].swapaxes(1, 2) for i in range(3)))
    elif kind == "joined heads":
        result = q.scaled_dot_product_attention(k, v).transpose(1, 2).reshape(2, 64, 64)
        want = want.swapaxes(1, 2).reshape(2, 64, 64)
    else:
        result = q.scaled_dot_product_attention(*(x[:, :1].expand(2, 2, 64, 32) for x in (k, v)))
        want = reference(arrays[0], arrays[1][:, :1], arrays[2][:, :1])
    (ast,) = kernels_of(result)
    assert is_fused(ast)
    close(values(result), want, ERROR)


MASKS: dict[str, Mask] = {
    "causal": lambda i, j: j <= i,
    "causal from the end": lambda i, j: j <= i + 128,
    "window": lambda i, j: (j <= i + 16) & (j > i - 80),
    "reversed": lambda i, j: j >= i,
    "prefix": lambda i, j: (j < 40) | (j <= i),
    "rows that see nothing": lambda i, j: j <= i - 100,
}


@pytest.mark.parametrize("name", MASKS)
def test_masks(name: str) -> None:
    """Tiles that a mask hides are skipped, as with units."""
    rows, keys = 256, 384
    (q, k, v), arrays = inputs(*heads(rows, keys, 24, 16, 2))
    i, j = (Tensor.arange(n, device=DEVICE) for n in (rows, keys))
    result = q.scaled_dot_product_attention(k, v, MASKS[name](i.reshape(rows, 1), j.reshape(1, keys)))
    (ast,) = kernels_of(result)
    assert is_fused(ast)
    assert ("SKIP" in [opt.name for opt in applied(optimize(ast, HOST))]) == (name != "prefix")
    mask = MASKS[name](*np.ogrid[:rows, :keys])
    alive = mask.any(1)
    found = values(result)
    assert np.isnan(found[:, ~alive]).all()
    close(found[:, alive], reference(*arrays, mask=mask)[:, alive], ERROR)


@given(st.integers(32, 90), st.integers(16, 150), st.integers(1, 90), st.integers(1, 70), st.integers(0, 99))
@settings(max_examples=12)
def test_any_size(rows: int, keys: int, width: int, out: int, seed: int) -> None:
    (q, k, v), arrays = inputs(*heads(rows, keys, width, out), seed=seed)
    close(values(q.scaled_dot_product_attention(k, v)), reference(*arrays), ERROR)


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("where", [0, 200])
def test_no_infinity_and_no_nan_is_lost(value: float, where: int) -> None:
    shapes = heads(64, 256, 16, 16)
    arrays = inputs(*shapes)[1]
    arrays[1][where, 3] = value
    q, k, v = (Tensor(a, device=DEVICE) for a in arrays)
    found, want = values(q.scaled_dot_product_attention(k, v)), reference(*arrays)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(want))
    finite = ~np.isnan(want)
    if finite.any():
        close(found[finite], want[finite], ERROR)


def test_a_maximum_that_rises_and_scores_that_are_huge() -> None:
    """What was added up falls by powers of e from tile to tile, however large the scores are."""
    v = inputs((256, 16))[1][0]
    for top in (60.0, 30000.0):
        q = np.ones((64, 16), np.float32)
        k = np.repeat(np.linspace(-top, top, 256, dtype=np.float32)[:, None], 16, 1)
        for keys in (k, k[::-1].copy()):
            arrays = (q, keys, v)
            given = [Tensor(a, device=DEVICE) for a in arrays]
            close(values(given[0].scaled_dot_product_attention(*given[1:])), reference(*arrays), 1e-5)


@pytest.mark.parametrize(
    ("rows", "keys", "width", "batch"), [(1, 64, 16, 2), (64, 15, 16, 2), (64, 64, 300, 2), (32, 4096, 64, 1)]
)
def test_where_scores_are_memory(rows: int, keys: int, width: int, batch: int) -> None:
    """Few rows or keys, wide rows, and few blocks with much to do, by their price; but for one short row,
    which is less work than another launch."""
    (q, k, v), arrays = inputs(*heads(rows, keys, width, 16, batch))
    result = q.scaled_dot_product_attention(k, v)
    kernels = kernels_of(result)
    assert not any(map(is_fused, kernels)) and (len(kernels) == 1) == (rows == 1)
    close(values(result), reference(*arrays), ERROR)


def test_products_of_their_own_are_none_of_these() -> None:
    """And with units that round their inputs, whoever has asked for them gets them, with scores in memory."""
    (a, b, c), _ = inputs(*heads(128, 128, 64, 64, 2))
    (ast,) = kernels_of(a @ b.transpose(-1, -2))
    assert not is_fused(ast)
    with knobs.override(TF32=True):
        assert not any(map(is_fused, kernels_of(a.scaled_dot_product_attention(b, c))))


def test_others_who_want_the_weights_get_them() -> None:
    (q, k, v), arrays = inputs(*heads(64, 64, 16, 16))
    weights = ((q @ k.T) * 0.25).softmax(-1)
    first, second = weights @ v, weights.sum(0)
    Tensor.realize(first, second)
    close(values(first), reference(*arrays), ERROR)
    close(values(second), np.sum(reference(arrays[0], arrays[1], np.eye(64)), 0), ERROR)


def test_gradients() -> None:
    (q, k, v), (q64, k64, _) = inputs(*heads(64, 64, 16, 16, 2))
    (slope,) = q.scaled_dot_product_attention(k, v).sum().gradient(v)
    weights = reference(q64, k64, np.eye(64))
    close(values(slope), np.repeat(weights.sum(1)[..., None], 16, 2), ERROR)


# --- every tile, on the emulator and as text


def choices(ast: UOp) -> dict[str, list[tuple[Opt, ...]]]:
    """Sequences of actions by unit."""
    found: dict[str, list[tuple[Opt, ...]]] = {unit.name: [] for unit in FUSED_UNITS}
    for opts in row_choices(ast, HOST, 100):
        (number,) = (o.amount for o in opts if o.name == "TC")
        found[ALL_UNITS[number - 1].name].append(opts)
    return found


def plain(rows: int, keys: int, width: int, out: int, turned: bool = False) -> tuple[UOp, list[Array], Array]:
    """A kernel, its operands, and what comes of them."""
    _, arrays = inputs(*heads(rows, keys, width, out, 2))
    q, k, v = (Tensor.empty(*a.shape, device=DEVICE) for a in arrays)
    want = reference(*arrays)
    if turned:  # all of them lie the other way in memory
        arrays = [a.swapaxes(-1, -2).copy() for a in arrays]
        q, k, v = (Tensor.empty(*a.shape, device=DEVICE).transpose(-1, -2) for a in arrays)
    (ast,) = kernels_of((q @ k.transpose(-1, -2) * width**-0.5).softmax(-1) @ v)
    return ast, [np.zeros(want.shape, np.float32), *arrays], want


UNITS = [
    pytest.param(unit.name, marks=[pytest.mark.slow] if unit.name in ("fma.8", "fma.16") else [])
    for unit in FUSED_UNITS
]


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("turned", [False, True])
def test_tiles(unit: str, turned: bool, tmp_path: Path) -> None:
    """Of each kind the first and the last, by what the emulator makes of the list of instructions; and one by
    the text, which it does not see."""
    ast, arrays, want = plain(70, 100, 40, 56, turned)
    found = choices(ast)[unit]
    assert len(found) > 3
    types = [float32] * len(arrays)
    for opts in (found[0], found[-1]):
        made = lower(apply_all(ast, opts, HOST), TARGET)
        close(execute(made, [a.reshape(-1) for a in arrays], types), want, ERROR)
    out = np.full(want.shape, np.nan, np.float32)
    run_on_host(render(made, "attention", len(arrays)), [out, *arrays[1:]], tmp_path)
    close(out, want, ERROR)


@pytest.mark.parametrize("window", [0, 48])
def test_a_price_counts_the_tiles_that_a_mask_shows(window: int) -> None:
    n = 192
    i, j = Tensor.arange(n, device=DEVICE).reshape(n, 1), Tensor.arange(n, device=DEVICE).reshape(1, n)
    mask = (j <= i) & (j > i - window) if window else j <= i
    (q, k, v), _ = inputs((1, n, 64), (1, n, 64), (1, n, 64))
    ast = q.scaled_dot_product_attention(k, v, mask).plan().kernels[-1].ast
    chain = chain_of(ast)
    assert chain is not None
    seen = seen_of(chain)
    shown = np.array(mask.numpy())
    for rows, keys in ((32, 32), (64, 32), (64, 64)):
        tiles = shown.reshape(n // rows, rows, n // keys, keys).any((1, 3))
        assert abs(seen.by_tiles(rows, keys, n) - tiles.mean()) < 0.1


@pytest.mark.parametrize(
    ("shape", "causal", "best"),
    [((8, 12, 1408, 64), True, (32, 2, 64, 1)), ((4, 16, 2048, 128), False, (32, 8, 32, 2))],
)
def test_the_tile_of_an_h200_is_the_one_that_was_measured_best(
    shape: tuple[int, ...], causal: bool, best: tuple[int, ...]
) -> None:
    with an_h200() as machine:
        q, k, v = (empty(*shape, dtype="float32") for _ in range(3))
        (kernel,) = q.scaled_dot_product_attention(k, v, is_causal=causal).plan().kernels
        tile = rows_of(kernel.ast).tiles(machine)[0]
    assert (tile.rows, tile.teams, tile.keys, tile.depth) == best
