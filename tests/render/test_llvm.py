"""LLVM IR: what it looks like, and that it is code for x86-64 and AArch64."""

import re

import pytest

from morok.codegen.pipeline import lower
from morok.device.cpu.llvm import compile_assembly, compile_object
from morok.dtype import (
    AddrSpace,
    bfloat16,
    float8_e4m3,
    float16,
    float32,
    float64,
    int32,
    int64,
    uint64,
    void,
)
from morok.errors import CompileError
from morok.ir.build import define_global, rng, sink, variable
from morok.ir.build import reduce as reduce_
from morok.ir.node import UOp, alu, const, make
from morok.ir.ops import AxisKind, Ops
from morok.machine.choose import cpu_machine
from morok.machine.machine import Machine
from morok.machine.processor import Processor
from morok.render.llvm.kernel import render
from tests.codegen.kernels import (
    REDUCE,
    UNROLL,
    UPCAST,
    add,
    buffers,
    convolution,
    layer_norm,
    matmul,
    padded_copy,
    read,
    row_sum,
    softmax,
    split,
    write,
)
from tests.codegen.test_arithmetic import kernel_of

AVX512 = Processor(
    "x86_64-unknown-linux-gnu", "skylake-avx512", "+avx512f,+avx512vl,+avx512bw,+avx512dq,+avx2,+fma,+f16c"
)
AVX2 = Processor("x86_64-unknown-linux-gnu", "haswell", "+avx2,+fma,+f16c")
SSE2 = Processor("x86_64-unknown-linux-gnu", "x86-64", "")
NEON = Processor("aarch64-unknown-linux-gnu", "neoverse-n1", "+neon")
MACHINES = {"avx512": AVX512, "avx2": AVX2, "sse2": SSE2, "neon": NEON}


def text(kernel: UOp, processor: Processor = NEON) -> str:
    machine = cpu_machine(processor)
    return render(lower(kernel, machine), "kernel", fused=machine.fma).text


def test_targets() -> None:
    sizes = {name: cpu_machine(m).vector_bytes for name, m in MACHINES.items()}
    assert sizes == {"avx512": 64, "avx2": 32, "sse2": 16, "neon": 16}
    assert cpu_machine(AVX512).masked_memory and not cpu_machine(NEON).masked_memory
    assert not cpu_machine(SSE2).fma and cpu_machine(AVX2).fma


@pytest.mark.parametrize("name", MACHINES)
def test_every_machine_gets_code(name: str) -> None:
    machine = MACHINES[name]
    lanes = cpu_machine(machine).vector_bytes // 4
    kernels = [
        split(add(256), 0, lanes, UPCAST),
        split(row_sum(4, 256), 1, 4 * lanes, UNROLL),
        split(split(softmax(4, 128), 2, lanes, UNROLL), 3, lanes, UPCAST),
        layer_norm(4, 64),
        split(split(matmul(32, 64, 16), 0, 4, UPCAST), 1, 2 * lanes, UPCAST),
        split(convolution(2, 4, 16), 2, lanes, UPCAST),
        split(padded_copy(10, 3, 51), 0, lanes, UPCAST),
    ]
    for kernel in kernels:
        assert len(compile_object(text(kernel, machine), machine)) > 200


def test_assembly_uses_the_vectors() -> None:
    kernel = split(split(matmul(32, 64, 16), 0, 4, UPCAST), 1, 32, UPCAST)
    x86 = compile_assembly(text(kernel, AVX512), AVX512)
    assert re.search(r"vfmadd231ps.*zmm", x86)
    arm = compile_assembly(text(split(split(matmul(32, 64, 16), 0, 4, UPCAST), 1, 8, UPCAST)), NEON)
    assert re.search(r"fmla\s+v\d+\.4s", arm)
    # the accumulators stay in registers over the inner loop
    loop = arm[arm.index("fmla") :]
    assert "str" not in loop[: loop.index("b.")]


def test_masked_memory() -> None:
    o, x = buffers(30, 30)
    r, u = rng(2, 0), rng(16, 1, UPCAST)
    i = r * 16 + u
    kernel = sink(write(o, i, read(x, i, i < 30), r, u, gate=i < 30))
    ir = text(kernel, AVX512)
    assert "llvm.masked.load" in ir and "llvm.masked.store" in ir
    assert "vmovups" in compile_assembly(ir, AVX512)


def test_no_fast_math_and_no_aliases() -> None:
    ir = text(softmax(4, 32))
    assert not re.search(r"\b(fast|reassoc|nnan|ninf|nsz|arcp|contract|afn)\b", ir)
    assert "ptr noalias %g0" in ir and "ptr noalias readonly %g1" in ir
    assert "alloca" not in ir


def test_lines_of_the_user_are_in_comments() -> None:
    assert re.search(r"; kernels\.py:\d+", text(add(8)))


def test_accumulators_are_phi_nodes() -> None:
    ir = text(row_sum(4, 8))
    assert len(re.findall("phi float", ir)) == 1 and len(re.findall("phi i64", ir)) == 2


def _tiled(processor: Processor) -> UOp:
    """A product whose tile of 4×8 sums is held in registers, as a list."""
    kernel = split(split(matmul(8, 16, 32), 0, 4, AxisKind.UPCAST), 1, 8, AxisKind.UPCAST)
    return lower(kernel, cpu_machine(processor))


def test_registers_of_a_tile_are_written_at_once() -> None:
    """A node for each would be a third of all nodes, and none of them is an instruction."""
    linear = _tiled(NEON)
    writes = [n for n in linear.src if n.op is Ops.STORE and n.src[0].dtype.space is AddrSpace.REG]
    assert [n.src[1].dtype.lanes for n in writes] == [32, 32]
    assert [n.src[1].op for n in writes] == [Ops.CONST, Ops.CAT]
    ir = render(linear, "kernel").text
    assert len(re.findall("phi <4 x float>", ir)) == 8 and "x float> @llvm.fma.v4f32" in ir
    assert not re.search("<(8|16|32) x float>", ir)  # the whole of them is nowhere in the text


def test_registers_that_are_memory_are_written_part_by_part() -> None:
    """Somebody reads one of them at a place that is known later."""
    linear = _tiled(NEON)
    (update,) = [n for n in linear.src if n.op is Ops.STORE and n.src[1].op is Ops.CAT]
    after = update.src[0].src[0]
    place = next(n for n in linear.src if n.op is Ops.RANGE)
    where = make(Ops.INDEX, float32.ptr(32, AddrSpace.REG), (after, place))
    at = linear.src.index(update)
    read = (where, make(Ops.LOAD, float32, (where,)))
    ir = render(make(Ops.LINEAR, void, (*linear.src[:at], *read, *linear.src[at:])), "kernel").text
    assert len(re.findall("store <4 x float> %", ir)) == 16  # 8 sums, and as many results
    assert compile_object(ir, NEON)


def test_shared_axes_and_variables() -> None:
    o, x = buffers(8, 80)
    n = variable("n", 1, 10)
    t, c = rng(8, 0, AxisKind.THREAD), rng(n, 1, REDUCE)
    program = render(
        lower(sink(write(o, t, reduce_(read(x, t * 10 + c), Ops.ADD, [c]), t)), cpu_machine(NEON)), "k", 2
    )
    assert program.threaded and program.variables == ("n",) and program.buffers == 2
    assert "ret i64 8" in program.text and "%lo" in program.text


def test_constants_of_polynomials_are_not_copied() -> None:
    """On AArch64 a fused product overwrites what it is added to: a constant there comes from memory."""
    o, x = buffers(64, 64)
    r, u = rng(4, 0), rng(16, 1, UPCAST)
    kernel = sink(write(o, r * 16 + u, alu(Ops.EXP, read(x, r * 16 + u)), r, u))
    linear = lower(kernel, cpu_machine(NEON))
    arm = compile_assembly(render(linear, "k", in_place=cpu_machine(NEON).fma_in_place).text, NEON)
    loop = re.search(r"(?ms)^(\.LBB0_\d+):.*?b\.\w+\s+\1$", arm)
    assert loop is not None and "fmla" in loop[0]
    assert not re.search(r"\tmov\tv", loop[0])
    kept = compile_assembly(render(linear, "k").text, NEON)
    assert re.search(r"\tmov\tv", kept)  # else there would be nothing to win
    assert not cpu_machine(AVX2).fma_in_place


def test_text_grows_with_the_number_of_constants() -> None:
    """And not with its square: a thousand lanes of a power were 300 megabytes."""
    o, x = buffers(512, 512)

    def length(lanes: int) -> int:
        r, u = rng(512 // lanes, 0), rng(lanes, 1, UPCAST)
        kernel = sink(write(o, r * lanes + u, alu(Ops.EXP, read(x, r * lanes + u)), r, u))
        return len(render(lower(kernel, cpu_machine(NEON)), "k", in_place=True).text)

    assert length(512) < 10 * length(64)


def test_hints_are_instructions() -> None:
    kernel = split(add(1 << 20), 0, 16, UPCAST)
    assert compile_assembly(text(kernel), NEON).count("prfm") == 2
    assert "prefetch" not in text(kernel, AVX2)


def test_golden(golden) -> None:  # type: ignore[no-untyped-def]
    ir = re.sub(r"^  ; .*\n", "", text(split(row_sum(4, 64), 1, 8, UNROLL)), flags=re.M)
    golden("llvm/row_sum.ll", ir)


def test_refused_code_is_an_error() -> None:
    with pytest.raises(CompileError, match="LLVM refused"):
        compile_object("define void @k() { nonsense }")


def test_a_gpu_list_has_no_llvm_form() -> None:
    grid = Machine("gpu", scalar_alu=True, global_dims=(64, 64, 64))
    g = rng(4, 0, AxisKind.GLOBAL)
    o, x = buffers(4, 4)
    with pytest.raises(CompileError, match="no SPECIAL"):
        render(lower(sink(write(o, g, read(x, g), g)), grid), "k")


@pytest.mark.parametrize("name", MACHINES)
def test_no_library_is_called(name: str) -> None:
    """Machine code stands on its own: conversions, roundings and functions are instructions."""
    machine = MACHINES[name]
    for op, dtype, to in (
        (Ops.SIN, float32, None),
        (Ops.POW, float64, None),
        (Ops.RINT, float32, None),
        (Ops.MAX, float16, None),
        (Ops.MULHI, int64, None),
        (Ops.FMOD, float32, None),
        (Ops.FMOD, float64, None),
        (Ops.CAST, float64, float16),
        (Ops.CAST, float32, uint64),
        (Ops.CAST, bfloat16, float32),
        (Ops.CAST, float64, float8_e4m3),
    ):
        kernel = split(kernel_of(op, dtype, to), 0, 8, UPCAST)
        assembly = compile_assembly(text(kernel, machine), machine)
        called = re.findall(r"^\s+(?:callq?|bl)\s+([\w.@]+)", assembly, re.M)
        assert all("kernel" in c for c in called), (op, dtype, to, called)


def test_products_of_bytes_are_one_instruction() -> None:
    """Also together with the addition to a sum; where there is none, they are shifts and products."""
    out, a, b = (define_global(int32, 64, i) for i in range(3))
    r, k = rng(4, 0), rng(16, 1, REDUCE)
    total = reduce_(alu(Ops.DOT4, read(a, k * 4 + r), read(b, k * 4 + r)), Ops.ADD, [k])
    kernel = split(sink(write(out, r, total, r)), 0, 4, UPCAST)
    vnni = Processor(
        "x86_64-unknown-linux-gnu", "icelake-server", "+avx2,+avx512f,+avx512vl,+avx512vnni,+fma"
    )
    dots = Processor(NEON.triple, NEON.cpu, "+neon,+dotprod")
    for processor, name in ((dots, "sdot"), (vnni, "vpdpbusd")):
        machine = cpu_machine(processor)
        assembly = compile_assembly(render(lower(kernel, machine), "k", arch=machine.arch).text, processor)
        assert name in assembly and "mul" not in assembly and len(re.findall(name, assembly)) <= 2
        steps = split(kernel, 1, 2, UNROLL)  # two steps at once: each is a product of lanes as they lie
        assembly = compile_assembly(render(lower(steps, machine), "k", arch=machine.arch).text, processor)
        assert not re.search("zip|uzp|vpermt2|vpunpck", assembly)
    assert Ops.DOT4 not in cpu_machine(NEON).ops
    assert "sdot" not in compile_assembly(text(kernel), NEON)


@pytest.mark.parametrize("mask", [0x0F0F0F0F, 0x7F7F7F7F])
def test_bytes_without_signs_are_one_instruction(mask: int) -> None:
    """It adds to the sum as well, whichever side the mask is on; a mask that leaves signs takes two."""
    vnni = Processor("x86_64-unknown-linux-gnu", "cascadelake", "+avx2,+avx512f,+avx512vl,+avx512vnni,+fma")
    machine = cpu_machine(vnni)
    out, a, b = (define_global(int32, 64, i) for i in range(3))
    r, k = rng(16, 0), rng(4, 1, REDUCE)

    def body(mask: int, turned: bool) -> str:
        pair = [alu(Ops.AND, read(a, k * 16 + r), const(int32, mask)), read(b, k)]
        total = reduce_(alu(Ops.DOT4, *(pair[::-1] if turned else pair)), Ops.ADD, [k])
        kernel = split(sink(write(out, r, total, r)), 0, 16, UPCAST)
        return compile_assembly(render(lower(kernel, machine), "k", arch=machine.arch).text, vnni)

    for turned in (False, True):
        found = body(mask, turned)
        assert len(re.findall("vpdpbusd", found)) == 1 and not re.search("vpadd|vpsub", found)
    assert len(re.findall("vpdpbusd", body(mask | 0x8000, False))) == 2


@pytest.mark.parametrize("also_alone", [False, True])
def test_a_lane_in_every_lane_is_one_shuffle(also_alone: bool) -> None:
    out, x = (define_global(float32, 8, n) for n in range(2))
    zero = const(int64, 0)
    four = float32.vec(4)
    vector = make(Ops.LOAD, four, (make(Ops.INDEX, four.ptr(8), (x, zero)),))
    lane = make(Ops.GEP, float32, (vector,), (2,))
    spread = make(Ops.VECTORIZE, four, (lane,) * 4)
    where = make(Ops.INDEX, four.ptr(8), (out, zero))
    program = [out, x, zero, vector.src[0], vector, lane, spread, where]
    program.append(make(Ops.STORE, void, (where, spread)))
    if also_alone:
        at = make(Ops.INDEX, float32.ptr(8), (out, const(int64, 4)))
        program += [at, make(Ops.STORE, void, (at, lane))]
    text = render(make(Ops.LINEAR, void, tuple(program)), "k").text
    assert (text.count("extractelement"), text.count("insertelement")) == ((1, 1) if also_alone else (0, 0))
    assert f"<4 x i32> {'zeroinitializer' if also_alone else 'splat (i32 2)'}" in text
    compile_object(text)
