"""Random programs about the identity of memory: views, assignments, several names, jit, gradients in between.

The judge is NumPy. A program is Python text that means the same under both libraries, with a handful of
functions that each of them provides (`state_library.py`); it is executed under NumPy while it is being made,
which says what shapes there are and who shares memory with whom. What NumPy computes at once morok computes
when it likes, so a program also says when something is realised or looked at.

Values are whole numbers that stay small, so all arithmetic is exact and results are equal or wrong.

    python -m tests.programs.state_programs --count 20000 --seed 1 --jobs 2
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.programs.state_library import NUMPY, ONE, PAIRS, TWO, WRITES, WRITES_BOTH, start

SHAPES: list[tuple[int, ...]] = [(4,), (6,), (2, 3), (3, 4), (4, 4), (2, 3, 2), (1,), (), (5, 1)]
LARGE = (16, 39)  # beyond what is unrolled into one kernel's constants

# --- making programs


@dataclass
class Program:
    """Lines of Python, and what is in them."""

    seed: int
    lines: list[str] = field(default_factory=list)
    features: set[str] = field(default_factory=set)

    def __str__(self) -> str:
        return "\n".join(self.lines)


class _Maker:
    def __init__(self, seed: int, length: int) -> None:
        self.r = random.Random(seed)
        self.program = Program(seed)
        self.space = start(NUMPY)
        self.names: list[str] = []
        self.depth: dict[str, int] = {}  # how many views of views
        self.shared: dict[str, str] = {}  # tensors on memory of somebody outside, with its name there
        self.count = 0
        while len(self.program.lines) < length:
            self.statement()

    # --- running under NumPy while it is made

    def emit(self, line: str, feature: str | None = None) -> None:
        exec(line, self.space)
        self.program.lines.append(line)
        if feature:
            self.program.features.add(feature)

    def fresh(self) -> str:
        self.count += 1
        return f"t{self.count}"

    def add(self, expression: str, feature: str | None = None, depth: int = 0) -> str:
        name = self.fresh()
        self.emit(f"{name} = {expression}", feature)
        self.names.append(name)
        self.depth[name] = depth
        if depth >= 2:
            self.program.features.add("views of views")
        return name

    def array(self, name: str) -> Any:
        return self.space[name]

    def pick(self, wanted: Callable[[Any], bool] = lambda a: True) -> str | None:
        fitting = [n for n in self.names if wanted(self.array(n))]
        return self.r.choice(fitting) if fitting else None

    # --- statements

    def statement(self) -> None:
        kinds = [
            (self.creation, 3 if len(self.names) < 3 else 1),
            (self.view, 5),
            (self.value, 4),
            (self.write, 6),
            (self.operator, 3),
            (self.compiled, 4),
            (self.gradient, 1),
            (self.moment, 3),
            (self.from_outside, 1),
            (self.again, 1),
            (self.outlives, 1),
            (self.forget, 1 if len(self.names) > 4 else 0),
        ]
        make = self.r.choices([k for k, _ in kinds], [w for _, w in kinds])[0]
        make()

    def shape(self) -> tuple[int, ...]:
        return LARGE if self.r.random() < 0.04 else self.r.choice(SHAPES)

    def creation(self) -> None:
        r = self.r
        dtype = r.choice(["float32", "float32", "int32"])
        kind = r.randrange(6)
        if kind == 0:
            line = f"arange({r.choice([4, 6])}, {dtype!r})"
            self.add(line if r.random() < 0.5 else f"clip({line} + 1)", "equal values")
        elif kind == 1:
            shape = self.shape()
            self.add(f"zeros({shape}, {dtype!r})", "equal constants")
            if r.random() < 0.5:
                self.add(f"zeros({shape}, {dtype!r})")
        elif kind == 2:
            self.add(f"full({self.shape()}, {r.randrange(3)}, {dtype!r})")
        else:
            shape = self.shape()
            data = np.array([r.randrange(-9, 10) for _ in range(int(np.prod(shape)))]).reshape(shape).tolist()
            if kind == 3 and shape != LARGE:
                self.sharing(f"outside({data}, {dtype!r})")
            elif shape != LARGE:
                self.add(f"new({data}, {dtype!r})")
            else:
                self.add(f"full({shape}, {r.randrange(9)}, {dtype!r})")

    def sharing(self, array: str) -> None:
        """A tensor on memory that somebody outside can see and write."""
        outside = f"o{self.count + 1}"
        self.emit(f"{outside} = {array}")
        self.shared[self.add(f"shared({outside})", "memory shared with the outside")] = outside

    def from_outside(self) -> None:
        """Somebody outside writes. What is lazy reads such memory when it is computed: so now, before."""
        known = [n for n in self.names if n in self.shared and self.array(n).size]
        own = [n for n in self.names if (a := self.array(n)).size and a.flags.writeable]
        value, names = self.r.randrange(-9, 10), ", ".join(self.names)
        if known and self.r.random() < 0.5:
            name = self.r.choice(known)
            self.emit(f"write_outside({self.shared[name]}, {name}, {value}, {names})")
        elif own:
            self.emit(f"poke({self.r.choice(own)}, {value}, {names})", "writes to arrays of tensors")

    def part(self, array: Any, empty: bool = False) -> str:
        """A basic index, as text; it always ends with an ellipsis, so numbers give views too."""
        r = self.r
        items = []
        for size in array.shape[: r.randint(0, array.ndim)]:
            kind = r.randrange(6)
            if kind == 0 and size:
                at = r.randrange(-size, size)
                if at >= 0 and r.random() < 0.5 and not any(":" in i and "::" in i for i in items):
                    items.append(f"at({at}, {size})")
                    self.program.features.add("symbolic positions")
                    return ", ".join([*items, "..."])
                items.append(str(at))
            elif kind == 1:
                items.append("::-1")
            elif kind == 2:
                items.append(f"{r.randrange(2)}::{r.choice([2, 3])}" if size > 1 else ":")
            elif kind in (3, 4) and size > 1:
                low = r.randrange(size - 1)
                items.append(f"{low or ''}:{r.randint(low + 1, size)}")
            else:
                items.append(":")
        return ", ".join([*items, "..."])

    def view(self) -> None:
        name = self.pick()
        if name is None:
            return
        r, array = self.r, self.array(name)
        depth = self.depth[name] + 1
        kind = r.randrange(7)
        if kind <= 2:
            self.add(f"{name}[{self.part(array)}]", "views", depth)
        elif kind == 3:
            self.add(f"transposed({name})", "views", depth)
        elif kind == 4 and array.ndim:
            self.add(f"flip({name}, {r.randrange(array.ndim)})", "views", depth)
        elif kind == 5:
            count = array.size
            sizes = r.choice(
                [(-1,), (count,), (1, count), (count, 1), (2, -1) if count % 2 == 0 else (count,)]
            )
            if count:
                self.add(f"reshape({name}, {sizes})", "views", depth)
        elif array.ndim > 1:
            order = list(range(array.ndim))
            r.shuffle(order)
            self.add(f"permute({name}, {tuple(order)})", "views", depth)
        else:
            self.add(f"unsqueeze({name}, 0)", "views", depth)

    def operand(self, like: Any) -> str:
        """Something of a shape and type, or a number."""
        r = self.r
        same = self.pick(lambda a: a.shape == like.shape and a.dtype == like.dtype)
        if same is None or r.random() < 0.3:
            return str(r.randrange(-3, 4))
        return same

    def value(self) -> None:
        name = self.pick()
        if name is None:
            return
        r, array = self.r, self.array(name)
        kind = r.randrange(9)
        if kind <= 3:
            sign = r.choice(["+", "-", "*"])
            self.add(f"clip({name} {sign} {self.operand(array)})")
        elif kind == 4 and array.ndim and array.shape[0]:
            self.add(f"clip(greatest({name}))")
        elif kind == 5:
            self.add(f"expand({name}, {(2, *array.shape)})", "values that are no places")
        elif kind == 6 and array.ndim and array.size < 30:
            self.add(f"pad({name})", "values that are no places")
        elif kind == 7 and array.ndim:
            self.add(f"joined({name})")
        elif array.ndim and array.shape[0]:
            places = [r.randrange(-array.shape[0], array.shape[0]) for _ in range(2)]
            self.add(f"take({name}, {places})", "values that are no places")

    def write(self) -> None:
        name = self.pick(lambda a: a.flags.writeable and a.size)
        if name is None:
            return
        r, array = self.r, self.array(name)
        if self.depth[name]:
            self.program.features.add("writes through views")
        kind = r.randrange(9)
        if kind == 0:
            return self.emit(f"assign({name}, {self.operand(array)})")
        if kind == 8:  # several writes, and somebody who has read the one in between
            self.few(name, array)
            reader = self.add(f"clip({name} + {r.randrange(3)})")
            if r.random() < 0.5:  # nobody has read the last one
                self.few(name, array)
            self.emit(f"assign({name}, {self.operand(array)})")
            if r.random() < 0.5:
                self.emit(f"realize({name}, {reader})")
            return
        if kind == 1 and array.ndim and array.shape[0] > 1:  # a part of itself
            pairs = [("1:", ":-1"), (":-1", "1:"), ("::-1", ":"), (":", "::-1")]
            a, b = r.choice(pairs)
            self.emit(f"{name}[{a}] = {name}[{b}]", "overlapping assignments")
            return
        if kind == 2 and array.ndim and array.shape[0]:
            places = [r.randrange(array.shape[0])]
            self.emit(f"put_rows({name}, {places}, {r.randrange(9)})")
            return
        if kind == 3:
            self.emit(f"put_mask({name}, {r.randrange(9)})")
            return
        key = self.part(array)
        part = self.space["val"](eval(f"{name}[{key}]", self.space))
        if part.size == 0:
            return
        same = self.pick(lambda a: a.shape == part.shape and a.dtype == array.dtype)
        choice = r.randrange(4)
        if choice == 0 or (same is None and choice < 3):
            text = str(r.randrange(-9, 10))
        elif choice < 3:
            text = f"{same}" if r.random() < 0.5 else f"clip({same} + {r.randrange(3)})"
            if np.shares_memory(array, self.array(same)):
                self.program.features.add("overlapping assignments")
        else:
            text = f"clip({name}[{key}] + 1)"
        self.emit(f"{name}[{key}] = {text}")

    def few(self, name: str, array: Any) -> None:
        """A number is assigned to all of a tensor or to some of its first rows."""
        value = self.r.randrange(-9, 10)
        if array.ndim and self.r.random() < 0.7:
            self.emit(f"{name}[{self.r.choice([':1', '-1:', '1:', '::2'])}] = {value}")
        else:
            self.emit(f"assign({name}, {value})")

    def operator(self) -> None:
        name = self.pick(lambda a: a.flags.writeable and a.size)
        if name is None:
            return
        array = self.array(name)
        operand = self.operand(array)
        if operand in self.space and np.shares_memory(array, self.array(operand)):
            self.program.features.add("overlapping assignments")
        self.emit(f"{name} {self.r.choice(['+=', '-='])} {operand}")
        self.emit(f"assign({name}, clip({name}))")

    def again(self) -> None:
        """A value is computed and overwritten, and somebody computes the same value."""
        name = self.pick(lambda a: a.size)
        if name is None:
            return
        text = f"clip({name} {self.r.choice('+-*')} {self.r.randrange(1, 4)})"
        first = self.add(text, "values computed again")
        if self.r.random() < 0.7:  # somebody holds the graph of the value
            self.add(f"clip({first} + {self.r.randrange(3)})")
        if self.r.random() < 0.7:
            self.emit(f"realize({first})")
        self.few(first, self.array(first))
        if self.r.random() < 0.5:
            self.emit(f"look({first})")
        self.add(text)

    def outlives(self) -> None:
        """A value lies in memory whose tensor goes; then it is written. Often others share that memory."""
        r = self.r
        known = [n for n in self.names if n in self.shared and self.array(n).ndim and self.array(n).size]
        name = r.choice(known) if known and r.random() < 0.8 else self.pick(lambda a: a.ndim and a.size)
        if name is None:
            return
        value = self.add(f"joined({name})", "values that outlive their memory's tensor")
        if r.random() < 0.6:
            self.names.remove(name)
            self.emit(f"del {name}")
        reader = self.add(f"clip({value} + {r.randrange(3)})")
        if r.random() < 0.8:
            self.emit(f"realize({value}, {reader})")
        if r.random() < 0.5:
            self.few(value, self.array(value))
        else:
            built = ", ".join(self.names if r.random() < 0.5 else [reader])
            self.emit(f"poke({value}, {r.randrange(9)}, {built})", "writes to arrays of tensors")

    def compiled(self) -> None:
        r = self.r
        if r.random() < 0.2:
            self.add("count_up()", "jit")
            if r.random() < 0.5:
                self.add(f"count_part({r.randrange(9)})")
            return
        function = r.choice([*ONE, *TWO])
        need_write = function in WRITES
        name = self.pick(lambda a: a.ndim > 0 and a.size > 0 and (a.flags.writeable or not need_write))
        if name is None:
            return
        array = self.array(name)
        given = [name]
        if function in TWO:
            both = function in WRITES_BOTH
            other = self.pick(
                lambda a: (
                    a.shape == array.shape and a.dtype == array.dtype and (a.flags.writeable or not both)
                )
            )
            given.append(other or name)
            if np.shares_memory(array, self.array(given[1])):
                self.program.features.add("jit with shared arguments")
                if function in ("copy_into", "swap_parts", "same_in_both"):  # order matters in NumPy itself
                    return
        if self.depth[name]:
            self.program.features.add("jit of views")
        call = f"{function}({', '.join(given)})"
        if function in PAIRS:
            first, second = self.fresh(), self.fresh()
            self.emit(f"{first}, {second} = {call}", "jit")
            self.names += [first, second]
            self.depth |= {first: PAIRS[function], second: PAIRS[function]}
            if not PAIRS[function] and r.random() < 0.5:
                self.written_alone(r.choice([first, second]))
        else:
            self.add(call, "jit", 1 if function in ("mirrored", "first_of", "turned") else 0)
            if need_write and r.random() < 0.3:
                self.add(call)
                self.written_alone(self.add(f"joined({name})"))

    def written_alone(self, name: str) -> None:
        """The array of a value on which nobody has built: nothing else has to be computed before."""
        self.emit(f"poke({name}, {self.r.randrange(9)})", "writes to arrays of tensors")

    def gradient(self) -> None:
        floats = lambda a: a.dtype == np.float32 and a.size  # noqa: E731
        name = self.pick(floats)
        if name is None:
            return
        array = self.array(name)
        if self.r.random() < 0.4:
            shape = array.shape
            w = self.add(f"zeros({shape}, 'float32')")
            b = self.add(f"zeros({shape}, 'float32')")
            first, second = self.fresh(), self.fresh()
            self.emit(f"{first}, {second} = gradients_of_line({name}, {w}, {b})", "gradients")
            self.names += [first, second]
            self.depth |= {first: 0, second: 0}
            return
        other = self.pick(lambda a: a.shape == array.shape and floats(a) and not np.shares_memory(a, array))
        if other is None or other == name:
            return
        if self.r.random() < 0.3:  # a value that was computed becomes a copy, which is not what it copies
            copy = self.add(f"val({name} + 1)")
            self.emit(f"assign({copy}, {other})")
            self.add(f"gradient_to_copy({copy}, {other})", "gradients")
        else:
            self.add(f"gradient_of_product({name}, {other})", "gradients")

    def moment(self) -> None:
        name = self.pick()
        if name is None:
            return
        if self.r.random() < 0.5:
            others = self.r.sample(self.names, min(len(self.names), self.r.randrange(3)))
            self.emit(f"realize({', '.join(dict.fromkeys([name, *others]))})")
        else:
            self.emit(f"look({name})")

    def forget(self) -> None:
        name = self.r.choice(self.names)
        self.names.remove(name)
        self.emit(f"del {name}")


def make_program(seed: int, length: int = 18) -> Program:
    """The program of a seed."""
    return _Maker(seed, length).program


def main() -> None:
    import argparse
    import collections
    import multiprocessing
    import time

    from tests.programs.state_judge import judged

    parser = argparse.ArgumentParser(description="random programs about memory, against NumPy")
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--stop", action="store_true", help="at the first wrong one")
    given = parser.parse_args()
    features: collections.Counter[str] = collections.Counter()
    wrong = done = 0
    started = time.perf_counter()
    with multiprocessing.get_context("spawn").Pool(given.jobs, maxtasksperchild=2000) as pool:
        for found, message in pool.imap_unordered(judged, range(given.seed, given.seed + given.count), 8):
            features.update(found)
            done += 1
            if message is not None:
                wrong += 1
                print(message, end="\n\n", flush=True)
                if given.stop:
                    break
    told = ", ".join(f"{count} {name}" for name, count in sorted(features.items()))
    print(f"{done} programs, {wrong} wrong, {time.perf_counter() - started:.0f} s; with: {told}")


if __name__ == "__main__":
    main()
