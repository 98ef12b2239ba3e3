"""Tiles that a mask hides are skipped: as many as there are, and the results are the same. Against NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from morok import Tensor
from morok.codegen.pipeline import lower
from morok.ir.infer import closed_ranges
from morok.ir.node import UOp, const, toposort
from morok.ir.ops import AxisKind, Ops
from morok.optimize.actions.table import can
from morok.optimize.heuristics.apply import optimize
from morok.optimize.record import Opt, applied
from morok.rewrite.engine import substitute
from morok.schedule.schedule import schedule
from morok.symbolic.sets import simplify
from tests.gpu.kernels import DEVICE
from tests.gpu.products import HOST, close
from tests.gpu.test_attention import heads, inputs, reference, values

Mask = Callable[[Any, Any], Any]
ROWS, KEYS = 256, 384

MASKS: dict[str, Mask] = {
    "causal": lambda i, j: j <= i,
    "strictly before": lambda i, j: j < i + 1,
    "causal from the end": lambda i, j: j <= i + (KEYS - ROWS),
    "shifted": lambda i, j: j < i - 70 + 128,
    "reversed": lambda i, j: j >= i,
    "window": lambda i, j: (j <= i + 16) & (j > i - 80),
    "band to the right": lambda i, j: (j >= i + 10) & (j < i + 140),
    "steep": lambda i, j: j < i * 2 + 1,
    "a corner": lambda i, j: j + 200 < i,
}
KEPT: dict[str, Mask] = {  # nothing is hidden by one comparison alone
    "prefix": lambda i, j: (j < 40) | (j <= i),
    "other": lambda i, j: (i + j) % 3 > 0,
}


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> Tensor:
    i = Tensor.arange(ROWS, device=DEVICE).reshape(ROWS, 1)
    j = Tensor.arange(KEYS, device=DEVICE).reshape(1, KEYS)
    return q.scaled_dot_product_attention(k, v, mask(i, j))


def tensors() -> tuple[list[Tensor], list[Any]]:
    return inputs(*heads(ROWS, KEYS, 16, 16))


def dense(mask: Mask) -> Any:
    return mask(*np.ogrid[:ROWS, :KEYS])


def planned(result: Tensor) -> tuple[UOp, UOp]:
    (item,) = schedule([result.uop]).items
    return item.ast, optimize(item.ast, HOST)


def tiles(kernel: UOp) -> list[int]:
    """How many tiles along the keys each row of tiles goes through."""
    order = toposort(kernel)
    (loop,) = (
        r for r in order if r.op is Ops.RANGE and r.arg[1] is AxisKind.REDUCE and r.src[0].op is not Ops.CONST
    )
    (rows,) = (r for r in toposort(loop.src[0]) if r.op is Ops.RANGE)
    counts = []
    for n in range(int(rows.src[0].arg)):
        found = simplify(substitute(loop.src[0], {rows: const(rows.dtype, n)}))
        assert found.op is Ops.CONST
        counts.append(int(found.arg))
    return counts


def sides(kernel: UOp) -> tuple[int, int]:
    """Rows and keys of a tile."""
    found = [opt for opt in applied(kernel) if opt.name == "TILE"]
    return found[0].amount, found[1].amount


@pytest.mark.parametrize("name", MASKS)
def test_as_many_as_the_mask_hides(name: str) -> None:
    q, k, v = tensors()[0]
    _, kernel = planned(attention(q, k, v, MASKS[name]))
    assert "SKIP" in [opt.name for opt in applied(kernel)]
    rows, keys = sides(kernel)
    mask = dense(MASKS[name])
    blocks = mask.reshape(ROWS // rows, rows, KEYS // keys, keys).any((1, 3))
    want = blocks.sum(1).tolist()
    grows = want == sorted(want) and want[0] < want[-1]
    assert tiles(kernel) == (want[::-1] if grows else want)  # backwards where there is more and more to do


def test_who_works_longest_starts_first() -> None:
    """Blocks start in the order of the grid; rows of tiles along which there is more to do come backwards,
    and change last in it."""
    q, k, v = inputs(*heads(ROWS, KEYS, 16, 16, 2))[0]
    _, kernel = planned(attention(q, k, v, MASKS["causal"]))
    assert tiles(kernel) == sorted(tiles(kernel), reverse=True)
    code = lower(kernel, HOST).src
    grid = [n for n in code if n.op is Ops.SPECIAL and n.arg.startswith("gidx")]
    (loop,) = (n for n in code if n.op is Ops.RANGE and n.src[0].op is not Ops.CONST)
    (rows,) = (n for n in toposort(loop.src[0]) if n.op is Ops.SPECIAL)
    assert rows.arg == max(n.arg for n in grid) and len(grid) > 1


@pytest.mark.parametrize("name", KEPT)
def test_a_mask_that_hides_no_tile_for_sure(name: str) -> None:
    q, k, v = tensors()[0]
    ast, kernel = planned(attention(q, k, v, KEPT[name]))
    assert "SKIP" not in [opt.name for opt in applied(kernel)]
    assert "no mask hides" in str(can(ast, Opt("SKIP", _keys(ast)), HOST))


def _keys(ast: UOp) -> int:
    sums = [n for n in toposort(ast) if n.op is Ops.REDUCE]
    return int(closed_ranges(sums[-1])[0].arg[0])


@pytest.mark.parametrize("name", ["causal", "causal from the end", "window", "steep", "reversed", "prefix"])
def test_results(name: str) -> None:
    (q, k, v), arrays = tensors()
    mask = {**MASKS, **KEPT}[name]
    close(values(attention(q, k, v, mask)), reference(*arrays, mask=dense(mask)), 1e-3)


@pytest.mark.parametrize("name", ["causal", "window", "prefix"])
def test_a_mask_that_is_added(name: str) -> None:
    """0 and -inf, as torch hands masks on, and another condition beside it: the same tiles are left out."""
    (q, k, v), arrays = tensors()
    hides = {**MASKS, **KEPT}[name]
    words = np.arange(KEYS) // 300  # two texts in a row
    own = Tensor(words, device=DEVICE).realize()

    def added(i: Any, j: Any) -> Any:
        shown = hides(i, j) & (own.reshape(1, KEYS) == own[:ROWS].reshape(ROWS, 1))
        return shown.where(0.0, -np.inf).cast(q.dtype)

    _, kernel = planned(attention(q, k, v, added))
    names = [opt.name for opt in applied(kernel)]
    assert ("SKIP" in names) == (name in MASKS)
    mask = dense(hides) & (words[None] == words[:ROWS, None])
    close(values(attention(q, k, v, added)), reference(*arrays, mask=mask), 1e-3)


def test_rows_that_see_nothing_are_none() -> None:
    """0 / 0, whether their tiles are computed or not."""
    (q, k, v), arrays = tensors()
    found = values(attention(q, k, v, lambda i, j: j <= i - 100))
    mask = dense(lambda i, j: j <= i - 100)
    alive = mask.any(1)
    assert np.isnan(found[~alive]).all()
    close(found[alive], reference(*arrays, mask=mask)[alive], 1e-3)


def test_what_is_refused() -> None:
    q, k, v = tensors()[0]
    ast, _ = planned(attention(q, k, v, MASKS["causal"]))
    assert can(ast, Opt("SKIP", 99), HOST) == "there is no loop 99"
    assert "no loop of a reduction" in str(can(ast, Opt("SKIP", 0), HOST))


@pytest.mark.parametrize("name", ["causal", "causal from the end", "window", "steep", "reversed"])
def test_a_mask_is_asked_in_tiles_at_its_edge_alone(name: str) -> None:
    """Rows are compared with keys under a branch that all threads of a block take, where tiles are hidden in
    part, and nowhere else."""
    q, k, v = tensors()[0]
    _, kernel = planned(attention(q, k, v, MASKS[name]))
    code = lower(kernel, HOST).src
    branches = [n for n in code if n.op is Ops.IF and any(r.op is Ops.RANGE for r in toposort(n.src[0]))]
    assert branches and len({n.src[0] for n in branches}) == 1
    depth, plain = 0, []
    for n in code:
        depth += (n.op is Ops.IF) - (n.op is Ops.ENDIF)
        found = {x.op for x in toposort(n.src[0])} if n.op is Ops.WHERE and not depth else set()
        if Ops.RANGE in found and Ops.LOAD not in found:
            plain.append(n)
    assert not plain  # no choice in the loop that depends on where the tile lies
    rows, keys = sides(kernel)
    mask = dense(MASKS[name]).reshape(ROWS // rows, rows, KEYS // keys, keys)
    some, every = mask.any((1, 3)), mask.all((1, 3))
    (block,) = {n for n in toposort(branches[0].src[0]) if n.op is Ops.SPECIAL}
    (step,) = {n for n in toposort(branches[0].src[0]) if n.op is Ops.RANGE}
    grows = list(some.sum(1)) == sorted(some.sum(1)) and some[0].sum() < some[-1].sum()
    for row in range(ROWS // rows):
        here = ROWS // rows - 1 - row if grows else row
        seen = np.flatnonzero(some[here])
        for count, tile in enumerate(seen):
            at = {block: const(block.dtype, row), step: const(step.dtype, count)}
            asked = simplify(substitute(branches[0].src[0], at))
            assert asked.op is Ops.CONST and bool(asked.arg) == (not every[here, tile])


def test_one_step_that_is_left() -> None:
    """All rows lie in the first tile of keys: there is no loop any more, and nothing is filled ahead."""
    (q, k, v), arrays = inputs(*heads(64, 384, 64, 64))
    mask = np.arange(384)[None] <= np.arange(64)[:, None]
    found = values(q.scaled_dot_product_attention(k, v, is_causal=True))
    close(found, reference(*arrays, mask=mask), 1e-3)
