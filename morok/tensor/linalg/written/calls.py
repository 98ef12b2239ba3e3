"""Which tensors there are kernels for that are written by hand, and how a batch of them is counted."""

from __future__ import annotations

import math
from typing import Any

from morok import dtype as dt
from morok import knobs
from morok.tensor.calls.tracing import is_tracing
from morok.tensor.sizes import concrete_shape


def is_written(*tensors: Any) -> bool:
    """Whether there are kernels for these: they run now, and on a processor."""
    return all(_is_here(x) for x in tensors) and not is_tracing()


def _is_here(x: Any) -> bool:
    known = x.dtype in (dt.float32, dt.float64) and all(isinstance(n, int) for n in x.shape)
    return known and x.device == "CPU" and not x.shape.count(0) and knobs.MACHINE.value == ""


def flat_batch(x: Any) -> tuple[int, int, int]:
    """(matrices, rows, columns)."""
    shape = concrete_shape(x.shape)
    return math.prod(shape[:-2]), shape[-2], shape[-1]
