"""What units and copy engines have in hand: kernels that lack a fence or a wait, which a GPU runs as well."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from morok.codegen.pipeline import lower
from morok.device.buffer import Buffer
from morok.device.emulator.device import EmulatedKernel, EmulatorAllocator
from morok.dtype import float16, float32, int32, void
from morok.errors import DeviceError
from morok.ir.build import after, define_local
from morok.ir.matrix import ALL_UNITS, Products
from morok.ir.node import UOp, alu, const, make
from morok.ir.ops import Ops
from morok.machine.grid_time import PRODUCER
from morok.optimize.actions.table import apply_all
from morok.optimize.record import Opt
from tests.gpu.kernels import buffer, lidx, linear, load, store
from tests.gpu.kernels import emulate as run_list
from tests.gpu.products import HOST, TARGET, emulate, kernel_of, left_first, memory_of, product, sequence
from tests.gpu.test_warp_specialize import built

Change = Callable[[list[UOp]], list[UOp]]


def _unit(name: str) -> int:
    return 1 + next(i for i, u in enumerate(ALL_UNITS) if u.name == name and u.n == 64)


def _tiles(depth: int) -> tuple[UOp, UOp]:
    """A product whose tiles are copied by all threads."""
    ast = kernel_of(product, (256, 256), (256, 128))
    first = (1, 2) if left_first(ast) else (2, 1)
    opts = sequence(128, 64, 64, (2, 1), depth, _unit("wgmma.f16"), buffers=first)
    return ast, lower(apply_all(ast, opts, HOST), TARGET)


def _registers() -> tuple[UOp, UOp]:
    """A product with a left operand in registers, which are filled for each step."""
    ast = kernel_of(product, (256, 192), (192, 128))
    first = (1, 2) if left_first(ast) else (2, 1)
    opts = [Opt("TILE", 0, 128), Opt("TILE", 1, 64), Opt("TILE", 2, 64)]
    opts += [Opt("STAGE", first[0], 3, (3, 5)), Opt("STAGE", first[1], 3, (5, 4))]
    opts += [Opt("TC", 5, _unit("wgmma.f16.register_a"), (3, 4)), Opt("LOCAL", 3, 2), Opt("UNROLL", 5)]
    return ast, lower(apply_all(ast, opts, HOST), TARGET)


def _roles() -> tuple[UOp, UOp]:
    ast = kernel_of(product, (256, 128), (128, 256))
    return ast, lower(built(ast, PRODUCER), TARGET)


def _without(gone: Callable[[UOp], bool]) -> Change:
    return lambda nodes: [n for n in nodes if not gone(n)]


def _is_fence_of_memory(n: UOp) -> bool:
    return n.op is Ops.FENCE and isinstance(n.arg, Products)


def _is_fence_of_registers(n: UOp) -> bool:
    return n.op is Ops.FENCE and not isinstance(n.arg, Products)


def _is_wait_for_products(n: UOp) -> bool:
    return n.op is Ops.ASYNC_WAIT and isinstance(n.arg, Products)


def _last_wait(nodes: list[UOp]) -> list[UOp]:
    """Of all waits only those in the loop are left, which leave a group under way."""
    last = [n for n in nodes if _is_wait_for_products(n)][-1]
    return [n for n in nodes if n is not last]


def _is_barrier(n: UOp) -> bool:
    return n.op is Ops.BARRIER


def _fences_first(nodes: list[UOp]) -> list[UOp]:
    """Registers are handed over before they are filled."""
    fences = [n for n in nodes if _is_fence_of_registers(n)]
    out: list[UOp] = []
    for n in nodes:
        if n.op is Ops.LDMATRIX and fences and all(f not in out for f in fences):
            out += fences
        if n not in fences:
            out.append(n)
    return out


def _barriers_first(nodes: list[UOp]) -> list[UOp]:
    """Threads meet, and only then make the fence."""
    out: list[UOp] = []
    for n in nodes:
        if _is_barrier(n) and out and _is_fence_of_memory(out[-1]):
            out.insert(-1, n)
        else:
            out.append(n)
    return out


@pytest.mark.parametrize(
    ("kernel", "change", "said"),
    [
        (lambda: _tiles(1), _without(_is_fence_of_memory), "which a thread has written, without a fence"),
        (lambda: _tiles(3), _without(_is_fence_of_memory), "which a thread has written, without a fence"),
        (lambda: _tiles(3), _barriers_first, "which a thread has written, without a barrier after the fence"),
        (lambda: _tiles(3), _without(_is_fence_of_registers), "without a fence"),
        (lambda: _tiles(3), _last_wait, "looks at products that nobody has waited for"),
        (_registers, _without(_is_wait_for_products), "fills registers that a unit still reads"),
        (_registers, _fences_first, "multiplies registers that were written after the last fence"),
        (_roles, _without(_is_fence_of_memory), "which was set up without a fence"),
        (_roles, _without(_is_barrier), "which others may not have set up yet"),
    ],
    ids=[
        "memory, one tile", "memory, ring", "fence after barrier", "registers", "wait", "refilled",
        "filled after the fence", "barriers of copies", "barriers of others",
    ],
)  # fmt: skip
def test_what_is_left_out_is_seen(kernel: Callable[[], tuple[UOp, UOp]], change: Change, said: str) -> None:
    ast, linear = kernel()
    arrays, types = memory_of(ast)
    assert np.isfinite(emulate(linear, arrays, types)).all()
    changed = tuple(change(list(linear.src)))
    assert changed != linear.src
    with pytest.raises(DeviceError, match=said):
        emulate(make(Ops.LINEAR, linear.dtype, changed), arrays, types)


def test_boxes_begin_at_multiples_of_sixteen_bytes() -> None:
    """A view that begins within such a unit has no description."""
    ast, linear = _roles()
    arrays, types = memory_of(ast)
    allocator = EmulatorAllocator("test")
    held = []
    for number, (array, dtype) in enumerate(zip(arrays, types, strict=True)):
        start = 8 if number == 1 else 0
        block = allocator.allocate(array.nbytes + start)
        allocator.copy_in(block, start, array)
        whole = Buffer("test", array.size + start // dtype.itemsize, dtype, allocator, memory=block)
        held.append(whole.view(array.size, dtype, start))
    with pytest.raises(DeviceError, match="multiples of 16 bytes"):
        EmulatedKernel(linear, "test")(held, {})


@pytest.mark.parametrize(
    ("place", "met", "said"),
    [
        (0, True, "reads element 0 of the local memory a, which nobody has written"),
        (16, True, "reads element 4 of the local memory a, which nobody has written"),
        (0, False, "overwrites element 0 of the local memory a, which thread 0 of the block touches as well"),
        (32, True, ""),
    ],
)
def test_buffers_of_a_block_in_one_place(
    monkeypatch: pytest.MonkeyPatch, place: int, met: bool, said: str
) -> None:
    """What another buffer puts into the same bytes is there, and not what was."""
    monkeypatch.setattr("morok.device.emulator.run.places", lambda instructions: ([0, place], 64))
    t, a, b = lidx(8), define_local(float32, 8, "a"), define_local(float16, 16, "b")
    wrote = store(a, t, const(float32, 1.0))
    before = make(Ops.BARRIER, void, (wrote,)) if met else wrote
    other = store(after(b, before), alu(Ops.SUB, const(int32, 15), t), const(float16, 2.0))
    lower = store(after(b, before), t, const(float16, 2.0))
    read = load(after(a, make(Ops.BARRIER, void, (lower, other))), t)
    order = linear(a, b, store(buffer(8), t, read))
    if not said:
        np.testing.assert_array_equal(run_list(order, np.zeros(8, np.float32))[0], np.ones(8))
        return
    with pytest.raises(DeviceError, match=said):
        run_list(order, np.zeros(8, np.float32))
