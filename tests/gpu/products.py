"""What the tests of matrix products share: kernels without values, memory, the emulator, sequences."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from morok import Tensor
from morok.device.buffer import Buffer
from morok.device.cuda.compile import compile_cubin
from morok.device.cuda.device import Cuda, facts_of
from morok.device.emulator.device import EmulatedKernel, EmulatorAllocator
from morok.device.registry import get_device
from morok.dtype import DType, PtrDType
from morok.ir.arithmetic.arrays import storage
from morok.ir.matrix import ALL_UNITS
from morok.ir.node import UOp, const, toposort
from morok.ir.ops import Ops
from morok.machine.files import load
from morok.optimize.actions.table import can
from morok.optimize.record import Opt
from morok.render.cuda.kernel import render
from morok.rewrite.engine import substitute
from morok.schedule.schedule import schedule
from morok.symbolic.sets import simplify
from tests.gpu.kernels import DEVICE

TARGET = load("emulator")
HOST = TARGET
UNLIMITED = replace(HOST, local_bytes=1 << 40)
Maker = Callable[..., Tensor]


def product(a: Tensor, b: Tensor) -> Tensor:
    return a @ b


def kernel_of(make_it: Maker, *shapes: tuple[int, ...], dtype: str = "float16") -> UOp:
    """The one kernel of a function of tensors without values.

    It is planned for the emulator, also where a GPU runs it: by its time a machine may split it into two.
    """
    tensors = [Tensor.empty(*s, dtype=dtype, device="EMULATOR") for s in shapes]
    (item,) = schedule([make_it(*tensors).uop]).items
    return item.ast


def memory_of(ast: UOp, seed: int = 0) -> tuple[list[Any], list[DType]]:
    """Random memory for all buffers, and their types; the first is the result."""
    random = np.random.default_rng(seed)
    found = {n.arg: n.dtype for n in toposort(ast) if n.op is Ops.DEFINE_GLOBAL}
    arrays: list[Any] = []
    types = []
    for number in sorted(found):
        dtype = found[number]
        assert isinstance(dtype, PtrDType)
        elem, count = dtype.elem, dtype.size
        data = random.normal(size=count) if elem.is_float else random.integers(-8, 8, count)
        arrays.append(data.astype(storage(elem)))
        types.append(elem)
    return arrays, types


def emulate(linear: UOp, arrays: list[Any], types: list[DType]) -> Any:
    """The first array after a run on the emulator, which starts with nothing in it."""
    allocator = EmulatorAllocator("test")
    held = []
    for i, (array, dtype) in enumerate(zip(arrays, types, strict=True)):
        block = allocator.allocate(array.nbytes)
        if i:
            allocator.copy_in(block, 0, array)
        held.append(Buffer("test", array.size, dtype, allocator, memory=block))
    EmulatedKernel(linear, "test")(held, {})
    out = np.zeros_like(arrays[0])
    allocator.copy_out(held[0].memory, 0, out)
    return out


def execute(linear: UOp, arrays: list[Any], types: list[DType]) -> Any:
    """The same where DEVICE says: on a GPU, the result starts as bytes that are no number of use."""
    if not DEVICE.startswith("CUDA"):
        return emulate(linear, arrays, types)
    device = get_device(DEVICE)
    assert isinstance(device, Cuda)
    program = render(linear, "test", len(arrays))
    code = compile_cubin(program.text, device.driver.facts.arch)
    kernel = device.load(replace(facts_of(program), code=code).pack(), "test")
    held = [device.buffer(a.size, t) for a, t in zip(arrays, types, strict=True)]
    for i, (array, buffer) in enumerate(zip(arrays, held, strict=True)):
        buffer.copy_in(array if i else np.full(array.nbytes, 255, np.uint8).view(array.dtype))
    kernel(held, {})
    device.synchronize()
    return held[0].copy_out()


def left_first(ast: UOp) -> bool:
    """Whether buffer 1 is the left factor: the order of the factors of a product is free."""
    return can(ast, Opt("STAGE", 1, 0, (0, 2)), UNLIMITED) is None


def sequence(
    rows: int,
    columns: int,
    step: int,
    warps: tuple[int, int],
    depth: int,
    unit: int = 1,
    transposed: str = "",
    buffers: tuple[int, int] = (1, 2),
) -> list[Opt]:
    """The actions of a tile on a matrix unit, for a product whose loops are 0, 1 and 2."""
    opts = [Opt("TILE", 0, rows), Opt("TILE", 1, columns), Opt("TILE", 2, step)]
    opts.append(Opt("STAGE", buffers[0], depth, (5, 3) if "a" in transposed else (3, 5)))
    opts.append(Opt("STAGE", buffers[1], depth, (4, 5) if "b" in transposed else (5, 4)))
    opts.append(Opt("TC", 5, unit, (3, 4)))
    opts += [Opt("LOCAL", n, w) for n, w in zip((3, 4), warps, strict=True) if w > 1]
    size = ALL_UNITS[unit - 1]
    left = ((3, rows // size.m // warps[0]), (4, columns // size.n // warps[1]))
    opts += [Opt("UPCAST", n) for n, count in left if count > 1]
    if step > size.k:
        opts.append(Opt("UNROLL", 5))
    return opts


def close(got: Any, want: Any, tolerance: float) -> None:
    """The error in norm."""
    want = np.asarray(want, dtype=np.float64)
    error = np.linalg.norm(np.asarray(got, dtype=np.float64).reshape(want.shape) - want)
    assert error <= tolerance * np.linalg.norm(want)


def place_of(x: UOp, thread: int) -> int:
    """An index for a thread of the first block, at the first iteration of everything."""
    found = {n: 0 for n in toposort(x) if n.op in (Ops.SPECIAL, Ops.RANGE)}
    threads = sorted((n for n in found if n.op is Ops.SPECIAL and n.arg[0] == "l"), key=lambda n: n.arg)
    assert [n.arg for n in threads] == [f"lidx{i}" for i in range(len(threads))]
    for n in threads:
        found[n], thread = thread % n.src[0].arg, thread // n.src[0].arg
    at = simplify(substitute(x, {n: const(n.dtype, value) for n, value in found.items()}))
    assert at.op is Ops.CONST
    return int(at.arg)
