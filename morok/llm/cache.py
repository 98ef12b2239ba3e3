"""Keys and values of all positions so far, for several texts at once, and which tokens are computed next.

A cache of a layer is (texts, 2, groups, positions, numbers): keys, then values, in float32, float16 or
bfloat16; or in bytes, with a scale of float16 for every 32 of them ("q8").

`Stretch` is some tokens of one text, one after the other; `Together` is the next token of several texts.
Both say where keys and values go, what may be looked at, and how rows of numbers are heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

from morok import dtype as dt
from morok.llm.config import Config
from morok.llm.rotary import Turns
from morok.tensor.sizes import concrete
from morok.tensor.tensor import Tensor

SCALED = 32  # bytes of a cache that have a common scale
Q8 = "q8"
CACHE_TYPES = {"float32": dt.float32, "float16": dt.float16, "bfloat16": dt.bfloat16, Q8: dt.int8}

Cache = tuple[Tensor, ...]  # numbers, or bytes and scales


def new_cache(config: Config, texts: int, room: int, kind: str, device: str | None) -> Cache:
    """Room for the keys and values of a layer."""
    sizes = (texts, 2, config.groups, room, config.head)
    shapes = [(sizes, CACHE_TYPES[kind])]
    if kind == Q8:
        shapes.append(((*sizes[:-1], -(-config.head // SCALED)), dt.float16))
    return tuple(Tensor.zeros(*s, dtype=d, device=device).contiguous().realize() for s, d in shapes)


def _coded(x: Tensor, cache: Cache) -> list[Tensor]:
    """Numbers as a cache keeps them."""
    if len(cache) == 1:
        return [x.cast(cache[0].dtype)]
    *front, last = x.shape
    count = concrete(last)
    pad = -count % SCALED
    wide = x.pad((*((0, 0) for _ in front), (0, pad))) if pad else x
    wide = wide.reshape(*front, (count + pad) // SCALED, SCALED)
    scale = (wide.abs().max(-1, keepdim=True) * (1 / 127)).maximum(1e-7).contiguous().cast(dt.float16)
    codes = (wide / scale.cast(dt.float32)).rint().clip(-127, 127).cast(dt.int8)
    return [codes.reshape(*front, count + pad)[..., :count], scale.squeeze(-1)]


def _decoded(parts: Sequence[Tensor]) -> Tensor:
    if len(parts) == 1:
        return parts[0].cast(dt.float32)
    codes, scale = parts
    *front, last = codes.shape
    count = concrete(last)
    each = min(SCALED, count)
    if count % each:  # heads that are no multiple of 32
        wide = scale.unsqueeze(-1).expand(*scale.shape, SCALED).reshape(*front, -1)[..., :count]
        return codes.cast(dt.float32) * wide.cast(dt.float32)
    numbers = codes.cast(dt.float32).reshape(*front, count // each, each)
    return (numbers * scale.cast(dt.float32).unsqueeze(-1)).reshape(*front, count)


def _write(cache: Cache, where: tuple[Any, ...], x: Tensor) -> None:
    for part, value in zip(cache, _coded(x, cache), strict=True):
        part[where] = value


@final
@dataclass(frozen=True)
class Stretch:
    """Some tokens of one text, the first of them at a position."""

    text: Any  # which text of the cache; a Variable, or a number
    at: Any
    count: int

    @property
    def last(self) -> Any:
        return self.at + self.count

    def turned(self, turns: Turns) -> Turns:
        return turns[0][self.at : self.last], turns[1][self.at : self.last]

    def places(self, table: Tensor) -> Tensor:
        return table[self.at : self.last]

    def mask(self, window: int, device: str | None) -> Tensor | None:
        """Where each token may look: not beyond itself, nor before its window; None: everywhere."""
        if self.count == 1 and not window:
            return None
        keys = Tensor.arange(self.last, device=device).unsqueeze(0)
        own = Tensor.arange(self.at, self.last, device=device).reshape(self.count, 1)
        seen = keys <= own
        return seen if not window else seen & (keys > own - window)

    def attend(self, config: Config, cache: Cache, qkv: Sequence[Tensor], mask: Tensor | None) -> Attended:
        """Heads (rows, heads, numbers) → queries that share keys, keys and values, the mask of scores."""
        c, rows = config, self.count
        q, k, v = (x.transpose(0, 1) for x in qkv)
        here = slice(self.text, self.text + 1)
        for i, x in enumerate((k, v)):
            _write(cache, (here, i, slice(None), slice(self.at, self.last)), x.unsqueeze(0))
        keys, values = (_decoded([p[here, i, :, : self.last].squeeze(0) for p in cache]) for i in (0, 1))
        share = c.heads // c.groups
        if mask is not None:
            mask = mask.unsqueeze(0).expand(share, *mask.shape).reshape(share * rows, mask.shape[1])
        return Attended(q.reshape(c.groups, share * rows, c.head), keys, values, mask)

    def rows(self, config: Config, seen: Tensor) -> Tensor:
        """(groups, queries, numbers) → (rows, heads · numbers)."""
        c = config
        return seen.reshape(c.heads, self.count, c.head).transpose(0, 1).reshape(self.count, -1)


@final
@dataclass(frozen=True)
class Together:
    """The next token of every text of a cache, each at a position of its own."""

    at: tuple[Any, ...]  # Variables
    positions: Tensor  # the same as a tensor, (texts,)
    last: Any  # a Variable: all positions are before it

    @property
    def count(self) -> int:
        return len(self.at)

    def turned(self, turns: Turns) -> Turns:
        cosines, sines = (t[self.positions].unsqueeze(1).contiguous() for t in turns)
        return cosines, sines

    def places(self, table: Tensor) -> Tensor:
        return table[self.positions]

    def mask(self, window: int, device: str | None) -> Tensor | None:
        keys = Tensor.arange(self.last, device=device).reshape(1, 1, 1, -1)
        own = self.positions.reshape(self.count, 1, 1, 1)
        seen = keys <= own
        return seen if not window else seen & (keys > own - window)

    def attend(self, config: Config, cache: Cache, qkv: Sequence[Tensor], mask: Tensor | None) -> Attended:
        c, texts = config, self.count
        q, k, v = (x.contiguous() for x in qkv)  # (texts, heads, numbers)
        for i, at in enumerate(self.at):
            for which, x in enumerate((k, v)):
                where = (slice(i, i + 1), which, slice(None), slice(at, at + 1))
                _write(cache, where, x[i : i + 1].unsqueeze(2))
        keys, values = (_decoded([p[:, i, :, : self.last] for p in cache]) for i in (0, 1))
        return Attended(q.reshape(texts, c.groups, c.heads // c.groups, c.head), keys, values, mask)

    def rows(self, config: Config, seen: Tensor) -> Tensor:
        return seen.reshape(self.count, config.heads * config.head)


@final
@dataclass(frozen=True)
class Attended:
    """What attention multiplies: (…, queries, numbers), twice (…, positions, numbers); a mask of scores."""

    queries: Tensor
    keys: Tensor
    values: Tensor
    mask: Tensor | None


Next = Stretch | Together
