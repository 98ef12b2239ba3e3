"""Boundaries between kernels: what the user asked to be stored, whatever it costs, and how any is marked."""

from __future__ import annotations

from collections.abc import Iterable

from morok.ir.infer import keep_shape
from morok.ir.memory import base_of
from morok.ir.node import UOp, make, toposort
from morok.ir.ops import Ops
from morok.rewrite.engine import substitute
from morok.rewrite.rules import Rules, unproved, why
from morok.rewrite.ruleset import rules
from morok.rewrite.terms import Head
from morok.schedule.costs import elements
from morok.schedule.indexing import known_shape
from morok.schedule.split import is_view, reads_memory


def drop_copies(sink: UOp, ctx: object = None) -> UOp:
    """CONTIGUOUS of memory that lies in order already is that memory, unless it will be overwritten.

    What a SCATTER or a WRITTEN has made lies in order, in memory of its own. One with a reason stays.
    """
    return without_copies(sink, [n for n in toposort(sink) if n.op is Ops.CONTIGUOUS and n.arg is None])


def without_copies(sink: UOp, asked: Iterable[UOp]) -> UOp:
    """The same for some of them."""
    copies = [n for n in asked if _whole(n.src[0]) is not None]
    if not copies:
        return sink
    overwritten = {base_of(n.src[0]) for n in toposort(sink) if n.op is Ops.ASSIGN}
    plain = {n: n.src[0] for n in copies if _whole(n.src[0]) not in overwritten}
    return substitute(sink, plain)


def _whole(x: UOp) -> UOp | None:
    """The memory of which x is all, in order; or the node that writes it."""
    while x.op is Ops.RESHAPE:
        x = x.src[0]
    return x if x.op in _IN_ORDER else None


_IN_ORDER = frozenset((Ops.PARAM, Ops.SCATTER, Ops.WRITTEN))


def keep_outputs(sink: UOp, ctx: object = None) -> UOp:
    """Every output becomes CONTIGUOUS, unless it shows memory that exists or is about to be written.

    Who else uses an output reads it from there. Of a reshaped value the value itself is kept: the other shape
    is a view of the same memory.
    """
    kept: set[UOp] = set()
    outputs = []
    for node in sink.src:
        if is_view(node):
            outputs.append(node)
            continue
        value = node
        while value.op is Ops.RESHAPE:
            value = value.src[0]
        if value.op in _FREE:  # everybody else has it for nothing
            outputs.append(_kept(node, node))
        else:
            outputs.append(node)
            kept.add(value)
    sink = sink.replace(tuple(outputs))
    if not kept:
        return sink
    done: dict[UOp, UOp] = {}
    for node in toposort(sink):
        new = node.replace(tuple([done[s] for s in node.src]))
        done[node] = _kept(new, node) if node in kept else new
    return done[sink]


_FREE = frozenset((Ops.CONST, Ops.IOTA, Ops.DEFINE_VAR, Ops.EXPAND))


def _kept(value: UOp, origin: UOp) -> UOp:
    return make(Ops.CONTIGUOUS, value.dtype, (value,), "it is an output", origin.origin)


def transferred(node: UOp) -> UOp | None:
    """COPY of memory, with the views on top; of anything else, once it is stored.

    A copy takes a whole buffer. Where a view is asked for on the other device, its buffer is copied and the
    view is taken there, unless the buffer is much larger than the view.
    """
    source, device = node.src
    chain = []
    below = source
    while below.op.is_movement and below.op is not Ops.PAD:
        chain.append(below)
        below = below.src[0]
    if not reads_memory(source):
        return None  # a value without a place gets one: it is computed there
    if below.op is Ops.PARAM and (not chain or _much(source, below)):
        moved = make(Ops.COPY, node.dtype, (below, device), None, node.origin)
        for view in reversed(chain):
            moved = view.replace((moved, *view.src[1:]))
        return moved
    if source.op in (Ops.CONTIGUOUS, Ops.ASSIGN, Ops.SCATTER, Ops.WRITTEN) and not chain:
        return None
    kept = make(Ops.CONTIGUOUS, source.dtype, (source,), "it goes to another device", source.origin)
    return node.replace((kept, device))


@rules("schedule.transfers")
def transfer_rules() -> Rules:
    """What goes to another device goes as it lies in memory."""
    # copy(view(x)) = view(copy(x)), copy(f(x)) = copy(stored f(x))
    yield (
        "copy",
        Head(Ops.COPY).any() >> transferred,
        why("any number of views in a row"),
        unproved("the prover knows scalars, not tensors; tested on values"),
    )


def _much(view: UOp, memory: UOp) -> bool:
    return 2 * elements(known_shape(view)) >= int(memory.arg[1])


def mark_kept(order: list[UOp], kept: dict[UOp, str], sink: UOp) -> UOp:
    """The graph with a CONTIGUOUS, which says why, behind everything that is kept."""
    done: dict[UOp, UOp] = {}
    for node in order:
        new = keep_shape(node.replace(tuple([done[s] for s in node.src])), node)
        reason = kept.get(node)
        if reason is not None:
            new = make(Ops.CONTIGUOUS, new.dtype, (new,), reason, node.origin)
        done[node] = new
    return done[sink]
