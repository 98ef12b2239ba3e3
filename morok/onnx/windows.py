"""Windows of convolutions and pools: steps along each axis, and what is added around it.

Sizes may be symbolic, and then what is added as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from morok.errors import UnsupportedModel
from morok.ir.node import UOp, alu, const
from morok.ir.ops import Ops
from morok.ir.sizes import never_negative
from morok.tensor.tensor import Tensor


def up(size: Any) -> Any:
    """A size, or 0 where it would be less."""
    if isinstance(size, int):
        return max(0, size)
    if never_negative(size):
        return size
    return 0 if never_negative(-size) else alu(Ops.MAX, size, const(size.dtype, 0))


def at_most(a: Any, b: Any) -> Any:
    """The lesser of two sizes."""
    if isinstance(a, int) and isinstance(b, int):
        return min(a, b)
    if never_negative(b - a) or never_negative(a - b):
        return a if never_negative(b - a) else b
    kind = (b if isinstance(a, int) else a).dtype
    return alu(Ops.MIN, *(x if isinstance(x, UOp) else const(kind, x) for x in (a, b)))


def window_pads(
    sizes: Sequence[Any],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    pads: Any,
    auto_pad: str,
) -> list[tuple[Any, Any]]:
    """What is added before and after each axis."""
    n = len(kernel)
    if auto_pad in ("NOTSET", "", "VALID"):
        if auto_pad == "VALID" or pads is None:
            return [(0, 0)] * n
        return [(int(pads[i]), int(pads[i + n])) for i in range(n)]
    if auto_pad not in ("SAME_UPPER", "SAME_LOWER"):
        raise UnsupportedModel(f"auto_pad {auto_pad!r} is not known")
    made = []
    for size, k, s, d in zip(sizes, kernel, strides, dilations, strict=True):
        reach = (k - 1) * d + 1
        total = (size + s - 1) // s * s - s + reach - size if s != 1 else reach - 1
        total = total if reach >= s else up(total)
        half = total // 2
        made.append((half, total - half) if auto_pad == "SAME_UPPER" else (total - half, half))
    return made


def adds(around: Sequence[tuple[Any, Any]]) -> bool:
    """Whether there is a border; one of a symbolic width counts."""
    return any(not isinstance(p, int) or p for pair in around for p in pair)


def pad_spatial(x: Tensor, around: Sequence[tuple[Any, Any]], value: Any = 0) -> Tensor:
    """A border of a value around the last axes; negative widths cut."""
    if any(isinstance(p, int) and p < 0 for pair in around for p in pair):
        lead = x.ndim - len(around)
        cut = [(max(0, -a), n - max(0, -b)) for (a, b), n in zip(around, x.shape[lead:], strict=True)]
        x = x.shrink((*((0, n) for n in x.shape[:lead]), *cut))
        around = [(max(a, 0), max(b, 0)) for a, b in around]
    if not adds(around):
        return x
    full = ((0, 0),) * (x.ndim - len(around)) + tuple(around)
    return x.pad(full, value=value) if value else x.pad(full)


def defaults(kernel: Sequence[int], *lists: Any) -> list[list[int]]:
    """Steps along each axis of a window: 1 where none are given."""
    return [list(given) if given else [1] * len(kernel) for given in lists]


def _last_place(inside: Any, padded: Any, reach: int, s: int) -> Any:
    """Where the last window begins if sizes are rounded up: not behind what is inside and its border."""
    return at_most((padded - reach + s - 1) // s, (inside - 1) // s) * s


def pooled(x: Tensor, kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int],
           around: Sequence[tuple[int, int]], ceil: int, value: Any) -> Tensor:  # fmt: skip
    """Windows of the spatial axes as new last axes: (N, C, out…, kernel…)."""
    spatial, ends = x.shape[2:], [end for _, end in around]
    for i, (k, s, d) in enumerate(zip(kernel, strides, dilations, strict=True)):
        reach = (k - 1) * d + 1
        padded = spatial[i] + around[i][0] + ends[i]
        if ceil:
            ends[i] = ends[i] + up(_last_place(spatial[i] + around[i][0], padded, reach, s) + reach - padded)
    x = pad_spatial(x, [(start, end) for (start, _), end in zip(around, ends, strict=True)], value)
    for i, (k, s, d) in enumerate(zip(kernel, strides, dilations, strict=True)):
        reach = (k - 1) * d + 1
        x = x.unfold(2 + i, reach, s)
        if d > 1:
            x = x[..., ::d]
    return x


def beyond(x: Tensor, around: Any, kernel: Any, strides: Any, dilations: Any) -> list[tuple[Any, Any]]:
    """What rounding up adds after each axis, beyond the border."""
    made = []
    for n, (a, z), k, s, d in zip(x.shape[2:], around, kernel, strides, dilations, strict=True):
        reach, padded = (k - 1) * d + 1, n + a + z
        made.append((0, up(_last_place(n + a, padded, reach, s) + reach - padded)))
    return made
