"""What drawing a program needs: the values so far, new inputs, sizes, types and numbers by chance."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.programs.api.formats import ALL, FLOATS, FORMATS, INTS, NUMPY, TINY, Array, is_float
from tests.programs.api.reference import Reject
from tests.programs.api.whole import Reference

LARGEST = 4096  # elements of a value
SIZES = (1, 2, 3, 5, 7, 13, 31)
MANY = (17, 37, 64, 101, 257, 1021)
TYPES = (*ALL[:1], *INTS, *FLOATS, *FLOATS, "float32", "float32", "int64", "int32", *TINY)


@dataclass
class Line:
    """One statement: names on the left, an expression of the API on the right."""

    names: tuple[str, ...]
    text: str

    def __str__(self) -> str:
        return f"{', '.join(self.names)} = {self.text}"


@dataclass
class Draw:
    """A program that is being drawn, evaluated on the reference as it grows."""

    random: random.Random
    data: dict[str, Array] = field(default_factory=dict)
    lines: list[Line] = field(default_factory=list)
    values: dict[str, Reference] = field(default_factory=dict)
    sizes: tuple[int, ...] = SIZES
    types: tuple[str, ...] = TYPES
    smooth: bool = False  # only numbers where functions have slopes

    # --- chances

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def choice(self, items: Any) -> Any:
        return self.random.choice(items)

    def size(self) -> int:
        if self.chance(0.025):
            return 0
        return int(self.choice(MANY if self.chance(0.12) else self.sizes))

    def shape(self, least: int = 0, most: int = 4) -> tuple[int, ...]:
        while True:
            rank = self.choice([r for r in (0, 1, 1, 2, 2, 2, 3, 3, 4) if least <= r <= most])
            shape = tuple(self.size() for _ in range(rank))
            if np.prod(shape, initial=1) <= LARGEST / 2:
                return shape

    # --- values

    def name(self) -> str:
        return f"v{sum(len(line.names) for line in self.lines)}"

    def add(self, text: str, count: int = 1) -> list[str]:
        """One more statement; Reject if the reference cannot say what comes out of it."""
        first = sum(len(line.names) for line in self.lines)
        names = tuple(f"v{first + i}" for i in range(count))
        made = evaluate(text, {**self.data, **self.values}, Reference)
        results = made if isinstance(made, tuple) else (made,)
        if len(results) != count:
            raise Reject("another number of results")
        for result in results:
            if not isinstance(result, Reference) or result.x.size > LARGEST:
                raise Reject("too large")
            if result.unknown > 0.4 or (result.x.size > 4 and np.isnan(result.wide()).mean() > 0.7):
                raise Reject("nothing is known")
        self.lines.append(Line(names, text))
        self.values.update(zip(names, results, strict=True))
        return list(names)

    def pick(self, wanted: Callable[[Reference], bool] = lambda value: True) -> str:
        """A value of a kind, recent ones more often."""
        found = [name for name, value in self.values.items() if wanted(value)]
        if not found:
            raise Reject("there is none")
        return str(found[max(self.random.randrange(len(found)), self.random.randrange(len(found)))])

    def axis(self, value: Reference) -> int:
        """An axis, from either end."""
        if value.ndim == 0:
            raise Reject("no axis")
        return self.random.randrange(-value.ndim, value.ndim)

    def leaf(
        self, shape: tuple[int, ...], kind: str | None = None, low: int | None = None, high: int = 0
    ) -> str:
        """A new input; with limits, of whole numbers from `low` up to but without `high`."""
        kind = kind or self.choice(self.types)
        rng = np.random.default_rng(self.random.getrandbits(32))
        array = (
            rng.integers(low, high, shape).astype(NUMPY[kind])
            if low is not None
            else self._array(rng, shape, kind)
        )
        name = f"a{len(self.data)}"
        self.data[name] = array
        text = f"Tensor({name})"
        if shape and self.chance(0.08):  # memory that is not in order
            self.data[name] = np.ascontiguousarray(np.flip(array, 0).T)
            text = f"Tensor({name}.T[::-1])"
        return self.add(text)[0]

    def _array(self, rng: Any, shape: tuple[int, ...], kind: str) -> Array:
        way = self.random.random()
        if kind == "bool":
            return np.asarray(rng.integers(0, 2, shape).astype(bool))
        if kind in INTS:
            info = np.iinfo(NUMPY[kind])
            if way < 0.5:
                return np.asarray(rng.integers(max(info.min, -5), 8, shape).astype(NUMPY[kind]))
            if way < 0.8:
                return np.asarray(rng.integers(info.min, info.max, shape, dtype=NUMPY[kind], endpoint=True))
            ends = np.array(
                [info.min, info.min + 1, 0, 1, 2, info.max - 1, info.max, info.max // 2], NUMPY[kind]
            )
            return np.asarray(rng.choice(ends, shape))
        if self.smooth:
            return np.asarray(rng.normal(size=shape) if way < 0.6 else rng.uniform(0.2, 2.0, shape))
        if way < 0.3 or kind in TINY:
            found = rng.integers(-4, 5, shape).astype(np.float64)
        elif way < 0.45:
            found = rng.integers(-16, 17, shape) / 4
        elif way < 0.75:
            found = rng.normal(size=shape)
        elif way < 0.9:
            found = rng.uniform(0.05, 3.0, shape)
        else:
            ends = [
                0.0,
                1.0,
                -1.0,
                0.5,
                2.5,
                100.0,
                -3.75,
                FORMATS[kind].largest / 4,
                np.inf,
                -np.inf,
                np.nan,
            ]
            found = rng.choice(np.array(ends), shape)
        with np.errstate(all="ignore"):
            return np.asarray(np.asarray(found).astype(NUMPY[kind]))

    def partner(self, value: Reference, kind: str | None = None) -> str:
        """A value that broadcasts with this one: one that is there, or a new input."""
        if self.chance(0.5):
            try:
                return self.pick(lambda v: (kind is None or v.type == kind) and _fits(v.shape, value.shape))
            except Reject:
                pass
        shape = list(value.shape)
        if self.chance(0.5):
            shape = [1 if self.chance(0.25) else size for size in shape]
            shape = shape[self.random.randrange(len(shape) + 1) if self.chance(0.3) else 0 :]
        same = kind or (value.type if self.chance(0.65) else self.choice(self.types))
        return self.leaf(tuple(shape), same)

    def number(self, kind: str) -> bool | int | float:
        """A Python number that goes with a type."""
        if (is_float(kind) and self.chance(0.7)) or (self.chance(0.15) and kind != "bool"):
            return float(self.choice((0.5, -1.5, 2.0, 3.0, 0.1, -0.25, 1.0, 0.0, 10.0)))
        if kind == "bool":
            return bool(self.chance(0.5)) if self.chance(0.5) else int(self.choice((0, 1, 2)))
        return int(self.choice((0, 1, 2, 3, 5, 7) if kind[0] == "u" else (-7, -3, -2, -1, 0, 1, 2, 3, 5)))


def _fits(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    try:
        return int(np.prod(np.broadcast_shapes(a, b), initial=1)) <= LARGEST
    except ValueError:
        return False


_CODE: dict[str, Any] = {}


def evaluate(text: str, names: dict[str, Any], tensor: Any) -> Any:
    """The expression, with tensors of one kind or the other."""
    code = _CODE.get(text)
    if code is None:
        if len(_CODE) > 2000:
            _CODE.clear()
        code = _CODE[text] = compile(text, "<program>", "eval")
    with np.errstate(all="ignore"):
        return eval(code, {"Tensor": tensor, "np": np, "inf": float("inf")}, names)
