"""Clusters: neighbouring blocks that share tiles. Against NumPy, on an emulator that looks closely."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from morok import Tensor
from morok.codegen.pipeline import lower
from morok.errors import DeviceError
from morok.ir.matrix import shared_layout
from morok.ir.node import UOp, make, toposort
from morok.ir.ops import Ops
from morok.machine.grid_time import EPILOGUE, PRODUCER, Problem, Sharing, best_sharing
from morok.optimize.actions.table import apply_all, can
from morok.optimize.heuristics.apply import optimize
from morok.optimize.loops import loops_of
from morok.optimize.record import Opt, applied
from morok.render.cuda.kernel import render
from tests.gpu.kernels import cubin
from tests.gpu.products import HOST, TARGET, close, emulate, execute, kernel_of, left_first, memory_of
from tests.gpu.test_warp_specialize import built
from tests.optimize.plans import Planned, an_h200, empty, planned

assert HOST.products is not None
# few multiprocessors, so that blocks stay; a second cache that is slow to ask, so that all tiles are shared
FOUR = replace(HOST, cores=4, products=replace(HOST.products, line_rates=(0.01, 0.01)))

ORDERS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "NN": lambda a, b: a @ b, "NT": lambda a, b: a @ b.T,
    "TN": lambda a, b: a.T @ b, "TT": lambda a, b: a.T @ b.T,
}  # fmt: skip


def sides(order: str, m: int, k: int, n: int) -> tuple[tuple[int, int], tuple[int, int]]:
    return ((m, k) if order[0] == "N" else (k, m)), ((k, n) if order[1] == "N" else (n, k))


def names(ast: UOp) -> list[str]:
    return [opt.name for opt in applied(ast)]


def check(order: str, shape: tuple[int, int, int], roles: int, tile: tuple[int, int]) -> UOp:
    m, k, n = shape
    left, right = sides(order, m, k, n)
    ast = kernel_of(ORDERS[order], left, right)
    kernel = built(ast, roles, tile, FOUR)
    arrays, types = memory_of(ast)
    got = execute(lower(kernel, TARGET), arrays, types)
    first, second = (1, 2) if left_first(ast) else (2, 1)
    a, b = arrays[first].reshape(left).astype(float), arrays[second].reshape(right).astype(float)
    close(got, (a if order[0] == "N" else a.T) @ (b if order[1] == "N" else b.T), 1e-3)
    return kernel


@pytest.mark.parametrize("roles", [PRODUCER, EPILOGUE], ids=["producer", "epilogue"])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("shape", [(512, 128, 256), (200, 136, 264), (640, 72, 136)], ids=str)
def test_products_of_any_size(shape: tuple[int, int, int], order: str, roles: int) -> None:
    kernel = check(order, shape, roles, (128, 128))
    assert {"CLUSTER", "WARP_SPECIALIZE"} <= set(names(kernel))


def test_an_odd_number_of_tiles() -> None:
    """Seven rows of tiles, and three steps of a ring: what is left over are rows that nobody stores."""
    assert "CLUSTER" in names(check("NT", (872, 200, 136), PRODUCER, (128, 128)))


@pytest.mark.parametrize("order", ["NN", "NT"])
def test_wide_tiles(order: str) -> None:
    """Four panels, or one of 256 rows."""
    assert "CLUSTER" in names(check(order, (384, 136, 776), PRODUCER, (128, 256)))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("shape", [(264, 72, 264), (512, 96, 136)], ids=str)
def test_high_tiles(shape: tuple[int, int, int], order: str) -> None:
    """256 rows are more than 128 columns: blocks side by side share them, and there may be an odd number."""
    kernel = check(order, shape, PRODUCER, (256, 128))
    left = 1 if left_first(kernel_of(ORDERS[order], *sides(order, *shape))) else 2
    assert (sharers(kernel, left), sharers(kernel, 3 - left)) == (2, 1)


def sharers(kernel: UOp, number: int) -> int:
    """In how many blocks the tiles of an operand are the same."""
    (found,) = (
        how.blocks
        for node in toposort(kernel)
        if (how := shared_layout(node)) is not None and how.box is not None
        if any(n.op is Ops.DEFINE_GLOBAL and n.arg == number for n in toposort(node.src[0]))
    )
    return found


def test_batches() -> None:
    ast = kernel_of(lambda a, b: a @ b, (3, 256, 72), (3, 72, 136))
    kernel = built(ast, PRODUCER, (128, 128), FOUR)
    assert {"CLUSTER", "PERSISTENT"} <= set(names(kernel))
    arrays, types = memory_of(ast)
    got = execute(lower(kernel, TARGET), arrays, types)
    a, b = arrays[1].reshape(3, 256, 72).astype(float), arrays[2].reshape(3, 72, 136).astype(float)
    close(got, a @ b, 1e-3)


def test_images() -> None:
    """A walk through images is shared by its channels, weights by their rows."""
    ast = kernel_of(lambda x, w: x.conv2d(w, padding=1), (2, 64, 16, 16), (256, 64, 3, 3))
    kernel = optimize(ast, FOUR)
    arrays, types = memory_of(ast)
    got = execute(lower(kernel, TARGET), arrays, types)
    flat = {a.size: a for a in arrays[1:]}
    x, w = flat[2 * 64 * 256].reshape(2, 64, 16, 16), flat[256 * 64 * 9].reshape(256, 64, 3, 3)
    wide = np.pad(x.astype(float), ((0, 0), (0, 0), (1, 1), (1, 1)))
    want = sum(
        np.einsum("bcij,oc->boij", wide[:, :, i : i + 16, j : j + 16], w[:, :, i, j].astype(float))
        for i in range(3)
        for j in range(3)
    )
    close(got, np.asarray(want), 2e-3)


# --- what the emulator sees


def kernel() -> tuple[UOp, UOp]:
    ast = kernel_of(ORDERS["NN"], (512, 328), (328, 264))
    return ast, built(ast, PRODUCER, (128, 128), FOUR)


def changed(linear: UOp, change: Callable[[UOp], UOp | None]) -> UOp:
    """The list with some instructions replaced; None leaves one out."""
    done: dict[UOp, UOp] = {}
    out = []
    for n in linear.src:
        new = change(n.replace(tuple(done.get(s, s) for s in n.src)))
        done[n] = new if new is not None else n
        if new is not None:
            out.append(new)
    return linear.replace(tuple(out))


def _arrives_at_home(n: UOp) -> UOp | None:
    if n.op is Ops.MBARRIER and n.arg.what == "arrive":
        return make(n.op, n.dtype, n.src, replace(n.arg, blocks=1))
    return n


def _copies_for_itself(n: UOp) -> UOp | None:
    if n.op is Ops.DEFINE_TENSOR_MAP and n.arg.blocks > 1:
        return make(n.op, n.dtype, n.src, replace(n.arg, blocks=1))
    return n


def _expects_few(n: UOp) -> UOp | None:
    if n.op is Ops.MBARRIER and n.arg.what == "init" and n.arg.amount > 1:
        return make(n.op, n.dtype, n.src, replace(n.arg, amount=n.arg.amount // 2))
    return n


def _is_early(n: UOp) -> UOp | None:
    if n.op is Ops.BARRIER and n.arg is not None:
        return make(n.op, n.dtype, n.src)
    return n


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_arrives_at_home, "deadlock"),
        (_copies_for_itself, "deadlock"),
        (_expects_few, "everybody is already|overwrites"),
        (_is_early, "nobody has set up|blocks of a cluster"),
    ],
    ids=["arrives at home", "copies for itself", "expects few", "is early"],
)
def test_what_is_left_out_is_seen(change: Callable[[UOp], UOp | None], said: str) -> None:
    ast, good = kernel()
    linear = lower(good, TARGET)
    arrays, types = memory_of(ast)
    assert np.isfinite(emulate(linear, arrays, types)).all()
    with pytest.raises(DeviceError, match=said):
        emulate(changed(linear, change), arrays, types)


# --- the text, the action, the choice


def test_text() -> None:
    _, good = kernel()
    program = render(lower(good, TARGET), "k")
    assert "__cluster_dims__(2, 1, 1)" in program.text and ".multicast::cluster" in program.text
    assert program.text.count("barrier.cluster.wait") == 2  # before others are told something, and at the end
    assert program.grid[0][0] == 2
    assert cubin(program.text, "sm_90a")


def test_refused() -> None:
    ast, good = kernel()
    before = [o for o in applied(good) if o.name not in ("CLUSTER", "PERSISTENT")]
    (chosen,) = (o for o in applied(good) if o.name == "CLUSTER")
    ready = apply_all(ast, before, FOUR)
    reasons = {
        "into each other's": can(ready, chosen, replace(FOUR, cluster=1)),
        "no loop over tiles": can(ready, Opt("CLUSTER", 99), FOUR),
        "roles": can(ast, chosen, FOUR),
        "already": can(good, chosen, FOUR),
    }
    for word, reason in reasons.items():
        assert reason is not None and word in reason, (word, reason)
    assert loops_of(ready).by_number[chosen.axis] is not None


def test_a_machine_with_fewer_multiprocessors_than_a_cluster_has_blocks() -> None:
    """A search asks what would be done there, too."""
    ast = kernel_of(lambda a, scale, b: (a * scale) @ b, (256, 200), (256, 1), (200, 136))
    assert "TC" in names(optimize(ast, replace(HOST, cores=1)))


def plans(m: int, k: int, n: int) -> list[Planned]:
    with an_h200() as machine:
        return planned([(empty(m, k) @ empty(k, n)).uop], machine)


@pytest.mark.parametrize("size", [5000, 3016, 6000, 11272])
def test_rows_that_begin_within_a_line_are_shared(size: int) -> None:
    """Rows of 10,000 bytes begin within a line of the second cache, and each is two requests."""
    (found,) = plans(size, 5000, size)
    assert "CLUSTER" in found.names


@pytest.mark.parametrize("size", [4096, 5120, 8192])
def test_rows_that_are_whole_lines_are_not(size: int) -> None:
    (found,) = plans(size, size, size)
    assert "CLUSTER" not in found.names and "WARP_SPECIALIZE" in found.names


def test_rows_of_tiles_are_rounded_up_to_groups() -> None:
    """47 rows of tiles, a prime number, had no groups that share the cache."""
    (found,) = plans(6000, 4096, 4096)
    tiles = [o for o in found.names if o == "TILE"]
    assert len(tiles) == 4, found.names


def test_price() -> None:
    """Blocks share tiles where the lines of the second cache are what takes longest."""
    products = HOST.products
    assert products is not None
    shape = next(s for s in products.group_tiles if (s.rows, s.columns) == (128, 256))
    rate = products.unit_rate / 2
    for lines, want in ((1.0, 1), (1.875, 2)):
        asked: Any = Problem(5000, 5000, 1, 5000, 2, rate, 2, 128, row_lines=lines, column_lines=lines)
        assert best_sharing(asked, shape, HOST, PRODUCER).blocks == want


def test_price_of_what_is_shared() -> None:
    """Of a tile of 256 rows and 128 columns the rows: they are more lines, unless each of them is but one."""
    products = HOST.products
    assert products is not None
    shape = next(s for s in products.group_tiles if (s.rows, s.columns) == (256, 128))
    for row, column, want in ((1.875, 1.0, True), (1.875, 1.875, True), (0.7, 1.875, False)):
        asked: Any = Problem(
            5120, 5120, 1, 5120, 2, products.unit_rate, 2, 128, row_lines=row, column_lines=column
        )
        assert best_sharing(asked, shape, HOST, PRODUCER) == Sharing(2, want)
