"""A tensor of plain NumPy with the API's methods, whose elements know how far rounding may have moved them.

Floats are kept in double precision whatever their type, `e` bounds the distance of the computed value from
`x`. An infinite bound says "anything": where a rounding error could have changed a comparison, or a narrower
type could have overflowed. Numbers that arithmetic gets exactly right (small multiples of a power of two)
keep a bound of 0, so what follows from them is compared exactly.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.programs.api.formats import (
    FORMATS,
    NAMES,
    NUMPY,
    Array,
    float_of,
    is_float,
    is_int,
    meet,
    meet_number,
    round_to,
)

Number = bool | int | float


class Reject(Exception):
    """The step makes no sense for these values: the program is drawn differently."""


def _is_coarse(x: Array) -> Array:
    """Whether numbers are small multiples of a power of two, of which sums and products are exact."""
    return np.asarray(~np.isfinite(x) | ((x * 1024 == np.rint(x * 1024)) & (np.abs(x) < 1 << 16)))


class Poles:
    """Watches functions of elements: whether one was asked for where it is infinite or has no slope.

    There the chain rule says inf · 0, whatever becomes of the element later.
    """

    watching = False
    met = False

    def __enter__(self) -> Poles:
        Poles.watching, Poles.met = True, False
        return self

    def __exit__(self, *_: object) -> None:
        Poles.watching = False

    @staticmethod
    def look(function: Callable[..., Array], at: list[Array]) -> None:
        """Ends that are infinite or NaN although the operands are not, and slopes that grow without end."""
        at = [np.asarray(a, np.float64) for a in np.broadcast_arrays(*at)]
        known = np.logical_and.reduce([np.isfinite(a) for a in at])
        here = np.asarray(function(*at), np.float64)
        found = ~np.isfinite(here)
        for n, operand in enumerate(at):
            for sign in (-1, 1):
                rise = []
                for width in (1e-8, 1e-12):
                    step = sign * width * np.maximum(1.0, np.abs(operand))
                    there = function(*at[:n], operand + step, *at[n + 1 :])
                    rise.append(np.abs(there - here) / np.abs(step))
                found = found | (rise[1] > 1e3) & (rise[1] > 8 * rise[0])
        Poles.met = Poles.met or bool((found & known).any())


class Core:
    """Type, values and bounds, and how functions of one or several elements change them."""

    __slots__ = ("e", "type", "x")

    def __init__(
        self, data: Array, type: str | None = None, e: Array | None = None, requires_grad: bool = False
    ) -> None:
        x = np.asarray(data)
        self.type = type or NAMES[x.dtype.newbyteorder("=")]
        self.x = x.astype(np.float64) if is_float(self.type) else x.astype(NUMPY[self.type])
        self.e = np.zeros(x.shape) if e is None else np.broadcast_to(e, x.shape)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.x.shape)

    @property
    def ndim(self) -> int:
        return int(self.x.ndim)

    @property
    def unknown(self) -> float:
        """The part of the elements about which nothing is known."""
        return float(np.isinf(self.e).mean()) if self.e.size else 0.0

    @property
    def exact(self) -> bool:
        return not self.e.any()

    # --- making results

    def like(self, x: Array, e: Array, type: str | None = None) -> Any:
        made = type_of(self).__new__(type_of(self))
        made.type, made.x, made.e = type or self.type, np.asarray(x), np.asarray(e, dtype=np.float64)
        return made

    def moved(self, move: Callable[[Array], Array], type: str | None = None) -> Any:
        """The same elements elsewhere."""
        return self.like(move(self.x), move(self.e), type)

    def rounded(self, type: str, x: Array, e: Array, ulps: float = 1.0) -> Any:
        """A float result that was computed in `type`, up to so many units in the last place."""
        form = FORMATS[type]
        x = np.asarray(x, dtype=np.float64)
        with np.errstate(all="ignore"):
            size = np.abs(x)
            bound = e + ulps * (form.eps * size + form.step)
            if ulps <= 1:
                exact = (
                    (e == 0) & (x * 1024 == np.rint(x * 1024)) & (size < 1 << 40) & (round_to(type, x) == x)
                )
                bound = np.where(exact, 0.0, bound)
            bound = np.where(np.isfinite(x), bound, e)
            near = size + bound > form.largest * (1 - form.eps)
            bound = np.where(np.isfinite(x) & near | np.isnan(bound), np.inf, bound)
            if type == "float8_e4m3":
                bound = np.where(np.isinf(x), np.inf, bound)  # it has no infinities
        return self.like(x, bound, type)

    def wide(self) -> Array:
        return self.x.astype(np.float64)

    # --- conversions

    def cast(self, to: str) -> Any:
        if to == self.type:
            return self
        if to == "bool":
            near = (np.abs(self.wide()) <= self.e) & (self.e > 0)
            return self.like(self.x != 0, np.where(near, np.inf, 0.0), "bool")
        if is_float(to):
            if is_float(self.type):
                if (
                    FORMATS[to].eps <= FORMATS[self.type].eps
                    and FORMATS[to].largest >= FORMATS[self.type].largest
                ):
                    return self.like(self.x, self.e, to)
                return self._narrowed(to)
            x = self.wide()
            result = self.rounded(to, x, self.e)
            same = (self.e == 0) & (round_to(to, x) == x) & (np.abs(x) < 2.0**53)
            return self.like(x, np.where(same, 0.0, result.e), to)
        if is_float(self.type):
            return self._whole(to)
        with np.errstate(all="ignore"):
            return self.like(self.x.astype(NUMPY[to]), self.e, to)

    def _narrowed(self, to: str) -> Any:
        """A float in fewer bits: where it is known exactly, the nearest one, infinity included."""
        nearest = round_to(to, self.x)
        # From double precision NumPy's way to the floats of ml_dtypes is by float32, which rounds twice.
        known = (
            (self.e == 0) & (to != "float8_e4m3") & (self.type != "float64" or to in ("float32", "float16"))
        )
        result = self.rounded(to, self.x, self.e)
        return self.like(np.where(known, nearest, self.x), np.where(known, 0.0, result.e), to)

    def _whole(self, to: str) -> Any:
        info = np.iinfo(NUMPY[to])
        with np.errstate(all="ignore"):
            low, high = np.trunc(self.x - self.e), np.trunc(self.x + self.e)
            inside = (low >= float(info.min)) & (high < float(info.max)) & (low == high)
            kept = np.where(inside, np.trunc(self.x), 0.0)
            return self.like(kept.astype(NUMPY[to]), np.where(inside, 0.0, np.inf), to)

    astype = cast

    # --- functions of elements

    def lift(
        self, function: Callable[..., Array], others: tuple[Any, ...] = (), type: str | None = None,
        ulps: float = 4.0, reach: float = np.inf,
    ) -> Any:  # fmt: skip
        """A continuous function of floats: how it changes between the ends of the operands' bounds.

        `reach`: operands that are less certain than this say nothing (a sine of ten turns).
        """
        operands = (self, *others)
        kind = type or float_of(self.type)
        with np.errstate(all="ignore"):
            floats = [o.cast(kind) if not is_float(o.type) else o for o in operands]
            x = np.asarray(function(*(f.x for f in floats)), dtype=np.float64)
            if Poles.watching:
                Poles.look(function, [f.x for f in floats])
            e = np.zeros(x.shape)
            if any(f.e.any() for f in floats):
                e = self._spread(function, floats, x, reach)
            if kind == "float64" and ulps <= 1:
                # The judge rounds too: 0.1 · 5 is 1/2 here, and a hair more in a sum that rounds only once.
                fine = np.logical_and.reduce(np.broadcast_arrays(*(_is_coarse(f.x) for f in floats)))
                e = np.where(fine, e, np.maximum(e, FORMATS[kind].eps * np.abs(x)))
        return self.rounded(kind, x, e, ulps)

    def _spread(self, function: Callable[..., Array], floats: list[Any], x: Array, reach: float) -> Array:
        e = np.zeros(x.shape)
        for part in (1.0, 0.5):
            for signs in itertools.product((-part, part), repeat=len(floats)):
                there = function(*(f.x + s * f.e for f, s in zip(floats, signs, strict=True)))
                apart = np.abs(there - x)
                apart = np.where((there == x) | (np.isnan(there) & np.isnan(x)), 0.0, apart)
                e = np.maximum(e, np.where(np.isnan(apart), np.inf, apart))
        for f in floats:
            e = np.where(np.broadcast_to((f.e > reach) | np.isinf(f.e), x.shape), np.inf, e)
        return 1.5 * e

    def jump(
        self, function: Callable[..., Array], others: tuple[Any, ...] = (), type: str | None = None
    ) -> Any:
        """A function with jumps, monotone in each operand: known where the ends of the bounds agree."""
        operands = (self, *others)
        with np.errstate(all="ignore"):
            x = np.asarray(function(*(o.x for o in operands)))
            e = np.zeros(x.shape)
            if any(o.e.any() for o in operands):
                for signs in itertools.product((-1, 1), repeat=len(operands)):
                    there = function(*(_moved(o, s) for o, s in zip(operands, signs, strict=True)))
                    agree = (there == x) | ((there != there) & (x != x))
                    e = np.where(agree, e, np.inf)
                for o in operands:
                    e = np.where(np.broadcast_to(np.isinf(o.e), x.shape), np.inf, e)
        return self.like(x, e, type or self.type)

    def together(self, function: Callable[..., Array], others: tuple[Any, ...], type: str) -> Any:
        """A function of whole numbers or truths: unknown where an operand is."""
        operands = (self, *others)
        with np.errstate(all="ignore"):
            x = np.asarray(function(*(o.x for o in operands)))
        e = np.zeros(x.shape)
        for o in operands:
            e = np.maximum(e, np.broadcast_to(o.e, x.shape))
        return self.like(x, np.where(e > 0, np.inf, 0.0), type)

    # --- operands

    def other(self, value: Any) -> Any:
        """The second operand as a tensor: a Python number takes the type that both meet in."""
        if isinstance(value, Core):
            return value
        return number(self, value, meet_number(self.type, value))

    def before(self, value: Any) -> tuple[Any, Any]:
        """A Python number on the left side, and this tensor in the type where they meet."""
        first = self.other(value)
        return first, self.cast(first.type)

    def both(self, value: Any) -> tuple[Any, Any, str]:
        """Two operands in the type where they meet."""
        second = self.other(value)
        kind = meet(self.type, second.type) if isinstance(value, Core) else second.type
        return self.cast(kind), second.cast(kind), kind


def type_of(value: Any) -> Any:
    return value.__class__


def _moved(operand: Any, sign: int) -> Array:
    return operand.x + sign * operand.e if is_float(operand.type) else operand.x


def number(like: Any, value: Number, kind: str) -> Any:
    """A Python number in a type."""
    if is_float(kind):
        return like.like(round_to(kind, np.asarray(float(value))), np.zeros(()), kind)
    if is_int(kind):
        info = np.iinfo(NUMPY[kind])
        if not info.min <= value <= info.max:
            raise Reject(f"{value} does not fit {kind}")
    return like.like(np.asarray(value, NUMPY[kind]), np.zeros(()), kind)
