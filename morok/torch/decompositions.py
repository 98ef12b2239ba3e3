"""Which operators torch takes apart before morok sees them: all that torch can, and the table has not."""

from __future__ import annotations

from functools import cache
from typing import Any

from morok.torch import operators as _operators  # noqa: F401 - enters all rows
from morok.torch.attention import attention_gradients
from morok.torch.composed import composed
from morok.torch.private import OpOverload, decomposition_table
from morok.torch.table import lookup

# Complex numbers are torch's. Its own way to make them writes into parts of them, which no graph may do.
_WHOLE = frozenset(("aten.complex.default", "aten.polar.default"))


@cache
def decompositions() -> dict[Any, Any]:
    """torch's own table without what morok computes as it is."""
    # what is composed of others by torch itself never arrives here, so that those tables stay unbuilt
    taken = {
        target: function
        for target, function in decomposition_table.items()
        if isinstance(target, OpOverload) and lookup(target) is None and str(target) not in _WHOLE
    }
    return taken | dict(composed()) | dict(attention_gradients())
