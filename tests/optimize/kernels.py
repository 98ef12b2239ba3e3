"""Kernels for tests of the optimiser, and how to run them on the interpreter and on the processor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from morok import knobs
from morok.device.buffer import Buffer, HostAllocator
from morok.device.cpu.device import compile_kernel
from morok.device.cpu.kernel import Kernel
from morok.device.cpu.llvm import host as machine
from morok.device.interpreter import run_kernel
from morok.dtype import PtrDType, float32, int32
from morok.ir import movement
from morok.ir.arithmetic.arrays import storage
from morok.ir.build import define_global, end, index, pick, read, reduce, rng, sink, store, variable
from morok.ir.node import UOp, alu, const, toposort
from morok.ir.ops import AxisKind, Op, Ops
from morok.machine.choose import cpu_machine
from morok.machine.files import load
from morok.machine.machine import Machine
from morok.schedule.schedule import schedule
from tests.schedule import graphs as g

NEON = Machine(vector_bytes=16, registers=32, l1_bytes=64 << 10, l2_bytes=1 << 20, cores=2)
AVX512 = Machine(
    vector_bytes=64, registers=32, masked_memory=True, l1_bytes=48 << 10, l2_bytes=2 << 20, cores=2
)
GPU = replace(
    load("sm_80"),
    matrix_units=(),
    word_units=(),
    registers=64,
    block_threads=256,
    local_bytes=48 << 10,
    cores=1,
)

NEVER = 1 << 62  # steps: longer than any sum

_allocator = HostAllocator("test")


def kernel_of(*nodes: UOp) -> UOp:
    """The one kernel that computes these nodes, whatever sums this processor would cut in two."""
    with knobs.override(SPLIT_REDUCE=NEVER):
        (item,) = schedule(nodes).items
    return item.ast


def buffers_of(ast: UOp, seed: int = 0) -> list[Any]:
    """Random memory for every buffer of a kernel, by number: the same in whatever order they are read."""
    random = np.random.default_rng(seed)
    found: list[Any] = []
    memory = {n.arg: n.dtype for n in toposort(ast) if n.op is Ops.DEFINE_GLOBAL}
    for _, dtype in sorted(memory.items()):
        assert isinstance(dtype, PtrDType)
        elem = dtype.elem
        data: Any
        if elem.is_float:
            data = random.normal(size=dtype.size)
        elif elem.is_bool:
            data = random.integers(0, 2, dtype.size)
        else:
            data = random.integers(0, 5, dtype.size)
        found.append(data.astype(storage(elem)))
    return found


def interpret(ast: UOp, values: dict[str, int] | None = None, seed: int = 0) -> list[Any]:
    """All buffers after a run on the interpreter."""
    arrays = buffers_of(ast, seed)
    run_kernel(ast, arrays, values)
    return arrays


def native(ast: UOp, values: dict[str, int] | None = None, seed: int = 0) -> list[Any]:
    """All buffers after a run as machine code."""
    program = Kernel(compile_kernel(ast, machine(), cpu_machine(machine())), "test")
    dtypes = {n.arg: n.dtype.elem for n in toposort(ast) if n.op is Ops.DEFINE_GLOBAL}  # type: ignore[attr-defined]
    arrays = buffers_of(ast, seed)
    held = [
        Buffer("CPU", a.size, dtypes[i], _allocator, memory=a.reshape(-1).view(np.uint8))
        for i, a in enumerate(arrays)
    ]
    program(held, values or {})
    return arrays


def same(got: list[Any], want: list[Any], tolerance: float = 1e-4) -> None:
    """Equal up to the order in which floats were added."""
    for a, b in zip(got, want, strict=True):
        if a.dtype.kind == "f":
            np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)
        else:
            np.testing.assert_array_equal(a, b)


# --- kernels as the scheduler makes them


def gather_rows() -> UOp:
    return kernel_of(g.gather(g.tensor(11, 6), g.tensor(9, dtype=int32)))


def padded() -> UOp:
    return kernel_of(g.exp(movement.pad(g.tensor(5, 10), ((1, 2), (3, 1)))))


def two_outputs() -> UOp:
    """Two effects over the same rows, one of them without the columns."""
    x, y, z = define_global(float32, 60, 0), define_global(float32, 12, 1), define_global(float32, 60, 2)
    r, c, k = rng(12, 0), rng(5, 1), rng(5, 2, AxisKind.REDUCE)
    total = reduce(read(z, r * 5 + k), Ops.ADD, (k,))
    return sink(
        end(store(index(x, r * 5 + c), read(z, r * 5 + c) * total), r, c), end(store(index(y, r), total), r)
    )


def joint_reduction() -> UOp:
    """A reduction of two values in one loop."""
    y, x = define_global(float32, 7, 0), define_global(float32, 7 * 12, 1)
    r, k = rng(7, 0), rng(12, 1, AxisKind.REDUCE)
    value = read(x, r * 12 + k)
    both = reduce((value, value * value), (Ops.MAX, Ops.ADD), (k,))
    return sink(end(store(index(y, r), pick(both, 0) + pick(both, 1)), r))


def self_asking_sum() -> UOp:
    """Σ over k of x[k, r], where the same sum, over the same loop, is above a bound: a loop within itself."""
    y, x = define_global(float32, 5, 0), define_global(float32, 5 * 19, 1)
    r, k = rng(5, 0), rng(19, 1, AxisKind.REDUCE)
    first = reduce(read(x, k * 5 + r), Ops.ADD, (k,))
    gate = alu(Ops.CMPLT, const(float32, 0.0), first)
    return sink(end(store(index(y, r), reduce(read(x, k * 5 + r, gate=gate), Ops.ADD, (k,)) + first), r))


def in_place() -> UOp:
    """Memory that is read and written at the same place."""
    x, y = define_global(float32, 45, 0), define_global(float32, 45, 1)
    r = rng(45, 0)
    return sink(end(store(index(x, r), read(x, r) * 0.5 + read(y, r)), r))


def symbolic_rows() -> UOp:
    """A number of rows that is known only when the kernel runs."""
    n = variable("n", 1, 20)
    y, x = define_global(float32, 20 * 6, 0), define_global(float32, 20 * 6, 1)
    r, c = rng(n, 0), rng(6, 1)
    return sink(end(store(index(y, r * 6 + c), alu(Ops.EXP, read(x, r * 6 + c))), r, c))


def symbolic_sum() -> UOp:
    n = variable("n", 1, 20)
    y, x = define_global(float32, 6, 0), define_global(float32, 20 * 6, 1)
    c, k = rng(6, 0), rng(n, 1, AxisKind.REDUCE)
    return sink(end(store(index(y, c), reduce(read(x, k * 6 + c), Ops.ADD, (k,))), c))


def symbolic_softmax() -> UOp:
    """Rows of unknown length over their sums, in place of nothing: columns beyond keep what they had."""
    n = variable("n", 1, 20)
    y, x = define_global(float32, 6 * 20, 0), define_global(float32, 6 * 20, 1)
    r, c, k = rng(6, 0), rng(n, 1), rng(n, 2, AxisKind.REDUCE)
    total = reduce(alu(Ops.EXP, read(x, r * 20 + k)), Ops.ADD, (k,))
    return sink(end(store(index(y, r * 20 + c), alu(Ops.EXP, read(x, r * 20 + c)) * total), r, c))


def one_number() -> UOp:
    """No loop at all."""
    y, x = define_global(float32, 1, 0), define_global(float32, 3, 1)
    where = const(index(y, 0).src[1].dtype, 2)
    return sink(store(index(y, 0), read(x, where) + 1.0))


def running(op: Op, axis: int, *sizes: int) -> UOp:
    """A running reduction with arithmetic before and after it."""
    x = movement.scan_axis(g.mul(g.tensor(*sizes), 0.5), op, axis)
    return kernel_of(g.add(x, g.tensor(*sizes)))


def running_twice() -> UOp:
    """Two registers that are carried along one loop."""
    sums = movement.scan_axis(g.tensor(5, 22), Ops.ADD, 1)
    return kernel_of(movement.scan_axis(g.mul(sums, 0.25), Ops.MAX, 1))


def recurrence() -> UOp:
    """h = a·h + b, backwards."""
    a, b = (movement.flip(g.tensor(4, 13), (False, True)) for _ in range(2))
    return kernel_of(movement.flip(movement.scan_axis(g.mul(a, 0.5), Ops.MULACC, 1, b), (False, True)))


MAKERS: dict[str, Callable[[], UOp]] = {
    "add": lambda: kernel_of(g.add(g.tensor(6, 8), g.tensor(6, 8))),
    "add of a row": lambda: kernel_of(g.add(g.tensor(6, 10), g.tensor(10))),
    "transpose": lambda: kernel_of(g.contiguous(g.transpose(g.tensor(9, 8), 1, 0))),
    "row sum": lambda: kernel_of(g.total(g.tensor(7, 24), -1)),
    "column sum": lambda: kernel_of(g.total(g.tensor(24, 9), 0)),
    "whole sum": lambda: kernel_of(g.total(g.tensor(5, 30))),
    "row max": lambda: kernel_of(g.reduce(Ops.MAX, g.tensor(6, 13), -1)),
    "softmax": lambda: kernel_of(g.softmax(g.tensor(6, 12))),
    "layer norm": lambda: kernel_of(g.layer_norm(g.tensor(5, 16), g.tensor(16), g.tensor(16))),
    "matmul": lambda: kernel_of(g.matmul(g.tensor(12, 10), g.tensor(10, 8))),
    "matmul of odd sizes": lambda: kernel_of(g.matmul(g.tensor(7, 5), g.tensor(5, 9))),
    "relu matmul": lambda: kernel_of(g.matmul(g.relu(g.tensor(8, 6)), g.tensor(6, 12))),
    "batched matmul": lambda: kernel_of(g.matmul(g.tensor(3, 4, 6), g.tensor(3, 6, 8))),
    "convolution": lambda: kernel_of(g.conv(g.tensor(1, 2, 6, 6), g.tensor(4, 2, 3, 3), padding=1)),
    "max pool": lambda: kernel_of(g.max_pool(g.tensor(1, 2, 8, 8), 2, 2)),
    "integers": lambda: kernel_of(g.total(g.mul(g.tensor(6, 14, dtype=int32), 3), -1)),
    "gather": gather_rows,
    "pad": padded,
    "two outputs": two_outputs,
    "joint reduction": joint_reduction,
    "a sum that asks for itself": self_asking_sum,
    "in place": in_place,
    "symbolic rows": symbolic_rows,
    "symbolic sum": symbolic_sum,
    "symbolic softmax": symbolic_softmax,
    "one number": one_number,
    "running sum of rows": lambda: running(Ops.ADD, 1, 6, 37),
    "running sum of even rows": lambda: running(Ops.ADD, 1, 3, 32),
    "running maximum of columns": lambda: running(Ops.MAX, 0, 9, 20),
    "running product of planes": lambda: running(Ops.MUL, 1, 3, 5, 7),
    "running sum": lambda: running(Ops.ADD, 0, 41),
    "running twice": running_twice,
    "recurrence": recurrence,
}
VALUES = {"n": 13}


@cache
def kernel(name: str) -> UOp:
    return MAKERS[name]()


@cache
def wanted(name: str) -> list[Any]:
    """What the plain kernel leaves in its buffers."""
    return interpret(kernel(name), VALUES)
