"""What codegen must know of a device, and all that it may know: a description made of plain facts.

A device hands one of these to the pipeline. Its `key` is part of the key of every compiled kernel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from morok.dtype import FLOATS, DType, float32, float64
from morok.ir.ops import Op, Ops

# What a plain processor computes by itself. Everything else is decomposed into these.
BASIC_OPS: frozenset[Op] = frozenset((
    Ops.CAST, Ops.BITCAST, Ops.NEG, Ops.NOT, Ops.ABS, Ops.SQRT, Ops.ADD, Ops.SUB, Ops.MUL, Ops.FDIV, Ops.CDIV,
    Ops.CMOD, Ops.MAX, Ops.MIN, Ops.CMPLT, Ops.CMPNE, Ops.CMPEQ, Ops.AND, Ops.OR, Ops.XOR, Ops.SHL, Ops.SHR,
    Ops.WHERE, Ops.TRUNC, Ops.FLOOR, Ops.CEIL, Ops.RINT, Ops.MULHI, Ops.POPCOUNT,
    Ops.CHECK,  # by stage 22
))  # fmt: skip


@final
@dataclass(frozen=True)
class Target:
    """A device as codegen sees it."""

    name: str
    vector_bytes: int = 0  # of one arithmetic register; 0: arithmetic is scalar
    fold_bytes: int = 16  # the widest single memory access
    registers: int = 32  # vector registers that accumulators may fill by half
    masked_memory: bool = False  # vector loads and stores take a mask per lane
    aligned_memory: bool = False  # an access must lie at a multiple of its own size
    predicated_stores: bool = False  # a scalar store takes a condition
    fma: bool = True
    fma_in_place: bool = False  # a fused product overwrites what it is added to
    ahead_bytes: int = 0  # so far ahead large arrays are asked for; 0: the processor knows best
    ops: frozenset[Op] = BASIC_OPS
    rough: frozenset[Op] = frozenset()  # ops of float32 that it also has with a relative error of 2^-20
    floats: frozenset[DType] = frozenset((float32, float64))  # float types with arithmetic
    stored_floats: frozenset[DType] = frozenset(FLOATS)  # float types that memory and casts know
    global_dims: tuple[int, ...] = ()  # largest grid, per dimension; empty: there is no grid
    local_dims: tuple[int, ...] = ()  # largest block, per dimension
    block_limit: int = 0  # threads of a block, all dimensions together
    warp: int = 0  # threads that can hand values to one another without memory; 0: none can
    threads: bool = False  # THREAD ranges run side by side
    wide_index: bool = False  # scalar indices are 64 bits whatever their bounds: registers are that wide
    local_bytes: int = 0  # memory that the threads of a block share; 0: no limit
    images: bool = False

    @property
    def has_grid(self) -> bool:
        return bool(self.global_dims)

    def lanes(self, dtype: DType) -> int:
        """How many of these one arithmetic register holds."""
        return max(1, self.vector_bytes // max(1, dtype.scalar.itemsize))

    def folds(self, dtype: DType) -> tuple[int, ...]:
        """Lengths in which memory of this type is accessed, the longest first."""
        longest = max(1, self.fold_bytes // max(1, dtype.scalar.itemsize))
        return tuple(1 << k for k in range(longest.bit_length() - 1, -1, -1))

    @property
    def key(self) -> str:
        """Everything that changes the code, as text for cache keys."""
        ops = ",".join(sorted(op.name for op in self.ops))
        rough = ",".join(sorted(op.name for op in self.rough))
        floats = ",".join(sorted(d.name for d in self.floats))
        stored = ",".join(sorted(d.name for d in self.stored_floats))
        plain = [
            self.name, self.vector_bytes, self.fold_bytes, self.registers, self.masked_memory,
            self.predicated_stores, self.fma, self.global_dims, self.local_dims, self.block_limit,
            self.threads, self.wide_index, self.local_bytes, self.images, self.aligned_memory, self.warp,
            self.fma_in_place, self.ahead_bytes,
        ]  # fmt: skip
        return "|".join([*map(str, plain), ops, rough, floats, stored])
