"""com.microsoft's mixture of experts: some of several small networks for each row, by scores."""

from __future__ import annotations

from typing import Any

from morok.errors import UnsupportedModel
from morok.onnx.ops.common import product
from morok.onnx.ops.microsoft import MS
from morok.onnx.table import T, op
from morok.tensor.tensor import Tensor

_ACTIVATIONS: dict[str, Any] = {
    "relu": Tensor.relu, "gelu": Tensor.gelu, "silu": Tensor.silu, "identity": lambda x: x,
}  # fmt: skip


def gates(scores: Tensor, k: int, normalise: bool) -> Tensor:
    """(rows, experts): how much each of the k best experts counts, 0 for the others."""
    every = scores.softmax(-1)
    best, places = every.topk(k, dim=-1)
    if normalise:
        best = best / best.sum(-1, keepdim=True)
    experts = Tensor.arange(scores.shape[-1]).reshape((1, 1, -1))
    made: Tensor = (places.unsqueeze(-1).eq(experts)).where(best.unsqueeze(-1), 0.0).sum(1)
    return made


@op("MoE", domain=MS)
def moe(
    x: T,
    router: T,
    w1: T,
    b1: T | None,
    w2: T,
    b2: T | None,
    w3: T | None,
    b3: T | None,
    *,
    activation_alpha: float = 1.0,
    activation_beta: float = 0.0,
    activation_type: str = "relu",
    k: int = 1,
    normalize_routing_weights: int = 0,
    swiglu_fusion: int = 0,
    swiglu_limit: float = float("inf"),
    use_sparse_mixer: int = 0,
) -> T:
    """All experts on all rows, added by what the router gives to the best ones."""
    if use_sparse_mixer:
        raise UnsupportedModel("a sparse mixer of experts is not read")
    rows = x.reshape((product(x.shape[:-1]), x.shape[-1]))
    made = _layer(rows.unsqueeze(0), w1, b1)
    if activation_type == "swiglu":
        if w3 is not None or swiglu_fusion != 1:
            raise UnsupportedModel("SwiGLU is read where gates and values lie beside each other (fusion 1)")
        gate = made[..., 0::2].minimum(swiglu_limit)
        value = made[..., 1::2].clamp(-swiglu_limit, swiglu_limit)
        made = gate * (gate * activation_alpha).sigmoid() * (value + activation_beta)
    elif activation_type in _ACTIVATIONS:
        made = _ACTIVATIONS[activation_type](made)
        made = made if w3 is None else made * _layer(rows.unsqueeze(0), w3, b3)
    else:
        raise UnsupportedModel(f"activation {activation_type!r} is not known")
    made = _layer(made, w2, b2)  # (experts, rows, width)
    weights = gates(router, k, bool(normalize_routing_weights))
    return (made * weights.T.unsqueeze(-1)).sum(0).reshape(x.shape)


def _layer(x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
    """(experts or 1, rows, in) with weights (experts, out, in)."""
    made = x.matmul(w.transpose(-1, -2))
    return made if b is None else made + b.unsqueeze(1)
