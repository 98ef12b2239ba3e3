"""Matrix units as data: which tile one instruction multiplies, and where its elements lie in a warp.

A unit computes d[m, n] = Σ over k of a[m, k] · b[k, n] + c[m, n]. Each operand is a *fragment*: every lane
of a warp holds a few elements in registers. A fragment says, for each bit of an element's coordinates,
which bit of the lane's number ("l2") or of the register's number ("r0") it is, lowest bit first. From this
alone follow the loads, the stores, the meaning of WMMA on the emulator, and whether a hardware load for
fragments fits.

The unit of a processor's core has no lanes: it loads tiles out of memory into registers of its own. The left
operand lies in rows along the steps, however far apart. Of the right one some neighbouring steps of a column
lie side by side, and then come those of the next column: b[k // steps, n, k % steps].
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple, final

from morok import knobs
from morok.dtype import (
    DType,
    bfloat16,
    float8_e4m3,
    float8_e5m2,
    float16,
    float32,
    int8,
    int32,
    uint8,
)
from morok.dtype.records import record
from morok.ir.args import register_arg
from morok.ir.node import UOp
from morok.ir.ops import Op, Ops
from morok.ir.warp_roles import Box


@final
@register_arg
@record(frozen=True)
class Fragment:
    """Where the elements of an operand lie: bits of row and column, lowest first, as bits of lane or
    register."""

    rows: tuple[str, ...]
    columns: tuple[str, ...]
    held: int = 0  # elements of a lane, where they are fewer than the bits can number

    @property
    def registers(self) -> int:
        """Elements per lane."""
        return self.held or 1 << sum(bit[0] == "r" for bit in (*self.rows, *self.columns))

    def place(self, lane: int, register: int) -> tuple[int, int]:
        """(row, column) of one element."""
        return _number(self.rows, lane, register), _number(self.columns, lane, register)

    def places(self, lanes: int) -> Iterator[tuple[int, int, int, int]]:
        """(lane, register, row, column) of all elements."""
        for lane in range(lanes):
            for register in range(self.registers):
                yield lane, register, *self.place(lane, register)


class Run(NamedTuple):
    """Neighbouring bits of a coordinate that are neighbouring bits of the lane's or the register's number."""

    kind: str  # "l" or "r"
    source: int  # the lowest of them there
    place: int  # and in the coordinate
    width: int


def runs(bits: tuple[str, ...]) -> tuple[Run, ...]:
    """The bits of a coordinate in runs, lowest first: each is a loop of the tile."""
    out: list[Run] = []
    for place, bit in enumerate(bits):
        kind, source = bit[0], int(bit[1:])
        if out and out[-1].kind == kind and out[-1].source + out[-1].width == source:
            out[-1] = out[-1]._replace(width=out[-1].width + 1)
        else:
            out.append(Run(kind, source, place, 1))
    return tuple(out)


def runs_of(bits: tuple[str, ...], sizes: Iterable[int]) -> tuple[Run, ...]:
    """The same for loops of given sizes, each of which is a run or a part of one."""
    out: list[Run] = []
    place = 0
    for size in sizes:
        width = (size - 1).bit_length()  # of the last one numbers may be left over
        out.append(Run(bits[place][0], int(bits[place][1:]), place, width))
        place += width
    return tuple(out)


def _number(bits: tuple[str, ...], lane: int, register: int) -> int:
    source = {"l": lane, "r": register}
    return sum((source[bit[0]] >> int(bit[1:]) & 1) << i for i, bit in enumerate(bits))


@final
@register_arg
@record(frozen=True)
class MatrixUnit:
    """One matrix instruction. `inputs` are what it multiplies, `output` what it adds up in."""

    name: str
    m: int
    n: int
    k: int
    inputs: DType
    output: DType
    a: Fragment
    b: Fragment  # rows are steps of k, columns are n
    c: Fragment
    lanes: int = 32
    permission: str = ""  # the knob that allows it, where it computes less exactly than its types promise
    shared: str = ""  # the operands that it reads out of shared tiles by itself
    words: bool = False  # an element is a word of four bytes or two float16, and a product is DOT4 or DOT2
    fused: bool = False  # no unit at all: the lanes of a warp compute the tile by fused products

    @property
    def in_flight(self) -> bool:
        """Whether it works while the threads go on, and has to be waited for."""
        return bool(self.shared) and not self.fused

    @property
    def across(self) -> int:
        """Of a tile of fused products: lanes side by side along the columns."""
        return self.lanes * FUSED_ROWS // self.m

    @property
    def pitch(self) -> int:
        """Floats from one column that is handed around to the next, which begins in another bank."""
        return self.m + 4

    @property
    def passed(self) -> int:
        """Floats of shared memory in which a warp hands results around."""
        return max(FUSED_PASSED, self.across) * self.pitch

    @property
    def allowed(self) -> bool:
        """Whether nothing is lost by it, or somebody has agreed."""
        return not self.permission or bool(knobs.get(self.permission).value)

    @property
    def product(self) -> Op:
        """What becomes of two elements before it is added up."""
        if self.words:
            return Ops.DOT2 if self.inputs.is_float else Ops.DOT4
        return Ops.MUL

    @property
    def in_word(self) -> int:
        """Numbers of an element."""
        return {Ops.DOT4: 4, Ops.DOT2: 2}.get(self.product, 1)

    @property
    def widths(self) -> tuple[int, int, int]:
        """Lanes of a, b and c per tile: elements, or one address."""
        a, b = (1 if name in self.shared else f.registers for name, f in (("a", self.a), ("b", self.b)))
        return a, b, self.c.registers


# Row g or g+8 for g = lane // 4, two neighbouring columns per lane: the same for all units of m16n8.
_C = Fragment(("l2", "l3", "l4", "r1"), ("r0", "l0", "l1"))
_ROW = ("l2", "l3", "l4")


def _unit(name: str, k: int, inputs: DType, output: DType, permission: str = "") -> MatrixUnit:
    """m16n8 with k steps: each register of 32 bits holds neighbouring steps, four lanes make a run."""
    packed = {1: ("r0", "r1"), 2: ("r0",), 4: ()}[inputs.itemsize]
    inner = (*packed, "l0", "l1")
    next_bit = len(packed)
    a = Fragment((*_ROW, f"r{next_bit}"), (*inner, f"r{next_bit + 1}"))
    b = Fragment((*inner, f"r{next_bit}"), _ROW)
    return MatrixUnit(name, 16, 8, k, inputs, output, a, b, _C, permission=permission)


MMA_F16 = _unit("mma.f16", 16, float16, float32)
MMA_BF16 = _unit("mma.bf16", 16, bfloat16, float32)
MMA_TF32 = _unit("mma.tf32", 8, float32, float32, "TF32")
MMA_INT8 = _unit("mma.s8", 32, int8, int32)
MMA_UINT8 = _unit("mma.u8", 32, uint8, int32)
MMA_E4M3 = _unit("mma.e4m3", 32, float8_e4m3, float32)
MMA_E5M2 = _unit("mma.e5m2", 32, float8_e5m2, float32)
# The same instruction on words of four bytes, as DOT4 reads them. Which steps the registers of a lane are is
# free, as long as a and b agree, and which rows they are, as long as a and c do: neighbours, which are one
# access.
DOT4_32 = replace(
    _unit("dot4.s8", 8, int32, int32),
    words=True,
    a=Fragment(("r0", *_ROW), ("r1", "l0", "l1")),
    b=Fragment(("r0", "l0", "l1"), _ROW),
    c=Fragment(("r1", *_ROW), _C.columns),
)
DOT4_16 = replace(
    DOT4_32, k=4, a=Fragment(("r0", *_ROW), ("l0", "l1")), b=Fragment(("l0", "l1"), _ROW), name="dot4.s8.k4"
)
# And on words of two float16, which are the bits of a float32.
DOT2_16 = replace(DOT4_32, inputs=float32, output=float32, name="dot2.f16")

WARP_UNITS: tuple[MatrixUnit, ...] = (
    MMA_F16, MMA_BF16, MMA_TF32, MMA_INT8, MMA_UINT8, MMA_E4M3, MMA_E5M2,
)  # fmt: skip


def _wgmma_unit(name: str, n: int, k: int, inputs: DType, output: DType, permission: str = "") -> MatrixUnit:
    """m64 for a warp group (four warps): each has 16 rows, laid out as those of one warp, for all columns."""
    wide = tuple(f"r{i}" for i in range(2, (n - 1).bit_length() - 1))
    held = 0 if n & (n - 1) == 0 else n // 2
    c = Fragment(("l2", "l3", "l4", "r1", "l5", "l6"), ("r0", "l0", "l1", *wide), held)
    none = Fragment((), ())
    return MatrixUnit(name, 64, n, k, inputs, output, none, none, c, 128, permission, "ab")


def _with_register_a(unit: MatrixUnit) -> MatrixUnit:
    """The same for a left operand in registers, each warp's 16 rows laid out as for a unit of one warp.

    Which rows these are is free, as long as a and the result agree. Narrow or wide elements are gathered from
    tiles whose rows run along m: a lane takes neighbours of such a row at once, and the lanes that read
    together have places in different banks, chunks being exchanged by row. 16 bits come by LDMATRIX.
    """
    packed = {1: ("r0", "r1"), 2: ("r0",), 4: ()}[unit.inputs.itemsize]
    upper, step = f"r{len(packed)}", f"r{len(packed) + 1}"
    order = {
        1: ("{}", "l2", "l3", "l4", "l5", "l6"),
        2: ("l2", "l3", "l4", "{}", "l5", "l6"),
        4: ("{}", "l2", "l4", "l5", "l3", "l6"),
    }[unit.inputs.itemsize]
    a = Fragment(tuple(bit.format(upper) for bit in order), (*packed, "l0", "l1", step))
    c = Fragment(tuple(bit.format("r1") for bit in order), unit.c.columns, unit.c.held)
    return replace(unit, name=f"{unit.name}.register_a", a=a, c=c, shared="b")


# tf32 rounds its inputs; warp groups add products of 8-bit floats with fewer bits than float32 has.
_PERMISSIONS = {"tf32": "TF32", "e4m3": "FAST_FP8", "e5m2": "FAST_FP8"}
WGMMA_UNITS: tuple[MatrixUnit, ...] = tuple(
    _wgmma_unit(f"wgmma.{name}", n, k, inputs, output, _PERMISSIONS.get(name, ""))
    for name, k, inputs, output in (
        ("f16", 16, float16, float32),
        ("bf16", 16, bfloat16, float32),
        ("tf32", 8, float32, float32),
        ("s8", 32, int8, int32),
        ("u8", 32, uint8, int32),
        ("e4m3", 32, float8_e4m3, float32),
        ("e5m2", 32, float8_e5m2, float32),
    )
    for n in (256, 128, 64)
)
REGISTER_A_UNITS: tuple[MatrixUnit, ...] = tuple(map(_with_register_a, WGMMA_UNITS))
# The same for results of every other width: the second product of a chain has as many columns as it has.
ANY_WIDTH_UNITS: tuple[MatrixUnit, ...] = tuple(
    _with_register_a(_wgmma_unit(f"wgmma.{name}", n, 16, inputs, float32))
    for name, inputs in (("f16", float16), ("bf16", bfloat16))
    for n in range(16, 256, 8)
    if n not in (64, 128)
)
BYTE_UNITS: tuple[MatrixUnit, ...] = (DOT4_32, DOT4_16)
WORD_UNITS: tuple[MatrixUnit, ...] = (*BYTE_UNITS, DOT2_16)


def _fused_units(columns: int) -> tuple[MatrixUnit, MatrixUnit]:
    """Tiles of float32 that a warp computes by fused products, exactly as its types promise: eight rows for a
    lane, and so many lanes side by side along the columns.

    The first one reads both operands out of shared tiles. Where these lie along the steps, neighbouring lanes
    have neighbouring columns, whose rows of a tile are in different banks. The other one takes on its left
    the results of the first as they lie, hands them around through memory of the warp, and reads tiles that
    lie along the columns, of which a lane has neighbours.
    """
    lanes, wide = columns.bit_length() - 1, FUSED_SIDE.bit_length() - 1
    along = tuple(f"l{i}" for i in range(lanes))
    mine = tuple(f"r{i}" for i in range(wide - lanes))
    rows = (*(f"l{i}" for i in range(lanes, 5)), *(f"r{i}" for i in range(wide - lanes, wide - lanes + 3)))
    high, none = 1 << len(rows), Fragment((), ())
    first = Fragment(rows, (*along, *mine))
    name = f"fma.{high}"
    unit = MatrixUnit(
        name, high, FUSED_SIDE, FUSED_SIDE, float32, float32, none, none, first, shared="ab", fused=True
    )
    second = Fragment(rows, (*mine, *along))
    return unit, replace(unit, name=f"{name}.register_a", a=first, c=second, shared="b")


FUSED_SIDE = 32  # columns and steps of a tile of fused products: as many as a panel has
FUSED_ROWS = 8  # of a lane
FUSED_PASSED = 16  # columns of results that lanes hand around at once
_FUSED = tuple(_fused_units(columns) for columns in (8, 16, 32))
FUSED_UNITS: tuple[MatrixUnit, ...] = tuple(first for first, _ in _FUSED)
FUSED_AFTER: tuple[MatrixUnit, ...] = tuple(second for _, second in _FUSED)
# TC's argument counts in this order, and sequences that were found once are kept: new ones come last.
ALL_UNITS: tuple[MatrixUnit, ...] = (
    *WARP_UNITS, *WGMMA_UNITS, *REGISTER_A_UNITS, *BYTE_UNITS, *FUSED_UNITS, *FUSED_AFTER, DOT2_16,
)  # fmt: skip
PANEL = 128  # bytes of a row in a shared tile; longer rows lie in panels side by side


@final
@register_arg
@record(frozen=True)
class Panels:
    """The argument of LDMATRIX where a unit reads a shared tile by itself: its value describes the tile.

    Rows of 128 bytes, eight of them `stride` bytes from the next eight, chunks exchanged by row. Rows run
    along the steps; or, turned, along the outer coordinate, whose panels lie `lead` bytes apart.
    """

    lead: int
    stride: int
    transposed: bool = False
    by_threads: bool = False  # no unit reads it, but the lanes themselves


@final
@register_arg
@record(frozen=True)
class Products:
    """The argument of ASYNC_COMMIT, ASYNC_WAIT and FENCE where they are about units, not copies: how many
    groups of products may be under way."""

    pending: int = 0


@final
@register_arg
@record(frozen=True)
class Rows:
    """The argument of LDMATRIX: so many 8×8 matrices of 16-bit elements, turned on their diagonal or not."""

    count: int
    transposed: bool = False


@final
@register_arg
@record(frozen=True)
class Shared:
    """What a local buffer is on a grid: filled by all threads of a block, in a ring of so many tiles.

    Depth 1: filled and then read. Deeper: the tiles of the next steps are under way while this one is read.
    Depth 0: each thread puts in what it has computed; `row` is the length of a row.
    With roles, a group of threads of its own fills a ring, box by box, or walks what has been computed.
    The blocks of a cluster share a ring that is the same in all of them: each copies its part for all.
    """

    depth: int = 1
    row: int = 0
    roles: bool = False
    box: Box | None = None
    blocks: int = 1  # that share it


def shared_layout(node: UOp) -> Shared | None:
    """How a local buffer is shared by the threads of a block; None for what is no such buffer."""
    found = node.arg[2] if node.op is Ops.BUFFERIZE and len(node.arg) > 2 else None
    return found if isinstance(found, Shared) else None


def shared_tiles(nodes: Iterable[UOp]) -> list[UOp]:
    """Those local buffers that all threads of a block fill together."""
    return [n for n in nodes if (found := shared_layout(n)) is not None and found.depth > 0]


# --- units of a processor's core


@final
@register_arg
@record(frozen=True)
class TileUnit:
    """One instruction on tiles. `inputs` are what it multiplies, `output` what it adds up in."""

    name: str
    m: int
    n: int
    k: int
    inputs: DType
    output: DType
    steps: int  # of a column that lie side by side in the right operand
    registers: int  # that hold a tile each
    cycles: int  # from one such instruction to the next
    words: bool = False  # an element is a word of four bytes, and a product is DOT4

    @property
    def product(self) -> Op:
        """What becomes of two elements before it is added up."""
        return Ops.DOT4 if self.words else Ops.MUL


@final
@register_arg
@record(frozen=True)
class TileProduct:
    """The argument of TILE_PRODUCT: rows × columns outputs over so many steps, and what lies between the rows
    of the left operand, in elements."""

    unit: TileUnit
    rows: int
    columns: int
    steps: int
    stride: int

    def lengths(self) -> tuple[int, int, int]:
        """Elements of the result and of both operands, from the first to the last."""
        left = (self.rows - 1) * self.stride + self.steps
        return self.rows * self.columns, left, self.steps * self.columns


# Denormal numbers count as 0 in tile.bf16, going in and coming out.
TILE_UNITS: tuple[TileUnit, ...] = (
    TileUnit("tile.bf16", 16, 16, 32, bfloat16, float32, 2, 8, 16),
    TileUnit("tile.s8", 16, 16, 64, int8, int32, 4, 8, 16),
    TileUnit("tile.s8.words", 16, 16, 16, int32, int32, 1, 8, 16, words=True),  # the same instruction
)
