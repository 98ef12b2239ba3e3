"""Warp specialisation as data: producer warps copy tiles, consumers multiply, the epilogue writes results.

Roles run side by side and meet at mbarriers. A barrier counts arrivals, and bytes that TMA has
been told to copy; when all have come its phase is over, and the next one begins. Who waits names
the phase by its parity. A ring of tiles has two such barriers per tile: `full` and `empty`.
"""

from __future__ import annotations

from typing import final

from morok.dtype.records import record
from morok.ir.args import register_arg

WARP_GROUP = 128  # threads of a warp group: they multiply together, and have the same number of registers
REGISTERS = 1 << 16  # of a multiprocessor
MOST = 240  # registers of a thread


def at_first(threads: int) -> int:
    """The registers of a thread when a block of so many begins; what others give back, some can have."""
    return min(MOST, REGISTERS // threads // 8 * 8)


@final
@register_arg
@record(frozen=True)
class Role:
    """Some threads of a block, and the third part of the argument of a RANGE of kind ROLE.

    Such a range has one pass, which these threads make while others are in their own.
    """

    name: str
    first: int  # the number of the first thread
    threads: int
    registers: int = 0  # that each thread gets; 0: as many as the kernel has been started with
    single: bool = False  # the first thread does it all


@final
@register_arg
@record(frozen=True)
class MBarrierStep:
    """The argument of MBARRIER: what is done to a barrier.

    init: it expects `amount` arrivals. arrive: one has come, for every `amount` threads, at this barrier of
    all `blocks` of the cluster. expect: one has come, and `amount` bytes will. wait: until the phase of the
    parity given is over; then `amount` groups of products may be under way, and the barrier `release` is told
    when what lay behind this one has been read.
    """

    what: str
    amount: int = 0
    release: str = ""
    blocks: int = 1


@final
@register_arg
@record(frozen=True)
class Walk:
    """How TMA walks through images (im2col), along the dimensions that a window moves in, innermost first.

    The window's first element goes from the lower corner in steps as far as the upper one, which is counted
    from the last element of a dimension; then on in the next line, and in the next image. Places are outputs,
    and steps of a sum shift the window; or places are `summed`, and outputs shift it.
    """

    lower: tuple[int, ...]
    upper: tuple[int, ...]
    steps: tuple[int, ...]
    summed: bool = False


@final
@register_arg
@record(frozen=True)
class Box:
    """A buffer as TMA sees it, and the part of it that one copy brings; innermost first.

    Elements outside of the sizes are zeros. Units cut bits off that they do not look at; the engine rounds.
    With a walk the part is a number of elements at each of a number of places, and a copy takes, after its
    coordinates, the offset of the window in each dimension that it moves in. What a copy brings goes to the
    same place in all `blocks` of a cluster (multicast), and arrives at the same barrier of each.
    """

    sizes: tuple[int, ...]
    strides: tuple[int, ...]  # in elements; the first is 1
    part: tuple[int, ...]
    tf32: bool = False  # numbers of 32 bits are rounded to the 19 that matrix units look at
    walk: Walk | None = None
    blocks: int = 1
