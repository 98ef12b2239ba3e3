"""Elements that go to all lanes of a vector: on x86 each is loaded there by itself."""

from __future__ import annotations

import re

import pytest

from morok import Tensor, knobs
from morok.codegen.pipeline import lower
from morok.device.cpu.llvm import compile_assembly
from morok.device.registry import get_device
from morok.machine.processor import Processor
from morok.optimize.heuristics.apply import optimize
from morok.render.llvm.kernel import render
from morok.schedule.schedule import schedule

AVX512 = Processor(
    "x86_64-unknown-linux-gnu", "sapphirerapids", "+avx512f,+avx512vl,+avx512bw,+avx512dq,+avx2,+fma,+f16c"
)


def text(size: int, name: str) -> str:
    with knobs.override(DEVICE="CPU", MACHINE=name, THREADS=2):
        machine = get_device("CPU").machine
        x, y = (Tensor.empty(size, size, device="CPU") for _ in range(2))
        (item,) = schedule([(x @ y).uop]).items
        linear = lower(optimize(item.ast, machine), machine)
        return render(linear, "kernel", fused=machine.fma, arch=machine.arch, cores=2).text


@pytest.mark.parametrize("size", [1024, 1000])
def test_the_loop_of_a_product_has_no_shuffles(size: int) -> None:
    """1024 columns are tiles of six rows: of a pair of elements LLVM made two shuffles in each step."""
    assembly = compile_assembly(text(size, "avx512-amx"), AVX512)
    hot = max(re.split(r"\n(?=\.LBB)", assembly), key=lambda block: block.count("vfmadd"))
    loop, back, _ = re.split(r"\n(\tj\w+\t)", hot, maxsplit=1)
    assert back
    assert loop.count("vfmadd") == 24
    assert not re.search(r"vperm|vpxor|vshuf|%xmm", loop)


def test_other_processors_multiply_by_a_lane() -> None:
    assert "load <4 x float>" in text(1024, "neoverse-n1")
