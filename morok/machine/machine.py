"""A machine: what it has (facts) and what things cost on it (rates). Nothing else here knows a chip.

Fusion, the optimiser, codegen and the renderers ask this description and never a device, so one piece of code
serves a NEON laptop, an AVX-512 server and a GPU, and kernels for a machine that is not here can be planned
and printed. A description comes from a file (`files.py`), and the system overrides what it knows better
(`choose.py`). Its `key` is part of the key of every compiled kernel.
"""

from __future__ import annotations

from dataclasses import field, fields, is_dataclass
from typing import Any, final

from morok.dtype import FLOATS, DType, float32, float64
from morok.dtype.records import record
from morok.forks import cached_property
from morok.ir.digest import blake2b
from morok.ir.matrix import MatrixUnit, TileUnit
from morok.ir.ops import Op, Ops
from morok.machine.rates import Attention, Grid, OpCosts, Products, Rates, Scatters, Splits

# What a plain processor computes by itself. Everything else is decomposed into these.
BASIC_OPS: frozenset[Op] = frozenset((
    Ops.CAST, Ops.BITCAST, Ops.NEG, Ops.NOT, Ops.ABS, Ops.SQRT, Ops.ADD, Ops.SUB, Ops.MUL, Ops.FDIV, Ops.CDIV,
    Ops.CMOD, Ops.MAX, Ops.MIN, Ops.CMPLT, Ops.CMPNE, Ops.CMPEQ, Ops.AND, Ops.OR, Ops.XOR, Ops.SHL, Ops.SHR,
    Ops.WHERE, Ops.TRUNC, Ops.FLOOR, Ops.CEIL, Ops.RINT, Ops.MULHI, Ops.POPCOUNT, Ops.FMOD,
    Ops.CHECK,  # by stage 22
))  # fmt: skip


@final
@record(frozen=True)
class Link:
    """A way from this machine to another device: seconds until the first byte, bytes per second after it."""

    to: str
    latency: float
    bandwidth: float


@final
@record(frozen=True)
class Machine:
    """One chip as the compiler sees it. The defaults are a plain processor of today."""

    name: str = "plain"
    family: str = "cpu"  # or "gpu": what has a grid of blocks
    arch: str = ""  # as its compiler calls it: aarch64, x86_64, sm_90a

    # --- what one instruction does
    vector_bytes: int = 16  # of a vector register, and of the widest single access; 0: there are no vectors
    scalar_alu: bool = False  # arithmetic is on single elements, whatever an access moves: a thread is a lane
    registers: int = 32  # that hold values: vectors, or elements of one thread
    masked_memory: bool = False  # vector loads and stores take a mask per lane at full speed
    packed_stores: bool = False  # and a store can put the lanes that a mask lets through side by side
    aligned_memory: bool = False  # an access must lie at a multiple of its own size
    predicated_stores: bool = False  # a scalar store takes a condition
    lane_operands: bool = False  # an instruction may multiply by one lane of a vector
    wide_conversions: bool = False  # vectors of float64 become integers of 64 bits in one instruction
    fma: bool = True
    ranges: bool = False  # one instruction gives the larger number of two and knows the order of zeros
    fma_in_place: bool = False  # a fused product overwrites what it is added to
    wide_index: bool = False  # scalar indices are 64 bits whatever their bounds: registers are that wide
    ops: frozenset[Op] = BASIC_OPS
    approximate: frozenset[Op] = frozenset()  # ops of float32 that it also has with a relative error of 2^-20
    floats: frozenset[DType] = frozenset((float32, float64))  # float types with arithmetic
    stored_floats: frozenset[DType] = frozenset(FLOATS)  # float types that memory and casts know
    matrix_units: tuple[MatrixUnit, ...] = ()
    word_units: tuple[MatrixUnit, ...] = ()  # that multiply four bytes of a word at once, as DOT4 does
    fused_units: tuple[MatrixUnit, ...] = ()  # tiles of fused products, for chains of products alone
    tile_units: tuple[TileUnit, ...] = ()  # that a core feeds from memory
    tma: bool = False  # boxes of a buffer can be copied into shared memory by an engine of its own
    cluster: int = 1  # blocks that share tiles: each can write into the shared memory of the others

    # --- memory
    line_bytes: int = 64
    l1_bytes: int = 32 << 10
    l2_bytes: int = 512 << 10
    local_bytes: int = 16 << 20  # for copies of tiles, per thread; the shared memory of a block
    prefetch_bytes: int = 0  # so far ahead large arrays are prefetched; 0: the processor knows best
    streams: int = 4  # rows of a matrix that are read side by side
    panel_ahead: int = 0  # so far ahead panels in the second cache are asked for; 0: they come in time
    prefetch_blocks: bool = False  # what loops read again and again is asked for one block ahead
    packs_in_order: bool = False  # panels are filled side by side, from rows as they lie in memory
    scores_in_cache: bool = False  # a thread keeps some rows' scores there, from one product to the next
    ahead_of_use: int = 16 << 20  # bytes that are packed before they are used; 0: the third cache is too slow

    # --- what runs side by side
    cores: int = 1  # that one kernel may use; multiprocessors
    threads: bool = False  # THREAD ranges run side by side
    global_dims: tuple[int, ...] = ()  # largest grid, per dimension; empty: there is no grid
    local_dims: tuple[int, ...] = ()  # largest block, per dimension
    block_threads: int = 0  # threads of a block, all dimensions together; 0: there are no blocks
    warp: int = 0  # threads that can hand values to one another without memory; 0: none can
    register_file: int = 0  # registers of a multiprocessor, which its blocks share

    # --- what things cost
    op_costs: OpCosts = field(default_factory=OpCosts)
    rates: Rates = field(default_factory=Rates)
    splits: Splits = field(default_factory=Splits)
    grid: Grid | None = None  # all blocks together
    scatters: Scatters | None = None  # memory joins whole numbers that threads bring at once
    products: Products | None = None  # tiles of blocks for products
    attention: Attention | None = None  # tiles of blocks for two products in a chain
    links: tuple[Link, ...] = ()

    @property
    def has_grid(self) -> bool:
        return bool(self.global_dims)

    def lanes(self, dtype: DType) -> int:
        """How many of these one instruction computes with; at least one."""
        return 1 if self.scalar_alu else self.access_lanes(dtype)

    def access_lanes(self, dtype: DType) -> int:
        """How many of these the widest access moves; at least one."""
        return self.vector_bytes // (dtype.scalar.itemsize or 1) or 1

    def longest_access(self, dtype: DType) -> int:
        """The most elements of this type that memory is accessed by at once: a power of two."""
        return 1 << self.access_lanes(dtype).bit_length() - 1

    @cached_property
    def key(self) -> str:
        """Everything that changes a decision or the code, as text for cache keys."""
        return f"{self.name}-{blake2b(_text(self).encode(), digest_size=12).hexdigest()}"

    def __hash__(self) -> int:
        return hash(self.key)

    def __str__(self) -> str:
        return self.name

    def show(self) -> list[tuple[str, str]]:
        """Names and values for people, the defaults left out."""
        plain = Machine()
        return [
            (f.name, _text(getattr(self, f.name)))
            for f in fields(self)
            if getattr(self, f.name) != getattr(plain, f.name) and f.name != "name"
        ]


def _text(value: Any) -> str:
    """A value as text that is the same in every process."""
    if is_dataclass(value):
        return f"({' '.join(f'{f.name}={_text(getattr(value, f.name))}' for f in fields(value))})"
    if isinstance(value, frozenset):
        return f"{{{','.join(sorted(map(_text, value)))}}}"
    if isinstance(value, tuple):
        return f"[{','.join(map(_text, value))}]"
    return value.name if isinstance(value, Op | DType) else str(value)
