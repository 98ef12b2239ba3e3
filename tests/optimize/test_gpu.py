"""The heuristics for a grid: right results on the emulator, and the form that makes them fast."""

import math
from collections.abc import Callable

import numpy as np
import pytest

from morok import Tensor
from morok.codegen.pipeline import lower
from morok.device.cuda.interface import Facts
from morok.ir.node import UOp
from morok.ir.ops import AxisKind, Ops
from morok.machine.files import load
from morok.nn import functional
from morok.optimize.facts import trips
from morok.optimize.heuristics.apply import optimize
from morok.optimize.loops import loops_of
from morok.optimize.record import applied
from morok.schedule.schedule import schedule
from tests.optimize.plans import an_h200, empty, planned

H200 = Facts("H200", (9, 0), 140 << 30, 132, 1024, 227 << 10, 60 << 20, 13000).machine()
Function = Callable[[Tensor], Tensor]


def kernels(function: Function, *shape: int, dtype: str = "float32") -> list[UOp]:
    """The kernels of a function, optimised for an H200; nothing is cut into pieces for another device."""
    x = Tensor.empty(*shape, dtype=dtype, device="PYTHON")
    return [optimize(k.ast, H200) for k in function(x).plan().kernels]


def names(ast: UOp) -> list[str]:
    return [opt.name for opt in applied(ast)]


def instructions(ast: UOp) -> list[UOp]:
    return list(lower(ast, load("emulator")).src)


def accesses(ast: UOp, op: object) -> list[int]:
    """Bytes of every access to global memory."""
    found = []
    for node in instructions(ast):
        if node.op is op:
            place = node.src[0]
            if any(n.op is Ops.DEFINE_GLOBAL for n in (place.src[0], *place.src[0].src)):
                value = node if op is Ops.LOAD else node.src[1]
                found.append(value.dtype.itemsize)
    return found


@pytest.mark.parametrize("name", ["softmax", "layer_norm"])
def test_a_row_is_read_once(name: str) -> None:
    """Two reductions and the result walk the same row, and the reads of all three are the same."""
    (kernel,) = kernels(lambda x: x.softmax(-1) if name == "softmax" else x.layer_norm(-1), 4096, 8192)
    loads, stores = accesses(kernel, Ops.LOAD), accesses(kernel, Ops.STORE)
    assert set(loads) == set(stores) == {16}
    assert len(loads) == len(stores) == 8192 // (256 * 4)  # one vector per thread and piece


def test_outputs_are_vectors() -> None:
    (kernel,) = kernels(lambda x: x * 2.0 + 1.0, 1 << 24)
    assert accesses(kernel, Ops.LOAD) == accesses(kernel, Ops.STORE) == [16]
    (kernel,) = kernels(lambda x: x * 2.0 + 1.0, 1 << 24, dtype="float16")
    assert accesses(kernel, Ops.LOAD) == accesses(kernel, Ops.STORE) == [16]


def test_neighbours_in_a_warp_have_neighbouring_columns() -> None:
    """Across rows, the threads of a warp go along the columns: whole lines of memory, and no exchange."""
    (kernel,) = kernels(lambda x: x.sum(0), 8192, 8192)
    assert "GROUP" in names(kernel) and names(kernel)[-1] == "LOCAL"
    found = instructions(kernel)
    assert not any(n.op is Ops.SHUFFLE for n in found)
    assert set(accesses(kernel, Ops.LOAD)) == {16}


def test_lanes_of_a_warp_share_a_row() -> None:
    (kernel,) = kernels(lambda x: x.sum(1), 8192, 8192)
    assert sum(n.op is Ops.SHUFFLE for n in instructions(kernel)) == 5  # 16, 8, 4, 2, 1


def test_a_transposition_goes_through_shared_memory() -> None:
    (kernel,) = kernels(lambda x: x.transpose(0, 1).contiguous(), 4096, 4096)
    assert "STAGE" in names(kernel)
    assert set(accesses(kernel, Ops.STORE)) == {16}


def test_small_kernels_prefer_threads_to_vectors() -> None:
    (kernel,) = kernels(lambda x: x + 1.0, 4096)
    assert names(kernel) == ["LOCAL"]


def scaled_groups(x: Tensor) -> Tensor:
    """The largest of each eight numbers of rows that were divided by their norms."""
    rows, columns = (int(n) for n in x.shape)
    return x.rms_norm(-1, None, 1e-5).reshape(rows, columns // 8, 8).abs().max(-1)


@pytest.mark.parametrize(
    ("rows", "columns", "blocks"), [(1, 1024, 128), (1, 4096, 1), (2, 512, 128), (4096, 4096, 4096)]
)
def test_outputs_of_another_length_than_their_row(rows: int, columns: int, blocks: int) -> None:
    """One row: every block finds its norm again, since all of them run at once. Threads share the outputs
    where a row has one block."""
    (kernel,) = kernels(scaled_groups, rows, columns)
    found = instructions(kernel)
    specials = {n.arg: int(n.src[0].arg) for n in found if n.op is Ops.SPECIAL}
    assert math.prod(n for name, n in specials.items() if name.startswith("gidx")) == blocks
    assert not any(n.op is Ops.RANGE and int(n.src[0].arg) > 32 for n in found)
    if rows < 4096:
        data = np.random.default_rng(0).standard_normal((rows, columns)).astype(np.float32)
        norm = np.sqrt((data.astype(np.float64) ** 2).mean(1, keepdims=True) + 1e-5)
        want = np.abs(data / norm).reshape(rows, -1, 8).max(-1)
        np.testing.assert_allclose(scaled_groups(Tensor(data, device="EMULATOR")).numpy(), want, rtol=1e-5)


@pytest.mark.parametrize(
    ("groups", "channels", "length"), [(3, 6, 33), (2, 8, 24), (4, 12, 130), (1, 3, 2048)]
)
def test_a_block_has_no_more_threads_than_fit(groups: int, channels: int, length: int) -> None:
    """Outputs of another length than their rows are shared by the threads that there are."""
    with an_h200() as machine:
        x, w, b = (empty(*n, dtype="float16") for n in ((2, channels, length), (channels,), (channels,)))
        y = functional.group_norm(x, groups, w, b)
        for kernel in planned([y.uop], machine):
            assert lower(kernel.ast, machine).src


def test_products_without_steps() -> None:
    for a, b, c in ((3, 0, 2), (0, 3, 2), (3, 2, 0)):
        with an_h200():
            assert schedule([(empty(a, b) @ empty(b, c)).uop]).items is not None


SHAPES = [(7, 33), (64, 100), (5, 1024), (3, 5000), (130, 257), (5, 1), (1, 40_000), (300, 4)]
FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "softmax": lambda x: x.softmax(-1),
    "layer norm": lambda x: x.layer_norm(-1),
    "rows": lambda x: x.sum(1),
    "columns": lambda x: x.max(0),
    "all": lambda x: x.sum(),
    "turned": lambda x: x.transpose(0, 1) + 1.0,
    "both": lambda x: (x.sum(1, keepdim=True) * x).sum(0),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_results(name: str, shape: tuple[int, ...]) -> None:
    """What threads share is what the interpreter computes; the emulator looks for races meanwhile."""
    data = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    want = FUNCTIONS[name](Tensor(data, device="PYTHON")).numpy()
    got = FUNCTIONS[name](Tensor(data, device="EMULATOR")).numpy()
    scale = np.abs(data).sum() if name in ("all", "both") else 1.0
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=2e-6 * scale)


@pytest.mark.parametrize("shape", [(1100, 1200), (1024, 1090)])
def test_large_transpositions(shape: tuple[int, int]) -> None:
    data = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    got = (Tensor(data, device="EMULATOR").transpose(0, 1) * 2.0).numpy()
    np.testing.assert_array_equal(got, data.T * 2)


def test_odd_sizes_in_strides() -> None:
    data = np.random.default_rng(0).standard_normal(132 * 1024 + 13).astype(np.float32)
    np.testing.assert_array_equal((Tensor(data, device="EMULATOR") * 2.0).numpy(), data * 2)


def test_siblings_use_the_same_threads() -> None:
    """Loops that are never alive together do not multiply the threads of a block."""
    (kernel,) = kernels(lambda x: x.softmax(-1), 4096, 8192)
    specials = {n.arg: n for n in instructions(kernel) if n.op is Ops.SPECIAL}
    assert [int(specials[name].src[0].arg) for name in sorted(specials) if name.startswith("lidx")] == [256]


@pytest.mark.parametrize(("steps", "columns"), [(4984, 10816), (6000, 12000), (3176, 15000), (2600, 7992)])
def test_long_sums_across_rows(steps: int, columns: int) -> None:
    """A vector times a matrix as it lies: half a line of memory and more is read at once, half of the
    multiprocessors and more have a block, and what comes after the last turn's rows is at most a twelfth."""
    with an_h200() as machine:
        (found,) = planned([(empty(1, steps) @ empty(steps, columns)).uop], machine)
    sizes: dict[AxisKind, int] = {}
    for r in loops_of(found.ast).by_number.values():
        sizes[r.arg[1]] = sizes.get(r.arg[1], 1) * trips(r)
    threads = sizes[AxisKind.LOCAL] * sizes[AxisKind.GROUP_REDUCE]
    rows = sizes[AxisKind.GROUP_REDUCE] * sizes[AxisKind.UNROLL]
    assert sizes[AxisKind.LOCAL] * sizes[AxisKind.UPCAST] * 2 >= machine.line_bytes / 2
    assert threads <= 512
    assert 2 * sizes[AxisKind.LOOP] >= machine.cores
    assert rows * sizes[AxisKind.REDUCE] <= steps * 13 / 12
