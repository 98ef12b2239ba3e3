"""Types of elements on both sides, and where tensors lie in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from morok import dtype as dt
from morok.dtype import DType
from morok.errors import DTypeError

DTYPES: dict[Any, DType] = {
    torch.bool: dt.bool_,
    torch.uint8: dt.uint8,
    torch.int8: dt.int8,
    torch.int16: dt.int16,
    torch.int32: dt.int32,
    torch.int64: dt.int64,
    torch.uint16: dt.uint16,
    torch.uint32: dt.uint32,
    torch.uint64: dt.uint64,
    torch.float16: dt.float16,
    torch.bfloat16: dt.bfloat16,
    torch.float32: dt.float32,
    torch.float64: dt.float64,
}


def from_torch(dtype: Any) -> DType:
    """morok's name of a type of torch's."""
    found = DTYPES.get(dtype)
    if found is None:
        raise DTypeError(f"morok has no type for {dtype}")
    return found


def wide(dtype: Any) -> Any:
    """The type in which torch computes with elements of one: float32 for the narrow floats."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def device_of(value: Any) -> str:
    """morok's name of the device that a tensor of torch's lies on."""
    from morok.device.registry import canonical, default_device

    if value.device.type == "cpu":
        # the interpreter shares the host's memory, the emulator gets copies: tests may say which one it is
        name = default_device()
        return name if name.partition(":")[0] not in ("CUDA",) else canonical("CPU")
    if value.device.type == "cuda":
        return canonical(f"CUDA:{value.device.index or 0}")
    raise DTypeError(f"morok has no device for tensors on {value.device}")


def memory_order(sizes: Sequence[int], strides: Sequence[int]) -> tuple[int, ...] | None:
    """The axes from the slowest to the fastest, if the elements lie side by side; None if there are gaps.

    Axes that are repeated (stride 0) come first, and take no room.
    """
    repeated = [
        n for n, (size, stride) in enumerate(zip(sizes, strides, strict=True)) if size > 1 and not stride
    ]
    rest = [n for n in range(len(sizes)) if n not in repeated]
    # of axes of size 1 the stride says nothing: they stay where they are, in front of the next one
    rest.sort(key=lambda n: (-strides[n] if sizes[n] > 1 else -_behind(n, sizes, strides), n))
    expected = 1
    for n in reversed(rest):
        if sizes[n] > 1 and strides[n] != expected:
            return None
        expected *= sizes[n]
    return (*repeated, *rest)


def _behind(axis: int, sizes: Sequence[int], strides: Sequence[int]) -> int:
    for n in range(axis + 1, len(sizes)):
        if sizes[n] > 1 and strides[n]:
            return strides[n] * sizes[n]
    return 0
