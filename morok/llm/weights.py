"""Weights of models from their files, under the names that GGUF has for them."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from morok import dtype as dt
from morok.dtype import DType
from morok.errors import FormatError, UnsupportedModel
from morok.llm.as_bytes import EXACT
from morok.llm.config import Config
from morok.llm.groups import SUFFIXES, Grouped, matrix_of
from morok.llm.matrix import Matrix, Plain, Stack, pack, pack_stack, stacked
from morok.nn.gguf import Entry, read_gguf
from morok.nn.safetensors import load_safetensors
from morok.tensor.sizes import concrete
from morok.tensor.tensor import Tensor

MOST_CONFIG_BYTES = 64 << 20  # of a JSON file


# --- GGUF


def read_parts(path: str) -> tuple[dict[str, Entry], dict[str, Any]]:
    """A file, or all of a model that was split into several, of which any is named."""
    entries, metadata = read_gguf(path)
    count = metadata.get("split.count", 0)
    if type(count) is not int or count < 2:
        return entries, metadata
    cut = re.fullmatch(r"(.*-)(\d{5})(-of-(\d{5})\.gguf)", path, re.DOTALL)
    if cut is None or int(cut[4]) != count:
        ends = f"-00001-of-{count:05}.gguf"
        raise FormatError(f"{os.path.basename(path)} is one of {count} files, whose names must end in {ends}")
    found: dict[str, Entry] = {}
    for number in range(1, count + 1):
        name = f"{cut[1]}{number:05}{cut[3]}"
        if not os.path.exists(name):
            raise FormatError(f"{os.path.basename(path)} is one of {count} files, and {name} is not there")
        entries, data = read_gguf(name)
        metadata = data if number == 1 else metadata
        twice = next((n for n in entries if n in found), None)
        if twice is not None or data.get("split.count") != count:
            raise FormatError(f"{os.path.basename(name)} is not a part of the same model")
        found |= entries
    return found, metadata


def weights_of_gguf(
    entries: Mapping[str, Entry], config: Config, device: str | None = None, digits: int = EXACT
) -> dict[str, Any]:
    """All weights of a file: vectors as tensors, matrices packed or plain, experts as lists of matrices.

    Packed matrices that are multiplied with the same numbers become one.
    """
    found: dict[str, Any] = {}
    together = {name: names for names in _joined(entries, config) for name in names}
    for name, entry in entries.items():
        names = together.get(name)
        if names is not None:
            if name == names[0]:
                raw = np.concatenate([_raw(entries[n], _order(n, config)) for n in names])
                assert not isinstance(entry.kind, DType)
                found[_join_name(name)] = pack(entry.kind, raw, device, digits)
        elif len(entry.shape) == 3:
            found[name] = _stack(entry, device, digits)
        elif len(entry.shape) == 2:
            found[name] = _matrix(entry, _order(name, config), device, digits)
        else:
            found[name] = _vector(entry, _order(name, config), device)
    for name in [n for n in found if n.endswith("attn_qkv.weight")]:
        stem = name.removesuffix("attn_qkv.weight")
        biases = [found.pop(f"{stem}attn_{kind}.bias", None) for kind in "qkv"]
        if all(b is not None for b in biases):
            found[f"{stem}attn_qkv.bias"] = biases[0].cat(*biases[1:]).contiguous().realize()
    return found


_TOGETHER = (("attn_q", "attn_k", "attn_v"), ("ffn_gate", "ffn_up"))


def _joined(entries: Mapping[str, Entry], config: Config) -> list[tuple[str, ...]]:
    """Names of matrices that can be one: of one format, with as many columns as the model is wide."""
    found = []
    for layer in range(config.layers):
        for kinds in _TOGETHER:
            names = tuple(f"blk.{layer}.{kind}.weight" for kind in kinds)
            parts = [entries.get(n) for n in names]
            biases = [n.replace("weight", "bias") in entries for n in names]
            packed = [e for e in parts if e is not None and not isinstance(e.kind, DType)]
            same = len({(id(e.kind), e.shape[-1], len(e.shape)) for e in packed}) == 1
            fits = same and len(packed) == len(names) and len(packed[0].shape) == 2
            expected = _rows(kinds, config)
            whole = fits and [e.shape[0] for e in packed] == expected and packed[0].shape[1] == config.width
            if whole and (not any(biases) or (all(biases) and len(kinds) == 3)):
                found.append(names)
    return found


def _rows(kinds: tuple[str, ...], config: Config) -> list[int]:
    if len(kinds) == 3:
        return [n * config.head for n in (config.heads, config.groups, config.groups)]
    return [config.hidden] * 2


def _join_name(name: str) -> str:
    """What the joined matrix is called: as in files where it is one."""
    return name.replace("attn_q.", "attn_qkv.").replace("ffn_gate.", "ffn_up.")


def _order(name: str, config: Config) -> np.ndarray | None:
    return _halves_order(name, config) if config.architecture == "llama" else None


def _halves_order(name: str, config: Config) -> np.ndarray | None:
    """Llama's files pair neighbouring numbers of a head; with rows in this order halves are paired."""
    kind = re.fullmatch(r"blk\.\d+\.attn_([qk])\.(weight|bias)", name)
    if kind is None or config.rotation is None:
        return None
    heads = config.heads if kind[1] == "q" else config.groups
    dim = config.rotation.dim
    one = np.concatenate((np.arange(0, dim, 2), np.arange(1, dim, 2), np.arange(dim, config.head)))
    return (np.arange(heads)[:, None] * config.head + one).reshape(-1)


def _vector(entry: Entry, order: np.ndarray | None, device: str | None) -> Tensor:
    """In float32. Most vectors are that already, and need no kernel."""
    if entry.kind is dt.float32:
        raw = np.frombuffer(entry.file.data, "<f4", math.prod(entry.shape), entry.offset).reshape(entry.shape)
        return Tensor(raw if order is None else raw[order], device=device)
    value = entry.tensor(device).cast(dt.float32)
    return (value if order is None else value[Tensor(order, device=device)]).contiguous().realize()


def _stack(entry: Entry, device: str | None, digits: int) -> Stack:
    """An array of matrices."""
    count, rows, columns = entry.shape
    if isinstance(entry.kind, DType):
        return Stack(Plain(entry.tensor(device)), count, (rows, columns))
    flat = replace(entry, shape=(count * rows, columns))
    return pack_stack(entry.kind, _raw(flat, None).reshape(count, rows, -1, entry.kind.bytes), device, digits)


def _matrix(entry: Entry, order: np.ndarray | None, device: str | None, digits: int) -> Matrix:
    if isinstance(entry.kind, DType):
        _check_order(entry, order)
        value = entry.tensor(device)
        return Plain(value if order is None else value[Tensor(order, device=device)].contiguous().realize())
    return pack(entry.kind, _raw(entry, order), device, digits)


def _check_order(entry: Entry, order: np.ndarray | None) -> None:
    if order is not None and len(order) != entry.shape[0]:
        raise FormatError(
            f"the model's tensor {entry.name!r} has {entry.shape[0]} rows; {len(order)} are needed"
        )


def _raw(entry: Entry, order: np.ndarray | None) -> np.ndarray:
    """The blocks of a matrix: (rows, blocks, bytes), rows in an order."""
    rows, columns = entry.shape
    form = entry.kind
    assert not isinstance(form, DType)
    _check_order(entry, order)
    if not rows * columns:
        raise FormatError(f"the model's tensor {entry.name!r} is empty")
    count = rows * columns // form.numbers * form.bytes
    raw = np.frombuffer(entry.file.data, np.uint8, count, entry.offset)
    raw = raw.reshape(rows, columns // form.numbers, form.bytes)
    return raw if order is None else raw[order]


# --- folders with safetensors

_WHOLE = {
    "embed_tokens.weight": "token_embd.weight",
    "norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    "wte.weight": "token_embd.weight",
    "wpe.weight": "position_embd.weight",
    "ln_f.weight": "output_norm.weight",
    "ln_f.bias": "output_norm.bias",
}
_OF_LAYERS = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
    "block_sparse_moe.gate": "ffn_gate_inp",
    "ln_1": "attn_norm",
    "ln_2": "ffn_norm",
    "attn.c_attn": "attn_qkv",
    "attn.c_proj": "attn_output",
    "mlp.c_fc": "ffn_up",
    "mlp.c_proj": "ffn_down",
}
_EXPERT = re.compile(
    r"(?:block_sparse_moe|mlp)\.experts\.(\d+)\.(w1|w2|w3|gate_proj|up_proj|down_proj)\.weight"
)
_EXPERT_KINDS = {"w1": "gate", "w3": "up", "w2": "down"}
_LAYER = re.compile(r"(?:layers|h)\.(\d+)\.(.+)")
_PREFIXES = ("model.language_model.", "language_model.model.", "model.", "transformer.", "language_model.")


def name_of(name: str, config: Config) -> str | None:
    """GGUF's name for a tensor of a folder; None if the model does not need it."""
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    if name in _WHOLE:
        return _WHOLE[name]
    found = _LAYER.fullmatch(name)
    if found is None:
        return None
    layer, rest = f"blk.{found[1]}", found[2]
    expert = _EXPERT.fullmatch(rest)
    if expert is not None:
        kind = _EXPERT_KINDS.get(expert[2], expert[2].removesuffix("_proj"))
        return f"{layer}.ffn_{kind}_exps.weight.{expert[1]}"
    stem, _, kind = rest.rpartition(".")
    if kind not in ("weight", "bias") or stem not in _OF_LAYERS:
        return None
    new = _OF_LAYERS[stem]
    if stem == "post_attention_layernorm" and config.architecture in ("gemma2", "gemma3"):
        new = "post_attention_norm"
    return f"{layer}.{new}.{kind}"


def _files(folder: str) -> list[str]:
    """The files with a folder's weights: those that its index names, or all."""
    index = os.path.join(folder, "model.safetensors.index.json")
    if not os.path.exists(index):
        found = sorted(f for f in os.listdir(folder) if f.endswith(".safetensors"))
        if not found:
            raise FormatError(f"{folder} has no safetensors files")
        return found
    names = read_json(index).get("weight_map")
    if not isinstance(names, dict) or not names or not all(isinstance(f, str) for f in names.values()):
        raise FormatError(f"{index} has no weight_map of tensors to files")
    found = sorted(set(names.values()))
    for file in found:
        if os.path.basename(file) != file:
            raise FormatError(f"{index} names {file!r}, which is not in its folder")
        if not os.path.exists(os.path.join(folder, file)):
            raise FormatError(f"{folder} lacks {file}, which its index names")
    return found


def weights_of_folder(
    folder: str, config: Config, device: str | None = None, digits: int = EXACT, how: Grouped | None = None
) -> dict[str, Any]:
    """All weights of a folder's safetensors files."""
    found: dict[str, Any] = {}
    experts: dict[str, dict[int, Plain]] = {}
    packed: dict[str, dict[str, Tensor]] = {}
    for file in _files(folder):
        for old, value in load_safetensors(os.path.join(folder, file), device).items():
            layer, _, suffix = old.rpartition(".")
            if how is not None and suffix in SUFFIXES:
                packed.setdefault(layer, {})[suffix] = value
                continue
            name = name_of(old, config)
            if name is None:
                continue
            stem, _, number = name.rpartition(".")
            if number.isdigit():
                experts.setdefault(stem, {})[int(number)] = Plain(value)
                continue
            found[name] = _value(name, value, config)
    for layer, parts in packed.items():
        name = name_of(f"{layer}.weight", config)
        if name is None or name.rpartition(".")[2].isdigit():
            raise UnsupportedModel(f"the model's layer {layer!r} is quantised, which it cannot be here")
        assert how is not None
        found[name] = matrix_of(how, layer, parts, device, digits)
    for stem, matrices in experts.items():
        one = [matrices[i] for i in sorted(matrices)]
        if len({m.shape for m in one}) > 1:
            raise FormatError(f"the model's experts {stem!r} have different shapes")
        found[stem] = stacked(one)
    return found


def _value(name: str, value: Tensor, config: Config) -> Any:
    if len(value.shape) == 1:
        value = value.cast(dt.float32)
        if config.architecture in ("gemma2", "gemma3") and name.endswith("norm.weight"):
            value = value + 1.0  # their norms multiply by 1 + weight
        return value.contiguous().realize()
    if len(value.shape) != 2 or not math.prod(map(concrete, value.shape)):
        raise FormatError(
            f"the model's tensor {name!r} has the shape {tuple(value.shape)}; a matrix is needed"
        )
    transposed = config.architecture == "gpt2" and name.startswith("blk.")
    return Plain(value.T.contiguous().realize() if transposed else value)


def read_json(path: str) -> dict[str, Any]:
    """A JSON file that is one object."""
    try:
        if os.path.getsize(path) > MOST_CONFIG_BYTES:
            raise FormatError(f"{path} is larger than {MOST_CONFIG_BYTES >> 20} MiB")
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
    except OSError as error:
        raise FormatError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise FormatError(f"{path} is not valid JSON") from None
    if not isinstance(found, dict):
        raise FormatError(f"{path} is not a JSON object")
    return found


def with_factors(config: Config, entries: Mapping[str, Entry]) -> Config:
    """The model with the factors of its rotary embeddings, which GGUF has as tensors."""
    rotation = config.rotation
    if rotation is None:
        return config
    options = dict(rotation.options)
    for name, key in (("rope_factors_long", "long_factor"), ("rope_factors_short", "short_factor")):
        if f"{name}.weight" in entries:
            options[key] = entries[f"{name}.weight"].tensor().numpy().reshape(-1).tolist()
    kind = "longrope" if "long_factor" in options else rotation.kind
    factors = None
    if "rope_freqs.weight" in entries:
        factors = tuple(entries["rope_freqs.weight"].tensor().numpy().reshape(-1).tolist())
    if kind == "longrope":
        options.setdefault("max_position_embeddings", config.context)
    new = replace(rotation, kind=kind, options=options, factors=factors)
    return replace(config, rotation=new)
