"""What follows from a node's structure: its shape, and the ranges it lives in.

Both are inferred when they are first asked for, bottom-up without recursion, and kept in the node.

**Shape**: a tuple of sizes, each a Python int or a symbolic index node. Scalars (everything inside a kernel)
have `()`; effects such as STORE and SINK have None. Element-wise operands must have one shape, or `()`;
broadcasting is spelled out with RESHAPE and EXPAND.

**Ranges**: the loops that a value depends on. A reduction, an END and a BUFFERIZE close their own ranges, so
these are not in the set any more. A node whose ranges are a subset of another's can be computed outside of
the other's loops, which is what fusion decides on.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from morok.caches import Cache
from morok.dtype import PtrDType, index
from morok.errors import ShapeError
from morok.ir.node import UOp, const, set_ranges, set_shape
from morok.ir.ops import ALU, AxisKind, Op, Ops
from morok.ir.provenance import place
from morok.ir.sizes import Size as Size
from morok.ir.sizes import combine, show_size

Shape = tuple[Size, ...]

# --- sizes


def size_of(n: UOp) -> Size:
    """A source that holds a size, as a Python int where it is constant."""
    return n.arg if n.op is Ops.CONST else n


_size_nodes: Cache[int, UOp] = Cache("ir.sizes", 4096)  # sizes come up again and again


def size_node(size: Size) -> UOp:
    """A size as a source: the other way round."""
    if isinstance(size, UOp):
        return size
    found = _size_nodes.get(size)
    if found is None:
        found = _size_nodes[size] = const(index, size)
    return found


def add_sizes(a: Size, b: Size) -> Size:
    if isinstance(a, int) and isinstance(b, int):
        return a + b
    return combine(Ops.ADD, a, b)


def subtract_sizes(a: Size, b: Size) -> Size:
    if isinstance(a, int) and isinstance(b, int):
        return a - b
    return combine(Ops.SUB, a, b)


def numel(shape: Shape) -> Size:
    """The number of elements; symbolic if a size is."""
    known, symbolic = 1, []
    for size in shape:
        if isinstance(size, int):
            known *= size
        else:
            symbolic.append(size)
    if not symbolic or known == 0:
        return known
    product: Size = known
    for size in symbolic:
        product = combine(Ops.MUL, product, size)
    return product


def show_shape(shape: Shape | None) -> str:
    """A shape for an error message; symbolic sizes by name."""
    if shape is None:
        return "no shape"
    inner = ", ".join(map(show_size, shape))
    return f"({inner}{',' if len(shape) == 1 else ''})"


# --- shape

_NO_SHAPE = object()  # in the slot, where None means "not asked yet"


def shape(n: UOp) -> Shape | None:
    """The sizes of a node's axes; None for what has no value."""
    known = n.shape_
    if known is None:
        known = _infer_shape(n)
    return None if known is _NO_SHAPE else known


def keep_shape(new: UOp, old: UOp) -> UOp:
    """A node on other sources of the same shapes, with what is known of the old one's shape."""
    if new.shape_ is None and old.shape_ is not None:
        set_shape(new, old.shape_)
    return new


def _infer_shape(n: UOp) -> Any:
    stack = [n]
    while stack:
        node = stack[-1]
        rule = _SHAPES.get(node.op)
        # of a state of memory nobody asks for what has been written: that may be a whole program
        sources = node.src[:1] if node.op is Ops.AFTER else node.src
        pending = [s for s in sources if s.shape_ is None] if rule is not None else ()
        if pending:
            stack += pending
            continue
        stack.pop()
        if node.shape_ is None:
            found: Shape | None = () if rule is None else rule(node)
            set_shape(node, _NO_SHAPE if found is None else found)
    return n.shape_


def _shape(n: UOp) -> Shape:
    """The shape of a source, already inferred."""
    known: Shape = n.shape_
    if known is _NO_SHAPE:
        raise ShapeError(f"{n.op.name} has no value, so it has no shape", place=place(n))
    return known


def _none(n: UOp) -> Shape | None:
    return None


def _first(n: UOp) -> Shape | None:
    known: Any = n.src[0].shape_ if n.src else _NO_SHAPE
    return None if known is _NO_SHAPE else known


def _elementwise(n: UOp) -> Shape:
    result: Shape = ()
    for s in n.src:
        own = _shape(s)
        if own == () or own == result:
            continue
        if result != ():
            shapes = " and ".join(show_shape(_shape(source)) for source in n.src)
            raise ShapeError(
                f"{n.op.name} needs operands of one shape (or scalars), got {shapes}; expand them first",
                place=place(n),
            )
        result = own
    return result


def _buffer(n: UOp) -> Shape:
    return (n.arg,)


def _param(n: UOp) -> Shape:
    return (n.arg[1],)


def _iota(n: UOp) -> Shape:
    return tuple(size_of(s) for s in n.src)


def _pointer(n: UOp) -> Shape | None:
    dtype = n.dtype
    return (dtype.size,) if isinstance(dtype, PtrDType) and dtype.size >= 0 else None


def _sizes(n: UOp) -> Shape:
    return tuple([s.arg if s.op is Ops.CONST else s for s in n.src[1:]])  # `size_of`, written out


def _permute(n: UOp) -> Shape:
    own = _shape(n.src[0])
    return tuple([own[axis] for axis in n.arg])


def _pad(n: UOp) -> Shape:
    own, ends = _shape(n.src[0]), _sizes(n)
    return tuple(
        add_sizes(add_sizes(before, size), after)
        for size, before, after in zip(own, ends[::2], ends[1::2], strict=True)
    )


def _shrink(n: UOp) -> Shape:
    ends = _sizes(n)
    return tuple([subtract_sizes(stop, start) for start, stop in zip(ends[::2], ends[1::2], strict=True)])


def _reduce_axis(n: UOp) -> Shape:
    axes = n.arg[1]
    return tuple(1 if axis in axes else size for axis, size in enumerate(_shape(n.src[0])))


def _devices(n: UOp) -> int:
    """How many devices the ranges of a collective stand for."""
    return math.prod(int(r.src[0].arg) for r in n.src[1:])


def _allgather(n: UOp) -> Shape:
    return (_devices(n), *_shape(n.src[0]))


def _reduce_scatter(n: UOp) -> Shape:
    own = _shape(n.src[0])
    if not own or own[0] != _devices(n):
        raise ShapeError(
            f"REDUCE_SCATTER over {_devices(n)} devices needs a row for each, not {show_shape(own)}",
            place=place(n),
        )
    return own[1:]


def _written(n: UOp) -> Shape:
    return tuple(n.arg[2])


def _bufferize(n: UOp) -> Shape:
    return tuple(size_of(r.src[0]) if r.op is Ops.RANGE else 1 for r in dimensions(n))


_EFFECTS = (
    Ops.SINK, Ops.STORE, Ops.END, Ops.IF, Ops.ENDIF, Ops.BARRIER, Ops.GROUP, Ops.KERNEL,
    Ops.LINEAR, Ops.UNIQUE, Ops.DEVICE, Ops.PREFETCH,
    Ops.ASYNC_COPY, Ops.ASYNC_WAIT, Ops.ASYNC_COMMIT, Ops.MBARRIER, Ops.TILE_PRODUCT,
)  # fmt: skip
_SAME = (
    Ops.CONTIGUOUS, Ops.DETACH, Ops.IDENTITY, Ops.RECOMPUTE, Ops.CALL, Ops.COPY, Ops.ASSIGN, Ops.AFTER,
    Ops.PLACE, Ops.ALLREDUCE, Ops.ALL_TO_ALL, Ops.SEND_RECEIVE, Ops.BROADCAST, Ops.FLIP, Ops.PICK,
    Ops.SCATTER, Ops.SCAN_AXIS,
)  # fmt: skip

# What is not here is a scalar: loop indices, loads, vectors inside a kernel.
_SHAPES: dict[Op, Callable[[UOp], Shape | None]] = {
    **dict.fromkeys(_EFFECTS, _none),
    **dict.fromkeys(_SAME, _first),
    **dict.fromkeys(ALU, _elementwise),
    Ops.BUFFER: _buffer,
    **dict.fromkeys((Ops.DEFINE_GLOBAL, Ops.DEFINE_LOCAL, Ops.DEFINE_REG, Ops.DEFINE_TENSOR_MAP), _pointer),
    Ops.PARAM: _param,
    Ops.IOTA: _iota,
    Ops.RESHAPE: _sizes,
    Ops.EXPAND: _sizes,
    Ops.PERMUTE: _permute,
    Ops.PAD: _pad,
    Ops.SHRINK: _shrink,
    Ops.REDUCE_AXIS: _reduce_axis,
    Ops.BUFFERIZE: _bufferize,
    Ops.ALLGATHER: _allgather,
    Ops.WRITTEN: _written,
    Ops.REDUCE_SCATTER: _reduce_scatter,
}


# --- ranges

_NO_RANGES: frozenset[UOp] = frozenset()
_CLOSING = frozenset((Ops.REDUCE, Ops.END, Ops.BUFFERIZE))


def ranges(n: UOp) -> frozenset[UOp]:
    """The RANGE nodes that the node's value depends on. Unordered; `sorted_ranges` has them by number."""
    known: frozenset[UOp] | None = n.ranges_
    if known is None:
        stack = [n]
        while stack:
            node = stack[-1]
            pending = [s for s in node.src if s.ranges_ is None]
            if pending:
                stack += pending
                continue
            stack.pop()
            if node.ranges_ is None:
                set_ranges(node, _open_ranges(node))
        known = n.ranges_
        assert known is not None
    return known


def sorted_ranges(n: UOp) -> list[UOp]:
    """The ranges of a node by their number, outer ones first."""
    return sorted(ranges(n), key=lambda r: r.arg)


def closed_ranges(n: UOp) -> tuple[UOp, ...]:
    """The sources with which a REDUCE, an END or a BUFFERIZE closes loops; empty for other nodes."""
    if n.op not in _CLOSING:
        return ()
    return n.src[len(n.arg) if n.op is Ops.REDUCE else 1 :]


def summed(n: UOp) -> tuple[UOp, ...]:
    """The loops of a BUFFERIZE whose steps are added up in one place."""
    return tuple(r for r in n.src[1:] if r.op is Ops.RANGE and r.arg[1] is AxisKind.ORDERED)


def dimensions(n: UOp) -> tuple[UOp, ...]:
    """The loops of a BUFFERIZE that have a place each for their points."""
    return tuple(r for r in n.src[1:] if r.op is not Ops.RANGE or r.arg[1] is not AxisKind.ORDERED)


def _open_ranges(n: UOp) -> frozenset[UOp]:
    result = _NO_RANGES
    for s in n.src:
        more = s.ranges_
        if (
            more and more is not result and not more <= result
        ):  # one of the two where possible: chains share it
            result = more if result <= more else result | more
    if n.op is Ops.RANGE:
        return result | {n}
    if n.op in _CLOSING and result:
        result = result.difference(*map(_closed_by, closed_ranges(n))) or _NO_RANGES
    return result


def _closed_by(source: UOp) -> frozenset[UOp]:
    # A range may have been rewritten into an expression of several; closing the expression closes them all.
    # The end of a range is no part of it: a loop over a triangle closes the inner range and stays in the
    # outer one.
    return frozenset((source,)) if source.op is Ops.RANGE else source.ranges_
