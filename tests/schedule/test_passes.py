"""Every pass of the pipeline: a graph before, the graph after."""

from __future__ import annotations

import pytest

from morok import knobs
from morok.dtype import bool_, float32, int32, int64, void
from morok.dtype import index as index_dtype
from morok.ir import build, movement
from morok.ir.infer import ranges, shape
from morok.ir.node import UOp, alu, const, make, toposort
from morok.ir.ops import Ops
from morok.ir.text import expr
from morok.rewrite.engine import rewrite
from morok.rewrite.loops import share_loops
from morok.rewrite.stage import describe
from morok.schedule.graph.boundaries import drop_copies, keep_outputs, transfer_rules
from morok.schedule.graph.fusion import choose_buffers
from morok.schedule.graph.split_reductions import split_reductions
from morok.schedule.graph.stages import GRAPH_STAGES
from morok.schedule.graph.states import keep_old_values
from morok.schedule.graph.views import SHARD, views
from morok.schedule.kernel.gates import gates
from morok.schedule.kernel.lower import lower_kernel
from morok.schedule.kernel.probe import collapse
from morok.schedule.kernel.ranges import merge_ranges, split_ranges
from morok.schedule.kernel.reductions import reductions
from morok.schedule.kernel.stages import KERNEL_STAGES
from morok.symbolic.sets import symbolic


def param(number: int, *sizes: int, dtype: object = float32, device: str = "CPU") -> UOp:
    count = 1
    for size in sizes:
        count *= size
    return movement.reshape(make(Ops.PARAM, dtype, (), (number, count, device)), sizes)  # type: ignore[arg-type]


def sink(*nodes: UOp) -> UOp:
    return make(Ops.SINK, void, nodes)


def kernel(value: UOp) -> UOp:
    """A kernel that stores the value into memory 0."""
    sizes = shape(value)
    assert sizes is not None
    target = param(0, *sizes, dtype=value.dtype)  # type: ignore[arg-type]
    return lower_kernel(sink(make(Ops.ASSIGN, value.dtype, (target, value))))


def stored(graph: UOp) -> UOp:
    """The value that a kernel stores."""
    return graph.src[0].src[0].src[1]


def count(graph: UOp, *ops: object) -> int:
    return sum(n.op in ops for n in toposort(graph))


def simple(graph: UOp) -> UOp:
    return rewrite(graph, symbolic)


def reduced(x: UOp, *axes: int, op: object = Ops.ADD) -> UOp:
    return movement.reduce_axis(x, op, axes)  # type: ignore[arg-type]


# --- the tables


def test_there_are_enough_passes_and_each_says_what_it_does() -> None:
    stages = GRAPH_STAGES + KERNEL_STAGES
    assert len(stages) >= 13
    assert len({s.name for s in stages}) == len({s.number for s in stages}) == len(stages)
    assert [s.number for s in stages] == sorted(s.number for s in stages)
    assert all(s.name in describe(stages) and s.meaning in describe(stages) for s in stages)


# --- 1: the tensor graph


@pytest.mark.parametrize(
    "before, after",
    [
        (
            lambda x: movement.reshape(movement.reshape(x, (6, 2)), (12,)),
            lambda x: movement.reshape(x, (12,)),
        ),
        (lambda x: movement.permute(movement.permute(x, (1, 0)), (1, 0)), lambda x: x),
        (
            lambda x: movement.flip(movement.flip(x, (True, True)), (True, False)),
            lambda x: movement.flip(x, (False, True)),
        ),
        (
            lambda x: movement.shrink(movement.shrink(x, ((1, 3), (0, 4))), ((1, 2), (1, 3))),
            lambda x: movement.shrink(x, ((2, 3), (1, 3))),
        ),
        (
            lambda x: movement.pad(movement.pad(x, ((1, 0), (0, 2))), ((1, 1), (0, 1))),
            lambda x: movement.pad(x, ((2, 1), (0, 3))),
        ),
        (lambda x: make(Ops.DETACH, x.dtype, (x,)), lambda x: x),
        (
            lambda x: make(Ops.RECOMPUTE, x.dtype, (x, x)),
            lambda x: make(Ops.RECOMPUTE, x.dtype, (x, x)),
        ),
        (
            lambda x: make(Ops.CONTIGUOUS, x.dtype, (make(Ops.CONTIGUOUS, x.dtype, (x,)),)),
            lambda x: make(Ops.CONTIGUOUS, x.dtype, (x,)),
        ),
        (
            lambda x: make(Ops.CONTIGUOUS, x.dtype, (make(Ops.CONTIGUOUS, x.dtype, (x,)),), "an output"),
            lambda x: make(Ops.CONTIGUOUS, x.dtype, (x,)),
        ),
        (
            lambda x: make(Ops.CONTIGUOUS, x.dtype, (make(Ops.CONTIGUOUS, x.dtype, (x,)),), SHARD + "y"),
            lambda x: make(Ops.CONTIGUOUS, x.dtype, (make(Ops.CONTIGUOUS, x.dtype, (x,)),), SHARD + "y"),
        ),
    ],
)
def test_early_movement(before: object, after: object) -> None:
    x = alu(Ops.NEG, param(0, 3, 4))
    assert rewrite(before(x), views) is after(x)  # type: ignore[operator]


def test_a_box_of_a_box_that_starts_anywhere_keeps_its_shape() -> None:
    x = alu(Ops.NEG, param(0, 12))
    k, j = build.variable("k", 0, 8), build.variable("j", 0, 2)
    box = movement.shrink(x, ((k, k + 4),))
    for limits, size in (((0, 3), 3), ((1, 3), 2), ((j, j + 1), 1)):
        found = rewrite(movement.shrink(box, (limits,)), views)
        assert found.op is Ops.SHRINK and found.src[0] is x and shape(found) == (size,)


def test_plain_memory_is_not_copied_unless_it_is_overwritten() -> None:
    x = param(0, 3, 4)
    copy = make(Ops.CONTIGUOUS, x.dtype, (x,))
    assert drop_copies(sink(copy)) is sink(x)
    flipped = make(Ops.CONTIGUOUS, x.dtype, (movement.flip(x, (True, False)),))
    assert drop_copies(sink(flipped)) is sink(flipped)
    write = make(Ops.ASSIGN, x.dtype, (x, param(1, 3, 4)))
    assert drop_copies(sink(copy, write)) is sink(copy, write)


def test_outputs_become_buffers() -> None:
    x = param(0, 3, 4)
    view, value = movement.flip(x, (True, False)), alu(Ops.NEG, x)
    after = keep_outputs(sink(view, value))
    assert after.src[0] is view, "a view of memory is not computed"
    assert after.src[1].op is Ops.CONTIGUOUS and after.src[1].src[0] is value


def test_an_output_that_others_use_is_read_from_memory() -> None:
    x = alu(Ops.EXP, param(0, 3, 4))
    flat = movement.reshape(x, (12,))
    after = keep_outputs(sink(flat, alu(Ops.NEG, x)))
    assert after.src[0].op is Ops.RESHAPE and after.src[0].src[0].op is Ops.CONTIGUOUS
    assert after.src[1].src[0].src[0] is after.src[0].src[0]
    three = const(float32, 3.0)
    after = keep_outputs(sink(three, alu(Ops.MUL, x, three)))
    assert after.src[1].src[0].src[1] is three, "a number stays a number"


def test_old_values_are_kept_before_a_write() -> None:
    x = param(0, 4)
    old = alu(Ops.NEG, x)
    new = make(Ops.AFTER, x.dtype, (x, make(Ops.ASSIGN, x.dtype, (x, param(1, 4)))))
    mixed = alu(Ops.ADD, old, new)
    (after,) = keep_old_values(sink(mixed)).src
    assert after.src[0].op is Ops.CONTIGUOUS and after.src[0].src[0] is old and after.src[1] is new
    assert keep_old_values(sink(old, new)) is sink(old, new), "two kernels may read two states"


def test_transfers_are_stored_first() -> None:
    x = alu(Ops.NEG, param(0, 4))
    device = make(Ops.DEVICE, void, (), "GPU")
    (after,) = rewrite(sink(make(Ops.COPY, x.dtype, (x, device))), transfer_rules).src
    assert after.op is Ops.COPY and after.src[0].op is Ops.CONTIGUOUS and after.src[0].src[0] is x
    y = param(0, 2, 2)
    (after,) = rewrite(
        sink(make(Ops.COPY, y.dtype, (movement.permute(y, (1, 0)), device))), transfer_rules
    ).src
    assert after.op is Ops.PERMUTE, "memory is copied as it lies; the view is taken over there"


def test_long_reductions_are_split() -> None:
    total = reduced(param(0, 1 << 20), 0)
    after = split_reductions(sink(total))
    assert count(after, Ops.REDUCE_AXIS) == 2 and count(after, Ops.CONTIGUOUS) == 1
    unknown = reduced(param(0, 1 << 20, device="elsewhere"), 0)
    assert split_reductions(sink(unknown)) is sink(unknown)
    with knobs.override(SPLIT_REDUCE=65536):
        assert count(split_reductions(sink(unknown)), Ops.REDUCE_AXIS) == 2
    short, wide = reduced(param(0, 1 << 12), 0), reduced(param(0, 4096, 1 << 12), 1)
    assert split_reductions(sink(short, wide)) is sink(short, wide)


def test_many_rows_are_shared_by_threads() -> None:
    """Each thread adds up rows of its own for all columns; few rows, and rows of many blocks, are left."""
    after = split_reductions(sink(reduced(param(0, 4096, 512), 0)))
    (kept,) = [n for n in toposort(after) if n.op is Ops.CONTIGUOUS]
    assert shape(kept) == (16, 1, 512)
    for x, axis in ((param(0, 64, 65536), 0), (param(0, 64, 1024, 512), 1), (param(0, 1024, 64), 0)):
        alone = sink(reduced(x, axis))
        assert split_reductions(alone) is alone
    x = param(0, 4096, 512)
    mean = alu(Ops.MUL, reduced(x, 0), const(float32, 1 / 4096))
    wide = alu(Ops.SUB, x, movement.expand(mean, (4096, 512)))
    kept = [n for n in toposort(split_reductions(sink(wide))) if n.op is Ops.CONTIGUOUS]
    assert [shape(n) for n in kept] == [(16, 1, 512), (1, 512)], "what every row needs is added up once"
    rows, columns = movement.reshape(param(0, 2048, 64), (2048, 64, 1)), param(1, 2048, 1, 64)
    product = alu(Ops.MUL, movement.expand(rows, (2048, 64, 64)), movement.expand(columns, (2048, 64, 64)))
    alone = sink(reduced(product, 0))
    assert split_reductions(alone) is alone, "a matrix product is tiled"


def test_the_outer_one_of_several_axes_names_the_pieces() -> None:
    total = movement.reduce_axis(param(0, 1000, 999), Ops.ADD, (0, 1))
    after = split_reductions(sink(total))
    (kept,) = [n for n in toposort(after) if n.op is Ops.CONTIGUOUS]
    assert shape(kept) == (50, 1, 1)


def test_pieces_that_do_not_divide_an_axis_leave_a_rest() -> None:
    total = reduced(param(0, (1 << 20) + 7), 0)
    after = split_reductions(sink(total))
    assert count(after, Ops.REDUCE_AXIS) == 3 and count(after, Ops.SHRINK) == 2
    assert shape(after.src[0]) == shape(total)


def test_a_long_gather_is_not_split() -> None:
    size = 1 << 19
    where = make(Ops.CMPEQ, bool_, (movement.iota((size,), 0, int32), const(int32, 5)))
    table = param(0, size)
    chosen = make(Ops.WHERE, float32, (where, table, const(float32, 0.0)))
    total = reduced(chosen, 0)
    assert split_reductions(sink(total)) is sink(total)


def test_long_reductions_are_split_on_a_gpu() -> None:
    """Blocks cannot add to one sum, so a few long sums are many short ones first."""

    total = reduced(param(0, 1 << 10, 1 << 10, device="CUDA:1"), 0, 1)
    after = split_reductions(sink(total))
    assert count(after, Ops.REDUCE_AXIS) == 2 and count(after, Ops.CONTIGUOUS) == 1
    first = next(n for n in toposort(after) if n.op is Ops.CONTIGUOUS)
    assert shape(first) == (1 << 10, 1, 1)  # pieces of the outermost axis, which lie far apart
    many = reduced(param(0, 1 << 10, 1 << 17, device="CUDA"), 1)
    assert split_reductions(sink(many)) is sink(many), "a block for each fills the machine"
    short = reduced(param(0, 1 << 14, device="CUDA"), 0)
    assert split_reductions(sink(short)) is sink(short)


def test_a_gather_is_not_split() -> None:
    """A lookup is a sum over all rows until it collapses; two stages of it would be loops."""
    n = 1 << 16
    table, row = param(0, n, device="CUDA"), param(1, 1, dtype=int32, device="CUDA")
    found = alu(Ops.CMPEQ, movement.iota((n,), 0, int32), movement.expand(row, (n,)))
    nothing = movement.expand(movement.reshape(const(float32, 0.0), (1,)), (n,))
    chosen = alu(Ops.WHERE, found, table, nothing)
    lookup = reduced(chosen, 0)
    assert split_reductions(sink(lookup)) is sink(lookup)
    dense = reduced(alu(Ops.MUL, table, table), 0)
    assert split_reductions(sink(dense)) is not sink(dense)


def test_choose_buffers_marks_what_is_kept() -> None:
    x, w, v = param(0, 64, 256), param(1, 256, 64), param(2, 64, 256)
    hidden = _product(x, w)
    out = make(Ops.CONTIGUOUS, x.dtype, (_product(hidden, v),))
    after = choose_buffers(sink(out))
    kept = [n for n in toposort(after) if n.op is Ops.CONTIGUOUS and n.arg]
    assert len(kept) == 1 and shape(kept[0]) in ((64, 64), (64, 64, 1)) and "computed" in kept[0].arg


def _product(a: UOp, b: UOp) -> UOp:
    (m, k), (_, n) = shape(a), shape(b)  # type: ignore[misc]
    left = movement.expand(movement.reshape(a, (m, 1, k)), (m, n, k))
    right = movement.expand(movement.reshape(movement.permute(b, (1, 0)), (1, n, k)), (m, n, k))
    return movement.reshape(reduced(alu(Ops.MUL, left, right), 2), (m, n))


# --- 2: ranges


def test_movement_becomes_index_arithmetic() -> None:
    x = movement.permute(movement.shrink(param(1, 4, 6), ((1, 4), (2, 6))), (1, 0))
    value = stored(simple(kernel(x)))
    assert expr(value) == "data1[r0 + r1*6 + 8]"


def test_padding_becomes_a_gate() -> None:
    value = stored(rewrite(simple(kernel(movement.pad(param(1, 4), ((2, 1),)))), gates))
    assert value.op is Ops.INDEX and len(value.src) == 3
    assert count(value, Ops.WHERE) == 0, "a read is 0 outside of its gate anyway"
    reversed_ = stored(
        rewrite(simple(kernel(movement.flip(movement.pad(param(1, 4), ((2, 1),)), (True,)))), gates)
    )
    assert reversed_.op is Ops.INDEX and len(reversed_.src) == 3


def test_a_padded_function_chooses_zero() -> None:
    value = stored(simple(kernel(movement.pad(alu(Ops.EXP, param(1, 4)), ((0, 3),)))))
    assert value.op is Ops.WHERE and value.src[2] is const(float32, 0)
    read = next(n for n in toposort(value) if n.op is Ops.INDEX)
    assert read.src[2] is value.src[0], "memory is only touched where there is some"


def test_equal_questions_have_one_answer() -> None:
    x = param(1, 8, 16)
    top = movement.expand(reduced(x, 1, op=Ops.MAX), (8, 16))
    graph = kernel(alu(Ops.MUL, alu(Ops.SUB, x, top), top))
    assert count(graph, Ops.REDUCE) == 1
    (effect,) = graph.src
    (reduction,) = (n for n in toposort(graph) if n.op is Ops.REDUCE)
    assert ranges(reduction) == {effect.src[1]}


def test_an_empty_reduction_is_its_neutral_element() -> None:
    assert stored(kernel(reduced(param(1, 0, 3), 0))) is const(float32, 0.0)
    assert stored(kernel(reduced(param(1, 0, 3), 0, op=Ops.MAX))) is const(float32, float("-inf"))


def test_positions_are_the_index_itself() -> None:
    value = stored(simple(kernel(movement.iota((4, 6), 1, int32))))
    assert value.op is Ops.CAST and value.src[0].op is Ops.RANGE and value.src[0].arg[0] == 1


# --- 3: reductions


def collapsed(value: UOp) -> UOp:
    return stored(rewrite(simple(kernel(value)), collapse))


def test_a_sum_of_positions_is_a_number() -> None:
    assert collapsed(reduced(movement.iota((1_000_000,), 0, int64), 0)) is const(int64, 499_999_500_000)


def test_a_sum_of_whole_floats_is_a_number() -> None:
    ones = movement.expand(movement.reshape(const(float32, 3.0), (1,)), (1000,))
    assert collapsed(reduced(ones, 0)) is const(float32, 3000.0)
    tenths = movement.expand(movement.reshape(const(float32, 0.1), (1,)), (1000,))
    assert collapsed(reduced(tenths, 0)).op is Ops.REDUCE, "a thousand tenths are not exactly a hundred"


def test_a_one_hot_sum_is_a_gather_with_a_gate() -> None:
    table = movement.expand(movement.reshape(param(1, 50_000), (1, 50_000)), (4, 50_000))
    rows = movement.expand(movement.reshape(param(2, 4, dtype=int32), (4, 1)), (4, 50_000))
    columns = movement.expand(movement.iota((1, 50_000), 1, int32), (4, 50_000))
    picked = alu(Ops.WHERE, alu(Ops.CMPEQ, rows, columns), table, const(float32, 0.0))
    value = stored(rewrite(rewrite(simple(kernel(reduced(picked, 1))), collapse), gates))
    assert value.op is Ops.INDEX and len(value.src) == 3 and count(value, Ops.REDUCE) == 0


def test_a_float_mask_is_not_taken_for_a_choice() -> None:
    table = movement.expand(movement.reshape(param(1, 8), (1, 8)), (4, 8))
    mask = alu(Ops.CMPEQ, movement.expand(movement.iota((4, 1), 0, int32), (4, 8)),
               movement.expand(movement.iota((1, 8), 1, int32), (4, 8)))  # fmt: skip
    value = collapsed(reduced(alu(Ops.MUL, build.cast(mask, float32), table), 1))
    assert count(value, Ops.REDUCE) == 1, "0 times infinity is not 0"


def test_counting_under_a_triangle() -> None:
    row = movement.expand(movement.iota((20, 1), 0, int32), (20, 20))
    column = movement.expand(movement.iota((1, 20), 1, int32), (20, 20))
    below = build.cast(alu(Ops.CMPLT, column, row), int32)
    value = collapsed(reduced(below, 1))
    assert value.op is Ops.CAST and value.src[0].op is Ops.RANGE, "row r has r entries below the diagonal"


def test_a_maximum_of_something_constant() -> None:
    spread = movement.expand(param(1, 5, 1), (5, 7))
    assert collapsed(reduced(spread, 1, op=Ops.MAX)).op is Ops.INDEX


def test_is_any_equal() -> None:
    column = movement.iota((9,), 0, int32)
    hit = alu(Ops.CMPEQ, column, movement.expand(movement.reshape(const(int32, 4), (1,)), (9,)))
    assert collapsed(reduced(hit, 0, op=Ops.OR)) is const(bool_, True)


def test_nested_reductions_become_one() -> None:
    value = stored(rewrite(simple(kernel(reduced(reduced(param(1, 4, 5, 6), 2), 1))), reductions))
    assert value.op is Ops.REDUCE and len(value.src) == 3


def test_nested_reductions_become_one_under_a_condition() -> None:
    """A sum of sums of which padding leaves some out: what the gradient of a convolution is made of."""
    sums = reduced(param(1, 4, 5, 6), 2)
    graph = kernel(reduced(movement.pad(sums, ((0, 0), (2, 1), (0, 0))), 1))
    value = stored(rewrite(simple(graph), reductions))
    assert value.op is Ops.REDUCE and len(value.src) == 3
    assert value.src[0].op is Ops.WHERE and not any(n.op is Ops.REDUCE for n in toposort(value.src[0]))


def test_whole_factors_leave_a_sum() -> None:
    x = param(1, 8, 16, dtype=int32)
    factor = movement.expand(param(2, 8, 1, dtype=int32), (8, 16))
    value = stored(rewrite(simple(kernel(reduced(alu(Ops.MUL, x, factor), 1))), reductions))
    assert value.op is Ops.MUL and any(s.op is Ops.REDUCE for s in value.src)
    f = alu(Ops.MUL, param(1, 8, 16), movement.expand(param(2, 8, 1), (8, 16)))
    assert stored(rewrite(simple(kernel(reduced(f, 1))), reductions)).op is Ops.REDUCE, "floats round"


def test_conditions_leave_a_sum() -> None:
    padded = movement.pad(param(1, 3, 16), ((1, 1), (0, 0)))
    value = stored(rewrite(simple(kernel(reduced(padded, 1))), reductions))
    assert value.op is Ops.WHERE and value.src[1].op is Ops.REDUCE


# --- 4 and 5: loops


def loops(graph: UOp) -> list[int]:
    return [r.src[0].arg for r in graph.src[0].src[1:]]


def test_loops_that_are_divided_are_split() -> None:
    x = movement.reshape(movement.permute(param(1, 8, 16), (1, 0)), (128,))
    before = simple(kernel(x))
    assert count(before, Ops.FLOORDIV, Ops.FLOORMOD) == 2
    after = split_ranges(before)
    assert count(after, Ops.FLOORDIV, Ops.FLOORMOD) == 0 and sorted(loops(after)) == [8, 16]


def test_loops_that_belong_together_are_merged() -> None:
    x = alu(Ops.ADD, param(1, 4, 6, 8), param(2, 4, 6, 8))
    after = merge_ranges(simple(kernel(x)))
    assert loops(after) == [192]


def test_a_broadcast_stops_merging_where_it_starts() -> None:
    row = movement.expand(param(2, 1, 1, 8), (4, 6, 8))
    assert loops(merge_ranges(simple(kernel(alu(Ops.ADD, param(1, 4, 6, 8), row))))) == [24, 8]


def test_rows_are_not_merged_with_columns_under_a_row_value() -> None:
    x = param(1, 8, 16)
    top = movement.expand(reduced(x, 1, op=Ops.MAX), (8, 16))
    assert loops(merge_ranges(simple(kernel(alu(Ops.SUB, x, top))))) == [8, 16]


def test_reduction_loops_are_merged_too() -> None:
    after = merge_ranges(simple(kernel(reduced(param(1, 4, 6, 8), 1, 2))))
    (reduction,) = (n for n in toposort(after) if n.op is Ops.REDUCE)
    assert [r.src[0].arg for r in reduction.src[1:]] == [48]


def test_reductions_of_one_row_share_their_loop() -> None:
    x = param(1, 8, 16)
    both = alu(Ops.ADD, reduced(x, 1), reduced(alu(Ops.MUL, x, x), 1))
    after = share_loops(simple(kernel(both)))
    found = [n for n in toposort(after) if n.op is Ops.REDUCE]
    assert len(found) == 2 and found[0].src[1] is found[1].src[1]


def test_reductions_that_need_each_other_do_not() -> None:
    x = param(1, 8, 16)
    centred = alu(Ops.SUB, x, movement.expand(reduced(x, 1), (8, 16)))
    after = share_loops(simple(kernel(reduced(alu(Ops.MUL, centred, centred), 1))))
    found = [n for n in toposort(after) if n.op is Ops.REDUCE]
    assert found[0].src[1] is not found[1].src[1]


def test_places_are_simpler_under_their_gate() -> None:
    r = build.rng(8, 0)
    memory = build.define_global(float32, 4, 0)
    gate = alu(Ops.CMPLT, r, const(index_dtype, 4))
    place = alu(Ops.FLOORMOD, r, const(index_dtype, 4))
    read = make(Ops.INDEX, float32, (memory, place, gate))
    assert rewrite(read, gates) is make(Ops.INDEX, float32, (memory, r, gate))
    always = make(Ops.INDEX, float32, (memory, r, const(bool_, True)))
    assert rewrite(always, gates) is make(Ops.INDEX, float32, (memory, r))
    assert rewrite(make(Ops.INDEX, float32, (memory, r, const(bool_, False))), gates) is const(float32, 0)
    nowhere = make(Ops.INDEX, memory.dtype, (memory, r, const(bool_, False)))
    assert rewrite(nowhere, gates) is nowhere, "an address has no value"
    row = build.cast(make(Ops.INDEX, int32, (build.define_global(int32, 8, 1), r)), index_dtype)
    inside = alu(
        Ops.AND, alu(Ops.CMPLT, row, const(index_dtype, 4)), alu(Ops.CMPLT, const(index_dtype, -1), row)
    )
    read = make(Ops.INDEX, float32, (memory, alu(Ops.FLOORMOD, row, const(index_dtype, 4)), inside))
    found = rewrite(read, gates)
    assert found.src[1] is row, "so is one that is read from memory"


def test_what_a_loop_with_a_symbolic_end_never_exceeds() -> None:
    """2·p + k < n wherever p < (n - 3)//2 + 1 and k < 3, also if only one of the loops is open."""
    n = build.variable("n", 3, 50)
    two = const(index_dtype, 2)
    steps = alu(
        Ops.ADD, alu(Ops.FLOORDIV, alu(Ops.ADD, n, const(index_dtype, -3)), two), const(index_dtype, 1)
    )
    p, k = build.rng(steps, 0), build.rng(3, 1)
    for inside in (alu(Ops.MUL, p, two), alu(Ops.ADD, alu(Ops.MUL, p, two), k)):
        assert rewrite(alu(Ops.CMPLT, inside, n), gates) is const(bool_, True)
    beyond = alu(Ops.ADD, alu(Ops.MUL, p, two), alu(Ops.ADD, k, const(index_dtype, 1)))
    assert rewrite(alu(Ops.CMPLT, beyond, n), gates).op is not Ops.CONST
