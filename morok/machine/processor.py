"""A processor as LLVM names it, and what the system says of its caches."""

from __future__ import annotations

import os
from functools import cache
from typing import final

from morok.dtype.records import record

_CACHES = "/sys/devices/system/cpu/cpu0/cache"
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


def _said(entry: str, name: str) -> str:
    with open(os.path.join(_CACHES, entry, name), encoding="utf-8") as file:
        return file.read().strip()


@cache
def cache_bytes(level: int, otherwise: int) -> int:
    """The size of a core's data cache; what the caller thinks where the system does not tell."""
    try:
        for entry in sorted(name for name in os.listdir(_CACHES) if name.startswith("index")):
            if int(_said(entry, "level")) == level and _said(entry, "type") in ("Data", "Unified"):
                text = _said(entry, "size")
                return int(text[:-1]) * _UNITS[text[-1]]
    except (OSError, ValueError, KeyError):
        pass
    return otherwise
