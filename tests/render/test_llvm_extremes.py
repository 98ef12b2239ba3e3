"""The largest of several vectors, and lanes that come from several, on x86 with AVX-512."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from morok import Tensor, knobs
from morok.codegen.pipeline import lower
from morok.device.cpu.llvm import compile_assembly, compile_object
from morok.dtype import DType, float32, float64
from morok.ir.build import rng, sink
from morok.ir.node import UOp, alu, make
from morok.ir.ops import Ops
from morok.machine.choose import cpu_machine
from morok.machine.processor import Processor
from morok.render.llvm.extremes import portable_extremes
from morok.render.llvm.kernel import render
from morok.render.llvm.lanes import picked
from morok.render.llvm.writer import Writer
from tests.codegen.kernels import UPCAST, buffers, read, write
from tests.render.test_llvm import AVX2, AVX512

SPECIAL = (0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 1e-40)


def _largest(count: int, lanes: int = 16) -> UOp:
    """Of so many vectors in a row, and of the first three of them."""
    o, x = buffers(2 * lanes, count * lanes)
    u, w = rng(lanes, 0, UPCAST), rng(lanes, 1, UPCAST)

    def top(lane: UOp, count: int) -> UOp:
        found = read(x, lane)
        for k in range(1, count):
            found = alu(Ops.MAX, found, read(x, lane + k * lanes))
        return found

    return sink(write(o, u, top(u, count), u), write(o, w + lanes, top(w, 3), w))


def _text(kernel: UOp, processor: Processor) -> str:
    machine = cpu_machine(processor)
    return render(lower(kernel, machine), "k", arch=machine.arch, ranges=machine.ranges).text


def test_a_tree_takes_an_instruction_each_and_a_comparison_for_two() -> None:
    assembly = compile_assembly(_text(_largest(9), AVX512), AVX512)
    assert 8 <= assembly.count("vrangeps") <= 8 + 2
    assert assembly.count("vcmp") <= 5 + 2
    assert "vpternlog" not in assembly
    assert "range" not in _text(_largest(9), AVX2)


def test_processors_without_the_instruction_do_without() -> None:
    """LLVM ends the process where it has no instruction for what a text names."""
    plain = Processor(AVX512.triple, "x86-64-v3", "+avx2,+fma,+avx512f")
    machine = cpu_machine(plain)
    assert cpu_machine(AVX512).ranges and machine.vector_bytes == 64 and not machine.ranges
    assert "vmaxps" in compile_assembly(_text(_largest(9), plain), plain)


def test_elsewhere_it_is_written_out() -> None:
    ir = _text(_largest(9), AVX512)
    assert "llvm.x86" in ir
    plain = portable_extremes(ir)
    assert "llvm.x86" not in plain and compile_object(plain, AVX2)


@pytest.mark.parametrize("dtype", [float32, float64])
@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("chosen", ["", "avx512"])
def test_numbers(dtype: DType, largest: bool, chosen: str) -> None:
    """Zeros of either sign, infinities and NaN at each of nine places, of this machine and of another one."""
    rng = np.random.default_rng(0)
    x = rng.choice(np.array(SPECIAL), (9, 4096)).astype(np.float64 if dtype is float64 else np.float32)
    x[rng.random(x.shape) < 0.3] = -0.0
    combine: Callable[..., Any] = np.maximum if largest else np.minimum
    wanted = combine.reduce(x.astype(np.float64))  # type: ignore[attr-defined]
    zero: Any = (x == 0).any(0) & (wanted == 0)
    signs = np.where(x == 0, np.signbit(x), largest)
    negative: Any = signs.all(0) if largest else np.where(x == 0, np.signbit(x), False).any(0)
    with knobs.override(MACHINE=chosen, DEVICE="CPU"):
        t = Tensor(x)
        found = t[0]
        for k in range(1, 9):
            found = found.maximum(t[k]) if largest else found.minimum(t[k])
        y = found.numpy()
    np.testing.assert_array_equal(y, wanted)
    np.testing.assert_array_equal(np.signbit(y[zero]), negative[zero])


def test_lanes_of_three_vectors_are_put_over_one_another() -> None:
    """Every other one from the third on: seven of a vector, eight of the next one, and one of a third."""
    whole = float32.vec(16)
    x, y, z = (make(Ops.DEFINE_VAR, whole, (), (name, 0, 1)) for name in "xyz")
    lanes = [(x, tuple(range(2, 16, 2))), (y, tuple(range(0, 16, 2))), (z, (0,))]
    parts = [make(Ops.GEP, float32.vec(len(n)), (v,), n) for v, n in lanes]
    node = make(Ops.CAT, whole, tuple(parts))
    writer = Writer((), "k", False, True, "x86_64")
    writer.names.update({x: "%x", y: "%y", z: "%z"})
    name = picked(writer, node)
    values = {f"%{v.arg[0]}": np.arange(16) + 16 * i for i, v in enumerate((x, y, z))}
    for line in writer.lines:
        found = re.match(r"  (%x\d+) = shufflevector <16 x float> (%\w+), <16 x float> (%\w+), (.*)", line)
        assert found
        both = np.concatenate([values[found[2]], values[found[3]]])
        picks = re.findall(r"i32 (\d+|poison)", found[4])
        values[found[1]] = np.array([-1 if p == "poison" else both[int(p)] for p in picks])
    assert name and len(writer.lines) == 2
    np.testing.assert_array_equal(values[name], np.arange(2, 34, 2))
