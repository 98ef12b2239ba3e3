"""Models that are loaded: texts continued, token by token, with the cache of what came before.

model = morok.llm.load("model.gguf")
print(model.generate("The capital of France is", max_tokens=20))
for piece in model.stream_chat([{"role": "user", "content": "Hello"}], temperature=0.7):
    print(piece.text, end="")
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from threading import RLock
from typing import Any, final

import numpy as np

from morok import dtype as dt
from morok.errors import ArgumentError, FormatError
from morok.llm import config as configs
from morok.llm import weights
from morok.llm.model import Decoder
from morok.llm.sampling import Sampler, Sampling, log_shares
from morok.llm.template import render
from morok.llm.tokenizer import Tokenizer, tokenizer_of_folder, tokenizer_of_gguf
from morok.nn.gguf import read_gguf
from morok.tensor.gradient_track import no_grad
from morok.tensor.jit.jit import jit
from morok.tensor.sizes import Variable
from morok.tensor.tensor import Tensor

CHUNK = 64  # tokens of a prompt that are processed at once
LEAST_CHUNK = 6  # fewer than this are processed one by one
DEFAULT_CONTEXT = 4096  # positions of a cache, unless more are asked for
CACHE_TYPES = {"float32": dt.float32, "float16": dt.float16, "bfloat16": dt.bfloat16}


@final
class Slot:
    """The cache of one text, and the tokens that are in it."""

    def __init__(self, decoder: Decoder, dtype: dt.DType) -> None:
        self.caches = decoder.caches(dtype)
        self.tokens: list[int] = []


@final
@dataclass(frozen=True)
class Piece:
    """What one token adds to a text. The last piece says why it ended: "stop" or "length"."""

    text: str
    token: int | None = None
    finish_reason: str | None = None
    logprob: float | None = None
    top_logprobs: tuple[tuple[int, float], ...] = ()


@final
@dataclass
class Request:
    """A text to be continued, and the way it is going. `step` is one token."""

    prompt: list[int]
    max_tokens: int
    sampling: Sampling
    stop: tuple[str, ...] = ()
    logprobs: int | None = None
    ignore_end: bool = False
    slide: bool = False  # a full context loses its older half and goes on, instead of ending the text
    reused: int = 0  # tokens of the prompt that were in the cache
    found: list[int] = field(default_factory=list)


class Model:
    """A language model with its tokenizer, ready to run."""

    def __init__(
        self,
        config: configs.Config,
        found: dict[str, Any],
        tokenizer: Tokenizer | None,
        context: int | None = None,
        cache_type: str = "float32",
        device: str | None = None,
    ) -> None:
        if cache_type not in CACHE_TYPES:
            raise ArgumentError(f"cache_type must be one of {', '.join(CACHE_TYPES)}, not {cache_type!r}")
        longest = min(config.context, DEFAULT_CONTEXT) if context is None else context
        if not 1 <= longest <= config.context:
            raise ArgumentError(f"context must be from 1 to the model's {config.context}, not {context!r}")
        self.config, self.tokenizer, self.context, self.device = config, tokenizer, longest, device
        self._cache_dtype = CACHE_TYPES[cache_type]
        with no_grad():
            self.decoder = Decoder(config, found, longest, CHUNK, device)
        self._token, self._chunk, self._score = (
            jit(f) for f in (self.decoder.token, self.decoder.chunk, self.decoder.score)
        )
        self._at = Variable("at", 0, longest - 1)
        self._pick = Variable("pick", 0, CHUNK - 1)
        self._slot: Slot | None = None
        self._lock = RLock()  # plans and caches serve one token at a time

    # --- logits

    def new_slot(self) -> Slot:
        """A cache of its own, for one more text at the same time."""
        with no_grad():
            return Slot(self.decoder, self._cache_dtype)

    @property
    def slot(self) -> Slot:
        """The cache of whoever does not bring one."""
        if self._slot is None:
            self._slot = self.new_slot()
        return self._slot

    def check_tokens(self, tokens: Sequence[int], room: int = 0) -> list[int]:
        """Tokens that the model knows, and not more than fit with some room left."""
        found = [int(t) for t in tokens]
        if not found:
            raise ArgumentError("the prompt is empty")
        if len(found) + room > self.context:
            raise ArgumentError(
                f"the prompt has {len(found)} tokens, and {self.context - room} fit in the context"
            )
        wrong = next((t for t in found if not 0 <= t < self.config.vocabulary), None)
        if wrong is not None:
            raise ArgumentError(f"there is no token {wrong}; there are {self.config.vocabulary}")
        return found

    def advance(self, slot: Slot, tokens: Sequence[int]) -> np.ndarray:
        """The logits after a text. What the slot's cache has of its beginning is not computed again."""
        same = 0
        for a, b in zip(slot.tokens, tokens[:-1], strict=False):
            if a != b:
                break
            same += 1
        del slot.tokens[same:]
        logits = None
        with self._lock, no_grad():
            while len(slot.tokens) < len(tokens):
                at, rest = len(slot.tokens), tokens[len(slot.tokens) :]
                if len(rest) < LEAST_CHUNK:
                    part = list(rest[:1])
                    row = Tensor(np.array(part, np.int32), device=self.device)
                    logits = self._token(row, slot.caches, self._at.bind(at))
                else:
                    part = list(rest[:CHUNK])
                    row = self._padded(part)
                    logits = self._chunk(row, slot.caches, self._at.bind(at), self._pick.bind(len(part) - 1))
                slot.tokens += part
            assert logits is not None
            found: np.ndarray = logits.numpy()
        return found

    def _padded(self, tokens: Sequence[int]) -> Tensor:
        padded = np.zeros(CHUNK, np.int32)
        padded[: len(tokens)] = tokens
        return Tensor(padded, device=self.device)

    def score(self, tokens: Sequence[int], slot: Slot | None = None) -> np.ndarray:
        """The logits after every token of a text: (tokens, vocabulary)."""
        checked, slot = self.check_tokens(tokens), slot or self.slot
        slot.tokens.clear()
        found = []
        with self._lock, no_grad():
            for at in range(0, len(checked), CHUNK):
                part = checked[at : at + CHUNK]
                logits = self._score(self._padded(part), slot.caches, self._at.bind(at))
                found.append(logits.numpy()[: len(part)])
        return np.concatenate(found)

    # --- texts

    def request(
        self,
        prompt: str | Sequence[int],
        max_tokens: int | None = None,
        stop: str | Sequence[str] = (),
        logprobs: int | None = None,
        ignore_end: bool = False,
        slide: bool = False,
        **sampling: Any,
    ) -> Request:
        """A prompt and options, checked."""
        tokens = self._tokens(prompt)
        checked = self.check_tokens(tokens, room=1)
        room = self.context - len(checked)
        if max_tokens is not None and max_tokens < 1:
            raise ArgumentError(f"max_tokens must be a whole number of at least 1, not {max_tokens!r}")
        texts = (stop,) if isinstance(stop, str) else tuple(stop)
        if len(texts) > 16 or not all(texts):
            raise ArgumentError("stop must be a text, or up to 16 of them, none of them empty")
        if logprobs is not None and not 0 <= logprobs <= 20:
            raise ArgumentError(f"logprobs must be from 0 to 20, not {logprobs!r}")
        known = Sampling.__dataclass_fields__
        unknown = [name for name in sampling if name not in known]
        if unknown:
            raise ArgumentError(f"there is no option {unknown[0]!r}; there are {', '.join(known)}")
        most = room if max_tokens is None else max_tokens if slide else min(max_tokens, room)
        return Request(checked, most, Sampling(**sampling), texts, logprobs, ignore_end, slide)

    def _tokens(self, prompt: str | Sequence[int]) -> Sequence[int]:
        if not isinstance(prompt, str):
            return prompt
        if len(prompt) > 64 * self.context:
            raise ArgumentError(
                f"the prompt has {len(prompt)} characters, and {self.context} tokens fit in the context"
            )
        return self.need_tokenizer().encode(prompt)

    def need_tokenizer(self) -> Tokenizer:
        if self.tokenizer is None:
            raise ArgumentError("the model has no tokenizer, so prompts must be lists of tokens")
        return self.tokenizer

    def run(self, request: Request, slot: Slot | None = None) -> Iterator[Piece]:
        """The pieces of a request's text, as they are found."""
        slot = slot or self.slot
        sampler = Sampler(request.sampling)
        writer = Writer(self.tokenizer, request.stop)
        ends = frozenset() if self.tokenizer is None or request.ignore_end else self.tokenizer.ends
        tokens = list(request.prompt)
        shared = 0
        while shared < min(len(slot.tokens), len(tokens) - 1) and slot.tokens[shared] == tokens[shared]:
            shared += 1
        request.reused = shared
        for left in range(request.max_tokens, 0, -1):
            if len(tokens) > self.context:
                tokens = tokens[:1] + tokens[-(self.context // 2) :]
            logits = self.advance(slot, tokens)
            token = sampler.choose(logits, tokens)
            logprob, best = _logprobs(logits, token, request.logprobs)
            if token in ends:
                yield Piece(writer.rest(), None, "stop")
                return
            request.found.append(token)
            tokens.append(token)
            text, stopped = writer.add(token)
            if stopped or left == 1:
                text = text if stopped else text + writer.rest()
                yield Piece(text, token, "stop" if stopped else "length", logprob, best)
                return
            yield Piece(text, token, None, logprob, best)

    def stream(self, prompt: str | Sequence[int], **options: Any) -> Iterator[Piece]:
        """The continuation of a prompt, piece by piece. Options as of `generate`."""
        return self.run(self.request(prompt, **options))

    def generate(self, prompt: str | Sequence[int], **options: Any) -> str:
        """The continuation of a prompt: max_tokens, temperature, top_k, top_p, min_p, repetition_penalty,
        frequency_penalty, presence_penalty, seed, stop; with `slide` a full context loses its older half."""
        return "".join(piece.text for piece in self.stream(prompt, **options))

    def chat_prompt(self, messages: object, **options: Any) -> list[int]:
        """A conversation as the tokens that the model continues."""
        tokenizer = self.need_tokenizer()
        text = render(tokenizer.template, messages, tokenizer.names, **options)
        if len(text) > 64 * self.context:
            raise ArgumentError(
                f"the conversation has {len(text)} characters, and {self.context} tokens fit in the context"
            )
        begins = tokenizer.bos is not None and text.startswith(tokenizer.names.get("bos_token", "\0"))
        return tokenizer.encode(text, special=not begins)

    def stream_chat(self, messages: object, **options: Any) -> Iterator[Piece]:
        """The answer in a conversation, piece by piece."""
        return self.stream(self.chat_prompt(messages), **options)

    def chat(self, messages: object, **options: Any) -> str:
        """The answer in a conversation."""
        return "".join(piece.text for piece in self.stream_chat(messages, **options))


def _logprobs(
    logits: np.ndarray, token: int, count: int | None
) -> tuple[float | None, tuple[tuple[int, float], ...]]:
    if count is None:
        return None, ()
    shares = log_shares(logits)
    best = np.argsort(-shares, kind="stable")[:count]
    return float(shares[token]), tuple((int(t), float(shares[t])) for t in best)


@final
class Writer:
    """Tokens to text: letters of several tokens are held back until they are whole, and so is what may
    become a text to stop at."""

    def __init__(self, tokenizer: Tokenizer | None, stop: Sequence[str]) -> None:
        self.tokenizer, self.stop = tokenizer, stop
        self.tokens: list[int] = []
        self.given = 0  # characters that are out
        self.before = 0  # tokens that are decoded once and for all
        self.text = ""

    def add(self, token: int) -> tuple[str, bool]:
        """What can be given out now, and whether a text to stop at was found."""
        if self.tokenizer is None:
            return "", False
        self.tokens.append(token)
        text = self.tokenizer.decode(self.tokens)
        whole = text.rstrip("\ufffd") if text.endswith("\ufffd") else text
        found = [at for s in self.stop if (at := text.find(s, max(0, self.given - len(s)))) >= 0]
        if found:
            end = max(min(found), self.given)
            piece, self.given, self.text = text[self.given : end], end, text[:end]
            return piece, True
        self.text = text
        held = max((_overlap(whole, s) for s in self.stop), default=0)
        end = max(self.given, len(whole) - held)
        piece, self.given = text[self.given : end], end
        return piece, False

    def rest(self) -> str:
        """What was held back."""
        piece, self.given = self.text[self.given :], len(self.text)
        return piece


def _overlap(text: str, stop: str) -> int:
    """How many characters at the end of a text are a beginning of another one."""
    return next((n for n in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:n])), 0)


def load(
    path: str | os.PathLike[str],
    context: int | None = None,
    cache_type: str = "float32",
    device: str | None = None,
) -> Model:
    """A model from a GGUF file, or from a folder with safetensors, config.json and tokenizer.json.

    `context` is how many tokens a text may have (the model's own limit, but at most 4,096, if it is not
    given); `cache_type` is float32, float16 or bfloat16.
    """
    name = os.fspath(path)
    if os.path.isdir(name):
        config = configs.from_json(weights.read_json(os.path.join(name, "config.json")))
        found = weights.weights_of_folder(name, config, device)
        has_tokenizer = os.path.exists(os.path.join(name, "tokenizer.json"))
        tokenizer = tokenizer_of_folder(name) if has_tokenizer else None
    else:
        entries, metadata = read_gguf(name)
        words = metadata.get("tokenizer.ggml.tokens")
        table = entries.get("token_embd.weight")
        if table is None or len(table.shape) != 2:
            raise FormatError(f"{os.path.basename(name)} is not a language model: it has no table of tokens")
        config = configs.from_gguf(metadata, table.shape[0])
        config = weights.with_factors(config, entries)
        found = weights.weights_of_gguf(entries, config, device)
        tokenizer = None if words is None else tokenizer_of_gguf(metadata)
    return Model(config, found, tokenizer, context, cache_type, device)
