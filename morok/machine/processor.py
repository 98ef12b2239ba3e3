"""A processor as LLVM names it, and what the system says of its caches."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import final

from morok.dtype.records import record

_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_UNITS = {"K": 1 << 10, "M": 1 << 20}


@final
@record(frozen=True)
class Processor:
    """A processor that LLVM can make code for."""

    triple: str
    cpu: str
    features: str = ""

    @property
    def arch(self) -> str:
        return self.triple.partition("-")[0]

    @property
    def flags(self) -> frozenset[str]:
        """The features that are switched on, without their signs."""
        return frozenset(f[1:] for f in self.features.split(",") if f.startswith("+"))


@cache
def cache_bytes(level: int, otherwise: int) -> int:
    """The size of a core's data cache; what the caller thinks where the system does not tell."""
    try:
        for entry in sorted(_CACHES.glob("index*")):
            kind = (entry / "type").read_text().strip()
            if int((entry / "level").read_text()) == level and kind in ("Data", "Unified"):
                text = (entry / "size").read_text().strip()
                return int(text[:-1]) * _UNITS[text[-1]]
    except (OSError, ValueError, KeyError):
        pass
    return otherwise
