"""Gradients of attention: scores are computed again in every product that needs them. Against NumPy."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from morok import Tensor
from morok.codegen.pipeline import lower
from morok.device.interpreter import run_kernel
from morok.dtype import PtrDType
from morok.ir.matrix import ALL_UNITS, Products
from morok.ir.node import UOp, make, toposort
from morok.ir.ops import Ops
from morok.ir.warp_roles import WARP_GROUP
from morok.optimize.heuristics.apply import optimize
from morok.optimize.record import applied
from morok.render.cuda.kernel import render
from morok.schedule.graph.attention.chain import chain_of
from morok.schedule.kernel.numbering import number_buffers, number_ranges
from morok.schedule.schedule import schedule
from morok.tensor.linalg.attention import attention_gradient
from tests.gpu.kernels import DEVICE
from tests.gpu.products import HOST, TARGET, execute, memory_of
from tests.gpu.test_attention import documents, heads, inputs, values

Array = Any
ERROR = {"float16": 2e-3, "bfloat16": 1.5e-2}


def reference(q: Array, k: Array, v: Array, g: Array, mask: Array = None) -> tuple[Array, ...]:
    """The result and the gradients of q, k and v in float64, by the chain rule through the softmax."""
    q, k, v, g = (x.astype(np.float64) for x in (q, k, v, g))
    scale = q.shape[-1] ** -0.5
    scores = q @ k.swapaxes(-1, -2) * scale
    if mask is not None:
        scores = np.where(mask, scores, -np.inf)
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    weights = powers / powers.sum(-1, keepdims=True)
    slope = g @ v.swapaxes(-1, -2)
    slope = weights * (slope - (weights * slope).sum(-1, keepdims=True))
    dk = slope.swapaxes(-1, -2) @ q * scale
    return weights @ v, slope @ k * scale, dk, weights.swapaxes(-1, -2) @ g


def results(q: Tensor, k: Tensor, v: Tensor, g: Tensor, **how: Any) -> list[Tensor]:
    y = q.scaled_dot_product_attention(k, v, **how)
    return [y, *y.gradient(q, k, v, gradient=g)]


def close(found: Array, want: Array, error: float) -> None:
    """In norm: a gradient's small elements are sums of large ones."""
    assert np.linalg.norm(found - want) <= error * np.linalg.norm(want)


def planned(found: list[Tensor]) -> list[list[str]]:
    """The actions of the chains of products among the kernels; none of the others has any."""
    chains = []
    for item in schedule([t.uop for t in found]).items:
        if chain_of(item.ast) is None:
            products = [n for n in toposort(item.ast) if n.op is Ops.REDUCE]
            assert len(products) <= 1
            continue
        chains.append([opt.name for opt in applied(optimize(item.ast, HOST))])
    return chains


@pytest.mark.parametrize(
    ("rows", "keys", "width", "causal", "dtype"),
    [
        (64, 64, 16, False, "float16"),
        (64, 128, 64, False, "bfloat16"),
        (128, 128, 64, True, "float16"),
        (48, 72, 32, False, "float16"),  # edges along rows and keys
        (64, 128, 96, False, "bfloat16"),  # rows that are no whole panels
        (72, 80, 80, True, "float16"),
        (64, 64, 72, False, "float16"),  # nor whole steps of a unit
    ],
)
def test_against_float64(rows: int, keys: int, width: int, causal: bool, dtype: str) -> None:
    shapes = (*heads(rows, keys, width, width, 2), (2, rows, width))
    tensors, arrays = inputs(*shapes, dtype=dtype)
    found = results(*tensors, is_causal=causal)
    chains = planned(found)
    assert len(chains) == 3 and all("TC" in names for names in chains)
    mask = np.tril(np.ones((rows, keys), bool)) if causal else None
    for got, want in zip(found, reference(*arrays, mask=mask), strict=True):
        close(values(got), want, ERROR[dtype])


@pytest.mark.parametrize("width", [72, 80, 96, 112, 128, 136, 160])
def test_gradients_of_any_width_have_units_of_warp_groups(width: int) -> None:
    tensors = [Tensor.empty(4, 16, 2048, width, dtype="bfloat16", device="EMULATOR") for _ in range(4)]
    asts = [item.ast for item in schedule([t.uop for t in results(*tensors)]).items]
    chains = [ast for ast in asts if chain_of(ast) is not None]
    assert len(chains) == (3 if width <= 128 else 4)  # results of both sums fill registers
    for ast in chains:
        (unit,) = (ALL_UNITS[o.amount - 1] for o in applied(optimize(ast, HOST)) if o.name == "TC")
        assert unit.lanes == WARP_GROUP


def test_heads_that_share_keys() -> None:
    """Gradients of keys and values are summed over the heads that look at them."""
    (q, k, v, g), arrays = inputs((2, 3, 64, 32), (2, 1, 96, 32), (2, 1, 96, 32), (2, 3, 64, 32))
    found = results(q, k, v, g)
    out, dq, dk, dv = reference(*arrays)
    wants = (out, dq, dk.sum(1, keepdims=True), dv.sum(1, keepdims=True))
    for got, want in zip(found, wants, strict=True):
        close(values(got), want, ERROR["float16"])


def test_a_bias_has_a_gradient() -> None:
    """It is as large as the scores, so they are memory then; the numbers are the same."""
    (q, k, v, g), (q64, k64, v64, g64) = inputs(*heads(64, 64, 16, 16), (64, 16))
    bias64 = np.random.default_rng(5).normal(size=(64, 64)).astype(np.float16)
    bias = Tensor(bias64, device=DEVICE)
    y = q.scaled_dot_product_attention(k, v, bias)
    dbias, dv = y.gradient(bias, v, gradient=g)
    scores = (q64 @ k64.T).astype(np.float64) * 0.25 + bias64
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    slope = g64.astype(np.float64) @ v64.T
    close(values(dbias), weights * (slope - (weights * slope).sum(-1, keepdims=True)), 4e-3)
    close(values(dv), weights.T @ g64, ERROR["float16"])


def test_all_threads_fill_tiles_of_statistics() -> None:
    """Nothing depends on the lanes along the keys but the reduction over them; they still are threads."""
    tensors, _ = inputs(*heads(64, 64, 64, 64, 1), (1, 64, 64), dtype="bfloat16")
    kernels = [item.ast for item in schedule([t.uop for t in results(*tensors)]).items]
    (whole,) = (k for k in kernels if len(k.src) == 3)
    ast, _ = number_buffers(number_ranges(whole.replace(whole.src[1:])))  # without what they weigh
    arrays, types = memory_of(ast)
    wanted = [a.copy() for a in arrays]
    run_kernel(ast, wanted)
    np.testing.assert_allclose(execute(lower(optimize(ast, HOST), TARGET), arrays, types), wanted[0], 1e-4)


def test_nothing_is_as_large_as_the_scores() -> None:
    """Memory grows with the length, not with its square."""
    tensors, _ = inputs(*heads(256, 256, 64, 64), (256, 64))
    kernels = [item.ast for item in schedule([t.uop for t in results(*tensors)]).items]
    memory = [n.dtype for ast in kernels for n in toposort(ast) if n.op is Ops.DEFINE_GLOBAL]
    assert max(d.size for d in memory if isinstance(d, PtrDType)) == 256 * 64


def test_masked_rows_have_no_slope() -> None:
    """A row without any key is 0 / 0, but the keys that it does not see do not know."""
    tensors, arrays = inputs(*heads(64, 64, 16, 16), (64, 16))
    mask = np.ones((64, 64), bool)
    mask[7] = False
    _, dq, dk, _ = results(*tensors, mask=Tensor(mask, device=DEVICE))
    alive = np.arange(64) != 7
    q, k, v, g = arrays
    _, want_q, want_k, _ = reference(q[alive], k, v, g[alive])
    close(values(dq)[alive], want_q, ERROR["float16"])
    assert (values(dq)[7] == 0).all()
    close(values(dk), want_k, ERROR["float16"])


def test_a_mask_made_of_sums() -> None:
    tensors, arrays = inputs(*heads(64, 64, 16, 16), (64, 16))
    mask, known = documents((np.arange(64) % 23 == 0).astype(np.int32), gathered=False)
    found = results(*tensors, mask=mask)
    assert len(planned(found)) >= 3
    for a, b in zip(found, reference(*arrays, mask=known), strict=True):
        close(values(a), b, ERROR["float16"])


def unfinished(linear: UOp) -> list[UOp]:
    """Results of warp groups' products that somebody reads, in the order of a list, before they are there."""
    started: list[UOp] = []
    groups: list[list[UOp]] = []
    found: list[UOp] = []
    for node in linear.src:
        if (node.op is Ops.WMMA and node.arg.shared) or (node.op is Ops.CAT and node.src[0] in started):
            started.append(node)
        elif node.op is Ops.ASYNC_COMMIT and isinstance(node.arg, Products):
            groups.append(started)
            started = []
        elif node.op is Ops.ASYNC_WAIT and isinstance(node.arg, Products):
            del groups[: max(0, len(groups) - node.arg.pending)]
        elif node.op is not Ops.AFTER or node.src[0].op is Ops.WMMA:
            running = {n for group in (*groups, started) for n in group}
            found += [s for s in node.src if s in running]
    return found


def test_products_are_under_way_together() -> None:
    """The first products of a chain are started before anybody waits, and nobody reads what is not there."""
    tensors, _ = inputs(*heads(128, 128, 64, 64, 1), (1, 128, 64), dtype="bfloat16")
    kernels = [item.ast for item in schedule([t.uop for t in results(*tensors)]).items]
    lists = [lower(optimize(k, HOST), TARGET) for k in kernels if chain_of(k) is not None]
    waits = [
        [n.arg.pending for n in x.src if n.op is Ops.ASYNC_WAIT and isinstance(n.arg, Products)]
        for x in lists
    ]
    assert [sorted(w) for w in waits] == [[0, 0], [0, 0, 1], [0, 1, 1, 1]]
    assert not any(map(unfinished, lists))
    laxer = [make(n.op, n.dtype, n.src, Products(2)) if n.arg == Products(1) else n for n in lists[1].src]
    assert unfinished(make(Ops.LINEAR, lists[1].dtype, tuple(laxer)))


def test_what_is_added_to_scores_learns() -> None:
    """Its gradient is as large as they are, and memory; still all five products are for units."""
    rng = np.random.default_rng(3)
    arrays = [rng.standard_normal((4, 128, 32)).astype(np.float16) for _ in range(4)]
    added = rng.standard_normal((4, 128, 128)).astype(np.float16)
    q, k, v, g, bias = (Tensor(a, device=DEVICE).realize() for a in (*arrays, added))
    y = q.scaled_dot_product_attention(k, v, mask=bias).realize()
    found = [
        attention_gradient(q, k, v, bias, False, 32**-0.5, g, y, n).cast("float16") for n in (1, 2, 3, 4)
    ]
    kernels = [optimize(item.ast, HOST) for item in schedule([t.uop for t in found]).items]
    assert sum("TC" in [opt.name for opt in applied(kernel)] for kernel in kernels) == 5
    q64, k64, v64, g64, b64 = (a.astype(np.float64) for a in (*arrays, added))
    powers = np.exp(q64 @ k64.swapaxes(-1, -2) * 32**-0.5 + b64)
    weights = powers / powers.sum(-1, keepdims=True)
    slopes = g64 @ v64.swapaxes(-1, -2)
    slopes = weights * (slopes - (weights * slopes).sum(-1, keepdims=True))
    close(values(found[3]), slopes, ERROR["float16"])


def chains(length: int, width: int, causal: bool = False) -> list[UOp]:
    """The lists of the three kernels with several products each, for a device with warp groups' units."""
    tensors, _ = inputs(*heads(length, length, width, width, 1), (1, length, width), dtype="bfloat16")
    found = results(*tensors, is_causal=causal)
    kernels = [item.ast for item in schedule([t.uop for t in found]).items]
    return [lower(optimize(k, HOST), TARGET) for k in kernels if chain_of(k) is not None]


def test_tiles_are_asked_for_when_products_have_been_started() -> None:
    """Copies are many instructions: units multiply meanwhile. Where the last products of a step run on (rows
    of 64, forwards), they are waited for before; rows of 128 have others who ask, forwards."""
    for code in (*chains(256, 64)[1:], *chains(256, 128)[1:]):
        body = code.src[next(i for i, n in enumerate(code.src) if n.op is Ops.RANGE) :]
        steps = [n for n in body if n.op in (Ops.ASYNC_COPY, Ops.ASYNC_COMMIT, Ops.ASYNC_WAIT)]
        copies = [i for i, n in enumerate(steps) if n.op is Ops.ASYNC_COPY]
        products = [i for i, n in enumerate(steps) if isinstance(n.arg, Products)]
        first_wait = next(i for i in products if steps[i].op is Ops.ASYNC_WAIT)
        assert copies and products[0] < copies[0] and copies[-1] < first_wait


def test_the_loop_of_products_is_written_once() -> None:
    """It reads statistics of rows from shared memory, but adds none of them up."""
    texts = [render(code, "k", 12).text for code in chains(2048, 64)]
    assert all("wgmma.mma_async" in text and "for (" in text for text in texts)
    assert not any("#pragma unroll" in text for text in texts)


def test_registers_for_one_more_block() -> None:
    """Both gradients of 64 columns, scores and slopes are 128 numbers of a thread: three blocks have room."""
    text = render(chains(2048, 64)[-1], "k", 12, 1).text
    assert "__launch_bounds__(128, 3)" in text


def test_places_in_a_tile_differ_by_a_constant() -> None:
    """What units must know of a tile is computed once; steps along its rows add to it."""
    (text,) = (render(code, "k", 12).text for code in chains(256, 128)[-1:])
    tiles = re.findall(r"= 0x\w+ull << 32 \| \(\(\(unsigned\)__cvta_generic_to_shared\((.*?)\) >> 4\)", text)
    assert len(tiles) == 40 and len(set(tiles)) < 12


def test_powers_take_one_fused_product() -> None:
    """A score is scaled and falls below its maximum in one instruction; so it does where it is masked."""
    for code in (*chains(256, 64), *chains(256, 64, causal=True)):
        exponents = [n.src[0] for n in code.src if n.op is Ops.EXP2]
        fused = [x for x in exponents if Ops.MULACC in (x.op, x.src[0].op)]
        rescaled = [x for x in exponents if x.op is Ops.SUB]
        assert fused and len(fused) + len(rescaled) == len(exponents) and len(rescaled) <= 2
