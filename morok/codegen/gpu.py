"""An NVIDIA GPU as codegen sees it. Plain facts; needs no CUDA library, so the emulator uses it as well.

Arithmetic is scalar, because a thread is one lane; vectors exist in memory accesses only, up to 128 bits, and
these must be aligned. Half precision is stored and converted by the hardware and computed in float32: scalar
half instructions are no faster, and every result is rounded once, as the IR demands. The 8-bit floats are
their bits: the hardware's conversions saturate where ours do not.
"""

from __future__ import annotations

from morok.codegen.target import BASIC_OPS, Target
from morok.dtype import bfloat16, float16, float32, float64
from morok.ir.ops import Ops

WARP = 32
STATIC_SHARED = 48 << 10  # bytes of shared memory that a kernel may declare; more is asked for at launch
_SHARED = {"sm_80": 163, "sm_86": 99, "sm_89": 99, "sm_90": 227, "sm_100": 227, "sm_120": 99}  # KiB
DEFAULT_ARCH = "sm_90a"


def cuda_target(arch: str = DEFAULT_ARCH, shared: int = 0) -> Target:
    """What codegen has to know of an architecture, by its name; `shared` in bytes, if the GPU says so."""
    return Target(
        f"cuda-{arch}",
        vector_bytes=0,
        fold_bytes=16,
        registers=128,
        aligned_memory=True,
        fma=True,
        ops=BASIC_OPS | {Ops.RECIP},
        rough=frozenset((Ops.EXP2, Ops.RECIP)),
        floats=frozenset((float32, float64)),
        stored_floats=frozenset((float16, bfloat16, float32, float64)),
        global_dims=((1 << 31) - 1, 65535, 65535),
        local_dims=(1024, 1024, 64),
        block_limit=1024,
        warp=WARP,
        local_bytes=shared or _SHARED.get(arch.rstrip("af"), 48) << 10,
    )
