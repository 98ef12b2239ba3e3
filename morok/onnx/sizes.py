"""Which sizes of a model's values are symbolic, and tensors that have such sizes.

A part of a model is compiled for the sizes of its first call. When other sizes come, those that have changed
become variables, so that the third set of sizes compiles nothing. Sizes that were equal at both calls share a
variable. Sizes of 0 and 1 stay numbers, because they broadcast; what a window does not fit into is left out
as well, by trying variables that begin with 2, 8, 32 and so on. Where sizes that have to be equal are so for
multiples only (an image that is halved five times, and doubled again), variables count in steps. Kernels for
known sizes are faster: sizes that have run under variables for as long as such a plan takes to compile get
one.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import count
from math import gcd, prod
from typing import Any, final

import numpy as np

from morok.ir.bounds import vmax
from morok.ir.node import UOp
from morok.onnx.values import Coded, Grown, Host, Value, known_array
from morok.tensor.jit.variables import Bound, binds, unbound, unbound_shape
from morok.tensor.sizes import Variable, concrete
from morok.tensor.tensor import Tensor

MOST_TIMED = 1024  # sets of sizes
_SMALLEST_BOUND = 64
_ROOM = (1.0, 0.5, 0.125, 0.0)
_LARGEST_BUFFER = 1 << 31  # elements; beyond it a symbolic size would take too much room


_PLAIN_STEP = 32  # networks that halve and double their images take multiples of it, mostly


@final
@dataclass(frozen=True)
class Steps:
    """A size that is a variable, or a multiple of one."""

    variable: Variable
    step: int = 1

    @property
    def name(self) -> str:
        return self.variable.name

    def value(self, size: int) -> int | None:
        """What the variable is for a size; None where it cannot be that."""
        low, high = self.variable.bounds
        many, rest = divmod(size, self.step)
        return None if rest or not low <= many <= high else many

    def bind(self, size: int) -> Any:
        many = self.variable.bind(size // self.step)
        return many if self.step == 1 else many * self.step


@final
@dataclass
class Seen:
    """The sizes that the start of a part has seen: numbers in the order of `sizes_of`."""

    known: list[tuple[int, ...]] = field(default_factory=list)
    symbolic: dict[int, Steps] = field(default_factory=dict)  # by the number of the size
    former: dict[int, Steps] = field(default_factory=dict)  # that other sizes have run under
    odd: list[tuple[int, ...]] = field(default_factory=list)  # that have none
    step: int = 1  # that the variables count in, where their sizes are multiples of it
    refused: bool = False  # symbolic sizes were tried, and something needs numbers
    least: int = 2  # what symbolic sizes are at least: more where windows do not fit into less
    room: int = 0  # which of _ROOM they have above what has been seen: less where more leaves something else
    spent: dict[tuple[int, ...], float] = field(default_factory=dict)  # seconds under variables, by sizes
    cost: float = 1.0  # seconds that a plan for known sizes took to compile


def tensors_in(value: Value) -> list[Tensor]:
    """The tensors that a value is made of, in order."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, Coded):
        return [value.codes]
    if isinstance(value, list | Grown):
        return [t for item in (value if isinstance(value, list) else value.added) for t in tensors_in(item)]
    return []


def is_symbolic(value: Value) -> bool:
    """Whether a size in a value is symbolic already."""
    if isinstance(value, Host):
        return value.symbolic
    return any(not isinstance(n, int) for t in tensors_in(value) for n in t.shape)


def sizes_of(values: list[Value]) -> tuple[int, ...]:
    """All sizes of values, and whole numbers that are known on the host, as one list of numbers."""
    found: list[int] = []
    for value in values:
        if isinstance(value, Host):
            if _counts(value):
                found += [int(n) for n in value.array.reshape(-1)]
        else:
            found += [concrete(n) for t in tensors_in(value) for n in t.shape]
    return tuple(found)


def _counts(host: Host) -> bool:
    """Whether the numbers of an array may be sizes."""
    return host.array.dtype.kind == "i" and host.array.size <= 16


def decide(seen: Seen, sizes: tuple[int, ...], taken: Collection[str]) -> dict[int, Steps] | None:
    """Variables for the sizes that change, by names that are not taken, or None to go on with numbers."""
    if seen.refused or not seen.known or sizes in seen.known or sizes in seen.odd:
        return None
    if seen.symbolic and _fit(seen, sizes):
        return seen.symbolic if seen.spent.get(sizes, 0.0) <= seen.cost else None
    if seen.symbolic:  # sizes beyond it: what stood in the way of more room may be another one
        seen.room, seen.former = 0, seen.symbolic
    first = seen.known[0]
    changed = [n for n, size in enumerate(sizes) if any(size != old[n] for old in seen.known)]
    if any(sizes[n] < 2 for n in changed):
        return None
    fresh = (name for number in count() if (name := f"n{number}") not in taken)
    names: dict[tuple[int, ...], Steps] = {}
    made: dict[int, Steps] = {}
    for n in changed:
        history = (*[old[n] for old in seen.known], sizes[n])
        if history not in names:
            step = gcd(seen.step, *history)
            least = -(-min(seen.least, *history) // step)
            names[history] = Steps(new_variable(next(fresh), max(history), least, seen.room, step), step)
        made[n] = names[history]
    seen.symbolic = made
    return made if len(first) == len(sizes) else None


def _fit(seen: Seen, sizes: tuple[int, ...]) -> bool:
    """Whether sizes are a case of the variables that there are: equal where they share one."""
    values: dict[str, int] = {}
    for n, size in enumerate(sizes):
        steps = seen.symbolic.get(n)
        if steps is None:
            if size != seen.known[0][n]:
                return False
        else:
            value = steps.value(size)
            if value is None or values.setdefault(steps.name, value) != value:
                return False
    return True


def raised(seen: Seen, sizes: tuple[int, ...]) -> bool:
    """Variables that begin with more, if the sizes that there were allow it."""
    most = max((min(sizes[n], *(old[n] for old in seen.known)) for n in seen.symbolic), default=0)
    if seen.least >= most:
        return False
    seen.least = min(4 * seen.least, most)
    seen.symbolic = {}
    return True


def narrowed(seen: Seen) -> bool:
    """Variables that end with less: a position has to stay in its axis, which it does not know."""
    if seen.room + 1 == len(_ROOM):
        return False
    seen.room += 1
    seen.symbolic = {}
    return True


def stepped(seen: Seen, sizes: tuple[int, ...]) -> bool:
    """Variables in larger steps, if the sizes that there were are multiples of them."""
    every = [gcd(sizes[n], *(old[n] for old in seen.known)) for n in seen.symbolic]
    common = max(every, default=1)
    even = common & -common
    for step in (min(even, _PLAIN_STEP), min(even, 2 * seen.step), common):
        if step > seen.step:
            seen.step, seen.symbolic = step, {}
            return True
    return False


def give_up(seen: Seen, sizes: tuple[int, ...]) -> None:
    """These sizes are compiled as they are, and others too unless there are variables for them."""
    seen.symbolic, seen.refused = seen.former, not seen.former
    if seen.former:
        seen.least, seen.room = 2, 0
        seen.odd.append(sizes)


def new_variable(name: str, size: int, least: int = 2, room: int = 0, step: int = 1) -> Variable:
    """A variable that a size, and twice that, fit into, or less."""
    if room:
        return Variable(name, least, max((size + int(size * _ROOM[room])) // step, least + 1))
    high = _SMALLEST_BOUND
    while high < 2 * size:
        high *= 2
    return Variable(name, least, max(high // step, least + 1))


def with_variables(values: list[Value], variables: dict[int, Steps]) -> list[Value]:
    """Values whose sizes are bound variables where there are such."""
    at = 0

    def size(number: int) -> Any:
        nonlocal at
        steps = variables.get(at)
        at += 1
        return number if steps is None else steps.bind(number)

    def changed(value: Value) -> Value:
        if isinstance(value, Host):
            if not _counts(value):
                return value
            flat = [size(int(n)) for n in value.array.reshape(-1)]
            if not any(isinstance(n, UOp) for n in flat):
                return value
            array = np.empty(len(flat), object)
            array[:] = flat
            return Host(array.reshape(value.array.shape), value.elem)
        if isinstance(value, Tensor):
            return symbolic_tensor(value, tuple(size(concrete(n)) for n in value.shape))
        if isinstance(value, Coded):
            return Coded(symbolic_tensor(value.codes, tuple(size(int(n)) for n in value.shape)), value.elem)
        if isinstance(value, list):
            return [changed(item) for item in value]
        return value

    return [changed(value) for value in values]


def symbolic_tensor(tensor: Tensor, sizes: tuple[Any, ...]) -> Tensor:
    """A tensor in bound sizes: its elements at the front of memory that has room for the largest ones."""
    if all(isinstance(n, int) for n in sizes):
        return tensor
    array = tensor.numpy()
    room = prod(n if isinstance(n, int) else int(vmax(unbound(n))) for n in sizes)
    if room > _LARGEST_BUFFER:
        raise MemoryError(f"a symbolic size takes room for {room} elements")
    flat = np.empty(room, array.dtype)
    flat[: array.size] = array.reshape(-1)
    total: Any = 1
    for n in sizes:
        total = n * total
    return Tensor.from_numpy(flat)[:total].reshape(sizes)


def bound_in(values: list[Value]) -> Bound:
    """The variables that are bound in the sizes of values."""
    found: Bound = {}
    for value in values:
        if isinstance(value, Host) and value.symbolic:
            for n in value.array.reshape(-1):
                unbound(n, found)
        for tensor in tensors_in(value):
            unbound_shape(tensor.shape, found)
    return found


def carried(value: Value, around: Bound) -> Value:
    """What a round leaves for the next one: variables that there are in rounds only become numbers.

    A counter that is n in a round would be n + 1 in the next, and n + 2, each a structure of its own; and
    slices at n of two rounds, which nobody has copied, would be for two values of n.
    """
    if isinstance(value, list):
        return [carried(item, around) for item in value]
    found = [*bound_in([value]), *(bind.src[0] for t in tensors_in(value) for bind in binds(t._result))]
    if all(variable in around for variable in found):
        return value
    return Tensor(value.numpy()) if isinstance(value, Tensor) else settled(value)


def settled(value: Value) -> Value:
    """A value with numbers for sizes."""
    if isinstance(value, Host) and value.symbolic:
        return Host(known_array(value), value.elem)
    if isinstance(value, Tensor) and is_symbolic(value):
        return Tensor(value.numpy())
    if isinstance(value, Coded) and is_symbolic(value):
        return Coded(Tensor(value.codes.numpy()), value.elem)
    if isinstance(value, list):
        return [settled(item) for item in value]
    return value
