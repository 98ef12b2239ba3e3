"""Many small matrices, a lane each: reflections and rotations (QR, eigenvectors, singular values)."""

from __future__ import annotations

from morok.codegen.written import Code, Register, Value
from morok.dtype import DType
from morok.machine.machine import Machine
from morok.tensor.linalg.written.lanes import Grid, Group, in_groups

SWEEPS = 40  # at most; rotations end when nothing is left to turn


def _zero(group: Group) -> Register:
    return group.code.register(group.code.value(0.0, group.dtype).spread(group.lanes))


def _scaled(group: Group, a: Grid) -> Value:
    """The largest element of each matrix, by which it is divided so that squares are numbers; 1 of zeros."""
    code = group.code
    largest = _zero(group)
    with code.loop(a.rows) as i, code.loop(a.columns) as j:
        size = a.at(i, j).abs()
        largest.set((size > largest.get()).where(size, largest.get()))
    scale = largest.get().equals(0.0).where(1.0, largest.get())
    with code.loop(a.rows) as i, code.loop(a.columns) as j:
        a.put(i, j, a.at(i, j) / scale)
    return scale


# --- reflections


def _reflect(group: Group, a: Grid, v: Grid, turns: int, columns: int, sign: Register) -> None:
    """A's upper triangle by reflections, whose vectors of length √2 become columns of v."""
    code = group.code
    with code.loop(turns) as k:
        # the vector does not depend on the column's size: divided by it, no square is lost
        largest = _zero(group)
        with code.loop(a.rows - k) as r:
            size = a.at(r + k, k).abs()
            largest.set((size > largest.get()).where(size, largest.get()))
        unit = largest.get().equals(0.0).where(1.0, largest.get())
        below = _zero(group)
        with code.loop(a.rows - 1 - k) as r:
            x = a.at(r + k + 1, k) / unit
            v.put(r + k + 1, k, x)
            below.set(code.add_product(below.get(), x, x))
        head, rest = a.at(k, k) / unit, below.get()
        flat = rest.equals(0.0)
        length = code.add_product(rest, head, head).sqrt()
        far = (head < 0.0).where(-length, length)  # on the side where nothing cancels
        tip = head + far
        half = flat.where(1.0, code.add_product(rest, tip, tip) * 0.5)
        scale = flat.where(0.0, 1.0 / half.sqrt())
        sign.set(flat.where(sign.get(), -sign.get()))
        with code.loop(k) as i:
            v.put(i, k, 0.0)
        v.put(k, k, tip * scale)
        with code.loop(a.rows - 1 - k) as r:
            i = r + k + 1
            v.put(i, k, v.at(i, k) * scale)
        with code.loop(columns - k) as s:
            _reflect_column(group, a, v, k, s + k)


def _reflect_column(group: Group, a: Grid, v: Grid, k: Value, j: Value) -> None:
    """Column j of a reflected by vector k of v, which is zero above row k."""
    code = group.code
    along = _zero(group)
    with code.loop(a.rows - k) as r:
        i = r + k
        along.set(code.add_product(along.get(), v.at(i, k), a.at(i, j)))
    found = along.get()
    with code.loop(a.rows - k) as r:
        i = r + k
        a.put(i, j, code.take_product(a.at(i, j), found, v.at(i, k)))


def _unreflect(group: Group, q: Grid, v: Grid, turns: int) -> None:
    """The unit matrix with all reflections applied to it, the last one first."""
    code = group.code
    with code.loop(q.rows) as i, code.loop(q.columns) as j:
        q.put(i, j, i.equals(j).where(code.value(1.0, group.dtype), 0.0))
    with code.loop(turns) as back:
        k = turns - 1 - back
        with code.loop(q.columns - k) as s:
            _reflect_column(group, q, v, k, s + k)


def qr(code: Code, machine: Machine, dtype: DType, count: int, rows: int, columns: int, width: int) -> None:
    """(Q, R, det Q; A)."""
    least = min(rows, columns)
    turns = min(rows - 1, columns)
    first, second = code.memory(dtype, count * rows * width), code.memory(dtype, count * least * columns)
    signs, source = code.memory(dtype, count), code.memory(dtype, count * rows * columns)

    def write(group: Group) -> None:
        a, v, q = group.grid(rows, columns), group.grid(rows, max(1, turns)), group.grid(rows, width)
        group.read(source, a, rows, columns)
        sign = code.register(code.value(1.0, dtype).spread(group.lanes))
        _reflect(group, a, v, turns, columns, sign)
        _unreflect(group, q, v, turns)
        group.write(first, rows, width, q.at)
        group.write(second, least, columns, lambda i, j: (j < i).where(code.value(0.0, dtype), a.at(i, j)))
        group.write(signs, 1, 1, lambda i, j: sign.get())

    in_groups(code, machine, dtype, count, write)


# --- rotations


def _angle(group: Group, a: Value, b: Value, c: Value) -> tuple[Value, Value]:
    """(cos, sin) of the rotation that makes (a c; c b) diagonal; a c of zero leaves it as it is."""
    code = group.code
    flat = c.equals(0.0)
    zeta = (b - a) / flat.where(1.0, c * 2.0)
    far = code.add_product(code.value(1.0, group.dtype).spread(group.lanes), zeta, zeta).sqrt()
    t = (zeta < 0.0).where(code.value(-1.0, group.dtype), 1.0) / (zeta.abs() + far)
    t = flat.where(0.0, t)
    cosine = 1.0 / code.add_product(code.value(1.0, group.dtype).spread(group.lanes), t, t).sqrt()
    return cosine, cosine * t


def _turn_rows(group: Group, a: Grid, p: Value, q: Value, cosine: Value, sine: Value) -> None:
    """(row p, row q) ← (c p - s q, s p + c q)."""
    code = group.code
    with code.loop(a.columns) as j:
        x, y = a.at(p, j), a.at(q, j)
        a.put(p, j, code.take_product(cosine * x, sine, y))
        a.put(q, j, code.add_product(cosine * y, sine, x))


def _sort_rows(group: Group, keys: Grid, grids: list[Grid], descending: bool) -> None:
    """Rows of grids in the order of their keys, which are the one column of `keys`."""
    code = group.code
    with code.loop(keys.rows) as i, code.loop(keys.rows - 1 - i) as r:
        j = r + i + 1
        x, y = keys.at(i, 0), keys.at(j, 0)
        swap = (x < y) if descending else (y < x)
        keys.put(i, 0, swap.where(y, x))
        keys.put(j, 0, swap.where(x, y))
        for grid in grids:
            with code.loop(grid.columns) as k:
                x, y = grid.at(i, k), grid.at(j, k)
                grid.put(i, k, swap.where(y, x))
                grid.put(j, k, swap.where(x, y))


def eigh(code: Code, machine: Machine, dtype: DType, count: int, size: int) -> None:
    """(values in ascending order, vectors as columns; A), by rotations of rows and columns of A.

    A pair whose element is small beside both of its diagonal's stays. Sweeps end when all of a group do.
    """
    values, vectors = code.memory(dtype, count * size), code.memory(dtype, count * size * size)
    source = code.memory(dtype, count * size * size)
    tiny = float(dtype.eps) * 0.5

    def write(group: Group) -> None:
        a, v, found = group.grid(size, size), group.grid(size, size), group.grid(size, 1)
        group.read(source, a, size, size)
        scale = _scaled(group, a)
        with code.loop(size) as i, code.loop(size) as j:
            v.put(i, j, i.equals(j).where(code.value(1.0, dtype), 0.0))
        bound = _norm(group, a) * tiny
        active = code.register(1)
        with code.loop(SWEEPS), code.loop(active.get() * (size - 1)) as p:
            # the first pair of a sweep says that there is nothing to do, until one finds something
            active.set(p.equals(0).where(code.value(0, p.dtype), active.get()))
            with code.loop(size - 1 - p) as r:
                q = r + p + 1
                pq = a.at(p, q)
                left = pq.abs() > bound
                with code.given(left.any()):
                    active.set(1)
                    cosine, sine = _angle(group, a.at(p, p), a.at(q, q), left.where(pq, 0.0))
                    _turn_rows(group, a, p, q, cosine, sine)
                    with code.loop(size) as i:
                        x, y = a.at(i, p), a.at(i, q)
                        a.put(i, p, code.take_product(cosine * x, sine, y))
                        a.put(i, q, code.add_product(cosine * y, sine, x))
                    _turn_rows(group, v, p, q, cosine, sine)
        with code.loop(size) as i:
            found.put(i, 0, a.at(i, i) * scale)
        _sort_rows(group, found, [v], False)
        group.write(values, size, 1, found.at)
        group.write(vectors, size, size, lambda i, j: v.at(j, i))

    in_groups(code, machine, dtype, count, write)


def _norm(group: Group, a: Grid) -> Value:
    """The length of all elements as one vector, divided by the number of rows."""
    code = group.code
    total = _zero(group)
    with code.loop(a.rows) as i, code.loop(a.columns) as j:
        x = a.at(i, j)
        total.set(code.add_product(total.get(), x, x))
    return total.get().sqrt() * (1.0 / a.rows)


def svd(code: Code, machine: Machine, dtype: DType, count: int, rows: int, columns: int, width: int) -> None:
    """(U, S, V; A) of matrices with at least as many rows as columns, by rotations of pairs of columns.

    Columns of U that belong to no length are whatever reflections make of them: at right angles.
    """
    left, values = code.memory(dtype, count * rows * width), code.memory(dtype, count * columns)
    right = code.memory(dtype, count * columns * columns)
    source = code.memory(dtype, count * rows * columns)

    def write(group: Group) -> None:
        # rows of w are columns of A, and rows of v those of V
        a, w, v = group.grid(rows, columns), group.grid(columns, rows), group.grid(columns, columns)
        group.read(source, a, rows, columns)
        scale = _scaled(group, a)
        with code.loop(columns) as i, code.loop(rows) as j:
            w.put(i, j, a.at(j, i))
        with code.loop(columns) as i, code.loop(columns) as j:
            v.put(i, j, i.equals(j).where(code.value(1.0, dtype), 0.0))
        _rotate_columns(group, w, v)
        lengths = group.grid(columns, 1)
        with code.loop(columns) as i:
            lengths.put(i, 0, _dot(group, w, i, i).sqrt())
        _sort_rows(group, lengths, [w, v], True)
        with code.loop(columns) as i, code.loop(rows) as j:
            a.put(j, i, w.at(i, j))
        turns = min(rows - 1, columns)
        h, q = group.grid(rows, max(1, turns)), group.grid(rows, width)
        sign = code.register(code.value(1.0, dtype).spread(group.lanes))
        _reflect(group, a, h, turns, columns, sign)
        _unreflect(group, q, h, turns)
        with code.loop(columns) as j:  # reflections leave -1 where a length should be
            turned = (a.at(j, j) < 0.0).where(code.value(-1.0, dtype), 1.0)
            with code.loop(rows) as i:
                q.put(i, j, q.at(i, j) * turned)
        group.write(left, rows, width, q.at)
        group.write(values, columns, 1, lambda i, j: lengths.at(i, j) * scale)
        group.write(right, columns, columns, lambda i, j: v.at(j, i))

    in_groups(code, machine, dtype, count, write)


def _dot(group: Group, w: Grid, p: Value, q: Value) -> Value:
    code = group.code
    total = _zero(group)
    with code.loop(w.columns) as i:
        total.set(code.add_product(total.get(), w.at(p, i), w.at(q, i)))
    return total.get()


def _rotate_columns(group: Group, w: Grid, v: Grid) -> None:
    """Rows of w at right angles, v along with them; the longer of two rows comes first."""
    code, dtype = group.code, group.dtype
    tiny = float(dtype.eps) * w.columns**0.5
    active = code.register(1)
    with code.loop(SWEEPS), code.loop(active.get() * (w.rows - 1)) as p:
        active.set(p.equals(0).where(code.value(0, p.dtype), active.get()))
        with code.loop(w.rows - 1 - p) as r:
            q = r + p + 1
            pp, qq, pq = (_dot(group, w, x, y) for x, y in ((p, p), (q, q), (p, q)))
            left = pq.abs() > pp.sqrt() * qq.sqrt() * tiny
            with code.given(left.any()):
                active.set(1)
                cosine, sine = _angle(group, pp, qq, left.where(pq, 0.0))
                for grid in (w, v):
                    _turn_rows(group, grid, p, q, cosine, sine)
