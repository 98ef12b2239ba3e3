"""Large matrices one by one: vectors run along rows; workers share the matrices, if there are several."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from morok import dtype as dt
from morok.codegen.written import Code, Memory, Value
from morok.dtype import DType
from morok.ir.node import make
from morok.ir.ops import AxisKind, Ops
from morok.machine.machine import Machine

PANEL = 8  # columns that are eliminated before the rest hears of it
_AT_ONCE = 4  # vectors, or rows, so that one is computed while others wait


@contextmanager
def each(code: Code, count: int) -> Iterator[Value]:
    """The number of each matrix of a batch."""
    if count == 1:
        yield code.value(0, dt.int64)
        return
    with code.loop(count, AxisKind.THREAD) as number:
        yield number


def pieces(code: Code, count: Any, lanes: int, body: Callable[[Value, int], None]) -> None:
    """body(start, lanes) for pieces of 0 … count - 1: whole vectors, and then what is left one by one."""
    total = code.value(count, dt.int64)
    shift = lanes.bit_length() - 1
    whole = code.put(make(Ops.SHR, dt.int64, (total.node, code.value(shift, dt.int64).node)))
    if lanes > 1:
        with code.loop(whole) as i:
            body(i * lanes, lanes)
        done = whole * lanes
        with code.loop(total - done) as i:
            body(done + i, 1)
    else:
        with code.loop(total) as i:
            body(i, 1)


def dot(
    code: Code, dtype: DType, lanes: int, x: Callable[..., Value], y: Callable[..., Value], count: Any
) -> Value:
    """Σ x(i, lanes) · y(i, lanes) for i below count."""
    total = code.value(count, dt.int64)
    wide = lanes * _AT_ONCE
    shift = wide.bit_length() - 1
    whole = code.put(make(Ops.SHR, dt.int64, (total.node, code.value(shift, dt.int64).node)))
    none = code.value(0.0, dtype)
    sums = [code.register(none.spread(lanes)) for _ in range(_AT_ONCE)]
    with code.loop(whole) as i:
        for n, part in enumerate(sums):
            start = i * wide + n * lanes
            part.set(code.add_product(part.get(), x(start, lanes), y(start, lanes)))
    found = (sums[0].get() + sums[1].get()) + (sums[2].get() + sums[3].get())
    last = code.register(found.total() if lanes > 1 else found)
    done = whole * wide

    def rest(i: Value, width: int) -> None:
        product = x(done + i, width) * y(done + i, width)
        last.set(last.get() + (product.total() if width > 1 else product))

    pieces(code, total - done, lanes, rest)
    return last.get()


def copy(code: Code, lanes: int, target: Memory, to: Any, source: Memory, of: Any, count: Any) -> None:
    pieces(code, count, lanes, lambda i, w: target.store(i + to, source.load(i + of, w)))


def swap(code: Code, lanes: int, a: Memory, p: Value, q: Value, count: Any) -> None:
    """Two stretches of memory, which may be the same."""

    def body(i: Value, w: int) -> None:
        x, y = a.load(p + i, w), a.load(q + i, w)
        a.store(p + i, y)
        a.store(q + i, x)

    pieces(code, count, lanes, body)


# --- LU


def lu(code: Code, machine: Machine, dtype: DType, count: int, rows: int, columns: int, pivot: bool) -> None:
    """(L and U; order of rows; pivots from 0 on; sign; A): numbers of rows are of A's type."""
    turns, lanes = min(rows, columns), machine.lanes(dtype)
    a = code.memory(dtype, count * rows * columns)
    order = code.memory(dtype, count * rows)
    taken = code.memory(dtype, count * turns)
    signs = code.memory(dtype, count)
    source = code.memory(dtype, count * rows * columns)
    with each(code, count) as number:
        base = number * (rows * columns)
        copy(code, lanes, a, base, source, base, rows * columns)
        with code.loop(rows) as i:
            order.store(number * rows + i, i.cast(dtype))
        sign = code.register(code.value(1.0, dtype))
        with code.loop(-(-turns // PANEL)) as block:
            first = block * PANEL
            left = turns - first
            width = (left < PANEL).where(left, PANEL)
            with code.loop(width) as step:
                k = first + step
                p = _pivot(code, a, base, k, rows, columns) if pivot else k
                taken.store(number * turns + k, p.cast(dtype))
                sign.set(p.equals(k).where(sign.get(), -sign.get()))
                if pivot:
                    swap(code, lanes, a, base + k * columns, base + p * columns, columns)
                    swap(code, 1, order, number * rows + k, number * rows + p, 1)
                _eliminate_column(code, a, base, k, first + width, rows, columns)
            _panel_rows(code, lanes, a, base, first, width, columns)
            with code.given(width.equals(PANEL)):
                _trailing(code, lanes, dtype, a, base, first, rows, columns)
        signs.store(number, sign.get())


def _pivot(code: Code, a: Memory, base: Value, k: Value, rows: int, columns: int) -> Value:
    """The row with the largest element of column k, from k on."""
    best = code.register(a.load(base + k * columns + k).abs())
    found = code.register(k)
    with code.loop(rows - 1 - k) as r:
        i = r + k + 1
        size = a.load(base + i * columns + k).abs()
        more = size > best.get()
        best.set(more.where(size, best.get()))
        found.set(more.where(i, found.get()))
    return found.get()


def _eliminate_column(
    code: Code, a: Memory, base: Value, k: Value, end: Value, rows: int, columns: int
) -> None:
    """Multiples of row k, in columns k + 1 … end - 1, taken from the rows below."""
    top = base + k * columns
    head = a.load(top + k)
    safe = head.equals(0.0).where(1.0, head)
    with code.loop(rows - 1 - k) as r:
        row = top + (r + 1) * columns
        factor = a.load(row + k) / safe
        a.store(row + k, factor)
        minus = -factor
        with code.loop(end - 1 - k) as s:
            j = s + k + 1
            a.store(row + j, code.add_product(a.load(row + j), minus, a.load(top + j)))


def _panel_rows(
    code: Code, lanes: int, a: Memory, base: Value, first: Value, width: Value, columns: int
) -> None:
    """Rows of the panel behind it: L⁻¹ of its triangle."""
    behind = first + width
    with code.loop(width) as k, code.loop(width - 1 - k) as r:
        top = base + (first + k) * columns
        row = top + (r + 1) * columns
        minus = -a.load(row + first + k)

        def body(j: Value, w: int, top: Value = top, row: Value = row, minus: Value = minus) -> None:
            at = j + behind
            a.store(row + at, code.add_product(a.load(row + at, w), minus.spread(w), a.load(top + at, w)))

        pieces(code, columns - behind, lanes, body)


def _trailing(
    code: Code, lanes: int, dtype: DType, a: Memory, base: Value, first: Value, rows: int, columns: int
) -> None:
    """A ← A - L U for what is below and behind a whole panel, a few rows at a time."""
    behind = first + PANEL
    under = rows - behind
    whole = code.put(make(Ops.SHR, dt.int64, (under.node, code.value(2, dt.int64).node)))
    tops = [base + (first + k) * columns for k in range(PANEL)]

    def some(row: Value, many: int) -> None:
        starts = [row + n * columns for n in range(many)]
        factors = [[-a.load(start + first + k) for k in range(PANEL)] for start in starts]

        def body(j: Value, w: int) -> None:
            at = j + behind
            upper = [a.load(top + at, w) for top in tops]
            for start, minus in zip(starts, factors, strict=True):
                found = a.load(start + at, w)
                for f, u in zip(minus, upper, strict=True):
                    found = code.add_product(found, f.spread(w), u)
                a.store(start + at, found)

        pieces(code, columns - behind, lanes, body)

    with code.loop(whole) as i:
        some(base + (behind + i * _AT_ONCE) * columns, _AT_ONCE)
    with code.loop(under - whole * _AT_ONCE) as i:
        some(base + (behind + whole * _AT_ONCE + i) * columns, 1)


def lu_solve(code: Code, machine: Machine, dtype: DType, count: int, size: int, wide: int) -> None:
    """(X; L and U, order of rows, B) with A X = B, for columns of B a few vectors at a time."""
    lanes = machine.lanes(dtype)
    x = code.memory(dtype, count * size * wide)
    a = code.memory(dtype, count * size * size)
    order = code.memory(dtype, count * size)
    b = code.memory(dtype, count * size * wide)

    def columns(number: Value, j: Value, vectors: int, w: int) -> None:
        at = [number * (size * wide) + j + n * w for n in range(vectors)]
        # unknowns lie close together: rows of X may be apart by a power of two, which caches dislike
        found = code.local(dtype, size * vectors * w)

        def taken_out(i: Value, start: Value, many: Value, values: list[Value]) -> list[Any]:
            """Values less their row's multiples of unknowns start … start + many - 1."""
            sums = [code.register(v) for v in values]
            row = number * (size * size) + i * size
            with code.loop(many) as r:
                k = start + r
                minus = (-a.load(row + k)).spread(w)
                for n, part in enumerate(sums):
                    part.set(code.add_product(part.get(), minus, found.load((k * vectors + n) * w, w)))
            return sums

        with code.loop(size) as i:
            given = order.load(number * size + i).cast(dt.int64)
            sums = taken_out(i, code.value(0, dt.int64), i, [b.load(p + given * wide, w) for p in at])
            for n, part in enumerate(sums):
                found.store((i * vectors + n) * w, part.get())
        with code.loop(size) as back:
            i = size - 1 - back
            head = a.load(number * (size * size) + i * (size + 1)).spread(w)
            places = [(i * vectors + n) * w for n in range(vectors)]
            sums = taken_out(i, i + 1, back, [found.load(p, w) for p in places])
            for n, (place, part) in enumerate(zip(at, sums, strict=True)):
                value = part.get() / head
                found.store(places[n], value)
                x.store(place + i * wide, value)

    with each(code, count) as number:
        strip = lanes * _AT_ONCE
        whole = wide // strip
        if whole:
            with code.loop(whole) as n:
                columns(number, n * strip, _AT_ONCE, lanes)
        pieces(code, wide - whole * strip, lanes, lambda j, w: columns(number, j + whole * strip, 1, w))


# --- Cholesky


def cholesky(code: Code, machine: Machine, dtype: DType, count: int, size: int) -> None:
    """(L; A), row by row: what is on the left of an element is known."""
    lanes = machine.lanes(dtype)
    target, source = (code.memory(dtype, count * size * size) for _ in range(2))
    with each(code, count) as number, code.loop(size) as i:
        base = number * (size * size)
        row = base + i * size
        with code.loop(i + 1) as j:
            other = base + j * size
            known = dot(
                code,
                dtype,
                lanes,
                lambda k, w: target.load(row + k, w),
                lambda k, w: target.load(other + k, w),
                j,
            )
            left = source.load(row + j) - known
            on = j.equals(i)
            head = on.where(1.0, target.load(other + on.where(code.value(0, dt.int64), j)))
            target.store(row + j, on.where(left.sqrt(), left / head))
        with code.loop(size - 1 - i) as r:
            target.store(row + i + 1 + r, 0.0)
