"""The same models on a grid, emulated: all memory is the device's, rows of a cache lie by their position."""

import math
import re
from pathlib import Path

import numpy as np
import pytest

from morok import Tensor, Variable, knobs
from morok.device.cuda.device import program_of
from morok.device.interpreter import run_kernel
from morok.dtype import float32, int32, uint8
from morok.ir.arithmetic.arrays import storage
from morok.ir.node import UOp, toposort
from morok.ir.ops import AxisKind, Ops
from morok.llm import load
from morok.llm.cache import Together, new_cache
from morok.llm.config import Config, Rotation
from morok.llm.matrix import Packed
from morok.llm.model import Linear, Norm
from morok.llm.rotary import rotate
from morok.llm.words import LANES, WORD_FORMATS, Stored
from morok.optimize.facts import output_loops, reads_of
from morok.optimize.record import applied
from tests.gpu.kernels import cubin
from tests.llm import files
from tests.optimize.plans import Planned, an_h200, empty, planned

pytest.importorskip("tokenizers", reason="texts need the package tokenizers")


@pytest.mark.parametrize(
    ("packed", "cache_type"), [(False, "bfloat16"), pytest.param(True, "q8", marks=pytest.mark.slow)]
)
def test_texts_on_a_grid(tmp_path: Path, packed: bool, cache_type: str) -> None:
    """The default device is the processor: whatever stays there is refused by the emulator's kernels."""
    path = tmp_path / "tiny.gguf"
    weights = files.tiny_llama(path, packed=packed)
    model = load(path, device="EMULATOR", cache_type=cache_type, context=32)
    model.reserve(2)
    slots = [model.new_slot() for _ in range(2)]
    texts = [[5, 9, 4], [7, 3]]
    for slot, tokens in zip(slots, texts, strict=True):
        for count in range(1, len(tokens)):
            model.advance(slot, tokens[:count])
    found = model.advance_together(list(zip(slots, texts, strict=True)))
    for row, tokens in zip(found, texts, strict=True):
        assert row is not None
        assert np.abs(row - files.llama_logits(weights, tokens)[-1]).max() < 0.1


@pytest.mark.parametrize(("device", "early"), [("EMULATOR", True), ("CPU", False)])
def test_kernels_of_one_text_start_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str, early: bool
) -> None:
    """Those of several texts fill a grid by themselves."""
    path = tmp_path / "tiny.gguf"
    files.tiny_llama(path)
    model = load(path, device=device, context=32)
    model.reserve(2)
    seen = []

    def step(*args: object) -> Tensor:
        seen.append(knobs.EARLY_START.value)
        return Tensor(np.zeros((2, 8), np.float32), device="CPU")

    for name in ("_token", "_together"):
        monkeypatch.setattr(model, name, step)
    slots = [model.new_slot() for _ in range(2)]
    for slot in slots:
        model.advance(slot, [5])
    model.advance_together([(slot, [5, 6]) for slot in slots])
    assert seen == [early, early, False]


def packed_on_a_gpu(form: str, rows: int, columns: int) -> Packed:
    f = WORD_FORMATS[form]
    words = sum(c.stop - c.start for c in f.codes) // 4
    small_bytes = 0 if f.small is None else f.small.stop - f.small.start
    sizes = ((len(f.halves), "float16"), (small_bytes, "uint8"), (words, "int32"))
    front = (rows // LANES, columns // f.block.numbers)
    halves, small, codes = (empty(*front, n, LANES, dtype=t) if n else None for n, t in sizes)
    assert codes is not None
    return Packed(f, Stored(halves, small, codes), rows)


@pytest.mark.parametrize("form", ["Q8_0", "Q4_1", "Q4_K"])
def test_a_product_is_two_kernels(form: str) -> None:
    """Numbers as bytes with their scales and sums are one, however many results it has."""
    with an_h200():
        found = packed_on_a_gpu(form, 512, 2048).product(empty(1, 2048, dtype="float32"))
        assert len(found.plan().kernels) == 2


@pytest.mark.parametrize("rows", [1, 16])
def test_a_norm_before_a_product_takes_no_kernel_of_its_own(rows: int) -> None:
    """Bytes are made by blocks that find the norm of their row all anew, in a few steps of each thread."""
    with an_h200() as machine:
        weight, x = Linear(packed_on_a_gpu("Q4_K", 512, 4096)), empty(rows, 4096, dtype="float32")
        x, found = Norm(1e-5, empty(4096, dtype="float32")).before([weight], x)
        kernels = planned([(x[:, :512] + weight(found)).uop], machine)
        assert len(kernels) == 2 and "GROUP" in kernels[0].names
        program = program_of(kernels[0].before, machine)
        assert math.prod(program.block) == 256  # who wait for one another
        assert math.prod(int(n) for (n,) in program.grid) == rows * 4096 // 4 // 256


def test_weights_of_a_norm_are_asked_for_before_threads_meet() -> None:
    """All of a block find the norm, and each has a word of bytes to write: none of them leaves."""
    with an_h200() as machine:
        weight = Linear(packed_on_a_gpu("Q4_K", 512, 4096))
        x, found = Norm(1e-5, empty(4096, dtype="float32")).before([weight], empty(1, 4096, dtype="float32"))
        first = planned([(x[:, :512] + weight(found)).uop], machine)[0]
        text = program_of(first.before, machine).text
    before, after = text.split("__syncthreads();")
    assert "(g2 + " in before and "(g2 + " not in after and "if (" not in after
    hint, wait = text.index("prefetch.global.L2"), text.index("griddepcontrol.wait")
    assert hint < wait < text.index("*(const float4*)(g2")
    assert cubin(text)


@pytest.mark.parametrize("form", ["Q8_0", "Q4_K", "Q2_K"])
@pytest.mark.parametrize(("rows", "columns"), [(1, 4096), (1, 14336), (16, 4096)])
def test_a_number_is_looked_at_once_for_all_that_is_made_of_it(form: str, rows: int, columns: int) -> None:
    """A thread has four numbers, and is told by others what they have: it makes all digits of its own, beside
    the scale and the sum."""
    with an_h200() as machine:
        found = packed_on_a_gpu(form, 4096, columns).product(empty(rows, columns, dtype="float32"))
        kernels = planned([found.uop], machine)
        assert any(n.op in (Ops.DOT4, Ops.WMMA) for n in toposort(kernels[1].ast))  # the next one multiplies
        program = program_of(kernels[0].before, machine)
    threads = math.prod(int(n) for (n,) in program.grid) * math.prod(program.block)
    assert threads == rows * columns // 4 and "__shfl_sync" in program.text
    assert math.prod(program.block) <= 64  # for all multiprocessors


@pytest.mark.parametrize("rows", [1, 16])
def test_what_is_gated_becomes_bytes_where_it_is_computed(rows: int) -> None:
    """Each number once, as its reciprocals show; and once more where threads of a wide block meet."""
    with an_h200() as machine:
        gate, up = empty(rows, 8192, dtype="float32").split([4096] * 2, dim=1)
        found = Linear(packed_on_a_gpu("Q4_K", 512, 4096)).of(gate.silu() * up)
        kernels = planned([found.uop], machine)
        text = program_of(kernels[0].before, machine).text
    assert len(kernels) == 2
    assert text.count("= approximate_recip(") <= (4 if rows == 1 else 12)


@pytest.mark.parametrize("form", ["Q8_0", "Q4_K", "Q5_K", "Q2_K"])
@pytest.mark.parametrize("rows", [1, 3, 16])
def test_products_behind_norms_and_gates(form: str, rows: int) -> None:
    """By the emulator, beside float64 and the decoded matrix."""
    _, there, decoded = random_matrix(form, 1024)
    random = np.random.default_rng(rows)
    x, w = (random.standard_normal(s).astype(np.float32) for s in ((rows, 2048), (1024,)))
    linear, here = Linear(there), Tensor(x, device="EMULATOR").realize()
    first, second = x[:, :1024].astype(np.float64), x[:, 1024:].astype(np.float64)
    norm = Norm(1e-5, Tensor(w, device="EMULATOR"))
    gate, up = here.split([1024] * 2, dim=1)
    wanted = {
        "norm": first / np.sqrt((first**2).mean(1, keepdims=True) + 1e-5) * w,
        "gate": first / (1 + np.exp(-first)) * second,
    }
    found = {
        "norm": linear(norm.before([linear], here[:, :1024].contiguous())[1]),
        "gate": linear.of(gate.silu() * up),
    }
    for kind, left in wanted.items():
        bound = np.abs(left) @ np.abs(decoded).T
        assert (np.abs(found[kind].numpy() - left @ decoded.T) <= 2.0**-20 * bound).all(), kind


def test_what_neighbours_multiply_lies_side_by_side() -> None:
    """Threads beside each other have blocks beside each other, and read vectors of four words of them."""
    with an_h200() as machine:
        found = packed_on_a_gpu("Q4_K", 4096, 14336).product(empty(1, 14336, dtype="float32"))
        kernels = planned([found.uop], machine)
        product = next(p for p in kernels if any(n.op is Ops.DOT4 for n in toposort(p.before)))
        left = [a for a in reads_of(product.before) if a.node.dtype is int32 and not a.moves(rows(product))]
        blocks = next(r for r in toposort(product.before) if r.op is Ops.RANGE and int(r.src[0].arg) == 56)
        assert left and {a.step(blocks) for a in left} == {4}


def rows(product: Planned) -> UOp:
    """The loop over rows that lie side by side."""
    return next(r for r in output_loops(product.before.src[0]) if int(r.src[0].arg) == LANES)


def random_matrix(form: str, columns: int) -> tuple[Packed, Packed, np.ndarray]:
    """A matrix of 32 rows, on the processor and the emulator, and decoded."""
    f = WORD_FORMATS[form]
    random = np.random.default_rng(1)
    words = sum(c.stop - c.start for c in f.codes) // 4
    small = 0 if f.small is None else f.small.stop - f.small.start
    front = (2, columns // f.block.numbers)
    made = Stored(
        Tensor(random.uniform(0.001, 0.01, (*front, len(f.halves), LANES)).astype(np.float16)),
        Tensor(random.integers(0, 256, (*front, small, LANES)).astype(np.uint8)) if small else None,
        Tensor(random.integers(-(2**31), 2**31, (*front, words, LANES)).astype(np.int32)),
    )
    there = Stored(*(None if t is None else t.to("EMULATOR") for t in (made.halves, made.bytes, made.words)))
    here = Packed(f, made, 32)
    decoded = here.rows(Tensor(np.arange(32, dtype=np.int32))).numpy().astype(np.float64)
    return here, Packed(f, there, 32), decoded


@pytest.mark.parametrize("form", ["Q2_K", "Q4_K", "Q6_K", "Q8_0"])
def test_products_of_one_row(form: str) -> None:
    """By the emulator, beside the decoded matrix."""
    _, there, decoded = random_matrix(form, 1024)
    x = np.random.default_rng(2).standard_normal((1, 1024)).astype(np.float32)
    found = there.product(Tensor(x, device="EMULATOR")).numpy()
    want = x.astype(np.float64) @ decoded.T
    assert np.abs(found - want).max() < 1e-5 * np.abs(want).max()


@pytest.mark.parametrize(("form", "rows"), [("Q8_0", 2), ("Q4_K", 4), ("Q5_K", 2)])
@pytest.mark.parametrize("shape", [(4096, 14336), (6144, 4096), (28672, 4096)])
def test_a_thread_reads_codes_of_several_rows_at_once(form: str, rows: int, shape: tuple[int, int]) -> None:
    """Of four rows, where a word has many codes, unless all that is decoded at once would not fit the
    registers; and there is room for two blocks."""
    with an_h200() as machine:
        found = packed_on_a_gpu(form, *shape).product(empty(1, shape[1], dtype="float32"))
        product = next(
            p for p in planned([found.uop], machine) if any(n.op is Ops.DOT4 for n in toposort(p.ast))
        )
        assert [a.amount for a in applied(product.ast) if a.name == "UPCAST"] == [rows]
        program = program_of(product.before, machine)
    assert math.prod(program.block) <= 256
    bounds = re.search(r"__launch_bounds__\((\d+), (\d+)\)", program.text)
    assert bounds is not None and int(bounds[1]) * int(bounds[2]) >= 384
    assert not spills(cubin(program.text))


@pytest.mark.parametrize(("rows", "bounds"), [(4096, "(128, 2)"), (6144, "(128, 3)"), (28672, "(64, 8)")])
def test_few_blocks_have_more_registers(rows: int, bounds: str) -> None:
    """No room is kept for more blocks than a multiprocessor gets."""
    with an_h200() as machine:
        found = packed_on_a_gpu("Q4_K", rows, 4096).product(empty(1, 4096, dtype="float32"))
        program = program_of(planned([found.uop], machine)[1].before, machine)
    assert f"__launch_bounds__{bounds}" in program.text


def test_scales_of_blocks_multiply_once() -> None:
    """What a block has in common multiplies the sum of four groups, with the factors of these in it."""
    with an_h200() as machine:
        found = packed_on_a_gpu("Q4_K", 4096, 4096).product(empty(1, 4096, dtype="float32"))
        text = program_of(planned([found.uop], machine)[1].before, machine).text
    body = text[: text.index("__syncthreads")]
    products = len(re.findall(r"float x\d+ = x[\w.]+ \* ", body))
    assert products <= 8 * 4 and body.count("__fmaf_rn") <= 12 * 4  # four rows, four groups of each


def test_rows_on_the_left_leave_a_thread_two_of_the_matrix() -> None:
    with an_h200() as machine:
        found = packed_on_a_gpu("Q4_K", 4096, 4096).product(empty(4, 4096, dtype="float32"))
        names = [str(a.amount) for a in applied(planned([found.uop], machine)[-1].ast) if a.name == "UPCAST"]
        assert names == ["4", "2"]


def frame_of(code: bytes) -> int:
    """Bytes of a thread's frame in memory, which is attribute 0x11 of the notes of machine code."""
    at = code.find(b"\x04\x11\x08\x00")
    assert at >= 0
    return int.from_bytes(code[at + 8 : at + 12], "little")


def spills(code: bytes) -> bool:
    return frame_of(code) > 0


@pytest.mark.parametrize("form", WORD_FORMATS)
def test_several_rows_are_multiplied_by_matrix_units(form: str) -> None:
    """Every byte of a number is a product of a unit; the weights are read once for all rows."""
    with an_h200() as machine:
        found = packed_on_a_gpu(form, 4096, 4096).product(empty(16, 4096, dtype="float32"))
        last = planned([found.uop], machine)[-1]
        assert last.on_unit and last.shares
        units = [n for n in toposort(last.ast) if n.op is Ops.WMMA]
        assert len(units) >= 3 and not any(n.op is Ops.DOT4 for n in toposort(last.ast))
        strips = [r for r in toposort(last.ast) if r.op is Ops.RANGE and r.arg[1] is AxisKind.LOOP]
        assert [int(r.src[0].arg) for r in strips] == [256]


@pytest.mark.parametrize("form", ["Q8_0", "Q4_K"])
def test_rows_of_a_lane_are_neighbours(form: str) -> None:
    """Which rows of the sixteen a lane of a unit has is free: two that are one access, also of the result."""
    with an_h200() as machine:
        found = packed_on_a_gpu(form, 4096, 4096).product(empty(16, 4096, dtype="float32"))
        text = program_of(planned([found.uop], machine)[-1].before, machine).text
    words = "g1" if form == "Q8_0" else "g2"
    assert f"*(const int2*)({words} + " in text and f"= {words}[" not in text
    assert "*(float2*)(g0 + " in text and "  g0[" not in text
    assert not spills(cubin(text))


def test_what_is_added_to_several_rows_is_added_where_they_are_multiplied() -> None:
    """And the norm of the sums is found where bytes are made with it: one kernel beside each product."""
    with an_h200() as machine:
        first, second = (Linear(packed_on_a_gpu("Q4_K", 2048, 2048)) for _ in range(2))
        x, found = Norm(1e-5, empty(2048, dtype="float32")).before([first], empty(16, 2048, dtype="float32"))
        x = x + first(found)
        x, found = Norm(1e-5, empty(2048, dtype="float32")).before([second], x)
        kernels = planned([(x + second(found)).uop], machine)
    assert [k.on_unit for k in kernels] == [False, True] * 2


@pytest.mark.parametrize("shape", [(4096, 4096), (28672, 4096), (4096, 14336)])
def test_scales_of_few_bits_are_decoded_in_the_product(shape: tuple[int, int]) -> None:
    """Also for several rows: threads that share a tile of them decode a scale a few times."""
    with an_h200() as machine:
        found = packed_on_a_gpu("Q4_K", *shape).product(empty(16, shape[1], dtype="float32"))
        *before, last = planned([found.uop], machine)
    assert last.on_unit and any(a.node.dtype is uint8 for a in reads_of(last.before))
    assert not any(a.node.dtype is uint8 for p in before for a in reads_of(p.before))


@pytest.mark.parametrize(("form", "converted"), [("Q4_K", 0), ("Q5_K", 3), ("Q8_0", 2)])
def test_factors_of_groups_multiply_whole_numbers(form: str, converted: int) -> None:
    """For several rows sums become floats once for a block, digit by digit, and no kernel is there for it.
    Where codes times factors are float16 they are floats from the beginning."""
    with an_h200() as machine:
        kernels = planned(
            [packed_on_a_gpu(form, 4096, 4096).product(empty(16, 4096, dtype="float32")).uop], machine
        )
    casts = [n for n in toposort(kernels[-1].before) if n.op is Ops.CAST and n.src[0].dtype is int32]
    assert len([n for n in casts if n.dtype is float32]) == converted
    assert len(kernels) == 2


@pytest.mark.parametrize("shape", [(4096, 4096), (28672, 4096), (4096, 14336)])
def test_codes_times_factors_are_multiplied_as_float16(shape: tuple[int, int]) -> None:
    """Nothing is converted, units add up a block, and both pieces of a number are one access of 16 bytes."""
    with an_h200() as machine:
        x = empty(16, shape[1], dtype="float32")
        kernels = planned([packed_on_a_gpu("Q4_K", *shape).product(x).uop], machine)
        assert len(kernels) == 2
        text = program_of(kernels[1].before, machine).text
    strips = 2 if shape[0] == 28672 else 1  # where enough warps are left
    assert (
        text.count("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32") == 66 * strips
    )  # 64 of a block, and minima
    assert text.count("*(const int4*)(") == 32 and not spills(cubin(text))
    assert (
        text.count(': "f"(0.0f)') + text.count(', "f"(0.0f), "f"(0.0f), "f"(0.0f), "f"(0.0f)') <= 4 * strips
    )


@pytest.mark.parametrize("rows", [2, 8, 16, 17, 24])
def test_rows_of_all_sizes_beside_float64(rows: int) -> None:
    """Also where a block is zero, and where all numbers are tiny."""
    _, there, decoded = random_matrix("Q4_K", 1024)
    x = np.random.default_rng(rows).standard_normal((rows, 1024)).astype(np.float32)
    x[-1, 256:512] = 0.0
    x[1] *= np.float32(1e-20)
    found = there.product(Tensor(x, device="EMULATOR")).numpy()
    bound = np.abs(x.astype(np.float64)) @ np.abs(decoded).T
    assert (np.abs(found - x.astype(np.float64) @ decoded.T) <= 2.0**-20 * bound).all()


def test_two_strips_of_a_warp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("morok.optimize.heuristics.lane_rows.FEWEST_WARPS", 0)  # few rows are enough
    _, there, decoded = random_matrix("Q4_K", 768)
    x = np.random.default_rng(3).standard_normal((8, 768)).astype(np.float32)
    found = there.product(Tensor(x, device="EMULATOR")).numpy()
    bound = np.abs(x.astype(np.float64)) @ np.abs(decoded).T
    assert (np.abs(found - x.astype(np.float64) @ decoded.T) <= 2.0**-20 * bound).all()


def test_threads_that_all_run_at_once_read_more_at_a_time() -> None:
    """Blocks that come one after the other need registers for those beside them."""
    found = []
    with an_h200() as machine:
        for shape in ((4096, 14336), (6144, 4096)):
            x = empty(16, shape[1], dtype="float32")
            last = planned([packed_on_a_gpu("Q8_0", *shape).product(x).uop], machine)[-1]
            found.append([a.amount for a in applied(last.ast) if a.name == "UNROLL"])
    assert found == [[4], [2]]


def test_points_of_units_of_words_mean_what_they_replace() -> None:
    """Each kernel as it was and with its actions, by the interpreter."""
    with an_h200() as machine:
        found = packed_on_a_gpu("Q5_K", 32, 512).product(empty(8, 512, dtype="float32"))
        last = planned([found.uop], machine)[-1]
    assert last.on_unit
    random = np.random.default_rng(0)
    memory = {n.arg: n.dtype for n in toposort(last.before) if n.op is Ops.DEFINE_GLOBAL}
    given = []
    for number in range(len(memory)):
        size, elem = memory[number].size, memory[number].elem
        whole = random.integers(-100, 100, size)
        given.append((whole if elem.is_int else whole / 64).astype(storage(elem)))
    left = next(x for x in given if x.size == 2 * 8 * 5 * 8 * 8).reshape(2, 8, 5, 8, 8)
    left[:, :, 3:] = (left[:, :, 3:] / np.float32(64)).astype(np.float32).view(np.int32)  # scales and sums
    results = []
    for ast in (last.before, last.ast):
        arrays = [x.copy() for x in given]
        run_kernel(ast, arrays, {})
        results.append(arrays[0])
    assert np.abs(results[0]).max() > 1
    assert np.allclose(*results, rtol=1e-5, atol=1e-3 * np.abs(results[0]).max())


def test_plain_matrices_of_one_vector_are_one_on_a_grid(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    files.tiny_llama(path, packed=False)
    attentions = [load(path, device=d).decoder.layers[0].attention for d in ("EMULATOR", "CPU")]
    assert [len(a.into) for a in attentions] == [1, 3] and [a.joined for a in attentions] == [True, False]


def test_queries_and_keys_of_several_texts_are_turned_where_they_are_read() -> None:
    """No kernel of its own keeps them: one writes to the cache, and one multiplies."""
    config = Config("llama", 256, 1, 1024, 8, 2, 128, 512, 64, 1e-5, Rotation(10000.0, 128))
    with an_h200() as machine:
        cache = new_cache(config, 16, 64, "bfloat16", "CUDA")
        cosines, sines = (empty(16, 1, 128, dtype="float32") for _ in range(2))
        q, k, v = (empty(16, n, 128, dtype="float32") for n in (8, 2, 2))
        turned = (rotate(q, cosines, sines), rotate(k, cosines, sines), v)
        step = Together(empty(16, dtype="int32"), Variable("last", 1, 64).bind(33))
        found = step.attend(config, cache, turned, None)
        kernels = planned([(found.queries @ found.keys.transpose(-1, -2)).uop], machine)
    assert len(kernels) == 2
    # and none of the texts waits for another one
    kinds = {r.arg[1] for r in toposort(kernels[0].before) if r.op is Ops.RANGE}
    assert kinds == {AxisKind.LOOP}


def test_rows_after_a_product_of_several_have_blocks_of_their_own() -> None:
    with an_h200() as machine:
        x = packed_on_a_gpu("Q8_0", 2048, 2048).product(empty(16, 2048, dtype="float32"))
        last = planned([Norm(1e-5, empty(2048, dtype="float32")).after(x).uop], machine)[-1]
        assert last.shares and last.steps == 16 * 2048
        assert next(a for a in applied(last.ast) if a.name == "GROUP").amount >= 128
