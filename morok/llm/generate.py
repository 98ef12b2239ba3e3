"""Models that are loaded: texts continued, token by token, with the cache of what came before.

model = morok.llm.load("model.gguf")
print(model.generate("The capital of France is", max_tokens=20))
for piece in model.stream_chat([{"role": "user", "content": "Hello"}], temperature=0.7):
    print(piece.text, end="")
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache, partial
from threading import RLock
from typing import Any

import numpy as np

from morok import knobs
from morok.device.registry import default_device, get_device
from morok.errors import ArgumentError, FormatError
from morok.llm import config as configs
from morok.llm import weights
from morok.llm.as_bytes import EXACT, Q8
from morok.llm.cache import CACHE_TYPES, Cache
from morok.llm.groups import grouped
from morok.llm.model import Decoder
from morok.llm.read_by import read_by
from morok.llm.sampling import Sampling
from morok.llm.template import render
from morok.llm.text import GUESSES, Piece, Request, Slot, Text, common
from morok.llm.tokenizer import Tokenizer, tokenizer_of_folder, tokenizer_of_gguf
from morok.rewrite.gc_pause import gc_paused
from morok.tensor.gradient_track import no_grad
from morok.tensor.jit.jit import jit
from morok.tensor.jit.steady import Steady
from morok.tensor.jit.stored import Named
from morok.tensor.sizes import Variable
from morok.tensor.tensor import Tensor

CHUNK = 64  # tokens of a prompt that are processed at once
LARGE = 256  # the same of long ones, where weights are decoded once for more tokens
# How long steps of so many tokens take, in the time that one more token of a chunk takes. A grid has room for
# a whole chunk in nearly the time of one token. A processor decodes all weights for a chunk, as long as 92
# more tokens take of a model of 1.1 B in Q4_K and as 13 of SmolLM2, where they stay in the cache; a single
# token takes as long as 5, but then a short prompt needs one plan instead of two.
ON_GRID = {1: 11.0, CHUNK: 64.0}
ON_HOST = {1: 3.65, CHUNK: 80.0 + CHUNK, LARGE: 80.0 + LARGE}
ACTIVATIONS = {"exact": EXACT, "q8": Q8}
DEFAULT_CONTEXT = 4096  # positions of a cache, unless more are asked for


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
        self._cache_type = cache_type
        with no_grad():
            self.decoder = Decoder(config, found, longest, CHUNK, device)
        d = self.decoder
        look = cache(partial(read_by, d))
        self._token, self._chunk, self._score, self._together = (
            Steady(jit(f), Named(f.__name__, "morok.llm.generate", look))
            for f in (d.token, d.chunk, d.score, d.together)
        )
        self._on_host = get_device(device or default_device()).on_host
        self._steps = ON_HOST if self._on_host else ON_GRID
        room = self.decoder.room
        self._at = {n: Variable("at", 0, min(longest - 1, room - n)) for n in self._steps if n <= room}
        self._pick = {n: Variable("pick", 0, n - 1) for n in self._at if n > 1}
        self._last = Variable("last", 1, longest + 1)
        self._slot: Slot | None = None
        self._slots: list[Slot] = []
        self._texts = 0  # rows of the caches
        self.caches: list[Cache] = []
        self._lock = RLock()  # plans and caches serve one step at a time

    # --- logits

    def _one_by_one(self) -> AbstractContextManager[None]:
        """Around a step of one text: a grid's kernels for it are so short that the next one is brought there
        while they run. Those for several texts fill it, and would have less room."""
        return nullcontext() if self._on_host else knobs.override(EARLY_START=True)

    def reserve(self, texts: int) -> None:
        """Caches for so many texts at the same time. What they held is forgotten where they grow."""
        with self._lock, no_grad():
            if texts <= self._texts:
                return
            self._texts = texts
            self.caches = []
            self.caches = self.decoder.caches(self._cache_type, texts)
            self._text = Variable("text", 0, max(1, texts - 1))
            for slot in self._slots:
                slot.tokens.clear()

    def new_slot(self) -> Slot:
        """A cache of its own, for one more text at the same time."""
        with self._lock:
            self.reserve(len(self._slots) + 1)
            self._slots.append(Slot(len(self._slots)))
            return self._slots[-1]

    @property
    def taken(self) -> int:
        """How many caches have an owner."""
        return len(self._slots)

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
        found = None
        while found is None:
            found = self.advance_some(slot, tokens)
        return found

    def advance_some(self, slot: Slot, tokens: Sequence[int], others_wait: bool = False) -> np.ndarray | None:
        """One more chunk of a text, a short one if others wait, and the logits after it if that was the last
        one."""
        same = common(slot.tokens, tokens[:-1])
        with self._lock, no_grad():
            del slot.tokens[same:]
            rest = tokens[same:]
            count = self._next_step(same, len(rest), CHUNK if others_wait else LARGE)
            if count == 1:
                part = list(rest)
                for n, token in enumerate(part):
                    row = self._row(np.array([token], np.int32))
                    with self._one_by_one():
                        logits = self._token(row, self.caches, *self._at_slot(slot, same + n))
                    slot.tokens.append(token)
            else:
                part = list(rest[:count])
                where, pick = self._at_slot(slot, same, count), self._pick[count].bind(len(part) - 1)
                logits = self._chunk(self._padded(part, count), self.caches, *where, pick)
                slot.tokens += part
            found: np.ndarray | None = logits.numpy() if len(part) == len(rest) else None
        return found

    def _next_step(self, at: int, rest: int, most: int) -> int:
        """How many tokens are processed at once next: as many as take the least time for each of the rest."""
        fits = [n for n in self._at if n <= most and at + n <= self.decoder.room]
        return min(fits, key=lambda n: self._steps[n] / min(n, rest))

    def advance_together(self, texts: Sequence[tuple[Slot, Sequence[int]]]) -> list[np.ndarray | None]:
        """One step of several texts: the last tokens of those that lack no more, all at once, and a chunk of
        each of the others. None for whoever is not through."""
        found: list[np.ndarray | None] = [None] * len(texts)
        ready, slow = [], []
        for i, (slot, tokens) in enumerate(texts):
            if common(slot.tokens, tokens[:-1]) == len(tokens) - 1:
                ready.append(i)
            else:
                slow.append(i)
        for i in slow:
            found[i] = self.advance_some(*texts[i], others_wait=bool(ready))
        if len(ready) < 2:
            for i in ready:
                found[i] = self.advance_some(*texts[i])
            return found
        with self._lock, no_grad():
            row, at = np.zeros(self._texts, np.int32), np.zeros(self._texts, np.int32)
            for slot in self._slots:  # whoever is not asked writes behind its end, where nobody looks
                at[slot.index] = min(len(slot.tokens), self.context)
            for i in ready:
                slot, tokens = texts[i]
                del slot.tokens[len(tokens) - 1 :]
                row[slot.index], at[slot.index] = tokens[-1], len(tokens) - 1
                slot.tokens.append(tokens[-1])
            last = int(max(at[texts[i][0].index] for i in ready)) + 1
            logits = self._together(self._row(row), self.caches, self._row(at), self._last.bind(last)).numpy()
        for i in ready:
            found[i] = logits[texts[i][0].index]
        return found

    def _at_slot(self, slot: Slot, at: int, count: int = 1) -> tuple[Any, Any]:
        return (self._text.bind(slot.index) if self._texts > 1 else 0), self._at[count].bind(at)

    def _row(self, tokens: np.ndarray) -> Tensor:
        return Tensor(tokens, device=self.device)

    def _padded(self, tokens: Sequence[int], count: int = CHUNK) -> Tensor:
        padded = np.zeros(count, np.int32)
        padded[: len(tokens)] = tokens
        return self._row(padded)

    def score(self, tokens: Sequence[int], slot: Slot | None = None) -> np.ndarray:
        """The logits after every token of a text: (tokens, vocabulary)."""
        checked, slot = self.check_tokens(tokens), slot or self.slot
        slot.tokens.clear()
        found = []
        with self._lock, no_grad():
            for at in range(0, len(checked), CHUNK):
                part = checked[at : at + CHUNK]
                logits = self._score(self._padded(part), self.caches, *self._at_slot(slot, at))
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
        speculate: bool = False,
        answer: bool = False,
        **sampling: Any,
    ) -> Request:
        """A prompt and options, checked. An answer is a text of its own: a space at its beginning is none."""
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
        return Request(
            checked, most, Sampling(**sampling), texts, logprobs, ignore_end, slide, speculate, answer=answer
        )

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
        text = Text(request, self.tokenizer, self.context, self.slot if slot is None else slot)
        while not text.done:
            guessed = text.guessed() if request.speculate else []
            if not guessed:
                yield text.give(self.advance(text.slot, text.tokens))
                continue
            for at, logits in enumerate(self._tried(text, guessed)):
                piece = text.give(logits)
                yield piece
                ended = piece.finish_reason is not None
                if ended or at == len(guessed) or text.tokens[-1] != guessed[at]:
                    break

    def _tried(self, text: Text, guessed: list[int]) -> Iterator[np.ndarray]:
        """The logits after a text and after each of some tokens that may follow, computed at once. As long as
        they do follow, they need not be computed again."""
        slot, tokens = text.slot, list(text.tokens)
        if common(slot.tokens, tokens[:-1]) < len(tokens) - 1:
            self.advance(slot, tokens[:-1])
        del slot.tokens[len(tokens) - 1 :]
        row = np.zeros(GUESSES + 1, np.int32)
        row[: len(guessed) + 1] = [tokens[-1], *guessed]
        with self._lock, no_grad():
            found = self._score(self._row(row), self.caches, *self._at_slot(slot, len(tokens) - 1)).numpy()
        slot.tokens += [tokens[-1], *guessed]
        yield from found[: len(guessed) + 1]

    def stream(self, prompt: str | Sequence[int], **options: Any) -> Iterator[Piece]:
        """The continuation of a prompt, piece by piece. Options as of `generate`."""
        return self.run(self.request(prompt, **options))

    def generate(self, prompt: str | Sequence[int], **options: Any) -> str:
        """The continuation of a prompt: max_tokens, temperature, top_k, top_p, min_p, repetition_penalty,
        frequency_penalty, presence_penalty, seed, stop; with `slide` a full context loses its older half;
        with `speculate` what followed the same tokens before is guessed to follow again, and tried."""
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
        return self.stream(self.chat_prompt(messages), answer=True, **options)

    def chat(self, messages: object, **options: Any) -> str:
        """The answer in a conversation."""
        return "".join(piece.text for piece in self.stream_chat(messages, **options))


def load(
    path: str | os.PathLike[str],
    context: int | None = None,
    cache_type: str = "float32",
    device: str | None = None,
    activations: str = "exact",
) -> Model:
    """A model from a GGUF file, or from a folder with safetensors, config.json and tokenizer.json.

    `context` is how many tokens a text may have (the model's own limit, but at most 4,096, if it is not
    given); `cache_type` is float32, float16, bfloat16 or q8. With `activations="q8"` numbers are rounded to a
    byte before they are multiplied with packed weights: faster, and no longer as good as float32.
    """
    if activations not in ACTIVATIONS:
        raise ArgumentError(f"activations must be one of {', '.join(ACTIVATIONS)}, not {activations!r}")
    with gc_paused:  # a vocabulary is a hundred thousand pairs that stay
        return _loaded(os.fspath(path), context, cache_type, device, ACTIVATIONS[activations])


def _loaded(name: str, context: int | None, cache_type: str, device: str | None, digits: int) -> Model:
    if os.path.isdir(name):
        said = weights.read_json(os.path.join(name, "config.json"))
        config = configs.from_json(said)
        found = weights.weights_of_folder(name, config, device, digits, grouped(said))
        has_tokenizer = os.path.exists(os.path.join(name, "tokenizer.json"))
        tokenizer = tokenizer_of_folder(name) if has_tokenizer else None
    else:
        entries, metadata = weights.read_parts(name)
        words = metadata.get("tokenizer.ggml.tokens")
        table = entries.get("token_embd.weight")
        if table is None or len(table.shape) != 2:
            raise FormatError(f"{os.path.basename(name)} is not a language model: it has no table of tokens")
        config = configs.from_gguf(metadata, table.shape[0])
        config = weights.with_factors(config, entries)
        found = weights.weights_of_gguf(entries, config, device, digits)
        tokenizer = None if words is None else tokenizer_of_gguf(metadata)
    return Model(config, found, tokenizer, context, cache_type, device)
