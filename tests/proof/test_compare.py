"""A list of instructions is compared with its kernel, as terms over all data, and wrong lists are found."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import numpy as np
import pytest

from morok import Tensor, knobs
from morok.codegen.pipeline import lower
from morok.device import prove
from morok.device.cpu.device import CPU, optimise
from morok.dtype import AddrSpace, PtrDType, bool_, float16, float32, int32, int64
from morok.errors import CompileError
from morok.ir.build import cast, define_global, reduce, rng, sink
from morok.ir.node import UOp, alu, const, make
from morok.ir.ops import AxisKind, Ops
from morok.machine.machine import Machine
from morok.optimize.actions.table import apply_all
from morok.optimize.heuristics.apply import optimize
from morok.optimize.record import Opt
from tests.codegen.kernels import (
    UNROLL,
    UPCAST,
    add,
    buffers,
    convolution,
    matmul,
    padded_copy,
    read,
    row_sum,
    softmax,
    split,
    write,
)
from tests.optimize.kernels import NEON, kernel
from tests.proof.lists import changed, once

pytest.importorskip("z3")
from morok.proof.kernels.compare import Comparison, compare
from morok.proof.kernels.passes import Part, Passes, Search
from morok.proof.kernels.terms import Terms
from morok.proof.kernels.walk import read_list

CPU_LIKE = Machine("cpu", vector_bytes=16, threads=True, wide_index=True)
EXPAND = prove.expansions(CPU_LIKE)


def both(kernel: UOp, change: Callable[[UOp], UOp | None] | None = None) -> Comparison:
    linear = lower(kernel, CPU_LIKE)
    return compare(kernel, linear if change is None else changed(linear, change), EXPAND)


TILED = split(split(matmul(8, 8, 4), 0, 4, UPCAST), 1, 4, UPCAST)
KERNELS = {
    "sum": add(9),
    "rows": row_sum(4, 24),
    "rows in lanes": split(row_sum(4, 24), 1, 8, UNROLL),
    "largest": row_sum(4, 24, Ops.MAX),
    "softmax": softmax(3, 8),
    "product": matmul(4, 8, 6),
    "tiles": TILED,
    "workers": split(TILED, 0, 2, AxisKind.THREAD, outer=True),
    "convolution": convolution(2, 3, 5),
    "padded": padded_copy(5, 2, 3),
    "tiles of a softmax": split(softmax(3, 16), 0, 3, UPCAST),
}


@pytest.mark.parametrize("name", KERNELS)
def test_good_kernels(name: str) -> None:
    found = both(KERNELS[name])
    assert found.verdict == "compared" and found.elements == found.same > 0, found


def test_functions_and_narrow_types() -> None:
    for dtype in (float32, float16):
        o, x = buffers(6, 6, dtype=dtype)
        r = rng(6, 0)
        for op in (Ops.EXP, Ops.LOG, Ops.TANH, Ops.SIN, Ops.ERF, Ops.RSQRT):
            found = both(sink(write(o, r, alu(op, read(x, r)) + read(x, r), r)))
            assert found.verdict == "compared" and found.same + found.agreeing == found.elements, (op, found)


def test_integers_and_booleans() -> None:
    o, x, y = buffers(8, 8, 8, dtype=int32)
    r = rng(8, 0)
    for op in (Ops.FLOORDIV, Ops.FLOORMOD, Ops.CDIV, Ops.SHL, Ops.SHR, Ops.MAX, Ops.XOR):
        assert both(sink(write(o, r, alu(op, read(x, r), read(y, r)), r))).verdict == "compared"
    mask = define_global(bool_, 8, 1)
    flag = define_global(bool_, 8, 0)
    found = both(sink(write(flag, r, read(mask, r) & (read(y, r) < 3), r)))
    assert found.same == found.elements == 4


def test_gathered_rows() -> None:
    o, x = buffers(12, 40)
    rows = define_global(int64, 3, 2)
    r, c = rng(3, 0), rng(4, 1)
    row = cast(read(rows, r), c.dtype)
    inside = (row < 10) & (const(row.dtype, -1) < row)
    found = both(sink(write(o, r * 4 + c, read(x, row * 4 + c, inside), r, c)))
    assert found.verdict == "compared" and found.same + found.agreeing == found.elements


# --- wrong lists


def wrong(kernel: UOp, change: Callable[[UOp], UOp | None]) -> str:
    found = both(kernel, change)
    assert found.verdict == "refuted", found
    return found.differs


def is_access(node: UOp) -> bool:
    dtype = node.dtype
    return node.op is Ops.INDEX and isinstance(dtype, PtrDType) and dtype.space is AddrSpace.GLOBAL


def test_an_index_that_is_one_off() -> None:
    def off(node: UOp) -> UOp:
        return node.replace((node.src[0], node.src[1] + 1, *node.src[2:]))

    for name in ("product", "tiles", "largest", "convolution"):
        for number in range(2):
            wrong(KERNELS[name], once(off, is_access, number))


def test_operands_that_are_swapped() -> None:
    o, x, y = buffers(8, 8, 8)
    r = rng(8, 0)
    kernel = sink(write(o, r, read(x, r) - read(y, r) * 2.0, r))

    def swap(node: UOp) -> UOp:
        return node.replace(node.src[::-1])

    assert "before and" in wrong(kernel, once(swap, lambda n: n.op is Ops.SUB))
    # the order of a sum is free
    assert both(add(9), once(swap, lambda n: n.op is Ops.ADD and n.dtype.is_float)).verdict == "compared"


def test_a_term_of_a_sum_that_is_lost() -> None:
    def shorter(node: UOp) -> UOp:
        return make(Ops.RANGE, node.dtype, (const(node.src[0].dtype, node.src[0].arg - 1),), node.arg)

    wrong(row_sum(4, 24), once(shorter, lambda n: n.op is Ops.RANGE and n.arg[1] is AxisKind.REDUCE))
    wrong(
        KERNELS["tiles"],
        once(lambda n: n.src[2], lambda n: n.op is Ops.MULACC),
    )


def test_an_accumulator_that_does_not_start_at_0() -> None:
    def one(node: UOp) -> UOp:
        return node.replace((node.src[0], const(node.src[1].dtype, 1.0)))

    first = once(one, lambda n: n.op is Ops.STORE and n.src[1].op is Ops.CONST)
    wrong(row_sum(4, 24), first)


def test_a_gate_that_is_turned_around() -> None:
    wrong(padded_copy(5, 2, 3), once(lambda n: ~n, lambda n: n.op is Ops.CMPLT))


def test_a_store_that_is_lost() -> None:
    kernel = split(row_sum(8, 4), 0, 4, UPCAST)
    linear = lower(kernel, CPU_LIKE)
    store = next(n for n in linear.src if n.op is Ops.STORE and is_access(n.src[0]))
    found = compare(kernel, changed(linear, lambda n: None if n is store else n), EXPAND)
    assert "is not written" in found.differs


def test_a_function_of_something_else() -> None:
    power = once(lambda n: n.src[0], lambda n: n.op is Ops.MUL and n.src[1].op is Ops.BITCAST)
    wrong(softmax(3, 8), power)
    wrong(softmax(3, 8), once(lambda n: n.replace((n.src[1], n.src[0])), lambda n: n.op is Ops.FDIV))


# --- terms


def test_forms_are_those_of_real_numbers() -> None:
    t = Terms()
    x, y, z = (t.element(i, float32, t.constant(int64, 0)) for i in range(3))

    def op(o: object, *src: int) -> int:
        return t.apply(o, float32, src)  # type: ignore[arg-type]

    assert t.form(op(Ops.ADD, op(Ops.ADD, x, y), z)) == t.form(op(Ops.ADD, x, op(Ops.ADD, z, y)))
    assert t.form(op(Ops.MULACC, x, y, z)) == t.form(op(Ops.ADD, z, op(Ops.MUL, y, x)))
    assert t.form(op(Ops.SUB, x, x)) == t.form(t.constant(float32, 0.0))
    assert t.form(op(Ops.FDIV, x, y)) == t.form(op(Ops.MUL, x, op(Ops.RECIP, y)))
    assert t.form(op(Ops.MAX, op(Ops.MAX, x, y), x)) == t.form(op(Ops.MAX, y, x))
    two = t.constant(float32, 2.0)
    assert t.form(op(Ops.NEG, op(Ops.SUB, x, y))) == t.form(op(Ops.SUB, y, x))
    assert t.form(op(Ops.ADD, x, x)) == t.form(op(Ops.MUL, two, x))
    for a, b in ((op(Ops.SUB, x, y), op(Ops.SUB, y, x)), (op(Ops.FDIV, x, y), op(Ops.FDIV, y, x)), (x, y)):
        assert t.form(a) != t.form(b)


def test_forms_of_integers_wrap() -> None:
    t = Terms()
    x = t.element(0, int32, t.constant(int64, 0))

    def times(c: int) -> int:
        return t.apply(Ops.MUL, int32, (x, t.constant(int32, c)))

    shifted = t.apply(Ops.SHL, int32, (x, t.constant(int32, 31)))
    assert t.form(shifted) == t.form(times(-(1 << 31)))
    assert t.form(t.apply(Ops.ADD, int32, (shifted, shifted))) == t.form(t.constant(int32, 0))
    assert t.form(times(3)) != t.form(times(5))


# --- the knob


@pytest.fixture(autouse=True)
def own_totals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels that are wrong on purpose are none of those that a whole run counts."""
    monkeypatch.setattr(prove, "totals", prove.Totals())


def test_the_knob() -> None:
    with knobs.override(PROVE=2, CACHE=False):
        before = prove.totals.compared["compared"]
        x = np.arange(24, dtype=np.float32).reshape(4, 6) / 7
        found = Tensor(x).softmax(1).numpy()
        e = np.exp(x - x.max(1, keepdims=True))
        np.testing.assert_allclose(found, e / e.sum(1, keepdims=True), rtol=1e-6)
        assert prove.totals.compared["compared"] > before
        assert "equal as terms" in prove.totals.report()


def test_a_wrong_stage_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule that loses a factor is found while a kernel is compiled."""
    from morok.device import lowering

    def lossy(kernel: UOp, target: Machine, *rest: object) -> UOp:
        linear = lower(kernel, target)
        return changed(linear, once(lambda n: n.src[0], lambda n: n.op is Ops.MUL and n.dtype.is_float))

    monkeypatch.setattr(lowering, "lower", lossy)
    o, x, y = buffers(8, 8, 8)
    r = rng(8, 0)
    with (
        knobs.override(PROVE=2, CACHE=False),
        pytest.raises(CompileError, match="does not compute what it says"),
    ):
        CPU().compile(sink(write(o, r, read(x, r) * read(y, r), r)), "lossy")


@pytest.mark.parametrize(
    "kernel", [matmul(24, 40, 17), softmax(5, 33), row_sum(3, 257), convolution(4, 6, 9)]
)
def test_what_the_optimiser_makes(kernel: UOp) -> None:
    cpu = CPU()
    made = optimise(kernel, cpu.machine)
    found = compare(made, lower(made, cpu.machine), prove.expansions(cpu.machine))
    assert found.verdict == "compared" and found.same == found.elements > 0, found


def _scaled_product(m: int, k: int, n: int) -> tuple[UOp, UOp]:
    """Rows that are scaled by a sum over themselves, times a matrix: both are packed into local memory."""
    x, w = Tensor(np.zeros((m, k), np.float32)), Tensor(np.zeros((k, n), np.float32))
    (item,) = ((x * (x * x).mean(1, keepdim=True).sqrt()) @ w).plan().schedule.items
    made = optimize(item.ast, NEON)
    linear = lower(made, CPU_LIKE)
    assert sum(node.op is Ops.DEFINE_LOCAL for node in linear.src) == 2
    return made, linear


def test_of_local_memory_only_what_is_read_is_followed() -> None:
    """Else every row would be summed up, and packed, for one element."""
    kernel, linear = _scaled_product(32, 64, 96)
    found = compare(kernel, linear, EXPAND, most=8_000)
    assert (found.verdict, found.same) == ("compared", 4)


def test_what_is_packed_wrongly_is_found() -> None:
    kernel, linear = _scaled_product(32, 64, 96)
    wrong = changed(linear, once(lambda n: n.src[0], lambda n: n.op is Ops.SQRT))
    assert compare(kernel, wrong, EXPAND).verdict == "refuted"


def test_totals_in_local_memory_are_followed_from_block_to_block() -> None:
    """Blocks that are packed, too; the first of them reads totals that nobody has written, and drops them."""
    opts = [Opt("SPLIT_K", 2, 5, (0, 1)), Opt("UPCAST", 5, 4), Opt("PACK", 2, 0, (5, 2, 6)), Opt("UPCAST", 9)]
    made = apply_all(kernel("matmul"), opts, NEON)
    linear = lower(made, CPU_LIKE)
    assert any(node.op is Ops.DEFINE_LOCAL for node in linear.src)
    found = compare(made, linear, EXPAND)
    assert found.verdict == "compared" and found.same == found.elements > 1, found
    unwritten = changed(linear, once(lambda n: n.src[1], lambda n: n.op is Ops.WHERE and n.dtype.is_float))
    assert compare(made, unwritten, EXPAND).verdict == "refuted"  # it adds to what happens to be there


def test_the_search_for_passes_finds_all_of_them() -> None:
    rnd = random.Random(3)
    for _ in range(200):
        leaves = [rng(rnd.randrange(1, 5), i) for i in range(rnd.randrange(4))]
        parts = [
            Part(r, 1, r.src[0].arg, rnd.randrange(-6, 7), rnd.randrange(2), r.src[0].arg - 1) for r in leaves
        ]
        search, total = Search(parts), rnd.randrange(-12, 13)
        points = itertools.product(*(range(p.low, p.high + 1) for p in search.parts))
        right = {
            x for x in points if sum(p.factor * v for p, v in zip(search.parts, x, strict=True)) == total
        }
        found = list(search.solutions(total))
        assert len(found) == len(set(found)) and set(found) == right


def test_passes_of_a_loop_of_which_a_digit_is_enough() -> None:
    """All passes count, also those that differ in digits that do not move the place."""
    o, x = buffers(4, 16)
    r = rng(16, 0)
    listing = read_list(lower(sink(write(o, r // 4, read(x, r), r)), CPU_LIKE))
    (access,) = (a for a in listing.accesses if a.writes)
    passes = Passes([access], [], {})
    (loop,) = access.loops
    assert sorted(env[loop] for env in passes.of(access, 2, {})) == [8, 9, 10, 11]
    assert [env[loop] for env in passes.of(access, 2, {loop: 10})] == [10]
    assert not list(passes.of(access, 2, {loop: 12}))


def test_a_reduction_of_two_values() -> None:
    o, x = buffers(4, 4 * 6)
    r, c = rng(4, 0), rng(6, 1, AxisKind.REDUCE)
    value = read(x, r * 6 + c)
    total = reduce(value, Ops.ADD, [c])
    kernel = sink(write(o, r, total * reduce(value * value, Ops.ADD, [c]), r))
    assert both(kernel).same == 4
