"""The next token: the likeliest, or one drawn from what a few limits leave of the distribution."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import final

import numpy as np

from morok.errors import ArgumentError

WINDOW = 64  # last tokens that a penalty looks at


@final
@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen. A temperature of 0 takes the likeliest, always the same one."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    seed: int | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict)  # by token, added before anything else

    def __post_init__(self) -> None:
        limits = (
            ("temperature", 0.0, 100.0),
            ("top_p", 0.0, 1.0),
            ("min_p", 0.0, 1.0),
            ("repetition_penalty", 0.01, 100.0),
            ("frequency_penalty", -10.0, 10.0),
            ("presence_penalty", -10.0, 10.0),
            ("top_k", 0, 1 << 31),
        )
        for name, low, high in limits:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
                raise ArgumentError(f"{name} must be a number from {low} to {high}, not {value!r}")
        if self.seed is not None and (isinstance(self.seed, bool) or not isinstance(self.seed, int)):
            raise ArgumentError(f"seed must be a whole number, not {self.seed!r}")
        for token, value in self.logit_bias.items():
            if token < 0 or isinstance(value, bool | str | None) or not -100 <= value <= 100:
                raise ArgumentError(f"logit_bias must be numbers from -100 to 100 by token, not {value!r}")


@final
class Sampler:
    """Chooses tokens of one text, one after the other."""

    def __init__(self, options: Sampling) -> None:
        self.options = options
        seed = options.seed
        self.random = np.random.default_rng(None if seed is None else seed & ((1 << 64) - 1))

    def choose(self, logits: np.ndarray, before: Sequence[int]) -> int:
        """The next token after those before."""
        o = self.options
        logits = self._penalized(logits, before)
        if not o.temperature:
            return int(logits.argmax())
        scaled = logits.astype(np.float64) / o.temperature
        order = np.argsort(-scaled, kind="stable")
        if o.top_k:
            order = order[: o.top_k]
        kept = scaled[order]
        shares = np.exp(kept - kept[0])
        shares /= shares.sum()
        count = len(shares)
        if o.top_p < 1.0:
            count = int(np.searchsorted(np.cumsum(shares), o.top_p)) + 1
        if o.min_p:
            count = min(count, int((shares >= o.min_p * shares[0]).sum()))
        shares = shares[: max(1, count)]
        drawn = self.random.random() * shares.sum()
        at = min(int(np.searchsorted(np.cumsum(shares), drawn, side="right")), len(shares) - 1)
        return int(order[at])

    def _penalized(self, logits: np.ndarray, before: Sequence[int]) -> np.ndarray:
        o = self.options
        if o.logit_bias:
            logits = logits.copy()
            for token, value in o.logit_bias.items():
                if token < len(logits):
                    logits[token] += value
        plain = o.repetition_penalty == 1.0 and not o.frequency_penalty and not o.presence_penalty
        if plain or not len(before):
            return logits
        tokens, counts = np.unique(np.asarray(before[-WINDOW:]), return_counts=True)
        logits = logits.copy()
        seen = logits[tokens]
        seen = np.where(seen > 0, seen / o.repetition_penalty, seen * o.repetition_penalty)
        logits[tokens] = seen - counts * o.frequency_penalty - o.presence_penalty
        return logits


def log_shares(logits: np.ndarray) -> np.ndarray:
    """Logarithms of the probabilities."""
    wide = logits.astype(np.float64)
    wide -= wide.max()
    found: np.ndarray = wide - np.log(np.exp(wide).sum())
    return found
