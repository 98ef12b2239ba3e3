"""A kernel as object code, with what is needed to call it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final


@final
@dataclass(frozen=True)
class Compiled:
    """Made of plain values, so it can be stored."""

    name: str  # of the entry function
    code: bytes
    buffers: int = 0  # how many it takes
    variables: tuple[str, ...] = ()
    scratch: int = 0  # bytes of working memory per thread
    threaded: bool = False  # has an axis that workers share
