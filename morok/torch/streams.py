"""Work on a GPU in the order that torch expects, without waiting for it; and seeds of random numbers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from morok.device.registry import canonical, get_device

_streams: dict[int, Any] = {}  # morok's stream as torch knows it, by number of the GPU


def _own(device: Any) -> Any:
    index = device.index or 0
    found = _streams.get(index)
    if found is None:
        stream = get_device(canonical(f"CUDA:{index}")).driver.stream  # type: ignore[attr-defined]
        found = _streams[index] = torch.cuda.ExternalStream(stream, device=device)
    return found


@contextmanager
def ordered(device: Any) -> Iterator[None]:
    """What torch has started comes before what is started inside, and that before what torch starts next.

    Memory that torch frees meanwhile it gives out again on its own stream only, which waits as well.
    """
    if device.type == "cpu":
        yield
        return
    theirs, own = torch.cuda.current_stream(device), _own(device)
    own.wait_stream(theirs)
    try:
        yield
    finally:
        theirs.wait_stream(own)


def fresh_cell(device: Any) -> Any:
    """Key and counter of random numbers: drawn from the device's generator, so that torch's seeds decide."""
    cell = torch.zeros(2, dtype=torch.int64, device=device)
    cell[:1].random_(-(1 << 63), None)
    return cell
