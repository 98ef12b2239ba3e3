"""Random tensor programs, and NumPy as the judge.

A program is data: inputs, then steps, each an operation on earlier values. It is generated together with
its results in NumPy, so every choice can look at the values it works on: shapes that fit, no overflow, and no
jump (a comparison, a rounding, an argmax) on a number that two right implementations may round differently.

    program = draw(programs())
    check(program, "CPU")

`check` builds the same program with tensors on a device and compares all outputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import strategies as st

from morok import Tensor
from tests.programs.operations import APPROXIMATE, EFFECTS, JUMPS, OPERATIONS, Array, np_set

DTYPES = ("float32", "int32", "bool", "float64", "int64", "uint8")
LARGE = 1e6  # floats beyond this are not made, so that no order of operations overflows
MOST = 3000  # elements of one value
SMALL = (2, 3, 1, 4, 5, 7)
WIDE = (8, 2, 1, 16, 33, 5, 64)  # whole vectors, and remainders of them


@dataclass(frozen=True)
class Step:
    """One operation: its name in the tables below, the values it takes, and its constants."""

    name: str
    inputs: tuple[int, ...]
    params: tuple[Any, ...] = ()

    def __str__(self) -> str:
        args = ", ".join([*(f"v{i}" for i in self.inputs), *(repr(p) for p in self.params)])
        return f"{self.name}({args})"


@dataclass(repr=False)
class Program:
    """Inputs, steps, and which values are looked at in the end, in groups that are realised together."""

    inputs: list[Array] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    outputs: list[tuple[int, ...]] = field(default_factory=list)
    expected: list[Array] = field(default_factory=list)  # of every value, in the end
    exact: list[bool] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [f"v{i} = input({a.dtype}, {a.shape}, {a.tolist()})" for i, a in enumerate(self.inputs)]
        number = len(self.inputs)
        for step in self.steps:
            if step.name in EFFECTS:
                lines.append(str(step))
                continue
            lines.append(f"v{number} = {step}")
            number += 1
        return "\n".join([*lines, f"realize {self.outputs}"])

    __repr__ = __str__


# --- generation


class Builder:
    """Values so far, and steps that may be added to them."""

    def __init__(self, draw: Callable[[Any], Any], sizes: tuple[int, ...]) -> None:
        self.draw = draw
        self.sizes = sizes
        self.program = Program()
        self.values = self.program.expected
        self.exact = self.program.exact

    def integer(self, low: int, high: int) -> int:
        return int(self.draw(st.integers(low, high)))

    def choice(self, options: Sequence[Any]) -> Any:
        return options[self.integer(0, len(options) - 1)]

    def flag(self) -> bool:
        return bool(self.draw(st.booleans()))

    def add_input(self) -> None:
        ndim = self.choice((2, 1, 3, 0))
        shape = tuple(self.choice(self.sizes) for _ in range(ndim))
        if math.prod(shape) > MOST:
            shape = shape[:1]
        if self.integer(0, 30) == 0 and shape:
            shape = (0, *shape[1:])
        dtype = self.choice(DTYPES)
        # One seed for all elements: what is in a tensor matters less than what is done with it.
        rng = np.random.default_rng(self.integer(0, 1000))
        data = rng.integers(-16, 17, shape)
        if dtype == "bool":
            array = data > 0
        elif dtype == "uint8":
            array = np.abs(data).astype(dtype)
        else:
            array = (data / 4 if dtype.startswith("float") else data).astype(dtype)
        self.program.inputs.append(np.asarray(array))
        self.values.append(np.asarray(array))
        self.exact.append(True)

    def add(self, name: str, inputs: tuple[int, ...], *params: Any) -> bool:
        """Adds a step if its result is one that can be compared."""
        if name in JUMPS and not all(self.exact[i] for i in inputs):
            return False
        with np.errstate(all="ignore"):
            result = np.array(OPERATIONS[name][0](*(self.values[i] for i in inputs), *params))
        if result.size > MOST or not _sane(result):
            return False
        exact = all(self.exact[i] for i in inputs) and name not in APPROXIMATE
        if name in ("sum", "mean", "matmul", "cumsum", "prod") and result.dtype.kind == "f":
            exact = exact and name != "prod" and all(_sums_exactly(self.values[i]) for i in inputs)
        self.program.steps.append(Step(name, inputs, params))
        self.values.append(result)
        self.exact.append(exact)
        return True

    def pick(self, *kinds: str, ndim: int = 0, filled: bool = False) -> int | None:
        """A value of some kind (as NumPy's letters), the newest more often."""
        found = [
            i
            for i, v in enumerate(self.values)
            if (not kinds or v.dtype.kind in kinds) and v.ndim >= ndim and (v.size or not filled)
        ]
        if not found:
            return None
        return found[-1] if self.flag() else int(self.choice(found))

    def partner(self, x: int) -> int | None:
        """A value that broadcasts with another."""
        found = [i for i, v in enumerate(self.values) if _broadcasts(v.shape, self.values[x].shape)]
        return int(self.choice(found)) if found else None


def _sane(x: Array) -> bool:
    if x.dtype.kind != "f":
        return True
    with np.errstate(all="ignore"):
        finite = x[np.isfinite(x)]
        return bool(np.all(np.abs(finite) < LARGE))


def _sums_exactly(x: Array) -> bool:
    if x.dtype.kind != "f":
        return True
    with np.errstate(all="ignore"):
        scaled = x * 16
        return bool(np.all(np.isfinite(x)) and np.all(scaled == np.rint(scaled)) and np.all(np.abs(x) < 1e3))


def _broadcasts(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    try:
        return math.prod(np.broadcast_shapes(a, b)) <= MOST
    except ValueError:
        return False


def _unary(b: Builder) -> None:
    name = b.choice(("neg", "abs", "square", "sqrt", "exp", "sin", "tanh", "floor", "invert"))
    x = b.pick("b", "i", "u") if name == "invert" else b.pick("f") if name in _FLOATING else b.pick("f", "i")
    if x is not None:
        b.add(name, (x,))


_FLOATING = frozenset(("sqrt", "exp", "sin", "tanh", "floor"))


def _binary(b: Builder) -> None:
    x = b.pick()
    y = None if x is None else b.partner(x)
    if x is None or y is None:
        return
    name = b.choice(("add", "sub", "mul", "div", "maximum", "minimum", "less", "equal", "floordiv", "mod"))
    kinds = {b.values[x].dtype.kind, b.values[y].dtype.kind}
    if name == "sub" and kinds == {"b"}:
        name = "add"
    if name in ("floordiv", "mod") and not kinds <= {"i", "u"}:
        name = "mul"
    b.add(name, (x, y))


def _number(b: Builder) -> None:
    x = b.pick()
    if x is None:
        return
    kind = b.values[x].dtype.kind
    number: Any = b.integer(0, 3) if kind in "bu" else b.integer(-3, 3)
    if kind == "f" and b.flag():
        number = b.integer(-8, 8) / 4
    b.add(b.choice(("add_number", "mul_number")), (x,), number)


def _where(b: Builder) -> None:
    c, x = b.pick("b"), b.pick()
    if c is None or x is None:
        return
    y = b.partner(x)
    if y is None or not _broadcasts(
        b.values[c].shape, np.broadcast_shapes(b.values[x].shape, b.values[y].shape)
    ):
        return
    b.add("where", (c, x, y))


def _cast(b: Builder) -> None:
    x = b.pick()
    if x is None:
        return
    dtype, value = b.choice(DTYPES), b.values[x]
    if value.dtype.kind == "f" and not dtype.startswith("float"):
        usable = b.exact[x] and value.size and np.all(np.isfinite(value)) and np.all(np.abs(value) < 100)
        if not usable or (dtype == "uint8" and np.any(value < 0)):
            return
    b.add("cast", (x,), dtype)


def _movement(b: Builder) -> None:
    x = b.pick(ndim=1)
    if x is None:
        return
    shape = b.values[x].shape
    name = b.choice(("reshape", "permute", "flip", "pad", "index", "index", "expand", "contiguous"))
    if name == "reshape":
        b.add(name, (x,), _other_shape(b, shape))
    elif name == "permute":
        b.add(name, (x,), tuple(b.draw(st.permutations(range(len(shape))))))
    elif name == "flip":
        b.add(name, (x,), tuple(axis for axis in range(len(shape)) if b.flag()) or (0,))
    elif name == "pad":
        pads = tuple((b.integer(0, 2), b.integer(0, 2)) for _ in shape)
        b.add(name, (x,), pads, b.choice((0, 0, 1)))
    elif name == "index":
        b.add(name, (x,), _key(b, shape))
    elif name == "expand":
        wide = tuple(b.integer(1, 3) if size == 1 else size for size in shape)
        b.add(name, (x,), (b.integer(1, 3), *wide) if b.flag() else wide)
    else:
        b.add(name, (x,))


def _other_shape(b: Builder, shape: tuple[int, ...]) -> tuple[int, ...]:
    total = math.prod(shape)
    if total == 0:
        return (0, *shape[1:]) if shape[0] == 0 else shape
    sizes = []
    for _ in range(b.integer(0, 3)):
        factors = [f for f in range(1, total + 1) if total % f == 0]
        sizes.append(int(b.choice(factors)))
        total //= sizes[-1]
    sizes.insert(b.integer(0, len(sizes)), total)
    return tuple(sizes)


def _key(b: Builder, shape: tuple[int, ...]) -> Any:
    parts: list[Any] = []
    for size in shape:
        kind = b.integer(0, 5)
        if kind == 0 and size:
            parts.append(b.integer(-size, size - 1))
        elif kind == 1:
            parts.append(slice(None))
        else:
            low, high = sorted((b.integer(0, size), b.integer(0, size)))
            step = b.choice((1, 1, 2, 3))
            parts.append(
                slice(low, high, step) if b.flag() else slice(high - 1 if high else None, None, -step)
            )
    if b.integer(0, 4) == 0:
        parts.insert(b.integer(0, len(parts)), None)
    return tuple(parts)


def _reduce(b: Builder) -> None:
    x = b.pick(ndim=1, filled=True)
    if x is None:
        return
    value = b.values[x]
    name = b.choice(("sum", "sum", "max", "min", "mean", "any", "all", "prod"))
    axes = tuple(axis for axis in range(value.ndim) if b.flag())
    keep = b.flag()
    if name in ("any", "all") and not (value.dtype.kind != "f" or b.exact[x]):
        return
    if name == "prod" and value.size > 16:
        name = "sum"
    b.add(name, (x,), axes if axes and b.flag() else axes or None, keep)


def _position(b: Builder) -> None:
    x = b.pick(ndim=1, filled=True)
    if x is not None:
        b.add("argmax", (x,), b.choice((None, *range(b.values[x].ndim))))


def _rows(b: Builder) -> None:
    x = b.pick("f", ndim=1, filled=True)
    if x is not None:
        name = b.choice(("softmax", "cumsum"))
        b.add(name, (x,), *(() if name == "softmax" else (b.integer(0, b.values[x].ndim - 1),)))


def _matmul(b: Builder) -> None:
    x = b.pick("f", "i", ndim=1)
    if x is None:
        return
    inner = b.values[x].shape[-1]
    found = [
        i
        for i, v in enumerate(b.values)
        if v.ndim
        and v.dtype.kind in "fi"
        and v.shape[-2 if v.ndim > 1 else 0] == inner
        and _broadcasts(v.shape[:-2], b.values[x].shape[:-2])
    ]
    if found:
        b.add("matmul", (x, int(b.choice(found))))
    elif b.add("permute", (x,), tuple(reversed(range(b.values[x].ndim)))) and b.values[x].ndim <= 2:
        b.add("matmul", (x, len(b.values) - 1))


def _cat(b: Builder) -> None:
    x = b.pick(ndim=1)
    if x is None:
        return
    axis = b.integer(0, b.values[x].ndim - 1)
    own = b.values[x].shape
    found = [
        i
        for i, v in enumerate(b.values)
        if v.ndim == len(own) and v.shape[:axis] + v.shape[axis + 1 :] == own[:axis] + own[axis + 1 :]
    ]
    parts = [x] + [int(b.choice(found)) for _ in range(b.integer(1, 2))]
    b.add("cat", tuple(parts), axis)


def _take(b: Builder) -> None:
    x = b.pick(ndim=1, filled=True)
    if x is None:
        return
    axis = b.integer(0, b.values[x].ndim - 1)
    size = b.values[x].shape[axis]
    where = [b.integer(0, size - 1) for _ in range(b.integer(1, 4))]
    b.add("take", (x,), axis, tuple(where))


def _assign(b: Builder) -> None:
    """A value changes; those that were made of it before do not."""
    x = b.pick(filled=True)
    if x is None:
        return
    own = b.values[x]
    key = _key(b, own.shape) if own.ndim and b.flag() else ...
    part = own[key]
    fitting = [
        i
        for i, v in enumerate(b.values)
        if v.dtype.kind == own.dtype.kind and v.ndim <= np.ndim(part) and _fits(v.shape, np.shape(part))
    ]
    if fitting and b.flag():
        y = int(b.choice(fitting))
        b.program.steps.append(Step("assign", (x, y), (key,)))
        b.values[x] = np_set(own, key, b.values[y])
        b.exact[x] = b.exact[x] and b.exact[y]
    else:
        number = bool(b.integer(0, 1)) if own.dtype.kind == "b" else b.integer(0, 9)
        b.program.steps.append(Step("set", (x,), (key, number)))
        b.values[x] = np_set(own, key, number)


def _fits(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    try:
        return np.broadcast_shapes(a, b) == b
    except ValueError:
        return False


def _realize(b: Builder) -> None:
    x = b.pick()
    if x is not None:
        b.program.steps.append(Step("realize", (x,)))


_FAMILIES = (
    _unary, _binary, _binary, _number, _where, _cast, _movement, _movement, _movement, _reduce, _reduce,
    _position, _rows, _matmul, _cat, _take, _assign, _realize,
)  # fmt: skip


@st.composite
def programs(draw: Any, most_steps: int = 12, sizes: tuple[int, ...] = SMALL) -> Program:
    """A random program with its results."""
    b = Builder(draw, sizes)
    for _ in range(b.integer(1, 3)):
        b.add_input()
    for _ in range(b.integer(1, most_steps)):
        b.choice(_FAMILIES)(b)
    last = len(b.values) - 1
    wanted = [last] + [b.integer(0, last) for _ in range(b.integer(0, 3))]
    cut = b.integer(0, len(wanted))
    b.program.outputs = [tuple(group) for group in (wanted[:cut], wanted[cut:]) if group]
    return b.program


# --- the other side


def run(program: Program, device: str | None = None) -> dict[int, Array]:
    """The program on tensors; the values of its outputs."""
    values = [Tensor(array.copy(), device=device) for array in program.inputs]
    for step in program.steps:
        operands = [values[i] for i in step.inputs]
        if step.name == "realize":
            operands[0].realize()
        elif step.name == "assign":
            operands[0][step.params[0]] = operands[1]
        elif step.name == "set":
            operands[0][step.params[0]] = step.params[1]
        else:
            # Here every step makes a value of its own; views are the matter of `state_programs.py`.
            values.append(Tensor(OPERATIONS[step.name][1](*operands, *step.params)))
    found = {}
    for group in program.outputs:
        Tensor.realize(*(values[i] for i in group))
        for i in group:
            found[i] = values[i].numpy()
    return found


def check(program: Program, device: str | None = None) -> None:
    """Every output has NumPy's shape, type and values."""
    for i, got in run(program, device).items():
        wanted, exact = program.expected[i], program.exact[i]
        assert got.shape == wanted.shape, f"v{i} has shape {got.shape}, not {wanted.shape}\n{program}"
        assert got.dtype == wanted.dtype, f"v{i} is {got.dtype}, not {wanted.dtype}\n{program}"
        if exact or wanted.dtype.kind != "f":
            same = np.array_equal(got, wanted, equal_nan=wanted.dtype.kind == "f")
        else:
            same = np.allclose(got, wanted, rtol=2e-4, atol=2e-4, equal_nan=True)
        assert same, f"v{i} is {got.tolist()}, not {wanted.tolist()}\n{program}"
