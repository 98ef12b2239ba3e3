"""What `torch.compile` may be told: `mode=` and `options=`."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, final

from morok.errors import ArgumentError
from morok.optimize.strategy import Beam, Config

# How hard torch's modes try; measured searches are for those who ask for it.
_MODES: dict[str | None, Config | None] = {
    None: None,
    "default": None,
    "reduce-overhead": None,
    "max-autotune": Config(Beam()),
    "max-autotune-no-cudagraphs": Config(Beam()),
}


@final
@dataclass(frozen=True)
class Options:
    """Options of the backend."""

    fallback: bool = True  # whether torch computes what morok cannot; else it is an error
    fallback_random: bool = False  # whether torch draws random numbers: the same ones as without compilation
    config: Config | None = None

    @classmethod
    def of(cls, mode: str | None, options: dict[str, Any] | None) -> Options:
        if mode not in _MODES:
            known = ", ".join(repr(m) for m in _MODES if m)
            raise ArgumentError(f"mode {mode!r} is not one of {known}")
        names = {field.name for field in fields(cls)} - {"config"}
        given = dict(options or {})
        for name in given:
            if name not in names:
                raise ArgumentError(f"the backend has no option {name!r}; it has {', '.join(sorted(names))}")
        return cls(**given, config=_MODES[mode])
