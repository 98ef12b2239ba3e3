"""What things cost on a machine. Each group is a table of its file; the defaults are a plain processor.

Numbers are rough on purpose: they decide between alternatives that differ by factors. Who adds one says in
the file whether it was measured, and on what.
"""

from __future__ import annotations

from typing import final

from morok.dtype.records import record
from morok.forks import cached_property
from morok.ir.ops import Op, Ops

_DIVISION = frozenset((Ops.FDIV, Ops.RECIP, Ops.SQRT, Ops.RSQRT, Ops.MULHI))
_INTEGER_DIVISION = frozenset((Ops.FLOORDIV, Ops.FLOORMOD, Ops.CDIV, Ops.CMOD, Ops.FMOD))
_EXPONENTIAL = frozenset((Ops.EXP, Ops.EXP2, Ops.LOG, Ops.LOG2, Ops.TANH, Ops.ERF))
_TRIGONOMETRIC = frozenset((Ops.SIN, Ops.COS, Ops.TAN, Ops.ATAN2))
_POWER = frozenset((Ops.POW, Ops.THREEFRY))
FUNCTIONS = _EXPONENTIAL | _TRIGONOMETRIC | _POWER  # that become polynomials, or chains just as long


@final
@record(frozen=True)
class OpCosts:
    """One op on one element, in simple vector operations. Fusion, the heuristics and the model of a search
    all ask this table."""

    division: float = 4.0  # and square roots
    integer_division: float = 8.0  # and remainders
    exponential: float = 20.0
    trigonometric: float = 25.0
    power: float = 40.0

    @cached_property
    def _table(self) -> dict[Op, float]:
        return {
            **dict.fromkeys(_DIVISION, self.division),
            **dict.fromkeys(_INTEGER_DIVISION, self.integer_division),
            **dict.fromkeys(_EXPONENTIAL, self.exponential),
            **dict.fromkeys(_TRIGONOMETRIC, self.trigonometric),
            **dict.fromkeys(_POWER, self.power),
            Ops.BITCAST: 0.0,
        }

    def of(self, op: Op) -> float:
        """The cost of an op."""
        return self._table.get(op, 1.0)


@final
@record(frozen=True)
class Rates:
    """Cycles of one core, and what is counted in simple operations."""

    # for fusion: memory and launches against computing again
    ops_per_byte: float = (
        12.0  # simple operations on elements in registers that a byte to memory and back costs
    )
    launch: float = 20_000.0  # the same for starting one more kernel
    # what an inner loop over an axis repeats of a cheap value: the rest is shared by the registers of a tile
    tile: float = 12.0
    gather: float = 8.0  # and for an element whose place is not known before another one has been read
    # for the heuristics
    shared_work: int = 60_000  # operations below which waking a thread costs more than it saves
    # for the model of a search
    issue: float = 0.5  # cycles of a vector instruction, several of them at a time
    vector_load: float = 3.0  # of a tile's operand, in elements that are loaded and spread over a register
    latency: float = 4.0  # cycles until a sum can be added to again
    memory_byte: float = 0.15  # cycles of a byte from memory, per core
    l2_byte: float = 0.03  # and from the second cache
    far_byte: float = 0.0  # and from behind it, for panels of products; 0: they come in time
    wake: float = 15_000.0  # cycles until the threads are awake
    longest_body: int = 3000  # instructions; beyond, neither the compiler nor the instruction cache likes it
    spill: float = 4.0  # instructions for an accumulator that no register holds
    spill_at: float = 0.85  # of the registers: so many accumulators fit
    busy_threads: int = 1  # that keep a grid busy
    far: float = 1.0  # instructions that an access to memory is worth, on a grid
    scattered: float = 1.0  # transfers of a grid's neighbouring threads that read far apart


@final
@record(frozen=True)
class LongReduce:
    """From which length on, up to how many outputs, and into how many pieces for all outputs together."""

    longest: int
    outputs: int
    pieces: int


@final
@record(frozen=True)
class TallReduce:
    """Fewer blocks of rows than threads could share instead; so many pieces, if their time pays."""

    blocks: int
    pieces: int


@final
@record(frozen=True)
class LongScan:
    """From which length on a row is cut, up to how many rows, and into how many pieces at most."""

    longest: int
    rows: int
    pieces: int


@final
@record(frozen=True)
class Splits:
    """What is done in several kernels, because one would leave most of the machine idle. None: never."""

    reduce: LongReduce | None = None  # a long reduction to few outputs
    tall: TallReduce | None = None  # a reduction across rows
    stretch: int = 0  # bytes of a matrix' row: threads whose parts are shorter share its rows instead
    by_time: bool = False  # what the time of a grid, or of all cores, says to cut: products, column sums
    scan: LongScan | None = None  # a running reduction of few long rows
    scan_runs: bool = False  # running reductions are done in short runs, by thousands of threads


@final
@record(frozen=True)
class Grid:
    """A grid of blocks as a whole, in clocks."""

    memory: float  # bytes to or from memory per clock, of one multiprocessor
    operations: float  # simple operations on elements per clock, of one multiprocessor
    launch: float  # clocks of one more kernel
    split: float  # the part of its time that a split must leave at most, to be worth it


@final
@record(frozen=True)
class Scatters:
    """Rows put in places known when it runs, on a grid whose memory joins whole numbers. In clocks."""

    step: float  # one step of a kernel in which all threads walk through all steps
    updates: float  # that memory takes per clock, of one multiprocessor
    meeting: float  # until the next update of the same line of the cache
    crowd: int  # lines for each update under way, so that they seldom meet


@final
@record(frozen=True)
class BlockTile:
    """A block's tile: outputs, bytes of one row of steps, warps or threads along both sides, depth.

    `worth` is its inner loop's rate, in units of what the best tile reaches with a warp's units.
    """

    rows: int
    columns: int
    bytes: int
    across: int
    along: int
    depth: int
    worth: float


@final
@record(frozen=True)
class Products:
    """Tiles for products on a grid, and the rates of one multiprocessor, per clock.

    Tiles: the more outputs per loaded element the better, as long as there are enough for all
    multiprocessors. For units of warp groups, `across` counts groups, and one unit has all columns.
    """

    unit_tiles: tuple[BlockTile, ...]
    group_tiles: tuple[BlockTile, ...]
    thread_tiles: tuple[BlockTile, ...]
    unit_rate: float  # products with a unit, times the bytes of an input
    thread_rate: float  # products of threads
    busy_threads: int  # that a multiprocessor needs for that rate
    store_rate: float  # bytes written
    other_rate: float  # other operations
    latency: float  # clocks until a block's first tile has arrived
    round: float  # clocks of a round of the inner loop that brings nearly nothing
    # Clocks for an element that is copied to a tile by itself: for units of warps, and of warp groups.
    alone: tuple[float, float]
    singly: float  # the part of a unit's rate that is left where an operand is copied element by element
    computed: float  # and where threads compute an operand on its way into shared memory
    computed_by_threads: float  # the same of a product on threads, beside memory that is copied by itself
    crosswise: float  # the part of threads' rate that is left where both operands lie along the steps
    other_registers: int  # of a thread, beside its results
    # The inner loop's rate with roles, and the part of writing that nothing else is done beside:
    bring: tuple[float, float]  # where a group of threads brings the tiles,
    write: tuple[float, float]  # and where another one also writes the results
    writers: float  # the part of other operations' rate that these threads have, which are few
    # Lines of the second cache that threads, and an engine, ask for; a row that begins within a line is two.
    line_rates: tuple[float, float]
    together: tuple[float, float]  # the time of blocks that share tiles: of the inner loop, and of the rest


@final
@record(frozen=True)
class Attention:
    """Tiles for two products in a chain, and how fast they are. Pairs are a number and the time with it."""

    registers: int  # of a thread, for rows, scores and results
    group_registers: int  # the same where units read q by themselves, and need some for the powers
    wide_registers: int  # what these may be at most, where rows are too wide for that
    warps: tuple[tuple[int, float], ...]
    keys: tuple[tuple[int, float], ...]  # of a tile
    groups: tuple[tuple[int, float], ...]
    group_tiles: tuple[tuple[int, float], ...]  # of rows, that a group has
    group_keys: tuple[tuple[int, float], ...]
    warp_depth: int
    group_depth: int
    role_rates: tuple[tuple[int, float], ...]  # rows in a unit of time with roles, by keys of a tile
    role_width: int  # elements of rows of q and v from which on roles pay
    role_registers: int  # of a thread that multiplies there
    rates: tuple[tuple[int, float], ...]  # rows in a unit of time, by units that a warp's rows take
    group_rate: float
    fewest_warps: int  # of a multiprocessor, to be busy
    run_on: int  # blocks of a multiprocessor that hide copies which begin late
    full: int  # elements of rows of q and v for which three groups keep a multiprocessor busy
    fused_registers: int  # of a thread, for rows, scores and results by fused products
    fused_warps: tuple[int, ...]
    fused_keys: tuple[int, ...]
    fused_rate: float  # of the fused products that a multiprocessor could start, with all else counted
    fused_busy: int  # warps of a multiprocessor with which it does
    fused_read: float  # products in the time of a vector out of shared memory
    fused_score: float  # and of what becomes of a score
    fused_turn: float  # and of what lanes tell one another of a row in a step
    score_moves: float  # how often scores are moved where they are memory
