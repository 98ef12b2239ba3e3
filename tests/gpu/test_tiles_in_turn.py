"""Stages 19a and 19b: a tile is weighed while units are at the next; the last products of a step run on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from morok import Tensor
from morok.codegen.pipeline import lower
from morok.device.cuda.device import program_of
from morok.device.interpreter import run_kernel
from morok.dtype import void
from morok.errors import DeviceError
from morok.ir.matrix import Products
from morok.ir.node import UOp, make
from morok.ir.ops import Ops
from morok.machine.files import load
from morok.optimize.heuristics.apply import optimize
from morok.optimize.heuristics.builder import Builder
from morok.optimize.heuristics.gpu.attention import Tile, build, rows_of
from morok.optimize.record import applied
from morok.schedule.schedule import schedule
from tests.gpu.kernels import cubin
from tests.gpu.products import HOST, TARGET, close, emulate, execute, memory_of


def attention(rows: int, keys: int, width: int, causal: bool = False) -> UOp:
    shapes = ((rows, width), (keys, width), (keys, width))
    q, k, v = (Tensor.empty(*s, dtype="bfloat16", device="EMULATOR") for s in shapes)
    (item,) = schedule([q.scaled_dot_product_attention(k, v, is_causal=causal).uop]).items
    return item.ast


def in_tiles(ast: UOp, rows: int, keys: int) -> UOp:
    """The kernel in which a warp group has so many rows, and goes through so many keys in a step."""
    found = rows_of(ast)
    assert found is not None
    (unit,) = {t.unit for t in found.tiles(HOST) if t.unit.shared and not t.roles}
    builder = Builder(ast, HOST)
    assert build(builder, found, Tile(unit, rows, 1, keys, 2))
    return builder.ast


CASES = [(128, 192, 64, 64, False), (128, 256, 64, 128, False), (256, 256, 64, 64, True)]


def right(ast: UOp, code: UOp) -> None:
    """Against the interpreter; the emulator sees whether a tile is overwritten while a unit reads it."""
    arrays, types = memory_of(ast)
    wanted = [a.copy() for a in arrays]
    run_kernel(ast, wanted)
    close(execute(code, arrays, types), wanted[0].astype("float64"), 8e-3)


@pytest.mark.parametrize(("rows", "keys", "width", "step", "causal"), CASES)
def test_values(rows: int, keys: int, width: int, step: int, causal: bool) -> None:
    ast = attention(rows, keys, width, causal)
    right(ast, lower(in_tiles(ast, 128, step), TARGET))


def _product(node: UOp) -> UOp | None:
    """The product whose result a node names."""
    while node.op in (Ops.AFTER, Ops.GEP):
        node = node.src[0]
    return node if node.op is Ops.WMMA else None


@pytest.mark.parametrize("rows", [128, 192])
def test_nobody_looks_at_a_product_before_it_has_arrived(rows: int) -> None:
    code = lower(in_tiles(attention(384, 192, 64), rows, 64), TARGET).src
    begun: list[UOp] = []
    groups: list[list[UOp]] = []
    there: set[UOp] = set()
    for n in code:
        if n.op is Ops.WMMA:
            begun.append(n)
        elif n.op is Ops.ASYNC_COMMIT and isinstance(n.arg, Products):
            groups.append(begun)
            begun = []
        elif n.op is Ops.ASYNC_WAIT and isinstance(n.arg, Products):
            over = max(0, len(groups) - n.arg.pending)
            there.update(x for group in groups[:over] for x in group)
            del groups[:over]
        elif n.op not in (Ops.AFTER, Ops.CAT):
            used = [p for s in n.src if (p := _product(s)) is not None]
            assert all(p in there for p in used), n.op
    assert not begun and not groups  # nothing is under way in the end


def test_a_tile_is_weighed_while_units_are_at_the_next() -> None:
    """S1, S2, powers of S1, O1, powers of S2, O2: between two of them units have work."""
    code = lower(in_tiles(attention(128, 192, 64), 128, 64), TARGET).src
    short = {Ops.WMMA: "product", Ops.EXP2: "power", Ops.ASYNC_WAIT: "wait", Ops.ASYNC_COMMIT: "commit"}
    seen: list[str] = []
    for n in code:
        name = short.get(n.op, "")
        if name in ("wait", "commit"):
            name = f"wait {n.arg.pending}" if name == "wait" and isinstance(n.arg, Products) else ""
        if name and seen[-1:] != [name]:
            seen.append(name)
    start = seen.index("product")
    turns = ["product", "wait 1", "power", "product", "wait 1", "power", "product", "wait 0"]
    assert seen[start : start + len(turns)] == turns


def test_source() -> None:
    program = program_of(in_tiles(attention(128, 256, 128), 128, 64), HOST, "attention")
    assert program.text.count("wgmma.wait_group.sync.aligned 1;") == 2
    assert cubin(program.text)


@pytest.mark.parametrize("causal", [False, True])
def test_the_last_products_of_a_step_run_on(causal: bool) -> None:
    """They are waited for with the first ones of the next step, before any tile is filled, and in the end."""
    ast = attention(384, 384, 64, causal)
    code = lower(in_tiles(ast, 64, 128), TARGET)
    right(ast, code)
    (first,) = (i for i, n in enumerate(code.src) if n.op is Ops.RANGE)
    (last,) = (i for i, n in enumerate(code.src) if n.op is Ops.END)
    loop = code.src[first:last]
    at = [i for i, n in enumerate(loop) if n.op is Ops.ASYNC_WAIT and isinstance(n.arg, Products)]
    assert len(at) == 1 and loop[at[0]].arg.pending == 0
    products = [i for i, n in enumerate(loop) if n.op is Ops.WMMA]
    copies = [i for i, n in enumerate(loop) if n.op is Ops.ASYNC_COPY]
    barriers = [i for i, n in enumerate(loop) if n.op is Ops.BARRIER]
    assert barriers[0] < products[0] < at[0] < barriers[1] < copies[0]
    assert copies[-1] < products[-1]
    behind = [n for n in code.src[last:] if n.op is Ops.ASYNC_WAIT and isinstance(n.arg, Products)]
    assert [n.arg.pending for n in behind] == [0]


def test_a_tile_that_is_filled_too_early_is_noticed() -> None:
    """Without the wait copies would overwrite what units still read, and others look at it too early."""
    ast = attention(64, 512, 64)
    code = lower(in_tiles(ast, 64, 128), TARGET).src
    (wait, _) = (n for n in code if n.op is Ops.ASYNC_WAIT and isinstance(n.arg, Products))
    broken = make(Ops.LINEAR, void, tuple([n for n in code if n is not wait]))
    arrays, types = memory_of(ast)
    with pytest.raises(DeviceError, match=r"while a unit still reads it|nobody has waited for"):
        emulate(broken, arrays, types)


@pytest.mark.parametrize(("width", "rows"), [(64, 64), (128, 128)])
def test_a_group_has_two_tiles_where_more_groups_have_no_room(width: int, rows: int) -> None:
    """Of rows of 64 a multiprocessor has three groups, which hide each other's powers; none brings tiles."""
    hopper = replace(load("sm_90"), tma=False)
    q, k, v = (Tensor.empty(64, 2048, width, dtype="bfloat16", device="EMULATOR") for _ in range(3))
    (item,) = schedule([q.scaled_dot_product_attention(k, v).uop]).items
    tiles = [opt.amount for opt in applied(optimize(item.ast, hopper)) if opt.name == "TILE"]
    assert tiles[0] == rows
    assert not any(opt.name == "LOCAL" for opt in applied(optimize(item.ast, hopper)))
