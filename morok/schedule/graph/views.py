"""Early clean-up of movement ops: chains of one kind become one op, ops without effect vanish.

Index arithmetic would come to the same result; here it costs one look per op instead of one per use.
"""

from __future__ import annotations

from morok.ir.infer import add_sizes, shape, size_of
from morok.ir.movement import pad, permute, shrink
from morok.ir.node import UOp
from morok.ir.ops import Ops
from morok.rewrite.rules import Rules, grows, when, why
from morok.rewrite.ruleset import RuleSet, rules
from morok.rewrite.terms import HEADS, Many, Var


def same_shape(node: UOp, x: UOp) -> bool:
    """The op leads to the shape that it starts from; a box as large as its tensor holds all of it."""
    return shape(node) == shape(x)


def _pairs(node: UOp) -> list[tuple[UOp, UOp]]:
    return list(zip(node.src[1::2], node.src[2::2], strict=True))


def join_permutes(node: UOp, x: UOp) -> UOp:
    """PERMUTE of PERMUTE."""
    return permute(x, [node.src[0].arg[axis] for axis in node.arg])


def join_flips(node: UOp, x: UOp) -> UOp:
    """FLIP of FLIP: axes that are reversed twice stay."""
    once = tuple(a != b for a, b in zip(node.arg, node.src[0].arg, strict=True))
    return node.src[0].src[0] if not any(once) else UOp(Ops.FLIP, node.dtype, (x,), once)


def join_shrinks(node: UOp, x: UOp) -> UOp:
    """A box out of a box."""
    limits = []
    for (start, stop), (base, _) in zip(_pairs(node), _pairs(node.src[0]), strict=True):
        offset = size_of(base)
        limits.append((add_sizes(size_of(start), offset), add_sizes(size_of(stop), offset)))
    return shrink(x, limits)


def join_pads(node: UOp, x: UOp) -> UOp:
    """Zeros around zeros."""
    amounts = []
    for (before, after), (first, last) in zip(_pairs(node), _pairs(node.src[0]), strict=True):
        amounts.append((add_sizes(size_of(before), size_of(first)), add_sizes(size_of(after), size_of(last))))
    return pad(x, amounts)


def is_in_order(node: UOp) -> bool:
    """Axes that stay where they are."""
    return bool(node.arg == tuple(range(len(node.arg))))


# How reasons begin why there is memory of its own for what is in memory already:
SHARD = "it is a shard of "  # for a result of a rank, which may have another layout
OWN = "it is result "  # for a result that is equal to another one


def is_stored(node: UOp, x: UOp) -> bool:
    """Something that is about to be stored in row-major order, under some shape."""
    if isinstance(node.arg, str) and node.arg.startswith((SHARD, OWN)):
        return False  # another tensor's
    while x.op is Ops.RESHAPE:
        x = x.src[0]
    return x.op is Ops.CONTIGUOUS


_SMALLER = grows("one op less; the check cannot count sources that a name stands for")
_SIZES = why("computes with sizes, any number of them")


@rules("schedule.views")
def view_rules(x: Var, a: Many, b: Many) -> Rules:
    """Movement ops in a row."""
    reshape, expand, permute_, shrink_, pad_, flip = (
        HEADS[name] for name in ("Reshape", "Expand", "Permute", "Shrink", "Pad", "Flip")
    )
    # no gradient is computed any more
    yield "detach", HEADS["Detach"](x) >> x
    # the last of two shapes counts
    yield "reshape-reshape", reshape(reshape(x, a), b) >> reshape(x, b), _SMALLER
    yield "expand-expand", expand(expand(x, a), b) >> expand(x, b), _SMALLER
    # ops that change nothing
    yield "reshape-same", reshape(x, b) >> x, when(same_shape), _SMALLER
    yield "expand-same", expand(x, b) >> x, when(same_shape), _SMALLER
    yield "permute-same", permute_(x) >> x, when(is_in_order)
    yield "shrink-same", shrink_(x, b) >> x, when(same_shape), _SMALLER
    yield "pad-same", pad_(x, b) >> x, when(same_shape), _SMALLER
    # two in a row
    yield "permute-permute", permute_(permute_(x)) >> join_permutes, _SIZES
    yield "flip-flip", flip(flip(x)) >> join_flips, _SIZES
    yield "shrink-shrink", shrink_(shrink_(x, a), b) >> join_shrinks, _SIZES
    yield "pad-pad", pad_(pad_(x, a), b) >> join_pads, _SIZES
    # one copy is enough
    yield "contiguous", HEADS["Contiguous"](x) >> x, when(is_stored)


views: RuleSet = view_rules
