"""Rounding to decimals, halves to even, as NumPy does it."""

from __future__ import annotations

from typing import Any

from morok.dtype import int64, uint64


def rounded(x: Any, decimals: int) -> Any:
    """x with so many decimals; tens for -1, hundreds for -2."""
    if not x.dtype.is_float:
        return x if decimals >= 0 else _to_multiples(x, 10**-decimals)
    wide = x._wide()
    scale = 10.0 ** abs(decimals)
    y = (wide * scale).round() / scale if decimals > 0 else (wide / scale).round() * scale
    # What overflows when it is scaled has no decimals.
    return (wide.isfinite() & ~y.isfinite()).where(wide, y)._rounded(x)


def _to_multiples(x: Any, unit: int) -> Any:
    """Integers to the nearest multiples of a power of ten; beyond the type's range they wrap around."""
    wide = x.cast(uint64 if x.dtype.is_unsigned else int64)
    if unit > wide.dtype.max // 2:
        return x * 0
    down = wide // unit
    rest = (wide - down * unit) * 2
    up = (rest > unit) | (rest.eq(unit) & (down % 2).ne(0))
    return ((down + up.cast(wide.dtype)) * unit).cast(x.dtype)
