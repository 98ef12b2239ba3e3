"""What the stages from 16a on do, one by one, and what the specs refuse."""

import pytest

from morok.codegen.decompose.integers import magic_numbers
from morok.codegen.gates import post_opt_rules
from morok.codegen.linear.linearize import end_rules, guard_stores, linearize
from morok.codegen.pipeline import Context, lower
from morok.codegen.spec import kernel_spec, list_spec
from morok.dtype import float32, index, int32
from morok.errors import SpecError
from morok.ir.build import define_global, end, load, rng, sink, store
from morok.ir.build import index as index_
from morok.ir.build import reduce as reduce_
from morok.ir.node import UOp, make, toposort
from morok.ir.ops import Ops
from morok.machine.machine import Machine
from morok.rewrite.engine import rewrite
from tests.codegen.kernels import (
    REDUCE,
    buffers,
    matmul,
    read,
    softmax,
    write,
)
from tests.codegen.test_stages import GPU, NEON, nodes

# --- 16a


def sum_of_reads(x: UOp, places: list[UOp]) -> UOp:
    found = read(x, places[0])
    for place in places[1:]:
        found = found + read(x, place)
    return found


def widths(kernel: UOp, target: Machine) -> list[int]:
    return sorted(n.dtype.lanes for n in lower(kernel, target).src if n.op is Ops.LOAD)


def test_reads_of_a_thread_that_lie_side_by_side_are_one() -> None:
    """Written one by one, as the bytes of a word are; a run begins where an access may."""
    o, x = buffers(64, 512)
    r = rng(64, 0)
    kernel = sink(write(o, r, sum_of_reads(x, [r * 4 + i for i in (2, 0, 3, 1)]), r))
    assert widths(kernel, GPU) == [4]
    assert widths(kernel, NEON) == [1, 1, 1, 1]
    beside = sink(write(o, r, sum_of_reads(x, [r * 8 + i for i in (1, 2, 3, 4, 5, 7)]), r))
    assert widths(beside, GPU) == [1, 1, 2, 2]
    assert widths(sink(write(o, r, sum_of_reads(x, [r + i for i in range(4)]), r)), GPU) == [1] * 4
    assert widths(sink(write(o, r, sum_of_reads(x, [r * 4, r * 4 + 2]), r)), GPU) == [1, 1]


def test_what_is_written_meanwhile_is_read_one_by_one() -> None:
    o = define_global(float32, 512, 0)
    r = rng(64, 0)
    kernel = sink(write(o, r * 4, sum_of_reads(o, [r * 4, r * 4 + 1]), r))
    assert widths(kernel, GPU) == [1, 1]


def test_places_that_are_read_side_by_side_are_joined_as_well() -> None:
    o, x, i = define_global(float32, 64, 0), define_global(float32, 512, 1), define_global(int32, 128, 2)
    r = rng(64, 0)
    first, second = (make(Ops.CAST, index, (read(i, r * 2 + n),)) for n in (0, 1))
    assert widths(sink(write(o, r, sum_of_reads(x, [first, second]), r)), GPU) == [1, 1, 2]


# --- 18


@pytest.mark.parametrize("divisor", [3, 5, 7, 10, 12, 28, 641, 1000, 65537])
@pytest.mark.parametrize("largest", [10, 1000, 65535, 2**31 - 1])
def test_magic_numbers(divisor: int, largest: int) -> None:
    found = magic_numbers(largest, divisor, 63)
    assert found is not None
    m, s = found
    assert largest * m < 1 << 63
    around = {
        k * divisor + d for k in (0, 1, 2, largest // divisor // 2, largest // divisor) for d in (-1, 0, 1)
    }
    for x in sorted(v for v in around | {largest, largest - 1} if 0 <= v <= largest):
        assert x * m >> s == x // divisor


def test_divisions_disappear() -> None:
    _, x = buffers(1, 4096)
    r = rng(4096, 0)
    kernel = sink(write(buffers(4096)[0], r, read(x, (r // 7) + (r % 7) * 100), r))
    listed = lower(kernel, NEON)
    assert not {n.op for n in listed.src} & {Ops.FLOORDIV, Ops.FLOORMOD, Ops.CDIV, Ops.CMOD}


# --- 20 to 22


def test_one_end_per_loop() -> None:
    after = rewrite(add_2d(), end_rules)
    outer = after.src[0]
    assert outer.src[1].arg[0] == 0 and outer.src[0].op is Ops.END and outer.src[0].src[1].arg[0] == 1


def add_2d() -> UOp:
    o, x = buffers(12, 12)
    r, c = rng(3, 0), rng(4, 1)
    return sink(write(o, r * 4 + c, load(index_(x, r * 4 + c)), r, c))


def test_values_leave_loops_that_they_do_not_depend_on() -> None:
    listed = lower(softmax(4, 8), NEON).src
    loops = [n.arg[0] for n in listed if n.op is Ops.RANGE]
    assert loops == [0, 1, 2, 3]
    depth, at = 0, {}
    for n in listed:
        depth += {Ops.RANGE: 1, Ops.END: -1}.get(n.op, 0)
        at.setdefault(n, depth)
    assert depth == 0
    # the row's offset is computed once per row
    offsets = [n for n in listed if n.op is Ops.SHL and n.src[0].op is Ops.RANGE]
    assert offsets and all(at[n] == 1 for n in offsets)


def test_loops_are_not_interleaved() -> None:
    open_: list[UOp] = []
    for n in lower(matmul(4, 8, 4), NEON).src:
        if n.op is Ops.RANGE:
            open_.append(n)
        elif n.op is Ops.END:
            assert open_.pop() is n.src[1]
    assert not open_


def test_effects_keep_their_order() -> None:
    a, b, x = buffers(4, 4, 64)
    r, s, c = rng(4, 0), rng(4, 1), rng(16, 2, REDUCE)
    light, heavy = write(a, r, read(x, r), r), write(b, s, reduce_(read(x, s * 16 + c), Ops.ADD, [c]), s)
    for effects in ((light, heavy), (heavy, light)):
        stored = [n for n in lower(sink(*effects), NEON).src if n.op is Ops.STORE]
        globals_ = [m.arg for n in stored for m in toposort(n.src[0]) if m.op is Ops.DEFINE_GLOBAL]
        assert globals_ == [e.src[0].src[0].src[0].arg for e in effects]
    # the same under one loop
    both = sink(write(a, r, reduce_(read(x, r * 16 + c), Ops.ADD, [c]), r), write(b, r, read(x, r), r))
    stored = [n for n in lower(both, NEON).src if n.op is Ops.STORE]
    globals_ = [m.arg for n in stored for m in toposort(n.src[0]) if m.op is Ops.DEFINE_GLOBAL]
    assert globals_ == [0, 1]


def test_guarded_stores() -> None:
    o, x = buffers(8, 8)
    r = rng(8, 0)
    kernel = sink(write(o, r, read(x, r), r, gate=r < 5))
    ops = [n.op for n in lower(kernel, NEON).src]
    assert ops.index(Ops.IF) < ops.index(Ops.STORE) < ops.index(Ops.ENDIF)
    assert Ops.IF not in [n.op for n in lower(kernel, GPU).src]
    assert guard_stores(linearize(rewrite(add_2d(), end_rules), None), Context(NEON)).op is Ops.LINEAR


# --- specs


def test_specs() -> None:
    kernel_spec.verify(softmax(3, 4))
    list_spec.verify(lower(softmax(3, 4), NEON))
    o, x = buffers(4, 4)
    r = rng(4, 0)
    with pytest.raises(SpecError, match="not legal in a kernel"):
        kernel_spec.verify(sink(end(store(index_(o, r), load(index_(x, r))), r)))
    with pytest.raises(SpecError, match="list of instructions"):
        list_spec.verify(make(Ops.LINEAR, float32, (read(x, r),)))


def test_a_read_keeps_its_gate_in_the_place_of_another_read() -> None:
    """x[i[r] if r < 2] if r < 2: the inner read happens for every r, so only its own gate keeps it inside."""
    o, x, i = define_global(float32, 3, 0), define_global(float32, 6, 1), define_global(int32, 2, 2)
    r = rng(3, 0)
    inside = r < 2
    inner = make(Ops.CAST, index, (read(i, r, inside),))
    root = rewrite(sink(write(o, r, read(x, inner, inside & (inner < 6)), r)), post_opt_rules)
    assert all(len(n.src) == 3 for n in nodes(root, Ops.INDEX) if n.src[0].arg == 2)
