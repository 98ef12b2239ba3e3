"""Pointers that loops move: which places share one, and that the values are those of NumPy."""

import re

import numpy as np
import pytest

from morok import Tensor
from morok.codegen.pipeline import lower
from morok.ir.build import rng, sink
from morok.ir.node import UOp, make
from morok.ir.ops import AxisKind, Ops
from morok.machine.choose import cpu_machine
from morok.render.llvm.kernel import render
from morok.render.llvm.pointers import MOST, pointers_of
from tests.codegen.kernels import LOOP, UPCAST, buffers, matmul, padded_copy, read, row_sum, split, write
from tests.render.test_llvm import AVX512, NEON, text


def listed(kernel: UOp) -> tuple[UOp, ...]:
    return lower(kernel, cpu_machine(NEON)).src


def loop_bodies(ir: str) -> list[tuple[str, str]]:
    """What stands in loops without loops inside."""
    return re.findall(r"^(loop\d+):\n((?:  .*\n)*?)  br i1 %x\d+, label %\1,", ir, re.MULTILINE)


def test_places_that_differ_by_a_constant_share_a_pointer() -> None:
    kernel = split(matmul(8, 8, 8), 1, 4, UPCAST)
    found = pointers_of(listed(kernel))
    (pointers,) = found.moved.values()
    assert len(pointers) == 2, "one for each operand"
    for _, body in loop_bodies(text(kernel)):
        assert len(re.findall("phi ptr", body)) == 2
        assert " mul " not in body and " shl " not in body, "what the pointers replace is not written"


def test_a_pointer_starts_at_the_least_of_its_places() -> None:
    found = pointers_of(listed(row_sum(4, 64)))
    assert all(offset >= 0 for _, offset in found.places.values())


def test_a_guarded_place_is_a_choice_of_pointers() -> None:
    ir = text(padded_copy(8, 2, 1))
    assert re.search(r"select i1 %x\d+, ptr %x\d+, ptr %g1", ir)
    assert not re.search(r"select i1 %x\d+, i64", ir)


def test_a_shared_loop_starts_where_its_worker_does() -> None:
    o, x = buffers(64, 256)
    t = rng(64, 0, AxisKind.THREAD)
    ir = text(sink(write(o, t, read(x, t * 3 + 5), t)))
    assert "mul i64 %lo, 3" in ir and "phi ptr" in ir


def test_a_loop_with_too_many_pointers_keeps_its_counter() -> None:
    o, *inputs = buffers(64, *[64] * (MOST + 1))
    i = rng(64, 0, LOOP)
    total = read(inputs[0], i)
    for x in inputs[1:]:
        total = total + read(x, i)
    kernel = sink(write(o, i, total, i))
    assert not pointers_of(listed(kernel)).moved and "phi ptr" not in text(kernel)
    few = sink(write(o, i, read(inputs[0], i) + read(inputs[1], i), i))
    (pointers,) = pointers_of(listed(few)).moved.values()
    assert [p.step for p in pointers] == [1, 1, 1]


def sum_of(count: int, step: int, kind: AxisKind = LOOP) -> tuple[UOp, UOp]:
    """A sum of as many inputs, read with a step: the kernel, and its counter."""
    o, *inputs = buffers(64, *[64 * step] * count)
    i = rng(64, 0, kind)
    total = read(inputs[0], i * step)
    for x in inputs[1:]:
        total = total + read(x, i * step)
    return sink(write(o, i, total, i)), i


def x86_text(kernel: UOp) -> str:
    machine = cpu_machine(AVX512)
    return render(lower(kernel, machine), "k", 0, machine.fma_in_place, machine.fma, machine.arch).text


@pytest.mark.parametrize("count", [2, MOST + 4])
def test_pointers_with_one_step_share_an_index_where_addresses_have_one(count: int) -> None:
    """The counter itself where they move by one; however many they are, none is computed in the loop."""
    kernel, _ = sum_of(count, 1)
    ((_, body),) = loop_bodies(x86_text(kernel))
    counter = re.search(r"(%x\d+) = phi i64", body)
    assert counter and "phi ptr" not in body
    assert len(re.findall(rf"getelementptr float, ptr %x\d+, i64 {counter[1]}\n", body)) == count + 1
    assert len(re.findall(r" add ", body)) == 1, "the counter's own"
    few = pointers_of(lower(kernel, cpu_machine(AVX512)).src)
    assert bool(few.moved) == (count < MOST), "other processors: as before"


def test_an_index_moves_with_the_step_and_from_where_its_worker_begins() -> None:
    kernel, _ = sum_of(3, 5, AxisKind.THREAD)
    text_ = x86_text(kernel)
    first = re.search(r"(%x\d+) = mul i64 %lo, 5", text_)
    assert first
    assert re.search(rf"(%x\d+) = phi i64 \[ {first[1]}, %\w+ \], \[ \1.next, %\w+ \]", text_)
    assert re.search(r"(%x\d+).next = add i64 \1, 5", text_)


@pytest.mark.parametrize("inputs", [2, 11])
@pytest.mark.parametrize("step", [1, 3])
def test_values_of_many_inputs(inputs: int, step: int) -> None:
    """On the processor at hand: more inputs than a loop moves pointers."""
    rows = np.random.default_rng(inputs).integers(-99, 99, (inputs, 600)).astype(np.float32)
    tensors = [Tensor(row) for row in rows]
    total = tensors[0][::step]
    for x in tensors[1:]:
        total = total + x[::step]
    np.testing.assert_array_equal(total.numpy(), rows[:, ::step].sum(0))


def test_what_is_read_at_computed_places_is_not_moved() -> None:
    x = Tensor(np.arange(20, dtype=np.float32))
    places = np.array([3, 19, 0, 7, 7], np.int32)
    assert x[Tensor(places)].numpy().tolist() == places.tolist()


@pytest.mark.parametrize("n", [1, 5, 100_003])
def test_values(n: int) -> None:
    a = np.random.default_rng(n).standard_normal((3, n)).astype(np.float32)
    x = Tensor(a)
    np.testing.assert_array_equal((x[:, ::-1] * 2 - x).numpy(), a[:, ::-1] * 2 - a)
    np.testing.assert_array_equal(x.pad(((0, 0), (2, 1)))[:, 1:].numpy(), np.pad(a, ((0, 0), (2, 1)))[:, 1:])
    np.testing.assert_array_equal(x[:, ::3].max(1).numpy(), a[:, ::3].max(1))


def test_only_whole_numbers_of_places_are_left_out() -> None:
    """A number that is also stored is written, whatever becomes of the places that it is part of."""
    o = buffers(8)[0]
    i = rng(8, 0, LOOP)
    found = pointers_of(listed(sink(write(o, i, make(Ops.CAST, o.dtype.elem, (i * 3 + 1,)), i))))
    assert not any(n.op is Ops.MUL for n in found.unneeded)
