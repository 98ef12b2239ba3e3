"""What a renderer hands on: the text, and what one must know to call what is compiled from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from morok.dtype import DType


@final
@dataclass(frozen=True)
class Argument:
    """A buffer that a kernel takes: its number, element type, size in elements, and whether it is written."""

    number: int
    dtype: DType
    size: int
    written: bool


@final
@dataclass(frozen=True)
class Program:
    """A kernel as text. `variables` are passed after the buffers, in this order."""

    name: str
    text: str
    arguments: tuple[Argument, ...]  # the buffers that it uses
    variables: tuple[str, ...]
    buffers: int = 0  # how many buffers the caller passes
    scratch: int = 0  # bytes of working memory that each thread needs
    threaded: bool = False  # has an axis that workers share
    grid: tuple[int, ...] = ()
    block: tuple[int, ...] = ()
