"""What is legal between the stages of codegen: from a kernel as it is handed over to a list of instructions.

Each spec says what has come and what must be gone. Which one holds after which stage is in the table of
stages (`pipeline.py`); `SPEC=2` checks them all.
"""

from __future__ import annotations

from morok.dtype import AddrSpace, PtrDType
from morok.ir.node import UOp
from morok.ir.ops import AxisKind, Ops
from morok.ir.scan import Scan, parts
from morok.optimize.loops import LANE_KINDS
from morok.rewrite.rules import Rules, when
from morok.rewrite.spec import Spec, arithmetic_spec, legal, spec
from morok.rewrite.terms import Head

# what is left of the kinds of loops once threads and blocks are hardware indices
LOOPS = frozenset((AxisKind.LOOP, AxisKind.REDUCE, AxisKind.ORDERED, AxisKind.THREAD, AxisKind.ROLE))


def _is_place(node: UOp) -> bool:
    """INDEX(pointer or local buffer, integer[, condition])."""
    if len(node.src) not in (2, 3) or not node.src[1].dtype.is_int:
        return False
    return len(node.src) == 2 or node.src[2].dtype.is_bool


def _is_range(node: UOp) -> bool:
    if not isinstance(node.arg, tuple) or not isinstance(node.arg[1], AxisKind):
        return False
    return len(node.arg) == (3 if node.arg[1] is AxisKind.ROLE else 2)


def _points_at_memory(node: UOp) -> bool:
    return isinstance(node.dtype, PtrDType)


def _stores_its_type(node: UOp) -> bool:
    where, value = node.src
    return isinstance(where.dtype, PtrDType) and where.dtype.elem.scalar is value.dtype.scalar


def _closes_ranges(node: UOp) -> bool:
    return all(s.op is Ops.RANGE for s in node.src[1:])


def _reduces(node: UOp) -> bool:
    count = len(node.arg)
    return 0 < count < len(node.src) and all(s.op is Ops.RANGE for s in node.src[count:])


def _runs_along(node: UOp) -> bool:
    return isinstance(node.arg, Scan) and all(s.op is Ops.RANGE for s in parts(node).loops)


def _is_point(node: UOp) -> bool:
    """WMMA(a, b, c, *loops of the tile) on scalars."""
    return len(node.src) > 3 and node.dtype.lanes == 1 and all(s.op is Ops.RANGE for s in node.src[3:])


def _is_between_memories(node: UOp) -> bool:
    """TILE_PRODUCT(address, address, address)."""
    return len(node.src) == 3 and all(s.op is Ops.INDEX and s.dtype.is_ptr for s in node.src)


def _lanes_exist(node: UOp) -> bool:
    return all(0 <= i < node.src[0].dtype.lanes for i in node.arg) and node.dtype.lanes == len(node.arg)


def _lanes_add_up(node: UOp) -> bool:
    return sum(s.dtype.lanes for s in node.src) == node.dtype.lanes


@spec("codegen.definitions")
def definition_spec() -> Rules:
    """Where values and memory come from."""
    memory = Head(Ops.DEFINE_GLOBAL, Ops.DEFINE_LOCAL, Ops.DEFINE_REG)
    yield "memory", memory.any() >> legal, when(_points_at_memory)
    yield "variable", Head(Ops.DEFINE_VAR, Ops.VCONST, Ops.SPECIAL).any() >> legal
    yield "range", Head(Ops.RANGE).any() >> legal, when(_is_range)


@spec("codegen.effects")
def effect_spec() -> Rules:
    """Loops and stores."""
    yield "sink", Head(Ops.SINK, Ops.GROUP).any() >> legal
    yield "end", Head(Ops.END).any() >> legal, when(_closes_ranges)
    yield "store", Head(Ops.STORE).any() >> legal, when(_stores_its_type)


@spec("codegen.kernel")
def _kernel_spec() -> Rules:
    """A kernel before codegen."""
    yield "index", Head(Ops.INDEX).any() >> legal, when(_is_place)
    yield "reduce", Head(Ops.REDUCE).any() >> legal, when(_reduces)
    yield "scan", Head(Ops.SCAN).any() >> legal, when(_runs_along)
    yield "local", Head(Ops.BUFFERIZE, Ops.PICK, Ops.ONLINE).any() >> legal
    yield "matrix", Head(Ops.WMMA).any() >> legal, when(_is_point)


# --- between the stages


def _no_lane_loop(node: UOp) -> bool:
    return node.op is not Ops.RANGE or node.arg[1] not in LANE_KINDS


def _reduces_lanes(node: UOp) -> bool:
    """Over loops, or over the lanes of its value alone."""
    count = len(node.arg)
    return 0 < count <= len(node.src) and all(s.op is Ops.RANGE for s in node.src[count:])


def _across_threads(node: UOp) -> bool:
    """What is left of reductions: over the lanes of a warp."""
    loops = node.src[len(node.arg) :]
    return bool(loops) and all(r.op is Ops.RANGE and r.arg[1] is AxisKind.WARP for r in loops)


def _no_parallel_loop(node: UOp) -> bool:
    return node.op is not Ops.RANGE or node.arg[1] in LOOPS


def _is_address(node: UOp) -> bool:
    return node.op is not Ops.INDEX or node.dtype.is_ptr


def _no_bits_in_memory(node: UOp) -> bool:
    """Booleans have a bit each in registers only."""
    dtype = node.dtype
    return not isinstance(dtype, PtrDType) or not dtype.elem.is_bool or dtype.space is AddrSpace.REG


def _one_offset(node: UOp) -> bool:
    """INDEX(memory, offset[, gate])."""
    return node.op is not Ops.INDEX or node.arg is None


def _concrete(node: UOp) -> bool:
    return not node.dtype.is_index


@spec("codegen.vectors")
def vector_spec() -> Rules:
    """Several lanes in one value."""
    yield "lanes", Head(Ops.GEP).any() >> legal, when(_lanes_exist)
    yield "vector", Head(Ops.VECTORIZE, Ops.CAT).any() >> legal, when(_lanes_add_up)
    yield "matrix", Head(Ops.WMMA, Ops.LDMATRIX).any() >> legal


@spec("codegen.values")
def value_spec() -> Rules:
    """Values that are to become memory: buffers, reductions, scans."""
    yield "place", Head(Ops.INDEX).any() >> legal
    yield "reduce", Head(Ops.REDUCE).any() >> legal, when(_reduces_lanes)
    yield "scan", Head(Ops.SCAN).any() >> legal, when(_runs_along)
    yield "online", Head(Ops.PICK, Ops.ONLINE).any() >> legal


@spec("codegen.buffers")
def buffer_spec() -> Rules:
    """Memory that is not laid out yet."""
    yield "local", Head(Ops.BUFFERIZE).any() >> legal


@spec("codegen.sums_in_memory")
def sum_spec() -> Rules:
    """Lanes of one step, combined before they are added to an accumulator in memory."""
    yield "lanes", Head(Ops.VREDUCE).any() >> legal


@spec("codegen.order")
def order_spec() -> Rules:
    """Memory after somebody has filled it: who waits for whom."""
    yield "after", Head(Ops.AFTER, Ops.BARRIER, Ops.IF, Ops.ENDIF).any() >> legal
    copies = Head(Ops.ASYNC_COPY, Ops.ASYNC_COMMIT, Ops.ASYNC_WAIT, Ops.FENCE)
    yield "copies", copies.any() >> legal
    yield "roles", Head(Ops.MBARRIER, Ops.DEFINE_TENSOR_MAP).any() >> legal
    yield "tiles", Head(Ops.TILE_PRODUCT).any() >> legal, when(_is_between_memories)


@spec("codegen.trees")
def tree_spec() -> Rules:
    """Accumulators instead of reductions: lanes are combined at the end, and lanes of a warp."""
    yield "lanes", Head(Ops.VREDUCE).any() >> legal
    yield "warp", Head(Ops.REDUCE).any() >> legal, when(_across_threads)


@spec("codegen.places")
def place_spec() -> Rules:
    """Memory by place: the element, or its address."""
    yield "place", Head(Ops.INDEX).any() >> legal


@spec("codegen.exchange")
def exchange_spec() -> Rules:
    """What threads do for one another."""
    yield "lanes", Head(Ops.VREDUCE).any() >> legal
    yield "shuffle", Head(Ops.SHUFFLE).any() >> legal


@spec("codegen.loads")
def load_spec() -> Rules:
    """Reads that are instructions."""
    yield "load", Head(Ops.LOAD).any() >> legal


def _loads_its_type(node: UOp) -> bool:
    where = node.src[0]
    return where.op is Ops.INDEX and isinstance(where.dtype, PtrDType) and where.dtype.elem is node.dtype


def _one_loop(node: UOp) -> bool:
    return node.op is not Ops.END or len(node.src) == 2


def _is_any(node: UOp) -> bool:
    """Whether a condition holds for any lane."""
    return node.arg is Ops.OR and node.dtype.is_bool


@spec("codegen.root")
def _root_spec() -> Rules:
    """The list itself."""
    yield "list", Head(Ops.LINEAR).any() >> legal


@spec("codegen.list")
def _list_spec() -> Rules:
    """The instructions that a renderer gets."""
    yield "effects", Head(Ops.GROUP).any() >> legal
    yield "loop", Head(Ops.END).any() >> legal, when(_closes_ranges)
    yield "branch", Head(Ops.IF, Ops.ENDIF, Ops.BARRIER, Ops.AFTER).any() >> legal
    yield "index", Head(Ops.INDEX).any() >> legal, when(_is_place, _points_at_memory)
    yield "load", Head(Ops.LOAD).any() >> legal, when(_loads_its_type)
    yield "store", Head(Ops.STORE).any() >> legal, when(_stores_its_type)
    yield "lanes", Head(Ops.GEP).any() >> legal, when(_lanes_exist)
    yield "vector", Head(Ops.VECTORIZE, Ops.CAT).any() >> legal, when(_lanes_add_up)
    yield "any", Head(Ops.VREDUCE).any() >> legal, when(_is_any)
    yield "hardware", Head(Ops.WMMA, Ops.SHUFFLE, Ops.PREFETCH).any() >> legal
    yield (
        "copies",
        Head(Ops.ASYNC_COPY, Ops.ASYNC_COMMIT, Ops.ASYNC_WAIT, Ops.FENCE, Ops.LDMATRIX).any() >> legal,
    )
    yield "roles", Head(Ops.MBARRIER, Ops.DEFINE_TENSOR_MAP).any() >> legal
    yield "tiles", Head(Ops.TILE_PRODUCT).any() >> legal, when(_is_between_memories)


_common: Spec = arithmetic_spec + definition_spec + effect_spec
_loops: Spec = _common + vector_spec + order_spec + place_spec

kernel_spec: Spec = (_common + _kernel_spec).named("kernel")
lanes_spec: Spec = (_common + vector_spec + value_spec + buffer_spec + order_spec).when(_no_lane_loop)
lanes_spec = lanes_spec.named("kernel with lanes")
memory_spec: Spec = (_common + vector_spec + value_spec + sum_spec + order_spec).when(_no_lane_loop)
memory_spec = memory_spec.named("kernel with memory of its own")
loops_spec: Spec = (_loops + tree_spec).when(_no_lane_loop).named("nest of loops")
threads_spec: Spec = (_loops + exchange_spec).when(_no_parallel_loop).named("kernel of one thread")
loads_spec: Spec = (_loops + exchange_spec + load_spec).when(_no_parallel_loop, _is_address)
loads_spec = loads_spec.named("kernel with loads")
_machine: Spec = arithmetic_spec + definition_spec + effect_spec + _list_spec
machine_spec: Spec = _machine.when(_no_parallel_loop).named("graph of instructions")
stored_spec: Spec = machine_spec.when(_no_bits_in_memory).named("graph of instructions on bytes")
offset_spec: Spec = stored_spec.when(_one_offset).named("graph of instructions with offsets")
concrete_spec: Spec = offset_spec.when(_concrete)
concrete_spec = concrete_spec.named("graph of instructions with concrete types")
nested_spec: Spec = concrete_spec.when(_one_loop).named("graph of instructions in nested loops")
list_spec: Spec = arithmetic_spec + definition_spec + _list_spec + _root_spec
list_spec = list_spec.when(_no_parallel_loop, _no_bits_in_memory, _one_offset, _concrete, _one_loop)
list_spec = list_spec.named("list of instructions")
