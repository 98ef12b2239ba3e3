"""What a model is: its sizes, and the choices by which architectures differ, as its file tells them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, final

from morok.errors import FormatError, UnsupportedModel

MOST = 1 << 24  # of any size; no model comes near, and a file that says more is wrong


@final
@dataclass(frozen=True)
class Rotation:
    """How positions turn pairs of numbers of a head: angles are position · base^(-2i/dim) · factor_i."""

    base: float
    dim: int
    kind: str = "none"  # of the scaling: none, linear, llama3, yarn, longrope
    options: Mapping[str, Any] = field(default_factory=dict)
    factors: tuple[float, ...] | None = None  # divide the angles, one per pair


@final
@dataclass(frozen=True)
class Config:
    """A model's sizes and choices."""

    architecture: str
    vocabulary: int
    layers: int
    width: int
    heads: int
    groups: int  # of heads that share keys and values
    head: int
    hidden: int
    context: int
    eps: float
    rotation: Rotation | None
    local_rotation: Rotation | None = None  # of layers with a window, where it is another one
    window: int = 0
    windowed: tuple[bool, ...] = ()  # which layers look at a window only
    scale: float = 0.0  # of scores; 0: 1 / sqrt(head)
    score_cap: float = 0.0
    logit_cap: float = 0.0
    embedding_scale: float = 1.0
    layer_norm: bool = False  # with means and biases, instead of the root mean square
    activation: str = "silu"
    gated: bool = True
    experts: int = 0
    experts_used: int = 0
    experts_hidden: int = 0
    normalized_experts: bool = True
    name: str = ""

    @property
    def score_scale(self) -> float:
        return self.scale or 1 / math.sqrt(self.head)

    def has_window(self, layer: int) -> bool:
        return bool(self.window) and (not self.windowed or self.windowed[layer])


# architecture → what its files do not say
CHOICES: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {},
    "mixtral": {},
    "qwen2": {},
    "qwen3": {},
    "qwen3moe": {},
    "phi3": {},
    "gemma2": {"activation": "gelu_tanh"},
    "gemma3": {"activation": "gelu_tanh"},
    "gpt2": {"activation": "gelu_tanh", "layer_norm": True, "gated": False},
}


def supported() -> str:
    return ", ".join(sorted(CHOICES))


class _Facts:
    """Metadata by key, each checked as it is read."""

    def __init__(self, data: Mapping[str, Any], prefix: str = "") -> None:
        self.data, self.prefix = data, prefix

    def has(self, key: str) -> bool:
        return self.data.get(self.prefix + key) is not None

    def size(self, key: str, default: int | None = None, least: int = 1) -> int:
        value = self.data.get(self.prefix + key)
        value = default if value is None else value
        if isinstance(value, list) and value and all(v == value[0] for v in value):
            value = value[0]
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= MOST:
            raise FormatError(f"the model's {self.prefix}{key} is {value!r}; a size is needed")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self.data.get(self.prefix + key)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise FormatError(f"the model's {self.prefix}{key} is {value!r}; a number is needed")
        return float(value)


def _checked(config: Config) -> Config:
    if config.heads % config.groups:
        raise FormatError(f"{config.groups} groups of keys do not divide the model's {config.heads} heads")
    if config.experts and not 1 <= config.experts_used <= config.experts:
        raise FormatError(f"a model with {config.experts} experts cannot use {config.experts_used} at once")
    for rotation in (config.rotation, config.local_rotation):
        if rotation is not None and (rotation.dim > config.head or rotation.dim % 2 or rotation.base <= 0):
            raise FormatError(f"{rotation.dim} numbers of a head of {config.head} cannot be rotated")
    return config


def from_gguf(metadata: Mapping[str, Any], vocabulary: int) -> Config:
    """The model that the metadata of a GGUF file describe."""
    name = metadata.get("general.architecture")
    if name not in CHOICES:
        raise UnsupportedModel(f"the file's architecture is {name!r}; there are {supported()}")
    facts = _Facts(metadata, f"{name}.")
    width, heads = facts.size("embedding_length"), facts.size("attention.head_count")
    head = facts.size("attention.key_length", max(1, width // heads))
    layers = facts.size("block_count")
    window = facts.size("attention.sliding_window", 0, 0)
    rotation = None
    if name != "gpt2":
        rotation = _rotation_of_gguf(facts, head)
    choices = dict(CHOICES[name])
    eps = "attention.layer_norm_epsilon" if name == "gpt2" else "attention.layer_norm_rms_epsilon"
    if name in ("gemma2", "gemma3"):
        choices |= _gemma(name, width, heads, head, layers, window)
        choices["score_cap"] = facts.number("attn_logit_softcapping", 50.0 if name == "gemma2" else 0.0)
        choices["logit_cap"] = facts.number("final_logit_softcapping", 30.0 if name == "gemma2" else 0.0)
    if facts.has("expert_count"):
        choices["experts"] = facts.size("expert_count", 0, 0)
        choices["experts_used"] = facts.size("expert_used_count", 0, 0)
        choices["experts_hidden"] = facts.size(
            "expert_feed_forward_length", facts.size("feed_forward_length")
        )
    return _checked(
        Config(
            architecture=name,
            vocabulary=facts.size("vocab_size", vocabulary),
            layers=layers,
            width=width,
            heads=heads,
            groups=facts.size("attention.head_count_kv", heads),
            head=head,
            hidden=facts.size("feed_forward_length"),
            context=facts.size("context_length"),
            eps=facts.number(eps),
            rotation=rotation,
            window=window,
            name=str(metadata.get("general.name", name)),
            **choices,
        )
    )


def _rotation_of_gguf(facts: _Facts, head: int) -> Rotation:
    """Rotary embeddings as metadata have them; older files have the factor of linear ones alone."""
    old = facts.number("rope.scale_linear", 1.0)
    kind = str(facts.data.get(f"{facts.prefix}rope.scaling.type") or ("none" if old == 1.0 else "linear"))
    original = facts.size("rope.scaling.original_context_length", 0, 0) or facts.size("context_length")
    options: dict[str, Any] = {"original_max_position_embeddings": original}
    if kind in ("linear", "yarn"):
        options["factor"] = old
    for key, name in (
        ("factor", "factor"), ("attn_factor", "attn_factor"),
        ("yarn_beta_fast", "beta_fast"), ("yarn_beta_slow", "beta_slow"),
    ):  # fmt: skip
        if facts.has(f"rope.scaling.{key}"):
            options[name] = facts.number(f"rope.scaling.{key}")
    dim = facts.size("rope.dimension_count", head)
    return Rotation(facts.number("rope.freq_base", 10000.0), dim, kind, options)


def _gemma(name: str, width: int, heads: int, head: int, layers: int, window: int) -> dict[str, Any]:
    """What Gemma's files leave to the reader: which layers have a window, and how scores are scaled."""
    every = 2 if name == "gemma2" else 6
    large = layers == (46 if name == "gemma2" else 62)  # of 27 billion parameters
    found: dict[str, Any] = {
        "windowed": tuple(bool((i + 1) % every) for i in range(layers)) if window else (),
        "embedding_scale": math.sqrt(width),
        "scale": 1 / math.sqrt(width / heads if large else head),
    }
    if name == "gemma3":
        found["local_rotation"] = Rotation(10000.0, head)
    return found


# --- config.json, as transformers writes it

_MODEL_TYPES = {
    "llama": "llama", "mistral": "mistral", "mixtral": "mixtral", "qwen2": "qwen2", "qwen3": "qwen3",
    "qwen3_moe": "qwen3moe", "phi3": "phi3", "gemma2": "gemma2", "gemma3_text": "gemma3", "gemma3": "gemma3",
    "gpt2": "gpt2", "smollm": "llama",
}  # fmt: skip

# model_type → what transformers takes where a config.json does not say, if that is not what others take
_LEFT_OUT: dict[str, dict[str, Any]] = {
    "mistral": {"num_key_value_heads": 8, "sliding_window": 4096, "max_position_embeddings": 131072},
    "mixtral": {"num_key_value_heads": 8, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5,
                "rope_theta": 1e6, "num_local_experts": 8, "num_experts_per_tok": 2},
    "qwen2": {"num_key_value_heads": 32, "max_position_embeddings": 32768, "max_window_layers": 28},
    "qwen3": {"num_key_value_heads": 32, "max_position_embeddings": 32768, "max_window_layers": 28,
              "head_dim": 128},
    "qwen3_moe": {"num_key_value_heads": 4, "max_position_embeddings": 32768, "num_experts": 128,
                  "num_experts_per_tok": 8, "moe_intermediate_size": 768},
    "phi3": {"max_position_embeddings": 4096, "original_max_position_embeddings": 4096, "rms_norm_eps": 1e-5},
    "gemma2": {"vocab_size": 256000, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
               "query_pre_attn_scalar": 256, "sliding_window": 4096, "max_position_embeddings": 8192,
               "hidden_activation": "gelu_pytorch_tanh", "attn_logit_softcapping": 50.0,
               "final_logit_softcapping": 30.0},
    "gemma3_text": {"vocab_size": 262208, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
                    "query_pre_attn_scalar": 256, "sliding_window": 4096, "max_position_embeddings": 131072,
                    "hidden_activation": "gelu_pytorch_tanh", "rope_theta": 1e6},
}  # fmt: skip
_LEFT_OUT["gemma3"] = _LEFT_OUT["gemma3_text"]

_ACTIVATIONS = {
    "silu": "silu", "swish": "silu", "gelu": "gelu", "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}  # fmt: skip


def from_json(data: Mapping[str, Any]) -> Config:
    """The model that a config.json describes."""
    kind = data.get("model_type")
    name = _MODEL_TYPES.get(str(kind))
    if name is None:
        raise UnsupportedModel(f"config.json's model_type is {kind!r}; there are {', '.join(_MODEL_TYPES)}")
    inner = data.get("text_config") if kind == "gemma3" else None
    data = _LEFT_OUT.get(str(kind), {}) | dict(inner if isinstance(inner, Mapping) else data)
    facts = _Facts(data)
    if name == "gpt2":
        return _checked(_gpt2(facts))
    width, heads = facts.size("hidden_size"), facts.size("num_attention_heads")
    head = facts.size("head_dim", width // heads)
    layers, window = facts.size("num_hidden_layers"), facts.size("sliding_window", 0, 0)
    if name.startswith("qwen") and not data.get("use_sliding_window"):
        window = 0
    types = data.get("layer_types")
    windowed = tuple(t == "sliding_attention" for t in types) if isinstance(types, list) else ()
    if not windowed and facts.has("max_window_layers"):
        first = facts.size("max_window_layers", least=0)
        windowed = tuple(i >= first for i in range(layers))
    elif not windowed and name == "gemma3":
        every = facts.size("sliding_window_pattern", 6)
        windowed = tuple(bool((i + 1) % every) for i in range(layers))
    if window and windowed and len(windowed) != layers:
        raise FormatError(f"config.json has {len(windowed)} layer_types for {layers} layers")
    choices: dict[str, Any] = {}
    if name in ("gemma2", "gemma3"):
        choices |= _gemma(name, width, heads, head, layers, window)
        choices["scale"] = facts.number("query_pre_attn_scalar", float(head)) ** -0.5
        choices["score_cap"] = facts.number("attn_logit_softcapping", 0.0)
        choices["logit_cap"] = facts.number("final_logit_softcapping", 0.0)
        if name == "gemma3":
            choices["local_rotation"] = _rotation(data, head, "sliding_attention", "rope_local_base_freq")
    if windowed:
        choices["windowed"] = windowed
    if name in ("mixtral", "qwen3moe"):
        choices["experts"] = facts.size(
            "num_local_experts" if facts.has("num_local_experts") else "num_experts"
        )
        choices["experts_used"] = facts.size("num_experts_per_tok")
        choices["experts_hidden"] = facts.size("moe_intermediate_size", facts.size("intermediate_size"))
        choices["normalized_experts"] = name == "mixtral" or bool(data.get("norm_topk_prob"))
    activation = data.get("hidden_activation") or data.get("hidden_act") or "silu"
    return _checked(
        Config(
            architecture=name,
            vocabulary=facts.size("vocab_size"),
            layers=layers,
            width=width,
            heads=heads,
            groups=facts.size("num_key_value_heads", heads),
            head=head,
            hidden=facts.size("intermediate_size"),
            context=facts.size("max_position_embeddings", 2048),
            eps=facts.number("rms_norm_eps", 1e-6),
            rotation=_rotation(data, head, "full_attention", "rope_theta"),
            window=window,
            activation=_activation(activation),
            name=str(data.get("_name_or_path") or name),
            **choices,
        )
    )


def _activation(name: object) -> str:
    found = _ACTIVATIONS.get(str(name))
    if found is None:
        raise UnsupportedModel(f"config.json's activation is {name!r}; there are {', '.join(_ACTIVATIONS)}")
    return found


def _rotation(data: Mapping[str, Any], head: int, kind: str, base_key: str) -> Rotation:
    """Rotary embeddings by either of the notations that config.json has had."""
    found = data.get("rope_parameters") or data.get("rope_scaling") or {}
    if not isinstance(found, Mapping):
        raise FormatError(f"config.json's rope_parameters are {found!r}")
    nested = found.get(kind)
    options = (
        dict(nested) if isinstance(nested, Mapping) else {} if kind == "sliding_attention" else dict(found)
    )
    default = 10000.0
    base = options.get("rope_theta", data.get(base_key, default))
    partial = 1.0
    if data.get("model_type") == "phi3":  # of the others transformers turns whole heads, whatever is said
        partial = options.get("partial_rotary_factor", data.get("partial_rotary_factor", 1.0))
    if not isinstance(base, int | float) or not isinstance(partial, int | float):
        raise FormatError(
            f"config.json's rotary embeddings have a base of {base!r} and a part of {partial!r}"
        )
    name = str(options.get("rope_type", options.get("type", "none")))
    name = {"default": "none", "su": "longrope"}.get(name, name)
    longest, original = "max_position_embeddings", "original_max_position_embeddings"
    if isinstance(data.get(longest), int):
        options.setdefault(longest, data[longest])
        options.setdefault(original, data[longest])
    if isinstance(data.get(original), int):
        options[original] = data[original]
    return Rotation(float(base), int(head * partial), name, options)


def _gpt2(facts: _Facts) -> Config:
    width, heads = facts.size("n_embd"), facts.size("n_head")
    data, choices = facts.data, dict(CHOICES["gpt2"])
    if data.get("scale_attn_by_inverse_layer_idx"):
        raise UnsupportedModel("config.json scales scores by the number of the layer, which is not there")
    if data.get("scale_attn_weights") is False:
        choices["scale"] = 1.0
    choices["activation"] = _activation(data.get("activation_function") or "gelu_new")
    return Config(
        architecture="gpt2",
        vocabulary=facts.size("vocab_size"),
        layers=facts.size("n_layer"),
        width=width,
        heads=heads,
        groups=heads,
        head=max(1, width // heads),
        hidden=facts.size("n_inner", 4 * width),
        context=facts.size("n_positions", 1024),
        eps=facts.number("layer_norm_epsilon", 1e-5),
        rotation=None,
        **choices,
    )
