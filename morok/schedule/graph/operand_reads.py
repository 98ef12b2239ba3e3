"""How a product of the tensor graph reads its operands: by which loops, and how far each moves it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import combinations, pairwise
from typing import NamedTuple

from morok import knobs
from morok.caches import Cache
from morok.ir.node import UOp, toposort
from morok.ir.ops import AxisKind, Ops
from morok.machine.machine import Machine
from morok.schedule.costs import STORED
from morok.schedule.indexing import known_shape
from morok.schedule.kernel.probe import on_memory
from morok.schedule.kernel.stages import KERNEL_STAGES
from morok.symbolic.quotients import split_sum


class Read(NamedTuple):
    """A lowered read of an operand: how far each loop moves it."""

    steps: Mapping[UOp, int]


_known: Cache[tuple[UOp, object], dict[int, Read]] = Cache("schedule.operand_reads", 1024)


def base_of(x: UOp) -> UOp:
    """What a factor is made of, without views and conversions to a wider type; memory by its axes."""
    while x.op.is_movement or (x.op is Ops.CAST and x.src[0].dtype.itemsize < x.dtype.itemsize):
        if is_memory(x):
            break
        x = x.src[0]
    return x


def is_memory(x: UOp) -> bool:
    """Whether this is memory, perhaps by its axes."""
    return x.op in STORED or (x.op is Ops.RESHAPE and x.src[0].op in STORED)


def reads_of_operands(node: UOp, bases: list[UOp]) -> list[Read] | None:
    """How a product reads its operands, if these were memory; None where that is no plain sum."""
    kernel = on_memory(node, set(bases).__contains__)
    if kernel is None:
        return None
    asked = kernel, knobs.cache_key()
    found = _known.get(asked)
    if found is None:  # products of equal form, such as a layer's three of one width, are lowered once
        found = _known[asked] = _lowered_reads(kernel)
    numbers = [i + 1 for i, _ in enumerate(in_order(node, bases))]
    if sorted(found) != numbers:
        return None
    return [found[1 + in_order(node, bases).index(b)] for b in bases]


def _lowered_reads(kernel: UOp) -> dict[int, Read]:
    """The reads of a kernel by the numbers of memory; none where they are not those of a plain sum."""
    for stage in KERNEL_STAGES:
        kernel = stage.apply(kernel, None)
    reads = [n for n in toposort(kernel) if n.op is Ops.INDEX and not n.dtype.is_ptr]
    sums = [n for n in toposort(kernel) if n.op is Ops.REDUCE]
    if len(reads) != 2 or len(sums) != 1:
        return {}
    found: dict[int, Read] = {}
    for n in reads:
        terms, _ = split_sum(n.src[1])
        if any(t.op is not Ops.RANGE for t, _ in terms):
            return {}
        found[int(n.src[0].arg)] = Read({t: k for t, k in terms if k})
    return found


def in_order(node: UOp, bases: list[UOp]) -> list[UOp]:
    """The operands in the order in which memory is numbered."""
    return [n for n in toposort(node, stop=set(bases).__contains__) if n in bases]


def axes_of(base: UOp, mine: Read) -> tuple[list[int], dict[int, list[UOp]]]:
    """Sizes of memory's axes, and the loops that move a read along each."""
    sizes = [n if isinstance(n, int) else 0 for n in known_shape(base)]
    strides = [math.prod(sizes[a + 1 :]) for a in range(len(sizes))]
    moving: dict[int, list[UOp]] = {}
    for r, k in mine.steps.items():
        axis = next(a for a, n in enumerate(sizes) if n > 1 and k % strides[a] == 0)
        moving.setdefault(axis, []).append(r)
    return sizes, moving


def single_loops(base: UOp, mine: Read, machine: Machine) -> dict[UOp, int]:
    """Loops that move a read along an axis step by step, whole vectors long: alone, or inside of others, as
    the channels of a group are."""
    sizes, moving = axes_of(base, mine)
    lanes = machine.access_lanes(base.dtype)
    found: dict[UOp, int] = {}
    for axis, loops in moving.items():
        first, *others = sorted(loops, key=lambda r: abs(mine.steps[r]))
        unit = math.prod(sizes[axis + 1 :])
        whole = trips(first) * unit
        if mine.steps[first] != unit or any(mine.steps[r] % whole for r in others):
            continue
        if (trips(first) if others else sizes[axis]) % lanes == 0:
            found[first] = axis
    return found


def own_loop(base: UOp, mine: Read, other: Read, machine: Machine) -> UOp | None:
    """The longest loop over outputs of this operand alone that could be its last axis."""
    _, moving = axes_of(base, mine)
    alone = [r for r, axis in single_loops(base, mine, machine).items() if len(moving[axis]) == 1]
    own = [r for r in alone if r.arg[1] is AxisKind.LOOP and r not in other.steps]
    return max(own, key=trips, default=None)


def overlap(loops: list[UOp], read: Read) -> bool:
    """Whether loops along one axis, slower ones last, come to the same place by different ways: a window."""
    return any(abs(read.steps[b]) < abs(read.steps[a]) * trips(a) for a, b in pairwise(loops))


def slides(read: Read) -> bool:
    """Whether outputs and steps come to the same place by different ways."""
    return any(r.arg[1] is not k.arg[1] and meet(r, k, read) for r, k in combinations(read.steps, 2))


def meet(r: UOp, k: UOp, read: Read) -> bool:
    """Whether two loops come to the same place by different ways."""
    a, b = abs(read.steps[r]), abs(read.steps[k])
    return a < b * trips(k) and b < a * trips(r)


def lies_along(read: Read) -> UOp | None:
    """The loop that moves a read element by element."""
    return next((r for r, k in read.steps.items() if k == 1), None)


def trips(r: UOp) -> int:
    return int(r.src[0].arg) if r.src[0].op is Ops.CONST else 0


def number_of(r: UOp) -> int:
    return int(r.arg[0])
