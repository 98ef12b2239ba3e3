"""Reverse mode: from a result backwards to what it was computed from, one node at a time.

The walk makes ordinary nodes. The backward pass is scheduled, fused and differentiated like anything else; it
refers to values of the forward pass by their nodes, so what is in memory already is read from there.
Every node that it makes comes from the user's line whose gradient it is.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator

from morok.dtype import bool_, float32, int64, void
from morok.errors import MorokError
from morok.ir import movement as move
from morok.ir.build import cast, logical_not
from morok.ir.call import CustomRule, attributes, call_name
from morok.ir.infer import Size, add_sizes, numel, shape, size_of, subtract_sizes
from morok.ir.layout import is_mesh, layout_of, mesh_of
from morok.ir.memory import own_device
from morok.ir.node import UOp, alu, const, make, toposort
from morok.ir.ops import Op, Ops
from morok.ir.provenance import derive, here, place
from morok.rewrite.engine import substitute
from morok.tensor.arrays.rows import pull_rows, pull_scatter
from morok.tensor.core import expand_to, iota, require_shape
from morok.tensor.gradient.rules import BY_FUNCTION, BY_OP, FLAT
from morok.tensor.gradient.scan import pull_scan
from morok.tensor.gradient_track import carries_gradient
from morok.tensor.memory.storage import beside, graph_device

_EXACT_PRODUCT = 64  # factors up to which the gradient of a product multiplies all the others

Pull = Callable[[UOp, UOp, int], "UOp | None"]

# --- movement and reduction: the gradient takes the way back


def _sum_axes(g: UOp, axes: Iterable[int]) -> UOp:
    """A sum in at least 32 bits, in g's own type."""
    wide = cast(g, float32) if g.dtype.bits < 32 else g
    return cast(move.reduce_axis(wide, Ops.ADD, tuple(axes)), g.dtype)


def _pairs(node: UOp) -> list[tuple[UOp, UOp]]:
    return list(zip(node.src[1::2], node.src[2::2], strict=True))


def _reshape(node: UOp, g: UOp, _: int) -> UOp:
    return move.reshape(g, require_shape(node.src[0]))


def _permute(node: UOp, g: UOp, _: int) -> UOp:
    order: list[int] = list(node.arg)
    return move.permute(g, sorted(range(len(order)), key=order.__getitem__))


def _expand(node: UOp, g: UOp, _: int) -> UOp:
    before, now = require_shape(node.src[0]), require_shape(node)
    return _sum_axes(g, (i for i, (a, b) in enumerate(zip(before, now, strict=True)) if a != b))


def _pad(node: UOp, g: UOp, _: int) -> UOp:
    own = require_shape(node.src[0])
    starts = [size_of(start) for start, _ in _pairs(node)]
    ends = [add_sizes(start, size) for start, size in zip(starts, own, strict=True)]
    return move.shrink(g, list(zip(starts, ends, strict=True)))


def _shrink(node: UOp, g: UOp, _: int) -> UOp:
    own = require_shape(node.src[0])
    limits = [(size_of(start), size_of(stop)) for start, stop in _pairs(node)]
    amounts = [(lo, subtract_sizes(size, hi)) for (lo, hi), size in zip(limits, own, strict=True)]
    return move.reshape(move.pad(g, amounts), own)  # n + (8 - n) is 8, under that name


def _flip(node: UOp, g: UOp, _: int) -> UOp:
    return move.flip(g, node.arg)


def _reduce(node: UOp, g: UOp, _: int) -> UOp | None:
    op, axes = node.arg
    x = node.src[0]
    sizes = require_shape(x)
    wide = expand_to(g, sizes)
    if op is Ops.ADD:
        return wide
    if op is Ops.MUL:
        return alu(Ops.MUL, wide, _other_factors(node, x, axes))
    assert op in (Ops.MAX, Ops.MIN), op
    # Equal extremes share the gradient evenly.
    hit = alu(Ops.CMPEQ, x, expand_to(beside(node), sizes))
    count = _sum_axes(cast(hit, x.dtype), axes)
    return alu(Ops.WHERE, hit, alu(Ops.FDIV, wide, expand_to(count, sizes)), const(x.dtype, 0.0))


def _other_factors(node: UOp, x: UOp, axes: tuple[int, ...]) -> UOp:
    """For every element, the product of all others that meet it."""
    sizes = require_shape(x)
    count = numel(tuple(sizes[axis] for axis in axes))
    if isinstance(count, int) and count <= _EXACT_PRODUCT:
        return _multiplied_out(x, axes, count)
    # Dividing by x itself is wrong at zeros only: one zero gets the product of the rest, two leave nothing.
    one, zero = const(x.dtype, 1.0), const(x.dtype, 0.0)
    gone = alu(Ops.CMPEQ, x, zero)
    filled = alu(Ops.WHERE, gone, one, x)
    zeros = expand_to(_sum_axes(cast(gone, x.dtype), axes), sizes)
    rest = expand_to(move.reduce_axis(filled, Ops.MUL, axes), sizes)
    at_zero = alu(Ops.WHERE, alu(Ops.CMPEQ, zeros, one), rest, zero)
    other = alu(Ops.FDIV, expand_to(node, sizes), filled)
    return alu(Ops.WHERE, gone, at_zero, alu(Ops.WHERE, alu(Ops.CMPEQ, zeros, zero), other, zero))


def _multiplied_out(x: UOp, axes: tuple[int, ...], count: int) -> UOp:
    """As above, with every product written out: right at zeros, to any order."""
    sizes = require_shape(x)
    rest = [axis for axis in range(len(sizes)) if axis not in axes]
    kept = [sizes[axis] for axis in rest]
    flat = move.reshape(move.permute(x, [*rest, *axes]), [*kept, 1, count])
    square = (*kept, count, count)
    row, column = (expand_to(iota(square, len(square) - i, int64), square) for i in (2, 1))
    own = alu(Ops.CMPEQ, row, column)
    others = alu(Ops.WHERE, own, const(x.dtype, 1.0), expand_to(flat, square))
    product = move.reduce_axis(others, Ops.MUL, (len(square) - 1,))
    back = move.reshape(product, [*kept, *(sizes[axis] for axis in axes)])
    order = [*rest, *axes]
    return move.permute(back, sorted(range(len(order)), key=order.__getitem__))


def _windows(node: UOp, g: UOp, source: int) -> UOp:
    """Windows along the last axis, y[k, p] = x[p·s + k·d]: x[j] gets the sum over k of g at p·s = j - k·d.

    Only every s-th k has a place for a given j: what is r behind a place is summed over k = m·s + r alone.
    """
    *lead, n = require_shape(node.src[1])
    count, places = require_shape(g)[-2:]
    s, d = (attributes(node)[name] for name in ("stride", "dilation"))
    assert isinstance(n, int) and isinstance(count, int) and isinstance(places, int)
    if s > 1 and d == 1:
        steps = -(-count // s)
        g = _padded(g, -2, steps * s)
        phases = _swap(move.reshape(g, [*lead, steps, s, places]), len(lead))
        length = places + steps - 1
        g = _swap(_shifted_sum(phases, length, 1), len(lead))
        return _padded(_cut(move.reshape(g, [*lead, length * s]), n), -1, n)
    if s > 1:  # zeros between the places
        g = _padded(move.reshape(g, [*lead, count, places, 1]), -1, s)
        g = _cut(move.reshape(g, [*lead, count, places * s]), n)
    return _shifted_sum(g, n, d)


def _swap(g: UOp, axis: int) -> UOp:
    """An axis and the next one, the other way round."""
    order = list(range(len(require_shape(g))))
    order[axis], order[axis + 1] = axis + 1, axis
    return move.permute(g, order)


def _padded(g: UOp, axis: int, size: int) -> UOp:
    """Zeros behind an axis, up to a size."""
    sizes = require_shape(g)
    own = sizes[axis]
    assert isinstance(own, int)
    amounts: list[tuple[Size, Size]] = [(0, 0)] * len(sizes)
    amounts[axis] = (0, max(0, size - own))
    return move.pad(g, amounts)


def _cut(g: UOp, size: int) -> UOp:
    """The first elements along the last axis."""
    *lead, n = require_shape(g)
    assert isinstance(n, int)
    return move.shrink(g, [*((0, own) for own in lead), (0, min(n, size))])


def _shifted_sum(g: UOp, n: int, d: int) -> UOp:
    """Of rows (…, k, p): a row of n elements, the sum of row k moved by k·d.

    The last row is the first that is read. Cut anew into rows that are d elements longer, each begins d
    elements further along, and what is read never wraps around the end of its row.
    """
    *lead, count, places = require_shape(g)
    assert isinstance(count, int) and isinstance(places, int)
    front = (count - 1) * d
    turned = move.flip(g, [*(False for _ in lead), True, False])
    width = max(n, places) + front
    amounts: list[tuple[Size, Size]] = [(0, 0)] * len(lead)
    rows = move.pad(turned, [*amounts, (0, 0), (front, width - front - places)])
    flat = _padded(move.reshape(rows, [*lead, count * width]), -1, count * (width + d))
    skewed = _cut(move.reshape(flat, [*lead, count, width + d]), n)
    return move.reshape(_sum_axes(skewed, (len(lead),)), [*lead, n])


def _norm(node: UOp, g: UOp, source: int) -> UOp:
    """The length of a vector: its direction, or zero at zero."""
    x, axes = node.src[1], attributes(node)["axes"]
    sizes = require_shape(x)
    kept = [1 if axis in axes else size for axis, size in enumerate(sizes)]
    g, length = (expand_to(move.reshape(n, kept), sizes) for n in (g, node))
    zero = const(x.dtype, 0.0)
    slope = alu(Ops.FDIV, alu(Ops.MUL, g, x), length)
    return alu(Ops.WHERE, alu(Ops.CMPEQ, length, zero), zero, slope)


# --- marks, types, memory


def _same(node: UOp, g: UOp, source: int) -> UOp | None:
    return g if source == 0 else None


def _cast(node: UOp, g: UOp, _: int) -> UOp:
    return cast(g, node.src[0].dtype)


def _copy(node: UOp, g: UOp, source: int) -> UOp | None:
    if source:
        return None
    home = graph_device(node.src[0])
    if is_mesh(home):  # to where memory lies; of what is computed, wherever that turns out to be
        below = node.src[0]
        while below.op in (Ops.DETACH, Ops.IDENTITY, Ops.RECOMPUTE, Ops.RESHAPE, Ops.AFTER):
            below = below.src[0]
        home = own_device(below) if below.op is Ops.BUFFER else home
        layout = layout_of(home)
        if layout is None or below.op is not Ops.BUFFER or layout.shape != shape(node):
            home = mesh_of(home).name
    return make(Ops.COPY, g.dtype, (g, make(Ops.DEVICE, void, (), home)))


_BY_OP: dict[Op, Pull] = {
    Ops.RESHAPE: _reshape, Ops.PERMUTE: _permute, Ops.EXPAND: _expand, Ops.PAD: _pad, Ops.SHRINK: _shrink,
    Ops.FLIP: _flip, Ops.REDUCE_AXIS: _reduce, Ops.CAST: _cast, Ops.CONTIGUOUS: _same, Ops.IDENTITY: _same,
    Ops.RECOMPUTE: _same, Ops.COPY: _copy, Ops.SCATTER: pull_scatter, Ops.SCAN_AXIS: pull_scan,
}  # fmt: skip

# Calls by name; those that need methods of tensors enter themselves.
CALLS: dict[str, Pull] = {
    **{name: rule.pull for name, rule in BY_FUNCTION.items()},
    "windows": _windows,
    "norm": _norm,
    "rows": pull_rows,
}

# Ops with a rule: the terms of gradient_rules, the functions above, and those that the walk treats itself.
DIFFERENTIABLE: frozenset[Op] = (
    frozenset(_BY_OP) | frozenset(BY_OP) | {Ops.CALL, Ops.AFTER, Ops.ASSIGN, Ops.PLACE}
)

# Gradients that users define, as long as some function or some call has the rule:
# (gradient, call, inputs) to the gradients of the inputs.
CustomPull = Callable[[UOp, UOp, tuple[UOp, ...]], "list[UOp | None]"]
CUSTOM: weakref.WeakKeyDictionary[CustomRule, CustomPull] = weakref.WeakKeyDictionary()


def _rule_of(call: UOp) -> Pull | CustomRule | None:
    """How the gradient of a call goes to its inputs; None if it goes through the formula."""
    return attributes(call).get("gradient") or CALLS.get(call_name(call))


def _origins(node: UOp) -> tuple[UOp, ...]:
    """The nodes that a gradient flows to from a node."""
    if node.op is Ops.AFTER:
        return (node.src[1].src[1], _state_before(node))
    if node.op is Ops.CALL and _rule_of(node) is not None:
        return node.src[1:]
    return node.src[:1] if node.op is Ops.CALL or node.op is Ops.RECOMPUTE else node.src


def _state_before(node: UOp) -> UOp:
    """The state of memory of which an assignment overwrites a part."""
    return _place(node).src[0]


def _place(node: UOp) -> UOp:
    """The place whose part an assignment overwrites."""
    part = node.src[1].src[0]
    while part.op is not Ops.PLACE:
        part = part.src[0]
    return part


def _pull(node: UOp, g: UOp, wanted: set[UOp]) -> Iterator[tuple[UOp, UOp]]:
    """The gradients of a node's sources, of those that are wanted."""
    if node.op is Ops.AFTER:
        yield from _pull_state(node, g, wanted)
        return
    first = 0
    if node.op is Ops.CALL:
        rule = _rule_of(node)
        if isinstance(rule, CustomRule):
            yield from _pull_custom(node, g, wanted, rule)
            return
        pull, first = (_same, 0) if rule is None else (rule, 1)
    else:
        pull = _by_op(node)
    for i, s in enumerate(node.src[first:], first):
        if s in wanted:
            part = pull(node, g, i)
            if part is not None:
                yield s, _fitted(part, s)


def _by_op(node: UOp) -> Pull:
    pull = _BY_OP.get(node.op)
    if pull is not None:
        return pull
    rule = BY_OP.get(node.op)
    if rule is None:
        raise MorokError(
            f"{node.op.name} has no gradient; detach() what it is computed from", place=place(node)
        )
    return rule.pull


def _pull_custom(node: UOp, g: UOp, wanted: set[UOp], rule: CustomRule) -> Iterator[tuple[UOp, UOp]]:
    """A user's rule gives the gradients of all inputs at once."""
    pull = CUSTOM.get(rule)
    if pull is None:  # the graph was read from text
        raise MorokError(f"the gradient of {call_name(node)} belongs to another process", place=place(node))
    inputs = node.src[1:]
    parts = pull(g, node, inputs)
    yield from ((s, part) for s, part in zip(inputs, parts, strict=True) if part is not None and s in wanted)


def _pull_state(node: UOp, g: UOp, wanted: set[UOp]) -> Iterator[tuple[UOp, UOp]]:
    """Memory after an assignment: the value gets its part of g, the state before gets the rest."""
    part, value = node.src[1].src[:2]
    place, before = _place(node), _state_before(node)
    if value in wanted:
        yield value, _fitted(substitute(part, {place: g}), value)
    if before in wanted and part is not place:
        touched = _spread(expand_to(const(bool_, True), require_shape(part)), part, place)
        rest = alu(Ops.WHERE, logical_not(touched), g, const(g.dtype, 0.0))
        yield before, rest


def _spread(inside: UOp, part: UOp, place: UOp) -> UOp:
    """True wherever a part covers the place that it is a part of."""
    node = part
    while node is not place:
        pulled = _BY_OP[node.op](node, inside, 0)
        assert pulled is not None
        inside, node = pulled, node.src[0]
    return inside


def _fitted(g: UOp, source: UOp) -> UOp:
    """A gradient in the shape of its source: scalars take part in arithmetic without being expanded."""
    wanted, own = shape(source), require_shape(g)
    if wanted is None or wanted == own:
        return g
    if wanted == ():
        return move.reshape(_sum_axes(g, range(len(own))), ())
    return expand_to(g, wanted)


# --- the walk


def pull_back(
    root: UOp, seed: UOp, is_target: Callable[[UOp], bool], is_end: Callable[[UOp], bool]
) -> dict[UOp, UOp]:
    """The gradients of the targets that a result depends on, given the gradient of the result.

    Nodes at an end are not entered: memory of tensors that require gradients has no past.
    """
    ends: set[UOp] = set()

    def stops(node: UOp) -> bool:
        if is_end(node):
            ends.add(node)
            return True
        return not carries_gradient(node)

    order = toposort(root, stop=stops)
    targets = {node for node in order if is_target(node)}
    wanted = set(targets)
    for node in order:
        if node not in wanted and _leads_on(node, wanted, ends):
            wanted.add(node)
    found: dict[UOp, UOp] = {}
    if root not in wanted:
        return found
    gradients = {root: seed}
    outer = here.origin
    try:
        for node in reversed(order):
            g = gradients.pop(node, None)
            if g is None:
                continue
            if node in targets:
                found[node] = g
            if not _leads_on(node, wanted, ends):
                continue
            here.origin = derive(node, "gradient") or outer
            for source, part in _pull(node, g, wanted):
                old = gradients.get(source)
                gradients[source] = part if old is None else alu(Ops.ADD, old, part)
    finally:
        here.origin = outer
    return found


def _leads_on(node: UOp, wanted: set[UOp], ends: set[UOp]) -> bool:
    """Whether a gradient flows from a node to something that is wanted."""
    if node in ends or node.op in FLAT or not carries_gradient(node):
        return False
    return any(s in wanted for s in _origins(node))
