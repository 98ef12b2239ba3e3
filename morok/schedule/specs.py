"""What is legal at the boundaries of scheduling: the tensor graph that comes in, the kernel that goes out.

The form of a kernel is described in docs/decisions/0001-kernel-form.md; this is the part of it that can be
checked node by node.
"""

from __future__ import annotations

from morok.dtype import PtrDType
from morok.ir.build import REDUCE_OPS
from morok.ir.infer import closed_ranges, ranges, shape
from morok.ir.node import UOp
from morok.ir.ops import COLLECTIVES, AxisKind, Op, Ops
from morok.ir.scan import SCAN_OPS, parts, values_of
from morok.rewrite.rules import Rules, when
from morok.rewrite.spec import Spec, arithmetic_spec, legal, spec
from morok.rewrite.terms import Head
from morok.schedule.split import is_view

_OUTPUTS = (AxisKind.LOOP, AxisKind.ORDERED)
_KINDS = (*_OUTPUTS, AxisKind.REDUCE)


def _has_shape(node: UOp) -> bool:
    return shape(node) is not None


def _sizes_are_indices(node: UOp) -> bool:
    return all(s.dtype.is_index for s in node.src[1:]) and shape(node) is not None


def _keeps_dtype(node: UOp) -> bool:
    return node.dtype is node.src[0].dtype


def _reduces(node: UOp) -> bool:
    op, axes = node.arg
    own = shape(node.src[0])
    return op in REDUCE_OPS and own is not None and all(0 <= axis < len(own) for axis in axes)


def _assigns(node: UOp) -> bool:
    target, value = node.src[:2]
    return target.dtype is value.dtype and shape(target) == shape(value)


def _scatters(node: UOp) -> bool:
    """Rows go to places along the first axis, or the one behind those that places have as well. The places
    are memory, or computed of it: each is read when its turn comes. They are computed only where nothing of
    the table can change them: it has been a constant."""
    x, places, rows = node.src
    own, where, parts = shape(x), shape(places), shape(rows)
    if own is None or where is None or parts is None or not own:
        return False
    apart = len(where) + len(own) - 1 - len(parts)
    if apart < 0 or own[:apart] != where[:apart] or parts != (*where, *own[apart + 1 :]):
        return False
    return places.dtype.is_bounded_int and (is_view(places) or _is_constant(x))


def _is_constant(x: UOp) -> bool:
    while x.op.is_movement:
        x = x.src[0]
    return x.op is Ops.CONST


def _runs_along(node: UOp) -> bool:
    """A running reduction: values of one shape and type, along one of their axes."""
    op, axis = node.arg
    own = shape(node.src[0])
    alike = all(shape(s) == own and s.dtype is node.dtype for s in node.src)
    return op in SCAN_OPS and len(node.src) == values_of(op) and own is not None and alike and axis < len(own)


def _is_void(node: UOp) -> bool:
    return node.dtype.is_void


def _is_placeholder(node: UOp) -> bool:
    number, size, device = node.arg
    return type(number) is int and type(size) is int and size >= 0 and isinstance(device, str)


def _counts(node: UOp) -> bool:
    return node.dtype.is_int and 0 <= node.arg < len(node.src)


def _is_range(node: UOp) -> bool:
    number, kind = node.arg
    return type(number) is int and kind in _KINDS and node.dtype.is_index


def _is_reduction(node: UOp) -> bool:
    loops = closed_ranges(node)
    ops: tuple[Op, ...] = node.arg
    kinds = all(r.op is Ops.RANGE and r.arg[1] is AxisKind.REDUCE for r in loops)
    return (
        kinds
        and bool(loops)
        and all(op in REDUCE_OPS for op in ops)
        and len(ops) == len(node.src) - len(loops)
    )


def _is_scan(node: UOp) -> bool:
    found = parts(node)
    kinds = all(r.op is Ops.RANGE and r.arg[1] is AxisKind.ORDERED for r in found.loops)
    return kinds and bool(found.loops) and all(v.dtype is node.dtype for v in found.values)


def _is_memory(node: UOp) -> bool:
    return type(node.arg) is int and isinstance(node.dtype, PtrDType) and node.dtype.size >= 0


def _is_access(node: UOp) -> bool:
    """INDEX(memory, place[, gate]) of the element's type, or of the pointer's under a STORE."""
    memory, place, *gate = node.src
    if not isinstance(memory.dtype, PtrDType) or not place.dtype.is_index:
        return False
    known = node.dtype is memory.dtype or node.dtype is memory.dtype.elem
    return known and len(gate) <= 1 and all(g.dtype.is_bool for g in gate)


def _is_store(node: UOp) -> bool:
    address, value = node.src
    return isinstance(address.dtype, PtrDType) and address.dtype.elem is value.dtype


def _reads_memory(node: UOp) -> bool:
    return all(is_view(s) for s in node.src)


def _is_over_devices(node: UOp) -> bool:
    return node.arg[1] is AxisKind.DEVICE and node.src[0].op is Ops.CONST


def _names_devices(node: UOp) -> bool:
    return len(node.src) > 1 and all(r.op is Ops.RANGE and _is_over_devices(r) for r in node.src[1:])


def _closes_all(node: UOp) -> bool:
    loops = node.src[1:]
    kinds = all(r.op is Ops.RANGE and r.arg[1] in _OUTPUTS for r in loops)
    return node.src[0].op is Ops.STORE and kinds and not ranges(node)


def _holds_effects(node: UOp) -> bool:
    return node.arg is None and all(s.op is Ops.END for s in node.src)


@spec("tensor graph")
def _tensor_spec() -> Rules:
    """Tensors over placeholders."""
    yield "placeholder", Head(Ops.PARAM).any() >> legal, when(_is_placeholder)
    yield "variable", Head(Ops.DEFINE_VAR, Ops.DEVICE).any() >> legal
    yield "iota", Head(Ops.IOTA).any() >> legal, when(_counts)
    moves = Head(Ops.RESHAPE, Ops.EXPAND, Ops.PAD, Ops.SHRINK)
    yield "movement", moves.any() >> legal, when(_keeps_dtype, _sizes_are_indices)
    yield "order", Head(Ops.PERMUTE, Ops.FLIP).any() >> legal, when(_keeps_dtype, _has_shape)
    yield "reduce", Head(Ops.REDUCE_AXIS).any() >> legal, when(_keeps_dtype, _reduces)
    yield "scan", Head(Ops.SCAN_AXIS).any() >> legal, when(_runs_along)
    marks = Head(Ops.CONTIGUOUS, Ops.DETACH, Ops.RECOMPUTE, Ops.COPY, Ops.AFTER, Ops.PLACE)
    yield "mark", marks.any() >> legal, when(_keeps_dtype)
    yield "collective", Head(*sorted(COLLECTIVES)).any() >> legal, when(_keeps_dtype, _names_devices)
    yield "devices", Head(Ops.RANGE).any() >> legal, when(_is_over_devices)
    yield "assign", Head(Ops.ASSIGN).any() >> legal, when(_assigns)
    yield "scatter", Head(Ops.SCATTER).any() >> legal, when(_keeps_dtype, _scatters)
    yield "written", Head(Ops.WRITTEN).any() >> legal, when(_reads_memory)
    yield "root", Head(Ops.SINK).any() >> legal, when(_is_void)


@spec("kernel")
def _kernel_spec() -> Rules:
    """Scalars in loops, reading and writing memory."""
    yield "root", Head(Ops.SINK).any() >> legal, when(_holds_effects)
    yield "effect", Head(Ops.END).any() >> legal, when(_closes_all)
    yield "store", Head(Ops.STORE).any() >> legal, when(_is_store)
    yield "memory", Head(Ops.DEFINE_GLOBAL).any() >> legal, when(_is_memory)
    yield "access", Head(Ops.INDEX).any() >> legal, when(_is_access)
    yield "range", Head(Ops.RANGE).any() >> legal, when(_is_range)
    yield "variable", Head(Ops.DEFINE_VAR).any() >> legal
    yield "reduction", Head(Ops.REDUCE).any() >> legal, when(_is_reduction)
    yield "scan", Head(Ops.SCAN).any() >> legal, when(_is_scan)


tensor_spec: Spec = (_tensor_spec + arithmetic_spec).named("tensor graph")
kernel_spec: Spec = (_kernel_spec + arithmetic_spec).named("kernel")
