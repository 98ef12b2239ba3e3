"""Tiny random models for tests: GGUF files written here, byte by byte, and folders by transformers."""

import struct
from pathlib import Path
from typing import Any

import numpy as np

F32, STRING, ARRAY, UINT32, INT32, FLOAT32, BOOL = 0, 8, 9, 4, 5, 6, 7


def text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def value_of(value: Any) -> bytes:
    """A value of metadata with its kind."""
    if isinstance(value, bool):
        return struct.pack("<IB", BOOL, value)
    if isinstance(value, int):
        return struct.pack("<Ii", INT32, value) if value < 0 else struct.pack("<II", UINT32, value)
    if isinstance(value, float):
        return struct.pack("<If", FLOAT32, value)
    if isinstance(value, str):
        return struct.pack("<I", STRING) + text(value)
    kind = {str: STRING, float: FLOAT32, int: INT32}[type(value[0])] if value else INT32
    return struct.pack("<IIQ", ARRAY, kind, len(value)) + b"".join(value_of(v)[4:] for v in value)


def write_gguf(
    path: Path, metadata: dict[str, Any], tensors: dict[str, tuple[int, tuple[int, ...], bytes]]
) -> Path:
    """Tensors are (kind, shape, bytes)."""
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    head += b"".join(text(key) + value_of(value) for key, value in metadata.items())
    blobs = b""
    for name, (kind, shape, data) in tensors.items():
        head += text(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape[::-1])
        head += struct.pack("<IQ", kind, len(blobs))
        blobs += data + bytes(-len(data) % 32)
    path.write_bytes(head + bytes(-len(head) % 32) + blobs)
    return path


def q8_0(x: np.ndarray) -> bytes:
    """Blocks of 32 numbers: a float16 scale, then bytes."""
    groups = x.reshape(-1, 32)
    scale = (np.abs(groups).max(1, keepdims=True) / 127).astype(np.float16)
    codes = np.round(groups / np.maximum(scale.astype(np.float32), 1e-9)).astype(np.int8)
    return np.concatenate((scale.view(np.uint8), codes.view(np.uint8)), axis=1).tobytes()


def decoded_q8_0(x: np.ndarray) -> np.ndarray:
    raw = np.frombuffer(q8_0(x), np.uint8).reshape(-1, 34)
    scale = raw[:, :2].copy().view(np.float16).astype(np.float32)
    return (scale * raw[:, 2:].view(np.int8).astype(np.float32)).reshape(x.shape)


# Bytes as characters, as GPT-2's tokenizer has them: those that can be seen stand for themselves.
SEEN = [*range(33, 127), *range(161, 173), *range(174, 256)]
LETTERS = {b: chr(b) for b in SEEN} | {
    b: chr(256 + i) for i, b in enumerate(b for b in range(256) if b not in SEEN)
}
SPECIAL = ["<|end|>", "<|im_start|>", "<|im_end|>"]
TOKENS = [*SPECIAL, *(LETTERS[b] for b in range(256)), "th", "the", "Ġthe"]
MERGES = ["t h", "th e", "Ġ the"]

LLAMA = {
    "general.architecture": "llama",
    "general.name": "tiny",
    "llama.block_count": 2,
    "llama.context_length": 96,
    "llama.embedding_length": 64,
    "llama.feed_forward_length": 96,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.rope.freq_base": 1000.0,
    "llama.rope.dimension_count": 16,
    "llama.vocab_size": len(TOKENS),
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.tokens": TOKENS,
    "tokenizer.ggml.token_type": [3] * 3 + [1] * (len(TOKENS) - 3),
    "tokenizer.ggml.merges": MERGES,
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
    "tokenizer.ggml.add_bos_token": False,
    "tokenizer.chat_template": "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
}


def llama_weights(seed: int = 0) -> dict[str, np.ndarray]:
    """Random weights of a Llama of these sizes, under GGUF's names."""
    rng = np.random.default_rng(seed)
    width, hidden, keys = 64, 96, 32
    shapes = {"token_embd.weight": (len(TOKENS), width), "output_norm.weight": (width,)}
    for i in range(2):
        shapes |= {
            f"blk.{i}.{name}.weight": shape
            for name, shape in (
                ("attn_norm", (width,)), ("attn_q", (width, width)), ("attn_k", (keys, width)),
                ("attn_v", (keys, width)), ("attn_output", (width, width)), ("ffn_norm", (width,)),
                ("ffn_gate", (hidden, width)), ("ffn_up", (hidden, width)), ("ffn_down", (width, hidden)),
            )
        }  # fmt: skip
    return {
        name: (rng.standard_normal(shape) * (0.15 if len(shape) == 2 else 0.1) + (len(shape) == 1)).astype(
            np.float32
        )
        for name, shape in shapes.items()
    }


def tiny_llama(path: Path, packed: bool = True, seed: int = 0, **changes: Any) -> dict[str, np.ndarray]:
    """Writes the file; the weights as they are in it."""
    weights = llama_weights(seed)
    tensors = {}
    for name, value in weights.items():
        if packed and value.ndim == 2:
            tensors[name] = (8, value.shape, q8_0(value))
            weights[name] = decoded_q8_0(value)
        else:
            tensors[name] = (0, value.shape, value.tobytes())
    write_gguf(path, LLAMA | changes, tensors)
    return weights


def llama_logits(w: dict[str, np.ndarray], tokens: list[int]) -> np.ndarray:
    """What the model says after every token, in float64, by the definition."""
    w = {name: value.astype(np.float64) for name, value in w.items()}
    heads, groups, head, eps = 4, 2, 16, 1e-5

    def norm(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight

    def turned(x: np.ndarray) -> np.ndarray:  # (positions, heads, numbers), neighbours are pairs
        speeds = 1000.0 ** (-np.arange(0, head, 2) / head)
        angles = np.arange(len(x))[:, None, None] * speeds
        a, b = x[..., ::2], x[..., 1::2]
        found = np.empty_like(x)
        found[..., ::2] = a * np.cos(angles) - b * np.sin(angles)
        found[..., 1::2] = a * np.sin(angles) + b * np.cos(angles)
        return found

    x = w["token_embd.weight"][tokens]
    count = len(tokens)
    for i in range(2):
        p = f"blk.{i}."
        h = norm(x, w[p + "attn_norm.weight"])
        q = turned((h @ w[p + "attn_q.weight"].T).reshape(count, heads, head))
        k = turned((h @ w[p + "attn_k.weight"].T).reshape(count, groups, head))
        v = (h @ w[p + "attn_v.weight"].T).reshape(count, groups, head)
        out = np.zeros((count, heads, head))
        for n in range(heads):
            scores = q[:, n] @ k[:, n // (heads // groups)].T / np.sqrt(head)
            scores = np.where(np.tri(count, dtype=bool), scores, -np.inf)
            shares = np.exp(scores - scores.max(-1, keepdims=True))
            out[:, n] = shares / shares.sum(-1, keepdims=True) @ v[:, n // (heads // groups)]
        x = x + out.reshape(count, -1) @ w[p + "attn_output.weight"].T
        h = norm(x, w[p + "ffn_norm.weight"])
        gate = h @ w[p + "ffn_gate.weight"].T
        x = x + (gate / (1 + np.exp(-gate)) * (h @ w[p + "ffn_up.weight"].T)) @ w[p + "ffn_down.weight"].T
    return norm(x, w["output_norm.weight"]) @ w["token_embd.weight"].T
