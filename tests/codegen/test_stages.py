"""What each stage does, before → after."""

import pytest

from morok.codegen.gates import post_opt_rules
from morok.codegen.gpu.dims import dims_stage, group_dims, split_dim
from morok.codegen.index_dtype import lower_index
from morok.codegen.pipeline import STAGES, Context, lower
from morok.codegen.reduce.local import local_stage
from morok.codegen.reduce.reduce import reduce_stage
from morok.codegen.scopes import merge_sibling_ends, own_ranges
from morok.codegen.vector.devectorize import devectorize_rules
from morok.codegen.vector.expand import expand_stage
from morok.codegen.vector.loads import certain_rules, load_rules
from morok.codegen.vector.storage import bool_rules, flatten_rules
from morok.codegen.vector.vectors import concat, gather, lane, splat, swizzle, vector_constant
from morok.dtype import bool_, float32, index, int32, int64, uint8
from morok.errors import CompileError
from morok.ir.build import bufferize, define_global, end, load, rng, sink, store, variable
from morok.ir.build import index as index_
from morok.ir.build import reduce as reduce_
from morok.ir.infer import closed_ranges
from morok.ir.node import UOp, alu, const, make, toposort
from morok.ir.ops import AxisKind, Op, Ops
from morok.machine.machine import Machine
from morok.rewrite.engine import rewrite
from morok.rewrite.loops import share_loops
from tests.codegen.kernels import (
    LOOP,
    REDUCE,
    UNROLL,
    UPCAST,
    add,
    buffers,
    matmul,
    read,
    row_sum,
    softmax,
    split,
    write,
)

NEON = Machine("neon", vector_bytes=16, threads=True)
GPU = Machine(
    "gpu",
    scalar_alu=True,
    predicated_stores=True,
    global_dims=(65535, 65535, 65535),
    local_dims=(1024, 1024, 64),
    block_threads=1024,
)


def nodes(root: UOp, op: Op) -> list[UOp]:
    return [n for n in toposort(root) if n.op is op]


def through(kernel: UOp, last: str, target: Machine = NEON) -> UOp:
    """The kernel after the stage with this number."""
    root = kernel
    for stage in STAGES:
        root = stage.apply(root, Context(target))
        if stage.number == last:
            return root
    raise KeyError(last)


def test_the_table_is_in_order() -> None:
    numbers = [int("".join(c for c in s.number if c.isdigit())) for s in STAGES]
    assert numbers == sorted(numbers)
    assert set(numbers) == set(range(8, 23)) - {17}  # no renderer has rules of its own
    assert len({s.name for s in STAGES}) == len(STAGES)


# --- 8


def test_a_choice_becomes_the_gate_of_a_load() -> None:
    o, x = buffers(8, 8)
    r = rng(8, 0)
    before = alu(Ops.WHERE, r < 5, read(x, r), const(float32, 0.0))
    after = rewrite(before, post_opt_rules)
    assert after is read(x, r, r < 5)
    kept = rewrite(alu(Ops.WHERE, r < 5, read(x, r), const(float32, 2.0)), post_opt_rules)
    assert kept.op is Ops.WHERE and kept.src[1] is read(x, r, r < 5)
    # a gated read is 0 where the gate is false, not -0
    negative = rewrite(alu(Ops.WHERE, r < 5, read(x, r), const(float32, -0.0)), post_opt_rules)
    assert negative.op is Ops.WHERE
    assert o.op is Ops.DEFINE_GLOBAL


def test_a_place_is_simplified_under_its_gate() -> None:
    _, x = buffers(8, 8)
    r = rng(16, 0)
    after = rewrite(read(x, r % 8, r < 8), post_opt_rules)
    assert after is read(x, r, r < 8)
    assert rewrite(read(x, r, r < 0), post_opt_rules) is const(float32, 0.0)
    assert rewrite(read(x, r, r < 99), post_opt_rules) is read(x, r)


def test_a_loop_of_one_step_is_none() -> None:
    o, x = buffers(1, 1)
    r, c = rng(1, 0), rng(1, 1, REDUCE)
    after = rewrite(sink(write(o, r, reduce_(read(x, c), Ops.ADD, [c]), r)), post_opt_rules)
    assert not nodes(after, Ops.RANGE) and not nodes(after, Ops.REDUCE) and not nodes(after, Ops.END)


# --- 9


def test_upcast_becomes_lanes() -> None:
    after = expand_stage(split(add(8), 0, 4, UPCAST), Context(NEON))
    (stored,) = nodes(after, Ops.STORE)
    assert stored.src[1].dtype is float32.vec(4)
    (loop,) = nodes(after, Ops.RANGE)
    assert closed_ranges(after.src[0]) == (loop,) and loop.arg[1] is LOOP
    assert vector_constant(index, (0, 1, 2, 3)) in toposort(after)


def test_lanes_of_several_axes_are_ordered_by_axis() -> None:
    o, x, y = buffers(6, 2, 3)
    a, b = rng(2, 0, UPCAST), rng(3, 1, UPCAST)
    after = expand_stage(sink(write(o, a * 3 + b, read(x, a) + read(y, b), a, b)), Context(NEON))
    (sum_,) = [n for n in nodes(after, Ops.ADD) if n.dtype.is_float]
    assert sum_.dtype.lanes == 6
    assert sum_.src[0].arg == (0, 0, 0, 1, 1, 1) and sum_.src[1].arg == (0, 1, 2, 0, 1, 2)


def test_unroll_travels_with_the_reduced_value() -> None:
    after = expand_stage(split(row_sum(2, 8), 1, 4, UNROLL), Context(NEON))
    (sum_,) = nodes(after, Ops.REDUCE)
    assert sum_.dtype is float32 and sum_.src[0].dtype is float32.vec(4) and len(sum_.src) == 2


def test_group_for_reduce_has_two_stages() -> None:
    kernel = split(row_sum(2, 64), 1, 8, AxisKind.GROUP_REDUCE)
    after = expand_stage(kernel, Context(GPU))
    outer, inner = sorted(nodes(after, Ops.REDUCE), key=lambda n: len(toposort(n)), reverse=True)
    (buffer,) = nodes(after, Ops.BUFFERIZE)
    assert buffer.src[0] is inner and buffer.src[1].arg[1] is AxisKind.GROUP_REDUCE
    assert outer.src[1].arg[1] is REDUCE and outer.src[0].src[0] is buffer


# --- 10


def test_a_local_buffer_is_filled_by_its_own_loop() -> None:
    o, x = buffers(12, 12)
    r, c, d = rng(3, 0), rng(4, 1), rng(4, 2)
    row = bufferize(read(x, r * 4 + c), c, arg=("local", "row"))
    kernel = sink(write(o, r * 4 + d, make(Ops.INDEX, float32, (row, d)), r, d))
    after = local_stage(kernel, Context(NEON))
    (memory,) = nodes(after, Ops.DEFINE_LOCAL)
    assert memory.dtype.size == 4 and memory.arg == "row"
    fill = next(n for n in nodes(after, Ops.END) if closed_ranges(n) == (c,))
    assert fill.src[0].op is Ops.STORE and any(fill in n.src for n in nodes(after, Ops.AFTER))
    assert not nodes(after, Ops.BARRIER)


def test_threads_of_a_block_wait_for_a_shared_buffer() -> None:
    o, x = buffers(4, 4)
    l = rng(4, 0, AxisKind.LOCAL)
    shared = bufferize(read(x, l), l, arg=("local", "tile"))
    kernel = sink(write(o, l, make(Ops.INDEX, float32, (shared, (l * -1) + 3)), l))
    assert nodes(local_stage(kernel, Context(GPU)), Ops.BARRIER)


def test_a_shared_buffer_in_a_loop_is_not_filled_while_it_is_read() -> None:
    o, x = buffers(8, 32)
    l, k = rng(8, 0, AxisKind.LOCAL), rng(4, 1, REDUCE)
    tile = bufferize(read(x, k * 8 + l), l, arg=("local", "tile"))
    value = reduce_(make(Ops.INDEX, float32, (tile, (l * -1) + 7)), Ops.ADD, [k])
    ops = [n.op for n in lower(sink(write(o, l, value, l)), GPU).src]
    first, last = (i for i, op in enumerate(ops) if op is Ops.BARRIER)
    stored = ops.index(Ops.STORE, first)
    assert ops.index(Ops.RANGE) < first < stored < last < ops.index(Ops.END)


# --- 11


def test_a_reduction_becomes_an_accumulator() -> None:
    after = reduce_stage(row_sum(3, 5), Context(NEON))
    assert not nodes(after, Ops.REDUCE)
    (register,) = nodes(after, Ops.DEFINE_REG)
    start, update = [s for s in nodes(after, Ops.STORE) if register in toposort(s.src[0])]
    assert const(float32, 0.0) in (start.src[1], update.src[1])


def test_lanes_of_a_sum_stay_in_the_accumulator() -> None:
    kernel = split(row_sum(3, 64), 1, 16, UNROLL)
    (register,) = nodes(through(kernel, "11"), Ops.DEFINE_REG)
    assert register.dtype.size == 16
    # one horizontal step after the loop
    assert len(nodes(through(kernel, "11"), Ops.VREDUCE)) == 1
    # on a device with scalar arithmetic the lanes are added one after the other
    (scalar,) = nodes(through(kernel, "11", GPU), Ops.DEFINE_REG)
    assert scalar.dtype.size == 1


def test_products_are_added_with_one_rounding() -> None:
    assert nodes(through(matmul(4, 4, 4), "11"), Ops.MULACC)
    plain = Machine("plain", scalar_alu=True, fma=False)
    assert not nodes(through(matmul(4, 4, 4), "11", plain), Ops.MULACC)


def test_written_out_windows_are_added_with_one_rounding() -> None:
    """Three products for each of eight places, of elements side by side: one, and two added to it."""
    o, x, w = buffers(64, 66, 3)
    r, k = rng(64, 0), rng(3, 1, REDUCE)
    kernel = sink(write(o, r, reduce_(read(x, r + k) * read(w, k), Ops.ADD, [k]), r))
    lanes = split(split(kernel, 1, 3, UNROLL), 0, 8, UPCAST)
    after = through(lanes, "11")
    assert len(nodes(after, Ops.MULACC)) == 2
    assert not [n for n in nodes(after, Ops.ADD) if n.dtype.is_float]


def test_independent_reductions_share_a_loop() -> None:
    o, x = buffers(8, 32)
    r, c, d = rng(4, 0), rng(8, 1, REDUCE), rng(8, 2, REDUCE)
    top, total = reduce_(read(x, r * 8 + c), Ops.MAX, [c]), reduce_(read(x, r * 8 + d), Ops.ADD, [d])
    shared = share_loops(sink(write(o, r, top + total, r)))
    assert len({closed_ranges(n) for n in nodes(shared, Ops.REDUCE)}) == 1
    # softmax needs the maximum before it can sum
    apart = share_loops(softmax(4, 8))
    assert len({closed_ranges(n) for n in nodes(apart, Ops.REDUCE)}) == 2


def test_a_dependent_reduction_gets_its_own_loop() -> None:
    o, x = buffers(4, 32)
    r, c = rng(4, 0), rng(8, 1, REDUCE)
    top = reduce_(read(x, r * 8 + c), Ops.MAX, [c])
    after = own_ranges(sink(write(o, r, reduce_(read(x, r * 8 + c) - top, Ops.ADD, [c]), r)))
    loops = [closed_ranges(n)[0] for n in nodes(after, Ops.REDUCE)]
    assert len(set(loops)) == 2 and loops[0].src == loops[1].src


def test_sharing_a_loop_looks_at_everybody_in_it() -> None:
    o, x = buffers(4, 32)
    r = rng(4, 0)
    c, d, e = (rng(8, i, REDUCE) for i in (1, 2, 3))
    one = reduce_(read(x, r * 8 + c), Ops.ADD, [c])
    top = reduce_(read(x, r * 8 + d), Ops.MAX, [d])
    # needs the maximum, but not the first sum, with which the maximum shares its loop
    rest = reduce_(read(x, r * 8 + e) - top, Ops.ADD, [e])
    after = own_ranges(share_loops(share_loops(sink(write(o, r, one + rest, r)))))
    loops = {n.arg: closed_ranges(n) for n in nodes(after, Ops.REDUCE) if n.arg == (Ops.MAX,)}
    sums = [closed_ranges(n) for n in nodes(after, Ops.REDUCE) if n.arg == (Ops.ADD,)]
    assert len(set(sums)) == 2 and loops[(Ops.MAX,)] in sums


def test_a_matrix_unit_adds_by_itself() -> None:
    from morok.codegen.vector.accumulators import accumulate

    a, b, c, total = (read(x, 0) for x in buffers(1, 1, 1, 1))
    product = make(Ops.WMMA, float32, (a, b, c), "unit")
    assert accumulate(Ops.ADD, total, product, True) is make(Ops.WMMA, float32, (a, b, c + total), "unit")


# --- 12


def test_ranges_become_hardware_indices() -> None:
    o, x = buffers(128, 128)
    g, l = rng(4, 0, AxisKind.GLOBAL), rng(32, 1, AxisKind.LOCAL)
    after = dims_stage(sink(write(o, g * 32 + l, read(x, g * 32 + l), g, l)), Context(GPU))
    assert {n.arg for n in nodes(after, Ops.SPECIAL)} == {"gidx0", "lidx0"}
    assert not nodes(after, Ops.END) and not nodes(after, Ops.RANGE)


def test_too_many_and_too_large_dimensions() -> None:
    assert group_dims([2, 3, 4, 5], (100, 100, 100)) == [[2, 3], [4], [5]]
    assert group_dims([200, 200], (100,)) is None
    assert split_dim(2048, (1024, 1024)) == [1024, 2]
    assert split_dim(2053, (1024, 1024)) is None
    o, x = buffers(120, 120)
    rs = [rng(n, i, AxisKind.GLOBAL) for i, n in enumerate((2, 3, 4, 5))]
    flat = ((rs[0] * 3 + rs[1]) * 4 + rs[2]) * 5 + rs[3]
    small = Machine("small", scalar_alu=True, global_dims=(64, 64, 64))
    after = dims_stage(sink(write(o, flat, read(x, flat), *rs)), Context(small))
    assert len(nodes(after, Ops.SPECIAL)) == 3
    huge = rng(1 << 20, 0, AxisKind.GLOBAL)
    a, b = buffers(1 << 20, 1 << 20)
    parts = dims_stage(
        sink(write(a, huge, read(b, huge), huge)),
        Context(Machine("s", scalar_alu=True, global_dims=(1024, 1024))),
    )
    assert len(nodes(parts, Ops.SPECIAL)) == 2
    with pytest.raises(CompileError, match="do not fit"):
        prime = rng(1031, 0, AxisKind.GLOBAL)
        dims_stage(
            sink(write(a, prime, read(b, prime), prime)),
            Context(Machine("s", scalar_alu=True, global_dims=(64, 64))),
        )


def test_a_store_that_ignores_a_thread_index_is_masked() -> None:
    o, x = buffers(4, 128)
    g, l = rng(4, 0, AxisKind.GLOBAL), rng(32, 1, AxisKind.LOCAL)
    after = dims_stage(sink(write(o, g, read(x, g * 32 + l), g, l)), Context(GPU))
    (stored,) = nodes(after, Ops.STORE)
    assert len(stored.src[0].src) == 3 and stored.src[0].src[2].op is Ops.CMPEQ


def test_a_device_without_a_grid_loops() -> None:
    o, x = buffers(8, 8)
    g, t = rng(2, 0, AxisKind.GLOBAL), rng(4, 1, AxisKind.THREAD)
    after = dims_stage(sink(write(o, g * 4 + t, read(x, g * 4 + t), g, t)), Context(NEON))
    assert {r.arg[1] for r in nodes(after, Ops.RANGE)} == {LOOP, AxisKind.THREAD}


# --- 13, 14


def test_reads_become_loads() -> None:
    _, x = buffers(8, 8)
    r = rng(8, 0)
    assert rewrite(read(x, r), load_rules) is load(index_(x, r))
    guarded = rewrite(read(x, r, r < 3), load_rules)
    assert guarded.op is Ops.LOAD and guarded.src[1] is const(float32, 0.0)


def test_what_always_holds_guards_nothing() -> None:
    _, x = buffers(8, 8)
    r, value = rng(8, 0), const(float32, 1.0)
    for gate, plain in ((const(bool_, True), True), (r < 3, False), (const(bool_, False), False)):
        address = make(Ops.INDEX, x.dtype, (x, r, gate))
        read, written = make(Ops.LOAD, float32, (address, value)), store(address, value)
        assert rewrite(read, certain_rules) is (load(index_(x, r)) if plain else read)
        assert rewrite(written, certain_rules) is (store(index_(x, r), value) if plain else written)


def vector_load(place: UOp, target: Machine = NEON, gate: UOp | None = None) -> UOp:
    x = define_global(float32, 1024, 0)
    sources = (x, place) if gate is None else (x, place, gate)
    address = make(Ops.INDEX, x.dtype.vec(place.dtype.lanes), sources)
    others = () if gate is None else (const(float32.vec(place.dtype.lanes), 0.0),)
    return rewrite(
        make(Ops.LOAD, float32.vec(place.dtype.lanes), (address, *others)), devectorize_rules, Context(target)
    )


def test_neighbours_are_loaded_together() -> None:
    r = rng(8, 0)
    start = splat(r * 8, 8)
    after = vector_load(start + vector_constant(index, range(8)))
    assert [n.dtype.lanes for n in nodes(after, Ops.LOAD)] == [4, 4] and after.op is Ops.CAT
    backwards = vector_load(start + vector_constant(index, range(7, -1, -1)))
    assert [n.dtype.lanes for n in nodes(backwards, Ops.LOAD)] == [4, 4]
    strided = vector_load(splat(r * 8, 4) + vector_constant(index, (0, 2, 4, 6)))
    assert [n.dtype.lanes for n in nodes(strided, Ops.LOAD)] == [1, 1, 1, 1]
    same = vector_load(splat(r * 8, 4))
    (single,) = nodes(same, Ops.LOAD)
    assert single.dtype is float32 and same is splat(single, 4)


def test_lengths_are_those_of_the_device() -> None:
    lanes = vector_constant(index, range(7))
    # whole vectors, of which the last begins before the other ends
    assert [n.dtype.lanes for n in nodes(vector_load(lanes), Ops.LOAD)] == [4, 4]
    wide = Machine("avx512", vector_bytes=64, masked_memory=True)
    assert [n.dtype.lanes for n in nodes(vector_load(vector_constant(index, range(16)), wide), Ops.LOAD)] == [
        16
    ]


def test_gates_per_lane_are_masks_where_the_device_has_them() -> None:
    r = rng(8, 0)
    place = splat(r * 4, 4) + vector_constant(index, range(4))
    gate = place < splat(const(index, 30), 4)
    masked = Machine("avx", vector_bytes=16, masked_memory=True)
    (one,) = nodes(vector_load(place, masked, gate), Ops.LOAD)
    assert one.src[0].src[2].dtype is bool_.vec(4)
    # r*4 + 0 and r*4 + 1 are below 30 together, and so are the two others
    assert [n.dtype.lanes for n in nodes(vector_load(place, NEON, gate), Ops.LOAD)] == [2, 2]
    uneven = splat(r, 4) + vector_constant(index, range(4))
    gate = uneven < splat(const(index, 5), 4)
    assert [n.dtype.lanes for n in nodes(vector_load(uneven, NEON, gate), Ops.LOAD)] == [1, 1, 1, 1]


def test_arithmetic_is_cut_to_registers() -> None:
    x = load(index_(define_global(float32, 64, 0), 0))
    wide = make(
        Ops.ADD, float32.vec(10), (splat(x, 10), vector_constant(float32, [float(i) for i in range(10)]))
    )
    after = rewrite(wide, devectorize_rules, Context(NEON))
    assert [n.dtype.lanes for n in nodes(after, Ops.ADD)] == [4, 4, 2]
    scalar = rewrite(wide, devectorize_rules, Context(GPU))
    assert {n.dtype.lanes for n in nodes(scalar, Ops.ADD)} == {1}


def test_truths_are_cut_like_what_was_compared() -> None:
    """Sixteen truths would fit one register, but comparing floats leaves them in four."""
    out, x = define_global(float32, 16, 0), define_global(float32, 16, 1)
    i = rng(16, 0, UPCAST)
    value = read(x, i)
    either = alu(Ops.OR, alu(Ops.CMPLT, value, const(float32, 1.0)), alu(Ops.CMPNE, value, value))
    chosen = alu(Ops.WHERE, either, value, const(float32, 0.0))
    after = through(sink(end(store(index_(out, i), chosen), i)), "14")
    assert [n.dtype.lanes for n in nodes(after, Ops.OR)] == [4] * 4


def test_vector_reductions_are_trees() -> None:
    lanes = [read(define_global(float32, 8, 0), i) for i in range(8)]
    after = rewrite(make(Ops.VREDUCE, float32, (gather(lanes),), Ops.ADD), devectorize_rules, Context(NEON))
    assert not nodes(after, Ops.VREDUCE)
    assert sorted(n.dtype.lanes for n in nodes(after, Ops.ADD)) == [1, 2, 4]


def test_lanes() -> None:
    x, y = (read(b, 0) for b in buffers(1, 1))
    v = gather([x, y, x, y])
    assert swizzle(v, (1,)) is y and swizzle(swizzle(v, (3, 2)), (1,)) is x
    assert gather([swizzle(make(Ops.NEG, v.dtype, (v,)), (i,)) for i in range(4)]) is make(
        Ops.NEG, v.dtype, (v,)
    )
    assert concat([splat(x, 2), splat(y, 2)]).dtype.lanes == 4
    assert lane(make(Ops.ADD, v.dtype, (v, v)), 1) is alu(Ops.ADD, y, y)


# --- 14a to 15


def test_booleans_are_bytes_in_memory() -> None:
    flags = define_global(bool_, 4, 0)
    r = rng(4, 0)
    kernel = sink(end(store(index_(flags, r), ~load(index_(flags, r))), r))
    after = rewrite(kernel, bool_rules)
    (loaded,), (stored,) = nodes(after, Ops.LOAD), nodes(after, Ops.STORE)
    assert loaded.dtype is uint8 and stored.src[1].dtype is uint8


def test_indices_are_flattened() -> None:
    x = define_global(float32, 12, 0)
    i, j = rng(3, 0), rng(4, 1)
    assert rewrite(make(Ops.INDEX, x.dtype, (x, i, j), (3, 4)), flatten_rules) is index_(x, i * 4 + j)


def test_sibling_ends_are_merged() -> None:
    a, b, x = buffers(4, 8, 8)
    r, c = rng(4, 0), rng(2, 1)
    one, two = write(a, r, read(x, r), r), write(b, r * 2 + c, read(x, r * 2 + c), r, c)
    after = merge_sibling_ends(sink(one, two))
    (outer,) = after.src
    assert closed_ranges(outer) == (r,) and outer.src[0].op is Ops.GROUP
    assert [n.op for n in outer.src[0].src] == [Ops.STORE, Ops.END]


def test_index_types_follow_the_bounds() -> None:
    small, large = rng(1000, 0), rng(1 << 40, 1)
    x = define_global(float32, 1 << 41, 0)
    first = lower_index(index_(x, small * 4 + 1), Context(NEON))
    assert first.src[1].dtype is int32
    second = lower_index(index_(x, small + large), Context(NEON))
    assert second.src[1].dtype is int64 and {r.dtype for r in nodes(second, Ops.RANGE)} == {int32, int64}
    # the product leaves 32 bits although its factors do not
    assert lower_index(index_(x, small * 5_000_000), Context(NEON)).src[1].dtype is int64
    wide = Machine("wide", scalar_alu=True, wide_index=True)
    assert lower_index(index_(x, small), Context(wide)).src[1].dtype is int64
    n = variable("n", 0, 10)
    assert lower_index(index_(x, n), Context(NEON)).src[1].dtype is int32
    assert not [m for m in toposort(lower_index(small * 3 < n, Context(NEON))) if m.dtype.is_index]


def test_windows_that_overlap_are_read_each_for_itself() -> None:
    """As one run of 10 they would be 4, 4 and 2, and the second vector would be put together out of two."""
    r = rng(8, 0)
    lanes = [i + k for k in range(3) for i in range(4)]
    loads = nodes(vector_load(splat(r * 16, 12) + vector_constant(index, lanes)), Ops.LOAD)
    assert [n.dtype.lanes for n in loads] == [4, 4, 4]
    apart = [i + 4 * k for k in (0, 1, 0) for i in range(4)]  # side by side, and one of them twice
    assert len(nodes(vector_load(splat(r * 16, 12) + vector_constant(index, apart)), Ops.LOAD)) == 2


@pytest.mark.parametrize("step", [2, 3, 4, 5])
def test_what_lies_a_few_elements_apart_is_read_with_what_lies_between(step: int) -> None:
    """As scalars each element is a load and an insertion."""

    def lanes_of_loads(machine: Machine, limit: int = 0) -> list[int]:
        x, count = define_global(float32, 256, 0), machine.vector_bytes // 4
        place = splat(rng(2, 0) * 128, count) + vector_constant(index, [i * step for i in range(count)])
        gate = (place < splat(const(index, limit), count),) if limit else ()
        node = make(Ops.INDEX, float32.vec(count), (x, place, *gate))
        loaded = rewrite(rewrite(node, load_rules, Context(machine)), devectorize_rules, Context(machine))
        return [n.dtype.lanes for n in nodes(loaded, Ops.LOAD)]

    wide = Machine("avx512", vector_bytes=64, masked_memory=True)
    assert lanes_of_loads(NEON) == ([4, 4] if step == 2 else [1] * 4)
    assert (16 in lanes_of_loads(wide)) is (step <= 4)
    # a condition by lane is a mask, where there are masks
    assert lanes_of_loads(NEON, 132) == [1] * 4
    assert (16 in lanes_of_loads(wide, 140)) is (step <= 4)
