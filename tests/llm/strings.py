"""Texts that tokenizers cut in different ways: a thousand, always the same."""

import numpy as np

_PARTS = [
    " ", "  ", "\n", "\n\n", "\t", "the", "The", " quick", "brown", "don't", "I'LL", "we've", "'s", "1", "42",
    "12345", "3.14", "über", "naïve", "日本語", "你好", "안녕", "привет", "مرحبا", "🎉", "👩‍👩‍👧", "é",
    "e\u0301", "--", "...", "!?", "(", ")", "{}", "def f(x):", "http://a.b/c?d=e", "_x_", "A1b2",
    "<|im_start|>", "<|im_end|>", "<s>", "\u00a0", "\u200b", "ﬁ", "½", "\r\n", "$€", "@#",
]  # fmt: skip


def texts(count: int = 1000) -> list[str]:
    rng = np.random.default_rng(7)
    return [
        "".join(_PARTS[i] for i in rng.integers(0, len(_PARTS), rng.integers(1, 14))) for _ in range(count)
    ]
