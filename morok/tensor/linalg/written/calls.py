"""Calling kernels that are written by hand: which tensors they take, and what becomes of their results."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from morok import dtype as dt
from morok import knobs
from morok.caches import Cache
from morok.device.cpu.kernel import Kernel, Steps
from morok.device.registry import get_device
from morok.dtype import DType
from morok.ir.memory import base_of
from morok.runtime.plan import buffer_for
from morok.tensor.calls.tracing import is_tracing
from morok.tensor.creation.constructors import contiguous
from morok.tensor.export import realize
from morok.tensor.linalg.loops import tensor_of
from morok.tensor.sizes import concrete_shape

_KEPT = 128
_kernels: Cache[Any, Kernel] = Cache("linalg.written", _KEPT)


def is_written(*tensors: Any) -> bool:
    """Whether there are kernels for these: they run now, and on a processor."""
    return all(_is_here(x) for x in tensors) and not is_tracing()


def _is_here(x: Any) -> bool:
    known = x.dtype in (dt.float32, dt.float64) and all(isinstance(n, int) for n in x.shape)
    return known and x.device == "CPU" and not x.shape.count(0) and knobs.MACHINE.value == ""


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
    sources = [buffer_for(base_of(t.uop)) for t in held]
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


def flat_batch(x: Any) -> tuple[int, int, int]:
    """(matrices, rows, columns)."""
    shape = concrete_shape(x.shape)
    return math.prod(shape[:-2]), shape[-2], shape[-1]
