"""Contractions in the tensor graph, prices of fusion, and reductions in pieces."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from morok import Tensor, knobs
from morok.dtype import bfloat16, float32
from morok.ir.infer import shape
from morok.ir.node import UOp, toposort
from morok.ir.ops import Ops
from morok.machine.files import load
from morok.machine.grid_time import Problem, memory_clocks, product_clocks
from morok.machine.rates import LongReduce
from morok.schedule.contraction import contraction_at, memory_axis
from morok.schedule.graph.split_reductions import _in_two
from morok.schedule.schedule import schedule


def sums(x: Tensor) -> list[UOp]:
    return [n for n in toposort(x.uop) if n.op is Ops.REDUCE_AXIS]


def test_roles_of_axes() -> None:
    a, b = Tensor.empty(5, 32, 16, dtype="bfloat16"), Tensor.empty(5, 16, 64, dtype="bfloat16")
    (node,) = sums(a @ b)
    found = contraction_at(node)
    assert found is not None
    assert (found.batch, found.rows, found.columns, found.steps) == (5, 32, 64, 16)
    assert found.inputs is bfloat16 and found.output is float32
    (node,) = sums(Tensor.empty(7, 8).sum(0))
    assert contraction_at(node) is None


@pytest.mark.parametrize(
    ("make", "along"),
    [
        (lambda: Tensor.empty(64, 32).sum(0), False),
        (lambda: Tensor.empty(64, 32).sum(1), True),
        (lambda: Tensor.empty(64, 32).transpose(0, 1).sum(0), True),
        (lambda: Tensor.empty(4, 16, 32).reshape(64, 32).sum(0), False),
        (lambda: Tensor.empty(1, 64) @ Tensor.empty(64, 32), False),
        (lambda: Tensor.empty(1, 64) @ Tensor.empty(32, 64).transpose(0, 1), True),
    ],
)
def test_whether_memory_is_reduced_along_or_across(make: Callable[[], Tensor], along: bool) -> None:
    (node,) = sums(make())
    axis = memory_axis(node.src[0])
    assert axis is not None and (axis in node.arg[1]) == along


def _products(a: np.ndarray, b: np.ndarray) -> dict[str, tuple[Tensor, np.ndarray]]:
    x, y = Tensor(a), Tensor(b)
    return {
        "product": (x @ y, a @ b),
        "columns": (y.sum(0), b.sum(0)),
        "rows": (x.sum(1), a.sum(1)),
        "both": (x.reshape(8, 16, 16).sum((0, 2)), a.reshape(8, 16, 16).sum((0, 2))),
        "largest": (y.max(0), b.max(0)),
        "a bias after": ((x @ y + 1.0).relu(), np.maximum(a @ b + 1, 0)),
    }


@pytest.mark.parametrize("name", ["product", "columns", "rows", "both", "largest", "a bias after"])
def test_pieces_give_the_same(name: str) -> None:
    """What is cut is added up in a second kernel, the pieces outermost in memory."""
    random = np.random.default_rng(0)
    a, b = random.standard_normal((8, 256)), random.standard_normal((256, 16))
    with knobs.override(SPLIT_REDUCE=64):
        got, want = _products(a.astype(np.float32), b.astype(np.float32))[name]
        assert len(schedule([got.uop]).items) == 2
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-4, atol=1e-4)


def test_times_of_a_grid() -> None:
    """More of anything takes longer; what is computed on the way slows a unit down; few blocks move less."""
    machine = load("sm_90")

    def clocks(m: int, n: int, k: int, plain: bool = True) -> float:
        return product_clocks(Problem(m, n, 1, k, 2, 0.0, 2, 0), bfloat16, float32, machine, plain)

    base = clocks(4096, 4096, 4096)
    assert clocks(4096, 4096, 8192) > 1.5 * base and clocks(8192, 4096, 4096) > 1.5 * base
    assert clocks(4096, 4096, 4096, plain=False) > base
    assert memory_clocks(1 << 20, 1, machine) == pytest.approx(132 * memory_clocks(1 << 20, 132, machine))
    slow = product_clocks(Problem(4096, 4096, 1, 4096, 4, 0.0, 4, 0), float32, float32, machine)
    assert slow > 4 * base  # threads, where no unit may be used


@pytest.mark.parametrize(("rows", "kernels"), [(8, 2), (64, 1)])
def test_few_rows_of_a_norm_are_memory_before_a_product(rows: int, kernels: int) -> None:
    """A processor multiplies a few rows as they lie; many are packed, and normalised meanwhile."""
    x, w = (Tensor.empty(*s, device="CPU") for s in ((rows, 576), (1536, 576)))
    assert len(schedule([x.rms_norm().linear(w).uop]).items) == kernels


@pytest.mark.parametrize(
    ("columns", "memories", "kernels"), [(2048, 2, 2), (2048, 1, 1), (8, 2, 2), (1, 2, 1)]
)
def test_what_is_made_of_several_memories_is_memory_before_a_product(
    columns: int, memories: int, kernels: int
) -> None:
    """Queries that are turned by tables of cosines and sines: tiles would turn them again for all columns."""
    heads, rows, steps = 9, 512, 64
    x, w = (Tensor.empty(*s, device="CPU") for s in ((heads, rows, steps), (heads, columns, steps)))
    table = Tensor.empty(*((rows, steps) if memories > 1 else (steps,)), device="CPU")
    assert len(schedule([((x * table) @ w.transpose(1, 2)).uop]).items) == kernels


@pytest.mark.parametrize(
    ("rows", "widths", "columns", "kernels"),
    [
        (256, (256, 256), 256, 2),
        (300, (100, 60), 50, 2),
        (300, (30,) * 5, 50, 2),
        (256, (256, 256), 4, 2),
        (256, (256, 256), 1, 1),
    ],
)
def test_what_is_joined_is_memory_before_a_product(
    rows: int, widths: tuple[int, ...], columns: int, kernels: int
) -> None:
    """Each element is guarded, so that no vector holds it: for all columns but a few it is copied first."""
    parts = [Tensor.empty(rows, n, device="CPU") for n in widths]
    w = Tensor.empty(sum(widths), columns, device="CPU")
    assert len(schedule([(Tensor.cat(*parts, dim=1) @ w).uop]).items) == kernels


def test_one_row_of_a_norm_is_computed_with_its_product() -> None:
    """Nothing is packed there, and a weight is as long as the row."""
    x, scale, w = (Tensor.empty(*s, device="CPU") for s in ((1, 576), (576,), (4096, 576)))
    assert len(schedule([(x * scale).linear(w).uop]).items) == 1


def test_a_product_that_is_read_in_two_places_is_memory() -> None:
    """Rotated pairs: two products in one kernel are no product that could be tiled."""
    x, w = (Tensor.empty(*s, device="CPU") for s in ((21, 576), (576, 576)))
    y = x.linear(w).reshape(21, 288, 2)
    a, b = y[:, :, 0], y[:, :, 1]
    result = (a * 0.5 - b).stack(a + b * 0.5, dim=-1)
    assert len(schedule([result.uop]).items) == 2


@pytest.mark.parametrize("device", ["CPU", "EMULATOR"])
@pytest.mark.parametrize("shape", [(3, 0, 2), (4, 8, 0), (0, 4, 8)])
def test_nothing_has_no_price(shape: tuple[int, ...], device: str) -> None:
    """Reductions and products of no rows, no steps and no columns are planned like others."""
    x = np.zeros(shape, np.float32)
    with knobs.override(DEVICE=device):
        np.testing.assert_array_equal(
            Tensor(x).exp().sum(0).exp().sum(1).numpy(), np.exp(np.exp(x).sum(0)).sum(1)
        )
        product = Tensor(x).square().mean(-1, keepdim=True) * Tensor(x)
        assert (product @ Tensor(np.ones((shape[-1], 5), np.float32))).numpy().sum() == 0


@pytest.mark.parametrize("steps", [256, 200, 300, 40])
def test_pieces_of_a_product_begin_where_a_tile_does(steps: int) -> None:
    """At most four, of whole tiles of 64 steps; the last goes on with zeros. Less than a tile has none."""
    random = np.random.default_rng(steps)
    a, b = (random.integers(-4, 5, s).astype(np.float32) for s in ((6, steps), (steps, 7)))
    product = Tensor(a) @ Tensor(b)
    (node,) = sums(product)
    found = _in_two(node, LongReduce(0, 0, 4 * 6 * 7), 64)
    cut = [n for n in toposort(found) if n.op is Ops.REDUCE_AXIS]
    lengths = sorted(math.prod(shape(n.src[0])[axis] for axis in n.arg[1]) for n in cut)  # type: ignore[index]
    assert lengths == {256: [4, 64], 200: [4, 64], 300: [3, 128], 40: [4, 10]}[steps]
    np.testing.assert_array_equal(product._new(found).numpy().reshape(6, 7), a @ b)


PARTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "an edge": lambda x, w: (x @ w).pad(((1, 0), (0, 3))),
    "a row before": lambda x, w: w[:1].cat(x @ w),
    "side by side": lambda x, w: (x @ w).stack(x @ (w + 1.0), dim=1),
    "slices": lambda x, w: (x @ w)[:, :2].exp().cat((x @ w)[:, 2:], dim=1),
    "a sum of eight": lambda x, w: (x.reshape(8, -1, x.shape[1]) @ w).sum(0),
}


@pytest.mark.parametrize("machine", ["neoverse-n1", "avx512", "sm_90"])
@pytest.mark.parametrize("name", PARTS)
def test_a_product_keeps_its_tile_where_a_part_of_the_outputs_has_it(name: str, machine: str) -> None:
    """Every kernel with a product stores that product alone: outputs that all want the same."""
    grid = machine == "sm_90"
    with knobs.override(MACHINE=machine, DEVICE="EMULATOR" if grid else "CPU"):
        x, w = (Tensor.empty(1024, 1024, dtype="bfloat16" if grid else "float32") for _ in range(2))
        items = schedule([PARTS[name](x, w).uop]).items
    loops = [[r for r in toposort(i.ast) if r.op is Ops.RANGE and r.src[0].arg >= 512] for i in items]
    assert [len(found) for found in loops].count(3) >= 1  # rows, columns, steps
    for item, found in zip(items, loops, strict=True):
        if len(found) == 3:
            assert not any(n.op is Ops.WHERE for n in toposort(item.ast))
            assert sorted(int(r.src[0].arg) for r in found)[-1] == 1024


@pytest.mark.parametrize("scale", [lambda x: x.mean(1, keepdim=True), lambda x: x.softmax(1)[:, :1]])
def test_a_row_statistic_is_memory_beside_a_product_of_a_gpu(scale: Callable[[Tensor], Tensor]) -> None:
    """No unit multiplies in a kernel with another reduction."""
    with knobs.override(MACHINE="sm_90", DEVICE="EMULATOR"):
        x, w = (Tensor.empty(1024, 1024, dtype="bfloat16") for _ in range(2))
        for y in ((x @ w) * scale(x), scale(x) * (x @ w)):  # whichever is computed first
            last = schedule([y.uop]).items[-1]
            assert sum(n.op is Ops.REDUCE for n in toposort(last.ast)) == 1


@pytest.mark.parametrize("device", ["CPU", "EMULATOR"])
def test_a_table_of_an_expensive_function_is_computed_once(device: str) -> None:
    """Sines of positions alone, as in a transform of signals, are memory before a product with many rows."""
    with knobs.override(DEVICE=device):
        angles = Tensor.arange(256).unsqueeze(1) * Tensor.arange(256) * 0.1
        items = schedule([(Tensor.empty(512, 256) @ angles.sin()).uop]).items
    assert [any(n.op is Ops.SIN for n in toposort(i.ast)) for i in items] == [True, False]
    assert not any(n.op is Ops.REDUCE for n in toposort(items[0].ast))


def test_what_is_made_of_a_sum_in_pieces_stays_narrow_before_products() -> None:
    """A gradient that came through a vocabulary: units multiply it as it was rounded, and it is kept once."""
    with knobs.override(MACHINE="sm_90"):
        logits, head, more, left, right = (
            Tensor.empty(*s, dtype="bfloat16", device="EMULATOR")
            for s in ((3840, 40000), (40000, 1280), (3840, 1280), (1280, 3456), (3840, 3456))
        )
        gradient = logits @ head + more
        items = schedule([(gradient @ left).uop, (gradient.T @ right).uop]).items
    products = [item.ast for item in items if (3456 in (shape_of(item.ast)))]
    assert len(products) == 2
    for ast in products:
        memory = [n.dtype for n in toposort(ast) if n.op is Ops.DEFINE_GLOBAL]
        assert all(str(dtype).startswith("ptr<bfloat16") for dtype in memory)


def shape_of(ast: UOp) -> list[int]:
    """The sizes of a kernel's loops."""
    return [int(n.src[0].arg) for n in toposort(ast) if n.op is Ops.RANGE]


@pytest.mark.parametrize("device", ["CPU", "EMULATOR", "PYTHON"])
def test_a_truth_may_stand_in_the_way_of_a_sum(device: str) -> None:
    """Whether there is a value is not whether it is true."""
    a = np.array([[3, 1.25, 0], [-2, -1.5, -3.75]], np.float32)
    x, truth = Tensor(a, device=device), Tensor(np.array([[True], [True]]), device=device).max()
    found = (-(x.cat(x, x, dim=0) + truth)).argmax()
    assert found.item() == (-(np.concatenate([a, a, a]) + 1)).argmax()
