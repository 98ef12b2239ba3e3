"""What morok needs of torch's private modules, all in one place: a release that has moved one is named."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch

from morok.errors import MorokError


class MovedModule(MorokError, ImportError):
    """This release of torch has something private elsewhere."""


def private(module: str, name: str) -> Any:
    """What a private module of torch's holds under a name."""
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise MovedModule(
            f'torch {torch.__version__} has no {module}.{name}, which torch.compile(backend="morok") '
            "needs; torch 2.11 to 2.15 have it"
        ) from error


OpOverload: Any = private("torch._ops", "OpOverload")
aot_autograd: Any = private("torch._dynamo.backends.common", "aot_autograd")
counters: Any = private("torch._dynamo.utils", "counters")
decomposition_table: Any = private("torch._decomp", "decomposition_table")
elementwise_dtypes: Any = private("torch._prims_common", "elementwise_dtypes")
min_cut: Any = private("torch._functorch.partitioners", "min_cut_rematerialization_partition")
promotion_kinds: Any = private("torch._prims_common", "ELEMENTWISE_TYPE_PROMOTION_KIND")
tree_flatten: Any = private("torch.utils._pytree", "tree_flatten")
tree_unflatten: Any = private("torch.utils._pytree", "tree_unflatten")
