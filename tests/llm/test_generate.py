"""A tiny Llama from a file that the test writes: logits as NumPy computes them, texts, limits, prefixes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from morok.dtype import int8
from morok.errors import ArgumentError
from morok.llm import Model, load
from morok.llm.generate import CHUNK, LARGE
from morok.llm.text import Writer
from tests.llm import files

pytest.importorskip("tokenizers", reason="texts need the package tokenizers")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[Model, dict[str, np.ndarray]]:
    path = tmp_path_factory.mktemp("llm") / "tiny.gguf"
    weights = files.tiny_llama(path)
    return load(path), weights


def test_logits_of_a_prompt_and_of_every_token(tiny: tuple[Model, dict[str, np.ndarray]]) -> None:
    model, weights = tiny
    tokens = [int(t) for t in np.random.default_rng(0).integers(3, len(files.TOKENS), CHUNK + 12)]
    wanted = files.llama_logits(weights, tokens)
    np.testing.assert_allclose(model.score(tokens), wanted, rtol=2e-4, atol=2e-4)
    slot = model.new_slot()
    for count in (CHUNK + 7, CHUNK + 8, CHUNK + 12):  # chunks, then one by one
        np.testing.assert_allclose(
            model.advance(slot, tokens[:count]), wanted[count - 1], rtol=2e-4, atol=2e-4
        )
    other = [*tokens[:20], 5, 6]  # a part of the cache is kept
    wanted = files.llama_logits(weights, other)
    np.testing.assert_allclose(model.advance(slot, other), wanted[-1], rtol=2e-4, atol=2e-4)
    assert model._token.traces == 1 and model._chunk.traces == 1


def test_a_long_prompt_is_read_in_large_chunks(tmp_path: Path) -> None:
    """Up to the end of the context, where the last chunk would be wider than the cache; by an odd prefix."""
    context = LARGE + CHUNK + 30
    changes: dict[str, Any] = {"llama.context_length": context}
    weights = files.tiny_llama(tmp_path / "tiny.gguf", **changes)
    model = load(tmp_path / "tiny.gguf")
    tokens = [int(t) for t in np.random.default_rng(2).integers(3, len(files.TOKENS), context)]
    wanted = files.llama_logits(weights, tokens)
    sizes = [n for n in model._at if n > 1]
    for first, then in ((LARGE + 5, context), (7, LARGE + 20), (CHUNK + 40, context - 1)):
        slot = model.new_slot()
        for count in (first, then):
            np.testing.assert_allclose(
                model.advance(slot, tokens[:count]), wanted[count - 1], rtol=2e-4, atol=2e-4
            )
    assert model._on_host == (sizes == [CHUNK, LARGE])


def test_whoever_writes_waits_for_a_short_chunk(tmp_path: Path) -> None:
    changes: dict[str, Any] = {"llama.context_length": 2 * LARGE}
    files.tiny_llama(tmp_path / "tiny.gguf", **changes)
    model = load(tmp_path / "tiny.gguf")
    slots = [model.new_slot() for _ in range(2)]
    model.advance(slots[0], [5, 6])
    found = model.advance_together([(slots[0], [5, 6, 7]), (slots[1], [5] * (LARGE + 9))])
    assert found[0] is not None and found[1] is None and len(slots[1].tokens) == CHUNK


def test_a_short_prompt_needs_one_plan(tmp_path: Path) -> None:
    """On a processor, where a chunk takes as long as many tokens."""
    weights = files.tiny_llama(tmp_path / "tiny.gguf")
    model = load(tmp_path / "tiny.gguf")
    tokens = [int(t) for t in np.random.default_rng(1).integers(3, len(files.TOKENS), 10)]
    slot = model.new_slot()
    np.testing.assert_allclose(
        model.advance_some(slot, tokens), files.llama_logits(weights, tokens)[-1], rtol=2e-4, atol=2e-4
    )
    assert slot.tokens == tokens and (model._token.traces, model._chunk.traces) == (1, 0)


def greedy(weights: dict[str, np.ndarray], tokens: list[int], count: int) -> list[int]:
    tokens = list(tokens)
    for _ in range(count):
        tokens.append(int(files.llama_logits(weights, tokens)[-1].argmax()))
    return tokens[-count:]


def test_greedy_tokens(tiny: tuple[Model, dict[str, np.ndarray]]) -> None:
    model, weights = tiny
    prompt = model.need_tokenizer().encode("the quick")
    pieces = list(model.stream(prompt, max_tokens=12, ignore_end=True))
    assert [p.token for p in pieces] == greedy(weights, prompt, 12)
    assert pieces[-1].finish_reason == "length" and all(p.finish_reason is None for p in pieces[:-1])
    assert model.generate("the quick", max_tokens=12) == model.generate("the quick", max_tokens=12)


def test_sampling_follows_its_seed(tiny: tuple[Model, dict[str, np.ndarray]]) -> None:
    model, _ = tiny
    options = {"max_tokens": 10, "temperature": 1.0, "top_k": 50, "top_p": 0.95, "min_p": 0.01}
    texts = {model.generate("a", seed=seed, **options) for seed in (1, 1, 1)}
    assert len(texts) == 1
    assert len({model.generate("a", seed=seed, **options) for seed in range(4)}) > 1
    one = list(model.stream("a", max_tokens=3, logprobs=4, ignore_end=True))
    assert all(len(p.top_logprobs) == 4 and p.top_logprobs[0][1] == p.logprob for p in one)  # greedy


def test_the_context_ends_a_text(tiny: tuple[Model, dict[str, np.ndarray]]) -> None:
    model, _ = tiny
    pieces = list(model.stream([5] * 90, ignore_end=True))
    assert len(pieces) == 6 and pieces[-1].finish_reason == "length"
    for prompt, message in (
        ([5] * 96, "95 fit"),
        ([], "empty"),
        ([5, 10**6], "no token 1000000"),
        ("x" * 9999, "fit"),
    ):
        with pytest.raises(ArgumentError, match=message):
            model.generate(prompt)
    for options, message in (
        ({"max_tokens": 0}, "at least 1"),
        ({"temperature": -1}, "temperature"),
        ({"top_p": 2}, "top_p"),
        ({"temprature": 1}, "no option 'temprature'"),
        ({"stop": ""}, "stop must"),
        ({"logprobs": 99}, "logprobs"),
    ):
        with pytest.raises(ArgumentError, match=message):
            model.generate("a", **options)


def test_stop_texts_and_letters_of_several_tokens(tiny: tuple[Model, dict[str, np.ndarray]]) -> None:
    model, _ = tiny
    tokenizer = model.need_tokenizer()
    tokens = tokenizer.encode("héllo wörld STOP here")
    writer = Writer(tokenizer, ("STOP",))
    found, stopped = "", False
    for token in tokens:
        piece, stopped = writer.add(token)
        assert "\ufffd" not in piece and "S" not in piece
        found += piece
        if stopped:
            break
    assert stopped and found == "héllo wörld "
    writer = Writer(tokenizer, ("STOP",))
    assert "".join(writer.add(t)[0] for t in tokenizer.encode("abST")) + writer.rest() == "abST"


def test_conversations(tiny: tuple[Model, dict[str, np.ndarray]]) -> None:
    model, _ = tiny
    prompt = model.chat_prompt([{"role": "user", "content": "the cat"}])
    text = "<|im_start|>user\nthe cat<|im_end|>\n<|im_start|>assistant\n"
    assert model.need_tokenizer().decode(prompt, special=True) == text
    assert prompt[0] == 1 and prompt.count(1) == 2 and prompt.count(2) == 1
    for messages in ([], "hello", [{"role": "user"}], [{"content": "x"}], [{"role": "user", "content": 5}]):
        with pytest.raises(ArgumentError):
            model.chat_prompt(messages)


def test_several_texts_in_one_step(tiny: tuple[Model, dict[str, np.ndarray]], tmp_path: Path) -> None:
    """Each at a position of its own; a long prompt takes part chunk by chunk."""
    _, weights = tiny
    path = tmp_path / "tiny.gguf"
    files.tiny_llama(path)
    model = load(path)
    model.reserve(3)
    slots = [model.new_slot() for _ in range(3)]
    rnd = np.random.default_rng(0)
    texts = [[int(t) for t in rnd.integers(3, len(files.TOKENS), n)] for n in (10, CHUNK + 10, 3)]
    wanted = [files.llama_logits(weights, t) for t in texts]
    for less in (2, 1, 0):
        now = [t[: len(t) - less] for t in texts]
        found = model.advance_together(list(zip(slots, now, strict=True)))
        while any(row is None for row in found):
            found = model.advance_together(list(zip(slots, now, strict=True)))
        for row, tokens, logits in zip(found, now, wanted, strict=True):
            assert row is not None
            np.testing.assert_allclose(row, logits[len(tokens) - 1], rtol=2e-4, atol=2e-4)
    assert model._together.traces == 1


def test_guesses_change_nothing(tiny: tuple[Model, dict[str, np.ndarray]]) -> None:
    model, _ = tiny
    options = {"max_tokens": 40, "ignore_end": True}
    prompt = [5, 6, 7, 5, 6, 7, 5, 6]
    plain = [p.token for p in model.stream(prompt, **options)]
    assert [p.token for p in model.stream(prompt, speculate=True, **options)] == plain


def test_a_cache_of_bytes(tiny: tuple[Model, dict[str, np.ndarray]], tmp_path: Path) -> None:
    _, weights = tiny
    path = tmp_path / "tiny.gguf"
    files.tiny_llama(path)
    tokens = [int(t) for t in np.random.default_rng(0).integers(3, len(files.TOKENS), 12)]
    wanted = files.llama_logits(weights, tokens)[-1]
    model = load(path, cache_type="q8")
    error = np.abs(model.advance(model.slot, tokens) - wanted).max()
    assert 1e-5 < error < 0.1 and model.caches[0][0].dtype is int8
    with pytest.raises(ArgumentError, match="cache_type must be one of"):
        load(path, cache_type="q3")
    with pytest.raises(ArgumentError, match="activations must be one of"):
        load(path, activations="q3")
