"""Large symmetric matrices: a tridiagonal matrix by reflections, and its eigenvalues by rotations (QL).

Rows of M are at last the eigenvectors: M begins as the product of the reflections and is turned, two rows at
a time, along with the tridiagonal matrix. The latter is kept in doubles, its angles cost next to nothing.
"""

from __future__ import annotations

from typing import Any

from morok import dtype as dt
from morok.codegen.written import Code, Memory, Value
from morok.dtype import DType
from morok.machine.machine import Machine
from morok.tensor.linalg.written.rows import copy, dot, each, pieces, swap

_TURNS = 60  # of QL for one eigenvalue, at most; two or three are usual
_NOTHING = 1e-140  # beside a matrix of size 1: squares of what is larger are numbers


def eigh(code: Code, machine: Machine, dtype: DType, count: int, size: int) -> None:
    """(values in ascending order; vectors as rows; working memory; A)."""
    lanes = machine.lanes(dtype)
    values = code.memory(dtype, count * size)
    m = code.memory(dtype, count * size * size)
    a = code.memory(dtype, count * size * size)
    source = code.memory(dtype, count * size * size)
    with each(code, count) as number:
        base = number * (size * size)
        largest = _largest_of(code, source, base, size * size, dtype)
        scale = largest.equals(0.0).where(1.0, largest)

        def scaled(i: Value, w: int) -> None:
            a.store(base + i, source.load(base + i, w) / scale.spread(w))

        pieces(code, size * size, lanes, scaled)
        d, e = code.local(dt.float64, size), code.local(dt.float64, size)
        _tridiagonal(code, lanes, dtype, a, base, size, d, e)
        _reflections(code, lanes, dtype, m, a, base, size)
        _ql(code, lanes, dtype, m, base, size, d, e)
        _sorted(code, lanes, m, base, size, d)
        with code.loop(size) as i:
            values.store(number * size + i, (d.load(i) * scale.cast(dt.float64)).cast(dtype))


def _tridiagonal(
    code: Code, lanes: int, dtype: DType, a: Memory, base: Value, size: int, d: Memory, e: Memory
) -> None:
    """The diagonal to d, what is beside it to e; vectors of reflections of length √2 stay in rows of a.

    Row k holds its vector from column k + 1 on: A' = A - v wᵀ - w vᵀ with w = A v - ½ (vᵀ A v) v.
    """
    v, w = code.local(dtype, size), code.local(dtype, size)
    with code.loop(max(0, size - 2)) as k:
        row = base + k * size
        after = size - 1 - k
        d.store(k, a.load(row + k).cast(dt.float64))
        e.store(k, _vector(code, lanes, dtype, a, row + k + 1, v, after))
        with code.loop(after) as i:  # places in v and w count from k + 1 on
            line = row + (i + 1) * size + k + 1
            found = dot(
                code, dtype, lanes, lambda j, n: a.load(line + j, n), lambda j, n: v.load(j, n), after
            )
            w.store(i, found)
        along = dot(code, dtype, lanes, lambda j, n: v.load(j, n), lambda j, n: w.load(j, n), after) * -0.5

        def middle(j: Value, n: int) -> None:
            w.store(j, code.add_product(w.load(j, n), along.spread(n), v.load(j, n)))

        pieces(code, after, lanes, middle)
        with code.loop(after) as i:
            line = row + (i + 1) * size + k + 1
            left, right = -v.load(i), -w.load(i)

            def change(j: Value, n: int) -> None:
                part = code.add_product(a.load(line + j, n), left.spread(n), w.load(j, n))
                a.store(line + j, code.add_product(part, right.spread(n), v.load(j, n)))

            pieces(code, after, lanes, change)
    for last in range(max(0, size - 2), size):
        place = base + last * (size + 1)
        d.store(last, a.load(place).cast(dt.float64))
        e.store(last, a.load(place + 1).cast(dt.float64) if last < size - 1 else 0.0)


def _vector(code: Code, lanes: int, dtype: DType, a: Memory, row: Value, v: Memory, count: Value) -> Value:
    """The reflection that leaves of a row its first element, which is given back; to v, and into the row."""
    largest = _largest_of(code, a, row, count, dtype)
    unit = largest.equals(0.0).where(1.0, largest)

    def divided(j: Value, n: int) -> None:
        v.store(j, a.load(row + j, n) / unit.spread(n))

    pieces(code, count, lanes, divided)
    head = v.load(0)
    rest = dot(code, dtype, lanes, lambda j, n: v.load(j + 1, n), lambda j, n: v.load(j + 1, n), count - 1)
    flat = rest.equals(0.0)
    length = code.add_product(rest, head, head).sqrt()
    far = (head < 0.0).where(-length, length)
    tip = head + far
    half = flat.where(1.0, code.add_product(rest, tip, tip) * 0.5)
    scale = flat.where(0.0, 1.0 / half.sqrt())
    v.store(0, tip)

    def scaled(j: Value, n: int) -> None:
        x = v.load(j, n) * scale.spread(n)
        v.store(j, x)
        a.store(row + j, x)

    pieces(code, count, lanes, scaled)
    return (flat.where(head, -far) * unit).cast(dt.float64)


def _largest_of(code: Code, x: Memory, start: Value, count: Any, dtype: DType) -> Value:
    found = code.register(code.value(0.0, dtype))
    with code.loop(count) as i:
        size = x.load(start + i).abs()
        found.set((size > found.get()).where(size, found.get()))
    return found.get()


def _reflections(code: Code, lanes: int, dtype: DType, m: Memory, a: Memory, base: Value, size: int) -> None:
    """M = the product of all reflections, the first one on the right; the last comes first."""
    none = code.value(0.0, dtype)
    pieces(code, size * size, lanes, lambda i, n: m.store(base + i, none.spread(n)))
    with code.loop(size) as i:
        m.store(base + i * (size + 1), 1.0)
    turns = max(0, size - 2)
    with code.loop(turns) as back:
        k = turns - 1 - back
        after = size - 1 - k
        v = base + k * size + k + 1
        with code.loop(after) as i:
            line = base + (i + k + 1) * size + k + 1
            along = -dot(
                code, dtype, lanes, lambda j, n: m.load(line + j, n), lambda j, n: a.load(v + j, n), after
            )

            def change(j: Value, n: int) -> None:
                m.store(line + j, code.add_product(m.load(line + j, n), along.spread(n), a.load(v + j, n)))

            pieces(code, after, lanes, change)


# --- QL


def _ql(
    code: Code, lanes: int, dtype: DType, m: Memory, base: Value, size: int, d: Memory, e: Memory
) -> None:
    """d becomes the eigenvalues; all rotations are done to the rows of m as well."""
    tiny = float(dtype.eps) * 0.5
    with code.loop(size) as low:
        active = code.register(1)
        with code.loop(_TURNS), code.loop(active.get()):
            end = code.register(size - 1)
            with code.loop(size - 1 - low) as r:  # the first place where the matrix falls apart
                i = size - 2 - r
                beside = d.load(i).abs() + d.load(i + 1).abs()
                whole = e.load(i).abs() > beside * tiny + _NOTHING
                end.set(whole.where(end.get(), i))
            high = end.get()
            active.set(high.equals(low).where(code.value(0, dt.int64), 1))
            with code.given(high.differs(low)):
                _sweep(code, lanes, dtype, m, base, size, d, e, low, high)


def _length(code: Code, x: Value, y: Value) -> Value:
    return code.add_product(x * x, y, y).sqrt()


def _sweep(
    code: Code,
    lanes: int,
    dtype: DType,
    m: Memory,
    base: Value,
    size: int,
    d: Memory,
    e: Memory,
    low: Value,
    high: Value,
) -> None:
    """One turn of QL with an implicit shift, of rows low … high."""
    one = code.value(1.0, dt.float64)
    beside = e.load(low)
    ratio = (d.load(low + 1) - d.load(low)) / (beside * 2.0)
    far = _length(code, ratio, one)
    g = code.register(d.load(high) - d.load(low) + beside / (ratio + (ratio < 0.0).where(-far, far)))
    sine, cosine, p = (code.register(code.value(x, dt.float64)) for x in (1.0, 1.0, 0.0))
    with code.loop(high - low) as r:
        i = high - 1 - r
        f, b = sine.get() * e.load(i), cosine.get() * e.load(i)
        length = _length(code, f, g.get())
        e.store(i + 1, length)
        none = length.equals(0.0)
        safe = none.where(1.0, length)
        s, c = none.where(0.0, f / safe), none.where(1.0, g.get() / safe)
        here = d.load(i + 1) - p.get()
        t = code.add_product(c * b * 2.0, d.load(i) - here, s)
        p.set(s * t)
        d.store(i + 1, here + p.get())
        g.set(c * t - b)
        sine.set(s)
        cosine.set(c)
        _turn(code, lanes, m, base + i * size, size, c.cast(dtype), s.cast(dtype))
    d.store(low, d.load(low) - p.get())
    e.store(low, g.get())
    e.store(high, 0.0)


def _turn(code: Code, lanes: int, m: Memory, row: Value, size: int, c: Value, s: Value) -> None:
    """(row i, row i + 1) ← (c x - s y, s x + c y)."""

    def body(j: Value, n: int) -> None:
        x, y = m.load(row + j, n), m.load(row + size + j, n)
        cosine, sine = c.spread(n), s.spread(n)
        m.store(row + j, code.take_product(cosine * x, sine, y))
        m.store(row + size + j, code.add_product(cosine * y, sine, x))

    pieces(code, size, lanes, body)


def _sorted(code: Code, lanes: int, m: Memory, base: Value, size: int, d: Memory) -> None:
    """Ascending values, and rows along with them."""
    with code.loop(size) as i:
        best, at = code.register(d.load(i)), code.register(i)
        with code.loop(size - 1 - i) as r:
            j = r + i + 1
            less = d.load(j) < best.get()
            best.set(less.where(d.load(j), best.get()))
            at.set(less.where(j, at.get()))
        swap(code, 1, d, i, at.get(), 1)
        with code.given(at.get().differs(i)):
            swap(code, lanes, m, base + i * size, base + at.get() * size, size)


# --- rotations of any rows, from a good start


def rotate(code: Code, machine: Machine, dtype: DType, count: int, size: int, columns: int) -> None:
    """(rows at right angles, V along with them; rows, V): rotations of pairs, until none has to be turned."""
    lanes = machine.lanes(dtype)
    w, v = code.memory(dtype, count * size * columns), code.memory(dtype, count * size * size)
    rows, others = code.memory(dtype, count * size * columns), code.memory(dtype, count * size * size)
    tiny = float(dtype.eps) * columns**0.5
    with each(code, count) as number:
        base, side = number * (size * columns), number * (size * size)
        copy(code, lanes, w, base, rows, base, size * columns)
        copy(code, lanes, v, side, others, side, size * size)
        squares = code.local(dtype, size)

        def product(p: Value, q: Value) -> Value:
            x, y = base + p * columns, base + q * columns
            return dot(
                code, dtype, lanes, lambda j, n: w.load(x + j, n), lambda j, n: w.load(y + j, n), columns
            )

        active = code.register(1)
        with code.loop(40), code.loop(active.get()):
            active.set(0)
            with code.loop(size) as i:
                squares.store(i, product(i, i))
            with code.loop(size - 1) as p, code.loop(size - 1 - p) as r:
                q = r + p + 1
                pp, qq, pq = squares.load(p), squares.load(q), product(p, q)
                with code.given(pq.abs() > pp.sqrt() * qq.sqrt() * tiny):
                    active.set(1)
                    _turn_pair(code, lanes, (w, v), (base, side), (columns, size), squares, p, q, pq)


def _turn_pair(
    code: Code,
    lanes: int,
    grids: Any,
    bases: Any,
    widths: Any,
    squares: Memory,
    p: Value,
    q: Value,
    pq: Value,
) -> None:
    pp, qq = squares.load(p), squares.load(q)
    zeta = (qq - pp) / (pq * 2.0)
    far = code.add_product(code.value(1.0, pq.dtype), zeta, zeta).sqrt()
    t = (zeta < 0.0).where(code.value(-1.0, pq.dtype), 1.0) / (zeta.abs() + far)
    c = 1.0 / code.add_product(code.value(1.0, pq.dtype), t, t).sqrt()
    s = c * t
    squares.store(p, code.take_product(pp, t, pq))
    squares.store(q, code.add_product(qq, t, pq))
    for memory, base, width in zip(grids, bases, widths, strict=True):
        first, second = base + p * width, base + q * width

        def body(j: Value, n: int, m: Memory = memory, i: Value = first, k: Value = second) -> None:
            x, y, cosine, sine = m.load(i + j, n), m.load(k + j, n), c.spread(n), s.spread(n)
            m.store(i + j, code.take_product(cosine * x, sine, y))
            m.store(k + j, code.add_product(cosine * y, sine, x))

        pieces(code, width, lanes, body)
