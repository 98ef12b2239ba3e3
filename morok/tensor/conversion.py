"""Conversions by name. A file of their own: inside this class `float`, `int` and `bool` are methods."""

from __future__ import annotations

from typing import Self

from morok import dtype as dt
from morok.tensor.elementwise import Elementwise
from morok.tensor.record import recorded


@recorded
class Conversion(Elementwise):
    """One method per common type; `cast` takes any."""

    def float(self) -> Self:
        """As float32."""
        return self.cast(dt.float32)

    def double(self) -> Self:
        """As float64."""
        return self.cast(dt.float64)

    def half(self) -> Self:
        """As float16."""
        return self.cast(dt.float16)

    def bfloat16(self) -> Self:
        """As bfloat16."""
        return self.cast(dt.bfloat16)

    def int(self) -> Self:
        """As int32."""
        return self.cast(dt.int32)

    def long(self) -> Self:
        """As int64."""
        return self.cast(dt.int64)

    def bool(self) -> Self:
        """As truths: whatever is not zero."""
        return self.cast(dt.bool_)
