"""Hand-written kernels in the form of docs/decisions/0001-kernel-form.md, and how to run them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from morok.device.buffer import Buffer, HostAllocator
from morok.device.cpu.device import compile_kernel
from morok.device.cpu.kernel import Kernel
from morok.device.cpu.llvm import host
from morok.device.interpreter import run_kernel
from morok.dtype import DType, float32
from morok.dtype import index as index_dtype
from morok.ir.arithmetic.arrays import storage
from morok.ir.build import define_global, end, index, reduce, rng, sink, store
from morok.ir.node import UOp, alu, const, make
from morok.ir.ops import AxisKind, Ops
from morok.machine.choose import cpu_machine
from morok.machine.machine import Machine
from morok.rewrite.engine import substitute

LOOP, REDUCE, UPCAST, UNROLL = AxisKind.LOOP, AxisKind.REDUCE, AxisKind.UPCAST, AxisKind.UNROLL
_allocator = HostAllocator("test")


def read(buffer: UOp, place: Any, gate: UOp | None = None) -> UOp:
    """An element, as kernels read it."""
    where = place if isinstance(place, UOp) else const(index_dtype, place)
    return make(Ops.INDEX, buffer.dtype.elem, (buffer, where) if gate is None else (buffer, where, gate))


def write(buffer: UOp, place: Any, value: UOp, *ranges: UOp, gate: UOp | None = None) -> UOp:
    """A kernel's effect."""
    return end(store(index(buffer, place, gate=gate), value), *ranges)


def buffers(*sizes: int, dtype: DType = float32) -> list[UOp]:
    return [define_global(dtype, n, i) for i, n in enumerate(sizes)]


def split(kernel: UOp, number: int, amount: int, kind: AxisKind, outer: bool = False) -> UOp:
    """A range split in two, the inner (or outer) part with another kind: what the optimiser's actions do."""
    (r,) = [n for n in _ranges(kernel) if n.arg[0] == number]
    size = r.src[0].arg
    assert size % amount == 0
    fresh = 1 + max(n.arg[0] for n in _ranges(kernel))
    rest = make(Ops.RANGE, r.dtype, (const(r.dtype, size // amount),), r.arg)
    part = make(Ops.RANGE, r.dtype, (const(r.dtype, amount),), (fresh, kind))
    value = part * (size // amount) + rest if outer else rest * amount + part
    replaced = substitute(kernel, {r: value})
    closing = {}
    from morok.ir.node import toposort

    for node in toposort(replaced):
        if node.op in (Ops.END, Ops.REDUCE, Ops.BUFFERIZE) and value in node.src:
            sources = [t for s in node.src for t in ((rest, part) if s is value else (s,))]
            closing[node] = tuple(sources)
    done: dict[UOp, UOp] = {}
    for node in toposort(replaced):
        sources = closing.get(node, node.src)
        done[node] = node.replace(tuple(done.get(s, s) for s in sources))
    return done[replaced]


def _ranges(kernel: UOp) -> list[UOp]:
    from morok.ir.node import toposort

    return [n for n in toposort(kernel) if n.op is Ops.RANGE]


def native(
    kernel: UOp, arrays: Sequence[Any], values: Mapping[str, int] | None = None, target: Machine | None = None
) -> None:
    """Runs a kernel on the CPU, on flat arrays."""
    program = Kernel(compile_kernel(kernel, host(), target or cpu_machine(host()), None), "test")
    held = [
        Buffer("CPU", a.size, _dtype(kernel, i), _allocator, memory=a.reshape(-1).view(np.uint8))
        for i, a in enumerate(arrays)
    ]
    program(held, values or {})


def _dtype(kernel: UOp, number: int) -> DType:
    from morok.ir.node import toposort

    for n in toposort(kernel):
        if n.op is Ops.DEFINE_GLOBAL and n.arg == number:
            return n.dtype.elem
    return float32


def check(
    kernel: UOp,
    arrays: Sequence[Any],
    values: Mapping[str, int] | None = None,
    target: Machine | None = None,
    outputs: int = 1,
    rtol: float = 2e-6,
    atol: float = 1e-6,
    reference: UOp | None = None,
) -> list[Any]:
    """The kernel's outputs are what the interpreter says of it, or of `reference`."""
    ours = [a.copy() for a in arrays]
    theirs = [a.copy() for a in arrays]
    native(kernel, ours, values, target)
    run_kernel(kernel if reference is None else reference, theirs, values)
    for mine, expected in zip(ours[:outputs], theirs[:outputs], strict=True):
        if mine.dtype.kind == "f":
            np.testing.assert_allclose(mine, expected, rtol=rtol, atol=atol)
        else:
            np.testing.assert_array_equal(mine, expected)
    return ours


def zeros(n: int, dtype: DType = float32) -> Any:
    return np.zeros(n, dtype=storage(dtype))


def noise(n: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(n).astype(np.float32)


# --- kernels


def add(n: int) -> UOp:
    o, a, b = buffers(n, n, n)
    r = rng(n, 0)
    return sink(write(o, r, read(a, r) + read(b, r), r))


def row_sum(rows: int, columns: int, op: Any = Ops.ADD) -> UOp:
    o, x = buffers(rows, rows * columns)
    r, c = rng(rows, 0), rng(columns, 1, REDUCE)
    return sink(write(o, r, reduce(read(x, r * columns + c), op, [c]), r))


def softmax(rows: int, columns: int) -> UOp:
    o, x = buffers(rows * columns, rows * columns)
    r = rng(rows, 0)
    c1, c2, c3 = rng(columns, 1, REDUCE), rng(columns, 2, REDUCE), rng(columns, 3)
    top = reduce(read(x, r * columns + c1), Ops.MAX, [c1])

    def e(c: UOp) -> UOp:
        return alu(Ops.EXP, read(x, r * columns + c) - top)

    return sink(write(o, r * columns + c3, e(c3) / reduce(e(c2), Ops.ADD, [c2]), r, c3))


def layer_norm(rows: int, columns: int) -> UOp:
    o, x, w, b = buffers(rows * columns, rows * columns, columns, columns)
    r = rng(rows, 0)
    c1, c2, c3 = rng(columns, 1, REDUCE), rng(columns, 2, REDUCE), rng(columns, 3)
    mean = reduce(read(x, r * columns + c1), Ops.ADD, [c1]) * (1 / columns)
    d = read(x, r * columns + c2) - mean
    variance = reduce(d * d, Ops.ADD, [c2]) * (1 / columns)
    scale = alu(Ops.RSQRT, variance + 1e-5)
    y = (read(x, r * columns + c3) - mean) * scale * read(w, c3) + read(b, c3)
    return sink(write(o, r * columns + c3, y, r, c3))


def matmul(m: int, n: int, k: int) -> UOp:
    o, a, b = buffers(m * n, m * k, k * n)
    i, j, l = rng(m, 0), rng(n, 1), rng(k, 2, REDUCE)
    return sink(write(o, i * n + j, reduce(read(a, i * k + l) * read(b, l * n + j), Ops.ADD, [l]), i, j))


def convolution(channels: int, out: int, size: int) -> UOp:
    """3×3 with padding 1: the padding is a gate."""
    o, x, w = buffers(out * size * size, channels * size * size, out * channels * 9)
    f, y, z = rng(out, 0), rng(size, 1), rng(size, 2)
    c, p, q = rng(channels, 3, REDUCE), rng(3, 4, REDUCE), rng(3, 5, REDUCE)
    row, column = y + p + -1, z + q + -1
    inside = (row < size) & (const(row.dtype, -1) < row) & (column < size) & (const(row.dtype, -1) < column)
    pixel = read(x, c * (size * size) + row * size + column, inside)
    weight = read(w, f * (channels * 9) + c * 9 + p * 3 + q)
    total = reduce(pixel * weight, Ops.ADD, [c, p, q])
    return sink(write(o, f * (size * size) + y * size + z, total, f, y, z))


def padded_copy(n: int, before: int, after: int) -> UOp:
    """A row with zeros around it, spelled as a choice."""
    o, x = buffers(n + before + after, n)
    r = rng(n + before + after, 0)
    inside = (r < n + before) & (const(r.dtype, before - 1) < r)
    return sink(write(o, r, alu(Ops.WHERE, inside, read(x, r + -before, inside), const(float32, 0.0)), r))
