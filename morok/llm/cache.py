"""Keys and values of all positions so far, for several texts at once, and which tokens are computed next.

A cache of a layer is (texts, 2, groups, positions, numbers): keys, then values, in float32, float16 or
bfloat16; or in bytes, with a scale of float16 for every 32 of them ("q8"). On a processor it lies in memory
in that order; on a grid a position comes before keys and groups, so that what a token writes is one row.

`Stretch` is some tokens of one text, one after the other; `Together` is the next token of several texts.
Both say where keys and values go, what may be looked at, and how rows of numbers are heads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, final

from morok import dtype as dt
from morok.device.buffer import bind_buffer
from morok.device.registry import canonical, default_device, get_device
from morok.dtype import DType
from morok.ir.layout import is_mesh
from morok.llm.config import Config
from morok.llm.rotary import Turns
from morok.machine.devices import machine_of
from morok.tensor.arrays.scatter import put
from morok.tensor.memory.names import new_buffer
from morok.tensor.memory.states import view_of
from morok.tensor.sizes import concrete
from morok.tensor.tensor import Tensor

SCALED = 32  # bytes of a cache that have a common scale
Q8 = "q8"
CACHE_TYPES = {"float32": dt.float32, "float16": dt.float16, "bfloat16": dt.bfloat16, Q8: dt.int8}

Cache = tuple[Tensor, ...]  # numbers, or bytes and scales


def new_cache(config: Config, texts: int, room: int, kind: str, device: str | None) -> Cache:
    """Room for the keys and values of a layer."""
    shapes = [(config.head, CACHE_TYPES[kind])]
    if kind == Q8:
        shapes.append((-(-config.head // SCALED), dt.float16))
    by_position = _by_position(device)
    found = []
    for last, dtype in shapes:
        sizes: tuple[int, ...] = (texts, 2, config.groups, room, last)
        sizes = tuple(sizes[i] for i in _STORED) if by_position else sizes
        found.append(_zeros(sizes, dtype, device))
    return tuple(found)


def _zeros(sizes: tuple[int, ...], dtype: DType, device: str | None) -> Tensor:
    name = default_device() if device is None else canonical(device)
    memory = None if is_mesh(name) else get_device(name).zeros(math.prod(sizes), dtype)
    if memory is None:
        return Tensor.zeros(*sizes, dtype=dtype, device=device).contiguous().realize()
    node = new_buffer(dtype, memory.size, name)
    bind_buffer(node, memory)
    return Tensor._new(view_of(node, sizes))


_STORED = (0, 3, 1, 2, 4)  # the axes as they lie on a grid
_SHOWN = (0, 2, 3, 1, 4)


def _by_position(device: str | None) -> bool:
    return bool(machine_of(device or default_device()).block_threads)


def _axes(cache: Cache) -> list[Tensor]:
    """The parts of a cache as (texts, 2, groups, positions, numbers), however they lie."""
    return [x.permute(*_SHOWN) if _by_position(x.device) else x for x in cache]


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
        both = Tensor.stack(k, v).unsqueeze(0)
        parts = _axes(cache)
        for part, value in zip(parts, _coded(both, cache), strict=True):
            part[here, :, :, self.at : self.last] = value
        keys, values = (_decoded([p[here, i, :, : self.last].squeeze(0) for p in parts]) for i in (0, 1))
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

    positions: Tensor  # (texts,)
    last: Any  # a Variable: all positions are before it
    lines: list[Tensor] = field(default_factory=list)  # of a cache, that are written

    @property
    def count(self) -> int:
        return concrete(self.positions.shape[0])

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
        by_position = _by_position(cache[0].device)  # then threads turn them again, as they are few
        q, k, v = qkv if by_position else (x.contiguous() for x in qkv)  # (texts, heads, numbers)
        for part, value in zip(cache, _coded(Tensor.stack(k, v, dim=1), cache), strict=True):
            self._put(part, value)
        parts = _axes(cache)
        keys, values = (_decoded([p[:, i, :, : self.last] for p in parts]) for i in (0, 1))
        return Attended(q.reshape(texts, c.groups, c.heads // c.groups, c.head), keys, values, mask)

    def _put(self, part: Tensor, value: Tensor) -> None:
        """Rows (texts, 2, groups, numbers) at the positions of their texts: all of them in one kernel."""
        sizes = tuple(map(concrete, part.shape))
        if _by_position(part.device):  # texts have rows of their own, so none waits for another
            places, row = self.positions.reshape(self.count, 1), sizes[2:]
            part.assign(put(part, part, places, value.reshape(self.count, 1, *row), None))
            return
        row, room = sizes[4:], sizes[3]
        if not self.lines:  # of a table with a row for everything that is written, the same for all layers
            count = math.prod(sizes[:3])
            first = (Tensor.arange(count, device=part.device) * room).reshape(sizes[0], -1)
            places = first + self.positions.cast(first.dtype).unsqueeze(1)
            self.lines.append(places.reshape(-1).contiguous())
        table = part.reshape(-1, *row)
        table.assign(put(table, table, self.lines[0], value.reshape(-1, *row), None))

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
