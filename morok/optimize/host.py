"""What the optimiser must know of the machine that a kernel will run on: plain facts, no device.

The heuristics ask this description and nothing else, so that one piece of code serves a NEON laptop, an
AVX-512 server and a GPU. A device that compiles kernels makes one of these from what it has found out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from morok.dtype import DType
from morok.ir.matrix import MatrixUnit


@final
@dataclass(frozen=True)
class Host:
    """A machine as the optimiser sees it. The defaults are a plain processor of today."""

    vector_bytes: int = 16  # one vector register; 0: there are none
    registers: int = 32  # vector registers
    masked_memory: bool = False  # loads and stores take a mask per lane at full speed
    lane_operands: bool = False  # an instruction may multiply by one lane of a vector (NEON)
    line_bytes: int = 64
    l1_bytes: int = 32 << 10
    l2_bytes: int = 512 << 10
    cores: int = 1  # that one kernel may use
    block_threads: int = 0  # threads of a block; 0: there are no blocks
    local_bytes: int = 16 << 20  # memory for copies of tiles, per thread or block
    matrix_units: tuple[MatrixUnit, ...] = ()
    copy_engine: bool = False  # boxes of a buffer can be copied into shared memory by an engine of its own

    def lanes(self, dtype: DType) -> int:
        """How many of these a vector register holds; at least one."""
        return max(1, self.vector_bytes // max(1, dtype.scalar.itemsize))

    @property
    def key(self) -> str:
        """Everything that changes a decision, as text for cache keys."""
        units = ",".join(unit.name for unit in self.matrix_units)
        plain = [
            self.vector_bytes, self.registers, self.masked_memory, self.lane_operands, self.line_bytes,
            self.l1_bytes, self.l2_bytes, self.cores, self.block_threads, self.local_bytes,
            self.copy_engine,
        ]  # fmt: skip
        return "|".join([*map(str, plain), units])
