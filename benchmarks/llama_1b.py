"""A Llama of a billion random parameters as a GGUF file, for `morok bench-llm` and for llama.cpp.

    python benchmarks/llama_1b.py Q8_0 llama-1b.Q8_0.gguf     (or Q4_K, Q4_0, Q6_K, BF16, …)

The shape is Llama 3.2's of that size with a smaller vocabulary. Codes are random bytes and scales small, so
that numbers stay finite; nothing that it writes makes sense.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

from morok.nn.blocks import FORMATS
from tests.llm.files import TOKENS, text, value_of

WIDTH, HIDDEN, LAYERS, HEADS, GROUPS, HEAD, WORDS = 2048, 8192, 16, 32, 8, 64, 32000
SCALES = {"Q8_0": (0,), "Q4_0": (0,), "Q4_1": (0, 2), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}
_BF16 = 30


def shapes() -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {"token_embd.weight": (WORDS, WIDTH), "output_norm.weight": (WIDTH,)}
    for i in range(LAYERS):
        kinds = {
            "attn_norm": (WIDTH,), "ffn_norm": (WIDTH,), "attn_q": (HEADS * HEAD, WIDTH),
            "attn_k": (GROUPS * HEAD, WIDTH), "attn_v": (GROUPS * HEAD, WIDTH),
            "attn_output": (WIDTH, HEADS * HEAD), "ffn_gate": (HIDDEN, WIDTH), "ffn_up": (HIDDEN, WIDTH),
            "ffn_down": (WIDTH, HIDDEN),
        }  # fmt: skip
        found |= {f"blk.{i}.{kind}.weight": shape for kind, shape in kinds.items()}
    return found


def metadata() -> dict[str, object]:
    tokens = [*TOKENS, *(f"<{i}>" for i in range(WORDS - len(TOKENS)))]
    return {
        "general.architecture": "llama", "general.name": "random", "llama.block_count": LAYERS,
        "llama.context_length": 4096, "llama.embedding_length": WIDTH, "llama.feed_forward_length": HIDDEN,
        "llama.attention.head_count": HEADS, "llama.attention.head_count_kv": GROUPS,
        "llama.attention.layer_norm_rms_epsilon": 1e-5, "llama.rope.freq_base": 500000.0,
        "llama.rope.dimension_count": HEAD, "llama.vocab_size": WORDS, "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm", "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3] * 3 + [1] * (WORDS - 3), "tokenizer.ggml.merges": ["t h", "th e"],
        "tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": False,
    }  # fmt: skip


def blobs(name: str) -> Iterator[tuple[str, int, tuple[int, ...], int]]:
    """(tensor, kind, shape, bytes)."""
    kind = _BF16 if name == "BF16" else next(k for k, f in FORMATS.items() if f.name == name)
    for tensor, shape in shapes().items():
        count = int(np.prod(shape))
        if len(shape) == 1:
            yield tensor, 0, shape, 4 * count
        elif name == "BF16":
            yield tensor, kind, shape, 2 * count
        else:
            yield tensor, kind, shape, count // FORMATS[kind].numbers * FORMATS[kind].bytes


def content(name: str, kind: int, size: int, random: np.random.Generator) -> bytes:
    if kind == 0:
        return np.ones(size // 4, np.float32).tobytes()
    if kind == _BF16:
        wide = (random.random(size // 2, np.float32) - 0.5) * 0.05
        return (wide.view(np.uint32) >> 16).astype(np.uint16).tobytes()
    form = FORMATS[kind]
    raw = random.integers(0, 256, (size // form.bytes, form.bytes), np.uint8)
    for at in SCALES[name]:
        scales = (random.random((len(raw), 1)) * 1e-4 + 1e-4).astype(np.float16)
        raw[:, at : at + 2] = scales.view(np.uint8)
    return raw.tobytes()


def main() -> None:
    name, path = sys.argv[1:]
    found, data = list(blobs(name)), metadata()
    head = b"GGUF" + struct.pack("<IQQ", 3, len(found), len(data))
    head += b"".join(text(key) + value_of(value) for key, value in data.items())
    at = 0
    for tensor, kind, shape, size in found:
        head += text(tensor) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape[::-1])
        head += struct.pack("<IQ", kind, at)
        at += size + -size % 32
    random = np.random.default_rng(0)
    with open(path, "wb") as file:
        file.write(head + bytes(-len(head) % 32))
        for _, kind, _, size in found:
            file.write(content(name, kind, size, random) + bytes(-size % 32))


if __name__ == "__main__":
    main()
