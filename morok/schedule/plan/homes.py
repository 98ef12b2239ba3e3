"""A check: kernels take memory of their own device."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from morok.errors import IRError
from morok.ir.layout import is_mesh
from morok.ir.memory import own_device
from morok.ir.ops import Ops


def check_homes(items: Iterable[Any]) -> None:
    """Copies and collectives alone go further, and what runs on a mesh, whose ranks each have their part."""
    for item in items:
        homes = dict.fromkeys(own_device(b) for b in item.buffers)
        if len(homes) > 1 and item.ast.op is Ops.SINK and not any(map(is_mesh, homes)):
            raise IRError(f"{item.name} takes memory of {' and '.join(homes)}", place=item.place)
