"""com.microsoft's mixture of experts: some of several small networks for each row, by scores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

from morok import dtype as dt
from morok.errors import UnsupportedModel
from morok.onnx.ops.common import known, product
from morok.onnx.ops.microsoft import MS, unpacked
from morok.onnx.table import T, op
from morok.tensor.tensor import Tensor

_ACTIVATIONS: dict[str, Any] = {
    "relu": Tensor.relu,
    "gelu": lambda x: x.gelu(approximate="tanh"),  # as ONNX Runtime computes it between experts' layers
    "silu": Tensor.silu,
    "identity": lambda x: x,
}


def gates(scores: Tensor, k: int, normalise: bool, weights: Tensor | None = None) -> Tensor:
    """(rows, experts): how much each of the k best experts counts, 0 for the others.

    That is their share in a softmax, or what other weights say about them.
    """
    every = scores.softmax(-1)
    best, places = every.topk(k, dim=-1)
    if weights is not None:
        best = weights.gather(1, places)
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
    shares = gates(router, k, bool(normalize_routing_weights))
    how = _Activation(activation_type, activation_alpha, activation_beta, swiglu_fusion, swiglu_limit)
    return _experts(x, shares, (w1, b1), (w2, b2), None if w3 is None else (w3, b3), how)


@final
@dataclass(frozen=True)
class _Activation:
    """What is computed between the two layers of an expert."""

    name: str
    alpha: float
    beta: float
    fusion: int
    limit: float


_Layer = tuple[Tensor, Tensor | None]


def _experts(
    x: Tensor, shares: Tensor, first: _Layer, second: _Layer, third: _Layer | None, how: _Activation
) -> Tensor:
    rows = x.reshape((product(x.shape[:-1]), x.shape[-1]))
    made = _layer(rows.unsqueeze(0), *first)
    if how.name == "swiglu":
        if third is not None or how.fusion != 1:
            raise UnsupportedModel("SwiGLU is read where gates and values lie beside each other (fusion 1)")
        gate = made[..., 0::2].minimum(how.limit)
        value = made[..., 1::2].clamp(-how.limit, how.limit)
        made = gate * (gate * how.alpha).sigmoid() * (value + how.beta)
    elif how.name in _ACTIVATIONS:
        made = _ACTIVATIONS[how.name](made)
        made = made if third is None else made * _layer(rows.unsqueeze(0), *third)
    else:
        raise UnsupportedModel(f"activation {how.name!r} is not known")
    made = _layer(made, *second)  # (experts, rows, width)
    return (made * shares.T.unsqueeze(-1)).sum(0).reshape(x.shape)


def _layer(x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
    """(experts or 1, rows, in) with weights (experts, out, in)."""
    made = x.matmul(w.transpose(-1, -2))
    return made if b is None else made + b.unsqueeze(1)


@op("QMoE", domain=MS)
def qmoe(
    x: T,
    router: T,
    w1: T,
    s1: T,
    b1: T | None,
    w2: T,
    s2: T,
    b2: T | None,
    w3: T | None,
    s3: T | None,
    b3: T | None,
    z1: T | None,
    z2: T | None,
    z3: T | None,
    router_weights: T | None,
    *,
    accuracy_level: int = 0,
    activation_alpha: float = 1.0,
    activation_beta: float = 0.0,
    activation_type: str = "relu",
    block_size: int = 0,
    expert_weight_bits: int = 4,
    fc1_expert_weight_bits: int | None = None,
    fc2_expert_weight_bits: int | None = None,
    fc3_expert_weight_bits: int | None = None,
    k: int = 1,
    normalize_routing_weights: int = 0,
    quant_type: str = "int",
    swiglu_fusion: int = 0,
    swiglu_limit: float = float("inf"),
    use_sparse_mixer: int = 0,
    weights_prepacked: int = -1,
) -> T:
    """The same with weights of few bits, a scale for each row or for blocks of it."""
    if use_sparse_mixer or quant_type != "int" or weights_prepacked > 0:
        raise UnsupportedModel("experts are read as rows of integers, without a sparse mixer")
    own = (fc1_expert_weight_bits, fc2_expert_weight_bits, fc3_expert_weight_bits)
    bits = [expert_weight_bits if n is None else n for n in own]
    first = _weights(w1, s1, z1, bits[0]), b1
    second = _weights(w2, s2, z2, bits[1]), b2
    third = None if w3 is None or s3 is None else (_weights(w3, s3, z3, bits[2]), b3)
    # ONNX Runtime takes the softmax of the best alone here, whatever the attribute says
    shares = gates(router, k, router_weights is None or bool(normalize_routing_weights), router_weights)
    how = _Activation(activation_type, activation_alpha, activation_beta, swiglu_fusion, swiglu_limit)
    return _experts(x, shares, first, second, third, how)


def _weights(codes: Tensor, scales: Tensor, zeros: Tensor | None, bits: int) -> Tensor:
    """(experts, out, in) from bytes; scales are (experts, out) or (experts, out, blocks)."""
    experts, rows = (known(n, "packed weights") for n in codes.shape[:2])
    whole = unpacked(codes, bits).cast(dt.float32)
    blocks = known(scales.shape[2], "blocks") if scales.ndim == 3 else 1
    whole = whole.reshape((experts, rows, blocks, -1))
    zero: Any = float(1 << (bits - 1))
    if zeros is not None:
        flat = unpacked(zeros, bits).cast(dt.float32)
        flat = flat[..., :blocks] if scales.ndim == 3 else flat[:, :rows]
        zero = flat.reshape((experts, rows, blocks, 1))
    made = (whole - zero) * scales.reshape((experts, rows, blocks, 1)).cast(dt.float32)
    found: Tensor = made.reshape((experts, rows, -1)).cast(scales.dtype)
    return found
