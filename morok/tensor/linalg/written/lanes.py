"""Many small matrices: a lane of a vector is a matrix, and workers share the batch.

A group of matrices is read into memory of the worker, element by element; all of an algorithm runs there, and
the results go back. What differs between matrices is chosen lane by lane, so that none waits for another.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

from morok.codegen.written import Code, Memory, Value
from morok.dtype import DType
from morok.ir.node import make
from morok.ir.ops import AxisKind, Ops
from morok.machine.machine import Machine


@final
class Grid:
    """A matrix for each lane."""

    def __init__(self, group: Group, rows: int, columns: int) -> None:
        self.rows, self.columns, self._group = rows, columns, group
        self._memory = group.code.local(group.dtype, max(1, rows * columns) * group.lanes)

    def at(self, i: Any, j: Any) -> Value:
        return self._memory.load(self._place(i, j), self._group.lanes)

    def put(self, i: Any, j: Any, value: Any) -> None:
        what = self._group.code.value(value, self._group.dtype).spread(self._group.lanes)
        self._memory.store(self._place(i, j), what)

    def _place(self, i: Any, j: Any) -> Any:
        return (i * self.columns + j) * self._group.lanes


@final
class Group:
    """As many matrices of the batch as there are lanes, from the number `first` on."""

    def __init__(self, code: Code, dtype: DType, lanes: int, first: Value, count: int) -> None:
        self.code, self.dtype, self.lanes = code, dtype, lanes
        # lanes beyond the last matrix compute it once more
        self._numbers = [first + i for i in range(lanes)]
        if count % lanes:
            self._numbers = [(n < count).where(n, count - 1) for n in self._numbers]

    def grid(self, rows: int, columns: int) -> Grid:
        return Grid(self, rows, columns)

    def read(self, source: Memory, target: Grid, rows: int, columns: int, at: int = 0) -> None:
        """A matrix of the batch into a grid, from column `at` on."""
        code = self.code
        bases = [n * (rows * columns) for n in self._numbers]
        with code.loop(rows) as i, code.loop(columns) as j:
            place = i * columns + j
            parts = [source.load(base + place) for base in bases]
            nodes = tuple(part.node for part in parts)
            dtype = self.dtype.vec(self.lanes) if self.lanes > 1 else self.dtype
            both = code.put(make(Ops.VECTORIZE, dtype, nodes)) if self.lanes > 1 else parts[0]
            target.put(i, j + at, both)

    def write(self, target: Memory, rows: int, columns: int, value: Callable[[Value, Value], Value]) -> None:
        """A matrix of the batch, element by element."""
        code = self.code
        bases = [n * (rows * columns) for n in self._numbers]
        with code.loop(rows) as i, code.loop(columns) as j:
            place, found = i * columns + j, value(i, j)
            for lane, base in enumerate(bases):
                target.store(base + place, found.lane(lane) if self.lanes > 1 else found)


def in_groups(code: Code, machine: Machine, dtype: DType, count: int, write: Callable[[Group], None]) -> None:
    """What `write` writes for a group, for all groups of a batch of `count` matrices."""
    lanes = 2 * machine.lanes(dtype)  # two vectors, so that one is computed while the other waits
    with code.loop(-(-count // lanes), AxisKind.THREAD) as group:
        write(Group(code, dtype, lanes, group * lanes, count))


# --- factorisations


def cholesky(code: Code, machine: Machine, dtype: DType, count: int, size: int) -> None:
    """(L; A)."""
    target, source = (code.memory(dtype, count * size * size) for _ in range(2))

    def write(group: Group) -> None:
        a = group.grid(size, size)
        group.read(source, a, size, size)
        with code.loop(size) as k:
            head = a.at(k, k).sqrt()
            a.put(k, k, head)
            with code.loop(size - 1 - k) as r:
                i = r + k + 1
                factor = a.at(i, k) / head
                a.put(i, k, factor)
                with code.loop(r + 1) as s:
                    j = s + k + 1
                    a.put(i, j, code.take_product(a.at(i, j), factor, a.at(j, k)))
            with code.loop(k) as above:
                a.put(above, k, 0.0)
        group.write(target, size, size, a.at)

    in_groups(code, machine, dtype, count, write)


def eliminate(group: Group, a: Grid, count: int, columns: int, sign: Any, pivots: Grid | None) -> None:
    """LU of the first `count` columns, with pivots; columns up to `columns` are changed, all are swapped.

    `pivots` gets the row that each step has taken; the sign of their order goes to the register `sign`.
    """
    code, dtype = group.code, group.dtype
    with code.loop(count) as k:
        best = code.register(a.at(k, k).abs())
        taken = code.register(k.cast(dtype).spread(group.lanes))
        with code.loop(a.rows - 1 - k) as r:
            i = r + k + 1
            size = a.at(i, k).abs()
            more = size > best.get()
            best.set(more.where(size, best.get()))
            taken.set(more.where(i.cast(dtype), taken.get()))
        p = taken.get()
        same = p.equals(k.cast(dtype))
        sign.set(sign.get() * same.where(code.value(1.0, p.dtype), -1.0))
        if pivots is not None:
            pivots.put(k, 0, p)
        with code.loop(a.rows - 1 - k) as r:
            i = r + k + 1
            hit = p.equals(i.cast(dtype))
            with code.loop(a.columns) as j:
                top, here = a.at(k, j), a.at(i, j)
                a.put(k, j, hit.where(here, top))
                a.put(i, j, hit.where(top, here))
        head = a.at(k, k)
        safe = head.equals(0.0).where(1.0, head)
        with code.loop(a.rows - 1 - k) as r:
            i = r + k + 1
            factor = a.at(i, k) / safe
            a.put(i, k, factor)
            with code.loop(columns - 1 - k) as s:
                j = s + k + 1
                a.put(i, j, code.take_product(a.at(i, j), factor, a.at(k, j)))


def lu(code: Code, machine: Machine, dtype: DType, count: int, rows: int, columns: int) -> None:
    """(L and U; (order, pivots from 0 on); sign; A): rows of numbers are of A's type."""
    turns = min(rows, columns)
    packed = code.memory(dtype, count * rows * columns)
    order = code.memory(dtype, count * rows)
    taken = code.memory(dtype, count * turns)
    signs = code.memory(dtype, count)
    source = code.memory(dtype, count * rows * columns)

    def write(group: Group) -> None:
        a, pivots = group.grid(rows, columns + 1), group.grid(turns, 1)
        group.read(source, a, rows, columns)
        with code.loop(rows) as i:
            a.put(i, columns, i.cast(dtype))
        sign = code.register(code.value(1.0, dtype).spread(group.lanes))
        eliminate(group, a, turns, columns, sign, pivots)
        group.write(packed, rows, columns, a.at)
        group.write(order, rows, 1, lambda i, _: a.at(i, columns))
        group.write(taken, turns, 1, pivots.at)
        group.write(signs, 1, 1, lambda i, j: sign.get())

    in_groups(code, machine, dtype, count, write)


def determinant(code: Code, machine: Machine, dtype: DType, count: int, size: int) -> None:
    """(det A, the diagonal of U, the sign of the rows' order; A)."""
    found, diagonal = code.memory(dtype, count), code.memory(dtype, count * size)
    signs, source = code.memory(dtype, count), code.memory(dtype, count * size * size)

    def write(group: Group) -> None:
        a = group.grid(size, size)
        group.read(source, a, size, size)
        sign = code.register(code.value(1.0, dtype).spread(group.lanes))
        eliminate(group, a, size, size, sign, None)
        product = code.register(sign.get())
        with code.loop(size) as k:
            product.set(product.get() * a.at(k, k))
        group.write(found, 1, 1, lambda i, j: product.get())
        group.write(diagonal, size, 1, lambda i, _: a.at(i, i))
        group.write(signs, 1, 1, lambda i, j: sign.get())

    in_groups(code, machine, dtype, count, write)


def solve(code: Code, machine: Machine, dtype: DType, count: int, size: int, wide: int) -> None:
    """(X; A, B) with A X = B."""
    target = code.memory(dtype, count * size * wide)
    source = code.memory(dtype, count * size * size)
    right = code.memory(dtype, count * size * wide)

    def write(group: Group) -> None:
        a = group.grid(size, size + wide)
        group.read(source, a, size, size)
        group.read(right, a, size, wide, size)
        sign = code.register(code.value(1.0, dtype).spread(group.lanes))
        eliminate(group, a, size, size + wide, sign, None)
        with code.loop(size) as back:
            k = size - 1 - back
            head = a.at(k, k)
            with code.loop(wide) as j:
                found = a.at(k, j + size) / head
                a.put(k, j + size, found)
                with code.loop(k) as i:
                    a.put(i, j + size, code.take_product(a.at(i, j + size), found, a.at(i, k)))
        group.write(target, size, wide, lambda i, j: a.at(i, j + size))

    in_groups(code, machine, dtype, count, write)
