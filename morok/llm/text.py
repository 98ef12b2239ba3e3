"""A text that is being written: tokens to pieces of text, when it ends, and what may come next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import final

import numpy as np

from morok.llm.sampling import Sampler, Sampling, log_shares
from morok.llm.tokenizer import Tokenizer

GUESSES = 7  # tokens that are guessed at a time
_LONGEST_RUN, _SHORTEST_RUN = 3, 2  # tokens that were seen before, for what followed them to be a guess


@final
class Slot:
    """A text of the caches: which one, and the tokens whose keys and values are there."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.tokens: list[int] = []


def common(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens two texts begin with alike."""
    if len(a) <= len(b) and list(a) == list(b[: len(a)]):
        return len(a)
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


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
    """A text to be continued, and the way it is going."""

    prompt: list[int]
    max_tokens: int
    sampling: Sampling
    stop: tuple[str, ...] = ()
    logprobs: int | None = None
    ignore_end: bool = False
    slide: bool = False  # a full context loses its older half and goes on, instead of ending the text
    speculate: bool = False  # guesses are tried several at a time
    answer: bool = False  # a text of its own; else it goes on where the prompt ends
    reused: int = 0  # tokens of the prompt that were in the cache
    found: list[int] = field(default_factory=list)


@final
class Text:
    """A request on its way: `tokens` are to be computed, and `give` takes the logits after them."""

    def __init__(self, request: Request, tokenizer: Tokenizer | None, context: int, slot: Slot) -> None:
        self.request, self.context, self.slot = request, context, slot
        self.sampler = Sampler(request.sampling)
        before = () if request.answer else request.prompt[-_CONTEXT:]
        self.writer = Writer(tokenizer, request.stop, before)
        self.ends = frozenset() if tokenizer is None or request.ignore_end else tokenizer.ends
        self.tokens = list(request.prompt)
        self.left = request.max_tokens
        self.done = False
        request.reused = common(slot.tokens, self.tokens[:-1])

    def give(self, logits: np.ndarray) -> Piece:
        """The next piece."""
        request = self.request
        token = self.sampler.choose(logits, self.tokens)
        logprob, best = _logprobs(logits, token, request.logprobs)
        self.left -= 1
        if token in self.ends:
            self.done = True
            return Piece(self.writer.rest(), None, "stop")
        request.found.append(token)
        self.tokens.append(token)
        text, stopped = self.writer.add(token)
        if stopped or not self.left:
            self.done = True
            text = text if stopped else text + self.writer.rest()
            return Piece(text, token, "stop" if stopped else "length", logprob, best)
        if len(self.tokens) > self.context:  # only if it slides
            self.tokens = self.tokens[:1] + self.tokens[-(self.context // 2) :]
        return Piece(text, token, None, logprob, best)

    def guessed(self) -> list[int]:
        """What followed the last tokens when they were there before; drawn tokens are not guessed."""
        tokens = self.tokens
        room = min(GUESSES, self.left - 1, self.context - len(tokens))
        if self.request.sampling.temperature or room < 1:
            return []
        for run in range(_LONGEST_RUN, _SHORTEST_RUN - 1, -1):
            last = tokens[-run:]
            for at in range(len(tokens) - run - 1, -1, -1):
                if tokens[at] == last[0] and tokens[at : at + run] == last:
                    return tokens[at + run : at + run + room]
        return []


def _logprobs(
    logits: np.ndarray, token: int, count: int | None
) -> tuple[float | None, tuple[tuple[int, float], ...]]:
    if count is None:
        return None, ()
    shares = log_shares(logits)
    best = np.argsort(-shares, kind="stable")[:count]
    return float(shares[token]), tuple((int(t), float(shares[t])) for t in best)


_CONTEXT = 4  # tokens after which the next one is decoded: what a space at its beginning is depends on them
_MOST_AT_ONCE, _MOST_GARBAGE = 16, 64  # tokens that are decoded together
_MOST_PARTS = 3  # tokens, and characters that stand for what is none, before a letter is whole


@final
class Writer:
    """Tokens to text: letters of several tokens are held back until they are whole, and so is what may
    become a text to stop at. `before` is what the text goes on from."""

    def __init__(self, tokenizer: Tokenizer | None, stop: Sequence[str], before: Sequence[int] = ()) -> None:
        self.tokenizer, self.stop = tokenizer, stop
        self.tokens = list(before)  # the last ones
        self.known = 0 if tokenizer is None else len(_whole(tokenizer.decode(self.tokens)))  # of their text
        self.parts = 0  # tokens of a letter that is not whole
        self.text = ""
        self.given = 0  # characters that are out

    def add(self, token: int) -> tuple[str, bool]:
        """What can be given out now, and whether a text to stop at was found."""
        if self.tokenizer is None:
            return "", False
        self.tokens.append(token)
        decoded = self.tokenizer.decode(self.tokens)
        whole = _whole(decoded)
        self.parts = 0 if len(whole) == len(decoded) else self.parts + 1
        if self.parts > _MOST_PARTS:  # bytes that are no letter
            whole = decoded[: max(len(whole), len(decoded) - _MOST_PARTS)]
        if len(whole) > self.known:
            self.text, self.known = self.text + whole[self.known :], len(whole)
        if len(self.tokens) > (_MOST_GARBAGE if self.parts else _MOST_AT_ONCE):
            self._forget(decoded)
        found = [at for s in self.stop if (at := self.text.find(s, max(0, self.given - len(s)))) >= 0]
        if found:
            end = max(min(found), self.given)
            piece, self.given, self.text = self.text[self.given : end], end, self.text[:end]
            return piece, True
        held = max((_overlap(self.text, s) for s in self.stop), default=0)
        end = max(self.given, len(self.text) - held)
        piece, self.given = self.text[self.given : end], end
        return piece, False

    def _forget(self, decoded: str) -> None:
        """Leaves the last tokens alone, if they are a text by themselves."""
        assert self.tokenizer is not None
        last = self.tokenizer.decode(self.tokens[-_CONTEXT:])
        known = len(last) - (len(decoded) - self.known)
        if known > 0 and decoded.endswith(last) and (self.parts or not last.startswith("\ufffd")):
            self.tokens, self.known = self.tokens[-_CONTEXT:], known

    def rest(self) -> str:
        """What was held back."""
        if self.tokenizer is not None and self.parts:
            self.text, self.parts = self.text + self.tokenizer.decode(self.tokens)[self.known :], 0
        piece, self.given = self.text[self.given :], len(self.text)
        return piece


def _whole(text: str) -> str:
    """Without what may become another letter."""
    return text.rstrip("\ufffd") if text.endswith("\ufffd") else text


def _overlap(text: str, stop: str) -> int:
    """How many characters at the end of a text are a beginning of another one."""
    return next((n for n in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:n])), 0)
