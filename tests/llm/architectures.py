"""Tiny random models of every architecture, made by transformers, and the same as GGUF files."""

from __future__ import annotations

import json
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
    return make_of(*MODELS[name], folder)


def make_of(kind: str, more: dict[str, Any], folder: Path) -> Any:
    """The same of a class and its options."""
    import torch
    import transformers

    torch.manual_seed(0)
    if kind == "GPT2Config":
        sizes: dict[str, Any] = {
            "vocab_size": 96,
            "n_embd": 64,
            "n_head": 4,
            "n_layer": 3,
            "n_positions": 128,
        }
        config = transformers.GPT2Config(**(sizes | more))
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


# name → (a model's class and options as above, what the converters write beside sizes)
GGUF: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "llama": ("LlamaConfig", {}, {}),
    "llama tied, biases": MODELS["llama tied, biases"] + ({},),
    "llama 3 scaling": MODELS["llama 3 scaling"] + ({},),
    "llama linear": MODELS["llama linear"] + ({"rope.scaling.type": "linear", "rope.scaling.factor": 2.0},),
    "llama linear, long ago": MODELS["llama linear"] + ({"rope.scale_linear": 2.0},),
    "llama yarn": MODELS["llama yarn"] + ({
        "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 32,
    },),
    "llama yarn of its context": ("LlamaConfig", {"rope_parameters": YARN | {
        "original_max_position_embeddings": 128, "beta_fast": 16.0, "beta_slow": 2.0,
    }}, {
        "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.yarn_beta_fast": 16.0,
        "rope.scaling.yarn_beta_slow": 2.0,
    }),
    "mixtral": MODELS["mixtral"] + ({},),
    "qwen2": MODELS["qwen2"] + ({},),
    "qwen3": MODELS["qwen3"] + ({},),
    "qwen3 moe": MODELS["qwen3 moe"] + ({},),
    "gemma2": ("Gemma2Config", {"head_dim": 32, "sliding_window": 24, "query_pre_attn_scalar": 32}, {
        "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0,
    }),
    "gemma3": ("Gemma3TextConfig", {
        "head_dim": 32, "sliding_window": 24, "query_pre_attn_scalar": 32, "num_hidden_layers": 7,
    }, {}),
    "phi3": MODELS["phi3"] + ({},),
    "phi3 long": MODELS["phi3 long"] + ({"rope.scaling.original_context_length": 32},),
    "gpt2": ("GPT2Config", {}, {}),
}  # fmt: skip


def write_model_gguf(folder: Path, path: Path, more: dict[str, Any]) -> Path:
    """A folder's model as the GGUF file that the converters of others make of it."""
    from morok.llm.config import from_json
    from morok.llm.matrix import Plain, Stack
    from morok.llm.weights import read_json, weights_of_folder

    said = read_json(str(folder / "config.json"))
    config = from_json(said)
    arch = {"mistral": "llama", "mixtral": "llama"}.get(config.architecture, config.architecture)
    tensors = {}
    for name, value in weights_of_folder(str(folder), config).items():
        inner = value.all if isinstance(value, Stack) else value
        array = (inner.numbers if isinstance(inner, Plain) else inner).numpy().astype(np.float32)
        if arch == "llama" and ("attn_q." in name or "attn_k." in name):  # neighbours are pairs
            heads = config.heads if "attn_q." in name else config.groups
            array = array.reshape(heads, 2, config.head // 2, -1).swapaxes(1, 2).reshape(array.shape)
        tensors[name] = (0, array.shape, np.ascontiguousarray(array).tobytes())
    options = config.rotation.options if config.rotation is not None else {}
    if options.get("rope_type") == "llama3":
        tensors["rope_freqs.weight"] = _vector(_llama3_factors(options, config.head))
    if options.get("rope_type") == "longrope":
        for name in ("long", "short"):
            tensors[f"rope_factors_{name}.weight"] = _vector(options[f"{name}_factor"])
        factor, original = config.context / 32, 32
        more = more | {"rope.scaling.attn_factor": float(np.sqrt(1 + np.log(factor) / np.log(original)))}
    norm = "layer_norm_epsilon" if arch == "gpt2" else "layer_norm_rms_epsilon"
    facts: dict[str, Any] = {
        "block_count": config.layers,
        "context_length": config.context,
        "embedding_length": config.width,
        "feed_forward_length": config.hidden,
        "attention.head_count": config.heads,
        "attention.head_count_kv": config.groups,
        f"attention.{norm}": config.eps,
    }
    if config.rotation is not None:
        facts |= {"rope.freq_base": config.rotation.base}
        facts |= {f"attention.{kind}_length": config.head for kind in ("key", "value")}
    if config.window:
        facts["attention.sliding_window"] = config.window
    if config.experts:
        facts |= {"expert_count": config.experts, "expert_used_count": config.experts_used}
        if arch == "qwen3moe":
            facts["expert_feed_forward_length"] = config.experts_hidden
    named = {f"{arch}.{key}": value for key, value in (facts | more).items()}
    return write_gguf(path, {"general.architecture": arch} | named, tensors)


def _vector(values: Any) -> tuple[int, tuple[int, ...], bytes]:
    array = np.asarray(values, np.float32)
    return 0, array.shape, array.tobytes()


def _llama3_factors(options: Any, head: int) -> list[float]:
    """By how much each pair turns slower, as the converter writes it."""
    factor, low, high = (options[k] for k in ("factor", "low_freq_factor", "high_freq_factor"))
    original, found = options["original_max_position_embeddings"], []
    for i in range(0, head, 2):
        wave = 2 * np.pi * options["rope_theta"] ** (i / head)
        if wave < original / high:
            found.append(1.0)
        elif wave > original / low:
            found.append(factor)
        else:
            smooth = (original / wave - low) / (high - low)
            found.append(1 / ((1 - smooth) / factor + smooth))
    return found


# What config.json may say otherwise: name → (a model's class and options, keys that are left out, others).
# transformers reads the same file.
_GEMMA = ("num_attention_heads", "num_key_value_heads", "head_dim", "query_pre_attn_scalar", "layer_types",
          "rope_parameters", "hidden_activation", "max_position_embeddings", "rms_norm_eps")  # fmt: skip
PART = {"rope_type": "default", "rope_theta": 1e4}
_OLD_YARN = {"rope_theta": 5000.0, "rope_scaling": {"type": "yarn", "factor": 4.0}}
_HEADS = {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "sliding_window": 24}
_WINDOWS = {"use_sliding_window": True, "sliding_window": 24, "max_window_layers": 1}
SAID: dict[str, tuple[str, dict[str, Any], tuple[str, ...], dict[str, Any]]] = {
    "yarn, both scales": (
        "LlamaConfig", {"rope_parameters": YARN | {"mscale": 0.7, "mscale_all_dim": 0.4}}, (), {}),
    "yarn, not truncated": ("LlamaConfig", {"rope_parameters": YARN | {"truncate": False}}, (), {}),
    "yarn, long ago": ("LlamaConfig", {}, ("rope_parameters",), _OLD_YARN),
    "a part of heads": (
        "LlamaConfig",
        {"rope_parameters": PART | {"partial_rotary_factor": 0.5}}, (), {}),
    "a part of Phi's heads": (
        "Phi3Config",
        {"rope_parameters": PART | {"partial_rotary_factor": 0.75}}, (), {}),
    "windows of Qwen's last layers": ("Qwen2Config", _WINDOWS, ("layer_types",), {}),
    "heads of Qwen 3": ("Qwen3Config", {"head_dim": 128}, ("head_dim",), {}),
    "experts of Mixtral": (
        "MixtralConfig", {"num_local_experts": 8},
        ("rope_parameters", "rms_norm_eps", "num_local_experts"), {}),
    "a short Gemma 2": ("Gemma2Config", _HEADS, (*_GEMMA, "attn_logit_softcapping"), {}),
    "a short Gemma 3": (
        "Gemma3TextConfig", _HEADS | {"num_hidden_layers": 7}, _GEMMA,
        {"rope_scaling": {"factor": 8.0, "rope_type": "linear"}}),
    "Gemma 3, long ago": (
        "Gemma3TextConfig", {"head_dim": 32, "sliding_window": 24}, ("layer_types",),
        {"sliding_window_pattern": 2}),
    "GPT-2 with another activation": ("GPT2Config", {"activation_function": "gelu"}, (), {}),
    "GPT-2 without scales": ("GPT2Config", {"scale_attn_weights": False}, (), {}),
}  # fmt: skip


def said_otherwise(name: str, folder: Path) -> Any:
    """A model of transformers, read from a folder whose config.json was changed."""
    import torch
    import transformers

    kind, options, dropped, more = SAID[name]
    make_of(kind, options, folder)
    path = folder / "config.json"
    said = json.loads(path.read_text())
    path.write_text(json.dumps({k: v for k, v in said.items() if k not in dropped} | more))
    load = transformers.AutoModelForCausalLM.from_pretrained
    return load(folder, attn_implementation="eager", dtype=torch.float32).eval()
