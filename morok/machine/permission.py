"""What a process has to ask the system for before it may use a part of the processor.

Linux lets a process use the registers for tiles of x86 once it has asked; all its threads may use them then.
"""

from __future__ import annotations

import ctypes
import sys

from morok.machine.processor import Processor

_TILES = "amx-"  # features of the registers for tiles, as LLVM calls them
_ARCH_PRCTL = 158  # the number of the system call on x86-64
_ASK = 0x1023  # ARCH_REQ_XCOMP_PERM
_TILE_DATA = 18  # the part of a processor's state that the registers are


def permitted(processor: Processor) -> Processor:
    """The processor without what the system does not let this process use."""
    if not any(flag.startswith(_TILES) for flag in processor.flags) or may_use_tiles():
        return processor
    left = [f for f in processor.features.split(",") if not f.startswith(f"+{_TILES}")]
    return Processor(processor.triple, processor.cpu, ",".join(left))


def may_use_tiles() -> bool:
    """Asks. A system that knows no such question has no such registers."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        return int(ctypes.CDLL(None).syscall(_ARCH_PRCTL, _ASK, _TILE_DATA)) == 0
    except (OSError, AttributeError):
        return False
