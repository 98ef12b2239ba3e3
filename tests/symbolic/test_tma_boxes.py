"""Boxes of a buffer and where they begin: the same dimensions in the same order, whoever asks."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from morok.dtype import bfloat16, index
from morok.errors import CompileError
from morok.ir.build import define_global
from morok.ir.node import UOp, alu, const, make
from morok.ir.ops import AxisKind, Ops
from morok.symbolic.tma_boxes import box_of, coordinates

BATCHES, ROWS, PARTS, STEPS = 6, 320, 8, 200


def loop(number: int, size: int) -> UOp:
    return make(Ops.RANGE, index, (const(index, size),), (number, AxisKind.LOOP))


def times(x: UOp, n: int) -> UOp:
    return alu(Ops.MUL, x, const(index, n))


def below(x: UOp, n: int) -> UOp:
    return alu(Ops.CMPLT, x, const(index, n))


@pytest.mark.parametrize("order", list(itertools.permutations(range(6)))[::37], ids=str)
def test_two_ends_that_split_dimensions_off(order: tuple[int, ...]) -> None:
    """Rows of 320 in tiles of 128, and steps of 200 in tiles of 64, of matrices side by side in batches.

    Stages number loops anew, and the two conditions change places with that.
    """
    sizes = (BATCHES, 3, 128, PARTS, 4, 64)
    batch, row_tile, row, part, step_tile, step = (loop(n, s) for n, s in zip(order, sizes, strict=True))
    rows = times(row_tile, 128) + row
    steps = times(step_tile, 64) + step
    length = PARTS * STEPS
    place = times(batch, ROWS * length) + times(rows, length) + times(part, STEPS) + steps
    gate = alu(Ops.AND, below(rows, ROWS), below(steps, STEPS))
    memory = define_global(bfloat16, BATCHES * ROWS * length, 1)
    read = make(Ops.INDEX, bfloat16, (memory, place, gate))
    box = box_of(read, (row, step))
    assert box is not None
    assert box.sizes == (STEPS, ROWS, PARTS, BATCHES) and box.strides == (1, length, STEPS, ROWS * length)
    (begin,) = coordinates(read, (row, step), 1, box)
    assert begin == [times(step_tile, 64), times(row_tile, 128), part, batch]
    swapped = replace(box, strides=(*box.strides[:2], *box.strides[:1:-1]))
    with pytest.raises(CompileError, match="in another order"):
        coordinates(read, (row, step), 1, swapped)
