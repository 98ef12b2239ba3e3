"""What is legal at the two ends of codegen: a kernel as it is handed over, and the list of instructions."""

from __future__ import annotations

from morok.dtype import PtrDType
from morok.ir.node import UOp
from morok.ir.ops import AxisKind, Ops
from morok.ir.scan import Scan, parts
from morok.rewrite.rules import Rules, when
from morok.rewrite.spec import Spec, arithmetic_spec, legal, spec
from morok.rewrite.terms import Head


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


@spec("codegen.kernel")
def _kernel_spec() -> Rules:
    """A kernel before codegen."""
    yield "sink", Head(Ops.SINK, Ops.GROUP).any() >> legal
    yield "end", Head(Ops.END).any() >> legal, when(_closes_ranges)
    yield "store", Head(Ops.STORE).any() >> legal, when(_stores_its_type)
    yield "index", Head(Ops.INDEX).any() >> legal, when(_is_place)
    yield "reduce", Head(Ops.REDUCE).any() >> legal, when(_reduces)
    yield "scan", Head(Ops.SCAN).any() >> legal, when(_runs_along)
    yield "local", Head(Ops.BUFFERIZE, Ops.PICK, Ops.ALONG).any() >> legal
    yield "matrix", Head(Ops.WMMA).any() >> legal, when(_is_point)


def _fixed_width(node: UOp) -> bool:
    return not node.src[1].dtype.is_index


def _loads_its_type(node: UOp) -> bool:
    where = node.src[0]
    return where.op is Ops.INDEX and isinstance(where.dtype, PtrDType) and where.dtype.elem is node.dtype


@spec("codegen.list")
def _list_spec() -> Rules:
    """The instructions that a renderer gets."""
    yield "linear", Head(Ops.LINEAR, Ops.SINK, Ops.GROUP).any() >> legal
    yield "loop", Head(Ops.END).any() >> legal, when(_closes_ranges)
    yield "branch", Head(Ops.IF, Ops.ENDIF, Ops.BARRIER, Ops.AFTER).any() >> legal
    yield "index", Head(Ops.INDEX).any() >> legal, when(_is_place, _points_at_memory, _fixed_width)
    yield "load", Head(Ops.LOAD).any() >> legal, when(_loads_its_type)
    yield "store", Head(Ops.STORE).any() >> legal, when(_stores_its_type)
    yield "lanes", Head(Ops.GEP).any() >> legal, when(_lanes_exist)
    yield "vector", Head(Ops.VECTORIZE, Ops.CAT).any() >> legal, when(_lanes_add_up)
    yield "hardware", Head(Ops.WMMA, Ops.SHUFFLE, Ops.CUSTOM, Ops.PREFETCH).any() >> legal
    yield (
        "copies",
        Head(Ops.ASYNC_COPY, Ops.ASYNC_COMMIT, Ops.ASYNC_WAIT, Ops.FENCE, Ops.LDMATRIX).any() >> legal,
    )
    yield "roles", Head(Ops.PHASE_BARRIER, Ops.DEFINE_MAP).any() >> legal


kernel_spec: Spec = (arithmetic_spec + definition_spec + _kernel_spec).named("kernel")
list_spec: Spec = (arithmetic_spec + definition_spec + _list_spec).named("list of instructions")
