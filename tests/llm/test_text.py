"""Tokens to texts, one after the other: letters in parts, spaces at beginnings, what tokens stand for."""

from typing import Any

import numpy as np
import pytest

from morok.errors import ArgumentError
from morok.llm.sampling import Sampler, Sampling
from morok.llm.text import Writer
from morok.llm.tokenizer import Tokenizer, tokenizer_of_gguf
from tests.llm import files

pytest.importorskip("tokenizers", reason="texts need the package tokenizers")

WORDS = ["▁is", "▁Paris", ".", "▁", "日"]
PIECES = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), *WORDS]
SPM: dict[str, Any] = {
    "tokenizer.ggml.model": "llama",
    "tokenizer.ggml.tokens": PIECES,
    "tokenizer.ggml.scores": [0.0] * len(PIECES),
    "tokenizer.ggml.token_type": [2, 3, 3, *[6] * 256, *[1] * len(WORDS)],
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
}


def word(text: str) -> int:
    return PIECES.index(text)


def written(tokenizer: Tokenizer, tokens: list[int], before: tuple[int, ...] = ()) -> str:
    writer = Writer(tokenizer, (), before)
    return "".join(writer.add(t)[0] for t in tokens) + writer.rest()


def test_a_continuation_begins_with_its_space() -> None:
    tokenizer = tokenizer_of_gguf(SPM)
    answer = [word("▁Paris"), word("."), word("▁is")]
    assert written(tokenizer, answer, (1, word("▁is"))) == " Paris. is"
    assert written(tokenizer, answer) == "Paris. is"  # a text of its own
    assert written(tokenizer, answer, (word("▁is"), 1)) == " Paris. is"


@pytest.mark.parametrize("text", ["日本語 🎉 x", "é" * 40, "🏳️‍🌈 a", "a" * 100])
def test_letters_in_parts_of_sentence_piece(text: str) -> None:
    tokenizer = tokenizer_of_gguf(SPM)
    tokens = [3 + b for b in text.encode()]
    assert written(tokenizer, tokens, (word("."),)) == text
    assert b"".join(map(tokenizer.bytes_of, tokens)) == text.encode()


def test_texts_of_bytes_at_random() -> None:
    """Whole letters, parts of them and bytes that are none, as Python decodes them."""
    tokenizer = tokenizer_of_gguf(files.LLAMA)
    by_byte = {b: files.TOKENS.index(files.LETTERS[b]) for b in range(256)}
    rng = np.random.default_rng(0)
    for _ in range(200):
        parts = []
        for _ in range(int(rng.integers(1, 60))):
            kind = rng.integers(0, 4)
            if kind == 0:
                parts.append(rng.integers(0, 256, 2, np.uint8).tobytes())
            else:
                parts.append(
                    chr(int(rng.integers(0xA0, (0x7FF, 0xD7FF, 0x1F6FF)[kind - 1]))).encode("utf-8", "ignore")
                )
        raw = b"".join(parts)
        cut = int(rng.integers(0, len(raw) + 1))
        before = tuple(by_byte[b] for b in "wörld ".encode())
        assert written(tokenizer, [by_byte[b] for b in raw[:cut]], before) == raw[:cut].decode(
            errors="replace"
        )
    assert all(tokenizer.bytes_of(t) == bytes([b]) for b, t in by_byte.items())
    assert tokenizer.bytes_of(2) == b"<|im_end|>"


def test_the_last_token_does_not_take_longer_than_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is decoded for a token does not grow with the text."""
    tokenizer = tokenizer_of_gguf(files.LLAMA)
    sizes: list[int] = []
    decode = Tokenizer.decode
    monkeypatch.setattr(
        Tokenizer,
        "decode",
        lambda self, tokens, **o: (sizes.append(len(tokens)), decode(self, tokens, **o))[1],
    )
    tokens = tokenizer.encode("the cat 日本語 sat " * 100)
    assert written(tokenizer, tokens) == "the cat 日本語 sat " * 100
    assert written(tokenizer, [files.TOKENS.index(files.LETTERS[0xE6])] * 500) == "\ufffd" * 500
    assert max(sizes) <= 80


def test_half_a_character_is_refused() -> None:
    with pytest.raises(ArgumentError, match="surrogates"):
        tokenizer_of_gguf(files.LLAMA).encode("a\ud800")


def test_a_bias_of_logits() -> None:
    logits = np.array([0.0, 3.0, 2.0, 1.0], np.float32)
    found = [
        Sampler(Sampling(logit_bias=bias)).choose(logits, []) for bias in ({}, {1: -100}, {3: 2.5, 99: 1})
    ]
    assert found == [1, 2, 3] and logits[3] == 1.0
    for wrong in ({0: 101}, {0: "1"}, {-1: 1}, {0: float("nan")}):
        with pytest.raises(ArgumentError, match="logit_bias"):
            Sampling(logit_bias=wrong)  # type: ignore[arg-type]
