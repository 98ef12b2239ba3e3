"""Attention with warp roles: one thread asks for tiles, two groups multiply a step behind. Against NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from morok import Tensor
from morok.codegen.pipeline import lower
from morok.device.buffer import Buffer
from morok.device.cuda.device import program_of
from morok.device.emulator.device import EmulatedKernel, EmulatorAllocator
from morok.device.interpreter import run_kernel
from morok.dtype import PtrDType
from morok.errors import DeviceError
from morok.ir.matrix import ALL_UNITS, ANY_WIDTH_UNITS, REGISTER_A_UNITS, Products
from morok.ir.node import UOp, toposort
from morok.ir.ops import Ops
from morok.optimize.actions.table import can
from morok.optimize.heuristics.apply import optimize
from morok.optimize.heuristics.builder import Builder
from morok.optimize.heuristics.gpu.attention import build, rows_of
from morok.optimize.record import Opt, applied
from morok.schedule.graph.attention.fused_chain import Tile
from morok.schedule.schedule import schedule
from tests.gpu.kernels import cubin
from tests.gpu.products import HOST, TARGET, emulate, execute, memory_of

Array = Any
Make = Callable[[Tensor, Tensor, Tensor], Tensor]
ERROR = {"float16": 1e-3, "bfloat16": 8e-3}


def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return q.scaled_dot_product_attention(k, v)


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return q.scaled_dot_product_attention(k, v, is_causal=True)


def kernel(make_it: Make, *shapes: tuple[int, ...], dtype: str = "float16") -> UOp:
    tensors = [Tensor.empty(*s, dtype=dtype, device="EMULATOR") for s in shapes]
    (item,) = schedule([make_it(*tensors).uop]).items
    return item.ast


def in_roles(ast: UOp, teams: int = 2, keys: int = 64) -> UOp:
    found = rows_of(ast)
    assert found is not None
    inputs = found.chain.firsts[0].src[0].src[0].src[0].dtype
    units = [u for u in HOST.matrix_units if u.shared == "ab" and not u.fused]
    (unit,) = (u for u in units if u.inputs is inputs.scalar and u.n == keys)
    builder = Builder(ast, HOST)
    assert build(builder, found, Tile(unit, unit.m, teams, keys, 2, True))
    assert "WARP_SPECIALIZE" in [o.name for o in applied(builder.ast)]
    return builder.ast


def exact(q: Array, k: Array, v: Array, mask: Array = None) -> Array:
    """In float64."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    with np.errstate(invalid="ignore"):
        scores = q @ k.swapaxes(-1, -2) * q.shape[-1] ** -0.5
        if mask is not None:
            scores = np.where(mask, scores, -np.inf)
        powers = np.exp(scores - scores.max(-1, keepdims=True))
        return powers / powers.sum(-1, keepdims=True) @ v


def below(rows: int, keys: int, shift: int = 0) -> Array:
    return np.arange(keys) <= np.arange(rows)[:, None] + shift


def check(ast: UOp, want: Callable[..., Array], *shapes: tuple[int, ...], dtype: str, **how: int) -> None:
    arrays, types = memory_of(ast)
    wanted = want(*(a.reshape(s) for a, s in zip(arrays[1:], shapes, strict=True)))
    got = execute(lower(in_roles(ast, **how), TARGET), arrays, types).astype(np.float64).reshape(wanted.shape)
    assert np.array_equal(np.isnan(got), np.isnan(wanted))
    got, wanted = np.nan_to_num(got), np.nan_to_num(wanted)
    assert np.linalg.norm(got - wanted) <= ERROR[dtype] * np.linalg.norm(wanted)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(
    ("rows", "keys", "width", "teams", "step"),
    [
        (128, 256, 64, 2, 128),
        (64, 320, 128, 2, 64),  # five steps through a ring of two, and a group without rows
        (192, 192, 64, 3, 64),
        (100, 130, 64, 2, 64),  # rows and keys that fill no tile
        (128, 256, 96, 2, 128),  # rows that are no whole panels: zeros behind them in shared memory
        (100, 130, 80, 2, 64),
        (64, 192, 72, 2, 64),  # nor whole steps of a unit
        (64, 192, 176, 2, 64),
    ],
)
def test_values(rows: int, keys: int, width: int, teams: int, step: int, dtype: str) -> None:
    shapes = ((2, rows, width), (2, keys, width), (2, keys, width))
    ast = kernel(plain, *shapes, dtype=dtype)
    check(ast, exact, *shapes, dtype=dtype, teams=teams, keys=step)


@pytest.mark.parametrize(
    ("rows", "keys", "width"),
    [
        (256, 256, 64),
        (130, 200, 64),
        (100, 130, 64),  # no tile that is left has keys beyond the last one
        (130, 200, 96),
        (100, 130, 160),
    ],
)
def test_causal(rows: int, keys: int, width: int) -> None:
    shapes = ((2, rows, width), (2, keys, width), (2, keys, width))
    ast = kernel(causal, *shapes)
    assert "SKIP" in [o.name for o in applied(in_roles(ast))]
    check(ast, lambda *x: exact(*x, below(rows, keys)), *shapes, dtype="float16")


def test_blocks_that_see_no_tile_at_all() -> None:
    """No step is the first one there, so nothing is a step behind; rows that see no key are 0 / 0."""
    shapes = ((256, 64),) * 3

    def late(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        i, j = Tensor.arange(256, device="EMULATOR").reshape(256, 1), Tensor.arange(256, device="EMULATOR")
        return q.scaled_dot_product_attention(k, v, mask=j <= i - 140)

    check(kernel(late, *shapes), lambda *x: exact(*x, below(256, 256, -140)), *shapes, dtype="float16")


@pytest.mark.parametrize("width", [64, 96])
@pytest.mark.parametrize("kind", ["heads among rows", "shared heads", "turned"])
def test_views(kind: str, width: int) -> None:
    """A tile is a box wherever its rows lie some stride apart; what lies behind a row may be another head."""
    if kind == "heads among rows":
        shapes = ((128, 2, width), (192, 2, width), (192, 2, width))
        ast = kernel(lambda *x: plain(*(t.transpose(0, 1) for t in x)), *shapes)
        check(ast, lambda *x: exact(*(a.swapaxes(0, 1) for a in x)), *shapes, dtype="float16")
    elif kind == "shared heads":
        shapes = ((2, 2, 128, width), (2, 1, 192, width), (2, 1, 192, width))
        check(kernel(plain, *shapes), exact, *shapes, dtype="float16")
    else:
        shapes = ((2, 3, 128, width), (2, 3, 192, width), (2, 3, 192, width))
        ast = kernel(lambda *x: plain(*(t[:, 1] for t in x)), *shapes)
        check(ast, lambda *x: exact(*(a[:, 1] for a in x)), *shapes, dtype="float16")


def test_what_gradients_need_is_stored_beside_the_result() -> None:
    """The maximum of each row and the reciprocal of its sum: they have no lanes along the columns of v."""
    q, k, v, g = (Tensor.empty(128, 64, dtype="float16", device="EMULATOR") for _ in range(4))
    y = plain(q, k, v)
    found = [y, *y.gradient(q, k, v, gradient=g)]
    asts = [item.ast for item in schedule([t.uop for t in found]).items]
    (ast,) = (a for a in asts if any(n.op is Ops.REDUCE and n.arg[0] is Ops.MAX for n in toposort(a)))
    assert len(ast.src) == 3
    arrays, types = memory_of(ast)
    wanted = [a.copy() for a in arrays]
    run_kernel(ast, wanted)
    stored = {n.src[0].src[0].arg for e in ast.src for n in toposort(e) if n.op is Ops.STORE}
    inputs = [a for i, a in enumerate(arrays) if i not in stored]
    want = exact(*(a.reshape(128, 64) for a in inputs[:3]))
    allocator = EmulatorAllocator("test")
    held = [
        Buffer("test", a.size, t, allocator, memory=allocator.allocate(a.nbytes))
        for a, t in zip(arrays, types, strict=True)
    ]
    for buffer, a in zip(held, arrays, strict=True):
        buffer.copy_in(a)
    EmulatedKernel(lower(in_roles(ast), TARGET), "test")(held, {})
    for number in stored:
        got, other = held[number].copy_out().astype(np.float64), wanted[number].astype(np.float64)
        assert np.linalg.norm(got - other) <= 1e-3 * np.linalg.norm(other)
        if got.size == want.size:
            assert np.linalg.norm(got.reshape(want.shape) - want) <= 1e-3 * np.linalg.norm(want)


def test_a_repeated_row_of_the_users_stays_one() -> None:
    shapes = ((128, 64), (100, 64), (128, 64))

    def repeated(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return q.scaled_dot_product_attention(k[Tensor.arange(128, device="EMULATOR").minimum(99)], v)

    ast = kernel(repeated, *shapes)
    found = rows_of(ast)
    arrays, types = memory_of(ast)
    want = exact(arrays[1].reshape(128, 64), arrays[2].reshape(100, 64)[np.minimum(np.arange(128), 99)],
                 arrays[3].reshape(128, 64))  # fmt: skip
    assert found is not None
    got = execute(lower(optimize(ast, HOST), TARGET), arrays, types).astype(np.float64).reshape(want.shape)
    assert np.linalg.norm(got - want) <= 1e-3 * np.linalg.norm(want)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("width", [72, 80, 96, 112, 128, 144, 160, 176, 192, 208, 224, 240, 256])
def test_any_width_has_the_plan(width: int, dtype: str) -> None:
    """Tiles by TMA and units of warp groups, whatever the width: panels that are not full are a price."""
    for make_it in (plain, causal):
        ast = kernel(make_it, *((4, 16, 2048, width),) * 3, dtype=dtype)
        opts = applied(optimize(ast, HOST))
        assert "WARP_SPECIALIZE" in [o.name for o in opts]
        (unit,) = (ALL_UNITS[o.amount - 1] for o in opts if o.name == "TC")
        assert unit.lanes == 128 and unit.n == (128 if width <= 128 else 64)


def test_units_of_any_width() -> None:
    """Every element of a result is in one register of one lane."""
    assert len({(u.name, u.n) for u in REGISTER_A_UNITS + ANY_WIDTH_UNITS if u.inputs.itemsize == 2}) == 62
    for unit in ANY_WIDTH_UNITS:
        found = {(row, column) for _, _, row, column in unit.c.places(unit.lanes)}
        assert len(found) == unit.m * unit.n == unit.lanes * unit.c.registers
        assert max(column for _, column in found) == unit.n - 1


def test_no_product_has_more_columns_than_the_result() -> None:
    program = program_of(in_roles(kernel(plain, (128, 96), (256, 96), (256, 96)), keys=64), HOST, "attention")
    assert "m64n96k16" in program.text and program.text.count("m64n64k16") == 2 * (96 // 16)
    assert cubin(program.text)


def _code(keys: int = 256) -> tuple[UOp, ...]:
    return lower(in_roles(kernel(plain, (128, 64), (keys, 64), (keys, 64)), keys=64), TARGET).src


def test_what_a_step_weighs_is_multiplied_under_the_next_scores() -> None:
    """S; O of the step before; then a wait for S alone; what is weighed; then a wait for O."""
    short = {Ops.WMMA: "product", Ops.EXP2: "power", Ops.ASYNC_COMMIT: "commit", Ops.END: "end"}
    seen: list[str] = []
    for n in _code():
        name = short.get(n.op, "")
        if n.op is Ops.ASYNC_WAIT and isinstance(n.arg, Products):
            name = f"wait {n.arg.pending}"
        if name and seen[-1:] != [name]:
            seen.append(name)
    first = ["product", "commit", "wait 0", "power"]
    later = ["product", "commit", "product", "commit", "wait 1", "power", "wait 0", "end"]
    assert seen[:18] == [*first, *later, "product", "commit", "wait 0", *seen[15:18]]


def test_nothing_is_multiplied_twice() -> None:
    """The first scores, those of the loop and what it weighs, and the last of that."""
    assert sum(n.op is Ops.WMMA for n in _code()) == 4 * (64 // 16)


def test_source() -> None:
    program = program_of(
        in_roles(kernel(plain, (256, 128), (512, 128), (512, 128)), keys=128), HOST, "attention"
    )
    assert program.text.count("cp.async.bulk.tensor") == 3 * 2  # two panels of q, k and v
    assert "cp.async.cg" not in program.text
    assert "unsigned short a" not in program.text  # weights are kept in whole words
    assert cubin(program.text)


def test_tiles_are_released() -> None:
    """A ring whose tiles nobody releases stops whoever fills it."""
    ast = kernel(plain, (128, 64), (512, 64), (512, 64))
    code = lower(in_roles(ast), TARGET)
    arrays, types = memory_of(ast)
    names = {str(_memory(n)) for n in code.src if n.op is Ops.MBARRIER and n.arg.what == "arrive"}
    assert names == {"empty.0", "empty.1"}
    for name in sorted(names):
        kept = [n for n in code.src if not _does(n, "arrive", name)]
        with pytest.raises(DeviceError, match="deadlock"):
            emulate(code.replace(tuple(kept)), arrays, types)


def test_tiles_are_waited_for() -> None:
    ast = kernel(plain, (128, 64), (512, 64), (512, 64))
    code = lower(in_roles(ast), TARGET)
    arrays, types = memory_of(ast)
    for name in ("full.0", "full.1", "fixed"):
        kept = [n for n in code.src if not _does(n, "wait", name)]
        assert len(kept) < len(code.src)
        with pytest.raises(DeviceError):
            emulate(code.replace(tuple(kept)), arrays, types)


def _does(node: UOp, what: str, name: str) -> bool:
    return node.op is Ops.MBARRIER and node.arg.what == what and _memory(node) == name


def _memory(node: UOp) -> Any:
    memory = next(n for n in toposort(node.src[0]) if n.op is Ops.DEFINE_LOCAL)
    assert isinstance(memory.dtype, PtrDType)
    return memory.arg


def test_what_is_refused() -> None:
    single = kernel(plain, (128, 64), (128, 64), (128, 64))  # one step: there is no ring
    found = rows_of(single)
    assert found is not None
    (unit,) = (u for u in HOST.matrix_units if u.name == "wgmma.f16" and u.n == 128)
    assert not build(Builder(single, HOST), found, Tile(unit, unit.m, 2, 128, 2, True))
    ast = in_roles(kernel(plain, (128, 256, 64), (128, 256, 64), (128, 256, 64)))
    assert can(ast, Opt("PERSISTENT", -1, 4), HOST) == "the rows of a chain of products are brought once"
    found = rows_of(kernel(plain, (256, 64), (256, 64), (256, 64)))
    assert found is not None and not any(
        t.roles for t in found.tiles(HOST) if t.unit.inputs.name == "float32"
    )
