"""What a program gives back: memory that it writes, views, second copies; for the sizes of a call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from morok.ir.node import UOp
from morok.torch.layout import Layout, known_layout


@dataclass(frozen=True)
class Made:
    """A result with memory of its own."""

    layout: Layout
    dtype: Any
    node: UOp | None  # the memory that the plan writes; None: there is nothing in it
    copied: bool  # in row-major order, and copied from there into the layout


@dataclass(frozen=True)
class Shown:
    """A result that shows an input (or a result, by number)."""

    of_input: bool
    number: int
    layout: Layout
    offset: int

    def now(self, results: Sequence[Any], given: Sequence[Any]) -> Any:
        """The view, as torch has it."""
        base = given[self.number] if self.of_input else results[self.number]
        layout = self.layout
        same = layout.sizes == tuple(base.shape) and layout.strides == tuple(base.stride())
        if same and not self.offset:
            return base
        return base.as_strided(layout.sizes, layout.strides, base.storage_offset() + self.offset)


@dataclass(frozen=True)
class Twin:
    """A result with the elements of another one: torch has them apart, and so do we."""

    first: int
    made: Made

    def now(self, results: Sequence[Any], given: Sequence[Any]) -> Any:
        """The copy."""
        layout, first = self.made.layout, results[self.first]
        dtype, device = self.made.dtype, first.device
        copy = torch.empty_strided(layout.sizes, layout.strides, dtype=dtype, device=device)
        # both have the same elements in the order of memory
        if self.made.copied:
            return copy.copy_(first.reshape(layout.sizes))
        return copy.copy_(first.as_strided(layout.sizes, layout.strides))


@dataclass(frozen=True)
class Number:
    """A size that is a result."""

    val: Any


@dataclass
class Planned:
    """A result before its sizes are known: `of` is what it was for the sizes of the first call."""

    of: Made | Shown | Twin | Number | Any
    val: Any = None  # what torch says about it
    base: Any = None  # what torch says about the one that is shown
    fixed: bool = False  # for one set of sizes, which is known already

    def bound(self, known: Callable[[Any], Any], given: Sequence[Any]) -> Any:
        """The result for sizes of a call; a LookupError if it lies in memory in another way."""
        of = self.of
        if self.fixed:
            return of
        if isinstance(of, Number):
            return known(of.val)
        if isinstance(of, Twin):
            return Twin(of.first, self._made(of.made, known))
        if isinstance(of, Made):
            return self._made(of, known)
        if not isinstance(of, Shown):
            return of
        if of.of_input and self.base is None:  # the input itself
            value = given[of.number]
            return Shown(True, of.number, Layout(tuple(value.shape), tuple(value.stride())), 0)
        if of.of_input:
            value = given[of.number]
            if Layout(tuple(value.shape), tuple(value.stride())) != known_layout(self.base, known):
                raise LookupError("an input with other strides than torch has thought of")
        offset = (
            0 if self.base is None else known(self.val.storage_offset()) - known(self.base.storage_offset())
        )
        return Shown(of.of_input, of.number, known_layout(self.val, known), offset)

    def _made(self, made: Made, known: Callable[[Any], Any]) -> Made:
        layout = known_layout(self.val, known)
        if layout.form != made.layout.form:
            raise LookupError("a result that lies in memory in another way")
        return Made(layout, made.dtype, made.node, made.copied)
