"""Programs of real models and what their heavy kernels must have, planned for an H200 without one.

The rows say what follows from the program: how many products a unit must have, how many kernels are enough.
Nothing is run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import pytest

from morok import Tensor
from morok.ir.node import UOp, make, toposort
from morok.ir.ops import Ops
from morok.machine.machine import Machine
from morok.nn import functional
from morok.optimize.contraction import find_contraction
from morok.optimize.roofline import kernel_clocks
from morok.schedule import schedule as module
from tests.optimize.plans import HEAVY, an_h200, empty, planned
from tests.optimize.programs import OFTEN as ALWAYS
from tests.optimize.programs import programs

Results = Sequence[Tensor]


class Row(NamedTuple):
    """A program: how many products there are for units, and how many kernels are enough."""

    make: Callable[[], Results]
    units: int
    most: int
    tiled: int = 0  # products that no unit takes, and that need a tile
    least: int = 1  # 2: the sum must be split, for all of the machine to have work


def x(*shape: int, dtype: str = "bfloat16") -> Tensor:
    return empty(*shape, dtype=dtype)


def linear(m: int = 4096, k: int = 1024, n: int = 4096, dtype: str = "bfloat16") -> Tensor:
    return x(m, k, dtype=dtype).linear(x(n, k, dtype=dtype), x(n, dtype=dtype))


def both(f: Callable[[Tensor], Tensor], dtype: str = "bfloat16") -> Results:
    y = linear(dtype=dtype)
    return y, f(y)


def grads(y: Tensor, *targets: Tensor) -> Results:
    return y.gradient(*targets, gradient=empty(*map(int, y.shape), dtype=str(y.dtype)))


def mlp(dtype: str = "bfloat16") -> Results:
    a, w, b, v = x(4096, 768), x(3072, 768), x(3072), x(768, 3072)
    y = a.linear(w, b).gelu().linear(v)
    return grads(y, a, w, b, v)


def gelu_gradient(kind: str) -> Results:
    h, v = x(4096, 3072), x(768, 3072)
    return grads(h.gelu(kind).linear(v), h, v)


def norm_linear(name: str) -> Results:
    a, w = x(4096, 2048), x(2048, 2048)
    y = a.rms_norm() if name == "rms" else a.layer_norm(-1)
    return (y.linear(w),)


def scaled_by_a_mean() -> Results:
    a = x(4096, 2048)
    return (a.linear(x(2048, 2048)) * a.mean(1, keepdim=True),)


def cut_beside_a_pool() -> Results:
    """Tokens at half the rate, as of speech: one place of the convolution is left out."""
    y = x(8, 768, 1, 99).conv2d(x(768, 48, 1, 128), groups=16, stride=(1, 2), padding=(0, 64)).gelu()
    return (y[..., :49] + x(8, 768, 1, 98).avg_pool2d((1, 2)),)


def far_apart() -> Results:
    """The gradient of a window whose offsets are further apart than the picture is wide, behind a relu."""
    a, g, y = x(8, 2048, 32, 32), x(8, 256, 32, 32), x(8, 256, 32, 32)
    z = a.conv2d(x(256, 2048, 3, 3), padding=36, dilation=36)
    return z.gradient(a, gradient=(y > 0).where(g, 0))


def after_a_token() -> Results:
    return (x(8, 1, 768).cat(x(8, 196, 768).linear(x(768, 768)), dim=1),)


def experts() -> Results:
    weights = x(4096, 8).softmax(1).transpose(0, 1).unsqueeze(-1)
    return (((x(8, 4096, 1024) @ x(8, 1024, 1024)) * weights).sum(0),)


def norm_linear_training() -> Results:
    a, g, w = x(4096, 2048), x(2048), x(2048, 2048)
    return grads((a.rms_norm() * g).linear(w), a, g, w)


def gated(rows: int) -> Results:
    a = x(rows, 4096)
    return (a.linear(x(8192, 4096)).silu() * a.linear(x(8192, 4096)),)


def loss(training: bool) -> Results:
    logits, t = x(4096, 50257), x(4096, dtype="int32")
    y = logits.cross_entropy(t)
    return y.gradient(logits) if training else (y,)


def head_loss() -> Results:
    a, w, t = x(4096, 768), x(50304, 768), x(4096, dtype="int32")
    return a.linear(w).cross_entropy(t).gradient(a, w)


def heads() -> Results:
    g, a = x(8, 12, 1024, 64), x(8, 1024, 768)
    rows = g.transpose(1, 2).reshape(8192, 768)
    return (rows.transpose(0, 1) @ a.reshape(8192, 768),)


def into_heads() -> Results:
    y = x(8, 1024, 768).linear(x(768, 768)).reshape(8, 1024, 12, 64)
    return (y.transpose(1, 2).contiguous(),)


def rotated(rows: int) -> Results:
    y = x(rows, 2048).linear(x(2048, 2048)).reshape(rows, 1024, 2)
    c, s = x(1, 1024), x(1, 1024)
    a, b = y[:, :, 0], y[:, :, 1]
    return ((a * c - b * s).stack(a * s + b * c, dim=-1).flatten(1),)


def quantised(rows: int) -> Results:
    w, s = x(4096, 4096, dtype="int8"), x(4096)
    return (x(rows, 4096) @ (w.cast("bfloat16") * s),)


def attended(causal: bool = False, training: bool = True, width: int = 64, **how: Tensor) -> Results:
    """Training takes attention, statistics, the share of each row, and a kernel for each operand."""
    q, k, v = (x(4, 16, 2048, width) for _ in range(3))
    y = q.scaled_dot_product_attention(k, v, is_causal=causal, **how)
    return (y, *grads(y, q, k, v)) if training else (y,)


def self_attention(width: int = 768, heads: int = 12) -> Results:
    """Of GPT-2, from the packed projection to the gradient of its weights."""
    a, w, p = x(8, 1024, width), x(3 * width, width), x(width, width)
    packed = a.linear(w).reshape(8, 1024, 3, heads, width // heads)
    q, k, v = (packed[:, :, i].transpose(1, 2) for i in range(3))
    mixed = q.scaled_dot_product_attention(k, v, is_causal=True).transpose(1, 2)
    return grads(mixed.reshape(8, 1024, width).linear(p), a, w, p)


def shared_keys() -> Results:
    q, k, v = x(4, 8, 4, 1024, 64), x(4, 8, 1, 1024, 64), x(4, 8, 1, 1024, 64)
    return (q.scaled_dot_product_attention(k, v),)


def positions(n: int = 2048) -> tuple[Tensor, Tensor]:
    at = Tensor.arange(n, device="CUDA")
    return at.reshape(n, 1), at.reshape(1, n)


def windowed() -> Results:
    i, j = positions()
    return attended(training=False, mask=(j <= i) & (j > i - 256))


def slanted() -> Results:
    """A bias that is made of positions, as in ALiBi."""
    i, j = positions()
    return attended(training=False, mask=(j - i).cast("bfloat16") * -0.5)


TABLE: dict[str, Row] = {
    # attention: one kernel forward, five and the share of rows with gradients, scores in none of them
    "attention": Row(lambda: attended(training=False), 1, 1),
    "attention, training": Row(attended, 3, 4),
    "causal attention": Row(lambda: attended(True, False), 1, 1),
    "causal attention, training": Row(lambda: attended(True), 3, 4),
    "attention of 128": Row(lambda: attended(training=False, width=128), 1, 1),
    "attention of 128, training": Row(lambda: attended(width=128), 3, 4),
    "attention in a window": Row(windowed, 1, 1),
    "attention with a slanted bias": Row(slanted, 1, 1),
    "attention with shared keys": Row(shared_keys, 1, 1),
    "self-attention of GPT-2, training": Row(self_attention, 8, 13),
    # products and what follows them: one kernel each, on a unit
    "product": Row(lambda: (x(4096, 4096) @ x(4096, 4096),), 1, 1),
    "product of transposed": Row(lambda: (x(4096, 2048).T @ x(4096, 2048),), 1, 1),
    "product f16": Row(lambda: (x(4096, 512, dtype="float16") @ x(512, 4096, dtype="float16"),), 1, 1),
    "batched product": Row(lambda: (x(16, 1024, 512) @ x(16, 512, 1024),), 1, 1),
    "odd sizes": Row(lambda: (x(1999, 1003) @ x(1003, 2001),), 1, 3, least=3),  # rows are made longer first
    "linear": Row(lambda: (linear(),), 1, 1),
    "linear, gelu": Row(lambda: (linear().gelu(),), 1, 1),
    "linear, residual": Row(lambda: (linear() + x(4096, 4096),), 1, 1),
    "linear, scaled": Row(lambda: (linear() * x(4096),), 1, 1),
    "linear, dropout mask": Row(lambda: (linear() * x(4096, 4096, dtype="bool").where(2.0, 0.0),), 1, 1),
    "linear, float32 result": Row(lambda: (linear().cast("float32"),), 1, 1),
    # several stores
    "linear and gelu": Row(lambda: both(lambda y: y.gelu()), 1, 1),
    "linear and silu": Row(lambda: both(lambda y: y.silu()), 1, 1),
    "linear and relu mask": Row(lambda: both(lambda y: y > 0), 1, 1),
    "linear and its cast": Row(lambda: both(lambda y: y.cast("float32")), 1, 1),
    "linear and tanh": Row(lambda: both(lambda y: y.tanh()), 1, 1),
    "linear and residual": Row(lambda: both(lambda y: y + x(4096, 4096)), 1, 1),
    # float32: threads have tiles, of weights that are turned first
    "float32": Row(lambda: (linear(dtype="float32"),), 0, 2, 1),
    "float32, gelu": Row(lambda: (linear(dtype="float32").gelu(),), 0, 2, 1),
    "float32 and gelu": Row(lambda: both(lambda y: y.gelu(), "float32"), 0, 2, 1),
    # what stands before a product
    "linear and a mean of its rows": Row(scaled_by_a_mean, 1, 2),
    "conv, cut, and a pool": Row(cut_beside_a_pool, 1, 2),
    "linear after a token": Row(after_a_token, 1, 2),
    "experts under a sum": Row(experts, 1, 5),
    "rms norm + linear": Row(lambda: norm_linear("rms"), 1, 2),
    "layer norm + linear": Row(lambda: norm_linear("layer"), 1, 3),
    "gelu + linear": Row(lambda: (x(4096, 4096).gelu().linear(x(4096, 4096)),), 1, 2),
    "softmax @ v": Row(lambda: (x(64, 512, 512).softmax(-1) @ x(64, 512, 512),), 1, 3),
    "scale per column": Row(lambda: (x(4096, 4096) @ (x(4096, 4096) * x(4096)),), 1, 2),
    "scale per step": Row(lambda: (x(4096, 4096) @ (x(4096, 4096) * x(4096, 1)),), 1, 2),
    "weights of 8 bits": Row(lambda: quantised(4096), 1, 2),
    "weights of 8 bits, 32 rows": Row(lambda: quantised(32), 1, 2),
    "weights in float32": Row(
        lambda: (x(4096, 4096) @ x(4096, 4096, dtype="float32").cast("bfloat16"),), 1, 2
    ),
    "gated units": Row(lambda: gated(4096), 2, 2),
    "gated units, 8 rows": Row(lambda: gated(8), 2, 2),
    "rotated pairs": Row(lambda: rotated(4096), 1, 2),
    "rotated pairs, 21 rows": Row(lambda: rotated(21), 1, 2),
    "into heads": Row(into_heads, 1, 2),
    # gradients
    "MLP training": Row(mlp, 5, 9),
    "rms norm + linear, training": Row(norm_linear_training, 2, 9),
    "weight gradient behind heads": Row(heads, 1, 2),
    "gelu with its gradient": Row(lambda: gelu_gradient("tanh"), 2, 3),
    "gelu by erf with its gradient": Row(lambda: gelu_gradient("none"), 2, 3),
    "head and loss, training": Row(head_loss, 3, 8),
    # convolutions; those of windows with a copy of images and of weights, their channels last
    "conv 3×3": Row(lambda: (x(32, 128, 56, 56).conv2d(x(128, 128, 3, 3), padding=1),), 1, 3),
    "conv 1×1": Row(lambda: (x(32, 256, 28, 28).conv2d(x(512, 256, 1, 1)),), 1, 1),
    "conv, relu": Row(lambda: (x(32, 64, 56, 56).conv2d(x(64, 64, 3, 3), padding=1).relu(),), 1, 3),
    "conv, stride 2": Row(lambda: (x(32, 128, 56, 56).conv2d(x(256, 128, 3, 3), stride=2, padding=1),), 1, 3),
    "conv, offsets far apart, training": Row(far_apart, 1, 3),
    # few outputs and long sums: in pieces, on a unit
    "long steps": Row(lambda: (x(256, 65536) @ x(65536, 256),), 1, 2, least=2),
    "long steps that no tile divides": Row(lambda: (x(184, 58664) @ x(58664, 216),), 1, 2, least=2),
    "long steps, transposed": Row(lambda: (x(65536, 128).T @ x(65536, 512),), 1, 2, least=2),
} | {name: Row(*row) for name, row in programs().items()}


def _marked(name: str) -> object:
    """A row that is planned rarely."""
    marks = [pytest.mark.slow] if name in programs() and name not in ALWAYS else []
    return pytest.param(name, marks=marks)


@pytest.mark.parametrize("name", [_marked(name) for name in TABLE])
def test_heavy_kernels_have_what_they_need(name: str) -> None:
    row = TABLE[name]
    with an_h200() as machine:
        found = planned([t.uop for t in row.make()], machine)
        assert row.least <= len(found) <= row.most, [k.names for k in found]
        heavy = [k for k in found if k.steps >= HEAVY and k.is_product]
        assert sum(k.on_unit for k in found) >= row.units, [k.names for k in found]
        assert sum(k.is_tiled and not k.on_unit for k in found) >= row.tiled
        assert all(k.on_unit or k.is_tiled for k in heavy), [k.names for k in heavy]


def test_products_are_not_computed_for_loops_that_they_do_not_have() -> None:
    """Gradients in one tensor: each is computed for its own part, not for all three."""
    with an_h200() as machine:
        found = planned([t.uop for t in self_attention()], machine)
    chains = [k.steps for k in found if len(k.reductions) > 1 and k.on_unit]
    assert len(chains) == 3 and max(chains) == 8 * 12 * 1024 * 1024 * 64


def group_norm(training: bool, conv: bool = False) -> Results:
    """Statistics of long rows are sums in two stages; whoever reads them must not add up the parts again."""
    y = x(9, 320, 32, 32)
    z = functional.silu(functional.group_norm(y, 8, x(320), x(320)))
    z = z.conv2d(x(320, 320, 3, 3), padding=1) if conv else z
    return grads(z, y) if training else (z,)


def whole_norm() -> Results:
    y = x(4, 512, 1024)
    middle, spread = y.mean((1, 2), keepdim=True), y.var((1, 2), keepdim=True)
    return ((y - middle) * (spread + 1e-5).rsqrt(),)


LONG: dict[str, Row] = {
    "group norm": Row(lambda: group_norm(False), 0, 5),
    "group norm, training": Row(lambda: group_norm(True), 0, 12),
    "norm of all but the batch": Row(whole_norm, 0, 5),
    "cross entropy": Row(lambda: loss(False), 0, 2),
    "cross entropy, training": Row(lambda: loss(True), 0, 2),
    "one row": Row(lambda: (x(1, 4096) @ x(4096, 14336),), 0, 2),
    "one row, linear": Row(lambda: (x(1, 4096).linear(x(14336, 4096)),), 0, 1),
    "one row, few columns": Row(lambda: (x(1, 16384) @ x(16384, 1024),), 0, 2),
    "column sums": Row(lambda: (x(8192, 3072).sum(0),), 0, 2),
    "column sums behind heads": Row(lambda: (x(8, 36, 1024, 64).sum((0, 2)),), 0, 2),
    "norm gradient": Row(lambda: ((x(8192, 768) * x(8192, 768)).sum(0),), 0, 2),
    "one query": Row(lambda: (x(256, 1, 8192) @ x(256, 8192, 128),), 0, 2),
    "all": Row(lambda: (x(8192, 8192).sum(),), 0, 2),
}


@pytest.mark.parametrize("name", LONG)
def test_long_reductions_have_all_of_the_machine(name: str) -> None:
    """Within a small factor of the time that memory needs; and each stage in a kernel."""
    row = LONG[name]
    with an_h200() as machine:
        found = planned([t.uop for t in row.make()], machine)
        assert len(found) <= row.most, [k.names for k in found]
        assert machine.grid is not None
        for kernel in found:
            clocks = kernel_clocks(kernel.ast, machine) - machine.grid.launch
            assert clocks <= 4 * _memory(kernel.before, machine) + machine.grid.launch, kernel.names


def test_what_is_normalised_before_a_convolution_is_no_part_of_it() -> None:
    with an_h200() as machine:
        found = planned([t.uop for t in group_norm(False, conv=True)], machine)
        products = [k for k in found if k.is_product]
        assert len(products) == 1 and products[0].on_unit and len(products[0].reductions) == 1
        assert sum(kernel_clocks(k.ast, machine) for k in found) < 3 * kernel_clocks(products[0].ast, machine)


def test_rows_are_computed_before_they_are_put_in_places() -> None:
    """The gradient of a table behind products of its rows: one pass over the rows needs them."""
    with an_h200() as machine:
        t, table = x(2048, 26, dtype="int32"), x(10000, 64, dtype="float32")
        rows = table[t]
        y = rows @ rows.transpose(1, 2)
        found = planned([g.uop for g in grads(y, table)], machine)
        puts = [k for k in found if "ATOMIC" in k.names]
        assert len(puts) == 1 and not any(k.reductions for k in puts)


def _memory(ast: UOp, machine: Machine) -> float:
    assert machine.grid is not None
    buffers = {n.arg: n.dtype for n in toposort(ast) if n.op is Ops.DEFINE_GLOBAL}
    nbytes = sum(d.size * d.elem.itemsize for d in buffers.values())  # type: ignore[attr-defined]
    return nbytes / (machine.grid.memory * machine.cores)


def test_one_query_moves_little_more_than_keys_and_values() -> None:
    """Weights and values are multiplied in the sum: what they make is as large as all values, and no row of
    a product, so that it was once taken for an operand that has to be memory."""
    with an_h200() as machine:
        q, k, v = x(8, 32, 1, 128), x(8, 32, 8192, 128), x(8, 32, 8192, 128)
        found = planned([q.scaled_dot_product_attention(k, v).uop], machine)
        assert len(found) <= 3, [kernel.names for kernel in found]
        assert machine.grid is not None
        moved = sum(_memory(kernel.before, machine) for kernel in found)
        needed = 2 * 8 * 32 * 8192 * 128 * 2 / (machine.grid.memory * machine.cores)
    assert moved <= 1.1 * needed


OFTEN = ("linear and gelu", "rms norm + linear", "cross entropy", "cross entropy, training", "column sums")


@pytest.mark.parametrize(
    "name", [n if n in OFTEN else pytest.param(n, marks=pytest.mark.slow) for n in (*TABLE, *LONG)]
)
def test_no_kernel_takes_longer_than_its_parts(name: str) -> None:
    """All kernels of a program beside those with every reduction and its operands in memory."""
    row = TABLE.get(name) or LONG[name]
    with an_h200() as machine:
        results = [t.uop for t in row.make()]
        whole, parts = (
            sum(kernel_clocks(k.ast, machine) for k in planned(roots, machine))
            for roots in (results, _in_parts(results))
        )
    assert whole <= 1.3 * parts


def _in_parts(roots: Sequence[UOp]) -> list[UOp]:
    """The graph with the results of every reduction in memory, and what a product multiplies."""
    done: dict[UOp, UOp] = {}
    for node in toposort(*roots):
        new = node.replace(tuple([done[s] for s in node.src]))
        if node.op is Ops.REDUCE_AXIS:
            new = make(Ops.CONTIGUOUS, new.dtype, (new,), None)
        done[node] = new
    return [done[root] for root in roots]


def _no_contraction(ast: UOp) -> object:
    return find_contraction(ast) if len(ast.src) == 1 else None


GATES: dict[str, tuple[str, object, str]] = {
    "scores are memory": ("morok.schedule.graph.fusion.families", lambda *_: [], "attention, training"),
    "masks are memory": (
        "morok.schedule.graph.attention.one_kernel.beside", lambda *_: set(), "attention in a window",
    ),
    "one store": (
        "morok.optimize.heuristics.gpu.matmul.find_contraction", _no_contraction, "linear and gelu",
    ),
    "tiles are lost": (
        "morok.schedule.graph.fusion.loses_its_tile", lambda *_: False, "linear and a mean of its rows",
    ),
    "sums are not cut": ("morok.schedule.graph.split_reductions._priced", lambda *_: 1, "long steps"),
    "rows wait": ("morok.schedule.graph.fusion.waiting_reason", lambda *_: None, "cross entropy"),
    "blocks are idle": (
        "morok.schedule.graph.fusion.idle_reason", lambda *_: None, "cross entropy, training",
    ),
}  # fmt: skip


@pytest.mark.parametrize("gate", GATES)
def test_an_old_gate_makes_a_row_fail(gate: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows notice: each gate that once was, put back, breaks one of them."""
    where, what, row = GATES[gate]
    monkeypatch.setattr(where, what)
    for cache in ("_templates", "_known"):
        monkeypatch.setattr(module, cache, {})  # schedules that are known already
    check = (
        test_heavy_kernels_have_what_they_need
        if row in TABLE
        else test_long_reductions_have_all_of_the_machine
    )
    with pytest.raises(AssertionError):
        check(row)
