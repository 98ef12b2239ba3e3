"""The host as the optimiser sees it: vector registers from the target, caches from the system, cores."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from morok.codegen.target import Target
from morok.device.cpu_pool import thread_count
from morok.ir.node import UOp
from morok.optimize.host import Host

_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_UNITS = {"K": 1 << 10, "M": 1 << 20}


@cache
def cache_bytes(level: int, otherwise: int) -> int:
    """The size of a core's data cache; a cautious guess where the system does not tell."""
    try:
        for entry in sorted(_CACHES.glob("index*")):
            kind = (entry / "type").read_text().strip()
            if int((entry / "level").read_text()) == level and kind in ("Data", "Unified"):
                text = (entry / "size").read_text().strip()
                return int(text[:-1]) * _UNITS[text[-1]]
    except (OSError, ValueError, KeyError):
        pass
    return otherwise


def host_of(target: Target) -> Host:
    """The description that the heuristics ask."""
    return Host(
        vector_bytes=target.vector_bytes,
        registers=target.registers,
        masked_memory=target.masked_memory,
        lane_operands=any(arch in target.name for arch in ("aarch64", "arm64")),
        l1_bytes=cache_bytes(1, 32 << 10),
        l2_bytes=cache_bytes(2, 512 << 10),
        cores=thread_count() if target.threads else 1,
    )


def optimise(ast: UOp, target: Target) -> UOp:
    """Stage 7 for the host's processor."""
    from morok.optimize.apply import optimize  # a process that finds its kernels on disk never needs it

    return optimize(ast, host_of(target))
