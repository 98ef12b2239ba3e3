"""Tiny random models of every architecture, made by transformers, and the same as GGUF files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tests.llm.files import write_gguf

TINY: dict[str, Any] = {
    "vocab_size": 96, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128,
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32, "rope_theta": 10000.0,
}  # fmt: skip
YARN = {
    "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "rope_theta": 10000.0,
}  # fmt: skip
LONG = {
    "rope_type": "longrope", "short_factor": [1.0 + 0.1 * i for i in range(8)],
    "long_factor": [1.0 + 0.5 * i for i in range(8)], "rope_theta": 10000.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip

# name → (class of the configuration, what it is told beside the sizes)
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {}),
    "llama tied, biases": ("LlamaConfig", {"tie_word_embeddings": True, "attention_bias": True}),
    "llama 3 scaling": ("LlamaConfig", {"rope_parameters": LLAMA3}),
    "llama linear": (
        "LlamaConfig",
        {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}},
    ),
    "llama yarn": ("LlamaConfig", {"rope_parameters": YARN}),
    "mistral": ("MistralConfig", {"sliding_window": 24, "head_dim": 16}),
    "qwen2": ("Qwen2Config", {}),
    "qwen3": ("Qwen3Config", {"head_dim": 32}),
    "gemma2": ("Gemma2Config", {"head_dim": 32, "sliding_window": 24, "query_pre_attn_scalar": 24}),
    "gemma3": ("Gemma3TextConfig", {"head_dim": 32, "sliding_window": 24, "query_pre_attn_scalar": 24}),
    "phi3": ("Phi3Config", {"sliding_window": 24}),
    "phi3 long": ("Phi3Config", {"rope_parameters": LONG, "original_max_position_embeddings": 32}),
    "mixtral": ("MixtralConfig", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen3 moe": (
        "Qwen3MoeConfig",
        {
            "head_dim": 16,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "norm_topk_prob": True,
        },
    ),
    "gpt2": ("GPT2Config", {}),
}


def make(name: str, folder: Path) -> Any:
    """A random model, saved as a folder of safetensors."""
    import torch
    import transformers

    kind, more = MODELS[name]
    torch.manual_seed(0)
    if kind == "GPT2Config":
        config = transformers.GPT2Config(vocab_size=96, n_embd=64, n_head=4, n_layer=3, n_positions=128)
    else:
        config = getattr(transformers, kind)(**(TINY | more))
    config._attn_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config).float().eval()
    with torch.no_grad():
        for key, value in model.named_parameters():
            if "norm" in key or "ln_" in key or "bias" in key:
                value.add_(torch.randn_like(value) * 0.2)
            else:
                value.copy_(torch.randn_like(value) * 0.12)
    model.save_pretrained(folder)
    return model


def logits(model: Any, tokens: list[int]) -> np.ndarray:
    import torch

    with torch.no_grad():
        found: np.ndarray = model(torch.tensor([tokens])).logits[0].numpy()
    return found


def write_llama_gguf(folder: Path, path: Path) -> Path:
    """A folder's Llama as the GGUF file that the converters of others make of it: neighbours are pairs."""
    from morok.llm.config import from_json
    from morok.llm.matrix import Plain
    from morok.llm.weights import read_json, weights_of_folder

    config = from_json(read_json(str(folder / "config.json")))
    tensors = {}
    for name, value in weights_of_folder(str(folder), config).items():
        array = (value.numbers if isinstance(value, Plain) else value).numpy().astype(np.float32)
        if "attn_q." in name or "attn_k." in name:
            heads = config.heads if "attn_q." in name else config.groups
            array = array.reshape(heads, 2, config.head // 2, -1).swapaxes(1, 2).reshape(array.shape)
        tensors[name] = (0, array.shape, np.ascontiguousarray(array).tobytes())
    metadata = {
        "general.architecture": "llama",
        "llama.block_count": config.layers,
        "llama.context_length": config.context,
        "llama.embedding_length": config.width,
        "llama.feed_forward_length": config.hidden,
        "llama.attention.head_count": config.heads,
        "llama.attention.head_count_kv": config.groups,
        "llama.attention.layer_norm_rms_epsilon": config.eps,
        "llama.rope.freq_base": 10000.0,
    }
    return write_gguf(path, metadata, tensors)
