"""Conversions by name. A file of their own: inside this class `float`, `int` and `bool` are methods."""

from __future__ import annotations

from typing import Self

from morok import dtype as dt
from morok.tensor.elementwise.arithmetic import Elementwise
from morok.tensor.record import pure


@pure
class Conversion(Elementwise):
    """One method per common type; `cast` takes any."""

    def float(self) -> Self:
        """As float32.

        >>> Tensor([1, 2]).float().tolist()
        [1.0, 2.0]
        """
        return self.cast(dt.float32)

    def double(self) -> Self:
        """As float64.

        >>> Tensor([1, 2]).double().tolist()
        [1.0, 2.0]
        """
        return self.cast(dt.float64)

    def half(self) -> Self:
        """As float16.

        >>> Tensor([1, 2]).half().tolist()
        [1.0, 2.0]
        """
        return self.cast(dt.float16)

    def bfloat16(self) -> Self:
        """As bfloat16.

        >>> Tensor([1, 2]).bfloat16().tolist()
        [1.0, 2.0]
        """
        return self.cast(dt.bfloat16)

    def int(self) -> Self:
        """As int32.

        >>> Tensor([1.7, -1.7]).int().tolist()
        [1, -1]
        """
        return self.cast(dt.int32)

    def long(self) -> Self:
        """As int64.

        >>> Tensor([1.7, -1.7]).long().tolist()
        [1, -1]
        """
        return self.cast(dt.int64)

    def bool(self) -> Self:
        """As truths: whatever is not zero.

        >>> Tensor([0, 3]).bool().tolist()
        [False, True]
        """
        return self.cast(dt.bool_)
