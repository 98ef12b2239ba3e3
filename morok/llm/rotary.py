"""Rotary position embeddings: the angles of all positions, and how longer contexts scale them."""

from __future__ import annotations

import math

import numpy as np

from morok.errors import FormatError, UnsupportedModel
from morok.llm.config import Rotation
from morok.tensor.sizes import concrete
from morok.tensor.tensor import Tensor

Turns = tuple[Tensor, Tensor]  # cosines and sines, (positions, numbers of a head that turn)


def turns(rotation: Rotation, positions: int, device: str | None = None, longest: int | None = None) -> Turns:
    """Cosines and sines for so many positions, the first half of the numbers paired with the second.
    `longest` is how many of them a text can have."""
    speeds, strength = _speeds(rotation, positions if longest is None else longest)
    angles = np.arange(positions, dtype=np.float64)[:, None] * speeds
    wide = np.concatenate((angles, angles), axis=-1)
    cosines, sines = (
        Tensor((f(wide) * strength).astype(np.float32), device=device) for f in (np.cos, np.sin)
    )
    return cosines, sines


def rotate(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Numbers (…, head) turned by the angles of their positions; what is beyond them stays."""
    dim = concrete(cosines.shape[-1])
    first, second = x[..., : dim // 2], x[..., dim // 2 : dim]
    turned = x[..., :dim] * cosines + (-second).cat(first, dim=-1) * sines
    return turned if dim == concrete(x.shape[-1]) else turned.cat(x[..., dim:], dim=-1)


def _number(rotation: Rotation, key: str, default: float | None = None) -> float:
    value = rotation.options.get(key)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise FormatError(f"rotary embeddings of type {rotation.kind!r} need {key}, which is {value!r}")
    return float(value)


def _speeds(rotation: Rotation, longest: int) -> tuple[np.ndarray, float]:
    """Angles per position, and a factor of all cosines and sines, of texts of so many positions at most."""
    pairs = np.arange(0, rotation.dim, 2, dtype=np.float64) / rotation.dim
    speeds = rotation.base**-pairs
    strength = 1.0
    if rotation.factors is not None:
        speeds = speeds / _fitting(rotation.factors, len(speeds))
    if rotation.kind == "linear":
        speeds = speeds / _number(rotation, "factor")
    elif rotation.kind == "llama3" and rotation.factors is None:
        speeds = _llama3(rotation, speeds)
    elif rotation.kind == "yarn":
        speeds, strength = _yarn(rotation, speeds)
    elif rotation.kind == "longrope":
        return _long(rotation, speeds, longest)
    elif rotation.kind not in ("none", "llama3"):
        raise UnsupportedModel(
            f"there are no rotary embeddings of type {rotation.kind!r}; linear, llama3, yarn, longrope are"
        )
    return speeds, strength * _number(rotation, "attn_factor", 1.0)  # which GGUF has beside its own


def _fitting(factors: object, count: int) -> np.ndarray:
    found = np.asarray(factors, dtype=np.float64).reshape(-1)
    if len(found) != count or not np.all(np.isfinite(found)) or np.any(found == 0):
        raise FormatError(f"rotary embeddings have {len(found)} factors for {count} pairs")
    return found


def _llama3(rotation: Rotation, speeds: np.ndarray) -> np.ndarray:
    """Slow turns are slowed further, fast ones stay, with a passage between."""
    factor, low, high = (_number(rotation, k) for k in ("factor", "low_freq_factor", "high_freq_factor"))
    original = _number(rotation, "original_max_position_embeddings")
    waves = 2 * math.pi / speeds
    between = np.clip((original / waves - low) / (high - low), 0.0, 1.0)
    found: np.ndarray = (1 - between) * speeds / factor + between * speeds
    return found


def _yarn(rotation: Rotation, speeds: np.ndarray) -> tuple[np.ndarray, float]:
    """Pairs that turn often within the original context stay, those that turn less than once are slowed."""
    factor = _number(rotation, "factor")
    original = _number(rotation, "original_max_position_embeddings")
    fast, slow = _number(rotation, "beta_fast", 32.0), _number(rotation, "beta_slow", 1.0)

    def pair_of(turning: float) -> float:
        return rotation.dim * math.log(original / (turning * 2 * math.pi)) / (2 * math.log(rotation.base))

    whole = rotation.options.get("truncate") is not False
    low, high = pair_of(fast), pair_of(slow)
    first = max(math.floor(low) if whole else low, 0)
    last = min(math.ceil(high) if whole else high, rotation.dim - 1)
    stays = 1 - np.clip((np.arange(len(speeds)) - first) / max(last - first, 0.001), 0, 1)
    strength = rotation.options.get("attention_factor")
    if not isinstance(strength, int | float):
        own, all_dim = (_number(rotation, key, 0.0) for key in ("mscale", "mscale_all_dim"))
        growth = 0.1 * math.log(factor) if factor > 1 else 0.0
        strength = (growth * own + 1) / (growth * all_dim + 1) if own and all_dim else growth + 1
    return speeds / factor * (1 - stays) + speeds * stays, float(strength)


def _long(rotation: Rotation, speeds: np.ndarray, longest: int) -> tuple[np.ndarray, float]:
    """A factor per pair, others for contexts beyond the original one."""
    original = _number(rotation, "original_max_position_embeddings")
    most = _number(rotation, "max_position_embeddings", float(longest))
    name = "long_factor" if longest > original else "short_factor"
    factors = _fitting(rotation.options.get(name, ()), len(speeds))
    strength = rotation.options.get("attention_factor", rotation.options.get("attn_factor"))
    if not isinstance(strength, int | float):
        scale = _number(rotation, "factor", most / original)
        strength = 1.0 if scale <= 1 else math.sqrt(1 + math.log(scale) / math.log(original))
    return speeds / factors, float(strength)
