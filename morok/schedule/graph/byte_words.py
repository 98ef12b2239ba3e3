"""Words of bytes: products of 8-bit integers, four steps at a time, where a processor multiplies so.

    Σ over k of a(k) · b(k)   =   Σ over k / 4 of DOT4(a's word, b's word)

for signed bytes, exactly, also where the sum of 32 bits overflows. A byte without sign less 128 is a signed
one, the same with its top bit turned, and the rest comes out of the sum: for a = a' + s and b = b' + t,

    Σ a · b  =  Σ a' · b' + t Σ a' + s Σ b' + n s t.

Words are put together once, in memory, and are multiplied as words of 32 bits are: in tiles.
"""

from __future__ import annotations

import math
from typing import NamedTuple, final

from morok import knobs
from morok.dtype import int8, int32, uint8, uint32
from morok.ir.build import bitcast, cast
from morok.ir.memory import device_of
from morok.ir.movement import expand, pad, permute, reduce_axis, reshape, shrink
from morok.ir.node import UOp, alu, const, make, toposort
from morok.ir.ops import Ops
from morok.machine.devices import machine_of
from morok.machine.machine import Machine
from morok.schedule.contraction import contraction_at, memory_axis, varying
from morok.schedule.indexing import known_shape

FOUR = 4  # bytes of a word
FEWEST_WORDS = 2  # of a sum
FEWEST_OF_TILES = 16  # rows and columns that make it worth to fill tiles
PUT_TOGETHER = 3.0  # instructions for a byte of a word
ONE_BY_ONE = 2.0  # instructions for a vector of products of words without them: extended, multiplied, added
TURN = 0x80808080
ONES = 0x01010101
HALF = 128  # which a byte without sign is less as a signed one
REASON = "four bytes are multiplied at once"


@final
class Bytes(NamedTuple):
    """A factor as bytes, of one element along axes that it does not vary on."""

    words: UOp
    shift: int  # what the bytes of the words are less


def multiply_words(sink: UOp, ctx: object = None) -> UOp:
    """Sums of products of 8-bit integers become sums of DOT4."""
    order = toposort(sink)
    if knobs.NOOPT.value or not any(n.dtype in (int8, uint8) for n in order):
        return sink
    devices: dict[UOp, str] = {}
    axes: dict[UOp, int] = {}
    for node in order:
        devices[node] = device_of(node, devices)
        if node.op is Ops.REDUCE_AXIS and node.dtype is int32 and devices[node]:
            axis = _worth(node, machine_of(devices[node]))
            if axis is not None:
                axes[node] = axis
    if not axes:
        return sink
    done: dict[UOp, UOp] = {}
    for node in order:
        new = node.replace(tuple([done[s] for s in node.src]))
        done[node] = _in_words(new, axes[node]) if node in axes else new
    return done[sink]


def _worth(node: UOp, machine: Machine) -> int | None:
    """The axis along which words are put together; None where there are no bytes, or it would take longer."""
    if Ops.DOT4 not in machine.ops or machine.has_grid:
        return None
    product = contraction_at(node)
    if product is None or any(_as_bytes(x) is None for x in node.src[0].src):
        return None
    sizes = known_shape(node.src[0])
    known = [(n, axis) for axis in node.arg[1] if isinstance(n := sizes[axis], int)]
    count, axis = max(known, default=(0, 0))
    if count < FEWEST_WORDS * FOUR or any(axis not in varying(x) for x in node.src[0].src):
        return None
    if _takes_bytes(node, machine) and min(product.rows, product.columns) >= FEWEST_OF_TILES:
        return None
    words = -(-count // FOUR) * FOUR / count
    lanes = machine.lanes(int32)
    saved = product.rows * product.columns * (ONE_BY_ONE - words / FOUR) / lanes
    return axis if saved > (product.rows + product.columns) * PUT_TOGETHER else None


def _takes_bytes(node: UOp, machine: Machine) -> bool:
    """Whether a unit for tiles multiplies these bytes as they are."""
    found = [_as_bytes(x) for x in node.src[0].src]
    return any(all(x is not None and x.dtype is u.inputs for x in found) for u in machine.tile_units)


def _as_bytes(x: UOp) -> UOp | None:
    """The bytes that a factor of 32 bits was converted from, under the same views; None if it was not."""
    if x.op is Ops.CAST:
        below = x.src[0]
        return below if below.dtype in (int8, uint8) else None
    if not x.op.is_movement:
        return None
    seen = _as_bytes(x.src[0])
    return None if seen is None else make(x.op, seen.dtype, (seen, *x.src[1:]), x.arg, x.origin)


def _in_words(node: UOp, axis: int) -> UOp:
    """The sum of words; `node` is a sum of products of what are bytes."""
    products = node.src[0]
    left, right = (_packed(x, axis) for x in products.src)
    sizes = [*known_shape(products)]
    sizes[axis] = known_shape(left.words)[axis]
    words = [expand(b.words, sizes) for b in (left, right)]
    total = reduce_axis(alu(Ops.DOT4, *words), Ops.ADD, node.arg[1])
    for mine, other in ((left, right), (right, left)):
        if other.shift:
            sums = alu(Ops.MUL, _summed(mine, node), const(int32, other.shift))
            total = alu(Ops.ADD, total, expand(sums, known_shape(total)))
    if left.shift and right.shift:
        count = math.prod(sizes[a] for a in node.arg[1]) * FOUR
        total = alu(Ops.ADD, total, const(int32, left.shift * right.shift * count))
    return total


def _summed(x: Bytes, node: UOp) -> UOp:
    """Σ of the signed bytes over the steps, also those that all have the same ones."""
    own, sizes = known_shape(x.words), known_shape(node.src[0])
    ones = expand(reshape(const(int32, ONES), (1,) * len(own)), own)
    total = reduce_axis(alu(Ops.DOT4, x.words, ones), Ops.ADD, node.arg[1])
    again = math.prod(sizes[a] for a in node.arg[1] if own[a] == 1)
    return alu(Ops.MUL, total, const(int32, again)) if again > 1 else total


def _packed(x: UOp, axis: int) -> Bytes:
    """A factor in words along an axis, which is filled up with zeros."""
    found = _as_bytes(x)
    assert found is not None
    sizes = known_shape(found)
    own = varying(found)
    value = shrink(found, [(0, n if a in own else 1) for a, n in enumerate(sizes)])
    count = sizes[axis]
    assert isinstance(count, int)
    filled = pad(value, [(0, -count % FOUR if a == axis else 0) for a in range(len(sizes))])
    shape = known_shape(filled)
    words = -(-count // FOUR)
    four = reshape(filled, (*shape[:axis], words, FOUR, *shape[axis + 1 :]))
    raw = four if four.dtype is uint8 else bitcast(four, uint8)
    word: UOp | None = None
    for i in range(FOUR):
        box = [(i, i + 1) if a == axis + 1 else (0, n) for a, n in enumerate(known_shape(raw))]
        byte = reshape(shrink(raw, box), (*shape[:axis], words, *shape[axis + 1 :]))
        moved = alu(Ops.SHL, cast(byte, uint32), const(uint32, 8 * i)) if i else cast(byte, uint32)
        word = moved if word is None else alu(Ops.OR, word, moved)
    assert word is not None
    shift = HALF if value.dtype is uint8 else 0
    if shift:
        word = alu(Ops.XOR, word, const(uint32, TURN))
    # as the bytes lie: where that is not along the steps, rows of them are read side by side
    order = sorted(range(len(shape)), key=lambda a: a == memory_axis(filled))
    laid = permute(bitcast(word, int32), order)
    kept = make(Ops.CONTIGUOUS, int32, (laid,), REASON, x.origin)
    return Bytes(permute(kept, [order.index(a) for a in range(len(order))]), shift)
