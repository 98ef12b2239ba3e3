"""Layers whose results are recorded from PyTorch; `python -m tests.nn.torch_layers` records them anew.

Weights and inputs are sines of their positions, so both sides make them for themselves.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

RECORD = Path(__file__).with_suffix(".json")


def wave(*shape: int, shift: float = 0.0) -> Any:
    """Numbers between -1 and 1 that look like nothing in particular."""
    return np.sin(np.arange(1, int(np.prod(shape)) + 1) * 1.7 + shift).astype(np.float32).reshape(shape)


_ENCODER = ((4, 3, 8),)
_DECODER = ((4, 3, 8), (5, 3, 8))
# name → (class, its arguments, its options, shapes of what it is called with)
CASES: dict[str, tuple[str, tuple[Any, ...], dict[str, Any], tuple[tuple[int, ...], ...]]] = {
    "rnn cell": ("RNNCell", (3, 4), {}, ((2, 3), (2, 4))),
    "rnn cell, relu": ("RNNCell", (3, 4), {"nonlinearity": "relu"}, ((2, 3), (2, 4))),
    "gru cell": ("GRUCell", (3, 4), {}, ((2, 3), (2, 4))),
    "gru cell alone": ("GRUCell", (3, 4), {"bias": False}, ((3,), (4,))),
    "lstm cell": ("LSTMCell", (3, 4), {}, ((2, 3),)),
    "rnn, relu": ("RNN", (3, 4), {"nonlinearity": "relu"}, ((5, 2, 3),)),
    "lstm alone": ("LSTM", (3, 4), {"bidirectional": True}, ((5, 3),)),
    "gru alone": ("GRU", (3, 4), {}, ((5, 3), (1, 4))),
    "attention": ("MultiheadAttention", (8, 2), {}, ((4, 3, 8),) * 3),
    "attention, batch first": ("MultiheadAttention", (8, 2), {"batch_first": True}, ((4, 3, 8),) * 3),
    "attention, other widths": (
        "MultiheadAttention", (8, 2), {"kdim": 6, "vdim": 5, "bias": False},
        ((4, 3, 8), (2, 3, 6), (2, 3, 5)),
    ),
    "attention, more keys": (
        "MultiheadAttention", (8, 2), {"add_bias_kv": True, "add_zero_attn": True}, ((4, 3, 8),) * 3,
    ),
    "encoder layer": ("TransformerEncoderLayer", (8, 2, 16, 0.0), {}, _ENCODER),
    "encoder layer, norm first": (
        "TransformerEncoderLayer", (8, 2, 16, 0.0), {"norm_first": True, "activation": "gelu"}, _ENCODER,
    ),
    "encoder layer, batch first": (
        "TransformerEncoderLayer", (8, 2, 16, 0.0), {"batch_first": True, "bias": False}, _ENCODER,
    ),
    "decoder layer": ("TransformerDecoderLayer", (8, 2, 16, 0.0), {}, _DECODER),
    "transformer": ("Transformer", (8, 2, 2, 1, 16, 0.0), {}, _DECODER),
    "upsample": ("Upsample", (), {"scale_factor": 2.0, "mode": "bilinear"}, ((1, 2, 3, 3),)),
    "reflection": ("ReflectionPad2d", ((1, 0, 2, 1),), {}, ((1, 2, 3, 4),)),
    "prelu": ("PReLU", (2,), {}, ((3, 2, 2),)),
    "power pool": ("LPPool2d", (2.0, 2), {}, ((1, 2, 4, 4),)),
    "response": ("LocalResponseNorm", (2,), {}, ((1, 3, 2, 2),)),
}  # fmt: skip


def leaves(found: Any) -> list[Any]:
    if isinstance(found, tuple | list):
        return [leaf for part in found for leaf in leaves(part)]
    return [found]


def main() -> None:
    import torch

    recorded: dict[str, list[Any]] = {}
    for name, (kind, args, options, shapes) in CASES.items():
        layer = getattr(torch.nn, kind)(*args, **options).train()
        with torch.no_grad():
            for number, (_, weight) in enumerate(sorted(layer.state_dict().items())):
                weight.copy_(torch.from_numpy(wave(*weight.shape, shift=number)))
            found = layer(*(torch.from_numpy(wave(*s, shift=0.5 * i)) for i, s in enumerate(shapes)))
        recorded[name] = [
            [round(float(v), 6) for v in leaf.reshape(-1)[:64]] for leaf in leaves(found) if leaf is not None
        ]
    RECORD.write_text(json.dumps(recorded, indent=0) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
