"""CUDA C: what it looks like, and that NVIDIA's compiler makes machine code of it, without a GPU."""

import math
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings

from morok import Tensor, knobs
from morok.codegen.pipeline import lower
from morok.device.cuda.device import program_of
from morok.device.cuda.interface import Facts
from morok.dtype import DType, bfloat16, bool_, float8_e5m2, float16, float32, float64, int8, int32, int64
from morok.ir.build import bufferize, define_global, rng, sink
from morok.ir.checks import count_buffers
from morok.ir.node import UOp, alu, const, make
from morok.ir.ops import AxisKind, Ops
from morok.machine.files import load
from morok.machine.machine import Machine
from morok.optimize.actions.table import apply_all
from morok.optimize.heuristics.apply import optimize
from morok.optimize.record import Opt
from morok.render.cuda.kernel import STATIC_SHARED, render
from morok.render.program import Program, extent_value
from tests.codegen.kernels import UPCAST, add, read, split, write
from tests.gpu.host_c import run_on_host
from tests.gpu.kernels import HOST, TARGET, check, cubin, lidx, linear, store
from tests.gpu.products import kernel_of, product
from tests.optimize.kernels import GPU, MAKERS, kernel
from tests.optimize.test_actions import sequences


def source(ast: UOp) -> Program:
    return render(lower(ast, TARGET), "k")


def copy(n: int, dtype: DType, lanes: int) -> UOp:
    r = rng(n, 0)
    kernel = sink(write(define_global(dtype, n, 0), r, read(define_global(dtype, n, 1), r), r))
    return split(kernel, 0, lanes, UPCAST)


@pytest.mark.parametrize(
    ("dtype", "lanes", "access"),
    [
        (float32, 4, "float4"),
        (float64, 2, "double2"),
        (int64, 2, "longlong2"),
        (float16, 8, "uint4"),
        (bfloat16, 4, "uint2"),
        (int8, 16, "uint4"),
        (bool_, 4, "unsigned"),
    ],
    ids=str,
)
def test_vectors_are_one_access(dtype: DType, lanes: int, access: str) -> None:
    ast = copy(64, dtype, lanes)
    text = source(ast).text
    assert f"*(const {access}*)(g1 + " in text and f"*({access}*)(g0 + " in text
    given = np.arange(64) % 2 if dtype is bool_ else np.arange(64)
    arrays = [np.zeros(64, dtype=dtype.numpy), given.astype(dtype.numpy)]
    check(ast, arrays)


def test_registers_are_read_within_their_bounds() -> None:
    """A packed row whose loop was made longer: what lies behind it is anything."""
    ast = apply_all(kernel("whole sum"), (Opt("PACK", 1, 0, (0,)), Opt("PADTO", 0, 4)), GPU)
    read_by = [line for line in source(ast).text.splitlines() if "= apack" in line or "? apack" in line]
    assert len(read_by) == 1 and " ? apack" in read_by[0] and read_by[0].endswith(" : 0.0f;")


def test_accesses_that_may_be_misaligned_are_split() -> None:
    """x[r*4 + 2 + (0, 1, 2, 3)] lies at a multiple of two elements, and of no more."""
    o, x = define_global(float32, 64, 0), define_global(float32, 66, 1)
    r = rng(64, 0)
    ast = split(sink(write(o, r, read(x, r + 2), r)), 0, 4, UPCAST)
    text = source(ast).text
    assert text.count("*(const float2*)(g1 + ") == 2 and "*(float4*)(g0 + " in text
    odd = split(sink(write(o, r, read(x, r + 1), r)), 0, 4, UPCAST)
    assert "*(const float" in source(odd).text  # the middle two
    check(ast, [np.zeros(64, np.float32), np.arange(66, dtype=np.float32)])
    check(odd, [np.zeros(64, np.float32), np.arange(66, dtype=np.float32)])


def test_the_signature() -> None:
    program = source(apply_all(kernel("symbolic rows"), (Opt("LOCAL", 1, 6),), GPU))
    assert (
        "void __launch_bounds__(6) k(float* __restrict__ g0, const float* __restrict__ g1, long long v_n)"
        in (program.text)
    )
    assert program.block == (6,) and program.variables == ("n",)
    assert [extent_value(size, {"n": 13}) for size in program.grid] == [13]
    linear = lower(apply_all(kernel("symbolic rows"), (Opt("LOCAL", 1, 6),), GPU), TARGET)
    assert "__launch_bounds__(6) k(" in render(linear, "k", 0, 132).text  # how many blocks is not known


def test_lines_of_the_user_are_comments() -> None:
    assert re.search(r"// kernels.py:\d+", source(add(64)).text)


def test_no_product_is_fused_unless_the_ir_says_so() -> None:
    o, x, y, z = (define_global(float32, 8, i) for i in range(4))
    r = rng(8, 0)
    a, b, c = read(x, r), read(y, r), read(z, r)
    assert "fma" not in source(sink(write(o, r, a * b + c, r))).text
    assert "__fmaf_rn" in source(sink(write(o, r, alu(Ops.MULACC, a, b, c), r))).text


def test_integers_that_may_wrap_have_no_sign() -> None:
    o, x = define_global(int32, 8, 0), define_global(int32, 8, 1)
    r = rng(8, 0)
    text = source(sink(write(o, r, read(x, r) + read(x, r), r))).text
    assert "(int)((unsigned)" in text
    assert "unsigned" not in source(add(64)).text  # indices stay far below the limit


@pytest.mark.parametrize(
    "value", [math.inf, -math.inf, math.nan, -0.0, 1e-45, 3.4e38, 0.1, 1e300, 16777217.0]
)
@pytest.mark.parametrize("dtype", [float32, float64, float16], ids=str)
def test_constants(dtype: DType, value: float) -> None:
    o, x = define_global(dtype, 2, 0), define_global(dtype, 2, 1)
    r = rng(2, 0)
    constant = const(dtype, value)
    ast = sink(write(o, r, alu(Ops.MAX, read(x, r), constant), r))
    assert cubin(source(ast).text) if value in (math.inf, 0.1) else source(ast).text


def shared_rows(rows: int, columns: int) -> UOp:
    """Every row goes through memory that the threads of a block share, and comes out turned around."""
    o, x = define_global(float32, rows * columns, 0), define_global(float32, rows * columns, 1)
    r, c = rng(rows, 0), rng(columns, 1, AxisKind.LOCAL)
    fill = rng(columns, 2, AxisKind.LOCAL)
    row = bufferize(read(x, r * columns + fill), fill, arg=("local", "row"))
    value = make(Ops.INDEX, float32, (row, c * -1 + (columns - 1)))
    return sink(write(o, r * columns + c, value, r, c))


def test_shared_memory_and_its_barrier() -> None:
    ast = shared_rows(3, 64)
    program = source(ast)
    assert "__shared__ __align__(" in program.text and program.shared == 0 and program.block == (64,)
    assert program.text.count("__syncthreads();") == 1
    check(ast, [np.zeros(192, np.float32), np.arange(192, dtype=np.float32)])
    assert cubin(program.text)


def test_much_shared_memory_is_asked_for_at_launch() -> None:
    t = lidx(32)
    from morok.ir.build import define_local

    big = define_local(float64, STATIC_SHARED // 8 + 16, "big")
    program = render(linear(store(big, t, const(float64, 1.0))), "k")
    assert program.shared > STATIC_SHARED and "extern __shared__" in program.text
    assert cubin(program.text)


def test_a_warp_sums_without_memory() -> None:
    ast = apply_all(kernel("row sum"), (Opt("GROUP", 1, 8),), GPU)
    text = source(ast).text
    assert text.count("__shfl_sync(0xffffffffu") == 3 and "__shared__" not in text
    assert cubin(text)
    joined = source(apply_all(kernel("row max"), (Opt("GROUP", 1, 13),), GPU)).text
    assert "__shfl_sync" not in joined and "__shared__" in joined  # 13 is odd


def test_parts_of_neighbours_lie_side_by_side() -> None:
    """Threads along outputs that were made last are neighbours: their parts are in neighbouring banks."""
    text = source(apply_all(kernel("column sum"), (Opt("GROUP", 1, 4), Opt("LOCAL", 0, 3)), GPU)).text
    place = re.search(r"s_group\d+\[(x\d+)\] = ", text)
    assert place is not None
    made = re.search(rf"int {place[1]} = (\w+) \+ (\w+);", text)
    assert made is not None and "lidx0" in made.groups()  # the fastest thread is not multiplied


@pytest.mark.parametrize("name", ["column sum", "row max"])
def test_threads_that_write_nothing_leave(name: str) -> None:
    """After the last barrier one of those that share a sum adds up its parts."""
    amount = 13 if name == "row max" else 6
    ast = apply_all(kernel(name), (Opt("GROUP", 1, amount),), GPU)
    after = source(ast).text.rsplit("__syncthreads();", 1)[1]
    assert "for (" not in after.split("if (")[0] and after.count("if (") == 1


def test_ranges_that_never_meet_share_threads() -> None:
    opts = (Opt("GROUP", 2, 4), Opt("GROUP", 3, 4), Opt("LOCAL", 1, 4))
    assert source(apply_all(kernel("softmax"), opts, GPU)).block == (4,)


COMPILED = ("softmax", "matmul", "convolution", "gather", "two outputs", "symbolic sum", "integers")


@pytest.mark.parametrize("name", COMPILED)
def test_kernels_compile(name: str) -> None:
    assert cubin(source(optimize(kernel(name), HOST)).text)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(MAKERS) - set(COMPILED)))
def test_all_kernels_compile(name: str) -> None:
    assert cubin(source(optimize(kernel(name), HOST)).text)


@pytest.mark.parametrize(
    ("capability", "shared"), [((8, 0), 163), ((8, 9), 99), ((10, 3), 227), ((12, 0), 99)], ids=str
)
def test_other_architectures(capability: tuple[int, int], shared: int) -> None:
    """Copies, matrix units and shared memory as each of them has it."""
    facts = Facts("another", capability, 40 << 30, 100, 1024, shared << 10, 40 << 20, 13000)
    machine = facts.machine()
    half = kernel_of(product, (512, 512), (512, 512))
    for ast in (half, kernel("softmax")):
        program = program_of(ast, machine)
        assert program.shared <= facts.shared_bytes
        assert ast is not half or "mma.sync" in program.text
        assert cubin(program.text, facts.arch)


@given(sequences((GPU,)))
@settings(max_examples=8)
def test_random_actions_compile(case: tuple[str, Machine, UOp]) -> None:
    assert cubin(source(case[2]).text)


@pytest.mark.slow
@given(sequences((GPU,)))
@settings(max_examples=300)
def test_many_random_actions_compile(case: tuple[str, Machine, UOp]) -> None:
    assert cubin(source(case[2]).text)


def test_narrow_floats_need_no_header() -> None:
    o, x = define_global(float8_e5m2, 64, 0), define_global(float16, 64, 1)
    r = rng(64, 0)
    value = make(Ops.CAST, float8_e5m2, (read(x, r) + 1.0,))
    text = source(sink(write(o, r, value, r))).text
    assert "#include" not in text and cubin(text)


def test_checks_of_positions_are_one_branch_that_nvrtc_takes() -> None:
    with knobs.override(DEVICE="EMULATOR"):
        x = Tensor(np.zeros((500, 64), np.float32)).realize()
        i, j = (Tensor(np.zeros(n, np.int32)).realize() for n in (100, (500, 64)))
        for made, branches in ((x[i], 1), (x.gather(1, j), 1), (x[i, i % 64], 1), (x[i, i], 3)):
            (kernel,) = made.plan().kernels
            text = program_of(kernel.ast, HOST).text
            assert text.count("  if (x") == branches and f"g{count_buffers(kernel.ast) - 1}[0LL] = " in text
            cubin(text)


def test_products_of_bytes_are_added_by_their_instruction(tmp_path: Path) -> None:
    """One instruction for both; what is wanted for itself, too, or added to itself, is also there."""
    r = rng(8, 0)
    a, b, c = (read(define_global(int32, 8, i), r) for i in (1, 2, 3))
    first, second = alu(Ops.DOT4, a, b), alu(Ops.DOT4, b, c)
    given = [np.random.default_rng(i).integers(-(1 << 31), 1 << 31, 8).astype(np.int32) for i in range(4)]
    four = [x.view(np.int8).reshape(8, 4).astype(np.int64) for x in given]
    one, two = (four[1] * four[2]).sum(1), (four[2] * four[3]).sum(1)
    cases = [
        (first + c, one + given[3], 1),
        (first + second, one + two, 2),
        ((first + second) * first, (one + two) * one, 2),
        (first + first, one + one, 1),
    ]
    programs = []
    for i, (value, _, count) in enumerate(cases):
        ast = sink(write(define_global(int32, 8, 0), r, value, r))
        programs.append(render(lower(ast, TARGET), f"k{i}"))
        assert programs[-1].text.count("__dp4a(") == count
    arrays = [[np.zeros(8, np.int32), *given[1:]] for _ in cases]
    run_on_host(programs, arrays, tmp_path)
    for found, (_, wanted, _) in zip(arrays, cases, strict=True):
        assert np.array_equal(found[0], wanted.astype(np.int32))


def test_kernels_that_start_early_read_nothing_through_a_cache_of_constants() -> None:
    """The kernel before may still write what this one reads, while this one is there and waits."""
    ast = kernel_of(lambda x: x + 1.0, (64,))
    assert "* __restrict__ g1" in source(optimize(ast, HOST)).text
    with knobs.override(EARLY_START=True):
        text = source(optimize(ast, HOST)).text
    assert "* __restrict__ g0" in text and "* g1" in text


def test_reads_of_a_loop_come_first() -> None:
    """A product of one row: its reads stand at the beginning of a loop, and there are registers for them."""
    text = source(optimize(kernel_of(product, (1, 4096), (4096, 4096)), HOST)).text
    body = text[text.index("for (int") :]
    assert body[: body.index("f32_f16(")].count("*(const uint4*)(g2") == 8
    bounds = text[text.index("__launch_bounds__(") :]
    assert "," in bounds[: bounds.index(")")]


def test_parts_of_a_sum_are_added_up_a_few_at_a_time() -> None:
    """Many threads have left them in shared memory: written out, all would be in registers at once."""
    for rows, many in ((32 * 64, True), (16, False)):
        ast = kernel_of(lambda x: x.reshape(-1, 64).sum(0), (rows * 64,))
        assert ("#pragma unroll 16" in source(optimize(ast, HOST)).text) is many


@pytest.mark.parametrize(("columns", "steps"), [(3136, 64), (3136, 32), (784, 128)])
def test_a_tile_of_tensor_cores_keeps_its_registers(columns: int, steps: int) -> None:
    """Also where it is made in one step, without a loop, and the result's other summands are read at once."""
    ast = kernel_of(
        lambda w, x, b, more: (w @ x + b + more).relu(),
        (256, steps),
        (32, steps, columns),
        (256, 1),
        (32, 256, columns),
        dtype="bfloat16",
    )
    text = program_of(ast, load("sm_90"), "tile").text
    assert "mma" in text
    assert cubin(text)
