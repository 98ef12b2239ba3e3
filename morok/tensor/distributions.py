"""Random tensors of many distributions, from the same counters as all others (`random.py`).

Nothing is repeated until it fits: what a method may reject is drawn several times at once, along one more
axis, and the first that fits is taken. So a draw is a fixed graph of a fixed number of random bits, lazy and
compiled like everything else. Tries are so many that all fail less than once in 10⁹ draws; then the last
candidate is taken.

Parameters are numbers or tensors and broadcast; `size` is the shape of the result, as in NumPy. Scales and
shifts have gradients; a shape parameter (of gamma, beta, …) and whole numbers have none.
"""

from __future__ import annotations

import math
from typing import Any

from morok import dtype as dt
from morok.errors import ArgumentError, ShapeError
from morok.ir.infer import show_shape
from morok.tensor.arrays import reduce
from morok.tensor.arrays.joining import stack
from morok.tensor.arrays.movement import broadcast_to, narrow, squeeze, unsqueeze
from morok.tensor.arrays.reduce import cumsum
from morok.tensor.core import iota
from morok.tensor.creation.constructors import contiguous, detach
from morok.tensor.elementwise.activations import sigmoid
from morok.tensor.elementwise.arithmetic import abs as absolute
from morok.tensor.elementwise.comparison import eq, maximum, minimum, where
from morok.tensor.elementwise.conversion import cast
from morok.tensor.elementwise.functions import exp, log, log1p, sqrt
from morok.tensor.elementwise.operators import T
from morok.tensor.elementwise.rounding import floor
from morok.tensor.random import Generator, rand, randn
from morok.tensor.sizes import as_shape, broadcast_shapes
from morok.tensor.special.errors import ndtr, ndtri
from morok.tensor.special.gamma import lgamma

_SMALL = 10.0  # means below it are counted arrival by arrival
_ARRIVALS = 48  # a mean of 10 has more with probability 10⁻¹⁷
_TRIES = 16  # of which each fits in three cases of four, or more


def _parameters(cls: type[T], values: tuple[Any, ...], size: Any, dtype: Any) -> tuple[Any, ...]:
    """Parameters as tensors of one float type that broadcast to the result's shape, and that shape."""
    like = next((v for v in values if isinstance(v, cls)), None)
    kind = dtype or (like.dtype if like is not None and like.dtype.is_float else dt.default_float)
    make: Any = cls
    where_to = None if like is None else like.device
    made = [v if isinstance(v, cls) else make(v, dtype=kind, device=where_to) for v in values]
    own = broadcast_shapes(*(v.shape for v in made))
    sizes = own if size is None else as_shape(size if isinstance(size, tuple | list) else (size,))
    if broadcast_shapes(own, sizes) != tuple(sizes):
        raise ShapeError(f"parameters of shape {show_shape(own)} do not fit a size of {show_shape(sizes)}")
    wide = dt.float64 if kind is dt.float64 else dt.float32
    return (*(cast(v, wide) for v in made), tuple(sizes), kind)


def _uniform(like: T, sizes: Any, generator: Generator | None) -> T:
    """Between 0 and 1, both excluded, as fine as the type is."""
    u = rand(type(like), *sizes, dtype=like.dtype, device=like.device, generator=generator)
    return u + (2.0**-54 if like.dtype is dt.float64 else 2.0**-25)


def _spread(x: T) -> T:
    """A parameter beside an axis of tries."""
    return unsqueeze(detach(x), -1)


def _first(fits: T, candidates: T) -> T:
    """Along the last axis the first candidate that fits, or the last one."""
    fits = fits | eq(_places(fits), fits.shape[-1] - 1)
    at = reduce.argmax(fits, -1, keepdim=True)
    return reduce.sum(where(eq(_places(fits), at), candidates, 0.0), -1)


def _places(x: T) -> T:
    return x._new(iota((x.shape[-1],), 0, dt.int64))


# --- waiting times and extremes


def exponential(
    cls: type[T], scale: Any = 1.0, size: Any = None, dtype: Any = None, generator: Generator | None = None
) -> T:
    """Waiting times with mean `scale`.

    >>> Tensor.exponential(2.0, size=(2, 3)).shape
    (2, 3)
    """
    wide, sizes, kind = _parameters(cls, (scale,), size, dtype)
    u = rand(cls, *sizes, dtype=wide.dtype, device=wide.device, generator=generator)
    result: T = cast(-log1p(-u) * wide, kind)
    return result


def gumbel(
    cls: type[T],
    loc: Any = 0.0,
    scale: Any = 1.0,
    size: Any = None,
    dtype: Any = None,
    generator: Generator | None = None,
) -> T:
    """The largest of many waiting times: loc - scale · log(-log u).

    >>> Tensor.gumbel(size=3).shape
    (3,)
    """
    mean, wide, sizes, kind = _parameters(cls, (loc, scale), size, dtype)
    result: T = cast(mean - wide * log(-log(_uniform(wide, sizes, generator))), kind)
    return result


def categorical(logits: T, size: Any = None, axis: int = -1, generator: Generator | None = None) -> T:
    """Positions along an axis, drawn with probabilities softmax(logits); `size` goes before their shape.

    >>> Tensor([[-100.0, 0.0], [0.0, -100.0]]).categorical().tolist()
    [1, 0]
    """
    if not logits.ndim:
        raise ShapeError("categorical needs an axis of logits, not a number")
    axis = axis if axis < 0 else axis - logits.ndim
    extra = () if size is None else as_shape(size if isinstance(size, tuple | list) else (size,))
    noise = gumbel(
        type(logits), cast(logits, dt.float32) * 0.0, size=(*extra, *logits.shape), generator=generator
    )
    return reduce.argmax(noise + logits, axis)


def truncated_normal(
    cls: type[T],
    lower: Any = -2.0,
    upper: Any = 2.0,
    loc: Any = 0.0,
    scale: Any = 1.0,
    size: Any = None,
    dtype: Any = None,
    generator: Generator | None = None,
) -> T:
    """Normal, between two bounds that are given in standard deviations from `loc`.

    >>> x = Tensor.truncated_normal(-1.0, 0.5, size=100)
    >>> bool(((x >= -1.0) & (x <= 0.5)).all())
    True
    """
    low, high, mean, wide, sizes, kind = _parameters(cls, (lower, upper, loc, scale), size, dtype)
    # on the side where probabilities are small, so that none of them is nearly 1
    mirrored = low + high > 0.0
    a, b = where(mirrored, -high, low), where(mirrored, -low, high)
    first, last = (ndtr(cast(v, dt.float64)) for v in (a, b))
    u = _uniform(wide, sizes, generator)
    x = cast(ndtri(first + (last - first) * cast(u, dt.float64)), wide.dtype)
    x = minimum(maximum(where(mirrored, -x, x), low), high)
    result: T = cast(x * wide + mean, kind)
    return result


# --- gamma and its kin


_FEW = 1024  # numbers whose memory is nothing beside the time of compiling


def _log_gamma(shape: T, sizes: Any, generator: Generator | None) -> T:
    """Logarithms of gamma's numbers, which do not underflow however small the shape (Marsaglia and Tsang)."""
    like = broadcast_to(detach(shape), *sizes)
    small = like < 1.0  # one more, times a power of a uniform number
    base = where(small, like + 1.0, like) - 1.0 / 3.0
    d = _spread(base)
    tries = (*sizes, 8)
    normal = randn(type(like), *tries, dtype=like.dtype, device=like.device, generator=generator)
    u = _uniform(like, tries, generator)
    if all(isinstance(n, int) for n in sizes) and math.prod(sizes) <= _FEW:
        normal = contiguous(normal)  # two kernels compile sooner than one that does everything
    root = normal / sqrt(d * 9.0) + 1.0
    cube = where(root > 0.0, root * root * root, 1.0)
    fits = (root > 0.0) & (log(u) < normal * normal * 0.5 + d * (-cube + 1.0 + log(cube)))
    found = log(base * _first(fits, cube))
    power = log(_uniform(like, sizes, generator)) / where(small, like, 1.0)
    return where(small, found + power, found)


def gamma(
    cls: type[T],
    shape: Any,
    scale: Any = 1.0,
    size: Any = None,
    dtype: Any = None,
    generator: Generator | None = None,
) -> T:
    """Gamma's distribution, mean shape · scale."""
    a, wide, sizes, kind = _parameters(cls, (shape, scale), size, dtype)
    result: T = cast(exp(_log_gamma(a, sizes, generator)) * wide, kind)
    return result


def beta(
    cls: type[T], a: Any, b: Any, size: Any = None, dtype: Any = None, generator: Generator | None = None
) -> T:
    """Beta's distribution between 0 and 1, mean a / (a + b)."""
    first, second, sizes, kind = _parameters(cls, (a, b), size, dtype)
    both = stack(broadcast_to(first, *sizes), broadcast_to(second, *sizes))
    # drawn together, and kept: both in one kernel would be a long one, and slow to compile
    logs = contiguous(_log_gamma(both, (2, *sizes), generator))
    found = narrow(logs, 0, 0, 1) - narrow(logs, 0, 1, 1)
    result: T = cast(sigmoid(squeeze(found, 0)), kind)
    return result


def dirichlet(alpha: T, size: Any = None, generator: Generator | None = None) -> T:
    """Shares along the last axis that sum to 1; `size` goes before alpha's shape.

    >>> round(Tensor([1.0, 2.0, 3.0]).dirichlet().sum().item(), 4)
    1.0
    """
    extra = () if size is None else as_shape(size if isinstance(size, tuple | list) else (size,))
    wide, sizes, kind = _parameters(type(alpha), (alpha,), (*extra, *alpha.shape), None)
    x = _log_gamma(wide, sizes, generator)
    parts = exp(x - reduce.max(x, -1, keepdim=True))
    result: T = cast(parts / reduce.sum(parts, -1, keepdim=True), kind)
    return result


# --- counts


def poisson(lam: T, size: Any = None, dtype: Any = None, generator: Generator | None = None) -> T:
    """How many events happen where `lam` are expected; floats like lam's, as PyTorch.

    >>> Tensor([0.0, 3.0]).poisson().shape
    (2,)
    """
    return poisson_of(type(lam), lam, size, dtype, generator)


def poisson_of(cls: type[T], lam: Any, size: Any, dtype: Any, generator: Generator | None) -> T:
    """The same of a number, too, for which it is known how it has to be drawn."""
    mean, sizes, kind = _parameters(cls, (lam,), size, dtype)
    mean = broadcast_to(detach(mean), *sizes)
    known = None if isinstance(lam, cls) else _range(lam)
    if known is not None and known[0] >= _SMALL:
        all_many: T = cast(_many_events(mean, sizes, generator), kind)
        return all_many
    few = minimum(mean, _SMALL)
    waits = exponential(cls, _spread(few) * 0.0 + 1.0, (*sizes, _ARRIVALS), generator=generator)
    arrived = reduce.sum(cumsum(waits, -1) <= _spread(few), -1)
    if known is not None and 0.0 <= known[0] and known[1] < _SMALL:
        few_only: T = cast(arrived, kind)
        return few_only
    many = _many_events(maximum(mean, _SMALL), sizes, generator)
    found = where(mean < _SMALL, cast(arrived, mean.dtype), many)
    result: T = cast(where(mean >= 0.0, found, math.nan), kind)
    return result


def _range(value: Any) -> tuple[float, float] | None:
    """The least and the largest of numbers that somebody has written down."""
    if isinstance(value, bool | int | float):
        return float(value), float(value)
    return None


def _many_events(mean: T, sizes: Any, generator: Generator | None) -> T:
    """Hörmann's transformed rejection (PTRS), for means of 10 and more."""
    lam = _spread(mean)
    b = sqrt(lam) * 2.53 + 0.931
    a = b * 0.02483 - 0.059
    scale = 1.1239 + 1.1328 / (b - 3.4)
    k, us, v = _transformed(lam, a, b, 0.43, sizes, generator)
    quick = (us >= 0.07) & (v <= 0.9277 - 3.6224 / (b - 2.0))
    events, wide = (cast(x, dt.float64) for x in (maximum(k, 0.0), lam))  # large numbers cancel
    right = events * log(wide) - wide - lgamma(events + 1.0)
    left = cast(log(v * scale / (a / (us * us) + b)), dt.float64)
    fits = (k >= 0.0) & (quick | (left <= right))
    result: T = _first(fits & ((us >= 0.013) | (v <= us)), maximum(k, 0.0))
    return result


def _transformed(
    centre: T, a: T, b: T, shift: float, sizes: Any, generator: Generator | None
) -> tuple[Any, Any, Any]:
    """Candidates of Hörmann's method: (whole number, distance from the ends, height)."""
    tries = (*sizes, _TRIES)
    u, v = (_uniform(centre, tries, generator) for _ in range(2))
    u = u - 0.5
    us = -absolute(u) + 0.5
    return floor((a * 2.0 / us + b) * u + centre + shift), us, v


def binomial(
    count: T, prob: Any, size: Any = None, dtype: Any = None, generator: Generator | None = None
) -> T:
    """How many of `count` trials succeed, each with probability `prob`; floats like count's, as PyTorch.

    >>> Tensor([10.0]).binomial(1.0).tolist()
    [10.0]
    """
    n, p, sizes, kind = _parameters(type(count), (count, prob), size, dtype)
    n, p = (broadcast_to(detach(v), *sizes) for v in (n, p))
    rare = minimum(p, -p + 1.0)  # of success or of failure, whichever is less likely
    mean = n * rare
    # gaps between successes, for few of them
    few = where(mean < _SMALL, rare, 0.0)
    u = _uniform(n, (*sizes, _ARRIVALS), generator)
    gaps = floor(log(u) / log1p(-_spread(maximum(few, 1e-30)))) + 1.0
    arrived = cast(reduce.sum(cumsum(gaps, -1) <= _spread(n), -1), n.dtype)
    some = where(few > 0.0, arrived, 0.0)
    found = where(mean < _SMALL, some, _many_successes(n, rare, sizes, generator))
    found = where(p > 0.5, n - found, found)
    valid = (n >= 0.0) & (p >= 0.0) & (p <= 1.0)
    result: T = cast(where(valid, found, math.nan), kind)
    return result


def _many_successes(n: T, p: T, sizes: Any, generator: Generator | None) -> T:
    """Hörmann's transformed rejection (BTRS), for means of 10 and more."""
    enough = n * p >= _SMALL
    trials, odds = _spread(where(enough, n, 40.0)), _spread(where(enough, p, 0.5))
    spread = sqrt(trials * odds * (-odds + 1.0))
    b = spread * 2.53 + 1.15
    a = b * 0.0248 - 0.0873 + odds * 0.01
    alpha = (2.83 + 5.1 / b) * spread
    mode = floor((trials + 1.0) * odds)
    k, us, v = _transformed(trials * odds, a, b, 0.5, sizes, generator)
    inside = (k >= 0.0) & (k <= trials)
    k = minimum(maximum(k, 0.0), trials)
    quick = (us >= 0.07) & (v <= 0.92 - 4.2 / b)
    wide = [cast(x, dt.float64) for x in (k, mode, trials, odds)]
    right = _log_ratio(*wide)
    fits = quick | (cast(log(v * alpha / (a / (us * us) + b)), dt.float64) <= right)
    result: T = _first(inside & fits, k)
    return result


def _log_ratio(k: Any, mode: Any, n: Any, p: Any) -> Any:
    """The logarithm of how likely k successes are beside the likeliest number of them."""
    paths = lgamma(mode + 1.0) + lgamma(n - mode + 1.0) - lgamma(k + 1.0) - lgamma(n - k + 1.0)
    return paths + (k - mode) * log(p / (-p + 1.0))


def standard_gamma(x: T, generator: Generator | None = None) -> T:
    """Gamma's distribution with scale 1, the elements its shapes.

    >>> Tensor([1.0, 2.0]).standard_gamma().shape
    (2,)
    """
    if not x.dtype.is_float:
        raise ArgumentError(f"shapes of gamma's distribution are floats, not {x.dtype}")
    return gamma(type(x), x, generator=generator)
