"""Lists of instructions are proved safe, and wrong ones are not."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from morok import Tensor, knobs
from morok.codegen.pipeline import lower
from morok.codegen.written import Code
from morok.device import prove
from morok.device.cpu.device import CPU
from morok.device.cuda.device import Cuda
from morok.dtype import AddrSpace, PtrDType, float32, int32, int64, void
from morok.errors import CompileError
from morok.ir.build import cast, define_global, define_local, rng, sink, special, store, variable
from morok.ir.build import index as address
from morok.ir.checks import NOTE, Slot
from morok.ir.node import UOp, alu, const, make
from morok.ir.ops import AxisKind, Ops
from morok.machine.files import load
from morok.machine.machine import Machine
from morok.optimize.heuristics.apply import optimize
from tests.codegen.kernels import (
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
from tests.device.cuda.fake_gpu import FakeDriver
from tests.gpu.kernels import linear
from tests.gpu.kernels import store as gated_store
from tests.gpu.products import TARGET, kernel_of, product
from tests.gpu.test_warp_specialize import PRODUCER, built
from tests.proof.lists import changed, once

pytest.importorskip("z3")
from morok.proof.kernels.linear import Step, meets
from morok.proof.kernels.points import count
from morok.proof.kernels.safety import Findings, Judge, examine

CPU_LIKE = Machine("cpu", vector_bytes=16, threads=True, wide_index=True)
PLAIN = Machine("plain", scalar_alu=True)  # indices of 32 bits
GPU = load("emulator")
HOST = GPU


def on_gpu(kernel: UOp) -> UOp:
    return lower(optimize(kernel, HOST), GPU)


def looked(kernel: UOp, target: Machine = CPU_LIKE) -> Findings:
    return examine(lower(kernel, target), kernel)


def refuted(linear: UOp, kind: str, kernel: UOp | None = None) -> str:
    """What is said about a wrong list."""
    found = [o for o in examine(linear, kernel).open if o.refuted]
    assert kind in {o.kind for o in found}, found
    return str(next(o for o in found if o.kind == kind))


def is_store(node: UOp) -> bool:
    return node.op is Ops.STORE and _space(node) is AddrSpace.GLOBAL


def _space(node: UOp) -> AddrSpace:
    dtype = node.src[0].dtype
    assert isinstance(dtype, PtrDType)
    return dtype.space


# --- what is right


@pytest.mark.parametrize(
    "kernel",
    [softmax(4, 8), matmul(4, 8, 6), convolution(2, 3, 5), padded_copy(5, 2, 3), row_sum(16, 96), add(1000)],
)
@pytest.mark.parametrize("target", ["cpu", "plain", "gpu"])
def test_good_kernels(kernel: UOp, target: str) -> None:
    linear = on_gpu(kernel) if target == "gpu" else lower(kernel, CPU_LIKE if target == "cpu" else PLAIN)
    found = examine(linear, kernel)
    assert not found.open and found.kinds["bounds"]


def test_split_axes() -> None:
    tiled = split(split(matmul(8, 8, 4), 0, 4, UPCAST), 1, 2, AxisKind.THREAD, outer=True)
    found = looked(tiled)
    assert not found.open and found.kinds["race"]


def test_sizes_that_are_known_later() -> None:
    n = variable("n", 1, 64)
    o, x = buffers(64 * 64, 64 * 64)
    r, c = rng(n, 0, AxisKind.THREAD), rng(n, 1)
    found = looked(sink(write(o, r * n + c, read(x, c * n + r), r, c)))
    assert not found.open and found.kinds["race"] == 1 and found.counts["rows"]


def test_a_gathered_row_may_be_anything_where_the_gate_is_shut() -> None:
    o, x = buffers(12, 40)
    rows = define_global(int64, 3, 2)
    r, c = rng(3, 0), rng(4, 1)
    row = cast(read(rows, r), c.dtype)
    inside = (row < 10) & (const(row.dtype, -1) < row)
    assert not looked(sink(write(o, r * 4 + c, read(x, row * 4 + c, inside), r, c))).open
    wrong = sink(write(o, r * 4 + c, read(x, row * 4 + c, row < 10), r, c))
    assert "leaves its memory" in refuted(lower(wrong, CPU_LIKE), "bounds", wrong)


# --- what is wrong


def test_an_index_that_is_one_off() -> None:
    kernel = matmul(4, 8, 6)
    for target in (CPU_LIKE, PLAIN):
        linear = lower(kernel, target)
        for number in range(2):
            wrong = once(
                lambda n: n.replace((n.src[0], n.src[1] + 1, *n.src[2:])),
                lambda n: n.op is Ops.INDEX and _memory(n) is AddrSpace.GLOBAL,
                number,
            )
            refuted(changed(linear, wrong), "bounds")


def _memory(node: UOp) -> AddrSpace:
    assert isinstance(node.dtype, PtrDType)
    return node.dtype.space


def test_a_gate_that_is_missing() -> None:
    linear = lower(padded_copy(5, 2, 3), PLAIN)
    wrong = once(
        lambda n: make(Ops.INDEX, n.dtype, n.src[:2]), lambda n: n.op is Ops.INDEX and len(n.src) > 2
    )
    assert "r0 = " in refuted(changed(linear, wrong), "bounds")


def test_a_gate_that_is_too_wide() -> None:
    linear = lower(padded_copy(5, 2, 3), PLAIN)
    wrong = once(
        lambda n: n.src[0] < n.src[1].arg + 1, lambda n: n.op is Ops.CMPLT and n.src[1].op is Ops.CONST
    )
    refuted(changed(linear, wrong), "bounds")


def test_a_loop_that_is_too_long() -> None:
    o, x = buffers(8, 8)
    r = rng(8, 0)
    linear = lower(sink(write(o, r, read(x, r), r)), PLAIN)
    longer = changed(
        linear, lambda n: make(Ops.RANGE, n.dtype, (const(n.dtype, 9),), n.arg) if n.op is Ops.RANGE else n
    )
    assert "r0 = 8" in refuted(longer, "bounds")


def test_a_variable_that_is_too_large() -> None:
    n = variable("n", 1, 9)
    o, x = buffers(8, 8)
    r = rng(n, 0)
    refuted(lower(sink(write(o, r, read(x, r), r)), CPU_LIKE), "bounds")


def test_an_index_that_is_too_narrow() -> None:
    rows, columns = 1 << 20, 1 << 12
    o, x = (define_global(float32, rows * columns, i) for i in range(2))
    r, c = rng(rows, 0), rng(columns, 1)
    kernel = sink(write(o, r * columns + c, read(x, r * columns + c), r, c))
    linear = lower(kernel, PLAIN)
    assert not examine(linear).open

    def narrow(node: UOp) -> UOp:
        if node.dtype is not int64:
            return node
        return const(int32, node.arg) if node.op is Ops.CONST else make(node.op, int32, node.src, node.arg)

    assert "leaves its integer type" in refuted(changed(linear, narrow), "width")


def test_arithmetic_of_the_program_may_wrap() -> None:
    """What the user computes in 32 bits wraps around, and is an index for all that."""
    o, x = buffers(8, 8)
    numbers = define_global(int32, 8, 2)
    r = rng(8, 0)
    place = cast(alu(Ops.FLOORMOD, read(numbers, r) * 31 + 7, const(int32, 8)), r.dtype)
    assert not looked(sink(write(o, r, read(x, place), r)), PLAIN).open


def test_data_that_a_place_is_chosen_by_may_wrap() -> None:
    """Counters of random bits wrap around, and decide which of two places is read."""
    o, x = buffers(8, 16)
    counter, r = define_global(int32, 1, 2), rng(8, 0)
    chosen = alu(Ops.CMPLT, alu(Ops.ADD, read(counter, 0), cast(r, int32)), const(int32, 5))
    kernel = sink(write(o, r, read(x, alu(Ops.WHERE, chosen, r, r + 8)), r))
    assert not looked(kernel, PLAIN).open
    # the place itself may not
    wide = sink(write(o, r, read(x, alu(Ops.WHERE, chosen, r, r + 9)), r))
    refuted(lower(wide, PLAIN), "bounds")


def test_workers_that_write_the_same_place() -> None:
    o, x = buffers(64, 64)
    t, c = rng(8, 0, AxisKind.THREAD), rng(8, 1)
    assert not looked(sink(write(o, t * 8 + c, read(x, t * 8 + c), t, c))).open
    wrong = sink(write(o, t * 7 + c, read(x, t * 8 + c), t, c))
    assert "two threads touch the same place" in refuted(lower(wrong, CPU_LIKE), "race")
    # a plain loop may write a place twice
    r = rng(8, 0)
    assert not looked(sink(write(o, r * 7 + c, read(x, r * 8 + c), r, c))).open


def test_a_worker_that_reads_what_another_writes() -> None:
    o = define_global(float32, 64, 0)
    t = rng(32, 0, AxisKind.THREAD)
    assert not looked(sink(write(o, t, read(o, t) + 1.0, t))).open
    assert not looked(sink(write(o, t, read(o, t + 32) + 1.0, t))).open
    refuted(lower(sink(write(o, t, read(o, t + 1) + 1.0, t)), CPU_LIKE), "race")
    # every second place, and those between
    assert not looked(sink(write(o, t * 2, read(o, t * 2 + 1) + 1.0, t))).open


def test_workers_may_note_at_one_place() -> None:
    """Positions that are outside are noted by whoever finds one; any other store there is a race."""
    o = define_global(float32, 32, 0)
    x, numbers = define_global(float32, 8, 1), define_global(int64, 32, 2)
    t = rng(32, 0, AxisKind.THREAD)
    place = make(Ops.CHECK, int64, (read(numbers, t), const(int64, 8), const(int64, 0)), Slot(3, 0, 1))
    linear = lower(sink(write(o, t, read(x, cast(place, t.dtype)), t)), CPU_LIKE)
    assert any(n.op is Ops.STORE and n.arg == NOTE for n in linear.src)
    assert not examine(linear).open
    plain = changed(linear, lambda n: make(n.op, n.dtype, n.src) if n.arg == NOTE else n)
    refuted(plain, "race")


def test_threads_that_write_the_same_place() -> None:
    linear = on_gpu(row_sum(16, 96))
    store = next(i for i, n in enumerate(linear.src) if is_store(n))
    around = [n for n in linear.src[:store] if n.op is Ops.IF]
    assert around, "one of the threads of a row writes"
    everybody = changed(linear, lambda n: None if n.op in (Ops.IF, Ops.ENDIF) else n)
    refuted(everybody, "race")


@pytest.mark.parametrize("form", ["n", "2n", "n more"])
def test_rows_of_unknown_length(form: str) -> None:
    """Threads that write a row each are told apart by rows; one column too many is in the next row."""
    n, row, column = variable("n", 1, 40), special("gidx0", 1 << 20), special("lidx0", 100)
    factor = 2 if form == "2n" else 1
    place = row * n * factor + column + (n if form == "n more" else 0)
    memory = define_global(float32, 1 << 28, 0)
    value = const(float32, 1.0)
    for more in (0, 1):
        gate = alu(Ops.CMPLT, column, n * factor + more)
        found = examine(linear(gated_store(memory, place, value, gate)))
        races = [o for o in found.open if o.kind == "race"]
        assert bool(races) == bool(more)
        assert bool(found.counts["rows"]) != bool(more)


@pytest.mark.parametrize("reach", [5, 4], ids=["meets", "falls short"])
def test_loops_as_long_as_the_thread_says(reach: int) -> None:
    """The second worker's loop ends where its own number says, not where the first one's does."""
    code = Code()
    memory = code.memory(float32, 8)
    with code.loop(2, AxisKind.THREAD) as worker:
        with code.given(worker.equals(0)):
            memory.store(5, 1.0)
        with code.loop(worker * reach + 1) as j, code.given(worker.equals(1)):
            memory.store(j, 2.0)
    found = examine(code.linear()).open
    assert [(o.kind, o.refuted) for o in found] == ([("race", True)] if reach == 5 else [])


def test_a_loop_that_never_runs_beside_an_endless_one() -> None:
    code = Code()
    memory, ends = code.memory(float32, 8), code.memory(int64, 1)
    with code.loop(ends.load(0)) as far, code.loop(code.value(0, int64)) as never:
        memory.store(far + never, 1.0)
    assert examine(code.linear()).open == []


def test_threads_with_a_role() -> None:
    """Their number in it tells them apart, and not that of the block: such kernels were called wrong."""
    kernel = built(kernel_of(product, (256, 128), (128, 256)), PRODUCER)
    linear = lower(kernel, TARGET)
    assert any(n.op is Ops.RANGE and n.arg[1] is AxisKind.ROLE for n in linear.src)
    assert not examine(linear, kernel).open
    alike = changed(linear, lambda n: const(n.dtype, 0) if n.op is Ops.SPECIAL and n.arg == "ridx0" else n)
    refuted(alike, "race")


def shared_sum() -> UOp:
    """Threads hand values to each other through memory of their block."""
    o, x = buffers(32 * 64, 32 * 64)
    g, t = special("gidx0", 32), special("lidx0", 64)
    local = define_local(float32, 64, "tile")
    place = g * 64 + t
    put = store(address(local, t), read(x, place))
    met = make(Ops.BARRIER, void, (put,))
    there = make(Ops.AFTER, local.dtype, (local, met))
    value = read(there, alu(Ops.SUB, const(t.dtype, 63), t))
    with knobs.override(SPEC=0):  # a kernel has no barriers, a list has
        return lower(sink(store(address(o, place), value)), GPU)


def test_a_barrier_that_is_missing() -> None:
    linear = shared_sum()
    assert not examine(linear).open
    refuted(changed(linear, lambda n: None if n.op is Ops.BARRIER else n), "race")


def test_a_divisor_without_its_guard() -> None:
    o, x, y = buffers(16, 16, 16, dtype=int32)
    r = rng(16, 0)
    kernel = sink(write(o, r, alu(Ops.CDIV, read(x, r), read(y, r)), r))
    linear = lower(kernel, PLAIN)
    assert not examine(linear).open

    def bare(node: UOp) -> UOp:
        if node.op is Ops.CDIV and node.src[1].op is Ops.WHERE:
            return node.replace((node.src[0], node.src[1].src[2]))
        return node

    assert "no result" in refuted(changed(linear, bare), "domain")


def test_a_guard_that_forgets_the_least_integer() -> None:
    o, x, y = buffers(16, 16, 16, dtype=int32)
    r = rng(16, 0)
    linear = lower(sink(write(o, r, alu(Ops.CMOD, read(x, r), read(y, r)), r)), PLAIN)

    def half(node: UOp) -> UOp:
        return node.src[0] if node.op is Ops.OR else node

    refuted(changed(linear, half), "domain")


# --- the search along strides


@pytest.mark.parametrize("seed", range(40))
def test_meets_is_what_trying_says(seed: int) -> None:
    rnd = np.random.default_rng(seed)
    steps = [
        Step(
            int(rnd.integers(-9, 10)),
            int(-rnd.integers(0, 4)),
            int(rnd.integers(0, 4)),
            bool(rnd.integers(2)),
        )
        for _ in range(int(rnd.integers(1, 4)))
    ]
    wanted = {int(w) for w in rnd.integers(-12, 13, 2)}
    found = False
    points: list[tuple[int, ...]] = [()]
    for s in steps:
        points = [(*p, x) for p in points for x in range(s.low, s.high + 1)]
    for p in points:
        moved = any(s.marked and x for s, x in zip(steps, p, strict=True))
        found |= moved and sum(s.stride * x for s, x in zip(steps, p, strict=True)) in wanted
    assert meets(steps, wanted) is found


# --- the knob


@pytest.fixture(autouse=True)
def own_totals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels that are wrong on purpose are none of those that a whole run counts."""
    monkeypatch.setattr(prove, "totals", prove.Totals())


def test_the_knob() -> None:
    with knobs.override(PROVE=1):
        x = Tensor(np.arange(12, dtype=np.float32).reshape(3, 4))
        before = prove.totals.kernels + prove.totals.stored
        assert (x.pad(((1, 1), (0, 0))) * 2.0).sum(1).tolist() == [0.0, 12.0, 44.0, 76.0, 0.0]
        assert prove.totals.kernels + prove.totals.stored > before
        o, x_ = buffers(4, 4)
        r = rng(4, 0)
        with pytest.raises(CompileError, match="kernel bad is wrong: an access leaves its memory: r0 = "):
            CPU().compile(sink(write(o, r, read(x_, r * 2), r)), "bad")


def test_what_stays_open_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Judge, "_decide", lambda *_: ("open", "the solver gives up"))
    o, x = buffers(8, 8)
    r = rng(8, 0)
    with knobs.override(PROVE=1, CACHE=False), pytest.raises(CompileError, match="is not proved"):
        CPU().compile(sink(write(o, r, read(x, r + 1, r < 7), r)), "open")


def test_what_is_not_proved_is_named_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where whoever asked for the kernel does not care, as a search among candidates may."""
    o, x = buffers(4, 4)
    r = rng(4, 0)
    with knobs.override(PROVE=1, CACHE=False):
        CPU().compile(sink(write(o, r, read(x, r), r)), "good")
        with contextlib.suppress(CompileError):
            CPU().compile(sink(write(o, r, read(x, r * 2), r)), "bad")
    other = prove.Totals()
    other.add(prove.totals.summary())  # as of a worker
    report = other.report()
    assert report.startswith("PROVE: 1 kernels proved: ") and "; 1 refuted, 0 unknown; " in report
    assert "\nPROVE: not proved: bad is wrong: an access leaves its memory: r0 = " in report


def _how_often(compile: Callable[[], Any]) -> tuple[int, int]:
    """(proved now, known by a stored verdict) for a kernel."""
    prove.totals.clear()
    compile()
    return prove.totals.kernels, prove.totals.stored


@pytest.mark.parametrize("where", ["CPU", "CUDA"])
def test_a_kernel_of_the_store_has_been_proved(
    where: str, tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The key of a stored kernel is its verdict: it says what was proved, and by which prover."""
    cuda = Cuda("CUDA", FakeDriver(), lambda text, *_: text.encode())
    device, kernel = (CPU() if where == "CPU" else cuda), add(48)

    def made() -> None:
        device.compile(kernel, "add").load()

    with knobs.override(CACHE_DIR=str(tmp_path), PROVE=0):
        assert _how_often(made) == (0, 0)  # not proved: of no use to those who want a proof
        with knobs.override(PROVE=1):
            assert _how_often(made) == (1, 0)
            assert _how_often(made) == (0, 1)
            assert prove.totals.report().startswith("PROVE: 1 kernels proved (1 by stored verdicts)")
        with knobs.override(PROVE=2):
            assert _how_often(made) == (1, 0)  # more is asked
            assert _how_often(made) == (0, 1)
        monkeypatch.setattr(prove, "_version", lambda: "another prover")
        with knobs.override(PROVE=1):
            assert _how_often(made) == (1, 0)


def test_a_kernel_that_is_there_already_is_proved_all_the_same() -> None:
    x = Tensor(np.arange(7, dtype=np.float32))
    with knobs.override(PROVE=0):
        assert (x * 3.0).tolist()[1] == 3.0
    with knobs.override(PROVE=1, CACHE=False):
        before = prove.totals.kernels
        assert (x * 3.0).tolist()[1] == 3.0
        assert prove.totals.kernels == before + 1


def test_without_time_only_what_takes_none_is_shown() -> None:
    """A padded copy needs the solver or all points: bounds are left, and are not called open."""
    kernel = padded_copy(5, 2, 3)
    linear = lower(kernel, CPU_LIKE)
    whole, short = examine(linear, kernel), examine(linear, kernel, 0.0)
    assert not whole.open and not whole.left
    assert not short.open and short.left["bounds"] > 0
    assert short.kinds["bounds"] + short.left["bounds"] == whole.kinds["bounds"]


def test_more_points_than_a_float_can_say() -> None:
    """Conditions on many words that are read are left to the solver."""
    words = [variable(f"w{i}", int64.min, int64.max, int64) for i in range(20)]
    assert count(*(alu(Ops.CMPLT, w, const(int64, 0)) for w in words)) == float("inf")
