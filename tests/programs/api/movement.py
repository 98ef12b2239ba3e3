"""The reference's movements, joins, and places by number."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.programs.api.formats import FORMATS, NUMPY, Array, common, is_float
from tests.programs.api.reference import Core, Reject, number


def _axes(dims: Any) -> tuple[int, ...]:
    return (dims,) if isinstance(dims, int) else tuple(dims)


class Movement(Core):
    """The same elements in other places."""

    __slots__ = ()

    def reshape(self, *shape: int) -> Any:
        return self.moved(lambda a: a.reshape(shape))

    def flatten(self, start: int = 0, end: int = -1) -> Any:
        start, end = start % self.ndim, end % self.ndim
        shape = self.shape
        size = int(np.prod(shape[start : end + 1]))
        return self.moved(lambda a: a.reshape(*shape[:start], size, *shape[end + 1 :]))

    def ravel(self) -> Any:
        return self.moved(lambda a: a.reshape(-1))

    def permute(self, *axes: int) -> Any:
        return self.moved(lambda a: a.transpose(axes))

    def transpose(self, a0: int, a1: int) -> Any:
        return self.moved(lambda a: a.swapaxes(a0, a1))

    def movedim(self, source: Any, target: Any) -> Any:
        return self.moved(lambda a: np.moveaxis(a, source, target))

    def squeeze(self, dim: Any = None) -> Any:
        return self.moved(lambda a: a.squeeze(dim))

    def unsqueeze(self, dim: int) -> Any:
        return self.moved(lambda a: np.expand_dims(a, dim))

    def flip(self, *dims: int) -> Any:
        return self.moved(lambda a: np.flip(a, dims or None))

    def expand(self, *sizes: int) -> Any:
        return self.moved(lambda a: np.broadcast_to(a, sizes))

    def repeat(self, *counts: int) -> Any:
        return self.moved(lambda a: np.tile(a, counts))

    def repeat_interleave(self, count: int, dim: Any = None) -> Any:
        return self.moved(lambda a: np.repeat(a, count, dim))

    def roll(self, shift: Any, dim: Any = None) -> Any:
        return self.moved(lambda a: np.roll(a, shift, dim))

    def rot90(self, k: int, dims: Any) -> Any:
        return self.moved(lambda a: np.rot90(a, k, dims))

    def diagonal(self, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
        return self.moved(lambda a: np.diagonal(a, offset, dim1, dim2))

    def shrink(self, limits: Any) -> Any:
        return self.moved(lambda a: a[tuple(slice(*limit) if limit else slice(None) for limit in limits)])

    def narrow(self, dim: int, start: int, length: int) -> Any:
        if start + length > self.shape[dim]:
            raise Reject("outside")
        return self.moved(lambda a: np.take(a, np.arange(start, start + length), dim))

    def select(self, dim: int, index: int) -> Any:
        return self.moved(lambda a: np.take(a, index, dim))

    def unfold(self, dim: int, size: int, step: int) -> Any:
        dim %= self.ndim

        def windows(a: Array) -> Array:
            return np.moveaxis(np.lib.stride_tricks.sliding_window_view(a, size, dim), dim, 0)[::step]

        return self.moved(lambda a: np.moveaxis(windows(a), 0, dim))

    def pad(self, padding: Any, value: Any = 0, mode: str = "constant") -> Any:
        if mode != "constant":
            names = {"replicate": "edge", "circular": "wrap"}
            return self.moved(lambda a: np.pad(a, padding, mode=names.get(mode, mode)))
        fill = number(self, value, self.type)
        x = np.pad(self.x, padding, constant_values=fill.x)
        return self.like(x, np.pad(self.e, padding))

    def tril(self, diagonal: int = 0) -> Any:
        return self._triangle(np.tril, diagonal)

    def triu(self, diagonal: int = 0) -> Any:
        return self._triangle(np.triu, diagonal)

    def _triangle(self, part: Any, diagonal: int) -> Any:
        keep = part(np.ones(self.shape, bool), diagonal)
        return self.like(np.where(keep, self.x, self.x.dtype.type(0)), np.where(keep, self.e, 0.0))

    def diag_embed(self, offset: int = 0) -> Any:
        def embed(a: Array) -> Array:
            n = a.shape[-1] + abs(offset)
            made = np.zeros((*a.shape[:-1], n, n), a.dtype)
            i = np.arange(a.shape[-1])
            made[..., i + max(-offset, 0), i + max(offset, 0)] = a
            return made

        return self.moved(embed)

    # --- joins and parts

    def _common(self, others: tuple[Any, ...]) -> list[Any]:
        kind = common([t.type for t in (self, *others)])
        return [t.cast(kind) for t in (self, *others)]

    def cat(self, *others: Any, dim: int = 0) -> Any:
        parts = self._common(others)
        return parts[0].like(
            np.concatenate([p.x for p in parts], dim), np.concatenate([p.e for p in parts], dim)
        )

    def stack(self, *others: Any, dim: int = 0) -> Any:
        parts = self._common(others)
        return parts[0].like(np.stack([p.x for p in parts], dim), np.stack([p.e for p in parts], dim))

    def split(self, sizes: Any, dim: int = 0) -> tuple[Any, ...]:
        length = self.shape[dim]
        if isinstance(sizes, int):
            cuts = list(range(sizes, length, sizes))
        else:
            cuts = list(np.cumsum(sizes)[:-1])
        return self._cut(cuts, dim)

    def chunk(self, count: int, dim: int = 0) -> tuple[Any, ...]:
        return self.split(-(-self.shape[dim] // count), dim)

    def tensor_split(self, parts: Any, dim: int = 0) -> tuple[Any, ...]:
        return self._cut(parts, dim, np.array_split)

    def _cut(self, cuts: Any, dim: int, way: Any = np.split) -> tuple[Any, ...]:
        pairs = zip(way(self.x, cuts, dim), way(self.e, cuts, dim), strict=True)
        return tuple(self.like(x, e) for x, e in pairs)

    def unbind(self, dim: int = 0) -> tuple[Any, ...]:
        return tuple(self.moved(lambda a, i=i: np.take(a, i, dim)) for i in range(self.shape[dim]))

    # --- places by number

    def __getitem__(self, where: Any) -> Any:
        places = where if isinstance(where, tuple) else (where,)
        for place in places:
            if isinstance(place, Core):
                if place.e.any():
                    raise Reject("an uncertain place")
                if is_float(place.type):
                    raise Reject("no place")
        plain = tuple(p.x if isinstance(p, Core) else p for p in places)
        return self.moved(lambda a: a[plain])

    def gather(self, dim: int, index: Any) -> Any:
        places = _places(index)
        return self.moved(lambda a: np.take_along_axis(_box(a, places.shape, dim), places, dim))

    def take_along_dim(self, index: Any, dim: int) -> Any:
        places = _places(index)
        return self.moved(lambda a: np.take_along_axis(a, places, dim))

    def index_select(self, dim: int, index: Any) -> Any:
        places = _places(index)
        return self.moved(lambda a: np.take(a, places, dim))

    def take(self, index: Any, axis: Any = None) -> Any:
        places = _places(index)
        return self.moved(lambda a: np.take(a, places, axis))

    def embedding(self, index: Any) -> Any:
        return self.take(index, 0)

    def one_hot(self, classes: int) -> Any:
        if self.e.any() or is_float(self.type) or self.type == "bool":
            raise Reject("no class")
        if self.x.size and (self.x.min() < 0 or self.x.max() >= classes):
            raise Reject("no class")
        x = (self.x[..., None] == np.arange(classes)).astype(np.int64)
        return self.like(x, np.zeros(x.shape), "int64")

    def scatter(self, dim: int, index: Any, source: Any) -> Any:
        places, src = _scattered(self, index, source)
        _unique(places, dim)
        where = _grid(places, dim)
        x, e = self.x.copy(), np.array(self.e)
        x[where], e[where] = src.x[_box_of(places)], src.e[_box_of(places)]
        return self.like(x, e)

    def scatter_add(self, dim: int, index: Any, source: Any) -> Any:
        places, src = _scattered(self, index, source)
        where, box = _grid(places, dim), _box_of(places)
        if not is_float(self.type):
            if self.type == "bool" or self.e.any() or src.e.any():
                raise Reject("no sum")
            x = self.x.copy()
            with np.errstate(all="ignore"):
                np.add.at(x, where, src.x[box])
            return self.like(x, np.zeros(x.shape))
        x, e, size, many = self.x.copy(), np.array(self.e), np.abs(self.x), np.ones(self.shape)
        rough = _rough(self.x)
        for into, what in ((x, src.x), (e, src.e), (size, np.abs(src.x)), (many, np.ones(src.shape))):
            np.add.at(into, where, what[box])
        np.add.at(rough, where, _rough(src.x)[box])
        return _summed(self, self.type, x, e, size, many, rough)

    def index_add(self, dim: int, index: Any, source: Any) -> Any:
        shape = [1] * self.ndim
        shape[dim] = -1
        places = np.broadcast_to(_places(index).reshape(shape), source.shape)
        return self.scatter_add(dim, index.like(places, np.zeros(places.shape), "int64"), source)

    def bincount(self, size: int) -> Any:
        if self.e.any() or is_float(self.type) or self.type == "bool" or self.ndim != 1:
            raise Reject("no numbers to count")
        if self.x.size and (self.x.min() < 0 or self.x.max() >= size):
            raise Reject("outside")
        x = np.bincount(self.x.astype(np.int64), minlength=size)
        return self.like(x.astype(np.int64), np.zeros(x.shape), "int64")


def _rough(x: Array, parts: int = 1024) -> Array:
    """1 where a number is no multiple of a small power of two: sums of such numbers may be rounded."""
    return np.where(x * parts == np.rint(x * parts), 0.0, 1.0)


def _summed(like: Any, kind: str, x: Array, e: Array, size: Array, many: Array, rough: Array) -> Any:
    """A sum of `many` numbers: `size` is the sum of the sizes of all, or of those that are finite; `rough`
    counts those that are not exact.

    Halves are added in float32.
    """
    eps = min(FORMATS[kind].eps, FORMATS["float32"].eps)
    with np.errstate(all="ignore"):
        whole = (e == 0) & (rough == 0) & (size * 1024 < 1 / eps)
        bound = np.where(whole, 0.0, e + (many / 2 + 4) * eps * size)
        bound = np.where(np.isfinite(x), bound, e)
        # a part of the sum may be too large, in one order and not in another; beside an infinity, too
        adder = FORMATS["float64" if kind == "float64" else "float32"]
        decided = np.isfinite(x) | (np.isinf(x) & np.isfinite(size))
        bound = np.where(decided & (size * 1.01 > adder.largest), np.inf, bound)
    return like.rounded(kind, x, bound)


def _places(index: Any) -> Array:
    if index.e.any() or is_float(index.type) or index.type == "bool":
        raise Reject("no place")
    return index.x.astype(np.int64)


def _box(a: Array, shape: tuple[int, ...], dim: int) -> Array:
    """Without what a smaller index leaves out along the other axes."""
    dim %= a.ndim
    return a[tuple(slice(None) if axis == dim else slice(size) for axis, size in enumerate(shape))]


def _box_of(places: Array) -> tuple[slice, ...]:
    return tuple(slice(size) for size in places.shape)


def _grid(places: Array, dim: int) -> tuple[Array, ...]:
    grid = list(np.indices(places.shape))
    grid[dim % places.ndim] = places
    return tuple(grid)


def _unique(places: Array, dim: int) -> None:
    ordered = np.sort(places, dim)
    if (np.diff(ordered, axis=dim) == 0).any():
        raise Reject("one place twice")


def _scattered(self: Any, index: Any, source: Any) -> tuple[Array, Any]:
    places = _places(index)
    if isinstance(source, Core):
        if source.type != self.type:
            raise Reject("another type")
        return places, source
    if is_float(self.type) is False and isinstance(source, float):
        raise Reject("another type")
    src = number(self, source, self.type)
    return places, self.like(np.broadcast_to(src.x, places.shape), np.zeros(places.shape))


def creation(make: Any, kind: str) -> Any:
    return make().astype(NUMPY[kind])
