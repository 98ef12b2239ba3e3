"""Products on a unit that reads tiles out of memory: the plan is right on the interpreter and as code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from morok import Tensor, knobs
from morok.device.cpu import device as cpu
from morok.device.cpu.llvm import compile_assembly
from morok.dtype import bfloat16, float32, int8, int32
from morok.dtype.types import DType
from morok.ir.build import cast
from morok.ir.node import UOp, toposort
from morok.ir.ops import Ops
from morok.machine.files import load, source
from morok.optimize.actions.table import apply_all, can
from morok.optimize.heuristics.apply import optimize
from morok.optimize.record import Opt, applied
from tests.optimize.kernels import AVX512, interpret, kernel_of, same
from tests.schedule import graphs as g

MACHINE = load("avx512-amx")
# Caches for a few tiles, so that small products are cut into blocks.
TIGHT = "base = 'avx512-amx'\nl2_bytes = 16384\nlocal_bytes = 32768\n"
RNG = np.random.default_rng(0)
TYPES = [(bfloat16, float32), (int8, int32)]


def product(rows: int, columns: int, steps: int, inputs: DType, output: DType, turned: bool = False) -> UOp:
    a = g.tensor(rows, steps, dtype=inputs)
    b = g.tensor(*((columns, steps) if turned else (steps, columns)), dtype=inputs)
    return g.matmul(cast(a, output), cast(g.transpose(b, 1, 0) if turned else b, output))


def uses_tiles(ast: UOp) -> bool:
    return any(opt.name == "TILE_UNIT" for opt in applied(ast))


@pytest.mark.parametrize(("inputs", "output"), TYPES)
@pytest.mark.parametrize("shape", [(32, 32, 64), (40, 50, 70), (16, 64, 128), (100, 33, 64)])
@pytest.mark.parametrize("turned", [False, True])
def test_the_plan_keeps_the_answer(
    shape: tuple[int, int, int], inputs: DType, output: DType, turned: bool
) -> None:
    with knobs.override(NOOPT=1):  # bytes stay bytes
        plain = kernel_of(g.relu(g.add(product(*shape, inputs, output, turned), 1)))
    ast = optimize(plain, MACHINE)
    assert uses_tiles(ast)
    same(interpret(ast), interpret(plain))


def test_few_rows_stay_in_vectors() -> None:
    for rows in (1, 2):
        assert not uses_tiles(optimize(kernel_of(product(rows, 512, 512, bfloat16, float32, True)), MACHINE))


def test_other_machines_have_no_such_unit() -> None:
    plain = kernel_of(product(64, 64, 64, bfloat16, float32))
    assert not uses_tiles(optimize(plain, AVX512))
    assert "no unit" in str(can(plain, Opt("TILE_UNIT", 2, 1, (0, 1)), AVX512))


@pytest.mark.parametrize(
    ("opt", "reason"),
    [
        (Opt("TILE_UNIT", 2, 9, (0, 1)), "no number 9"),
        (Opt("TILE_UNIT", 2, 2, (0, 1)), "adds in int"),
        (Opt("TILE_UNIT", 2, 1, (0,)), "rows, columns"),
        (Opt("TILE_UNIT", 2, 1, (0, 7)), "no loop 7"),
        (Opt("TILE_UNIT", 0, 1, (2, 1)), "is loop, or"),
        (Opt("TILE_UNIT", 2, 1, (0, 1)), "16 × 16 outputs and 32 steps"),
    ],
)
def test_what_it_cannot_do(opt: Opt, reason: str) -> None:
    assert reason in str(can(kernel_of(product(40, 48, 64, bfloat16, float32)), opt, MACHINE))


def test_unknown_types_are_not_multiplied() -> None:
    plain = kernel_of(g.matmul(g.tensor(64, 64), g.tensor(64, 64)))
    assert "factors are not" in str(can(plain, Opt("TILE_UNIT", 2, 1, (0, 1)), MACHINE))
    assert not uses_tiles(optimize(plain, MACHINE))


def test_blocks_stay_in_the_second_cache() -> None:
    """Rows and the panels that pass by them are read again and again, so both of them stay there."""
    for count, steps in ((2048, 2048), (1024, 4096)):
        ast = optimize(kernel_of(product(count, count, steps, bfloat16, float32)), MACHINE)
        panels, rows = (opt.amount for opt in applied(ast) if opt.name == "TILE" and opt.amount > 32)
        assert panels * steps * 2 <= MACHINE.l2_bytes // 4
        assert rows * steps * 2 <= MACHINE.l2_bytes // 4


def test_whole_rows_are_read_as_they_lie() -> None:
    """Only the right operand is copied; rows that begin in the middle of a line are copied too."""
    for steps, copies in ((64, 1), (70, 2)):
        ast = optimize(kernel_of(product(64, 64, steps, bfloat16, float32, True)), MACHINE)
        assert sum(n.op is Ops.BUFFERIZE and n.arg[0] == "local" for n in toposort(ast)) == copies


def test_loops_around_become_part_of_a_copy() -> None:
    plain = kernel_of(product(64, 64, 70, bfloat16, float32))
    opts = [Opt("PADTO", 2, 32), Opt("TILE", 0, 32), Opt("TILE", 1, 32)]
    sizes = []
    for around in ((), (0,), (0, 1)):
        ast = apply_all(plain, [*opts, Opt("TILE_UNIT", 2, 1, (3, 4, *around))], MACHINE)
        same(interpret(ast), interpret(plain))
        copies = [n for n in toposort(ast) if n.op is Ops.BUFFERIZE and n.arg[0] == "local"]
        sizes.append(sorted(len(n.src) - 1 for n in copies))
    assert sizes == [[3, 3], [3, 4], [4, 4]]


# --- as code: a plan for that machine runs on any, with plain loops in the place of its instructions


@pytest.fixture(params=["avx512-amx", "tight"])
def texts(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[list[str]]:
    """The texts of all kernels that a test makes for a machine with the unit."""
    found: list[str] = []
    plain = cpu.lower_program

    def watched(*args: Any) -> Any:
        made = plain(*args)
        found.append(made[0].text)
        return made

    monkeypatch.setattr(cpu, "lower_program", watched)
    name = request.param
    if name == "tight":
        name = str(tmp_path / "tight.toml")
        Path(name).write_text(TIGHT)
    with knobs.override(DEVICE="CPU", MACHINE=name, CACHE=0):
        yield found


def rounded(*shape: int, scale: float = 1.0) -> tuple[Tensor, Any]:
    """A tensor of bfloat16, and its values."""
    bits = (RNG.standard_normal(shape) * scale).astype(np.float32).view(np.uint32) >> 16 << 16
    values = bits.astype(np.uint32).view(np.float32)
    return Tensor(values).cast("bfloat16").realize(), values.astype(np.float64)


def multiplied(texts: list[str], instruction: str = "tdpbf16ps") -> int:
    return sum(f"call void @llvm.x86.{instruction}(" in text for text in texts)


@pytest.mark.parametrize("shape", [(64, 64, 64), (33, 100, 70), (133, 150, 96), (300, 33, 64)])
@pytest.mark.parametrize("layout", ["NN", "NT", "TN"])
def test_products(texts: list[str], shape: tuple[int, int, int], layout: str) -> None:
    m, n, k = shape
    (x, a), (y, b) = (
        rounded(*((m, k) if layout[0] == "N" else (k, m))),
        rounded(*((k, n) if layout[1] == "N" else (n, k))),
    )
    x, a = (x, a) if layout[0] == "N" else (x.T, a.T)
    y, b = (y, b) if layout[1] == "N" else (y.T, b.T)
    got = (x @ y).cast("float32").numpy()
    assert multiplied(texts) == 1
    np.testing.assert_allclose(got, a @ b, rtol=1e-2, atol=1e-1)


def _epilogue(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    return (x @ y.T + z).relu()


def _scaled_rows(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    return (x * 0.5) @ y.T + z


FORMS: list[tuple[Callable[..., Tensor], Callable[..., Any]]] = [
    (_epilogue, lambda a, b, c: np.maximum(a @ b.T + c, 0)),
    (_scaled_rows, lambda a, b, c: a / 2 @ b.T + c),
]


@pytest.mark.parametrize(("form", "wanted"), FORMS)
def test_what_is_around_a_product(
    texts: list[str], form: Callable[..., Tensor], wanted: Callable[..., Any]
) -> None:
    (x, a), (y, b), (z, c) = rounded(40, 96), rounded(70, 96, scale=0.1), rounded(70)
    got = form(x, y, z).cast("float32").numpy()
    assert multiplied(texts) == 1
    np.testing.assert_allclose(got, wanted(a, b, c), rtol=1e-2, atol=3e-2)


def test_batches(texts: list[str]) -> None:
    (q, a), (k, b) = rounded(2, 3, 48, 64), rounded(2, 3, 48, 64)
    got = (q @ k.transpose(-1, -2)).cast("float32").numpy()
    assert multiplied(texts) == 1
    np.testing.assert_allclose(got, a @ b.swapaxes(-1, -2), rtol=1e-2, atol=1e-1)


@pytest.mark.parametrize("shape", [(64, 64, 128), (65, 90, 135)])
@pytest.mark.parametrize("kinds", [("int8", "int8"), ("uint8", "int8")])
def test_products_of_bytes(texts: list[str], shape: tuple[int, int, int], kinds: tuple[str, str]) -> None:
    """Signed ones as they are; others in words, which the same instruction takes."""
    m, n, k = shape
    a = RNG.integers(np.iinfo(kinds[0]).min, np.iinfo(kinds[0]).max + 1, (m, k)).astype(kinds[0])
    b = RNG.integers(np.iinfo(kinds[1]).min, np.iinfo(kinds[1]).max + 1, (n, k)).astype(kinds[1])
    got = (Tensor(a).cast("int32") @ Tensor(b).cast("int32").T).numpy()
    assert multiplied(texts, "tdpbssd") == 1
    np.testing.assert_array_equal(got, a.astype(np.int32) @ b.astype(np.int32).T)


def test_the_code_is_that_of_the_unit() -> None:
    """Four tiles of sums, and four loads and four products for each tile of steps."""
    plain = kernel_of(product(64, 64, 128, bfloat16, float32, True))
    text = cpu.program_of(plain, MACHINE, optimize).text
    lines = compile_assembly(text, source("avx512-amx").processor).splitlines()
    words = [line.split()[0] for line in lines if line.startswith("\t")]
    counts = {word: words.count(word) for word in ("ldtilecfg", "tilezero", "tileloadd", "tdpbf16ps")}
    assert counts == {"ldtilecfg": 1, "tilezero": 4, "tileloadd": 4, "tdpbf16ps": 4}
    assert words.count("tilestored") == 4 and words.count("tilerelease") == 1
    assert not any(word.startswith(("vpinsr", "vpextr")) for word in words)  # panels are turned in registers
