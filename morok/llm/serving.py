"""Requests to a model from several clients at once: slots, limits, counts.

Each request has a slot, a cache of its own, while it runs; whoever comes when all are taken waits in line, up
to a limit. Tokens of all running requests are computed in turns, one by one, in threads that the server's
loop waits for. A request that nobody waits for any more gives its slot back at its next token.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import final

from morok.errors import MorokError
from morok.llm.generate import Model, Piece, Request, Slot


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
class Engine:
    """A model and its slots."""

    def __init__(self, model: Model, slots: int = 4, waiting: int = 64) -> None:
        self.model, self.most_slots, self.most_waiting = model, slots, waiting
        self.free: list[Slot] = []
        self.made = 0
        self.running = 0
        self.waiting = 0
        self.counts = Counts()
        self._turn = asyncio.Condition()
        self._pool = ThreadPoolExecutor(max_workers=slots, thread_name_prefix="tokens")

    async def pieces(self, request: Request) -> AsyncGenerator[Piece]:
        """The pieces of a request's text, from when it has a slot."""
        slot = await self._take(request)
        started = time.perf_counter()
        steps = self.model.run(request, slot)
        loop = asyncio.get_running_loop()
        complete = False
        try:
            while True:
                step = loop.run_in_executor(self._pool, _next, steps)
                try:
                    piece = await asyncio.shield(step)
                except asyncio.CancelledError:
                    await asyncio.wait([step])  # its thread still writes to the slot's cache
                    raise
                if piece is None:
                    complete = True
                    return
                yield piece
        finally:
            self.counts.prompt_tokens += len(request.prompt)
            self.counts.reused_tokens += request.reused
            self.counts.generated_tokens += len(request.found)
            self.counts.seconds += time.perf_counter() - started
            self.counts.cancelled += not complete
            self._give(slot)

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
        best = max(self.free, key=lambda s: _same(s.tokens, request.prompt), default=None)
        if best is not None and (_same(best.tokens, request.prompt) or self.made >= self.most_slots):
            self.free.remove(best)
            return best
        self.made += 1
        return self.model.new_slot()

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


def _next(steps: Iterator[Piece]) -> Piece | None:
    return next(steps, None)


def _same(cached: list[int], prompt: list[int]) -> int:
    count = 0
    for a, b in zip(cached, prompt, strict=False):
        if a != b:
            break
        count += 1
    return count
