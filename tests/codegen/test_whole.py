"""Tiles of registers that are added up or copied: one value until the list is written."""

from __future__ import annotations

import pytest

from morok.codegen.linear.linearize import linearize
from morok.codegen.pipeline import Context
from morok.codegen.vector.devectorize import devectorize_rules
from morok.codegen.vector.vectors import swizzle
from morok.codegen.vector.whole import is_whole, opened, write_out
from morok.dtype import DType, PtrDType, bool_, float16, float32, int32, void
from morok.ir.build import define_local, define_reg, sink
from morok.ir.node import UOp, alu, const, make, toposort
from morok.ir.ops import Op, Ops
from morok.machine.machine import Machine
from morok.rewrite.engine import rewrite

NEON = Machine("neon", vector_bytes=16)
GPU = Machine("gpu", scalar_alu=True, vector_bytes=16, global_dims=(1 << 20,))


def nodes(root: UOp, op: Op) -> list[UOp]:
    return [n for n in toposort(root) if n.op is op]


def place(memory: UOp, lanes: int, start: int = 0) -> UOp:
    dtype = memory.dtype
    assert isinstance(dtype, PtrDType)
    pointer = dtype.elem.vec(lanes).ptr(dtype.size, dtype.space)
    return make(Ops.INDEX, pointer, (memory, const(int32, start)))


def tile(number: int, lanes: int = 10, dtype: DType = float32) -> UOp:
    return make(Ops.LOAD, dtype.vec(lanes), (place(define_reg(dtype, lanes, number), lanes),))


def stored(memory: UOp, value: UOp) -> UOp:
    return make(Ops.STORE, void, (place(memory, value.dtype.lanes), value))


def added(value: UOp, target: UOp, machine: Machine = NEON) -> UOp:
    return rewrite(sink(stored(target, value)), devectorize_rules, Context(machine))


def test_a_sum_of_tiles_is_one_node() -> None:
    value = alu(Ops.ADD, alu(Ops.ADD, tile(0), tile(1)), tile(2))
    after = added(value, define_reg(float32, 10, 3))
    assert after is sink(stored(define_reg(float32, 10, 3), value))


def test_a_copy_of_a_tile_is_one_node() -> None:
    memory = define_local(float32, 10, "result")
    assert added(tile(0), memory) is sink(stored(memory, tile(0)))


def test_the_list_has_registers() -> None:
    """Sums part by part, in the order of the parts; what is stored is those parts, at their places."""
    value = alu(Ops.ADD, tile(0), tile(1))
    register, memory = define_reg(float32, 10, 2), define_local(float32, 10, "result")
    graph = rewrite(sink(stored(register, value), stored(memory, tile(0))), devectorize_rules, Context(NEON))
    written = list(write_out(linearize(graph, Context(NEON)), Context(NEON)).src)
    sums = [n for n in written if n.op is Ops.ADD]
    assert [n.dtype.lanes for n in sums] == [4, 4, 2]
    assert [[s.src[0].src[1].arg for s in n.src] for n in sums] == [[0, 0], [4, 4], [8, 8]]
    stores = [n for n in written if n.op is Ops.STORE]
    (whole,) = [n for n in stores if n.src[0].src[0] is register]
    assert whole.src[1].op is Ops.CAT and list(whole.src[1].src) == sums
    copies = [n for n in stores if n.src[0].src[0] is memory]
    assert [(n.src[0].src[1].arg, n.src[1].dtype.lanes) for n in copies] == [(0, 4), (4, 4), (8, 2)]
    assert all(n.op is not Ops.LOAD or n.dtype.lanes <= 4 for n in written)
    for number, node in enumerate(written):  # whatever a step needs stands before it
        assert all(s in written[:number] for s in node.src), node


def test_who_asks_for_lanes_gets_registers() -> None:
    x = tile(0, 8)
    low, high = (make(Ops.LOAD, float32.vec(4), (place(define_reg(float32, 8, 0), 4, n),)) for n in (0, 4))
    assert opened(x, NEON) is make(Ops.CAT, float32.vec(8), (low, high))
    product = alu(Ops.MUL, x, x)
    after = rewrite(product, devectorize_rules, Context(NEON))
    assert after is make(Ops.CAT, float32.vec(8), (alu(Ops.MUL, low, low), alu(Ops.MUL, high, high)))
    picked = rewrite(make(Ops.GEP, float32, (alu(Ops.ADD, x, x),), (5,)), devectorize_rules, Context(NEON))
    assert picked is swizzle(alu(Ops.ADD, high, high), (1,))


@pytest.mark.parametrize("dtype", [float16, bool_])
def test_what_is_computed_in_parts_is_no_tile(dtype: DType) -> None:
    assert is_whole(tile(0, 64, float32), NEON) and is_whole(tile(0, 64, int32), NEON)
    assert not is_whole(tile(0, 64, dtype), NEON)


def test_one_register_is_no_tile_nor_is_any_of_a_grid() -> None:
    assert not is_whole(tile(0, 4), NEON)
    assert not is_whole(tile(0), GPU)
    value = alu(Ops.ADD, tile(0), tile(1))
    assert {n.dtype.lanes for n in nodes(added(value, define_reg(float32, 10, 2), GPU), Ops.ADD)} == {1}
    memory = rewrite(tile(0), devectorize_rules, Context(GPU))
    assert all(n.dtype.lanes <= 4 for n in nodes(memory, Ops.LOAD))
