"""Tensor maps: a buffer as TMA sees it, 128 bytes that the driver makes of a Box."""

from __future__ import annotations

from typing import Any

from morok.dtype.types import parse
from morok.ir.warp_roles import Box


def encode(cu: Any, address: int, dtype: str, box: Box) -> Any:
    """The driver's answer. Rows of 128 bytes are swizzled, as shared tiles have them; zeros outside."""
    size = parse(dtype).itemsize
    name = "TFLOAT32" if box.tf32 else f"UINT{8 * size}"
    kind = getattr(cu.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{name}")
    sizes = [cu.cuuint64_t(n) for n in box.sizes]
    strides = [cu.cuuint64_t(n * size) for n in box.strides[1:]]
    how = (
        cu.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        cu.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
        cu.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
        cu.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    walk = box.walk
    if walk is None:
        part, steps = ([cu.cuuint32_t(n) for n in numbers] for numbers in (box.part, (1,) * len(sizes)))
        return cu.cuTensorMapEncodeTiled(kind, len(sizes), address, sizes, strides, part, steps, *how)
    steps = [cu.cuuint32_t(n) for n in (1, *walk.steps, 1)]
    corners = (list(walk.lower), list(walk.upper))
    return cu.cuTensorMapEncodeIm2col(
        kind, len(sizes), address, sizes, strides, *corners, *box.part, steps, *how
    )
