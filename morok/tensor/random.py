"""Random tensors from a counter: the same seed gives the same bits on every device and every version.

Element i of a random tensor is Threefry of (numbers drawn so far + i) under a key made of the seed. Nothing
is stored: the bits are index arithmetic, computed where they are used, and computed again where that is
cheaper than keeping them. Key and counter stand in a cell of two numbers, an input like any other, so a
second draw of the same form is the same compiled kernel. A program that is recorded to be run again takes all
its numbers from one cell (`drawing_from`), which gets new contents for every run.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Lock
from typing import Any, final

import numpy as np

from morok import dtype as dt
from morok.device.buffer import bind_buffer
from morok.device.registry import canonical, default_device, get_device
from morok.dtype import DType
from morok.errors import ArgumentError, DTypeError, MorokError, ShapeError
from morok.forks import renewed
from morok.ir import build
from morok.ir import movement as move
from morok.ir.infer import Shape, numel, show_shape
from morok.ir.layout import is_mesh, mesh_of
from morok.ir.node import UOp, alu, const
from morok.ir.ops import Ops
from morok.ir.sizes import largest
from morok.runtime.plan import buffer_for
from morok.tensor.arrays import reduce
from morok.tensor.arrays.movement import narrow, unsqueeze
from morok.tensor.arrays.reduce import cumsum
from morok.tensor.arrays.sorting import argsort
from morok.tensor.calls.trace_cache import refuse_trace_cache
from morok.tensor.core import expand_to, iota
from morok.tensor.dtypes import as_dtype, float_of
from morok.tensor.elementwise.comparison import clamp, maximum, where
from morok.tensor.elementwise.conversion import cast
from morok.tensor.elementwise.functions import cos, log, sqrt
from morok.tensor.elementwise.operators import T
from morok.tensor.memory.names import new_buffer
from morok.tensor.sizes import as_shape, as_size, concrete_shape, flat_args

_WORD = 0xFFFFFFFFFFFFFFFF


def _mixed(seed: int) -> int:
    """A key in which every bit depends on every bit of the seed (the finaliser of SplitMix64)."""
    x = (seed + 0x9E3779B97F4A7C15) & _WORD
    x = ((x ^ x >> 30) * 0xBF58476D1CE4E5B9) & _WORD
    x = ((x ^ x >> 27) * 0x94D049BB133111EB) & _WORD
    return x ^ x >> 31


@final
class Generator:
    """Random numbers of their own: a key, and how many have been drawn. Without a seed, a key by chance.

    Given to a function that draws (`generator=g`), or around whatever draws, compiled functions as well:

    >>> g = Generator(7)
    >>> a = Tensor.rand(2, generator=g).tolist()
    >>> state = g.get_state()
    >>> with g:
    ...     b = Tensor.rand(2).tolist()
    >>> g.set_state(state)
    >>> b == Tensor.rand(2, generator=g).tolist(), a == b
    (True, False)

    The state is two numbers that can be written anywhere; a seed gives the same bits on every device.
    """

    def __init__(self, seed: int | None = None) -> None:
        self._key: int | None = None if seed is None else _mixed(int(seed))
        self._drawn = 0
        self._lock = renewed(self, "_lock", Lock)

    def manual_seed(self, seed: int) -> Generator:
        """Begin anew with the numbers of a seed."""
        with self._lock:
            self._key, self._drawn = _mixed(int(seed)), 0
        return self

    def get_state(self) -> tuple[int, int]:
        """A key, and how many numbers have been drawn."""
        return self.take(0)

    def set_state(self, state: Sequence[int]) -> None:
        """Go on from a state that `get_state` has given."""
        if len(state) != 2 or any(type(n) is not int or n < 0 for n in state):
            raise ArgumentError(f"the state of random numbers is a key and a count, not {state!r}")
        with self._lock:
            self._key, self._drawn = state[0] & _WORD, state[1] & _WORD

    def take(self, count: int) -> tuple[int, int]:
        """The key, and the first of so many numbers that nobody else gets."""
        with self._lock:
            if self._key is None:
                self._key = _mixed(int.from_bytes(os.urandom(8), "little"))
            start = self._drawn
            self._drawn = (self._drawn + count) & _WORD
            return self._key, start

    def __enter__(self) -> Generator:
        _current.set((*_current.get(), self))
        return self

    def __exit__(self, *reason: object) -> None:
        _current.set(_current.get()[:-1])

    def __reduce__(self) -> Any:
        return _restored, self.get_state()

    def __repr__(self) -> str:
        key, drawn = self.get_state()
        return f"Generator(key={key:#018x}, drawn={drawn})"


def _restored(key: int, drawn: int) -> Generator:
    found = Generator()
    found.set_state((key, drawn))
    return found


_default = Generator()  # of the process
_current: ContextVar[tuple[Generator, ...]] = ContextVar("morok.generators", default=())


def current_generator() -> Generator:
    """The one that draws at this moment: that of the innermost `with`, else the process's."""
    return (_default, *_current.get())[-1]


def manual_seed(seed: int) -> None:
    """Start the random numbers anew.

    >>> Tensor.manual_seed(1)
    >>> a = Tensor.rand(3).tolist()
    >>> Tensor.manual_seed(1)
    >>> Tensor.rand(3).tolist() == a
    True
    """
    current_generator().manual_seed(seed)


@final
class Draws:
    """Draws of a program that is going to be run again: they count on from a cell, which is an input.

    Every device that draws has a cell of its own, and all of them hold the same.
    """

    def __init__(self, cell: UOp) -> None:
        self.cells = {str(cell.src[1].arg): cell}
        self.count = 0

    def cell_on(self, device: str | None) -> UOp:
        """The cell in a device's memory."""
        name = _home(device)
        if name not in self.cells:
            first = buffer_for(next(iter(self.cells.values()))).copy_out()
            self.cells[name] = _cell_of(first, name)
        return self.cells[name]

    def take(self, count: int) -> int:
        """The first of so many numbers, counted from the cell's."""
        self.count += count
        return self.count - count


_draws: ContextVar[Draws | None] = ContextVar("morok.draws", default=None)


@contextmanager
def drawing_from(cell: UOp) -> Iterator[Draws]:
    """Random tensors made inside take their key and counter from a cell (see `new_cell`)."""
    draws = Draws(cell)
    token = _draws.set(draws)
    try:
        yield draws
    finally:
        _draws.reset(token)


def skip(count: int) -> None:
    """Pass over so many numbers."""
    current_generator().take(count)


def new_cell(count: int, device: str | None = None) -> UOp:
    """Key and counter for so many numbers that nobody else gets, in memory."""
    (cell,) = new_cells(count, [_home(device)])
    return cell


def new_cells(count: int, names: Sequence[str]) -> list[UOp]:
    """The same key and counter in the memory of several devices."""
    values = np.array(current_generator().take(count), dtype=np.uint64)
    return [_cell_of(values, name) for name in names]


def _home(device: str | None) -> str:
    """Where a cell lies: on a mesh every device draws from the same one."""
    name = canonical(device) if device else default_device()
    return mesh_of(name).base if is_mesh(name) else name


def _cell_of(values: Any, name: str) -> UOp:
    cell = new_buffer(dt.uint64, 2, name)
    bind_buffer(cell, get_device(name).adopt(values, dt.uint64))
    return cell


def random_bits(
    sizes: Shape, device: str | None, draws: int = 1, source: Generator | None = None
) -> Iterator[UOp]:
    """So many tensors of 64 random bits per element."""
    refuse_trace_cache("a random number")
    if source is not None:
        if _draws.get() is not None:
            raise MorokError(
                "a compiled function takes its random numbers from where it is called: "
                "write `with generator:` around the call instead of `generator=` inside"
            )
        with source:
            yield from list(random_bits(sizes, device, draws))
        return
    count = numel(sizes)
    most = largest(count)  # so many are taken, and so many more for the next draw
    recorded = _draws.get()
    cell = new_cell(most * draws, device) if recorded is None else recorded.cell_on(device)
    first = 0 if recorded is None else recorded.take(most * draws)
    key, start = (move.shrink(cell, ((i, i + 1),)) for i in (0, 1))
    place = iota((count,), 0, dt.uint64)
    for draw in range(draws):
        skipped = first + draw * most
        at = alu(Ops.ADD, place, const(dt.uint64, skipped)) if skipped else place
        counter = alu(Ops.ADD, at, expand_to(start, (count,)))
        yield move.reshape(alu(Ops.THREEFRY, counter, expand_to(key, (count,))), sizes)


def _fraction(bits: UOp, dtype: DType) -> UOp:
    """Uniform in [0, 1): as many of the upper bits as the type holds exactly."""
    digits = {8: 3, 16: 8 if dtype is dt.bfloat16 else 11, 32: 24, 64: 53}[dtype.bits]
    top = alu(Ops.SHR, bits, const(dt.uint64, 64 - digits))
    wide = dt.float64 if dtype is dt.float64 else dt.float32
    return build.cast(alu(Ops.MUL, build.cast(top, wide), const(wide, 2.0**-digits)), dtype)


def _floating(dtype: Any) -> DType:
    kind = as_dtype(dtype or dt.default_float)
    if not kind.is_float:
        raise DTypeError(f"random fractions are floats, not {kind}; use randint for integers")
    return kind


def get_rng_state() -> tuple[int, int]:
    """Where the random numbers are: a key, and how many have been drawn.

    >>> state = Tensor.get_rng_state()
    >>> a = Tensor.rand(2).tolist()
    >>> Tensor.set_rng_state(state)
    >>> a == Tensor.rand(2).tolist()
    True
    """
    return current_generator().get_state()


def set_rng_state(state: Sequence[int]) -> None:
    """Go on with the random numbers from a state that `get_rng_state` has given.

    >>> Tensor.set_rng_state((12345, 0))
    >>> Tensor.get_rng_state()
    (12345, 0)
    """
    current_generator().set_state(state)


def rand(
    cls: type[T],
    *shape: Any,
    dtype: Any = None,
    device: str | None = None,
    generator: Generator | None = None,
) -> T:
    """Uniform between 0 (included) and 1 (excluded).

    >>> Tensor.rand(2, 3).shape
    (2, 3)
    """
    kind = _floating(dtype)
    (bits,) = random_bits(as_shape(flat_args(shape)), device, 1, generator)
    return cls._new(_fraction(bits, kind))


def rand_like(x: T, dtype: Any = None, generator: Generator | None = None) -> T:
    """As `rand`, in this tensor's shape, type and place.

    >>> Tensor.ones(2, 3).rand_like().shape
    (2, 3)
    """
    kind = dtype or float_of(x.dtype)
    return rand(type(x), *x.shape, dtype=kind, device=x.device, generator=generator)


def randn(
    cls: type[T],
    *shape: Any,
    dtype: Any = None,
    device: str | None = None,
    generator: Generator | None = None,
) -> T:
    """Normal with mean 0 and variance 1.

    >>> Tensor.randn(4).shape
    (4,)
    """
    kind = _floating(dtype)
    wide = dt.float64 if kind is dt.float64 else dt.float32
    sizes = as_shape(flat_args(shape))
    if wide is dt.float64:
        first, second = (_fraction(b, wide) for b in random_bits(sizes, device, 2, generator))
    else:  # one draw has bits for both: the upper word for the radius, the lower for the angle
        (bits,) = random_bits(sizes, device, 1, generator)
        low = alu(Ops.AND, bits, const(dt.uint64, 0xFFFFFFFF))
        words = alu(Ops.SHR, bits, const(dt.uint64, 32)), low
        first, second = (alu(Ops.MUL, build.cast(w, wide), const(wide, 2.0**-32)) for w in words)
    # Box and Muller. A radius of ln 0 is kept out by half of the smallest step.
    u, angle = cls._new(first), cls._new(second) * (2.0 * math.pi)
    tiny = 2.0**-54 if wide is dt.float64 else 2.0**-33
    return cast(sqrt(maximum(log(u + tiny) * -2.0, 0.0)) * cos(angle), kind)


def randn_like(x: T, dtype: Any = None, generator: Generator | None = None) -> T:
    """As `randn`, in this tensor's shape, type and place.

    >>> Tensor.ones(2, 3).randn_like().shape
    (2, 3)
    """
    kind = dtype or float_of(x.dtype)
    return randn(type(x), *x.shape, dtype=kind, device=x.device, generator=generator)


def uniform(
    cls: type[T],
    *shape: Any,
    low: float = 0.0,
    high: float = 1.0,
    dtype: Any = None,
    device: str | None = None,
    generator: Generator | None = None,
) -> T:
    """Uniform between `low` and `high`.

    >>> x = Tensor.uniform(100, low=-2.0, high=3.0)
    >>> bool(((x >= -2.0) & (x < 3.0)).all())
    True
    """
    return rand(cls, *shape, dtype=dtype, device=device, generator=generator) * (high - low) + low


def normal(
    cls: type[T],
    *shape: Any,
    mean: float = 0.0,
    std: float = 1.0,
    dtype: Any = None,
    device: str | None = None,
    generator: Generator | None = None,
) -> T:
    """Normal with a mean and a standard deviation.

    >>> Tensor.normal(4, mean=3.0, std=0.0).tolist()
    [3.0, 3.0, 3.0, 3.0]
    """
    return randn(cls, *shape, dtype=dtype, device=device, generator=generator) * std + mean


def randint(
    cls: type[T],
    low: int,
    high: int | None = None,
    shape: Any = (),
    dtype: Any = None,
    device: str | None = None,
    generator: Generator | None = None,
) -> T:
    """Whole numbers from `low` up to but without `high`; with one bound, from 0.

    >>> bool((Tensor.randint(3, 7, (50,)) >= 3).all())
    True
    """
    first, last = (0, low) if high is None else (low, high)
    kind = as_dtype(dtype or dt.int64)
    if not kind.is_bounded_int or not (kind.min <= first < last <= kind.max + 1):
        raise DTypeError(f"randint needs low < high within an integer type, not {first}, {last}, {kind}")
    sizes = as_shape(shape if isinstance(shape, tuple | list) else (shape,))
    (bits,) = random_bits(sizes, device, 1, generator)
    span = last - first
    if span <= _WORD:
        bits = alu(Ops.MULHI, bits, const(dt.uint64, span))
    wide = build.cast(bits, dt.int64) if not kind.is_unsigned else bits
    return cls._new(build.cast(alu(Ops.ADD, wide, const(wide.dtype, first)), kind))


def bernoulli(x: T, generator: Generator | None = None) -> T:
    """1 with the probability that each element says, else 0.

    >>> Tensor([0.0, 1.0]).bernoulli().tolist()
    [0.0, 1.0]
    """
    return cast(rand_like(x, generator=generator) < x, float_of(x.dtype))


def permutation(cls: type[T], count: int, device: str | None = None, generator: Generator | None = None) -> T:
    """The numbers 0 … count-1 in random order.

    >>> sorted(Tensor.permutation(5).tolist())
    [0, 1, 2, 3, 4]
    """
    (bits,) = random_bits(as_shape((count,)), device, 1, generator)
    return argsort(cls._new(bits))


def multinomial(x: T, samples: int = 1, replacement: bool = False, generator: Generator | None = None) -> T:
    """Positions along the last axis, drawn with probabilities in proportion to the elements.

    >>> Tensor([0.0, 1.0, 0.0]).multinomial(1).tolist()
    [1]
    """
    size = as_size(x.shape[-1]) if x.ndim else 0
    if x.ndim not in (1, 2) or not isinstance(size, int) or size == 0:
        raise ShapeError(f"multinomial needs one or two axes of weights, not {show_shape(x.shape)}")
    if not replacement and samples > size:
        raise ShapeError(f"{samples} draws without replacement need as many weights, not {size}")
    weights = cast(x, dt.float32)
    lead = concrete_shape(x.shape[:-1])
    if replacement:
        sums = unsqueeze(cumsum(weights, -1), -2)
        total = narrow(sums, -1, size - 1, 1)
        point = unsqueeze(rand(type(x), *lead, samples, device=x.device, generator=generator), -1) * total
        below: T = sums <= point
        return clamp(reduce.sum(below, -1), max=size - 1)
    # A race: whoever has an exponential waiting time of the given rate first is drawn first.
    u = rand(type(x), *lead, size, device=x.device, generator=generator)
    wait = -log(-u + 1.0) / weights
    return narrow(argsort(wait, -1), -1, 0, samples)


def randint_like(x: T, low: int, high: int | None = None, dtype: Any = None) -> T:
    """As `randint`, in this tensor's shape, type and place.

    >>> Tensor([1, 2, 3]).randint_like(5).shape
    (3,)
    """
    return randint(type(x), low, high, x.shape, dtype=dtype or x.dtype, device=x.device)


def dropout(x: T, p: float = 0.5, training: bool = True) -> T:
    """Zero with probability p, the rest scaled up so that the mean stays.

    >>> Tensor.ones(4).dropout(0.0).tolist()
    [1.0, 1.0, 1.0, 1.0]
    """
    if not 0.0 <= p <= 1.0:
        raise ArgumentError(f"p is a probability between 0 and 1, not {p}")
    if not training or p == 0.0:
        return x
    if p == 1.0:
        return x * 0.0
    kept = rand(type(x), *x.shape, device=x.device) >= p
    return where(kept, x * (1.0 / (1.0 - p)), 0.0)
