"""What a schedule says of memory: parts that begin somewhere inside of a buffer, numbers to be there, and
what is as long as a variable says."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import final

import numpy as np

from morok.device.base import Program
from morok.device.buffer import Buffer, bind_fresh
from morok.device.cpu.kernel import Kernel
from morok.device.registry import get_device
from morok.ir.arithmetic.arrays import storage
from morok.ir.memory import own_device
from morok.ir.node import UOp
from morok.schedule.schedule import Schedule, ScheduleItem


@final
class Shifted:
    """A program of a device that has no shorter way: it gets views."""

    def __init__(self, program: Program, starts: tuple[int, ...]) -> None:
        self.program, self.starts = program, starts

    def __call__(self, buffers: Sequence[Buffer], values: Mapping[str, int]) -> None:
        views = [
            b.view(b.size - start, b.dtype, start * b.dtype.itemsize) if start else b
            for b, start in zip(buffers, self.starts, strict=True)
        ]
        self.program(views, values)


def for_item(program: Program, item: ScheduleItem) -> Program:
    """The program of a kernel for the buffers of an item."""
    if not item.starts:
        return program
    if isinstance(program, Kernel):
        widths = [node.dtype.itemsize for node in item.buffers]
        return program.beginning_at(tuple(n * w for n, w in zip(item.starts, widths, strict=True)))
    return Shifted(program, item.starts)


def place_numbers(schedule: Schedule) -> None:
    """Memory for the numbers that its graph reads there."""
    for node, value in schedule.numbers:
        array = np.full(1, value, storage(node.dtype))
        bind_fresh(node, get_device(own_device(node)).copied(array, node.dtype))


def copy_fronts(pairs: Iterable[tuple[UOp, UOp]], back: bool, memory: Callable[[UOp], Buffer]) -> None:
    """Fills the fronts of longer memory, or copies them back. Both lie on a processor."""
    for longer, own in pairs:
        whole, part = memory(longer).array(), memory(own).array()
        if back:
            part[:] = whole[: part.size]
        else:
            whole[: part.size] = part
