"""Which operators torch takes apart before morok sees them: all that torch can, and the table has not."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch._decomp import decomposition_table

from morok.torch import operators as _operators  # noqa: F401 - enters all rows
from morok.torch.table import lookup


@cache
def decompositions() -> dict[Any, Any]:
    """torch's own table without what morok computes as it is."""
    # what is composed of others by torch itself never arrives here, so that those tables stay unbuilt
    return {
        target: function
        for target, function in decomposition_table.items()
        if isinstance(target, torch._ops.OpOverload) and lookup(target) is None
    }
