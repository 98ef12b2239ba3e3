"""Requests to a model from several clients at once: slots, limits, counts.

Each request has a slot, a cache of its own, while it runs; whoever comes when all are taken waits in line, up
to a limit. A step computes the next tokens of all requests that wait for one, together, and a chunk of each
prompt that is not through (continuous batching), in a thread that the server's loop waits for. A request that
nobody waits for any more gives its slot back after the step that it is in.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import final

from morok.errors import MorokError
from morok.llm.generate import CHUNK, Model
from morok.llm.text import Piece, Request, Slot, Text, common


class Busy(MorokError):
    """All slots are taken and the line is full."""


@final
@dataclass
class Counts:
    """What has been done since the start."""

    requests: dict[tuple[str, int], int] = field(default_factory=dict)  # by path and status
    prompt_tokens: int = 0
    reused_tokens: int = 0
    generated_tokens: int = 0
    seconds: float = 0.0
    cancelled: int = 0

    def answered(self, path: str, status: int) -> None:
        self.requests[path, status] = self.requests.get((path, status), 0) + 1


@final
@dataclass(eq=False)
class _Ask:
    """A text that waits for its next piece."""

    text: Text
    piece: asyncio.Future[Piece]
    given_up: bool = False


@final
class Engine:
    """A model and its slots."""

    def __init__(self, model: Model, slots: int = 4, waiting: int = 64) -> None:
        self.model, self.most_slots, self.most_waiting = model, slots, waiting
        self.free: list[Slot] = []
        self.made = 0
        self.running = 0
        self.waiting = 0
        self.steps = 0
        self.counts = Counts()
        self._turn = asyncio.Condition()
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="tokens")
        self._asked: list[_Ask] = []
        self._driver: asyncio.Task[None] | None = None
        model.reserve(model.taken + slots)  # at once: caches that grow forget what they had

    def prepare(self) -> None:
        """Plans for a short prompt, a longer one and two texts at once, before somebody waits for them."""
        slots = [self._new_slot() for _ in range(min(2, self.most_slots))]
        for slot in slots:
            self.model.advance(slot, [0] * min(CHUNK + 1, self.model.context))
        self.model.advance_together([(slot, [0] * len(slot.tokens)) for slot in slots])
        for slot in slots:
            slot.tokens.clear()
        self.free += slots

    def _new_slot(self) -> Slot:
        self.made += 1
        return self.model.new_slot()

    async def pieces(self, request: Request) -> AsyncGenerator[Piece]:
        """The pieces of a request's text, from when it has a slot."""
        slot = await self._take(request)
        started = time.perf_counter()
        text = Text(request, self.model.tokenizer, self.model.context, slot)
        try:
            while not text.done:
                yield await self._piece(text)
        finally:
            self.counts.prompt_tokens += len(request.prompt)
            self.counts.reused_tokens += request.reused
            self.counts.generated_tokens += len(request.found)
            self.counts.seconds += time.perf_counter() - started
            self.counts.cancelled += not text.done
            self._give(slot)

    async def _piece(self, text: Text) -> Piece:
        """The next piece of a text, from a step that it shares with whoever else waits for one."""
        ask = _Ask(text, asyncio.get_running_loop().create_future())
        self._asked.append(ask)
        if self._driver is None or self._driver.done():
            self._driver = asyncio.ensure_future(self._drive())
        try:
            return await asyncio.shield(ask.piece)
        except asyncio.CancelledError:
            ask.given_up = True
            await asyncio.wait([ask.piece])  # a step that is under way still writes to the slot's cache
            if not ask.piece.cancelled():
                ask.piece.exception()  # nobody wants to hear of it
            raise

    async def _drive(self) -> None:
        """Steps, as long as somebody asks: whoever came meanwhile takes part in the next one."""
        loop = asyncio.get_running_loop()
        while self._asked:
            asks, self._asked = self._asked, []
            for ask in (a for a in asks if a.given_up):
                ask.piece.cancel()
            asks = [a for a in asks if not a.given_up]
            if not asks:
                continue
            self.steps += 1
            try:
                found = await loop.run_in_executor(self._pool, self._step, [a.text for a in asks])
            except Exception as error:  # of the model: all who took part hear of it
                found = [error] * len(asks)
            for ask, piece in zip(asks, found, strict=True):
                if isinstance(piece, Exception):
                    ask.piece.set_exception(piece)
                elif piece is None:  # a long prompt, which is not through
                    self._asked.append(ask)
                else:
                    ask.piece.set_result(piece)
            await asyncio.sleep(0)  # those who got a piece may ask for the next one

    def _step(self, texts: list[Text]) -> list[Piece | Exception | None]:
        found: list[Piece | Exception | None] = []
        logits = self.model.advance_together([(t.slot, t.tokens) for t in texts])
        for text, row in zip(texts, logits, strict=True):
            try:
                found.append(None if row is None else text.give(row))
            except Exception as error:
                found.append(error)
        return found

    async def _take(self, request: Request) -> Slot:
        """A free slot, the one whose cache has most of the prompt's beginning."""
        if self.running >= self.most_slots and self.waiting >= self.most_waiting:
            raise Busy(f"all {self.most_slots} slots are taken and {self.waiting} requests are waiting")
        self.waiting += 1
        try:
            async with self._turn:
                await self._turn.wait_for(lambda: self.running < self.most_slots)
                self.running += 1
        finally:
            self.waiting -= 1
        best = max(self.free, key=lambda s: common(s.tokens, request.prompt), default=None)
        if best is not None and (common(best.tokens, request.prompt) or self.made >= self.most_slots):
            self.free.remove(best)
            return best
        return self._new_slot()

    def _give(self, slot: Slot) -> None:
        self.free.append(slot)
        self.running -= 1

        async def tell() -> None:
            async with self._turn:
                self._turn.notify_all()

        self._telling = asyncio.ensure_future(tell())

    def metrics(self) -> str:
        """The counts as Prometheus reads them."""
        c = self.counts
        rows = [
            ("morok_prompt_tokens_total", "counter", "Tokens of prompts.", c.prompt_tokens),
            ("morok_reused_tokens_total", "counter", "Tokens of prompts found in a cache.", c.reused_tokens),
            ("morok_generated_tokens_total", "counter", "Tokens that were written.", c.generated_tokens),
            ("morok_generation_seconds_total", "counter", "Time in slots, in seconds.", round(c.seconds, 6)),
            ("morok_cancelled_total", "counter", "Requests that were given up.", c.cancelled),
            ("morok_requests_running", "gauge", "Requests that have a slot.", self.running),
            ("morok_requests_waiting", "gauge", "Requests that wait for a slot.", self.waiting),
            ("morok_slots", "gauge", "Slots that have a cache.", self.made),
        ]
        lines = [
            "# HELP morok_requests_total Answers by path and status.",
            "# TYPE morok_requests_total counter",
        ]
        for (path, status), count in sorted(c.requests.items()):
            lines.append(f'morok_requests_total{{path="{path}",status="{status}"}} {count}')
        for name, kind, meaning, value in rows:
            lines += [f"# HELP {name} {meaning}", f"# TYPE {name} {kind}", f"{name} {value}"]
        return "\n".join(lines) + "\n"

    def close(self) -> None:
        """No more tokens."""
        self._pool.shutdown(wait=True, cancel_futures=True)
