"""Kernels that are written by hand, on tensors: as a part of a graph, or now, for new tensors in memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from morok import knobs
from morok.caches import Cache
from morok.device.buffer import Buffer, bind_buffer
from morok.device.cpu.kernel import Kernel, Steps
from morok.device.registry import get_device
from morok.dtype import DType
from morok.ir.node import UOp, make
from morok.ir.ops import Ops
from morok.tensor.core import C
from morok.tensor.creation.constructors import contiguous
from morok.tensor.export import realize
from morok.tensor.memory.names import new_buffer
from morok.tensor.memory.states import view_of
from morok.tensor.realize import memory_of

_KEPT = 128
_kernels: Cache[Any, Kernel] = Cache("linalg.written", _KEPT)


def made_by(
    write: Callable[..., None], key: tuple[Any, ...], shape: tuple[int, ...], dtype: DType, *given: Any
) -> Any:
    """What the kernel that `write(code, machine, *key)` writes makes of tensors as they lie in rows, when
    somebody wants it. Its first memory is the result."""
    src = tuple([t.uop if t.uop.op is Ops.WRITTEN else contiguous(t).uop for t in given])
    return given[0]._new(make(Ops.WRITTEN, dtype, src, (write.__name__, key, shape)))


def run(
    write: Callable[..., None],
    key: tuple[Any, ...],
    results: Sequence[tuple[tuple[int, ...], DType]],
    *given: Any,
) -> list[Any]:
    """The kernel that `write(code, machine, *key)` writes, on tensors as they lie in rows; its results."""
    held = [realize(contiguous(t)) for t in given]
    kernel = _kernel(write, key)
    device = get_device(given[0].device)
    made = [device.buffer(math.prod(shape), dtype) for shape, dtype in results]
    sources = [memory_of(t) for t in held]
    Steps([(kernel, kernel.arguments([*made, *sources], {}))])()
    return [
        tensor_of(given[0], memory, shape, dtype)
        for memory, (shape, dtype) in zip(made, results, strict=True)
    ]


def _kernel(write: Callable[..., None], key: tuple[Any, ...]) -> Kernel:
    from morok.device.cpu.written import compile_written

    name = (write, key, knobs.THREADS.value)
    found = _kernels.get(name)
    if found is None:
        title = f"{write.__name__}_{'_'.join(str(k) for k in key)}"
        found = _kernels[name] = compile_written(lambda code, machine: write(code, machine, *key), title)
    return found


def tensor_of(x: C, memory: Buffer, shape: tuple[int, ...], dtype: DType) -> C:
    """A tensor of x's kind on memory that has been filled, with elements of any type."""
    node: UOp = new_buffer(dtype, math.prod(shape), x.device)
    bind_buffer(node, memory)
    return x._new(view_of(node, shape))
